"""What a class of tokens costs, in accept length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from eaglelab.acceptance import FEW_SAMPLES, ratio_interval
from eaglelab.lost.classes import TokenClass
from eaglelab.lost.rows import Rows
from eaglelab.replay.rank import simultaneous

LEAST = 20
"""Tokens that a class needs before its cost is judged: the rate of fewer is known to 20 points at best."""
COLUMNS = (
    "class",
    "group",
    "n",
    "share",
    "samples",
    "marginal",
    "from",
    "to",
    "others",
    "accept_length",
    "lost",
    "gain",
    "low",
    "high",
    "told",
)


def class_costs(rows: Rows, classes: Sequence[TokenClass]) -> pd.DataFrame:
    """One row a class, what costs most first, over the rows that count at all steps.

    n, share, samples: right tokens of step 0 in the class, their share of all, samples with one. marginal, from, to, others: acceptance at
    step 0 of these tokens with its 95 % interval by sample, and of all others. accept_length: mean over the rows whose first right token is in the class. lost: accept length lost at
    first wrong tokens of the class, (K - accepted) / rows; over the kinds, which share all tokens out, it adds up to K + 1 - accept length.
    gain: what the mean accept length would gain if the class were right as often as the other tokens: 1 + a0 + a0 a1 + ... - accept length,
    with a_k the conditional acceptance at step k over the tokens outside the class. low, high: 95 % for all classes together, jackknife by
    sample. told: the class is judged and its gain is beyond chance.
    """
    n = int(rows.complete.sum())
    if not n or not classes:
        return pd.DataFrame(columns=list(COLUMNS))
    accepted = rows.joint.sum(0)  # [R]
    wrong = rows.reached & ~rows.right  # [K, R] the first wrong step
    left = (rows.steps - np.arange(rows.steps))[:, None]
    asked, right = rows.by_sample(rows.reached), rows.by_sample(rows.joint)  # [K, S]
    table, pulls = [], []
    for c in classes:
        first = rows.complete & c.member[0]
        there, rest = int(first.sum()), rows.complete & ~c.member[0]
        gain, off = _gain(asked, right, rows.by_sample(rows.reached & ~c.member), rows.by_sample(rows.joint & ~c.member))
        pulls.append(off)
        by_sample, right_there = rows.by_sample(first), rows.by_sample(first & rows.right[0])  # [S]
        samples = int((by_sample > 0).sum())
        low, high = ratio_interval(right_there[by_sample > 0], by_sample[by_sample > 0])
        table.append(
            {
                "class": c.name,
                "group": c.group,
                "n": there,
                "share": there / n,
                "samples": samples,
                "marginal": rows.right[0][first].mean() if there else None,
                "from": low,
                "to": min(high, 1.0),
                "others": rows.right[0][rest].mean() if rest.any() else None,
                "accept_length": 1 + accepted[first].mean() if there else None,
                "lost": float(((wrong & c.member) * left).sum() / n),
                "gain": gain,
                "judged": there >= LEAST and samples >= FEW_SAMPLES and rest.any(),
            }
        )
    found = pd.DataFrame(table).astype({"marginal": float, "others": float, "accept_length": float})
    half = np.full(len(found), np.inf)
    judged = found.pop("judged").to_numpy(dtype=bool)
    if judged.any():
        half[judged] = simultaneous(np.array(pulls)[judged], rows.by_sample(rows.complete))
    found["low"], found["high"] = found["gain"] - half, found["gain"] + half
    found["told"] = found["low"] > 0
    return found.sort_values(["gain"], ascending=False, kind="stable", ignore_index=True)[list(COLUMNS)]


def _gain(asked: np.ndarray, right: np.ndarray, other_asked: np.ndarray, other_right: np.ndarray) -> tuple[float, np.ndarray]:
    """The gain, and how each sample pulls on it [S] (jackknife). All arguments [K, S]."""

    def gain(out: np.ndarray) -> np.ndarray:
        """[B] of the sums less `out` [K, S] @ [S, B]."""
        a, r, oa, o = (t @ out for t in (asked, right, other_asked, other_right))  # [K, B]
        c = np.divide(r, a, out=np.zeros_like(r), where=a > 0)
        alone = np.divide(o, oa, out=c.copy(), where=oa > 0)  # where no other token is asked for, nothing changes
        return np.cumprod(alone, axis=0).sum(0) - np.cumprod(c, axis=0).sum(0)

    samples = asked.shape[1]
    without = gain(1 - np.eye(samples))  # [S]
    off = (without.mean() - without) * (samples - 1) / samples
    return float(gain(np.ones((samples, 1)))[0]), off
