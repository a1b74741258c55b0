"""Findings of time and cost on small cases, and what the verdict makes of them."""

import json
import re
from pathlib import Path

import pytest
from trace_builder import LENGTHS, PERIOD, TraceBuilder, cycle, era_trace

from eaglelab.checks import findings
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.timing.setting import Setting
from eaglelab.verdict import verdict

LINE = (
    "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 --speculative-draft-model-path d "
    "--speculative-num-steps {} --speculative-eagle-topk 1 --speculative-num-draft-tokens {}"
)
STORY = "batch,steps,topk,draft_tokens,tok_s,accept_length\n1,0,,,88.8,\n1,2,1,3,94,1.75\n1,3,1,4,90,1.85\n"


@pytest.fixture
def case(tmp_path):
    """case(table=…, trace=…, metrics=…, launch=…) -> Investigation"""

    def make(table=None, trace=None, metrics=None, launch=None, target=None):
        text = '[engine]\nname = "sglang"\nversion = "0.5.23"\n' + (f"launch = {json.dumps(launch)}\n" if launch else "")
        if target is not None:
            (tmp_path / "target.json").write_text(json.dumps(target))
            text += '[target]\nconfig = "target.json"\n'
        text += "[timing]\n"
        for key, content in (("table", table), ("metrics", metrics)):
            if content is not None:
                (tmp_path / f"{key}.txt").write_text(content)
                text += f'{key} = "{key}.txt"\n'
        if trace is not None:
            text += f'trace = "{trace.name}"\n'
        (tmp_path / "case.toml").write_text(text)
        return Investigation(str(tmp_path))

    return make


@pytest.fixture
def cycles(tmp_path):
    """cycles({batch: how many}, gap=…) -> a trace of SGLang 0.5.23 on a device; 162 us of kernels a cycle and a gap behind them."""

    def make(batches, decode=None, gap=0.0):
        b, at = TraceBuilder(), 1000.0
        for batch, count in batches.items():
            for _ in range(count):
                cycle(b, "0.5.23", at, at, batch)
                at += PERIOD + gap
        for _ in range(decode[1] if decode else 0):
            b.span("scheduler.run_batch", at, at + 60)
            b.span(f"step[DECODE bs={decode[0]}]", at + 5, at + 40)
            b.launch(at + 10, "gemm", at + 20, decode[2])
            at += 400
        return b.write(tmp_path / "run-TP-0.trace.json")

    return make


def only(inv, *ids):
    return {f.id: f for f in findings(inv, *ids)}


def test_the_phase_that_dominates_with_its_share(case, cycles):
    found = only(case(trace=cycles({4: 8})), "timing.phases")
    one = found["timing.phases"]
    assert one.status is Status.PASS
    assert one.numbers["shares"]["verify"] == pytest.approx(LENGTHS["verify"] / PERIOD, abs=0.01)
    assert one.title.startswith(
        f"Verify takes {one.numbers['shares']['verify']:.1%} of the cycles' time (median cycle 0.165 ms), by the device's kernels"
    )
    assert set(found) == {"timing.phases"}  # one batch size and a fifth of the cycle: nothing to say of drafting


def test_a_device_that_waits_for_its_host_fails_with_what_to_do(case, cycles):
    one = only(case(trace=cycles({4: 8}, gap=200.0)), "timing.phases")["timing.phases"]
    assert one.status is Status.FAIL
    assert one.numbers["shares"]["host gap"] == pytest.approx(
        (7 * 203.0 + 3.0) / (7 * 365.0 + PERIOD), abs=0.001
    )  # behind the last one nothing waits
    assert "graphs" in one.next


@pytest.mark.report("sgl-project/sglang#40762", "F")
def test_a_draft_that_does_not_grow_is_bound_by_its_launches(case, cycles):
    one = only(case(trace=cycles({1: 6, 16: 6})), "timing.phases")["timing.draft"]
    assert one.title == "Drafting is bound by its launches: it takes 1.00 times as long at batch 16 as at batch 1"
    assert one.status is Status.PASS  # a fifth of the cycle


def test_verify_beside_plain_decode_steps_of_the_same_trace(case, cycles):
    one = only(case(trace=cycles({4: 8}, decode=(4, 4, 80.0)), launch=LINE.format(3, 4)), "timing.verify")["timing.verify"]
    assert one.status is Status.PASS
    assert one.title == "Verifying 4 tokens costs 1.25 plain decode steps at batch 4"  # 90 us and 10 of an all-reduce, against 80


def test_a_verify_pass_below_a_decode_step_is_not_possible(case, cycles):
    one = only(case(trace=cycles({4: 8}, decode=(4, 8, 200.0)), launch=LINE.format(3, 4)), "timing.verify")["timing.verify"]
    assert one.status is Status.CANNOT_TELL
    assert (
        one.title
        == "Verifying 4 tokens costs 0.50 plain decode steps at batch 4, less than is possible: the two were recorded under different conditions"
    )


def test_few_plain_steps_are_not_enough_for_a_fault(case, cycles):
    one = only(case(trace=cycles({4: 8}, decode=(4, 4, 30.0)), launch=LINE.format(3, 4)), "timing.verify")["timing.verify"]
    assert one.status is Status.CANNOT_TELL
    assert one.title.endswith("3.33 plain decode steps at batch 4, of too few passes to be sure that it is too many")


def test_a_fault_at_a_small_batch_is_not_hidden_by_a_larger_one(case, cycles, tmp_path):
    """Batch 4: 16 tokens, read from memory, 2.0 steps. Batch 64: 256 tokens, where the work counts, 2.5."""
    spec = cycles({4: 8, 64: 8})
    folder = tmp_path / "both"
    folder.mkdir()
    spec.rename(folder / "spec-TP-0.json")
    cycles({}, decode=(4, 8, 50.0)).rename(folder / "plain4-TP-0.json")
    cycles({}, decode=(64, 8, 40.0)).rename(folder / "plain64-TP-0.json")
    one = only(case(trace=folder, launch=LINE.format(3, 4)), "timing.verify")["timing.verify"]
    assert one.status is Status.FAIL
    assert one.title == "Verifying 4 tokens costs 2.00 plain decode steps at batch 4"
    assert [r["ratio"] for r in one.numbers["ratios"]] == pytest.approx([2.0, 2.5])


def test_a_verify_pass_dearer_than_its_bytes_fails(case, cycles):
    trace = cycles({4: 8}, decode=(4, 8, 30.0))
    one = only(case(trace=trace, launch=LINE.format(3, 4)), "timing.verify")["timing.verify"]
    assert one.status is Status.FAIL
    assert one.title.startswith("Verifying 4 tokens costs 3.33 plain decode steps")
    moe = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 48, "hidden_size": 2048, "vocab_size": 151936}
    inv = case(trace=trace, launch=LINE.format(3, 4), target=moe | {"num_experts": 128, "num_experts_per_tok": 8})
    one = only(inv, "timing.verify")["timing.verify"]
    assert one.status is Status.PASS  # 16 tokens read up to 82.4 experts where 4 read 29.1
    assert one.numbers["bound"] == pytest.approx((1 - (1 - 1 / 16) ** 16) / (1 - (1 - 1 / 16) ** 4))


def test_without_plain_steps_the_verify_pass_is_not_judged(case, cycles):
    one = only(case(trace=cycles({4: 8})), "timing.verify")["timing.verify"]
    assert one.status is Status.NOT_GIVEN
    assert "without speculation" in one.next


def test_what_lacks_for_the_comparison_is_said(case, cycles):
    """Not to record what is there already."""
    found = only(case(trace=cycles({4: 8}, decode=(2, 8, 75.0)), launch=LINE.format(3, 4)), "timing.verify")["timing.verify"]
    assert found.status is Status.NOT_GIVEN
    assert "verify passes at batch 4 and plain decode steps at batch 2" in found.next
    found = only(case(trace=cycles({4: 8}, decode=(4, 8, 75.0))), "timing.verify")["timing.verify"]
    assert found.next.startswith("`[engine] launch` says how many tokens a pass verifies")


def test_vllm_without_its_scopes_says_nothing_of_drafting_and_what_to_record(case, tmp_path):
    """Verify leads by more than what is unknown, and no part of the rest can be too large: that much is sure."""
    name = "vllm-0.32.0-chain-default-b1.trace.json.gz"
    (tmp_path / name).write_bytes((Path(__file__).parent / "traces" / name).read_bytes())
    found = only(case(trace=tmp_path / name), "timing.phases")
    one, draft = found["timing.phases"], found["timing.draft"]
    assert one.status is Status.PASS
    assert re.match(r"Verify takes 86\.8% of the cycles' time .*; 7\.4% is in no known span and may be of any phase", one.title)
    assert draft.status is Status.CANNOT_TELL
    assert one.next == draft.next
    assert "VLLM_CUSTOM_SCOPES_FOR_PROFILING=1" in one.next


def test_launching_alone_is_no_split(case, cycles):
    path = cycles({4: 8}, decode=(4, 8, 75.0))
    data = json.loads(path.read_text())
    data["traceEvents"] = [e for e in data["traceEvents"] if e["cat"] not in ("kernel", "gpu_memcpy")]
    path.write_text(json.dumps(data))
    inv = case(trace=path, launch=LINE.format(3, 4))
    found = only(inv, "timing.phases", "timing.verify")
    assert {i: f.status for i, f in found.items()} == dict.fromkeys(("timing.phases", "timing.draft"), Status.CANNOT_TELL)
    assert "kernels were not recorded" in found["timing.phases"].title
    with pytest.raises(NotGiven, match="kernels"):
        inv.timing.verify_over_decode()


def test_one_long_wait_is_no_cause(case, cycles):
    """A third of all time in one gap of a cycle out of eight: not what a cycle is like."""
    path = cycles({4: 8})
    data = json.loads(path.read_text())
    for event in data["traceEvents"]:
        if event["ts"] >= 1000.0 + 7 * PERIOD - 15:
            event["ts"] += 5 * PERIOD
    path.write_text(json.dumps(data))
    one = only(case(trace=path), "timing.phases")["timing.phases"]
    assert one.numbers["shares"]["host gap"] > 0.35
    assert one.status is Status.PASS


def test_bars_of_phases_sum_to_the_mean_cycle(case, cycles):
    inv = case(trace=cycles({4: 8}, gap=30.0))
    table = inv.timing.phase_table()
    assert table.pop("cycles").tolist() == [8]
    assert table.sum(axis=1).tolist() == pytest.approx([inv.timing.trace.cycles["wall_ms"].mean()])
    assert list(table.index) == ["batch 4"]


def test_a_trace_without_cycles_cannot_tell(case, tmp_path):
    b = TraceBuilder()
    b.op("aten::mm", 0, 10)
    one = only(case(trace=b.write(tmp_path / "t.json")), "timing.phases")["timing.phases"]
    assert one.status is Status.CANNOT_TELL
    assert "no speculative cycle" in one.title


SCRAPES = "\n".join(
    f'sglang:forward_execution_seconds_total{{category="{name}"}} {value}'
    for now in (
        {"target_verify": 10.0, "eagle_draft": 1.0, "eagle_draft_extend": 1.0},
        {"target_verify": 105.0, "eagle_draft": 4.0, "eagle_draft_extend": 3.0},
    )
    for name, value in now.items()
)


def test_the_servers_own_timers_tell_the_storys_95_per_cent(case):
    one = only(case(metrics=SCRAPES + "\n"), "timing.phases")["timing.timers"]
    assert one.title == "Verify takes 95.0% of the forward passes' time, by the server's own timers"


def test_the_storys_sweep(case):
    """94 tok/s with 2 steps against 88.8: 1.059 times as fast; 3 steps do not stand out of what single runs differ by."""
    inv = case(table=STORY, launch=LINE.format(2, 3))
    assert inv.timing.setting == Setting(2)
    worth = only(inv, "cost.worth")["cost.worth"]
    assert worth.status is Status.PASS
    assert worth.title.startswith("Speculation pays: 2-1-3 is 1.06 times as fast")
    assert worth.numbers["rows"][0]["speedup"] == pytest.approx(1.059, abs=5e-4)
    three = only(case(table=STORY, launch=LINE.format(3, 4)), "cost.worth")["cost.worth"]
    assert three.status is Status.CANNOT_TELL
    best = only(inv, "cost.setting")["cost.setting"]
    assert "2-1-3" in best.title
    assert best.numbers["recommendations"][0]["best"]["name"] == "2-1-3"


def test_a_setting_that_loses_fails_and_the_verdict_is_cost(case):
    rows = "batch,steps,topk,draft_tokens,tok_s,accept_length\n" + "".join(
        f"1,0,,,{base},\n1,3,1,4,{spec},1.86\n" for base, spec in ((222.0, 159.0), (222.5, 160.0), (223.0, 160.5))
    )
    inv = case(table=rows, launch=LINE.format(3, 4))
    found = only(inv, "cost.worth", "cost.setting")
    assert found["cost.worth"].status is Status.FAIL
    assert found["cost.worth"].title.startswith("Speculation does not pay: 3-1-4 runs at 0.72 of no speculation at batch 1")
    assert "breaks even at 2.59" in found["cost.worth"].title
    assert found["cost.setting"].status is Status.FAIL
    assert found["cost.setting"].next == "At batch 1 serve without speculation: leave its flags out."
    healthy = [Finding(i, "The rest is in order", Status.PASS) for i in ("wiring.match", "replay.works")]
    said = verdict([*healthy, *found.values()], inv)
    assert said.stage == "cost"
    assert "does not pay" in said.text


def test_beside_another_fault_cost_comes_behind_it(case):
    inv = case(table=STORY.replace("94", "60").replace("90,", "61,"), launch=LINE.format(3, 4))
    found = only(inv, "cost.worth")
    broken = Finding("drafter.complete", "The drafter's lm_head is missing", Status.FAIL, next="Copy it.")
    said = verdict([broken, *found.values()], inv)
    assert said.stage == "training"
    assert said.text.index("lm_head") < said.text.index("does not pay")


def test_a_trace_alone_tells_what_breaks_even(case, cycles):
    """A plain step begins 400 us after the one before it, a cycle 165 us."""
    one = only(case(trace=cycles({4: 8}, decode=(4, 4, 75.0))), "cost.worth")["cost.worth"]
    (row,) = one.numbers["break_even"]
    assert row["r"] == pytest.approx(row["cycle_ms"] / row["decode_ms"])
    assert (row["cycle_ms"], row["decode_ms"]) == (pytest.approx(0.165), pytest.approx(0.4))
    assert one.title == "By the trace speculation breaks even at accept length 0.41 at batch 4"
    assert one.status is Status.CANNOT_TELL
    assert only(case(trace=cycles({4: 8})), "cost.worth")["cost.worth"].status is Status.NOT_GIVEN


def test_slower_is_said_of_batch_sizes_where_all_is_slower(case):
    table = "batch,steps,tok_s,accept_length\n1,0,100,\n1,3,150,2.5\n1,8,80,2.6\n4,0,300,\n4,3,200,2.5\n"
    title = only(case(table=table), "cost.worth")["cost.worth"].title
    assert title.endswith("; slower at batch 4")
    assert title.startswith("Speculation pays: 3-1-4 is 1.50 times as fast as no speculation at batch 1 (one run each)")


def test_what_is_called_a_gain_is_one_that_is_told(case):
    """3 steps have the larger median and an interval that reaches below 1; 2 steps are surely faster."""
    rows = "".join(f"1,0,{b},\n1,2,{120 + b - 100},2.2\n1,3,{t},2.5\n" for b, t in ((100, 130), (101, 80), (99, 160)))
    worth = only(case(table="batch,steps,tok_s,accept_length\n" + rows), "cost.worth")["cost.worth"]
    assert worth.title.startswith("Speculation pays: 2-1-3 is 1.20 times as fast")


def test_a_noisy_winner_hides_no_sure_one(case):
    rows = "".join(f"1,0,{b}\n1,3,{t}\n" for b, t in ((90, 110), (89, 111), (91, 109))) + "1,2,100\n1,2,130\n"
    best = only(case(table="batch,steps,tok_s\n" + rows, launch=LINE.format(3, 4)), "cost.setting")["cost.setting"]
    assert best.status is Status.PASS
    assert "3-1-4 1.22 x (1.19 to 1.25) is faster than off; 2-1-3 1.28 x may be better, not told" in best.title


def test_a_speedup_above_the_accept_length_is_no_gain(case):
    head = "batch,steps,tok_s,accept_length\n1,0,88.8,\n"
    alone = only(case(table=head + "1,2,940,2.05\n"), "cost.worth", "cost.setting")
    assert alone["cost.worth"].status is alone["cost.setting"].status is Status.CANNOT_TELL
    assert alone["cost.worth"].title.endswith("2-1-3 is 10.59 times as fast at batch 1 with accept length 2.05, more than can be")
    beside = only(case(table=head + "1,2,940,2.05\n1,3,110,2.2\n"), "cost.worth")["cost.worth"]
    assert beside.title.startswith("Speculation pays: 3-1-4 is 1.24 times")


def test_a_table_without_batch_sizes_names_none(case):
    inv = case(table="steps,tok_s,accept_length\n0,100,\n3,150,2.5\n", launch=LINE.format(2, 3))
    worth = only(inv, "cost.worth")["cost.worth"]
    assert "at the table's batch size" in worth.title
    assert "The server runs 2-1-3, which was not measured beside a baseline." in worth.evidence
    assert "batch 1" not in worth.title + worth.evidence


def test_a_single_run_within_what_runs_differ_by_is_no_recommendation(case):
    inv = case(table="batch,steps,tok_s,accept_length\n1,0,100,\n1,3,102,2.5\n", launch=LINE.format(3, 4))
    assert only(inv, "cost.setting")["cost.setting"].status is Status.CANNOT_TELL


def test_the_traces_collectives_reach_the_cases_cost(case, tmp_path):
    """One all-reduce of 10 us in each verify pass of the hand-made cycle."""
    trace = era_trace("0.5.23").write(tmp_path / "run-TP-0.trace.json")
    inv = case(table=STORY, trace=trace)
    assert inv.timing.cost.to_json()["fit"][0]["collectives_ms"] == pytest.approx([0.010, 0.010])
    table = inv.timing.what_ifs().set_index("what if")
    both = table.loc["verify 27% faster, the baseline too"]
    assert both["break-even then"] > table.loc["verify 27% faster", "break-even then"]


def test_a_table_without_a_baseline_cannot_tell(case):
    one = only(case(table="batch,steps,topk,draft_tokens,tok_s,accept_length\n1,3,1,4,160,1.86\n"), "cost.worth")["cost.worth"]
    assert one.status is Status.CANNOT_TELL
    assert "steps 0" in one.next


def test_what_nobody_gave_is_not_given_with_how_to_get_it(case):
    inv = case()
    found = only(inv, "flags", "timing.phases", "timing.verify", "cost.worth", "cost.setting")
    assert {f.status for f in found.values()} == {Status.NOT_GIVEN}
    assert all(f.next for f in found.values())
    assert {k: "sweep" in f.next for k, f in found.items() if k.startswith("cost.")} == {"cost.worth": True, "cost.setting": True}


def test_flags_that_lead_elsewhere_fail_in_the_case(case):
    """The story's line: 1 step and 16 draft tokens with top-k 1 are 2 draft tokens."""
    inv = case(launch=LINE.format(1, 16))
    found = findings(inv, "flags")
    failing = [f for f in found if f.status is Status.FAIL]
    assert inv.timing.flags.effective["num_draft_tokens"] == 2
    assert any("2" in f.title and "16" in f.title + f.claim for f in failing)
    assert inv.timing.setting == Setting(1)


def test_what_ifs_of_the_fastest_setting(case):
    table = case(table=STORY).timing.what_ifs(0.27, 0.3)
    row = table[table["what if"] == "verify 27% faster (at most)"].iloc[0]
    assert row["setting"] == "2-1-3"
    assert row["speedup then"] == pytest.approx(94 / 88.8 / 0.73)  # without a trace all of the cycle is verify
    assert table[table["what if"] == "accept length +0.3"]["speedup then"].iloc[0] == pytest.approx(94 / 88.8 * 2.05 / 1.75)


def test_a_server_below_the_break_even_of_the_measured_runs_does_not_pay(case, tmp_path):
    """The table's runs reach 1.75 where 1.65 breaks even; the server that the case is about counted 1.10."""
    inv = case(table=STORY, launch=LINE.format(2, 3))
    (tmp_path / "metrics.prom").write_text(
        "sglang:spec_verify_calls_total 1000\nsglang:generation_tokens_total 1100\nsglang:spec_accept_length 1.1\n"
    )
    text = (tmp_path / "case.toml").read_text().replace("[timing]", 'counters = "metrics.prom"\n[timing]')
    (tmp_path / "case.toml").write_text(text)
    one = only(Investigation(str(inv.case.root)), "cost.worth")["cost.worth"]
    assert one.status is Status.FAIL
    assert one.title.startswith("As served speculation does not pay: the server reached accept length 1.10, and 2-1-3 breaks even at 1.65")
    assert "another wiring" in one.evidence
