"""The text of a stretch of a sample, token by token, with what trains set off: by brackets and underlining, not by colour."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.explore.frame import cut
from eaglelab.reports import parts
from eaglelab.text import token_texts

AROUND = (24, 40)
"""Tokens shown before and after the rows."""
LONG = 40
"""Characters of a token that are shown."""
OPENS, CLOSES = "⟦", "⟧"


def mask_strip(sample: Sample, tokenizer: Any | None, first: int, stop: int) -> str:
    """The tokens around the rows `first` to `stop` - 1, which are boxed. Everything is escaped."""
    length = len(sample.token_ids)
    if not length:
        return ""
    start, end = max(0, first - AROUND[0]), min(length, stop + AROUND[1])
    mask = _known(sample.loss_mask, length)
    tokens = token_texts(tokenizer, sample.token_ids[start:end])
    trained = [bool(mask[i]) for i in range(start, end)] if mask is not None else [False] * len(tokens)
    markup = ""
    for i, (token, trains) in enumerate(zip(tokens, trained, strict=True)):
        opens = trains and (i == 0 or not trained[i - 1])
        closes = trains and (i == len(tokens) - 1 or not trained[i + 1])
        goes_on = i == 0 and start > 0 and bool(mask[start - 1]) if opens else False
        not_over = i == len(tokens) - 1 and end < length and bool(mask[end]) if closes else False
        markup += _bracket(OPENS + "…" * goes_on) if opens else ""
        markup += _token(token, trains, start + i in range(first, stop), tokenizer is None)
        markup += _bracket("…" * not_over + CLOSES) if closes else ""
        markup += "<br>" if token.endswith("⏎") else ""
    ends = ("…" * (start > 0), "…" * (end < length))
    return f'<p class="el-mask-text">{ends[0]}{markup}{ends[1]}</p><p class="el-cut">{_legend(mask, start, end, tokenizer)}</p>'


def _known(mask: Tensor | None, length: int) -> Tensor | None:
    return mask if mask is not None and len(mask) == length else None


def _token(token: str, trains: bool, boxed: bool, spaced: bool) -> str:
    """One token, isolated from the direction of its neighbours' writing; a space at its beginning is a space."""
    said = cut(token, LONG)
    said = " " + said[1:] if said.startswith("␣") else said
    classes = " ".join(["el-tok", *["el-trained"] * trains, *["el-chosen"] * boxed])
    return f'<bdi class="{classes}">{parts.text(said)}</bdi>' + " " * spaced


def _bracket(sign: str) -> str:
    return f'<b class="el-bracket">{sign}</b>'


def _legend(mask: Tensor | None, start: int, end: int, tokenizer: Any | None) -> str:
    trained = "No loss mask says what trains" if mask is None else f"Trained: underlined, between {OPENS} and {CLOSES}"
    ids = " No tokenizer is given: token ids." if tokenizer is None else ""
    return f"Tokens {start:,} to {end - 1:,}. {trained}. The rows below are boxed.{ids}"
