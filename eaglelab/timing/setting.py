"""One way to speculate: how many steps, how many tokens a step, how many nodes a verify pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Setting:
    """`Setting(0)` is off. draft_tokens: nodes of a verify pass, the bonus token's included; of a chain steps + 1."""

    steps: int
    topk: int = 1
    draft_tokens: int = 0
    """0: a chain's own."""

    def __post_init__(self) -> None:
        if min(self.steps, self.draft_tokens) < 0 or self.topk < 1:
            raise ValueError(
                f"a setting has steps 0 or more, topk 1 or more, draft tokens 0 or more; got {self.steps}, {self.topk}, {self.draft_tokens}"
            )
        if self.steps == 0:
            object.__setattr__(self, "topk", 1)
        if self.topk == 1:  # SGLang overrides what is asked for (0.5.23, arg_groups/speculative_hook.py:1255)
            object.__setattr__(self, "draft_tokens", self.steps + 1)
        elif self.draft_tokens == 0:
            raise ValueError(f"a tree of topk {self.topk} needs draft_tokens: the nodes of a verify pass, the bonus token's included")

    @property
    def off(self) -> bool:
        return self.steps == 0

    @property
    def chain(self) -> bool:
        return self.topk == 1

    @property
    def verified(self) -> int:
        """Tokens that the target computes for one request in one pass; 1 without speculation."""
        return self.draft_tokens

    @property
    def name(self) -> str:
        """`off`, `3-1-4` (steps, top-k, draft tokens), as benchmarks of the field write it."""
        return "off" if self.off else f"{self.steps}-{self.topk}-{self.draft_tokens}"

    def flags(self, engine: str) -> dict[str, int]:
        """The setting in an engine's own spelling; {} for off. vLLM drafts chains here."""
        if self.off:
            return {}
        if engine == "vllm":
            return {"num_speculative_tokens": self.steps}
        return {
            "speculative_num_steps": self.steps,
            "speculative_eagle_topk": self.topk,
            "speculative_num_draft_tokens": self.draft_tokens,
        }

    def to_json(self) -> dict[str, Any]:
        return {"steps": self.steps, "topk": self.topk, "draft_tokens": self.draft_tokens, "name": self.name}
