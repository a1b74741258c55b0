"""The parts of a cycle, as a trace, timers or a bench tell them: verify by tokens, a draft pass, the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eaglelab.timing.errors import TimingError
from eaglelab.timing.phases import COLUMNS, Phase
from eaglelab.timing.setting import Setting
from eaglelab.timing.step_time import PassTime

if TYPE_CHECKING:
    from eaglelab.timing.trace import TraceReport


@dataclass(frozen=True)
class PartTimes:
    """t(setting) = draft_pass_ms * (steps - 1) + verify(draft tokens) + rest_ms, at one batch size.

    Both engines draft their first token in the pass over what was accepted (SGLang's draft extend, vLLM's first pass), which belongs to the rest:
    a chain of K steps has K - 1 draft passes.
    """

    batch: int
    verify: Mapping[int, float]
    """Tokens a request in a pass of the target -> milliseconds; 1 is a plain decode step."""
    draft_pass_ms: float | None
    """None where only one step was drafted."""
    rest_ms: float
    """Draft extend, sampling, gaps, whatever else a cycle has."""

    def __post_init__(self) -> None:
        numbers = [*self.verify.values(), self.rest_ms, *([] if self.draft_pass_ms is None else [self.draft_pass_ms])]
        if not self.verify or not all(0 <= n < 1e9 for n in numbers) or min(self.verify.values()) <= 0 or min(self.verify) < 1:
            raise TimingError(
                f"parts of a cycle at batch {self.batch}: verify {dict(self.verify)}, draft {self.draft_pass_ms}, rest {self.rest_ms}; expected "
                "milliseconds of 0 or more, and verify above 0 for one number of tokens or more"
            )

    @property
    def assumption(self) -> str:
        return (
            f"a pass takes its draft passes, verify and a rest of {self.rest_ms:.3g} ms that is the same for all settings; verify between "
            f"{', '.join(map(str, sorted(self.verify)))} tokens on a straight line"
        )

    def verify_ms(self, tokens: int) -> float | None:
        """Measured, or on the line between the two measured next to it; None outside."""
        if tokens in self.verify:
            return self.verify[tokens]
        below, above = [n for n in self.verify if n < tokens], [n for n in self.verify if n > tokens]
        if not below or not above:
            return None
        n0, n1 = max(below), min(above)
        return self.verify[n0] + (self.verify[n1] - self.verify[n0]) * (tokens - n0) / (n1 - n0)

    def predict(self, batch: int, setting: Setting) -> PassTime | None:
        """None at another batch size, and for what was not measured."""
        verify = self.verify_ms(setting.verified) if batch == self.batch else None
        if verify is None:
            return None
        if setting.off:
            return PassTime(verify, verify)
        if setting.steps > 1 and self.draft_pass_ms is None:
            return None
        total = verify + (setting.steps - 1) * (self.draft_pass_ms or 0.0) + self.rest_ms
        return PassTime(total, total)


def parts_of_trace(report: TraceReport, batch: int, setting: Setting) -> PartTimes:
    """Of the cycles of one batch size, which ran `setting`; with the decode step where the trace holds steps without speculation at that batch.
    Collectives that nothing hides are part of the rest: as long as they are bound by latency, more tokens do not make them longer.

    Raises TimingError where the trace has no such cycle, or no verify in them.
    """
    by = report.by_batch()
    row = by[by["batch"] == batch]
    if not len(row) or setting.off:
        there = ", ".join(f"{b}" for b in by["batch"]) or "none"
        raise TimingError(f"no speculative cycle at batch {batch} in this trace, expected one of the batch sizes that it holds: {there}")
    phase = {p: float(row.iloc[0][COLUMNS[p]]) for p in (Phase.VERIFY, Phase.DRAFT)}
    if not phase[Phase.VERIFY] > 0:
        raise TimingError(f"the cycles at batch {batch} in this trace show no time in verify: its spans are not told apart")
    verify = {setting.verified: phase[Phase.VERIFY]}
    outside = report.outside
    decode = outside[(outside["kind"] == "decode") & (outside["batch"] == batch)]
    if len(decode):
        verify[1] = float(decode.iloc[0]["median_ms"])
    rest = max(0.0, float(row.iloc[0]["wall_ms"]) - sum(phase.values()))
    return PartTimes(batch, verify, phase[Phase.DRAFT] / (setting.steps - 1) if setting.steps > 1 else None, rest)
