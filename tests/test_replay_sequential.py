"""The proof: drafting from all positions at once equals drafting one row after the other with a KV cache.

Both agree, position by position, up to and including the first wrong step; beyond it an engine feeds its own wrong token and the
teacher-forced replay does not.
"""

import pytest
import torch
from tiny_drafters import FLAG_SETS, tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.replay import Judge, TargetHead, Variant, replay
from eaglelab.replay.sequential import SequentialDrafter

STEPS = 4


def all_at_once(drafter, samples, embed):
    """Logits [K][sample][T-1, Vd] of chains from every row."""
    packed = Packed.of([s.token_ids for s in samples])
    states = [torch.cat([s.slots[i] for s in samples]) for i in range(3)]
    fused = drafter.fuse([drafter.slot_product(p, x) for p, x in enumerate(states)], states)
    rows = torch.cat([torch.arange(len(s.token_ids) - 1) + o for s, o in zip(samples, packed.starts, strict=False)])
    sizes = [len(s.token_ids) - 1 for s in samples]
    return [out.logits.split(sizes) for out in draft_chains(drafter, packed, fused, embed, rows, STEPS)]


@pytest.mark.parametrize("flags", FLAG_SETS.values(), ids=FLAG_SETS.keys())
def test_all_at_once_equals_one_row_after_the_other(flags):
    drafter, embed = tiny_drafter(**flags), tiny_embedding()
    samples = [tiny_sample("a", 23, 5, seed=3), tiny_sample("b", 17, 2, seed=4)]
    logits = all_at_once(drafter, samples, embed)
    compared = first_wrong_steps = 0
    for i, sample in enumerate(samples):
        slow = SequentialDrafter(drafter, embed)
        ids = sample.token_ids.tolist()
        for t in range(len(ids) - 1):
            slow.extend([slot[t] for slot in sample.slots[:3]], ids[t + 1])
            draft = slow.draft(STEPS)
            for k in range(STEPS):
                torch.testing.assert_close(logits[k][i][t], draft.logits[k], atol=2e-4, rtol=2e-4)
                compared += 1
                if t + 2 + k >= len(ids) or draft.tokens[k] != ids[t + 2 + k]:
                    first_wrong_steps += 1
                    break
    assert compared >= 38
    assert first_wrong_steps == 38


def sample_that_the_drafter_wrote(drafter, embed, length):
    """A text whose chains are right for 0 to K steps: from a row, n drafted tokens are written, then one of another's, then on."""
    sample = tiny_sample("self", length, 3, seed=9)
    ids, choose = sample.token_ids.clone(), torch.Generator().manual_seed(2)
    slow, fed, t = SequentialDrafter(drafter, embed), 0, 2
    while t + 2 + STEPS < length:
        while fed <= t:
            slow.extend([slot[fed] for slot in sample.slots[:3]], int(ids[fed + 1]))
            fed += 1
        n = int(torch.randint(0, STEPS + 1, (1,), generator=choose))
        ids[t + 2 : t + 2 + n] = torch.tensor(slow.draft(STEPS).tokens[:n], dtype=torch.int64)
        t += n + 1
    return type(sample)(sample.key, ids, sample.slots, sample.loss_mask, sample.slot_names)


def test_later_steps_agree_where_the_chain_is_right():
    drafter, embed = tiny_drafter(), tiny_embedding()
    sample = sample_that_the_drafter_wrote(drafter, embed, 40)
    result = replay(drafter, [sample], embed, [Variant((0, 1, 2))], steps=STEPS)[0]
    ids, slow, accepted_by_row = sample.token_ids.tolist(), SequentialDrafter(drafter, embed), {}
    for t in range(len(ids) - 1):
        slow.extend([slot[t] for slot in sample.slots[:3]], ids[t + 1])
        drafted = slow.draft(STEPS).tokens
        right = [t + 2 + k < len(ids) and drafted[k] == ids[t + 2 + k] for k in range(STEPS)]
        accepted_by_row[t] = [*right, False].index(False)
    outcome = result.outcomes[0]
    complete = outcome.counted.all(0)
    assert complete.sum() > 25
    for column, t in enumerate(outcome.rows):
        if complete[column]:
            wrong = ~outcome.right[:, column]
            assert (int(wrong.argmax()) if wrong.any() else STEPS) == accepted_by_row[int(t)]
    # Enough rows must get past step 0, or nothing was proven about later steps.
    assert sum(n >= 2 for n in accepted_by_row.values()) >= 5


def test_the_walk_is_the_path_of_an_engine():
    """An engine's loop written out: prefill, draft, verify, keep what is right and the bonus token, go on."""
    drafter, embed = tiny_drafter(), tiny_embedding()
    sample = sample_that_the_drafter_wrote(drafter, embed, 60)
    walk = replay(drafter, [sample], embed, [Variant((0, 1, 2))], steps=STEPS)[0].outcomes[0].walk
    ids, prompt = sample.token_ids.tolist(), 3
    engine, known = [], prompt + 1  # prefill hands over the answer's first token
    slow, fed = SequentialDrafter(drafter, embed), 0
    while known + STEPS <= len(ids):
        while fed < known - 1:
            slow.extend([slot[fed] for slot in sample.slots[:3]], ids[fed + 1])
            fed += 1
        drafted, n = slow.draft(STEPS).tokens, 0
        while n < STEPS and drafted[n] == ids[known + n]:
            n += 1
        engine.append(n)
        known += n + 1
    assert list(walk) == engine
    assert sum(engine) > 5


def test_the_target_judges_when_its_head_is_given():
    """With lm_head, right is the target's argmax from its last state, not the text: a closed form on one-hot states."""
    drafter, embed = tiny_drafter(), tiny_embedding()
    sample = tiny_sample("a", 12, 2, seed=5)
    head = torch.randn(64, 24, generator=torch.Generator().manual_seed(8))
    result = replay(drafter, [sample], embed, [Variant((0, 1, 2))], judge=Judge(3, TargetHead(head)), steps=2, probabilities=True)[0]
    says = (sample.slots[3] @ head.T).argmax(-1)
    outcome = result.outcomes[0]
    for k in range(2):
        for column, t in enumerate(outcome.rows):
            if outcome.counted[k, column]:
                assert outcome.right[k, column] == (outcome.drafted[k, column] == int(says[t + 1 + k]))
                p = torch.softmax(sample.slots[3][t + 1 + k] @ head.T, -1)[outcome.drafted[k, column]]
                assert outcome.p_drafted[k, column] == pytest.approx(float(p), rel=1e-3)
    assert result.judged_by == "the target's argmax"
