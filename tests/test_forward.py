"""The forward one layer at a time, against transformers' own `output_hidden_states`, bit for bit."""

import json
import shutil
import subprocess
import sys

import pytest
import tiny_models as tm
import torch
from conftest import requires_cuda
from safetensors.torch import load_file, save_file

from eaglelab.target import CheckpointError, ForwardError, ForwardSource, open_checkpoint, visit_boundaries
from eaglelab.wiring import FINAL


def collect(folder, samples, **options):
    """{boundary: states}, copied."""
    found = {}

    def visit(boundary, states):
        assert boundary not in found
        found[boundary] = [s.clone() for s in states]

    visit_boundaries(folder, samples, visit, **options)
    return found


FAMILIES = {
    "llama": tm.make_llama,
    "qwen3": tm.make_qwen3,
    "deepseek_v3": tm.make_deepseek_v3,
    "gemma2": tm.make_gemma2,
    "gemma3": tm.make_gemma3,
    "llama_tied": lambda folder, **kw: tm.make_llama(folder, tie_word_embeddings=True, **kw),
    "llama_one_layer": lambda folder, **kw: tm.make_llama(folder, num_hidden_layers=1, **kw),
    "gpt2": lambda folder, **kw: tm.make_model("gpt2", folder, vocab_size=128, n_embd=64, n_layer=4, n_head=4, **kw),
    "gpt_oss": lambda folder, **kw: tm.make_model("gpt_oss", folder, **tm.COMMON, num_local_experts=4, sliding_window=8, **kw),
    "qwen3_moe": lambda folder, **kw: tm.make_model(
        "qwen3_moe", folder, **tm.COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, **kw
    ),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tm.make_llama(tmp_path_factory.mktemp("llama"))


# -- known answers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bit_for_bit_equal_to_transformers(tmp_path, family, dtype):
    folder = FAMILIES[family](tmp_path, dtype=dtype)
    samples = [tm.tokens(13), tm.tokens(37, seed=1), tm.tokens(1, seed=2)]  # several lengths in one pass, longer than the windows
    found = collect(folder, samples)
    layers = open_checkpoint(folder).num_layers
    assert list(found) == [*range(layers + 1), FINAL]
    for i, ids in enumerate(samples):
        expected = tm.hidden_states(folder, ids, dtype)
        assert len(expected) == layers + 1
        for boundary in range(layers):
            assert torch.equal(found[boundary][i], expected[boundary]), (family, boundary)
        assert torch.equal(found[FINAL][i], expected[-1])
        assert not torch.equal(found[layers][i], expected[-1])  # boundary N is not final


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "gemma3"])
def test_norm_of_boundary_n_is_final(tmp_path, family):
    """Boundary N, which output_hidden_states leaves out, through the model's own norm module."""
    from transformers import AutoModelForCausalLM

    folder = FAMILIES[family](tmp_path)
    found = collect(folder, [tm.tokens(13)])
    norm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model.norm
    with torch.no_grad():
        assert torch.equal(norm(found[tm.LAYERS][0]), found[FINAL][0])


def test_deepseek_checkpoint_holds_single_experts(tmp_path):
    """What makes the test above one of fusing: the file has one tensor per expert, the module one for all."""
    folder = tm.make_deepseek_v3(tmp_path)
    assert "model.layers.1.mlp.experts.7.gate_proj.weight" in open_checkpoint(folder)
    assert not any(name.endswith("gate_up_proj") for name in open_checkpoint(folder).names())


def test_many_experts_keep_their_order(tmp_path):
    """Expert 10 comes after expert 9, not after expert 1."""
    folder = tm.make_model("qwen3_moe", tmp_path, **tm.COMMON, num_experts=12, num_experts_per_tok=4, moe_intermediate_size=16)
    ids = tm.tokens(13)
    assert torch.equal(collect(folder, [ids])[FINAL][0], tm.hidden_states(folder, ids)[-1])


def test_a_state_does_not_depend_on_its_company(llama):
    samples = [tm.tokens(n, seed=n) for n in (5, 40, 17)]
    together = collect(llama, samples)
    for i, ids in enumerate(samples):
        alone = collect(llama, [ids])
        assert all(torch.equal(together[b][i], alone[b][0]) for b in together)


@pytest.mark.parametrize("up_to", range(tm.LAYERS + 1))
def test_up_to_stops_and_reads_no_further_layer(llama, tmp_path, up_to):
    """Of the layers beyond, and of the final norm, not even the weights are there."""
    folder = tmp_path / "part"
    shutil.copytree(llama, folder)
    tensors = load_file(folder / "model.safetensors")
    beyond = tuple(f"model.layers.{i}." for i in range(up_to, tm.LAYERS))
    kept = {n: t for n, t in tensors.items() if not n.startswith((*beyond, "model.norm.", "lm_head."))}
    save_file(kept, folder / "model.safetensors")
    whole, part = collect(llama, [tm.tokens(9)]), collect(folder, [tm.tokens(9)], up_to=up_to)
    assert list(part) == list(range(up_to + 1))
    assert all(torch.equal(part[b][0], whole[b][0]) for b in part)


def test_up_to_keeps_a_norm_before_the_layers(tmp_path):
    """Bloom norms its embedding; only the norm after the last layer may be left out."""
    folder = tm.make_model("bloom", tmp_path, vocab_size=128, hidden_size=64, n_layer=4, n_head=4)
    found, expected = collect(folder, [tm.tokens(9)], up_to=1), tm.hidden_states(folder, tm.tokens(9))
    assert all(torch.equal(found[b][0], expected[b]) for b in (0, 1))


def test_dtype_is_chosen(tmp_path):
    folder, ids = tm.make_llama(tmp_path, dtype=torch.bfloat16), tm.tokens(9)
    assert collect(folder, [ids])[2][0].dtype == torch.bfloat16
    wide = collect(folder, [ids], dtype="float32")
    assert torch.equal(wide[2][0], tm.hidden_states(folder, ids, torch.float32)[2])
    with pytest.raises(ForwardError, match="dtype 'int8' is not one to run a target in: give auto, float32"):
        collect(folder, [ids], dtype="int8")


def test_forward_source(llama):
    source = ForwardSource(llama, up_to=2)
    assert (source.num_layers, source.hidden_size, source.vocab_size) == (tm.LAYERS, tm.HIDDEN, tm.VOCAB)
    boundaries = []
    source.visit([tm.tokens(5)], lambda b, states: boundaries.append(b))
    assert boundaries == [0, 1, 2]


# -- what checkpoints look like -----------------------------------------------------------------------------------------------


def wrapped(folder, prefix, wrapper, **text):
    """The checkpoint of a text model as a multimodal wrapper holds it: other prefixes, another tower, `text_config`."""
    tensors = load_file(folder / "model.safetensors")
    moved = {prefix + n.removeprefix("model.") if n.startswith("model.") else "language_model." + n: t for n, t in tensors.items()}
    save_file({**moved, "vision_tower.encoder.layers.0.norm.weight": torch.zeros(3)}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**wrapper, "text_config": {**config, **text}}))


@pytest.mark.parametrize(
    ("family", "prefix", "wrapper", "text"),
    [
        ("llama", "language_model.model.", {"model_type": "nobodys_vl", "auto_map": {"AutoModel": "code.Model"}}, {}),
        ("deepseek_v3", "language_model.model.", {"model_type": "kimi_k25"}, {"model_type": "kimi_k2"}),
        ("gemma3", "model.language_model.", {"model_type": "gemma3"}, {}),
    ],
)
def test_text_part_of_a_multimodal_wrapper(tmp_path, family, prefix, wrapper, text):
    folder, ids = FAMILIES[family](tmp_path), tm.tokens(11)
    expected = tm.hidden_states(folder, ids)
    wrapped(folder, prefix, wrapper, **text)
    found = collect(folder, [ids])
    assert all(torch.equal(found[b][0], expected[b]) for b in range(tm.LAYERS))
    assert torch.equal(found[FINAL][0], expected[-1])


def test_model_type_unknown_but_architecture_known(tmp_path):
    """Kimi-K2: model_type kimi_k2, architectures DeepseekV3ForCausalLM."""
    folder, ids = tm.make_deepseek_v3(tmp_path), tm.tokens(11)
    expected = tm.hidden_states(folder, ids)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "kimi_k2"}))
    assert torch.equal(collect(folder, [ids])[FINAL][0], expected[-1])


def test_fp8_blocks_run_as_their_dequantised_twin(tmp_path):
    """Every projection of a DeepSeek-V3 in FP8 blocks equals the same model with the products stored as bf16."""
    twin, quantised, ids = tm.make_deepseek_v3(tmp_path / "twin", dtype=torch.bfloat16), tmp_path / "fp8", tm.tokens(11)
    shutil.copytree(twin, quantised)
    plain, stored = load_file(twin / "model.safetensors"), {}
    for name, tensor in plain.items():
        if "_proj" in name:
            scale = tensor.float().abs().max() / 448
            stored[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
            stored[name + "_scale_inv"] = scale.reshape(1, 1)
            plain[name] = (stored[name].float() * scale).bfloat16()
        else:
            stored[name] = tensor
    save_file(stored, quantised / "model.safetensors")
    save_file(plain, twin / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
    (quantised / "config.json").write_text(json.dumps(config))
    expected = tm.hidden_states(twin, ids, torch.bfloat16)
    found = collect(quantised, [ids])
    assert all(torch.equal(found[b][0], expected[b]) for b in range(tm.LAYERS))


# -- memory -------------------------------------------------------------------------------------------------------------------

CHILD = """
import sys, torch
torch.set_num_threads(1)
from eaglelab.target import visit_boundaries
def memory(what):  # VmHWM is this process's own peak; getrusage's would begin with that of the process that started it
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(what))
small, large, ids = *sys.argv[1:], torch.arange(64)
visit_boundaries(small, [ids], lambda *call: None)  # whatever is imported or set up once
before, seen = memory("VmRSS"), []
visit_boundaries(large, [ids], lambda b, states: seen.append(bool(states[0].isfinite().all())))
print(memory("VmHWM") - before, len(seen), all(seen))
"""


def test_a_model_larger_than_the_budget_runs(tmp_path):
    """400 MB of weights (24 layers of 17 MB) in a budget of 70 MB; the process's peak stays within it."""
    config = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8, "head_dim": 64}
    config |= {"num_key_value_heads": 8, "vocab_size": 512}
    small = tm.make_llama(tmp_path / "small")
    one = tm.make_llama(tmp_path / "one", **{**config, "num_hidden_layers": 1})
    large, first, size = tmp_path / "large", load_file(one / "model.safetensors"), 0
    large.mkdir()
    settings = json.loads((one / "config.json").read_text())
    (large / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 24}))
    weight_map = {}
    for layer in range(24):
        file = f"model-{layer:05}-of-00024.safetensors"
        part = {n.replace("layers.0.", f"layers.{layer}."): t for n, t in first.items() if "layers.0." in n or layer == 0}
        save_file(part, large / file)
        weight_map |= dict.fromkeys(part, file)
        size += (large / file).stat().st_size
    (large / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    budget = 70_000_000
    assert size > 400e6
    shutil.rmtree(one)
    run = subprocess.run([sys.executable, "-c", CHILD, small, large], capture_output=True, text=True, timeout=120)
    shutil.rmtree(large)
    assert run.returncode == 0, run.stderr
    grown, boundaries, finite = run.stdout.split()
    assert (boundaries, finite) == ("26", "True")
    assert int(grown) < budget < size / 5, grown


def test_weights_are_gone_after_their_layer(llama):
    from eaglelab.target.forward import Target

    target = Target(llama, "auto", "cpu")
    with target.layer(1) as module:
        assert not any(p.is_meta for p in module.parameters())
    assert all(p.is_meta for layer in target.skeleton.layers for p in layer.parameters())


# -- errors -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("up_to", [-1, tm.LAYERS + 1, 31, True, "3"])
def test_up_to_beyond_the_target(llama, up_to):
    with pytest.raises(ForwardError, match=rf"up_to is {up_to!r}, but llama\d+ has N=4 layers: give 0..4 or None"):
        collect(llama, [tm.tokens(5)], up_to=up_to)


@pytest.mark.parametrize("bad", [tm.VOCAB, -1, 2**40])
def test_token_ids_out_of_the_vocabulary(llama, bad):
    ids = tm.tokens(5)
    ids[3] = bad
    with pytest.raises(ForwardError, match=rf"sample 1 has the token id {bad}, but llama\d+ has ids 0..127 \(1 of 5 are outside\)"):
        collect(llama, [tm.tokens(5), ids])


@pytest.mark.parametrize("ids", [torch.zeros(0, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3)])
def test_what_is_no_sample(llama, ids):
    with pytest.raises(ForwardError, match=r"sample 0 has token ids of shape .*expected \[T\] integers, T > 0"):
        collect(llama, [ids])
    with pytest.raises(ForwardError, match="no samples given"):
        collect(llama, [])


def test_model_type_that_transformers_does_not_have(llama, tmp_path):
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "brontosaurus", "architectures": ["Bronto"]}))
    with pytest.raises(ForwardError, match=r"has no causal language model for model_type 'brontosaurus' \(architectures \['Bronto'\]\)"):
        collect(tmp_path, [tm.tokens(5)])


def edited(llama, folder, edit):
    shutil.copytree(llama, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_missing_weights_are_named_before_anything_runs(llama, tmp_path):
    folder = edited(llama, tmp_path, lambda t: (t.pop("model.layers.2.mlp.up_proj.weight"), t.pop("model.norm.weight")))
    visited = []
    with pytest.raises(
        CheckpointError, match=r"2 of 38 tensors that boundary final needs are missing: model.norm.weight, model.layers.2.mlp"
    ):
        visit_boundaries(folder, [tm.tokens(5)], lambda *call: visited.append(call))
    assert not visited


def test_weights_of_another_shape(llama, tmp_path):
    folder = edited(llama, tmp_path, lambda t: t.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(90, 64)}))
    with pytest.raises(CheckpointError, match=r"up_proj.weight has the shape \(90, 64\), config.json asks for \(96, 64\)"):
        collect(folder, [tm.tokens(5)])


def test_missing_expert(tmp_path):
    folder = tm.make_deepseek_v3(tmp_path / "whole")
    folder = edited(folder, tmp_path / "part", lambda t: t.pop("model.layers.2.mlp.experts.5.up_proj.weight"))
    assert list(collect(folder, [tm.tokens(5)], up_to=2)) == [0, 1, 2]
    with pytest.raises(CheckpointError, match=r"layers.2.mlp.experts.gate_up_proj needs 8 experts .*up_proj.weight\), got 7"):
        collect(folder, [tm.tokens(5)])


def test_config_that_its_class_refuses(llama, tmp_path):
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": "wide"}))
    with pytest.raises(ForwardError, match=r"config.json: LlamaConfig refuses it"):
        collect(tmp_path, [tm.tokens(5)])


def test_more_than_one_residual_stream_is_refused_not_run_wrong(tmp_path):
    """Gemma 3n carries four streams from layer to layer."""
    extra = {"vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 16, "laurel_rank": 8, "num_kv_shared_layers": 2}
    folder = tm.make_model("gemma3n_text", tmp_path, **{**tm.GEMMA, **extra})
    with pytest.raises(ForwardError, match=r"Gemma3nTextModel cannot be run one layer at a time: what enters layer 0 has the shape \(4, 1"):
        collect(folder, [tm.tokens(5)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state, kwargs: (state * 1.5, kwargs), "layer 1 is not given what layer 0 returns"),
        (lambda state, kwargs: (state, {**kwargs, "position_ids": state[0, :, :1]}), "layer 1 is given more from earlier layers"),
    ],
)
def test_a_loop_that_does_more_than_hand_on_is_refused(llama, monkeypatch, change, reason):
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    call = LlamaDecoderLayer.__call__

    def changed(self, state, **kwargs):
        state, kwargs = change(state, kwargs) if self.self_attn.layer_idx == 1 else (state, kwargs)
        return call(self, state, **kwargs)

    monkeypatch.setattr(LlamaDecoderLayer, "__call__", changed)
    with pytest.raises(ForwardError, match=reason):
        collect(llama, [tm.tokens(5)])


def test_building_leaves_torch_as_it_was(llama):
    register = torch.nn.Module.register_parameter
    collect(llama, [tm.tokens(5)], up_to=1)
    assert torch.nn.Module.register_parameter is register
    assert torch.empty(2).device.type == "cpu"
    assert torch.get_default_dtype() == torch.float32


# -- CUDA ---------------------------------------------------------------------------------------------------------------------


@requires_cuda
@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "gemma3"])
def test_cuda_equals_the_cpu_within_rounding(tmp_path, family):
    folder, samples = FAMILIES[family](tmp_path), [tm.tokens(13), tm.tokens(29)]
    cpu, cuda = collect(folder, samples), collect(folder, samples, device="cuda")
    for boundary in cpu:
        for expected, got in zip(cpu[boundary], cuda[boundary], strict=True):
            assert got.device.type == "cuda"
            assert torch.allclose(got.cpu(), expected, rtol=1e-3, atol=1e-4)
