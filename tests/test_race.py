"""The race of variants: who is far behind leaves, who may be the best stays, and what is said of both is what the full rows would say."""

import importlib

import numpy as np
import pytest
import torch
from tiny_drafters import H, V, tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.dumps import Sample
from eaglelab.replay import Replay, SampleOutcome, Variant, difference, race, rank, replay
from eaglelab.replay.answers import Judge, TargetHead
from eaglelab.replay.race import beginning, rough

racing = importlib.import_module("eaglelab.replay.race")  # the package's own name is the function
ANSWER, PROMPT, SAMPLES = 120, 10, 12


def texts(count=SAMPLES, answer=ANSWER):
    mask = (torch.arange(PROMPT + answer) >= PROMPT).long()
    return [Sample(f"s{i:02}", torch.zeros(PROMPT + answer, dtype=torch.long), (), mask, ()) for i in range(count)]


class Drawn:
    """Replays whose rows are right by chance: rates by variant, the same draws for the beginning of a text as for all of it."""

    def __init__(self, rates, seed=0):
        rng = np.random.default_rng(seed)
        self.variants = [Variant((i,), label=f"v{i}") for i in range(len(rates))]
        hard = rng.normal(0, 0.05, (SAMPLES, 1))  # some samples are harder than others, for everybody
        self.right = {v: rng.random((SAMPLES, ANSWER)) < rate + hard for v, rate in zip(self.variants, rates, strict=True)}
        self.ran = []

    def __call__(self, variants, samples):
        self.ran.append((len(variants), sum(len(s.token_ids) for s in samples)))
        return [Replay(v, 1, tuple(self.outcome(v, i, s) for i, s in enumerate(samples)), "the text's token", True) for v in variants]

    def outcome(self, variant, i, sample):
        rows = np.arange(len(sample.token_ids) - PROMPT)
        right = self.right[variant][i : i + 1, : len(rows)]
        nothing = np.zeros_like(right)
        return SampleOutcome(sample.key, rows, np.ones_like(right), right, nothing, right.astype(np.int32), None, None, None, None, (0, 0))


def test_those_far_behind_run_the_beginning_alone():
    drawn, samples = Drawn([0.5, 0.49, 0.1, 0.05, 0.1]), texts()
    ranking, replays = race(drawn, drawn.variants, samples, always=[0, 4])
    assert ranking.left == 2
    assert drawn.ran == [(5, SAMPLES * (PROMPT + ANSWER // 3 + 1)), (3, SAMPLES * (PROMPT + ANSWER))]
    assert [r.counts.counted[0] for r in replays] == [SAMPLES * n for n in (120, 120, 41, 41, 120)]
    whole = rank([Drawn([0.5, 0.49, 0.1, 0.05, 0.1])(drawn.variants, samples)[i] for i in (0, 1, 4)])
    assert ranking.table["acceptance"].tolist()[:3] == whole.table["acceptance"].tolist()
    assert set(ranking.tied) == {0, 1}
    assert sorted(ranking.order) == [0, 1, 2, 3, 4]
    assert set(ranking.order[3:]) == {2, 3}
    assert not ranking.table["tied"][3:].any()


def test_a_short_text_is_not_raced():
    drawn = Drawn([0.5, 0.1])
    ranking, _ = race(drawn, drawn.variants, texts(5))
    assert (ranking.left, len(drawn.ran)) == (0, 1)


def test_equals_rarely_leave():
    """Of 24 equal variants one would leave by chance in about 1 % of races (the first look's level)."""
    races = 100
    left = 0
    for seed in range(races):
        drawn = Drawn([0.4] * 24, seed)
        left += race(drawn, drawn.variants, texts(), always=())[0].left > 0
    assert left <= 5


def test_a_pair_is_compared_on_the_rows_that_both_ran():
    drawn, samples = Drawn([0.5, 0.1]), texts()
    _, (base, out) = race(drawn, drawn.variants, samples)
    short = [beginning(s) for s in samples]
    assert out.counts.counted[0] < base.counts.counted[0]
    assert difference(base, out) == difference(*drawn(drawn.variants, short))
    assert difference(out, base)[0] == pytest.approx(-difference(base, out)[0])


def test_replays_of_other_samples_are_not_paired():
    drawn, samples = Drawn([0.5, 0.1]), texts()
    one, other = drawn(drawn.variants, samples)[0], drawn(drawn.variants, samples[1:])[1]
    with pytest.raises(ValueError, match="different samples cannot be paired"):
        difference(one, other)


def test_the_beginning_ends_with_a_trained_token():
    sample = texts(1)[0]
    assert len(beginning(sample).token_ids) == PROMPT + ANSWER // 3 + 1
    nothing = Sample("s", sample.token_ids, (), torch.zeros_like(sample.token_ids), ())
    assert beginning(nothing) is nothing


@pytest.mark.parametrize("head", [None, TargetHead(torch.randn(V, H, generator=torch.Generator().manual_seed(1)))])
def test_a_judge_that_saw_the_beginning_first_judges_the_whole(head):
    """As where the whole replay came from the cache, so that the race is the first to ask."""
    whole = tiny_sample("text", 40, 4, seed=3)
    asked, fresh = Judge(3, head, norm_last=False), Judge(3, head, norm_last=False)
    asked.answers([beginning(whole)])
    (after,), (expected,) = asked.answers([whole]), fresh.answers([whole])
    assert torch.equal(after.token, expected.token)
    assert after.agrees == expected.agrees
    if head is not None:
        asked.logsumexp([beginning(whole)])
        assert torch.equal(asked.logsumexp([whole])["text"], fresh.logsumexp([whole])["text"])


@pytest.mark.parametrize("flags", [{}, {"num_layers": 2}, {"norm_before_fc": True}, {"fc_norm": True}])
def test_a_first_look_drafts_nearly_the_same(flags, monkeypatch):
    """In bfloat16 as if this CPU multiplied it: the same weights, and the drafter itself stays as it is."""
    drafter, samples = tiny_drafter(3, **flags), [tiny_sample(f"s{i}", 90, 5, seed=i) for i in range(4)]
    monkeypatch.setattr(racing, "multiplies_bfloat16", lambda: True)
    quick = rough(drafter)
    assert (quick.fc.weight.dtype, drafter.fc.weight.dtype) == (torch.bfloat16, torch.float32)
    whole, near = (replay(d, samples, tiny_embedding(), [Variant((0, 1, 2))], steps=2)[0] for d in (drafter, quick))
    same = np.mean(np.concatenate([(a.drafted == b.drafted).ravel() for a, b in zip(whole.outcomes, near.outcomes, strict=True)]))
    assert same > 0.9
    monkeypatch.setattr(racing, "multiplies_bfloat16", lambda: False)
    assert rough(drafter) is drafter
