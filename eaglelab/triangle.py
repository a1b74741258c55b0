"""Trainer, replay and server in one definition, and the side on which acceptance is lost. Numbers in, no torch.

The one definition: accept length with K drafted steps, the bonus token included, 1 + the sum of the joint rates of steps 0..K-1, K being the
steps that the corners have in common. A trainer's marginal rates are multiplied along the chain (NeMo's and SpecForge's simulated length), which
is marked: equal only where steps are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eaglelab.acceptance import accept_length_from_joint
from eaglelab.served.counts import FEW_PASSES

APART = 0.1
"""Relative difference from which two accept lengths without an interval are called apart: within it lies what another sample of prompts does."""
CLOSE = 0.02
"""Relative difference up to which they are called equal even where the interval is narrower: bf16, and the cut last step of an answer."""
WEAK = 0.2
"""Step-0 acceptance below which a drafter gains next to nothing: public ones are at 0.6 to 0.8."""
HALF = 0.5
"""Share of the drafted tokens' gain below which a server on unknown text is not merely asked harder questions, as a split that costs half of a
trainer's number is called none (`training.metric`): a convention, on the careful side."""
TRAINER, REPLAY, SERVER = "trainer", "replay", "server"
HOW = {
    TRAINER: "`[training] metrics` names the trainer's log",
    REPLAY: "the dump, the drafter and the target (or embedding rows) let it be run alone",
    SERVER: "`eaglelab live CASE --url …` records what a server accepts, step by step",
}
"""How to get a corner that is missing."""


@dataclass(frozen=True)
class Corner:
    """What one of the three says."""

    name: str
    """`trainer`, `replay` or `server`."""
    joint: tuple[float, ...] = ()
    """Joint rates of steps 0, 1, …; empty where only a mean is told."""
    length: float | None = None
    """An accept length as told, with `steps` drafted; None: out of `joint`."""
    interval: tuple[float, float] | None = None
    """95 % of the accept length."""
    n: int | None = None
    of: str = ""
    """What n counts: verify passes, rows."""
    how: str = ""
    """Where it comes from, in words."""
    split: str | None = None
    """`train` or `heldout`, where it is known."""
    approximate: bool = False
    """Made of marginal rates."""

    @property
    def accept_length(self) -> float | None:
        return self.length if self.length is not None else accept_length_from_joint(self.joint) if self.joint else None

    @property
    def first(self) -> float | None:
        """Acceptance at step 0."""
        return self.joint[0] if self.joint else None

    def cut(self, steps: int) -> Corner:
        """With fewer drafted steps; a mean that cannot be cut stays as it is. The interval keeps its relative width."""
        if len(self.joint) <= steps:
            return self
        less = replace(self, joint=self.joint[:steps], length=None)
        whole, now = self.accept_length, less.accept_length
        if self.interval is None or whole <= 1:
            return replace(less, interval=None)
        scale = (now - 1) / (whole - 1)
        return replace(less, interval=tuple(1 + (x - 1) * scale for x in self.interval))

    def to_json(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("name", "n", "of", "how", "split", "approximate")}
        interval = None if self.interval is None else list(self.interval)
        return kept | {"accept_length": self.accept_length, "interval": interval, "joint": list(self.joint), "first": self.first}


@dataclass(frozen=True)
class Side:
    """Two corners compared: from what was promised to what was reached."""

    name: str
    """Where acceptance would be lost between them: `training`, `dump` or `engine`."""
    less: float
    """What the first has more than the second (accept length, or step-0 acceptance where `by` says so)."""
    low: float
    high: float
    by: str = "accept length"
    known: bool = True
    """False: they are apart, and whether by this cause cannot be told (another split, not said)."""
    why: str = ""
    """A sentence in place of the usual one."""

    @property
    def lost(self) -> bool:
        return self.low > 0

    def to_json(self) -> dict[str, Any]:
        return {
            "side": self.name,
            "less": self.less,
            "interval": [self.low, self.high],
            "by": self.by,
            "lost": self.lost,
            "known": self.known,
        }


@dataclass(frozen=True)
class Triangle:
    corners: tuple[Corner, ...]
    """Those that are there, in the order trainer, replay, server, all with the same steps."""
    gap: str
    """`training`, `dump`, `engine`, `none` (acceptance as trained: cost is the problem) or `cannot tell`."""
    why: str
    """One sentence."""
    sides: tuple[Side, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def steps(self) -> int | None:
        """K in common; None where a corner tells a mean alone."""
        told = {len(c.joint) for c in self.corners}
        return told.pop() if len(told) == 1 and 0 not in told else None

    def corner(self, name: str) -> Corner | None:
        return next((c for c in self.corners if c.name == name), None)

    def to_json(self) -> dict[str, Any]:
        sides = [s.to_json() for s in self.sides]
        known = {"gap": self.gap, "why": self.why, "missing": list(self.missing), "steps": self.steps}
        return known | {"corners": [c.to_json() for c in self.corners], "sides": sides}


def triangulate(
    trainer: Corner | None = None,
    replay: Corner | None = None,
    server: Corner | None = None,
    *,
    counted_again: Side | None = None,
    served_less: tuple[float, float, float] | None = None,
    dumped: Corner | None = None,
    same_text: bool = True,
    worth: float | None = None,
) -> Triangle:
    """Locate the gap. Raises ValueError for fewer than two corners.

    counted_again: the trainer's own metric less the replay's by the same definition, where it was counted (better than two accept lengths of
    different definitions). served_less: (replay less server, low, high), paired by request on the same text. dumped: the replay of
    the dump's own answers, where `replay` is of prompts that are not the dump's. worth: accept length that breaks even.
    """
    given = [c for c in (trainer, replay, server) if c is not None and c.accept_length is not None]
    if len(given) < 2:
        raise ValueError(
            f"a triangle needs two of trainer, replay and server with an accept length, got {[c.name for c in given] or 'none'}"
        )
    steps = min((len(c.joint) for c in given if c.joint), default=0)
    corners = tuple(c.cut(steps) if steps else c for c in given)
    by_name = {c.name: c for c in corners}
    trainer, replay, server = (by_name.get(name) for name in (TRAINER, REPLAY, SERVER))
    missing = tuple(name for name in (TRAINER, REPLAY, SERVER) if name not in by_name)
    sides: list[Side] = []
    if trainer and replay:
        sides.append(counted_again or _side(trainer, replay, _between(trainer, replay)))
    if replay and server:
        side = Side("engine", *_floor(served_less, replay)) if served_less else _side(replay, server, "engine")
        sides.append(replace(side, known=same_text or served_less is not None or _no_prompts_cost_that(replay, server)))
    if replay and dumped is not None:
        sides.append(replace(_side(dumped.cut(steps) if steps else dumped, replay, "training"), why=_of_text(dumped, replay)))
    if trainer and server and not replay:
        sides.append(replace(_side(trainer, server, "dump or engine"), known=False))
    gap, why = _located(sides, trainer, replay, server, worth)
    return Triangle(corners, gap, why, tuple(sides), missing)


def _of_text(dumped: Corner, served: Corner) -> str:
    return (
        f"the drafter alone reaches {dumped.accept_length:.2f} on the dump's answers and {served.accept_length:.2f} on what was asked of the server: "
        "that is text of another kind than it was trained on"
    )


def _between(trainer: Corner, replay: Corner) -> str:
    """On other data than it was trained on a drafter may know less: that is the training's; on the same it is the dump's (or the file's)."""
    return "training" if (trainer.split, replay.split) == ("train", "heldout") else "dump"


def _side(more: Corner, less: Corner, name: str) -> Side:
    """By accept length where both have it with the same steps, else by step 0."""
    same = len(more.joint) == len(less.joint) or not (more.joint and less.joint)
    one, other = (more.accept_length, less.accept_length) if same else (more.first, less.first)
    known = name != "dump" or (more.split is not None and more.split == less.split)
    widths = [(c.interval[1] - c.interval[0]) / 2 for c in (more, less) if same and c.interval and math.isfinite(c.interval[1])]
    half = max(math.hypot(*widths), CLOSE * one) if widths else APART * one
    return Side(name, one - other, one - other - half, one - other + half, "accept length" if same else "step-0 acceptance", known)


def _no_prompts_cost_that(replay: Corner, server: Corner) -> bool:
    """Other prompts than the dump's may be harder, and on its training data a drafter is better than on any: only where the replay was on held-out
    data, and the server keeps less than half of what is gained there, do prompts not explain it."""
    return replay.split == "heldout" and server.accept_length - 1 < HALF * (replay.accept_length - 1)


def _floor(less: tuple[float, float, float], replay: Corner) -> tuple[float, float, float]:
    """A difference within CLOSE is none, however narrow its interval."""
    gap, low, high = less
    return (gap, min(low, 0.0), high) if abs(gap) <= CLOSE * replay.accept_length else (gap, low, high)


def _located(
    sides: Sequence[Side], trainer: Corner | None, replay: Corner | None, server: Corner | None, worth: float | None
) -> tuple[str, str]:
    def size(side: Side) -> float:
        """In accept length, though it was told apart by step 0."""
        return side.less if side.by == "accept length" or not (trainer and replay) else trainer.accept_length - replay.accept_length

    few = server is not None and server.n is not None and server.n < FEW_PASSES
    sides = [s for s in sides if not (few and "engine" in s.name)]
    lost = sorted((s for s in sides if s.lost), key=size, reverse=True)
    sure = [s for s in lost if s.known]
    if sure:
        return sure[0].name, _words(sure[0], trainer, replay, server)
    if lost:
        pair = (replay, server) if lost[0].name == "engine" else (trainer, replay or server)
        return "cannot tell", f"{_apart(*pair)}: {_whether(lost[0])}"
    if few:
        return "cannot tell", f"{_apart(replay or trainer, server)}: {server.n} verify passes of the server are too few"
    more = next((s for s in sides if s.name == "engine" and s.known and s.high < 0), None)
    if more is not None and -more.less > CLOSE * replay.accept_length:
        return (
            "cannot tell",
            f"{_apart(replay, server)}: a server cannot accept more of one text than this drafter does on the right states, so states, drafter or "
            "text here are not those of the server",
        )
    reached = server or replay
    weak = replay or trainer
    low = worth is not None and reached.accept_length < worth
    if weak.first is not None and weak.first < WEAK:
        return (
            "training",
            f"the {weak.name} itself is right {weak.first:.0%} of the time at step 0: what was trained is reached, and is too little",
        )
    if server is None:
        return "cannot tell", f"{_apart(trainer, replay)}, as trained; what the server reaches is missing"
    if replay is not None and any(s.name == "engine" and not math.isfinite(s.low) for s in sides):
        return "cannot tell", "replay and server are of too few requests to be told apart"
    if low:
        return (
            "training",
            f"the server reaches what was trained ({reached.accept_length:.2f}), and {worth:.2f} breaks even: a better drafter is needed, or a cheaper cycle",
        )
    return "none", f"{_apart(trainer or replay, server)}: acceptance is as trained; where it is slow all the same, cost is the problem"


def _words(side: Side, trainer: Corner | None, replay: Corner | None, server: Corner | None) -> str:
    if side.why:
        return side.why
    if side.name == "engine":
        return f"the replay reaches {replay.accept_length:.2f} and the server {server.accept_length:.2f}: the server feeds or computes something else"
    if side.name == "training":
        return f"{_apart(trainer, replay)} on data that was held out: the drafter knows its training data better than other data"
    return f"{_apart(trainer, replay)} on the same split: this is not the drafter, the dump or the feed that the trainer's number is of"


def _apart(one: Corner | None, other: Corner | None) -> str:
    return " and ".join(f"the {c.name} {c.accept_length:.2f}" for c in (one, other) if c is not None and c.accept_length is not None)


def _whether(side: Side) -> str:
    if side.name == "dump or engine":
        return "whether dump or engine loses it, the replay would say"
    if side.name == "engine":
        return "whether the engine loses it or the server answers harder prompts cannot be told: nobody knows whose text it is"
    return "whether the dump is at fault or only the data differ cannot be told while a split is not known"
