"""What the files that a case names say of whose they are: names of models, hosts and samples, and texts. Read for words alone, never shown."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from eaglelab.case import Case
from eaglelab.outside_json import too_deep

MOST_FILES, MOST_BYTES, MOST_TEXTS = 200, 64 * 2**20, 20_000
"""Files of a folder, bytes of a file, texts of a file that are read."""
TEXTS = re.compile(
    r"(?i)(?:prompt|text|answer|output|outputs|content|completion|response|question|reasoning(?:_content)?|system|user|assistant|query)s?"
)
"""Keys whose strings are texts."""
NAMED = {
    "model": re.compile(
        r"(?i).*(?:name_or_path|model_path|model_name|served_model_name|tokenizer_path|draft_model|repo_id|model|target|tokenizer|base_model)"
    ),
    "host": re.compile(r"(?i)(?:.*_)?(?:host|hostname|addr|address|node|ip|server|url|base_url|endpoint)"),
    "user": re.compile(r"(?i)(?:.*_)?(?:user|username|author|owner|login|entity)"),
    "path": re.compile(r"(?i).*(?:path|dir|folder|file|checkpoint|project|run_name|experiment|run_id|cache)"),
}
SAMPLE_KEYS = re.compile(r"(?i)sample|sample_id|key|rid|request_id|conversation_id")
IN_LINE = re.compile(
    r"(?P<key>[A-Za-z][\w-]*)[\"']?\s*(?:[=:]|\s)\s*(?:\[)?(?P<quote>[\"'])(?P<value>(?:\\.|(?!(?P=quote)).){2,4000}?)(?P=quote)", re.DOTALL
)
"""`text='…'`, `"model": "…"` within a line of a log."""


@dataclass
class Heard:
    names: dict[str, str] = field(default_factory=dict)
    """Name -> its kind, of `eaglelab.redact.marks`."""
    samples: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def take(self, key: str, value: str) -> None:
        """One string, by the key that it stands under."""
        if SAMPLE_KEYS.fullmatch(key):
            self.samples.append(value)
        elif TEXTS.fullmatch(key) and len(self.texts) < MOST_TEXTS:
            self.texts.append(value)
        else:
            kind = next((k for k, names in NAMED.items() if names.fullmatch(key.replace("-", "_"))), None)
            if kind is not None and len(value) < 400:
                self.names[value] = kind


def files(case: Case) -> Iterator[Path]:
    """Configs, recordings, counters, logs and tables that the case names; no weights, no dump, no trace."""
    engine, target, drafter = case.engine, case.target, case.drafter
    folders = [
        p for p in (engine.recordings, engine.counters, engine.log, case.training.metrics, case.timing.table, case.timing.metrics) if p
    ]
    for path in folders:
        found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())[:MOST_FILES]
        yield from (p for p in found if not p.name.endswith((".safetensors", ".pt", ".ckpt", ".trace.json.gz", ".trace.json")))
    for path in (target.config, engine.draft_config, target.path, drafter.path, target.tokenizer):
        if path is not None:
            yield from [path] if path.is_file() else sorted(path.glob("*config*.json")) + sorted(path.glob("train*.json"))
    if case.target.sketch is not None:
        yield case.target.sketch


def read(path: Path) -> Heard:
    """Whatever the file is: JSON, a JSON object a line, or lines of a log. Nothing where it cannot be read."""
    said = Heard()
    with suppress(OSError, EOFError, ValueError, RecursionError):
        if path.suffix == ".safetensors":
            return _of_header(path)
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MOST_BYTES).decode("utf-8", "replace")
        whole = _json(content)
        if whole is not None:
            _walk(whole, said)
            return said
        for line in content.splitlines():
            row = _json(line) if line.lstrip().startswith("{") else None
            _walk(row, said) if row is not None else _of_line(line, said)
    return said


def of_launch(line: str) -> Heard:
    """Names in the values of a launch line's flags."""
    said = Heard()
    with suppress(ValueError):
        words = shlex.split(line, comments=False)
        for flag, value in zip(words, [*words[1:], ""], strict=True):
            name, equals, own = flag.partition("=")
            if name.startswith("--") and (own or not value.startswith("-")):
                said.take(name.removeprefix("--"), own if equals else value)
                _walk(_json(value), said)  # vLLM's --speculative-config
    _of_line(line, said)
    return said


def _of_header(path: Path) -> Heard:
    from safetensors import safe_open

    said = Heard()
    with suppress(Exception), safe_open(path, "pt") as file:  # damaged: its own reader says so
        for key, value in (file.metadata() or {}).items():
            inner = _json(value)
            _walk({key: value} if inner is None else inner, said)
    return said


def _json(text: str) -> Any | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, (dict, list)) and not too_deep(value) else None
    return None


def _walk(value: Any, said: Heard, key: str = "") -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _walk(inner, said, str(name))
    elif isinstance(value, list):
        for inner in value:
            _walk(inner, said, key)
    elif isinstance(value, str):
        said.take(key, value)
        if key == "command":
            for more in chain(of_launch(value).names.items()):
                said.names.setdefault(*more)


def _of_line(line: str, said: Heard) -> None:
    for m in IN_LINE.finditer(line):
        said.take(m["key"], m["value"])
