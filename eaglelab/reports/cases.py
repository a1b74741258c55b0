"""The cases of a report: given one by one, or in a list `@cases.txt`; each opened, or a row that says why not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglelab.case import Case, open_case
from eaglelab.reports import parts
from eaglelab.reports.select import ReportError


@dataclass(frozen=True)
class Asked:
    """One case of a report."""

    path: Path
    """As it was given."""
    name: str
    """The folder's name, with as many of the folders above as tell it from the other cases of the report."""
    case: Case | None
    error: str | None
    """Why it cannot be opened."""

    @property
    def folder(self) -> str:
        """Name of its folder under the reports."""
        return parts.slug(self.name)


def listed(given: Sequence[str | Path]) -> list[Path]:
    """The paths, with those of `@file` in its place: one a line, `#` begins a comment; relative to the working directory, else to the file.

    Raises ReportError on a list that cannot be read or is empty.
    """
    paths: list[Path] = []
    for item in given:
        paths += _read(Path(str(item)[1:])) if str(item).startswith("@") else [Path(item)]
    if not paths:
        raise ReportError("no case given: `eaglelab report CASE`, with a case.toml or the folder that holds it")
    return paths


def _read(file: Path) -> list[Path]:
    try:
        text = file.expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ReportError(f"the list of cases @{file} cannot be read: {why}") from error
    lines = [line.split(" #")[0].strip() for line in text.splitlines()]
    paths = [Path(line).expanduser() for line in lines if line and not line.startswith("#")]
    if not paths:
        raise ReportError(f"the list of cases @{file} names none: expected one path a line, # begins a comment")
    return [p if p.exists() else q if (q := file.parent / p).exists() else p for p in paths]


def open_all(paths: Sequence[Path]) -> list[Asked]:
    """Each case once. A case that cannot be opened has an error; the only one raises it (CaseError)."""
    opened: dict[str, tuple[Path, Case | None, str | None]] = {}
    for path in paths:
        try:
            case = open_case(path)
            opened.setdefault(os.path.realpath(case.file), (path, case, None))
        except (ValueError, OSError) as error:  # its text, its files, its rights
            if len(paths) == 1:
                raise
            opened.setdefault(os.path.realpath(path), (path, None, str(error)))
    return [Asked(path, name, case, why) for name, (path, case, why) in zip(_names(list(opened)), opened.values(), strict=True)]


def _names(files: Sequence[str]) -> list[str]:
    """For each file or folder the shortest end of its path that no other has: runs of cases named alike would be mixed up."""
    folders = [p.parent if p.suffix == ".toml" else p for p in map(Path, files)]
    ways = [f.parts if folders.count(f) == 1 else (*f.parts, Path(file).stem) for f, file in zip(folders, files, strict=True)]
    ends = [[parts.slug("/".join(way[-n:])) for n in range(1, len(way) + 1)] for way in ways]
    names = []
    for folder, way, own in zip(folders, ways, ends, strict=True):
        shortest = len(way) - len(folder.parts)  # a file's name alone says less than with its folder's
        n = next((n for n in range(shortest, len(own)) if sum(own[n] in other for other in ends) == 1), len(own) - 1)
        names.append("/".join(way[-n - 1 :]))
    return names
