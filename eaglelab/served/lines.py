"""Lines of a log of any size, as they were printed: unpacked, without colours, and with a word on where one was cut off."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

LONGEST = 2**16
"""Bytes of a line that are looked at. The longest of use, SGLang's `server_args=`, has about 25 kB."""
BLOCK = 2**20
ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
WRAPPED = ("log", "message", "msg", "MESSAGE")
"""Keys of the text in a line that docker, journald or a JSON logger has packed into an object."""


class LogError(ValueError):
    """A log that cannot be read; the message says which and why."""


class Line(NamedTuple):
    number: int
    """1-based."""
    text: str
    whole: bool
    """False: cut off at its end (the file ends, a crash left zeros, or it is longer than `LONGEST`); its last number may be half of one."""


class LineReader:
    """Iterate over it. What the file did wrong stands in `cut`, `long` (counts of lines) and `broken` (a sentence or None) afterwards."""

    def __init__(self, path: str | Path, longest: int = LONGEST) -> None:
        self.path, self.longest = Path(path), longest
        self.lines = self.bytes = self.cut = self.long = 0
        self.broken: str | None = None

    def __iter__(self) -> Iterator[Line]:
        """Raises LogError for what is no file, or is in UTF-16."""
        if not self.path.is_file():
            raise LogError(f"{self.path.name}: expected a server's log, got {'a folder' if self.path.is_dir() else 'nothing there'}")
        try:
            with self._open() as file:
                yield from self._split(file)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.broken = f"{self.path.name} is a gzip file that ends early or is damaged: read up to there"
        except OSError as error:
            raise LogError(f"{self.path.name} cannot be read: {error.strerror or error}") from None

    def _open(self) -> BufferedReader | gzip.GzipFile:
        with self.path.open("rb") as file:
            head = file.read(4)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise LogError(
                f"{self.path.name} is UTF-16 (PowerShell writes it so), expected UTF-8: `iconv -f UTF-16 -t UTF-8 {self.path.name}` turns it into that"
            )
        return gzip.open(self.path, "rb") if head[:2] == b"\x1f\x8b" else self.path.open("rb")

    def _split(self, file: BufferedReader | gzip.GzipFile) -> Iterator[Line]:
        rest = b""
        dropping = False  # inside a line that was longer than that
        while True:
            try:
                block = file.read1(BLOCK)  # of a gzip file that breaks off, read() would lose the whole block
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self.broken = f"{self.path.name} is a gzip file that ends early or is damaged: read up to there"
                block = b""
            if not block:
                break
            self.bytes += len(block)
            held = b"\r" if block.endswith(b"\r") else b""  # perhaps the first half of \r\n
            pieces = re.split(rb"\r\n|\n|\r", rest + block[: len(block) - len(held)])
            rest = pieces.pop() + held
            for piece in pieces:
                if dropping:
                    dropping = False
                else:
                    yield from self._lines(piece, True)
            if dropping:
                rest = held
            elif len(rest) > self.longest:
                rest = rest.lstrip(b"\0")  # what truncating a log in use leaves at its head
                if len(rest) > self.longest:
                    yield from self._lines(rest, False)
                    rest, dropping = held, True
        if rest.strip() and not dropping:
            yield from self._lines(rest.rstrip(b"\r"), rest.endswith(b"\r"))

    def _lines(self, piece: bytes, whole: bool) -> Iterator[Line]:
        self.lines += 1
        if b"\0" in piece:
            *cut, piece = re.split(rb"\0+", piece)
            for part in filter(None, cut):
                self.cut += 1
                yield self._line(part, False)
        if len(piece) > self.longest:
            self.long += 1
            piece, whole = piece[: self.longest], False
        elif not whole:
            self.cut += 1
        yield self._line(piece, whole)

    def _line(self, piece: bytes, whole: bool) -> Line:
        if b"\x1b" in piece:
            piece = ANSI.sub(b"", piece)
        text = piece[: self.longest].decode("utf-8", "replace")
        if whole and text.startswith("{") and text.endswith("}"):
            text = _unwrapped(text)
        return Line(self.lines, text, whole)


def _unwrapped(text: str) -> str:
    """`{"log": "…\\n", "stream": "stderr"}`: the text in it; any other object as it is."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return text
    inner = next((entry[key] for key in WRAPPED if isinstance(entry.get(key), str)), None)
    return text if inner is None else inner.rstrip("\r\n")
