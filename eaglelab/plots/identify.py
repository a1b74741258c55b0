"""Figures of an identification: slot × boundary, and how much nearer the best boundary is than the runner-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from eaglelab.identify import Identification
from eaglelab.plots.style import CLAIM, DIVERGING, EVIDENCE, GREY, SEQUENTIAL, TEXT, axes, finish, slot_color
from eaglelab.wiring import FINAL, Boundary

NEAR, FAR = 0.005, 2.0
"""The ends of the heatmap's scale: bf16 noise of another engine, and further than a random direction of the same length."""
OFF = 4.0
"""The ends of the scale of norm ratios: this many times larger, and smaller."""
MEASURES = {
    "relative_error": ("relative error (log)", {"cmap": SEQUENTIAL, "norm": LogNorm(NEAR, FAR)}, [0.01, 0.1, 1]),
    "cosine": ("cosine", {"cmap": DIVERGING, "norm": Normalize(-1, 1)}, [-1, -0.5, 0, 0.5, 1]),
    "norm_ratio": ("norm of the slot over the boundary's (log)", {"cmap": DIVERGING, "norm": LogNorm(1 / OFF, OFF)}, [0.25, 0.5, 1, 2, 4]),
}
"""What the heatmap can show: in words, how it is coloured, and the ticks of its scale."""


def slot_heatmap(
    found: Identification, value: str = "relative_error", claimed: Sequence[Boundary] | None = None, ax: Axes | None = None
) -> Axes:
    """Slots down, boundaries across; the best boundary of each slot is boxed, and the claimed one where it is another.

    value: `relative_error` (logarithmic, dark = near), `cosine` (-1 to 1) or `norm_ratio` (logarithmic, white = equal norms, which
    decide nothing). claimed: a boundary per slot, None where nothing is claimed. Raises ValueError for another value.
    """
    if value not in MEASURES:
        raise ValueError(f"value is {value!r}, expected one of {', '.join(MEASURES)}")
    slots, columns = found.error.shape
    ax = axes(ax, min(12.0, max(5.5, 2.4 + 0.17 * columns)), 2.3 + 0.42 * slots)
    if not columns:
        return _empty(ax, found)
    label, colours, ticks = MEASURES[value]
    cells = {"relative_error": found.error, "cosine": found.cosine, "norm_ratio": found.norm_ratio}[value]
    image = ax.imshow(cells.clip(colours["norm"].vmin, colours["norm"].vmax), aspect="auto", **colours)
    _boxes(ax, found, claimed)
    _boundary_ticks(ax, found, claimed)
    ax.set_yticks(range(slots), [f"slot {s}" for s in range(slots)])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    bar = ax.figure.colorbar(image, ax=ax, label=label, pad=0.015)
    bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    return finish(ax, _title(found, claimed), "boundary (layers done; 0 = embedding)", "")


def margin_bars(found: Identification, ax: Axes | None = None) -> Axes:
    """Per slot the relative error to the best boundary and to the runner-up, joined by a bar; x is logarithmic."""
    table = found.slots
    ax = axes(ax, 7.2, 2.2 + 0.45 * len(table))
    for s, row in enumerate(table.itertuples()):
        told, color = row.decision != "cannot tell", slot_color(s, len(table))
        best, runner = _shown(row.relative_error), _shown(row.runner_up_error)
        ax.plot([best, runner], [s, s], color=color, linewidth=7, alpha=0.35, solid_capstyle="butt")
        ax.scatter([best], [s], color=color if told else "white", edgecolors=color, s=70, zorder=3)
        ax.scatter([runner], [s], marker="|", color=TEXT, s=140, zorder=3)
        if np.isfinite(runner):
            text = f"{row.best}; {row.runner_up} is {_times(row.margin)} further" + ("" if told else " (cannot tell)")
            ax.annotate(text, (runner, s), (9, 0), textcoords="offset points", va="center", color=TEXT)
    ax.set_xscale("log")
    ax.set_xlim(
        min([NEAR, *(_shown(e) for e in table["relative_error"] if np.isfinite(e))]) / 2,
        max([FAR, *_finite(table["runner_up_error"])]) * 12,
    )
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set_yticks(range(len(table)), [f"slot {s}" for s in table["slot"]])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    keys = [
        Line2D([], [], marker="o", linestyle="", color=GREY, markersize=8, label="best boundary"),
        Line2D([], [], marker="|", linestyle="", color=TEXT, markersize=11, label="runner-up"),
    ]
    _legend(ax, keys)
    return finish(ax, _margins_title(found), "relative error, median over tokens and samples (log)", "")


def _title(found: Identification, claimed: Sequence[Boundary] | None = None) -> str:
    """`Slots hold boundaries 3, 16, 28 and final; 3 of 3 claims say otherwise`."""
    wiring = list(found.wiring)
    told = [s for s, b in enumerate(wiring) if b is not None]
    if not told:
        return "No slot's boundary can be told"
    names = [str(wiring[s]) for s in told]
    word = "boundary" if len(set(names)) == 1 and names[0] != FINAL else "" if names == [FINAL] else "boundaries"
    if len(told) == len(wiring):
        who, verb = ("Slots", "hold") if len(wiring) > 1 else ("The slot", "holds")
    else:
        who, verb = ("Slots " + ", ".join(map(str, told)), "hold") if len(told) > 1 else (f"Slot {told[0]}", "holds")
    said = [(b, held) for b, held in zip(claimed or (), wiring, strict=False) if None not in (b, held)]
    wrong = sum(b != held for b, held in said)
    claims = f"; {wrong} of {len(said)} claims say{'s' * (wrong == 1)} otherwise" if wrong else ""
    open_slots = [str(s) for s in range(len(wiring)) if s not in told]
    rest = f"; slot{'s' * (len(open_slots) > 1)} {', '.join(open_slots)} cannot be told" if open_slots else ""
    return " ".join(f"{who} {verb} {word} {_listed(names)}{claims}{rest}".split())


def _margins_title(found: Identification) -> str:
    """`Each runner-up is at least 22x further than the boundary that the slot holds, in every sample`."""
    told = [s for s, b in enumerate(found.wiring) if b is not None]
    margins = {s: m for s, m in found.slots["margin_min"].iloc[told].items() if np.isfinite(m) and m > 0}
    if not margins:
        return _title(found)
    which = "Each runner-up" if len(margins) == len(found.wiring) > 1 else f"Slot {_listed(margins)}: the runner-up"
    return f"{which} is at least {_times(min(margins.values()))} further than the boundary that the slot holds, in every sample"


def _listed(names: Iterable[Any]) -> str:
    """`3, 16 and 28`."""
    *before, last = map(str, names)
    return f"{', '.join(before)} and {last}" if before else last


def _boxes(ax: Axes, found: Identification, claimed: Sequence[Boundary] | None) -> None:
    """A solid box where the slot is, a dotted one where it only fits best, a dashed one in another colour where a claim says it is."""
    column = {b: i for i, b in enumerate(found.boundaries)}
    handles: dict[str, Rectangle] = {}
    for s, (best, decided) in enumerate(zip(found.slots["best"], found.wiring, strict=True)):
        if decided in column:
            handles["decided"] = _box(ax, column[decided], s, EVIDENCE, "-", "boundary that the slot holds")
        elif decided is None and best in column and best is not None:
            handles["best"] = _box(ax, column[best], s, EVIDENCE, ":", "nearest, cannot tell")
        claim = claimed[s] if claimed is not None and s < len(claimed) else None
        if claim is not None and claim in column and claim != decided:
            handles["claim"] = _box(ax, column[claim], s, CLAIM, "--", "boundary claimed")
    if handles:
        _legend(ax, list(handles.values()))


def _legend(ax: Axes, handles: list) -> None:
    """Below the axis label, whatever the height of the axes."""
    below = ax.transAxes + ScaledTranslation(0, -0.55, ax.figure.dpi_scale_trans)
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, ncols=3, frameon=False, borderaxespad=0)


def _box(ax: Axes, x: int, y: int, color: str, style: str, label: str) -> Rectangle:
    """White below the colour, so that a box shows on dark and light cells."""
    ax.add_patch(Rectangle((x - 0.5, y - 0.46), 1, 0.92, fill=False, edgecolor="white", linewidth=4, clip_on=False, zorder=3))
    box = Rectangle(
        (x - 0.5, y - 0.46), 1, 0.92, fill=False, edgecolor=color, linewidth=2.2, linestyle=style, clip_on=False, zorder=4, label=label
    )
    return ax.add_patch(box)


def _boundary_ticks(ax: Axes, found: Identification, claimed: Sequence[Boundary] | None) -> None:
    """All boundaries where there is room; else round ones, and always the ends and the boxed ones."""
    boundaries, count = found.boundaries, len(found.boundaries)
    step = 1 if count <= 16 else 5 if count <= 45 else 10
    boxed = {i for i, b in enumerate(boundaries) if b is not None and (b in list(found.wiring) or b in list(claimed or ()))}
    must = boxed | {0, count - 1}
    gap = 0 if count <= 16 else 1 if count <= 34 else 2
    rounds = {i for i, b in enumerate(boundaries) if b != FINAL and b % step == 0 and all(abs(i - m) > gap or i == m for m in must)}
    places = sorted(must | rounds)
    ax.set_xticks(places, [str(boundaries[i]) for i in places])
    if boundaries[-1] == FINAL:
        ax.get_xticklabels()[-1].set_horizontalalignment("left" if count > 16 else "center")


def _empty(ax: Axes, found: Identification) -> Axes:
    ax.text(0.5, 0.5, "no boundary was compared", ha="center", va="center", color=TEXT, transform=ax.transAxes)
    ax.set_axis_off()
    return finish(ax, _title(found), "", "")


def _shown(value: float) -> float:
    """Exact zeros stand at the left end of a log axis."""
    return max(value, NEAR / 10) if np.isfinite(value) else float("nan")


def _finite(values: Iterable[float]) -> list[float]:
    return [v for v in values if np.isfinite(v) and v > 0]


def _times(margin: float) -> str:
    return f"{margin:,.0f}x" if margin >= 10 else f"{margin:.2g}x"
