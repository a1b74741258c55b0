"""The few numbers of a target's config.json that wiring needs, with multimodal wrappers looked through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglelab.drafter.config import read_config
from eaglelab.outside_json import LAYER_KEYS, TEXT_PARTS, text_part


class TargetConfigError(ValueError):
    """A target config from which the number of layers cannot be read, or two that contradict each other."""


@dataclass(frozen=True)
class TargetShape:
    """N, and the class name that an engine looks up: None where the config does not say."""

    num_layers: int
    architecture: str | None


def read_target_config(config: Path | None, checkpoint: Path | None) -> dict[str, Any] | None:
    """The target's config.json, from `config` or else from the checkpoint's folder; None where neither is given.

    Raises TargetConfigError where both are there and their numbers of layers differ, DrafterConfigError for a file that cannot be read.
    """
    files = [path for path in (config, checkpoint) if path is not None]
    if config is not None and checkpoint is not None and not (checkpoint / "config.json").is_file():
        files = [config]
    read = [read_config(path) for path in files]
    layers = [target_shape(found, str(path)).num_layers for found, path in zip(read, files, strict=True)] if len(files) > 1 else []
    if len(set(layers)) > 1:
        raise TargetConfigError(
            f"[target] config ({files[0]}) has {layers[0]} layers and [target] path ({files[1]}) has {layers[1]}: they are two targets. "
            "Give the config of the checkpoint that the drafter was made for, or leave one of both out"
        )
    return read[0] if read else None


def target_shape(config: Mapping[str, Any], source: str = "the target's config") -> TargetShape:
    """N from the text part of a config, the architecture from its top. Raises TargetConfigError."""
    if not isinstance(config, Mapping):
        raise TargetConfigError(f"{source}: got {type(config).__name__}, expected the object of a config.json")
    text = text_part(config)
    where = next((key for key in TEXT_PARTS if isinstance(config.get(key), Mapping)), "the top level")
    layers = next((text[key] for key in LAYER_KEYS if text.get(key) is not None), None)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise TargetConfigError(f"{source}: num_hidden_layers is {layers!r}, expected a positive integer (looked in {where})")
    names = config.get("architectures") or text.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names and isinstance(names[0], str) else None
    return TargetShape(layers, first)
