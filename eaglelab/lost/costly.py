"""The tokens at which the walk stops most, and what they cost it in verify passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from eaglelab.lost.rows import Rows

if TYPE_CHECKING:
    from torch import Tensor

    from eaglelab.dumps import Sample

AROUND = 12
"""Tokens of text shown on either side."""
TRIED = 12
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
    paths = [_Path(part, s.loss_mask) for part, s in zip(parts, samples, strict=True)]
    passes = [list(path.passes(path.part.right)) for path in paths]
    for i, part in enumerate(parts):
        for r, step in passes[i]:
            if step < rows.steps:
                stop = stops.setdefault(int(part.wanted[step, r]), _Stop())
                stop.places.append((i, int(part.row[r]) + 2 + step))
                stop.instead[int(part.drafted[step, r])] += 1
                stop.lost += rows.steps - step
    table = []
    for token in sorted(stops, key=lambda t: (-stops[t].lost, t))[: max(TRIED, most)]:
        stop = stops[token]
        touched = {i for i, _ in stop.places}
        saved = sum(len(passes[i]) - sum(1 for _ in paths[i].passes(parts[i].right | (parts[i].wanted == token))) for i in touched)
        (instead, times), (sample, position) = stop.instead.most_common(1)[0], stop.places[0]
        table.append((token, len(stop.places), stop.lost, saved, instead, times, samples[sample].key, position))
    found = pd.DataFrame(table, columns=columns)
    return found.sort_values(["saved", "lost", "token"], ascending=[False, False, True], ignore_index=True).head(most)


class _Path:
    """The walk of one sample (as `replay.walk.walk_sample`), to be taken several times with other tokens right."""

    def __init__(self, part: Rows, mask: Tensor) -> None:
        from eaglelab.dumps.mask import spans

        self.part, self.spans = part, spans(mask)
        self.place = {int(t): i for i, t in enumerate(part.row) if part.complete[i]}

    def passes(self, right: np.ndarray) -> Iterator[tuple[int, int]]:
        """(row's place, drafted tokens accepted) of each verify pass. right: [K, R] bool."""
        accepted = np.logical_and.accumulate(right, axis=0).sum(0).tolist()
        for first, end in self.spans:
            t = first - 1
            while t + 1 + self.part.steps < end and (at := self.place.get(t)) is not None:
                yield at, accepted[at]
                t += accepted[at] + 1
