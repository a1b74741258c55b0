"""One sample place by place: the same numbers as the replay's for every row and step, marks and passes by hand, ranks and ties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_drafters import FLAG_SETS, H, V, tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.dumps import Sample
from eaglelab.replay import Judge, SampleOutcome, TargetHead, Variant, replay
from eaglelab.replay import strip as strips
from eaglelab.replay.answers import Answers
from eaglelab.replay.sequential import SequentialDrafter
from eaglelab.replay.strip import Mark, Pass, RowDrafts, Strip, ranked, step_after, target_choices, window

STEPS = 3


def judge_of(kind, seed=5):
    """By the text, or by a random head, with a scale and a softcap of its own."""
    if kind == "text":
        return Judge()
    head = torch.randn(V, H, generator=torch.Generator().manual_seed(seed))
    return Judge(last=3, head=TargetHead(head, None, scale=0.5, softcap=8.0), norm_last=False)


@pytest.mark.parametrize("flags", FLAG_SETS.values(), ids=FLAG_SETS.keys())
@pytest.mark.parametrize("kind", ["text", "head"])
def test_every_row_and_step_says_what_the_replay_says(flags, kind):
    drafter, embed, judge = tiny_drafter(**flags), tiny_embedding(), judge_of(kind)
    samples = [tiny_sample("a", 19, 4, seed=3), tiny_sample("b", 14, 2, seed=4)]
    for variant in (Variant((0, 1, 2)), Variant((1, "embedding", 0), token_shift=-1, vocabulary="identity")):
        found = replay(drafter, samples, embed, [variant], judge=judge, steps=STEPS, probabilities=kind == "head")[0]
        for sample, outcome in zip(samples, found.outcomes, strict=True):
            drafts, strip = (
                RowDrafts(drafter, sample, embed, variant, steps=STEPS),
                Strip.of(outcome, sample, judge.answers([sample])[0]),
            )
            for step in range(STEPS):
                for column, row in enumerate(outcome.rows.tolist()):
                    drafted = int(outcome.drafted[step, column])
                    mine = drafts.choices(row, step)
                    assert mine.ids[0] == drafted
                    assert mine.probability[0] == pytest.approx(outcome.confidence[step, column], abs=1e-5)
                    if kind == "head" and outcome.counted[step, column]:
                        theirs = target_choices(judge, sample, row + 2 + step, [drafted])
                        assert theirs.ids[0] == strip.wanted[step, column]
                        if variant.vocabulary == "d2t":
                            assert theirs.probabilities[drafted] == pytest.approx(outcome.p_drafted[step, column], abs=1e-6)


@pytest.mark.parametrize("flags", FLAG_SETS.values(), ids=FLAG_SETS.keys())
def test_first_choices_are_those_of_a_drafter_that_goes_row_by_row(flags):
    drafter, embed, sample = tiny_drafter(**flags), tiny_embedding(), tiny_sample("a", 12, 2, seed=3)
    drafts, slow = RowDrafts(drafter, sample, embed, Variant((0, 1, 2)), steps=1), SequentialDrafter(drafter, embed)
    for row in range(11):
        slow.extend([slot[row] for slot in sample.slots[:3]], int(sample.token_ids[row + 1]))
        probability = slow.last[1].softmax(-1)
        by_token = dict(zip(drafter.target_ids.tolist(), probability.tolist(), strict=True))
        best = sorted(by_token, key=by_token.get, reverse=True)
        found = drafts.choices(row, 0, asked=range(V))
        assert found.ids.tolist() == best[:5]
        assert found.probability.tolist() == pytest.approx([by_token[t] for t in best[:5]], abs=1e-5)
        assert found.ranks == {t: r for r, t in enumerate(best, 1)}  # and no rank for tokens that it cannot say
        assert found.probabilities == pytest.approx(by_token, abs=1e-5)


def test_a_chain_on_its_own_tokens_is_the_texts_while_they_are_the_same():
    """The text is what the drafter writes from row 6 on for two steps; then it goes its own way."""
    drafter, embed, sample = tiny_drafter(), tiny_embedding(), tiny_sample("a", 14, 2, seed=3)
    slow, ids = SequentialDrafter(drafter, embed), sample.token_ids.clone()
    for row in range(7):
        slow.extend([slot[row] for slot in sample.slots[:3]], int(ids[row + 1]))
    draft = slow.draft(4)
    ids[8], ids[9] = draft.tokens[0], draft.tokens[1]
    ids[10] = (draft.tokens[2] + 1) % V
    text = Sample("a", ids, sample.slots, sample.loss_mask, sample.slot_names)
    judge = Judge()
    outcome = replay(drafter, [text], embed, [Variant((0, 1, 2))], judge=judge, steps=4)[0].outcomes[0]
    strip = Strip.of(outcome, text, judge.answers([text])[0])
    assert [strip.own_fed(6, step) for step in range(4)] == [0, 1, 2, 2]
    assert outcome.drafted[:3, strip.column(6)].tolist() == draft.tokens[:3]


def test_a_block_of_rows_at_a_time_says_the_same(monkeypatch):
    drafter, embed, sample = tiny_drafter(**FLAG_SETS["two layers"]), tiny_embedding(), tiny_sample("a", 19, 4, seed=3)
    whole = RowDrafts(drafter, sample, embed, Variant((0, 1, 2)), steps=2)
    expected = [whole.choices(row, step) for row in range(18) for step in range(2)]
    monkeypatch.setattr(strips, "BLOCK_ROWS", 5)
    blocks = RowDrafts(drafter, sample, embed, Variant((0, 1, 2)), steps=2)
    found = [blocks.choices(row, step) for row in range(18) for step in range(2)]
    assert blocks._spoken.shape[1] == 3  # rows 15 to 17
    for one, other in zip(found, expected, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.probability == pytest.approx(other.probability, abs=1e-6)


def test_a_variant_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="feeds 2 slots, the drafter's fc takes 3"):
        RowDrafts(tiny_drafter(), tiny_sample("a", 9, 2, seed=1), tiny_embedding(), Variant((0, 1)), steps=1)


def test_the_target_says_nothing_without_its_head():
    with pytest.raises(ValueError, match="a: the target's choices need its lm_head, and this replay is judged by the text's token"):
        target_choices(Judge(), tiny_sample("a", 9, 2, seed=1), 4)


def test_a_last_state_that_needs_the_norm_gets_it():
    from eaglelab.target import FinalNorm

    sample, norm = tiny_sample("a", 9, 2, seed=1), FinalNorm(torch.rand(H) + 0.5)
    head = torch.randn(V, H, generator=torch.Generator().manual_seed(2))
    judge = Judge(last=3, head=TargetHead(head, norm), norm_last=True)
    found = target_choices(judge, sample, 6, asked=[7])
    logits = head @ norm(sample.slots[3][5:6])[0]
    assert found.ids.tolist() == logits.topk(5).indices.tolist()
    assert found.probabilities[7] == pytest.approx(float(logits.softmax(-1)[7]), abs=1e-6)


# -- marks and the walk, by hand --------------------------------------------------------------------------------------------------------


def made(right, counted=None, outside=None, first=3, length=12, mask=True):
    """A strip whose rows 2.. draft for an answer x[first:], with hand-made outcomes [K][R]."""
    right = np.array(right, dtype=bool)
    counted = np.ones_like(right) if counted is None else np.array(counted, dtype=bool)
    outside = np.zeros_like(right) if outside is None else np.array(outside, dtype=bool)
    rows = np.arange(right.shape[1]) + 2
    sample = Sample("s", torch.arange(length), (), (torch.arange(length) >= first).long() if mask else None, ())
    outcome = SampleOutcome("s", rows, counted, right & counted, outside, np.full(right.shape, 40), None, None, None, None, (0, 0))
    return Strip.of(outcome, sample, Answers(torch.arange(length) + 1, (0, 0)))


def test_marks_stand_at_the_place_that_was_drafted():
    strip = made([[1, 0, 0, 1], [0, 1, 0, 1]], counted=[[1, 1, 1, 1], [1, 1, 1, 0]], outside=[[0, 0, 1, 0], [0, 0, 0, 0]], length=7)
    R, W, X, N = Mark.RIGHT, Mark.WRONG, Mark.OUTSIDE, Mark.NOT_COUNTED
    line = strip.at_step(0)
    assert line.mark.tolist() == [N, N, N, N, R, W, X, R]  # row 2 drafts place 4; place 7 is behind the text
    assert line.column.tolist() == [-1] * 4 + [0, 1, 2, 3]
    assert strip.at_step(1).mark.tolist() == [N, N, N, N, N, W, R, W]
    assert [line.count(m) for m in (R, W, X, N)] == [2, 1, 1, 4]
    assert strip.rejections(0).tolist() == [3, 4]
    assert strip.rejections(1).tolist() == [2, 4]
    assert strip.wanted.tolist() == [[4, 5, 6, 7], [5, 6, 7, -1]]  # the answers say t + 1


def test_the_walk_brackets_what_each_pass_gives():
    """K = 2, rows 2..10, answer from place 3. Row 2 accepts both and gets a bonus; row 5 none; row 6 one; row 8 would reach past the end."""
    right = np.zeros((2, 9), dtype=bool)
    right[:, 0], right[0, 4] = True, True
    strip = made(right)
    assert strip.passes == (Pass(2, 2), Pass(5, 0), Pass(6, 1), Pass(8, 0))
    line = strip.along_walk()
    R, W, own, N = Mark.RIGHT, Mark.WRONG, Mark.OWN, Mark.NOT_COUNTED
    #                             0  1  2  3    4  5  6    7  8  9  10 11 12
    assert line.mark.tolist() == [N, N, N, own, R, R, own, W, R, W, W, N, N]
    assert line.step.tolist() == [-1, -1, -1, -1, 0, 1, -1, 0, 0, 1, 0, -1, -1]
    assert strip.walk_rejections().tolist() == [5, 6, 8]


@given(st.integers(0, 2**24 - 1), st.integers(1, 4))
def test_the_walk_says_what_the_replays_walk_says(bits, steps):
    """Accepted tokens as `walk_sample` counts them, and every place of a pass marked: its drafted tokens and one of the target's own."""
    from eaglelab.replay.walk import walk_sample

    right = np.array([bool(bits >> i & 1) for i in range(24)]).reshape(-1, 24)[:, : 24 // steps * steps].reshape(steps, -1)
    strip = made(right, length=right.shape[1] + 3)
    mask = (torch.arange(right.shape[1] + 3) >= 3).long()
    assert tuple(p.accepted for p in strip.passes) == walk_sample(strip.outcome.rows, strip.outcome.counted, strip.outcome.right, mask)
    line = strip.along_walk()
    assert line.count(Mark.RIGHT) == sum(p.accepted for p in strip.passes)
    assert line.count(Mark.WRONG) == len(strip.walk_rejections())
    assert line.count(Mark.OWN) == 1 + sum(p.accepted == steps for p in strip.passes)


def test_without_a_mask_there_is_no_walk():
    strip = made([[1, 0]], mask=False)
    assert strip.passes is None
    assert strip.walk_rejections().tolist() == []
    with pytest.raises(ValueError, match="s: no loss mask says where answers begin"):
        strip.along_walk()


def test_another_samples_outcome_is_refused():
    strip = made([[1, 0]])
    other = Sample("other", torch.arange(12), (), None, ())
    with pytest.raises(ValueError, match="an outcome of s with 12 answers, beside other of 12 tokens"):
        Strip.of(strip.outcome, other, Answers(torch.arange(12), (0, 0)))


# -- ranks, windows, steps --------------------------------------------------------------------------------------------------------------


def test_the_drafted_token_goes_first_among_equals_only():
    logits = torch.tensor([1.0, 3.0, 3.0, 2.0])
    assert ranked(logits, None, 0.0, {}, 3).ids.tolist() == [1, 2, 3]
    tied = ranked(logits, 2, 0.0, {7: 1, 8: 2, 9: 0}, 2)
    assert (tied.ids.tolist(), tied.ranks) == ([2, 1], {7: 2, 8: 1, 9: 4})
    assert ranked(logits, 3, 0.5, {}, 2).ids.tolist() == [1, 2]  # 1 behind: not as good
    total = sum(math.exp(x) for x in (1, 3, 3, 2))
    assert tied.probabilities == pytest.approx({7: math.exp(3) / total, 8: math.exp(3) / total, 9: math.exp(1) / total})


def test_logits_that_are_no_numbers_have_a_first_choice_and_no_probability():
    found = ranked(torch.tensor([0.0, math.nan, 1.0]), None, 0.0, {}, 5)
    assert found.ids[0] == 1
    assert len(found.ids) == 3
    assert np.isnan(found.probability).all()


@given(st.integers(1, 300), st.data(), st.integers(1, 400))
def test_a_window_holds_what_is_asked_for(length, data, size):
    around = data.draw(st.integers(0, length - 1))
    first, stop = window(length, around, size)
    assert 0 <= first <= around < stop <= length
    assert stop - first == min(size, length)


def test_steps_to_the_next_go_round():
    rows = [4, 7, 9]
    assert [step_after(rows, at, 1) for at in (0, 4, 8, 9, 20)] == [(4, False), (7, False), (9, False), (4, True), (4, True)]
    assert [step_after(rows, at, -1) for at in (20, 9, 5, 4, 0)] == [(9, False), (7, False), (4, False), (9, True), (9, True)]
    assert step_after([], 3, 1) == (None, False)
