"""Figure of the cost playground: what an accept length gives at one cost of a cycle. Data in, Axes out."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from eaglelab.plots.labels import label_points
from eaglelab.plots.style import BLACK, EVIDENCE, OTHER, TEXT, VERIFY, axes, finish


def speedup_by_accept_length(
    line: pd.DataFrame, ax: Axes | None = None, *, break_even: float, here: tuple[float, float], measured: pd.DataFrame | None = None
) -> Axes:
    """Speedup over the accept length at a fixed cost, the break-even point, and where one stands.

    line: accept_length, speedup, and optionally `before` (the speedup without the change). here: (accept length, speedup). measured: name,
    accept_length, speedup of settings that were run; their costs are their own. Raises ValueError without a line.
    """
    if line.empty:
        raise ValueError("no accept length to show")
    ax = axes(ax, 6.4, 3.6)
    ax.axhline(1.0, color=OTHER, linewidth=1)
    if "before" in line:
        ax.plot(line["accept_length"], line["before"], color=OTHER, linestyle="--", label="before the change")
    ax.plot(line["accept_length"], line["speedup"], color=VERIFY, label="at this cost")
    low, high = line["accept_length"].min(), line["accept_length"].max()
    if low <= break_even <= high:
        ax.axvline(break_even, color=OTHER, linestyle=":", linewidth=1.2)
        right = break_even > (low + high) / 2
        look = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right" if right else "left", "va": "top"}
        ax.annotate(f"breaks even at {break_even:.2f}", (break_even, 0.98), (-4 if right else 4, 0), fontsize=9, color=TEXT, **look)
    if measured is not None and len(measured):
        ax.plot(measured["accept_length"], measured["speedup"], linestyle="", marker="s", markersize=5, color=EVIDENCE, label="measured")
    faster = "faster" if here[1] > 1 else "slower"
    ax.plot(*here, linestyle="", marker="o", markersize=11, markeredgewidth=2, fillstyle="none", color=BLACK, label=f"here: {faster}")
    top = max(1.0, float(line["speedup"].max()), float(line["before"].max()) if "before" in line else 0.0)
    ax.set_ylim(0, 1.12 * max(top, float(measured["speedup"].max()) if measured is not None and len(measured) else 0.0))
    if measured is not None and len(measured):
        label_points(ax, list(zip(measured["accept_length"], measured["speedup"], strict=True)), list(measured["name"]), avoid=[here])
    ax.legend(loc="lower right", fontsize=9, frameon=False)
    title = f"At accept length {here[0]:.2f} this is {here[1]:.2f} times as fast as no speculation; it breaks even at {break_even:.2f}"
    return finish(ax, title, "accept length, tokens per verify pass", "speedup over no speculation")
