"""How many experts of a mixture a pass reads: the more tokens it verifies, the more weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eaglelab.outside_json import text_part

TOTAL = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts")
ROUTED = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts")
"""Keys of config.json in transformers' Qwen3-MoE, DeepSeek, Mixtral, gpt-oss, DBRX, Hunyuan, ERNIE and Gemma."""


@dataclass(frozen=True)
class Experts:
    """Routed experts of a layer, and those that one token goes through. Shared experts are read by every pass and do not count."""

    total: int
    per_token: int

    def distinct(self, tokens: float) -> float:
        """Expected number of experts that `tokens` tokens of a pass reach."""
        return expected_experts(self.total, self.per_token, tokens)


def expected_experts(total: int, per_token: int, tokens: float) -> float:
    """E * (1 - (1 - k/E)^T): tokens routed alike often to all experts and apart from each other. Neighbouring tokens of one text share experts,
    so that a real pass reaches fewer: an upper bound.

    Raises ValueError where 0 < per_token <= total or tokens >= 0 does not hold.
    """
    if not 0 < per_token <= total or not tokens >= 0:
        raise ValueError(f"experts per token {per_token} of {total} and {tokens} tokens: expected 1 to {total} and 0 or more")
    return total * (1 - (1 - per_token / total) ** tokens)


def experts_of(config: Mapping[str, Any]) -> Experts | None:
    """From a target's config.json; None for a dense one. Multimodal wrappers are looked through; of lists (an entry a layer) the largest."""
    text = text_part(config)
    inner = text.get("ffn_config")
    places = (text, inner) if isinstance(inner, Mapping) else (text,)
    total, routed = (next((n for place in places for key in keys if (n := _count(place.get(key)))), None) for keys in (TOTAL, ROUTED))
    return Experts(total, routed) if total and routed and total > 1 and routed <= total else None


def _count(value: Any) -> int | None:
    if isinstance(value, list):
        return max((n for v in value if (n := _count(v))), default=None)
    return value if type(value) is int and 0 < value < 2**20 else None
