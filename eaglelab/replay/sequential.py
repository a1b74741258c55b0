"""The same drafting the slow way: one row after the other with a KV cache, as an engine does it.

This is the reference that the replay is proven against. It takes the drafter's weights and nothing else: attention, masking, rotation
and alignment are written here again, from the engine's point of view, for one token at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eaglelab.drafter.model import Drafter


@dataclass(frozen=True)
class Draft:
    """What one chain drafted."""

    tokens: list[int]
    """K token ids, in the target's vocabulary."""
    logits: list[Tensor]
    """K times [Vd]."""


class SequentialDrafter:
    """Feed the true text row by row with `extend`, and draft a chain from any moment with `draft`; the cache is cut back afterwards."""

    def __init__(self, drafter: Drafter, embedding, capacity: int = 1024) -> None:
        """embedding: token ids [R] -> rows [R, H]. capacity: rows of the KV cache, drafted ones included."""
        self.weights = dict(drafter.named_parameters())
        self.config, self.embedding = drafter.config, embedding
        if self.config.rope.get("rope_type", "default") != "default":
            raise ValueError("the sequential reference knows the default rope only")
        self.vocabulary = [i + int(off) for i, off in enumerate(drafter.d2t.tolist())]
        c, like = self.config, self.weights["fc.weight"]
        self.keys = like.new_empty(capacity, c.num_key_value_heads, c.head_dim)
        self.values = torch.empty_like(self.keys)
        self.filled = 0
        self.last: tuple[Tensor, Tensor] | None = None  # next state and logits after the last row fed

    @torch.no_grad()
    def extend(self, states: list[Tensor], next_token: int) -> None:
        """One more row of the true text: the target's states at it (one [Ht] a slot) and the token that follows it."""
        c, chunks = self.config, list(states)
        if c.fc_norm:
            chunks = [self._norm(f"fc_norm.{i}.weight", s) for i, s in enumerate(chunks)]
        joined = torch.cat(chunks)
        if c.norm_before_fc:
            joined = self._norm("input_norm.weight", joined)
        hidden = self.weights["fc.weight"] @ joined
        if c.fc_bias:
            hidden = hidden + self.weights["fc.bias"]
        self.last = self._row(hidden, next_token)

    @torch.no_grad()
    def draft(self, steps: int) -> Draft:
        """Draft greedily from the last row fed, each step from the drafter's own token; then forget the drafted rows."""
        kept = self.filled
        state, logits = self.last
        tokens, all_logits = [self.vocabulary[int(logits.argmax())]], [logits]
        for _ in range(steps - 1):
            state, logits = self._row(state, tokens[-1])
            tokens.append(self.vocabulary[int(logits.argmax())])
            all_logits.append(logits)
        self.filled = kept
        return Draft(tokens, all_logits)

    def _row(self, hidden: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """One row through the layer. hidden: [H]. Returns the next step's state [H] and the logits [Vd]."""
        c, w = self.config, self.weights
        position = self.filled
        normed = self._norm("midlayer.hidden_norm.weight", hidden)
        embedded = self.embedding(torch.tensor([token], device=hidden.device))[0].to(hidden.dtype)
        x = torch.cat([self._norm("midlayer.input_layernorm.weight", embedded), normed])
        query = self._project("q", x, position, c.num_attention_heads)
        self.keys[position] = self._project("k", x, position, c.num_key_value_heads)
        self.values[position] = self._linear("midlayer.self_attn.v_proj", x).view(c.num_key_value_heads, c.head_dim)
        self.filled += 1
        shared = c.num_attention_heads // c.num_key_value_heads
        seen = self.keys[: self.filled].float().repeat_interleave(shared, dim=1)  # [t + 1, heads, D]
        said = self.values[: self.filled].float().repeat_interleave(shared, dim=1)
        weight = torch.softmax((seen * query.float()).sum(-1) / c.head_dim**0.5, dim=0)  # [t + 1, heads]
        mixed = (weight[..., None] * said).sum(0).to(hidden.dtype).flatten()  # [heads * D]
        residual = normed if c.norm_before_residual else hidden
        middle = residual + w["midlayer.self_attn.o_proj.weight"] @ mixed
        y = self._norm("midlayer.post_attention_layernorm.weight", middle)
        gate = torch.nn.functional.silu(w["midlayer.mlp.gate_proj.weight"] @ y)
        out = middle + w["midlayer.mlp.down_proj.weight"] @ (gate * (w["midlayer.mlp.up_proj.weight"] @ y))
        final = self._norm("norm.weight", out)
        logits = w["lm_head.weight"] @ (out if c.skip_final_norm else final)
        return (final if c.post_norm_recurrence else out), logits

    def _project(self, which: str, x: Tensor, position: int, heads: int) -> Tensor:
        """Queries or keys of one row, [heads, D], normed where the layer does and rotated to `position`."""
        out = self._linear(f"midlayer.self_attn.{which}_proj", x).view(heads, self.config.head_dim)
        if self.config.layer_type == "qwen3":
            out = self._norm(f"midlayer.self_attn.{which}_norm.weight", out)
        half = self.config.head_dim // 2
        angle = position * self.config.rope["rope_theta"] ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        low, high = out[:, :half], out[:, half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=1)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        out = self.weights[f"{name}.weight"] @ x
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def _norm(self, name: str, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weights[name] * (wide / (wide.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt()).to(x.dtype)
