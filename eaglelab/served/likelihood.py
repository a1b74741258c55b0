"""How likely counts of verify passes are under a prediction: three kinds of evidence, one model of what lies between.

A server that does what is predicted counts what is predicted, but for passes in which another arithmetic turns a near-tie. So a pass counts the
predicted number with probability 1 - e, and else a draw from the prediction's own distribution; e is fitted (`NOISE`), and at e = 1
nothing but the distribution is left. Passes told one by one give the plain likelihood; a histogram by request gives that of each of its
entries, which are sums of such passes (a composite likelihood: Varin, Reid and Firth 2011); totals on other text give the likelihood
ratio of one distribution against two (the G test of homogeneity), divided by how much more samples differ than independent passes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import lgamma

import numpy as np

NOISE = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Shares e of passes that are not as predicted, of which the likeliest is taken for each prediction."""


def distribution(histogram: np.ndarray) -> np.ndarray:
    """[K + 1] probabilities of accepting 0..K drafted tokens; half a count more in each place, since none is impossible (Jeffreys)."""
    smoothed = np.asarray(histogram, float) + 0.5
    return smoothed / smoothed.sum()


def of_passes(served: np.ndarray, predicted: np.ndarray, pi: np.ndarray, noise: float) -> float:
    """Log likelihood of accepted counts [P] beside the predicted ones [P]; pi: [K + 1], the prediction's distribution."""
    return float(np.log(noise * pi[served] + (1 - noise) * (served == predicted)).sum())


def of_histogram(served: np.ndarray, predicted: np.ndarray, pi: np.ndarray, noise: float) -> float:
    """Composite log likelihood of one request's histogram [K + 1] beside the predicted one [K + 1].

    Passes that the server counts beyond the predicted ones are draws from pi [K + 1]. K of the K + 1 entries are free: the sum has that weight.
    """
    served, predicted = np.asarray(served), np.asarray(predicted)
    total, mine = int(served.sum()), int(predicted.sum())
    kept = predicted if mine <= total else np.floor(predicted * (total / mine)).astype(int)
    extra, log = total - int(kept.sum()), 0.0
    for i, n in enumerate(served):
        stays, comes = 1 - noise + noise * pi[i], noise * pi[i]
        chances = np.convolve(_binomial(int(kept[i]), stays), _binomial(int(kept.sum() - kept[i]), comes))
        chances = np.convolve(chances, _binomial(extra, pi[i]))
        log += np.log(max(float(chances[n]), 1e-300))
    return log * (len(served) - 1) / len(served)


def _binomial(n: int, p: float) -> np.ndarray:
    """[n + 1] probabilities."""
    factorials = _log_factorials(-(-(n + 1) // 128) * 128)[: n + 1]
    k = np.arange(n + 1)
    p = min(max(p, 1e-12), 1 - 1e-12)
    return np.exp(factorials[-1] - factorials - factorials[::-1] + k * np.log(p) + (n - k) * np.log1p(-p))


@lru_cache
def _log_factorials(n: int) -> np.ndarray:
    """[n] logarithms of 0!, 1!, …"""
    return np.array([lgamma(i + 1) for i in range(n)])


def homogeneity(one: np.ndarray, other: np.ndarray) -> float:
    """G = 2 sum n ln(n / expected) over two histograms [K + 1]: about chi-squared with K degrees of freedom where both are draws of independent
    passes from one distribution."""
    table = np.stack([one, other]).astype(float)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / max(table.sum(), 1e-300)
    return float(2 * (table * np.log(np.divide(table, expected, out=np.ones_like(table), where=table > 0))).sum())


def overdispersion(histograms: Sequence[np.ndarray]) -> float:
    """How much more histograms [S, K + 1] of single samples differ than independent passes would: Pearson's statistic over its degrees of freedom,
    at least 1 (McCullagh and Nelder 1989, 4.5)."""
    table = np.asarray([h for h in histograms if np.sum(h)], float)
    if len(table) < 2:
        return 1.0
    table = table[:, table.sum(0) > 0]
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    free = (len(table) - 1) * max(1, table.shape[1] - 1)
    return max(1.0, float(((table - expected) ** 2 / expected).sum()) / free)


def chi_squared_95(free: int) -> float:
    """The 95 % quantile of chi-squared, good to 0.1 from one degree of freedom on (Wilson and Hilferty 1931)."""
    part = 2 / (9 * free)
    return free * (1 - part + 1.644854 * part**0.5) ** 3


def weights(log: np.ndarray, resamples: int = 400, seed: int = 0) -> np.ndarray:
    """[C] how far each candidate is to be believed, sum 1: the mean over resampled requests of exp(log likelihood), normalised.

    log: [C, R], by candidate and request. Requests are weighted at random (the Bayesian bootstrap, Rubin 1981): passes of one request are
    alike, and a likelihood of all passes alone would be absurdly sure.
    """
    requests = log.shape[1]
    drawn = np.random.default_rng(seed).dirichlet(np.ones(requests), resamples) * requests if requests > 1 else np.ones((1, 1))
    totals = drawn @ log.T  # [B, C]
    odds = np.exp(totals - totals.max(1, keepdims=True))
    return (odds / odds.sum(1, keepdims=True)).mean(0)
