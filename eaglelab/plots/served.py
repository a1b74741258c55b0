"""Figures of what a server reached: acceptance by step and accept length beside the replay's prediction, and over the log. Data in, Axes out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from eaglelab.plots.style import CLAIM, DRAFT, EVIDENCE, MARKERS, OTHER, PURPLE, SKY, TEXT, VERIFY, axes, finish, percents
from eaglelab.served_case import CLOSE

if TYPE_CHECKING:
    from eaglelab.triangle import Triangle

COLORS = {True: (EVIDENCE, SKY, VERIFY), False: (CLAIM, DRAFT, PURPLE)}
"""Of recordings fed what the drafter was trained on, and of others."""

SAME_STEP = 0.02
"""Rates of acceptance at a step that are less than this apart are called the same in a title."""


def joint_by_step(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Joint acceptance by step, served (filled) and predicted (open, dashed), for each recording that tells it.

    table: recording, right (bool: fed what the drafter was trained on), step, served, predicted (fractions, NaN: not known). Raises
    ValueError without a row.
    """
    table = _some(table, "no recording tells acceptance by step")
    ax = axes(ax, 7.2, 4.2)
    for i, (name, rows) in enumerate(table.groupby("recording", sort=False)):
        marker, colors = MARKERS[i % len(MARKERS)], COLORS[bool(rows["right"].iloc[0])]
        color = colors[i // len(MARKERS) % len(colors)]  # no two alike
        ax.plot(rows["step"], rows["predicted"], "--", marker=marker, color=color, fillstyle="none", markersize=12, linewidth=1)
        ax.plot(
            rows["step"],
            rows["served"],
            "-",
            marker=marker,
            color=color,
            markersize=5,
            label=name + ", fed as trained" * bool(rows["right"].iloc[0]),
        )
    ax.plot([], [], "--o", color=OTHER, fillstyle="none", markersize=10, label="open: predicted by the replay")
    ax.set_xticks(sorted(table["step"].unique()))
    ax.set_ylim(0, max(0.1, 1.15 * np.nanmax(table[["served", "predicted"]].to_numpy(float))))
    percents(ax.yaxis)
    ax.margins(x=0.1)
    ax.legend(loc="upper right", fontsize=9)
    gap = (table["served"] - table["predicted"]).astype(float).abs()
    if gap.isna().all():
        title = "Joint acceptance as the server counted it"
    else:
        worst = table.loc[gap.idxmax()]
        title = (
            "Served and predicted acceptance are the same at every step"
            + (f", within {100 * gap.max():.1f} points" if gap.max() >= 0.0005 else " to 0.1 points")
            if gap.max() < SAME_STEP
            else f"{worst['recording']} was served {worst['served']:.1%} at step {worst['step']}, predicted {worst['predicted']:.1%}"
        )
    return finish(ax, title, "drafted step (0 is the first)", "joint acceptance")


def predicted_and_served(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Accept length of each recording: predicted (open ring) and served (filled, bar: its 95 % interval by request) on one line.

    table: recording, right, served, low, high, predicted (tokens per verify pass, bonus included; NaN: not known). Raises ValueError
    without a row.
    """
    table = _some(table, "no recording tells an accept length")
    ax = axes(ax, 7.2, 1.7 + 0.45 * len(table))
    y = np.arange(len(table))[::-1]
    for place, row in zip(y, table.itertuples(), strict=True):
        color = OTHER if pd.isna(row.predicted) else EVIDENCE if row.right else CLAIM
        ax.plot([row.predicted, row.served], [place, place], color=color, linewidth=1.2)
        if np.isfinite([row.low, row.high]).all():
            ax.plot([row.low, row.high], [place, place], color=color, linewidth=6, alpha=0.25, solid_capstyle="butt")
        ax.plot(row.predicted, place, "o", color=color, fillstyle="none", markersize=13)
        ax.plot(row.served, place, "o" if row.right else "s", color=color, markersize=6)
        said = f"{row.served:.2f}" + (f", predicted {row.predicted:.2f}" if row.predicted == row.predicted else ", not predicted")
        end = np.nanmax([row.served, row.predicted, row.high if np.isfinite(row.high) else np.nan])
        ax.annotate(said, (end, place), (12, 0), textcoords="offset points", va="center", color=TEXT, fontsize=9)
    ax.set_yticks(y, table["recording"])
    drawn = table[["served", "predicted", "high"]].replace([np.inf, -np.inf], np.nan).to_numpy(float)
    ax.set_xlim(0.98, 1 + 1.45 * max(0.2, np.nanmax(drawn) - 1))
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.grid(axis="y", visible=False)
    return finish(
        ax, _length_title(table), "accept length, tokens per verify pass\nring: predicted; filled: served; bar: 95 % by request", ""
    )


def _length_title(table: pd.DataFrame) -> str:
    told = table.dropna(subset=["served", "predicted"])
    if told.empty:
        return "Accept lengths as served; none could be predicted"
    apart = (told["served"] / told["predicted"] - 1).abs()
    if apart.max() <= CLOSE:
        within = (told["served"] - told["predicted"]).abs().max()
        all_of = "The recording was" if len(told) == 1 else f"All {len(told)} recordings were"
        return f"{all_of} served as predicted, {f'within {within:.2f} of' if within >= 0.005 else 'to two decimals of'} accept length"
    row = told.loc[apart.idxmax()]
    return f"{row['recording']} reached {row['served']:.2f} where {row['predicted']:.2f} was predicted"


def accept_length_over_log(lines: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Accept length line by line of a server's log; restarts are dotted lines, lines with graphs off are crosses.

    lines: at (seconds, or the number of the line), accept_length, graph (True, False or None), start (int: which start of the server),
    and the name of the unit of `at` in `lines.attrs["unit"]`. Raises ValueError without a row.
    """
    lines = _some(lines, "no line of the log tells an accept length")
    ax = axes(ax)
    off = lines["graph"].eq(False).fillna(False).to_numpy(bool)
    ax.plot(lines["at"], lines["accept_length"], color=OTHER, linewidth=0.6, alpha=0.6)
    for chosen, marker, color, name in (
        (~off, "o", VERIFY, "graph on, or not told"),
        (off, "x", CLAIM if not off.all() else VERIFY, "graph off"),
    ):
        if chosen.any():
            ax.scatter(lines["at"][chosen], lines["accept_length"][chosen], s=26, marker=marker, color=color, label=name, zorder=3)
    for first in lines.groupby("start")["at"].min().iloc[1:]:
        ax.axvline(first, color=TEXT, linewidth=1, linestyle=":")
    top = float(lines["accept_length"].max())
    ax.set_ylim(0.95, 1 + 1.25 * max(0.2, top - 1))
    ax.legend(loc="upper right", fontsize=9)
    low, high = float(lines["accept_length"].min()), top
    title = (
        f"The log's accept length lies between {low:.2f} and {high:.2f}"
        if high > low
        else f"The log's accept length is {low:.2f} throughout"
    )
    starts = lines["start"].nunique()
    title += f", over {starts} starts of the server" if starts > 1 else ""
    return finish(ax, title, lines.attrs.get("unit", "line of the log"), "accept length,\ntokens per verify pass")


def triangle(found: Triangle, ax: Axes | None = None) -> Axes:
    """Trainer, replay and server on one axis of accept length, each with its 95 % interval; the title says on which side acceptance is lost."""
    corners = found.corners
    ax = axes(ax, 7.2, 1.6 + 0.55 * len(corners))
    looks = {"trainer": (OTHER, "D"), "replay": (EVIDENCE, "o"), "server": (VERIFY, "s")}
    y = np.arange(len(corners))[::-1]
    ax.plot([c.accept_length for c in corners], y, color=OTHER, linewidth=1, linestyle=":")
    for place, corner in zip(y, corners, strict=True):
        color, marker = looks[corner.name]
        if corner.interval is not None:
            ax.plot(corner.interval, [place, place], color=color, linewidth=7, alpha=0.25, solid_capstyle="butt")
        ax.plot(corner.accept_length, place, marker, color=color, markersize=9)
        n = "" if corner.n is None else f", {corner.n:,} {corner.of}"
        ax.annotate(
            f"{'about ' if corner.approximate else ''}{corner.accept_length:.2f}{n}",
            (max(corner.accept_length, (corner.interval or (0, 0))[1]), place),
            (12, 0),
            textcoords="offset points",
            va="center",
            color=TEXT,
            fontsize=9,
        )
    ax.set_yticks(y, [c.name for c in corners])
    top = max(max(c.accept_length, (c.interval or (0, 0))[1]) for c in corners)
    ax.set_xlim(0.95, 1 + 1.5 * max(0.2, top - 1))
    ax.set_ylim(-0.6, len(corners) - 0.4)
    ax.grid(axis="y", visible=False)
    numbers = ", ".join(f"{c.name} {c.accept_length:.2f}" for c in corners)
    title = {"none": "Acceptance is as trained", "cannot tell": "Where acceptance is lost cannot be told"}
    steps = f" with {found.steps} drafted steps" if found.steps else ""
    label = f"accept length{steps}, tokens per verify pass\nbar: 95 % by request or sample"
    return finish(ax, f"{title.get(found.gap, f'Acceptance is lost in the {found.gap}')}: {numbers}", label, "")


def variant_profiles(table: pd.DataFrame, served: Sequence[float], ax: Axes | None = None, most: int = 4) -> Axes:
    """Joint acceptance by step: what the server counted (thick), the candidates nearest to it and the trained one.

    table: `VariantFit.table`, best first, with a column trained (bool); served: K joint rates. Raises ValueError without a row.
    """
    table = _some(table, "no candidate was compared")
    ax = axes(ax, 7.2, 4.2)
    steps = np.arange(len(served))
    chosen = pd.concat([table.head(most), table[table["trained"]]]).drop_duplicates("candidate")
    chosen = chosen[(chosen["weight"] > 0) | chosen["trained"] | (np.arange(len(chosen)) == 0)]
    ax.plot(steps, served, "-", color=TEXT, linewidth=5, alpha=0.35, label="served")
    for i, row in enumerate(chosen.itertuples()):
        rates = [getattr(row, f"joint_{k}") for k in steps]
        color = EVIDENCE if row.trained else (CLAIM, VERIFY, PURPLE, DRAFT, SKY)[i % 5]
        fits = "" if row.fits else ", does not fit"
        label = textwrap.fill(f"{row.candidate}: {row.accept_length:.2f}{fits}", 46)
        ax.plot(
            steps, rates, "--", marker=MARKERS[i % len(MARKERS)], color=color, fillstyle="none", markersize=9, linewidth=1.2, label=label
        )
    ax.set_xticks(steps)
    ax.set_ylim(0, max(0.1, 1.7 * max(max(served, default=0), max(r.joint_0 for r in chosen.itertuples()))))
    percents(ax.yaxis)
    ax.margins(x=0.1)
    ax.legend(loc="upper right", fontsize=8, labelspacing=0.7)
    best = table.iloc[0]
    title = (
        f"What was served is reproduced by {best['candidate']}"
        if best["fits"]
        else f"No candidate reproduces what was served; nearest: {best['candidate']}"
    )
    return finish(ax, title, "drafted step (0 is the first)", "joint acceptance")


def variants_ranked(table: pd.DataFrame, ax: Axes | None = None, most: int = 14) -> Axes:
    """How far each candidate is behind the best (log likelihood for 100 verify passes, since some are of fewer), the nearest on top; filled: it
    fits by itself.

    table: as in `variant_profiles`. Raises ValueError without a row.
    """
    table = _some(table, "no candidate was compared")
    table = table.assign(behind=100 * table["behind"] / table["passes"])
    table = table.sort_values(["weight", "behind"], ascending=[False, True], kind="stable")
    shown = pd.concat([table.head(most), table[table["trained"]]]).drop_duplicates("candidate")
    ax = axes(ax, 7.2, 1.5 + 0.34 * len(shown))
    y = np.arange(len(shown))[::-1]
    for place, row in zip(y, shown.itertuples(), strict=True):
        color = EVIDENCE if row.trained else CLAIM if row.fits else OTHER
        ax.plot([0, row.behind], [place, place], color=color, linewidth=1.2)
        ax.plot(row.behind, place, "o", color=color, markersize=7, fillstyle="full" if row.fits else "none")
        said = "" if np.isnan(row.accept_length) else f"{row.accept_length:.2f} (served {row.served:.2f})"
        ax.annotate(said, (row.behind, place), (9, 0), textcoords="offset points", va="center", color=TEXT, fontsize=8)
    ax.set_yticks(y, [textwrap.shorten(c, 58, placeholder="…") for c in shown["candidate"]], fontsize=8.5)
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(-0.15, 30 * max(1.0, shown["behind"].max()))
    ax.set_ylim(-0.7, len(shown) - 0.3)
    ax.grid(axis="y", visible=False)
    fitting = int(table["fits"].sum())
    title = f"{fitting or 'None'} of {len(table)} candidates {'fits' if fitting == 1 else 'fit'}; " + (
        f"nearest: {shown['candidate'].iloc[0]}"
    )
    return finish(
        ax,
        title,
        "log likelihood behind the best, for 100 verify passes (log scale from 1 on)\nfilled: fits by itself; numbers: accept length",
        "",
    )


def _some(table: pd.DataFrame, else_: str) -> pd.DataFrame:
    if table.empty:
        raise ValueError(else_)
    return table
