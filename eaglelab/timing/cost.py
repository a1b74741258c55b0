"""Cost ratio, break-even accept length, speedup: the arithmetic that needs two numbers a run.

At one batch size, with `tok_s` of all requests together: one pass takes `batch * accept_length / tok_s` seconds with speculation and
`batch / baseline` without, so r = accept_length * baseline / tok_s is the cost of a cycle in plain decode steps; speedup = tok_s / baseline =
accept_length / r, and speculation breaks even where the accept length equals r.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelab.timing.measured import Measured


@dataclass(frozen=True)
class CostRow:
    """One measured setting beside the baseline of its batch size."""

    measured: Measured
    baseline_tok_s: float | None
    """Median of the baselines at this batch size; None where there is none."""
    r: float | None
    break_even: float | None
    """Accept length at which this setting is as fast as no speculation: r, where the pass's cost does not hang on the accept length."""
    speedup: float | None
    pass_ms: float | None
    """Milliseconds of one cycle: batch * accept_length / tok_s."""


def cost_ratio(accept_length: float, tok_s: float, baseline_tok_s: float) -> float:
    """r = accept length * baseline / tok_s. `accept_length` with the bonus token."""
    return accept_length * baseline_tok_s / tok_s
