"""G: the engine's own defects: config, dump and drafter are in order, and what runs is not what they say."""

from __future__ import annotations

from random import Random

import torch

from eaglelab.engines.config_ids import config_ids
from faults.kinds.common import Family, between, convention, decode_lines, fed, generator, need_sglang, noisy, orthogonal
from faults.plan import Inapplicable, Plan

KINDS = Family("G")
BELOW = "served.expected served.variant"


def _server(plan: Plan):
    if plan.server is None:
        raise Inapplicable("no server")
    return plan.server


@KINDS.kind("accept length decays with uptime", "served.log.trend", source="vllm-project/vllm#41838")
def decays(plan: Plan, strength: float, rng: Random) -> None:
    """Blocks are hashed before they are written: it falls, and falls again after a restart."""
    need_sglang(plan)
    end = between(strength, 1.9, 1.2)
    fall = [2.4 + (end - 2.4) * i / 29 for i in range(30)]
    start = "[2026-05-11 {}:59:00] server_args=ServerArgs(model_path='target', speculative_algorithm='EAGLE3')"
    plan.log = [start.format("09"), *decode_lines(noisy(fall, rng)), start.format("11"), *decode_lines(noisy(fall, rng), start=190)]


@KINDS.kind("a rank that differs", "served.log.ranks", source="sgl-project/sglang#20492")
def rank(plan: Plan, strength: float, rng: Random) -> None:
    """One of two data-parallel ranks gathers over the wrong group."""
    need_sglang(plan)
    low = between(strength, 1.9, 1.1)
    one, other = (decode_lines(noisy([m] * 24, rng), rank=f" DP{r}") for r, m in enumerate((2.4, low)))
    plan.log = [line for pair in zip(one, other, strict=True) for line in pair]


@KINDS.kind("stale states", BELOW, source="vllm-project/vllm#14649", needs="recording")
def stale(plan: Plan, strength: float, rng: Random) -> None:
    """Rows of the previous pass where this pass's belong, in part of the passes or in all."""
    share, draws, before = between(strength, 0.3, 1.0), generator(rng), []

    def spoil(states):
        before.append(states)
        late = before[-2] if len(before) > 1 and torch.rand((), generator=draws) < share else states
        return late if late.shape == states.shape else states.roll(1, dims=0)

    _server(plan).spoil = spoil


@KINDS.kind("rows gathered twice", BELOW, source="sgl-project/sglang#20492", needs="recording")
def gathered_twice(plan: Plan, strength: float, rng: Random) -> None:
    """A gather over the wrong group leaves the first rows in place of the others."""

    def spoil(states):
        half = len(states) - len(states) // 2
        return torch.cat([states[:half], states[: len(states) - half]])

    _server(plan).spoil = spoil


@KINDS.kind("another wiring than the config's", BELOW + " served.parity", source="lightseekorg/tokenspeed#526", needs="recording")
def hard_coded(plan: Plan, strength: float, rng: Random) -> None:
    """The engine takes layers of its own, whatever the config says."""
    layers = plan.world.num_layers
    taken = [b for b in ([2, layers // 2, layers - 3], [0, 1, 2], [3, layers // 2 + 1, layers - 2]) if b != list(fed(plan).wiring)]
    if config_ids(plan.config, convention(plan)).ids is None:
        raise Inapplicable("the config names no ids")
    _server(plan).wiring = taken[0] if strength < 0.7 else taken[1]


@KINDS.kind("known bad version", "engine.known", source="sgl-project/SpecForge#310")
def known_bad(plan: Plan, strength: float, rng: Random) -> None:
    """0.5.5.post3: accept length 1.04 where 0.5.4 reaches 2.2."""
    need_sglang(plan)
    plan.engine = ("sglang", "0.5.5.post3")


@KINDS.kind("target in a rotated basis", BELOW, source="vllm-project/vllm#36223", needs="recording")
def rotated_target(plan: Plan, strength: float, rng: Random) -> None:
    """QuaRot: the served target's residual stream is turned, the drafter's fc is not."""
    width = plan.config.get("target_hidden_size") or plan.config["hidden_size"]
    q = orthogonal(width, rng)

    def spoil(states):
        return torch.cat([part.float() @ q for part in states.split(width, dim=-1)], dim=-1).to(states.dtype)

    _server(plan).spoil = spoil
