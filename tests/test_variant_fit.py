"""The replay tells the right variant apart: drafters trained with each flag fit that flag and no other, beyond the interval."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from case_builder import write_case, write_drafter
from trained_drafters import H, V, trained, walks

from eaglelab.checks import findings
from eaglelab.drafter.config import DrafterConfig, Latent
from eaglelab.drafter.embedding import save_embedding_rows
from eaglelab.engines.computes import engine_flags
from eaglelab.engines.conventions import parse_engine
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.replay import Variant, other_choices, rank, replay
from eaglelab.replay.variants import mend

BASE = Variant((0, 1, 2), label="the config's")
POST, PRE = "the next step starts from the post-norm state", "the next step starts from the pre-norm state"
AFTER, BEFORE = "residual after hidden_norm", "residual before hidden_norm"
UNNORMED, NORMED = "no final norm before lm_head", "the final norm before lm_head"
MLA = {"layer_type": "mla", "head_dim": 16, "latent": Latent(q_rank=16, kv_rank=16, nope=8, rope=8, value=8), "num_key_value_heads": 4}
TRAINED = {  # how it was trained, and the choices that must be told from it
    "plain": ({}, [POST, AFTER, UNNORMED]),
    "norm_before_residual": ({"norm_before_residual": True}, [BEFORE]),
    "post-norm recurrence": ({"norm_output": True}, [PRE]),
    "no norm before lm_head": ({"norm_output_meaning": "logits", "norm_output": False}, [NORMED]),
    "norm_before_fc": ({"norm_before_fc": True}, ["no norm before fc"]),
    "fc_norm": ({"fc_norm": True}, ["no norm before fc"]),
    "qk norm": ({"layer_type": "qwen3"}, ["no norm of queries and keys"]),
    "attention bias": ({"attention_bias": True}, ["no bias in attention"]),
    "two layers": ({"num_layers": 2, "norm_output": True}, [PRE, AFTER]),
    "mla": ({**MLA, "norm_output": True}, [PRE, AFTER]),
    "reduced vocabulary": ({"draft_vocab_size": 12}, ["identity vocabulary map"]),
}


@cache
def fitted(name):
    """(drafter, samples, embedding) of one way of training. The texts of a reduced vocabulary say none but its tokens."""
    flags, _ = TRAINED[name]
    samples, embedding = walks(vocabulary=flags.get("draft_vocab_size", V))
    return trained(samples, embedding, **flags), samples, embedding


def ranked(drafter, samples, embedding):
    """The ranking by accept length, and the names of what is told from the best."""
    variants = [BASE, *other_choices(BASE, drafter.config, mapped=bool(drafter.d2t.any()))]
    ranking = rank(replay(drafter, samples, embedding, variants, steps=2), step=None)
    return ranking, set(ranking.table["variant"][~ranking.table["tied"]])


@pytest.mark.parametrize("name", TRAINED)
def test_a_drafter_fits_the_flags_that_it_was_trained_with(name):
    ranking, told = ranked(*fitted(name))
    assert ranking.table["variant"].iloc[0] == "the config's"
    assert ranking.table["acceptance"].iloc[0] > 1.5  # of two drafted tokens: it learned its texts
    assert told >= {*TRAINED[name][1], "token shifted by -1", "token shifted by +1"}


@pytest.mark.parametrize(
    ("name", "lie", "truth"),
    [
        ("norm_before_residual", {"norm_before_residual": False}, AFTER),
        ("plain", {"norm_before_residual": True}, BEFORE),
        ("post-norm recurrence", {"norm_output": False}, POST),
        ("plain", {"norm_output": True}, PRE),
        ("no norm before lm_head", {"norm_output": True}, UNNORMED),
        ("plain", {"norm_output_meaning": "logits"}, NORMED),
    ],
)
@pytest.mark.report("ROCm/ATOM#882", "A")
def test_a_config_that_lies_is_told(name, lie, truth):
    drafter, samples, embedding = fitted(name)
    honest = drafter.config
    drafter.config = replace(honest, **lie)
    try:
        ranking, told = ranked(drafter, samples, embedding)
    finally:
        drafter.config = honest
    assert ranking.table["variant"].iloc[0] == truth
    assert "the config's" in told
    assert set(ranking.table["variant"][ranking.table["tied"]]) == {truth}


# -- what an engine makes of the flags ------------------------------------------------------------------------------------------------

LLAMA = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": H,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": V,
    "draft_vocab_size": V,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
SPECULATORS = {"speculators_model_type": "eagle3", "transformer_layer_config": LLAMA, "draft_vocab_size": V}


@pytest.mark.parametrize(
    ("raw", "engine", "on"),
    [
        ({**LLAMA}, "sglang==0.5.23", set()),
        ({**LLAMA, "norm_before_residual": True}, "sglang==0.5.23", set()),
        ({**LLAMA, "norm_before_residual": True}, "vllm==0.32.0", {"norm_before_residual"}),
        (SPECULATORS, "vllm==0.32.0", {"norm_before_residual"}),  # a missing key is true to vLLM's reader of speculators configs
        ({**SPECULATORS, "norm_before_residual": False}, "vllm==0.32.0", set()),
        ({**LLAMA, "norm_output": True}, "sglang==0.5.23", {"post_norm_recurrence"}),
        ({**LLAMA, "norm_output": True}, "sglang==0.5.11", set()),
        ({**LLAMA, "norm_output": False}, "vllm==0.32.0", set()),  # SpecForge: no norm before lm_head; engines always norm
        ({**LLAMA, "fc_norm": True}, "sglang==0.5.23", set()),
        ({**LLAMA, "fc_norm": True}, "sglang==0.5.11", {"skip_fc_norms"}),
        ({**LLAMA, "norm_before_fc": True}, "sglang==0.5.16", {"skip_fc_norms"}),
        ({**LLAMA, "attention_bias": True}, "sglang==0.5.23", {"skip_attention_bias"}),
        ({**LLAMA, "attention_bias": True}, "vllm==0.32.0", set()),
        ({**SPECULATORS, "transformer_layer_config": {**LLAMA, "model_type": "qwen3"}}, "sglang==0.5.23", {"skip_qk_norm"}),
    ],
)
@pytest.mark.report("vllm-project/speculators#610", "AB")
def test_what_an_engine_computes(raw, engine, on):
    computed = engine_flags(DrafterConfig.from_dict(raw), raw, parse_engine(engine))
    assert {name for name, value in computed.items() if value} == on


def test_a_served_config_may_lack_what_the_drafter_has():
    own = DrafterConfig.from_dict({**LLAMA, "fc_norm": True, "attention_bias": True})
    computed = engine_flags(own, LLAMA, parse_engine("vllm==0.32.0"))
    assert computed["skip_fc_norms"]
    assert computed["skip_attention_bias"]


def case_of(root, name, raw, engine, **changed):
    """A case without a target: a trained drafter with its config and its texts, judged by the text. changed: its tensors."""
    drafter, samples, embedding = fitted(name)
    tensors = {k: v for k, v in drafter.state_dict().items() if not k.startswith("rotary.")}
    write_drafter(root / "drafter", tensors | changed, {**LLAMA, **raw})
    save_embedding_rows(root / "rows.safetensors", embedding.token_ids, embedding.rows)
    (root / "dump").mkdir()
    for s in samples:
        torch.save({"input_ids": s.token_ids, "hidden_states": list(s.slots), "loss_mask": s.loss_mask}, root / "dump" / f"{s.key}.pt")
    sections = {
        "dump": {"path": "dump"},
        "drafter": {"path": "drafter", "embed": "rows.safetensors"},
        "engine": {"name": engine[0], "version": engine[1]},
    }
    return Investigation(str(write_case(root, sections)), steps=2)


def told(inv, *ids):
    return {f.id: f for f in findings(inv, *ids)}


def test_a_flag_that_the_engine_ignores_is_priced(tmp_path):
    inv = case_of(tmp_path, "norm_before_residual", {"norm_before_residual": True}, ("sglang", "0.5.23"))
    by_id = told(inv, "replay.choices", "replay.flags")
    assert by_id["replay.choices"].status is Status.PASS
    finding = by_id["replay.flags"]
    assert finding.status is Status.FAIL
    assert finding.title.startswith("SGLang 0.5.23 takes the residual before hidden_norm: that costs ")
    assert finding.numbers["differences"] == ["norm_before_residual"]
    base, others = inv.other_choices
    (turned,) = (r for r in others if r.variant.label == BEFORE)
    assert finding.numbers["difference"] == pytest.approx(base.counts.accept_length - turned.counts.accept_length)
    assert 0 < finding.numbers["interval"][0] < finding.numbers["difference"] < finding.numbers["interval"][1]


def test_an_engine_that_computes_what_fits(tmp_path):
    inv = case_of(tmp_path, "norm_before_residual", {"norm_before_residual": True}, ("vllm", "0.32.0"))
    finding = told(inv, "replay.flags")["replay.flags"]
    assert (finding.status, finding.title) == (Status.PASS, "vLLM 0.32.0 computes what the drafter fits")


@pytest.mark.parametrize(
    ("name", "version", "fits", "computes", "status"),
    [
        (
            "plain",
            "0.5.23",
            "SpecForge reads it",
            "the engines read it",
            Status.FAIL,
        ),  # SpecForge's drafter in an engine that knows the key
        ("plain", "0.5.11", "SpecForge reads it", "SpecForge reads it", Status.PASS),  # in one that does not
        ("post-norm recurrence", "0.5.23", "the engines read it", "the engines read it", Status.PASS),
    ],
)
def test_the_two_meanings_of_norm_output(tmp_path, name, version, fits, computes, status):
    inv = case_of(tmp_path, name, {"norm_output": True}, ("sglang", version))
    by_id = told(inv, "replay.choices", "replay.flags")
    assert by_id["replay.norm_output"].title == f"norm_output = true fits as {fits}; SGLang {version} computes it as {computes}"
    assert by_id["replay.norm_output"].status is status
    assert by_id["replay.flags"].status is status
    assert by_id["replay.choices"].status is (Status.PASS if fits == "SpecForge reads it" else Status.FAIL)


def test_a_drafter_trained_without_the_norm_before_lm_head(tmp_path):
    inv = case_of(tmp_path, "no norm before lm_head", {"norm_output": False}, ("sglang", "0.5.23"))
    by_id = told(inv, "replay.choices", "replay.flags")
    assert (
        by_id["replay.norm_output"].title
        == "norm_output = false fits as SpecForge reads it; SGLang 0.5.23 computes it as the engines read it"
    )
    assert by_id["replay.norm_output"].next == "No engine serves this: train again with the norm."
    assert by_id["replay.flags"].title.startswith("SGLang 0.5.23 norms before lm_head: that costs ")


def test_few_samples_price_nothing(tmp_path):
    inv = case_of(tmp_path, "norm_before_residual", {"norm_before_residual": True}, ("sglang", "0.5.23"))
    inv.max_samples = 3
    by_id = told(inv, "replay.choices", "replay.flags")
    assert {f.status for f in by_id.values()} == {Status.CANNOT_TELL}
    assert "only 3 samples" in by_id["replay.choices"].title


def test_an_engine_that_is_not_known_stops_its_own_finding_alone(tmp_path):
    inv = case_of(tmp_path, "plain", {"norm_output": True}, ("tensorrt", "1.0"))
    by_id = told(inv, "replay.choices", "replay.flags")
    assert by_id["replay.choices"].status is Status.PASS
    assert by_id["replay.norm_output"].title == "norm_output = true fits as SpecForge reads it"
    assert "unknown engine 'tensorrt'" in by_id["replay.flags"].evidence


# -- the drafter's own embedding table -------------------------------------------------------------------------------------------------


def case_with_a_table(root, engine, own=None):
    """A drafter that was trained with an embedding table of its own; the target's rows are others."""
    _, _, embedding = fitted("plain")
    inv = case_of(root, "plain", {}, engine, **{"embed_tokens.weight": embedding.rows if own is None else own})
    save_embedding_rows(root / "rows.safetensors", embedding.token_ids, embedding.rows.flip(0))
    return inv


def test_the_replay_goes_by_the_drafters_own_table_and_prices_sglangs(tmp_path):
    inv = case_with_a_table(tmp_path, ("sglang", "0.5.23"))
    by_id = told(inv, "replay.works", "replay.choices", "replay.flags")
    assert inv.embedding.source == "the drafter's own embedding table"
    assert inv.own_replay.counts.marginal(0) > 0.8
    assert by_id["replay.choices"].status is Status.PASS
    finding = by_id["replay.flags"]
    assert finding.status is Status.FAIL
    assert finding.title.startswith("SGLang 0.5.23 puts the target's embedding in place of the drafter's: that costs ")
    drafter, samples, embedding = fitted("plain")
    flipped = replay(drafter, samples, type(embedding)(embedding.token_ids, embedding.rows.flip(0), ""), [BASE], steps=2)[0]
    assert finding.numbers["engine"]["accept_length"] == flipped.counts.accept_length  # what serving by the other table gives
    fed = inv.replay_of([replace(BASE, feed=("embedding", 1, 2))])[0]  # boundary 0 is the target's row
    slot = [replace(s, slots=(embedding.rows.flip(0)[s.token_ids], *s.slots[1:])) for s in samples]
    assert fed.counts == replay(drafter, slot, embedding, [BASE], steps=2)[0].counts


def test_vllm_keeps_the_drafters_own_table(tmp_path):
    inv = case_with_a_table(tmp_path, ("vllm", "0.32.0"))
    assert told(inv, "replay.flags")["replay.flags"].title == "vLLM 0.32.0 computes what the drafter fits"


def test_a_table_that_was_not_trained_with_is_told(tmp_path):
    """The other way round: the drafter fits the target's rows, and its own table is another's."""
    _, _, embedding = fitted("plain")
    inv = case_of(tmp_path, "plain", {}, ("sglang", "0.5.23"), **{"embed_tokens.weight": embedding.rows.flip(0)})
    by_id = told(inv, "replay.choices", "replay.flags")
    assert "the target's embedding in place of its own" in by_id["replay.choices"].title
    assert "Leave embed_tokens out of the file: engines then take the target's." in by_id["replay.choices"].next
    assert by_id["replay.flags"].status is Status.PASS


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_a_table_that_holds_nothing_is_passed_over(tmp_path, value):
    inv = case_of(tmp_path, "plain", {}, ("sglang", "0.5.23"), **{"embed_tokens.weight": torch.full((V, H), value)})
    assert inv.embedding.source == "rows.safetensors"
    assert inv.own_replay.counts.marginal(0) > 0.8


# -- the vocabulary map ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d2t", "fits"),
    [
        (torch.full((12,), 3), "d2t moved by +1"),
        (torch.full((12,), 5) - torch.eye(12, dtype=torch.int64)[11], "d2t moved by -1"),  # one more would point outside
        (torch.arange(12) + 4, "d2t read as token ids"),
    ],
)
def test_a_map_that_is_not_the_one_trained_with(tmp_path, d2t, fits):
    """12 draft ids stand for the last 12 of 16 tokens."""
    inv = case_of(tmp_path, "reduced vocabulary", {"draft_vocab_size": 12}, ("sglang", "0.5.23"), d2t=torch.full((12,), 4))
    inv.drafter.d2t.copy_(d2t)
    by_id = told(inv, "replay.choices", "replay.works")
    finding = by_id["replay.choices"]
    assert (finding.status, by_id["replay.works"].status) == (Status.FAIL, Status.FAIL)
    assert finding.title.startswith(f"The drafter fits better with: {fits}; by ")
    assert finding.next == "d2t is not the map that lm_head was trained with: export lm_head, d2t and t2d again, from one checkpoint."
    assert "replay.choices" in by_id["replay.works"].next


def test_remedies_are_those_of_the_choice():
    config, reduced = fitted("plain")[0].config, fitted("reduced vocabulary")[0].config
    said = {v.name: mend(v, config) for v in other_choices(BASE, config, own_table=True)}
    assert said[POST].startswith("Write `norm_output: true` in the config; ")
    assert said[AFTER].startswith("Write `norm_before_residual: true` in the config; ")
    assert "have the trainer pair state t with token t + 1" in said["token shifted by -1"]
    head = replace(BASE, label="the target's lm_head")
    assert mend(head, reduced) == "lm_head's rows and d2t disagree: export both again, from one checkpoint."
    assert mend(head, config).startswith("lm_head is not the one that it was trained with")
