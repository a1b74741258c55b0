"""N: the served target is not the one that the case names: of fewer bits, or tuned since."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch

from faults.kinds.common import Family, between, flag
from faults.kinds.dump import round_weights
from faults.plan import Inapplicable, Plan
from faults.targets import load_target

QUANTISED = Family("N")
OTHER = "served.text served.expected served.variant"


def _another_target(plan: Plan, name: str, change: Any) -> None:
    """The server runs a changed copy of the target, kept beside it."""
    if plan.server is None or not plan.world.folder.exists():
        raise Inapplicable("no server, or no target at hand")
    folder = plan.world.folder.with_name(f"{plan.world.folder.name}-{name}")
    if not (folder / "config.json").exists():
        model = load_target(plan.world.folder)
        with torch.no_grad():
            change(model)
        part = Path(f"{folder}.part")
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(part)
        part.replace(folder)
    plan.server.target = folder


@QUANTISED.kind("served target of few bits", OTHER, needs="recording")
def few_bits(plan: Plan, strength: float, rng: Random) -> None:
    bits = 4 if strength < 0.6 else 3
    _another_target(plan, f"{bits}bit", lambda model: round_weights(model, bits))


@QUANTISED.kind("served target tuned since", OTHER, source="sgl-project/SpecForge#533", needs="recording")
def tuned(plan: Plan, strength: float, rng: Random) -> None:
    disturb(plan, between(strength, 0.08, 0.3), rng.randrange(4))


def disturb(plan: Plan, spread: float, seed: int) -> None:
    """The server's target has noise in all weights, `spread` of each one's own deviation."""

    def change(model: Any) -> None:
        draws = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight.add_(spread * weight.std(correction=0) * torch.randn(weight.shape, generator=draws))

    _another_target(plan, f"tuned-{spread:.3f}-{seed}", change)


@QUANTISED.kind("drafter inherits the quantisation", "config.draft_quantization", source="sgl-project/sglang#28196")
def inherits(plan: Plan, strength: float, rng: Random) -> None:
    """--quantization holds for the drafter too where its own flag is unset."""
    flag(plan, "--quantization", rng.choice(["fp8", "w8a8_int8"]))
    if plan.server is not None:
        plan.server.tensors = {n: _rounded(t) if t.ndim > 1 else t for n, t in plan.server.tensors.items()}


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.float().abs().amax(-1, keepdim=True) / 127
    return ((weight.float() / scale).round() * scale).to(weight.dtype)
