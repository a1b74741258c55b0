"""Numbers as people write them: with units, thousands, a decimal comma."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from eaglelab.timing.tables.names import EMPTY

SPACES = re.compile(r"[\s'\u2019_\u00a0\u2009\u202f]")
UNIT = re.compile(r"(tok(ens?)?/s(ec)?|t/s|tps|tokens?|ms|s|x|\u00d7|steps?)\Z", re.IGNORECASE)
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
COMMA = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(\.\d{3})+,\d+")
SURELY_POINT, SURELY_COMMA = (
    re.compile(r"\d*\.(\d{1,2}|\d{4,})|\d{1,3}(,\d{3})+\.\d+"),
    re.compile(r"\d+,(\d{1,2}|\d{4,})|[\d.]+\.\d{3},\d+"),
)


def number(value: Any, *, comma: bool = False) -> float | None:
    """A finite number; None for an empty cell. comma: the file's numbers have a decimal comma. Raises ValueError with what stands there."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        text, found = repr(value), float(value) if abs(value) < 1e15 else math.inf
    else:
        text = str(value)
        found = _number(bare(text), comma)
        if found is None and text.strip().lower() in EMPTY:
            return None
    if found is None or not math.isfinite(found):
        raise ValueError(f"{text.strip()[:40]!r} is no number")
    return found


def bare(text: str) -> str:
    """Without units, spaces, and what stands behind a plus-minus."""
    text = re.split(r"±|\+/?-(?=\s*\d)", text.strip().strip("*`"), maxsplit=1)[0] if not text.strip().startswith(("+", "-")) else text
    return UNIT.sub("", SPACES.sub("", text.lower()))


def _number(text: str, comma: bool) -> float | None:
    if comma and COMMA.fullmatch(text):
        return float(text.replace(".", "").replace(",", "."))
    if comma and re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})+", text):
        return float(text.replace(".", ""))
    if THOUSANDS.fullmatch(text):
        return float(text.replace(",", ""))
    if PLAIN.fullmatch(text):
        return float(text)
    return float(text.replace(",", ".")) if COMMA.fullmatch(text) and "." not in text else None


def has_decimal_comma(cells: Iterable[str]) -> bool:
    """Whether numbers of a file can only be read with a decimal comma, and none can only be read with a point."""
    texts = [bare(cell) for cell in cells]
    return any(SURELY_COMMA.fullmatch(t) for t in texts) and not any(SURELY_POINT.fullmatch(t) for t in texts)


def whole(value: Any, what: str, most: int, *, comma: bool = False) -> int | None:
    """A whole number, 0 to `most`; None for an empty cell. Raises ValueError."""
    found = number(value, comma=comma)
    if found is None:
        return None
    if found != int(found) or not 0 <= found <= most:
        raise ValueError(f"{what} is {str(value).strip()[:40]}, expected a whole number from 0 to {most:,}")
    return int(found)
