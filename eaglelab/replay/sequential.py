"""The same drafting the slow way: one row after the other with a KV cache, as an engine does it.

This is the reference that the replay is proven against. It takes the drafter's weights and nothing else: attention, masking, rotation
and alignment are written here again, from the engine's point of view, for one token at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eaglelab.drafter.model import Drafter, Flags


@dataclass(frozen=True)
class Draft:
    """What one chain drafted."""

    tokens: list[int]
    """K token ids, in the target's vocabulary."""
    logits: list[Tensor]
    """K times [Vd]."""


class SequentialDrafter:
    """Feed the true text row by row with `extend`, and draft a chain from any moment with `draft`; the cache is cut back afterwards."""

    def __init__(self, drafter: Drafter, embedding, capacity: int = 1024, flags: Flags | None = None) -> None:
        """embedding: token ids [R] -> rows [R, H]. capacity: rows of the KV cache, drafted ones included. flags: another choice than
        the config's."""
        self.weights = dict(drafter.named_parameters())
        self.config, self.embedding, self.flags = drafter.config, embedding, flags or Flags.of(drafter.config)
        if self.config.rope.get("rope_type", "default") != "default":
            raise ValueError("the sequential reference knows the default rope only")
        self.activation = drafter.midlayer.mlp.act
        self.vocabulary = [i + int(off) for i, off in enumerate(drafter.d2t.tolist())]
        c, like = self.config, self.weights["fc.weight"]
        widths = (c.head_dim, c.latent.value if c.latent else c.head_dim)
        self.cache = [[like.new_empty(capacity, c.num_key_value_heads, w) for w in widths] for _ in range(c.num_layers)]
        """Keys and values of each layer."""
        self.filled = 0
        self.last: tuple[Tensor, Tensor] | None = None  # next state and logits after the last row fed

    @torch.no_grad()
    def extend(self, states: list[Tensor], next_token: int) -> None:
        """One more row of the true text: the target's states at it (one [Ht] a slot) and the token that follows it."""
        c, chunks = self.config, list(states)
        if c.fc_norm and not self.flags.skip_fc_norms:
            chunks = [self._norm(f"fc_norm.{i}.weight", s) for i, s in enumerate(chunks)]
        joined = torch.cat(chunks)
        if c.norm_before_fc and not self.flags.skip_fc_norms:
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
        """One row through all layers. hidden: [H]. Returns the next step's state [H] and the logits [Vd]."""
        embedded = self.embedding(torch.tensor([token], device=hidden.device))[0].to(hidden.dtype)
        normed = self._norm("midlayer.hidden_norm.weight", hidden)
        x = torch.cat([self._norm("midlayer.input_layernorm.weight", embedded), normed])
        out = self._layer(0, "midlayer", x, normed if self.flags.norm_before_residual else hidden)
        for i in range(1, self.config.num_layers):
            gain = None if self.flags.skip_further_gain else f"layers.{i}.input_layernorm.weight"
            out = self._layer(i, f"layers.{i}", self._norm(gain, out), out)
        self.filled += 1
        final = self._norm("norm.weight", out)
        logits = self.weights["lm_head.weight"] @ (out if self.flags.skip_final_norm else final)
        return (final if self.flags.post_norm_recurrence else out), logits

    def _layer(self, index: int, name: str, x: Tensor, residual: Tensor) -> Tensor:
        """Attention and MLP of one layer. x: [2H] in the first, [H] in others; residual: [H]. Returns [H]."""
        c, attention, (keys, values) = self.config, f"{name}.self_attn", self.cache[index]
        make = self._latent_heads if c.latent else self._grouped_heads
        query, keys[self.filled], values[self.filled] = make(attention, x, self.filled)
        shared = c.num_attention_heads // c.num_key_value_heads
        seen, said = (part[: self.filled + 1].float().repeat_interleave(shared, dim=1) for part in (keys, values))  # [t + 1, heads, D]
        weight = torch.softmax((seen * query.float()).sum(-1) / c.head_dim**0.5, dim=0)  # [t + 1, heads]
        mixed = (weight[..., None] * said).sum(0).to(x.dtype).flatten()  # [heads * D]
        middle = residual + self._linear(f"{attention}.o_proj", mixed, biased=not (c.latent and self.flags.skip_attention_bias))
        y = self._norm(f"{name}.post_attention_layernorm.weight", middle)
        gate = self.activation(self._linear(f"{name}.mlp.gate_proj", y))
        return middle + self._linear(f"{name}.mlp.down_proj", gate * self._linear(f"{name}.mlp.up_proj", y))

    def _grouped_heads(self, name: str, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Query [heads, D], key and value [kv_heads, D] of one row."""
        c, heads = self.config, {}
        for which, count in (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads)):
            part = self._linear(f"{name}.{which}_proj", x, biased=not self.flags.skip_attention_bias).view(count, c.head_dim)
            if c.layer_type == "qwen3" and which != "v" and not self.flags.skip_qk_norm:
                part = self._norm(f"{name}.{which}_norm.weight", part)
            if which != "v":
                low, high = self._turn(*part.chunk(2, dim=1), position)
                part = torch.cat([low, high], dim=1)
            heads[which] = part
        return heads["q"], heads["k"], heads["v"]

    def _latent_heads(self, name: str, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same of an MLA layer: key and value parts of each head out of the latent, one rotated key part for all heads."""
        c, m, biased = self.config, self.config.latent, not self.flags.skip_attention_bias

        def turned(part: Tensor) -> Tensor:  # [heads, rope]
            first, second = (part[:, ::2], part[:, 1::2]) if m.interleaved else part.chunk(2, dim=1)
            both = self._turn(first, second, position)
            return torch.stack(both, dim=2).flatten(1) if m.interleaved else torch.cat(both, dim=1)

        if m.q_rank is None:
            query = self._linear(f"{name}.q_proj", x)
        else:
            query = self._norm(f"{name}.q_a_layernorm.weight", self._linear(f"{name}.q_a_proj", x, biased=biased))
            query = self._linear(f"{name}.q_b_proj", query)
        query = query.view(c.num_attention_heads, c.head_dim)
        down = self._linear(f"{name}.kv_a_proj_with_mqa", x, biased=biased)
        up = self._linear(f"{name}.kv_b_proj", self._norm(f"{name}.kv_a_layernorm.weight", down[: m.kv_rank]))
        up = up.view(c.num_attention_heads, m.nope + m.value)
        shared = turned(down[None, m.kv_rank :]).expand(c.num_attention_heads, -1)
        key = torch.cat([up[:, : m.nope], shared], dim=1)
        return torch.cat([query[:, : m.nope], turned(query[:, m.nope :])], dim=1), key, up[:, m.nope :]

    def _turn(self, x: Tensor, y: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Each pair of channels (x[i], y[i]) turned by its angle at `position`. x, y: [heads, D / 2]."""
        half = x.shape[1]
        angle = position * self.config.rope["rope_theta"] ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return x * cos - y * sin, y * cos + x * sin

    def _linear(self, name: str, x: Tensor, *, biased: bool = True) -> Tensor:
        out = self.weights[f"{name}.weight"] @ x
        return out + self.weights[f"{name}.bias"] if biased and f"{name}.bias" in self.weights else out

    def _norm(self, gain: str | None, x: Tensor) -> Tensor:
        wide = x.float()
        normed = (wide / (wide.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt()).to(x.dtype)
        return normed if gain is None else self.weights[gain] * normed
