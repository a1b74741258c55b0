"""Where the cost playground begins: the three numbers of a setting, measured or predicted, and how well they are known."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from eaglelab.investigation import NotGiven
from eaglelab.timing.predict import MEASURED, PREDICTED
from eaglelab.timing.setting import Setting

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation
    from eaglelab.timing.acceptance import Expected
    from eaglelab.timing.cost import CostRow
    from eaglelab.timing.measured import MeasuredTable
    from eaglelab.timing.predict import Acceptance

STORY = (54.8, 1.8, 90.0)
"""tok/s, accept length and baseline of one team's run, to begin with where nothing was measured."""
DIGITS = 6
"""Of numbers that go into a field."""


@dataclass(frozen=True)
class Start:
    """What is known of one setting at one batch size; None: not known."""

    tok_s: float | None = None
    accept_length: float | None = None
    """Tokens per verify pass, the bonus token included, at which `tok_s` is reached."""
    baseline: float | None = None
    source: str = ""
    """`measured` or `predicted`, of `tok_s`; "" where it is neither."""
    baseline_source: str = ""
    runs: int = 0


class Known:
    """The measured table of a case, its fit, and the replay's accept lengths."""

    def __init__(self, inv: Investigation) -> None:
        self.inv = inv

    @cached_property
    def table(self) -> MeasuredTable | None:
        try:
            return self.inv.timing.measured
        except (NotGiven, ValueError):
            return None

    @property
    def absent(self) -> NotGiven | ValueError | None:
        """Why there is no table."""
        try:
            self.inv.timing.measured  # noqa: B018 - raises
        except (NotGiven, ValueError) as reason:
            return reason
        return None

    @property
    def rows(self) -> tuple[CostRow, ...]:
        return self.inv.timing.rows if self.table is not None else ()

    @cached_property
    def groups(self) -> dict[str, dict[str, str]]:
        from eaglelab.timing.step_time import groups

        return groups(self.table) if self.table is not None else {}

    @cached_property
    def lengths(self) -> dict[int, Expected]:
        """Steps -> the replay's accept length of a chain; {} where the drafter cannot be replayed."""
        from eaglelab.timing.acceptance import DEEPEST

        try:
            told = {k: self.inv.timing.acceptance(Setting(k)) for k in range(1, DEEPEST + 1)}
        except (NotGiven, ValueError):
            return {}
        return {k: expected for k, expected in told.items() if expected is not None}

    def replayed(self, setting: Setting) -> Expected | None:
        return self.lengths.get(setting.steps) if setting.chain else None

    def row(self, batch: int, setting: Setting, group: str) -> CostRow | None:
        return next((c for c in self.rows if (c.measured.batch, c.measured.setting, c.measured.group) == (batch, setting, group)), None)

    def start(self, batch: int, setting: Setting, group: str = "") -> Start:
        """As measured; where that setting did not run there, by the fit and the replay."""
        if self.table is None:
            return Start()
        row, (baseline, source) = self.row(batch, setting, group), self._baseline(batch, group)
        if row is not None:
            return Start(_short(row.measured.tok_s), row.measured.accept_length, baseline, MEASURED, source, row.runs)
        expected = self.replayed(setting) or self._between(group)(setting)
        time = self._pass_ms(batch, setting, group)
        if expected is None or time is None:
            return Start(baseline=baseline, baseline_source=source)
        length = _short(expected.accept_length)
        return Start(_short(1000 * batch * length / time), length, baseline, PREDICTED, source)

    def _baseline(self, batch: int, group: str) -> tuple[float | None, str]:
        there = [m.tok_s for m in self.table.baselines(batch, self.groups.get(group))]
        if there:
            return _short(statistics.median(there)), MEASURED
        time = self._pass_ms(batch, Setting(0), group)
        return (None, "") if time is None else (_short(1000 * batch / time), PREDICTED)

    def _pass_ms(self, batch: int, setting: Setting, group: str) -> float | None:
        """By the fit; None where it does not tell one time."""
        model = next((f for f in self.inv.timing.cost.fits if f.group == group), None)
        time = None if model is None or not model.ms_told else model.predict(batch, setting)
        return None if time is None else time.ms

    def _between(self, group: str) -> Acceptance:
        from eaglelab.timing.cost import possible
        from eaglelab.timing.predict import measured_acceptance

        return measured_acceptance(possible(self.table), group)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
