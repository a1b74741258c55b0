"""The KV cache, and attention of decode and extend passes over it.

Letters: B requests, T query rows of all requests, P slots of the pool, h query heads, g key heads, d head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_kernel.operators import operator, unsupported


@operator("store_cache_cpu(Tensor k, Tensor v, Tensor(a!) kc, Tensor(b!) vc, Tensor idx, int row_dim) -> ()")
def store_cache_cpu(k: Tensor, v: Tensor, kc: Tensor, vc: Tensor, idx: Tensor, row_dim: int) -> None:
    kc.view(kc.shape[0], -1)[idx] = k.reshape(k.shape[0], -1)
    vc.view(vc.shape[0], -1)[idx] = v.reshape(v.shape[0], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
    """q [n, h, d]; k, v [m, g, d]; mask [n, m] bool, None: every key is seen. Returns [n, h, d]."""
    rows = [x.transpose(0, 1)[None] for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*rows, attn_mask=mask, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)


def refuse(cap: float, cross: bool, window: int, sinks: Tensor | None) -> None:
    asked = {"logit cap": bool(cap), "cross attention": cross, "sliding window": window > 0, "attention sinks": sinks is not None}
    for what, wanted in asked.items():
        if wanted:
            raise unsupported(what)


@operator(
    "decode_attention_cpu(Tensor q, Tensor(a!) kb, Tensor(b!) vb, float ks, float vs, Tensor(c!) o, Tensor? k, Tensor? v, Tensor loc, "
    "Tensor(d!) attn_logits, Tensor r2t, Tensor rpi, Tensor seq_lens, float scaling, float cap, bool cross, int window, Tensor? enc, "
    "Tensor? sinks) -> ()"
)
def decode_attention_cpu(q, kb, vb, ks, vs, o, k, v, loc, attn_logits, r2t, rpi, seq_lens, scaling, cap, cross, window, enc, sinks) -> None:
    """One query row a request. q, o [B, h, d]; kb, vb [P, g, d]; r2t [requests, positions] slots; rpi, seq_lens [B]."""
    refuse(cap, cross, window, sinks)
    if k is not None:
        kb[loc] = k.view(-1, *kb.shape[1:])
        vb[loc] = v.view(-1, *vb.shape[1:])
    for i, (request, length) in enumerate(zip(rpi.tolist(), seq_lens.tolist(), strict=True)):
        slots = r2t[request, :length].long()
        o[i] = attend(q[i : i + 1], kb[slots], vb[slots], scaling, None)[0]


@operator(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor kb, Tensor vb, float ks, float vs, Tensor r2t, "
    "Tensor rpi, Tensor seq_lens, Tensor ext_lens, Tensor ext_start, int max_ext, float scaling, float cap, bool cross, int window, "
    "Tensor? enc, Tensor? sinks, Tensor? tree_mask, bool causal) -> ()"
)
def extend_attention_cpu(
    q, k, v, o, kb, vb, ks, vs, r2t, rpi, seq_lens, ext_lens, ext_start, max_ext, scaling, cap, cross, window, enc, sinks,
    tree_mask, causal,
) -> None:  # fmt: skip
    """Several query rows a request: prefill, and verify passes with `tree_mask` [B, rows, rows] (one entry a pair of drafted tokens)."""
    refuse(cap, cross, window, sinks)
    lengths = zip(rpi.tolist(), seq_lens.tolist(), ext_lens.tolist(), ext_start.tolist(), strict=True)
    for i, (request, length, rows, start) in enumerate(lengths):
        prefix, mine = length - rows, slice(start, start + rows)
        cached = r2t[request, : prefix if k is not None else length].long()
        keys, values = kb[cached], vb[cached]
        if k is not None:
            keys = torch.cat([keys, k[mine].view(rows, *kb.shape[1:])])
            values = torch.cat([values, v[mine].view(rows, *vb.shape[1:])])
        mask = None
        if tree_mask is not None:
            pairs = tree_mask.view(-1)[i * rows * rows : (i + 1) * rows * rows].view(rows, rows).bool()
            mask = torch.cat([torch.ones(rows, prefix, dtype=torch.bool), pairs], 1)  # [rows, length]
        elif causal:
            mask = torch.arange(length)[None] <= torch.arange(prefix, length)[:, None]  # [rows, length]
        o[mine] = attend(q[mine], keys, values, scaling, mask)
