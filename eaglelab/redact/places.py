"""Paths of a case, and the names of files and folders in them, as marks that are the same wherever they stand."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from eaglelab.case import SECTIONS, Case
from eaglelab.redact.marks import PLACES, STANDARD, mark
from eaglelab.redact.vocabulary import LETTERS, PACKAGE, Vocabulary

MOST_FILES = 20_000
"""Files of one folder that get a name of their own."""


class Places:
    """`names()` gives (path or name, mark), the whole paths first: the first mark of a name stays."""

    def __init__(self, case: Case, vocabulary: Vocabulary) -> None:
        self.case, self.vocabulary = case, vocabulary
        self.written = {
            mark(PLACES[name if key == "path" else f"{name}.{key}"]): path
            for name in SECTIONS
            for key, path in vars(getattr(case, name)).items()
            if isinstance(path, Path)
        }

    def names(self) -> Iterator[tuple[str, str]]:
        for label, path in sorted(self.written.items(), key=lambda w: w[0] != mark("counters")):  # a log beside them may have their name
            yield from self._under(path, label)
        case = mark("case")
        for root in _spelled(self.case.root):
            yield f"{root}/case.toml", f"{case}/case.toml"
            yield root, case
        yield self.case.name, case
        yield from self._parts()

    def _under(self, path: Path, instead: str) -> Iterator[tuple[str, str]]:
        """A path of case.toml in every spelling, and all files below it."""
        mine = instead + (self._suffix(path.name) if path.is_file() else "")
        below = [] if path.is_file() else list(self._listed(path))
        for root in [*_spelled(path), *self._inside(path)]:
            for inner, named in below:
                yield f"{root}/{inner}", f"{mine}/{named}"
            yield root, mine
        for inner, named in below:
            name = inner.rpartition("/")[2]
            if name not in STANDARD:
                yield inner, f"{mine}/{named}"
                yield name, f"{mine}/{named}"
                yield name.partition(".")[0], f"{mine}/{named.partition('.')[0]}"
        if path.name not in STANDARD:
            yield path.name, mine
            yield path.stem, instead

    def _listed(self, folder: Path) -> Iterator[tuple[str, str]]:
        """(path below the folder, its name in the report), of files and folders."""
        seen = {"": ""}
        files = 0
        for root, folders, names in os.walk(folder):
            folders.sort()
            inside = os.path.relpath(root, folder).replace(os.sep, "/").removeprefix(".")
            shown = seen.get(inside, "")
            for n, name in enumerate(folders, start=1):
                path = f"{inside}/{name}".lstrip("/")
                seen[path] = f"{shown}/{f'folder-{n}'}".lstrip("/")
                yield path, seen[path]
            for n, name in enumerate(sorted(names), start=1):
                files += 1
                if files > MOST_FILES:
                    return
                yield f"{inside}/{name}".lstrip("/"), f"{shown}/{name if name in STANDARD else f'file-{n}{self._suffix(name)}'}".lstrip("/")

    def _suffix(self, name: str) -> str:
        """`.trace.json.gz`: what follows the name, as far as its words are eaglelab's own."""
        suffixes = [s for s in Path(name).suffixes if all(map(self.vocabulary.knows, LETTERS.findall(s))) and len(s) <= 16]
        return "".join(suffixes)[-24:]

    def _inside(self, path: Path) -> Iterator[str]:
        """The path as it stands in case.toml, and as findings have it: relative to the case, else its last two parts."""
        with_parent = "/".join(path.parts[-2:])
        for root in {self.case.root, self.case.root.resolve()}:
            yield os.path.relpath(path, root)
        yield with_parent

    def _parts(self) -> Iterator[tuple[str, str]]:
        """Names of folders above, whatever stands below them."""
        package = set(PACKAGE.parts) | set(Path(tempfile.gettempdir()).parts)
        for path in [self.case.root, Path.cwd(), *self.written.values()]:
            for place in {path, path.resolve()}:
                for name in place.parts[1:]:
                    if name not in package:
                        yield name, mark("path")


def _spelled(path: Path) -> list[str]:
    """A path absolute, resolved, and from the working directory, the longest first."""
    spellings = {str(path), str(path.resolve()), os.path.relpath(path), f"~/{os.path.relpath(path, Path.home())}"}
    return sorted((s for s in spellings if s not in (".", "..")), key=len, reverse=True)
