"""The example against what a real engine counted, and the check's result on it as the README tells it."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from eaglelab.cli import main
from eaglelab.drafter.checkpoint import load_drafter
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.dumps import Sample
from eaglelab.replay import EMBEDDING, Judge, TargetHead, Variant, replay
from eaglelab.target import TensorSource, visit_boundaries
from eaglelab.wiring import FINAL

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
needs_target = pytest.mark.skipif(not (EXAMPLE / "target").is_dir(), reason="the example's target is not fetched (`make target`)")


def float32_sample(request: dict, number: int) -> Sample:
    """The engine's own text, with the target's float32 states at boundaries 3, 16, 28 and final."""
    ids = torch.tensor(request["prompt_token_ids"] + request["token_ids"])
    kept = {}
    visit_boundaries(EXAMPLE / "target", [ids], lambda b, states: kept.update({b: states[0].clone()}), dtype="float32")
    mask = (torch.arange(len(ids)) >= len(request["prompt_token_ids"])).long()
    return Sample(f"request {number}", ids, tuple(kept[b] for b in (3, 16, 28, FINAL)), mask, ("3", "16", "28", "final"))


@needs_target
@pytest.mark.parametrize(("wiring", "feed"), [("right", (0, 1, 2)), ("claimed", (EMBEDDING, 0, 1))])
def test_the_walk_is_what_a_real_engine_counted(wiring, feed):
    """vLLM 0.32, float32, greedy, chains of 3, on the shipped drafter: the same accepted count in every verify step of every request."""
    served = json.loads((EXAMPLE / "served.json").read_text())
    requests = served["requests"][wiring]
    samples = [float32_sample(r, i) for i, r in enumerate(requests)]
    drafter, _ = load_drafter(EXAMPLE / "drafter", device="cpu", dtype="float32")
    tensors = TensorSource(EXAMPLE / "target")
    ids = torch.cat([s.token_ids for s in samples]).unique()
    embed = EmbeddingRows(ids, tensors.embedding_rows(ids), "the target")
    judge = Judge(3, TargetHead(tensors.checkpoint.tensor(tensors.checkpoint.head_name), tensors.norm))
    result = replay(drafter, samples, embed, [Variant(feed)], judge=judge, steps=served["num_speculative_tokens"])[0]
    same = compared = 0
    for outcome, request in zip(result.outcomes, requests, strict=True):
        walk, engine = list(outcome.walk), request["accepted"]
        # The engine's last steps run past the text's end; the walk leaves them out.
        assert len(engine) - 2 <= len(walk) <= len(engine)
        same += sum(a == b for a, b in zip(walk, engine, strict=False))
        compared += len(walk)
    assert compared > 400  # about 500 verify steps
    assert same == compared


def check(capsys, case: Path) -> tuple[int, dict]:
    code = main(["check", str(case), "--json"])
    return code, json.loads(capsys.readouterr().out)


def example_without(tmp_path: Path, *sections: str) -> Path:
    """The example in a folder of its own without some lines of its case."""
    copy = tmp_path / "example"
    copy.mkdir()
    for name in ("dump", "drafter"):
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
    assert_the_claim_is_refuted(*check(capsys, EXAMPLE / "case.toml"))


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
