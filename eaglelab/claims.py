"""What people write about slots, turned into boundaries so that it can be set beside the evidence. Claims are never evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable

from eaglelab.case import Claim
from eaglelab.wiring import FINAL, Boundary, Wiring

EMBEDDING_WORDS = re.compile(r"\b(embed\w*|token[ _]?emb\w*|wte)\b", re.IGNORECASE)
FINAL_WORDS = re.compile(r"\b(final|last[ _]?hidden(_states?)?|post[- ]?norm|normed)\b", re.IGNORECASE)
BEFORE_THE_NORM = re.compile(r"\b(before|pre[- ]?norm\w*|un-?normed)\b", re.IGNORECASE)
NUMBER = re.compile(r"\b(layers?|boundary|hidden[ _]?states?|hs)(?:[ _#]{0,2}|-|\.)\[?(\d{1,5})\b\]?", re.IGNORECASE)
OUTPUT, INPUT = re.compile(r"\b(output|after)\b", re.IGNORECASE), re.compile(r"\b(input|before|entering)\b", re.IGNORECASE)

MOST_IDS = 64
"""A longer list of numbers is no list of layer ids."""


def claimed_readings(text: str) -> tuple[Boundary, ...]:
    """The boundaries that a label may mean, the likeliest first; () where it names none.

    `embed` is 0; `boundary 3` and `hidden_states[3]` are 3; `output of layer 3` is 4; plain `layer3` is 3 or 4, since writers mean
    either; `final` is FINAL. A label that says what a slot is *not* names nothing.
    """
    if re.search(r"\bnot\b", text, re.IGNORECASE):
        return ()
    if found := NUMBER.search(text):
        k = int(found.group(2))
        if not found.group(1).lower().startswith("layer") or INPUT.search(text):
            return (k,)
        return (k + 1,) if OUTPUT.search(text) else (k, k + 1)
    if EMBEDDING_WORDS.search(text):
        return (0,)
    return (FINAL,) if FINAL_WORDS.search(text) and not BEFORE_THE_NORM.search(text) else ()


def claimed_boundary(text: str) -> Boundary:
    """The likeliest reading of a label, None where it names no boundary."""
    return next(iter(claimed_readings(text)), None)


def claimed_wiring(claims: Iterable[Claim]) -> Wiring | None:
    """The dump's wiring as the claims on slots have it; None where none names a boundary."""
    named = {c.slot: claimed_boundary(c.text) for c in claims if c.slot is not None}
    if not any(b is not None for b in named.values()):
        return None
    return Wiring.of(named.get(slot) for slot in range(max(named) + 1))


def claimed_ids(text: str) -> list[int] | None:
    """Layer ids written in a claim's text, `[-1, 2, 15]`; None where there is no such list."""
    found = re.search(r"\[\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\]", text)
    numbers = found.group(1).split(",") if found else []
    return [int(n) for n in numbers] if 0 < len(numbers) <= MOST_IDS and all(len(n.strip()) < 7 for n in numbers) else None


def claimed_capture_ids(claims: Iterable[Claim], places: int) -> list[int] | None:
    """The layer ids that the dump is said to have been captured with, one for each place of fc and ascending; None where nobody says."""
    for claim in claims:
        ids = claimed_ids(claim.text) if claim.key is not None else None
        if ids is not None and ids[:places] == sorted(set(ids[:places])) and len(ids) >= places:
            return ids[:places]
    return None
