"""All formats, in the order in which they are tried. A new format is one file with a class like these, named here."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Protocol

from eaglelab.dumps.list_of_four import ListOfFour
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.raw_folders import RawFolders
from eaglelab.dumps.sample import Sample
from eaglelab.dumps.torch_files import DumpError


class Format(Protocol):
    """What a format has to know. Whether a dump is of this format shows when `load` reads some of its samples."""

    name: str
    looks_for: str
    """In words, for the error when no format fits."""

    def keys(self, listing: Listing) -> tuple[list[str], list[str]]:
        """(sample keys, stray torch files), by name alone: no file is opened."""

    def paths(self, root: Path, key: str) -> list[Path]:
        """The files that a sample is made of."""

    def load(self, root: Path, key: str) -> Sample:
        """One sample as its files hold it. Raises DumpError where they hold something else."""

    def claims(self, listing: Listing) -> tuple[list[str], list[str]]:
        """(what the metadata says about the slots, what is wrong with the metadata), in words."""


FORMATS = (ListOfFour.name, RawFolders.name)


def formats(name: str | None, files: dict[str, Any] | None, allow_pickle: bool) -> list[Format]:
    """The formats to try: the one named, or those that fit the settings."""
    if name is not None and name not in FORMATS:
        near = difflib.get_close_matches(str(name), FORMATS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DumpError(f"[dump] format: unknown format {name!r}, expected one of {', '.join(FORMATS)}{hint}", "settings")
    if files and name == ListOfFour.name:
        raise DumpError("[dump] files: the format list_of_four has no file names to set; leave `files` out.", "settings")
    raw = RawFolders.named(files, allow_pickle)
    return [f for f in ([raw] if files else [ListOfFour(allow_pickle), raw]) if name in (None, f.name)]
