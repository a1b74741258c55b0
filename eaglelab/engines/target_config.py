"""The few numbers of a target's config.json that wiring needs, with multimodal wrappers looked through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


class TargetConfigError(ValueError):
    """A target config from which the number of layers cannot be read."""


@dataclass(frozen=True)
class TargetShape:
    """N, H, V and the class name that an engine looks up. None where the config does not say."""

    num_layers: int
    architecture: str | None
    hidden_size: int | None = None
    vocab_size: int | None = None


def target_shape(config: Mapping[str, Any], source: str = "the target's config") -> TargetShape:
    """N, H and V from the text part of a config, the architecture from its top. Raises TargetConfigError."""
    if not isinstance(config, Mapping):
        raise TargetConfigError(f"{source}: got {type(config).__name__}, expected the object of a config.json")
    text = text_part(config)
    layers = next((text[key] for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers") if text.get(key) is not None), None)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise TargetConfigError(f"{source}: num_hidden_layers is {layers!r}, expected a positive integer (looked in {_looked_in(config)})")
    names = config.get("architectures") or text.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names and isinstance(names[0], str) else None
    return TargetShape(layers, first, text.get("hidden_size"), text.get("vocab_size"))


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's config inside a multimodal wrapper's, or the config itself."""
    for key in TEXT_PARTS:
        if isinstance(config.get(key), Mapping):
            return text_part(config[key])
    return config


def _looked_in(config: Mapping[str, Any]) -> str:
    found = [key for key in TEXT_PARTS if isinstance(config.get(key), Mapping)]
    return found[0] if found else "the top level"
