"""The EAGLE-3 draft layer in plain torch, over packed rows: one matrix holds the rows of several samples, one after the other.

    h  = fc(concat of the aux states)                                   # norm_before_fc, fc_norm: normed first
    x  = concat(input_layernorm(embedding of the token), hidden_norm(h))
    r  = h, or hidden_norm(h) with norm_before_residual
    h' = r + o_proj(attention(x));  h'' = h' + mlp(post_attention_layernorm(h'))
    logits = lm_head(norm(h''));  the next step's h is h'', or norm(h'') with norm_output

Same mathematics in EAGLE, SpecForge, AngelSlim, speculators, vLLM and SGLang, up to the flags. Checked against the
trainers' own code in tests/test_drafter_oracles.py and against a sequential drafter in tests/test_replay_sequential.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelab.drafter.config import DrafterConfig, DrafterConfigError

LOGIT_BYTES = 64 * 2**20
"""Draft logits of one block of rows, in float32."""


class RMSNorm(nn.Module):
    """w * (x / rms(x)), the division in float32, the product in x's dtype (Llama's order)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


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
    """The biases of q, k and v are left out, as SGLang does."""

    @classmethod
    def of(cls, config: DrafterConfig) -> Flags:
        """The config's own choice: nothing that it has is left out."""
        return cls(config.norm_before_residual, config.post_norm_recurrence, config.skip_final_norm)


@dataclass(frozen=True)
class StepOutput:
    """What one drafted step leaves behind for R rows."""

    carried: Tensor
    """[R, H] the state that the next step starts from."""
    spoken: Tensor
    """[R, H] the state that lm_head reads."""
    lm_head: nn.Linear

    @cached_property
    def logits(self) -> Tensor:
        """[R, Vd] over the draft vocabulary, all rows at once: 170 MB for 1,300 rows and 32,000 tokens. See `blocks`."""
        return self.lm_head(self.spoken)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """(rows, their logits [r, Vd]) in blocks of bounded memory; none is kept."""
        size = max(16, LOGIT_BYTES // (4 * self.lm_head.out_features))
        for first in range(0, len(self.spoken), size):
            part = slice(first, min(first + size, len(self.spoken)))
            yield part, self.lm_head(self.spoken[part])


class DraftLayer(nn.Module):
    """The one decoder layer; parameter names are those of the EAGLE and SpecForge checkpoints (`midlayer.*`)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, head = config.hidden_size, config.head_dim
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, head
        self.self_attn = nn.Module()
        for name, heads in (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads)):
            setattr(self.self_attn, name, nn.Linear(2 * width, heads * head, bias=config.attention_bias))
        self.self_attn.o_proj = nn.Linear(self.heads * head, width, bias=False)
        if config.layer_type == "qwen3":
            self.self_attn.q_norm = RMSNorm(head, config.rms_norm_eps)
            self.self_attn.k_norm = RMSNorm(head, config.rms_norm_eps)
        self.mlp = nn.Module()
        for name in ("gate_proj", "up_proj"):
            setattr(self.mlp, name, nn.Linear(width, config.intermediate_size, bias=False))
        self.mlp.down_proj = nn.Linear(config.intermediate_size, width, bias=False)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            setattr(self, name, RMSNorm(width, config.rms_norm_eps))

    def enter(self, embeds: Tensor, hidden: Tensor, flags: Flags) -> tuple[Tensor, Tensor]:
        """embeds, hidden: [R, H] -> the attention's input [R, 2H] (embedding first) and the residual [R, H]."""
        normed = self.hidden_norm(hidden)
        return torch.cat([self.input_layernorm(embeds), normed], dim=-1), normed if flags.norm_before_residual else hidden

    def keys_values(self, x: Tensor, rotary: tuple[Tensor, Tensor], flags: Flags) -> tuple[Tensor, Tensor]:
        """x: [R, 2H] -> keys (rotated) and values, [R, kv_heads, D]."""
        return rotate(self._heads("k", x, flags), rotary), self._heads("v", x, flags)

    def queries(self, x: Tensor, rotary: tuple[Tensor, Tensor], flags: Flags) -> Tensor:
        """x: [R, 2H] -> queries, rotated, [R, heads, D]."""
        return rotate(self._heads("q", x, flags), rotary)

    def _heads(self, which: str, x: Tensor, flags: Flags) -> Tensor:
        """x: [R, 2H] -> [R, heads, D] by q_proj, k_proj or v_proj, normed where the layer has a norm for it."""
        linear = getattr(self.self_attn, f"{which}_proj")
        heads = F.linear(x, linear.weight, None if flags.skip_attention_bias else linear.bias).unflatten(-1, (-1, self.head_dim))
        if flags.skip_qk_norm or not hasattr(self.self_attn, f"{which}_norm"):
            return heads
        return getattr(self.self_attn, f"{which}_norm")(heads)

    def leave(self, attended: Tensor, residual: Tensor) -> Tensor:
        """attended: [R, heads, D], residual: [R, H] -> the layer's output [R, H]."""
        hidden = residual + self.self_attn.o_proj(attended.flatten(1))
        x = self.post_attention_layernorm(hidden)
        return hidden + self.mlp.down_proj(F.silu(self.mlp.gate_proj(x)) * self.mlp.up_proj(x))


class Drafter(nn.Module):
    """The draft model without its embedding table: embedding rows come in from outside (most checkpoints carry none)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        fused = config.num_slots * config.target_hidden_size
        self.fc = nn.Linear(fused, config.hidden_size, bias=config.fc_bias)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(fused, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_slots))
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        with torch.device("cpu"):  # its tables are computed, not loaded: never on the meta device
            self.rotary = Rotary(config)

    def slot_product(self, place: int, states: Tensor, *, skip_norms: bool = False) -> Tensor:
        """One slot's part of the fused input: its (normed) states through its columns of fc. states: [R, Ht] -> [R, H].

        Without the scale of `norm_before_fc`, which depends on all slots of a row: see `fuse`. skip_norms: `Flags.skip_fc_norms`.
        """
        width = self.config.target_hidden_size
        columns = slice(place * width, (place + 1) * width)
        if self.config.fc_norm and not skip_norms:
            states = self.fc_norm[place](states)
        if self.config.norm_before_fc and not skip_norms:
            states = states * self.input_norm.weight[columns]
        return F.linear(states, self.fc.weight[:, columns])

    def fuse(self, products: list[Tensor], states: list[Tensor], *, skip_norms: bool = False) -> Tensor:
        """The drafter's first hidden state, [R, H], from each slot's product [R, H] and (for `norm_before_fc`) its states [R, Ht]."""
        fused = products[0].float()  # [R, H]
        for product in products[1:]:
            fused = fused + product
        if self.config.norm_before_fc and not skip_norms:
            square = sum(s.float().pow(2).sum(-1, keepdim=True) for s in states)  # [R, 1]
            fused = fused * torch.rsqrt(square / self.fc.in_features + self.input_norm.eps)
        if self.fc.bias is not None:
            fused = fused + self.fc.bias.float()
        return fused.to(products[0].dtype)

    def speak(self, hidden: Tensor, flags: Flags) -> StepOutput:
        """hidden: [R, H], the layer's output -> what lm_head reads and the state for the next step."""
        normed = self.norm(hidden)
        spoken = hidden if flags.skip_final_norm else normed
        return StepOutput(normed if flags.post_norm_recurrence else hidden, spoken, self.lm_head)

    @property
    def target_ids(self) -> Tensor:
        """[Vd] int64: the target's token id of each draft id (d2t holds offsets)."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)


class Rotary(nn.Module):
    """cos and sin for row positions, by transformers' own rules for every rope type (default, linear, llama3, yarn, ...).

    `mrope` is the default rope here: on text its three positions are one. Raises DrafterConfigError for a rope that transformers does
    not know or that lacks a parameter.
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
                head_dim=config.head_dim,
                max_position_embeddings=config.max_position_embeddings,
                **options,
            )
            self.tables = LlamaRotaryEmbedding(config=llama)
        except (KeyError, TypeError, ValueError) as error:
            raise DrafterConfigError(f"the drafter's rope {config.rope} cannot be built ({type(error).__name__}: {error})") from error

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
