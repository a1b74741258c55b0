"""A token strip as HTML: the text of a sample with what was drafted at each place, both models' first choices, frames to choose from.

A mark is told by the filling of its bar and by a sign, never by colour alone; the bar's height is the drafter's confidence. No script:
the frames are radio buttons and style. All text comes from outside and is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from eaglelab.replay.strip import Choices, Line, Mark, Strip, window
from eaglelab.reports import parts

LONG = 24
"""Characters of a token that are shown."""
CLASSES = {Mark.NOT_COUNTED: "el-n", Mark.RIGHT: "el-r", Mark.WRONG: "el-w", Mark.OUTSIDE: "el-x", Mark.OWN: "el-o"}
SAID = {
    Mark.NOT_COUNTED: "not counted",
    Mark.RIGHT: "right",
    Mark.WRONG: "wrong",
    Mark.OUTSIDE: "outside the draft vocabulary",
    Mark.OWN: "the target's own",
}
END = "(end of the text)"

Texts = Callable[[Iterable[int]], list[str]]
"""Token ids to what each says (`eaglelab.text.token_texts`)."""


def short(token: str) -> str:
    """A token's text as it is shown: of a long one the beginning and its length."""
    return token if len(token) <= LONG else f"{token[:LONG]}… ({len(token):,} characters)"


def names(texts: Texts, ids: Iterable[int]) -> list[str]:
    """What tokens are called; an id that nobody said is a dash."""
    ids = [int(i) for i in ids]
    said = iter(texts([i for i in ids if i >= 0]))
    return [short(next(said)) if i >= 0 else "–" for i in ids]  # noqa: RUF001


def legend(line: Line) -> str:
    """The marks with their counts."""
    shown = [m for m in (Mark.RIGHT, Mark.WRONG, Mark.OUTSIDE, Mark.OWN, Mark.NOT_COUNTED) if m != Mark.OWN or line.count(m)]
    items = "".join(
        f'<li><span class="el-strip-key {CLASSES[m]}" style="--c:.8" aria-hidden="true">abc</span> {SAID[m]}: {line.count(m):,}</li>'
        for m in shown
    )
    return f'<ul class="el-strip-legend">{items}<li class="el-unit">height of a bar: the drafter\'s confidence</li></ul>'


def text(strip: Strip, line: Line, texts: Texts, *, around: int, size: int, label: str) -> str:
    """The tokens of at most `size` places about `around`, which is set off, with the count of those not shown."""
    length = len(strip.token_ids)
    first, stop = window(length + 1, around, size)
    tokens = [*names(texts, strip.token_ids[first:stop]), *([END] if stop > length else [])]
    inside = [p for p in line.passes if first <= p.row + 2 + p.accepted and p.row + 2 < stop]
    opens, closes = {p.row + 2 for p in inside}, {p.row + 2 + p.accepted: p.accepted for p in inside}
    said = _Sayings(strip, line, texts, first, stop)
    spans = []
    for place, token in zip(range(first, stop), tokens, strict=True):
        bracket = " el-first" if place in opens else "", f' data-n="{closes[place]}"' if place in closes else ""
        spans.append(_token(line.mark[place], said, place, token, bracket, place == around) + ("<br>" if token.endswith("⏎") else " "))
    before = f'<span class="el-cut">… {first:,} tokens before are not shown</span> ' if first else ""
    hidden = length + 1 - stop
    after = f'<span class="el-cut">{hidden:,} tokens after are not shown …</span>' if hidden > 0 else ""
    return f'<p class="el-strip" dir="ltr" role="group" aria-label="{parts.text(label)}">{before}{"".join(spans)}{after}</p>'


def _token(mark: int, said: _Sayings, place: int, token: str, bracket: tuple[str, str], selected: bool) -> str:
    """One place. bracket: a class where a pass begins, the number of its accepted tokens where it ends."""
    bar = f' style="--c:{said.confidence(place):.2f}"' if mark in (Mark.RIGHT, Mark.WRONG, Mark.OUTSIDE) else ""
    here = ' aria-current="true"' if selected else ""
    (opens, closes), title = bracket, parts.text(said.of(place))
    return f'<span class="{CLASSES[Mark(mark)]}{opens}"{closes}{bar} title="{title}"{here}>{_dimmed(token)}</span>'


def _dimmed(token: str) -> str:
    """A token, escaped, with the space before it made less loud than the text."""
    space = len(token) - len(token.lstrip("␣"))
    return f"<i>{token[:space]}</i>{parts.text(token[space:])}" if space else parts.text(token)


class _Sayings:
    """What is said of each place of a window when it is pointed at."""

    def __init__(self, strip: Strip, line: Line, texts: Texts, first: int, stop: int) -> None:
        self.strip, self.line = strip, line
        places = [p for p in range(first, stop) if line.column[p] >= 0]
        o, at = strip.outcome, [(line.step[p], line.column[p]) for p in places]
        drafted = names(texts, [o.drafted[where] for where in at])
        wanted = names(texts, [strip.wanted[where] for where in at])
        self._named = dict(zip(places, zip(drafted, wanted, strict=True), strict=True))

    def confidence(self, place: int) -> float:
        """0 to 1; 0 where it was not asked for, or is no number."""
        table = self.strip.outcome.confidence
        return 0.0 if table is None else float(np.nan_to_num(table[self.line.step[place], self.line.column[place]]))

    def of(self, place: int) -> str:
        mark, line, strip = Mark(self.line.mark[place]), self.line, self.strip
        if place not in self._named:
            return f"place {place}: {SAID[mark]}"
        drafted, wanted = self._named[place]
        where = f"place {place}, row {strip.outcome.rows[line.column[place]]}, step {line.step[place]}"
        right = "" if mark == Mark.RIGHT else f", the right token is {wanted}"
        return f"{where}: {SAID[mark]}; drafted {drafted} ({self.confidence(place):.2f}){right}"


def choices(found: Choices, texts: Texts, caption: str, notes: dict[int, str]) -> str:
    """A model's first choices as a table, and below them the tokens of `notes` (id -> what it is) that are not among them."""
    below = [t for t in notes if t not in found.ids.tolist()]
    ids = [*found.ids.tolist(), *sorted(below, key=lambda t: found.ranks.get(t, 1 << 62))]
    rows = []
    for place, (token, name) in enumerate(zip(ids, names(texts, ids), strict=True)):
        among = place < len(found.ids)
        rank = place + 1 if among else found.ranks.get(token)
        probability = float(found.probability[place]) if among else found.probabilities.get(token)
        note = notes.get(token, "") if rank else f"{notes[token]}, which it cannot say"
        rows.append([rank, name, None if probability is None else rounded(probability), note])
    return parts.table(["rank", "token", "probability", "which is"], rows, caption=caption, row_headers=1)


def rounded(probability: float) -> float:
    """Three significant digits."""
    return float(f"{probability:.3g}")


def line_of(found: Choices, texts: Texts) -> str:
    """A model's first choices on one line."""
    pairs = zip(names(texts, found.ids), found.probability.tolist(), strict=True)
    return " · ".join(f"{name} {parts.number(float(f'{probability:.2g}'))}" for name, probability in pairs)


def frames(name: str, legend_text: str, items: Sequence[tuple[str, str]]) -> str:
    """Frames (label, HTML) of which one is shown at a time: radio buttons choose, by mouse and by arrow keys. name: unique on the page."""
    slug = parts.slug(name)
    buttons = "".join(
        f'<input type="radio" name="{slug}" id="{slug}-{i}"{" checked" if i == 0 else ""}><label for="{slug}-{i}">{parts.text(label)}</label>'
        for i, (label, _) in enumerate(items)
    )
    shown_frames = "".join(f'<div class="el-frame">{inner}</div>' for _, inner in items)
    return f'<fieldset class="el-frames"><legend>{parts.text(legend_text)}</legend>{buttons}{shown_frames}</fieldset>'


def rejections(rows: Iterable[Sequence[Any]], caption: str, both: bool) -> str:
    """A table of rejected tokens with what the models would have said."""
    columns = ["row", "text before", "right token", "drafter's first five", *(["target's first five"] if both else [])]
    return parts.table(columns, rows, caption=caption, row_headers=1)
