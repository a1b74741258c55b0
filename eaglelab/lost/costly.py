"""The tokens at which the walk stops most, and what they cost it in verify passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from eaglelab.lost.rows import Rows
from eaglelab.replay.walk import leading, walk_sample

if TYPE_CHECKING:
    from torch import Tensor

    from eaglelab.dumps import Sample

AROUND = 12
"""Tokens of text shown on either side."""
TRIED = 24
"""Tokens whose cost is counted by walking again: those at which the walk loses most drafted tokens."""


@dataclass
class _Stop:
    """Where the walk stops at one token id."""

    places: list[tuple[int, int]] = field(default_factory=list)
    """(place of the sample, position of the token)."""
    instead: Counter = field(default_factory=Counter)
    lost: int = 0


def costly_tokens(rows: Rows, samples: Sequence[Sample], most: int = 8) -> pd.DataFrame:
    """token, stops (passes that end at it), lost (drafted tokens thrown away there),
    saved (verify passes that the walk would not need, were it always right), drafted (the commonest token in its place), times, sample, position
    (of its first stop). By passes saved. Empty where a mask is unknown: then there is no walk."""
    columns = ["token", "stops", "lost", "saved", "drafted", "times", "sample", "position"]
    if any(s.loss_mask is None for s in samples):
        return pd.DataFrame(columns=columns)
    stops: dict[int, _Stop] = {}
    parts = [rows.select(rows.sample == i) for i in range(len(samples))]
    for i, (part, sample) in enumerate(zip(parts, samples, strict=True)):
        for r, step in stopped(part, sample.loss_mask):
            stop = stops.setdefault(int(part.wanted[step, r]), _Stop())
            stop.places.append((i, int(part.row[r]) + 2 + step))
            stop.instead[int(part.drafted[step, r])] += 1
            stop.lost += rows.steps - step
    passes = [len(_walk(part, part.right, s.loss_mask)) for part, s in zip(parts, samples, strict=True)]
    table = []
    for token in sorted(stops, key=lambda t: (-stops[t].lost, t))[: max(TRIED, most)]:
        stop = stops[token]
        saved = sum(
            passes[i] - len(_walk(parts[i], parts[i].right | (parts[i].wanted == token), samples[i].loss_mask))
            for i in {i for i, _ in stop.places}
        )
        (instead, times), (sample, position) = stop.instead.most_common(1)[0], stop.places[0]
        table.append((token, len(stop.places), stop.lost, saved, instead, times, samples[sample].key, position))
    found = pd.DataFrame(table, columns=columns)
    return found.sort_values(["saved", "lost", "token"], ascending=[False, False, True], ignore_index=True).head(most)


def stopped(part: Rows, mask: Tensor) -> list[tuple[int, int]]:
    """(row's place, step) of each verify pass of one sample's walk that ends at a wrong token."""
    from eaglelab.dumps.mask import spans

    place, found = {int(t): i for i, t in enumerate(part.row)}, []
    for first, end in spans(mask):
        t = first - 1
        while t + 1 + part.steps < end and t in place and part.complete[place[t]]:
            n = leading(part.right[:, place[t]])
            if n < part.steps:
                found.append((place[t], n))
            t += n + 1
    return found


def _walk(part: Rows, right: np.ndarray, mask: Tensor) -> tuple[int, ...]:
    return walk_sample(part.row, part.counted, right, mask)
