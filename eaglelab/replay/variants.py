"""What is fed to the drafter in one replay, and the sets of variants worth comparing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations, product
from math import perm

from eaglelab.drafter.model import Flags

MOST_ORDERS = 64
"""Orders of slots that are compared: 8 slots in 7 places would have 40,320."""
EMBEDDING = "embedding"
Source = int | str
"""A slot of the dump, or EMBEDDING: the embedding row of the row's own token (boundary 0)."""


@dataclass(frozen=True)
class Variant:
    """One way of running the drafter over the same samples."""

    feed: tuple[Source, ...]
    """What goes into each place of fc, in order."""
    token_shift: int = 0
    """0: state g[t] goes with token x[t+1]. -1: with x[t]."""
    state_shift: tuple[int, ...] = ()
    """Rows by which each place's states are moved back (1: g[t-1] where g[t] belongs); empty for none."""
    zeroed: tuple[int, ...] = ()
    """Places whose states are replaced by zeros."""
    flags: Flags | None = None
    """Another choice than the config's."""
    identity_vocabulary: bool = False
    """Draft ids taken as target ids: what an engine does when d2t is missing."""
    label: str = ""
    """A name of its own, for variants that carry one (the claim, the dump's wiring)."""

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        parts = ["feed " + ", ".join(f"slot {s}" if isinstance(s, int) else s for s in self.feed)]
        if self.token_shift:
            parts.append(f"token shifted by {self.token_shift:+d}")
        parts += [f"place {p}'s states {by} row late" for p, by in enumerate(self.state_shift) if by]
        parts += [f"place {p} zeroed" for p in self.zeroed]
        if self.flags is not None:
            parts.append(", ".join(f"{k} {'on' if v else 'off'}" for k, v in vars(self.flags).items() if v) or "all flags off")
        if self.identity_vocabulary:
            parts.append("identity vocabulary map")
        return "; ".join(parts)


def slot_orders(slots: Iterable[int], places: int, base: Sequence[int] | None = None, limit: int = MOST_ORDERS) -> list[Variant]:
    """Ordered choices of `places` slots out of the dump's: all of them (24 for three places and four slots), or where these are more
    than `limit`, those that a mistake makes of `base` (by default the first slots), likelier mistakes first."""
    slots = tuple(slots)
    if perm(len(slots), places) <= limit:
        return [Variant(feed) for feed in permutations(slots, places)]
    near = mistakes(slots, tuple(base or slots[:places]))
    return [Variant(feed) for feed in islice(dict.fromkeys(near), limit)]


def mistakes(slots: Sequence[int], base: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The base feed; every place one slot up or down; turned round and rotated; two places swapped; one slot replaced by an unused one;
    all ascending choices."""
    yield base
    places = range(len(base))
    for by in (1, -1):
        if all(s + by in slots for s in base):
            yield tuple(s + by for s in base)
    yield base[::-1]
    yield from (base[by:] + base[:by] for by in (1, len(base) - 1))
    for p, q in combinations(places, 2):
        yield tuple(base[{p: q, q: p}.get(i, i)] for i in places)
    for p, other in product(places, [s for s in slots if s not in base]):
        yield (*base[:p], other, *base[p + 1 :])
    yield from combinations(slots, len(base))


def places_changed(base: Variant) -> list[Variant]:
    """For each place of the fused input: zeroed, and one row late. What they cost is how much the drafter uses that place."""
    count = len(base.feed)
    zeroed = [replace(base, zeroed=(p,), label="") for p in range(count)]
    late = [replace(base, state_shift=tuple(int(p == q) for q in range(count)), label="") for p in range(count)]
    return zeroed + late


def other_choices(base: Variant, flags: Flags) -> list[Variant]:
    """Token shift either way, the recurrence, the residual and the final norm the other way round, and no vocabulary map."""
    flipped = [
        replace(flags, post_norm_recurrence=not flags.post_norm_recurrence),
        replace(flags, norm_before_residual=not flags.norm_before_residual),
    ]
    names = (
        "the next step starts from the " + ("post" if not flags.post_norm_recurrence else "pre") + "-norm state",
        "residual " + ("after" if not flags.norm_before_residual else "before") + " hidden_norm",
    )
    variants = [replace(base, token_shift=by, label=f"token shifted by {by:+d}") for by in (-1, 1)]
    variants += [replace(base, flags=f, label=name) for f, name in zip(flipped, names, strict=True)]
    return [*variants, replace(base, identity_vocabulary=True, label="identity vocabulary map")]


def with_embedding(feed: Sequence[Source]) -> list[Variant]:
    """The embedding in each place of a feed, and in front with the last slot pushed out: how layer id -1 gets misread."""
    placed = [Variant(tuple(EMBEDDING if p == place else s for p, s in enumerate(feed))) for place in range(len(feed))]
    pushed = Variant((EMBEDDING, *feed[:-1]))
    return placed + [pushed] * (pushed not in placed)
