"""All rows of one replay as flat tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from eaglelab.dumps import Sample
    from eaglelab.replay import Replay
    from eaglelab.replay.answers import Answers

STEPPED = ("wanted", "counted", "right", "outside", "drafted", "confidence")


@dataclass(frozen=True)
class Rows:
    """The rows at which something counts, one sample after the other. R rows, K steps."""

    sample: np.ndarray
    """[R] int: place of the sample."""
    row: np.ndarray
    """[R] int: t. At step k the right token stands at position t + 2 + k of the sample (where the text is the target's own)."""
    start: np.ndarray
    """[R] int: position of the first token of the answer that row t drafts in; 0 where the mask is unknown."""
    wanted: np.ndarray
    """[K, R] int: the right token's id; -1 where nothing is counted."""
    counted: np.ndarray
    """[K, R] bool."""
    right: np.ndarray
    """[K, R] bool."""
    outside: np.ndarray
    """[K, R] bool: the right token is outside the draft vocabulary."""
    drafted: np.ndarray
    """[K, R] int: the drafted token's id."""
    confidence: np.ndarray
    """[K, R] float: the drafter's probability of it."""
    keys: tuple[str, ...]
    """Keys of the samples."""

    @classmethod
    def of(cls, result: Replay, samples: Sequence[Sample], answers: Sequence[Answers]) -> Rows:
        """samples, answers: those of the outcomes, in the same order. Raises ValueError for others."""
        keys = tuple(o.key for o in result.outcomes)
        if keys != tuple(s.key for s in samples) or len(keys) != len(answers):
            raise ValueError(
                f"a replay of {len(keys)} samples beside {len(samples)} samples and {len(answers)} answers: they must be the same"
            )
        tables: dict[str, list[np.ndarray]] = {name: [] for name in ("sample", "row", "start", *STEPPED)}
        for place, (outcome, sample, answer) in enumerate(zip(result.outcomes, samples, answers, strict=True)):
            source = outcome.rows + 1 + np.arange(result.steps)[:, None]  # [K, R]
            said = answer.token.numpy()[source.clip(max=len(sample.token_ids) - 1)]
            tables["sample"].append(np.full(len(outcome.rows), place))
            tables["row"].append(outcome.rows)
            tables["start"].append(answer_starts(sample, outcome.rows))
            for name in STEPPED:
                tables[name].append(np.where(outcome.counted, said, -1) if name == "wanted" else getattr(outcome, name))
        if not keys:
            raise ValueError("a replay of no samples: there is nothing to look at")
        return cls(**{name: np.concatenate(parts, axis=-1) for name, parts in tables.items()}, keys=keys)

    @property
    def steps(self) -> int:
        return len(self.right)

    @cached_property
    def complete(self) -> np.ndarray:
        """[R] bool: rows that count at all steps."""
        return self.counted.all(0)

    @cached_property
    def joint(self) -> np.ndarray:
        """[K, R] bool: complete, and right at all of steps 0..k."""
        return np.logical_and.accumulate(self.right, axis=0) & self.complete

    @cached_property
    def reached(self) -> np.ndarray:
        """[K, R] bool: complete, and right at all steps before k."""
        return np.concatenate([self.complete[None], self.joint[:-1]])

    @property
    def source(self) -> np.ndarray:
        """[K, R] int: the position t + 1 + k after which the right token is asked for."""
        return self.row + 1 + np.arange(self.steps)[:, None]

    def by_sample(self, table: np.ndarray) -> np.ndarray:
        """Sums of a table [..., R] over the rows of each of the S samples: [..., S] float."""
        flat = table.reshape(-1, len(self.sample))
        sums = [np.bincount(self.sample, weights=part, minlength=len(self.keys)) for part in flat]
        return np.array(sums).reshape(*table.shape[:-1], len(self.keys))

    def select(self, keep: np.ndarray) -> Rows:
        """Some of the rows. keep: [R] bool."""
        return Rows(**{f.name: self.keys if f.name == "keys" else getattr(self, f.name)[..., keep] for f in fields(self)})


def answer_starts(sample: Sample, rows: np.ndarray) -> np.ndarray:
    """[R] the first position of the answer that each row drafts in."""
    from eaglelab.dumps.mask import spans

    if sample.loss_mask is None:
        return np.zeros(len(rows), dtype=int)
    firsts = np.array([first for first, _ in spans(sample.loss_mask)] or [0])
    return firsts[(np.searchsorted(firsts, rows + 1, side="right") - 1).clip(min=0)]
