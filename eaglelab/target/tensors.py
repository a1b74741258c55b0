"""Way (b): what three tensors of the target's checkpoint (two when tied) can tell about a dump, without running the target.

The embedding rows of a sample's tokens tell whether a slot is the embedding; the final norm's gain whether a slot is final-normed;
the lm_head whether a state, once normed, predicts the sample's own next tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from eaglelab.target.checkpoint import Checkpoint, LazyRows, open_checkpoint
from eaglelab.target.head import target_argmax
from eaglelab.target.norms import FinalNorm, final_norm

if TYPE_CHECKING:
    from eaglelab.dumps import Sample

BLOCK_ROWS = 256
SHIFTS = (-1, 0, 1)
SCALED_BY_ROOT = ("gemma", "t5gemma", "recurrent_gemma", "vaultgemma")
"""Model types, by their beginning, that multiply the embedding by sqrt(H)."""
SMALL_GAIN = 1e-3
"""A channel whose gain is below this share of the median gain says nothing about what was multiplied by it: left out."""
RMS_TOLERANCE = 0.02
"""How far from 1 the median RMS may be: rounding to fp8 adds 0.1 %, the norm's epsilon takes up to 0.3 % of small states."""
SPREAD_TOLERANCE = 0.005
"""How far apart the 5 and 95 % points of the RMS over tokens may be, beside rounding. A norm makes it constant; what was never
normed varies by percents from token to token (by 2.7 % even for independent Gaussian values at H = 7168)."""
DOMINANT = 0.5
"""A channel with more than this share of a token's energy makes the RMS nearly constant by itself: no proof of a norm."""


class TensorSource:
    """A target of which only single tensors are read. `identify` takes it where no forward is wanted."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoint = open_checkpoint(path)
        self.num_layers: int = self.checkpoint.num_layers
        self.hidden_size: int = self.checkpoint.hidden_size

    @cached_property
    def norm(self) -> FinalNorm:
        return final_norm(self.checkpoint)

    @property
    def lm_head(self) -> LazyRows:
        """[V, H], read slice by slice."""
        return self.checkpoint.lazy(self.checkpoint.head_name)

    @property
    def vocab_size(self) -> int:
        return self.checkpoint.vocab_size

    def embedding_rows(self, token_ids: Tensor) -> Tensor:
        """[T] to [T, H], as stored."""
        return embedding_rows(self.checkpoint, token_ids)

    def visit(self, token_ids: Sequence[Tensor], visit: Callable[..., Any], branches: bool = False) -> None:
        """Calls `visit(0, states, None)` alone: what enters layer 0, one [T, H] per sample."""
        multiplier = embedding_multiplier(self.checkpoint)
        rows = [self.embedding_rows(ids) for ids in token_ids]  # per sample [T, H]
        visit(0, [r * torch.tensor(multiplier, dtype=r.dtype) if multiplier != 1 else r for r in rows], None)


def embedding_rows(checkpoint: Checkpoint, token_ids: Tensor) -> Tensor:
    """The embedding rows of tokens [T], as stored: [T, H]. Each distinct token's row is read once, the table never.

    Raises CheckpointError for token ids that the table does not have.
    """
    return checkpoint.rows(checkpoint.embedding_name, token_ids)


def embedding_multiplier(checkpoint: Checkpoint) -> float:
    """What the model multiplies its embedding rows by before layer 0, by its config; 1 for most.

    sqrt(H) for Gemma (rounded to bfloat16 by the models themselves), `embedding_multiplier` (Granite, Falcon-H1), `scale_emb` (MiniCPM).
    """
    config = checkpoint.text_config
    for key in ("embedding_multiplier", "scale_emb"):
        if isinstance(config.get(key), (int, float)):
            return float(config[key])
    return checkpoint.hidden_size**0.5 if checkpoint.model_type.startswith(SCALED_BY_ROOT) else 1.0


def embedding_test(sample: Sample, embeddings: Tensor | Callable[[Tensor], Tensor], shifts: Iterable[int] = SHIFTS) -> pd.DataFrame:
    """Is a slot the embedding of the sample's tokens? One row per slot and token shift; shift s sets row t beside token t + s.

    embeddings: the rows of the sample's tokens [T, H], or what gives them for token ids [T].
    `multiplier` is the median over tokens of the least-squares scalar c in h ≈ c e (models multiply their embedding by a constant);
    `relative_error` the median of |h - e| / |h|, `scaled_error` that of |h - c e| / |h| with the one multiplier, `cosine` the median
    cosine. `tokens` is how many rows were compared; rows of zeros or with NaN are left out and counted in `left_out`.
    """
    table = embeddings if isinstance(embeddings, Tensor) else embeddings(sample.token_ids)  # [T, H]
    rows = []
    for slot, states in enumerate(sample.slots):
        for shift in shifts:
            h, e = _shifted(states, table, shift)  # [T - |s|, H]
            rows.append({**_who(sample, slot), "shift": shift, **_compare(h, e)})
    return pd.DataFrame(rows)


def _shifted(states: Tensor, table: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    length = min(len(states), len(table))
    first, last = max(0, -shift), length - max(0, shift)
    return states[first:last], table[first + shift : last + shift]


def _compare(h: Tensor, e: Tensor) -> dict[str, Any]:
    """Medians over tokens of h [T, H] against e [T, H], from three sums per token."""
    if h.shape != e.shape:
        raise ValueError(f"states are {h.shape[-1]} wide, the embedding rows {e.shape[-1]}: they are not of the same target")
    sums = [torch.stack([(a * a).sum(-1), (a * b).sum(-1), (b * b).sum(-1)]) for a, b in _double_blocks(h, e)]
    hh, he, ee = torch.cat(sums, dim=1) if sums else torch.zeros(3, 0, dtype=torch.float64)  # [T] float64 each
    good = hh.isfinite() & (hh > 0) & (ee > 0)
    hh, he, ee = hh[good], he[good], ee[good]
    c = _median(he / ee)
    return {
        "tokens": int(good.sum()),
        "left_out": int((~good).sum()),
        "relative_error": _median(((hh - 2 * he + ee).clamp(min=0) / hh).sqrt()),
        "scaled_error": _median(((hh - 2 * c * he + c * c * ee).clamp(min=0) / hh).sqrt()),
        "cosine": _median(he / (hh * ee).sqrt()),
        "multiplier": c,
    }


def normed_test(sample: Sample, weight: Tensor | FinalNorm, bias: Tensor | None = None) -> pd.DataFrame:
    """Is a slot the state after the final norm? One row per slot.

    weight: the final norm's weight [H] as stored, with its bias [H] where it has one; or a `FinalNorm`, whose gain is then the only
    one tried. With the weight alone the gains w and 1 + w are both tried, as RMSNorm and as LayerNorm, and the best is reported.

    After a norm, h ÷ gain has RMS 1 in every token: `rms` is its median over tokens, `rms_low` and `rms_high` the 5 and 95 % points,
    `spread` = (rms_high - rms_low) / rms. `normed` when `rms` is within RMS_TOLERANCE of 1 and `spread` within `spread_tolerance`
    (SPREAD_TOLERANCE plus rounding of the dump's dtype and what channels left out may hide): states whose RMS is near 1 on the whole
    but differs from token to token do not pass. `multiplied`: constant over tokens, but not 1 (an output multiplier, then given by
    `rms`, or another state of constant norm). `channels` counts those used, `tokens` the rows used, `left_out` rows with NaN or only
    zeros. What it cannot tell: another norm whose gain is in proportion to this one's.
    """
    rows = []
    for slot, states in enumerate(sample.slots):
        tried = [_normed(states, name, gain, b, mean) for name, gain, b, mean in _gains(weight, bias)]
        best = min(tried, key=lambda r: (not r["normed"], not r["multiplied"], abs(r["rms"] - 1)))
        rows.append({**_who(sample, slot), **best})
    return pd.DataFrame(rows)


def _gains(weight: Tensor | FinalNorm, bias: Tensor | None) -> list[tuple[str, Tensor, Tensor | None, bool]]:
    if isinstance(weight, FinalNorm):
        return [("LayerNorm" if weight.mean_removed else "RMSNorm", weight.gain, weight.bias, weight.mean_removed)]
    w = weight.float()
    plain = [("w", w, bias, False), ("1 + w", w + 1, bias, False)]
    return [*plain, ("w, mean removed", w, bias, True), ("1 + w, mean removed", w + 1, bias, True)]


def _normed(states: Tensor, name: str, gain: Tensor, bias: Tensor | None, mean_removed: bool) -> dict[str, Any]:
    if states.shape[-1] != gain.shape[0]:
        raise ValueError(f"states are {states.shape[-1]} wide, the final norm {gain.shape[0]}: they are not of the same target")
    kept = gain.abs() > SMALL_GAIN * gain.abs().median()  # [H]
    rms, mean, top = _rms_of_quotient(states, gain[kept], None if bias is None else bias[kept], kept)  # [T] each
    good = rms.isfinite() & (rms > 0)
    middle, low, high = _median(rms[good]), _quantile(rms[good], 0.05), _quantile(rms[good], 0.95)
    spread = (high - low) / middle if middle else float("nan")
    share, channels = _median(top[good]), max(1, int(kept.sum()))
    rounding = torch.finfo(states.dtype).eps * (4 / channels**0.5 + 0.7 * share)
    unseen = 5 * int((~kept).sum()) ** 0.5 / channels  # the energy in the channels left out differs from token to token
    allowed = SPREAD_TOLERANCE + rounding + unseen
    constant = spread <= allowed and (not mean_removed or abs(_median(mean[good])) <= RMS_TOLERANCE * middle)
    near_one = abs(middle - 1) <= RMS_TOLERANCE
    return {
        "gain": name,
        "tokens": int(good.sum()),
        "left_out": int((~good).sum()),
        "channels": int(kept.sum()),
        "rms": middle,
        "rms_low": low,
        "rms_high": high,
        "spread": spread,
        "spread_tolerance": allowed,
        "normed": bool(constant and near_one),
        "multiplied": bool(constant and not near_one and share < DOMINANT),
    }


def _rms_of_quotient(states: Tensor, gain: Tensor, bias: Tensor | None, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per token of (h - bias) ÷ gain over the kept channels: RMS, mean, and the largest channel's share of the energy."""
    parts = []
    for start in range(0, len(states), BLOCK_ROWS):
        z = states[start : start + BLOCK_ROWS].float()[:, kept]  # [B, channels]
        z = (z if bias is None else z - bias) / gain
        energy = z.square()
        parts.append(torch.stack([energy.mean(-1).sqrt(), z.mean(-1), energy.amax(-1) / energy.sum(-1)]))
    rms, mean, top = torch.cat(parts, dim=1) if parts else torch.zeros(3, 0)
    return rms, mean, top


def next_token_test(
    sample: Sample,
    lm_head: Tensor | LazyRows,
    norm: FinalNorm | None = None,
    *,
    max_tokens: int | None = 256,
    chunk: int = 4096,
    device: str = "cpu",
) -> pd.DataFrame:
    """How often is a slot's argmax over the vocabulary the sample's own next token? Counts, one row per slot and variant.

    variant "as is": lm_head @ h, right for a final-normed slot; "after norm" (with `norm`): lm_head @ norm(h), right for boundary N.
    Row t counts when token t+1 is trained (loss mask 1; all tokens where the mask is unknown, which `masked` says), at most
    `max_tokens` of them, spread evenly. `tokens` is how many, `right` how many agree: sum both before dividing. The lm_head is read
    once, `chunk` rows at a time; nothing of size T x V is made.
    """
    at = _rows_before_trained(sample, max_tokens)  # [n]
    next_tokens = sample.token_ids[at + 1]  # [n]
    who, blocks = [], []
    for slot, states in enumerate(sample.slots):
        picked = states[at].to(device)  # [n, H]
        for variant, made in (("as is", picked.float()), *((("after norm", norm(picked)),) if norm is not None else ())):
            who.append({**_who(sample, slot), "variant": variant, "masked": sample.loss_mask is not None})
            blocks.append(made)
    argmax, _ = target_argmax(torch.cat(blocks), lm_head, chunk)  # [n * slots * variants]
    right = (argmax.cpu().reshape(len(blocks), -1) == next_tokens).sum(-1)  # [slots * variants]
    return pd.DataFrame([{**w, "tokens": len(at), "right": int(r)} for w, r in zip(who, right, strict=True)])


def _rows_before_trained(sample: Sample, limit: int | None) -> Tensor:
    length = min(len(sample.token_ids), *(len(s) for s in sample.slots))
    trained = torch.ones(length) if sample.loss_mask is None else sample.loss_mask[:length]
    rows = trained[1:].nonzero().flatten()  # [n]: row t where token t+1 is trained
    if limit is not None and len(rows) > limit:
        rows = rows[torch.linspace(0, len(rows) - 1, limit).round().long()]
    return rows


def _who(sample: Sample, slot: int) -> dict[str, Any]:
    return {"sample": sample.key, "slot": slot, "slot_name": sample.slot_names[slot]}


def _double_blocks(h: Tensor, e: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both in float64, a few rows at a time: the error is a difference of sums that nearly cancel."""
    for start in range(0, len(h), BLOCK_ROWS):
        yield h[start : start + BLOCK_ROWS].double(), e[start : start + BLOCK_ROWS].double()


def _median(values: Tensor) -> float:
    return _quantile(values, 0.5)


def _quantile(values: Tensor, q: float) -> float:
    return float(values.double().quantile(q)) if len(values) else float("nan")
