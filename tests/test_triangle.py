"""The triangle by numbers: corners of known reports and closed forms, with known gaps."""

import json
import math
from itertools import accumulate
from operator import mul

import pytest

from eaglelab.triangle import REPLAY, SERVER, TRAINER, Corner, Side, triangulate


def chain(rate, steps):
    """Joint rates of steps that are independent."""
    return tuple(accumulate([rate] * steps, mul))


@pytest.mark.report("SafeAILab/EAGLE#264", "X")
def test_an_overfit_drafter_that_is_slow_on_the_server_is_the_engines():
    """Accuracy 0.89 at all seven steps of one sample, replayed the same, and 1.5 on the server: 0.89 + … + 0.89^7 + 1 = 5.51."""
    found = triangulate(
        Corner(TRAINER, chain(0.89, 7), split="train", approximate=True),
        Corner(REPLAY, chain(0.89, 7), split="train"),
        Corner(SERVER, length=1.5),
    )
    expected = 1 + 0.89 * (1 - 0.89**7) / (1 - 0.89)  # the geometric series
    assert found.corner(REPLAY).accept_length == pytest.approx(expected) == pytest.approx(5.51, abs=0.005)
    assert found.gap == "engine"
    assert "5.51" in found.why
    assert "1.50" in found.why


@pytest.mark.report("SafeAILab/EAGLE#264", "X")
def test_without_the_replay_dump_and_engine_are_not_told_apart():
    found = triangulate(Corner(TRAINER, chain(0.89, 7), split="train"), None, Corner(SERVER, length=1.5))
    assert (found.gap, found.missing) == ("cannot tell", (REPLAY,))
    assert "dump or engine" in found.why


def test_steps_in_common():
    """A trainer that unrolls seven steps and a server that drafts three are compared at three."""
    served = (0.70, 0.48, 0.34)
    found = triangulate(Corner(TRAINER, chain(0.7, 7), split="heldout"), Corner(REPLAY, served, split="heldout"), Corner(SERVER, served))
    assert found.steps == 3
    assert found.corner(TRAINER).accept_length == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert found.corner(SERVER).accept_length == pytest.approx(2.52)  # vllm-project/vllm#25961: 2.53 from 0.71, 0.48, 0.34
    assert found.gap == "none"


@pytest.mark.parametrize(
    ("trainer", "replay", "server", "splits", "gap"),
    [
        (0.75, 0.75, 0.75, ("train", "train"), "none"),
        (0.75, 0.75, 0.40, ("train", "train"), "engine"),
        (0.75, 0.30, 0.30, ("train", "train"), "dump"),
        (0.75, 0.30, 0.30, ("heldout", "heldout"), "dump"),
        (0.90, 0.40, 0.40, ("train", "heldout"), "training"),
        (0.15, 0.15, 0.15, ("train", "train"), "training"),
        (0.75, 0.30, 0.30, (None, "train"), "cannot tell"),
        (0.90, 0.70, 0.10, ("train", "heldout"), "engine"),  # the larger of two
        (0.95, 0.35, 0.20, ("train", "heldout"), "training"),
        (0.75, None, 0.30, ("train", None), "cannot tell"),
        (None, 0.75, 0.30, (None, None), "engine"),
        (None, 0.75, 0.75, (None, None), "none"),
        (0.75, 0.75, None, ("train", "train"), "cannot tell"),
    ],
)
def test_where_acceptance_is_lost(trainer, replay, server, splits, gap):
    corners = {
        name: None if rate is None else Corner(name, chain(rate, 3), split=split)
        for name, rate, split in ((TRAINER, trainer, splits[0]), (REPLAY, replay, splits[1]), (SERVER, server, None))
    }
    found = triangulate(**corners)
    assert found.gap == gap
    assert set(found.missing) == {name for name, c in corners.items() if c is None}
    json.dumps(found.to_json(), allow_nan=False)


def test_an_interval_decides_where_there_is_one():
    """2.0 and 1.8 are within 10 %, and apart where both are known to 0.05; and not where they are known to 0.3."""
    one, other = chain(0.6, 3), chain(0.52, 3)

    def with_half(half):
        corners = [Corner(n, j, interval=(1 + sum(j) - half, 1 + sum(j) + half)) for n, j in ((REPLAY, one), (SERVER, other))]
        return triangulate(None, *corners).gap

    assert (with_half(0.05), with_half(0.3)) == ("engine", "none")


def test_pairs_on_the_same_text_decide_before_two_intervals():
    wide = [Corner(n, chain(r, 3), interval=(1.2, 2.8)) for n, r in ((REPLAY, 0.6), (SERVER, 0.5))]
    assert triangulate(None, *wide).gap == "none"
    assert triangulate(None, *wide, served_less=(0.3, 0.2, 0.4)).gap == "engine"
    assert triangulate(None, *wide, served_less=(0.02, 0.01, 0.03)).gap == "none"  # within what bf16 leaves
    assert triangulate(None, *wide, served_less=(0.3, -math.inf, math.inf)).gap == "cannot tell"  # one request


@pytest.mark.report("SafeAILab/EAGLE#179", "C")
def test_a_server_that_is_asked_for_other_text_than_was_trained_on_loses_in_the_training():
    """The replay of the served text agrees with the server, and is far below the replay of the dump's own answers."""
    trainer = Corner(TRAINER, chain(0.8, 3), split="heldout")
    replay, server = Corner(REPLAY, length=1.86, interval=(1.6, 2.1), split="heldout"), Corner(SERVER, length=1.86, interval=(1.6, 2.1))
    as_printed = Side("dump", 0.0, -0.02, 0.02, "step-0 acceptance")
    same, other = (Corner(REPLAY, length=x, interval=(x - 0.2, x + 0.2), split="heldout") for x in (1.95, 2.83))
    found = triangulate(trainer, replay, server, counted_again=as_printed, served_less=(0.0, -0.01, 0.01), dumped=other)
    assert found.gap == "training"
    assert "2.83 on the dump's answers and 1.86 on what was asked of the server" in found.why
    assert triangulate(trainer, replay, server, counted_again=as_printed, served_less=(0.0, -0.01, 0.01), dumped=same).gap == "none"


def test_the_trainers_own_metric_counted_again_decides_before_the_lengths():
    """By other definitions the two lengths differ; counted by the trainer's own they are the same."""
    corners = (Corner(TRAINER, chain(0.8, 3), split="train"), Corner(REPLAY, chain(0.6, 3), split="train"), Corner(SERVER, chain(0.6, 3)))
    assert triangulate(*corners).gap == "dump"
    again = Side("dump", 0.01, -0.02, 0.04, "step-0 acceptance")
    assert triangulate(*corners, counted_again=again).gap == "none"


def test_what_breaks_even_decides_whether_as_trained_is_enough():
    corners = (None, Corner(REPLAY, chain(0.5, 3)), Corner(SERVER, chain(0.5, 3)))
    assert (triangulate(*corners, worth=1.5).gap, triangulate(*corners, worth=2.4).gap) == ("none", "training")


@pytest.mark.parametrize(
    ("split", "served", "gap"),
    [("heldout", 0.1, "engine"), ("heldout", 0.4, "cannot tell"), ("train", 0.1, "cannot tell"), (None, 0.1, "cannot tell")],
)
def test_on_text_of_nobody_knows_whom_only_a_gross_loss_is_the_engines(split, served, gap):
    found = triangulate(None, Corner(REPLAY, chain(0.6, 3), split=split), Corner(SERVER, chain(served, 3)), same_text=False)
    assert found.gap == gap
    assert "harder prompts" in found.why or gap == "engine"


def test_fewer_than_two_corners_are_refused():
    with pytest.raises(ValueError, match=r"needs two of trainer, replay and server .* got none"):
        triangulate(Corner(TRAINER), None, None)
    with pytest.raises(ValueError, match=r"got \['server'\]"):
        triangulate(None, None, Corner(SERVER, length=2.0))


def test_a_mean_alone_cannot_be_cut():
    corner = Corner(SERVER, length=2.4)
    assert corner.cut(2) is corner
    assert Corner(REPLAY, chain(0.5, 3), interval=(1.5, 2.25)).cut(1).interval == pytest.approx(
        (1 + 0.5 / 0.875 * 0.5, 1 + 1.25 / 0.875 * 0.5)
    )


def test_a_server_above_the_replay_of_its_own_text_is_no_weak_drafter():
    """The walk through the served text is what this drafter can reach: more is another drafter's, or the states are of another text."""
    found = triangulate(replay=Corner("replay", (0.02, 0.0)), server=Corner("server", (0.6, 0.2)), served_less=(-0.78, -0.9, -0.6))
    assert found.gap == "cannot tell"
    assert "a server cannot accept more of one text than this drafter does on the right states" in found.why
    within = triangulate(replay=Corner("replay", (0.5, 0.2)), server=Corner("server", (0.51, 0.2)), served_less=(-0.01, -0.02, -0.005))
    assert within.gap == "none"


def test_a_handful_of_passes_is_not_called_as_trained():
    few = Corner("server", (0.5, 0.2), n=49, of="verify passes")
    for replay in ((0.5, 0.2), (0.9, 0.8)):
        found = triangulate(replay=Corner("replay", replay), server=few)
        assert (found.gap, "49 verify passes of the server are too few" in found.why) == ("cannot tell", True)
