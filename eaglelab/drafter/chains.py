"""Draft from every row of several samples at once, each chain over the true prefix: the EAGLE-3 step and its alignment.

For a sample x[0..T-1] with target states g[0..T-1], a chain that starts at row t works like this (k = 0, 1, ...):

    step 0: state g[t] with token x[t+1], position t      -> drafts x[t+2]
    step k: own state with token x[t+1+k], position t + k -> drafts x[t+2+k]

Step k is given the true token, as in training: up to and including the first wrong step this is what an engine computes.
The keys of rows 0..t come from the target's states; each later step adds one key of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eaglelab.drafter.attention import chain_attention
from eaglelab.drafter.model import Drafter, Flags, StepOutput

Embed = Callable[[Tensor], Tensor]
"""Token ids [R] -> embedding rows [R, H]."""


@dataclass(frozen=True)
class Packed:
    """The rows of several samples, one sample after the other: M rows in all."""

    token_ids: Tensor
    """[M] int64."""
    starts: tuple[int, ...]
    """Row at which each sample starts, and M at the end."""

    @classmethod
    def of(cls, samples: list[Tensor], device: torch.device | str = "cpu") -> Packed:
        """samples: token ids [T] of each sample."""
        starts = [0]
        for ids in samples:
            starts.append(starts[-1] + len(ids))
        return cls(torch.cat(samples).to(device), tuple(starts))

    @cached_property
    def positions(self) -> Tensor:
        """[M] int64: each row's place in its sample."""
        lengths = torch.tensor(self.starts).diff()
        first = torch.tensor(self.starts[:-1]).repeat_interleave(lengths)
        return (torch.arange(self.starts[-1]) - first).to(self.token_ids.device)

    @cached_property
    def last_row(self) -> Tensor:
        """[M] int64: the last row of the sample that each row belongs to."""
        lengths = torch.tensor(self.starts).diff()
        return (torch.tensor(self.starts[1:]) - 1).repeat_interleave(lengths).to(self.token_ids.device)

    def ahead(self, rows: Tensor, by: int) -> Tensor:
        """The rows `by` places later, held at the sample's last row where there is no such row."""
        return torch.minimum(rows + by, self.last_row[rows])

    def shifted(self, rows: Tensor, by: int) -> Tensor:
        """`ahead`, or for a negative `by` the rows before, held at the first of all."""
        return self.ahead(rows, by) if by >= 0 else (rows + by).clamp(min=0)


def draft_chains(
    drafter: Drafter,
    packed: Packed,
    fused: Tensor,
    embed: Embed,
    rows: Tensor,
    steps: int,
    *,
    token_shift: int = 0,
    flags: Flags | None = None,
) -> Generator[StepOutput, Tensor | None, None]:
    """Draft `steps` tokens from each of `rows`, teacher-forced. Yields one `StepOutput` a step; may be sent the places [n] int64, ascending, of
    the rows that go on: the next outputs are of these alone.

    fused: [M, H], the drafter's first hidden state of every row (`Drafter.fuse`). rows: [R] int64, ascending, rows of `packed` at which
    chains start. token_shift: 0 is right; -1 feeds x[t] with g[t], a common fault. flags: another choice
    than the config's. A chain that runs past its sample's end goes on with the last token; its steps must not be counted.
    """
    flags = flags or Flags.of(drafter.config)
    output, caches = first_step(drafter, packed, fused, embed, rows, flags=flags, token_shift=token_shift)
    stay = yield output
    for step in range(1, steps):
        hidden = output.carried  # [R, H]
        if stay is not None:
            rows, hidden = rows[stay], hidden[stay]
            for cache in caches:
                cache.own_keys, cache.own_values = cache.own_keys[stay], cache.own_values[stay]
        embeds = embed(packed.token_ids[packed.shifted(rows, 1 + step + token_shift)]).to(fused.dtype)  # [R, H]
        rotary = drafter.rotary(packed.positions[rows] + step, fused)
        for layer, cache in zip(drafter.stack, caches, strict=True):
            x, residual = layer.enter(embeds, hidden, flags)
            cache.grow(*layer.self_attn.keys_values(x, rotary, flags))
            attended = cache.attend(layer.self_attn.queries(x, rotary, flags), rows)
            hidden, embeds = layer.leave(attended, residual, flags), None
        output = drafter.speak(hidden, flags)
        stay = yield output


def first_step(
    drafter: Drafter, packed: Packed, fused: Tensor, embed: Embed, rows: Tensor, *, flags: Flags, token_shift: int = 0
) -> tuple[StepOutput, list[Cache]]:
    """Step 0 of the drafts from `rows` [R], and each layer's keys and values of all rows of the true text. Arguments: `draft_chains`."""
    all_rows = torch.arange(len(packed.token_ids), device=fused.device)
    hidden, embeds = fused, embed(packed.token_ids[packed.shifted(all_rows, 1 + token_shift)]).to(fused.dtype)  # [M, H]
    rotary = drafter.rotary(packed.positions, fused)
    caches = []
    for layer in drafter.stack:  # all rows: a further layer's keys are made of this one's output
        x, residual = layer.enter(embeds, hidden, flags)  # [M, 2H], [M, H]; [M, H] twice in further layers
        keys, values = layer.self_attn.keys_values(x, rotary, flags)  # [M, kv_heads, D]
        queried = rows if layer is drafter.stack[-1] else all_rows
        caches.append(Cache(packed, rows, keys, values, layer.self_attn.scale))
        queries = layer.self_attn.queries(x[queried], (rotary[0][queried], rotary[1][queried]), flags)
        hidden, embeds = layer.leave(caches[-1].attend(queries, queried), residual[queried], flags), None
    return drafter.speak(hidden, flags), caches  # [R, H]


class Cache:
    """One layer's keys and values: of all rows of the true text, and of the steps that each chain has drafted."""

    def __init__(self, packed: Packed, rows: Tensor, keys: Tensor, values: Tensor, scale: float) -> None:
        """rows: [R], where chains start; keys, values: [M, kv_heads, D] of all rows."""
        self.packed, self.keys, self.values, self.scale = packed, keys, values, scale
        self.own_keys, self.own_values = (x.new_empty(len(rows), 0, *x.shape[1:]) for x in (keys, values))  # [R, step, kv_heads, D]

    def grow(self, keys: Tensor, values: Tensor) -> None:
        """One more drafted step of every chain. keys, values: [R, kv_heads, D]."""
        self.own_keys = torch.cat([self.own_keys, keys[:, None]], dim=1)
        self.own_values = torch.cat([self.own_values, values[:, None]], dim=1)

    def attend(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Sample by sample: no row sees another sample. queries: [n, heads, D] of `rows` [n], ascending; they are the chains' rows once
        these have drafted. Returns [n, heads, D of values]."""
        edges = torch.searchsorted(rows, torch.tensor(self.packed.starts, device=rows.device)).tolist()
        own_keys, own_values = self.own_keys, self.own_values
        if not own_keys.shape[1]:  # before the first drafted step: any rows may ask
            own_keys, own_values = (x.new_empty(len(rows), *x.shape[1:]) for x in (own_keys, own_values))
        parts = []
        for first, last, begin, end in zip(edges, edges[1:], self.packed.starts, self.packed.starts[1:], strict=False):
            if first == last:
                continue
            mine, sample = slice(first, last), slice(begin, end)
            keys, values, seen = self.keys[sample], self.values[sample], rows[mine] - begin
            parts.append(chain_attention(queries[mine], keys, values, own_keys[mine], own_values[mine], seen, self.scale))
        return torch.cat(parts) if parts else queries.new_empty(0, queries.shape[1], self.values.shape[-1])
