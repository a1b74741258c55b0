"""Prose to HTML for a report page: math as MathML, headings with ids, images from disk inlined. Needs no script and no network.

nbconvert's own `embed_images` would send every inline tag through BeautifulSoup and destroy the MathML, so images are inlined here.
"""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert as latex_to_mathml
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from eaglelab.reports import parts

_LOADING_TAGS = re.compile(r"<(/?)(?=(?:script|iframe|object|embed|applet|link|meta|base|form)\b)", re.IGNORECASE)


def disarm(markup: str) -> str:
    """HTML with the tags that load, redirect or run something shown as text. Styles of live notebooks go too."""
    markup = re.sub(r'<style class="el-live">.*?</style>', "", markup, flags=re.DOTALL)
    return _LOADING_TAGS.sub(r"&lt;\1", markup)


def math(latex: str, display: str = "inline") -> str:
    """LaTeX as MathML; what cannot be converted is shown as it is written."""
    try:
        return latex_to_mathml(latex.strip(), display=display)
    except Exception:  # the converter raises many kinds on malformed input
        return f'<code class="el-latex">{parts.text(latex)}</code>'


@dataclass
class Outline:
    """The headings of a page as they are rendered: the title (the first h1) and the entries of the table of contents."""

    title: str = ""
    entries: list[tuple[int, str, str]] = field(default_factory=list)
    """(level, id, HTML of the heading)."""
    ids: set[str] = field(default_factory=set)

    def add(self, level: int, inner: str) -> tuple[int, str]:
        """Register a heading; returns its level on the page (one h1 only) and its id."""
        plain = re.sub(r"<[^>]+>", "", inner)
        if level == 1:
            level = 2
        base = name = parts.slug(plain)
        count = 1
        while name in self.ids:
            count += 1
            name = f"{base}-{count}"
        self.ids.add(name)
        if level <= 3:
            self.entries.append((level, name, inner))
        return level, name


class _Renderer(IPythonRenderer):
    def __init__(self, outline: Outline, folder: Path | None, attachments: Mapping[str, Any]) -> None:
        super().__init__(escape=False, attachments=dict(attachments), exclude_anchor_links=True)
        self.outline, self.folder = outline, folder

    def inline_math(self, body: str) -> str:
        return math(body)

    def block_math(self, body: str) -> str:
        return f'<div class="el-math" tabindex="0">{math(body, "block")}</div>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        level, name = self.outline.add(level, text)
        return f'<h{level} id="{name}">{text}</h{level}>\n'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return super().image(text, self._inline(url), title)

    def _inline(self, url: str) -> str:
        if self.folder is None or re.match(r"[a-z]+:", url):
            return url
        path = (self.folder / url).resolve()
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file():
            return url
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"

    def table(self, text: str) -> str:  # a wide table scrolls in its own box
        return f'<div class="el-scroll" tabindex="0" role="region" aria-label="Table"><table class="el-table">{text}</table></div>'


def to_html(source: str, outline: Outline, folder: Path | None = None, attachments: Mapping[str, Any] | None = None) -> str:
    """One markdown cell as HTML. `folder` is where relative images lie."""
    return disarm(MarkdownWithMath(renderer=_Renderer(outline, folder, attachments or {})).render(source))


def split_title(source: str) -> tuple[str, str]:
    """The text of a leading `# heading` and the rest of the cell."""
    match = re.match(r"\s*#\s+(.+?)\s*#*\s*(?:\n|$)", source)
    return (match.group(1), source[match.end() :]) if match else ("", source)
