"""Texts, tables and JSON without what must not be shown. The same text always becomes the same, and what is redacted stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from eaglelab.redact.known import Known
from eaglelab.redact.marks import MARK, mark
from eaglelab.redact.names import Names
from eaglelab.redact.patterns import by_look
from eaglelab.redact.vocabulary import LETTERS, RUN, SHORT, WORD, Vocabulary

TOKEN_IDS = re.compile(r"(?i)(?:.*[_ ])?token[_ ](?:ids?|index)|(?:right |drafted )?token|input_ids|bos|eos")
"""Names of columns and keys whose whole numbers are token ids. `tokens` counts them, `id` and `ids` are layers."""
STATES = re.compile(r"v?\d+")
"""Names of columns that hold values of hidden states, in a table that names tokens too."""
SAMPLES = re.compile(r"(?i)sample|key|captured|dump|other|request")
"""Names of columns and keys whose texts are sample keys."""
SPLIT_TEXT = re.compile(rf"{mark('text')}(?:(?:[^\w‹›]+\w+){{0,3}}[^\w‹›]+{mark('text')})+")
"""What is left of a sentence between two parts of it that were recognised."""
CHUNK = re.compile(r"\w+(?:[-.@/\\+~&'’]+\w+)*")
"""What is kept or removed as a whole: a word, or a name with its parts."""
MIXED = re.compile(
    r"(?<![^\W_])(?!e[45]m[23])(?:[^\W\d_]{1,2}\d){2,}[^\W\d_]{1,2}(?![^\W_])|(?<![^\W_])(?:[^\W\d_]\d+){3,}(?![^\W_])|(?:\d+[^\W\d_]+){3,}|(?:[^\W\d_]+\d+){4,}|(?=\w*\d)(?=\w*[^\W\d_])(?=\w*[a-z])(?=\w*[A-Z])[^\W_]{16,}|(?=\w*\d)[0-9a-f]{12,}|(?<![\d.])\d{9,}"
)
"""Letters and digits in turn, as in keys and hashes, and letters written as digits."""
NUMERIC = re.compile(r"\d+\.\d+(?:[eE][-+]?\d+)?|\d+(?:x\d+)+")
"""A decimal, and a shape as `1x8x256x64`."""
SPELT = re.compile(r"\b[A-Za-z](?:[ .\u00b7_-][A-Za-z]){3,}\b")
"""A word letter by letter."""
INVISIBLE = re.compile(r"[\u00ad\u034f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
"""Characters that split a word and are not seen."""
SAID = re.compile(r"(?i)\bsample (?:key )?(\d+)\b")
"""A sample whose key is made of digits, in a sentence."""


class Redactor:
    """For one case. `keep` are texts that may be shown as they are: versions, the device."""

    def __init__(self, known: Known, vocabulary: Vocabulary) -> None:
        self.known, self.vocabulary = known, vocabulary
        self.names, self.phrases = Names(known.names), frozenset(known.phrases)
        self.kept: set[str] = set()
        self.text = lru_cache(maxsize=20_000)(self._text)

    def keep(self, *texts: str | None) -> None:
        """Texts that eaglelab itself found out about the machine, and that name nobody."""
        self.kept.update(part for text in texts if text for part in (text, *CHUNK.findall(text)))

    def _text(self, text: str) -> str:
        text = SAID.sub(lambda m: self.known.samples.get(m[1], m[0]), INVISIBLE.sub("", text))
        for step in (self._phrases, self.names.sub, lambda part: by_look(part, self._own), self._words):
            text = _between_marks(text, step)
        text = SPLIT_TEXT.sub(mark("text"), text)
        return re.sub(rf"{mark('word')}(?:[\s,]+{mark('word')})+", mark("word"), text)

    def _own(self, name: str) -> bool:
        return name in self.kept or self.vocabulary.holds(name)

    def _phrases(self, text: str) -> str:
        """Runs of words that stand in the case's texts."""
        if not self.phrases:
            return text
        words = list(WORD.finditer(text))
        said = [w[0].lower() for w in words]
        hit = [i for i in range(len(words) - RUN + 1) if tuple(said[i : i + RUN]) in self.phrases]
        for i in reversed(hit):
            text = text[: words[i].start()] + mark("text") + text[_end_of(words, i, text) :]
        return text

    def _words(self, text: str) -> str:
        text = SPELT.sub(lambda m: m[0] if self._own(m[0]) else mark("word"), text)
        return _between_marks(text, lambda part: CHUNK.sub(lambda m: m[0] if self._harmless(m[0]) else mark("word"), part))

    def _harmless(self, chunk: str) -> bool:
        if chunk in self.kept or chunk.lower() in self.vocabulary.names or NUMERIC.fullmatch(chunk):
            return True
        letters = LETTERS.findall(chunk)
        if len(chunk) == SHORT == len(letters[0] if letters else "") or (len(letters) > 3 and max(map(len, letters)) <= SHORT):
            return all(part.lower() in self.vocabulary.words for part in letters) and len(letters) == 1
        return not MIXED.search(chunk) and all(map(self.vocabulary.knows, letters))

    def sample(self, key: str) -> str:
        """A sample's key as `‹sample 3›`."""
        return self.known.samples.get(key) or (key if key.isdigit() and key not in self.known.samples else self.text(key))

    def value(self, value: Any, name: str = "") -> Any:
        """JSON without what must not be shown; `name` is its key or column."""
        if isinstance(value, Mapping):
            return {self.text(self.known.samples.get(str(k), str(k))): self.value(v, str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            inner = "token_ids" if name == "tokens" and all(type(v) is int for v in value) else name
            return [self.value(v, inner) for v in value]
        if isinstance(value, str) and not (TOKEN_IDS.fullmatch(name) and _is_id(value)):
            return self.sample(value) if SAMPLES.fullmatch(name) and value in self.known.samples else self.text(value)
        return mark("token id") if TOKEN_IDS.fullmatch(name) and _is_id(value) else value

    def rows(self, columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """A table's cells, by the names of their columns; a table of names and values by the names in its rows."""
        if list(columns) == ["name", "value"]:
            return [[row[0], self.value(row[1], str(row[0]).rpartition(".")[2])] for row in rows]
        of_tokens = any(TOKEN_IDS.fullmatch(str(c)) for c in columns)
        states = [of_tokens and STATES.fullmatch(str(c)) is not None for c in columns]
        return [
            [
                mark("state") if state and isinstance(v, float) else self.value(v, str(c))
                for c, v, state in zip(columns, row, states, strict=True)
            ]
            for row in rows
        ]


def _is_id(value: Any) -> bool:
    return not isinstance(value, (bool, float)) and str(value).removeprefix("-").isdigit()


def _end_of(words: list[re.Match[str]], i: int, text: str) -> int:
    """Where the run of words from i on ends in a text whose later runs are marks already."""
    end = words[min(i + RUN, len(words)) - 1].end()
    overlapped = text.find(mark("text"), words[i].start(), end)
    return end if overlapped < 0 else overlapped + len(mark("text"))


def _between_marks(text: str, change: Callable[[str], str]) -> str:
    """`text` changed, but for the marks in it."""

    def pieces() -> Iterator[str]:
        place = 0
        for m in MARK.finditer(text):
            yield change(text[place : m.start()])
            yield m[0]
            place = m.end()
        yield change(text[place:])

    return "".join(pieces())
