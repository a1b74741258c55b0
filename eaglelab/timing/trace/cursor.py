"""JSON values one after the other out of blocks of bytes: only the value at hand is in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

LARGEST = 64 << 20
"""Bytes of one value. An event has a few hundred; the largest value beside the events, a description of all process groups, a few MB."""
WINDOW = 1 << 14
DECODER = json.JSONDecoder(strict=False)  # some producers leave tabs and line ends in names as they are
SPACE = re.compile(rb"[ \t\r\n]*")
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
AFTER_SCALAR = re.compile(rb"[,\]}]")
BARE = re.compile(rb"([:,\[]\s*)[+-]?(?:inf|nan)(?:inity)?(?:\(\w*\))?(?=\s*[,}\]])", re.IGNORECASE)
"""A C++ stream's own spelling of what is no number, as older Kineto wrote it (pytorch/kineto#105)."""


class CutOff(Exception):
    """The file ends in the middle of a value."""


class TooLarge(Exception):
    """A value of more than `LARGEST` bytes."""


class BadValue(Exception):
    """What is no JSON. `end`: where it seems to end in the cursor's `data`, by its brackets."""

    end: int | None = None


class Cursor:
    """A place in a stream of bytes. `data[at:]` is what was read and not yet stepped over."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self.data, self.at = b"", 0
        self._before = 0  # bytes of the file before `data`

    @property
    def position(self) -> int:
        """Bytes from the start of the (unpacked) file."""
        return self._before + self.at

    def more(self) -> bool:
        """Read on, at least as much as is held, so that a long value is looked through a few times only. False at the end of the file."""
        parts, held, got = [self.data[self.at :]], len(self.data) - self.at, 0
        while got <= held and (block := next(self._blocks, None)):
            parts.append(block)
            got += len(block)
        if got:
            self._before += self.at
            self.data, self.at = b"".join(parts), 0
        return got > 0

    def peek(self) -> int | None:
        """The next byte that is no white space, which the cursor stands at then; None at the end of the file."""
        while True:
            self.at = SPACE.match(self.data, self.at).end()
            if self.at < len(self.data):
                return self.data[self.at]
            if not self.more():
                return None

    def value(self) -> tuple[Any, bytes]:
        """(the value at the cursor, its bytes); the cursor is behind it then. Raises CutOff, TooLarge, BadValue with the cursor unmoved."""
        window = WINDOW
        while True:
            text = self.data[self.at : self.at + window].decode("latin-1")  # a character a byte: JSON's own signs are all ASCII
            whole = self.at + window >= len(self.data)
            try:
                value, length = DECODER.raw_decode(text)
            except json.JSONDecodeError as error:
                wrong = _wrong(error, text)
            except (ValueError, RecursionError):  # a number of thousands of digits; nested too deep
                wrong = True
            else:
                if length < len(text) or text[-1] in '}]"' or (whole and not self.more()):  # else a number may go on
                    raw = self.data[self.at : self.at + length]
                    value = value if raw.isascii() else decoded(raw)
                    self.at += length
                    return value, raw
                wrong = False
            if wrong:
                return self._mended()
            if not whole:
                window *= 8
            elif len(self.data) - self.at > LARGEST:
                raise TooLarge
            elif len(text) == len(self.data) - self.at and not self.more():
                if balanced(self.data, self.at, len(self.data)) is None:
                    raise CutOff
                return self._mended()

    def _mended(self) -> tuple[Any, bytes]:
        end = balanced(self.data, self.at, self.at + WINDOW)
        raw = self.data[self.at : end] if end else b""
        try:
            value = decoded(raw)
        except BadValue as error:
            error.end = end
            raise
        self.at = end
        return value, raw


def _wrong(error: json.JSONDecodeError, text: str) -> bool:
    """Whether a value is no JSON; else only its end is missing."""
    return error.pos < len(text.rstrip()) - 16 and not error.msg.startswith("Unterminated string")


def decoded(raw: bytes) -> Any:
    """A value from its bytes; what is no UTF-8 in it becomes U+FFFD, bare `inf` and `nan` become NaN. Raises BadValue."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(BARE.sub(rb"\1NaN", raw).decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise BadValue(str(error)[:100]) from None


def balanced(data: bytes, at: int, last: int) -> int | None:
    """Where the value at `at` ends by its brackets, strings minded; None where it does not end before `last`."""
    if data[at : at + 1] not in (b"{", b"["):
        found = AFTER_SCALAR.search(data, at + 1, last)
        return found.start() if found else None
    depth = 0
    for token in TOKEN.finditer(data, at, last):
        sign = data[token.start()]
        if sign in b"{[":
            depth += 1
        elif sign in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return None
