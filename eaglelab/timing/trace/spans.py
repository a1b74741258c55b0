"""What engines call their stages: names of spans to phases. The facts are rows of `spans.toml`, each with the version where it was read."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from eaglelab.timing.phases import Phase


@dataclass(frozen=True)
class SpanRule:
    """One row of `spans.toml`; its head says what the fields mean."""

    engine: str
    pattern: re.Pattern[str]
    frame: bool
    phase: Phase | None
    whole: bool
    loose: bool
    begins: int | None
    joins: tuple[int, ...]
    tells: str
    batch: int | None

    def begins_at(self, number: int) -> bool:
        return self.begins == number or number in self.joins


class Numbers(NamedTuple):
    """What a span's name says about its batch; None where it says nothing."""

    batch: int | None = None
    verified: float | None = None
    """Tokens a request that the target computes in this pass."""
    kind: str | None = None
    """vLLM: `verify`, `prefill`, `decode`, `mixed` or `idle`, by requests and tokens."""


@lru_cache(maxsize=1)
def rules() -> tuple[SpanRule, ...]:
    """All rows, in their order."""
    rows = tomllib.loads(Path(__file__).with_name("spans.toml").read_text(encoding="utf-8"))["spans"]
    return tuple(
        SpanRule(
            row["engine"],
            re.compile(row["pattern"]),
            row["source"] == "frame",
            Phase(row["phase"]) if "phase" in row else None,
            row.get("whole", False),
            row.get("loose", False),
            row.get("begins"),
            tuple(row.get("joins", ())),
            row.get("tells", ""),
            row.get("batch"),
        )
        for row in rows
    )


@lru_cache(maxsize=1)
def frame_prefixes() -> tuple[str, ...]:
    """How the names of Python frames begin that a rule may match."""
    return tuple(tomllib.loads(Path(__file__).with_name("spans.toml").read_text(encoding="utf-8"))["frames"]["prefixes"])


@lru_cache(maxsize=65536)
def rule_of(name: str, frame: bool = False) -> SpanRule | None:
    """The first row that matches a span of this name; None for a span of something else."""
    return next((rule for rule in rules() if rule.frame == frame and rule.pattern.search(name)), None)


def _number(pattern: str, name: str) -> int | None:
    found = re.search(pattern, name)
    return int(found[1]) if found else None


@lru_cache(maxsize=65536)
def numbers(name: str, rule: SpanRule) -> Numbers:
    """Batch and verified tokens as a name tells them.

    SGLang: `bs=N`, and `g_sq=` (query tokens of all requests) where detailed annotations were on (0.5.23 model_executor/step_span_utils.py:75).
    vLLM: `execute_context_C(CT)_generation_G(GT)`, requests and tokens; GT > G means that drafted tokens are verified.
    """
    groups = (rule.pattern.search(name) or re.match("", "")).groupdict()
    if groups.get("generation") is not None:
        context, generation, tokens = int(groups["context"]), int(groups["generation"]), int(groups["generation_tokens"])
        if context and generation:
            return Numbers(context + generation, None, "mixed")
        if context:
            return Numbers(context, None, "prefill")
        if not generation:
            return Numbers(0, None, "idle")
        return Numbers(generation, tokens / generation, "verify" if tokens > generation else "decode")
    batch = _number(r"\bbs=(\d+)", name)
    if batch is None:
        batch = rule.batch
    tokens = None
    if batch and rule.tells == "verify":
        tokens = _number(r"\bg_sq=(\d+)", name)
        if tokens is None:
            tokens = _number(r"\btoks=(\d+)", name)
    return Numbers(batch, tokens / batch if tokens is not None and batch else None)
