"""D, and trainings that went wrong unseen: too little, too narrow, beside the text."""

from __future__ import annotations

from random import Random

from faults.kinds.common import Family, between, retrain
from faults.plan import Plan

KINDS = Family("D")
LOW = "replay.works triangle"


@KINDS.kind("trained too little", LOW + " training.amount", source="vllm-project/speculators#751")
def undertrained(plan: Plan, strength: float, rng: Random) -> None:
    """The example script as it stands: 5,000 conversations, where real runs take half a million."""
    retrain(plan, updates=round(between(strength, 60, 4)))
    plan.sections.setdefault("training", {})["samples"] = 5000


@KINDS.kind("trained on one sample", LOW + " training.metric", source="SafeAILab/EAGLE#264")
def one_sample(plan: Plan, strength: float, rng: Random) -> None:
    """The trainer's own accuracy is near one; what the server meets is other text."""
    retrain(plan, samples=1)
    plan.sections["training"] = {"framework": "specforge", "version": "0.2.0"}
    plan.trainer = [{"step": 260, "acc_0": 0.97, "acc_1": 0.95, "acc_2": 0.93, "loss": 0.2}]


@KINDS.kind("trained on few samples", LOW + " training.amount", source="SafeAILab/EAGLE#227")
def few_samples(plan: Plan, strength: float, rng: Random) -> None:
    """A hundred conversations, as a first try."""
    retrain(plan, samples=round(between(strength, 12, 2)))
    plan.sections.setdefault("training", {})["samples"] = 100


@KINDS.kind("tokens and states a row apart", "replay.choices")
def row_apart(plan: Plan, strength: float, rng: Random) -> None:
    """The trainer pairs state t with token t, or with token t + 2."""
    retrain(plan, token_shift=rng.choice([-1, 1]))


@KINDS.kind("trained on another order of slots", "replay.order")
def trained_in_another_order(plan: Plan, strength: float, rng: Random) -> None:
    """The data loader hands fc the slots in another order than the dump and the engines have them."""
    wiring = list(plan.world.trained_on)
    retrain(plan, wiring=rng.choice([wiring[::-1], wiring[1:] + wiring[:1], wiring[-1:] + wiring[:-1]]))


@KINDS.kind("trained for one step only", LOW + " lost.steps")
def one_step(plan: Plan, strength: float, rng: Random) -> None:
    """No training-time test: the first drafted token is right, later ones collapse."""
    retrain(plan, steps=1)


@KINDS.kind("trained with another recurrence", "replay.choices", source="ROCm/ATOM#882")
def other_recurrence(plan: Plan, strength: float, rng: Random) -> None:
    """The trainer steps on from the normed state, and the config does not say so."""
    retrain(plan, post_norm_recurrence=True)
