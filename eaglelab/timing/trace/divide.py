"""Every instant to one owner: arithmetic of intervals, with numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Layer(NamedTuple):
    """Work that may overlap; an instant that several cover belongs to the one that began first."""

    starts: np.ndarray  # [n] float64
    ends: np.ndarray  # [n] float64
    items: np.ndarray  # [n] int64, whose work it is


@dataclass(frozen=True)
class Divided:
    """The windows cut at every border of the layers; each piece has one owner."""

    window: np.ndarray  # [pieces] int64
    layer: np.ndarray  # [pieces] int64, -1 where no layer covers
    item: np.ndarray  # [pieces] int64, -1 where no layer covers
    left: np.ndarray  # [pieces] float64, where it begins
    length: np.ndarray  # [pieces] float64


def own_parts(layer: Layer) -> Layer:
    """Disjoint parts in order of time: each instant with the one that began first and still runs."""
    order = np.lexsort((layer.ends, layer.starts))
    starts, ends, items = layer.starts[order], layer.ends[order], layer.items[order]
    if not len(starts):
        return Layer(starts, ends, items)
    reached = np.maximum.accumulate(ends)
    starts = np.maximum(starts, np.concatenate(([-np.inf], reached[:-1])))
    keep = ends > starts
    return Layer(starts[keep], ends[keep], items[keep])


def divide(windows: tuple[np.ndarray, np.ndarray], layers: list[Layer]) -> Divided:
    """Windows (starts, ends), disjoint and in order; of the layers the first that covers an instant owns it."""
    begin, end = windows
    parts = [own_parts(layer) for layer in layers]
    borders = np.unique(np.concatenate([begin, end, *(a for part in parts for a in (part.starts, part.ends))]))
    left, right = borders[:-1], borders[1:]
    window = np.searchsorted(begin, left, side="right") - 1 if len(begin) else np.full(len(left), -1)
    inside = (window >= 0) & (left < end[np.maximum(window, 0)]) if len(begin) else np.zeros(len(left), bool)
    left, right, window = left[inside], right[inside], window[inside]
    owner = np.full(len(left), -1, np.int64)
    item = np.full(len(left), -1, np.int64)
    for number, part in enumerate(parts):
        if not len(part.starts):
            continue
        place = np.maximum(np.searchsorted(part.starts, left, side="right") - 1, 0)
        mine = (owner < 0) & (part.starts[place] <= left) & (left < part.ends[place])
        owner[mine] = number
        item[mine] = part.items[place[mine]]
    return Divided(window, owner, item, left, right - left)
