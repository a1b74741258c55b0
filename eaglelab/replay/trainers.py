"""The trainers' own accuracies out of a replay's outcomes, to hold a training log against the same numbers.

They differ from ours in which rows count. Give `replay` the samples of `every_row` and hand its outcomes in with the true masks:
what a trainer counts is then decided here, row by row. l is the loss mask, and the chain at row t drafts x[t+2+k] at step k.

SpecForge 0.2 (`acc_k`, EAGLE's and AngelSlim's rule too): l[t+k] and never the sample's last token; marginal; the target's argmax over
its whole vocabulary, so a token outside the draft vocabulary is wrong. speculators 0.9: l[t+1+k]; `full_acc_k` and `cond_acc_k` are over
chains that are right at steps 0..k and started where l[t+1] is 1; the target's argmax over the draft vocabulary alone (a judge over
lm_head's rows of `Drafter.target_ids`, and a variant with `identity_vocabulary`, give that). Sources: specforge/algorithms/eagle3/model.py,
speculators/models/metrics.py and eagle3/metrics.py; both held against what their code returns in tests/test_drafter_oracles.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.replay.run import SampleOutcome


@dataclass(frozen=True)
class TrainerCounts:
    """Counts of K steps; the rate is right / counted."""

    right: tuple[int, ...]
    counted: tuple[int, ...]

    def __add__(self, other: TrainerCounts) -> TrainerCounts:
        pairs = zip((self.right, self.counted), (other.right, other.counted), strict=True)
        return TrainerCounts(*(tuple(x + y for x, y in zip(a, b, strict=True)) for a, b in pairs))


def every_row(samples: Iterable[Sample]) -> list[Sample]:
    """The samples with a mask of ones, so that the replay keeps every row's outcome. What it then counts is not an acceptance."""
    return [replace(s, loss_mask=torch.ones_like(s.token_ids)) for s in samples]


def specforge_acc(outcomes: Sequence[SampleOutcome], masks: Sequence[Tensor]) -> TrainerCounts:
    """SpecForge's `acc_k`: (corrects, denoms) of each step over all samples. masks: the true loss mask [T] of each sample."""
    parts = []
    for outcome, mask in zip(outcomes, masks, strict=True):
        at, inside = _places(outcome, mask, shift=0)
        counts = outcome.counted & inside & (mask.numpy() == 1)[at]  # [K, R]
        parts.append(TrainerCounts(_sums(counts & outcome.right), _sums(counts)))
    return reduce(add, parts)


def speculators_acc(outcomes: Sequence[SampleOutcome], masks: Sequence[Tensor]) -> tuple[TrainerCounts, TrainerCounts]:
    """speculators' `full_acc_k` and `cond_acc_k` over all samples, each sample a batch of its own.

    In a packed batch their `cond_acc` total also holds chains that run over their document's end; `full_acc` is the same.
    """
    full, cond = [], []
    for outcome, mask in zip(outcomes, masks, strict=True):
        at, inside = _places(outcome, mask, shift=1)
        trained = mask.numpy() == 1
        counts = outcome.counted & inside & trained[at]  # [K, R]
        before = np.vstack([trained[at[:1]], outcome.right[:-1]])  # [K, R]: started in the answer, right at each earlier step
        alive = np.logical_and.accumulate(before, axis=0)
        right = _sums(alive & outcome.right & counts)
        full.append(TrainerCounts(right, _sums(counts)))
        cond.append(TrainerCounts(right, _sums(alive & inside)))
    return reduce(add, full), reduce(add, cond)


def _places(outcome: SampleOutcome, mask: Tensor, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """[K, R]: the token t + k + shift whose mask decides, and whether the right token t + 1 + k is in the sample."""
    at = outcome.rows + np.arange(len(outcome.counted))[:, None]
    return np.minimum(at + shift, len(mask) - 1), at + 1 < len(mask)


def _sums(table: np.ndarray) -> tuple[int, ...]:
    return tuple(int(n) for n in table.sum(1))
