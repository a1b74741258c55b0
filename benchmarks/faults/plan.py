"""A case before it is written: an injected fault changes any part of it, and two faults change one plan after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from torch import Tensor

Boundary = int | str
"""0 to N, or "final"."""


@dataclass
class World:
    """A trained target with texts that are its own greedy answers, and a drafter that was trained on their states."""

    kind: str
    """`llama`, `qwen3`, `deepseek`, `gemma`, `example`."""
    seed: int
    folder: Path
    """Of the target's checkpoint."""
    num_layers: int
    texts: list[Tensor]
    """[T] int64 each: prompt and greedy answer."""
    prompts: list[int]
    """Prompt tokens of each text."""
    states: list[dict[Boundary, Tensor]]
    """Per text: boundary -> [T, H] float32, by transformers' own forward."""
    trained_on: list[Boundary]
    """What the drafter's fc was fed, place by place."""
    tensors: dict[str, Tensor]
    """The drafter's checkpoint as exported."""
    config: dict[str, Any]
    """Its config.json, with the layer ids that feed `trained_on` on the healthy case's engine."""
    train: Callable[..., dict[str, Tensor]]
    """train(samples=None, updates=None, *, wiring, token_shift, mask, steps, seed, config, **flags) -> tensors of a drafter trained otherwise;
    cached by its arguments. See `drafters.train_drafter`."""
    engine: tuple[str, str] = ("sglang", "0.5.23")
    """Of the healthy case."""
    trained_texts: list[Tensor] = field(default_factory=list)
    """What the drafter was trained on; empty where it is not at hand."""
    trained_prompts: list[int] = field(default_factory=list)
    beyond: list[Tensor] = field(default_factory=list)
    """Of each text the tokens that the target would write next: the last verify pass of an answer looks at some. Empty: not known."""


@dataclass
class Server:
    """What the server really runs: the truth behind its counters."""

    wiring: list[Boundary]
    tensors: dict[str, Tensor]
    config: dict[str, Any]
    """The drafter's config as the engine computes it (what it ignores is off here)."""
    target: Path
    """The checkpoint that it serves."""
    num_steps: int = 3
    spoil: Callable[[Any], Any] | None = None
    """Changes the states that are fed, pass by pass, for faults of an engine's runtime (stale, zero, another request's rows): gets and returns one
    [R, H] a place of fc. With a method `reset()` it is told of each new request."""
    flags: dict[str, bool] = field(default_factory=dict)
    """Fields of `eaglelab.drafter.parts.Flags` that the engine computes otherwise than `config` says."""


@dataclass
class Plan:
    """Everything that a case is written from."""

    world: World
    slots: list[Boundary]
    """What the dump claims to hold, slot by slot, the last state last."""
    samples: list[dict[str, Any]]
    """input_ids [T], hidden_states: list of [T, H], loss_mask [T]: one file of the list-of-four layout each."""
    tensors: dict[str, Tensor]
    """The drafter's file in the case."""
    config: dict[str, Any]
    """The drafter's config.json in the case: what the engine reads."""
    target_config: dict[str, Any]
    engine: tuple[str, str]
    """Name and version in the case."""
    launch: str
    server: Server | None
    """None: the case has no recording."""
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further keys of case.toml, section by section; they go over what the writer puts there."""
    claims: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Lines of the server's log; empty: none is written, or the server's own."""
    trainer: list[dict[str, float]] = field(default_factory=list)
    """Rows of the trainer's metrics; empty: none is written."""
    trained: dict[str, Any] = field(default_factory=dict)
    """How the drafter was trained otherwise than the world's: a second fault of the training goes on from it."""
    files: dict[str, str | bytes] = field(default_factory=dict)
    """Further files by their path in the case's folder."""
    counted: list[tuple[int, int]] = field(default_factory=list)
    """(accepted drafted tokens, verify passes) of each request of a recording of other prompts, whose accept length is the effect."""
    target: str = "path"
    """How the case has its target: `path` (the checkpoint), `sketch` (with embedding rows), `none` (embedding rows and the target's config alone)."""
    told: tuple[str, ...] = ("recording", "log")
    """What the case has of the server."""

    def copy(self) -> Plan:
        """One that may be changed: all but the world's tensors is copied."""
        return copy.deepcopy(self, {id(self.world): self.world})


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    """Of the confusion table's row: `ids off by one`, `lm_head missing`."""
    cls: str
    """Letter of the class, A to O, as in `tests/report_classes.py`."""
    named_by: frozenset[str]
    """Ids of findings any of which names this fault. Stage words (`wiring`, …) are not enough."""
    inject: Callable[[Plan, float, Random], None]
    """inject(plan, strength, rng): strength 0 to 1, from just felt to gross. Raises `Inapplicable` where a world has no such thing."""
    source: str = ""
    """The public report that it retells."""
    needs: frozenset[str] = frozenset()
    """Inputs of the case without which it cannot be told (`recording`, `target`, `trainer`, …)."""


class Inapplicable(Exception):
    """This world has nothing to inject this kind into."""
