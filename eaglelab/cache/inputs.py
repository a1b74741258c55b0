"""The content of a case's inputs as one digest, cheap enough to be taken whenever a notebook opens a case.

An input (a file, or a folder with all files in it) of up to `WHOLE` bytes is read whole: it counts by its content alone, wherever it lies and
whenever it was written. A larger one, a dump or a checkpoint, cannot be read for this. Each of its files then counts by its name, size, and
both of its times in nanoseconds (the content's, and the inode's, which no program can set back: also a write that restores the former is
seen); where the files are few, also by its first, middle and last bytes (small ones whole), against file systems whose clocks are coarse. No
place on the disk is part of it, so that a folder may be moved; a large one that is copied is another one, since its times are.

Where a file was written just before, another write may leave both times as they are: `settled` says whether that can be.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

WHOLE = 32 * 2**20
"""Bytes of one input up to which all of it is read."""
SMALL = 2**20
"""Bytes of one file of a large input up to which all of it is read."""
PIECE = 64 * 2**10
"""Bytes of each of the three pieces of a large file that are read."""
FEW = 64
"""Files of a large input up to which pieces of each are read: a network disk opens some hundred files a second."""
COARSE = 2.0
"""Seconds that two writes with the same time may be apart: the coarsest clock of a file system (FAT)."""

Entry = tuple[str, str, int, int, int]
"""(name inside of the input, path, bytes, time of the content, time of the inode), times in nanoseconds."""


class Inputs:
    """Named inputs as they were when this was made."""

    def __init__(self, named: Mapping[str, Path]) -> None:
        self.named, taken = dict(named), time.time()
        self.stamp, entries = self._look()
        self.written = {name: max((changed for *_, changed in mine), default=0) / 1e9 for name, mine in entries.items()}
        """Input -> when a file of it was last written, seconds since 1970."""
        self.settled = max(self.written.values(), default=0.0) < taken - COARSE
        self.digest = _digest(part for name, mine in entries.items() for part in (name, of_files(mine)))
        """Of everything that counts, 64 hex digits."""

    def changed(self) -> bool:
        """Whether a file has come, gone, or been written since."""
        return self._look()[0] != self.stamp

    def _look(self) -> tuple[str, dict[str, list[Entry]]]:
        """(digest of all names, sizes and times, the files of each input)."""
        entries = {name: sorted(files(path)) for name, path in self.named.items()}
        return _digest(f"{name}\0{_times(mine)}" for name, mine in entries.items()), entries


def files(path: Path) -> Iterator[Entry]:
    """All regular files of an input, those of hidden folders and of Python's own caches left out; links are followed, but into no folder twice: it
    counts by where it was met first. What is not there, or cannot be looked at, counts by its name."""
    try:
        found = path.stat()
    except OSError as error:
        yield path.name, os.fspath(path), -1, error.errno or 0, 0
        return
    if not stat.S_ISDIR(found.st_mode):
        yield _entry(path.name, os.fspath(path), found)
        return
    stack, entered = [("", os.fspath(path))], {(found.st_dev, found.st_ino): ""}
    while stack:
        prefix, folder = stack.pop()
        try:
            with os.scandir(folder) as listing:
                inside = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            yield prefix, folder, -1, error.errno or 0, 0
            continue
        for entry in inside:
            name = prefix + entry.name
            try:
                found = entry.stat()
            except OSError as error:  # a link that leads nowhere
                yield name, entry.path, -1, error.errno or 0, 0
                continue
            if stat.S_ISREG(found.st_mode):
                yield _entry(name, entry.path, found)
            elif stat.S_ISDIR(found.st_mode) and not entry.name.startswith(".") and entry.name != "__pycache__":
                first = entered.setdefault((found.st_dev, found.st_ino), f"{name}/")
                if first == f"{name}/":
                    stack.append((first, entry.path))
                else:
                    yield f"{name}/ is {first}", entry.path, -1, 0, 0


def of_files(entries: list[Entry]) -> str:
    """What counts of one input's files."""
    whole = sum(max(0, size) for _, _, size, _, _ in entries) <= WHOLE
    if whole:
        return _digest(f"{name}\0{_content(path, size, times, True)}" for name, path, size, *times in entries)
    if len(entries) > FEW:
        return _times(entries)
    return _digest([_times(entries), *(_content(path, size, times, size <= SMALL) for _, path, size, *times in entries)])


_contents: dict[tuple, str] = {}
"""Digests that this process has taken, by path, size, times and whether the file was read whole."""


def _content(path: str, size: int, times: list[int], whole: bool) -> str:
    """Digest of a file's bytes, or of its three pieces."""
    key = (path, size, *times, whole)
    if size < 0:
        return f"absent: {times}"
    if key in _contents:
        return _contents[key]
    now = time.time()
    try:
        with open(path, "rb") as file:
            if whole:
                found = (hashlib.sha256(file.read()) if size <= SMALL else hashlib.file_digest(file, "sha256")).hexdigest()
            else:
                places = (0, max(0, size // 2 - PIECE // 2), max(0, size - PIECE))
                found = hashlib.sha256(b"".join(os.pread(file.fileno(), PIECE, at) for at in places)).hexdigest()
    except OSError as error:
        return f"cannot be read: {error.errno}"
    if times[-1] / 1e9 < now - COARSE:
        _contents[key] = found
    return found


def _times(entries: list[Entry]) -> str:
    return _digest(f"{name}\0{size}\0{written}\0{changed}" for name, _, size, written, changed in entries)


def _entry(name: str, path: str, found: os.stat_result) -> Entry:
    return name, path, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
