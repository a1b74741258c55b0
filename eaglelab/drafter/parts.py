"""What every kind of draft layer is made of: the flags that engines and trainers differ in, the norm, the rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eaglelab.drafter.config import DrafterConfig, DrafterConfigError


@dataclass(frozen=True)
class Flags:
    """The choices that trainers and engines make differently over the same weights. The replay turns them one by one."""

    norm_before_residual: bool = False
    """The residual starts from hidden_norm(h), not from h (speculators, vLLM; SGLang ignores it)."""
    post_norm_recurrence: bool = False
    """The next step starts from norm(h'') (`norm_output` in speculators, vLLM, SGLang)."""
    skip_final_norm: bool = False
    """No norm before lm_head (`norm_output: false` in SpecForge's meaning)."""
    skip_fc_norms: bool = False
    """Neither input_norm nor fc_norm is applied: an engine that does not know the key."""
    skip_qk_norm: bool = False
    """q_norm and k_norm are left out: SGLang drops the two weights of a qwen3 layer."""
    skip_attention_bias: bool = False
    """The biases of q, k and v are left out, as SGLang does; in an MLA layer all of them, as both engines do."""
    skip_further_gain: bool = False
    """Further layers norm their input with a gain of one: SGLang norms it by a hidden_norm that no checkpoint has, not by input_layernorm."""
    target_embedding: bool = False
    """The target's embedding rows go in, not those of the drafter's own table: SGLang overwrites it."""

    @classmethod
    def of(cls, config: DrafterConfig) -> Flags:
        """The config's own choice: nothing that it has is left out."""
        return cls(config.norm_before_residual, config.post_norm_recurrence, config.skip_final_norm)


class RMSNorm(nn.Module):
    """w * (x / rms(x)), the division in float32, the product in x's dtype (Llama's order)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, skip_gain: bool = False) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        normed = (wide * scale).to(x.dtype)
        return normed if skip_gain else self.weight * normed


class Rotary(nn.Module):
    """cos and sin for row positions, by transformers' own rules for every rope type (default, linear, llama3, yarn, ...).

    `mrope` is the default rope here: on text its three positions are one. Raises DrafterConfigError for a rope that transformers does
    not know, that lacks a parameter, or whose tables are not finite.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        kind = config.rope.get("rope_type", "default")
        options = {"rope_theta": config.rope["rope_theta"]}
        if kind not in ("default", "mrope"):
            options["rope_scaling"] = {k: v for k, v in config.rope.items() if k != "rope_theta"}
        try:
            llama = LlamaConfig(
                hidden_size=config.hidden_size,
                num_attention_heads=config.num_attention_heads,
                num_key_value_heads=config.num_key_value_heads,
                head_dim=config.rotated_width,
                max_position_embeddings=config.max_position_embeddings,
                **options,
            )
            self.tables = LlamaRotaryEmbedding(config=llama)
            for last in (config.max_position_embeddings, 2):  # long contexts first: some ropes keep what they were last asked for
                self._try(torch.tensor([0, 1, last - 1]), config.rotated_width)
        except Exception as error:  # transformers' own arithmetic over numbers out of a file
            raise DrafterConfigError(f"the drafter's rope {config.rope} cannot be built ({type(error).__name__}: {error})") from error

    def _try(self, positions: Tensor, width: int) -> None:
        tables = self(positions, torch.empty(0))
        if any(t.shape[-1] != width or not bool(t.isfinite().all()) for t in tables):
            raise ValueError(f"its cos and sin are not {width} finite numbers each at positions {positions.tolist()}")

    @torch.no_grad()
    def forward(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """positions: [R] int64 -> cos, sin [R, 1, D] in like's dtype."""
        cos, sin = self.tables(like.new_empty(1, dtype=torch.float32), positions[None])
        return cos[0, :, None].to(like.dtype), sin[0, :, None].to(like.dtype)


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding, halves split. x: [R, heads, D]."""
    cos, sin = rotary
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def rotate_pairs(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of neighbouring pairs (DeepSeek's layout). x: [R, heads, D]; the result has its halves split: q . k is the same."""
    return rotate(torch.cat([x[..., ::2], x[..., 1::2]], dim=-1), rotary)
