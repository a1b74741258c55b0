"""Has a dump's last state gone through the target's final norm already? Measured once: the replay judges by it, the findings tell it.

Two looks. The norm's gain: after a norm the RMS of h / gain is 1 in every token, after a second one too. The lm_head: by which of three
ways does it say the text that follows. Scaling changes no argmax, so lm_head without the norm's gain says nothing of normed or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.identify.three_tensors import TWICE, NormedTest, ahead, normed_test, without_gain
from eaglelab.target.head import target_choice
from eaglelab.target.norms import FinalNorm

PROBE_ROWS = 256
"""Rows that each look takes, over all samples."""
WAYS = ("as it is", "normed", "without the gain")
"""What lm_head is tried on: the state, the state normed, and h / gain, which leads where the state was normed twice."""


@dataclass(frozen=True)
class LastState:
    """What the numbers say of the last state."""

    normed: bool | None
    """True: after the final norm. False: it still needs it. None: cannot be told, or it is neither."""
    ground: str = ""
    """What decided: `values` (h / gain) or `lm_head`; "" where nothing did."""
    test: NormedTest | None = None
    """None without the norm's weight."""
    right: dict[str, tuple[int, int]] | None = None
    """Tokens of the text (right, of n) that lm_head says, by way (`WAYS`). None without lm_head, one way without the norm."""
    why: str = ""
    """Where `normed` is None: what is in the way."""
    twice: bool = False
    """Normed twice inside the dump: no choice of the target can be had from it as it stands."""

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

    lm_head decides where one way is ahead beyond chance: a state after another norm, or times a constant, is then taken as lm_head takes
    it. Where all ways say the same (a gain that is nearly constant, a text that is nobody's choice), the values decide. Where the two
    contradict each other, nothing does. Raises ValueError for states of another width, or a norm without numbers.
    """
    test = None if norm is None else normed_test(torch.cat([_spread(s.slots[last], len(samples)) for s in samples]), norm)
    hits = None if lm_head is None else _says_the_text(samples, last, norm, lm_head)
    right = None if hits is None else {way: (int(h.sum()), len(h)) for way, h in zip(WAYS, hits, strict=False)}
    if test is None:
        return LastState(None, "", None, right, "needs norm.weight: its scale changes no argmax, so lm_head alone cannot tell")
    if hits is not None:
        as_is, normed, without = hits
        if ahead(without, as_is, TWICE) and ahead(without, normed, TWICE):
            if test.normed:
                return LastState(None, "lm_head", test, right, "it was normed twice in the dump", twice=True)
            return LastState(None, "lm_head", test, right, "lm_head says the text by the state divided by the norm's gain")
        if ahead(normed, as_is):
            why = "its values are those after the norm, and lm_head says more of the text when it is normed again"
            return LastState(None, "", test, right, why) if test.normed else LastState(False, "lm_head", test, right)
        if ahead(as_is, normed) and not test.normed:
            return LastState(True, "lm_head", test, right)
    if test.normed:
        return LastState(True, "values", test, right)
    if not test.tokens:
        return LastState(None, "", test, right, "no row is a number other than zero")
    if test.multiplied:
        return LastState(None, "", test, right, f"h ÷ the norm's gain is {test.rms:.4g} in every token: after a norm, times a constant")
    return LastState(False, "values", test, right)


def _spread(states: Tensor, samples: int) -> Tensor:
    """An even choice of a sample's rows. states: [T, H]."""
    return states[torch.linspace(0, len(states) - 1, min(len(states), PROBE_ROWS // samples + 1)).long()]


def _says_the_text(samples: Sequence[Sample], last: int, norm: FinalNorm | None, lm_head: Any) -> Tensor:
    """[ways, n] bool: whether lm_head says the text's next token, by way (`WAYS`; the first alone without the norm). Rows with NaN are left out."""
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
        ways += [way.to(ways[0].dtype) for way in (norm(ways[0]), without_gain(ways[0], norm))]
    return target_choice(torch.cat(ways), lm_head).cpu().view(len(ways), -1) == torch.cat(wanted)


def wide(states: Tensor) -> Tensor:
    """8-bit states in bfloat16, so that a norm applied to them is not rounded to three bits; others as they are."""
    return states.bfloat16() if states.dtype.itemsize == 1 else states
