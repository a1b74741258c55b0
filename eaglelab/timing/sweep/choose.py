"""What the results say: each setting's gain over no speculation with its interval, and the best one at each batch size.

The gain is the ratio of the throughputs, of medians over repeats. Its interval comes from the requests, each prompt compared with itself (what
makes one text easier than the next falls out as far as both runs wrote it), and from the repeats where there are any; the wider one
counts. Neither knows how much a second start of the same server would differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eaglelab.timing.cost import CHEAPEST, CostRow, cost_rows
from eaglelab.timing.intervals import ratio_of_repeats, t95
from eaglelab.timing.measured import Measured, MeasuredTable
from eaglelab.timing.setting import Setting

OFF = Setting(0)
FEW_REQUESTS = 4
"""Below so many different prompts there is no interval."""
CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Gain:
    """One setting at one batch size."""

    batch: int
    setting: Setting
    tok_s: float
    """Median over repeats."""
    spread: tuple[float, float]
    """Least and most of the repeats."""
    repeats: int
    requests: int
    accept_length: float | None
    gain: float | None
    """tok_s over the baseline's; None without a baseline, 1 for off."""
    low: float | None = None
    """95 %; None where there are too few requests and repeats for an interval."""
    high: float | None = None
    r: float | None = None
    """Cost of a cycle in plain decode steps: the accept length at which this setting breaks even."""
    of: str = "steady"
    """`steady` or `whole`: what tok_s is of, the same for all settings of a batch size."""
    same_text: tuple[int, int] | None = None
    """Answers equal to the baseline's, of n."""

    def to_json(self) -> dict[str, Any]:
        names = ("batch", "tok_s", "repeats", "requests", "accept_length", "gain", "low", "high", "r", "of", "same_text", "spread")
        return {**{name: getattr(self, name) for name in names}, "setting": self.setting.name, **self.setting.to_json()}


@dataclass(frozen=True)
class Choice:
    """The setting to use at one batch size (and of one environment)."""

    batch: int
    variant: str
    best: str
    """A setting's name, `off` or `cannot tell`."""
    gain: Gain | None
    """Of the best; where it cannot be told, of the fastest."""
    as_good: tuple[str, ...] = ()
    """Settings that cannot be told from it, those included that were faster and are not told from off."""
    text: str = ""
    gains: tuple[Gain, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        gain = None if self.gain is None else self.gain.to_json()
        return {"batch": self.batch, "variant": self.variant, "best": self.best, "as_good": self.as_good, "text": self.text, "gain": gain}


def gains(rows: Sequence[dict[str, Any]]) -> list[Gain]:
    """Of the results of one batch size and one environment, in the order of settings."""
    by: dict[Setting, list[dict[str, Any]]] = {}
    for row in rows:
        by.setdefault(setting_of(row), []).append(row)
    of = "steady" if all(row["tok_s_of"] == "steady" for row in rows) else "whole"
    off = by.get(OFF)
    table = MeasuredTable(tuple(Measured(r["batch"], setting_of(r), r[of]["tok_s"], r["accept_length"]) for r in rows))
    costs = {c.measured.setting: c for c in cost_rows(table)}
    return [_gain(setting, by[setting], costs.get(setting), off, of) for setting in sorted(by)]


def setting_of(row: dict[str, Any]) -> Setting:
    return Setting(row["steps"], row["topk"], row["draft_tokens"])


def _gain(setting: Setting, rows: Sequence[dict[str, Any]], cost: CostRow | None, off: Sequence[dict[str, Any]] | None, of: str) -> Gain:
    """cost: of all but off."""
    told = [row["same_text"] for row in rows if row.get("same_text")]
    speeds = [row[of]["tok_s"] for row in rows]
    found = Gain(
        rows[0]["batch"],
        setting,
        statistics.median(speeds),
        (min(speeds), max(speeds)),
        len(rows),
        sum(row["requests"] for row in rows),
        None if cost is None else cost.measured.accept_length,
        1.0 if cost is None else cost.speedup,
        r=None if cost is None else cost.r,
        of=of,
        same_text=(sum(t[0] for t in told), sum(t[1] for t in told)) if told else None,
    )
    wide = interval(rows, off, of) if off and not setting.off else None
    return found if wide is None else replace(found, low=found.gain * math.exp(-wide), high=found.gain * math.exp(wide))


def interval(rows: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], of: str) -> float | None:
    """Half the 95 % interval of the logarithm of a ratio of throughputs; None where neither requests nor repeats tell."""
    wide = [w for w in (_by_request(rows, base), _by_repeat(rows, base, of)) if w is not None]
    return max(wide, default=None)


def _by_request(rows: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> float | None:
    one, other = _pulls(rows), _pulls(base)
    shared = sorted(one.keys() & other.keys())
    if len(shared) < FEW_REQUESTS:
        return None
    pulls = [one[p] - other[p] for p in shared]
    mean = sum(pulls) / len(pulls)
    return t95(len(pulls) - 1) * math.sqrt(sum((x - mean) ** 2 for x in pulls) * len(pulls) / (len(pulls) - 1))


def _pulls(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """How each prompt pulls on the logarithm of tokens / seconds, all its answers together (the linearised ratio)."""
    sums: dict[int, list[float]] = {}
    for row in rows:
        for prompt, tokens, seconds in row["by_request"]:
            if seconds > 0:
                of = sums.setdefault(prompt, [0.0, 0.0])
                of[0] += tokens
                of[1] += seconds
    tokens, seconds = (sum(of[i] for of in sums.values()) for i in (0, 1))
    return {prompt: of[0] / tokens - of[1] / seconds for prompt, of in sums.items()} if tokens else {}


def _by_repeat(rows: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], of: str) -> float | None:
    found = ratio_of_repeats(*([row[of]["tok_s"] for row in side] for side in (rows, base)))
    return None if found is None else math.log(found[1] / found[0]) / 2


def choose(rows: Sequence[dict[str, Any]], variant: str) -> list[Choice]:
    """The best setting of each batch size. rows: the results of one environment."""
    return [_choice(batch, variant, [r for r in rows if r["batch"] == batch]) for batch in sorted({r["batch"] for r in rows})]


def _choice(batch: int, variant: str, rows: Sequence[dict[str, Any]]) -> Choice:
    found = gains(rows)
    tried = [g for g in found if not g.setting.off]
    if not any(g.setting.off for g in found):
        return Choice(batch, variant, CANNOT_TELL, None, (), "off was not measured: there is nothing to compare with", tuple(found))
    if not tried:
        return Choice(batch, variant, CANNOT_TELL, None, (), "only off was measured", tuple(found))
    leader = max(tried, key=lambda g: g.gain)
    best = max((g for g in tried if g.low is not None and g.low > 1), key=lambda g: g.gain, default=leader)  # noise hides no sure gain
    by = {s: [r for r in rows if setting_of(r) == s] for s in {setting_of(r) for r in rows}}
    as_good = tuple(g.setting.name for g in tried if g is not best and not _apart(by[best.setting], by[g.setting], best, g))
    how = f"{best.setting.name}: {best.gain:.2f}x of off ({_range(best)})"
    odd = next((g for g in tried if g.r is not None and g.r < CHEAPEST), None)
    if odd is not None:
        text = (
            f"{odd.setting.name}: {odd.gain:.2f}x of off at accept length {odd.accept_length:.2f} would make a cycle cheaper than a plain step (r = {odd.r:.2f}), though it verifies at least as much: "
            "something else differs between the two runs, such as what else ran on the machine, or graphs and kernels that the engine takes for one and not for the other. "
            "See to it and sweep again into another folder"
        )
        return Choice(batch, variant, CANNOT_TELL, best, as_good, text, tuple(found))
    if best.low is not None and best.low > 1:
        text, less = how, as_good
        if best is not leader:
            above = [g for g in tried if g.gain > best.gain]
            less = tuple(name for name in as_good if name not in {g.setting.name for g in above})
            may = ", ".join(f"{g.setting.name} {g.gain:.2f}x ({_range(g)})" for g in sorted(above, key=lambda g: -g.gain))
            text += f" is faster than off; {may} may be better, which cannot be told"
        text += f"; {', '.join(less)} cannot be told from it" if less else ""
        return Choice(batch, variant, best.setting.name, best, as_good, text, tuple(found))
    if best.low is None:
        text = f"{how}, and no interval: more prompts or repeats are needed"
        return Choice(batch, variant, CANNOT_TELL, best, as_good, text, tuple(found))
    if all(g.high is not None and g.high < 1 for g in tried):
        text = f"off: no setting is as fast; the fastest, {how}"
        return Choice(batch, variant, "off", next(g for g in found if g.setting.off), (), text, tuple(found))
    text = f"{how}: whether it is faster than off cannot be told"
    return Choice(batch, variant, CANNOT_TELL, best, as_good, text, tuple(found))


def _apart(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], best: Gain, less: Gain) -> bool:
    """Whether the best is faster than another setting beyond the interval of their ratio."""
    wide = interval(one, other, best.of)
    return wide is not None and math.log(best.tok_s / less.tok_s) > wide


def _range(gain: Gain) -> str:
    return "no interval" if gain.low is None else f"{gain.low:.2f} to {gain.high:.2f}"
