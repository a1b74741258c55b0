"""How kinds are declared, and what their injections share: ids and what an engine makes of them, the drafter's file, samples, flags, log."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from eaglelab.engines.config_ids import config_ids
from eaglelab.engines.conventions import CannotFeed, Convention, Engine, convention_for
from eaglelab.engines.wiring_report import EngineWiring, engine_wiring
from eaglelab.wiring import FINAL
from faults.healthy import LAUNCH, trainer_rows
from faults.plan import Boundary, Inapplicable, Kind, Plan, Server
from faults.server import accepted_of
from faults.server import serve as answer

Inject = Callable[[Plan, float, Random], None]


class Family(list[Kind]):
    """The kinds of one class, in the order in which they are declared."""

    def __init__(self, cls: str) -> None:
        super().__init__()
        self.cls = cls

    def kind(self, name: str, named_by: str, *, source: str = "", needs: str = "") -> Callable[[Inject], Inject]:
        """Declares an injection. named_by, needs: words with spaces between them."""

        def declare(inject: Inject) -> Inject:
            self.append(Kind(name, self.cls, frozenset(named_by.split()), inject, source, frozenset(needs.split())))
            return inject

        return declare


def generator(rng: Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(31))


def between(strength: float, least: float, most: float) -> float:
    """A number on the line from just felt to gross."""
    return least + strength * (most - least)


# -- ids and engines ----------------------------------------------------------------------------------------------------------------------


def engine(plan: Plan) -> Engine:
    return Engine(*plan.engine)


def convention(plan: Plan) -> Convention:
    return convention_for(engine(plan), plan.target_config["architectures"][0])


def fed(plan: Plan) -> EngineWiring:
    """What the plan's engine makes of its config."""
    return engine_wiring(plan.config, plan.target_config, engine(plan))


def ids_for(plan: Plan, boundaries: Sequence[int]) -> list[int]:
    """Ids that stand for boundaries by the engine's rule; those that it cannot capture are counted on by the same rule."""
    rule, layers = convention(plan), plan.world.num_layers
    try:
        return rule.ids_for(boundaries, layers)
    except CannotFeed:
        if rule.rule == "none":
            raise Inapplicable(f"{rule.engine.title} captures nothing of {rule.architecture}") from None
        add = boundaries[-1] - rule._shift([boundaries[-1]], layers)[0]
        return [b + add for b in boundaries]


def write_ids(plan: Plan, ids: list[int]) -> None:
    """Layer ids where the plan's engine reads them."""
    *parents, name = (config_ids(plan.config, convention(plan)).key or convention(plan).family["write_key"]).split(".")
    place = plan.config
    for parent in parents:
        place = place.setdefault(parent, {})
    place[name] = ids


def serve(plan: Plan) -> None:
    """The server as it runs with the plan's engine and config: another wiring, or no server where the engine does not start."""
    now = fed(plan)
    if plan.server is None:
        return
    if None in now.wiring or len(now.wiring) != len(plan.world.trained_on):
        plan.server = None
        return
    plan.server.wiring = list(now.wiring)


def feed(plan: Plan, boundaries: Sequence[int]) -> None:
    """Write ids for these boundaries and serve them. Raises Inapplicable where nothing changes."""
    before = fed(plan).wiring
    write_ids(plan, ids_for(plan, boundaries))
    if fed(plan).wiring == before:
        raise Inapplicable(f"the engine feeds {before} all the same")
    serve(plan)


def move(plan: Plan, name: str, version: str) -> None:
    """Another engine or version that feeds what the drafter was trained on. Raises Inapplicable where it cannot."""
    if name != plan.engine[0]:
        config_of(plan, lambda config: config.pop("eagle_config", None))
        steps = 3 if plan.server is None else plan.server.num_steps
        plan.launch = LAUNCH[name].format(k=steps, nodes=steps + 1)
    plan.engine = (name, version)
    write_ids(plan, ids_for(plan, trained_layers(plan)))
    if list(fed(plan).wiring) != trained_layers(plan) or not fed(plan).captures_boundaries:
        raise Inapplicable(f"{name} {version} cannot feed {plan.world.trained_on}")


def trained_layers(plan: Plan) -> list[int]:
    """The boundaries of fc's places. Raises Inapplicable where one is no layer's."""
    if not all(isinstance(b, int) for b in plan.world.trained_on):
        raise Inapplicable("fc is fed the normed state")
    return list(plan.world.trained_on)


# -- the drafter --------------------------------------------------------------------------------------------------------------------------


def put(plan: Plan, name: str, stored: Tensor | None, loaded: Tensor | None = None) -> None:
    """A tensor of the drafter's file (None: not in it), and what the server has in its place once it is loaded."""
    need(plan, name)
    plan.tensors = {n: t for n, t in plan.tensors.items() if n != name} | ({} if stored is None else {name: stored})
    if plan.server is not None:
        plan.server.tensors = {**plan.server.tensors, name: stored if loaded is None else loaded}


def need(plan: Plan, name: str) -> Tensor:
    if name not in plan.tensors:
        raise Inapplicable(f"the drafter has no {name}")
    return plan.tensors[name]


def random_like(tensor: Tensor, rng: Random, spread: float = 0.02) -> Tensor:
    """N(0, 0.02), as modules are initialised with."""
    return torch.randn(tensor.shape, generator=generator(rng)) * spread


def retrain(plan: Plan, **how: Any) -> None:
    """The plan's drafter, in the file and on the server, is one that was trained otherwise (`drafters.train_drafter`).

    The trainer's log is the new training's where it counts as the healthy one does, and is not at hand where it does not.
    """
    if "config" in plan.trained:
        how["config"] = plan.trained["config"] | how.get("config", {})
    how = plan.trained = plan.trained | how
    plan.tensors = plan.world.train(**how)
    if plan.server is not None:
        plan.server.tensors = dict(plan.tensors)
    if plan.trainer and not how.keys() - {"samples", "updates", "wiring", "steps"}:
        states = [{**s, "zero": torch.zeros_like(s["final"])} for s in plan.world.states]
        own = replace(plan.world, tensors=plan.tensors, trained_on=how.get("wiring", plan.world.trained_on), states=states)
        plan.trainer = trainer_rows(own)
    else:
        drop_trainer(plan)


def drop_trainer(plan: Plan) -> None:
    plan.trainer = []
    plan.sections.pop("training", None)


def config_of(plan: Plan, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the config, the file's and what the server computes by."""
    for config in [plan.config] + [plan.server.config] * (plan.server is not None):
        change(config)


def the_server(plan: Plan) -> Server:
    """Raises Inapplicable where there is none."""
    if plan.server is None:
        raise Inapplicable("no server")
    return plan.server


def blocks(fc: Tensor, slots: int) -> list[Tensor]:
    """fc's columns, [H, Ht] for each place."""
    return list(fc.chunk(slots, dim=1))


# -- the dump -----------------------------------------------------------------------------------------------------------------------------


def text_of(plan: Plan, sample: dict[str, Any]) -> int:
    """Which text of the world a sample is of. Raises Inapplicable where an earlier fault changed its tokens."""
    ids = sample["input_ids"]
    for i, text in enumerate(plan.world.texts):
        if text.shape == ids.shape and torch.equal(text, ids):
            return i
    raise Inapplicable("the samples' tokens are no longer the world's")


def each_slot(plan: Plan, change: Callable[[Tensor], Tensor], slots: Sequence[int] | None = None) -> None:
    """Change the states of some slots (by default those that fc is fed) in all samples. change: [T, H] -> [T, H]."""
    for sample in plan.samples:
        states = sample["hidden_states"]
        for s in range(len(states) - 1) if slots is None else slots:
            states[s] = change(states[s]).to(states[s].dtype)


def hold(plan: Plan, slot: int, boundary: Boundary) -> None:
    """Slot `slot` of the dump holds another boundary."""
    for sample in plan.samples:
        held = sample["hidden_states"]
        held[slot] = state(plan, sample, boundary).to(held[slot].dtype).clone()


def state(plan: Plan, sample: dict[str, Any], boundary: Boundary) -> Tensor:
    """[T, H] of a sample's text. Raises Inapplicable where the world does not have it (the example has four boundaries)."""
    held = plan.world.states[text_of(plan, sample)]
    if boundary not in held:
        raise Inapplicable(f"the world has no states at {boundary}")
    return held[boundary]


def orthogonal(width: int, rng: Random) -> Tensor:
    """[H, H] a random rotation."""
    q, r = torch.linalg.qr(torch.randn(width, width, generator=generator(rng), dtype=torch.float64))
    return (q * r.diagonal().sign()).float()


def last_boundary(plan: Plan) -> Boundary:
    return plan.slots[-1] if plan.slots[-1] is not None else FINAL


# -- the launch line and the log --------------------------------------------------------------------------------------------------------------


def flag(plan: Plan, name: str, value: str | int | None = None) -> None:
    """Set an option of an SGLang launch line. value None: a switch. Raises Inapplicable for another engine's line."""
    if plan.engine[0] != "sglang" or "sglang" not in plan.launch:
        raise Inapplicable("an option of SGLang")
    text = name if value is None else f"{name} {value}"
    pattern = rf"{re.escape(name)}(?:[ =][^\s-]\S*)?(?=\s|$)"
    plan.launch = re.sub(pattern, text, plan.launch) if re.search(pattern, plan.launch) else f"{plan.launch} {text}"


def unflag(plan: Plan, name: str) -> None:
    if name not in plan.launch:
        raise Inapplicable(f"the line has no {name}")
    plan.launch = re.sub(rf"\s*{re.escape(name)}(?:[ =][^\s-]\S*)?(?=\s|$)", "", plan.launch)


def decode_lines(lengths: Sequence[float], *, running: int = 1, graph: bool = True, rank: str = "", start: int = 0) -> list[str]:
    """SGLang's decode lines, one for each accept length, forty seconds apart, as 0.5.23 prints them with three steps."""
    lines = []
    for i, length in enumerate(lengths, start):
        minute, second = divmod(40 * i, 60)
        lines.append(
            f"[2026-05-11 {10 + minute // 60:02}:{minute % 60:02}:{second:02}{rank}] Decode batch, #running-req: {running}, #token: {900 + 7 * i}, "
            f"token usage: 0.05, accept len: {length:.2f}, accept rate: {(length - 1) / 3:.2f}, cuda graph: {graph}, "
            f"gen throughput (token/s): {70 * length:.2f}, #queue-req: 0"
        )
    return lines


def noisy(mean: Sequence[float], rng: Random, spread: float = 0.06) -> list[float]:
    """Accept lengths of log lines: each line counts forty passes, so that they differ by some hundredths."""
    return [min(3.9, max(1.02, m + rng.gauss(0, spread))) for m in mean]


def only_log(plan: Plan, lines: list[str]) -> None:
    """All that is known of the server is a log."""
    need_sglang(plan)
    plan.log, plan.server = lines, None


def reached(plan: Plan) -> float:
    """The accept length that the plan's server has: what lines of its log lie around."""
    counts = accepted_of(answer(plan.world, the_server(plan)))
    return 1 + sum(a for a, _ in counts) / sum(n for _, n in counts)


def need_sglang(plan: Plan) -> None:
    if plan.engine[0] != "sglang":
        raise Inapplicable("a line of SGLang's log")
