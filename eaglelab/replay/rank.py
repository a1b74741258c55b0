"""Which variants fit the drafter: compared pair by pair on the same tokens, resampled by sample.

Tokens of one sample are correlated, so whole samples are resampled. All pairs are judged together (the largest studentised difference
over all pairs sets the bar), which is the correction for picking the best of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from eaglelab.acceptance import FEW_SAMPLES
from eaglelab.replay.run import Replay, SampleOutcome

RESAMPLES = 2000
LEVEL = 0.95


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
    """Why nothing can be told, "" where something can."""
    left: int = 0
    """How many, the last ones, left the race early: their rows are those of the first look (`eaglelab.replay.race`)."""
    compared: str = ""
    """How much of all there is was compared: `24 of 24 orders`, `40 of 40,320 orders`. "" for a ranking of other things than feeds."""

    @property
    def tied(self) -> tuple[int, ...]:
        """Indices of the variants that cannot be told from the best, the best included."""
        return tuple(i for i, tied in zip(self.order, self.table["tied"], strict=True) if tied)


def rank(replays: Sequence[Replay], step: int | None = 0, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL) -> Ranking:
    """Rank replays of the same samples by marginal acceptance at `step` (None: by accept length), with intervals for every difference from
    the best.

    Every replay must be of the same samples under the same judge: rows are paired. Raises ValueError otherwise.
    """
    right, counted = _per_sample(replays, step)  # [V, S], [S]
    total = counted.sum()
    if total == 0:
        raise ValueError(f"no row counts at {'all steps' if step is None else f'step {step}'}: is the loss mask all zeros?")
    rates = right.sum(1) / total  # [V]
    order = np.argsort(-rates, kind="stable")
    best = order[0]
    behind = rates[best] - rates
    half = _half_widths(right, counted, best, resamples, seed, _most(replays[0], step), level)
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


def difference(
    better: Replay, worse: Replay, step: int | None = 0, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """(difference, low, high) of the marginal acceptance at `step` (None: of the accept length) of one pair named beforehand, resampled by
    sample, 95 %; on the rows that both ran."""
    right, counted = _per_sample(_in_common(better, worse), step)
    rates = right.sum(1) / max(1, counted.sum())
    half = _half_widths(right, counted, 0, resamples, seed, _most(better, step))[1]
    gap = float(rates[0] - rates[1])
    return gap, gap - float(half), gap + float(half)


def sample_interval(result: Replay, step: int = 0, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """95 % interval of one replay's marginal acceptance at `step`, resampled by sample; (0, 1) for fewer than two samples."""
    right, counted = _per_sample([result], step)
    samples = len(counted)
    if samples < 2 or counted.sum() == 0:
        return 0.0, 1.0
    rate, weights = right[0].sum() / counted.sum(), counted / counted.sum()
    off = right[0] - rate * counted  # [S]
    signs = _signs(resamples, samples, seed)
    half = _critical(_studentised(signs, off[None], weights)[:, 0]) * _standard_errors(off[None], counted)[0]
    return max(0.0, rate - half), min(1.0, rate + half)


def _most(result: Replay, step: int | None) -> float:
    """The largest difference that there can be."""
    return 1.0 if step is not None else float(result.steps)


def _in_common(one: Replay, other: Replay) -> list[Replay]:
    """Two replays, the longer one cut to the rows of the other: a variant that left the race ran the beginning of each answer alone."""

    def shorter(a: SampleOutcome, b: SampleOutcome) -> SampleOutcome:
        rows = np.isin(a.rows, b.rows)
        if rows.all():
            return a
        cut = {n: getattr(a, n)[:, rows] for n in ("right", "outside", "drafted")}
        counted = a.counted[:, rows] & b.counted[:, np.isin(b.rows, a.rows)]
        rest = {"confidence": None, "p_drafted": None, "overlap": None, "walk": None}
        return replace(a, rows=a.rows[rows], counted=counted, **cut | rest | {"right": cut["right"] & counted})

    if [o.key for o in one.outcomes] != [o.key for o in other.outcomes]:
        raise ValueError("replays of different samples cannot be paired")
    pairs = [(shorter(a, b), shorter(b, a)) for a, b in zip(one.outcomes, other.outcomes, strict=True)]
    return [replace(r, outcomes=tuple(side)) for r, side in zip((one, other), zip(*pairs, strict=True), strict=True)]


def _per_sample(replays: Sequence[Replay], step: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Right rows [V, S] and counted rows [S] of each sample at one step. None: accepted drafted tokens [V, S] from the rows that count at
    all steps [S]; their ratio is the accept length less the bonus token."""
    keys = [o.key for o in replays[0].outcomes]
    for other in replays[1:]:
        if [o.key for o in other.outcomes] != keys:
            raise ValueError("replays of different samples cannot be paired")
    if step is None:
        counts = [[o.counts for o in r.outcomes] for r in replays]
        return np.array([[sum(c.joint) for c in mine] for mine in counts], dtype=float), np.array(
            [c.complete for c in counts[0]], dtype=float
        )
    right = np.array([[o.right[step].sum() for o in r.outcomes] for r in replays], dtype=float)
    return right, np.array([o.counted[step].sum() for o in replays[0].outcomes], dtype=float)


def _half_widths(
    right: np.ndarray, counted: np.ndarray, best: int, resamples: int, seed: int, most: float = 1.0, level: float = LEVEL
) -> np.ndarray:
    """Half widths [V], at most `most`, of simultaneous intervals for (best - v), over all pairs of variants.

    A wild bootstrap-t: each resample turns the sign of whole samples' deviations and divides every pair's gap by the standard error of
    that same resample. With a dozen samples the standard errors are uncertain too, and the smallest of hundreds of pairs would make
    chance look like a difference: resampling against fixed ones tells 24 equal variants apart in half of all draws of 12 samples.
    """
    variants, samples = right.shape
    if samples < 2:
        return np.full(variants, np.inf)
    weights = counted / counted.sum()  # [S]
    off = right - right.sum(1, keepdims=True) * weights  # [V, S] right rows of a sample beyond its variant's rate
    signs = _signs(resamples, samples, seed)
    largest = np.zeros(resamples)
    for v in range(variants - 1):  # [B, V - 1 - v] at a time: all pairs at once would be gigabytes for the 360 feeds of four slots
        largest = np.maximum(largest, _studentised(signs, off[v + 1 :] - off[v], weights).max(1))
    return np.minimum(_critical(largest, level) * _standard_errors(off - off[best], counted), most)


def simultaneous(off: np.ndarray, counted: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Half widths [P] of simultaneous 95 % intervals, by the same bootstrap, for P statistics on which each sample pulls by off [P, S]
    (sums of zero; their squares add up to the variance). counted: [S] rows of each sample. Infinite for fewer than two samples."""
    if off.shape[1] < 2:
        return np.full(len(off), np.inf)
    largest = _studentised(_signs(resamples, off.shape[1], seed), off, counted / counted.sum()).max(1)
    return _critical(largest) * _standard_errors(off, counted / counted.sum())


def _signs(resamples: int, samples: int, seed: int) -> np.ndarray:
    """[B, S] of -1 and 1."""
    return np.random.default_rng(seed).choice([-1.0, 1.0], size=(resamples, samples))


def _studentised(signs: np.ndarray, off: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """|gap| over its standard error [B, P] in each resample. signs: [B, S]; off: [P, S], sums of zero; weights: [S], sum 1."""
    gaps, squares = signs @ off.T, (off**2).sum(1)  # [B, P], [P]
    rest = squares - 2 * gaps * ((signs * weights) @ off.T) + gaps**2 * (weights**2).sum()  # squares around the resample's own gap
    samples = len(weights)
    rest = np.maximum(rest, 1e-12 * squares) * samples / (samples - 1)
    return np.divide(np.abs(gaps), np.sqrt(rest), out=np.zeros_like(gaps), where=rest > 0)


def _standard_errors(off: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Standard errors [P] of rates whose deviations by sample are off [P, S]."""
    samples = len(counted)
    return np.sqrt((off**2).sum(1) * samples / (samples - 1)) / counted.sum()


def _critical(statistics: np.ndarray, level: float = LEVEL) -> float:
    """The value that this share of resamples does not pass."""
    return float(np.quantile(statistics, level, method="higher"))
