"""Tokens as text, for display."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTION = "QVWK"
"""A question that a template writes nowhere of its own accord."""
NAMED = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
veil: Callable[[str], str] | None = None
"""Where a report is redacted, what a token's text becomes before anything holds it (`eaglelab.redact.veil`)."""


def load_tokenizer(path: str | os.PathLike | None) -> Any | None:
    """The tokenizer in a local folder, or None for None. Nothing is downloaded and no code from the folder is run.

    Raises FileNotFoundError when the folder is missing and ValueError when it holds no tokenizer.
    """
    if path is None:
        return None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; `[target] tokenizer` in case.toml names the folder with tokenizer.json")
    from transformers import AutoTokenizer  # late: it takes seconds to import

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not any((folder / name).is_file() for name in type(tokenizer).vocab_files_names.values()):
            raise ValueError("its vocabulary is absent")  # for some models transformers makes an empty one out of the config alone
        return tokenizer
    except Exception as error:  # transformers raises many kinds for a folder without a tokenizer
        held = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ValueError(f"{folder}: no tokenizer can be read here ({reason}); expected tokenizer.json, found {held}") from error


def token_texts(tokenizer: Any | None, ids: Iterable[int]) -> list[str]:
    """What each token says, one by one, with white space and control characters made visible; `#1234` without a tokenizer."""
    texts = [f"#{int(i)}" if tokenizer is None else _text(tokenizer, int(i)) for i in ids]
    return texts if veil is None else [veil(t) for t in texts]


def visible(text: str) -> str:
    """Text with line ends, tabs, spaces at its edges and characters that do not print made visible."""
    body = text.strip(" ")
    left = len(text) - len(text.lstrip(" ")) if body else len(text)
    right = len(text) - len(text.rstrip(" ")) if body else 0
    return "␣" * left + "".join(_character(c) for c in body) + "␣" * right


def _text(tokenizer: Any, token: int) -> str:
    try:
        text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    except Exception:  # out of range; tokenizers raise OverflowError, IndexError, KeyError or their own
        text = ""
    if not text or text == "\ufffd":  # an id without text, or a part of a character
        return f"#{token}"
    return visible(text)


def _character(c: str) -> str:
    if c == " ":
        return c
    if c in NAMED:
        return NAMED[c]
    if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):  # control, format (also text direction), unassigned
        return f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"
    return c


def around_spans(sample: Any, tokenizer: Any | None, reach: int = 8, most: int = 3) -> list[dict[str, str]]:
    """The text on both sides of both ends of a sample's first spans of trained tokens, one row a span."""
    from eaglelab.dumps.mask import spans

    ids, join = sample.token_ids.tolist(), "" if tokenizer is not None else " "
    found = [] if sample.loss_mask is None else spans(sample.loss_mask)

    def text(start: int, stop: int) -> str:
        return join.join(token_texts(tokenizer, ids[max(0, start) : stop]))

    return [
        {
            "sample": sample.key,
            "trained": f"{a}..{b - 1}",
            "before (not trained)": text(a - reach, a),
            "first trained": text(a, min(b, a + reach)),
            "last trained": text(max(a, b - reach), b),
            "after (not trained)": text(b, b + reach) or "(the sample ends)",
        }
        for a, b in found[:most]
    ]


@dataclass(frozen=True)
class Frame:
    """What a chat template writes around an answer, as token ids."""

    headers: tuple[tuple[int, ...], ...]
    """Before an answer: as the prompt of a new one, and as it stands in a finished conversation (they may differ by a think marker)."""
    ends: tuple[int, ...]
    """Tokens that end a turn: the template's own, and the tokenizer's EOS."""
    bos: int | None
    """The token that a rendered conversation begins with, where it is the tokenizer's BOS; None where none is written."""


def answer_frame(tokenizer: Any) -> Frame:
    """The frame of a tokenizer's chat template; without one (or where it refuses a plain question and answer) only EOS and BOS.

    Templates run in transformers' sandbox.
    """
    eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    ask, mark = [{"role": "user", "content": QUESTION}], "QXJZ"
    try:
        plain = tokenizer.apply_chat_template(ask, tokenize=False)
        asked = tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
        told = tokenizer.apply_chat_template([*ask, {"role": "assistant", "content": mark}], tokenize=False)
        before, _, after = told.rpartition(mark)
    except Exception:  # no template, or one that raises its own errors
        return Frame((), eos, _first_if_bos(tokenizer, tokenizer("Hi")["input_ids"]))
    texts = [_header(plain, text).rstrip(" ") for text in (asked, before)]  # a space goes into the answer's first token
    headers = dict.fromkeys(tuple(_encode(tokenizer, text)) for text in texts if text.strip())
    ends = dict.fromkeys([*_encode(tokenizer, after)[:1], *eos])
    return Frame(tuple(headers), tuple(ends), _first_if_bos(tokenizer, _encode(tokenizer, plain)))


def _header(plain: str, text: str) -> str:
    """What stands before an answer in `text`: all that the question alone (`plain`) lacks. Where that is nothing (Mistral writes no header of
    its own), what follows the question's words."""
    place = first_difference(plain, text)
    added = "" if place is None else text[place:]
    return added if added.strip() else text.rpartition(QUESTION)[2]


def controls(tokenizer: Any) -> list[list[int]]:
    """Token ids that the tokenizer itself makes: of a sentence, and of a question as its chat template renders it, where it has one. Those
    that do not come back from their text say that no other text need."""
    texts = ["The quick brown fox, 42 times.\n"]
    try:
        ask = [{"role": "user", "content": texts[0].strip()}]
        texts.append(tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=True))
    except Exception:  # no template, or one that raises its own errors
        pass
    return [_encode(tokenizer, text) for text in texts]


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """The first place at which two sequences differ: where the shorter one ends if it is the beginning of the longer; None if equal."""
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return None if place == len(a) == len(b) else place


def _encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _first_if_bos(tokenizer: Any, ids: list[int]) -> int | None:
    return ids[0] if ids and ids[0] == tokenizer.bos_token_id else None


def encoded_again(tokenizer: Any, ids: Iterable[int]) -> list[int] | None:
    """Token ids of the text that `ids` say; None where an id is unknown to the tokenizer."""
    try:
        return _encode(tokenizer, tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
    except Exception:  # out of range; tokenizers raise OverflowError, IndexError, KeyError or their own
        return None
