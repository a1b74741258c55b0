"""`report.md`: a run as GitHub-flavoured Markdown, to be pasted into an issue.

Text of cases, dumps and logs is escaped so that it reads as it is there: no markup, no image, no link, and nobody is pinged. GitHub
looks for mentions and numbers of issues after Markdown is done, so that a backslash does not keep them from it: a character of no
width stands in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from eaglelab.files import write_text
from eaglelab.findings import SEVERITY, Change, Finding, Status, Verdict, by_severity, own_changes
from eaglelab.provenance import facts
from eaglelab.reports import headline, parts
from eaglelab.reports.key_numbers import key_numbers
from eaglelab.reports.stored import read_verdict

NAME = "report.md"
LIMIT = 60_000
"""Bytes; GitHub refuses an issue of more than 65,536 characters."""
SIZES = ((1200, 60), (500, 40), (200, 20), (80, 8))
"""(characters of one text, findings and rows of one section), tried in turn until the whole is within `LIMIT`."""
DECISION = (Status.FAIL, Status.CANNOT_TELL)
GAP = "&#8203;"
"""A space of no width."""

_MARKUP = re.compile(r"([\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])|^[-+=#]|(?<=^\d)[.)]|(?<=^\d\d)[.)])")
_PINGS = re.compile(r"@(?=\w)|#(?=\d)|GH-(?=\d)", re.IGNORECASE)
_LINKS = re.compile(r"(?<=[A-Za-z]):(?=//)|(?<=www)(?=\.)|(?<=mailto):|(?<=xmpp):", re.IGNORECASE)
_EMOJI = re.compile(r":(?=[\w+-]+:)")


def write_markdown(directory: Path, data: Mapping[str, Any]) -> Path:
    """Write `report.md` into a run's folder from what its `findings.json` holds. Returns its path."""
    path = directory / NAME
    write_text(path, markdown(data))
    return path


def markdown(data: Mapping[str, Any]) -> str:
    """The whole summary, at most `LIMIT` bytes."""
    for most, rows in SIZES:
        text = "\n\n".join(part for part in _sections(data, most, rows) if part) + "\n"
        if len(text.encode()) <= LIMIT:
            break
    return text


def _sections(data: Mapping[str, Any], most: int, rows: int) -> list[str]:
    findings = by_severity(map(Finding.from_json, data["findings"]))
    verdict = read_verdict(data["verdict"]) if data["verdict"] else None
    decide = [f for f in findings if f.status in DECISION]
    broken = [f"- notebook {prose(n['name'], most)} broke: {prose(n['error'], most)}" for n in data["notebooks"] if n["error"] is not None]
    return [
        f"## {prose(headline.of_run(data))}",
        f"Case {code(data['case'], most)}, {data['provenance']['date']}, eaglelab {code(data['provenance']['versions'].get('eaglelab', '?'))}. {_counts(findings)}",
        "\n".join(broken[:rows]),
        _verdict(verdict, most, rows) if verdict else "",
        _numbers(findings),
        _decisions(decide, most, rows),
        _rest([f for f in findings if f.status not in DECISION], most, rows),
        _removed(data.get("redacted")),
        _provenance(data["provenance"], most, rows),
    ]


def _counts(findings: Sequence[Finding]) -> str:
    counts = [(parts.BADGES[s][1], sum(f.status is s for f in findings)) for s in SEVERITY]
    return f"Findings: {', '.join(f'{n} {word}' for word, n in counts if n) or 'none'}."


def _verdict(item: Verdict, most: int, rows: int) -> str:
    said = [f"### Verdict: {prose(item.stage, most)} ({prose(item.confidence, most)})", *(prose(p, most) for p in item.paragraphs[:rows])]
    if item.changes:
        own = own_changes(item.changes)
        others = [c for c in item.changes if c not in own]
        for head, some in (("What to change:", own), ("If you serve with another engine:", others)):
            if some:
                said.append("\n".join([head, "", *(_change(c, most) for c in some[:rows])]))
                said += _left(some, rows)
    return "\n\n".join(said)


def _change(item: Change, most: int) -> str:
    value = json.dumps(item.value, ensure_ascii=False, default=str)
    engine = f", for {code(item.engine, most)}" if item.engine else ""
    return f"- {code(f'{item.key} = {value}', most)} in {code(item.file, most)}{engine}"


def _numbers(findings: Iterable[Finding]) -> str:
    rows = [(prose(n.name), n.shown, code(n.finding)) for n in key_numbers(findings).values()]
    return _section("Key numbers", _table(("number", "value", "finding"), rows))


def _decisions(items: Sequence[Finding], most: int, rows: int) -> str:
    blocks = [_finding(f, most) for f in items[:rows]] + _left(items, rows)
    return _section("Findings that need a decision", "\n\n".join(blocks))


def _finding(item: Finding, most: int) -> str:
    said = [("claim", item.claim), ("evidence", item.evidence), ("next", item.next)]
    lines = [f"  - {label}: {prose(value, most)}" for label, value in said if value]
    return "\n".join([f"- **{parts.BADGES[item.status][1]}:** {prose(item.title, most)} ({code(item.id, most)})", *lines])


def _rest(items: Sequence[Finding], most: int, rows: int) -> str:
    table = _table(("status", "finding", "id"), [(parts.BADGES[f.status][1], prose(f.title, most), code(f.id, most)) for f in items[:rows]])
    return _folded(f"The other findings: {len(items)}", "\n\n".join([table, *_left(items, rows)])) if items else ""


def _left(items: Sequence[Any], rows: int) -> list[str]:
    return [f"… and {len(items) - rows} more, in `findings.json`."] if len(items) > rows else []


def _removed(counts: Mapping[str, int] | None) -> str:
    """Of a redacted run."""
    if counts is None:
        return ""
    rows = [(prose(what), f"{times:,}") for what, times in counts.items()] or [("nothing", "0")]
    return _folded("This run is redacted: what was removed", _table(("what", "times"), rows))


def _provenance(origin: Mapping[str, Any], most: int, rows: int) -> str:
    lines = [(prose(k, most), code(parts.number(v), most)) for k, v in facts(dict(origin)) if v not in (None, "")]
    inputs = [i for i in origin.get("inputs", []) if i.get("sha256")]
    lines += [
        (f"input {prose(i['name'], most)}", f"{code(i['path'], most)}, sha256 {code(i['sha256'][:16])} of {prose(i['of'], most)}")
        for i in inputs
    ]
    return _folded("Where these numbers come from", _table(("what", "value"), lines[: 2 * rows]))


def _section(head: str, body: str) -> str:
    return f"### {head}\n\n{body}" if body else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are Markdown already; a pipe in a code span is escaped as the table asks for it."""
    if not rows:
        return ""
    lines = [columns, ["---"] * len(columns), *([re.sub(r"(?<!\\)\|", r"\|", cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def prose(value: Any, most: int = 10_000) -> str:
    """Text as Markdown that shows it as it is; what stands between backticks is set as code."""
    line = " ".join(parts.clean(value).split())
    line = shorten(line, most, placeholder=" …") if len(line) > most and " " in line[:most] else line[:most]
    pieces = re.split(r"`([^`]+)`", line)
    return "".join(code(piece) if i % 2 else _plain(piece) for i, piece in enumerate(pieces))


def _plain(text: str) -> str:
    text = _MARKUP.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    for pattern in (_PINGS, _LINKS, _EMOJI):
        text = pattern.sub(lambda m: m[0] + GAP, text)
    return text.replace("$", "<span>$</span>")  # GitHub would set what stands between two of them as math


def code(value: Any, most: int = 10_000) -> str:
    """A code span: nothing in it is markup, link or mention."""
    line = " ".join(parts.clean(value).split())[:most] or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"
