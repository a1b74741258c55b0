"""The rows of a sample that are compared: a seeded choice without the first token and padding, and what a slot has in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps.rows import take_rows
from eaglelab.target.sketch import GRAM_ROWS, gram, order_values

PROBES = 24
"""Rows a sample that are looked for at other positions and in other samples."""
MASSIVE = 10.0
"""A token is massive when its norm is above this many medians (attention sinks have 10 to 1000)."""
PAD_RUN = 4
"""A run of the same token at the end of a sample this long is taken for padding."""


@dataclass
class Rows:
    """A sample's chosen rows: where they are, and the slots' values there, in the space in which they are compared.

    R rows, D = H or the sketch's dim; what is absent (slot missing, of another width, NaN, zero rows) is NaN and never counts.
    """

    key: str
    token_ids: Tensor  # [T], from `start` on
    positions: Tensor  # [R] int64, ascending, in token_ids
    start: int  # leading padding rows left out
    states: Tensor  # [S, R, D] float32
    norms: Tensor  # [S, R] float32
    bad: Tensor  # [S, R] bool: NaN or infinite
    zero: Tensor  # [S, R] bool
    probes: Tensor  # [P] int64, places in positions
    probe_states: Tensor  # [S, P, dim] float32, projected
    fixed: Tensor  # [G] int64, places in positions of the rows with Gram matrix and order statistics
    gram: Tensor  # [S, G, G]
    order: Tensor  # [S, G, Q]
    slot_distance: Tensor  # [S, S] median relative distance between slots
    widths: tuple[int | None, ...]  # of each slot, None where it is missing
    lengths: tuple[int | None, ...]


def leading_padding(sample: Any) -> int:
    """Leading rows that are padding: the same token again and again, and zeros in every slot."""
    ids = sample.token_ids
    if len(ids) < 2:
        return 0
    different = (ids != ids[0]).nonzero()
    run = int(different[0]) if len(different) else len(ids)
    slots = [slot for slot in sample.slots if slot.ndim == 2]
    if run < 2 or not slots:
        return 0
    zero = torch.stack([(take_rows(slot, torch.arange(min(run, len(slot)))).float() == 0).all(dim=-1).sum() for slot in slots])
    count = int(zero.min())
    return count if 2 <= count < len(ids) else 0


def trailing_padding(token_ids: Tensor) -> int:
    """The length of the run of one token at the end, when it is at least PAD_RUN; the last of them may be a real end of text."""
    different = (token_ids != token_ids[-1]).nonzero() if len(token_ids) else token_ids
    run = len(token_ids) - 1 - int(different[-1]) if len(different) else len(token_ids)
    return run - 1 if run >= PAD_RUN else 0


def choose_positions(sample: Any, start: int, rows: int, seed: int) -> Tensor:
    """At most `rows` seeded positions from `start` on, ascending, that a slot has. The first token and padding at the end are left out."""
    token_ids, longest = sample.token_ids[start:], max((len(slot) for slot in sample.slots if slot.ndim), default=0)
    last = min(longest - start, len(token_ids) - trailing_padding(token_ids))
    candidates = torch.arange(1, max(last, 1))
    if len(candidates) <= rows:
        return candidates
    generator = torch.Generator().manual_seed(seed)
    return candidates[torch.randperm(len(candidates), generator=generator)[:rows]].sort().values


def read_rows(
    sample: Any, names: tuple[str, ...], positions: Tensor, start: int, width: int, signs: Tensor, project: bool, fixed: Tensor
) -> Rows:
    """What the slots hold at `positions`. `project`: compare through the projection `signs` [H, dim], else value by value."""
    by_name = dict(zip(sample.slot_names, sample.slots, strict=False))
    slots = [by_name.get(name) for name in names]
    R = len(positions)
    probes = torch.linspace(0, max(R - 1, 0), min(PROBES, R)).round().long().unique()
    full = torch.full((len(names), R, width), float("nan"))  # [S, R, H]
    there = torch.zeros(len(names), R, dtype=torch.bool)  # [S, R]
    for s, slot in enumerate(slots):
        if slot is not None and slot.ndim == 2 and slot.shape[-1] == width:
            there[s] = positions + start < len(slot)
            full[s, there[s]] = take_rows(slot, positions[there[s]] + start).float()
    bad = ~full.isfinite().all(dim=-1) & there  # [S, R]
    zero = (full == 0).all(dim=-1)
    full[bad | zero] = float("nan")
    return Rows(
        key=sample.key,
        token_ids=sample.token_ids[start:],
        positions=positions,
        start=start,
        states=full @ signs if project else full,
        norms=full.norm(dim=-1),
        bad=bad,
        zero=zero,
        probes=probes,
        probe_states=full[:, probes] @ signs,
        fixed=fixed,
        gram=gram(full[:, fixed]),
        order=order_values(full[:, fixed]),
        slot_distance=_slot_distance(full),
        widths=tuple(None if s is None else s.shape[-1] if s.ndim else 0 for s in slots),
        lengths=tuple(None if s is None else len(s) if s.ndim else 0 for s in slots),
    )


def spread(R: int) -> Tensor:
    """GRAM_ROWS places spread over R rows: [G]."""
    return torch.linspace(0, max(R - 1, 0), min(GRAM_ROWS, R)).round().long().unique()


def _slot_distance(full: Tensor) -> Tensor:
    """Median over rows of the relative distance between slots: [S, S], NaN where they share no row."""
    count = full.shape[0]
    out = torch.full((count, count), float("nan"))
    for a in range(count):
        for b in range(a):
            distance = ((full[a] - full[b]).norm(dim=-1) / full[b].norm(dim=-1)).nanmedian()
            out[a, b] = out[b, a] = distance
    return out


def massive(norms: Tensor) -> Tensor:
    """True where a row's norm is above MASSIVE medians of its line: [..., R] to [..., R] bool."""
    return norms > MASSIVE * norms.nanmedian(dim=-1, keepdim=True).values
