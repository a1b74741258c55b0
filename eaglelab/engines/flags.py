"""What an engine at a version makes of a key in a drafter's config, and which drafter classes it loads. The facts are in the table."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from eaglelab.engines.conventions import Engine, table


@dataclass(frozen=True)
class Support:
    """`honoured`, `ignored` or `unknown` (the version lies between two that were read)."""

    answer: str
    read: str = ""
    since: str | None = None
    """For an `ignored` that a later version honours: that version."""


def flag_support(engine: Engine, flag: str, drafter: str = "llama") -> Support | None:
    """What the engine makes of `flag` for a drafter of this layer type (`llama`, `qwen3`, `mla`). None: nothing is known."""
    rows = [r for r in table()["flags"] if r["family"] == engine.name and r["flag"] == flag and r["drafter"] in (drafter, "*")]
    if not rows:
        return None
    row = rows[0]
    held = _holds(engine, row)
    if held is None:
        return Support("unknown", row["read"], row["since"])
    return Support(row["support"] if held else "ignored", row["read"], None if held else row["since"])


def loads_drafter(engine: Engine, architecture: str) -> bool | None:
    """Whether the engine has a class of this name for EAGLE-3 drafters. None: the version lies between two that were read."""
    known = table()["drafters"].get(engine.name, {})
    return _holds(engine, known[architecture]) if architecture in known else False


def drafter_names(engine: Engine) -> list[str]:
    """Names in `architectures` that the engine loads as an EAGLE-3 drafter, in any version read."""
    return list(table()["drafters"].get(engine.name, {}))


def _holds(engine: Engine, row: dict[str, str]) -> bool | None:
    if engine.version is None or "since" not in row:
        return True
    version = Version(engine.version)
    if version >= Version(row["since"]):
        return True
    return None if version > Version(row["after"]) else False
