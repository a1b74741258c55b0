"""The timing side of a case: phases of its trace, seconds of its timers, cost of what was measured, and the setting to use.

The checks, notebooks 06 and 07 and the CLI read from here.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation
    from eaglelab.timing.measured import MeasuredTable
    from eaglelab.timing.trace import TraceReport


class TimingCase:
    """`Investigation.timing`. Every part raises NotGiven where the case lacks its input, TimingError where it cannot be used."""

    def __init__(self, inv: Investigation) -> None:
        self.inv = inv

    @cached_property
    def trace(self) -> TraceReport:
        """`[timing] trace`."""
        raise NotImplementedError

    @cached_property
    def measured(self) -> MeasuredTable:
        """`[timing] table`."""
        raise NotImplementedError
