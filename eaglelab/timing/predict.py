"""The speedup that a setting should give, and the setting to use at each batch size, with off among them.

speedup = accept length * time of a pass without speculation / time of a cycle. The accept length comes from the drafter's replay, from an engine's
per-position counts or from measured settings next to it; the times from a fit over measured rows (`step_time`). What was measured is taken as it is, never as the model has it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from eaglelab.acceptance import Z95, accept_length_from_joint
from eaglelab.timing.acceptance import Expected
from eaglelab.timing.cost import CHEAPEST, ONE_RUN, CostRow, cost_rows, possible
from eaglelab.timing.measured import MeasuredTable
from eaglelab.timing.setting import Setting
from eaglelab.timing.step_time import PassTime, StepTime, groups

Acceptance = Callable[[Setting], Expected | None]
MEASURED, PREDICTED = "measured", "predicted"
CLEAR, CANNOT_TELL, NO_INTERVAL = "clear", "cannot tell", "no interval"
ROUND = 1e-9
APART = 0.1
"""Difference of two accept lengths that is worth a word."""


@dataclass(frozen=True)
class Outlook:
    """What to expect of one setting at one batch size."""

    batch: int
    setting: Setting
    speedup: float | None
    """None where the rows at hand only bound it."""
    low: float | None
    high: float | None
    """95 % interval, bounds included. None: not known."""
    source: str
    """`measured` or `predicted`; of off, which is 1 by definition, `measured`."""
    accept_length: float | None = None
    assumed: tuple[str, ...] = ()
    bounds: bool = False
    """low and high bound the value as if the times were exact, since their error is not known: no interval."""

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def impossible(self) -> bool:
        """Faster than its accept length allows (r below `CHEAPEST`): never recommended."""
        told = self.speedup is not None and self.accept_length is not None and not self.setting.off
        return told and self.accept_length < CHEAPEST * self.speedup

    @property
    def short(self) -> str:
        """`3-1-4 1.21 x`."""
        return self.name if self.setting.off or self.speedup is None else f"{self.name} {self.speedup:.2f} x"

    @property
    def text(self) -> str:
        """`3-1-4 1.21 x (1.10 to 1.32)`."""
        span = f" ({'bounds ' * self.bounds}{self.low:.2f} to {self.high:.2f})" if self.low is not None and self.high is not None else ""
        return self.name if self.setting.off else f"{self.short}{span}"

    def to_json(self) -> dict[str, Any]:
        told = {"speedup": self.speedup, "low": self.low, "high": self.high, "bounds": self.bounds, "source": self.source}
        return {"batch": self.batch, **self.setting.to_json(), **told, "accept_length": self.accept_length}


@dataclass(frozen=True)
class Recommendation:
    """The best setting of one batch size, by value; whether it is really the best is in `over_off` and `over_runner_up`. Where the best value is not
    clear of off, the best of those that are comes first. A setting that nobody ran comes before one that beat off only where its whole interval is
    above it, and before off, without an interval, only by more than `ONE_RUN`. Impossible values are not weighed."""

    group: str
    batch: int
    best: Outlook
    runner_up: Outlook | None
    over_off: str
    """`clear`: the interval of the best lies above 1 (off: those of all others below). `cannot tell`: it does not. `no interval`: nothing was
    repeated and nothing predicted with an error."""
    over_runner_up: str
    outlooks: tuple[Outlook, ...]
    """All that were weighed, best first; then those that are only bounded, and impossible ones."""
    not_ruled_out: tuple[Outlook, ...]
    """Settings nobody ran that may be better than the best: those that are only bounded, those of a larger value that do not stand out from it, and,
    where off leads, those whose interval reaches 1."""
    assumptions: tuple[str, ...]
    batch_told: bool = True
    """False: the table names no batch size, `batch` is 1."""

    @property
    def gain(self) -> float:
        """Speedup of the best over off, minus 1."""
        return self.best.speedup - 1

    @property
    def too_close(self) -> bool:
        """Without an interval, and within what single runs differ by: of off, or where off leads of the next."""
        return self.over_off == NO_INTERVAL and _close(self.best, self.runner_up if self.best.setting.off else off(self.batch))

    @property
    def impossible(self) -> tuple[Outlook, ...]:
        """What ran, and cannot be."""
        return tuple(o for o in self.outlooks if o.source == MEASURED and o.impossible)

    @property
    def text(self) -> str:
        best, other = self.best, self.runner_up
        head = f"{self.group}, " if self.group else ""
        head += f"batch {self.batch}: " if self.batch_told else "the table's batch size: "
        guess = ", predicted, not run" if other is not None and PREDICTED == other.source != best.source else ""
        other_text = "" if other is None else other.text + guess
        both = other is not None and best.source == other.source == PREDICTED
        if other is None:
            text = "no setting that can be weighed beside off: cannot tell" if self.impossible else "no setting ran beside off: cannot tell"
        elif best.setting.off and self.too_close:
            text = f"off; the next best, {other_text}, is too close to tell without an interval: repeat the runs"
        elif best.setting.off:
            words = {
                CLEAR: f"off; the next best, {other_text}, is slower",
                CANNOT_TELL: f"off leads, next {other_text}, but the intervals overlap: cannot tell",
                NO_INTERVAL: f"off; the next best, {other_text}, is slower, but without an interval: repeat the runs",
            }
            text = words[self.over_off]
        elif self.over_off == CANNOT_TELL:
            text = f"cannot tell whether {best.text} beats off"
        elif self.over_off == CLEAR and other.speedup > best.speedup:
            text = f"{best.text} is faster than off; {other.short}{guess}{',' * bool(guess)} may be better, not told"
        else:
            text = best.text if self.over_off == CLEAR else f"{best.text}, without an interval"
            text += ": too close to off to tell" if self.too_close else ""
            if not other.setting.off:
                near = self.over_runner_up == NO_INTERVAL and _close(best, other)
                words = "cannot tell it from" if self.over_runner_up == CANNOT_TELL else "too close to tell from" if near else "next"
                text += f"; {words} {other_text}"
        if best.source == PREDICTED:
            text += f"; {'both ' * both}predicted, not run"
            ran = next((o for o in self.outlooks if o.source == MEASURED and not o.setting.off), None)
            text += f" (the best that ran: {ran.text})" if ran is not None else ""
        open_ = [o.text for o in self.not_ruled_out if o is not other]
        if open_:
            text += f"; not ruled out: {', '.join(open_[:3])}"
        if self.impossible:
            text += f"; not weighed, since it cannot be: {', '.join(o.short for o in self.impossible)}"
        return head + text

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "batch": self.batch if self.batch_told else None,
            "best": self.best.to_json(),
            "runner_up": None if self.runner_up is None else self.runner_up.to_json(),
            "gain": self.gain,
            "over_off": self.over_off,
            "over_runner_up": self.over_runner_up,
            "outlooks": [o.to_json() for o in self.outlooks],
            "not_ruled_out": [o.name for o in self.not_ruled_out],
            "assumptions": list(self.assumptions),
            "text": self.text,
        }


def chain_acceptance(joint: Sequence[float], passes: int | None = None, source: str = "joint rates of each step") -> Acceptance:
    """Accept lengths of chains up to K steps: 1 + sum of the first joint rates. None for more steps (nothing is extrapolated) and for trees.

    joint: [K], not increasing. passes: how many start rows or verify passes they are from, for an interval that takes them as independent. This
    mean over all start rows differs a little from a walk's accept length: the rows that a walk starts a pass at are those behind a rejected
    token. Raises ValueError for rates that cannot be.
    """
    joint = tuple(float(j) for j in joint)
    if not all(0 <= j <= 1 for j in joint) or any(b > a + ROUND for a, b in pairwise(joint)):
        raise ValueError(f"joint rates are {joint}, expected numbers from 0 to 1, none above the one before it")

    def acceptance(setting: Setting) -> Expected | None:
        if setting.off:
            return Expected(1.0, 1.0, 1.0, "one token a pass")
        if not setting.chain or setting.steps > len(joint):
            return None
        used = joint[: setting.steps]
        mean = sum(used)
        length = accept_length_from_joint(used)
        if not passes:
            return Expected(length, length, length, source)
        variance = max(0.0, sum((2 * k + 1) * j for k, j in enumerate(used)) - mean**2)  # of the accepted tokens of a pass
        spread = Z95 * math.sqrt(variance / passes)
        return Expected(length, max(1.0, length - spread), min(setting.steps + 1.0, length + spread), source)

    return acceptance


def measured_acceptance(table: MeasuredTable, group: str) -> Acceptance:
    """Accept lengths of a group's measured settings, and bounds for chains between them.

    Joint rates do not grow from step to step, so a chain's accept length is a concave function of its steps that begins with 1 at 0: between two
    measured ones it lies above their chord, below the lines through their neighbours, and below the longer one's. Beyond the longest: None.
    """
    told: dict[Setting, list[float]] = {}
    for m in table.rows:
        if m.group == group and not m.setting.off and m.accept_length is not None:
            told.setdefault(m.setting, []).append(m.accept_length)
    values = {setting: statistics.median(lengths) for setting, lengths in told.items()}
    chains = [(0, 1.0), *sorted((s.steps, v) for s, v in values.items() if s.chain)]

    def acceptance(setting: Setting) -> Expected | None:
        if setting.off:
            return Expected(1.0, 1.0, 1.0, "one token a pass")
        if setting in values:
            return Expected(values[setting], min(told[setting]), max(told[setting]), "measured with it")
        if not setting.chain or setting.steps > chains[-1][0]:
            return None
        low, high = _between(chains, setting.steps)
        return Expected((low + high) / 2, low, high, "bounds from measured chains of fewer and more steps")

    return acceptance


def _between(chains: Sequence[tuple[int, float]], steps: int) -> tuple[float, float]:
    """Bounds of a concave function between two of its points."""
    place = next(i for i, (k, _) in enumerate(chains) if k > steps)
    (k0, v0), (k1, v1) = chains[place - 1], chains[place]
    chord = v0 + (v1 - v0) * (steps - k0) / (k1 - k0)
    above = [v1]
    if place > 1:
        k, v = chains[place - 2]
        above.append(v0 + (v0 - v) / (k0 - k) * (steps - k0))
    else:
        above.append(1.0 + steps)
    if place + 1 < len(chains):
        k, v = chains[place + 1]
        above.append(v1 - (v - v1) / (k - k1) * (k1 - steps))
    return min(chord, *above), max(chord, min(above))  # noise can turn them round


def predict(
    batch: int, setting: Setting, acceptance: Acceptance, model: StepTime, baseline_ms: float | None = None, *, seed: int = 0
) -> Outlook | None:
    """Speedup of a setting over off. baseline_ms: a measured pass without speculation; else the model's. None where the accept length or a time
    is not to be had. The interval is the 2.5 to 97.5 % of draws over the model's error and the accept length's interval (taken as normal)."""
    import numpy as np

    time = model.predict(batch, setting)
    base = PassTime(baseline_ms, baseline_ms) if baseline_ms is not None else model.predict(batch, Setting(0))
    if time is None or base is None or time.low_ms <= 0 or (expected := acceptance(setting)) is None:  # in this order: a replay is dear
        return None
    length = expected.accept_length
    value = length * base.ms / time.ms if base.ms is not None and time.ms is not None else None
    low, high = expected.low * base.low_ms / time.high_ms, expected.high * base.high_ms / time.low_ms
    assumed = [f"accept length {length:.2f} of {setting.name}: {expected.source}, and the same at every batch size"]
    if expected.low == expected.high and not setting.off:
        assumed.append("the accept length comes without an interval: that of the speedup is the pass time's alone")
    draws = [t.draws for t in (time, base) if t.draws is not None]
    if draws:
        generator = np.random.default_rng((seed, batch, setting.steps))
        spread = (expected.high - expected.low) / (2 * Z95)
        lengths = np.clip(length + spread * generator.normal(size=len(draws[0])), 1.0, max(length, setting.steps + 1.0))
        times, bases = (t.draws if t.draws is not None else np.array([[t.low_ms, t.high_ms]]) for t in (time, base))
        times = np.maximum(times, 1e-3 * time.low_ms)
        low = float(np.quantile(lengths * bases[:, 0] / times[:, 1], 0.025))
        high = float(np.quantile(lengths * bases[:, 1] / times[:, 0], 0.975))
    elif value is not None and expected.low == expected.high:
        return Outlook(batch, setting, value, None, None, PREDICTED, length, tuple(assumed))
    return Outlook(batch, setting, value, low, high, PREDICTED, length, tuple(assumed), bounds=not draws)


def off(batch: int) -> Outlook:
    return Outlook(batch, Setting(0), 1.0, 1.0, 1.0, MEASURED, 1.0)


def measured_outlook(row: CostRow) -> Outlook | None:
    """Of a measured setting; None without a baseline at its batch size."""
    if row.speedup is None:
        return None
    low, high = row.speedup_interval or (None, None)
    return Outlook(row.measured.batch, row.measured.setting, row.speedup, low, high, MEASURED, row.measured.accept_length)


def recommend(
    table: MeasuredTable,
    model: StepTime | None = None,
    acceptance: Acceptance | None = None,
    *,
    group: str | None = None,
    settings: Iterable[Setting] = (),
    batches: Iterable[int] | None = None,
    deepest: int = 8,
) -> tuple[Recommendation, ...]:
    """One a batch size of the table, or of `batches`.

    Measured settings count as measured. With a model, settings nobody ran are weighed too: `settings`, and chains of up to `deepest` steps, where
    `acceptance` (None: `measured_acceptance`) and the model tell them. A batch size without a baseline is left out unless the model tells a speedup.
    """
    names = groups(table)
    group = next(iter(names), "") if group is None else group
    place = names.get(group, {})
    costs = [c for c in cost_rows(table) if c.measured.group == group]
    acceptance = measured_acceptance(possible(table), group) if acceptance is None else acceptance
    wanted = sorted({*settings, *(Setting(k) for k in range(1, deepest + 1))}) if model is not None else []
    found = []
    for batch in sorted(set(table.batches if batches is None else batches)):
        here = [c for c in costs if c.measured.batch == batch]
        own = [o for c in here if (o := measured_outlook(c)) is not None]
        there = table.baselines(batch, place)
        baseline_ms = 1000 * batch / statistics.median(m.tok_s for m in there) if there else None
        ran = {c.measured.setting for c in here}
        guessed = [predict(batch, s, acceptance, model, baseline_ms) for s in wanted if s not in ran and not s.off]
        outlooks = [off(batch), *own, *(g for g in guessed if g is not None)]
        if any(o.speedup is not None for o in outlooks[1:]) or (there and len(outlooks) > 1):
            chosen = _choose(group, batch, outlooks, model)
            if any(g is not None for g in guessed):
                chosen = replace(chosen, assumptions=(*chosen.assumptions, *_doubts(own, acceptance)))
            told = all(m.batch_told for m in table.rows if m.batch == batch)
            found.append(chosen if told else replace(chosen, batch_told=False))
    return tuple(found)


def _doubts(own: Iterable[Outlook], acceptance: Acceptance) -> Iterable[str]:
    """Where the source of accept lengths expects something else of a chain than was measured with it: predictions stand on the one, measured
    speedups on the other."""
    for o in own:
        expected = acceptance(o.setting) if o.setting.chain and o.accept_length is not None else None
        if expected is not None and abs(expected.accept_length - o.accept_length) > APART:
            yield (
                f"{o.name} was served at accept length {o.accept_length:.2f}, where {expected.accept_length:.2f} is expected by {expected.source}: "
                "predicted settings may be as far off"
            )


def _choose(group: str, batch: int, outlooks: Sequence[Outlook], model: StepTime | None) -> Recommendation:
    ranked = sorted((o for o in outlooks if o.speedup is not None and not o.impossible), key=lambda o: -o.speedup)
    bounded = [o for o in outlooks if o.speedup is None]
    impossible = [o for o in outlooks if o.impossible]
    plain = next(o for o in ranked if o.setting.off)
    faster = [o for o in ranked if not o.setting.off and o.speedup > 1]
    ran = next((o for o in faster if o.source == MEASURED), None)
    sure = [o for o in faster if compare(o, plain) == CLEAR and (o.source == MEASURED or ran is None or _stands_out(o, ran))]
    best = _leader(sure) or _leader(faster) or plain
    if best.source == PREDICTED and compare(best, plain) == NO_INTERVAL and _close(best, plain):
        best = plain
    ranked.remove(best)
    near = [o for o in ranked if best.setting.off and o.speedup > 1]  # predictions that off is not told from
    ranked = [best, *(o for o in ranked if o not in near), *near]
    runner_up = ranked[1] if len(ranked) > 1 else None
    others = [o for o in ranked[1:] if o not in near] if best.setting.off else [plain]
    against = {compare(best, o) for o in others} or {NO_INTERVAL if near else CANNOT_TELL}
    over_off = next((word for word in (CANNOT_TELL, NO_INTERVAL) if word in against), CLEAR)
    over_next = compare(best, runner_up) if runner_up is not None else CLEAR
    guessed = [o for o in ranked[1:] if o.source == PREDICTED and (best.setting.off or o.speedup > best.speedup)]
    open_ = tuple(sorted((o for o in (*bounded, *guessed) if _reach(o) > best.speedup), key=lambda o: -_reach(o)))
    assumed = dict.fromkeys(a for o in outlooks for a in o.assumed)
    if any(o.source == PREDICTED for o in outlooks) and model is not None:
        assumed = {model.assumption: None, **assumed}
    return Recommendation(group, batch, best, runner_up, over_off, over_next, (*ranked, *bounded, *impossible), open_, tuple(assumed))


def _leader(ranked: Sequence[Outlook]) -> Outlook | None:
    """Of outlooks in order of value the first; of one that nobody ran and that does not stand out the first that ran."""
    ran = next((o for o in ranked if o.source == MEASURED), None)
    guessed = ran is not None and ranked[0].source == PREDICTED and not _stands_out(ranked[0], ran)
    return ran if guessed else next(iter(ranked), None)


def compare(best: Outlook, other: Outlook) -> str:
    """Whether `best` is the better of two: `clear`, `cannot tell` where the intervals overlap or the other's value is larger, `no interval`."""
    if other.speedup > best.speedup:
        return CANNOT_TELL
    if None in (best.low, other.low):
        return NO_INTERVAL
    if best.low <= other.high:
        return CANNOT_TELL
    return NO_INTERVAL if best.bounds or other.bounds else CLEAR


def _close(one: Outlook, other: Outlook) -> bool:
    """Whether two values are within what single runs differ by."""
    return max(one.speedup, other.speedup) < (1 + ONE_RUN) * min(one.speedup, other.speedup)


def _reach(outlook: Outlook) -> float:
    """The most that it may be."""
    return outlook.speedup if outlook.high is None else outlook.high


def _stands_out(guessed: Outlook, ran: Outlook) -> bool:
    """Whether a setting that nobody ran is surely better than one that ran."""
    most = ran.speedup * (1 + ONE_RUN) if ran.high is None else ran.high
    return guessed.low is not None and not guessed.bounds and guessed.low > most
