"""What an engine does with a drafter's checkpoint that is not what its config says. Facts with sources: `loading.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

ENGINES = ("sglang", "vllm")


@dataclass(frozen=True)
class Consequence:
    """What one engine makes of one tensor."""

    engine: str
    """The engine's name and the version whose code was read: `SGLang 0.5.23`."""
    effect: str
    """`harmless`, `silent` (goes on with other weights), `stops`, or `unknown`."""
    text: str
    """What it does, as the rest of a sentence that starts with its name."""
    read: str
    """Where that was read."""


@cache
def table() -> dict[str, Any]:
    """loading.toml."""
    return tomllib.loads(Path(__file__).with_name("loading.toml").read_text(encoding="utf-8"))


def consequence(engine: str, case: str, name: str, layer_type: str = "llama") -> Consequence | None:
    """What an engine of `ENGINES` does in a case of loading.toml with a tensor (its canonical name); None where no row says anything."""
    for row in table()["rows"]:
        fits = row["engine"] == engine and row["case"] == case and layer_type in row.get("layers", (layer_type,))
        if fits and any(fnmatchcase(name, pattern) for pattern in row["names"]):
            return Consequence(table()["read_at"][engine], row["effect"], row["text"], row["read"])
    return None


def consequences(engines: Iterable[str], case: str, name: str, layer_type: str = "llama") -> list[Consequence]:
    """`consequence` of several engines, those that have one."""
    found = (consequence(engine, case, name, layer_type) for engine in engines)
    return [c for c in found if c is not None]
