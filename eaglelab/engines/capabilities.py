"""What an engine, at a version, can do with a drafter: which config keys it honours, which classes it loads. Facts: `capabilities.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from eaglelab.engines.conventions import Engine


@cache
def table() -> dict[str, Any]:
    """`capabilities.toml` as it stands."""
    return tomllib.loads(Path(__file__).with_name("capabilities.toml").read_text(encoding="utf-8"))


def support(engine: Engine, layer_type: str, flag: str) -> tuple[str | None, dict[str, str]]:
    """(`honoured`, `ignored`, `unknown` between two versions read or None where nothing is known, the table's row)."""
    for row in table()["flags"]:
        if row["family"] == engine.name and row["flag"] == flag and row["drafter"] in (layer_type, "*"):
            return {True: row["support"], False: "ignored", None: "unknown"}[holds(engine, row)], row
    return None, {}


def holds(engine: Engine, row: Mapping[str, str]) -> bool | None:
    """Whether a row of the table holds for this version. None: the version lies between two that were read."""
    if engine.version is None or "since" not in row or Version(engine.version) >= Version(row["since"]):
        return True
    return None if Version(engine.version) > Version(row["after"]) else False
