"""MLA drafters (Kimi, DeepSeek) against transformers' own DeepSeek-V3 attention, MLP and norms on the same weights, one chain at a time.

The attention's input is the embedding beside the state, twice the width that the module is made for: its first projections are replaced.
"""

import json

import pytest
import torch
from safetensors.torch import save_file
from tiny_drafters import H, V, mla, tiny_drafter, tiny_embedding, tiny_sample
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3MLP,
    DeepseekV3RMSNorm,
    DeepseekV3RotaryEmbedding,
)

from eaglelab.drafter.audit import audit_folder
from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.checkpoint import load_drafter
from eaglelab.drafter.config import DrafterConfig

STEPS, TOLERANCE = 3, 1e-5
YARN = {
    "rope_theta": 50000.0,
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 8,
}
ROPES = {
    "default": {"rope_theta": 50000.0, "rope_type": "default"},
    "yarn": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, two scales": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    "yarn, none": YARN,
}
CASES = [(rank, True, rope) for rank in (10, None) for rope in ROPES] + [(10, False, "default"), (None, False, "yarn")]


def theirs(drafter):
    """transformers' parts with the drafter's weights."""
    c, m = drafter.config, drafter.config.latent
    config = DeepseekV3Config(
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_attention_heads,
        q_lora_rank=m.q_rank,
        kv_lora_rank=m.kv_rank,
        qk_nope_head_dim=m.nope,
        qk_rope_head_dim=m.rope,
        v_head_dim=m.value,
        rope_interleave=m.interleaved,
        rope_parameters=dict(c.rope),
        attention_bias=c.attention_bias,
        rms_norm_eps=c.rms_norm_eps,
        max_position_embeddings=c.max_position_embeddings,
    )
    config._attn_implementation = "eager"
    attention = DeepseekV3Attention(config, 0)
    for name in ("kv_a_proj_with_mqa", "q_proj" if m.q_rank is None else "q_a_proj"):
        narrow = getattr(attention, name)
        setattr(attention, name, torch.nn.Linear(2 * c.hidden_size, narrow.out_features, bias=narrow.bias is not None))
    attention.load_state_dict(drafter.midlayer.self_attn.state_dict())
    mlp = DeepseekV3MLP(config)
    mlp.load_state_dict(drafter.midlayer.mlp.state_dict())

    def norm(ours):
        module = DeepseekV3RMSNorm(len(ours.weight), c.rms_norm_eps)
        module.load_state_dict(ours.state_dict())
        return module

    norms = {n: norm(getattr(drafter.midlayer, n)) for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    return attention.eval(), mlp, norms | {"norm": norm(drafter.norm)}, DeepseekV3RotaryEmbedding(config)


def chain(drafter, sample, embed, t):
    """Their logits [K, Vd] of the chain from row t, all its rows computed anew at each step."""
    attention, mlp, norms, rotary = theirs(drafter)
    ids, layer_input, states = sample.token_ids, [], drafter.fc(torch.cat(sample.slots[:3], dim=1))
    logits, hidden = [], states[: t + 1]
    for k in range(STEPS):
        tokens = ids[1 : t + 2] if k == 0 else ids[t + 1 + k, None]
        layer_input.append(torch.cat([norms["input_layernorm"](embed(tokens)), norms["hidden_norm"](hidden)], dim=1))
        x = torch.cat(layer_input)[None]  # [1, t + 1 + k, 2H]
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)[None, None]
        attended, _ = attention(x, rotary(x, torch.arange(x.shape[1])[None]), mask)
        middle = hidden[-1] + attended[0, -1]
        hidden = (middle + mlp(norms["post_attention_layernorm"](middle)))[None]
        logits.append(drafter.lm_head(norms["norm"](hidden))[0])
        hidden = norms["norm"](hidden) if drafter.config.norm_output else hidden
    return torch.stack(logits)


def ours(drafter, sample, embed, rows):
    """[K, R, Vd]"""
    packed, states = Packed.of([sample.token_ids]), list(sample.slots[:3])
    fused = drafter.fuse([drafter.slot_product(p, x) for p, x in enumerate(states)], states)
    return torch.stack([out.logits for out in draft_chains(drafter, packed, fused, embed, rows, STEPS)])


@pytest.mark.parametrize(("rank", "interleaved", "rope"), CASES)
@torch.no_grad()
def test_logits_are_those_of_transformers_own_layer(rank, interleaved, rope):
    drafter = tiny_drafter(
        3, **mla(rank, interleaved=interleaved), rope=ROPES[rope], attention_bias=rope == "yarn", norm_output=rank is None
    )
    sample, embed, rows = tiny_sample("a", 24, 3, seed=3), tiny_embedding(), torch.tensor([0, 7, 19])
    logits = ours(drafter, sample, embed, rows)
    right = torch.stack([chain(drafter, sample, embed, int(t)) for t in rows], dim=1)
    assert float((logits - right).abs().max() / right.abs().max()) < TOLERANCE
    assert float(right.std()) > 0.1


@torch.no_grad()
def test_pairs_and_yarns_scale_matter_here():
    """The agreement above is about them: the other choice moves the logits by far more."""
    rope = ROPES["yarn"]
    right = tiny_drafter(3, **mla(), rope=rope)
    sample, embed, rows = tiny_sample("a", 24, 3, seed=3), tiny_embedding(), torch.tensor([7, 19])
    logits = ours(right, sample, embed, rows)
    for change in ({**mla(interleaved=False), "rope": rope}, {**mla(), "rope": {k: v for k, v in rope.items() if k != "mscale_all_dim"}}):
        other = ours(tiny_drafter(3, **change), sample, embed, rows)
        assert float((logits - other).abs().max() / logits.abs().max()) > 100 * TOLERANCE


# As TorchSpec and ModelOpt write it: the sizes of the heads in the config, the first under EAGLE's names, the second as layer 0.
CONFIG = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": H,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
    "rms_norm_eps": 1e-6,
    "vocab_size": V,
    "draft_vocab_size": 40,
    "rope_theta": 50000.0,
    "rope_scaling": {k: v for k, v in ROPES["yarn"].items() if k not in ("rope_theta", "rope_type")} | {"type": "yarn"},
    "max_position_embeddings": 512,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57], "use_aux_hidden_state": True},
}


@pytest.mark.parametrize("rank", [10, None])
@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."])
@torch.no_grad()
def test_folders(tmp_path, rank, layer):
    drafter = tiny_drafter(3, **mla(rank), rope=ROPES["yarn"])
    state = {n.replace("midlayer.", layer): t for n, t in drafter.state_dict().items() if not n.startswith("rotary")}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"q_lora_rank": rank, "norm_output": True}))
    save_file(state, tmp_path / "model.safetensors")
    loaded, audit = load_drafter(tmp_path, device="cpu", dtype="float32")
    assert audit.whole
    assert audit_folder(tmp_path, loaded.config).unexpected == ()
    assert loaded.config.post_norm_recurrence  # TorchSpec's and the engines' meaning; SpecForge has no MLA drafters
    sample, embed, rows = tiny_sample("a", 24, 3, seed=3), tiny_embedding(), torch.tensor([19])
    right = torch.stack([chain(loaded, sample, embed, 19)], dim=1)
    assert float((ours(loaded, sample, embed, rows) - right).abs().max() / right.abs().max()) < TOLERANCE


def test_kimis_own_sizes():
    config = DrafterConfig.from_dict(
        CONFIG | {"num_attention_heads": 64, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "hidden_size": 7168}
    )
    assert (config.head_dim, config.rotated_width, config.family) == (192, 64, "modelopt")
