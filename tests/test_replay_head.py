"""The target's head at its own dtype, on disk, and only for the rows that are asked for."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny_drafters import H, V, tiny_drafter, tiny_embedding, tiny_sample

import eaglelab.drafter.model as model
import eaglelab.replay.run as run
from eaglelab.replay import Judge, TargetHead, Variant, answers, rank_feeds, replay, slot_orders
from eaglelab.replay.answers import touched_positions
from eaglelab.replay.run import judged_again
from eaglelab.target import FinalNorm, open_checkpoint, target_argmax
from eaglelab.target import head as head_module
from eaglelab.target.head import head_rows, target_choice

BASE = Variant((0, 1, 2))


@pytest.fixture
def rounds(monkeypatch):
    """The rounded product on every CPU, and how many rows were left to float32."""
    left = []
    exact = head_module.target_argmax
    monkeypatch.setattr(head_module, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(head_module, "target_argmax", lambda states, *rest: left.append(len(states)) or exact(states, *rest))
    return left


@pytest.mark.parametrize("chunk", [3, 64, 5000])
def test_the_rounded_product_gives_the_float32_choice(rounds, chunk):
    torch.manual_seed(0)
    states, head = torch.randn(300, 64).bfloat16(), torch.randn(2000, 64).bfloat16()
    expected = (states.double() @ head.double().T).argmax(-1)
    assert ((states @ head.T).argmax(-1) != expected).any()  # rounding alone would be wrong
    assert torch.equal(target_choice(states, head, chunk), expected)
    assert sum(rounds) < 30


def test_logits_too_close_for_a_shortlist_are_done_in_float32(rounds):
    """40 rows of the head that differ by less than the rounding of their product."""
    torch.manual_seed(0)
    states = torch.ones(5, 64).bfloat16()
    head = torch.ones(40, 64).bfloat16()
    head[torch.arange(40), torch.arange(40)] += 2**-7
    head[23, 63] += 2**-6
    assert (states @ head.T).unique().numel() == 1
    assert target_choice(states, head).tolist() == [23] * 5
    assert rounds == [5]


def test_ties_nan_and_small_vocabularies(rounds):
    states, head = torch.randn(4, 8).abs().bfloat16(), torch.ones(3, 8).bfloat16()
    assert target_choice(states, head, 2).tolist() == [0] * 4
    states[2, 1] = torch.nan
    assert target_choice(states, head).tolist() == [0, 0, -1, 0]
    assert target_choice(states[:0], head).tolist() == []
    with pytest.raises(ValueError, match=r"got \(4, 8\) and \(3, 4\)"):
        target_choice(states, head[:, :4])


def checkpoint_with(folder, head, **config):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False, **config}))
    save_file({"model.embed_tokens.weight": torch.zeros_like(head), "lm_head.weight": head}, folder / "model.safetensors")
    return open_checkpoint(folder)


def test_a_large_head_stays_on_disk_and_says_the_same(tmp_path, monkeypatch, rounds):
    torch.manual_seed(0)
    head, samples = torch.randn(V, H).bfloat16(), [tiny_sample("a", 30, 4, seed=1), tiny_sample("b", 20, 2, seed=2)]
    samples = [replace(s, slots=tuple(x.bfloat16() for x in s.slots)) for s in samples]
    checkpoint = checkpoint_with(tmp_path, head)
    monkeypatch.setattr(answers, "LARGE_HEAD", 1)
    lazy = TargetHead.of(checkpoint)
    assert not isinstance(lazy.lm_head, torch.Tensor)
    assert torch.equal(head_rows(lazy.lm_head, torch.tensor([5, 2, 5])), head[[5, 2, 5]])
    monkeypatch.setattr(checkpoint.__class__, "tensor", lambda *_: pytest.fail("the whole head was read"))
    results = [
        replay(tiny_drafter(), samples, tiny_embedding(), [BASE], judge=Judge(3, h), steps=2, probabilities=True)[0]
        for h in (lazy, TargetHead(head))
    ]
    assert results[0].counts == results[1].counts
    assert results[0].sampling == results[1].sampling
    assert results[0].text_agreement == results[1].text_agreement


def test_only_the_rows_of_trained_tokens_go_through_the_head(monkeypatch):
    """Answers at 3..5 and 8 of ten tokens: their own positions, and the one before each answer, for the text's agreement."""
    sample = replace(tiny_sample("a", 10, 0, seed=1), loss_mask=torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 1, 0]))
    assert touched_positions(sample).tolist() == [2, 3, 4, 5, 7, 8]
    asked = []
    monkeypatch.setattr(answers, "target_choice", lambda states, head: asked.append(len(states)) or target_choice(states, head))
    head = torch.randn(V, H, generator=torch.Generator().manual_seed(4))
    other = tiny_sample("b", 12, 9, seed=2)
    judge = Judge(3, TargetHead(head))
    judge.norm_last = False
    said = judge.answers([sample, other])
    assert asked == [6 + 4]  # both samples in one pass
    truth = target_argmax(sample.slots[3], head)[0]
    assert [i for i, t in enumerate(said[0].token.tolist()) if t >= 0] == [2, 3, 4, 5, 7, 8]
    assert all(int(said[0].token[i]) == int(truth[i]) for i in (2, 3, 4, 5, 7, 8))
    assert said[0].agrees == (sum(int(truth[p - 1] == sample.token_ids[p]) for p in (3, 4, 5, 8)), 4)
    assert judge.answers([other, sample])[1] is said[0]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("config", "logits"),
    [
        ({"final_logit_softcapping": 3.0}, lambda z: 3 * torch.tanh(z / 3)),
        ({"logits_scaling": 8.0}, lambda z: z / 8),
        ({"logit_scale": 0.0625}, lambda z: z * 0.0625),
    ],
    ids=["gemma", "granite", "cohere"],
)
def test_what_a_family_does_to_its_logits(tmp_path, config, logits):
    head = torch.randn(V, H, generator=torch.Generator().manual_seed(4)).bfloat16()
    judge = Judge(3, TargetHead.of(checkpoint_with(tmp_path, head, **config), None))
    sample = tiny_sample("a", 14, 3, seed=1)
    outcome = replay(tiny_drafter(), [sample], tiny_embedding(), [BASE], judge=judge, steps=2, probabilities=True)[0].outcomes[0]
    p = logits(sample.slots[3] @ head.float().T).softmax(-1)  # [T, V]
    for column, t in enumerate(outcome.rows):
        for k in range(2):
            if outcome.counted[k, column]:
                assert outcome.p_drafted[k, column] == pytest.approx(float(p[t + 1 + k, outcome.drafted[k, column]]), rel=1e-3)


def test_a_state_that_needs_its_norm_is_found_by_what_the_head_says():
    torch.manual_seed(0)
    head, gain = torch.randn(V, H), torch.rand(H) * 3
    ids = torch.randint(0, V, (40,))
    normed = head[ids.roll(-1)]
    raw = normed / gain.clamp(min=0.05)
    sample = replace(tiny_sample("a", 40, 0, seed=1), token_ids=ids, slots=(raw, raw, raw, raw))
    judge = Judge(3, TargetHead(head, FinalNorm(gain.clamp(min=0.05))))
    said = judge.answers([sample])[0]
    assert judge.norm_last
    assert said.agrees[0] / said.agrees[1] > 0.95


def test_the_orders_of_many_slots_are_a_choice():
    four = slot_orders(range(4), 3)
    assert len(four) == len({v.feed for v in four}) == 24
    seven = slot_orders(range(8), 7, base=(1, 2, 3, 4, 5, 6, 7))
    feeds = [v.feed for v in seven]
    assert feeds[0] == (1, 2, 3, 4, 5, 6, 7)
    assert len(feeds) == len(set(feeds)) <= 64
    assert {(2, 1, 3, 4, 5, 6, 7), (1, 2, 3, 0, 5, 6, 7), (7, 6, 5, 4, 3, 2, 1), (2, 3, 4, 5, 6, 7, 1), (0, 1, 2, 3, 4, 5, 6)} <= set(feeds)
    assert len(slot_orders(range(30), 29)) == 64  # and in no time


def test_a_ranking_says_how_many_orders_it_compared():
    samples = [tiny_sample("a", 12, 3, seed=1, slots=5)]
    own, engine = replace(BASE, label="the dump's feed"), Variant((0, 1, 4), label="the engine's feed")  # slot 4: the engine's alone
    for orders, says in ((slot_orders(range(4), 3), "24 of 24 orders"), (slot_orders(range(4), 3, limit=5), "5 of 24 orders")):
        variants = [own, engine, Variant(("embedding", 0, 1)), *(v for v in orders if v.feed != BASE.feed)]
        assert rank_feeds(tiny_drafter(), samples, tiny_embedding(), variants, steps=1)[0].compared == says


def test_small_budgets_change_nothing(monkeypatch):
    """Every product dropped at once, a pass a sample, logits 16 rows at a time."""
    samples = [tiny_sample("a", 40, 4, seed=1), tiny_sample("b", 30, 2, seed=2)]
    variants = [*slot_orders(range(4), 3), replace(BASE, vocabulary="identity")]
    wide = replay(tiny_drafter(), samples, tiny_embedding(), variants, steps=3)
    monkeypatch.setattr(run, "BATCH_BYTES", 1)
    monkeypatch.setattr(model, "LOGIT_BYTES", 1)
    for one, other in zip(wide, replay(tiny_drafter(), samples, tiny_embedding(), variants, steps=3), strict=True):
        assert one.counts == other.counts
        assert one.shares == pytest.approx(other.shares, rel=1e-5)
    drafted = [wide[i].outcomes[0].drafted for i in (0, -1)]
    assert (tiny_drafter().target_ids.numpy()[drafted[1]] == drafted[0]).all()  # one chain, read by two maps


def test_drafts_judged_again_are_those_of_a_replay_under_the_other_judge():
    drafter, samples, embed = tiny_drafter(), [tiny_sample("a", 21, 4, seed=1), tiny_sample("b", 15, 2, seed=2)], tiny_embedding()
    g = torch.Generator().manual_seed(4)
    head, norm = torch.randn(V, H, generator=g), FinalNorm(torch.randn(H, generator=g), eps=1e-6)
    one, two = (Judge(3, TargetHead(head, norm), norm_last=normed) for normed in (False, True))
    first, second = (replay(drafter, samples, embed, [BASE], judge=judge, steps=3)[0] for judge in (one, two))
    again = judged_again(first, samples, two, drafter.target_ids)
    assert again.to_json() == second.to_json()
    assert first.to_json() != second.to_json()
