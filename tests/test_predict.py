"""Predicted verify steps against what engines counted: made-up recordings whose answer is known. test_example.py has real ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_drafters import tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.drafter.model import Flags
from eaglelab.replay import Judge, TargetHead, Variant, replay
from eaglelab.replay.run import FusedBatch, draft_to_target
from eaglelab.replay.sequential import SequentialDrafter
from eaglelab.replay.walk import AnswerWalk, leading, walk_to_end
from eaglelab.served import Recording, Request
from eaglelab.served.leads import AnswerRows, leads
from eaglelab.served.predict import from_dump, predict
from eaglelab.served.recording import Session

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
needs_target = pytest.mark.skipif(not (EXAMPLE / "target").is_dir(), reason="the example's target is not fetched (`make target`)")
FEED = Variant((0, 1, 2))
PROMPT = 5


def test_a_walk_goes_on_as_far_as_the_text_decides():
    """Answer 3..15, three steps. The last row decides one token (15), and gets it right: how many more an engine counts is not known."""
    right = {2: 2, 5: 0, 6: 3, 10: 1, 12: 0, 13: 1}  # row -> tokens right before the first wrong one
    asked = []

    def accepted_at(t, known):
        asked.append((t, known))
        return min(right[t], known)

    assert walk_to_end(accepted_at, 3, 16, 3) == AnswerWalk((2, 0, 3, 1, 0), whole=4, cut=True)
    assert asked == [(2, 3), (5, 3), (6, 3), (10, 3), (12, 2), (13, 1)]
    assert walk_to_end(lambda t, known: 0, 3, 5, 3) == AnswerWalk((0,), whole=0, cut=False)
    assert walk_to_end(lambda t, known: known, 3, 4, 3) == AnswerWalk((), whole=0, cut=False)  # an answer of one token: nothing is verified


def test_a_whole_draft_at_the_very_end_is_counted():
    assert walk_to_end(lambda t, known: known, 3, 7, 3) == AnswerWalk((3,), whole=1, cut=False)


def engine(drafter, sample: Request, states: list, steps: int) -> list[int]:
    """Accepted counts of a real greedy chain of drafts, one token at a time, over a text that goes on beyond the answer."""
    embedding = tiny_embedding()
    drafting, tokens = SequentialDrafter(drafter, embedding), sample
    fed, accepted, t = 0, [], PROMPT - 1
    while t + 2 + steps < len(tokens):
        while fed <= t:
            drafting.extend([s[fed] for s in states], int(tokens[fed + 1]))
            fed += 1
        drafted = drafting.draft(steps).tokens
        n = next((k for k, token in enumerate(drafted) if token != int(tokens[t + 2 + k])), steps)
        accepted.append(n)
        t += n + 1
    return accepted


def written_by(drafter, seed: int, length: int = 60):
    """A sample whose text follows the drafter's own greedy drafts for a while and then leaves them, so that counts of every size occur."""
    sample = tiny_sample("s", length, PROMPT, seed)
    tokens, draw = sample.token_ids.clone(), torch.Generator().manual_seed(seed)
    t = PROMPT - 1
    while t + 5 < length:
        drafting = SequentialDrafter(drafter, tiny_embedding())
        for row in range(t + 1):
            drafting.extend([s[row] for s in sample.slots[:3]], int(tokens[row + 1]))
        n = int(torch.randint(0, 4, (1,), generator=draw))
        for k, token in enumerate(drafting.draft(3).tokens[:n]):
            tokens[t + 2 + k] = token
        t += n + 1
    return replace(sample, token_ids=tokens)


@pytest.fixture(scope="module")
def ran():
    """A drafter, a sample of more text than is answered, and the accepted counts of the engine over it."""
    drafter = tiny_drafter(3)
    sample = written_by(drafter, seed=4)
    return drafter, sample, engine(drafter, sample.token_ids, list(sample.slots[:3]), steps=3)


def recorded(sample, accepted, answer: int, **told) -> Recording:
    """The engine's run stopped after `answer` tokens: the last step counts what it drafted beyond them."""
    tokens = sample.token_ids.tolist()
    steps, made = 0, 1
    while made < answer:
        made += accepted[steps] + 1
        steps += 1
    counts = tuple(accepted[:steps])
    histogram = tuple(counts.count(i) for i in range(max(counts, default=0) + 1))
    known = {"accepted": counts, "histogram": histogram, "verify_steps": steps}
    told = {name: known[name] for name in told.get("told", ("accepted",))}
    request = Request(7, tuple(tokens[:PROMPT]), tuple(tokens[PROMPT : PROMPT + answer]), sample="s", **told)
    return Recording(None, Session(num_steps=3), (request,))


def test_every_length_of_answer_is_predicted_to_its_end(ran):
    drafter, sample, accepted = ran
    assert {0, 1, 2, 3} == set(accepted)
    cut = 0
    for answer in range(1, 48):
        for told in (("accepted",), ("histogram",), ("verify_steps",)):
            recording = recorded(sample, accepted, answer, told=told)
            found = predict(recording, drafter, from_dump(recording, [sample]), tiny_embedding(), FEED)
            assert found.equal is True, (answer, told)
            walk = found.requests[0].walk
            assert walk.accepted == tuple(accepted[: len(walk.accepted)])
            cut += walk.cut
    assert cut > 20


def test_another_count_in_any_step_is_seen(ran):
    drafter, sample, accepted = ran
    recording = recorded(sample, accepted, 40, told=("accepted", "histogram", "verify_steps"))
    samples, request = from_dump(recording, [sample]), recording.requests[0]

    def told(**changes):
        only = {"accepted": None, "histogram": None, "verify_steps": None} | changes
        return predict(replace(recording, requests=(replace(request, **only),)), drafter, samples, tiny_embedding(), FEED)

    whole = told(accepted=request.accepted)
    walk = whole.requests[0].walk
    assert (whole.equal, whole.differing, whole.compared) == (True, 0, len(walk.accepted))
    for i, n in enumerate(walk.accepted):
        other = list(request.accepted)
        other[i] = (n + 1) % 4
        found = told(accepted=tuple(other))
        assert (found.equal, found.requests[0].differing, found.differing) == (False, (i,), 1)
    for i in range(4):  # one more entry than the walk and its cut step leave room for
        more = [request.histogram[j] if j < len(request.histogram) else 0 for j in range(4)]
        more[i] += 1
        assert told(histogram=tuple(more)).equal is False
    assert told(verify_steps=request.verify_steps + 1).equal is False
    assert told(accepted=request.accepted[:-2]).equal is False
    assert told().equal is None


def test_states_that_end_before_the_answer_predict_its_first_steps(ran):
    drafter, sample, accepted = ran
    recording = recorded(sample, accepted, 40)
    short = replace(sample, token_ids=sample.token_ids[:30], slots=tuple(s[:30] for s in sample.slots), loss_mask=sample.loss_mask[:30])
    found = predict(recording, drafter, from_dump(recording, [short]), tiny_embedding(), FEED)
    assert (found.equal, found.requests[0].partial) == (True, True)
    assert 3 < found.compared < len(recording.requests[0].accepted)
    histogram = recorded(sample, accepted, 40, told=("histogram",))
    assert predict(histogram, drafter, from_dump(histogram, [short]), tiny_embedding(), FEED).equal is None


def test_only_states_of_the_same_tokens_are_taken(ran):
    drafter, sample, accepted = ran
    recording = recorded(sample, accepted, 40)
    tokens = sample.token_ids.clone()
    tokens[20] = (tokens[20] + 1) % 64
    (taken,) = from_dump(recording, [replace(sample, key="other", token_ids=tokens), tiny_sample("far", 60, PROMPT, 9)])
    assert (len(taken.token_ids), int(taken.loss_mask.sum())) == (20, 15)
    tokens = sample.token_ids.clone()
    tokens[PROMPT - 1] = (tokens[PROMPT - 1] + 1) % 64
    assert from_dump(recording, [replace(sample, token_ids=tokens)]) == []
    found = predict(recording, drafter, [], tiny_embedding(), FEED)
    assert (found.equal, found.without_states, found.predicted.verify_steps) == (None, (7,), 0)
    assert "1 requests have no states" in found.summary


def test_steps_that_nobody_names_are_an_error(ran):
    drafter, sample, accepted = ran
    recording = replace(recorded(sample, accepted, 40), session=Session())
    with pytest.raises(ValueError, match="the recording does not say how many steps were drafted: give steps"):
        predict(recording, drafter, from_dump(recording, [sample]), tiny_embedding(), FEED)


@pytest.mark.report("SafeAILab/EAGLE#212", "HM")
def test_agreement_and_near_ties_by_hand(ran):
    """A head whose rows are the states' own directions: token v's logit is the state's channel v."""
    drafter, sample, accepted = ran
    recording = recorded(sample, accepted, 6)
    states = torch.zeros(60, 24)
    for t, channels in enumerate([(1, 0.0), (2, 0.0), (3, 0.5), (4, 1e-5), (5, 0.0), (6, 3.0)], start=PROMPT - 1):
        states[t, channels[0]], states[t, 20] = 1.0, 1.0 - channels[1] if channels[1] else 0.0
    sample = replace(sample, slots=(*sample.slots[:3], states))
    answer = recording.requests[0].token_ids
    head = torch.zeros(64, 24)
    for t in range(6):  # the text's own token wins wherever its channel does, but for one
        head[answer[t] if t != 1 else (answer[t] + 1) % 64, t + 1] = 1.0
    head[63, 20] += 1.0
    found = predict(recording, drafter, from_dump(recording, [sample]), tiny_embedding(), FEED, Judge(3, TargetHead(head), norm_last=False))
    by_hand = states[PROMPT - 1 : PROMPT + 5] @ head.T
    top = by_hand.topk(2).values
    assert found.agrees == (int((by_hand.argmax(1) == torch.tensor(answer)).sum()), 6)
    assert found.near_ties == int((top[:, 0] - top[:, 1] < 1e-4).sum())
    assert 0 < found.near_ties < 6
    assert found.agrees[0] == 5
    assert "5 of 6 answer tokens are the target's argmax, 1 choices are near-ties" in found.summary


@pytest.mark.parametrize(
    "variant",
    [FEED, replace(FEED, token_shift=-1), replace(FEED, vocabulary="identity"), replace(FEED, flags=Flags(post_norm_recurrence=True))],
)
def test_leads_are_the_replays_own(variant):
    """Drafting later steps only where the earlier ones are right finds what drafting all of them everywhere does."""
    drafter = tiny_drafter(3)
    samples = [replace(written_by(drafter, seed), key=f"s{seed}") for seed in (4, 5)]
    texts = [torch.cat([s.token_ids[1:], s.token_ids.new_tensor([-1])]) for s in samples]
    batch = FusedBatch(drafter, samples, tiny_embedding(), torch.device("cpu"), torch.float32)
    at = AnswerRows.of(samples, texts, batch.packed.starts, 3)
    options = {"token_shift": variant.token_shift, "flags": variant.flags}
    args = (drafter, batch.packed, batch.fuse(variant)[0], tiny_embedding(), at, draft_to_target(drafter, variant))
    lead, first = leads(*args, **options)
    assert np.array_equal(lead, leads(*args, first=first, **options)[0])
    for i, outcome in enumerate(replay(drafter, samples, tiny_embedding(), [variant], judge=Judge(), steps=3)[0].outcomes):
        place = {int(t): r for r, t in enumerate(outcome.rows)}
        mine = at.of_sample(i, lead)
        assert len(mine) > 40
        assert mine == {t: leading(outcome.right[:, place[t]]) for t in mine}
