"""Links inside a run: where text names another page ("page 03", "notebooks 06 and 07") or a finding by its id."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from eaglelab.reports import parts

_TAG = re.compile(r"(<!--.*?-->|<[^>]*>)", re.DOTALL)
_NAME = re.compile(r"</?([a-zA-Z0-9]+)")
_PAGES = re.compile(r"\b(?:page|notebook)s? \d\d(?:(?:, | and |, and | or )\d\d)*\b", re.IGNORECASE)
CLOSED = frozenset(
    {"a", "pre", "style", "script", "summary", "math", "svg", "button", "h1", "h2", "h3", "h4", "figcaption", "select", "label"}
)
"""Elements whose text stays as it is."""


class Links:
    """Weaves links into the HTML of one page."""

    def __init__(self, page: str, pages: Sequence[str], where: Mapping[str, str]) -> None:
        """page: the page's own name; pages: names of the run's pages; where: by a finding's id, the page that holds it."""
        self.page = page
        self.by_number = {name[:2]: name for name in pages if re.match(r"\d\d_", name)}
        self.where = where
        names = sorted(where, key=len, reverse=True)  # the longest first: `wiring.claims.slot0` before `wiring.claims`
        dotted = "|".join(re.escape(parts.text(n)) for n in names if "." in n)
        self._ids = re.compile(rf"(?<![\w./-])(?:{dotted})(?![\w/-]|\.\w)") if dotted else None
        self._alone = {parts.text(n): n for n in names}

    def weave(self, markup: str) -> str:
        """`markup` with links; what is a link, a heading or listed code already is left alone."""
        out, closed, code, own = [], 0, False, False
        for piece in _TAG.split(markup):
            if piece.startswith("<"):
                name = _NAME.match(piece)
                tag = name[1].lower() if name else ""
                if tag in CLOSED and not piece.endswith("/>"):
                    closed = max(0, closed + (-1 if piece.startswith("</") else 1))
                if tag == "code":
                    code, own = not piece.startswith("</"), "el-id" in piece
                out.append(piece)
            elif closed or own or not piece.strip():
                out.append(piece)
            else:
                out.append(self._linked(piece, code))
        return "".join(out)

    def _linked(self, text: str, code: bool) -> str:
        """Escaped text with links. code: it stands in a code span, where an id without a dot is told from a word."""
        if code:
            if text in self.by_number.values():
                return text if text == self.page else f'<a href="{quote(text)}.html">{text}</a>'
            return self._finding(self._alone[text], text) if text in self._alone else text
        text = _PAGES.sub(lambda m: re.sub(r"\d\d", self._page, m[0]), text)
        if self._ids is None:
            return text
        pieces = re.split(r"(<a .*?</a>)", text)
        return "".join(p if p.startswith("<a ") else self._ids.sub(lambda m: self._finding(self._alone[m[0]], m[0]), p) for p in pieces)

    def _page(self, number: re.Match[str]) -> str:
        name = self.by_number.get(number[0])
        return number[0] if name in (None, self.page) else f'<a href="{quote(name)}.html">{number[0]}</a>'

    def _finding(self, name: str, shown: str) -> str:
        page = "" if self.where[name] == self.page else f"{quote(self.where[name])}.html"
        return f'<a class="el-ref" href="{page}#finding-{parts.slug(name)}">{shown}</a>'
