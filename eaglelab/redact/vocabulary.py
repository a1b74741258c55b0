"""The words that eaglelab itself writes: those of its code, its tables and its notebooks as they are shipped, and the names of transformers' architectures.

A text made of these words says nothing of whose case it is about; a word that is not among them may.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
NOTEBOOKS = Path(__file__).with_name("notebook_words.txt")
"""Words of the notebooks that the code lacks, made by `python -m eaglelab.redact.vocabulary`. Words are not taken from the notebooks themselves:
somebody may have worked in them, and saved a path of theirs or a whole output."""
LETTERS = re.compile(r"[^\W\d_]+")
HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+")
"""Parts of a CamelCase name; an acronym is one."""
WORD = re.compile(r"\w+(?:['’]\w+)?")
NAME = re.compile(r"[\w.@+/-]+")
SHORT = 2
"""Letters in a row (of A to Z: elsewhere two are a name) that tell nothing within a longer name: units, dtypes, versions' suffixes."""
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
        if (len(letters) <= SHORT and letters.isascii()) or letters.lower() in self.words:
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
        words.update(_words(text))
        for name in set(NAME.findall(text.lower())):
            names.update((name, name.strip("./-"), *name.strip("./-").split("/")))
        together.update(runs(text))
    for source in _prose():
        together.update(runs(source))
    return Vocabulary(frozenset(words), frozenset(names), frozenset(together))


def _words(text: str) -> Iterator[str]:
    """In lower case, CamelCase names whole and in parts."""
    for letters in set(LETTERS.findall(text)):
        yield letters.lower()
        yield from (h.lower() for h in HUMP.findall(letters))


def _texts() -> Iterator[str]:
    yield from _of_code()
    yield NOTEBOOKS.read_text(encoding="utf-8")


def _of_code() -> Iterator[str]:
    files = [p for suffix in ("py", "toml", "j2", "css") for p in sorted(PACKAGE.rglob(f"*.{suffix}"))]
    yield " ".join(p.relative_to(PACKAGE.parent).as_posix() for p in files)
    yield from (p.read_text(encoding="utf-8") for p in files)
    yield from map(os.strerror, errno.errorcode)
    yield from _architectures()


def _prose() -> Iterable[str]:
    """Sources of the notebooks: words in a row that are no text of the data where a sample has them too. Never outputs."""
    from eaglelab.reports.select import ReportError, notebooks_folder  # late: papermill takes a second, and no kernel comes here

    with suppress(ReportError, OSError, ValueError, KeyError):
        for path in sorted(notebooks_folder().glob("*.ipynb")):
            yield from ("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


def _architectures() -> Iterable[str]:
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    except ImportError:
        return []
    return [" ".join([*CONFIG_MAPPING_NAMES, *CONFIG_MAPPING_NAMES.values()])]


def words_of_notebooks(folder: Path) -> list[str]:
    """Words of the committed notebooks' sources that the rest of the vocabulary lacks, in order. Notebooks with outputs are refused."""
    code = Vocabulary(frozenset(w for text in _of_code() for w in _words(text)), frozenset(), frozenset())
    found: set[str] = set()
    for path in sorted(folder.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        if any(cell.get("outputs") for cell in cells):
            raise ValueError(f"{path} holds outputs, expected a notebook as it is committed: nbstripout takes them out")
        found.update(w.lower() for cell in cells for w in LETTERS.findall("".join(cell["source"])) if not code.knows(w))
        found.update(w.lower() for w in LETTERS.findall(path.stem) if not code.knows(w))
    return sorted(found)


if __name__ == "__main__":
    from eaglelab.reports.select import notebooks_folder

    NOTEBOOKS.write_text("\n".join(words_of_notebooks(notebooks_folder())) + "\n", encoding="utf-8")
