"""I, and A where it is seen in the dump alone: files that are broken, states that are not those of the text, a last state normed otherwise."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import torch
from torch import Tensor

from faults.kinds.common import Family, between, each_slot, generator, hold, last_boundary, orthogonal, retrain, state
from faults.plan import Inapplicable, Plan
from faults.targets import load_target, states_of

KINDS = Family("I")
ANOMALY = "wiring.anomalies"
OVERFLOW = 65504.0
"""The largest float16."""


def _some(plan: Plan, strength: float, rng: Random) -> list[dict[str, Any]]:
    """A third of the samples, gross: all of them."""
    count = max(1, round(between(strength, 0.3, 1.0) * len(plan.samples)))
    return rng.sample(plan.samples, count)


@KINDS.kind("a slot all zero", "dump.health wiring.anomalies", source="vllm-project/vllm#36527")
def zero_slot(plan: Plan, strength: float, rng: Random) -> None:
    """A layer that was never captured while dumping; the drafter learned without it."""
    slot = rng.randrange(len(plan.slots) - 1)
    retrain(plan, wiring=["zero" if s == slot else b for s, b in enumerate(plan.world.trained_on)])
    each_slot(plan, torch.zeros_like, [slot])


@KINDS.kind("NaN rows", "dump.health wiring.anomalies")
def nan_rows(plan: Plan, strength: float, rng: Random) -> None:
    """From some row on everything is NaN, in a third of the samples or more."""
    for sample in _some(plan, strength, rng):
        for states in sample["hidden_states"]:
            states[rng.randrange(len(states)) :] = torch.nan


@KINDS.kind("float16 overflow", "dump.health wiring.anomalies")
def overflow(plan: Plan, strength: float, rng: Random) -> None:
    """A deep layer's massive channel does not fit float16: infinite at the first token and some others."""
    slot, channel = len(plan.slots) - 2, rng.randrange(plan.samples[0]["hidden_states"][0].shape[1])
    for sample in plan.samples:
        states = sample["hidden_states"][slot]
        rows = torch.rand(len(states), generator=generator(rng)) < between(strength, 0.02, 0.3)
        rows[0] = True
        states[rows, channel] = torch.inf


@KINDS.kind(
    "last state before the final norm", "dump.last_state config.final_norm replay.targets", source="NVIDIA/Model-Optimizer@a2fbac7b"
)
def last_before_norm(plan: Plan, strength: float, rng: Random) -> None:
    """A dump for SpecForge, which applies lm_head to the last slot as it is, with the state before the norm."""
    _need_final(plan)
    hold(plan, -1, plan.world.num_layers)
    plan.slots[-1] = plan.world.num_layers
    plan.sections["training"] = {"framework": "specforge", "version": "0.2.0"}


@KINDS.kind("last state normed twice", "dump.last_state", source="vllm-project/speculators@a54a7283")
def normed_twice(plan: Plan, strength: float, rng: Random) -> None:
    """vLLM's states are normed already, and the dump script norms them again."""
    _need_final(plan)
    model = load_target(plan.world.folder)
    with torch.no_grad():
        once = torch.cat([s["hidden_states"][-1].float() for s in plan.samples])
        says, then = (model.lm_head(h).argmax(-1) for h in (once, model.model.norm(once)))
        if (says == then).float().mean() > 0.98:
            raise Inapplicable("this target's norm has a gain of about one: once more changes no choice")
        each_slot(plan, lambda states: model.model.norm(states.float()), [len(plan.slots) - 1])


def _need_final(plan: Plan) -> None:
    if last_boundary(plan) != "final":
        raise Inapplicable("the dump's last state is not a normed one")


@KINDS.kind("dump in a rotated basis", ANOMALY, source="vllm-project/vllm-ascend#5974")
def rotated(plan: Plan, strength: float, rng: Random) -> None:
    """QuaRot: the residual stream of the quantised target that dumped is turned; the last state, behind the folded norm, too."""
    q = orthogonal(plan.samples[0]["hidden_states"][0].shape[1], rng)
    each_slot(plan, lambda states: states.float() @ q)


@KINDS.kind("dump with permuted channels", ANOMALY)
def permuted(plan: Plan, strength: float, rng: Random) -> None:
    order = torch.randperm(plan.samples[0]["hidden_states"][0].shape[1], generator=generator(rng))
    each_slot(plan, lambda states: states[:, order])


@KINDS.kind("rows of another request", ANOMALY, source="vllm-project/speculators#279")
def other_request(plan: Plan, strength: float, rng: Random) -> None:
    """Offsets that ignore which request a row is of: samples get each other's states."""
    chosen = _some(plan, strength, rng)
    if len(chosen) < 2:
        chosen = rng.sample(plan.samples, 2)
    states = [s["hidden_states"] for s in chosen]
    for sample, other in zip(chosen, states[1:] + states[:1], strict=True):
        sample["hidden_states"] = [_as_long(o, len(sample["input_ids"])) for o in other]


def _as_long(states: Tensor, rows: int) -> Tensor:
    """Cut off, or gone on with from the beginning."""
    return states.repeat(-(-rows // len(states)), 1)[:rows].clone()


@KINDS.kind("states one row late", ANOMALY)
def one_row_late(plan: Plan, strength: float, rng: Random) -> None:
    by = rng.choice([-1, 1])
    each_slot(plan, lambda states: states.roll(by, dims=0), range(len(plan.slots)))


@KINDS.kind("padding kept and trained", "dump.health text.mask text.faults")
def padding(plan: Plan, strength: float, rng: Random) -> None:
    """Rows behind the text, filled up with zeros to the batch's longest, and the mask reaches over them."""
    longest = max(len(s["input_ids"]) for s in plan.samples) + round(between(strength, 4, 24))
    for sample in plan.samples:
        more = longest - len(sample["input_ids"])
        sample["input_ids"] = torch.cat([sample["input_ids"], sample["input_ids"].new_zeros(more)])
        sample["loss_mask"] = torch.cat([sample["loss_mask"], sample["loss_mask"].new_ones(more)])
        sample["hidden_states"] = [torch.cat([h, h.new_zeros(more, h.shape[1])]) for h in sample["hidden_states"]]


@KINDS.kind("truncated files", "dump.health")
def truncated(plan: Plan, strength: float, rng: Random) -> None:
    """A full disk: files that end in the middle."""
    chosen = _some(plan, strength, rng)
    for i in range(len(plan.samples)):
        if any(plan.samples[i] is s for s in chosen):
            buffer = io.BytesIO()
            torch.save(plan.samples[i], buffer)
            plan.files[sample_file(plan, i)] = buffer.getvalue()[: len(buffer.getvalue()) // 2]


def sample_file(plan: Plan, i: int) -> str:
    """The path of a sample in the case's folder, as the writer names it."""
    return f"dump/rows_0-{len(plan.samples)}/data_{i}.pt"


@KINDS.kind("samples dumped again and again", "dump.health", source="NVIDIA/Model-Optimizer#2080")
def duplicates(plan: Plan, strength: float, rng: Random) -> None:
    """A resumed run that starts over: most files are the same sample."""
    kept = max(1, round(between(strength, 0.5, 0.1) * len(plan.samples)))
    first = [dict(s, hidden_states=list(s["hidden_states"])) for s in plan.samples[:kept]]
    plan.samples = [
        {**first[i % kept], "hidden_states": [h.clone() for h in first[i % kept]["hidden_states"]]} for i in range(len(plan.samples))
    ]


@KINDS.kind("states of a tuned target", "wiring.target wiring.anomalies", source="sgl-project/SpecForge#533", needs="target")
def tuned_target(plan: Plan, strength: float, rng: Random) -> None:
    """The dump is of the base model, the case names the tuned one: all weights differ by some per cent."""
    model = load_target(plan.world.folder)
    spread = between(strength, 0.05, 0.3)
    draws = generator(rng)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(spread * weight.std(correction=0) * torch.randn(weight.shape, generator=draws))
    _states_by(plan, model)


@KINDS.kind("states of a quantised target", "wiring.target wiring.anomalies", needs="target")
def quantised_states(plan: Plan, strength: float, rng: Random) -> None:
    """The dump was made with a target of few bits, the case names the one in full precision."""
    model = load_target(plan.world.folder)
    round_weights(model, bits=4 if strength < 0.5 else 3)
    _states_by(plan, model)


@torch.no_grad()
def round_weights(model: Any, bits: int) -> None:
    """Matrices of the decoder layers to whole multiples of a scale for each row, as weight-only quantisation does."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and ".layers." in name:
            scale = weight.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
            weight.copy_((weight / scale.clamp_min(1e-12)).round() * scale)


def _states_by(plan: Plan, model: Any) -> None:
    """The dump's states by another target, on the same tokens."""
    made = states_of(model, [s["input_ids"] for s in plan.samples])
    for sample, states in zip(plan.samples, made, strict=True):
        sample["hidden_states"] = [states[b].to(h.dtype) for b, h in zip(plan.slots, sample["hidden_states"], strict=True)]


@KINDS.kind("captured without the residual", ANOMALY)
def without_residual(plan: Plan, strength: float, rng: Random) -> None:
    """A capture in front of the fused add and norm: each slot is what its layer adds."""
    if not all(isinstance(b, int) and b > 0 for b in plan.slots[:-1]):
        raise Inapplicable("a slot is no layer's output")
    for sample in plan.samples:
        for slot, boundary in enumerate(plan.slots[:-1]):
            added = state(plan, sample, boundary) - state(plan, sample, boundary - 1)
            sample["hidden_states"][slot] = added.to(sample["hidden_states"][slot].dtype)
