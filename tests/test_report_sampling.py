"""Public reports of servers that sample, or should."""

import pytest
from case_builder import SGLANG, VOCAB, build_case, make_world
from safetensors.torch import load_file
from test_report_engine import case, flags, told

from eaglelab.checks import findings
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.wiring import FINAL


@pytest.mark.report("sgl-project/sglang#26312", "M")
@pytest.mark.report("SafeAILab/EAGLE#183", "M")
def test_acceptance_at_temperature_1_is_the_targets_probability_of_the_draft(tmp_path):
    """Greedy drafts that are always right are accepted as often as the target samples its own likeliest token. Known answer: the target's
    softmax by transformers' own final states."""
    world = make_world(tmp_path, "llama", 6, seed=1, samples=6, length=30)
    whole = {"drafter": {"draft_vocab": VOCAB}, "config": {"draft_vocab_size": VOCAB}}
    built = build_case(tmp_path / "case", world, slots=[2, 3, 4, FINAL], ids=[1, 2, 3], key=SGLANG, **whole)
    found = {f.id: f for f in findings(Investigation(str(built)), "replay.sampling")}["replay.sampling"]
    lm_head = load_file(world.folder / "model.safetensors")["lm_head.weight"]
    p = []
    for text, prompt, states in zip(world.texts, world.prompts, world.states, strict=True):
        logits = states[FINAL].float() @ lm_head.T  # [T, V]
        own = logits.log_softmax(-1).exp()
        p += [float(own[t + 1, logits[t + 1].argmax()]) for t in range(max(0, prompt - 1), len(text) - 1) if t + 1 < len(text)]
    first = found.numbers["steps"][0]
    assert found.numbers["greedy"] == pytest.approx(1, abs=0.02)
    assert first["p_drafted"] == pytest.approx(sum(p) / len(p), abs=0.01)
    assert first["p_drafted"] < 0.98  # else nothing is shown
    assert 0 < first["overlap"] <= 1


@pytest.mark.report("sgl-project/sglang#39253", "M")
def test_a_verify_pass_that_takes_the_argmax_on_rocm(tmp_path):
    """1,323 of 4,326 answers could not be parsed, 39 where the temperature was honoured."""
    line = f"{flags(3, 1, 4)} --attention-backend aiter"
    found = told(case(tmp_path / "rocm", line, version="0.5.9"), "engine.known")["engine.known.greedy_hip"]
    assert found.status is Status.CANNOT_TELL  # whether the requests sample is not known
    assert "temperature and top-p are ignored" in found.title
    assert "1,323 of 4,326" in found.evidence
    assert "engine.known.greedy_hip" not in told(
        case(tmp_path / "cuda", f"{flags(3, 1, 4)} --attention-backend fa3", version="0.5.9"), "engine.known"
    )
