"""All formats. One file a sample: a layout of `eaglelab.dumps.layouts`. Anything else is a class of its own like `RawFolders`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts import LAYOUTS
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.one_file import OneFile
from eaglelab.dumps.raw_folders import RawFolders
from eaglelab.dumps.sample import Probe, Sample
from eaglelab.dumps.sglang_passes import SglangPasses
from eaglelab.dumps.sglang_responses import SglangResponses


class Format(Protocol):
    """What a format has to know. Whether a dump is of this format shows when `load` reads some of its samples."""

    name: str
    looks_for: str
    """In words, for the error when no format fits."""
    last_state_kept: bool
    """Whether the last slot is the last state; False: all slots are aux slots."""

    def keys(self, listing: Listing) -> tuple[list[str], list[str]]:
        """(sample keys, stray tensor files), by name alone: only files that may hold several samples are opened."""

    def paths(self, root: Path, key: str) -> list[Path]:
        """The files that a sample is made of."""

    def load(self, root: Path, key: str) -> Sample:
        """One sample as its files hold it. Raises DumpError where they hold something else."""

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        """(what the format and its metadata say about the slots, what is wrong with the metadata). probes: of the samples that were tried."""


FORMATS = (*(layout.name for layout in LAYOUTS), RawFolders.name, SglangPasses.name, SglangResponses.name)


def formats(name: str | None, files: dict[str, Any] | None, allow_pickle: bool) -> list[Format]:
    """The formats to try, in order: the one named, or those that fit the settings."""
    if name is not None and name not in FORMATS:
        near = difflib.get_close_matches(str(name), FORMATS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DumpError(f"[dump] format: unknown format {name!r}, expected one of {', '.join(FORMATS)}{hint}", "settings")
    if not files:
        known = [
            *(OneFile(layout, allow_pickle) for layout in LAYOUTS),
            *(RawFolders(allow_pickle=allow_pickle), RawFolders(last=None, allow_pickle=allow_pickle)),
            *(SglangPasses(allow_pickle), SglangResponses()),
        ]
        return [f for f in known if name in (None, f.name)]
    if name not in (None, RawFolders.name, SglangResponses.name):
        raise DumpError(f"[dump] files: the format {name} has no file names to set; leave `files` out.", "settings")
    responses = name == SglangResponses.name or (name is None and "width" in files)
    return [SglangResponses.named(files) if responses else RawFolders.named(files, allow_pickle)]
