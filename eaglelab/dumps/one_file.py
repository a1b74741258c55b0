"""One file a sample: the container is read, the layout makes a sample of what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from eaglelab.dumps.containers import TORCH_SUFFIXES, DumpError, load_file
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts import LAYOUTS
from eaglelab.dumps.layouts.layout import Layout, describe
from eaglelab.dumps.listing import Listing, split_stray
from eaglelab.dumps.raw_folders import AUX, LAST, TOKEN_IDS
from eaglelab.dumps.sample import Probe, Sample
from eaglelab.findings import few


@dataclass(frozen=True)
class OneFile:
    """A format of one file a sample, by its layout."""

    layout: Layout
    allow_pickle: bool = False

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def last_state_kept(self) -> bool:
        return self.layout.last_state_kept

    @property
    def looks_for(self) -> str:
        kind = "torch" if self.layout.suffixes == TORCH_SUFFIXES else self.layout.suffixes[0]
        return f"{kind} files that hold {self.layout.looks_for}"

    def keys(self, listing: Listing) -> tuple[list[str], list[str]]:
        """(sample keys, stray tensor files), by name alone."""
        keys, stray = _named(listing, self.layout.suffixes, self.layout.numbered)
        return list(keys), list(stray)

    def paths(self, root: Path, key: str) -> list[Path]:
        return [root / key]

    def load(self, root: Path, key: str) -> Sample:
        return self.make(root, key, self.read(root, key))

    def read(self, root: Path, key: str) -> Any:
        """What the file holds. Raises DumpError where it cannot be read."""
        return load_file(root / key, self.allow_pickle)

    def make(self, root: Path, key: str, data: Any) -> Sample:
        """The sample out of what the file holds. Raises DumpError where it is of another layout."""
        if not self.layout.fits(data):
            other = next((f" (the format {layout.name})" for layout in LAYOUTS if layout.fits(data)), "")
            raise DumpError(f"{root / key}: holds {contents(data)}{other}; expected {self.layout.looks_for}.", "not a sample")
        return self.layout.sample(key, data, root / key, root)

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        return self.layout.implied(listing, probes)


@lru_cache(maxsize=4)
def _named(listing: Listing, suffixes: tuple[str, ...], numbered: bool) -> tuple[list[str], list[str]]:
    """(sample keys, stray files) of all layouts that name their files alike: most do, and a dump may have 100,000."""
    raw = {name.rpartition("/")[0] for name in listing.files if name.rpartition("/")[2] in TOKEN_IDS}
    names = (name for name in listing.files if name.lower().endswith(suffixes) and not _is_part(name, raw))
    return split_stray(names, numbered)


def _is_part(name: str, raw: set[str]) -> bool:
    """Whether a file stands beside token ids as one tensor of a sample in the raw layout: `aux_0.pt`."""
    folder, _, file = name.rpartition("/")
    return folder in raw and (AUX.fullmatch(file) is not None or file in (LAST, *TOKEN_IDS))


def contents(data: Any) -> str:
    """What a file holds, key by key, for an error: `a dict with input_ids (one tensor [6] of int64), …`."""
    if not isinstance(data, dict):
        return describe(data)
    held = [f"{str(key)[:40]} ({_inside(value)})" for key, value in sorted(data.items(), key=lambda item: str(item[0]))]
    return f"a dict with {few(held, 12) or 'no keys'}"


def _inside(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
        return f"a {type(value).__name__} of {len(value)}, the first {describe(value[0])}"
    return describe(value)
