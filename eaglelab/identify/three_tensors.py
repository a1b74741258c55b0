"""Way (b): the embedding's rows, the final norm and the lm_head. They tell the embedding, the final-normed state, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps.rows import take_rows
from eaglelab.identify.rule import Judgement
from eaglelab.target.head import target_argmax
from eaglelab.target.norms import FinalNorm
from eaglelab.target.tensors import TensorSource
from eaglelab.wiring import FINAL

NEXT_TOKEN_SAMPLES = 2
"""Samples on which the lm_head is read, whole."""
NEXT_TOKEN_ROWS = 256
FEW_RIGHT = 0.05
BLOCK_ROWS = 256
SMALL_GAIN = 1e-3
"""A channel whose gain is below this share of the median gain says nothing about what was multiplied by it: left out."""
RMS_TOLERANCE = 0.02
"""How far from 1 the median RMS may be: rounding to fp8 adds 0.1 %, the norm's epsilon takes up to 0.3 % of small states."""
SPREAD_TOLERANCE = 0.005
"""How far apart the 5 and 95 % points of the RMS over tokens may be, beside rounding. A norm makes it constant; what was never
normed varies by percents from token to token (by 2.7 % even for independent Gaussian values at H = 7168)."""
TWICE = 3.0
"""Standard deviations by which the state without its gain must lead before a norm is called one too many."""
DOMINANT = 0.5
"""A channel with more than this share of a token's energy makes the RMS nearly constant by itself: no proof of a norm."""


def find_normed(samples: Sequence[Any], names: Sequence[str], judged: list[list[Judgement]], source: TensorSource) -> None:
    """Say `final` for slots that are not the embedding and have the final norm's gain: RMS of h / w is 1 in every token.

    It is so once more where a state was normed twice. There lm_head says the text by the state without the gain, and the slot is not named.
    """
    for s, name in enumerate(names):
        normed = []
        for sample, line in zip(samples, judged, strict=True):
            judgement = line[s]
            if judgement.boundary is not None or not judgement.tested or judgement.kind is not None:
                continue
            states = sample.slots[sample.slot_names.index(name)]  # [T, H]
            test = normed_test(states, source.norm)
            if not test.normed:
                what = f" but for a constant factor {test.rms:.4g}" if test.multiplied else ""
                judgement.reason = judgement.reason.replace("; which", f"; not final-normed{what} (spread {test.spread:.2g}); which")
                judgement.numbers = {"rms": test.rms, "spread": test.spread}
                continue
            judgement.boundary = FINAL
            judgement.reason = f"RMS of h / norm.weight is {test.rms:.4f} in every token (spread {test.spread:.2g}): the final-normed state"
            normed.append((sample, states, judgement))
        _by_next_tokens(normed, source)


def _by_next_tokens(normed: list[tuple[Any, Tensor, Judgement]], source: TensorSource) -> None:
    """What lm_head says by one slot of the first samples: beside their reasons, and whether all of them were normed twice."""
    as_is, without = [], []
    for sample, states, judgement in normed[:NEXT_TOKEN_SAMPLES]:
        once = next_token_test(sample, states, source.lm_head)
        as_is.append(once)
        without.append(next_token_test(sample, without_gain(states, source.norm), source.lm_head))
        _add_next_tokens(judgement, int(once.sum()), len(once))
    if as_is and ahead(torch.cat(without), torch.cat(as_is), TWICE):
        right, other, n = (int(torch.cat(without).sum()), int(torch.cat(as_is).sum()), len(torch.cat(as_is)))
        for _, _, judgement in normed:
            judgement.boundary, judgement.kind, judgement.found = None, "normed twice", FINAL
            judgement.reason = f"the final-normed state, normed once more: lm_head says the text in {right} of {n} rows without the gain, as it is in {other}"
            judgement.numbers = {"without_gain_right": right, "next_token_right": other, "next_token_of": n}


def _add_next_tokens(judgement: Judgement, right: int, tokens: int) -> None:
    judgement.numbers = {"next_token_right": right, "next_token_of": tokens}
    judgement.reason += f"; its argmax is the text's next token in {right} of {tokens} rows"
    if right < FEW_RIGHT * tokens:
        judgement.reason += ", which is few: are these rows of these tokens?"


def ahead(one: Tensor, other: Tensor, sigmas: float = 2.0) -> bool:
    """Whether the first of two ways is right more often, beyond chance: McNemar's test on the same rows. one, other: [n] bool."""
    only = one.int() - other.int()
    return int(only.sum()) > sigmas * float(only.abs().sum()) ** 0.5


def without_gain(states: Tensor, norm: FinalNorm) -> Tensor:
    """[T, H] to [T, H] float32: (h - bias) ÷ gain, its largest value 1. Of a state that was normed twice it is the once-normed one, but for
    a factor a token, which no argmax sees. Channels that the gain shuts are zero in both."""
    bias, kept = 0 if norm.bias is None else norm.bias, _kept(norm.gain)
    z = torch.where(kept, (states.float() - bias) / norm.gain.where(kept, 1.0), 0.0)  # [T, H]
    return z / z.abs().amax(-1, keepdim=True).clamp_min(1e-30)


def _kept(gain: Tensor) -> Tensor:
    """[H] bool: channels that are not as good as shut. Raises ValueError for a gain that is no number, or zero throughout."""
    if not bool(gain.isfinite().all()) or not bool(gain.any()):
        bad = int((~gain.isfinite()).sum())
        raise ValueError(
            f"the final norm's weight is {f'NaN or infinite in {bad}' if bad else 'zero in all'} of {len(gain)} channels: no state can be held "
            "against it; download the target's checkpoint again"
        )
    return gain.abs() > SMALL_GAIN * gain.abs().median()


@dataclass(frozen=True)
class NormedTest:
    """After a norm, h ÷ gain has RMS 1 in every token."""

    rms: float
    """Median over tokens."""
    spread: float
    """The 5 and 95 % points' distance over `rms`."""
    normed: bool
    """`rms` within RMS_TOLERANCE of 1 and `spread` within SPREAD_TOLERANCE, plus rounding of the dump's dtype and what the channels
    left out may hide: states whose RMS is near 1 on the whole but differs from token to token do not pass."""
    multiplied: bool
    """Constant over tokens, but not 1: an output multiplier, or another state of constant norm."""
    tokens: int
    """Rows used: those with NaN or only zeros are left out."""
    channels: int


def normed_test(states: Tensor, norm: FinalNorm) -> NormedTest:
    """Is a slot [T, H] the state after this final norm? What it cannot tell: another norm whose gain is in proportion to this one's."""
    gain, bias = norm.gain, norm.bias
    if states.shape[-1] != len(gain):
        raise ValueError(f"states are {states.shape[-1]} wide, the final norm {len(gain)}: they are not of the same target")
    kept = _kept(gain)  # [H]
    rms, mean, top = _rms_of_quotient(states, gain[kept], 0 if bias is None else bias[kept], kept)  # [T] each
    good = rms.isfinite() & (rms > 0)
    low, middle, high, channels = *_quantiles(rms[good], 0.05, 0.5, 0.95), max(1, int(kept.sum()))
    spread = (high - low) / middle
    share, centre = _quantiles(top[good], 0.5)[0], _quantiles(mean[good], 0.5)[0]
    rounding = torch.finfo(states.dtype).eps * (4 / channels**0.5 + 0.7 * share)
    unseen = 5 * int((~kept).sum()) ** 0.5 / channels  # the energy in the channels left out differs from token to token
    constant = spread <= SPREAD_TOLERANCE + rounding + unseen and (not norm.mean_removed or abs(centre) <= RMS_TOLERANCE * middle)
    near_one = abs(middle - 1) <= RMS_TOLERANCE
    return NormedTest(
        middle, spread, constant and near_one, constant and not near_one and share < DOMINANT, int(good.sum()), int(kept.sum())
    )


def _rms_of_quotient(states: Tensor, gain: Tensor, bias: Tensor | int, kept: Tensor) -> Tensor:
    """Per token of (h - bias) ÷ gain over the kept channels: RMS, mean, and the largest channel's share of the energy. [3, T]"""
    parts = [torch.zeros(3, 0)]
    for block in states.split(BLOCK_ROWS):
        z = (block.float()[:, kept] - bias) / gain  # [B, channels]
        energy = z.square()
        parts.append(torch.stack([energy.mean(-1).sqrt(), z.mean(-1), energy.amax(-1) / energy.sum(-1)]))
    return torch.cat(parts, dim=1)


def _quantiles(values: Tensor, *shares: float) -> list[float]:
    return values.double().quantile(torch.tensor(shares).double()).tolist() if len(values) else [float("nan")] * len(shares)


def next_token_test(sample: Any, states: Tensor, lm_head: Any) -> Tensor:
    """[n] bool: in which rows the argmax of final-normed `states` [T, H] over the vocabulary is the sample's own next token.

    Row t counts when token t+1 is trained (all tokens where the mask is unknown), at most NEXT_TOKEN_ROWS of them, spread evenly.
    """
    length = min(len(sample.token_ids), len(states))
    trained = torch.ones(length) if sample.loss_mask is None else sample.loss_mask[:length]
    rows = trained[1:].nonzero().flatten()  # [n]
    if len(rows) > NEXT_TOKEN_ROWS:
        rows = rows[torch.linspace(0, len(rows) - 1, NEXT_TOKEN_ROWS).round().long()]
    argmax, _ = target_argmax(take_rows(states, rows).float(), lm_head)  # [n]
    return argmax == sample.token_ids[rows + 1]
