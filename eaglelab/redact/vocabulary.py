"""The words that eaglelab itself writes: those of its code, its tables and its notebooks, and the names of transformers' architectures.

A text made of these words says nothing of whose case it is about; a word that is not among them may.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
LETTERS = re.compile(r"[^\W\d_]+")
HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+")
"""Parts of a CamelCase name; an acronym is one."""
WORD = re.compile(r"\w+(?:['’]\w+)?")
NAME = re.compile(r"[\w.@+/-]+")
SHORT = 2
"""Letters in a row that tell nothing: units, dtypes' letters, versions' suffixes."""
RUN = 3
"""Words in a row that show where a text comes from."""


@dataclass(frozen=True)
class Vocabulary:
    """`words` in lower case; `names` as they are written (`config.json`, `sgl-project/sglang`), in lower case; `runs`: `RUN` words in a row."""

    words: frozenset[str]
    names: frozenset[str]
    runs: frozenset[tuple[str, ...]]

    def knows(self, letters: str) -> bool:
        """Whether a run of letters is a word of eaglelab's, or several of them in CamelCase."""
        if len(letters) <= SHORT or letters.lower() in self.words:
            return True
        humps = HUMP.findall(letters)
        long = [h for h in humps if len(h) > SHORT]
        few = len("".join(humps)) - len("".join(long)) <= 2 * SHORT  # a random string has many short humps
        return bool(long) and few and len(humps) > 1 and all(h.lower() in self.words for h in long)

    def holds(self, name: str) -> bool:
        """Whether a name (of a file, a model) is one that eaglelab's own code or prose names."""
        return name.lower() in self.names or name.lower() in self.words


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Every `RUN` words in a row, in lower case."""
    words = [w.lower() for w in WORD.findall(text)]
    return zip(*(words[i:] for i in range(RUN)), strict=False)


@cache
def vocabulary() -> Vocabulary:
    """Read once a process; half a second."""
    words, names, together = set(), set(), set()
    for text in _texts():
        for letters in set(LETTERS.findall(text)):
            words.add(letters.lower())
            words.update(h.lower() for h in HUMP.findall(letters))
        for name in set(NAME.findall(text.lower())):
            names.update((name, name.strip("./-"), *name.strip("./-").split("/")))
        together.update(runs(text))
    return Vocabulary(frozenset(words), frozenset(names), frozenset(together))


def _texts() -> Iterator[str]:
    files = [p for suffix in ("py", "toml", "j2", "css") for p in sorted(PACKAGE.rglob(f"*.{suffix}"))]
    yield " ".join(p.relative_to(PACKAGE.parent).as_posix() for p in files)
    yield from (p.read_text(encoding="utf-8") for p in files)
    yield from _notebooks()
    yield from map(os.strerror, errno.errorcode)
    yield from _architectures()


def _notebooks() -> Iterable[str]:
    from eaglelab.reports.select import ReportError, notebooks_folder  # late: papermill takes a second, and no kernel comes here

    try:
        paths = sorted(notebooks_folder().glob("*.ipynb"))
    except ReportError:  # an installed copy without notebooks: the caller names others
        return []
    return [p.stem.replace("_", " ") + "\n" + p.read_text(encoding="utf-8").replace("\\n", "\n") for p in paths]


def _architectures() -> Iterable[str]:
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    except ImportError:
        return []
    return [" ".join([*CONFIG_MAPPING_NAMES, *CONFIG_MAPPING_NAMES.values()])]
