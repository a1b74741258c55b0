"""Acceptance by position, and whether it falls from some position on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from eaglelab.acceptance import FEW_SAMPLES, ratio_interval, ratios_apart
from eaglelab.lost.rows import Rows

CANDIDATES = 32
"""Positions that are tried for a fall: quantiles of the rows' own positions."""
ASIDE = 5
"""Rows that a sample needs on either side of a position to say something about it."""
RESAMPLES = 2000
CHANCE = 0.05


@dataclass(frozen=True)
class Fall:
    """The position from which on acceptance is lowest against before, within the same samples."""

    position: int
    low: int
    high: int
    """95 % of resamples by sample put it between these."""
    before: float
    after: float
    """Step-0 acceptance (marginal) of the samples that reach beyond the position, before and from it on."""
    n: tuple[int, int]
    """Rows before and after."""
    difference: tuple[float, float, float]
    """after - before, with its 95 % interval by sample."""
    samples: int
    """Samples that reach beyond it."""
    chance: float
    """Share of resamples without any dependence on position whose largest fall is as large: corrected for all positions tried."""

    @property
    def told(self) -> bool:
        return self.chance < CHANCE and self.difference[2] < 0

    @property
    def share(self) -> float:
        """Of the acceptance before it, what is lost."""
        return 1 - self.after / self.before if self.before else 0.0


def positions(rows: Rows, since: str = "sample") -> np.ndarray:
    """[R] of the token drafted at step 0: in the sample, or in its answer (`answer`: 0 is the answer's first token)."""
    return rows.row + 2 - (rows.start if since == "answer" else 0)


def edges_for(longest: int) -> list[int]:
    """Bin edges up to a position: 0, 16, 32, 64, ... each twice the last, as effects of position go by ratio."""
    edges = [0, 16]
    while edges[-1] < longest + 1:
        edges.append(2 * edges[-1])
    return edges


def by_position(rows: Rows, since: str = "sample") -> pd.DataFrame:
    """from, to (exclusive), n, samples, marginal (step 0), low, high (95 % by sample), accept_length (rows that count at all steps)."""
    at, table = positions(rows, since), []
    edges = edges_for(int(at.max())) if len(at) else []
    accepted = rows.joint.sum(0)
    for first, end in pairwise(edges):
        inside = (at >= first) & (at < end)
        n, right = rows.by_sample(rows.counted[0] & inside), rows.by_sample(rows.right[0] & inside)
        whole = rows.complete & inside
        if not n.sum():
            continue
        low, high = ratio_interval(right[n > 0], n[n > 0])
        length = 1 + accepted[whole].mean() if whole.any() else np.nan
        row = {"from": first, "to": end, "n": int(n.sum()), "samples": int((n > 0).sum()), "marginal": right.sum() / n.sum()}
        table.append({**row, "low": low, "high": min(high, 1.0), "accept_length": float(length)})
    return pd.DataFrame(table, columns=["from", "to", "n", "samples", "marginal", "low", "high", "accept_length"])


def fall(rows: Rows, since: str = "sample", resamples: int = RESAMPLES, seed: int = 0) -> Fall | None:
    """The likeliest position of a fall in step-0 acceptance; None where fewer than `FEW_SAMPLES` samples reach beyond any.

    The score of a change point in a binomial likelihood with each sample's own rate (the Mantel-Haenszel statistic of before and after,
    samples as strata): long samples that are harder altogether look like no fall. How often chance alone falls as much, at any of the
    positions tried: the signs of whole samples' deviations are turned, since tokens of one sample are correlated.
    """
    counted, at = rows.counted[0], positions(rows, since)
    if not counted.any():
        return None
    tried = np.unique(np.quantile(at[counted], np.linspace(0.03, 0.97, CANDIDATES)).astype(int))
    later = counted & (at >= tried[:, None])  # [C, R]
    n, after = rows.by_sample(counted), rows.by_sample(later)  # [S], [C, S]
    right, right_after = rows.by_sample(rows.right[0] & counted), rows.by_sample(later & rows.right[0])
    crosses = (after >= ASIDE) & (n - after >= ASIDE)
    usable = crosses.sum(1) >= FEW_SAMPLES
    if not usable.any():
        return None
    tried, after, right_after, crosses = tried[usable], after[usable], right_after[usable], crosses[usable]
    rate = right / np.maximum(n, 1)
    short = np.where(crosses, after * rate - right_after, 0.0)  # [C, S] right tokens that are lacking after it
    spread = np.where(crosses, rate * (1 - rate) * after * (n - after) / np.maximum(n, 1), 0.0)
    scores = _scores(short.sum(1), spread.sum(1))  # [C]
    best = int(scores.argmax())
    draws = np.random.default_rng(seed)
    signs = draws.choice([-1.0, 1.0], size=(resamples, len(n)))
    chance = float((_scores(signs @ short.T, spread.sum(1)).max(1) >= scores[best] - 1e-9).mean())
    weights = draws.multinomial(len(n), np.full(len(n), 1 / len(n)), size=resamples).astype(float)
    places = _scores(weights @ short.T, weights @ spread.T).argmax(1)
    low, high = np.quantile(tried[places], (0.025, 0.975), method="nearest")
    use = crosses[best]
    sides = [(right_after[best][use], after[best][use]), ((right - right_after[best])[use], (n - after[best])[use])]
    difference = tuple(map(float, ratios_apart(*(list(zip(*side, strict=True)) for side in sides))))
    rates = [float(r.sum() / m.sum()) for r, m in sides]
    counts = (int(sides[1][1].sum()), int(sides[0][1].sum()))
    return Fall(int(tried[best]), int(low), int(high), rates[1], rates[0], counts, difference, int(use.sum()), chance)


def _scores(short: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """How many standard deviations too few are right after each position, by the binomial's own variance."""
    return np.divide(short, np.sqrt(spread), out=np.zeros_like(short), where=spread > 0)
