"""What the lines of a server's log tell together: graphs off at which batch, a length that never moves or falls with uptime, ranks apart.

Every function takes the table of a `ServedLog` (columns as in `LogRow`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from eaglelab.acceptance import Z95

PASSES = ("decode", "interval")
"""Events of a running server that carry an accept length: SGLang's decode lines, vLLM's interval lines."""
ENOUGH = 12
"""Lines of one start from which its first and last third are compared."""
CONSTANT = 10
"""Lines from which one and the same accept length is no chance."""
FALLS, APART = 0.05, 0.1
"""Relative differences from which a fall over time, or one between ranks, is worth a word."""


@dataclass(frozen=True)
class Change:
    """Two means of accept length and their difference."""

    name: str
    before: float
    after: float
    low: float
    """95 % interval of after - before, lines taken as independent."""
    high: float
    lines: int


def passes(table: pd.DataFrame) -> pd.DataFrame:
    """The lines that tell an accept length, in the log's order; SGLang's first of each start and rank is left out for its warm-up request."""
    lines = table[table["event"].isin(PASSES) & table["accept_length"].notna()]
    first = (lines["event"] == "decode") & ~lines.duplicated(["start", "rank"]) & lines.duplicated(["start", "rank"], keep=False)
    return lines[~first]


def graphs(table: pd.DataFrame) -> pd.DataFrame:
    """Decode lines by running requests: running, lines, off (lines whose pass was no captured graph). Empty where no line tells."""
    told = table[(table["event"] == "decode") & table["graph"].notna()]
    off = (~told["graph"].astype(bool)).astype(int)
    by = told.assign(off=off).groupby(told["running"].fillna(0).astype(int).rename("running"))
    return by.agg(lines=("off", "size"), off=("off", "sum")).reset_index()


def constant(table: pd.DataFrame) -> float | None:
    """The accept length that all of many lines print alike, above 1; None where they differ, as real ones do."""
    lengths = passes(table)["accept_length"]
    alike = len(lengths) >= CONSTANT and lengths.nunique() == 1 and lengths.iloc[0] > 1
    return float(lengths.iloc[0]) if alike else None


def trends(table: pd.DataFrame) -> list[Change]:
    """Each start of the server that has enough lines: the first third of them against the last."""
    found = []
    for start, lines in passes(table).groupby("start"):
        third = len(lines) // 3
        if len(lines) >= ENOUGH:
            found.append(_change(f"start {start}", lines["accept_length"].iloc[:third], lines["accept_length"].iloc[-third:], len(lines)))
    return found


def fell(change: Change) -> bool:
    return change.high < 0 and change.after < change.before * (1 - FALLS)


def ranks(table: pd.DataFrame) -> Change | None:
    """The ranks whose mean accept lengths lie furthest apart, where that is more than chance and worth a word."""
    lines = passes(table)
    groups = {name: g["accept_length"] for name, g in lines[lines["rank"] != ""].groupby("rank") if len(g) >= ENOUGH}
    if len(groups) < 2:
        return None
    low, high = (pick(groups, key=lambda n: groups[n].mean()) for pick in (min, max))
    change = _change(f"{high} and {low}", groups[high], groups[low], len(groups[high]) + len(groups[low]))
    return change if change.high < 0 and change.after < change.before * (1 - APART) else None


def _change(name: str, before: pd.Series, after: pd.Series, lines: int) -> Change:
    gap = float(after.mean() - before.mean())
    spread = Z95 * math.sqrt(before.var() / len(before) + after.var() / len(after))
    return Change(name, float(before.mean()), float(after.mean()), gap - spread, gap + spread, lines)
