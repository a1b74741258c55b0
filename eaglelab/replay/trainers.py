"""The trainers' own rates out of a replay's outcomes, to hold a training log against the same numbers.

They differ from ours in which rows count and in the target's choice: `eaglelab/metrics/definitions.toml` says how, by name and version, and
one function counts by it. Give `replay` the samples of `every_row` and hand its outcomes in with the true masks: what a trainer counts is
then decided here, row by row. Where the target chooses among the draft vocabulary alone (`outside = "unseen"`), the replay must have been
judged so: `draft_vocabulary_judge`, and a variant with the identity for its vocabulary map.

l is the loss mask, and the chain at row t drafts x[t+2+k] at step k. Held against what the trainers' code returns in
tests/test_drafter_oracles.py and tests/test_trainer_metrics.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.metrics import Definition
from eaglelab.replay.answers import Judge
from eaglelab.replay.run import SampleOutcome, row_sums
from eaglelab.target.head import head_rows


@dataclass(frozen=True)
class TrainerCounts:
    """Counts of K steps; the rate is right / counted. right is a sum of probabilities for an overlap."""

    right: tuple[float, ...]
    counted: tuple[int, ...]


def every_row(samples: Iterable[Sample]) -> list[Sample]:
    """The samples with a mask of ones, so that the replay keeps every row's outcome. What it then counts is not an acceptance."""
    return [replace(s, loss_mask=torch.ones_like(s.token_ids)) for s in samples]


def draft_vocabulary_judge(judge: Judge, target_ids: Tensor) -> Judge:
    """A judge whose target chooses among the draft vocabulary alone, in draft ids. target_ids: [Vd], the target's id of each."""
    return Judge(judge.last, replace(judge.head, lm_head=head_rows(judge.head.lm_head, target_ids.cpu())), judge.norm_last)


def trainer_counts(definition: Definition, outcome: SampleOutcome, mask: Tensor) -> TrainerCounts:
    """What a trainer counts in one sample, by its own definition. mask: the true loss mask [T].

    In a packed batch speculators' `cond_acc` total also holds chains that run over their document's end; `full_acc` is the same.
    Raises ValueError for a metric that outcomes do not give: a loss, a length, an engine's counters.
    """
    if not definition.rederived:
        raise ValueError(f"{definition.title}'s {definition.names[0]} ({definition.in_words}) cannot be counted in a replay")
    at, inside = _places(outcome, mask, definition.mask)
    trained = mask.numpy() == 1
    counts = outcome.counted & inside & trained[at]  # [K, R]
    if definition.outside == "dropped":
        counts &= ~outcome.outside
    if definition.kind == "overlap":
        return TrainerCounts(tuple(float(o[c].sum()) for o, c in zip(outcome.overlap, counts, strict=True)), row_sums(counts))
    if definition.kind == "marginal":
        never = int(definition.last == "wrong" and len(trained) > 0 and trained[-1])
        counted = tuple(n + never * (k < len(trained)) for k, n in enumerate(row_sums(counts)))
        return TrainerCounts(row_sums(counts & outcome.right), counted)
    before = np.vstack([trained[at[:1]], outcome.right[:-1]])  # [K, R]: started in the answer, right at each earlier step
    alive = np.logical_and.accumulate(before, axis=0)
    return TrainerCounts(row_sums(alive & outcome.right & counts), row_sums(counts if definition.kind == "joint" else alive & inside))


def _places(outcome: SampleOutcome, mask: Tensor, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """[K, R]: the token t + k + shift whose mask decides, and whether the right token t + 1 + k is in the sample."""
    at = outcome.rows + np.arange(len(outcome.counted))[:, None]
    return np.minimum(at + shift, len(mask) - 1), at + 1 < len(mask)
