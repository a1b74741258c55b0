"""Is the drafter's checkpoint whole? Names and shapes out of the file headers, set against what the config implies. No tensor is read.

Engines do not tell: SGLang drops unknown names and leaves missing ones uninitialised, without a line in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eaglelab.drafter.config import DrafterConfig
from eaglelab.outside_json import read_weight_map

Header = dict[str, tuple[tuple[int, ...], str]]
"""Tensor name -> (shape, dtype as safetensors spells it)."""

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LEGACY_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


class DrafterError(ValueError):
    """A drafter that cannot be loaded, with what is wrong and where."""


@dataclass(frozen=True)
class Audit:
    """What a checkpoint holds against what its config implies, by name."""

    missing: tuple[str, ...]
    """Names that the config implies and the file lacks."""
    unexpected: tuple[str, ...]
    """Names in the file that this config has no use for."""
    wrong_shape: tuple[str, ...]
    """One sentence a tensor: name, got, expected."""
    borrowed: tuple[str, ...]
    """Names that may be missing, because the engine takes them from the target."""

    @property
    def whole(self) -> bool:
        return not self.missing and not self.wrong_shape


def canonical_name(name: str) -> str:
    """One name for one tensor: the EAGLE/SpecForge spelling (`midlayer.*`) whatever the layout."""
    name = name.removeprefix("model.").replace("layers.0.", "midlayer.", 1)
    for legacy, now in LEGACY_NORMS.items():
        name = name.replace(legacy, now)
    return name


def expected_tensors(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of a Llama-type draft layer with this config's flags."""
    width, target, vocabulary = config.hidden_size, config.target_hidden_size, config.draft_vocab_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes = {
        "fc.weight": (width, config.num_slots * target),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * width),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * width),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * width),
        "midlayer.self_attn.o_proj.weight": (width, queries),
        "midlayer.mlp.gate_proj.weight": (config.intermediate_size, width),
        "midlayer.mlp.up_proj.weight": (config.intermediate_size, width),
        "midlayer.mlp.down_proj.weight": (width, config.intermediate_size),
        "midlayer.input_layernorm.weight": (width,),
        "midlayer.hidden_norm.weight": (width,),
        "midlayer.post_attention_layernorm.weight": (width,),
        "norm.weight": (width,),
        "lm_head.weight": (vocabulary, width),
    }
    if config.fc_bias:
        shapes["fc.bias"] = (width,)
    if config.attention_bias:
        shapes |= {
            "midlayer.self_attn.q_proj.bias": (queries,),
            "midlayer.self_attn.k_proj.bias": (keys,),
            "midlayer.self_attn.v_proj.bias": (keys,),
        }
    if config.layer_type == "qwen3":
        shapes |= {f"midlayer.self_attn.{n}_norm.weight": (config.head_dim,) for n in "qk"}
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (config.num_slots * target,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (target,) for i in range(config.num_slots)}
    if vocabulary < config.vocab_size:
        shapes["d2t"] = (vocabulary,)
    if width != target:
        shapes["embed_tokens.weight"] = (config.vocab_size, width)
    return shapes


def optional_tensors(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of tensors that may be there and are not needed."""
    return {"t2d": (config.vocab_size,), "embed_tokens.weight": (config.vocab_size, config.hidden_size), "d2t": (config.draft_vocab_size,)}


def audit_names(config: DrafterConfig, shapes: Mapping[str, tuple[int, ...]]) -> Audit:
    """Set a checkpoint's names and shapes against the config. shapes: name as stored -> shape."""
    have = {canonical_name(n): (n, tuple(s)) for n, s in shapes.items()}
    expected, optional = expected_tensors(config), optional_tensors(config)
    borrowable = {"lm_head.weight"} if config.tie_word_embeddings or config.draft_vocab_size == config.vocab_size else set()
    absent = [n for n in expected if n not in have]
    wrong = [
        f"{have[name][0]} is {list(have[name][1])}, the config implies {list(shape)}"
        for name, shape in (optional | expected).items()
        if name in have and have[name][1] != shape
    ]
    return Audit(
        missing=tuple(n for n in absent if n not in borrowable),
        unexpected=tuple(sorted(stored for name, (stored, _) in have.items() if name not in expected and name not in optional)),
        wrong_shape=tuple(wrong),
        borrowed=tuple(n for n in absent if n in borrowable),
    )


def read_header(folder: str | Path) -> Header | None:
    """Names, shapes and dtypes of a folder's safetensors files, without torch. None where the weights are a `.bin` only.

    Raises DrafterError: no such folder, no weights, a shard missing or cut short.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    if not folder.is_dir():
        raise DrafterError(f"{folder}: no such folder; `[drafter] path` is the folder with config.json and the weights")
    if (folder / INDEX).is_file():
        try:
            files = sorted(set(read_weight_map(folder / INDEX).values()))
        except ValueError as error:
            raise DrafterError(f"{folder / INDEX}: not a safetensors index ({error})") from error
    elif (folder / SINGLE).is_file():
        files = [SINGLE]
    elif list(folder.glob("pytorch_model*.bin")):
        return None
    else:
        found = sorted(p.name for p in folder.iterdir())[:8]
        raise DrafterError(f"{folder}: no weights; looked for {SINGLE}, {INDEX}, pytorch_model.bin, found {found}")
    header: Header = {}
    for name in files:
        if not (folder / name).is_file():  # nor a pipe, which would be waited on for ever
            raise DrafterError(f"{folder / name}: not readable (no such file); is it cut short or missing? Copy it again.")
        try:
            with safe_open(folder / name, framework="np") as shard:
                for key in shard.keys():  # noqa: SIM118 - safe_open is no dict
                    part = shard.get_slice(key)
                    header[key] = (tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError) as error:
            raise DrafterError(f"{folder / name}: not readable ({error}); is it cut short or missing? Copy it again.") from error
    return header


def audit_folder(folder: str | Path, config: DrafterConfig) -> Audit | None:
    """Audit of a drafter folder from headers alone; None where only a `.bin` is there (load it to know)."""
    header = read_header(folder)
    return None if header is None else audit_names(config, {n: s for n, (s, _) in header.items()})
