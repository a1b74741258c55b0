"""Escaped pieces of HTML that live notebooks, report pages and the index share: badges, tables, findings, the verdict, figures.

Everything that is not markup written here goes through `text()`: names of keys, log lines and tokens are other people's text.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglelab.findings import Finding, Status, Verdict, by_severity

TEMPLATES = Path(__file__).parent / "template"

# A symbol and a word, so that a status is never told by its colour alone.
BADGES = {
    Status.FAIL: ("✕", "fail"),
    Status.CANNOT_TELL: ("?", "cannot tell"),
    Status.PASS: ("✓", "pass"),
    Status.NOT_GIVEN: ("○", "not given"),
    Status.NOT_APPLICABLE: ("–", "not applicable"),  # noqa: RUF001
}

_BIDI = set(range(0x202A, 0x202F)) | set(range(0x2066, 0x206A)) | {0x200E, 0x200F, 0x061C}


def _visible(code: int) -> str | None:
    """The stand-in for a character that would hide, reorder or break text; None when it may stay."""
    if code in (0x09, 0x0A):
        return None
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\x{code:02x}"
    if code in _BIDI or 0xD800 <= code < 0xE000:  # lone surrogates cannot be written as UTF-8
        return f"\\u{code:04x}"
    return None


_STAND_INS = {c: s for c in [*range(0xA0), *range(0xD800, 0xE000), *_BIDI] if (s := _visible(c)) is not None}


def clean(value: Any) -> str:
    """`value` as text with every control, bidi and surrogate character made visible."""
    return str(value).replace("\r\n", "\n").translate(_STAND_INS)


def text(value: Any) -> str:
    """`value` as HTML text or attribute value: escaped, with control characters made visible."""
    return html.escape(clean(value), quote=True)


def prose(value: Any) -> str:
    """`text`, with what stands between backticks set as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text(value))


def slug(value: Any) -> str:
    """A value as an id for links within a page: letters, digits, dot, dash."""
    return re.sub(r"[^\w.]+", "-", str(value).strip().lower()).strip("-") or "x"


def number(value: Any, spec: str | None = None) -> str:
    """One table cell as text: four significant digits unless `spec` says otherwise, a dash for what is unknown."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("nan", "NaT", "<NA>"):
        return "–"  # noqa: RUF001
    if isinstance(value, bool):
        return "yes" if value else "no"
    if spec and isinstance(value, (int, float)):
        return format(value, spec)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.0f}"
        return f"{value:.0f}" if 10_000 <= abs(value) < 1e7 else f"{value:.4g}"
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def badge(status: Status | str, count: int | None = None) -> str:
    """A status as symbol and word, with the number of findings that have it when `count` is given."""
    status = Status(status)
    symbol, word = BADGES[status]
    many = "" if count is None else f"{count} "
    return f'<span class="el-badge el-{status.value}"><span aria-hidden="true">{symbol}</span> {many}{word}</span>'


def table(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str | None = None,
    label: str | None = None,
    units: Mapping[Any, str] | None = None,
    formats: Mapping[Any, str] | None = None,
    row_headers: int = 0,
    total: int | None = None,
) -> str:
    """An escaped HTML table that scrolls inside its own box. The first `row_headers` columns name their row.

    `label` names a table without a caption to screen readers; `units` and `formats` (format specs such as ".3f") are looked up by
    column; `total` is the number of rows before a cut.
    """
    units, formats, rows = units or {}, formats or {}, [list(r) for r in rows]
    numeric = [any(is_number(r[i]) for r in rows) and all(is_number(r[i]) or r[i] is None for r in rows) for i in range(len(columns))]
    head = "".join(_column_head(c, units.get(c), n) for c, n in zip(columns, numeric, strict=True))
    body = "".join(
        "<tr>" + "".join(_cell(v, i < row_headers, numeric[i], formats.get(columns[i])) for i, v in enumerate(row)) + "</tr>"
        for row in rows
    )
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    cut = f'<p class="el-cut">{len(rows)} of {total} rows shown.</p>' if total is not None and total > len(rows) else ""
    name = text(label or caption or "Table")
    return (
        f'<div class="el-scroll" tabindex="0" role="region" aria-label="{name}"><table class="el-table">{title}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{cut}"
    )


def _column_head(name: Any, unit: str | None, numeric: bool) -> str:
    suffix = f' <span class="el-unit">{text(unit)}</span>' if unit else ""
    label = text(name) if str(name).strip() else '<span class="el-hidden">row</span>'
    return f'<th scope="col"{" class=el-num" if numeric else ""}>{label}{suffix}</th>'


def _cell(value: Any, header: bool, numeric: bool, spec: str | None) -> str:
    shown = text(number(value, spec))
    if header:
        return f'<th scope="row">{shown}</th>'
    return f"<td{' class=el-num' if numeric else ''}>{shown}</td>"


def pairs(items: Iterable[tuple[Any, Any]], label: str) -> str:
    """A two-column table of names and values."""
    return table(["name", "value"], items, label=label, row_headers=1)


def folded(summary: str, inner: str, kind: str = "el-fold", open_: bool = False) -> str:
    """`inner` (HTML) behind a disclosure triangle; `summary` is text."""
    return f'<details class="{kind}"{" open" if open_ else ""}><summary>{text(summary)}</summary>{inner}</details>'


def finding(item: Finding, anchor: bool = True) -> str:
    """One finding as a block: badge and title, then claim, evidence, next; its numbers folded."""
    said = [("Claim", item.claim), ("Evidence", item.evidence), ("Next", item.next)]
    lines = "".join(f"<dt>{label}</dt><dd>{prose(value)}</dd>" for label, value in said if value)
    body = f"<dl>{lines}</dl>" if lines else ""
    numbers = folded("Numbers", pairs(_flat(item.numbers), "Numbers of this finding")) if item.numbers else ""
    name = f' id="finding-{slug(item.id)}"' if anchor else ""
    return (
        f'<article class="el-finding el-{item.status.value}"{name}><p class="el-finding-head">{badge(item.status)} '
        f'<strong>{text(item.title)}</strong> <code class="el-id">{text(item.id)}</code></p>{body}{numbers}</article>'
    )


def _flat(numbers: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in numbers.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def findings(items: Iterable[Finding]) -> str:
    """Findings as blocks, what needs a decision first."""
    return "".join(finding(f) for f in by_severity(items))


def verdict(item: Verdict) -> str:
    """The verdict as a block: the stage and how sure, the text, the changes as a table."""
    rows = [(c.file, c.key, json.dumps(c.value, ensure_ascii=False, default=str), c.engine or "any") for c in item.changes]
    changes = table(["file", "key", "value", "engine"], rows, caption="What to change") if rows else ""
    return (
        f'<article class="el-verdict"><p class="el-finding-head"><span class="el-badge">verdict</span> '
        f'<strong>{text(item.stage)}</strong> <span class="el-unit">({text(item.confidence)})</span></p>'
        f"<p>{prose(item.text)}</p>{changes}</article>"
    )


def figure(png_base64: str, *, alt: str, caption: str | None, width: int | None, data: str = "") -> str:
    """A PNG with its description, its caption and the data behind it (HTML of a table, folded)."""
    size = f' width="{width}"' if width else ""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    numbers = folded("Data of this figure", data) if data else ""
    image = f'<img src="data:image/png;base64,{png_base64}" alt="{text(alt)}"{size}>'
    return f'<figure class="el-figure"><div class="el-scroll" tabindex="0">{image}</div>{below}{numbers}</figure>'


def note(what: str, how: str = "", kind: str = "not given") -> str:
    """A calm aside: what is absent, and how to get it."""
    steps = f"<p>How to get it: {text(how)}</p>" if how else ""
    return f'<aside class="el-note"><p><strong>{text(kind.capitalize())}:</strong> {text(what)}</p>{steps}</aside>'


def style(*names: str) -> str:
    """The stylesheets of the template folder, joined."""
    return "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names)
