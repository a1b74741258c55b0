"""What stands in the place of what was removed, and how such places are counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from eaglelab.case import SECTIONS

KINDS = {
    "text": "text of the data",
    "token": "token text",
    "token id": "token ids",
    "sample": "sample keys",
    "state": "values of hidden states, from which a token can be read back",
    "path": "paths and names of files and folders",
    "model": "names of models",
    "secret": "tokens of access, keys, passwords",
    "url": "URLs",
    "host": "host names and IP addresses",
    "e-mail": "e-mail addresses",
    "user": "user names",
    "environment": "values of environment variables",
    "hash": "hashes",
    "number": "long numbers, as of phones, accounts or people",
    "word": "words that eaglelab does not write itself",
    "output": "outputs not made by eaglelab.notebook",
}
"""Kind -> what it is called in the account of what was removed, in the order of that account."""
BLOCK = "░"
"""One for each character of a token's text, at most `LONGEST`."""
LONGEST = 12
PLACES = {
    "case": "case",
    **{section: section for section in SECTIONS if section not in ("engine", "timing", "training")},
    **{
        "drafter.embed": "embedding rows",
        "drafter.vocabulary": "vocabulary map",
        "target.config": "target config",
        "target.sketch": "sketch",
    },
    **{"target.tokenizer": "tokenizer", "engine.log": "log", "engine.counters": "counters", "engine.recordings": "recordings"},
    **{"engine.capture": "capture", "engine.draft_config": "draft config", "engine.source": "engine", "engine.launch": "launch"},
    **{"timing.trace": "trace", "timing.metrics": "timers", "timing.table": "table", "training.metrics": "training log"},
}
"""Key of case.toml -> what its path is called in the report: `‹dump›/file-3.pt`."""
STANDARD = frozenset(
    {
        "case.toml",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "special_tokens_map.json",
        "added_tokens.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "preprocessor_config.json",
        "vocab.json",
        "merges.txt",
    }
)
"""Names of files that every case or checkpoint has: they stay."""
_BELOW = rf"(?:/(?:(?:folder|file)-\d+|{'|'.join(map(re.escape, sorted(STANDARD, key=len, reverse=True)))}))*"
MARK = re.compile(rf"‹(?P<kind>{'|'.join(KINDS)})(?: \d+)?›|‹(?:{'|'.join(PLACES.values())})›{_BELOW}|(?P<block>{BLOCK}+)")
"""`‹word›`, `‹sample 3›`, `‹dump›/folder-1/file-3`, and a token's blocks."""


def mark(kind: str, number: int | None = None) -> str:
    """`‹kind›`, or `‹sample 3›` for what is the same wherever it stands."""
    assert kind in KINDS or kind in PLACES.values()
    return f"‹{kind}›" if number is None else f"‹{kind} {number}›"


def blocks(text: str) -> str:
    """A token's text as blocks of its length; a space before it stays, so that words are seen."""
    spaced = text.startswith("␣") and text != "␣"
    return "␣" * spaced + BLOCK * min(max(1, len(text) - spaced), LONGEST)


def count(text: str) -> Counter[str]:
    """Kind -> places in `text` where something was removed."""
    return Counter("token" if m["block"] else m["kind"] or "path" for m in MARK.finditer(text))


def account(counts: Mapping[str, int]) -> dict[str, int]:
    """What was removed, in words -> how many times, in the order of `KINDS`."""
    return {words: counts[kind] for kind, words in KINDS.items() if counts.get(kind)}


def counted(value: Any) -> Counter[str]:
    """`count` over all texts of nested lists and dicts."""
    if isinstance(value, str):
        return count(value)
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return sum(map(counted, inner), Counter())
