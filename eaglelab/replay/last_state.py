"""Has a dump's last state gone through the target's final norm already? Measured once: the replay judges by it, the findings tell it.

Two looks, each possible without the other. The norm's gain: after a norm the RMS of h / gain is 1 in every token. The lm_head: which way,
as it is or normed, does it say the text that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.identify.three_tensors import NormedTest, normed_test
from eaglelab.target.head import target_choice
from eaglelab.target.norms import FinalNorm

PROBE_ROWS = 256
"""Rows that each look takes, over all samples."""
WAYS = ("as it is", "normed")


@dataclass(frozen=True)
class LastState:
    """What the numbers say of the last state."""

    normed: bool | None
    """True: after the final norm. False: it still needs it. None: cannot be told."""
    ground: str = ""
    """What decided: `values` (h / gain) or `lm_head`; "" where nothing did."""
    test: NormedTest | None = None
    """None without the norm's weight."""
    right: dict[str, tuple[int, int]] | None = None
    """Tokens of the text (right, of n) that lm_head says, by way (`WAYS`). None without lm_head, one way without the norm."""

    def rate(self, way: str) -> float | None:
        """Share of the text that lm_head says one way; None where that was not tried or no token trains."""
        right, n = (self.right or {}).get(way, (0, 0))
        return right / n if n else None

    def looks(self) -> list[dict[str, str]]:
        """One row a look, for a table."""
        rows = [
            {"look": f"lm_head on the state {way}", "result": f"{r:,} of {n:,} tokens of the text"}
            for way, (r, n) in (self.right or {}).items()
        ]
        if self.test is not None:
            result = f"median {self.test.rms:.4g}, spread {self.test.spread:.2%}, {self.test.tokens:,} tokens"
            rows.append({"look": "RMS of h ÷ the norm's gain (1 after the norm)", "result": result})
        return rows


def measure_last_state(samples: Sequence[Sample], last: int, norm: FinalNorm | None, lm_head: Tensor | Any | None) -> LastState:
    """Both looks at the slot `last` of a few samples, as far as norm and lm_head are at hand.

    The values decide where they show a norm, and lm_head where one way is ahead beyond chance: a state after another norm, or times a
    constant, is then taken as lm_head takes it. Where both ways say the same (a gain that is nearly constant, a text that is nobody's
    choice), the values decide. Raises ValueError for states of another width.
    """
    test = None if norm is None else normed_test(torch.cat([_spread(s.slots[last], len(samples)) for s in samples]), norm)
    right, lead = (None, 0) if lm_head is None else _says_the_text(samples, last, norm, lm_head)
    if test is not None and test.normed:
        return LastState(True, "values", test, right)
    if lead:
        return LastState(lead > 0, "lm_head", test, right)
    return LastState(False, "values", test, right) if test is not None and test.tokens else LastState(None, "", test, right)


def _spread(states: Tensor, samples: int) -> Tensor:
    """An even choice of a sample's rows. states: [T, H]."""
    return states[torch.linspace(0, len(states) - 1, min(len(states), PROBE_ROWS // samples + 1)).long()]


def _says_the_text(samples: Sequence[Sample], last: int, norm: FinalNorm | None, lm_head: Any) -> tuple[dict[str, tuple[int, int]], int]:
    """(right tokens, of n, by way; which way is ahead: 1 as it is, -1 normed, 0 neither beyond chance). Rows with NaN are left out."""
    from eaglelab.replay.answers import trained_positions

    states, wanted = [], []
    for sample in samples:
        at = trained_positions(sample)[1:].nonzero()[:, 0][: PROBE_ROWS // len(samples) + 1]
        rows = wide(sample.slots[last][at])  # [n, H]
        whole = rows.isfinite().all(-1)
        states.append(rows[whole])
        wanted.append(sample.token_ids[at + 1][whole])
    ways = [torch.cat(states)]
    if norm is not None:
        ways.append(norm(ways[0]).to(ways[0].dtype))
    hits = (target_choice(torch.cat(ways), lm_head).cpu().view(len(ways), -1) == torch.cat(wanted)).float()  # [ways, n]
    right = {way: (int(h.sum()), hits.shape[1]) for way, h in zip(WAYS, hits, strict=False)}
    if norm is None:
        return right, int(hits.mean() > 0.5) if hits.numel() else 0
    only = hits[0] - hits[1]
    return right, int(only.sum().sign()) if only.sum() ** 2 > 4 * only.abs().sum() else 0  # McNemar's test, 95 %


def wide(states: Tensor) -> Tensor:
    """8-bit states in bfloat16, so that a norm applied to them is not rounded to three bits; others as they are."""
    return states.bfloat16() if states.dtype.itemsize == 1 else states
