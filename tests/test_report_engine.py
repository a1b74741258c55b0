"""Public reports of launch flags, of an engine's version and of what it does at run time."""

import json

import pytest
from case_builder import write_case
from test_capabilities import QWEN3_DRAFTER, QWEN3_TARGET, SPECULATORS
from test_flags import BARE, CHAIN, EAGLE3, LLAMA, found, look

from eaglelab.checks import findings
from eaglelab.cli import main
from eaglelab.engines.lint import lint
from eaglelab.findings import Status
from eaglelab.investigation import Investigation

VL = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "num_hidden_layers": 28, "hidden_size": 3584, "vocab_size": 152064}
VL["vision_config"] = {"hidden_size": 1280}


def flags(steps, topk, tokens):
    return f"{BARE} --speculative-num-steps {steps} --speculative-eagle-topk {topk} --speculative-num-draft-tokens {tokens}"


def case(root, launch="", log="", version="0.5.23", name="sglang", target=LLAMA, **engine):
    root.mkdir(parents=True, exist_ok=True)
    for file, content in (("target.json", target), ("drafter.json", EAGLE3)):
        (root / file).write_text(json.dumps(content))
    (root / "server.log").write_text(log)
    given = {"name": name, "version": version, "draft_config": "drafter.json"} | ({"launch": launch} if launch else {})
    return write_case(root, {"target": {"config": "target.json"}, "engine": given | ({"log": "server.log"} if log else {}) | engine})


def told(root, *ids):
    return {f.id: f for f in findings(Investigation(str(root)), *ids)}


# -- flags ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.report("sgl-project/sglang#8228", "FH")
def test_2_steps_and_2_draft_tokens_waste_a_step_or_are_overridden():
    """The root counts: (2, 1, 2) asks for one drafted token of two. Later versions verify 3 tokens whatever the line says."""
    finding = found(flags(2, 1, 2))["flags.draft_tokens"]
    assert finding.numbers == {"asked": 2, "in_force": 3, "steps": 2}
    assert finding.status is Status.FAIL
    assert look(flags(2, 1, 3)).effective["num_draft_tokens"] == 3
    assert "flags.draft_tokens" not in found(flags(2, 1, 3))


@pytest.mark.report("sgl-project/sglang#24054", "F")
def test_a_tree_that_asks_for_more_than_it_grows():
    """Pool = topk + (steps - 1) topk^2: (1, 2, 8) has 2 candidates for the 7 that are asked."""
    finding = found(flags(1, 2, 8))["flags.tree"]
    assert finding.numbers == {"candidates": 2 + 0 * 4, "asked": 8}
    assert finding.status is Status.FAIL


@pytest.mark.report("SafeAILab/EAGLE#298", "E")
def test_a_tree_above_the_captured_batch():
    """6-10-32 with graphs up to a batch of 2, eight requests running."""
    line = f"{flags(6, 10, 32)} --cuda-graph-max-bs 2"
    finding = found(line, "sglang==0.5.9", running=8)["flags.cuda_graph"]
    assert (finding.status, finding.numbers) == (Status.FAIL, {"running": 8, "largest": 2})
    assert "8 or more" in finding.next


@pytest.mark.report("sgl-project/SpecForge#310", "FGL")
def test_a_vision_target_on_a_broken_version_with_a_meaningless_number_of_draft_tokens(tmp_path):
    """Accept length 1.037 on 0.5.5.post3 where 0.5.4 reached 2.195, with 4-1-24: two findings, and what others reached."""
    line, log = flags(4, 1, 24), "\n".join(decode(i, 1.0 + 0.01 * (i % 8)) for i in range(30))
    bad = told(case(tmp_path / "bad", line, log, "0.5.5.post3", target=VL), "flags", "engine.known", "served.acceptance")
    assert bad["flags.draft_tokens"].numbers == {"asked": 24, "in_force": 5, "steps": 4}
    known = bad["engine.known.vl_0_5_5"]
    assert known.status is Status.FAIL
    assert "SpecForge#310" in known.evidence
    assert f"{2.195:.2f} for Qwen2.5-VL-7B" in bad["served.acceptance"].evidence
    assert "barely more than the 1.00" in bad["served.acceptance"].title
    good = told(case(tmp_path / "good", line, version="0.5.4", target=VL), "engine.known")
    assert "engine.known.vl_0_5_5" not in good


@pytest.mark.report("sgl-project/sglang#14063", "GL")
def test_the_overlapped_path_of_a_vision_target(tmp_path):
    """Accept length 2.14 on the v2 path, 3.18 on v1: 147.0 against 198.1 tok/s."""
    hit = told(case(tmp_path / "v2", f"SGLANG_ENABLE_SPEC_V2=1 {flags(4, 1, 5)}", version="0.5.6", target=VL), "engine.known")
    assert "sglang#14063" in hit["engine.known.vl_spec_v2"].evidence
    assert "engine.known.vl_spec_v2" not in told(
        case(tmp_path / "text", f"SGLANG_ENABLE_SPEC_V2=1 {flags(4, 1, 5)}", version="0.5.6"), "engine.known"
    )


@pytest.mark.report("vllm-project/vllm#50514", "G")
def test_pipeline_stages_that_hold_the_tapped_layers(tmp_path):
    finding = found(f"{BARE} {CHAIN} --pp-size 2")["flags.pipeline"]
    assert (finding.status, "--pp-size 1" in finding.next) == (Status.FAIL, True)
    line = (
        'vllm serve m --pipeline-parallel-size 2 --speculative-config \'{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}\''
    )
    known = told(case(tmp_path / "vllm", line, version="0.26.0", name="vllm"), "engine.known")
    assert "vllm#50514" in known["engine.known.pipeline_slots"].evidence


# -- logs -----------------------------------------------------------------------------------------------------------------------------


def decode(i, length, running=1, graph=True, tok_s=100.0, tokens=4):
    return (
        f"[2026-03-01 10:{i // 6 % 60:02}:{i % 6 * 10:02}] Decode batch, #running-req: {running}, #token: 900, token usage: 0.01, accept len: "
        f"{length:.2f}, accept rate: {(length - 1) / (tokens - 1):.2f}, cuda graph: {graph}, gen throughput (token/s): {tok_s:.2f}, #queue-req: 0"
    )


@pytest.mark.report("sgl-project/sglang#4247", "F")
def test_one_accept_length_at_two_speeds_is_no_fault_of_the_drafter(tmp_path, capsys):
    """276.30 tok/s at 5.36 without graphs, 378.57 at 5.39 with them: the pass took 19.4 ms and takes 14.2."""
    passes = {}
    for tok_s, length, graph in ((276.30, 5.36, False), (378.57, 5.39, True)):
        lines = "\n".join(decode(i, length + 0.02 * (i % 3 - 1), graph=graph, tok_s=tok_s, tokens=9) for i in range(30))
        seen = told(case(tmp_path / str(graph), flags(8, 1, 9), f"{lines}\n"), "served.acceptance", "served.log")
        assert seen["served.acceptance"].numbers["accept_length"] == pytest.approx(length, abs=0.02)
        assert seen["served.log.graphs"].status is (Status.PASS if graph else Status.FAIL)
        assert main(["cost", "--numbers", str(tok_s), str(length), "100", "--json"]) == 0
        passes[graph] = json.loads(capsys.readouterr().out)["rows"][0]["pass_ms"]
    assert passes == {False: pytest.approx(1000 * 5.36 / 276.30), True: pytest.approx(1000 * 5.39 / 378.57)}


@pytest.mark.report("vllm-project/vllm#50438", "EG")
@pytest.mark.parametrize(
    ("share", "usage", "waiting", "status"),
    [(0.0, 0.26, 0, Status.PASS), (72.7, 0.26, 0, Status.PASS), (72.7, 0.98, 0, Status.PASS), (72.7, 0.98, 6, Status.CANNOT_TELL)],
)
def test_prefix_hits_and_a_full_cache(tmp_path, share, usage, waiting, status):
    """Hits 0 % with EAGLE and 72.7 % without it; accept length 4.80 all the while."""
    spec = "SpecDecoding metrics: Mean acceptance length: 3.00, Accepted throughput: 20.00 tokens/s, Drafted throughput: 30.00 tokens/s, Accepted: 200 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.800, 0.700, 0.500, Avg Draft acceptance rate: 66.7%"
    lines = [
        line
        for i in range(20)
        for line in (
            f"INFO 06-01 22:{i:02}:02 [loggers.py:271] Engine 000: Avg prompt throughput: 908.0 tokens/s, Avg generation throughput: 30.0 tokens/s, "
            f"Running: 30 reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage:.1%}, Prefix cache hit rate: {share:.1f}%",
            f"INFO 06-01 22:{i:02}:02 [metrics.py:101] {spec}",
        )
    ]
    found = told(case(tmp_path, log="\n".join(lines) + "\n", name="vllm", version="0.32.0"), "served.caches")["served.caches"]
    assert found.status is status
    assert found.numbers["highest"] == pytest.approx(usage)
    assert found.numbers["prefix_hit"] == pytest.approx(share / 100)
    assert ("with speculation off and compare" in found.next) is (share == 0)
    assert ("12.4 s" in found.evidence) is (share == 0)


# -- context --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.report("sgl-project/sglang#6783", "K")
def test_a_head_of_2048_positions_under_a_target_of_131072():
    """lmsys' Llama-3.3-70B head: beyond 2k tokens slower than without it."""
    target, short = {**QWEN3_TARGET, "max_position_embeddings": 131072}, {**QWEN3_DRAFTER, "max_position_embeddings": 2048}
    finding = {f.id: f for f in lint(short, "sglang==0.5.23", target)}["config.max_position_embeddings"]
    assert finding.numbers == {"drafter": 2048, "served": 131072}
    assert "not trained beyond its own length" in finding.next


@pytest.mark.report("vllm-project/speculators#684", "K")
def test_a_drafters_sliding_window_that_the_engine_does_not_apply():
    """2.295 at 2k falls to 1.084 at 20k without a window; with one it holds, where the engine applies it."""
    layer = SPECULATORS["transformer_layer_config"] | {
        "sliding_window": 2048,
        "layer_types": ["sliding_attention"],
        "use_sliding_window": True,
    }
    finding = {f.id: f for f in lint({**SPECULATORS, "transformer_layer_config": layer}, "sglang==0.5.23", QWEN3_TARGET)}
    assert "config.sliding_window" in finding
    assert "not over the window of training" in finding["config.sliding_window"].title
