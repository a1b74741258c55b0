"""Which class the right token of each row and step is of: by its text where a tokenizer is at hand, by ids and places alone without.

Kinds share all tokens out among them; the other classes overlap. What is called code stands between two lines of three backticks.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglelab.acceptance import FEW_SAMPLES
from eaglelab.lost.rows import Rows, answer_starts

if TYPE_CHECKING:
    from eaglelab.dumps import Sample

RUN = 4
"""Tokens of a run that the text has already had: its last one can be copied. Three tokens to go by are what prompt lookup uses."""
FIRST = 4
"""Drafted tokens that are the answer's first ones. Its very first comes from the prefill and is never drafted."""
AFTER = 4
"""Tokens behind a marker that stand right after it."""
FENCE = "```"

SPACE, DIGITS, MARKS, CJK, SCRIPT, WORD, REST, SPECIAL, PART = range(9)
KINDS = (
    "white space, line breaks",
    "digits",
    "punctuation",
    "CJK",
    "other scripts",
    "start of a word",
    "inside a word",
    "special tokens",
    "parts of a character",
)
CODE = {SPACE: "code: indentation, line breaks", MARKS: "code: brackets, operators", WORD: "code: names", REST: "code: names"}
OUTSIDE = "outside the draft vocabulary"
FIRST_DRAFTED = "the answer's token 2"
"""The first that an engine drafts."""
IDEOGRAPHS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")


@dataclass(frozen=True)
class TokenClass:
    """One class over all rows and steps."""

    name: str
    group: str
    """`kind` (these share all tokens out), `place` or `token`."""
    member: np.ndarray
    """[K, R] bool: the right token of row t at step k is one."""


def token_classes(rows: Rows, samples: Sequence[Sample], tokenizer: Any | None = None) -> list[TokenClass]:
    """The classes that have a member, kinds first (with a tokenizer). samples: those of the rows."""
    by_ids = [
        TokenClass(OUTSIDE, "token", rows.outside & rows.counted),
        TokenClass("seen in no other sample", "token", _rare(rows, samples)),
        TokenClass(
            f"ends a run of {RUN} that was there before", "place", _placed(rows, [_repeated(rows, s, i) for i, s in enumerate(samples)])
        ),
        *_first(rows, samples),
    ]
    named = [] if tokenizer is None else _by_text(rows, samples, tokenizer)
    return [c for c in (*named, *by_ids) if c.member.any()]


def _placed(rows: Rows, tables: Sequence[np.ndarray]) -> np.ndarray:
    """[K, R]: for each row and step what a table [T] of its sample holds at the position after which the right token is asked for."""
    if not len(rows.row):
        return np.zeros_like(rows.counted)
    starts = np.cumsum([0, *(len(t) for t in tables)])
    last = np.array([len(t) - 1 for t in tables])
    flat, source = np.concatenate(tables), np.minimum(rows.source, last[rows.sample])
    return np.where(rows.counted, flat[starts[rows.sample] + source], np.zeros(1, flat.dtype))


def _rare(rows: Rows, samples: Sequence[Sample]) -> np.ndarray:
    """[K, R]: the right token stands in no other sample than its own. Of too few samples this says nothing."""
    if len(samples) < FEW_SAMPLES:
        return np.zeros_like(rows.counted)
    own = [np.unique(s.token_ids.numpy()) for s in samples]
    ids, count = np.unique(np.concatenate(own), return_counts=True)
    place = np.searchsorted(ids, rows.wanted).clip(max=len(ids) - 1)
    elsewhere = np.where(ids[place] == rows.wanted, count[place], 0)  # [K, R] samples that hold it
    for i, mine in enumerate(own):
        here = rows.sample == i
        elsewhere[:, here] -= np.isin(rows.wanted[:, here], mine)
    return rows.counted & (elsewhere == 0)


def _repeated(rows: Rows, sample: Sample, place: int) -> np.ndarray:
    """[T] bool: the right token after position p ends a run of `RUN` tokens that the sample has had before."""
    ids, wanted = sample.token_ids.tolist(), np.full(len(sample.token_ids), -1)
    here = (rows.sample == place) & rows.counted
    for k in range(rows.steps):
        wanted[rows.source[k, here[k]]] = rows.wanted[k, here[k]]
    seen: dict[tuple[int, ...], set[int]] = {}
    found = np.zeros(len(ids), dtype=bool)
    for p in range(RUN - 2, len(ids)):
        if p >= RUN - 1:
            seen.setdefault(tuple(ids[p - RUN + 1 : p]), set()).add(ids[p])
        found[p] = wanted[p] in seen.get(tuple(ids[p - RUN + 2 : p + 1]), ())
    return found


def _first(rows: Rows, samples: Sequence[Sample]) -> list[TokenClass]:
    if any(s.loss_mask is None for s in samples):
        return []
    behind = [np.arange(len(s.token_ids)) + 1 - answer_starts(s, np.arange(len(s.token_ids)) - 1) for s in samples]
    after = _placed(rows, behind)  # [K, R] tokens of the answer before the right one
    last = f"the answer's tokens 3 to {FIRST + 1}"
    return [
        TokenClass(FIRST_DRAFTED, "place", rows.counted & (after == 1)),
        TokenClass(last, "place", rows.counted & (after > 1) & (after <= FIRST)),
    ]


# -- by text ------------------------------------------------------------------------------------------------------------------------


def _by_text(rows: Rows, samples: Sequence[Sample], tokenizer: Any) -> list[TokenClass]:
    texts = [s.token_ids.numpy() for s in samples]
    ids = np.unique(np.concatenate([*texts, rows.wanted[rows.counted], rows.drafted[rows.counted]])).tolist()
    markers = set(tokenizer.get_added_vocab().values())
    said = {i: raw_text(tokenizer, i) for i in ids}
    look = np.zeros(max(ids) + 1, dtype=int)
    look[ids] = [SPECIAL if i in markers else kind_of(said[i]) for i in ids]
    open_word = np.zeros(max(ids) + 1, dtype=bool)
    open_word[ids] = [i not in markers and said[i][-1:].isalnum() for i in ids]
    kind = np.where(rows.counted, look[rows.wanted.clip(min=0)], -1)  # [K, R]
    begins = np.zeros(max(ids) + 1, dtype=bool)
    begins[ids] = [said[i][:1].isspace() for i in ids]
    inside = _placed(rows, [open_word[t] for t in texts]) & ~begins[rows.wanted.clip(min=0)]
    kind[(kind == WORD) & inside] = REST
    code = _placed(rows, [in_code([said[i] for i in t.tolist()]) for t in texts])
    names = np.array([KINDS, [CODE.get(k, name) for k, name in enumerate(KINDS)]])[code.astype(int), kind]  # [K, R]
    kinds = dict.fromkeys((*KINDS, *CODE.values()))
    marked = [np.isin(t, list(markers)) & (np.ones(len(t)) if s.loss_mask is None else s.loss_mask.numpy()).astype(bool)
              for t, s in zip(texts, samples, strict=True)]  # fmt: skip
    close = _placed(rows, [np.convolve(m, np.ones(AFTER))[: len(m)] > 0 for m in marked])
    return [
        *(TokenClass(name, "kind", rows.counted & (names == name)) for name in kinds),
        TokenClass(f"within {AFTER} tokens after a marker", "place", rows.counted & close),
    ]


def kind_of(text: str) -> int:
    """The kind of a token by its text alone; words are told apart by what stands before them."""
    body = text.strip()
    if not text or "\ufffd" in text:
        return PART
    if not body:
        return SPACE
    if any(c.isdigit() for c in body) and not any(c.isalpha() for c in body):
        return DIGITS
    letters = [unicodedata.name(c, "") for c in body if c.isalpha()]
    if not letters:
        return CJK if unicodedata.name(body[0], "").startswith(IDEOGRAPHS) else MARKS
    if any(name.startswith(IDEOGRAPHS) for name in letters):
        return CJK
    return WORD if any(name.startswith("LATIN") for name in letters) else SCRIPT


def raw_text(tokenizer: Any, token: int) -> str:
    """What a token says within a text, its leading space kept (decoders of a single token drop it); "" for an id without text."""
    try:
        text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        stored = tokenizer.convert_ids_to_tokens(token) or ""
    except Exception:  # out of range; tokenizers raise OverflowError, IndexError, KeyError or their own
        return ""
    return f" {text}" if stored.startswith("\u2581") and not text.startswith(" ") else text


def in_code(said: Sequence[str]) -> np.ndarray:
    """[T] bool: whether what follows token p stands in a fenced block."""
    text = "".join(said)
    ends, at, marks = np.cumsum([len(t) for t in said]), -len(FENCE), []
    while (at := text.find(FENCE, at + len(FENCE))) >= 0:
        marks.append(at + len(FENCE))
    return np.searchsorted(marks, ends, side="right") % 2 == 1
