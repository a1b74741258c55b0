"""The drafter's config.json, whatever framework wrote it, as one frozen record.

Read from EAGLE's official code, SpecForge, AngelSlim, ModelOpt and speculators (reading order and flags: the convention table's sources).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eaglelab.outside_json import too_deep

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
IDS_KEYS = (IDS_KEY, f"eagle_config.{IDS_KEY}")
"""Where layer ids stand in a drafter's config, dotted."""
FAMILIES = ("specforge", "speculators", "modelopt", "angelslim", "eagle")


MAX_SLOTS = 64
"""Slots of one fc, and layer ids in a config. Drafters have 3 to 5."""


MAX_LAYERS = 128
"""Decoder layers of a drafter; they have one, seldom up to five."""
MAX_COUNT = 2**31 - 1
"""Any size in a config: products of two of them are still sizes."""
ROPE_LEAST = {"factor": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0, "attention_factor": 0.0, "beta_fast": 0.0, "beta_slow": 0.0}
ROPE_LEAST |= {"low_freq_factor": 0.0, "high_freq_factor": 0.0, "partial_rotary_factor": 0.0}
"""Numbers among a rope's parameters -> the least that they may be."""


class DrafterConfigError(ValueError):
    """A config.json that cannot be used as an EAGLE-3 drafter's, with the reason."""


@dataclass(frozen=True)
class Latent:
    """Sizes of an MLA layer's heads (DeepSeek, Kimi)."""

    q_rank: int | None
    """Queries go through a projection of this width; None: straight from the input."""
    kv_rank: int
    nope: int
    """Channels of a query or key head that are not rotated."""
    rope: int
    """Channels that are."""
    value: int
    interleaved: bool = True
    """Neighbouring channels are rotated as pairs, in engines always; False: the two halves (`rope_interleave: false`)."""


@dataclass(frozen=True)
class DrafterConfig:
    """An EAGLE-3 drafter's shape and flags. Sizes are counts; `rope` is in the layout of transformers 5's `rope_parameters`."""

    hidden_size: int
    target_hidden_size: int
    num_slots: int
    vocab_size: int
    draft_vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Channels of a query or key head; in an MLA layer with and without rotation together."""
    intermediate_size: int
    rms_norm_eps: float
    rope: dict[str, Any]  # always has "rope_theta"; "rope_type" and its parameters when not default
    max_position_embeddings: int
    num_layers: int = 1
    layer_type: str = "llama"
    """`llama`, `qwen3` (q and k norms) or `mla`."""
    latent: Latent | None = None
    """Of `mla` layers only."""
    sliding_window: int | None = None
    """Rows that an attention looks back, where `layer_types` names a sliding one."""
    family: str = "specforge"
    """The framework that wrote the file, one of `FAMILIES`."""
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_output_meaning: str = "recurrence"
    """`recurrence` (engines, speculators: the next step starts from the normed state) or `logits` (SpecForge: norm before lm_head)."""
    attention_bias: bool = False
    mlp_bias: bool = False
    """In llama layers alone (transformers' LlamaMLP)."""
    hidden_act: str = "silu"
    """Of the MLP, by its name in transformers."""
    fc_bias: bool = False
    tie_word_embeddings: bool = False
    note: str = ""
    """What was read otherwise than the file says, as a sentence."""

    @property
    def rotated_width(self) -> int:
        """Channels of a head that the rotary embedding turns."""
        return self.latent.rope if self.latent else self.head_dim

    @property
    def post_norm_recurrence(self) -> bool:
        """The next step starts from the normed state."""
        return self.norm_output and self.norm_output_meaning == "recurrence"

    @property
    def skip_final_norm(self) -> bool:
        """No norm before lm_head (SpecForge's `norm_output: false`)."""
        return not self.norm_output and self.norm_output_meaning == "logits"

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], family: str | None = None, source: str = "config.json") -> DrafterConfig:
        """Parse a config. `family` overrides what the file looks like; `source` is named in errors. Raises DrafterConfigError."""
        _refuse_other_drafters(config, source)
        check_slots(config, source)
        family = family or config_family(config)
        layer = config["transformer_layer_config"] if isinstance(config.get("transformer_layer_config"), dict) else config
        count = partial(_count, layer, source)
        hidden, heads, vocab = count("hidden_size"), count("num_attention_heads"), count("vocab_size")
        layer_type = _layer_type(config, layer)
        latent = _latent(layer, source) if layer_type == "mla" else None
        if layer.get("head_dim") is None and hidden % heads and not latent:
            raise DrafterConfigError(
                f"{source}: hidden_size {hidden} is no multiple of num_attention_heads {heads}, and no head_dim is given"
            )
        kv_heads = heads if latent else count("num_key_value_heads", heads)
        head_dim = latent.nope + latent.rope if latent else count("head_dim", hidden // heads)
        if heads % kv_heads:
            raise DrafterConfigError(f"{source}: num_key_value_heads is {kv_heads}, expected a divisor of num_attention_heads {heads}")
        if head_dim % 2 and not latent:
            raise DrafterConfigError(f"{source}: head_dim is {head_dim}, expected an even number: channels are rotated in pairs")
        draft_vocab = _count({**layer, **config}, source, "draft_vocab_size", vocab)
        if draft_vocab > vocab:
            raise DrafterConfigError(f"{source}: draft_vocab_size is {draft_vocab}, expected at most vocab_size {vocab}")
        return cls(
            hidden_size=hidden,
            target_hidden_size=_count({**layer, **config}, source, "target_hidden_size", hidden),
            num_slots=num_slots(config),
            vocab_size=vocab,
            draft_vocab_size=draft_vocab,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=count("intermediate_size"),
            rms_norm_eps=_number(layer, source, "rms_norm_eps", 1e-6),
            rope=normalise_rope(layer, source),
            max_position_embeddings=count("max_position_embeddings", 8192),
            num_layers=_num_layers(layer, source),
            layer_type=layer_type,
            latent=latent,
            sliding_window=_sliding_window(layer, source),
            family=family,
            hidden_act=_activation(layer, source),
            mlp_bias=layer_type == "llama" and bool(layer.get("mlp_bias")),
            **_flags(config, layer, family, source),
        )

    @classmethod
    def load(cls, path: str | Path) -> DrafterConfig:
        """From config.json or the folder that holds it. Raises DrafterConfigError."""
        path = config_path(path)
        return cls.from_dict(read_config(path), source=str(path))


def config_path(path: str | Path) -> Path:
    """The config.json of a checkpoint folder, or the file itself."""
    path = Path(path)
    return path / "config.json" if path.is_dir() else path


def read_config(path: str | Path) -> dict[str, Any]:
    """A config.json (or the one in the folder `path`) as a dict. Raises DrafterConfigError naming the file and, for bad JSON, the line."""
    path = config_path(path)
    if path.exists() and not path.is_file():
        raise DrafterConfigError(f"{path} is not a regular file: expected config.json, or the folder that holds it")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DrafterConfigError(f"no config at {path}: expected config.json, or the folder that holds it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DrafterConfigError(f"{path} cannot be read as text: {error}") from None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise DrafterConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise DrafterConfigError(f"{path}: got a JSON {type(config).__name__}, expected an object with the config's keys")
    if too_deep(config):
        raise DrafterConfigError(f"{path} is nested too deeply to be a config")
    check_slots(config, str(path))
    return config


def written_ids(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """Layer ids as written, by dotted key. What is not a list is left out (the engine's reader reports it)."""
    nested = config.get("eagle_config")
    places = zip(IDS_KEYS, (config, nested if isinstance(nested, Mapping) else {}), strict=True)
    return {key: list(ids) for key, place in places if isinstance(ids := place.get(IDS_KEY), (list, tuple))}


def takes_slots(config: Mapping[str, Any]) -> bool:
    """False where `eagle_config.use_aux_hidden_state` is there and false, null or 0 (`.get(…, True)` in the engines): no layer is captured."""
    nested = config.get("eagle_config")
    return not isinstance(nested, Mapping) or bool(nested.get("use_aux_hidden_state", True))


def config_family(config: Mapping[str, Any]) -> str:
    """Which framework wrote the config: one of `FAMILIES`, told by the keys that only it writes."""
    nested = config.get("eagle_config")
    architecture = first_architecture(config) or ""
    if "speculators_model_type" in config or "speculators_config" in config:
        return "speculators"
    if isinstance(nested, Mapping) and "use_input_layernorm_in_first_layer" in nested:
        return "modelopt"
    if "Deepseek" in architecture:  # MLA: of ModelOpt or TorchSpec, which writes ModelOpt's layout; SpecForge trains none
        return "modelopt"
    if "target_model_type" in config or "modal_type" in config or architecture == "Eagle3LlamaForCausalLM":
        return "angelslim"
    return "eagle" if architecture == "LlamaForCausalLM" else "specforge"


def first_architecture(config: Mapping[str, Any]) -> str | None:
    """The first class name in `architectures`, which is what engines look up. None where there is none."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def check_slots(config: Mapping[str, Any], source: str) -> None:
    """Raise DrafterConfigError for no slots, or more slots or layer ids than a drafter can have: what is sized by them would never end."""
    layer = config.get("transformer_layer_config")
    stated = [c.get("num_aux_hidden_states") for c in (config, layer) if isinstance(c, Mapping)]
    for number in stated:
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise DrafterConfigError(f"{source}: num_aux_hidden_states is {number!r}, expected a positive integer, at most {MAX_SLOTS}")
    numbers = [("num_aux_hidden_states is", n) for n in stated if n is not None]
    numbers += [(f"the number of ids in {key} is", len(ids)) for key, ids in written_ids(config).items()]
    for what, number in numbers:
        if number > MAX_SLOTS:
            raise DrafterConfigError(f"{source}: {what} {number}, expected at most {MAX_SLOTS}; is the file damaged?")


def num_slots(config: Mapping[str, Any]) -> int:
    """Inputs of fc, by the rule of the engines' drafter classes: `num_aux_hidden_states`, else the number of ids, else 3."""
    stated = config.get("num_aux_hidden_states")
    if stated is not None:
        return stated
    if not takes_slots(config):
        return 1
    ids = written_ids(config)
    return next((len(ids[key]) for key in reversed(IDS_KEYS) if ids.get(key)), 3)


def _refuse_other_drafters(raw: Mapping[str, Any], source: str) -> None:
    """EAGLE-1/2 drafters, whole models and other speculators have another fc and other inputs: say so, in place of wrong shapes later."""
    kind = raw.get("speculators_model_type")
    if kind is not None and kind != "eagle3":
        raise DrafterConfigError(f"{source} is a speculators {kind!r} drafter, expected 'eagle3': only EAGLE-3 drafters are handled")
    architecture = first_architecture(raw) or ""
    if kind is None and (architecture.endswith("Eagle") or (architecture.startswith("Eagle") and not architecture.startswith("Eagle3"))):
        raise DrafterConfigError(
            f"{source} is an EAGLE-1/2 drafter ({architecture}): its fc takes one last state and the embedding, with no slots to compare. "
            "Only EAGLE-3 drafters are handled"
        )
    knows = ("draft_vocab_size", "eagle_config", "speculators_config", "speculators_model_type", "target_model_type", "fc_norm")
    if "Eagle3" not in architecture and not any(key in raw for key in knows):
        raise DrafterConfigError(
            f"{source} names no EAGLE-3 drafter (architectures {raw.get('architectures')!r}, no draft_vocab_size, no eagle_config): "
            "is it the target's config, or an EAGLE-1/2 drafter's?"
        )


def _num_layers(layer: Mapping[str, Any], source: str) -> int:
    number = _count(layer, source, "num_hidden_layers", 1)
    if number > MAX_LAYERS:
        raise DrafterConfigError(f"{source}: num_hidden_layers is {number}, expected at most {MAX_LAYERS}; is it the target's config?")
    return number


def _activation(layer: Mapping[str, Any], source: str) -> str:
    name = "silu" if layer.get("hidden_act") is None else layer["hidden_act"]
    if not isinstance(name, str):
        raise DrafterConfigError(f"{source}: hidden_act is {name!r}, expected the name of an activation, such as 'silu'")
    return name


def _sliding_window(layer: Mapping[str, Any], source: str) -> int | None:
    kinds = layer.get("layer_types")
    return _count(layer, source, "sliding_window") if isinstance(kinds, list) and "sliding_attention" in kinds else None


def _layer_type(raw: Mapping[str, Any], layer: Mapping[str, Any]) -> str:
    architecture = first_architecture(raw) or ""
    if "Deepseek" in architecture or (layer.get("kv_lora_rank") is not None and "Llama" not in architecture):
        return "mla"
    nested_qwen3 = layer is not raw and layer.get("model_type") == "qwen3"
    return "qwen3" if nested_qwen3 or architecture == "Eagle3Qwen3ForCausalLM" else "llama"


def _latent(layer: Mapping[str, Any], source: str) -> Latent:
    if layer.get("mla_use_nope"):
        raise DrafterConfigError(f"{source}: mla_use_nope (Kimi K3: MLA without rotation) is not handled; expected an MLA layer with rope")
    rank = layer.get("q_lora_rank")
    latent = Latent(
        q_rank=None if rank is None else _count(layer, source, "q_lora_rank"),
        kv_rank=_count(layer, source, "kv_lora_rank"),
        nope=_count(layer, source, "qk_nope_head_dim"),
        rope=_count(layer, source, "qk_rope_head_dim"),
        value=_count(layer, source, "v_head_dim"),
        interleaved=layer.get("rope_interleave") is not False,
    )
    if latent.rope % 2:
        raise DrafterConfigError(f"{source}: qk_rope_head_dim is {latent.rope}, expected an even number")
    return latent


def _flags(raw: Mapping[str, Any], layer: Mapping[str, Any], family: str, source: str) -> dict[str, Any]:
    nested = raw.get("eagle_config") if isinstance(raw.get("eagle_config"), dict) else {}
    flags = {
        "norm_before_residual": bool(raw.get("norm_before_residual", False)),
        "norm_before_fc": bool(nested.get("norm_before_fc", raw.get("norm_before_fc", False))),
        "fc_norm": bool(raw.get("fc_norm") or raw.get("use_aux_norm", False)),
        "norm_output": bool(raw["norm_output"] if raw.get("norm_output") is not None else family == "specforge"),
        "norm_output_meaning": "logits" if family == "specforge" else "recurrence",
        "attention_bias": bool(layer.get("attention_bias", False)),
        "fc_bias": bool(raw.get("bias", False)),
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", layer.get("tie_word_embeddings", False))),
    }
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise DrafterConfigError(f"{source}: norm_before_fc and fc_norm are both set, expected one of them: no trainer has both")
    return flags


def normalise_rope(layer: Mapping[str, Any], source: str = "config.json") -> dict[str, Any]:
    """`rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before) as one dict with `rope_theta` and `rope_type`.

    Without a theta it is 10000, as in SpecForge and the engines: a target with another theta does not hand it on.
    """
    rope: dict[str, Any] = {"rope_theta": layer.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        given = layer.get(key)
        rope |= {k: v for k, v in given.items() if v is not None} if isinstance(given, Mapping) else {}
    legacy_type = rope.pop("type", None)
    rope["rope_type"] = rope.get("rope_type") or legacy_type or "default"
    if not isinstance(rope["rope_type"], str):
        raise DrafterConfigError(f"{source}: the rope's type is {rope['rope_type']!r}, expected a name, such as 'llama3'")
    rope["rope_theta"] = _number(rope, source, "rope_theta", 10000.0)
    for key, least in ROPE_LEAST.items():
        if key in rope and not (_is_number(rope[key]) and rope[key] >= least):
            raise DrafterConfigError(f"{source}: the rope's {key} is {rope[key]!r}, expected a number, at least {least:g}")
    if "original_max_position_embeddings" in rope:
        _count(rope, f"{source}, rope", "original_max_position_embeddings")
    return rope


def _count(config: Mapping[str, Any], source: str, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is None:
        raise DrafterConfigError(f"{source}: {key} is missing, expected a positive integer")
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DrafterConfigError(f"{source}: {key} is {value!r}, expected a positive integer")
    if value > MAX_COUNT:
        raise DrafterConfigError(f"{source}: {key} is {value}, expected at most {MAX_COUNT}; is the file damaged?")
    return value


def _number(config: Mapping[str, Any], source: str, key: str, default: float) -> float:
    value = config.get(key)
    value = default if value is None else value
    if not _is_number(value) or value <= 0:
        raise DrafterConfigError(f"{source}: {key} is {value!r}, expected a positive number")
    return float(value)


def _is_number(value: object) -> bool:
    """A finite number that a float can hold."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
