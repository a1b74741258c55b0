"""The decoder layers of a drafter; parameter names are those of the checkpoints.

Grouped heads (Llama, Qwen3) and latent ones (MLA: DeepSeek, Kimi) differ in how queries, keys and values are made, and in nothing else.
MLA by DeepSeek-V3's code in transformers and by TorchSpec's, vLLM's and SGLang's draft layers: pairs are rotated, only the last
`rope` channels of a head are, and the softmax scale has yarn's factor in it. tests/test_drafter_mla.py runs transformers' own module.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelab.drafter.config import DrafterConfig, DrafterConfigError
from eaglelab.drafter.parts import Flags, RMSNorm, rotate, rotate_pairs

Rotation = tuple[Tensor, Tensor]
"""cos and sin, [R, 1, D] each."""


class GroupedAttention(nn.Module):
    """q, k and v of Llama's and Qwen3's layers. x has `width` channels: 2H in the first layer, H in further ones."""

    def __init__(self, config: DrafterConfig, width: int) -> None:
        super().__init__()
        self.head_dim, self.scale = config.head_dim, config.head_dim**-0.5
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        for name, count in heads.items():
            setattr(self, f"{name}_proj", nn.Linear(width, count * config.head_dim, bias=config.attention_bias))
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=config.attention_bias)
        if config.layer_type == "qwen3":
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, rotary: Rotation, flags: Flags) -> tuple[Tensor, Tensor]:
        """x: [R, width] -> keys (rotated) and values, [R, kv_heads, D]."""
        return rotate(self._heads("k", x, flags), rotary), self._heads("v", x, flags)

    def queries(self, x: Tensor, rotary: Rotation, flags: Flags) -> Tensor:
        """x: [R, width] -> queries, rotated, [R, heads, D]."""
        return rotate(self._heads("q", x, flags), rotary)

    def output(self, attended: Tensor, flags: Flags) -> Tensor:
        """attended: [R, heads, D] -> [R, H]. The bias here is one that SGLang keeps."""
        return self.o_proj(attended.flatten(1))

    def _heads(self, which: str, x: Tensor, flags: Flags) -> Tensor:
        """x: [R, width] -> [R, heads, D] by q_proj, k_proj or v_proj, normed where the layer has a norm for it."""
        heads = _linear(getattr(self, f"{which}_proj"), x, flags).unflatten(-1, (-1, self.head_dim))
        if flags.skip_qk_norm or not hasattr(self, f"{which}_norm"):
            return heads
        return getattr(self, f"{which}_norm")(heads)


class LatentAttention(nn.Module):
    """MLA: keys and values come out of one latent of `kv_rank` channels, all heads share one rotated key part."""

    def __init__(self, config: DrafterConfig, width: int) -> None:
        super().__init__()
        latent, heads, bias = config.latent, config.num_attention_heads, config.attention_bias
        self.latent, self.heads = latent, heads
        if latent.q_rank is None:
            self.q_proj = nn.Linear(width, heads * config.head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(width, latent.q_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(latent.q_rank, config.rms_norm_eps)
            self.q_b_proj = nn.Linear(latent.q_rank, heads * config.head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, latent.kv_rank + latent.rope, bias=bias)
        self.kv_a_layernorm = RMSNorm(latent.kv_rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(latent.kv_rank, heads * (latent.nope + latent.value), bias=False)
        self.o_proj = nn.Linear(heads * latent.value, config.hidden_size, bias=bias)
        self.scale = config.head_dim**-0.5 * yarn_factor(config.rope) ** 2
        self.rotate = rotate_pairs if latent.interleaved else rotate

    def keys_values(self, x: Tensor, rotary: Rotation, flags: Flags) -> tuple[Tensor, Tensor]:
        """x: [R, width] -> keys [R, heads, nope + rope] and values [R, heads, value]."""
        compressed, shared = _linear(self.kv_a_proj_with_mqa, x, flags).split([self.latent.kv_rank, self.latent.rope], dim=-1)
        both = self.kv_b_proj(self.kv_a_layernorm(compressed)).unflatten(-1, (self.heads, -1))
        keys, values = both.split([self.latent.nope, self.latent.value], dim=-1)
        shared = self.rotate(shared[:, None], rotary).expand(-1, self.heads, -1)  # [R, heads, rope]
        return torch.cat([keys, shared], dim=-1), values

    def queries(self, x: Tensor, rotary: Rotation, flags: Flags) -> Tensor:
        """x: [R, width] -> [R, heads, nope + rope]."""
        if self.latent.q_rank is not None:
            x = self.q_a_layernorm(_linear(self.q_a_proj, x, flags))
        queries = self.q_proj(x) if self.latent.q_rank is None else self.q_b_proj(x)
        plain, rotated = queries.unflatten(-1, (self.heads, -1)).split([self.latent.nope, self.latent.rope], dim=-1)
        return torch.cat([plain, self.rotate(rotated, rotary)], dim=-1)

    def output(self, attended: Tensor, flags: Flags) -> Tensor:
        """attended: [R, heads, value] -> [R, H]."""
        return _linear(self.o_proj, attended.flatten(1), flags)


class DraftLayer(nn.Module):
    """One decoder layer. The first one takes the token's embedding beside the state; further ones are plain decoder layers."""

    def __init__(self, config: DrafterConfig, first: bool = True) -> None:
        super().__init__()
        width = config.hidden_size
        attention = LatentAttention if config.latent else GroupedAttention
        self.self_attn = attention(config, 2 * width if first else width)
        self.mlp = nn.Module()
        for name in ("gate_proj", "up_proj"):
            setattr(self.mlp, name, nn.Linear(width, config.intermediate_size, bias=config.mlp_bias))
        self.mlp.down_proj = nn.Linear(config.intermediate_size, width, bias=config.mlp_bias)
        self.mlp.act = activation(config.hidden_act)
        for name in ("input_layernorm", *["hidden_norm"] * first, "post_attention_layernorm"):
            setattr(self, name, RMSNorm(width, config.rms_norm_eps))

    def enter(self, embeds: Tensor | None, hidden: Tensor, flags: Flags) -> tuple[Tensor, Tensor]:
        """hidden: [R, H] -> the attention's input [R, 2H] (embedding first) and the residual [R, H].

        embeds: [R, H]; None in a further layer, whose input is [R, H].
        """
        if embeds is None:
            return self.input_layernorm(hidden, flags.skip_further_gain), hidden
        normed = self.hidden_norm(hidden)
        return torch.cat([self.input_layernorm(embeds), normed], dim=-1), normed if flags.norm_before_residual else hidden

    def leave(self, attended: Tensor, residual: Tensor, flags: Flags) -> Tensor:
        """attended: [R, heads, D], residual: [R, H] -> the layer's output [R, H]."""
        hidden = residual + self.self_attn.output(attended, flags)
        x = self.post_attention_layernorm(hidden)
        return hidden + self.mlp.down_proj(self.mlp.act(self.mlp.gate_proj(x)) * self.mlp.up_proj(x))


def activation(name: str) -> nn.Module:
    """transformers' activation of that name, as trainers look it up. Raises DrafterConfigError where there is none, or one with weights."""
    from transformers.activations import ACT2FN

    found = ACT2FN[name] if name in ACT2FN else None  # noqa: SIM401 - its get() gives the class
    if found is None or any(True for _ in found.parameters()):
        raise DrafterConfigError(
            f"the drafter's hidden_act is {name!r}, expected an activation of transformers without weights, such as 'silu'"
        )
    return found


def yarn_factor(rope: dict) -> float:
    """What DeepSeek's code multiplies the softmax scale with, twice: 1 without `mscale_all_dim`, whatever the scaling is."""
    factor, weight = rope.get("factor", 1.0), rope.get("mscale_all_dim", 0.0)
    return 1.0 if rope.get("rope_type") == "default" or factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _linear(layer: nn.Linear, x: Tensor, flags: Flags) -> Tensor:
    return F.linear(x, layer.weight, None if flags.skip_attention_bias else layer.bias)
