"""The target's own choice of the next token from final-normed states, streamed over the vocabulary in bounded memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK_ROWS = 1024
"""Rows of states at a time: with the default chunk the logits in memory are 1024 x 4096 float32 = 16 MB."""


@torch.no_grad()
def target_argmax(states: Tensor, lm_head: Tensor | Any, chunk: int = 4096) -> tuple[Tensor, Tensor]:
    """argmax and logsumexp over the vocabulary of `states @ lm_head.T` in float32, without ever holding the [T, V] logits.

    states: [T, H], any float dtype and device. lm_head: [V, H], a tensor or anything with `.shape` that gives rows for `[a:b]`
    (`Checkpoint.lazy`), on any device: it goes to the states' device `chunk` rows at a time, and each row is read once.
    The lowest index wins a tie.
    Returns (argmax [T] int64, logsumexp [T] float32), both on the states' device; rows with a NaN give -1 and NaN.
    """
    if states.dim() != 2 or len(lm_head.shape) != 2 or states.shape[1] != lm_head.shape[1]:
        raise ValueError(f"states [T, H] and lm_head [V, H] expected, got {tuple(states.shape)} and {tuple(lm_head.shape)}")
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
            logsumexp[block] = torch.logaddexp(logsumexp[block], logits.logsumexp(dim=-1))
    return torch.where(logsumexp.isnan(), -1, argmax), logsumexp
