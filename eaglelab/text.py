"""Tokens as text, for display."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NAMED = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


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
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds for a folder without a tokenizer
        held = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ValueError(f"{folder}: no tokenizer can be read here ({reason}); expected tokenizer.json, found {held}") from error


def token_texts(tokenizer: Any | None, ids: Iterable[int]) -> list[str]:
    """What each token says, one by one, with white space and control characters made visible; `#1234` without a tokenizer."""
    ids = [int(i) for i in ids]
    if tokenizer is None:
        return [f"#{i}" for i in ids]
    return [_text(tokenizer, i) for i in ids]


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


def around_first_trained(sample: Any, tokenizer: Any | None, reach: int = 12) -> tuple[str, str]:
    """The text just before and just after the first position that the loss mask trains; ("", "") where nothing trains."""
    trained = [] if sample.loss_mask is None else sample.loss_mask.nonzero()[:, 0].tolist()
    if not trained:
        return "", ""
    first, ids = trained[0], sample.token_ids.tolist()
    join = "" if tokenizer is not None else " "
    return (
        join.join(token_texts(tokenizer, ids[max(0, first - reach) : first])),
        join.join(token_texts(tokenizer, ids[first : first + reach])),
    )
