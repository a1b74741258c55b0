"""Drafter folders: every layout that is written somewhere, and every way in which one can be unusable."""

import json
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny_drafters import H, V, tiny_config, tiny_drafter, tiny_embedding, tiny_sample
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eaglelab.drafter.audit import DrafterError, audit_folder, canonical_name, read_headers
from eaglelab.drafter.checkpoint import load_drafter, own_embedding
from eaglelab.drafter.config import DrafterConfig, DrafterConfigError
from eaglelab.drafter.device import choose_device
from eaglelab.drafter.embedding import EmbeddingError
from eaglelab.drafter.model import Rotary
from eaglelab.drafter.vocabulary import looks_absolute
from eaglelab.replay import Variant, replay
from eaglelab.replay.variants import EMBEDDING

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": H,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": V,
    "draft_vocab_size": 40,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64}


def tensors(without=(), **flags):
    """A tiny drafter's tensors by their canonical names."""
    state = tiny_drafter(**flags).state_dict()
    return {n: t.clone() for n, t in state.items() if not n.startswith("rotary") and n not in without}


def write(folder, state, config=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    save_file(state, folder / "model.safetensors")
    return folder


def outcome(drafter):
    """What the drafter drafts for one sample: equal only where all weights are."""
    result = replay(drafter, [tiny_sample("a", 20, 3, seed=1)], tiny_embedding(), [Variant((0, 1, 2))], steps=3)[0]
    return result.outcomes[0].confidence


def loads_like_the_original(folder, **flags):
    drafter, audit = load_drafter(folder, device="cpu", dtype="float32")
    assert audit.whole
    torch.testing.assert_close(torch.as_tensor(outcome(drafter)), torch.as_tensor(outcome(tiny_drafter(**flags))), atol=1e-6, rtol=1e-5)
    return audit


# Layouts


def test_midlayer_names(tmp_path):
    audit = loads_like_the_original(write(tmp_path, tensors()))
    assert (audit.unexpected, audit.borrowed) == ((), ())


def test_layers_0_names_with_a_model_prefix(tmp_path):
    renamed = {"model." + n.replace("midlayer.", "layers.0."): t for n, t in tensors().items()}
    assert "model.layers.0.self_attn.q_proj.weight" in renamed
    loads_like_the_original(write(tmp_path, renamed))


def test_legacy_names_of_the_slot_norms(tmp_path):
    legacy = {"fc_norm.0": "aux_norm_low", "fc_norm.1": "aux_norm_mid", "fc_norm.2": "aux_norm_high"}
    state = tensors(fc_norm=True)
    renamed = {n.replace(n[:9], legacy.get(n[:9], n[:9]), 1): t for n, t in state.items()}
    assert "aux_norm_high.weight" in renamed
    loads_like_the_original(write(tmp_path, renamed, {"use_aux_norm": True}), fc_norm=True)
    assert canonical_name("model.aux_norm_mid.weight") == "fc_norm.1.weight"


@pytest.mark.parametrize("container", ["safetensors", "bin"])
def test_shards(tmp_path, container):
    state, ending = tensors(), {"safetensors": "safetensors", "bin": "bin"}[container]
    stem = "model" if container == "safetensors" else "pytorch_model"
    names = sorted(state)
    parts = {f"{stem}-0000{i + 1}-of-00002.{ending}": names[i::2] for i in range(2)}
    for file, held in parts.items():
        part = {n: state[n] for n in held}
        save_file(part, tmp_path / file) if container == "safetensors" else torch.save(part, tmp_path / file)
    index = {"metadata": {}, "weight_map": {n: f for f, held in parts.items() for n in held}}
    (tmp_path / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    loads_like_the_original(tmp_path)
    assert set(read_headers(tmp_path)[0]) == set(state)
    (tmp_path / f"{stem}-00002-of-00002.{ending}").unlink()
    with pytest.raises(DrafterError, match=rf"{stem}-00002-of-00002\.{ending}, which the index names and the folder lacks"):
        load_drafter(tmp_path, device="cpu")


def test_one_bin_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    loads_like_the_original(tmp_path)
    assert audit_folder(tmp_path, DrafterConfig.load(tmp_path)).whole


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_dtypes(tmp_path, stored, wanted):
    state = {n: t.to(stored) if t.is_floating_point() else t for n, t in tensors().items()}
    drafter, _ = load_drafter(write(tmp_path, state), device="cpu", dtype=wanted)
    assert {p.dtype for p in drafter.parameters()} == {getattr(torch, wanted)}
    assert torch.equal(drafter.fc.weight, state["fc.weight"].to(getattr(torch, wanted)))
    assert drafter.d2t.dtype == torch.int64
    assert not any(p.requires_grad for p in drafter.parameters())
    automatic, _ = load_drafter(tmp_path, device="cpu")
    assert automatic.fc.weight.dtype == torch.float32
    with pytest.raises(DrafterError, match="dtype 'int4': expected auto, float32, bfloat16, float16"):
        load_drafter(tmp_path, device="cpu", dtype="int4")


def test_auto_is_cuda_where_there_is_one():
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu").type == "cpu"


def test_the_whole_vocabulary_needs_no_d2t(tmp_path):
    state = tensors(without=("d2t",), draft_vocab_size=V)
    drafter, audit = load_drafter(write(tmp_path, state, {"draft_vocab_size": None}), device="cpu")
    assert audit.whole
    assert torch.equal(drafter.target_ids, torch.arange(V))


WHOLE = {"draft_vocab_size": V}


@pytest.mark.parametrize("tied", [False, True])
def test_a_borrowed_lm_head(tmp_path, tied):
    state = tensors(without=("lm_head.weight",), **WHOLE)
    folder = write(tmp_path, state, WHOLE | {"tie_word_embeddings": tied})
    with pytest.raises(DrafterError, match=r"lm_head\.weight is borrowed from the target, whose lm_head is not given"):
        load_drafter(folder, device="cpu")
    head = torch.randn(V, H)
    drafter, audit = load_drafter(folder, device="cpu", lm_head=head)
    assert audit.borrowed == ("lm_head.weight",)
    assert torch.equal(drafter.lm_head.weight, head)


def test_a_tied_drafter_speaks_through_its_own_table(tmp_path):
    table = torch.randn(V, H)
    state = tensors(without=("lm_head.weight",), **WHOLE) | {"embed_tokens.weight": table}
    drafter, _ = load_drafter(write(tmp_path, state, WHOLE | {"tie_word_embeddings": True}), device="cpu", lm_head=torch.zeros(V, H))
    assert torch.equal(drafter.lm_head.weight, table)
    untied, _ = load_drafter(write(tmp_path, state, WHOLE), device="cpu", lm_head=torch.zeros(V, H))
    assert not untied.lm_head.weight.any()


def test_a_reduced_vocabulary_has_a_head_of_its_own(tmp_path):
    folder = write(tmp_path, tensors(without=("lm_head.weight",)), {"tie_word_embeddings": True})
    with pytest.raises(DrafterError, match=r"missing lm_head\.weight"):
        load_drafter(folder, device="cpu", lm_head=torch.randn(V, H))


def test_an_own_lm_head_is_never_replaced(tmp_path):
    folder = write(tmp_path, tensors(), {"tie_word_embeddings": True})
    drafter, audit = load_drafter(folder, device="cpu", lm_head=torch.zeros(40, H))
    assert audit.borrowed == ()
    assert float(drafter.lm_head.weight.abs().max()) > 0


def test_own_embedding_rows(tmp_path):
    table = torch.randn(V, H)
    with_table = write(tmp_path / "with", tensors() | {"model.embed_tokens.weight": table})
    rows = own_embedding(with_table, torch.tensor([5, 3, 5]))
    assert rows.token_ids.tolist() == [3, 5]
    assert torch.equal(rows(torch.tensor([5, 3])), table[[5, 3]])
    assert own_embedding(write(tmp_path / "without", tensors()), torch.tensor([5])) is None


# What is wrong, by name


def test_missing_tensors_by_name(tmp_path):
    state = tensors(without=("fc.weight", "midlayer.mlp.up_proj.weight")) | {"fusion.weight": torch.ones(2)}
    with pytest.raises(
        DrafterError,
        match=r"missing fc\.weight; missing midlayer\.mlp\.up_proj\.weight \(in the file and not used: fusion\.weight\)",
    ):
        load_drafter(write(tmp_path, state), device="cpu")
    assert audit_folder(tmp_path, DrafterConfig.load(tmp_path)).missing == ("fc.weight", "midlayer.mlp.up_proj.weight")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"fc_norm": True}, r"fc_norm\.0\.weight; missing fc_norm\.1\.weight; missing fc_norm\.2\.weight"),
        ({"norm_before_fc": True}, r"input_norm\.weight"),
        ({"attention_bias": True, "target_model_type": "llama"}, r"midlayer\.self_attn\.q_proj\.bias"),
        ({"target_hidden_size": 32}, r"embed_tokens\.weight; fc\.weight is \[24, 72\], the config implies \[24, 96\]"),
    ],
)
def test_a_flag_without_its_tensor_is_a_missing_tensor(tmp_path, config, name):
    with pytest.raises(DrafterError, match=f"missing {name}"):
        load_drafter(write(tmp_path, tensors(), config), device="cpu")


def test_a_reduced_vocabulary_needs_d2t(tmp_path):
    with pytest.raises(DrafterError, match="missing d2t"):
        load_drafter(write(tmp_path, tensors(without=("d2t",))), device="cpu")


def test_unexpected_tensors_load_and_are_named(tmp_path):
    state = tensors() | {"layers.1.mlp.up_proj.weight": torch.ones(2), "midlayer.self_attn.q_norm.weight": torch.ones(8)}
    _, audit = load_drafter(write(tmp_path, state), device="cpu")
    assert audit.whole
    assert audit.unexpected == ("layers.1.mlp.up_proj.weight", "midlayer.self_attn.q_norm.weight")


def test_a_wrong_shape_is_named_as_stored(tmp_path):
    state = {n.replace("midlayer.", "layers.0."): t for n, t in tensors().items()}
    state["layers.0.self_attn.q_proj.weight"] = torch.ones(32, H)  # EAGLE-1's width, without the embedding
    with pytest.raises(DrafterError, match=r"layers\.0\.self_attn\.q_proj\.weight is \[32, 24\], the config implies \[32, 48\]"):
        load_drafter(write(tmp_path, state), device="cpu")


def test_a_d2t_of_token_ids(tmp_path):
    state = tensors() | {"d2t": torch.arange(40) + 24}
    message = (
        r"d2t points outside the target's vocabulary \(0\.\.63\) for 20 of 40 draft ids; first: draft id 20 -> 64\. "
        r"The values look like token ids; d2t holds offsets"
    )
    with pytest.raises(DrafterError, match=message):
        load_drafter(write(tmp_path, state), device="cpu")
    assert looks_absolute(torch.tensor([3, 4, 9]), V)
    assert not looks_absolute(torch.tensor([3, 3, 9]), V)


@pytest.mark.parametrize(("place", "value", "says"), [(0, -1, "draft id 0 -> -1"), (39, 25, "draft id 39 -> 64")])
def test_d2t_out_of_range_without_the_hint(tmp_path, place, value, says):
    d2t = torch.zeros(40, dtype=torch.int64)
    d2t[place] = value
    with pytest.raises(DrafterError, match=rf"for 1 of 40 draft ids; first: {says}\.$"):
        load_drafter(write(tmp_path, tensors() | {"d2t": d2t}), device="cpu")


def test_d2t_of_floats_or_of_another_length(tmp_path):
    with pytest.raises(DrafterError, match=r"d2t is torch\.float32, expected integers"):
        load_drafter(write(tmp_path, tensors() | {"d2t": torch.zeros(40)}), device="cpu")
    with pytest.raises(DrafterError, match=r"d2t is \[10\], the config implies \[40\]"):
        load_drafter(write(tmp_path, tensors() | {"d2t": torch.zeros(10, dtype=torch.int64)}), device="cpu")


def test_a_layer_with_experts_is_not_run(tmp_path):
    state = tensors() | {"midlayer.mlp.experts.0.up_proj.weight": torch.ones(2)}
    with pytest.raises(
        DrafterError, match=r"a draft layer with experts \(MoE; it holds midlayer\.mlp\.experts\.0.*\), expected a dense MLP"
    ):
        load_drafter(write(tmp_path, state), device="cpu")


def test_a_layer_of_the_config_that_the_file_lacks(tmp_path):
    with pytest.raises(DrafterError, match=r"missing layers\.1\.mlp\.gate_proj\.weight"):
        load_drafter(write(tmp_path, tensors(), {"num_hidden_layers": 2}), device="cpu")
    with pytest.raises(DrafterConfigError, match="num_hidden_layers is 1000000, expected at most 128"):
        load_drafter(write(tmp_path, tensors(), {"num_hidden_layers": 10**6}), device="cpu")


class Foreign:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_files_that_are_no_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cut = write(tmp_path / "cut", tensors())
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:4000])
    with pytest.raises(DrafterError, match=r"model\.safetensors .*cut short"):
        load_drafter(cut, device="cpu")
    with pytest.raises(DrafterError, match=r"model\.safetensors: not readable .*cut short or missing"):
        read_headers(cut)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(DrafterError, match="no weights"):
        load_drafter(empty, device="cpu")
    with pytest.raises(DrafterError, match=r"no weights; looked for model\.safetensors.*found \['config\.json'\]"):
        read_headers(empty)
    (empty / "pytorch_model.bin").write_text("<html>not found</html>")
    with pytest.raises(DrafterError, match=r"pytorch_model\.bin"):
        load_drafter(empty, device="cpu")
    torch.save({"fc.weight": Foreign()}, empty / "pytorch_model.bin")
    with pytest.raises(DrafterError, match="running code out of a checkpoint is refused"):
        load_drafter(empty, device="cpu")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(DrafterConfigError, match="no config at"):
        load_drafter(tmp_path / "nowhere", device="cpu")
    with pytest.raises(DrafterError, match="no such folder"):
        read_headers(tmp_path / "nowhere")
    os.mkfifo(empty / "pipe.safetensors")  # opening a pipe would wait for ever
    (empty / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": "pipe.safetensors"}}))
    assert read_headers(empty) == ({}, {"pipe.safetensors": 1})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"weight_map": {"fc.weight": 5}}', "5 is not the name of a weight file in the same folder"),
        ('{"weight_map": {"fc.weight": ["model.safetensors"], "norm.weight": "model.safetensors"}}', "is not the name of a weight file"),
        ('{"weight_map": {"fc.weight": "../whole/model.safetensors"}}', "'../whole/model.safetensors' is not the name of a weight file"),
        ('{"weight_map": {"fc.weight": "/etc/x.safetensors"}}', "is not the name of a weight file"),
        ('{"weight_map": 5}', "no `weight_map`"),
        ("[" * 50_000, "is not readable JSON"),
    ],
)
def test_an_index_that_lies_or_leads_out_of_the_folder(tmp_path, content, said):
    write(tmp_path / "whole", tensors())
    folder = write(tmp_path / "lies", tensors())
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(DrafterError, match=f"index.json.*{said}"):
        read_headers(folder)
    with pytest.raises(DrafterError, match=said):
        load_drafter(folder, device="cpu")


# Rotary


def rotary_of(change, positions):
    cos, sin = Rotary(DrafterConfig.from_dict(CONFIG | change))(positions, torch.zeros(1))
    return cos[:, 0], sin[:, 0]  # [R, D]


@pytest.mark.parametrize("rope", [LLAMA3, YARN, {"rope_type": "linear", "factor": 4.0}], ids=["llama3", "yarn", "linear"])
@pytest.mark.parametrize("layout", ["rope_scaling", "type", "rope_parameters"])
def test_rope_types_are_those_of_transformers(rope, layout):
    """The same numbers as LlamaRotaryEmbedding gives for a config of its own, whichever generation wrote the drafter's."""
    positions = torch.tensor([0, 1, 5, 63, 64, 100, 400])
    parameters = {**rope, "rope_theta": 500000.0}
    llama = LlamaConfig(hidden_size=H, num_attention_heads=4, head_dim=8, max_position_embeddings=512, rope_parameters=parameters)
    cos, sin = LlamaRotaryEmbedding(config=llama)(torch.zeros(1), positions[None])
    change = {
        "rope_scaling": {"rope_theta": 500000.0, "rope_scaling": rope},
        "type": {
            "rope_theta": 500000.0,
            "rope_scaling": {**{k: v for k, v in rope.items() if k != "rope_type"}, "type": rope["rope_type"]},
        },
        "rope_parameters": {"rope_theta": None, "rope_parameters": parameters},
    }[layout]
    ours = rotary_of(change, positions)
    assert torch.equal(ours[0], cos[0])
    assert torch.equal(ours[1], sin[0])
    plain = rotary_of({"rope_theta": 500000.0}, positions)
    assert float((plain[0] - ours[0]).abs().max()) > 0.1  # another rope than the default one


def test_default_and_linear_rope_by_their_formula():
    positions = torch.arange(40)
    half = 10000.0 ** (-torch.arange(4) / 4)  # D = 8
    for change, divisor in (({}, 1), ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 4), ({"rope_scaling": {"type": "mrope"}}, 1)):
        angle = torch.outer(positions / divisor, half).repeat(1, 2)  # [R, D]
        cos, sin = rotary_of(change, positions)
        torch.testing.assert_close(cos, angle.cos(), atol=1e-5, rtol=0)
        torch.testing.assert_close(sin, angle.sin(), atol=1e-5, rtol=0)


def test_max_position_default_and_that_it_does_not_bound_the_default_rope():
    without = {k: v for k, v in CONFIG.items() if k != "max_position_embeddings"}
    config = DrafterConfig.from_dict(without)
    assert config.max_position_embeddings == 8192
    far = torch.tensor([100_000])
    short = Rotary(replace(config, max_position_embeddings=16))(far, torch.zeros(1))[0]
    assert torch.equal(short, Rotary(config)(far, torch.zeros(1))[0])


LONG = {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "wibble", "factor": 2.0},
        {"rope_type": "llama3", "factor": 2.0},
        LLAMA3 | {"low_freq_factor": 0},
        YARN | {"rope_theta": 1.0},
        YARN | {"rope_theta": 1e-300},
        {"rope_type": "default", "rope_theta": 1e-300},
        {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},  # half of the channels: not what trainers' llama layers do
        LONG | {"short_factor": [1.0] * 4, "long_factor": [1.0] * 3},
        LONG | {"short_factor": [1.0] * 5, "long_factor": [1.0] * 4},
        LONG | {"short_factor": ["x"] * 4, "long_factor": [1.0] * 4},
        LONG | {"short_factor": [0.0] * 4, "long_factor": [1.0] * 4},
        {"rope_type": "dynamic", "factor": 1.0, "original_max_position_embeddings": "64"},
    ],
    ids=lambda rope: ",".join(f"{k}={v}" for k, v in rope.items()),
)
def test_a_rope_that_cannot_be_built(tmp_path, rope):
    with pytest.raises(DrafterConfigError, match=rf"rope .*{rope['rope_type']}.* cannot be built|original_max_position_embeddings is '64'"):
        load_drafter(write(tmp_path, tensors(), {"rope_parameters": rope}), device="cpu")


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_trying_a_rope_leaves_nothing_behind(kind):
    """Two ropes that keep what they were last asked for: short positions are those of a table that never saw long ones."""
    rope = LONG | {"rope_type": kind, "short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [8.0] * 4}
    parameters = {**rope, "rope_theta": 10000.0}
    llama = LlamaConfig(hidden_size=H, num_attention_heads=4, head_dim=8, max_position_embeddings=512, rope_parameters=parameters)
    positions = torch.arange(20)
    cos = LlamaRotaryEmbedding(config=llama)(torch.zeros(1), positions[None])[0][0]
    assert torch.equal(rotary_of({"rope_scaling": rope}, positions)[0], cos)


# Activations, biases, values


@pytest.mark.parametrize("name", ["wibble", "prelu"])
def test_an_activation_that_is_none(tmp_path, name):
    with pytest.raises(
        DrafterConfigError,
        match=f"{tmp_path.name}: the drafter's hidden_act is '{name}', expected an activation of transformers without weights",
    ):
        load_drafter(write(tmp_path, tensors(), {"hidden_act": name}), device="cpu")


def test_a_drafter_of_specforge_has_no_biases_whatever_its_config_says(tmp_path):
    says = {"attention_bias": True, "mlp_bias": True}
    drafter, audit = load_drafter(write(tmp_path / "without", tensors(), says), device="cpu")
    assert audit.whole
    assert drafter.config.note == "attention_bias and mlp_bias of the config left out: the file holds no bias, and SpecForge trains none."
    torch.testing.assert_close(outcome(drafter), outcome(tiny_drafter()))
    held, _ = load_drafter(write(tmp_path / "with", tensors(**says), says), device="cpu")
    assert (held.config.note, held.midlayer.mlp.up_proj.bias is not None) == ("", True)
    with pytest.raises(DrafterError, match=r"missing midlayer\.mlp\.gate_proj\.bias"):
        load_drafter(write(tmp_path / "other", tensors(), says | {"target_model_type": "llama"}), device="cpu")  # AngelSlim's


def test_weights_that_are_not_finite_are_named(tmp_path):
    state = tensors()
    state["midlayer.mlp.up_proj.weight"][3, 5:7] = float("nan")
    state["norm.weight"][2] = float("-inf")
    with pytest.raises(DrafterError, match="NaN or infinity among the weights") as caught:
        load_drafter(write(tmp_path, state), device="cpu")
    assert "midlayer.mlp.up_proj.weight holds 2 of 1,152 (nan first, at [3, 5])" in str(caught.value)
    assert "norm.weight holds 1 of 24 (-inf first, at [2])" in str(caught.value)
    table = torch.ones(V, H).index_fill_(0, torch.tensor([7]), float("nan"))
    folder = write(tmp_path / "table", tensors() | {"embed_tokens.weight": table})
    assert own_embedding(folder, torch.tensor([6, 8])).width == H  # rows that nobody asks for are not read
    with pytest.raises(DrafterError, match=r"embed_tokens\.weight .rows of the samples' tokens. holds 24 of 48"):
        own_embedding(folder, torch.tensor([6, 7]))


def test_rotary_takes_the_dtype_of_the_states():
    cos, sin = Rotary(tiny_config())(torch.arange(5), torch.zeros(1, dtype=torch.bfloat16))
    assert (cos.dtype, sin.dtype, list(cos.shape)) == (torch.bfloat16, torch.bfloat16, [5, 1, 8])


def test_a_borrowed_lm_head_of_another_shape(tmp_path):
    folder = write(tmp_path, tensors(without=("lm_head.weight",), **WHOLE), WHOLE)
    with pytest.raises(DrafterError, match=r"the borrowed lm_head is \[64, 32\], the drafter's config implies \[64, 24\]: is it another"):
        load_drafter(folder, device="cpu", lm_head=torch.randn(V, 32))


def test_a_tensor_that_cannot_be_read_is_a_drafter_error(tmp_path):
    head = tensors()["lm_head.weight"].to(torch.float8_e4m3fn)
    with pytest.raises(DrafterError, match=r"lm_head\.weight is stored quantised as torch\.float8_e4m3fn and its scale .* is missing"):
        load_drafter(write(tmp_path, tensors() | {"lm_head.weight": head}), device="cpu")


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.int8])
def test_quantised_weights_are_read(tmp_path, stored):
    """FP8 with a scale for the weight, as ModelOpt exports it, and INT8 with one a row (compressed-tensors): stored x scale."""
    state, right = tensors(), tensors()
    for name in [n for n in state if n.endswith("_proj.weight") or n == "fc.weight"]:
        scale = state[name].abs().amax(None if stored != torch.int8 else 1, keepdim=stored == torch.int8) / 100
        state[name] = (right[name] / scale).round().to(stored)
        state[name + "_scale"] = scale
        right[name] = state[name].float() * scale
    drafter, audit = load_drafter(write(tmp_path, state), device="cpu", dtype="float32")
    assert (audit.whole, audit.unexpected) == (True, ())
    assert len(audit_folder(tmp_path, drafter.config).quantised) == 8
    for name, weight in drafter.state_dict().items():
        if name in right and weight.is_floating_point():
            torch.testing.assert_close(weight, right[name], atol=0.02, rtol=0.01)  # read in the checkpoint's own bfloat16 or float32


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (
            {"qweight": torch.ones(6, 32, dtype=torch.int32), "qzeros": torch.ones(1, 4), "scales": torch.ones(1, 32)},
            "GPTQ or AWQ integers",
        ),
        ({"weight": torch.ones(768, 1, dtype=torch.uint8), "weight.absmax": torch.ones(24)}, "bitsandbytes"),
        (
            {
                "weight": torch.ones(32, 24, dtype=torch.uint8),
                "weight_scale": torch.ones(32, 3).to(torch.float8_e4m3fn),
                "weight_scale_2": torch.ones(1),
            },
            "NVFP4",
        ),
    ],
)
def test_a_quantisation_that_is_not_read_is_named(tmp_path, stored, said):
    layer = "midlayer.self_attn.q_proj."
    state = tensors(without=(layer + "weight",)) | {layer + n: t for n, t in stored.items()}
    with pytest.raises(DrafterError, match=rf"q_proj\.weight is stored quantised as {said}.*: take the unquantised checkpoint"):
        load_drafter(write(tmp_path, state), device="cpu")


def test_another_width_than_the_targets(tmp_path):
    """fc takes the target's states, all else has the drafter's width: the target's embedding and lm_head do not fit."""
    flags = {"target_hidden_size": 32}
    state = tensors(**flags)
    folder = write(tmp_path / "without", state, flags)
    with pytest.raises(DrafterError, match=r"missing embed_tokens\.weight"):
        load_drafter(folder, device="cpu")
    folder = write(tmp_path / "with", state | {"embed_tokens.weight": tiny_embedding().rows}, flags)
    drafter, audit = load_drafter(folder, device="cpu", dtype="float32")
    assert audit.whole
    sample, base = tiny_sample("a", 20, 3, seed=1, width=32), Variant((0, 1, 2))
    assert replay(drafter, [sample], own_embedding(folder, torch.arange(V)), [base], steps=3)[0].counts.complete > 0
    with pytest.raises(EmbeddingError, match="rows are 32 wide, the drafter's hidden_size is 24"):
        replay(drafter, [sample], tiny_embedding(width=32), [base])
    with pytest.raises(ValueError, match="the embedding is 24 wide, the drafter's fc takes states of 32"):
        replay(drafter, [sample], tiny_embedding(), [Variant((EMBEDDING, 0, 1))])


def test_a_sliding_window_is_not_run(tmp_path):
    windowed = {"layer_types": ["sliding_attention"], "sliding_window": 512}
    with pytest.raises(DrafterError, match=r"its attention looks back 512 rows .layer_types.*, expected full attention"):
        load_drafter(write(tmp_path, tensors(), windowed), device="cpu")
    load_drafter(write(tmp_path, tensors(), {"layer_types": ["full_attention"], "sliding_window": 512}), device="cpu")


def test_a_map_of_narrow_integers_is_a_map(tmp_path):
    drafter, _ = load_drafter(write(tmp_path, tensors() | {"d2t": torch.ones(40, dtype=torch.int32)}), device="cpu")
    assert drafter.d2t.tolist() == [1] * 40
