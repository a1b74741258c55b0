"""K: positions: the drafter's reach is shorter than the text, or it turns them otherwise."""

from __future__ import annotations

from random import Random

from faults.kinds.common import Family, between, config_of, flag
from faults.plan import Plan

KINDS = Family("K")


@KINDS.kind("drafter's positions end before the context", "config.max_position_embeddings", source="vllm-project/vllm#18906")
def short(plan: Plan, strength: float, rng: Random) -> None:
    longest = max(len(text) for text in plan.world.texts)
    reach = max(8, int(longest * between(strength, 0.9, 0.25)))
    flag(plan, "--context-length", longest + 64)
    plan.config["max_position_embeddings"] = reach
    plan.server = None


@KINDS.kind("scaling lost in the drafter's rope", "context.rope_fit", source="NVIDIA-NeMo/Automodel#2399")
def scaling(plan: Plan, strength: float, rng: Random) -> None:
    """The trainer took a llama3 schedule where the config had none: the drafter turns slowly and far too slowly."""
    rope = {"rope_type": "linear", "factor": between(strength, 2.0, 16.0)}
    config_of(plan, lambda config: config.update(rope_scaling=dict(rope)))
