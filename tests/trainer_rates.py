"""The rates that SpecForge and speculators print, counted over several outcomes."""

from collections.abc import Sequence

from torch import Tensor

from eaglelab.metrics import define
from eaglelab.replay import SampleOutcome
from eaglelab.replay.trainers import TrainerCounts, trainer_counts


def specforge_acc(outcomes: Sequence[SampleOutcome], masks: Sequence[Tensor]) -> TrainerCounts:
    """`acc_k` over all samples. masks: the true loss mask [T] of each sample."""
    return _all("acc_0", "specforge", "0.2.0", outcomes, masks)


def speculators_acc(outcomes: Sequence[SampleOutcome], masks: Sequence[Tensor]) -> tuple[TrainerCounts, TrainerCounts]:
    """`full_acc_k` and `cond_acc_k` over all samples, each sample a batch of its own."""
    return _all("full_acc_0", "speculators", "0.9.0", outcomes, masks), _all("cond_acc_0", "speculators", "0.9.0", outcomes, masks)


def _all(name: str, source: str, version: str, outcomes: Sequence[SampleOutcome], masks: Sequence[Tensor]) -> TrainerCounts:
    definition = define(name, source, version)[0][0]
    counts = [trainer_counts(definition, o, m) for o, m in zip(outcomes, masks, strict=True)]
    right, counted = (tuple(map(sum, zip(*each, strict=True))) for each in ([c.right for c in counts], [c.counted for c in counts]))
    return TrainerCounts(right, counted)
