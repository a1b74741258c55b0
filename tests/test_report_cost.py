"""Public reports of what a verify pass and a draft cost."""

import json

import pytest
from trace_builder import LENGTHS, PERIOD, TraceBuilder, cycle

from eaglelab.checks import findings
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.timing.cost import cost_notes, cost_rows
from eaglelab.timing.measured import read_measured
from eaglelab.timing.predict import recommend


def table(tmp_path, *lines):
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    return read_measured(tmp_path / "runs.csv")


@pytest.mark.report("vllm-project/vllm#12755", "E")
def test_a_gain_that_falls_with_the_load_while_acceptance_is_flat(tmp_path):
    """1.63 times as fast at one request a second, 1.18 times at two; 81 to 82 % of the drafted tokens accepted at both."""
    runs = table(tmp_path, "batch,steps,tok_s,accept_length", "1,0,100,", "1,1,163,1.813", "2,0,200,", "2,1,236,1.823")
    rows = {r.measured.batch: r for r in cost_rows(runs) if not r.measured.setting.off}
    assert {b: r.speedup for b, r in rows.items()} == {1: pytest.approx(1.63), 2: pytest.approx(1.18)}
    assert rows[1].break_even == pytest.approx(1.813 / 1.63)  # 1.11 tokens a pass are enough
    assert rows[2].break_even == pytest.approx(1.823 / 1.18)  # 1.54 are needed: the pass grew, not the drafter worse


@pytest.mark.report("vllm-project/vllm#4840", "E")
def test_a_draft_that_does_not_shrink_with_more_ranks(tmp_path):
    """opt-30b with opt-125m on 1, 2 and 4 A100: 4.62, 6.10, 6.23 s; without it 5.63, 3.60, 2.42 s. One baseline for each number of ranks."""
    alone, drafted = {1: 5.63, 2: 3.60, 4: 2.42}, {1: 4.62, 2: 6.10, 4: 6.23}
    lines = [f"{tp},1,{steps},{100 / seconds[tp]}" for tp in alone for steps, seconds in ((0, alone), (3, drafted))]
    runs = table(tmp_path, "tp,batch,steps,tok_s", *lines)
    speed = {r.measured.place["tp"]: r.speedup for r in cost_rows(runs) if not r.measured.setting.off}
    assert speed == {str(tp): pytest.approx(alone[tp] / drafted[tp]) for tp in alone}
    best = {tp: recommend(runs, group=f"tp {tp}")[0].best.setting.name for tp in alone}
    assert best == {1: "3-1-4", 2: "off", 4: "off"}


@pytest.mark.report("sgl-project/sglang#6949", "E")
@pytest.mark.parametrize(("extra", "status"), [(0.0, Status.PASS), (60.0, Status.FAIL)])
def test_a_sort_of_the_vocabulary_in_every_verify_pass(tmp_path, extra, status):
    """top-p renormalised by sorting: with 30 % of the cycle in sampling the finding says where it goes."""
    b, at = TraceBuilder(), 1000.0
    for _ in range(8):
        cycle(b, "0.5.23", at, at)
        if extra:
            b.launch(at + 72.0, "void at::native::radixSortKVInPlace<2, -1, 128, 32, float, long>", at + PERIOD - 3, extra)
        at += PERIOD + extra
    b.write(tmp_path / "run-TP-0.trace.json")
    (tmp_path / "case.toml").write_text('[engine]\nname = "sglang"\nversion = "0.5.23"\n[timing]\ntrace = "run-TP-0.trace.json"\n')
    found = {f.id: f for f in findings(Investigation(str(tmp_path)), "timing.phases")}["timing.phases"]
    assert found.status is status
    assert found.numbers["shares"]["sampling"] == pytest.approx((LENGTHS["sampling"] + extra) / (PERIOD + extra), abs=0.02)
    assert ("top-p" in found.next) is bool(extra)


@pytest.mark.report("vllm-project/vllm#52536", "H")
def test_random_tokens_understate_a_gain(tmp_path):
    flags = {"model_path": "m", "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
    flags["speculative_num_draft_tokens"] = 4
    one = {
        "backend": "sglang",
        "max_concurrency": 4,
        "output_throughput": 900.0,
        "concurrency": 3.9,
        "accept_length": 1.4,
        "server_info": flags,
    }
    notes = {}
    for name in ("random", "sharegpt"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(one | {"dataset_name": name}) + "\n")
        notes[name] = " ".join(cost_notes(read_measured(tmp_path / f"{name}.jsonl")))
    assert "the prompts of random are random tokens" in notes["random"]
    assert "random tokens" not in notes["sharegpt"]


@pytest.mark.report("sgl-project/SpecForge#339", "E")
def test_what_breaks_even_is_printed_beside_what_was_reached(tmp_path):
    """3.2 tokens a pass and slower than without: 8-8-60 needs 4.01."""
    runs = table(tmp_path, "batch,steps,topk,draft_tokens,tok_s,accept_length", "1,0,,,222.47,", "1,8,8,60,177.5,3.2")
    (tmp_path / "case.toml").write_text('[timing]\ntable = "runs.csv"\n')
    found = {f.id: f for f in findings(Investigation(str(tmp_path)), "cost.worth")}["cost.worth"]
    assert found.status is Status.FAIL
    (row,) = (r for r in cost_rows(runs) if not r.measured.setting.off)
    assert round(row.break_even, 2) == 4.01
    assert "4.01" in f"{found.title} {found.evidence}"
    assert "3.2" in f"{found.title} {found.evidence}"
