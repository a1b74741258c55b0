"""What a server may have been doing: every deviation that can be replayed on the states at hand, each with what to change if it is this.

A wiring is told by its boundaries where these are known, else by the dump's slots. Two deviations that feed and compute the same are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from eaglelab.drafter.model import Flags
from eaglelab.engines.conventions import convention_for
from eaglelab.engines.target_config import target_shape
from eaglelab.engines.wiring_report import engine_wiring
from eaglelab.replay.variants import EMBEDDING, Source, Variant, mistakes, other_choices, with_embedding
from eaglelab.wiring import Boundary, Wiring

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation

TRAINED, CONFIG = "trained", "config"
"""Roles: what the drafter was trained on; what the server's config makes its engine do."""
OWN, RANDOM_EMBEDDING, RANDOM_HEAD, TARGETS_HEAD = "own", "random embedding", "random lm_head", "the target's lm_head"
"""Weights that a candidate drafts with."""
SAMPLED = "sampled"
"""In place of weights: accepted by the target's probability of the drafted token."""
LIVE_CAPTURE = "`eaglelab live CASE --url … --capture DIR` shows the states that are fed"
CACHES = f"{LIVE_CAPTURE}; switch off prefix cache, chunked prefill and graphs one at a time, and compare engine versions."
NEXT = {
    "wiring": f"Find the config and engine version that this server runs: `eaglelab wiring` says which boundaries a config feeds; {LIVE_CAPTURE}.",
    "states": CACHES,
    "tokens": f"Tokens and states are a row apart in this engine: {CACHES}",
    "flags": "The engine computes this otherwise than the drafter was trained: see config.* for what this version ignores, and serve with one that "
    "honours it.",
    "vocabulary": "The engine reads the draft vocabulary otherwise than it was trained: is d2t in the file that is served, as offsets (target id less "
    "draft id), and of the same export as lm_head?",
    "weights": "The server runs with other weights than the case's file: compare the served folder's tensors (drafter.complete) and the server's "
    "start-up log for weights that were not loaded.",
    "sampling": "The server samples: set the temperature to 0 to compare; what it reaches so is in replay.sampling.",
    "launch": "Launch with EAGLE3, not EAGLE: the latter hands over one state, and fc is left out.",
}
"""What to do where a deviation of a kind reproduces the server."""


@dataclass(frozen=True)
class Candidate:
    """One thing that the server may have been doing."""

    kind: str
    """`wiring`, `states`, `tokens`, `flags`, `vocabulary`, `weights`, `launch` or `sampling`."""
    name: str
    variant: Variant
    weights: str = OWN
    wiring: Wiring | None = None
    """The boundaries that it feeds, where they are known."""
    roles: frozenset[str] = frozenset()
    without_fc: bool = False
    """The last state goes in as it is, past fc."""

    @property
    def trained(self) -> bool:
        return TRAINED in self.roles

    @property
    def plain(self) -> bool:
        """Whether it is a feed and nothing else."""
        return self.weights == OWN and not self.without_fc and self.variant == Variant(self.variant.feed, label=self.variant.label)

    @property
    def next(self) -> str:
        return NEXT[self.kind]


def wirings(inv: Investigation, draft_config: Mapping | None = None) -> dict[Wiring, str]:
    """Wirings that an engine may feed -> why, the likelier ones first: the right one a layer off, and a config's ids (and no ids) as
    other engines and versions read them. Without those that are not known throughout or not of this target."""
    named: dict[Wiring, str] = {}
    layers, right = inv.num_layers, inv.served.right_wiring
    places = None if right is None else len(right)

    def add(boundaries, why: str) -> None:
        wiring = Wiring.of(boundaries)
        fits = wiring.known and len(wiring) == places and all(isinstance(b, str) or 0 <= b <= layers for b in wiring)
        if fits and wiring != right:
            named.setdefault(wiring, why)

    if right is None or layers is None:
        return named
    if all(isinstance(b, int) for b in right):
        for by, how in ((-1, "earlier"), (1, "later")):
            add((b + by for b in right), f"each one layer {how}")
    config = draft_config or inv.draft_config
    for engine in dict.fromkeys(filter(None, (inv.engine, "sglang", "vllm"))):
        with suppress(ValueError):
            convention = convention_for(engine, target_shape(inv.target_config).architecture)
            add(convention.feed(None, layers).boundaries, f"{convention.family['title']}'s default")
            if config is not None:
                read = engine_wiring(config, inv.target_config, engine)
                add(read.wiring, f"the config's ids as {read.engine.title} reads them")
                for other in read.other_versions:
                    add(other.boundaries, f"the config's ids as {read.engine.title.split()[0]} {other.versions} reads them")
    return named


def candidates(
    inv: Investigation,
    base: tuple[Source, ...],
    slots: tuple[Source, ...],
    place: Mapping[Boundary, Source],
    *,
    fed: tuple[Source, ...] | None,
    fed_wiring: Wiring | None,
    draft_config: Mapping | None = None,
    last: int | None = None,
) -> list[Candidate]:
    """All that can be replayed, the trained one first; no two alike.

    base: the dump's feed, slots: all its slots, as sources in the samples at hand; place: where each boundary lies in them. fed,
    fed_wiring: what the server's config feeds. last: the slot of the last state, for fc left out.
    """
    found: dict[tuple, Candidate] = {}
    for c in _all(inv, base, slots, place, fed, fed_wiring, draft_config, last):
        key = (replace(c.variant, label=""), c.weights, c.without_fc)
        if key in found:
            found[key] = replace(found[key], roles=found[key].roles | c.roles)
        else:
            found[key] = c
    return list(found.values())


def pairs(wirings: Iterable[Candidate], others: Iterable[Candidate]) -> list[Candidate]:
    """Wirings with deviations of another kind: two faults at once."""
    found = []
    for wiring, c in product(wirings, others):
        if (
            c.kind in PAIR
            and not c.roles
            and c.weights != RANDOM_HEAD
            and c.variant.feed != wiring.variant.feed
            and not any(c.variant.state_shift)
        ):
            places = ", ".join(str(p) for p in c.variant.zeroed)
            name = f"{wiring.name} and {f'zeros in place {places} of fc' if places else c.name}"
            found.append(replace(c, name=name, variant=replace(c.variant, feed=wiring.variant.feed, label=""), wiring=wiring.wiring))
    return found


PAIR = ("states", "tokens", "flags", "vocabulary", "weights")
"""Kinds that are tried together with another wiring."""


def _all(inv, base, slots, place, fed, fed_wiring, draft_config, last) -> Iterator[Candidate]:
    where = {source: b for b, source in reversed(place.items())}
    trained, right = Variant(base), inv.served.right_wiring
    as_trained = f"what the drafter was trained on ({_feed(base, where)})"
    yield Candidate("wiring", as_trained, trained, wiring=right, roles=frozenset({TRAINED}))
    flags = None if inv.computed_flags in (None, Flags.of(inv.drafter.config)) else inv.computed_flags
    if fed is not None:
        roles = frozenset({CONFIG} if flags is None else ())
        yield Candidate("wiring", f"{_feed(fed, where)}, which its config names", Variant(fed), wiring=fed_wiring, roles=roles)
    for wiring, why in wirings(inv, draft_config).items():
        if all(b in place for b in wiring):
            yield Candidate("wiring", f"boundaries {wiring} ({why})", Variant(tuple(place[b] for b in wiring)), wiring=wiring)
    feeds = [Variant(f) for f in mistakes(slots, base)] if all(isinstance(s, int) for s in base) else []
    feeds += with_embedding(base) if 0 in place and EMBEDDING not in base else []
    for v in feeds:
        yield Candidate("wiring", _feed(v.feed, where), v, wiring=Wiring.of(where.get(s) for s in v.feed))
    places = range(len(base))
    for p in places:
        yield Candidate("states", f"zeros in place of {_source(base[p], where)}", replace(trained, zeroed=(p,)))
    yield Candidate("states", "zeros in place of all states", replace(trained, zeroed=tuple(places)))
    yield Candidate("states", "all states a row late", replace(trained, state_shift=(1,) * len(base)))
    config, drafter = inv.drafter.config, inv.drafter
    if flags is not None:
        for feed in dict.fromkeys((fed or base, base)):
            roles = frozenset({CONFIG} if feed == (fed or base) else ())
            yield Candidate("flags", f"{_feed(feed, where)}, computed as {inv.engine.title} does", Variant(feed, flags=flags), roles=roles)
    for v in other_choices(trained, config, mapped=bool(drafter.d2t.any()), own_table=inv.own_table):
        kind = "tokens" if v.token_shift else "vocabulary" if v.vocabulary != "d2t" else "flags"
        yield Candidate(kind, f"“{v.label}”", v)
    yield Candidate("weights", "an lm_head that was never loaded (right once in Vd)", trained, RANDOM_HEAD)
    yield Candidate("weights", "an embedding table that was never loaded", trained, RANDOM_EMBEDDING)
    if inv.with_targets_head is not None:
        yield Candidate("weights", "the target's lm_head in place of its own", trained, TARGETS_HEAD)
    if last is not None and config.hidden_size == config.target_hidden_size:
        yield Candidate("launch", "the last state alone, past fc (EAGLE in place of EAGLE3)", Variant(base), without_fc=True)


def _feed(feed: tuple[Source, ...], where: Mapping[Source, Boundary]) -> str:
    if all(where.get(s) is not None for s in feed):
        return f"boundaries {Wiring.of(where[s] for s in feed)}"
    return ", ".join(_source(s, where) for s in feed)


def _source(source: Source, where: Mapping[Source, Boundary]) -> str:
    boundary = where.get(source)
    return f"boundary {boundary}" if boundary is not None else "the embedding" if source == EMBEDDING else f"slot {source}"
