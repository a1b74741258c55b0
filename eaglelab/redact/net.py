"""The second look: every file of a redacted run is searched for what is known of the case. What is found ends the run."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from eaglelab.redact.known import Known
from eaglelab.redact.marks import MARK
from eaglelab.redact.names import Names
from eaglelab.redact.patterns import SECRETS
from eaglelab.redact.vocabulary import Vocabulary, runs

PICTURE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)|(?<=\")(iVBORw0KGgo[A-Za-z0-9+/=\\n]+)(?=\")")
INVISIBLE = re.compile(r"<wbr>|</?(?:span|code|strong|em|b|i|a)\b[^>]*>|[\u200b\u00ad]")
"""What stands inside of a sentence without ending it."""
ESCAPED = re.compile(r"\\([^\w\s])")
"""As Markdown and JSON escape punctuation."""
TAG = re.compile(r"<[^>]*>")
STYLE = re.compile(r"<style\b.*?</style>", re.DOTALL)


class LeakError(ValueError):
    """A run that was to be redacted holds something that it must not hold. The message says where, never what."""


class Net:
    """What must not occur in a run."""

    def __init__(self, known: Known, vocabulary: Vocabulary) -> None:
        hidden = {n: m for n, m in known.names.items() if not vocabulary.holds(n) and not n.isdigit()}  # a number may be a size
        self.names, self.phrases = Names(hidden), frozenset(known.phrases)

    def search(self, folder: Path) -> None:
        """Raises LeakError where a file, or a file's name, below `folder` holds something of the case."""
        for path in sorted(folder.rglob("*")):
            where = path.name if not list(self.names.found(path.name)) else "a file's name"
            kinds = sorted({kind for text, sentence in self._texts(path) for kind in self._kinds(text, sentence)})
            if kinds:
                raise LeakError(
                    f"the redacted run holds {' and '.join(kinds)} of this case in {where}: its files are deleted, nothing was published. "
                    "Please report the notebook and the check that shows it; without --redact the run can be read on this machine"
                )

    def _kinds(self, text: str, sentence: bool) -> Iterator[str]:
        for view in {text, INVISIBLE.sub("", unescape(text)), unquote(text), ESCAPED.sub(r"\1", text)}:
            for _, name in self.names.found(view):
                yield MARK.match(self.names.lower[name])["kind"] or "path"
            if any(s.search(view) for s in SECRETS):
                yield "secret"
            if sentence and any(run in self.phrases for run in runs(view)):
                yield "text"

    def _texts(self, path: Path) -> Iterator[tuple[str, bool]]:
        """(text, whether it is prose) of a file's name and all that it holds."""
        yield path.name, False
        if not path.is_file():
            return
        if path.suffix == ".png":
            yield from ((t, True) for t in png_texts(path.read_bytes()))
            return
        content = path.read_text(encoding="utf-8", errors="replace")
        for found in PICTURE.finditer(content):
            with suppress(ValueError):
                yield from ((t, True) for t in png_texts(base64.b64decode((found[1] or found[2]).replace("\\n", ""))))
        content = PICTURE.sub("", content)
        yield content, False
        for text in _strings(json.loads(content)) if path.suffix in (".json", ".ipynb") else [content]:
            if "<" in text:
                text = INVISIBLE.sub("", STYLE.sub("", text))
            yield from ((part, True) for part in TAG.split(text) if part.strip())
            yield from ((tag, False) for tag in TAG.findall(text))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        if value and all(isinstance(v, str) for v in value):
            yield "".join(value)  # a notebook's lines
        for inner in value:
            yield from _strings(inner)


def png_texts(png: bytes) -> Iterator[str]:
    """Texts of a PNG's metadata chunks (tEXt, zTXt, iTXt, eXIf), decompressed."""
    place = 8
    while place + 8 <= len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        body = png[place + 8 : place + 8 + size]
        if kind in (b"tEXt", b"iTXt", b"zTXt", b"eXIf"):
            yield body.decode("latin-1")
            for start in range(len(body)) if kind != b"tEXt" else ():
                with suppress(zlib.error):
                    yield zlib.decompress(body[start:]).decode("utf-8", "replace")
                    break
        place += 12 + size
