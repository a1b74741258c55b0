"""G: the engine's own defects: config, dump and drafter are in order, and what runs is not what they say."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from eaglelab.engines.config_ids import config_ids
from faults.kinds.common import (
    Family,
    between,
    convention,
    decode_lines,
    fed,
    flag,
    generator,
    move,
    noisy,
    only_log,
    orthogonal,
    reached,
    the_server,
)
from faults.plan import Inapplicable, Plan

KINDS = Family("G")
BELOW = "served.expected served.variant"


@KINDS.kind("accept length decays with uptime", "served.log.trend", source="vllm-project/vllm#41838")
def decays(plan: Plan, strength: float, rng: Random) -> None:
    """Blocks are hashed before they are written: it falls, and falls again after a restart."""
    begin = reached(plan)
    end = 1 + (begin - 1) * between(strength, 0.6, 0.15)
    fall = [begin + (end - begin) * i / 29 for i in range(30)]
    start = "[2026-05-11 {}:59:00] server_args=ServerArgs(model_path='target', speculative_algorithm='EAGLE3')"
    again = decode_lines(noisy(fall, rng), start=190)
    only_log(plan, [start.format("09"), *decode_lines(noisy(fall, rng)), start.format("11"), *again])


@KINDS.kind("a rank that differs", "served.log.ranks", source="sgl-project/sglang#20492")
def rank(plan: Plan, strength: float, rng: Random) -> None:
    """One of two data-parallel ranks gathers over the wrong group."""
    high = reached(plan)
    low = 1 + (high - 1) * between(strength, 0.6, 0.1)
    one, other = (decode_lines(noisy([m] * 24, rng), rank=f" DP{r}") for r, m in enumerate((high, low)))
    only_log(plan, [line for pair in zip(one, other, strict=True) for line in pair])


class Stale:
    """Rows of the previous pass where this pass's belong, in part of the passes."""

    def __init__(self, share: float, draws: torch.Generator) -> None:
        self.share, self.draws = share, draws
        self.reset()

    def reset(self) -> None:
        self.before: list[Tensor] | None = None

    def __call__(self, states: list[Tensor]) -> list[Tensor]:
        before, self.before = self.before, states
        if before is None or torch.rand((), generator=self.draws) > self.share:
            return states
        return [torch.cat([old, old[-1:].expand(len(new), -1)])[: len(new)] for old, new in zip(before, states, strict=True)]


@KINDS.kind("stale states", BELOW, source="vllm-project/vllm#14649", needs="recording")
def stale(plan: Plan, strength: float, rng: Random) -> None:
    the_server(plan).spoil = Stale(between(strength, 0.3, 1.0), generator(rng))


def _first_half_twice(states: list[Tensor]) -> list[Tensor]:
    half = (len(states[0]) + 1) // 2
    return [torch.cat([s[:half], s[: len(s) - half]]) for s in states]


@KINDS.kind("rows gathered twice", BELOW, source="sgl-project/sglang#20492", needs="recording")
def gathered_twice(plan: Plan, strength: float, rng: Random) -> None:
    """A gather over the wrong group leaves the first rows in place of the others."""
    the_server(plan).spoil = _first_half_twice


@KINDS.kind("another wiring than the config's", BELOW + " served.parity", source="lightseekorg/tokenspeed#526", needs="recording")
def hard_coded(plan: Plan, strength: float, rng: Random) -> None:
    """The engine takes layers of its own, whatever the config says."""
    layers = plan.world.num_layers
    taken = [b for b in ([2, layers // 2, layers - 3], [0, 1, 2], [3, layers // 2 + 1, layers - 2]) if b != list(fed(plan).wiring)]
    if config_ids(plan.config, convention(plan)).ids is None:
        raise Inapplicable("the config names no ids")
    the_server(plan).wiring = taken[0] if strength < 0.7 else taken[1]


@KINDS.kind("known bad version: gather group", "engine.known.gather_group", source="sgl-project/sglang#20492")
def gather_group(plan: Plan, strength: float, rng: Random) -> None:
    """SGLang 0.5.9 with DP attention gathers the slots of a DeepSeek target over all ranks."""
    if "Deepseek" not in plan.target_config["architectures"][0]:
        raise Inapplicable("another class of target")
    move(plan, "sglang", "0.5.9")
    for name, value in (("--tp-size", 2), ("--dp-size", 2), ("--enable-dp-attention", None), ("--moe-a2a-backend", "deepep")):
        flag(plan, name, value)
    the_server(plan).spoil = _first_half_twice


@KINDS.kind("known bad version: rope table", "engine.known.rope_table", source="sgl-project/sglang#10787")
def rope_table(plan: Plan, strength: float, rng: Random) -> None:
    """SGLang 0.5.2, let past the drafter's own length: its table ends there, and what is read behind it is garbage."""
    move(plan, "sglang", "0.5.2")
    plan.config["max_position_embeddings"] = round(between(strength, 64, 32))
    plan.launch = f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 {plan.launch}"
    plan.server = None


@KINDS.kind("target in a rotated basis", BELOW, source="vllm-project/vllm#36223", needs="recording")
def rotated_target(plan: Plan, strength: float, rng: Random) -> None:
    """QuaRot: the served target's residual stream is turned, the drafter's fc is not."""
    q = orthogonal(plan.samples[0]["hidden_states"][0].shape[1], rng)
    the_server(plan).spoil = lambda states: [s.float() @ q for s in states]
