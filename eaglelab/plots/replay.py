"""Figures of a replay: acceptance by step, feeds ranked, use of slots, the walk's histogram. Data in, Axes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from eaglelab.acceptance import StepCounts
from eaglelab.plots.style import CLAIM, DRAFT, EVIDENCE, OTHER, TEXT, VERIFY, axes, finish, percents

TINY = 0.01
"""Acceptance lost, as a fraction: below it no slot is said to carry the drafter."""
KINDS = (("joint", "-", "o"), ("conditional", "--", "s"), ("marginal", ":", "^"))


def acceptance_table(counts: StepCounts) -> pd.DataFrame:
    """step, n, right, marginal, joint, conditional: the data of `acceptance_by_step`."""
    rows = counts.to_json()["steps"]
    columns = ["step", "n", "right", "out_of_vocabulary", "marginal", "joint", "conditional"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("marginal", "joint", "conditional"), float))


def printed_table(steps: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """What a trainer printed beside what the replay counts, in per cent: a row per step and definition that the name can stand for.

    steps: the numbers of the finding `training.metric`. from and to are the ends of the 95 % interval by sample.
    """
    rows = [
        (s["step"], s["name"], s["printed"], a["rate"], *a["interval"], a["right"], a["counted"], a["definition"])
        for s in steps
        for a in s["again"]
    ]
    rates = ["printed, %", "counted, %", "from", "to"]
    table = pd.DataFrame(rows, columns=["step", "name", *rates, "right", "of", "definition"])
    return table.assign(**(table[rates].astype(float) * 100).round(1))


def acceptance_by_step(counts: StepCounts, ax: Axes | None = None) -> Axes:
    """The three kinds of acceptance by drafted step."""
    ax, table = axes(ax), acceptance_table(counts)
    for (kind, line, marker), color in zip(KINDS, (DRAFT, VERIFY, OTHER), strict=True):
        ax.plot(table["step"], table[kind], line, marker=marker, color=color, label=kind)
    for row in table.itertuples():
        if row.joint == row.joint:
            below = (0, -15) if row.joint > 0.1 else (0, 7)  # else it falls on the axis
            ax.annotate(f"{row.joint:.1%}", (row.step, row.joint), below, textcoords="offset points", ha="center", color=TEXT)
    ax.set_xticks(table["step"])
    ax.set_ylim(0, 1)
    percents(ax.yaxis)
    ax.margins(x=0.15)
    ax.legend(loc="upper right", ncols=3)
    length = counts.accept_length
    said = (
        "No whole chain to count"
        if length is None
        else f"Mean accept length over all rows {length:.2f}: the joint rates add {length - 1:.2f} to the bonus token"
    )
    return finish(ax, said, f"drafted step ({counts.complete:,} whole chains)", "acceptance")


def ranked_feeds(table: pd.DataFrame, ax: Axes | None = None, most: int = 10) -> Axes:
    """Variants by step-0 acceptance, best first; the bar is the 95 % interval of the difference from the best.

    table: `Ranking.table`.
    """
    shown = table.head(most)
    ax = axes(ax, 7.2, 1.6 + 0.34 * len(shown))
    best = table["acceptance"].iloc[0]
    y = np.arange(len(shown))[::-1]
    colors = [EVIDENCE if tied else OTHER for tied in shown["tied"]]
    for place, row, color in zip(y, shown.itertuples(), colors, strict=True):
        if np.isfinite([row.low, row.high]).all():
            ends = np.clip([best - row.high, best - row.low], 0, 1)  # a wide difference leaves what an acceptance can be
            ax.plot(ends, [place, place], color=color, linewidth=5, alpha=0.35, solid_capstyle="butt")
        ax.scatter(row.acceptance, place, color=color, marker="o" if row.tied else "x", zorder=3, s=45)
        ax.annotate(
            f"{row.acceptance:.1%}", (row.acceptance, place), (0, 8), textcoords="offset points", ha="center", color=TEXT, fontsize=8.5
        )
    ax.set_yticks(y, [_short(v) for v in shown["variant"]])
    percents(ax.xaxis)
    ax.axvline(best, color=EVIDENCE, linewidth=0.8, linestyle=":")
    ax.grid(axis="y", visible=False)
    ax.set_ylim(-0.7, len(shown) - 0.2)
    tied = int(table["tied"].sum())
    title = (
        f"{_short(shown['variant'].iloc[0])} fits best"
        if tied == 1
        else f"{tied - 1} of {len(table) - 1} other feeds cannot be told from the best"
    )
    measured = f"step-0 acceptance (marginal, n = {int(table['n'].iloc[0]):,})"
    return finish(ax, title, f"{measured}\nfilled: tied with the best; bar: 95 % interval of the difference from it", "")


def two_feeds(labels: Sequence[str], counts: Sequence[StepCounts], ax: Axes | None = None) -> Axes:
    """Marginal acceptance by step of feeds side by side; a rate that no row tells is said, not drawn as 0."""
    ax = axes(ax)
    width, steps = 0.8 / len(labels), np.arange(counts[0].steps)
    for i, (label, c) in enumerate(zip(labels, counts, strict=True)):
        rates = np.array([c.marginal(k) for k in steps], dtype=float)  # [K]; None becomes NaN, which draws nothing
        color, hatch = ((EVIDENCE, ""), (CLAIM, "///"), (OTHER, ".."))[i % 3]
        places = steps + (i - (len(labels) - 1) / 2) * width
        bars = ax.bar(places, rates, width * 0.92, color=color, hatch=hatch, edgecolor="white", label=label)
        ax.bar_label(bars, [f"{r:.1%}" if np.isfinite(r) else "" for r in rates], padding=2, color=TEXT, fontsize=9)
        for x in places[~np.isfinite(rates)]:
            ax.annotate("not known", (x, 0), (0, 4), textcoords="offset points", ha="center", rotation=90, color=TEXT, fontsize=9)
    ax.set_xticks(steps, [f"step {k}" for k in steps])
    ax.set_ylim(0, 1)
    percents(ax.yaxis)
    ax.grid(axis="x", visible=False)
    ax.legend(loc="upper right")
    first = [_percent(c.marginal(0)) for c in counts]
    said = f"Marginal acceptance at step 0: {first[0]} on {labels[0]}, {first[-1]} on {labels[-1]}"
    return finish(ax, said, "drafted step", "marginal acceptance")


def slot_use(places: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Share of the fused input and cost of zeroing, per place of fc. An interval that is not finite (one sample) is not drawn.

    places: slot, share, zeroed_costs, low, high (fractions), as in the numbers of the finding `replay.slots`.
    """
    numbers = ["share", "zeroed_costs", "low", "high"]
    places = places.astype(dict.fromkeys(numbers, float)).replace([np.inf, -np.inf], np.nan)
    ax = axes(ax, 7.2, 1.8 + 0.6 * len(places))
    y = np.arange(len(places))[::-1]
    ax.barh(y + 0.18, places["share"], 0.32, color=OTHER, label="share of the fused input")
    ax.barh(y - 0.18, places["zeroed_costs"], 0.32, color=DRAFT, label="acceptance lost when zeroed")
    for place, row in zip(y, places.itertuples(), strict=True):
        if row.low == row.low and row.high == row.high:
            ax.plot([row.low, row.high], [place - 0.18] * 2, color=TEXT, linewidth=1, marker="|", markersize=7)
        end = np.nanmax([row.zeroed_costs, row.high, 0])
        for text, x, at in ((f"{row.share:.0%}", row.share, 0.18), (f"{row.zeroed_costs:.1%}", end, -0.18)):
            ax.annotate(text, (x, place + at), (5, 0), textcoords="offset points", va="center", color=TEXT, fontsize=9)
    ax.set_yticks(y, [f"slot {s}" for s in places["slot"]])
    drawn = places[numbers].to_numpy()
    ax.set_xlim(min(0.0, np.nanmin(drawn) * 1.1), max(0.1, np.nanmax(drawn) * 1.18))
    ax.grid(axis="y", visible=False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    percents(ax.xaxis)
    return finish(ax, _slots_title(places), "line: 95 % interval by sample", "")


def _slots_title(places: pd.DataFrame) -> str:
    """A slot is said to carry the drafter only when its loss is told from chance and is worth a word."""
    told = places[places["low"] > 0]
    if told.empty:
        return "No slot's loss can be told from chance"
    most = told.loc[told["zeroed_costs"].idxmax()]
    if most["zeroed_costs"] < TINY:
        return f"No slot carries the drafter: zeroing one costs {most['zeroed_costs']:.1%} at most"
    ahead = told[told["high"] >= most["low"]]["slot"].tolist()  # their intervals overlap the largest loss's
    if len(ahead) == 1:
        return f"Slot {ahead[0]} carries the drafter: zeroing it costs {most['zeroed_costs']:.1%}"
    return f"Slots {', '.join(map(str, ahead))} carry the drafter: zeroing one costs up to {most['zeroed_costs']:.1%}"


def accepted_histogram(accepted: Sequence[int], steps: int, ax: Axes | None = None) -> Axes:
    """How many drafted tokens each verify step of the walk accepts: what an engine's histogram should look like.

    Raises ValueError when there is no verify step.
    """
    if not len(accepted):
        raise ValueError("the walk has no verify step: no answer in the samples is long enough, or the loss mask is unknown")
    ax = axes(ax)
    counts = np.bincount(np.asarray(accepted, dtype=int), minlength=steps + 1)
    share = counts / counts.sum()
    bars = ax.bar(np.arange(len(counts)), share, 0.7, color=DRAFT)
    ax.bar_label(bars, [f"{n:,}" for n in counts], padding=2, color=TEXT)
    ax.set_xticks(np.arange(len(counts)))
    ax.grid(axis="x", visible=False)
    ax.set_ylim(0, max(0.1, share.max() * 1.15))
    percents(ax.yaxis)
    title = f"{share[0]:.0%} of the verify steps accept nothing, {share[-1]:.0%} accept all {len(counts) - 1}"
    return finish(ax, title, f"drafted tokens accepted ({counts.sum():,} verify steps)", "share of verify steps")


def _percent(rate: float | None) -> str:
    return "not known" if rate is None else f"{rate:.1%}"


def _short(name: str, most: int = 46) -> str:
    name = name.removeprefix("feed ")
    return name if len(name) <= most else name[: most - 1] + "…"
