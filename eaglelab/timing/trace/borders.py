"""Where one event ends and the next begins, for a whole block at once.

JSON is read here by what can stand before a brace. Outside of strings `{` follows `:` (a member's value), or `[` or `,` (an element of a list).
A list of objects has a first one, which follows `[` or something that is no object; all others follow `}` and `,`. So, from the begin of an
event on, each `{` that follows `[` or `,` is either a border between two events, or the first such brace inside an event follows something
else than `}` `,`. The borders before that one are all true ones, whatever the layout of the file.

Inside of strings braces may follow anything. A border is taken for one only where `{`, white space, a quote and a letter come next. That cannot
be in a string: the quote would close it, and no letter can follow. Any other brace that follows `[` or `,` ends what is known,
and the caller decodes from there, event by event. Braces that are not followed by white space, a quote or `}` open no object.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


def _set(characters: bytes) -> np.ndarray:
    table = np.zeros(256, bool)
    table[list(characters)] = True
    return table


OPEN, CLOSE, COMMA, QUOTE, COLON, BLANK = b'{},": '
SPACE, AFTER_OPEN, ELEMENT = _set(b" \t\r\n"), _set(b' \t\r\n"}'), _set(b",[")
LETTER = _set(bytes(range(65, 91)) + bytes(range(97, 123)) + b"_")
LONGEST_SPACE = 64
"""White space between two signs that is stepped over; more of it is left to the caller."""


class Borders(NamedTuple):
    """Events that are whole, one after the other: event i is the bytes `starts[i]` to `ends[i]`, both from the first one's `{`."""

    starts: np.ndarray  # [n] int64
    ends: np.ndarray  # [n] int64
    next_start: int
    """Where the next event begins, of which the end is not known: 0 where none is whole."""
    doubt: int | None
    """A brace behind `next_start` that may be anything; None where there is none."""


def borders(data: bytes, at: int) -> Borders:
    """The events of `data` from the `{` at `at` on. O(bytes), a few passes of numpy."""
    block = np.frombuffer(data, np.uint8)[at:]
    opens = np.flatnonzero(block[:-1] == OPEN)[1:]
    member = (block[opens - 1] == COLON) | (block[opens - 2] == COLON) & (block[opens - 1] == BLANK)  # most are: the quick way first
    opens = opens[AFTER_OPEN[block[opens + 1]] & ~member]
    before = _step(block, opens - 1, -1)
    element = ELEMENT[block[before]] | SPACE[block[before]]
    opens, before = opens[element], before[element]
    end = _step(block, before - 1, -1)
    quote = _step(block, opens + 1, 1)
    true = (block[before] == COMMA) & (block[end] == CLOSE) & (block[quote] == QUOTE)
    true &= LETTER[block[np.minimum(quote + 1, len(block) - 1)]]
    known = int(np.argmin(true)) if not true.all() else len(true)
    starts = np.concatenate(([0], opens[:known]))
    doubt = int(opens[known]) if known < len(opens) and quote[known] < len(block) - 2 else None
    return Borders(starts[:-1], end[:known] + 1, int(starts[-1]), doubt)


def _step(block: np.ndarray, places: np.ndarray, way: int) -> np.ndarray:
    """Each place moved to the first one that is no white space, `LONGEST_SPACE` at most."""
    for _ in range(LONGEST_SPACE):
        space = SPACE[block[places]]
        if not space.any():
            break
        places = np.clip(places + way * space, 0, len(block) - 1)
    return places
