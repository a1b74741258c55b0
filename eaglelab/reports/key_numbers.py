"""The few numbers that a run is known by, out of its findings: for `report.md`, comparisons and headlines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eaglelab.findings import Finding


@dataclass(frozen=True)
class KeyNumber:
    """One number, and where it stands among the findings."""

    name: str
    value: float
    finding: str
    interval: tuple[float, float] | None = None
    share: bool = False
    """Shown in per cent."""

    @property
    def value_shown(self) -> str:
        return _text(self.value, self.share)

    @property
    def shown(self) -> str:
        """With its interval, where it has one."""
        between = f" ({_text(self.interval[0], self.share)} to {_text(self.interval[1], self.share)})" if self.interval else ""
        return self.value_shown + between


# (name, finding, way to the number, way to its interval, whether it is a share)
KEYS = (
    ("accept length, served", "served.acceptance", ("accept_length",), ("interval",), False),
    ("accept length, replayed", "replay.expected", ("walk", "accept_length"), ("interval",), False),
    ("accept length, replayed over all rows", "replay.expected", ("accept_length",), (), False),
    ("step-0 acceptance, replayed", "replay.sampling", ("greedy",), (), True),
    ("share of the target's choices in the draft vocabulary", "drafter.vocabulary.coverage", ("coverage",), (), True),
    ("verify's share of a cycle", "timing.phases", ("shares", "verify"), (), True),
    ("accept length that breaks even", "cost.worth", ("rows", 0, "break_even"), (), False),
    ("speedup, measured", "cost.worth", ("rows", 0, "speedup"), ("rows", 0, "speedup_interval"), False),
)


def key_numbers(findings: Iterable[Finding]) -> dict[str, KeyNumber]:
    """Those of `KEYS` that the findings have, by name."""
    numbers, found = {f.id: f.numbers for f in findings}, {}
    for name, finding, way, between, share in KEYS:
        value, interval = _at(numbers.get(finding), way), _at(numbers.get(finding), between) if between else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            sound = isinstance(interval, list) and len(interval) == 2 and all(isinstance(v, (int, float)) for v in interval)
            found[name] = KeyNumber(name, value, finding, tuple(interval) if sound else None, share)
    return found


def _at(value: Any, way: tuple[str | int, ...]) -> Any:
    for key in way:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _text(value: float, share: bool) -> str:
    return f"{value:.1%}" if share else f"{value:.2f}"
