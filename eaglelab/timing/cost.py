"""Cost ratio, break-even accept length, speedup: the arithmetic that needs two numbers a run.

At one batch size, with `tok_s` of all requests together: one pass takes `batch * accept_length / tok_s` seconds with speculation and
`batch / baseline` without, so r = accept_length * baseline / tok_s is the cost of a cycle in plain decode steps; speedup = tok_s / baseline =
accept_length / r, and speculation breaks even where the accept length equals r.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from eaglelab.timing.errors import TimingError
from eaglelab.timing.intervals import Interval, ratio_of_repeats
from eaglelab.timing.measured import Measured, MeasuredTable
from eaglelab.timing.setting import Setting
from eaglelab.timing.tables.rows import ROUNDING

ONE_RUN = 0.05
"""By how much a single run's throughput may be off: what lies within it of another is not told from it."""
CHEAPEST = 0.9
"""A cycle verifies at least one token, which a plain step computes too: a cost below this many plain steps is of something else that differs."""
CAUSES = "a typo, swapped numbers, or a baseline of another workload, machine or engine"


@dataclass(frozen=True)
class CostRow:
    """One measured setting beside the baseline of its batch size."""

    measured: Measured
    """Of several runs the one row that stands for them: medians of throughput and accept length."""
    baseline_tok_s: float | None
    """Median of the baselines at this batch size; None where there is none."""
    r: float | None
    break_even: float | None
    """Accept length at which this setting is as fast as no speculation: r, where the pass's cost does not hang on the accept length."""
    speedup: float | None
    pass_ms: float | None
    """Milliseconds of one cycle: batch * accept_length / tok_s."""
    runs: int = 1
    baseline_runs: int = 0
    tok_s_range: Interval | None = None
    """Smallest and largest of the runs; None of a single one."""
    baseline_range: Interval | None = None
    speedup_interval: Interval | None = None
    """95 %, from the repeats of the setting, the baseline or both; None where nothing was repeated."""

    @property
    def impossible(self) -> bool:
        """A speedup above what the accept length allows in a clean comparison."""
        return self.r is not None and self.r < CHEAPEST

    def to_json(self) -> dict[str, Any]:
        m = self.measured
        return {
            "batch": m.batch if m.batch_told else None,
            **m.setting.to_json(),
            "group": m.group,
            "tok_s": m.tok_s,
            "accept_length": m.accept_length,
            "baseline_tok_s": self.baseline_tok_s,
            "r": self.r,
            "break_even": self.break_even,
            "speedup": self.speedup,
            "speedup_interval": self.speedup_interval,
            "pass_ms": self.pass_ms,
            "runs": self.runs,
            "baseline_runs": self.baseline_runs,
            "tok_s_range": self.tok_s_range,
            "baseline_range": self.baseline_range,
            "source": m.source,
        }


@dataclass(frozen=True)
class TwoNumbers:
    """What one run and its baseline tell without a table."""

    r: float
    break_even: float
    speedup: float
    pass_ms: float
    baseline_ms: float

    def to_json(self) -> dict[str, float]:
        return {
            "r": self.r,
            "break_even": self.break_even,
            "speedup": self.speedup,
            "pass_ms": self.pass_ms,
            "baseline_ms": self.baseline_ms,
        }


def cost_ratio(accept_length: float, tok_s: float, baseline_tok_s: float) -> float:
    """r = accept length * baseline / tok_s. `accept_length` with the bonus token."""
    return accept_length * baseline_tok_s / tok_s


def two_numbers(tok_s: float, accept_length: float, baseline_tok_s: float, batch: int = 1) -> TwoNumbers:
    """r, break-even and speedup of one run. accept_length with the bonus token; tok_s of all `batch` requests together. Raises TimingError."""
    for name, value in (("tok_s", tok_s), ("baseline", baseline_tok_s), ("batch", batch)):
        if not 0 < value < math.inf:
            raise TimingError(f"{name} is {value:g}, expected a number above 0")
    if not 1 <= accept_length < math.inf:
        raise TimingError(f"accept length is {accept_length:g}, expected 1 or more: tokens per verify pass, the bonus token included")
    r = cost_ratio(accept_length, tok_s, baseline_tok_s)
    return TwoNumbers(r, r, tok_s / baseline_tok_s, 1000 * batch * accept_length / tok_s, 1000 * batch / baseline_tok_s)


def conclusion(told: TwoNumbers, accept_length: float, setting: Setting | None = None) -> str:
    """Faster or slower, the accept length that it needs, and whether the setting can reach it. Raises TimingError for an accept length that the
    setting cannot give."""
    if setting is not None and setting.off:
        raise TimingError("the setting is off, expected that of the run with speculation, as in 3-1-4")
    most = None if setting is None else min(setting.steps + 1, setting.draft_tokens)
    if most is not None and accept_length > most + ROUNDING:
        raise TimingError(f"accept length {accept_length:g} cannot be: a pass of {setting.name} gives {most} tokens at most")
    if told.r < CHEAPEST:
        return f"No conclusion: {impossible_text(told.speedup, accept_length)}"
    close = 1 / (1 + ONE_RUN) < told.speedup < 1 + ONE_RUN
    head = (
        "Too close to tell on one run each" if close else "Faster than no speculation" if told.speedup > 1 else "Slower than no speculation"
    )
    need = f"{head}: at this cost it needs accept length {told.break_even:.2f} and has {accept_length:.2f}"
    if most is None:
        return f"{need}."
    return f"{need}; {setting.name} can give {most} at most{', so that it cannot win' if told.break_even > most else ''}."


def impossible_text(speedup: float, accept_length: float) -> str:
    """Why a speedup above the accept length is none."""
    return (
        f"{speedup:.2f} x at accept length {accept_length:.2f} cannot be in a clean comparison: a cycle would cost {accept_length / speedup:.2f} plain "
        f"decode steps, though it verifies at least one token; {CAUSES}"
    )


def runs_of(table: MeasuredTable) -> dict[tuple[str, int, Setting], list[Measured]]:
    """Repeats together: (group, batch, setting) -> its runs, in order of batch and setting; off included."""
    found: dict[tuple[str, int, Setting], list[Measured]] = {}
    for m in sorted(table.rows, key=lambda m: (m.group, m.batch, m.setting)):
        found.setdefault((m.group, m.batch, m.setting), []).append(m)
    return found


def median_run(runs: Sequence[Measured]) -> Measured:
    """One row for repeats: medians; the source of the first, and how many more."""
    if len(runs) == 1:
        return runs[0]
    lengths = [m.accept_length for m in runs if m.accept_length is not None]
    source = f"{runs[0].source} and {len(runs) - 1} more"
    length = statistics.median(lengths) if lengths else None
    return replace(runs[0], tok_s=statistics.median(m.tok_s for m in runs), accept_length=length, source=source)


def cost_rows(table: MeasuredTable) -> tuple[CostRow, ...]:
    """One row a group, batch size and speculated setting. Baselines of other batch sizes are never put in place of a missing one."""
    return tuple(
        _row(runs, table.baselines(batch, runs[0].place)) for (_, batch, setting), runs in runs_of(table).items() if not setting.off
    )


def possible(table: MeasuredTable) -> MeasuredTable:
    """The table without the runs of settings that are impossible (`CostRow.impossible`)."""
    wrong = {(c.measured.group, c.measured.batch, c.measured.setting) for c in cost_rows(table) if c.impossible}
    return (
        replace(table, rows=tuple(m for m in table.rows if m.setting.off or (m.group, m.batch, m.setting) not in wrong)) if wrong else table
    )


def _row(runs: Sequence[Measured], baselines: Sequence[Measured]) -> CostRow:
    middle = median_run(runs)
    own, base = [m.tok_s for m in runs], [m.tok_s for m in baselines]
    baseline = statistics.median(base) if base else None
    r = None if baseline is None or middle.accept_length is None else cost_ratio(middle.accept_length, middle.tok_s, baseline)
    return CostRow(
        middle,
        baseline,
        r,
        r,
        None if baseline is None else middle.tok_s / baseline,
        middle.pass_ms,
        len(own),
        len(base),
        (min(own), max(own)) if len(own) > 1 else None,
        (min(base), max(base)) if len(base) > 1 else None,
        ratio_of_repeats(own, base) if base else None,
    )


def cost_notes(table: MeasuredTable) -> tuple[str, ...]:
    """What keeps a ratio from being told, one sentence each."""
    notes = []
    rows = cost_rows(table)
    lacking = sorted({row.measured.batch for row in rows if row.baseline_tok_s is None and row.measured.batch_told})
    if any(row.baseline_tok_s is None and not row.measured.batch_told for row in rows):
        notes.append("no row without speculation: no r, break-even or speedup")
    if lacking:
        there = [str(b) for b in table.batches if table.baselines(b) and b not in lacking]
        told = f"; baselines are there for batch {', '.join(there)} and are not carried over" if there else ""
        if any(table.baselines(b) for b in lacking):
            told += "; those of other models, machines or texts are not taken, nor of several where a row does not say which is its own"
        notes.append(f"no row without speculation at batch {', '.join(map(str, lacking))}: no r, break-even or speedup there{told}")
    silent = sum(row.measured.accept_length is None for row in rows)
    if silent:
        notes.append(
            f"{silent} of {len(rows)} settings come without a usable accept length: speedup is told for them, r and break-even are not"
        )
    if rows and not any(row.speedup_interval for row in rows):
        notes.append("every setting was run once: ratios come without an interval; three repeats of each would give one")
    for row in rows:
        if row.impossible:
            at = f"batch {row.measured.batch}, " if row.measured.batch_told else ""
            said = impossible_text(row.speedup, row.measured.accept_length)
            notes.append(f"{at}{row.measured.setting.name}: {said}; neither recommended nor fitted")
    notes += _falling(table)
    noise = sorted({d for row in table.rows if (d := row.place.get("dataset", "")).lower().startswith("random")})
    if noise:
        notes.append(
            f"the prompts of {', '.join(noise)} are random tokens: what a target makes of them is drafted worse than real text, so that the gain "
            "is understated (vllm-project/vllm#52536); measure on the prompts that are served"
        )
    if not rows:
        notes.append("the table holds no speculated setting: nothing to compare")
    return tuple(notes)


def _falling(table: MeasuredTable) -> list[str]:
    """Where all requests together get less at a larger batch size, as where the throughput is of one of them."""
    by: dict[tuple[str, Setting], list[Measured]] = {}
    for (group, _, setting), runs in runs_of(table).items():
        if runs[0].batch_told:
            by.setdefault((group, setting), []).append(median_run(runs))
    found = []
    for (_, setting), rows in by.items():
        for small, large in pairwise(rows):
            if large.tok_s * (1 + ONE_RUN) < small.tok_s:
                found.append(f"{setting.name} {small.tok_s:.4g} at batch {small.batch}, {large.tok_s:.4g} at batch {large.batch}")
    if not found:
        return []
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return [
        f"tok_s is lower at a larger batch size ({'; '.join(found[:3])}{more}): expected is the sum of all requests; is it of one request? "
        "A column tok_s_per_user is multiplied by the batch"
    ]
