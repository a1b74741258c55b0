"""Which format a dump is of: a few of its files, spread over all, are read once and tried as each format."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.one_file import OneFile, contents
from eaglelab.dumps.registry import Format
from eaglelab.dumps.sample import Probe, Sample

PROBES = 4
"""Samples read to find the format, the slots and the width."""


@dataclass
class Tried:
    """A format, the files that are its samples by name, and those of the tried ones that are."""

    format: Format
    keys: list[str]
    stray: list[str]
    probes: list[Probe] = field(default_factory=list)

    @cached_property
    def chosen(self) -> list[str]:
        """The keys that are tried."""
        return [self.keys[i] for i in sorted({round(k * (len(self.keys) - 1) / (PROBES - 1)) for k in range(PROBES)})] if self.keys else []

    @property
    def likely(self) -> float:
        """Samples of this format that the dump holds, by the share of those tried."""
        return len(self.probes) * len(self.keys) / max(1, len(self.chosen))

    def beside(self, best: Tried) -> str:
        """What to say of samples of this format that a dump read as another one leaves out; "" where there are none."""
        left = set(self.keys).difference(best.keys) if self.probes else ()
        fitting = sum(probe.key in left for probe in self.probes)
        if not fitting:
            return ""
        name = self.format.name
        tried = sum(key in left for key in self.chosen)
        return (
            f"{len(left):,} files or folders look like {name} samples ({fitting} of {tried} tried are) and are left out: give [dump] path one "
            f'format, or `[dump] format = "{name}"` to read these'
        )


def try_formats(listing: Listing, formats: list[Format]) -> tuple[list[Tried], str]:
    """(each format with what fits it, why others of the tried files do not: the most telling first, "" where all fit)."""
    tried = [Tried(format, *format.keys(listing)) for format in formats]
    telling: dict[str, str] = {}
    other: dict[str, str] = {}
    for key in dict.fromkeys(key for t in tried for key in t.chosen):
        for problem, text in _try_key(listing.root, key, [t for t in tried if key in t.chosen]):
            # where the format is known the reason says more than that others do not fit
            (other if problem == "not a sample" else telling).setdefault(key, text)
    refused = telling | {key: text for key, text in other.items() if key not in telling}
    first = next(iter(refused.values()), None)
    return tried, "" if first is None else f" None of {len(refused)} tried is a sample. The first: {first}"


def _try_key(root: Path, key: str, takers: list[Tried]) -> list[tuple[str, str]]:
    """Add the probe to the formats that it fits; (problem, text) of each that it does not fit. Its tensors are let go with the return,
    which an error would keep by its traceback."""
    held = next((_read(t.format, root, key) for t in takers if isinstance(t.format, OneFile)), None)
    errors = []
    for t in takers:
        try:
            t.probes.append(Probe.of(_sample(t.format, root, key, held)))
        except DumpError as error:
            errors.append((error.problem, str(error)))
    return errors


def _read(format: OneFile, root: Path, key: str) -> Any:
    """What one file holds, or the DumpError that says why it cannot be read: read once for all formats of one file a sample."""
    try:
        return format.read(root, key)
    except DumpError as error:
        return error


def _sample(format: Format, root: Path, key: str, held: Any) -> Sample:
    """The sample of a format. Raises DumpError; "not a sample" where the file is of another format."""
    if not isinstance(format, OneFile):
        return format.load(root, key)
    if isinstance(held, DumpError):
        raise held
    if not format.layout.fits(held):
        raise DumpError(f"{root / key} holds {contents(held)}.", "not a sample")
    try:
        return format.make(root, key, held)
    except DumpError as error:
        raise DumpError(str(error), "unusable sample") from error
