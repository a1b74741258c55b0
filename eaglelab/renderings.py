"""Two renderings of the same conversations, token by token: where do they differ first?

A dump against another dump, or against what a server's template makes of the same messages. `read_other` takes a dump, a case, or a JSONL file.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pandas as pd

from eaglelab.outside_json import too_deep
from eaglelab.text import QUESTION, first_difference, token_texts

GRAM = 4
"""Tokens in a row by which two renderings are told to be of one conversation."""
ALIKE = 0.5
"""Share of our prompt's own grams that the other must have too."""
ALL_BUT_A_FEW = 0.9
"""The same where nothing is known of the template: too few renderings, and no tokenizer."""
MAX_ROWS, MAX_LINE = 20_000, 10_000_000
"""Lines of a JSONL file, or samples of the other dump, that are read; characters of a line."""
SEEN_FIRST = 64
"""Of the other renderings, those out of which the tokens that most of them share are known."""
ENDS = "(its end)"
"""Stands for a token where a rendering ends before the answer starts."""
CONTEXT = 6
"""Tokens shown before the first difference."""


class RenderingError(ValueError):
    """A file that holds no renderings, with what is expected in it."""


@dataclass(frozen=True)
class Rendering:
    key: str
    ids: list[int]
    first_trained: int | None = None
    """The first position that the loss mask trains; None where that is unknown."""

    @classmethod
    def of(cls, sample: Any) -> Rendering:
        trained = [] if sample.loss_mask is None else sample.loss_mask.nonzero()[:1, 0].tolist()
        return cls(sample.key, sample.token_ids.tolist(), trained[0] if trained else None)


def compare_renderings(ours: Sequence[Rendering], theirs: Iterable[Rendering], tokenizer: Any | None = None) -> pd.DataFrame:
    """One row a rendering of ours: sample, other, matched, differ, position, ours, theirs, before, where.

    matched: `text` (both say the same: they share tokens in a row that are not the template's), `name` (only their keys are the same), or
    "" for none. differ: True, False (equal as far as the shorter one goes, which reaches our answer), missing without a match. ours, theirs: the two tokens at the
    first difference; where: `prompt` or `answer` by our loss mask, "" where that is unknown.
    """
    pairs = _pairs(ours, theirs, _of_the_template(tokenizer))
    return pd.DataFrame([_row(mine, *pairs.get(i, (None, "")), tokenizer) for i, mine in enumerate(ours)], columns=COLUMNS).astype(
        {"position": "Int64", "differ": "boolean"}
    )


COLUMNS = ["sample", "other", "matched", "differ", "position", "ours", "theirs", "before", "where"]


def summary(table: pd.DataFrame) -> str:
    """In a sentence or two: how many differ, and the commonest first difference."""
    matched = table[table["matched"] != ""]
    differ, named = matched[matched["differ"]], int((matched["matched"] == "name").sum())
    lost = (
        f" {named} of {len(matched)} were matched by their names alone and share little text: they may be other conversations."
        if named
        else ""
    )
    lost += f" {len(table) - len(matched)} of {len(table)} samples have no counterpart." if len(matched) < len(table) else ""
    if not len(differ):
        return f"{len(matched)} of {len(table)} samples are the same in both renderings, as far as the shorter one goes.{lost}"
    (position, ours, theirs), n = Counter(zip(differ["position"], differ["ours"], differ["theirs"], strict=True)).most_common(1)[0]
    places = Counter(w for w in differ["where"] if w)
    where = f" The first difference lies in {', '.join(f'the {w} in {k}' for w, k in places.items())}." if places else ""
    common = f"{n} of them first at token {position}: {ours!r} against {theirs!r}"
    return f"{len(differ)} of {len(matched)} samples differ, {common}.{where}{lost}"


def _row(mine: Rendering, other: Rendering | None, matched: str, tokenizer: Any | None) -> dict[str, Any]:
    row = {"sample": mine.key, "other": other.key if other else "", "matched": matched, "ours": "", "theirs": "", "before": "", "where": ""}
    if other is None:
        return row
    place = first_difference(mine.ids, other.ids)
    ended = place is not None and place == len(other.ids)
    short = ended and mine.first_trained is not None and place < mine.first_trained  # no generation prompt, most often
    if place is None or (place == min(len(mine.ids), len(other.ids)) and not short):
        return row | {"differ": False}
    join = "" if tokenizer is not None else " "
    before = join.join(token_texts(tokenizer, mine.ids[max(0, place - CONTEXT) : place]))
    ours, theirs = ("".join(token_texts(tokenizer, r.ids[place : place + 1])) or ENDS for r in (mine, other))
    where = "" if mine.first_trained is None else "prompt" if place < mine.first_trained else "answer"
    return row | {"differ": True, "position": place, "ours": ours, "theirs": theirs, "before": before, "where": where}


def _pairs(ours: Sequence[Rendering], theirs: Iterable[Rendering], template: set[tuple[int, ...]]) -> dict[int, tuple[Rendering, str]]:
    """Place in ours -> (the other rendering of the same conversation, how it was found), each of theirs at most once, best first.

    A doubled BOS or another system prompt moves every token, so runs of tokens of our prompt are looked for, without the template's: those
    that are known, and those that most of ours or of theirs share.
    """
    theirs = iter(theirs)
    first = list(islice(theirs, SEEN_FIRST))
    shared = template | _in_most(ours) | _in_most(first)
    enough = ALIKE if shared else ALL_BUT_A_FEW
    own = [_grams(mine.ids[: mine.first_trained]) - shared for mine in ours]
    holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, grams in enumerate(own):
        for gram in grams:
            holders[gram].append(place)
    by_key = {mine.key: place for place, mine in enumerate(ours)}
    found: list[tuple[float, bool, int, Rendering]] = []  # share of the grams, same key, place in ours
    for other in chain(first, theirs):
        hits = Counter(place for gram in _grams(other.ids) for place in holders.get(gram, ()))
        found += [(n / len(own[i]), other.key == ours[i].key, i, other) for i, n in hits.items() if n >= enough * len(own[i])]
        if other.key in by_key:
            found.append((0.0, True, by_key[other.key], other))
    pairs: dict[int, tuple[Rendering, str]] = {}
    taken: set[int] = set()
    for share, _, place, other in sorted(found, key=lambda f: f[:2], reverse=True):
        if place not in pairs and id(other) not in taken:
            pairs[place] = other, "text" if share else "name"
            taken.add(id(other))
    return pairs


def _in_most(renderings: Sequence[Rendering]) -> set[tuple[int, ...]]:
    """Grams that more than half of several renderings hold."""
    often = Counter(g for r in renderings for g in _grams(r.ids))
    return {g for g, n in often.items() if n > len(renderings) / 2} if len(renderings) > 2 else set()


def _of_the_template(tokenizer: Any | None) -> set[tuple[int, ...]]:
    """Grams of a rendered question without the question: the template's own, with and without the header of an answer."""
    try:
        ask = [{"role": "user", "content": QUESTION}]
        text = tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
    except Exception:  # no tokenizer, no template, or one that raises its own errors
        return set()
    return {g for part in text.split(QUESTION) for g in _grams(tokenizer(part, add_special_tokens=False)["input_ids"])}


def _grams(ids: Sequence[int]) -> set[tuple[int, ...]]:
    return {tuple(ids[i : i + GRAM]) for i in range(len(ids) - GRAM + 1)}


def read_jsonl(path: Path, tokenizer: Any | None) -> Iterator[Rendering]:
    """Renderings of a JSONL file, an object a line, in the first of these that it has:

    `token_ids` or `input_ids`; `messages`, rendered by the tokenizer's chat template (with the header of the answer when the last message
    is not one); `prompt`, encoded as a completions endpoint does, with the tokenizer's special tokens; `text`, encoded as it stands.
    The key is the object's `key` or `id`, else `line N`. Raises RenderingError.
    """
    empty = True
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number in range(1, MAX_ROWS + 1):
            line = lines.readline(MAX_LINE + 1)
            if not line:
                break
            if len(line) > MAX_LINE:
                raise RenderingError(f"{path}: line {number} is longer than {MAX_LINE:,} characters, expected one JSON object a line")
            if line.strip():
                empty = False
                yield _rendering(line, f"{path}: line {number}", number, tokenizer)
    if empty:
        raise RenderingError(f"{path} is empty, expected one JSON object a line")


def _rendering(line: str, where: str, number: int, tokenizer: Any | None) -> Rendering:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RenderingError(f"{where} is not JSON: {str(error)[:200]}") from None
    if not isinstance(row, dict) or too_deep(row):
        raise RenderingError(f"{where} is {type(row).__name__ if not isinstance(row, dict) else 'nested too deeply'}, expected an object")
    kind = next((k for k in ("token_ids", "input_ids", "messages", "prompt", "text") if k in row), None)
    if kind is None:
        raise RenderingError(
            f"{where} holds {', '.join(sorted(map(str, row))[:8]) or 'nothing'}, expected token_ids, input_ids, messages, prompt or text"
        )
    return Rendering(str(row.get("key", row.get("id", f"line {number}"))), _ids(kind, row[kind], where, tokenizer))


def _ids(kind: str, value: Any, where: str, tokenizer: Any | None) -> list[int]:
    if kind in ("token_ids", "input_ids"):
        if not isinstance(value, list) or not all(type(i) is int for i in value):
            raise RenderingError(f"{where}: {kind} is not a list of whole numbers")
        return value
    if tokenizer is None:
        raise RenderingError(
            f"{where} gives {kind}, which needs a tokenizer: name it in case.toml, `[target] tokenizer`, and give the case"
        )
    if kind != "messages":
        if not isinstance(value, str):
            raise RenderingError(f"{where}: {kind} is {type(value).__name__}, expected text")
        return tokenizer(value, add_special_tokens=kind == "prompt")["input_ids"]
    try:
        answered = value[-1]["role"] == "assistant"
        text = tokenizer.apply_chat_template(value, tokenize=False, add_generation_prompt=not answered)
    except Exception as error:  # a template raises its own errors for what it does not take
        raise RenderingError(
            f"{where}: the chat template cannot render these messages ({str(error)[:200] or type(error).__name__})"
        ) from None
    return tokenizer(text, add_special_tokens=False)["input_ids"]
