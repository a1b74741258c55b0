"""JSON that comes with a download, read without torch and believed in nothing: how deep it is nested, where an index leads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a multimodal wrapper's config.json keeps that of its text decoder."""
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
WEIGHT_SUFFIXES = (".safetensors", ".bin")
MAX_DEPTH = 100
"""Objects inside of objects. Real configs have 5; what copies or walks one by recursion ends at a few hundred."""


def too_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for v in level if isinstance(v, (dict, list)) for inner in (v.values() if isinstance(v, dict) else v)]
    return bool(level)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text decoder's config inside a multimodal wrapper's, or the config itself."""
    while inner := next((config[key] for key in TEXT_PARTS if isinstance(config.get(key), Mapping)), None):
        config = inner
    return config


def read_weight_map(index: Path) -> dict[str, str]:
    """{tensor name: file name} of a `*.index.json`; each file name is one of a weight file in the index's own folder.

    Raises ValueError with the index's name, what is wrong in it and what to do; the callers make it their own error.
    """
    where = f"{index.parent.name}/{index.name}"
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not readable JSON: {error}") from None
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{where}: no `weight_map` in it; copy or download it again")
    for file in weight_map.values():
        if not isinstance(file, str) or "/" in file or "\\" in file or not file.isprintable() or not file.endswith(WEIGHT_SUFFIXES):
            raise ValueError(f"{where}: {repr(file)[:200]} is not the name of a weight file in the same folder")
    return weight_map
