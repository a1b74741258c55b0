"""Figures of a fingerprint: norm by slot, norm by token position, cosine between slots. Data in, Axes out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from eaglelab.plots.style import DIVERGING, OTHER, TEXT, axes, finish, slot_color, slot_marker

MANY = 8  # slots from which on names and numbers would overlap
POINTS = 1000  # stretches of a line that stand apart in a figure
NUMBER_GAP = 0.045  # share of an axis that a small number takes


def norm_by_slot(slots: pd.DataFrame, ax: Axes | None = None, counted: str = "") -> Axes:
    """Median and 5-95 % band of the L2 norm per slot, the first token apart; y is logarithmic.

    slots: `Fingerprint.slots`. counted: "32 of 100,000 samples", shown in the axis label.
    """
    ax, x = axes(ax), np.arange(len(slots))
    colors = [slot_color(s, len(slots)) for s in slots["slot"]]
    for i, row in enumerate(slots.itertuples()):
        ax.plot([i, i], [_positive(row.p5), _positive(row.p95)], color=colors[i], linewidth=12, alpha=0.35, solid_capstyle="butt")
    ax.scatter(x, _positive(slots["median"]), c=colors, s=70, zorder=3, label="median of the other tokens, band 5 to 95 %")
    ax.scatter(x, _positive(slots["first"]), marker="x", c=TEXT, s=50, linewidths=1.8, zorder=4, label="first token of a sample (median)")
    for i, row in enumerate(slots.itertuples()):
        if row.median > 0 and len(slots) <= MANY:
            ax.annotate(_short(row.median), (i, row.median), (12, 0), textcoords="offset points", va="center", color=TEXT)
    _log_axis(ax, pd.concat([slots["p5"], slots["p95"], slots["first"], slots["median"]]))
    many = len(slots) > MANY
    ax.set_xticks(x[:: 1 + len(x) // 16], [str(s) if many else f"slot {s}" for s in slots["slot"][:: 1 + len(x) // 16]])
    ax.set_xlim(-0.5, max(0.5, len(slots) - 0.4))
    ax.grid(axis="x", visible=False)
    legend = ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2 if counted else -0.12), ncols=2, handletextpad=0.3)
    legend.legend_handles[0].set_facecolor(OTHER)  # the label is about every slot's dot
    return finish(ax, norm_title(slots), counted, "L2 norm of a state (log)")


def norm_by_position(
    tokens: pd.DataFrame, sample: str | None = None, ax: Axes | None = None, *, log: bool = True, behind: pd.DataFrame | None = None
) -> Axes:
    """Norm along one sample, a line per slot, massive tokens marked; y is logarithmic unless `log` is False.

    tokens: `Fingerprint.tokens`. sample: the key, the table's first sample by default. behind: the target's own norms (`boundary`,
    `norm`, one row each), drawn as grey lines with their numbers at the right edge.
    """
    ax = axes(ax)
    sample = tokens["sample"].iloc[0] if sample is None and len(tokens) else sample
    table = tokens[tokens["sample"] == sample]
    if table.empty:
        raise ValueError(f"no tokens of sample {sample!r}; the table has {sorted(set(tokens['sample']))[:5]}")
    slots = sorted(set(table["slot"]))
    for s in slots:
        line, color = table[table["slot"] == s], slot_color(s, slots[-1] + 1)
        label = f"slot {s}" if len(slots) <= MANY or s % (1 + len(slots) // MANY) == 0 else None
        ax.plot(*_thinned(line["position"], _positive(line["norm"])), color=color, linewidth=1.2, label=label)
        massive = line[line["massive"]]
        ax.scatter(massive["position"], massive["norm"], facecolors="none", edgecolors=color, s=60, marker=slot_marker(s), zorder=3)
    if log:
        _log_axis(ax, table["norm"])
    if behind is not None:
        _boundaries_behind(ax, behind)
    ax.margins(x=0.02)
    ax.legend(loc="center left", bbox_to_anchor=(1.0 if behind is None else 1.07, 0.5), frameon=False)
    return finish(ax, _massive_title(table), f"token position in {_shortened(sample)}", f"L2 norm of a state{' (log)' * log}")


def _thinned(x: pd.Series, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A line of at most `2 * POINTS` points: of more, the smallest and the largest of each stretch, so that no peak is lost."""
    x = np.asarray(x)
    if len(x) <= 2 * POINTS:
        return x, y
    starts = np.linspace(0, len(x), POINTS, endpoint=False).astype(int)
    ends = [*starts[1:], len(x)]
    filled = np.nan_to_num(y, nan=-np.inf), np.nan_to_num(y, nan=np.inf)
    kept = sorted(
        {a + int(f(part[a:b])) for a, b in zip(starts, ends, strict=True) for f, part in zip((np.argmax, np.argmin), filled, strict=True)}
    )
    return x[kept], y[kept]


def _boundaries_behind(ax: Axes, behind: pd.DataFrame) -> None:
    """A grey line at each boundary's norm, inside the range that the slots span; numbers where they do not overlap."""
    low, high = ax.get_ylim()
    inside = behind[behind["norm"].between(low, high) & (behind["norm"] > 0)].sort_values("norm")
    scale = np.log if ax.get_yscale() == "log" else np.asarray
    across = ax.get_yaxis_transform()  # x in shares of the axes, y in data
    ax.hlines(inside["norm"], 0, 1, color=OTHER, linewidth=0.6, alpha=0.6, zorder=0.5, transform=across)
    last = -np.inf
    for row in inside.itertuples():
        place = float((scale(row.norm) - scale(low)) / (scale(high) - scale(low)))
        if place - last > NUMBER_GAP:
            ax.text(1.008, row.norm, str(row.boundary), transform=across, va="center", fontsize=7.5, color=TEXT)
            last = place
    ax.set_ylim(low, high)


def cosine_between_slots(cosine: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Median cosine between slots at the same token, -1 to 1, white at 0.

    cosine: `Fingerprint.cosine`, [S, S].
    """
    size = len(cosine)
    side = min(7.0, 2.8 + 0.55 * size)
    ax = axes(ax, side + 0.9, side)
    image = ax.imshow(cosine.to_numpy(dtype=float), cmap=DIVERGING, vmin=-1, vmax=1)
    for i in range(size if size <= 12 else 0):  # more cells have no room for numbers
        for j in range(size):
            value = cosine.iat[i, j]
            text = "none" if np.isnan(value) else f"{value:.2f}"
            ax.text(j, i, text, ha="center", va="center", color="white" if abs(value) > 0.55 else TEXT)
    names = [f"slot {s}" for s in cosine.index]
    if size <= 12:
        ax.set_xticks(range(size), names)
        ax.set_yticks(range(size), names)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, label="cosine, median over tokens", shrink=0.85)
    return finish(ax, _cosine_title(cosine), "" if size <= 12 else "slot", "" if size <= 12 else "slot")


def norm_title(slots: pd.DataFrame) -> str:
    """`Slot norms differ 168-fold; first token 12x its slot's median (slot 1)`."""
    medians = slots.set_index("slot")["median"]
    medians = medians[medians > 0]
    if medians.empty:
        return "No slot has a usable state"
    ratio = medians.max() / medians.min()
    parts = [f"Slot norms differ {_short(ratio)}-fold" if len(medians) > 1 and ratio >= 1.05 else "The slots have about one norm"]
    firsts = slots.set_index("slot")["first_ratio"].dropna()
    if len(firsts) and firsts.max() >= 2:
        parts.append(f"first token {_short(firsts.max())}x its slot's median (slot {firsts.idxmax()})")
    return "; ".join(parts)


def _massive_title(table: pd.DataFrame) -> str:
    massive = table[table["massive"]]
    if massive.empty:
        return "No massive token: no norm over 10x its slot's median"
    positions = sorted(set(massive["position"]))
    where = ", ".join(str(p) for p in positions[:4]) + (", …" if len(positions) > 4 else "")
    many = len(positions) > 1
    return f"{len(positions)} massive token{'s' * many} at position{'s' * many} {where} (over 10x the slot's median)"


def _cosine_title(cosine: pd.DataFrame) -> str:
    values = cosine.to_numpy(dtype=float).copy()
    np.fill_diagonal(values, np.nan)
    if np.isnan(values).all():
        return "No two slots to compare"
    i, j = np.unravel_index(np.nanargmax(values), values.shape)
    best = values[i, j]
    first, second = cosine.index[min(i, j)], cosine.index[max(i, j)]
    if best > 0.9999:
        return f"Slots {first} and {second} point the same way"
    return f"Slots {first} and {second} are the most alike (cosine {best:.2f})"


def _log_axis(ax: Axes, values: pd.Series) -> None:
    """A log y axis with plain numbers; single steps between decades are named when the range is short."""
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return  # nothing that a log axis could show
    low, high = values.min(), values.max()
    ax.set_yscale("log")
    ax.set_ylim(low / 1.6, high * 1.6)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    if high / low < 20:
        ax.yaxis.set_minor_formatter(FuncFormatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in "25" else ""))
    else:
        ax.yaxis.set_minor_formatter(NullFormatter())


def _positive(values):
    """Values that a log axis can show; NaN elsewhere."""
    return np.where(np.asarray(values) > 0, values, np.nan)


def _short(value: float) -> str:
    """Three digits: 1.04, 37.2, 168, 12,300."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _shortened(name: str, most: int = 60) -> str:
    return name if len(name) <= most else "…" + name[-most:]
