"""The proof: drafting from all positions at once equals drafting one row after the other with a KV cache.

Both agree, position by position, up to and including the first wrong step; beyond it an engine feeds its own wrong token and the
teacher-forced replay does not.
"""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_drafters import FLAG_SETS, mla, tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.model import Flags
from eaglelab.replay import Judge, TargetHead, Variant, replay
from eaglelab.replay.sequential import SequentialDrafter

STEPS = 4


def all_at_once(drafter, samples, embed, flags=None):
    """Logits [K][sample][T-1, Vd] of chains from every row."""
    packed, skip = Packed.of([s.token_ids for s in samples]), flags is not None and flags.skip_fc_norms
    states = [torch.cat([s.slots[i] for s in samples]) for i in range(drafter.config.num_slots)]
    fused = drafter.fuse([drafter.slot_product(p, x, skip_norms=skip) for p, x in enumerate(states)], states, skip_norms=skip)
    rows = torch.cat([torch.arange(len(s.token_ids) - 1) + o for s, o in zip(samples, packed.starts, strict=False)])
    sizes = [len(s.token_ids) - 1 for s in samples]
    return [out.logits.split(sizes) for out in draft_chains(drafter, packed, fused, embed, rows, STEPS, flags=flags)]


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


KINDS = {
    "llama": {},
    "qwen3": {"layer_type": "qwen3"},
    "mla": mla(),
    "mla without q rank": mla(None),
    "mla, halves": mla(interleaved=False),
}
CONFIGS = st.fixed_dictionaries(
    {
        "num_layers": st.integers(1, 3),
        "num_slots": st.integers(1, 5),
        "hidden_size": st.sampled_from([16, 24]),
        "target_hidden_size": st.sampled_from([8, 24]),
        "norm_output": st.booleans(),
        "norm_output_meaning": st.sampled_from(["recurrence", "logits"]),
        "norms": st.sampled_from(["", "norm_before_fc", "fc_norm"]),
        **{name: st.booleans() for name in ("norm_before_residual", "attention_bias", "fc_bias")},
    }
)
FLAGS = st.none() | st.builds(Flags, **{f.name: st.booleans() for f in fields(Flags)})


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), changes=CONFIGS, flags=FLAGS, length=st.integers(3, 9), seed=st.integers(0, 1000))
def test_every_kind_of_drafter_with_every_flag(kind, changes, flags, length, seed):
    """The first wrong step ends most chains at once, so each one is given as many tokens of its own as it drafts."""
    norm = {changes["norms"]: True} if changes["norms"] else {}
    drafter = tiny_drafter(seed, **KINDS[kind], **{k: v for k, v in changes.items() if k != "norms"}, **norm)
    slots, embed = changes["num_slots"], tiny_embedding(seed, changes["hidden_size"])
    samples = [tiny_sample(key, n, 1, seed, slots, changes["target_hidden_size"]) for key, n in (("a", length), ("b", 4))]
    t, slow = length - 3, SequentialDrafter(drafter, embed, flags=flags)
    ids = samples[0].token_ids.tolist()
    for row in range(t + 1):
        slow.extend([slot[row] for slot in samples[0].slots], ids[row + 1])
    draft = slow.draft(STEPS)
    # The text as the drafter writes it: the chain from row t is then right at all steps.
    whole = tiny_sample("a", length + STEPS, 1, seed, slots, changes["target_hidden_size"])
    states = [torch.cat([mine[: t + 1], other[t + 1 :]]) for mine, other in zip(samples[0].slots, whole.slots, strict=True)]
    written = torch.tensor(ids[: t + 2] + draft.tokens + ids[-1:] * (length - t - 2))
    samples[0] = type(whole)("a", written, tuple(states), torch.ones_like(written), whole.slot_names)
    for k, by_sample in enumerate(all_at_once(drafter, samples, embed, flags)):
        worst = float((by_sample[0][t] - draft.logits[k]).abs().max() / draft.logits[k].abs().max())
        assert worst < 1e-3, (k, worst)


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
