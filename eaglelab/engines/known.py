"""Which faults of an engine's version, known from public reports and from its own code, a case falls under. Facts: `known.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from eaglelab.engines.conventions import Engine
from eaglelab.engines.launch import Launch
from eaglelab.outside_json import text_part

LONGER, SPEC_V2 = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "SGLANG_ENABLE_SPEC_V2"
DEEPSEEK = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
)
"""Targets that SGLang runs by models/deepseek_v2.py."""
DEVICES = {
    "hip": ("aiter", "wave", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "rocm"),
    "npu": ("ascend", "ASCEND_RT_VISIBLE_DEVICES", "npu"),
    "cpu": ("intel_amx", "intel_xpu", "SGLANG_USE_CPU_ENGINE", "cpu", "xpu"),
}
"""What of a launch line or a version names a device: attention backends, variables, `--device`, the letters that a version's local part begins with."""
LETTERS = re.compile("[a-z]*")


@dataclass(frozen=True)
class Situation:
    """What of a case decides whether a fault matters. None: not known."""

    engine: Engine
    launch: Launch | None = None
    target: Mapping[str, Any] | None = None
    """config.json of the target."""
    drafter: Mapping[str, Any] | None = None
    """config.json of the drafter, as it is served."""
    own_embedding: bool | None = None
    """Whether the drafter's checkpoint holds an embedding of its own."""
    own_head: bool | None = None
    temperature: float | None = None
    """Of the requests that were recorded."""
    draft_hidden: int | None = None

    @property
    def given(self) -> Mapping[str, Any]:
        return {} if self.launch is None else self.launch.given

    def on(self, *flags: str) -> bool:
        return any(self.given.get(flag, False) not in (False, None, "false", "False") for flag in flags)

    def variable(self, name: str) -> bool:
        value = "" if self.launch is None else self.launch.env.get(name, "")
        return value.strip().lower() not in ("", "0", "false", "no", "n")

    def number(self, *flags: str) -> int | None:
        return None if self.launch is None else self.launch.number(*flags)

    @property
    def architecture(self) -> str | None:
        names = (self.target or {}).get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


@dataclass(frozen=True)
class Known:
    """One fault that a case may fall under."""

    row: Mapping[str, Any]
    sure: bool
    """False: something that decides is not known (`open`), or the report is a claim."""
    open: tuple[str, ...] = ()
    """What is not known, in words."""


@cache
def table() -> tuple[Mapping[str, Any], ...]:
    """The rows of known.toml."""
    return tuple(tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8"))["faults"])


def known_faults(s: Situation) -> list[Known]:
    """The faults of this engine's version whose conditions hold or may hold here, in the order of the table."""
    found = []
    for row in table():
        has = has_it(row, s.engine.version) if row["engine"] == s.engine.name else False
        holds = {need: CONDITIONS[need][1](s) for need in row["needs"]}
        if has is False or False in holds.values():
            continue
        open_ = [CONDITIONS[need][0] for need, told in holds.items() if told is None]
        open_ += [_version_words(row, s.engine)] if has is None else []
        if len(open_) > 1:  # two things that nobody knows are no suspicion
            continue
        open_ += [row["unsure"]] if "unsure" in row else []
        found.append(Known(row, not open_ and row["standing"] == "established", tuple(open_)))
    return found


def has_it(row: Mapping[str, Any], version: str | None) -> bool | None:
    """Whether a version has a row's fault; None: not known."""
    if version is None:
        return None
    v = Version(version.split("+")[0])
    first, last, fixed, after = (Version(row[key]) if key in row else None for key in ("from", "to", "fixed", "after"))
    if first is not None and v < first:
        return None if after is not None and v > after else False
    if v <= last:
        return True
    return (False if v >= fixed else None) if fixed is not None else None if row.get("open") else False


def _version_words(row: Mapping[str, Any], engine: Engine) -> str:
    first, last = row.get("from"), row["to"]
    span = f"{last} and older" if first is None else last if first == last else f"{first} to {last}"
    fixed = f", {row['fixed']} is free of it" if "fixed" in row else ""
    return f"it is known of {span}{fixed}; " + (
        "the version is not given" if engine.version is None else f"nobody looked at {engine.version}"
    )


# -- conditions: (what is not known, in words; whether it holds) ---------------------------------------------------------------------


def _eagle3(s: Situation) -> bool:
    algorithm = (s.launch.algorithm or "") if s.launch is not None else ""
    return algorithm.lower() == "eagle3" if algorithm else s.launch is None or s.launch.engine is None


def _speculates(s: Situation) -> bool:
    return s.launch is None or s.launch.engine is None or bool(s.launch.algorithm)


def _vision(s: Situation) -> bool:
    return s.target is not None and any(key in s.target for key in ("vision_config", "visual", "vision_tower", "audio_config"))


def _sampled(s: Situation) -> bool | None:
    return None if s.temperature is None else s.temperature > 0


def _device(kind: str) -> Callable[[Situation], bool]:
    def holds(s: Situation) -> bool:
        if s.launch is None:
            return False
        told = {str(s.given.get(f, "")) for f in ("device", "attention_backend", "decode_attention_backend", "prefill_attention_backend")}
        told |= set(s.launch.env) | {LETTERS.match((s.engine.version or "").partition("+")[2])[0]}
        return bool(told & set(DEVICES[kind]))

    return holds


def _hidden(config: Mapping[str, Any] | None) -> int | None:
    size = None if config is None else text_part(config).get("hidden_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def _other_width(s: Situation) -> bool:
    sizes = _hidden(s.target), s.draft_hidden or _hidden(s.drafter)
    return None not in sizes and sizes[0] != sizes[1]


def _shorter_positions(s: Situation) -> bool:
    served = s.number("context_length", "max_model_len") or _positions(s.target)
    own = _positions(s.drafter)
    return served is not None and own is not None and own < served


def _positions(config: Mapping[str, Any] | None) -> int | None:
    value = None if config is None else text_part(config).get("max_position_embeddings")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _own_tables(s: Situation) -> bool:
    """An embedding of its own that is as wide as the target's, or a head over the whole vocabulary."""
    config = s.drafter or {}
    whole = config.get("draft_vocab_size") in (None, config.get("vocab_size"))
    return not _other_width(s) and bool(s.own_embedding or (s.own_head and whole))


def _fused_sum(s: Situation) -> bool | None:
    if s.on("enforce_disable_flashinfer_allreduce_fusion", "enable_dp_attention") or (s.number("nnodes") or 1) > 1 or _exchange(s):
        return False
    return True if s.on("enable_flashinfer_allreduce_fusion") else None


def _exchange(s: Situation) -> bool:
    return s.on("enable_deepep_moe", "enable_ep_moe") or s.given.get("moe_a2a_backend") not in (None, "none")


def _sliding_and_full(s: Situation) -> bool:
    kinds = None if s.target is None else text_part(s.target).get("layer_types")
    return isinstance(kinds, list) and {"sliding_attention", "full_attention"} <= {k for k in kinds if isinstance(k, str)}


CONDITIONS: dict[str, tuple[str, Callable[[Situation], bool | None]]] = {
    "speculates": ("", _speculates),
    "eagle3": ("", _eagle3),
    "vision": ("", _vision),
    "deepseek_class": ("", lambda s: s.architecture in DEEPSEEK),
    "spec_v2": ("", lambda s: s.variable(SPEC_V2)),
    "tensor_parallel": ("", lambda s: (s.number("tp_size", "tp", "tensor_parallel_size") or 1) > 1),
    "fused_sum": ("whether the fusion is on (it is by itself on one node of H100 or B200 kind)", _fused_sum),
    "dp_attention": ("", lambda s: s.on("enable_dp_attention")),
    "expert_exchange": ("", _exchange),
    "returns_states": ("", lambda s: s.on("enable_return_hidden_states")),
    "disaggregated": ("", lambda s: s.given.get("disaggregation_mode") in ("prefill", "decode")),
    "other_width": ("", _other_width),
    "shorter_positions": ("", _shorter_positions),
    "longer_allowed": ("", lambda s: s.variable(LONGER)),
    "hip": ("", _device("hip")),
    "npu": ("", _device("npu")),
    "cpu": ("", _device("cpu")),
    "no_rejection": ("", lambda s: not s.on("speculative_use_rejection_sampling")),
    "sampled": ("whether requests are sampled (temperature above 0)", _sampled),
    "own_tables": ("", _own_tables),
    "pipeline": ("", lambda s: (s.number("pp_size", "pipeline_parallel_size", "pp") or 1) > 1),
    "sliding_and_full": ("", _sliding_and_full),
}
"""Conditions of the table: what is said where one is not known, and whether it holds. An input that the case lacks is no suspicion."""
