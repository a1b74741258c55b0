"""Figures of where acceptance is lost: by class of token, by position, by confidence. Data in, Axes out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from eaglelab.lost.confidence import off_by
from eaglelab.lost.context import Fall
from eaglelab.plots.style import CLAIM, DRAFT, OTHER, TEXT, VERIFY, axes, finish, percents

KEEP = ("class", "n", "share", "marginal", "others", "accept_length", "lost", "gain", "low", "high")


def shown_classes(costs: pd.DataFrame) -> pd.DataFrame:
    """The classes with a right token at step 0, as the page's table shows them: `class_costs` rounded, intervals of few samples left empty."""
    table = costs.loc[costs["n"] > 0, list(KEEP)].replace([np.inf, -np.inf], np.nan)
    return table.round(3).rename(columns={"marginal": "marginal at step 0", "gain": "costs", "low": "from", "high": "to"})


def acceptance_by_class(costs: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Step-0 acceptance of each class, the lowest on top, with its 95 % interval by sample. costs: of `class_costs`.

    Raises ValueError where no class has a token.
    """
    shown = costs[costs["n"] > 0].sort_values("marginal", kind="stable")
    if shown.empty:
        raise ValueError("no class has a token at step 0: no row counts at all steps")
    ax = axes(ax, 7.6, 1.5 + 0.3 * len(shown))
    y = np.arange(len(shown))[::-1]
    for place, row in zip(y, shown.itertuples(), strict=True):
        color = DRAFT if row.told else OTHER
        low, high = shown.loc[row.Index, ["from", "to"]]
        if row.samples > 1:
            ax.plot([low, high], [place, place], color=color, linewidth=2, alpha=0.6)
        ax.scatter(row.marginal, place, color=color, marker="o" if row.told else "D", zorder=3, s=40, clip_on=False)
        cost = f", costs {row.gain:.2f}" if row.told else ""
        ax.annotate(f"n = {row.n:,}{cost}", (1.02, place), va="center", color=TEXT, fontsize=9, annotation_clip=False)
    ax.set_yticks(y, shown["class"])
    ax.set_xlim(0, 1)
    percents(ax.xaxis)
    ax.grid(axis="y", visible=False)
    told = shown[shown["told"]].sort_values("low", ascending=False)
    worst = None if told.empty else told.iloc[0]
    title = (
        "No class of tokens costs acceptance beyond chance"
        if worst is None
        else f"At tokens {_bare(worst['class'])} it is right in {worst['marginal']:.0%}, at the others in {worst['others']:.0%}"
    )
    return finish(ax, title, "step-0 acceptance (marginal); line: 95 % interval by sample\nround: costs accept length beyond chance", "")


def _bare(name: str) -> str:
    return name if name.startswith(("outside", "seen", "within", "inside")) else f"of the class “{name}”"


def acceptance_by_position(bins: pd.DataFrame, fall: Fall | None, ax: Axes | None = None, what: str = "the sample") -> Axes:
    """Step-0 acceptance by position, with the fall where there is one. bins: of `by_position`. Raises ValueError for none."""
    if bins.empty:
        raise ValueError("no row counts at step 0: there is no position to show")
    ax = axes(ax)
    at = np.sqrt(np.maximum(bins["from"], bins["to"] / 2) * bins["to"])  # the middle on an axis of ratios
    ends = bins[["low", "high"]].to_numpy()
    ax.plot(at, bins["marginal"], "-o", color=DRAFT)
    for x, (low, high), n, samples in zip(at, ends, bins["n"], bins["samples"], strict=True):
        if samples > 1:
            ax.plot([x, x], [low, high], color=DRAFT, linewidth=2, alpha=0.5)
        ax.annotate(f"n = {n:,}", (x, 0), (0, 4), textcoords="offset points", ha="center", color=TEXT, fontsize=8.5)
    told = fall is not None and fall.told
    if told:
        ax.axvspan(fall.low, max(fall.high, fall.low + 1), color=CLAIM, alpha=0.12)
        ax.axvline(fall.position, color=CLAIM, linestyle="--", label=f"falls from position {fall.position:,} on (shaded: 95 %)")
        ax.legend(loc="upper right")
    ax.set_xscale("log", base=2)
    edges = sorted({*bins["from"].clip(lower=8), *bins["to"]})
    ax.set_xlim(edges[0], edges[-1])
    ax.xaxis.set_major_locator(FixedLocator(edges))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([f"{int(e):,}" if e > 8 else "0" for e in edges])
    ax.set_ylim(0, 1)
    percents(ax.yaxis)
    title = (
        f"Step 0 is right in {fall.before:.0%} before position {fall.position:,} and in {fall.after:.0%} from it on"
        if told
        else f"Acceptance does not fall along {what}, as far as {int(bins['n'].sum()):,} tokens tell"
        if fall is not None
        else "Too few long samples to tell whether acceptance falls"
    )
    return finish(ax, title, f"position in {what} (log); line: 95 % interval by sample", "step-0 acceptance (marginal)")


def reliability(bins: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Share right by the drafter's own probability. bins: of `lost.reliability`. Raises ValueError for none."""
    if bins.empty:
        raise ValueError("no chain comes to any step: there is no confidence to show")
    ax = axes(ax, 5.4, 4.4)
    ax.plot([0, 1], [0, 1], color=OTHER, linestyle=":", label="as sure as right")
    for row in bins.itertuples():
        ax.plot([row.confidence] * 2, [row.low, row.high], color=VERIFY, linewidth=2, alpha=0.5)
    ax.scatter(
        bins["confidence"],
        bins["right"],
        s=20 + 180 * bins["n"] / bins["n"].max(),
        color=DRAFT,
        zorder=3,
        clip_on=False,
        label="drafted tokens (area: n)",
    )
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    percents(ax.xaxis)
    percents(ax.yaxis)
    ax.legend(loc="upper left")
    gap = float((bins["n"] * (bins["right"] - bins["confidence"])).sum() / bins["n"].sum())
    side = "as often as" if abs(gap) < 0.01 else "more often than" if gap > 0 else "less often than"
    title = f"Right {side} it is sure: confidence is off by {off_by(bins):.1%} on average"
    return finish(ax, title, f"drafter's probability of its token (n = {int(bins['n'].sum()):,})", "share right (conditional)")
