"""Figures of time: where a cycle's milliseconds go, what verifying costs, which setting pays. Data in, Axes out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from eaglelab.plots.labels import label_points
from eaglelab.plots.style import (
    BLACK,
    CLAIM,
    DRAFT,
    EVIDENCE,
    GREEN,
    GREY,
    MARKERS,
    OTHER,
    PURPLE,
    SKY,
    SLOTS,
    TEXT,
    VERIFY,
    VERMILLION,
    axes,
    finish,
)
from eaglelab.timing.cost import ONE_RUN
from eaglelab.timing.phases import Phase

COLORS = {
    Phase.VERIFY: VERIFY,
    Phase.DRAFT: DRAFT,
    Phase.DRAFT_EXTEND: "#F2CF80",  # a light orange: the drafter's too
    Phase.SAMPLING: GREEN,
    Phase.COMMUNICATION: VERMILLION,
    Phase.PREFILL: SKY,
    Phase.DECODE: BLACK,
    Phase.OTHER: GREY,
    Phase.HOST_GAP: "#D9D9D9",
    Phase.UNATTRIBUTED: "white",
}
HATCHES = {Phase.DRAFT_EXTEND: "///", Phase.HOST_GAP: "...", Phase.UNATTRIBUTED: "xxx"}
"""For phases whose colour alone would not do."""
ROOM = 0.07
"""Share of the longest bar from which a part carries its number."""


def phase_bars(table: pd.DataFrame, ax: Axes | None = None, *, what: str = "cycle") -> Axes:
    """Stacked horizontal bars of milliseconds by phase.

    table: one row a bar, its label as the index (batch 1, rank 0, 3-1-4); a column for each phase by its name, in ms (NaN: 0); optionally
    `cycles`, how many a bar is of: the title's share is over all of them. Raises ValueError without a row.
    """
    table = _some(table, "no cycle to show").fillna(0.0)
    cycles = table["cycles"].astype(int) if "cycles" in table else pd.Series(1, table.index)
    phases = [p for p in Phase if str(p) in table and table[str(p)].sum() > 0]
    ax = axes(ax, 7.2, 2.3 + 0.5 * len(table))
    y, left, longest = np.arange(len(table))[::-1], np.zeros(len(table)), table[[str(p) for p in phases]].sum(axis=1).max()
    for phase in phases:
        width = table[str(phase)].to_numpy(float)
        look = {"color": COLORS[phase], "edgecolor": "#777777" if phase in HATCHES else "white", "hatch": HATCHES.get(phase)}
        ax.barh(y, width, left=left, height=0.62, label=str(phase), linewidth=0.6, **look)
        dark = phase in (Phase.VERIFY, Phase.SAMPLING, Phase.COMMUNICATION, Phase.DECODE)
        for place, start, w in zip(y, left, width, strict=True):
            if w > ROOM * longest:
                box = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"} if phase in HATCHES else None
                ink = "white" if dark else "#222222"
                ax.text(start + w / 2, place, _ms(w), ha="center", va="center", fontsize=9, color=ink, bbox=box)
        left = left + width
    for place, total in zip(y, left, strict=True):
        ax.annotate(f"{_ms(total)} ms", (total, place), (5, 0), textcoords="offset points", va="center", fontsize=9, color=TEXT)
    counted = [f"\n{n:,} cycle{'s' * (n > 1)}" if "cycles" in table else "" for n in cycles]
    ax.set_yticks(y, [f"{label}{n}" for label, n in zip(table.index, counted, strict=True)])
    ax.set_xlim(0, longest * 1.16)
    ax.set_ylim(-0.6, len(table) - 0.4)
    ax.grid(axis="y", visible=False)
    ax.figure.legend(loc="outside lower center", ncol=4, fontsize=9)
    total = table[[str(p) for p in phases]].mul(cycles, axis=0).sum()
    largest = total.idxmax()
    title = f"{largest[0].upper()}{largest[1:]} takes {total.max() / total.sum():.1%} of a {what}"
    return finish(ax, title, f"milliseconds of a {what}, mean", "")


def verify_over_decode(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """The verify pass in plain decode steps, against the batch size; a line for each number of tokens that are verified.

    table: batch, tokens (verified for one request), ratio (verify time / decode time at the same batch), and optionally low and high.
    Raises ValueError without a row.
    """
    table = _some(table, "no verify pass was measured beside a plain decode step")
    ax = axes(ax)
    ax.axhline(1.0, color=OTHER, linewidth=1)
    groups = list(table.groupby("tokens"))
    for i, (tokens, rows) in enumerate(groups):
        rows = rows.sort_values("batch")
        color = SLOTS[i % len(SLOTS)]
        ax.plot(rows["batch"], rows["ratio"], marker=MARKERS[i % len(MARKERS)], color=color, label=f"{tokens} tokens")
        if {"low", "high"} <= set(rows):
            ax.fill_between(rows["batch"], rows["low"].astype(float), rows["high"].astype(float), color=color, alpha=0.15, linewidth=0)
    _batches(ax, table["batch"])
    ax.set_ylim(0, 1.12 * np.nanmax(table[[c for c in ("ratio", "high") if c in table]].to_numpy(float)))
    ax.annotate("a free verify", (ax.get_xlim()[1], 1.0), (-4, 4), textcoords="offset points", ha="right", fontsize=9, color=OTHER)
    ax.legend(loc="upper left", fontsize=9, title="verified for one request", title_fontsize=9)
    worst = table.loc[table["ratio"].astype(float).idxmax()]
    n, batch = int(worst["tokens"]), int(worst["batch"])
    title = f"Verifying {n} tokens costs up to {worst['ratio']:.2f} plain decode steps (batch {batch})"
    return finish(ax, title, "batch size (requests at the same time), log scale", "verify pass / decode step")


def speedup_by_batch(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Speedup of each setting against batch size, the best setting of each batch size printed; 1.0 is no speculation.

    table: batch, name (the setting), speedup, low, high (95 %; NaN: not known), measured (bool). Predicted points are open and dashed.
    Raises ValueError without a row.
    """
    table = _some(table, "no setting has a speedup")
    ax = axes(ax, 7.2, 4.2)
    ax.axhline(1.0, color=OTHER, linewidth=1)
    for i, (name, rows) in enumerate(table.groupby("name", sort=False)):
        rows, color, marker = rows.sort_values("batch"), SLOTS[i % len(SLOTS)], MARKERS[i % len(MARKERS)]
        for measured, points in rows.groupby("measured"):
            line = {"linestyle": "-" if measured else "--", "fillstyle": "full" if measured else "none"}
            label = f"{name}{'' if measured else ', predicted'}"
            ax.plot(points["batch"], points["speedup"], marker=marker, color=color, label=label, **line)
        known = rows.dropna(subset=["low", "high"])
        if len(known):
            ax.vlines(known["batch"], known["low"].astype(float), known["high"].astype(float), color=color, linewidth=5, alpha=0.22)
    _batches(ax, table["batch"])
    won = [(int(batch), *_winner(rows)) for batch, rows in table.groupby("batch")]
    for batch, name, speedup in won:
        ax.annotate(name, (batch, speedup), (0, 9), textcoords="offset points", ha="center", fontsize=9, fontweight="bold", color=TEXT)
    tallest = max(1.0, float(table["speedup"].max()))
    high = float(table["high"].astype(float).max()) if table["high"].notna().any() else tallest
    ax.set_ylim(0, 1.18 * max(tallest, min(high, 1.5 * tallest)))  # an interval of two runs may be endless
    ax.figure.legend(loc="outside lower center", ncol=4, fontsize=9)
    ax.annotate("no speculation", (ax.get_xlim()[0], 1.0), (4, -12), textcoords="offset points", ha="left", fontsize=9, color=OTHER)
    return finish(ax, _best_title(won), "batch size (requests at the same time), log scale", "speedup over no speculation")


def _winner(rows: pd.DataFrame) -> tuple[str, float]:
    """The fastest setting of those that are clearly faster than off, `off`, or `cannot tell`; and where to print it."""
    low = rows["low"].astype(float).where(rows["low"].notna(), rows["speedup"] / (1 + ONE_RUN))
    clear = rows[low > 1]
    if len(clear):
        row = clear.loc[clear["speedup"].idxmax()]
        return str(row["name"]), float(row["speedup"])
    best = float(rows["speedup"].max())
    return ("cannot tell", best) if best > 1 else ("off", 1.0)


def _best_title(won: Sequence[tuple[int, str, float]]) -> str:
    names, fast = {name for _, name, _ in won}, [s for _, name, s in won if name not in ("off", "cannot tell")]
    at = f" at batch {won[0][0]}" if len(won) == 1 else " at any batch size"
    if names == {"off"}:
        return f"No setting is faster than no speculation{at}"
    if not fast:
        return f"No setting is clearly faster than no speculation{at}"
    if len(won) == 1:
        return f"{won[0][1]} is the best setting at batch {won[0][0]} that is clearly faster: {won[0][2]:.2f} times as fast"
    if len(names) == 1:
        return f"{won[0][1]} is the best setting at every batch size that is clearly faster: up to {max(fast):.2f} times as fast"
    return "The best setting that is clearly faster depends on the batch: " + ", ".join(f"{name} at {batch}" for batch, name, _ in won)


def accept_length_and_cost(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Accept length against the cost ratio r, one point a measured setting; above the diagonal speculation pays.

    table: name, batch, r, accept_length. Raises ValueError without a row that has both.
    """
    table = _some(table.dropna(subset=["r", "accept_length"]), "no setting was measured beside a baseline")
    ax = axes(ax, 6.4, 4.6)
    both = table[["r", "accept_length"]].to_numpy(float)
    low, top = 0.9 * min(1.0, both.min()), 1.1 * both.max()
    ax.plot([low, top], [low, top], color=OTHER, linewidth=1)
    ax.fill_between([low, top], [low, top], [top, top], color=EVIDENCE, alpha=0.06, linewidth=0)
    for i, (batch, rows) in enumerate(table.groupby("batch")):
        pays = rows["accept_length"] > rows["r"]
        for chosen, fill in ((pays, "full"), (~pays, "none")):
            look = {"marker": MARKERS[i % len(MARKERS)], "fillstyle": fill, "color": EVIDENCE if fill == "full" else CLAIM}
            ax.plot(rows["r"][chosen], rows["accept_length"][chosen], linestyle="", markersize=8, **look)
        ax.plot([], [], linestyle="", marker=MARKERS[i % len(MARKERS)], color=OTHER, label=f"batch {batch}")
    ax.annotate("faster", (0.03, 0.93), xycoords="axes fraction", fontsize=9, color=EVIDENCE)
    ax.annotate("slower than no speculation", (0.97, 0.04), xycoords="axes fraction", fontsize=9, color=CLAIM, ha="right")
    ax.set_xlim(low, top)
    ax.set_ylim(low, top)
    label_points(ax, list(zip(table["r"], table["accept_length"], strict=True)), list(table["name"]))
    ax.legend(loc="center right", fontsize=9)
    won = int((table["accept_length"] > table["r"]).sum())
    title = f"{'None' if won == 0 else won} of {len(table)} settings reach{'' if won > 1 else 'es'} the accept length that breaks even" if len(table) > 1 else (
        f"{table['name'].iloc[0]} needs an accept length of {table['r'].iloc[0]:.2f} and has {table['accept_length'].iloc[0]:.2f}"
    )  # fmt: skip
    return finish(
        ax, title, "r: cost of a cycle in plain decode steps = accept length that breaks even", "accept length,\ntokens per verify pass"
    )


def predicted_and_measured(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Predicted speedup against the measured one, with the diagonal.

    table: name, batch, predicted, measured, and optionally low and high of the prediction. Raises ValueError without a row that has both.
    """
    table = _some(table.dropna(subset=["predicted", "measured"]), "nothing was both predicted and measured")
    ax = axes(ax, 5.6, 4.8)
    values = table[["predicted", "measured"]].to_numpy(float)
    low, high = 0.9 * min(values.min(), 1.0), 1.1 * max(values.max(), 1.0)
    ax.plot([low, high], [low, high], color=OTHER, linewidth=1)
    for i, (batch, rows) in enumerate(table.groupby("batch")):
        color = (VERIFY, PURPLE, GREEN, BLACK, SKY)[i % 5]
        ax.plot(rows["measured"], rows["predicted"], linestyle="", marker=MARKERS[i % len(MARKERS)], color=color, label=f"batch {batch}")
        if {"low", "high"} <= set(rows):
            ax.vlines(rows["measured"], rows["low"].astype(float), rows["high"].astype(float), color=color, linewidth=4, alpha=0.2)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    label_points(ax, list(zip(table["measured"], table["predicted"], strict=True)), list(table["name"]))
    ax.legend(loc="upper left", fontsize=9)
    off = (table["predicted"] / table["measured"] - 1).abs()
    title = f"Predicted speedups lie within {off.max():.0%} of the measured ones, half of them within {off.median():.0%}"
    return finish(ax, title, "measured speedup", "predicted speedup")


def _batches(ax: Axes, batches: pd.Series) -> None:
    """A log axis with the batch sizes that are there."""
    known = sorted(set(batches.astype(int)))
    ax.set_xscale("log", base=2)
    ax.set_xticks(known)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.minorticks_off()
    ax.set_xlim(min(known) / 1.35, max(known) * 1.35)


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _some(table: pd.DataFrame, else_: str) -> pd.DataFrame:
    if table.empty:
        raise ValueError(else_)
    return table
