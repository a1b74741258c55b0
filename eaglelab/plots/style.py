"""The look that all figures share.

One colour per concept across a report (Okabe-Ito, told apart with colour-blind eyes): draft orange, verify blue, everything else
grey, and the slots from the colours left over. Heatmaps: `SEQUENTIAL` for amounts, `DIVERGING` centred at 0 for signed values.
"""

from __future__ import annotations

import textwrap

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import PercentFormatter

ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, BLACK, GREY = "#0072B2", "#D55E00", "#CC79A7", "#000000", "#8A8A8A"

DRAFT, VERIFY, OTHER = ORANGE, BLUE, GREY
CLAIM, EVIDENCE = VERMILLION, GREEN
"""What is said against what was computed."""
SLOTS = (GREEN, PURPLE, SKY, BLACK, VERMILLION)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SEQUENTIAL, DIVERGING = "cividis", "RdBu_r"
TEXT = "#333333"

RULES = {
    "figure.figsize": (7.2, 3.8),
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "image.cmap": SEQUENTIAL,
    "svg.hashsalt": "eaglelab",  # the same figure gives the same bytes
    "axes.prop_cycle": mpl.cycler(color=[*SLOTS, GREY]),
}


def slot_color(slot: int, slots: int = 1) -> str | tuple[float, float, float, float]:
    """Slot 0, 1, … always in the same colour; from a dump with more slots than colours, steps of the sequential map."""
    if slots <= len(SLOTS) and slot < len(SLOTS):
        return SLOTS[slot]
    return mpl.colormaps[SEQUENTIAL](slot / max(1, slots - 1))


def slot_marker(slot: int) -> str:
    return MARKERS[slot % len(MARKERS)]


def axes(ax: Axes | None, width: float = 7.2, height: float = 3.8) -> Axes:
    """The Axes given, or those of a new figure in the shared style."""
    if ax is not None:
        return ax
    with mpl.rc_context(RULES):
        return plt.figure(figsize=(width, height)).add_subplot()


def finish(ax: Axes, title: str, xlabel: str, ylabel: str) -> Axes:
    """Title (the finding, in a sentence) and axis labels (with units; "log" where the axis is). Text from data is shown as it is:
    a dollar sign starts no formula. The title's place is given, since to find one matplotlib measures every tick."""
    size = RULES["axes.titlesize"]
    wrapped = _balanced(title, _title_width(ax, size))
    ax.set_title(wrapped, loc="left", y=1.0, fontsize=size, fontweight="bold", color=TEXT, parse_math=False)
    ax.set_xlabel(xlabel, parse_math=False)
    ax.set_ylabel(ylabel, parse_math=False)
    return ax


def percents(axis: Axis) -> None:
    """Fractions as per cent, as the text of the pages has them."""
    axis.set_major_formatter(PercentFormatter(1))


def _title_width(ax: Axes, size: float) -> int:
    """Characters of the bold title font that fit over the axes (0.55 em each)."""
    inches = ax.figure.get_figwidth() * ax.get_position().width
    return max(20, int(inches * 72 / (0.55 * size)))


def _balanced(text: str, width: int) -> str:
    """Text in as few lines as `width` allows, the lines about equally long: no single word is left over."""
    lines = textwrap.wrap(text, width)
    while len(narrower := textwrap.wrap(text, width - 1)) == len(lines) and width > 20:
        lines, width = narrower, width - 1
    return "\n".join(lines)
