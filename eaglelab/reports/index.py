"""`reports/index.html`: all runs of all cases, newest first, from the `findings.json` that each run leaves.

A run whose `findings.json` is missing or damaged is a row that says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

from eaglelab.findings import Finding
from eaglelab.reports import parts
from eaglelab.reports.render import read_verdict

SIDECAR = "findings.json"
MOST = 240
"""Characters of a verdict's text; its page has all of it, and the changes follow."""
COLUMNS = ("Case and run", "Verdict", "Findings", "Pages", "Parameters")

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="color-scheme" content="light dark">
<title>eaglelab reports</title>
<style>
{style}
</style>
</head>
<body>
<main class="index">
<h1>Reports</h1>
<p class="lede">Runs: {count}, newest first. <code>eaglelab report CASE</code> makes one.</p>
<table class="runs"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>
</main>
</body>
</html>
"""


def write_index(root: Path) -> Path:
    """Rewrite `index.html` in `root` over every `root/<case>/<run>/`. Returns its path."""
    runs = sorted((r for r in root.glob("*/*") if r.is_dir()), key=lambda r: (r.name, r.parent.name), reverse=True)
    style = parts.style("report.css", "parts.css", "index.css")
    heads = "".join(f'<th scope="col">{h}</th>' for h in COLUMNS)
    path = root / "index.html"
    path.write_text(_PAGE.format(style=style, count=len(runs), heads=heads, rows="".join(map(_row, runs))), encoding="utf-8")
    return path


def _row(run: Path) -> str:
    try:
        when, *cells = _cells(run, json.loads((run / SIDECAR).read_text(encoding="utf-8")))
    except FileNotFoundError:
        when, *cells = _problem(run, f"no {SIDECAR}: the run did not finish, or is still running")
    except Exception as error:  # whatever lies in the folder
        when, *cells = _problem(run, f"{SIDECAR} cannot be read: {error!r}"[:240])
    name = f'{parts.text(run.parent.name)}<span class="when">{parts.text(when)}</span>'
    rest = "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in zip(COLUMNS[1:], cells, strict=True))
    return f'<tr><th scope="row">{name}</th>{rest}</tr>'


def _cells(run: Path, data: Mapping[str, Any]) -> list[str]:
    said = f"no verdict in this run{_only(data['notebooks'])}"
    if data["verdict"]:
        verdict = read_verdict(data["verdict"])
        said = f"<strong>{parts.text(verdict.stage)}</strong> ({parts.text(verdict.confidence)})"
        said += f'<p class="said">{parts.text(_beginning(verdict.text))}</p>'
        said += "".join(f'<p class="change">Change: {parts.edit(c)}</p>' for c in parts.own_changes(verdict.changes))
    broken = {n["name"] for n in data["notebooks"] if n["error"] is not None}
    if broken:
        said = f'<span class="el-badge el-fail"><span aria-hidden="true">✕</span> broken notebooks: {len(broken)}</span> {said}'
    counts = parts.badges(map(Finding.from_json, data["findings"])) or "none"
    origin = data["provenance"]
    given = ", ".join(f"{parts.text(k)} = {parts.text(parts.number(v))}" for k, v in origin["parameters"].items()) or "defaults"
    return [origin["date"].replace("T", " ").replace("Z", " UTC"), said, counts, _links(run, broken), given]


def _beginning(text: str) -> str:
    """The first whole sentences of a text."""
    if len(text) <= MOST:
        return text
    whole = re.match(rf".{{1,{MOST - 1}}}\.(?=\s)", text, re.DOTALL)
    return whole[0] if whole else shorten(text, MOST, placeholder=" …")


def _only(notebooks: Sequence[Mapping[str, Any]]) -> str:
    """` (only 02, 04)`: the numbers that ran, where the verdict's notebook was not among them."""
    names = [n["name"] for n in notebooks]
    return "" if not names or any("verdict" in n for n in names) else f" (only {parts.text(', '.join(n[:2] for n in names))})"


def _problem(run: Path, what: str) -> list[str]:
    badge = f'<span class="el-badge el-cannot_tell"><span aria-hidden="true">?</span> {parts.text(what)}</span>'
    return [run.name, badge, "not known", _links(run, set()), "not known"]


def _links(run: Path, broken: set[str]) -> str:
    items = []
    for page in sorted(run.glob("*.html")):
        failed = ' <span class="el-badge el-fail">broke</span>' if page.stem in broken else ""
        href = quote(page.relative_to(run.parents[1]).as_posix())
        items.append(f'<li><a href="{href}">{parts.text(page.stem.replace("_", " "))}</a>{failed}</li>')
    return f"<ul>{''.join(items)}</ul>" if items else "none"
