"""Attention of a drafted chain over the true prefix, for many chains at once and without a T x T score matrix.

A chain that starts at row t has seen the prefix rows 0..t (their keys come from the target's states) and one key per step drafted so
far at the same row. This is EAGLE-3's training-time mask (step 0 causal, one diagonal key per later step) seen from one row.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCORE_BYTES = 64 * 2**20
"""Scores of one block of chains. They are changed in place, so the peak is little more than twice this, whatever T is."""
BLOCK_CHAINS = 128
"""Chains of one block at most: short blocks meet fewer prefix rows that lie beyond their own."""


def chain_attention(q: Tensor, prefix_k: Tensor, prefix_v: Tensor, own_k: Tensor, own_v: Tensor, last: Tensor, scale: float) -> Tensor:
    """Attend from R chains to the prefix rows 0..last[r] and to the chain's own J drafted keys.

    q: [R, heads, D]; prefix_k, prefix_v: [T, kv_heads, D]; own_k, own_v: [R, J, kv_heads, D], J may be 0; last: [R] int64, ascending;
    scale: of the scores, D**-0.5 in most layers. Values may have another width than keys (MLA). Returns [R, heads, D of values] in q's
    dtype. Scores and softmax are float32 whatever the inputs are.
    """
    rows, heads = q.shape[:2]
    kv_heads = prefix_k.shape[1]
    keys, values = prefix_k.float(), prefix_v.float()  # [T, kv, D]
    positions = torch.arange(keys.shape[0], device=q.device)
    block = min(BLOCK_CHAINS, max(16, SCORE_BYTES // (4 * heads * max(1, keys.shape[0]))))
    edges = last[::block].tolist()  # the first chain's last row of each block
    out = q.new_empty(rows, heads, values.shape[-1])
    for first in range(0, rows, block):
        part = slice(first, min(first + block, rows))
        seen = int(last[part][-1]) + 1  # later prefix rows are masked for all chains of the block
        chains = q[part].float().unflatten(1, (kv_heads, heads // kv_heads)) * scale  # [r, kv, group, D]
        scores = torch.einsum("rkgd,tkd->rkgt", chains, keys[:seen])  # [r, kv, group, seen], the only large tensor
        beyond = edges[first // block] + 1  # up to here all chains of the block see everything
        scores[..., beyond:].masked_fill_(positions[beyond:seen] > last[part, None, None, None], float("-inf"))
        own = torch.einsum("rkgd,rjkd->rkgj", chains, own_k[part].float())  # [r, kv, group, J]
        top = torch.cat([scores.detach().amax(-1, keepdim=True), own.detach()], dim=-1).amax(-1, keepdim=True)  # no gradient: it cancels
        scores.sub_(top).exp_()
        own = (own - top).exp()
        mixed = torch.einsum("rkgt,tkd->rkgd", scores, values[:seen])
        mixed = mixed + torch.einsum("rkgj,rjkd->rkgd", own, own_v[part].float())
        mixed = mixed / (scores.sum(-1, keepdim=True) + own.sum(-1, keepdim=True))
        out[part] = mixed.flatten(1, 2).to(q.dtype)
    return out
