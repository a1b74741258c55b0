"""E: acceptance is as it should be, and the passes are too dear."""

from __future__ import annotations

from random import Random

from faults.kinds.common import Family, between, flag
from faults.plan import Plan

KINDS = Family("E")
PAYS = "cost.worth cost.setting"
HEADER = "batch,steps,topk,draft_tokens,tok_s,accept_length"
REPEATS = 3


def measured(plan: Plan, rows: list[tuple[int, int, int, int, float, float | None]], rng: Random) -> None:
    """A table of measured runs, each three times with what runs differ by (1 %)."""
    lines = [HEADER]
    for batch, steps, topk, tokens, tok_s, length in rows:
        for _ in range(REPEATS):
            told = ("", "", "") if not steps else (topk, tokens, f"{length:.2f}")
            lines.append(f"{batch},{steps},{told[0]},{told[1]},{tok_s * (1 + rng.gauss(0, 0.01)):.2f},{told[2]}")
    plan.files["runs.csv"] = "\n".join(lines) + "\n"
    plan.sections.setdefault("timing", {})["table"] = "runs.csv"


@KINDS.kind("verify pass too dear", PAYS, source="sgl-project/SpecForge#339")
def dear_verify(plan: Plan, strength: float, rng: Random) -> None:
    """A mixture of experts with few active weights: four tokens read three to four times the experts (r = 2.59 there)."""
    length, base, r = 1.86, 222.47, between(strength, 2.1, 3.5)
    measured(plan, [(1, 0, 0, 0, base, None), (1, 3, 1, 4, base * length / r, length), (1, 1, 1, 2, base * 1.5 / (0.85 * r), 1.5)], rng)


@KINDS.kind("tree too large to pay", PAYS, source="sgl-project/sglang#14824")
def large_tree(plan: Plan, strength: float, rng: Random) -> None:
    """8-8-60: accept length 3.2, and slower than without."""
    base, r = 222.47, between(strength, 3.7, 5.0)
    flag(plan, "--speculative-num-steps", 8)
    flag(plan, "--speculative-eagle-topk", 8)
    flag(plan, "--speculative-num-draft-tokens", 60)
    plan.server = None  # what the recording holds is a chain's
    measured(plan, [(1, 0, 0, 0, base, None), (1, 3, 1, 4, base * 0.93, 1.86), (1, 8, 8, 60, base * 3.2 / r, 3.2)], rng)


@KINDS.kind("batch too large to pay", PAYS, source="SafeAILab/EAGLE#298")
def large_batch(plan: Plan, strength: float, rng: Random) -> None:
    """Twice as fast for one request, slower than without for 32."""
    loss = between(strength, 0.9, 0.6)
    rows = [(1, 0, 0, 0, 109.3, None), (1, 3, 1, 4, 214.0, 2.6), (32, 0, 0, 0, 1077.55, None), (32, 3, 1, 4, 1077.55 * loss, 2.6)]
    measured(plan, rows, rng)


@KINDS.kind("accept length below break-even", PAYS, source="sgl-project/sglang#11948")
def below_break_even(plan: Plan, strength: float, rng: Random) -> None:
    """Measured on easy text it pays; what the server reached on its own does not."""
    r = between(strength, 3.4, 3.9)
    measured(plan, [(1, 0, 0, 0, 88.8, None), (1, 3, 1, 4, 88.8 * 3.95 / r, 3.95)], rng)
