"""What is fed to the drafter in one replay, and the sets of variants worth comparing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from eaglelab.drafter.model import Flags

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


def slot_orders(slots: Iterable[int], places: int) -> list[Variant]:
    """Every ordered choice of `places` slots out of the dump's: 24 for three places and four slots."""
    return [Variant(feed) for feed in permutations(slots, places)]


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
