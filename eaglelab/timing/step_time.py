"""How long a pass takes, fitted to what was measured, so that settings nobody ran can be weighed.

    t(batch, setting) = base + per_request * batch + per_token * batch * verified + per_step * steps + per_cycle   (the last two: 0 when off)

in milliseconds, every coefficient 0 or more, squares of relative errors least. Rows without speculation count (one verified token, no steps);
of a mixture of experts the expected distinct experts of batch * verified tokens stand in place of the tokens. Tables have 3 to 15 rows, which
seldom determine all five: what they leave open is a range of times here, the smallest and largest of all fits that are equally good, and never
one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eaglelab.timing.cost import cost_rows, median_run
from eaglelab.timing.errors import TimingError
from eaglelab.timing.experts import Experts
from eaglelab.timing.intervals import Interval
from eaglelab.timing.measured import Measured, MeasuredTable
from eaglelab.timing.setting import Setting

if TYPE_CHECKING:
    import numpy as np

TERMS = ("base", "per_request", "per_token", "per_step", "per_cycle")
DRAWS = 1000
EQUAL = 1e-9
"""Sums of squared relative errors within which two fits are equally good."""
SAME = 1e-6
"""Relative width below which a range of times is one time."""


@dataclass(frozen=True)
class Collectives:
    """Milliseconds of a pass that go into collectives: measured in a trace, or a latency times their number. They are taken out before the fit
    and put back after it: more tokens do not make them longer while they are bound by latency."""

    verify_ms: float
    decode_ms: float
    """Of a pass without speculation."""

    @classmethod
    def of_latency(cls, latency_us: float, layers: int, per_layer: int = 2) -> Collectives:
        """The same all-reduces in both passes: two a layer under tensor parallelism, one behind attention, one behind the MLP."""
        ms = latency_us * layers * per_layer / 1000
        return cls(ms, ms)

    def of(self, setting: Setting) -> float:
        return self.decode_ms if setting.off else self.verify_ms


@dataclass(frozen=True)
class Term:
    """One coefficient in milliseconds."""

    name: str
    ms: float | None
    """None where the rows do not determine it."""
    interval: Interval | None
    """95 %; None where undetermined, or where as few rows as coefficients leave no error to see."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "ms": self.ms, "interval": self.interval}


@dataclass(frozen=True)
class PassTime:
    """Milliseconds of a pass, as far as they are known."""

    low_ms: float
    high_ms: float
    """Equal where the source determines the time; else bounds."""
    draws: np.ndarray | None = field(default=None, repr=False)
    """[D, 2]: what another set of rows like these, and one more run, might have given: the two bounds of each draw. None: error not known."""

    @property
    def ms(self) -> float | None:
        return (self.low_ms + self.high_ms) / 2 if self.determined else None

    @property
    def determined(self) -> bool:
        return self.high_ms - self.low_ms <= SAME * self.high_ms

    @property
    def interval(self) -> Interval | None:
        """95 % of the draws, bounds included."""
        if self.draws is None:
            return None
        import numpy as np

        return float(np.quantile(self.draws[:, 0], 0.025)), float(np.quantile(self.draws[:, 1], 0.975))


@dataclass(frozen=True)
class StepTime:
    """A fitted model of one group's passes (`fit`)."""

    group: str
    rows: tuple[Measured, ...]
    """Medians of repeats that were fitted, baselines included."""
    coefficients: np.ndarray = field(repr=False)
    """[F, 1 + D, P] milliseconds: every fit by a subset of the terms, of the rows (draw 0) and of D resampled ones."""
    best: np.ndarray = field(repr=False)
    """[F, 1 + D]: which of them fit as well as any."""
    scale: np.ndarray = field(repr=False)
    """[D] the relative error that each draw was made with."""
    told: tuple[bool, ...]
    """[P]: terms that occur in any row."""
    error: float | None
    """Relative standard deviation of the rows about the fit; None without a row to spare."""
    spare: int
    """Rows beyond what the terms need."""
    experts: Experts | None = None
    collectives: Collectives | None = None

    @property
    def ms_told(self) -> bool:
        """False: the table names no batch size; ratios of times hold, milliseconds do not."""
        return all(m.batch_told for m in self.rows)

    @property
    def terms(self) -> tuple[Term, ...]:
        import numpy as np

        found = []
        for p, name in enumerate(TERMS):
            name = "per_expert" if name == "per_token" and self.experts else name
            time = self._range(np.eye(len(TERMS))[p]) if self.told[p] else None
            if time is None or time[1][0] - time[0][0] > SAME * max(1.0, time[1][0]):
                found.append(Term(name, None, None))
                continue
            low, high = time
            interval = None if self.error is None else (float(np.quantile(low[1:], 0.025)), float(np.quantile(high[1:], 0.975)))
            found.append(Term(name, float((low[0] + high[0]) / 2), interval))
        return tuple(found)

    def predict(self, batch: int, setting: Setting) -> PassTime | None:
        """The time of a pass; None beyond what was measured, where a straight line is a guess: speculated settings at batch sizes outside those
        of the speculated rows, more steps than theirs, more tokens a pass than any row's."""
        speculated = [m for m in self.rows if not m.setting.off]
        batches = [m.batch for m in (self.rows if setting.off else speculated)]
        if not batches or not min(batches) <= batch <= max(batches):
            return None
        if batch * setting.verified > max(m.batch * m.setting.verified for m in self.rows):
            return None
        if not setting.off and setting.steps > max(m.setting.steps for m in speculated):
            return None
        return self.extrapolate(batch, setting)

    def extrapolate(self, batch: int, setting: Setting) -> PassTime | None:
        """The same, however far away; None where a term that it needs occurs in no row (a step, in a table of baselines)."""
        import numpy as np

        wanted = features(batch, setting, self.experts)
        if any(w > 0 and not told for w, told in zip(wanted, self.told, strict=True)):
            return None
        low, high = self._range(np.array(wanted))
        fixed = self.collectives.of(setting) if self.collectives else 0.0
        draws = None
        if self.error is not None:
            draws = np.stack([low[1:], high[1:]], axis=1) * self._one_more(batch, setting)[:, None] + fixed
        return PassTime(float(low[0]) + fixed, float(high[0]) + fixed, draws)

    def _one_more(self, batch: int, setting: Setting) -> np.ndarray:
        """[D] factors that one more run of this setting scatters by, in each draw."""
        import numpy as np

        generator = np.random.default_rng((7, batch, setting.steps, setting.topk, setting.draft_tokens))
        return np.maximum(0.05, 1 + generator.normal(size=len(self.scale)) * self.scale)

    def _range(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[1 + D] smallest and largest over all fits that are as good as any."""
        import numpy as np

        times = self.coefficients @ wanted
        return np.where(self.best, times, np.inf).min(axis=0), np.where(self.best, times, -np.inf).max(axis=0)

    @property
    def assumption(self) -> str:
        """What a prediction rests on, as a sentence."""
        scatter = (
            f"from which it is off by {self.error:.0%}"
            if self.error is not None
            else "no more than there are terms to find, so that its error is not known"
        )
        feature = "tokens" if self.experts is None else "expected distinct experts (an upper bound: real routing is correlated)"
        return f"pass times of settings that were not run are fitted to {len(self.rows)} rows by batch, verified {feature} and steps, {scatter}"

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "rows": len(self.rows),
            "spare_rows": self.spare,
            "feature": "tokens" if self.experts is None else f"distinct experts of {self.experts.total}, {self.experts.per_token} a token",
            "terms": [t.to_json() for t in self.terms] if self.ms_told else [],
            "relative_error": self.error,
            "collectives_ms": None if self.collectives is None else [self.collectives.decode_ms, self.collectives.verify_ms],
        }


def features(batch: int, setting: Setting, experts: Experts | None = None) -> tuple[float, ...]:
    """What each of `TERMS` counts with."""
    tokens = batch * setting.verified
    return (1.0, float(batch), float(tokens) if experts is None else experts.distinct(tokens), float(setting.steps), float(not setting.off))


def groups(table: MeasuredTable) -> dict[str, dict[str, str]]:
    """Speculated groups of a table: name -> place."""
    return {m.group: m.place for m in table.rows if not m.setting.off}


def rows_to_fit(table: MeasuredTable, place: Mapping[str, str]) -> tuple[Measured, ...]:
    """Medians of a group's settings whose pass time is known, with the baselines of every batch size."""
    runs: dict[tuple[int, Setting], list[Measured]] = {}
    for m in table.rows:
        if not m.setting.off and m.place == place and m.accept_length is not None:
            runs.setdefault((m.batch, m.setting), []).append(m)
    for batch in table.batches:
        baselines = table.baselines(batch, place)
        if baselines:
            runs[batch, Setting(0)] = list(baselines)
    return tuple(median_run(found) for _, found in sorted(runs.items(), key=lambda item: item[0]))


def fit(
    table: MeasuredTable,
    group: str | None = None,
    *,
    experts: Experts | None = None,
    collectives: Collectives | None = None,
    seed: int = 0,
) -> StepTime | None:
    """The model of one group (None: the only one). None where fewer than two rows tell a pass time. Raises TimingError for a group that is not
    there, several where none is named, and collectives that take longer than a pass did."""
    found = groups(table)
    if group is None and len(found) > 1:
        raise TimingError(f"the table holds {len(found)} groups ({'; '.join(found)}): say which one to fit")
    if group is not None and group not in found:
        raise TimingError(f"no group {group!r} in the table, expected one of {', '.join(map(repr, found))}")
    if not found:
        return None
    name = next(iter(found)) if group is None else group
    rows = rows_to_fit(table, found[name])
    return _fit(name, rows, experts, collectives, seed) if len(rows) > 1 else None


def _fit(
    name: str, rows: Sequence[Measured], experts: Experts | None, collectives: Collectives | None, seed: int, draws: int = DRAWS
) -> StepTime:
    """Non-negative least squares by trying every subset of the terms, for all draws at once: five terms have 31."""
    import numpy as np

    times = np.array([time_ms(m) - (collectives.of(m.setting) if collectives else 0.0) for m in rows])  # [n]
    for m, time in zip(rows, times, strict=True):
        if time <= 0:
            raise TimingError(f"{m.source}: collectives of {collectives.of(m.setting):g} ms leave nothing of a pass of {time_ms(m):.3g} ms")
    design = np.array([features(m.batch, m.setting, experts) for m in rows]) / times[:, None]  # [n, P]; the aim is 1 in every row
    told = design.any(axis=0)
    rank = int(np.linalg.matrix_rank(design / np.where(told, np.abs(design).max(axis=0), 1.0)))
    spare = len(rows) - rank
    subsets = [s for k in range(1, rank + 1) for s in itertools.combinations(np.flatnonzero(told), k)]
    subsets = [s for s in subsets if _independent(design[:, s])]
    aims = np.ones((len(rows), 1))
    coefficients, best, errors = _solve(design, aims, subsets)
    squares = errors[best[:, 0], 0].min()
    error = math.sqrt(squares / spare) if spare > 0 else None
    scale = np.zeros(0)
    if error is not None:
        generator = np.random.default_rng(seed)
        fitted = design @ coefficients[np.flatnonzero(best[:, 0])[0], 0]  # [n], the same for every best fit
        scale = np.sqrt(squares / generator.chisquare(spare, size=draws))  # what the error itself may be, from so few rows
        aims = np.concatenate([aims, fitted[:, None] + scale * generator.normal(size=(len(rows), draws))], axis=1)
        coefficients, best, _ = _solve(design, aims, subsets)
    return StepTime(name, tuple(rows), coefficients, best, scale, tuple(bool(t) for t in told), error, spare, experts, collectives)


def time_ms(row: Measured) -> float:
    """Of a pass; where the batch size is not told, of one that is written as 1."""
    return 1000 * row.batch * (1.0 if row.setting.off else row.accept_length) / row.tok_s


def _independent(columns: np.ndarray) -> bool:
    import numpy as np

    return np.linalg.matrix_rank(columns / np.abs(columns).max(axis=0)) == columns.shape[1]


def _solve(design: np.ndarray, aims: np.ndarray, subsets: Sequence[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(coefficients [F, A, P], best [F, A], squared errors [F, A]) of aims [n, A]: a subset's fit counts where no coefficient is negative.
    The best ones are the corners of the set of all best fits."""
    import numpy as np

    coefficients = np.zeros((len(subsets), aims.shape[1], design.shape[1]))
    errors = np.full((len(subsets), aims.shape[1]), np.inf)
    for f, subset in enumerate(subsets):
        columns = design[:, subset]
        scale = np.abs(columns).max(axis=0)
        found = np.linalg.lstsq(columns / scale, aims, rcond=None)[0] / scale[:, None]  # [k, A]
        good = (found >= -1e-12).all(axis=0)
        coefficients[f][:, subset] = np.maximum(found, 0).T
        errors[f] = np.where(good, ((columns @ found - aims) ** 2).sum(axis=0), np.inf)
    return coefficients, errors <= errors.min(axis=0) + EQUAL, errors


@dataclass(frozen=True)
class Missed:
    """One row as told by the others."""

    measured: Measured
    r: float
    model: float | None
    """r by the model without this row; None where the others leave it open."""
    constant: float
    """Geometric mean of r over the other rows."""


@dataclass(frozen=True)
class LeaveOneOut:
    """Each speculated row told by all others: by the model, and by one r for all settings. Relative errors of r, which are those of the pass time
    as long as the baseline of the batch size is known."""

    rows: tuple[Missed, ...]
    feature: str
    equal_tokens: float | None
    """Largest relative difference in r between rows of one batch size that verify equally many tokens: what no model of tokens can tell."""

    def errors(self, which: str) -> list[float]:
        """`model` or `constant`, over the rows that the model tells."""
        return [abs(getattr(m, which) / m.r - 1) for m in self.rows if m.model is not None]

    @property
    def better(self) -> bool | None:
        """Whether the model's mean error is smaller; None without a row to compare."""
        model, constant = self.errors("model"), self.errors("constant")
        return sum(model) < sum(constant) if model else None

    @property
    def text(self) -> str:
        """In a sentence or two."""
        model, constant = sorted(self.errors("model")), sorted(self.errors("constant"))
        if not model:
            return f"leave-one-out: the other rows determine none of the {len(self.rows)} settings, so the model's error is not known"
        nearer = sum(abs(m.model / m.r - 1) < abs(m.constant / m.r - 1) for m in self.rows if m.model is not None)
        parts = [
            f"{name} is off by {sum(e) / len(e):.0%} on average, {e[-1]:.0%} at most"
            for name, e in (("the model", model), ("one r for all settings", constant))
        ]
        verdict = "" if self.better else ": the model is not better here"
        return (
            f"leave-one-out (r of each row told from the others), {len(model)} of {len(self.rows)} rows: {parts[0]}; {parts[1]} (the model is nearer "
            f"in {nearer}){verdict}"
        )

    def to_json(self) -> dict[str, Any]:
        import statistics

        def summary(errors: list[float]) -> dict[str, float] | None:
            return {"mean": statistics.fmean(errors), "median": statistics.median(errors), "max": max(errors)} if errors else None

        rows = [
            {"batch": m.measured.batch, "name": m.measured.setting.name, "r": m.r, "model": m.model, "constant": m.constant}
            for m in self.rows
        ]
        told = {"n": len(self.errors("model")), "model": summary(self.errors("model")), "constant": summary(self.errors("constant"))}
        return {"feature": self.feature, **told, "better": self.better, "equal_tokens": self.equal_tokens, "text": self.text, "rows": rows}


def leave_one_out(
    table: MeasuredTable, group: str | None = None, *, experts: Experts | None = None, collectives: Collectives | None = None
) -> LeaveOneOut:
    """Over the rows of one group (None: the only one) that have an r, the outermost included, which the others only reach by extrapolation; at
    least two are needed, else it holds no rows. Raises TimingError as `fit`."""
    found = groups(table)
    if group is None and len(found) > 1:
        raise TimingError(f"the table holds {len(found)} groups ({'; '.join(found)}): say which one")
    name = next(iter(found), "") if group is None else group
    costs = [c for c in cost_rows(table) if c.measured.group == name and c.r is not None]
    rows = rows_to_fit(table, found[name]) if found else ()
    missed = []
    for cost in costs if len(costs) > 1 else []:
        m = cost.measured
        others = [o for o in rows if (o.batch, o.setting) != (m.batch, m.setting)]
        time = _fit(name, others, experts, collectives, 0, draws=1).extrapolate(m.batch, m.setting) if len(others) > 1 else None
        baseline_ms = 1000 * m.batch / cost.baseline_tok_s
        constant = math.exp(sum(math.log(c.r) for c in costs if c is not cost) / (len(costs) - 1))
        missed.append(Missed(m, cost.r, time.ms / baseline_ms if time is not None and time.ms is not None else None, constant))
    return LeaveOneOut(tuple(missed), "tokens" if experts is None else "experts", _equal_tokens(missed))


def _equal_tokens(rows: Sequence[Missed]) -> float | None:
    by: dict[tuple[int, int], list[float]] = {}
    for m in rows:
        by.setdefault((m.measured.batch, m.measured.setting.verified), []).append(m.r)
    return max((max(r) / min(r) - 1 for r in by.values() if len(r) > 1), default=None)
