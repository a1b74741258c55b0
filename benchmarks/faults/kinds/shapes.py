"""J: widths and layouts that do not fit: loud, and explained by numbers."""

from __future__ import annotations

from random import Random

import torch

from faults.kinds.common import Family, blocks, need, put, random_like
from faults.plan import Plan

KINDS = Family("J")


@KINDS.kind("three slots expected, two given", "errors.width", source="sgl-project/sglang#32226")
def two_of_three(plan: Plan, strength: float, rng: Random) -> None:
    """The server stops while it warms up, with two widths in its log."""
    width = plan.config.get("target_hidden_size") or plan.config["hidden_size"]
    plan.server = None
    plan.log = [
        "[2026-05-11 10:00:00] Capture draft extend cuda graph begin.",
        "[2026-05-11 10:00:01] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/sgl/srt/models/llama_eagle3.py", line 241, in forward',
        "    hidden_states = self.fc(hidden_states)",
        f"RuntimeError: The size of tensor a ({3 * width}) must match the size of tensor b ({2 * width}) at non-singleton dimension 1",
    ]


@KINDS.kind("all hidden states concatenated", "errors.fc_width", source="SafeAILab/EAGLE#261")
def all_states(plan: Plan, strength: float, rng: Random) -> None:
    """transformers' N + 1 states in place of three."""
    width = plan.config.get("target_hidden_size") or plan.config["hidden_size"]
    fed = (plan.world.num_layers + 1) * width
    plan.server = None
    plan.log = [
        "[2026-05-11 10:00:01] Scheduler hit an exception: Traceback (most recent call last):",
        "    return F.linear(input, self.weight, self.bias)",
        f"RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x{fed} and {3 * width}x{plan.config['hidden_size']})",
    ]


@KINDS.kind("another target's drafter", "config.target_hidden_size", source="vllm-project/vllm#37966")
def other_width(plan: Plan, strength: float, rng: Random) -> None:
    """A drafter, whole by itself, whose slots are twice as wide as this target's states."""
    width, size = plan.config["hidden_size"], plan.config["vocab_size"]
    fc = need(plan, "fc.weight")
    put(plan, "fc.weight", torch.cat([part for block in blocks(fc, fc.shape[1] // width) for part in (block, block)], dim=1))
    plan.tensors["embed_tokens.weight"] = random_like(torch.empty(size, width), rng, 1.0)
    plan.config["target_hidden_size"] = 2 * width
    plan.server = None


@KINDS.kind("fc of two slots", "drafter.complete", source="vllm-project/vllm#48259")
def narrow_fc(plan: Plan, strength: float, rng: Random) -> None:
    """The file's fc is of another training run than its config."""
    fc = need(plan, "fc.weight")
    put(plan, "fc.weight", fc[:, : 2 * fc.shape[1] // 3].clone())
    plan.server = None


@KINDS.kind("embedding of another width missing", "drafter.embedding drafter.complete", source="vllm-project/vllm#18906")
def no_embedding(plan: Plan, strength: float, rng: Random) -> None:
    """A drafter narrower than its target, exported without the table that it then needs."""
    width = plan.config["hidden_size"]
    plan.config |= {"target_hidden_size": width, "hidden_size": width // 2}
    plan.server = None
