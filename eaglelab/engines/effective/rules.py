"""Which rule of `effective.toml` holds in which version of an engine."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from eaglelab.engines.conventions import Engine


@cache
def table() -> dict[str, Any]:
    """`effective.toml` as it stands."""
    return tomllib.loads(Path(__file__).with_name("effective.toml").read_text(encoding="utf-8"))


def neighbours(engine: Engine) -> tuple[str, ...]:
    """Versions whose rules may be this version's, the nearest first: one that was read itself, else the read ones on both sides.

    The newest where the version is not known. Distance is counted in the last number that differs; of two equally near the older is first.
    """
    read = table()["read"][engine.name]
    if engine.version is None:
        return (read[-1],)
    wanted = Version(engine.version)
    equal = [v for v in read if Version(v).release == wanted.release]
    if equal:
        return (equal[0],)
    older = [v for v in read if Version(v) < wanted]
    newer = [v for v in read if Version(v) > wanted]
    if not older or not newer:
        return ((older or newer[:1])[-1],)
    below, above = older[-1], newer[0]
    return (below, above) if _distance(wanted, Version(below)) <= _distance(Version(above), wanted) else (above, below)


def was_read(engine: Engine) -> bool:
    """Whether this very version was read; builds (`+cu129`) and post-releases of it count."""
    return engine.version is not None and engine.version.split("+")[0].split(".post")[0] == neighbours(engine)[0]


def _distance(newer: Version, older: Version) -> tuple[int, int, int]:
    return (newer.major - older.major, abs(newer.minor - older.minor), abs(newer.micro - older.micro))


@dataclass(frozen=True)
class Rules:
    """SGLang's rules in one version that was read."""

    version: str

    def get(self, what: str) -> Mapping[str, Any] | None:
        """The row that holds; None where the version has no such rule."""
        order = table()["read"]["sglang"]
        place = order.index(self.version)
        rows = (r for r in table()["rules"] if r["what"] == what)
        return next((r for r in rows if order.index(r["first"]) <= place <= order.index(r["last"])), None)

    def read(self, what: str) -> str:
        """Where a rule was read: "SGLang 0.4.9, server_args.py:503-510". KeyError where there is no such rule."""
        row = self.get(what)
        if row is None:
            raise KeyError(f"no rule {what!r} in {self.version}")
        return f"SGLang {row['read']}"
