"""Escaped pieces of HTML that live notebooks, report pages and the index share: badges, tables, findings, the verdict, figures.

Everything that is not markup written here goes through `text()`: names of keys, log lines and tokens are other people's text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglelab.findings import SEVERITY, Change, Finding, Status, Verdict, by_severity, own_changes, plain

TEMPLATES = Path(__file__).parent / "template"

# A symbol and a word, so that a status is never told by its colour alone.
BADGES = {
    Status.FAIL: ("✕", "fail"),
    Status.CANNOT_TELL: ("?", "cannot tell"),
    Status.PASS: ("✓", "pass"),
    Status.NOT_GIVEN: ("○", "not given"),
    Status.NOT_APPLICABLE: ("–", "not applicable"),  # noqa: RUF001
}

SPACES = "\n\t\xa0\u3000"
SHORT = 28
"""Characters of code that stay on one line; longer code breaks between its words only."""
NAME = range(8, 65)
"""Characters of a table's cell that is one word (a file's name) and stays on one line; the table scrolls in its box."""
RECORDS = 20
"""Rows of a table among a finding's numbers."""
ITEMS = 12
"""Items of a list there."""
WIDE = 8
"""Columns from which a few records stand side by side."""
BRIEF = 80
"""Characters of a list of lists there."""


veil: Any = None
"""Where a report is redacted, the `eaglelab.redact.veil.Veil` that every text and every row of a table passes before it is shown."""


def clean(value: Any) -> str:
    """`value` as text in which a character that would hide, reorder or break text (control, bidi, surrogate) is spelt out: `\\u202e`."""
    return spelt(str(value) if veil is None else veil.text(str(value)))


def spelt(said: str) -> str:
    """`clean`, of text that has passed the veil."""
    return "".join(c if c.isprintable() or c in SPACES else repr(c)[1:-1] for c in said.replace("\r\n", "\n"))


def text(value: Any) -> str:
    """`value` as HTML text or attribute value: escaped, with control characters made visible."""
    return html.escape(clean(value))


def code(value: Any) -> str:
    """Code within a sentence. A browser would break a command at every hyphen: here a word moves to the next line as a whole."""
    if len(clean(value)) <= SHORT:
        return f"<code>{text(value)}</code>"
    words = clean(value).split(" ")
    return f'<code class="el-long">{" ".join(f"<span>{text(w)}</span>" for w in words) if len(words) > 1 else text(value)}</code>'


def prose(value: Any) -> str:
    """`text`, with what stands between backticks set as code."""
    between = re.split(r"`([^`\n]+)`", clean(value))
    return "".join(code(part) if i % 2 else text(part) for i, part in enumerate(between))


def heading(value: Any) -> str:
    """`prose` for a heading: a long key may go on in the next line after each of its parts."""
    return re.sub(r"(<code[^>]*>)(.*?)(?=</code>)", lambda m: m[1] + re.sub(r"([._/](?=\w))", r"\1<wbr>", m[2]), prose(value))


def slug(value: Any) -> str:
    """A value as an id for links within a page: letters, digits, dot, dash."""
    return re.sub(r"[^\w.]+", "-", clean(value).strip().lower()).strip("-") or "x"


def number(value: Any) -> str:
    """One table cell as text: four significant digits, a dash for what is unknown."""
    if value is None or str(value) in ("nan", "NaT", "<NA>"):
        return "–"  # noqa: RUF001
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and (value.is_integer() or 10_000 <= abs(value) < 1e7):
        value = round(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)) and not any(isinstance(v, (list, tuple, dict)) for v in value):
        return f"[{', '.join(map(number, value))}]"  # [3, 16, 28, final]
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


ROW_NAME = '<span class="el-hidden">row</span>'


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def badge(status: Status, count: int | None = None) -> str:
    """A status as symbol and word, with the number of findings that have it when `count` is given."""
    symbol, word = BADGES[status]
    many = "" if count is None else f"{count} "
    return f'<span class="el-badge el-{status.value}"><span aria-hidden="true">{symbol}</span> {many}{word}</span>'


def table(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str | None = None,
    label: str | None = None,
    row_headers: int = 0,
    total: int | None = None,
) -> str:
    """An escaped HTML table that scrolls inside its own box; a sentence where there are no rows. The first `row_headers` columns name their row.

    `label` names a table without a caption to screen readers; `total` is the number of rows before a cut.
    """
    rows = [list(r) for r in rows]
    if not rows:
        return nothing(f"{caption or label or 'Table'}: none")
    if veil is not None:
        rows = veil.rows(columns, rows)
    numeric = [any(is_number(r[i]) for r in rows) and all(is_number(r[i]) or r[i] is None for r in rows) for i in range(len(columns))]
    marks = [" class=el-num" if n else "" for n in numeric]
    head = "".join(f'<th scope="col"{m}>{text(c) or ROW_NAME}</th>' for c, m in zip(columns, marks, strict=True))
    body = ""
    for row in rows:
        shown = [number(v) for v in row]
        cells = [re.sub("([␣⏎])", r"\1<wbr>", text(s)) for s in shown]  # spaces made visible are places to wrap
        kinds = [m or (" class=el-name" if _is_name(s) else "") for m, s in zip(marks, shown, strict=True)]
        names = "".join(f'<th scope="row"{k}>{c}</th>' for c, k in zip(cells[:row_headers], kinds, strict=False))
        body += f"<tr>{names}{''.join(f'<td{k}>{c}</td>' for c, k in list(zip(cells, kinds, strict=True))[row_headers:])}</tr>"
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    cut = f'<p class="el-cut">{len(rows)} of {total} rows shown.</p>' if total is not None and total > len(rows) else ""
    return (
        f'<div class="el-scroll" tabindex="0" role="group" aria-label="{text(label or caption or "Table")}">'
        f'<table class="el-table">{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{cut}'
    )


def _is_name(shown: str) -> bool:
    """Whether a cell is one word, such as a file's name or the mark in its place."""
    return len(shown) in NAME and not re.search(r"[\s␣⏎]", re.sub(r"\u2039[^\u2039\u203a]*\u203a", "", shown))


def nothing(sentence: str) -> str:
    """What stands where a table would have no rows."""
    return f'<p class="el-cut">{text(sentence)}</p>'


def listed(items: Iterable[Any], caption: str) -> str:
    """Sentences as a list under a caption; what stands between backticks set as code."""
    return f'<p class="el-listed">{text(caption)}</p><ul>{"".join(f"<li>{prose(i)}</li>" for i in items)}</ul>'


def pairs(items: Iterable[tuple[Any, Any]], label: str) -> str:
    """A two-column table of names and values."""
    return table(["name", "value"], items, label=label, row_headers=1)


def folded(summary: str, inner: str, kind: str = "el-fold") -> str:
    """`inner` (HTML) behind a disclosure triangle; `summary` is text."""
    return f'<details class="{kind}"><summary>{text(summary)}</summary>{inner}</details>'


def finding(item: Finding) -> str:
    """One finding as a block: badge and title, then claim, evidence, next; its numbers folded."""
    said = [("Claim", item.claim), ("Evidence", item.evidence), ("Next", item.next)]
    lines = "".join(f"<dt>{label}</dt><dd>{_by_slot(prose(value))}</dd>" for label, value in said if value)
    body = f"<dl>{lines}</dl>" if lines else ""
    return (
        f'<article class="el-finding el-{item.status.value}" id="finding-{slug(item.id)}"><p class="el-finding-head">{badge(item.status)} '
        f'<strong>{prose(item.title)}</strong> <code class="el-id">{text(item.id)}</code></p>{body}{numbers(item.numbers)}</article>'
    )


def _by_slot(markup: str) -> str:
    """What is said slot by slot, each on a line of its own."""
    return re.sub(r" (?=Slot \d+:)", "<br>", markup)


def numbers(items: Mapping[str, Any]) -> str:
    """A finding's numbers, folded: names and values; what is a list of records as a table of its own. Long values and tables are cut: the
    whole is in the run's findings.json."""
    if not items:
        return ""
    single, tables = [], ""
    for name, value in _flat(plain(items)):
        if isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            tables += _records(name, value)
        else:
            single.append((name, _brief(value)))
    head = pairs(single, "Numbers of this finding") if single else ""
    return folded("Numbers", head + tables)


def _flat(items: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in items.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _records(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A list of records as a table; a record within one becomes columns with dotted names. A few wide records stand side by side."""
    flats = [dict(_flat(row)) for row in rows[:RECORDS]]
    columns = list(dict.fromkeys(c for row in flats for c in row))
    cells = [[_brief(row.get(c)) for c in columns] for row in flats]
    if len(columns) > WIDE and len(rows) <= 4:
        sides = [[c, *values] for c, values in zip(columns, zip(*cells, strict=True), strict=True)]
        return table(["", *range(1, len(rows) + 1)], sides, caption=name, row_headers=1)
    return table(columns, cells, caption=name, total=len(rows)) if columns else ""


def _brief(value: Any) -> Any:
    """A value that fits a cell: a long list by its first items and their number, what holds records by their number."""
    if value in ([], {}):
        return "none"
    if isinstance(value, list):
        if any(isinstance(v, (Mapping, list)) for v in value):
            shown = number(value)
            return shown if len(shown) <= BRIEF else f"{len(value)} entries"
        if len(value) > ITEMS:
            return f"[{', '.join(number(v) for v in value[:ITEMS])}, … {len(value)} in all]"
    if isinstance(value, str) and len(value) > 3 * BRIEF:
        return f"{value[: 3 * BRIEF]} … ({len(value):,} characters)"
    return value


def findings(items: Iterable[Finding]) -> str:
    """Findings as blocks, what needs a decision first."""
    return "".join(finding(f) for f in by_severity(items))


def badges(items: Iterable[Finding]) -> str:
    """The count of findings per status, what needs a decision first."""
    counts = Counter(f.status for f in items)
    return " ".join(badge(s, counts[s]) for s in SEVERITY if counts[s])


def verdict(item: Verdict) -> str:
    """The verdict as a block: the stage and how sure, the text, the changes."""
    return (
        f'<article class="el-verdict"><p class="el-finding-head"><span class="el-badge">verdict</span> '
        f'<strong>{text(item.stage)}</strong> <span class="el-unit">({text(item.confidence)})</span></p>'
        f"{''.join(f'<p>{prose(part)}</p>' for part in item.paragraphs)}{changes(item.changes)}</article>"
    )


def changes(items: Sequence[Change]) -> str:
    """What to change, as lists: for the first change's engine (the case's own comes first), then for other engines."""
    own = own_changes(items)
    others = [c for c in items if c not in own]
    blocks = [("What to change:", own), ("If you serve with another engine:", others)]
    return "".join(f'<p class="el-changes">{head}</p><ul>{"".join(map(_change, some))}</ul>' for head, some in blocks if some)


def edit(item: Change) -> str:
    """`key = value` of a change."""
    return f"{code(item.key)} = {code(json.dumps(item.value, ensure_ascii=False, default=str))}"


def _change(item: Change) -> str:
    engine = f", for {text(item.engine)}" if item.engine else ""
    return f"<li>{edit(item)} in {text(item.file)}{engine}</li>"


def figure(png_base64: str, *, alt: str, caption: str | None, width: int | None, data: str = "") -> str:
    """A PNG with its description, its caption and the data behind it (HTML of a table, folded)."""
    size = f' width="{width}"' if width else ""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    numbers = folded("Data of this figure", data) if data else ""
    image = f'<img src="data:image/png;base64,{png_base64}" alt="{text(alt)}"{size}>'
    return f'<figure class="el-figure">{image}{below}{numbers}</figure>'


def note(what: str, how: str = "", kind: str = "not given") -> str:
    """A calm aside: what is absent, and how to get it."""
    steps = f"<p>How to get it: {prose(how)}</p>" if how else ""
    return f'<aside class="el-note"><p><strong>{text(kind.capitalize())}:</strong> {prose(what)}</p>{steps}</aside>'


_DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline';{allowed} base-uri 'none'; form-action 'none'">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}{script}
</body>
</html>
"""


def document(title: str, body: str, styles: Sequence[str], script: str = "") -> str:
    """A whole page around `body` (HTML); `title` is text. `script` is the one script that a browser will run there, told by its hash."""
    allowed = ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed, script = f" script-src 'sha256-{digest}';", f"\n<script>{script}</script>"
    return _DOCUMENT.format(title=text(title), body=body, style=style(*styles), allowed=allowed, script=script)


def style(*names: str) -> str:
    """The stylesheets of the template folder, joined."""
    return "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names)
