"""The options that a version's command line takes, and what becomes of a word that is none of them."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eaglelab.engines.conventions import Engine

SERVE_ONLY = ("model-type", "help", "h")
"""Taken before the server's own options are read (0.5.23, cli/serve.py:42)."""
ENGINES = Path(__file__).parents[1]


@cache
def options(engine: Engine, version: str) -> frozenset[str] | None:
    """Names without dashes of a version that was read; None where its list was not."""
    newest = _table(ENGINES / "options.toml")[engine.name]
    listed = newest["names"].split() if version == newest["version"] else []
    if engine.name == "vllm":
        return frozenset(listed) or None
    by_version = _table(Path(__file__).with_name("options.toml"))
    order = by_version["read"]
    if version not in order:
        return None
    place = order.index(version)
    groups = (g for g in by_version["groups"] if order.index(g["first"]) <= place <= order.index(g["last"]))
    return frozenset(name for group in groups for name in group["names"].split()) | {*SERVE_ONLY}


@cache
def _table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Meaning:
    """What argparse makes of an option as it was written."""

    name: str | None
    """The option in full, underscores for dashes; None where there is none or several."""
    could_be: tuple[str, ...] = ()
    """Several options of which it is the beginning: argparse then stops."""


def meaning(written: str, known: frozenset[str] | None) -> Meaning:
    """`written` with underscores, as in `Launch.given`. An unambiguous beginning counts; where no list is known every name does."""
    if known is None:
        return Meaning(written)
    name = written.partition(".")[0].replace("_", "-")
    if name in known or name.removeprefix("no-") in known:
        return Meaning(written)
    longer = sorted(n for n in known if n.startswith(name))
    if len(longer) == 1:
        return Meaning(longer[0].replace("-", "_"))
    return Meaning(None, tuple(longer))


def nearest(written: str, known: frozenset[str]) -> str | None:
    """The option that was probably meant: `--like-this`."""
    close = difflib.get_close_matches(written.partition(".")[0].replace("_", "-"), sorted(known), n=1, cutoff=0.75)
    return f"--{close[0]}" if close else None
