"""What drafters for a target of this shape reach elsewhere, by public threads (`published.toml`): is mine usual?"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eaglelab.engines.target_config import TargetConfigError, target_shape
from eaglelab.outside_json import text_part


@dataclass(frozen=True)
class Published:
    """One accept length, the bonus token included, as somebody posted it."""

    target: str
    architecture: str
    layers: int
    hidden: int
    vocabulary: int
    drafter: str
    setting: str
    prompts: str
    accept_length: float
    thread: str
    """owner/repo#number."""

    def __str__(self) -> str:
        said = "; ".join(s for s in (self.setting, self.prompts) if s != "not said")
        return f"{self.accept_length:.2f} for {self.target} ({self.drafter}{'; ' * bool(said)}{said}; {self.thread})"


@cache
def published() -> tuple[Published, ...]:
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["length"]
    return tuple(Published(**row) for row in rows)


def published_for(target_config: Mapping[str, Any] | None) -> list[Published]:
    """Those of targets with this config's architecture, layers, hidden size and vocabulary. Empty where it says too little."""
    if target_config is None:
        return []
    try:
        shape = target_shape(target_config)
    except TargetConfigError:
        return []
    text = text_part(target_config)
    key = (shape.architecture, shape.num_layers, text.get("hidden_size"), text.get("vocab_size"))
    return [p for p in published() if (p.architecture, p.layers, p.hidden, p.vocabulary) == key]
