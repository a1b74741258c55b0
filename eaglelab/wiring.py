"""Boundaries and wirings: the one numbering that is used inside the code.

Boundary b is the target's residual stream after b decoder layers: 0 is the embedding, N the last layer's output before the final
norm. `FINAL` is the state after the final norm. Layer ids in configs and logs are turned into boundaries at the door by a named
convention (`eaglelab.engines.conventions`) and turned back only when a config is written for a named engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FINAL = "final"
Boundary = int | str | None
"""A boundary number 0..N, `FINAL`, or None where the slot is not captured or its boundary cannot be told."""


def boundary_name(boundary: Boundary, num_layers: int | None = None) -> str:
    """A boundary in words, for tables and findings: `embedding`, `3`, `30 (last layer, before the final norm)`, `final`."""
    if boundary is None:
        return "cannot tell"
    if boundary == 0:
        return "0 (embedding)"
    if num_layers is not None and boundary == num_layers:
        return f"{boundary} (last layer, before the final norm)"
    if boundary == FINAL:
        return "final (after the final norm)"
    return str(boundary)


def boundary_phrase(boundary: Boundary, num_layers: int | None = None) -> str:
    """A boundary inside a sentence: `boundary 3`, `the embedding (boundary 0)`, `the state after the final norm`, `nothing that can be told`."""
    if boundary is None:
        return "nothing that can be told"
    if boundary == 0:
        return "the embedding (boundary 0)"
    if boundary == FINAL:
        return "the state after the final norm"
    return f"boundary {boundary_name(boundary, num_layers)}"


def check_boundary(boundary: Boundary) -> None:
    """Raise ValueError unless `boundary` is None, `FINAL` or an int of 0 or more."""
    if boundary is None or boundary == FINAL:
        return
    if isinstance(boundary, bool) or not isinstance(boundary, int):
        raise ValueError(f"a boundary is an int, {FINAL!r} or None, got {boundary!r}")
    if boundary < 0:
        raise ValueError(f"boundary {boundary} is outside 0..N")


@dataclass(frozen=True)
class Wiring:
    """A boundary for each slot, in the order of the slots. Iterates, indexes and compares like a tuple."""

    boundaries: tuple[Boundary, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        for boundary in self.boundaries:
            check_boundary(boundary)

    @classmethod
    def of(cls, boundaries: Iterable[Boundary]) -> Wiring:
        return cls(tuple(boundaries))

    def __iter__(self) -> Iterator[Boundary]:
        return iter(self.boundaries)

    def __len__(self) -> int:
        return len(self.boundaries)

    def __getitem__(self, slot: int) -> Boundary:
        return self.boundaries[slot]

    def __str__(self) -> str:
        return "[" + ", ".join("?" if b is None else str(b) for b in self.boundaries) + "]"

    @property
    def known(self) -> bool:
        """True when every slot has a boundary."""
        return all(b is not None for b in self.boundaries)

    def select(self, slots: Iterable[int]) -> Wiring:
        """The wiring of some slots, in the order given (the feed of a drafter out of a dump)."""
        return Wiring(tuple(self.boundaries[s] for s in slots))

    def to_json(self) -> list[Boundary]:
        return list(self.boundaries)
