"""The target's own choice of the next token from final-normed states, streamed over the vocabulary in bounded memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_ROWS = 1024
"""Rows of states at a time: with the default chunk the logits in memory are 1024 x 4096 float32 = 16 MB."""
SHORTLIST = 8
"""Candidates of each row that a rounded product leaves for float32; rows with more than these near their top get float32 throughout."""
ROUNDING = 2.0**-7
"""Two bfloat16 logits whose gap is more than this share of the top's size are in the right order: each is off by 2^-9 at most after
rounding, and the rest is room for another order of summing."""


@torch.no_grad()
def target_argmax(
    states: Tensor, lm_head: Tensor | Any, chunk: int = 4096, scale: float = 1.0, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """argmax and logsumexp over the vocabulary of `states @ lm_head.T` in float32, without ever holding the [T, V] logits.

    states: [T, H], any float dtype and device. lm_head: [V, H], a tensor or anything with `.shape` that gives rows for `[a:b]`
    (`Checkpoint.lazy`), on any device: it goes to the states' device `chunk` rows at a time, and each row is read once.
    scale, softcap: what the target does to its logits (`adjust`). The lowest index wins a tie.
    Returns (argmax [T] int64, logsumexp [T] float32), both on the states' device; rows with a NaN give -1 and NaN.
    """
    _check_shapes(states, lm_head)
    rows, device = states.shape[0], states.device
    best = torch.full((rows,), -torch.inf, device=device)  # [T]
    argmax = torch.full((rows,), -1, dtype=torch.int64, device=device)  # [T]
    logsumexp = torch.full((rows,), -torch.inf, device=device)  # [T]
    for first in range(0, lm_head.shape[0], chunk):
        weights = lm_head[first : first + chunk].to(device, torch.float32)  # [C, H]
        for start in range(0, rows, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            logits = states[block].float() @ weights.T  # [B, C]
            top, where = logits.max(dim=-1)
            better = top > best[block]
            argmax[block] = torch.where(better, where + first, argmax[block])
            best[block] = torch.where(better, top, best[block])
            logsumexp[block] = torch.logaddexp(logsumexp[block], adjust(logits, scale, softcap).logsumexp(dim=-1))
    return torch.where(logsumexp.isnan(), -1, argmax), logsumexp


@torch.no_grad()
def target_choice(states: Tensor, lm_head: Tensor | Any, chunk: int = 4096) -> Tensor:
    """The argmax of `target_argmax`, [T] int64, at the speed of the head's own dtype.

    On a CPU that can, bfloat16 states and head are multiplied as they are (about five times as fast as float32). That rounds the
    logits, so each row keeps a shortlist whose order float32 settles; a row with more candidates than it holds is done in float32.
    """
    _check_shapes(states, lm_head)
    if not (states.dtype == lm_head[:1].dtype == torch.bfloat16 and states.device.type == "cpu" and multiplies_bfloat16()):
        return target_argmax(states, lm_head, chunk)[0]
    rounded, token = _shortlist(states, lm_head, chunk)  # [T, 8] both, the largest first
    near = ~(rounded < rounded[:, :1] - rounded[:, :1].abs() * ROUNDING)  # [T, 8]; a NaN counts as near
    unsure = near[:, -1] | rounded.isnan().any(-1)  # there may be more than the list holds
    choice = torch.empty(len(states), dtype=torch.int64)
    for start in range(0, len(states), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        choice[block] = _settle(states[block], lm_head, near[block], token[block])
    again = unsure.nonzero()[:, 0]
    if len(again):
        choice[again] = target_argmax(states[again], lm_head, chunk)[0]
    return choice


def _shortlist(states: Tensor, lm_head: Tensor | Any, chunk: int) -> tuple[Tensor, Tensor]:
    """The largest logits of each row after rounding, [T, 8] float32, and their tokens [T, 8]."""
    best = torch.full((len(states), SHORTLIST), -torch.inf)
    token = torch.full((len(states), SHORTLIST), -1, dtype=torch.int64)
    for first in range(0, lm_head.shape[0], chunk):
        weights = lm_head[first : first + chunk]  # [C, H]
        for start in range(0, len(states), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            top, where = (states[block] @ weights.T).topk(min(SHORTLIST, len(weights)), dim=-1)  # [B, 8]
            best[block], order = torch.cat([best[block], top.float()], 1).topk(SHORTLIST, dim=-1)
            token[block] = torch.cat([token[block], where + first], 1).gather(1, order)
    return best, token


def _settle(states: Tensor, lm_head: Tensor | Any, near: Tensor, token: Tensor) -> Tensor:
    """The token [B] with the largest float32 logit among those near the top; the lowest of equals. near, token: [B, 8]."""
    row, place = (near & (token >= 0)).nonzero(as_tuple=True)  # n pairs, little more than B
    ids, back = token[row, place].unique(return_inverse=True)
    logits = torch.full(near.shape, -torch.inf)
    logits[row, place] = torch.linalg.vecdot(states[row].float(), head_rows(lm_head, ids).float()[back])
    largest = logits == logits.amax(-1, keepdim=True)
    return torch.where(largest, token, lm_head.shape[0]).amin(-1)


def head_rows(lm_head: Tensor | Any, ids: Tensor) -> Tensor:
    """Rows [n, H] of a head by token id; of one on disk (`Checkpoint.lazy`) only these are read."""
    return lm_head[ids.to(lm_head.device)] if isinstance(lm_head, Tensor) else lm_head.checkpoint.rows(lm_head.name, ids)


def multiplies_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 by itself; elsewhere it is slower than float32."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def adjust(logits: Tensor, scale: float = 1.0, softcap: float | None = None) -> Tensor:
    """The target's own logits from the product with its lm_head: times `scale` (Cohere's `logit_scale`, one over Granite's
    `logits_scaling`), then softcap * tanh(logits / softcap) (Gemma's `final_logit_softcapping`). Neither changes the argmax."""
    if scale != 1.0:
        logits = logits * scale
    return logits if not softcap else torch.tanh(logits / softcap) * softcap


def _check_shapes(states: Tensor, lm_head: Tensor | Any) -> None:
    if states.dim() != 2 or len(lm_head.shape) != 2 or states.shape[1] != lm_head.shape[1]:
        raise ValueError(f"states [T, H] and lm_head [V, H] expected, got {tuple(states.shape)} and {tuple(lm_head.shape)}")
