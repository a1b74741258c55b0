"""A slot in one line: its shape, dtype, least and greatest value, mean, spread, and what in it is no number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eaglelab.dumps.rows import block_rows, one_thread, take_rows

MOST_VALUES = 2**20
"""Values of a slot that are read; of a larger one rows spread evenly. A summary answers while somebody waits, `dumps.health` reads all."""


@dataclass(frozen=True)
class SlotSummary:
    """Statistics are over the finite values of the rows read; NaN where there are none."""

    shape: tuple[int, ...]
    dtype: str
    rows: int
    """Rows read."""
    least: float
    greatest: float
    mean: float
    std: float
    nan: int
    """Values that are NaN."""
    inf: int
    """Values that are infinite."""
    zero_rows: int
    """Rows that hold zeros only."""

    @property
    def flags(self) -> str:
        """`NaN! (576 values); 1 zero row`; empty where nothing is amiss."""
        found = [f"{name}! ({n:,} value{'s' * (n != 1)})" for name, n in (("NaN", self.nan), ("Inf", self.inf)) if n]
        found += [f"{self.zero_rows:,} zero row{'s' * (self.zero_rows != 1)}"] if self.zero_rows else []
        return "; ".join(found)


@one_thread()
def summarise(slot: Tensor, most: int = MOST_VALUES) -> SlotSummary:
    """The summary of a slot [T, H] of any float dtype, over at most `most` values (one row at least)."""
    length, width = slot.shape
    count = min(length, max(1, most // max(1, width)))
    rows = torch.linspace(0, length - 1, count).round().long().unique() if length else torch.empty(0, dtype=torch.int64)
    least, greatest, total, squares, finite, nan, inf, zero = math.inf, -math.inf, 0.0, 0.0, 0, 0, 0, 0
    for some in rows.split(block_rows(width)):
        block = take_rows(slot, some).float()  # [R, H]
        zero += int((block == 0).all(dim=-1).sum())
        good = block.isfinite()
        if not bool(good.all()):
            nan += (bad := int(block.isnan().sum()))
            inf += int((~good).sum()) - bad
            block = block[good]
        if block.numel():
            low, high = block.aminmax()
            least, greatest = min(least, float(low)), max(greatest, float(high))
            wide = block.double()
            total, squares, finite = total + float(wide.sum()), squares + float(wide.pow(2).sum()), finite + block.numel()
    mean = total / finite if finite else math.nan
    std = math.sqrt(max(0.0, squares / finite - mean**2)) if finite else math.nan
    ends = (least, greatest) if finite else (math.nan, math.nan)
    return SlotSummary((length, width), str(slot.dtype).removeprefix("torch."), len(rows), *ends, mean, std, nan, inf, zero)
