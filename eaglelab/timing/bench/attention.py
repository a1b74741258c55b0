"""Attention of a few new rows over a long cache, each key and value read once.

transformers' `sdpa` copies keys and values once per query head where there is a mask, that is for n > 1 tokens and not for n = 1
(5.24, integrations/sdpa_attention.py): verify beside decode would be charged for a copy that no engine makes. Here the query heads that share a
key head become rows of one attention, for every n. On CUDA torch still takes another kernel where there is a mask (its flash kernel takes none).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FOLDED = "eaglelab_folded"
"""The name under which transformers knows it."""


def folded_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """q: [B, heads, n, D]; k: [B, kv_heads, t, D]; v: [B, kv_heads, t, Dv]; mask: [B or 1, 1, n, t] or None (all is seen).

    Returns [B, heads, n, Dv].
    """
    batch, heads, rows, width = q.shape
    group = heads // k.shape[1]
    if group > 1:
        q = q.reshape(batch, k.shape[1], group * rows, width)
        mask = None if mask is None else mask.repeat(1, 1, group, 1)  # [B or 1, 1, group * n, t]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return out.reshape(batch, heads, rows, v.shape[-1])


def _for_transformers(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any):
    """The signature of transformers' attention functions: returns [B, n, heads, Dv] and no weights."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    per_head = attention_mask is not None and attention_mask.shape[1] != 1
    if per_head or (attention_mask is None and query.shape[2] > 1) or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return folded_attention(query, key, value, attention_mask, kwargs.get("scaling")).transpose(1, 2).contiguous(), None


def use_folded_attention(model: torch.nn.Module) -> bool:
    """Have a transformers model attend so, where its own choice is `sdpa`; False where it is another (capped scores, attention sinks)."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return False
    AttentionInterface.register(FOLDED, _for_transformers)
    AttentionMaskInterface.register(FOLDED, sdpa_mask)
    model.config._attn_implementation = FOLDED
    return True
