"""A transformers cache that stays as it is: `context` rows of keys and values, and room for the new rows of one pass.

transformers' own growing cache copies all keys and values at every pass (`torch.cat`), which no engine does. Here the new rows are written
behind the old ones, at the same place in every pass, so that a pass can be repeated and captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from eaglelab.timing.errors import TimingError


class FixedLayer(DynamicLayer):
    """One layer's rows. `kept` of the context are there: all, or what a sliding window still sees."""

    def __init__(self, context: int, window: int | None) -> None:
        super().__init__()
        self.context, self.is_sliding = context, window is not None
        self.kept = kept_rows(context, window)
        self.is_initialized = True

    def hold(self, keys: Tensor, values: Tensor) -> None:
        """keys: [B, kv_heads, kept + room, D], values: [B, kv_heads, kept + room, Dv]; written to behind `kept`."""
        self.keys, self.values = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        end = self.kept + key_states.shape[-2]
        self.keys[:, :, self.kept : end] = key_states
        self.values[:, :, self.kept : end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        rows = query_length if isinstance(query_length, int) else len(query_length)  # a tensor of positions until transformers 5.2
        return self.kept + rows, self.context - self.kept

    def get_seq_length(self, *args: Any) -> int:
        return self.context


def kept_rows(context: int, window: int | None) -> int:
    """Rows of the context that a layer still sees, beside the row that asks: transformers' DynamicSlidingWindowLayer keeps window - 1."""
    return context if window is None else min(context, window - 1)


def windows_of(config: Any) -> list[int | None]:
    """Each layer's sliding window, None for full attention. Raises TimingError for layers that keep no keys and values (linear attention)."""
    windows = []
    for number, layer in enumerate(DynamicCache(config=config).layers):
        if type(layer) is DynamicLayer:
            windows.append(None)
        elif isinstance(layer, DynamicSlidingWindowLayer):
            windows.append(layer.sliding_window)
        else:
            raise TimingError(
                f"layer {number} of the target keeps a {type(layer).__name__}, expected keys and values (full or sliding attention): bench "
                "has no fixed state for it; measure such a target in its engine"
            )
    return windows


def fixed_cache(context: int, windows: Sequence[int | None], rows: Sequence[tuple[Tensor, Tensor] | None]) -> Cache:
    """A cache over keys and values per layer (see `FixedLayer.hold`); None for layers that are not run."""
    layers = [FixedLayer(context, window) for window in windows]
    for layer, pair in zip(layers, rows, strict=True):
        if pair is not None:
            layer.hold(*pair)
    return Cache(layers=layers)


def random_rows(batch: int, rows: int, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys and values [B, kv_heads, rows, D] of one layer. shape: kv_heads, D of keys, D of values."""
    heads, key, value = shape
    return tuple(torch.randn(batch, heads, rows, width, dtype=dtype, device=device) for width in (key, value))
