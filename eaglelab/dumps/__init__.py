"""Dumps of hidden states: one small reader per on-disk format, one `open_dump()`.

    dump = open_dump("path/to/dump")
    dump.slot_names                      # ("hidden_states[0]", …): claims, not evidence
    for sample in dump.samples(32):      # a seeded choice over all shards, lazily, memory-mapped
        sample.slots[0]                  # [T, H] in the dump's dtype

Nothing from a file is run (`torch.load(weights_only=True)`), and one bad file never ends a scan.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.listing import Listing, list_dump
from eaglelab.dumps.probes import Tried, try_formats
from eaglelab.dumps.registry import FORMATS, formats
from eaglelab.dumps.sample import Sample, check_usable, most_common
from eaglelab.progress import progress

__all__ = ["FORMATS", "Dump", "DumpError", "Feed", "Implied", "Sample", "open_dump"]

NO_LAST = -1
"""In the last place of `[dump] feed`: the dump holds no last state."""


class Feed(NamedTuple):
    """The slots that go into the drafter's fc, in order, and the one that is the last state."""

    aux: tuple[int, ...]
    last: int | None
    """None where the dump holds no last state: the text's token is then what counts as right."""


class Dump:
    """A folder of samples. Listing it opens no file; samples are read when asked for."""

    def __init__(self, listing: Listing, tried: Tried, others: list[str], refused: str):
        self.path: Path = listing.path
        self.root: Path = listing.root
        self.reader = tried.format
        self.keys = tried.keys
        self.stray = tried.stray
        """Torch files beside the samples that are none, such as `token_freq.pt`."""
        self.slot_names: tuple[str, ...] = most_common(p.slot_names for p in tried.probes) or ()
        self.hidden_size: int | None = most_common(p.hidden_size for p in tried.probes)
        self.implied, notes = self.reader.implied(listing, tried.probes)
        """What the format and its metadata say about the slots: claims, never evidence."""
        self.notes = [*notes, *others, *listing.closed]
        """What is wrong with the metadata or lacks in the format, and what is left out."""
        self._refused = refused
        self.skipped: dict[str, str] = {}
        """Samples that `samples()` could not read, with the reason."""
        self._feed: Feed | None = None

    @property
    def format(self) -> str:
        return self.reader.name

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Dump({str(self.path)!r}, {self.format}, {len(self):,} samples, {len(self.slot_names)} slots)"

    @property
    def feed(self) -> Feed:
        """By default all slots but the last go into the fc and the last one is the last state (`hs[:-1]`, `hs[-1]`)."""
        last = len(self.slot_names) - 1
        whole = Feed(tuple(range(last + 1)), None) if not self.reader.last_state_kept else Feed(tuple(range(last)), last)
        return self._feed or whole

    @feed.setter
    def feed(self, slots: Sequence[int]) -> None:
        """The slots for the fc in its order, then the last state's: `[0, 1, 2, 3]`; -1 in the last place: there is none."""
        size = len(self.slot_names)
        if not size:
            raise DumpError(f"[dump] feed: {slots!r}: no sample could be read, so its slots are not known.{self._refused}", "settings")
        known = isinstance(slots, (list, tuple)) and all(type(s) is int and 0 <= s < size for s in slots[:-1])
        if not known or len(slots) < 2 or type(slots[-1]) is not int or not NO_LAST <= slots[-1] < size:
            raise DumpError(
                f"[dump] feed: {slots!r} names slots that are not there, expected slots 0..{size - 1}, as in [0, 1, 2, 3]; "
                f"{NO_LAST} in the last place says that the dump holds no last state",
                "settings",
            )
        self._feed = Feed(tuple(slots[:-1]), None if slots[-1] == NO_LAST else slots[-1])

    def choose(self, max_samples: int | None, seed: int = 0) -> list[str]:
        """A seeded choice over all shards, in the dump's order; None = all."""
        if max_samples is None or max_samples >= len(self.keys):
            return list(self.keys)
        if max_samples < 1:
            raise ValueError(f"max_samples is {max_samples}, expected at least 1, or None for all {len(self.keys)} samples")
        return [self.keys[i] for i in sorted(random.Random(seed).sample(range(len(self.keys)), max_samples))]

    def load(self, key: str) -> Sample:
        """One sample whose parts fit each other and the rest of the dump. Raises DumpError."""
        sample = self.read(key)
        check_usable(sample, len(self.slot_names) or None, self.hidden_size)
        return sample

    def read(self, key: str) -> Sample:
        """One sample as its files hold it, for the health checks: lengths and widths may differ. Raises DumpError."""
        return self.reader.load(self.root, key)

    def samples(self, max_samples: int | None = 32, seed: int = 0) -> Iterator[Sample]:
        """The chosen samples one by one. What cannot be read is left out and noted in `skipped`; DumpError when nothing can."""
        chosen = self.choose(max_samples, seed)
        for key in progress(chosen, "reading the dump", unit="samples"):
            try:
                sample = self.load(key)
            except DumpError as error:
                self.skipped[key] = str(error)
            else:
                yield sample
        if all(key in self.skipped for key in chosen):
            raise DumpError(f"{self.path}: none of {len(chosen)} samples could be read. The first: {self.skipped[chosen[0]]}")

    def file_bytes(self, key: str) -> int:
        """Bytes on disk of a sample's files."""
        return sum(path.stat().st_size for path in self.reader.paths(self.root, key) if path.exists())


def open_dump(path: str | os.PathLike, format: str | None = None, files: dict[str, Any] | None = None, allow_pickle: bool = False) -> Dump:
    """Find a dump's format by its content and open it.

    `format` forces one of `FORMATS`; `files` names the files of the raw layout; `allow_pickle` lets torch run code from the
    files, for dumps that hold more than tensors and that you trust. Raises DumpError that says what was looked for and what was found.
    """
    listing = list_dump(path)
    candidates = formats(format, files, allow_pickle)
    tried, refused = try_formats(listing, candidates)
    best = max(tried, key=lambda t: t.likely)  # the first of equals
    if best.probes or (format is not None and best.keys):
        return Dump(listing, best, [note for t in tried if (note := t.beside(best))], refused)
    raise DumpError(
        f"{listing.path}: no known dump format fits. Found {listing.found()}.{refused}\nKnown formats:\n"
        + "\n".join(dict.fromkeys(f"- {c.name}: {c.looks_for}" for c in candidates))
        + "\nCheck the path. In a case.toml `[dump] format` forces a format, and a section `[dump.files]` names the files of the raw layout.",
        "unknown format",
    )
