"""Run A beside run B, as lines for a terminal and as a page in the reports' style.

comparison = compare_runs("reports/mine/2026-01-02_030405", "reports/mine")    # the second: the newest run of that case
print("\\n".join(lines(comparison)))
write_page(comparison)                                                         # reports/compare-….html
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eaglelab.files import write_text
from eaglelab.findings import Status
from eaglelab.reports import headline, parts
from eaglelab.reports.differences import ABSENT, Comparison, Moved, Number, Pair, differences
from eaglelab.reports.index import write_index
from eaglelab.reports.key_numbers import KeyNumber, key_numbers
from eaglelab.reports.select import ReportError
from eaglelab.reports.stored import Run, open_run

NAMED = 3
"""Findings that the headline names."""
LINES = 12
"""Lines of one kind that a terminal shows; `--json` and the page have all."""
NAME = 200
"""Bytes of a page's name; file systems take 255."""
ROWS = 400
"""Rows of one table on the page."""


def compare_runs(run_a: str | Path, run_b: str | Path) -> Comparison:
    """Two runs, each a run's folder, its `findings.json` or a case's folder under the reports (its newest run). Raises RunError."""
    return differences(open_run(run_a), open_run(run_b))


def title(c: Comparison) -> str:
    """What changed, in one line: `Verdict wiring → none found; 1 finding changed (wiring.match); accept length, served 1.09 → 1.79`."""
    said = []
    if stage := next((p for p in c.verdict if p.name == "stage at fault"), None):
        said.append(f"verdict {stage.a} → {stage.b}")
    if moved := [m for m in c.findings if m.kind != "text changed"]:
        names = f" ({', '.join(m.now.id for m in moved)})" if len(moved) <= NAMED else ""
        said.append(f"{_count(moved, 'finding')} changed{names}")
    elif c.findings:
        said.append(f"{_count(c.findings, 'finding')} changed in words only")
    said += [f"{name} {a.value_shown} → {b.value_shown}" for name, a, b in _key_numbers(c)[:1]]
    if broken := [p.name for p in c.broke if str(p.b).startswith("broke")]:
        said.append(f"{', '.join(broken)} broke")
    if not said and c.numbers:
        said.append(f"Same verdict and findings, {_count(c.numbers, 'number')} changed")
    line = "; ".join(said) or "Nothing changed"
    return line[0].upper() + line[1:]


def _key_numbers(c: Comparison) -> list[tuple[str, KeyNumber, KeyNumber]]:
    """Those that both runs have and that read differently."""
    mine, yours = key_numbers(c.a.findings), key_numbers(c.b.findings)
    return [(name, mine[name], n) for name, n in yours.items() if name in mine and mine[name].value_shown != n.value_shown]


def to_json(c: Comparison) -> dict[str, Any]:
    """The comparison for `--json`."""
    runs = {
        k: {"run": r.name, "date": r.data["provenance"]["date"], "headline": headline.of_run(r.data)} for k, r in (("a", c.a), ("b", c.b))
    }
    return {"headline": title(c), **runs, **c.to_json()}


def lines(c: Comparison) -> list[str]:
    """For a terminal."""
    out = [title(c), "", *(f"{k}: {r.name}: {headline.of_run(r.data)}" for k, r in (("A", c.a), ("B", c.b)))]
    for pairs, head in ((c.parameters, "parameters"), (c.provenance, "provenance"), (c.broke, "notebooks")):
        out += _block(head, [f"{p.name}: {_shown(p.a)} → {_shown(p.b)}" for p in pairs])
    out += _block("findings", [_moved_line(m) for m in c.findings])
    out += _block("numbers", [f"{n.source} {n.name}: {_shown(n.a)} → {_shown(n.b)}{_share(n)}" for n in c.numbers])
    return [*out, "", f"the same in both: {c.same_findings} findings, {c.same_numbers} numbers"]


def _block(head: str, rows: Sequence[str]) -> list[str]:
    more = [f"  … {len(rows) - LINES:,} more (--json has all)"] if len(rows) > LINES else []
    return ["", f"{head}:", *(f"  {r}" for r in rows[:LINES]), *more] if rows else []


def _moved_line(m: Moved) -> str:
    if m.a is None or m.b is None:
        return f"{m.kind}: [{_word(m.now.status)}] {m.now.title}  ({m.now.id})"
    states = f"[{_word(m.a.status)} → {_word(m.b.status)}]" if m.a.status != m.b.status else f"[{_word(m.b.status)}]"
    return f"{m.kind}: {states} {m.b.title}  ({m.b.id})"


def _word(status: Status) -> str:
    return parts.BADGES[status][1]


def _shown(value: Any) -> str:
    return parts.number(value)[:200]


def _share(n: Number) -> str:
    return f" ({n.relative:+.1%})" if n.relative is not None else ""


def _count(items: Sequence[Any], word: str) -> str:
    return f"{len(items):,} {word}{'s' if len(items) != 1 else ''}"


def write_page(c: Comparison, folder: str | Path | None = None) -> Path:
    """The page `compare-<run A>-<run B>.html` in `folder` (default: the folder of all reports that B lies in). Returns its path. Raises ReportError."""
    folder = Path(folder) if folder is not None else c.b.directory.parents[1]
    names = (c.a.directory.name, c.b.directory.name) if c.a.directory.parent == c.b.directory.parent else (c.a.name, c.b.name)
    path = folder / f"compare-{_short('-'.join(parts.slug(n) for n in names))}.html"
    page = parts.document(title(c), _body(c, folder), ("report.css", "parts.css", "index.css", "print.css"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
        if (folder / "index.html").exists():
            write_index(folder)  # lists the comparison
    except OSError as error:
        raise ReportError(f"cannot write the comparison to {folder}: {error.strerror or error}. Give another folder with --out") from error
    return path


def _short(name: str) -> str:
    """A name that a file may have: what is cut off stands in a hash."""
    raw = name.encode()
    return name if len(raw) <= NAME else f"{raw[:NAME].decode(errors='ignore')}-{hashlib.sha256(raw).hexdigest()[:12]}"


def _body(c: Comparison, folder: Path) -> str:
    index = '<a href="index.html">All reports</a>' if (folder / "index.html").exists() else "Reports"
    counts = Counter(m.kind for m in c.findings)
    kinds = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "none changed"
    top = [n for n in c.numbers if not n.source.startswith("result ")]
    results = [n for n in c.numbers if n.source.startswith("result ")]
    return (
        '<a class="skip" href="#content">Skip to the content</a>'
        f'<header class="top"><p>{index} <span class="sep" aria-hidden="true">/</span> <span>comparison of two runs</span></p></header>'
        f'<main class="index compare" id="content"><p class="question">What changed from run A to run B?</p><h1>{parts.heading(title(c))}</h1>'
        f"{_runs(c, folder)}"
        f"{_section('Key numbers', _keys(c), '')}"
        f"{_section('Verdict', _verdict(c), 'The verdict is the same.')}"
        f"{_section('Notebooks', _pairs(c.broke, 'notebook'), '')}"
        f"{_section(f'Findings: {kinds}', _moved(c, folder), f'All {c.same_findings} findings are the same.')}"
        f"{_section('Parameters', _pairs(c.parameters, 'parameter'), 'The parameters are the same.')}"
        f"{_section('Numbers of the findings', _numbers(top), f'All {c.same_numbers} numbers are the same.')}"
        f"{parts.folded(f'Numbers of the results: {len(results):,} differ', _numbers(results)) if results else ''}"
        f"{_section('Where the numbers come from', _pairs(c.provenance, 'what'), 'Versions, git state, device and inputs are the same.')}"
        f'<p class="el-cut">The same in both runs, and not shown: {c.same_findings} findings, {c.same_numbers:,} numbers.</p></main>'
    )


def _section(head: str, inner: str, same: str) -> str:
    if not inner:
        return f'<p class="same">{parts.text(same)}</p>' if same else ""
    return f"<section><h2>{parts.text(head)}</h2>{inner}</section>"


def _runs(c: Comparison, folder: Path) -> str:
    rows = ""
    for letter, run in (("A", c.a), ("B", c.b)):
        name = link(run, folder, parts.text(run.name), next(iter(sorted(run.directory.glob("*verdict*.html"))), None))
        date = run.data["provenance"]["date"].replace("T", " ").replace("Z", " UTC")
        rows += f'<tr><th scope="row">{letter}</th><td>{name}<span class="when">{parts.text(date)}</span></td>'
        rows += f"<td>{parts.heading(headline.of_run(run.data))}</td><td>{parts.badges(run.findings) or 'none'}</td></tr>"
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("Run", "Case and run", "Verdict", "Findings"))
    return f'<table class="runs two"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def link(run: Run, folder: Path, markup: str, page: Path | None, anchor: str = "") -> str:
    """`markup` as a link to a page of a run, where there is that page."""
    if page is None or not page.exists():
        return markup
    return f'<a href="{quote(Path(os.path.relpath(page, folder.resolve())).as_posix())}{anchor}">{markup}</a>'


def _keys(c: Comparison) -> str:
    rows = [[name, a.shown, b.shown] for name, a, b in _key_numbers(c)]
    return parts.table(("number", "A", "B"), rows, label="Key numbers", row_headers=1) if rows else ""


def _pairs(pairs: Iterable[Pair], name: str) -> str:
    rows = [[p.name, p.a, p.b] for p in pairs]
    return parts.table((name, "A", "B"), rows, label=f"By {name}", row_headers=1) if rows else ""


def _verdict(c: Comparison) -> str:
    """What the verdicts say, one above the other: their texts are long."""
    blocks = ""
    for p in c.verdict:
        sides = "".join(f"<dt>{letter}</dt><dd>{parts.prose(said)}</dd>" for letter, said in (("A", p.a), ("B", p.b)))
        blocks += (
            f'<article class="el-finding"><p class="el-finding-head"><strong>{parts.text(p.name)}</strong></p><dl>{sides}</dl></article>'
        )
    return blocks


def _moved(c: Comparison, folder: Path) -> str:
    return "".join(_moved_block(m, c, folder) for m in c.findings)


def _moved_block(m: Moved, c: Comparison, folder: Path) -> str:
    sides = ""
    for letter, run, finding in (("A", c.a, m.a), ("B", c.b, m.b)):
        if finding is None:
            sides += f'<dt>{letter}</dt><dd class="el-unit">{ABSENT}</dd>'
            continue
        page = run.directory / f"{run.pages.get(finding.id, '')}.html"
        where = link(run, folder, parts.prose(finding.title), page, f"#finding-{parts.slug(finding.id)}")
        sides += f"<dt>{letter}</dt><dd>{parts.badge(finding.status)} {where}</dd>"
    same_title = m.a is not None and m.b is not None and m.a.title == m.b.title and m.kind == "text changed"
    detail = _texts(m) if same_title else ""
    return (
        f'<article class="el-finding el-{m.now.status.value}"><p class="el-finding-head"><span class="el-badge">{m.kind}</span> '
        f'<code class="el-id">{parts.text(m.now.id)}</code></p><dl>{sides}</dl>{detail}</article>'
    )


def _texts(m: Moved) -> str:
    """What is said differently under the same title."""
    said = [(k, getattr(m.a, k), getattr(m.b, k)) for k in ("claim", "evidence", "next")]
    return parts.table(("part", "A", "B"), [row for row in said if row[1] != row[2]], label="Texts that changed", row_headers=1)


def _numbers(items: Sequence[Number]) -> str:
    if not items:
        return ""
    rows = [[n.source, n.name, n.a, n.b, n.difference, _percent(n)] for n in items[:ROWS]]
    columns = ("finding", "number", "A", "B", "difference", "relative")
    return parts.table(columns, rows, label="Numbers that differ", row_headers=2, total=len(items))


def _percent(n: Number) -> str | None:
    return f"{n.relative:+.1%}" if n.relative is not None else None
