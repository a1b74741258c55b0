"""Prose to HTML for a report page: math as MathML, headings with ids. Needs no script and no network."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
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
    """The headings of a page as they are rendered: the question (the first h1) and the entries of the table of contents."""

    question: str = ""
    """HTML of the first h1: the page sets it above the finding, or as its title."""
    entries: list[tuple[int, str, str]] = field(default_factory=list)
    """(level, id, HTML of the heading)."""
    ids: set[str] = field(default_factory=lambda: {"content", "findings", "provenance", "removed", "failed"})

    def heading(self, level: int, inner: str) -> str:
        """Register a heading and give its HTML; the first h1 is kept for the page to set."""
        if level == 1 and not self.question:
            self.question = inner
            return ""
        plain = bare(inner)
        level = max(level, 2)
        base = name = parts.slug(plain)
        count = 1
        while name in self.ids:
            count += 1
            name = f"{base}-{count}"
        self.ids.add(name)
        if level <= 3:
            self.entries.append((level, name, inner))
        return f'<h{level} id="{name}">{inner}</h{level}>\n'


class _Renderer(IPythonRenderer):
    def __init__(self, outline: Outline) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self.outline = outline

    def codespan(self, text: str) -> str:
        return parts.code(text)

    def inline_math(self, body: str) -> str:
        return math(body)

    def block_math(self, body: str) -> str:
        return f'<div class="el-math" tabindex="0">{math(body, "block")}</div>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        return self.outline.heading(level, text)

    def table(self, text: str) -> str:  # a wide table scrolls in its own box
        return f'<div class="el-scroll" tabindex="0" role="group" aria-label="Table"><table class="el-table">{text}</table></div>'


def bare(markup: str) -> str:
    """The text of a heading's HTML."""
    return unescape(re.sub(r"<[^>]+>", "", markup))


def to_html(source: str, outline: Outline) -> str:
    """One markdown cell as HTML."""
    return disarm(MarkdownWithMath(renderer=_Renderer(outline)).render(source))
