"""The target's verify pass: n tokens of each request in one forward over a filled cache. n = 1 is plain decode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eaglelab.timing.bench import counts
from eaglelab.timing.bench.counts import Counts
from eaglelab.timing.bench.fixed_cache import fixed_cache, kept_rows, random_rows
from eaglelab.timing.bench.target_model import TargetModel, head_of
from eaglelab.timing.experts import Experts, experts_of

EXPERT = re.compile(r"(^|\.)experts\.")
KeysValues = tuple[Tensor, Tensor]


class VerifyPass:
    """B requests with `context` rows of keys and values each, random unless given; passes of up to `room` tokens."""

    def __init__(
        self, target: TargetModel, batch: int, context: int, room: int, *, rows: Sequence[KeysValues | None] | None = None
    ) -> None:
        """rows: per layer keys [B, kv_heads, kept + room, D] and values [B, kv_heads, kept + room, Dv], `kept` by `kept_rows`; None for layers
        that are not in memory."""
        self.target, self.batch, self.context = target, batch, context
        if rows is None:
            rows = [None] * target.num_layers
            for i, shape in target.kv_shapes.items():
                rows[i] = random_rows(batch, kept_rows(context, target.windows[i]) + room, shape, target.dtype, target.device)
        self.cache = fixed_cache(context, target.windows, rows)
        vocabulary = target.skeleton.embedding.weight.shape[0]
        self._ids = torch.randint(vocabulary, (batch, room), device=target.device)
        self._positions = torch.arange(context, context + room, device=target.device).expand(batch, -1)

    def run(self, tokens: int, layers: Sequence[int] | None = None, ids: Tensor | None = None) -> Tensor:
        """One pass of `tokens` tokens a request through these layers (default: all in memory). ids: [B, tokens], random unless given.

        Returns logits [B, tokens, V].
        """
        ids = self._ids[:, :tokens] if ids is None else ids
        if layers is None and self.target.whole:
            return self.target.forward(ids, self._positions[:, :tokens], self.cache)
        with self.target.only(self.target.in_memory if layers is None else layers):
            return self.target.forward(ids, self._positions[:, :tokens], self.cache)


def kv_bytes(target: TargetModel, batch: int, context: int, room: int) -> int:
    """Bytes that a `VerifyPass` takes for keys and values."""
    rows = {i: kept_rows(context, target.windows[i]) + room for i in target.kv_shapes}
    return sum(batch * rows[i] * heads * (key + value) for i, (heads, key, value) in target.kv_shapes.items()) * target.dtype.itemsize


def verify_counts(target: TargetModel, batch: int, context: int, tokens: int) -> Counts:
    """Bytes and operations of one pass of the whole target (all N layers, whatever is in memory)."""
    skeleton, config = target.skeleton, target.skeleton.base.config
    total, inside = counts.NOTHING, set()
    for kind, held in zip(target.kinds, target.held, strict=True):
        layer = skeleton.layers[held[0]]
        kept, shape = kept_rows(context, target.windows[held[0]]), target.kv_shapes[held[0]]
        channels = latent_channels(config, shape)
        one = counts.attention(batch, kept, tokens, config.num_attention_heads, shape, target.dtype.itemsize, channels)
        dense = [p for name, p in layer.named_parameters() if not EXPERT.search(name)]
        routed = [p for name, p in layer.named_parameters() if EXPERT.search(name)]
        one += counts.weights(_bytes(dense), _in_matrices(dense), batch * tokens)
        if routed:  # all of them where the config does not say how many a token goes to
            one += counts.experts(_bytes(routed), _in_matrices(routed), batch * tokens, routing(target) or Experts(1, 1))
        total += Counts(len(kind) * one.bytes, len(kind) * one.flops)
        inside |= {id(p) for i in kind for p in skeleton.layers[i].parameters()}
    head = head_of(skeleton)
    table = skeleton.embedding.weight
    rest = [p for p in skeleton.root.parameters() if id(p) not in inside and p is not table and (head is None or p is not head.weight)]
    total += counts.weights(_bytes(rest), _in_matrices(rest), batch * tokens)
    if head is not None:  # a tied head reads the table
        total += counts.weights(_bytes([head.weight]), head.weight.numel(), batch * tokens)
        total += counts.logits(batch * tokens, head.weight.shape[0], target.dtype.itemsize)
    return total


def latent_channels(config: Any, kv_shape: tuple[int, int, int]) -> int | None:
    """What a head of an MLA layer multiplies where the latent is cached and its expansion is absorbed into the query and the output, as engines
    do: latent and rotated part for the key, the latent for the value. None for other layers."""
    latent = getattr(config, "kv_lora_rank", None)
    return kv_shape[1] + kv_shape[2] + latent if latent and kv_shape[0] == 1 and latent in kv_shape[1:] else None


def routing(target: TargetModel) -> Experts | None:
    """Routed experts of a layer; None for a dense target."""
    return experts_of(target.skeleton.base.config.to_dict()) if has_experts(target) else None


def has_experts(target: TargetModel) -> bool:
    return any(EXPERT.search(name) for kind in target.held for name, _ in target.skeleton.layers[kind[0]].named_parameters())


def _bytes(parameters: Sequence[Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _in_matrices(parameters: Sequence[Tensor]) -> int:
    return sum(p.numel() for p in parameters if p.ndim > 1)
