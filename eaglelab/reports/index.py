"""`reports/index.html`: all runs of all cases, newest first, from the `findings.json` that each run leaves, and the comparisons.

A run whose `findings.json` is missing or damaged is a row that says so. A small script (`index.js`) sorts and filters the rows; without
it the page reads as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eaglelab.files import write_text
from eaglelab.reports import headline, parts
from eaglelab.reports.stored import SIDECAR, Run, RunError, read_run
from eaglelab.reports.summary import NAME as SUMMARY

COLUMNS = ("Case", "Verdict", "Date", "Findings", "Parameters", "Pages")
SORTED = {"Case": "ascending", "Verdict": "ascending", "Date": "descending"}
"""Columns that can be sorted, and the way that a first click sorts."""
PARAMETER = 60
"""Characters of one parameter's value."""


@dataclass(frozen=True)
class Row:
    """One run's cells, as HTML."""

    when: str
    said: str
    """The verdict, or what is wrong with the run."""
    rank: str
    """What the rows are sorted by for the verdict: what is at fault first, then what is open, then no fault."""
    counts: str
    given: str
    pages: str


def write_index(root: Path) -> Path:
    """Rewrite `index.html` in `root` over every `root/<case>/<run>/`. Returns its path."""
    runs = sorted((r for r in root.glob("*/*") if r.is_dir()), key=lambda r: (r.name, r.parent.name), reverse=True)
    heads = "".join(f'<th scope="col"{_sorting(name)}>{name}</th>' for name in COLUMNS)
    body = (
        f'<main class="index"><h1>Reports</h1><p class="lede">Runs: {len(runs)}, newest first. <code>eaglelab report CASE</code> makes one.</p>'
        f'<table class="runs"><thead><tr>{heads}</tr></thead><tbody>{"".join(map(_row, runs))}</tbody></table>{_comparisons(root)}</main>'
    )
    script = (parts.TEMPLATES / "index.js").read_text(encoding="utf-8")
    path = root / "index.html"
    page = parts.document("eaglelab reports", body, ("report.css", "parts.css", "index.css", "print.css"), script)
    write_text(path, page)
    return path


def _sorting(name: str) -> str:
    if name not in SORTED:
        return ""
    return f' data-first="{SORTED[name]}"' + (' aria-sort="descending"' if name == "Date" else "")


def _row(run: Path) -> str:
    row = _read(run)
    keys = {"Verdict": row.rank, "Date": run.name}
    cells = zip(COLUMNS[1:], (row.said, row.when, row.counts, row.given, row.pages), strict=True)
    rest = "".join(f'<td data-label="{name}" data-key="{parts.text(keys.get(name, ""))}">{cell}</td>' for name, cell in cells)
    return f'<tr><th scope="row">{parts.text(run.parent.name)}</th>{rest}</tr>'


def _read(run: Path) -> Row:
    try:
        return _cells(run, read_run(run))
    except FileNotFoundError:
        return _problem(run, f"no {SIDECAR}: the run did not finish, or is still running")
    except RunError as error:
        return _problem(run, str(error))
    except Exception as error:  # whatever lies in the folder
        return _problem(run, f"{SIDECAR} cannot be read: {error!r}"[:240])


def _cells(folder: Path, run: Run) -> Row:
    data, rank = run.data, "3"
    said = f"no verdict in this run{_only(data['notebooks'])}"
    if run.verdict:
        said = f"<strong>{parts.heading(headline.of_verdict(run.verdict))}</strong>"
        rank = {"cannot tell": "1", "none found": "2"}.get(run.verdict.stage, "0") + f" {run.verdict.stage} {run.verdict.confidence}"
    elif leading := headline.of_findings(run.findings):
        said = f'<strong>{parts.heading(leading)}</strong> <span class="el-unit">{said}</span>'
    broken = {n["name"] for n in data["notebooks"] if n["error"] is not None}
    if broken:
        said = f'<span class="el-badge el-fail"><span aria-hidden="true">✕</span> broken notebooks: {len(broken)}</span> {said}'
    if left := [n for n in data.get("planned", ()) if n not in {b["name"] for b in data["notebooks"]}]:
        done = len(data["planned"]) - len(left)
        said = _unsure(f"not finished: {done} of {len(data['planned'])} notebooks") + f" {said}"
    origin = data["provenance"]
    given = ", ".join(f"{parts.text(k)} = {parts.text(_value(v))}" for k, v in origin["parameters"].items()) or "defaults"
    when = parts.text(origin["date"].replace("T", " ").replace("Z", " UTC"))
    return Row(when, said, rank, parts.badges(run.findings) or "none", given, _links(folder, broken))


def _value(value: Any) -> str:
    shown = parts.number(value)
    return shown if len(shown) <= PARAMETER else f"{shown[:PARAMETER]} …"


def _only(notebooks: Sequence[Mapping[str, Any]]) -> str:
    """` (only 02, 04)`: the numbers that ran, where the verdict's notebook was not among them."""
    names = [n["name"] for n in notebooks]
    return "" if not names or any("verdict" in n for n in names) else f" (only {parts.text(', '.join(n[:2] for n in names))})"


def _problem(run: Path, what: str) -> Row:
    when = re.sub(r"^(\d{4}-\d\d-\d\d)_(\d\d)(\d\d)(\d\d).*", r"\1 \2:\3:\4", run.name)  # by its name, in local time
    return Row(parts.text(when), _unsure(what), "4", "not known", "not known", _links(run, set()))


def _unsure(what: str) -> str:
    return f'<span class="el-badge el-cannot_tell"><span aria-hidden="true">?</span> {parts.text(what)}</span>'


def _links(run: Path, broken: set[str]) -> str:
    """Links to the pages by their numbers, each named in full to screen readers and on hovering, and to the summary."""
    root, items = run.parents[1], []
    for page in sorted(run.glob("*.html")):
        numbered = re.match(r"(\d\d)_(.+)", page.stem)
        number, rest = numbered.groups() if numbered else (page.stem, "")
        full = parts.text(page.stem.replace("_", " "))
        name = f'{parts.text(number)}<span class="el-hidden"> {parts.text(rest.replace("_", " "))}</span>'
        failed = ' <span class="el-badge el-fail">broke</span>' if page.stem in broken else ""
        items.append(f'<li><a href="{quote(page.relative_to(root).as_posix())}" title="{full}">{name}</a>{failed}</li>')
    if (run / SUMMARY).exists():
        items.append(f'<li><a href="{quote((run / SUMMARY).relative_to(root).as_posix())}">{SUMMARY}</a></li>')
    return f"<ul>{''.join(items)}</ul>" if items else "none"


def _comparisons(root: Path) -> str:
    """Links to the comparisons in `root`, by what they say."""
    items = ""
    for page in sorted(root.glob("compare-*.html"), key=lambda p: (-p.stat().st_mtime, p.name)):
        title = re.search(r"<title>(.*?)</title>", page.read_text(encoding="utf-8", errors="replace")[:4000], re.DOTALL)
        name = unescape(title[1]) if title else page.stem
        items += f'<li><a href="{quote(page.name)}">{parts.text(name)}</a> <span class="el-unit">{parts.text(page.stem)}</span></li>'
    return f'<section><h2>Comparisons</h2><ul class="comparisons">{items}</ul></section>' if items else ""
