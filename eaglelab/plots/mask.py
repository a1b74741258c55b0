"""Figure of the tokens around the loss mask's starts. Data in, Axes out."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from eaglelab.plots.style import EVIDENCE, OTHER, TEXT, axes, finish, percents


def around_start(table: pd.DataFrame, title: str, ax: Axes | None = None) -> Axes:
    """Share of spans that have the same token at each place around their start, and how often the target says the text's token there.

    table: `eaglelab.dumps.mask.around_start`. title: the finding, as text.shift says it.
    """
    ax, held = axes(ax, height=3.2), table[table["n"] > 0]
    ax.bar(held["place"], held["same"] / held["n"], width=0.7, color=OTHER, label="spans with the commonest token")
    if "asked" in held and len(asked := held[held["asked"] > 0]):
        ax.plot(asked["place"], asked["agrees"] / asked["asked"], color=EVIDENCE, marker="o", label="text is what the target says")
    ax.axvline(-0.5, color=TEXT, linestyle="--", linewidth=1.2, label="the mask starts")
    ax.set_ylim(0, 1.05)
    percents(ax.yaxis)
    ax.set_xticks(table["place"])
    ax.grid(axis="x", visible=False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3)
    spans = int(table["n"].max()) if len(table) else 0
    return finish(ax, title, f"place from the first trained token of {spans} spans", "share")
