"""Which variants fit the drafter: compared pair by pair on the same tokens, resampled by sample.

Tokens of one sample are correlated, so whole samples are resampled. All pairs are judged together (the largest standardised
difference over all pairs sets the bar), which is the correction for picking the best of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from eaglelab.acceptance import Z95
from eaglelab.dumps import Sample
from eaglelab.replay.run import Replay, replay
from eaglelab.replay.variants import Variant

RESAMPLES = 2000
FEW_SAMPLES = 5
"""Below this many samples, resampling says nothing about the next sample: everything is `cannot tell`."""
FINALISTS = 3


@dataclass(frozen=True)
class Ranking:
    """Variants by fit, best first."""

    table: pd.DataFrame
    """One row a variant: variant, n, acceptance (step 0, marginal), behind (best minus this one), low, high (95 % for all pairs
    together), tied (cannot be told from the best)."""
    order: tuple[int, ...]
    """Indices into the replays given, best first."""
    samples: int
    note: str = ""

    @property
    def tied(self) -> tuple[int, ...]:
        """Indices of the variants that cannot be told from the best, the best included."""
        return tuple(i for i, tied in zip(self.order, self.table["tied"], strict=True) if tied)


def rank(replays: Sequence[Replay], step: int = 0, resamples: int = RESAMPLES, seed: int = 0) -> Ranking:
    """Rank replays of the same samples by marginal acceptance at `step`, with intervals for every difference from the best.

    Every replay must come from one call of `replay`: rows are paired. Raises ValueError otherwise.
    """
    right, counted = _per_sample(replays, step)  # [V, S], [S]
    total = counted.sum()
    if total == 0:
        raise ValueError(f"no row counts at step {step}: is the loss mask all zeros?")
    rates = right.sum(1) / total  # [V]
    order = np.argsort(-rates, kind="stable")
    best = order[0]
    behind = rates[best] - rates
    half = _half_widths(right, counted, best, resamples, seed)
    few = right.shape[1] < FEW_SAMPLES
    tied = (behind - half <= 0) | few
    table = pd.DataFrame(
        {
            "variant": [replays[i].variant.name for i in order],
            "n": int(total),
            "acceptance": rates[order],
            "behind": behind[order],
            "low": (behind - half)[order],
            "high": (behind + half)[order],
            "tied": tied[order],
        }
    )
    counted_samples = f"{right.shape[1]} sample" + ("s" if right.shape[1] != 1 else "")
    note = f"only {counted_samples}: differences cannot be told from chance" if few else ""
    return Ranking(table, tuple(int(i) for i in order), right.shape[1], note)


def rank_feeds(
    drafter, samples: Sequence[Sample], embed, variants: Sequence[Variant], *, steps: int = 3, keep: int = FINALISTS, **options
) -> tuple[Ranking, list[Replay]]:
    """Rank many variants cheaply: one step for all of them, all steps for the best few and for those that carry a label.

    Returns the ranking at step 0 of all variants, and the full replays of the finalists, best first.
    """
    first = replay(drafter, samples, embed, variants, steps=1, **options)
    ranking = rank(first)
    chosen = [i for place, i in enumerate(ranking.order) if place < keep or variants[i].label]
    return ranking, replay(drafter, samples, embed, [variants[i] for i in chosen], steps=steps, **options)


def difference(better: Replay, worse: Replay, step: int = 0, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float, float]:
    """(difference, low, high) of the marginal acceptance of one pair named beforehand, resampled by sample, 95 %."""
    right, counted = _per_sample([better, worse], step)
    rates = right.sum(1) / max(1, counted.sum())
    half = _half_widths(right, counted, 0, resamples, seed)[1]
    gap = float(rates[0] - rates[1])
    return gap, gap - float(half), gap + float(half)


def sample_interval(result: Replay, step: int = 0, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """95 % interval of one replay's marginal acceptance at `step`, resampled by sample; (0, 1) for fewer than two samples."""
    right, counted = _per_sample([result], step)
    samples = len(counted)
    if samples < 2 or counted.sum() == 0:
        return 0.0, 1.0
    draws = np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=resamples)  # [B, S]
    draws = draws[draws @ counted > 0]
    rate = right[0].sum() / counted.sum()
    half = Z95 * float(((draws @ right[0]) / (draws @ counted)).std()) * (samples / (samples - 1)) ** 0.5
    return max(0.0, rate - half), min(1.0, rate + half)


def _per_sample(replays: Sequence[Replay], step: int) -> tuple[np.ndarray, np.ndarray]:
    """Right rows [V, S] and counted rows [S] of each sample at one step."""
    keys = [o.key for o in replays[0].outcomes]
    counted = np.array([o.counted[step].sum() for o in replays[0].outcomes], dtype=float)
    for other in replays[1:]:
        if [o.key for o in other.outcomes] != keys:
            raise ValueError("replays of different samples cannot be paired")
    right = np.array([[o.right[step].sum() for o in r.outcomes] for r in replays], dtype=float)
    return right, counted


def _half_widths(right: np.ndarray, counted: np.ndarray, best: int, resamples: int, seed: int) -> np.ndarray:
    """Half widths [V] of simultaneous 95 % intervals for (best - v), over all pairs of variants."""
    variants, samples = right.shape
    if samples < 2:
        return np.full(variants, np.inf)
    draws = np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=resamples)  # [B, S]
    usable = draws @ counted > 0
    draws = draws[usable]
    rates = (draws @ right.T) / (draws @ counted)[:, None]  # [B, V]
    errors = (rates - right.sum(1) / counted.sum()) * np.sqrt(samples / (samples - 1))  # resampling S samples understates by this
    spread_best = (errors[:, [best]] - errors).std(0)  # [V]
    largest = np.zeros(len(errors))
    for v in range(variants - 1):  # [B, V] at a time: all pairs at once would be gigabytes for the 360 feeds of four slots
        gaps = np.abs(errors[:, [v]] - errors[:, v + 1 :])
        spread = (errors[:, [v]] - errors[:, v + 1 :]).std(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(spread > 0, gaps / spread, 0.0)
        largest = np.maximum(largest, scaled.max(1))
    return np.quantile(largest, 0.95) * spread_best
