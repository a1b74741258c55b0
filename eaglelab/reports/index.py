"""`reports/index.html`: all runs of all cases, newest first, from the `findings.json` that each run leaves.

A run whose sidecar is missing or damaged is a row that says so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eaglelab.reports import parts
from eaglelab.reports.render import badges, read_findings, read_verdict

SIDECAR = "findings.json"

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
<p class="lede">{lede}</p>
{body}
</main>
</body>
</html>
"""


def write_index(root: str | Path) -> Path:
    """Rewrite `index.html` in `root` over every `root/<case>/<run>/`. Returns its path."""
    root = Path(root)
    runs = sorted(
        (r for r in root.glob("*/*") if r.is_dir() and not r.name.startswith(".")), key=lambda r: (r.name, r.parent.name), reverse=True
    )
    cases = {r.parent.name for r in runs}
    lede = (
        f"{_count(len(runs), 'run')} of {_count(len(cases), 'case')}, newest first."
        if runs
        else "No runs yet: eaglelab report CASE makes one."
    )
    html = _PAGE.format(style=parts.style("report.css", "parts.css", "index.css"), lede=lede, body=_table(runs))
    path = root / "index.html"
    root.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(path.name + ".part")
    staged.write_text(html, encoding="utf-8", errors="replace")
    staged.replace(path)
    return path


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _table(runs: list[Path]) -> str:
    if not runs:
        return ""
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("Case and run", "Verdict", "Findings", "Pages", "Parameters"))
    return f'<table class="runs"><thead><tr>{heads}</tr></thead><tbody>{"".join(map(_row, runs))}</tbody></table>'


def _row(run: Path) -> str:
    try:
        data = json.loads((run / SIDECAR).read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError(f"got {type(data).__name__}, expected an object")
        cells = _cells(run, data)
    except FileNotFoundError:
        cells = _problem(run, f"no {SIDECAR}: the run did not finish")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        cells = _problem(run, f"{SIDECAR} cannot be read: {error}")
    labels = ("", "Verdict", "Findings", "Pages", "Parameters")
    rest = "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in zip(labels[1:], cells[1:], strict=True))
    return f'<tr><th scope="row">{cells[0]}</th>{rest}</tr>'


def _cells(run: Path, data: Mapping[str, Any]) -> list[str]:
    notebooks = [n for n in data.get("notebooks", []) if isinstance(n, dict)]
    verdict = read_verdict(data.get("verdict"))
    said = "not recorded" if verdict is None else f"<strong>{parts.text(verdict.stage)}</strong> ({parts.text(verdict.confidence)})"
    if verdict is not None:
        said += f'<p class="said">{parts.text(_short(verdict.text))}</p>'
    if data.get("state") == "running":
        said = '<span class="el-badge">running, or stopped before its end</span>'
    broken = [n for n in notebooks if n.get("status") == "failed"]
    if broken:
        said = f'<span class="el-badge el-fail"><span aria-hidden="true">✕</span> {_count(len(broken), "notebook")} broke</span> {said}'
    counts = badges(Counter(f.status for f in read_findings(data.get("findings")))) or "none"
    parameters = data.get("parameters") or {}
    given = ", ".join(f"{parts.text(k)} = {parts.text(parts.number(v))}" for k, v in parameters.items()) or "defaults"
    return [_name(run, data.get("date")), said, counts, _links(run, notebooks) or "none", given]


def _name(run: Path, date: Any = None) -> str:
    when = str(date).replace("T", " ").replace("Z", " UTC") if date else run.name
    return f'{parts.text(run.parent.name)}<span class="when">{parts.text(when)}</span>'


def _problem(run: Path, what: str) -> list[str]:
    pages = [{"name": p.stem, "html": p.name} for p in sorted(run.glob("*.html"))]
    return [
        _name(run),
        f'<span class="el-badge el-cannot_tell"><span aria-hidden="true">?</span> {parts.text(_short(what))}</span>',
        "not known",
        _links(run, pages) or "none",
        "not known",
    ]


def _links(run: Path, pages: list[dict[str, Any]]) -> str:
    items = []
    for page in pages:
        name = str(page.get("name", ""))
        href = quote(f"{run.parent.name}/{run.name}/{Path(str(page.get('html', ''))).name}")
        failed = ' <span class="el-badge el-fail">broke</span>' if page.get("status") == "failed" else ""
        items.append(f'<li><a href="{href}">{parts.text(name.replace("_", " "))}</a>{failed}</li>')
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _short(text: str, limit: int = 240) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
