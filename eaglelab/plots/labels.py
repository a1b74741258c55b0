"""Names beside points, at the side where they cover the least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from eaglelab.plots.style import TEXT

EM = 0.6
"""Width of a character in font sizes."""
SIDES = (("left", "center", 1, 0), ("right", "center", -1, 0), ("center", "bottom", 0, 1), ("center", "top", 0, -1))
"""(horizontal, vertical alignment, direction from the point): right of it, left, above, below."""


def label_points(
    ax: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], *, avoid: Sequence[tuple[float, float]] = (), size: float = 8
) -> None:
    """Write each name beside its point where it covers the fewest other points and names; right of it where nothing is in the way.

    points, avoid (further marks): in data coordinates. To be called when the limits of the axes are set.
    """
    scale = ax.figure.dpi / 72
    at = ax.transData.transform(np.asarray(points, float))  # [P, 2] pixels
    marks = ax.transData.transform(np.asarray([*points, *avoid], float))
    reach = 5 * scale
    taken = [(x - reach, y - reach, x + reach, y + reach) for x, y in marks]
    frame = ax.bbox.extents
    for i, (name, (x, y)) in enumerate(zip(names, at, strict=True)):
        width, height, off = EM * size * len(name) * scale, 1.3 * size * scale, 7 * scale
        boxes = []
        for _, _, dx, dy in SIDES:
            left = x + dx * off - (0 if dx > 0 else width if dx < 0 else width / 2)
            low = y + dy * off - (height / 2 if dy == 0 else 0 if dy > 0 else height)
            boxes.append((left, low, left + width, low + height))
        others = [box for j, box in enumerate(taken) if j != i]
        covered = [sum(_overlap(b, o) for o in others) + _outside(b, frame) for b in boxes]
        best = int(np.argmin(covered))
        ha, va, dx, dy = SIDES[best]
        taken.append(boxes[best])
        ax.annotate(
            name, points[i], (7 * dx, 7 * dy), textcoords="offset points", ha=ha, va=va, fontsize=size, color=TEXT, parse_math=False
        )


def _overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Pixels that two boxes (left, low, right, high) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _outside(box: Sequence[float], frame: Sequence[float]) -> float:
    """Pixels of a box that lie beyond the axes."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, frame)
