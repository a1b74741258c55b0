"""Public reports of too little or too much training."""

import json

import pytest
from case_builder import write_case

from eaglelab.case import CaseError, open_case
from eaglelab.checks import findings
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.triangle import REPLAY, SERVER, TRAINER, Corner, triangulate

DEEPSPEC = {"0.8": 3.28, "2.3": 3.34, "4.6": 3.34, "7.6": 3.24, "10": 3.18}
"""Epoch -> accept length of its checkpoint, as posted."""


def told(root, lines="", **training):
    root.mkdir(exist_ok=True)
    (root / "train.jsonl").write_text(lines)
    section = training | ({"metrics": "train.jsonl"} if lines else {})
    return {f.id: f for f in findings(Investigation(str(write_case(root, {"training": section}))), "training.metric")}


def lengths(series):
    return "".join(
        json.dumps({"epoch": float(epoch), "accept_len": length, "train/loss": 5 / float(epoch)}) + "\n" for epoch, length in series.items()
    )


@pytest.mark.report("deepseek-ai/DeepSpec#84", "D")
def test_an_accept_length_that_peaks_and_falls_while_the_loss_falls(tmp_path):
    found = told(tmp_path, lengths(DEEPSPEC))["training.course"]
    assert found.status is Status.CANNOT_TELL  # the replay decides
    assert found.title == "accept_len was best at epoch 2.3 (3.34) and fell to 3.18 at epoch 10.0: trained too long"
    assert "3.28, 3.34, 3.34, 3.24, 3.18" in found.evidence
    assert "Replay the checkpoint of epoch 2.3" in found.next
    rising = told(tmp_path / "rising", lengths(dict(zip(DEEPSPEC, sorted(DEEPSPEC.values()), strict=True))))["training.course"]
    assert (rising.status, rising.title) == (Status.PASS, "accept_len ended at 3.34, its best")
    noisy = told(tmp_path / "noisy", lengths({"1": 3.2, "2": 3.4, "3": 3.2, "4": 3.35, "5": 3.3, "6": 3.25}))["training.course"]
    assert noisy.status is Status.PASS  # two falls in a row, within what neighbours differ by
    recovering = told(tmp_path / "recovering", lengths({"1": 3, "2": 3, "3": 3, "4": 3, "5": 2, "6": 2.05}))["training.course"]
    assert recovering.status is Status.PASS  # far below its best, and on its way up again
    rounding = told(tmp_path / "rounding", lengths({"1": 3.002, "2": 3.001, "3": 3.0, "4": 2.999}))["training.course"]
    assert rounding.status is Status.PASS  # falls from the first on, by a thousandth
    assert "training.course" not in told(tmp_path / "few", lengths({"1": 3.3, "2": 3.1, "3": 3.0}))


@pytest.mark.report("sgl-project/SpecForge#128", "D")
def test_50_000_conversations_gave_1_94(tmp_path):
    found = told(tmp_path, samples=50_000)["training.amount"]
    assert (found.status, found.numbers["published"]) == (Status.CANNOT_TELL, [68_000, 532_000])
    assert "1.94" in found.evidence
    assert told(tmp_path / "more", samples=532_000)["training.amount"].status is Status.PASS


@pytest.mark.report("vllm-project/speculators#751", "D")
@pytest.mark.report("SafeAILab/EAGLE#227", "D")
@pytest.mark.parametrize("samples", [100, 5_000])
def test_an_example_is_no_training(tmp_path, samples):
    found = told(tmp_path, samples=samples)["training.amount"]
    assert found.status is Status.FAIL
    assert f"trained on {samples:,} conversations" in found.title
    assert "500,000" in found.next


@pytest.mark.parametrize("samples", [0, -1, True, "50k", 1.5])
def test_numbers_of_conversations_that_are_none(tmp_path, samples):
    write_case(tmp_path, {"training": {"samples": samples}})
    with pytest.raises(CaseError, match=r"\[training\] samples is .*expected a whole number of 1 or more"):
        open_case(tmp_path)


@pytest.mark.report("sgl-project/SpecForge#533", "X")
@pytest.mark.report("sgl-project/SpecForge#455", "X")
@pytest.mark.parametrize(("rate", "steps", "served"), [(0.98, 3, 1 + 0.10 * 3), (0.70, 15, 1.02)])
def test_high_in_training_and_low_in_serving_is_decided_by_the_replay(rate, steps, served):
    """98 % in training and 10 % of the drafted tokens accepted; 70 % and an accept length of 1.02: nobody in the threads replayed."""
    trained = tuple(rate ** (k + 1) for k in range(steps))
    trainer, server = Corner(TRAINER, trained, split="train", approximate=True), Corner(SERVER, length=served)
    untold = triangulate(trainer, None, server)
    assert (untold.gap, untold.missing) == ("cannot tell", (REPLAY,))
    assert triangulate(trainer, Corner(REPLAY, trained, split="train"), server).gap == "engine"
    low = Corner(REPLAY, tuple(0.1 ** (k + 1) for k in range(steps)), split="train")
    assert triangulate(trainer, low, server).gap == "dump"
