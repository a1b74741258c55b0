"""What an engine, at a version, can do with a drafter: which config keys it honours, which classes it loads. Facts: `capabilities.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from eaglelab.drafter.config import IDS_KEY
from eaglelab.engines.conventions import Engine


@cache
def table() -> dict[str, Any]:
    """`capabilities.toml` as it stands."""
    return tomllib.loads(Path(__file__).with_name("capabilities.toml").read_text(encoding="utf-8"))


def support(engine: Engine, layer_type: str, flag: str) -> tuple[str | None, dict[str, str]]:
    """(`honoured`, `ignored`, `unknown` for a version that nobody read or None where no row says anything, the table's row)."""
    rows = (r for r in table()["flags"] if r["family"] == engine.name and r["flag"] == flag and r["drafter"] in (layer_type, "*"))
    row = next(rows, {})
    if not was_read(engine):
        first, last = table()["flags_read"][engine.name]
        return "unknown", {"read": f"The drafter classes were read from {first} to {last}", **row}
    return ({True: row["support"], False: "ignored", None: "unknown"}[holds(engine, row)] if row else None), row


def was_read(engine: Engine) -> bool:
    """Whether the version lies in the span whose drafter classes were read. True where it is not given: the newest is assumed."""
    span = table()["flags_read"].get(engine.name)
    return engine.version is None or span is None or Version(span[0]) <= Version(engine.version) <= Version(span[1])


def limit(engine: Engine, what: str, layer_type: str = "*") -> dict[str, str] | None:
    """The table's row on something that an engine refuses or does unasked; None where it has none for this type of draft layer."""
    rows = (r for r in table()["limits"] if r["family"] == engine.name and r["what"] == what)
    return next((r for r in rows if r.get("drafter", "*") in ("*", layer_type)), None)


def fc_slots(engine: Engine, layer_type: str, config: Mapping[str, Any]) -> int:
    """Slots that an engine's draft class builds its fc for, from the config that it reads.

    Sources: SGLang 0.5.3 to 0.5.11 llama_eagle3.py (always 3; 0.5.11: :138); from 0.5.12 on `num_aux_hidden_states`, the ids in
    eagle_config, 3 (0.5.23: :154-161); kimi_k25_eagle3.py:47-59 counts ids alone, nested before top level. vLLM 0.32.0
    llama_eagle3.py:207-215, qwen3_eagle3.py, deepseek_eagle3.py:185-191: `num_aux_hidden_states`, the ids in eagle_config, 3; of a
    speculators config only transformer_layer_config is left.
    """
    nested = config.get("eagle_config")
    nested = nested if isinstance(nested, Mapping) else {}
    ids, top = nested.get(IDS_KEY), config.get(IDS_KEY)
    if engine.name == "sglang" and layer_type == "mla":
        found = ids if ids is not None else top
        return 3 if found is None else len(found)
    if engine.name == "sglang" and holds(engine, limit(engine, "fc_of_three")) is not True:
        return 3
    if engine.name == "vllm" and "speculators_model_type" in config:
        layer = config.get("transformer_layer_config")
        config, ids = layer if isinstance(layer, Mapping) else {}, None
    stated = config.get("num_aux_hidden_states")
    return stated if stated is not None else len(ids) if ids else 3


def usual_chain(engine: Engine, architecture: str | None) -> tuple[int, int, int] | None:
    """(steps, top-k, draft tokens) that SGLang takes for a target class where none are given; None for an engine without a default."""
    rows = [row for row in table()["chains"] if row["family"] == engine.name and holds(engine, row) is True]
    named = [row for row in rows if architecture in row["architectures"]]
    return tuple((named or [row for row in rows if "*" in row["architectures"]])[0]["chain"]) if rows else None


def holds(engine: Engine, row: Mapping[str, str]) -> bool | None:
    """Whether a row of the table holds for this version. None: the version lies between two that were read."""
    if engine.version is None or "since" not in row or Version(engine.version) >= Version(row["since"]):
        return True
    return None if Version(engine.version) > Version(row["after"]) else False
