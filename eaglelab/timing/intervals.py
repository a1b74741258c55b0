"""Intervals of few numbers: repeats of a benchmark are 2 to 5, so the quantile of Student's t decides how wide they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from eaglelab.acceptance import Z95

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % quantile of Student's t with 1 to 10 degrees of freedom, as printed in tables of it."""

Interval = tuple[float, float]


def t95(df: float) -> float:
    """The same for any degrees of freedom, interpolated in 1/df below 10; beyond, Abramowitz & Stegun 26.7.5."""
    if df <= 1:
        return T95[0]
    if df >= 10:
        return Z95 + (Z95**3 + Z95) / (4 * df) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * df**2)
    low = int(df)
    share = (1 / low - 1 / df) / (1 / low - 1 / (low + 1))
    return T95[low - 1] + share * (T95[low] - T95[low - 1])


def ratio_of_repeats(top: Sequence[float], bottom: Sequence[float]) -> Interval | None:
    """95 % interval of a ratio of two positive quantities from repeats of each (Welch's, of their logarithms).

    Where only one side was repeated the other is taken to scatter like it; None where neither was.
    """
    sides = [[math.log(x) for x in side] for side in (top, bottom)]
    repeated = [side for side in sides if len(side) > 1]
    if not repeated:
        return None
    pooled = sum(statistics.variance(side) * (len(side) - 1) for side in repeated) / sum(len(side) - 1 for side in repeated)
    parts = [(statistics.variance(side) if len(side) > 1 else pooled) / len(side) for side in sides]
    if len(repeated) == 1 or sum(parts) == 0:
        df = sum(len(side) - 1 for side in repeated)
    else:
        df = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    middle = statistics.mean(sides[0]) - statistics.mean(sides[1])
    spread = t95(df) * math.sqrt(sum(parts))
    return math.exp(middle - spread), math.exp(middle + spread)
