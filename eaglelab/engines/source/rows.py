"""Rows of the convention table out of published wheels: what each says of each architecture, and the versions between which it changed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.version import Version

from eaglelab.engines.conventions import USUAL_DEFAULT, Engine
from eaglelab.engines.source import sglang, vllm
from eaglelab.engines.source.archive import open_source
from eaglelab.engines.source.classes import Package
from eaglelab.engines.source.convention import measure
from eaglelab.engines.source.interpreter import CannotTell
from eaglelab.engines.source.target import is_drafter

USUAL = {"last": "missing", "embedding": "captured", "negative": "missing", "bug": None, "default": USUAL_DEFAULT, "note": ""}
"""Words of a row that need not be written."""
TARGETS = {"sglang": sglang.SGLangTarget, "vllm": vllm.VLLMTarget}
USUAL_ARCHITECTURE = "LlamaForCausalLM"
"""Its rows hold, and are said to be assumed, for an architecture that the table does not list."""


def words_of(name: str, wheel: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """(version, {architecture: the table's words for it}) of one wheel; where the code cannot be followed, {"cannot_tell": reason}."""
    source, found = open_source(name, wheel), {}
    for architecture, asked in (sglang if name == "sglang" else vllm).targets(source).items():
        try:
            words = measure(asked)
            found[architecture] = {k: v for k, v in words.items() if v and USUAL.get(k, ()) != v} | {"read": asked.read}
        except CannotTell as reason:
            found[architecture] = {"cannot_tell": str(reason)}
    return source.version, found


def without_setter(name: str, places: Iterable[str]) -> list[str]:
    """Architectures that these versions register and none of them has a setter for: `no_capture` of the table. Drafters left out."""
    registered, able = set(), set()
    for place in places:
        source = open_source(name, place)
        classes = sglang.registered(source) if name == "sglang" else vllm.registered(Package(source))
        registered |= {a for a in classes if not is_drafter(a)}
        able |= {a for a, cls in classes.items() if cls is None or cls.find(TARGETS[name].SETTER) is not None}
    return sorted(registered - able)


def rows_of(by_version: Mapping[str, Mapping[str, Mapping[str, Any]]], name: str) -> list[dict[str, Any]]:
    """Rows, each for architectures that changed to the same words in the same version. by_version: version -> `words_of`."""
    versions = sorted(by_version, key=Version)
    changes: dict[str, list[str]] = {}
    for architecture in sorted({a for found in by_version.values() for a in found}):
        before = None
        for place, version in enumerate(versions):
            words = by_version[version].get(architecture)
            words = {k: v for k, v in words.items() if k not in ("read", "assumptions")} if words else {"rule": "none"} if before else None
            if words != before and words is not None and "cannot_tell" not in words:
                span = {"since": version, "after": versions[place - 1]} if place else {}
                changes.setdefault(json.dumps([version, span, words]), []).append(architecture)
            before = words
    rows = []
    for key, architectures in sorted(changes.items(), key=lambda item: Version(json.loads(item[0])[0])):
        version, span, words = json.loads(key)
        if USUAL_ARCHITECTURE in architectures:
            architectures = ["*", *architectures]
        where = sorted({by_version[version].get(a, {}).get("read", "").removeprefix(sglang.MODELS) for a in architectures} - {""})
        read = f"{Engine(name, version).title}, own functions run: {', '.join(where) or 'no longer there'}"
        rows.append({"family": name, "architectures": architectures, **span, **words, "read": read})
    return rows


def as_toml(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as they stand in `conventions.toml`."""
    text = []
    for row in rows:
        text.append("[[rows]]")
        for key, value in row.items():
            line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
            text.append(line if len(line) <= 140 or not isinstance(value, list) else _wrapped(key, value))
        text.append("")
    return "\n".join(text)


def _wrapped(key: str, words: list[str]) -> str:
    lines = textwrap.wrap(", ".join(json.dumps(word) for word in words), 136)
    return "\n".join([f"{key} = [", *(f"  {line}" for line in lines), "]"])
