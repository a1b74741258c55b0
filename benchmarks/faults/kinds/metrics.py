"""H and X: numbers that are other numbers than they are taken for."""

from __future__ import annotations

from random import Random

from faults.kinds.common import Family, between, decode_lines, need_sglang, noisy
from faults.kinds.cost import measured
from faults.plan import Plan

CONFUSED, UNRESOLVED = Family("H"), Family("X")


def _printed(plan: Plan, rates: list[float]) -> None:
    plan.sections["training"] = {"framework": "specforge", "version": "0.2.0"}
    plan.trainer = [
        {"step": 260, **{f"acc_{k}": rate for k, rate in enumerate(rates)}, "loss": 0.4},
        {"step": 260, "eval/per_position_acc": rates},
    ]


@CONFUSED.kind("top-k accuracy printed as accuracy", "training.metric triangle", source="NickL77/BaldEagle#17", needs="trainer")
def top_k(plan: Plan, strength: float, rng: Random) -> None:
    """Right if among the ten likeliest: it tells nothing of a chain."""
    high = between(strength, 0.93, 0.99)
    _printed(plan, [high, high - 0.01, high - 0.02])


@CONFUSED.kind("drafted tokens counted as output", "cost.worth", needs="table")
def drafted_counted(plan: Plan, strength: float, rng: Random) -> None:
    """The benchmark counts what was drafted, not what was accepted: it seems faster than the accept length allows."""
    length, over = 2.1, between(strength, 1.15, 1.9)
    measured(plan, [(1, 0, 0, 0, 88.8, None), (1, 3, 1, 4, 88.8 * length * over, length)], rng)


@CONFUSED.kind("log and counters of two runs", "served.log.counters", needs="recording")
def two_runs(plan: Plan, strength: float, rng: Random) -> None:
    """The log is of a server that ran another drafter, or a tree."""
    need_sglang(plan)
    plan.log = decode_lines(noisy([between(strength, 3.2, 3.8)] * 30, rng))


@UNRESOLVED.kind("high in training, low everywhere else", "training.metric triangle", source="sgl-project/SpecForge#455", needs="trainer")
def high_in_training(plan: Plan, strength: float, rng: Random) -> None:
    """The log is of another run than the checkpoint."""
    _printed(plan, [0.98, 0.97, 0.96])
