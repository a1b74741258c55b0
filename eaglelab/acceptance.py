"""Acceptance, counted first and divided last.

Words (the name is always said):

- *marginal* at step k: the drafted token of step k is right, whatever happened before (teacher-forced).
- *joint* at step k: the drafted tokens of steps 0..k are all right.
- *conditional* at step k: step k is right given that steps 0..k-1 are.
- *accept length*: tokens per verify pass, the bonus token included. Every other definition is converted by a function below.

Which reports use which, by name and version, is in `eaglelab/metrics/definitions.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FEW_SAMPLES = 5
"""Below this many samples nothing is said about the next sample: tokens of one sample are correlated."""

# Two-sided 95 % quantile of the normal distribution.
Z95 = 1.959964


@dataclass(frozen=True)
class StepCounts:
    """Outcomes of K drafted steps over many rows. All fields add up over samples (`+`)."""

    counted: tuple[int, ...]
    """K ints: rows that count at step k."""
    right: tuple[int, ...]
    """K ints: of those, rows whose drafted token is the target's."""
    out_of_vocabulary: tuple[int, ...]
    """K ints: of the counted rows, those whose target token the draft vocabulary cannot say."""
    complete: int
    """Rows that count at all K steps; joint, conditional and accept length are over these."""
    joint: tuple[int, ...]
    """K ints: of the complete rows, those right at steps 0..k."""

    def __post_init__(self) -> None:
        if len({len(self.counted), len(self.right), len(self.out_of_vocabulary), len(self.joint)}) != 1:
            raise ValueError("StepCounts needs the same number of steps in every field")

    @property
    def steps(self) -> int:
        return len(self.counted)

    def __add__(self, other: StepCounts) -> StepCounts:
        if self.steps != other.steps:
            raise ValueError(f"cannot add counts of {self.steps} and {other.steps} steps")

        def add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(x + y for x, y in zip(a, b, strict=True))

        return StepCounts(
            add(self.counted, other.counted),
            add(self.right, other.right),
            add(self.out_of_vocabulary, other.out_of_vocabulary),
            self.complete + other.complete,
            add(self.joint, other.joint),
        )

    def marginal(self, step: int) -> float | None:
        return ratio(self.right[step], self.counted[step])

    def joint_rate(self, step: int) -> float | None:
        return ratio(self.joint[step], self.complete)

    def conditional(self, step: int) -> float | None:
        return ratio(self.joint[step], self.complete if step == 0 else self.joint[step - 1])

    @property
    def accept_length(self) -> float | None:
        """1 + sum of the joint rates: the mean over all start rows, the bonus token included. Not what an engine counts: see `Walk`."""
        return accept_length_from_joint(self.joint_rate(k) for k in range(self.steps)) if self.complete else None

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [
                {
                    "step": k,
                    "n": self.counted[k],
                    "right": self.right[k],
                    "out_of_vocabulary": self.out_of_vocabulary[k],
                    "marginal": self.marginal(k),
                    "joint": self.joint_rate(k),
                    "conditional": self.conditional(k),
                }
                for k in range(self.steps)
            ],
            "complete_rows": self.complete,
            "accept_length": self.accept_length,
        }


@dataclass(frozen=True)
class Walk:
    """The path of a greedy engine through text that the target wrote: at a row, accept n drafted tokens, then jump n + 1 rows."""

    verify_steps: int
    accepted: int
    """Drafted tokens accepted, the bonus tokens not included."""

    def __add__(self, other: Walk) -> Walk:
        return Walk(self.verify_steps + other.verify_steps, self.accepted + other.accepted)

    @property
    def accept_length(self) -> float | None:
        return accept_length_from_accepted(self.accepted, self.verify_steps)

    def to_json(self) -> dict[str, Any]:
        return {"verify_steps": self.verify_steps, "accepted": self.accepted, "accept_length": self.accept_length}


def ratio(part: float, whole: float) -> float | None:
    """part / whole, None where nothing was counted."""
    return part / whole if whole else None


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, float]:
    """95 % interval of sum(parts) / sum(wholes), each sample one observation: linearised ratio, Student's t for the few samples there are.

    (0, inf) for fewer than two samples.
    """
    if len(parts) < 2 or sum(wholes) == 0:
        return 0.0, math.inf
    rate, off = _residuals(parts, wholes)
    return max(0.0, rate - _spread(off)), rate + _spread(off)


def ratios_apart(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """The difference of two ratios of sums and its 95 % interval. one, other: (part, whole) of the same samples, in the same order: what
    makes one sample easier than the next falls out of the difference. (difference, -inf, inf) for fewer than two samples."""
    (a, off_a), (b, off_b) = (_residuals(*zip(*side, strict=True)) for side in (one, other))
    if len(off_a) < 2:
        return a - b, -math.inf, math.inf
    spread = _spread([x - y for x, y in zip(off_a, off_b, strict=True)])
    return a - b, a - b - spread, a - b + spread


def _residuals(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, list[float]]:
    """The ratio of the sums, and how each sample pulls on it."""
    whole = sum(wholes)
    rate = sum(parts) / whole
    return rate, [(p - rate * w) / whole for p, w in zip(parts, wholes, strict=True)]


def _spread(pulls: Sequence[float]) -> float:
    """Half the 95 % interval of a sum of n residuals. The quantile of Student's t is Abramowitz & Stegun 26.7.5, good to 0.05 from four
    samples on."""
    n, df = len(pulls), len(pulls) - 1
    t = Z95 + (Z95**3 + Z95) / (4 * df) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * df**2)
    return t * math.sqrt(sum(x**2 for x in pulls) * n / df)


# Definitions of others, turned into accept length (tokens per verify pass, bonus included). Sources: reference in each docstring.


def accept_length_from_joint(joint: Iterable[float]) -> float:
    """1 + sum of joint (unconditional, per-position) rates: vLLM's `rate[i] = accepted_at_i / drafts`, speculators' `full_acc_k`."""
    return 1.0 + sum(joint)


def accept_length_from_conditional(conditional: Sequence[float]) -> float:
    """1 + c0 + c0 c1 + ...: the EAGLE papers' n-alpha, speculators' `cond_acc_k`. A product of marginals (SpecForge's simulated
    length, which also leaves the bonus out) is a different number."""
    total, product = 1.0, 1.0
    for rate in conditional:
        product *= rate
        total += product
    return total


def accept_length_from_accepted(accepted: int, verify_steps: int) -> float | None:
    """1 + accepted / verify steps: vLLM's mean acceptance length, SGLang's `accept len`."""
    return None if verify_steps == 0 else 1.0 + accepted / verify_steps


def accept_length_from_sglang_rate(rate: float, num_draft_tokens: int, *, since_april_2026: bool) -> float:
    """SGLang's `accept rate`. Until April 2026 it was accept length / draft tokens; since then (PR 23530) it is
    accepted / proposed = (accept length - 1) / (draft tokens - 1)."""
    if num_draft_tokens < 2:
        raise ValueError(f"num_draft_tokens counts the root and is at least 2, got {num_draft_tokens}")
    return 1.0 + rate * (num_draft_tokens - 1) if since_april_2026 else rate * num_draft_tokens


def accept_length_from_draft_rate(rate: float, steps: int) -> float:
    """vLLM's draft acceptance rate: accepted / drafted tokens, with `steps` drafted in each verify pass (num_speculative_tokens)."""
    if steps < 1:
        raise ValueError(f"steps counts the tokens drafted in a pass and is at least 1, got {steps}")
    return 1.0 + rate * steps
