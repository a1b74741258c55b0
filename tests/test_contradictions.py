"""Cases in which two witnesses disagree, or one says little: the tool must not be sure of what is false."""

import json

import pytest
import torch
from case_builder import build_case, make_world
from test_verdict_draws import investigate

from eaglelab.checks import wirings
from eaglelab.findings import Status
from eaglelab.wiring import FINAL


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), num_layers=6)


def test_a_feed_named_in_another_order_is_not_blamed_on_the_engine(world, tmp_path):
    """The dump holds 5, 3, 1; the drafter was trained on 1, 3, 5, and the engine feeds 1, 3, 5: serving is right."""
    case = build_case(tmp_path, world, slots=[5, 3, 1, FINAL], feed=[2, 1, 0, 3], ids=[0, 2, 4], engine=("sglang", "0.5.23"))
    file = next(p for p in (case, case / "case.toml") if p.is_file())
    file.write_text("\n".join(line for line in file.read_text().splitlines() if not line.startswith("feed")) + "\n")
    inv, findings, by_id, said = investigate(case)
    assert by_id["replay.order"].status is Status.FAIL
    assert said.stage == "dump"
    assert said.changes == ()
    assert "the config is right" in said.text
    assert wirings(inv, findings)["drafter"] == [1, 3, 5]


def test_samples_unlike_the_rest_are_named(world, tmp_path):
    """Half of the samples have two slots swapped: the identity cannot be that of all, and nothing is sure."""

    def swap(sample, i):
        if i >= 4:
            states = sample["hidden_states"]
            states[0], states[2] = states[2], states[0]

    case = build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], engine=("sglang", "0.5.23"), spoil=swap)
    _, _, by_id, said = investigate(case)
    assert by_id["wiring.dump"].status is not Status.PASS
    assert (said.stage, said.confidence) != ("none found", "sure")


def test_another_revision_of_the_target_is_said(world, tmp_path):
    generator = torch.Generator().manual_seed(0)

    def noisy(sample, i):
        for h in sample["hidden_states"]:
            noise = torch.randn(h.shape, generator=generator)
            h += 0.25 * h.norm(dim=-1, keepdim=True) * noise / noise.norm(dim=-1, keepdim=True)

    case = build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], engine=("sglang", "0.5.23"), spoil=noisy)
    _, _, by_id, said = investigate(case)
    if by_id["wiring.dump"].status is Status.PASS:  # named by margin, and yet not these values
        assert by_id["wiring.target"].status is Status.CANNOT_TELL
    assert said.confidence != "sure"


@pytest.mark.parametrize("samples", [1, 3])
def test_few_samples_make_nothing_sure(world, tmp_path, samples):
    case = build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], engine=("sglang", "0.5.23"))
    from eaglelab.checks import run_checks
    from eaglelab.investigation import Investigation
    from eaglelab.verdict import verdict

    inv = Investigation(str(case), max_samples=samples)
    findings = list(run_checks(inv))
    assert verdict(findings, inv).confidence != "sure"
    assert wirings(inv, findings)["drafter"] is None
    assert json.dumps([f.to_json() for f in findings])  # no NaN, no infinity
