"""What an engine computes with a drafter's weights, flag by flag: what it ignores, and what it reads with a meaning of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglelab.drafter.config import DrafterConfig
from eaglelab.engines.capabilities import support
from eaglelab.engines.conventions import Engine
from eaglelab.engines.loading import consequence


def engine_flags(own: DrafterConfig, raw: Mapping[str, Any], engine: Engine) -> dict[str, bool]:
    """The fields of the replay's `Flags`, as the engine has them. own: the drafter's config; raw: the one that the engine reads.

    Flags that nobody looked up count as honoured. Sources: the capability table; vLLM takes a missing norm_before_residual of a
    speculators config as true (0.32.0, transformers_utils/configs/speculators/algos.py:32-38). Raises DrafterConfigError for `raw`.
    """
    served = DrafterConfig.from_dict(raw)

    def reads(flag: str) -> bool:
        return support(engine, own.layer_type, flag)[0] != "ignored"

    assumed = engine.name == "vllm" and served.family == "speculators" and raw.get("norm_before_residual") is None
    norms_fc = [key for key in ("fc_norm", "norm_before_fc") if getattr(own, key)]
    legacy = bool(raw.get("use_aux_norm")) and not raw.get("fc_norm")  # AngelSlim's name for fc_norm
    return {
        "norm_before_residual": (served.norm_before_residual or assumed) and reads("norm_before_residual"),
        "post_norm_recurrence": bool(raw.get("norm_output")) and reads("norm_output"),
        "skip_final_norm": False,
        "skip_fc_norms": not all(getattr(served, key) and reads(key) for key in norms_fc) or (legacy and not reads("use_aux_norm")),
        "skip_qk_norm": own.layer_type == "qwen3" and not reads("qk_norm"),
        "skip_attention_bias": own.attention_bias and not (served.attention_bias and reads("attention_bias")),
        "skip_further_gain": own.num_layers > 1 and not reads("further_norm"),
    }


def overwrites_embedding(engine: Engine) -> bool:
    """Whether the engine puts the target's embedding in place of a table of the drafter's own."""
    found = consequence(engine.name, "embedding", "embed_tokens.weight")
    return found is not None and found.effect == "silent"
