"""Bytes that one pass must move and operations that it must do: closed forms, to set measured times against.

Bytes: every weight once (of routed experts those that the pass is expected to reach), keys and values read and the new ones written, logits
written. Other activations are left out: a few rows of width H. Operations: 2 a weight of a matrix and token; in attention 2 a channel of
keys and of values, for each query head and each pair of a row and a row that it sees.
"""

from __future__ import annotations

from dataclasses import dataclass

from eaglelab.timing.experts import Experts


@dataclass(frozen=True)
class Counts:
    bytes: float
    flops: float

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.bytes + other.bytes, self.flops + other.flops)


NOTHING = Counts(0, 0)


def weights(byte_count: float, matrix_weights: float, tokens: int) -> Counts:
    """Dense weights, read once. matrix_weights: how many of them stand in matrices; tokens: of all requests."""
    return Counts(byte_count, 2 * matrix_weights * tokens)


def experts(byte_count: float, matrix_weights: float, tokens: int, routed: Experts) -> Counts:
    """Routed experts of one layer. byte_count, matrix_weights: of all of them."""
    share = routed.distinct(tokens) / routed.total
    return Counts(byte_count * share, 2 * matrix_weights * routed.per_token / routed.total * tokens)


def attention(
    batch: int, kept: int, tokens: int, heads: int, kv_shape: tuple[int, int, int], itemsize: int, channels: int | None = None
) -> Counts:
    """One layer's attention of `tokens` new rows a request over `kept` old ones and, causally, themselves.

    kv_shape: key heads, channels of a key, channels of a value, as they are cached. channels: of a key and a value together, as a query head
    multiplies them; None: as they are cached.
    """
    kv_heads, key, value = kv_shape
    pairs = tokens * kept + tokens * (tokens + 1) // 2
    rows = kept + 2 * tokens  # the old ones read; the new ones written and read
    return Counts(batch * rows * kv_heads * (key + value) * itemsize, 2 * batch * heads * (channels or key + value) * pairs)


def logits(rows: int, vocabulary: int, itemsize: int) -> Counts:
    return Counts(rows * vocabulary * itemsize, 0)
