"""The drafter with a KV cache, as an engine runs it: rows of the true text are written from the target's states, drafted rows from its own.

Its layers are `eaglelab.drafter`'s. Alignment (SGLang 0.5.23, speculative/eagle_worker_v2.py; vLLM's and EAGLE's are the same): row p takes
the target's states at position p with the token x[p + 1], and says x[p + 2].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglelab.drafter.model import Drafter, Flags, StepOutput


class CachedDrafter:
    """One request at a time. The cache is empty at first and after `reset`."""

    def __init__(self, drafter: Drafter, table: Tensor, flags: Flags | None = None) -> None:
        """table: [V, H], the embedding table that it is given, its own or the target's. flags: another choice than the config's."""
        like = drafter.fc.weight
        self.drafter, self.table = drafter, table.to(like.device, like.dtype)
        self.flags = flags or Flags.of(drafter.config)
        self._target_ids = drafter.target_ids  # [Vd]
        self.reset(0)

    def reset(self, capacity: int) -> None:
        """Forget everything and make room for `capacity` rows, drafted ones included."""
        c, like = self.drafter.config, self.drafter.fc.weight
        widths = (c.head_dim, c.latent.value if c.latent else c.head_dim)
        self._cache = [[like.new_empty(c.num_key_value_heads, capacity, w) for w in widths] for _ in range(c.num_layers)]
        """Keys and values of each layer, [kv_heads, capacity, D]."""
        self.filled = 0
        """Rows written from the target's states. What a draft writes behind them is written over."""
        self._last: StepOutput | None = None

    @torch.no_grad()
    def extend(self, states: Sequence[Tensor], next_tokens: Tensor) -> None:
        """R more rows of the true text, in place of what was drafted there. states: the target's, one [R, Ht] a place of fc; next_tokens:
        [R] int64, the token that follows each row."""
        skip = self.flags.skip_fc_norms
        states = [s.to(self.table) for s in states]
        products = [self.drafter.slot_product(p, s, skip_norms=skip) for p, s in enumerate(states)]
        self._last = self._rows(self.filled, self.drafter.fuse(products, states, skip_norms=skip), next_tokens)
        self.filled += len(next_tokens)

    @torch.no_grad()
    def draft(self, steps: int) -> Tensor:
        """[K] int64, K greedy tokens in the target's ids. The first one is what the last `extend` left; each further step is a pass over
        one row, fed its own token and its own state."""
        output, tokens = self._last, []
        for row in range(self.filled, self.filled + steps):
            tokens.append(self._target_ids[output.logits.argmax(-1)])  # [1]
            if len(tokens) < steps:
                output = self._rows(row, output.carried, tokens[-1])
        return torch.cat(tokens)

    def _rows(self, first: int, hidden: Tensor, tokens: Tensor) -> StepOutput:
        """Rows first..first + R - 1 through all layers. hidden: [R, H], tokens: [R]. Returns what the last row says, [1, H]."""
        end = first + len(tokens)
        positions = torch.arange(first, end, device=hidden.device)
        rotary = self.drafter.rotary(positions, hidden)
        embeds = F.embedding(tokens, self.table)
        for layer, (keys, values) in zip(self.drafter.stack, self._cache, strict=True):
            x, residual = layer.enter(embeds, hidden, self.flags)
            for cache, new in zip((keys, values), layer.self_attn.keys_values(x, rotary, self.flags), strict=True):
                cache[:, first:end] = new.transpose(0, 1)
            queries = layer.self_attn.queries(x, rotary, self.flags).transpose(0, 1)  # [heads, R, D]
            attended = _attend(queries, keys[:, :end], values[:, :end], positions, layer.self_attn.scale)
            hidden, embeds = layer.leave(attended.transpose(0, 1), residual, self.flags), None
        return self.drafter.speak(hidden[-1:], self.flags)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Causal attention of R rows. queries: [heads, R, D]; keys, values: [kv_heads, T, D]; positions: [R]. Returns [heads, R, D of values]."""
    shared = len(queries) // len(keys)
    keys, values = (x.repeat_interleave(shared, dim=0) if shared > 1 else x for x in (keys, values))
    seen = torch.arange(keys.shape[1], device=keys.device) <= positions[:, None] if len(positions) > 1 else None  # [R, T]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale)
