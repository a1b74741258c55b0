"""What is linted, and what the checks of this package share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eaglelab.drafter.config import DrafterConfig
from eaglelab.engines.capabilities import support
from eaglelab.engines.conventions import Convention, Engine
from eaglelab.engines.launch import Launch
from eaglelab.engines.target_config import TargetShape
from eaglelab.engines.training import Framework
from eaglelab.outside_json import text_part


@dataclass(frozen=True)
class Subject:
    """The drafter's config, raw and parsed, against one engine."""

    config: Mapping[str, Any]
    drafter: DrafterConfig
    engine: Engine
    convention: Convention
    target: TargetShape | None
    target_config: Mapping[str, Any]
    """The target's config; empty where it is not given."""
    framework: Framework
    launch: Launch | None
    biased: bool
    audited: bool

    @property
    def title(self) -> str:
        return self.engine.title

    @property
    def sglang(self) -> bool:
        return self.engine.name == "sglang"

    @property
    def speculators(self) -> bool:
        """A speculators config that vLLM takes apart: of the top level it keeps a few keys alone."""
        return self.engine.name == "vllm" and "speculators_model_type" in self.config

    @property
    def layer(self) -> Mapping[str, Any]:
        """The part of the drafter's config with the sizes of its layer."""
        nested = self.config.get("transformer_layer_config")
        return nested if isinstance(nested, Mapping) else self.config

    @property
    def target_text(self) -> Mapping[str, Any]:
        """The text part of the target's config."""
        return text_part(self.target_config)

    def support(self, flag: str) -> tuple[str | None, dict[str, str]]:
        return support(self.engine, self.drafter.layer_type, flag)


def whole(config: Mapping[str, Any], key: str) -> int | None:
    """A positive integer under a key, else None."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
