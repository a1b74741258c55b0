"""How fast a config's rope turns each pair of channels: the numbers that a drafter's and a target's rope are compared by.

Closed forms of the published schemes, as in transformers 5.24 (modeling_rope_utils.py): default, linear, llama3 and yarn. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eaglelab.drafter.config import normalise_rope

ANGLE = 0.1
"""Radian by which two rotations must differ to be called different."""
MAX_WIDTH = 65536
"""Channels of a head; more is a damaged config."""


@dataclass(frozen=True)
class Rotation:
    """One config's rotation."""

    theta: float
    kind: str
    """`default`, `linear`, `llama3` or `yarn`."""
    frequencies: tuple[float, ...]
    """Radian a position, one for each rotated pair of channels."""

    @property
    def width(self) -> int:
        """Channels that are rotated."""
        return 2 * len(self.frequencies)

    @property
    def summary(self) -> dict[str, Any]:
        return {"theta": self.theta, "kind": self.kind, "width": self.width}

    def largest(self, other: Rotation) -> float:
        """The largest difference of two frequencies, in radian a position."""
        return max(abs(a - b) for a, b in zip(self.frequencies, other.frequencies, strict=True))


def rotation(config: Mapping[str, Any]) -> Rotation | None:
    """The rotation that a config describes; None for schemes that have no fixed one, and where the width is not stated.

    Raises DrafterConfigError for numbers that are none.
    """
    given = config.get("rope_parameters")
    several = isinstance(given, Mapping) and any(isinstance(value, Mapping) for value in given.values())
    if several or config.get("rope_local_base_freq") is not None:  # one for each type of layer
        return None
    rope = normalise_rope(config)
    kind = {"mrope": "default", "dynamic": "default", "su": "longrope"}.get(rope["rope_type"], rope["rope_type"])
    width = _rotated(config, rope)
    schemes = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn, "deepseek_yarn": _yarn}
    if kind not in schemes or width is None or width < 2:
        return None
    plain = [rope["rope_theta"] ** (-2 * i / width) for i in range(width // 2)]
    try:
        turned = schemes[kind](plain, rope, config, width)
    except (KeyError, TypeError, ZeroDivisionError, ValueError, OverflowError):
        return None  # a scheme that lacks its own numbers
    return Rotation(rope["rope_theta"], "yarn" if kind == "deepseek_yarn" else kind, tuple(turned))


def first_difference(a: Rotation, b: Rotation) -> int | None:
    """The first position at which two rotations of one width differ by `ANGLE` in any pair; None where they never do."""
    difference = a.largest(b)
    return None if difference < 1e-12 else math.ceil(ANGLE / difference)


def _rotated(config: Mapping[str, Any], rope: Mapping[str, Any]) -> int | None:
    latent = config.get("qk_rope_head_dim")
    if latent is not None:
        return latent if isinstance(latent, int) and 0 < latent <= MAX_WIDTH else None
    head, hidden, heads = (config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if head is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head = hidden // heads
    share = next((v for v in (rope.get("partial_rotary_factor"), config.get("partial_rotary_factor")) if v is not None), 1.0)
    return (
        int(head * share)
        if isinstance(head, int) and isinstance(share, (int, float)) and 0 < share <= 1 and 0 < head <= MAX_WIDTH
        else None
    )


def _default(plain: list[float], rope: Mapping[str, Any], config: Mapping[str, Any], width: int) -> list[float]:
    return plain


def _linear(plain: list[float], rope: Mapping[str, Any], config: Mapping[str, Any], width: int) -> list[float]:
    return [f / rope["factor"] for f in plain]


def _llama3(plain: list[float], rope: Mapping[str, Any], config: Mapping[str, Any], width: int) -> list[float]:
    """Long waves are divided by the factor, short ones kept, those between blended."""
    low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]

    def turned(f: float) -> float:
        turns = length * f / (2 * math.pi)  # in the original length
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return kept * f + (1 - kept) * f / rope["factor"]

    return [turned(f) for f in plain]


def _yarn(plain: list[float], rope: Mapping[str, Any], config: Mapping[str, Any], width: int) -> list[float]:
    """Pairs that turn often are kept, those that turn seldom divided by the factor, with a ramp between over the pairs' numbers."""
    length = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    factor = rope["factor"]

    def pair(turns: float) -> float:
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low, high = pair(rope.get("beta_fast") or 32), pair(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high += 0.001 * (low == high)
    divided = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(width // 2)]
    return [f / factor * d + f * (1 - d) for f, d in zip(plain, divided, strict=True)]
