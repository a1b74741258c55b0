"""A: layer ids that mean other layers than were trained on, and captures that hand over something else or nothing."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from eaglelab.engines.config_ids import config_ids, ignored_ids
from eaglelab.engines.conventions import convention_for, fed_by_version, table
from faults.kinds.common import (
    Family,
    blocks,
    convention,
    fed,
    feed,
    flag,
    hold,
    ids_for,
    last_boundary,
    need,
    put,
    retrain,
    serve,
    the_server,
    trained_layers,
    write_ids,
)
from faults.plan import Inapplicable, Plan

KINDS = Family("A")
FED = "wiring.match replay.engine"
"""By value, or by what the engine's feed costs the drafter."""


@KINDS.kind("ids one too deep", FED, source="sgl-project/sglang#25454")
def one_too_deep(plan: Plan, strength: float, rng: Random) -> None:
    """Boundaries written as ids for an engine that adds one (or an output-of-layer list read raw after one was added by hand)."""
    _all_moved(plan, 1)


@KINDS.kind("ids one too shallow", FED, source="vllm-project/vllm#25961")
def one_too_shallow(plan: Plan, strength: float, rng: Random) -> None:
    """A list that counts layers' outputs, given to an engine that takes ids raw."""
    _all_moved(plan, -1)


def _all_moved(plan: Plan, by: int) -> None:
    moved = [b + by for b in trained_layers(plan)]
    if not 0 < min(moved) <= max(moved) < plan.world.num_layers:
        raise Inapplicable("there are no such layers")
    feed(plan, moved)


@KINDS.kind("one id off by one", FED)
def one_off(plan: Plan, strength: float, rng: Random) -> None:
    """One of the three moved by a layer; gross: as far as there is room."""
    trained = trained_layers(plan)
    moves = [
        [*trained[:p], b, *trained[p + 1 :]]
        for p, was in enumerate(trained)
        for b in range(1, plan.world.num_layers)
        if b not in trained and abs(b - was) == 1 and sorted([*trained[:p], b, *trained[p + 1 :]]) == [*trained[:p], b, *trained[p + 1 :]]
    ]
    if not moves:
        raise Inapplicable("no layer is free beside them")
    feed(plan, rng.choice(moves))


@KINDS.kind("embedding in front", FED)
def embedding_in_front(plan: Plan, strength: float, rng: Random) -> None:
    """The story: [-1, 2, 30] for [2, 30, 58], where the engine adds one."""
    feed(plan, [0, *trained_layers(plan)[:-1]])


@KINDS.kind("engine upgraded across a rule", FED, source="sgl-project/sglang#25454")
def upgraded(plan: Plan, strength: float, rng: Random) -> None:
    """Ids that one version reads as was trained, under a version that makes other boundaries of them."""
    architecture, layers, trained = plan.target_config["architectures"][0], plan.world.num_layers, trained_layers(plan)
    turns = []
    for ids in (trained, [b - 1 for b in trained]):
        by_version = fed_by_version(plan.engine[0], architecture, ids, layers)
        if tuple(trained) in by_version.values():
            turns += [(ids, v) for v, fed in by_version.items() if fed != tuple(trained) and None not in fed and _reads(plan, v)]
    if not turns:
        raise Inapplicable("every version of this engine reads these ids alike")
    ids, version = rng.choice(turns)
    write_ids(plan, list(ids))
    plan.engine = (plan.engine[0], version)
    serve(plan)


def _reads(plan: Plan, version: str) -> bool:
    """Whether a version reads ids by a rule that is known for this target."""
    row = convention_for(f"{plan.engine[0]}=={version}", plan.target_config["architectures"][0])
    return row.rule not in ("fixed", "none") and not row.assumptions


@KINDS.kind("version that reads no ids", FED, source="vllm-project/vllm#25961")
def reads_no_ids(plan: Plan, strength: float, rng: Random) -> None:
    """An engine from before layer ids were read: it takes its default layers, whatever the config says."""
    architecture = plan.target_config["architectures"][0]
    old = [v for v in _versions(plan) if convention_for(f"{plan.engine[0]}=={v}", architecture).rule == "fixed"]
    if not old:
        raise Inapplicable("every version that was read takes ids")
    plan.engine = (plan.engine[0], rng.choice(old))
    if list(fed(plan).wiring) == trained_layers(plan):
        raise Inapplicable("the default layers are those that were trained on")
    serve(plan)


def _versions(plan: Plan) -> list[str]:
    return table()["families"][plan.engine[0]]["read_versions"]


@KINDS.kind("ids at a key that is not read", "config.ids_ignored wiring.match", source="vllm-project/speculators#1065")
def elsewhere(plan: Plan, strength: float, rng: Random) -> None:
    """The ids move to the other engine's key, in its numbering; this one takes its default layers."""
    boundaries, here = trained_layers(plan), convention(plan)
    found = config_ids(plan.config, here)
    if found.key is None:
        raise Inapplicable("the config names no ids")
    *parents, name = found.key.split(".")
    holder = plan.config
    for parent in parents:
        holder = holder[parent]
    del holder[name]
    if here.engine.name == "sglang":
        plan.config[name] = list(boundaries)
    else:
        plan.config["eagle_config"] = {name: [b - 1 for b in boundaries]}
    if not ignored_ids(plan.config, here):
        raise Inapplicable(f"{here.engine.title} reads that key as well")
    if list(fed(plan).wiring) == boundaries:
        raise Inapplicable("the engine's default layers are those that were trained on")
    serve(plan)


@KINDS.kind("last layer's output asked for", "wiring.engine", source="vllm-project/vllm#46788")
def out_of_reach(plan: Plan, strength: float, rng: Random) -> None:
    """Boundary N among the ids: captured before each layer runs, it never comes."""
    trained = trained_layers(plan)
    write_ids(plan, ids_for(plan, [*trained[:-1], plan.world.num_layers]))
    if None not in fed(plan).wiring:
        raise Inapplicable("this engine captures boundary N")
    plan.server = None


@KINDS.kind("an id twice", "wiring.engine")
def id_twice(plan: Plan, strength: float, rng: Random) -> None:
    ids = list(config_ids(plan.config, convention(plan)).ids or ids_for(plan, trained_layers(plan)))
    ids[1] = ids[0]
    write_ids(plan, ids)
    if None not in fed(plan).wiring:
        raise Inapplicable("this engine captures a layer twice")
    plan.server = None


@KINDS.kind("an id left out", "config.slots wiring.match", source="vllm-project/vllm#54526")
def id_left_out(plan: Plan, strength: float, rng: Random) -> None:
    """Two ids for an fc of three slots."""
    ids = list(config_ids(plan.config, convention(plan)).ids or ids_for(plan, trained_layers(plan)))
    del ids[rng.randrange(len(ids))]
    write_ids(plan, ids)
    plan.config["num_aux_hidden_states"] = len(plan.world.trained_on)
    plan.server = None


@KINDS.kind("slots dumped in another order", FED + " replay.order")
def another_order(plan: Plan, strength: float, rng: Random) -> None:
    """The dump has two slots the other way round, and the drafter was trained on it so; engines concatenate in layer order."""
    p, q = rng.choice([(0, 1), (1, 2), (0, 2)])
    for places in (plan.slots, *(s["hidden_states"] for s in plan.samples)):
        places[p], places[q] = places[q], places[p]
    parts = blocks(need(plan, "fc.weight"), len(plan.world.trained_on))
    parts[p], parts[q] = parts[q], parts[p]
    put(plan, "fc.weight", torch.cat(parts, dim=1))


@KINDS.kind("dump of other layers than the config says", FED + " dump.format", source="lightseekorg/tokenspeed#526")
def other_layers(plan: Plan, strength: float, rng: Random) -> None:
    """The engine that dumped took layers of its own, whatever the config said, and the drafter learned these."""
    layers, trained = plan.world.num_layers, trained_layers(plan)
    taken = next(o for o in ([2, layers // 2, layers - 3], [3, layers // 2 + 1, layers - 2]) if o != trained)
    retrain(plan, wiring=taken)
    for slot, boundary in enumerate(taken):
        hold(plan, slot, boundary)
        plan.slots[slot] = boundary


@KINDS.kind("a slot dumped twice", "wiring.anomalies dump.health wiring.match")
def slot_twice(plan: Plan, strength: float, rng: Random) -> None:
    """One layer's states in two slots, and the drafter learned from them."""
    p, q = rng.sample(range(len(plan.world.trained_on)), 2)
    wiring = trained_layers(plan)
    wiring[p] = wiring[q]
    retrain(plan, wiring=wiring)
    for sample in plan.samples:
        sample["hidden_states"][p] = sample["hidden_states"][q].clone()


@KINDS.kind("a slot missing in the dump", "dump.feed", source="vllm-project/vllm#46788")
def slot_missing(plan: Plan, strength: float, rng: Random) -> None:
    p = rng.randrange(len(plan.world.trained_on))
    for sample in plan.samples:
        del sample["hidden_states"][p]
    del plan.slots[p]


@KINDS.kind("EAGLE in place of EAGLE3", "flags.algorithm", source="sgl-project/sglang#21272")
def eagle_for_eagle3(plan: Plan, strength: float, rng: Random) -> None:
    """The drafter is handed the final state alone, and fc is passed over."""
    flag(plan, "--speculative-algorithm", "EAGLE")
    if plan.server is not None:
        plan.server.wiring = [last_boundary(plan)] * len(plan.world.trained_on)
        fc = need(plan, "fc.weight")
        put(plan, "fc.weight", fc, torch.eye(*fc.shape))


@KINDS.kind("nothing captured", "served.expected served.variant served.acceptance", source="vllm-project/vllm#36527", needs="recording")
def nothing_captured(plan: Plan, strength: float, rng: Random) -> None:
    """The setter is accepted, and the forward never collects: fc is given zeros."""
    the_server(plan).spoil = _zeros


def _zeros(states: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(s) for s in states]


@KINDS.kind("engine without capture", "wiring.engine config.target", source="vllm-project/vllm#36527")
def no_capture(plan: Plan, strength: float, rng: Random) -> None:
    """A version that has no capture for this target's class yet."""
    architecture = plan.target_config["architectures"][0]
    unable = [v for v in _versions(plan) if convention_for(f"{plan.engine[0]}=={v}", architecture).rule == "none"]
    if not unable:
        raise Inapplicable("every version that was read captures this target")
    plan.engine = (plan.engine[0], rng.choice(unable))
    plan.server = None
