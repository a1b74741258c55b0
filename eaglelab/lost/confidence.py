"""The drafter's probability of its own token against being right, and what a threshold on it would save."""

from __future__ import annotations

import numpy as np
import pandas as pd

from eaglelab.acceptance import ratio_interval
from eaglelab.lost.rows import Rows

BINS = 10
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def reliability(rows: Rows, bins: int = BINS) -> pd.DataFrame:
    """from, to, n, confidence (mean), right (share), low, high (95 % by sample), over all steps that a chain reaches: each counts once, with
    the steps before it right."""
    place = np.minimum((np.nan_to_num(rows.confidence) * bins).astype(int), bins - 1)  # [K, R]; a drafter of NaN is sure of nothing
    table = []
    for b in range(bins):
        inside = rows.reached & (place == b)
        if not inside.any():
            continue
        n, right = (rows.by_sample(x).sum(0) for x in (inside, inside & rows.right))  # [S]
        low, high = ratio_interval(right[n > 0], n[n > 0])
        rates = {"confidence": float(np.nan_to_num(rows.confidence)[inside].mean()), "right": right.sum() / n.sum()}
        table.append({"from": b / bins, "to": (b + 1) / bins, "n": int(n.sum()), **rates, "low": low, "high": min(high, 1.0)})
    return pd.DataFrame(table, columns=["from", "to", "n", "confidence", "right", "low", "high"])


def off_by(table: pd.DataFrame) -> float:
    """Mean distance of confidence and share right over the bins, weighted by n (the expected calibration error of Guo et al. 2017)."""
    return float((table["n"] * (table["confidence"] - table["right"]).abs()).sum() / table["n"].sum())


def thresholds(rows: Rows, values: tuple[float, ...] = THRESHOLDS) -> pd.DataFrame:
    """What stopping a chain at the first drafted token below a confidence would do: threshold, drafted (tokens verified a row), saved (their
    share of K), accept_length, kept (its share of what all K give). Over the rows that count at all steps; the first row has no threshold."""
    whole = rows.complete
    n = int(whole.sum())
    if not n:
        return pd.DataFrame(columns=["threshold", "drafted", "saved", "accept_length", "kept"])
    sure, joint = rows.confidence[:, whole], rows.joint[:, whole]
    table = []
    for value in (0.0, *values):
        sent = np.logical_and.accumulate(sure >= value, axis=0)  # [K, n]
        table.append((value, sent.sum() / n, 1 - sent.mean(), 1 + (sent & joint).sum() / n))
    found = pd.DataFrame(table, columns=["threshold", "drafted", "saved", "accept_length"])
    return found.assign(kept=found["accept_length"] / found["accept_length"].iloc[0])
