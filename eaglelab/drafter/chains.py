"""Draft from every row of several samples at once, each chain over the true prefix: the EAGLE-3 step and its alignment.

For a sample x[0..T-1] with target states g[0..T-1], a chain that starts at row t works like this (k = 0, 1, ...):

    step 0: state g[t] with token x[t+1], position t      -> drafts x[t+2]
    step k: own state with token x[t+1+k], position t + k -> drafts x[t+2+k]

Step k is given the true token, as in training: up to and including the first wrong step this is what an engine computes.
The keys of rows 0..t come from the target's states; each later step adds one key of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
) -> Iterator[StepOutput]:
    """Draft `steps` tokens from each of `rows`, teacher-forced. Yields one `StepOutput` a step.

    fused: [M, H], the drafter's first hidden state of every row (`Drafter.fuse`). rows: [R] int64, ascending, rows of `packed` at which
    chains start. token_shift: 0 is right; -1 feeds x[t] with g[t], a common fault. flags: another choice
    than the config's. A chain that runs past its sample's end goes on with the last token; its steps must not be counted.
    """
    flags = flags or Flags.of(drafter.config)
    layer, all_rows = drafter.midlayer, torch.arange(len(packed.token_ids), device=fused.device)
    positions = packed.positions

    def token_embeds(which: Tensor, step: int) -> Tensor:
        by = 1 + step + token_shift
        source = packed.ahead(which, by) if by >= 0 else (which + by).clamp(min=0)
        return embed(packed.token_ids[source]).to(fused.dtype)

    x, residual = layer.enter(token_embeds(all_rows, 0), fused, flags)  # [M, 2H], [M, H]
    rotary = drafter.rotary(positions, fused)
    prefix_k, prefix_v = layer.keys_values(x, rotary, flags)  # [M, kv_heads, D]
    queries = layer.queries(x[rows], (rotary[0][rows], rotary[1][rows]), flags)  # [R, heads, D]
    own_k, own_v = prefix_k.new_empty(len(rows), 0, *prefix_k.shape[1:]), prefix_v.new_empty(len(rows), 0, *prefix_v.shape[1:])
    attended = _attend(packed, rows, queries, prefix_k, prefix_v, own_k, own_v)
    output = drafter.speak(layer.leave(attended, residual[rows]), flags)
    yield output
    for step in range(1, steps):
        x, residual = layer.enter(token_embeds(rows, step), output.carried, flags)  # [R, 2H], [R, H]
        rotary = drafter.rotary(positions[rows] + step, fused)
        keys, values = layer.keys_values(x, rotary, flags)
        own_k, own_v = (
            torch.cat([own_k, keys[:, None]], dim=1),
            torch.cat([own_v, values[:, None]], dim=1),
        )  # [R, step, kv_heads, D]
        attended = _attend(packed, rows, layer.queries(x, rotary, flags), prefix_k, prefix_v, own_k, own_v)
        output = drafter.speak(layer.leave(attended, residual), flags)
        yield output


def _attend(packed: Packed, rows: Tensor, q: Tensor, prefix_k: Tensor, prefix_v: Tensor, own_k: Tensor, own_v: Tensor) -> Tensor:
    """Attention sample by sample: no chain sees another sample."""
    edges = torch.searchsorted(rows, torch.tensor(packed.starts, device=rows.device)).tolist()
    parts = []
    for first, last, begin, end in zip(edges, edges[1:], packed.starts, packed.starts[1:], strict=False):
        if first == last:
            continue
        mine, sample = slice(first, last), slice(begin, end)
        seen = rows[mine] - begin
        parts.append(chain_attention(q[mine], prefix_k[sample], prefix_v[sample], own_k[mine], own_v[mine], seen))
    return torch.cat(parts) if parts else q
