"""A trace's bytes, block by block: plain or gzip, told by its first bytes, never whole in memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from eaglelab.timing.errors import TimingError
from eaglelab.timing.trace.looks import EXPECTED, looks_like

BLOCK = 1 << 20
"""Bytes of a block: what a core's cache holds; larger ones were slower."""
PACKED = 1 << 16
HEAD = 512
"""Bytes by which a file is told."""
GZIP = b"\x1f\x8b"


class Blocks:
    """Iterate over it once. `broken` says afterwards what was wrong with the packing, None where nothing was."""

    def __init__(self, path: Path, size: int = BLOCK) -> None:
        self.path, self.size = path, size
        self.broken: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Blocks of at least one byte. Raises TimingError for what cannot be opened, and for what is no JSON by its first bytes."""
        self._check_place()
        try:
            with self.path.open("rb") as file:
                packed = file.read(2) == GZIP
                file.seek(0)
                blocks = _ahead(self._unpacked(file)) if packed else iter(lambda: file.read(self.size), b"")
                first = b""
                while len(first) < HEAD and (block := next(blocks, b"")):
                    first += block
                self._check_head(first, packed)
                if first:
                    yield first
                yield from blocks
        except OSError as error:
            raise TimingError(f"{self.path}: cannot be read: {error.strerror or error}. Check the path and its permissions.") from error

    def _check_place(self) -> None:
        if self.path.is_file():
            return
        if self.path.is_dir():
            raise TimingError(f"{self.path}: a folder, expected one trace file. Name the files in it.")
        if self.path.exists():  # a pipe would be waited on for ever
            raise TimingError(f"{self.path}: a pipe, socket or device, expected a file. Write the trace to a file first.")
        raise TimingError(f"{self.path}: there is no such file. {EXPECTED}")

    def _check_head(self, head: bytes, packed: bool) -> None:
        inside = "a gzip that holds " if packed else ""
        if not head and self.broken:
            raise TimingError(f"{self.path}: {self.broken} before anything could be read. Copy it again, or record it again.")
        if what := looks_like(head, self.path.name):
            raise TimingError(f"{self.path}: {inside}{what}. {EXPECTED}")

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        """What a gzip of one or more members holds, up to where it breaks."""
        unpack, parts, held = zlib.decompressobj(wbits=31), [], 0
        packed = file.read(PACKED)
        while packed:
            before = unpack.copy()
            try:
                part = unpack.decompress(packed, self.size)
            except zlib.error as error:
                wrong = "data check" in str(error) or "length check" in str(error)  # found at the end only
                self.broken = "the gzip is damaged" + (", its check sum is another one: what was read may be wrong" if wrong else "")
                parts.append(_salvaged(before, packed))
                break
            parts.append(part)
            held += len(part)
            if held >= self.size:
                yield b"".join(parts)
                parts, held = [], 0
            if unpack.eof:
                packed = (unpack.unused_data or file.read(PACKED)).lstrip(b"\0")  # writers of blocks pad the last one
                if len(packed) == 1:
                    packed += file.read(1)
                if packed and not packed.startswith(GZIP):
                    self.broken = "something else follows the end of the gzip"
                    break
                if packed:
                    unpack = zlib.decompressobj(wbits=31)
            else:  # a full block may leave output inside: asked for with the next bytes, and once more at the end
                packed = unpack.unconsumed_tail or file.read(PACKED)
        if not unpack.eof and not self.broken:
            parts.append(unpack.flush())
            self.broken = None if unpack.eof else "the gzip ends early"
        if rest := b"".join(parts):
            yield rest


def _salvaged(unpack: zlib._Decompress, packed: bytes) -> bytes:
    """What comes out before the place of the damage: `packed` fed a few bytes at a time."""
    parts = []
    try:
        for i in range(0, len(packed), 16):
            parts.append(unpack.decompress(packed[i : i + 16]))
    except zlib.error:
        pass
    return b"".join(parts)


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, the next one unpacked by another thread meanwhile (zlib lets go of the interpreter's lock)."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, blocks, b"")
        while block := coming.result():
            coming = pool.submit(next, blocks, b"")
            yield block
