"""Verify passes as an engine counted them, as counts that add up.

Every engine tells less or more: SGLang a histogram for each request, vLLM counters for each position or the accepted count of every
pass, a log line only a mean. What is not told is None here, never filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eaglelab.acceptance import accept_length_from_accepted, ratio

LARGEST = 2**53
"""Counts are below this; more is no count that an engine made."""
MOST_STEPS = 1000
"""No engine drafts more steps than this in a pass."""


def count_of(value: Any) -> int | None:
    """An integer of somebody else's JSON, 0 or more; None for anything else."""
    return value if type(value) is int and 0 <= value < LARGEST else None


def counts_of(value: Any, below: int = LARGEST) -> tuple[int, ...] | None:
    """Integers, 0 or more; None for anything else."""
    return tuple(value) if isinstance(value, list) and all(type(n) is int and 0 <= n < below for n in value) else None


FEW_PASSES = 50
"""Verify passes below which neither an accept length nor a deviation is told from another: of 50 with two tokens each, the mean is good to 0.3."""


@dataclass(frozen=True)
class ServedCounts:
    """Verify passes of one request, or of many. Adds up (`+`)."""

    verify_steps: int
    accepted: int
    """Drafted tokens accepted, the bonus tokens not included."""
    joint: tuple[int, ...] | None = None
    """K ints: passes whose drafted tokens of steps 0..k were all accepted. None where the engine does not tell."""

    def __post_init__(self) -> None:
        if self.verify_steps < 0 or self.accepted < 0 or (self.joint is not None and min(self.joint, default=0) < 0):
            raise ValueError(f"counts are 0 or more, got {self}")

    @classmethod
    def from_histogram(cls, histogram: Sequence[int], steps: int | None = None) -> ServedCounts:
        """histogram: entry i counts the passes that accepted i drafted tokens (SGLang's `spec_correct_drafts_histogram`, which grows
        only to the largest i seen). steps: K, up to which `joint` is filled with the zeros that the engine leaves out."""
        passes = sum(histogram)
        joint = [sum(histogram[k:]) for k in range(1, len(histogram))]
        joint += [0] * max(0, (steps or 0) - len(joint))
        return cls(passes, sum(i * n for i, n in enumerate(histogram)), tuple(joint))

    @classmethod
    def from_accepted(cls, accepted: Iterable[int], steps: int | None = None) -> ServedCounts:
        """accepted: the accepted drafted tokens of each verify pass (vLLM's `per_step_accepted`)."""
        accepted = list(accepted)
        histogram = [accepted.count(i) for i in range(max(accepted, default=0) + 1)]
        return cls.from_histogram(histogram, steps)

    def __add__(self, other: ServedCounts) -> ServedCounts:
        joint = None
        if self.joint is not None and other.joint is not None:
            width = max(len(self.joint), len(other.joint))
            one, two = (list(j) + [0] * (width - len(j)) for j in (self.joint, other.joint))
            joint = tuple(a + b for a, b in zip(one, two, strict=True))
        return ServedCounts(self.verify_steps + other.verify_steps, self.accepted + other.accepted, joint)

    @property
    def accept_length(self) -> float | None:
        return accept_length_from_accepted(self.accepted, self.verify_steps)

    def joint_rate(self, step: int) -> float | None:
        return None if self.joint is None or step >= len(self.joint) else ratio(self.joint[step], self.verify_steps)

    def conditional(self, step: int) -> float | None:
        if self.joint is None or step >= len(self.joint):
            return None
        return ratio(self.joint[step], self.verify_steps if step == 0 else self.joint[step - 1])

    def to_json(self) -> dict[str, Any]:
        steps = range(len(self.joint or ()))
        return {
            "verify_steps": self.verify_steps,
            "accepted": self.accepted,
            "accept_length": self.accept_length,
            "steps": [{"step": k, "joint": self.joint_rate(k), "conditional": self.conditional(k)} for k in steps],
        }
