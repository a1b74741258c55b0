"""F and M: what a launch line leads to, and what its environment does."""

from __future__ import annotations

from random import Random

import torch

from eaglelab.engines.effective.rules import Rules, neighbours
from faults.kinds.common import Family, decode_lines, engine, flag, need_sglang, noisy, only_log, random_like, reached, unflag
from faults.plan import Plan

KINDS, SAMPLED = Family("F"), Family("M")


@KINDS.kind("16 draft tokens with top-k 1", "flags.draft_tokens", source="sgl-project/SpecForge#310")
def sixteen(plan: Plan, strength: float, rng: Random) -> None:
    """The steps decide: four tokens are verified."""
    flag(plan, "--speculative-eagle-topk", 1)
    flag(plan, "--speculative-num-draft-tokens", rng.choice([8, 16, 24]))


@KINDS.kind("one step overrides the draft tokens", "flags.draft_tokens", source="sgl-project/sglang#8228")
def one_step(plan: Plan, strength: float, rng: Random) -> None:
    """The story: --speculative-num-steps 1 beside --speculative-num-draft-tokens 16 leaves 2."""
    flag(plan, "--speculative-num-steps", 1)
    flag(plan, "--speculative-eagle-topk", 1)
    flag(plan, "--speculative-num-draft-tokens", 16)
    if plan.server is not None:
        plan.server.num_steps = 1


@KINDS.kind("tree without enough candidates", "flags.tree", source="sgl-project/sglang#24054")
def small_tree(plan: Plan, strength: float, rng: Random) -> None:
    """One step with top-k 2 has two candidates, and eight are asked for."""
    flag(plan, "--speculative-num-steps", 1)
    flag(plan, "--speculative-eagle-topk", 2)
    flag(plan, "--speculative-num-draft-tokens", 8)
    plan.server = None


@KINDS.kind("no algorithm on the line", "flags.off")
def no_algorithm(plan: Plan, strength: float, rng: Random) -> None:
    need_sglang(plan)
    unflag(plan, "--speculative-algorithm")
    plan.server = None


@KINDS.kind("graphs off", "served.log.graphs flags.cuda_graph", source="sgl-project/sglang#4247")
def graphs_off(plan: Plan, strength: float, rng: Random) -> None:
    lines = decode_lines(noisy([reached(plan)] * 30, rng), graph=False)
    flag(plan, "--disable-cuda-graph")
    only_log(plan, lines)


@KINDS.kind("batches beyond the graphs", "served.log.graphs flags.cuda_graph", source="SafeAILab/EAGLE#298")
def beyond_graphs(plan: Plan, strength: float, rng: Random) -> None:
    """Graphs up to two requests, and eight at a time: `cuda graph: False` in the log."""
    length = reached(plan)
    flag(plan, Rules(neighbours(engine(plan))[0]).get("graph_flags")["now"], 2)
    small, large = noisy([length] * 6, rng), noisy([length] * 24, rng)
    only_log(plan, decode_lines(small, running=2) + decode_lines(large, running=8, graph=False, start=6))


@KINDS.kind("simulated acceptance left on", "flags.simulated served.log.constant served.acceptance")
def simulated(plan: Plan, strength: float, rng: Random) -> None:
    """The variable of a benchmark is still set: every pass accepts as many."""
    only_log(plan, decode_lines([3.0] * 30))
    plan.launch = f"SGLANG_SIMULATE_ACC_LEN=3 {plan.launch}"


@KINDS.kind("drafter not loaded", "flags.dummy")
def dummy(plan: Plan, strength: float, rng: Random) -> None:
    flag(plan, "--load-format", "dummy")
    if plan.server is not None:
        tensors = plan.server.tensors
        plan.server.tensors = {n: random_like(t, rng, 1e-3) if torch.is_floating_point(t) else t for n, t in tensors.items()}


@SAMPLED.kind("acceptance loosened", "flags.thresholds")
def thresholds(plan: Plan, strength: float, rng: Random) -> None:
    """The text is no longer the target's."""
    flag(plan, "--speculative-accept-threshold-single", rng.choice([0.2, 0.5]))
    plan.server = None


@KINDS.kind("pipeline stages", "flags.pipeline", source="vllm-project/vllm#50514")
def pipeline(plan: Plan, strength: float, rng: Random) -> None:
    flag(plan, "--pp-size", 2)
    plan.server = None
