"""What identify says: the dump's wiring, the numbers behind it, and what else was seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from eaglelab.findings import few, plain
from eaglelab.identify.rule import SWAPPED, Judgement, Rule, margin_of
from eaglelab.wiring import Boundary, Wiring, boundary_phrase

SAME = 1e-3
"""A relative error below this is no difference worth a number: bf16 rounds by 4e-3."""


@dataclass(frozen=True)
class Anomaly:
    """Something about a slot that a boundary's number alone does not say.

    `kind`: missing, width, nan, zero, padding, length, duplicate, shifted, swapped rows, without residual, rotated basis,
    permuted channels, scaled, in between, other tokens, edge, tie, far from rounding, no match.
    """

    slot: int
    kind: str
    detail: str
    boundary: Boundary = None
    """The boundary that the slot is a shifted, scaled, rotated, … version of, where that can be told."""
    samples: int = 1
    of: int = 1
    numbers: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return plain(vars(self))


@dataclass(frozen=True)
class BySample:
    """What was compared, sample by sample: medians over tokens. n samples in the comparison, S slots, B boundaries; NaN = not known."""

    keys: tuple[str, ...]
    error: np.ndarray  # [n, S, B]
    cosine: np.ndarray  # [n, S, B]
    norm_ratio: np.ndarray  # [n, S, B]
    norms: np.ndarray  # [n, B] the boundaries' own norms

    @property
    def measures(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.error, self.cosine, self.norm_ratio


def over_all(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The lower median over samples of what stands in `values` [n, *shape]; NaN without any. [*shape]."""
    if not values.size:
        return np.full(shape, np.nan)
    return torch.from_numpy(values).nanmedian(dim=0).values.numpy()


@dataclass(frozen=True)
class Identification:
    """Which boundary each slot holds, by comparison of values on the same tokens."""

    slots: pd.DataFrame
    """One row a slot: slot, name, best, relative_error, cosine, norm_ratio, runner_up, runner_up_error, margin, margin_min, agree
    ("8 of 8"), decision. Numbers are medians over samples of medians over tokens; margin_min is the smallest over samples."""
    per_sample: pd.DataFrame
    """One row a sample and slot, with the same columns and rows, wins (share of tokens nearer to best than to runner_up), kind, note."""
    error: np.ndarray  # [S, B] median relative error
    cosine: np.ndarray  # [S, B]
    norm_ratio: np.ndarray  # [S, B]
    boundaries: tuple[Boundary, ...]
    """The columns: boundaries looked at."""
    num_layers: int | None
    wiring: Wiring
    reasons: tuple[str, ...]
    anomalies: tuple[Anomaly, ...]
    source: str
    """What the slots were compared with, in words."""
    by_sample: BySample
    notes: tuple[str, ...] = ()
    """What was sampled and what was not looked at."""
    next_step: str = ""
    """The cheapest measurement that would tell more, empty when all is told."""

    def of(self, key: str) -> Identification:
        """The same of one sample alone. Raises ValueError where it was not compared."""
        if key not in self.by_sample.keys:
            raise ValueError(f"sample {key!r} was not compared with the target; these were: {few(self.by_sample.keys, 4) or 'none'}")
        i, table = self.by_sample.keys.index(key), self.per_sample
        slots = table[table["sample"] == key].reset_index(drop=True)
        error, cosine, norm_ratio = (m[i] for m in self.by_sample.measures)
        wiring = Wiring.of(None if d == "cannot tell" else d for d in slots["decision"])
        return replace(self, slots=slots, error=error, cosine=cosine, norm_ratio=norm_ratio, wiring=wiring, reasons=tuple(slots["note"]))

    def boundary_norms(self) -> np.ndarray:
        """The target's own norm at each boundary: median over the samples of medians over the rows compared. [B], NaN = not known."""
        return over_all(self.by_sample.norms, (len(self.boundaries),))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the wiring, the slots' table, reasons, anomalies, notes."""
        return {
            "wiring": self.wiring.to_json(),
            "slots": plain(self.slots.to_dict(orient="records")),
            "reasons": list(self.reasons),
            "anomalies": [a.to_json() for a in self.anomalies],
            "source": self.source,
            "boundaries": list(self.boundaries),
            "notes": list(self.notes),
            "next": self.next_step,
        }


COLUMNS = ("best", "relative_error", "cosine", "norm_ratio", "runner_up", "runner_up_error", "margin")


def sample_line(key: str, s: int, name: str, j: Judgement) -> dict[str, Any]:
    numbers = (j.best, j.error, j.cosine, j.ratio, j.runner_up, j.runner_up_error, j.margin)
    return {
        "sample": key, "slot": s, "name": name, **dict(zip(COLUMNS, numbers, strict=True)), "wins": j.wins, "rows": j.rows,
        "decision": j.boundary if j.boundary is not None else "cannot tell", "kind": j.kind, "note": j.reason,
    }  # fmt: skip


@dataclass
class SlotVerdict:
    """One slot over all samples."""

    boundary: Boundary
    agree: str
    reason: str
    anomalies: list[Anomaly]


def over_samples(s: int, judged: list[Judgement], rule: Rule, num_layers: int | None) -> SlotVerdict:
    """The boundary that (nearly) all samples agree on, or why there is none.

    A sample whose rows are another sample's agrees when it is the same boundary there and most samples are in place.
    """
    tested = [j for j in judged if j.tested]
    told = Counter(j.boundary for j in tested if j.boundary is not None)
    top, direct = told.most_common(1)[0] if told else (None, 0)
    agree = sum(1 for j in tested if j.boundary == top or (j.kind == SWAPPED and j.found == top)) if told else 0
    anomalies = [_gather(s, kind, judged) for kind in dict.fromkeys(j.kind for j in judged if j.kind)]
    text = f"{agree} of {len(tested)}"
    if told and agree >= rule.agree * len(tested) and 2 * direct > len(tested):
        return SlotVerdict(top, text, f"{boundary_phrase(top, num_layers)} in {text} samples: {_fit(tested, top)}", anomalies)
    if told:
        votes = ", ".join(f"{boundary_phrase(b)} in {n}" for b, n in told.most_common())
        others = next((j.reason for j in tested if j.boundary != top), "")
        return SlotVerdict(None, text, f"the samples disagree: {votes} of {len(tested)}; elsewhere: {others}", anomalies)
    kind = Counter(j.kind for j in judged if j.kind).most_common(1)
    typical = next(j for j in judged if not kind or j.kind == kind[0][0])
    return SlotVerdict(None, text, typical.reason, anomalies)


def _fit(tested: list[Judgement], top: Boundary) -> str:
    same = [j for j in tested if j.boundary == top]
    if all(j.best != top for j in same):  # told by something else than values: the final norm's gain
        return same[0].reason
    error = float(np.median([j.error for j in same]))
    with_runner = [j for j in same if j.runner_up is not None]
    if not with_runner:
        return f"relative error {error:.3g}, no other boundary looked at"
    runner = Counter(j.runner_up for j in with_runner).most_common(1)[0][0]
    runner_error = float(np.median([j.runner_up_error for j in with_runner]))
    times, least = margin_of(error, runner_error), min(j.margin for j in with_runner)
    if error < SAME:
        return f"the same values (relative error below {SAME:g}); next is {runner} at {runner_error:.3g}"
    return f"relative error {error:.3g}; next is {runner} at {runner_error:.3g}, {times:.3g} times further (at least {least:.3g})"


def _gather(s: int, kind: str, judged: list[Judgement]) -> Anomaly:
    same = [j for j in judged if j.kind == kind]
    found = Counter(j.found for j in same).most_common(1)[0][0]
    first = next(j for j in same if j.found == found)
    detail = f"in {len(same)} of {len(judged)} samples: {first.reason}"
    return Anomaly(s, kind, detail, found, len(same), len(judged), dict(first.numbers))
