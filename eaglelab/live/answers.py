"""Values of a server's answer, checked: what is of another kind is an error where it is needed, None where it is extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglelab.live.server import ServerError
from eaglelab.served.counts import counts_of

MAX_TOKEN = 2**31
"""Token ids at or above this are none."""


def ids_of(answer: Mapping[str, Any], key: str, where: str) -> tuple[int, ...] | None:
    """The token ids under `key`, None where there are none. Raises ServerError where it holds anything else."""
    value = answer.get(key)
    if value is None:
        return None
    ids = counts_of(value, MAX_TOKEN)
    if ids is None:
        raise ServerError(f"{where}: {key} is {str(value)[:60]!r}, expected a list of token ids")
    return ids


def text_of(answer: Mapping[str, Any], where: str) -> str | None:
    value = answer.get("text")
    if value is not None and not isinstance(value, str):
        raise ServerError(f"{where}: text is {type(value).__name__}, expected text")
    return value


def object_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def held(answer: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, answer))[:8])[:120] or "nothing"
