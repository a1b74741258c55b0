"""The example against what a real engine counted, and the check's result on it as the README tells it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from eaglelab.cli import main
from eaglelab.opened import is_recording
from eaglelab.served import Recording

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
needs_target = pytest.mark.skipif(not (EXAMPLE / "target").is_dir(), reason="the example's target is not fetched (`make target`)")


RECORDINGS = sorted((EXAMPLE / "engine").glob("*.jsonl"))
LENGTHS = {"right": 1.848, "claimed": 1.109, "k5": 1.910}
"""Accept lengths by wiring, and with chains of 5; both engines, float32."""


@pytest.fixture(scope="module")
def predictor():
    """The replay on the target's own float32 states, which it makes once for each text."""
    sys.path.insert(0, str(EXAMPLE.parents[1] / "engines_cpu"))
    try:
        from prediction import Predictor
        from runs import RUNS
    finally:
        sys.path.pop(0)
    predict = Predictor()
    return lambda path: predict(RUNS[path.stem], Recording.load(path))


@needs_target
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.stem)
def test_the_replay_says_what_real_engines_counted(predictor, path):
    """vLLM 0.32 and SGLang 0.5.23, float32, greedy: every verify step of every request (vLLM), every request's histogram (SGLang)."""
    found = predictor(path)
    assert len(found.requests) == 48
    assert [r.index for r in found.requests if not r.equal] == []
    assert found.compared > 1500
    assert found.agrees[0] == found.agrees[1]  # no near-tie in 4,334 tokens
    assert abs(found.predicted.accept_length / found.served.accept_length - 1) < 0.02


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.stem)
def test_a_recording_is_whole(path):
    recording = Recording.load(path)
    assert recording.ended
    assert recording.cut_lines == 0
    assert not recording.failures
    assert [r.sample for r in recording.requests][:10] == [f"rows_0-10/data_{i}.pt" for i in range(10)]
    assert "launch_server" in recording.session.command or "api_server" in recording.session.command


@pytest.mark.parametrize("spaced", ['{"kind": "session", "format": 1}', '{"kind":"session","format":1}', ' { "kind" : "session"}'])
def test_a_recording_is_known_by_its_first_line_however_it_is_spaced(tmp_path, spaced):
    (tmp_path / "r.jsonl").write_text(spaced + "\n")
    assert is_recording(tmp_path / "r.jsonl")


def test_other_json_is_no_recording(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"kind":"request","index":0}\n')
    assert not is_recording(tmp_path / "r.jsonl")


def test_both_engines_wrote_and_counted_the_same():
    """Speculation changes no text, whatever is fed and however many steps; the two engines accept the same drafts."""
    texts = {tuple(r.token_ids for r in Recording.load(path).requests) for path in RECORDINGS}
    assert len(texts) == 1
    for wiring in ("right", "claimed"):
        vllm, sglang = (Recording.load(EXAMPLE / "engine" / f"{engine}-{wiring}.jsonl") for engine in ("vllm", "sglang"))
        assert [r.counts(3) for r in vllm.requests] == [r.counts(3) for r in sglang.requests]


@pytest.mark.parametrize("path", [p for p in RECORDINGS if "tree" not in p.stem], ids=lambda p: p.stem)
def test_accept_lengths_are_those_that_the_readme_tells(path):
    assert Recording.load(path).counts.accept_length == pytest.approx(LENGTHS[path.stem.split("-")[-1]], abs=5e-4)


def check(capsys, case: Path) -> tuple[int, dict]:
    code = main(["check", str(case), "--json"])
    return code, json.loads(capsys.readouterr().out)


def example_without(tmp_path: Path, *sections: str) -> Path:
    """The example in a folder of its own without some lines of its case."""
    copy = tmp_path / "example"
    copy.mkdir()
    for name in ("dump", "drafter", "engine"):
        shutil.copytree(EXAMPLE / name, copy / name)
    for name in ("embedding-rows.safetensors", "sketch.safetensors", "target-config.json"):
        shutil.copyfile(EXAMPLE / name, copy / name)
    lines = (EXAMPLE / "case.toml").read_text().splitlines()
    (copy / "case.toml").write_text("\n".join(line for line in lines if not line.startswith(sections)) + "\n")
    return copy


def status(result: dict, finding: str) -> str:
    return next(f["status"] for f in result["findings"] if f["id"] == finding)


def assert_the_claim_is_refuted(code: int, result: dict) -> None:
    assert code == 1
    assert result["wiring"] == {"dump": [3, 16, 28, "final"], "drafter": [3, 16, 28], "engine": [0, 3, 16]}
    assert status(result, "wiring.claims.slot0") == "fail"
    changes = {c["engine"]: (c["key"], c["value"]) for c in result["verdict"]["changes"]}
    assert changes["sglang==0.5.23"] == ("eagle_config.eagle_aux_hidden_state_layer_ids", [2, 15, 27])
    assert changes["vllm"] == ("eagle_aux_hidden_state_layer_ids", [3, 16, 28])
    assert (result["verdict"]["stage"], result["verdict"]["confidence"]) == ("wiring", "sure")


@needs_target
def test_check_with_the_target(capsys):
    code, result = check(capsys, EXAMPLE / "case.toml")
    assert_the_claim_is_refuted(code, result)
    reached = next(f for f in result["findings"] if f["id"] == "served.expected")
    assert reached["title"].startswith("SGLang 0.5.23 reached 1.09 on 10 of 48 prompts, as predicted for boundaries [0, 3, 16] (1.09)")
    assert reached["evidence"]["numbers"]["fed"]["difference"][0] == 0  # the pass that an answer's end cuts is on neither side
    assert reached["evidence"]["numbers"]["fed"]["verify_steps"]["requests_equal"] == 10
    assert "The server's own counters confirm it: SGLang 0.5.23 reached 1.09 on 10 of 48 prompts" in result["verdict"]["text"]


def test_check_with_the_sketch_alone(capsys, tmp_path):
    assert_the_claim_is_refuted(*check(capsys, example_without(tmp_path, 'path = "target"')))


def test_check_with_neither_target_nor_sketch(capsys, tmp_path):
    code, result = check(capsys, example_without(tmp_path, 'path = "target"', "sketch ="))
    assert code == 1
    assert result["wiring"]["dump"] == [None] * 4
    assert status(result, "wiring.dump") == "cannot_tell"
    assert status(result, "wiring.claims.slot0") == "fail"  # by value: the embedding rows are at hand
    assert status(result, "replay.engine") == "fail"  # and by the replay
    ranking = next(f for f in result["findings"] if f["id"] == "replay.order")
    tied = [r["variant"] for r in ranking["evidence"]["numbers"]["ranking"] if r["tied"]]
    assert "the dump's feed" in tied
    assert next(f for f in result["findings"] if f["id"] == "replay.slots")["evidence"]["numbers"]["hardly_used"] == [0]


def test_held_out_acceptance_is_at_least_a_half():
    """As recorded in training over all 224 held-out samples, and as replayed on the shipped ones."""
    record = json.loads((EXAMPLE / "drafter" / "training.json").read_text())
    assert record["heldout_samples"] == 224
    assert record["history"][-1]["heldout_marginal"][0] >= 0.50


def test_it_stays_under_30_mb():
    shipped = [
        p for p in EXAMPLE.rglob("*") if p.is_file() and "target" not in p.relative_to(EXAMPLE).parts and "__pycache__" not in p.parts
    ]
    assert sum(p.stat().st_size for p in shipped) < 30e6
