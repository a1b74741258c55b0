"""One row for each case of a report: what it says, what to change, how it drafts, what it took; for a terminal, `--json` and `results.csv`."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from textwrap import wrap
from typing import Any

from eaglelab.files import write_text
from eaglelab.findings import Finding, Status, own_changes
from eaglelab.reports import headline
from eaglelab.reports.key_numbers import key_numbers
from eaglelab.reports.stored import read_verdict

CSV = "results.csv"
NARROW = 30
"""Characters that a headline gets at least, however narrow the terminal."""


@dataclass(frozen=True)
class Row:
    """One case. None: not known, or not measured in this report."""

    case: str
    headline: str
    """Of the verdict or of the leading finding; why the case cannot be opened where it cannot."""
    change: str | None = None
    """The verdict's first change for the case's own engine, as `key = value`."""
    step0: float | None = None
    """Acceptance at step 0, marginal, replayed."""
    replayed: float | None = None
    """Accept length of the replay's walk."""
    served: float | None = None
    """Accept length that the server counted."""
    fails: int | None = None
    """Findings that fail."""
    broken: int | None = None
    """Notebooks that broke."""
    seconds: float | None = None
    page: str | None = None
    """The verdict's page, else the first, from the reports' folder on."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def refused(case: str, why: str) -> Row:
    """A case without a report."""
    return Row(case, why)


def row(case: str, data: Mapping[str, Any], directory: Path, root: Path) -> Row:
    """data: what the `findings.json` of the run in `directory` holds. root: the folder of all reports."""
    findings = [Finding.from_json(f) for f in data["findings"]]
    numbers = key_numbers(findings)
    step0, replayed, served = (
        numbers[name].value if name in numbers else None
        for name in ("step-0 acceptance, replayed", "accept length, replayed", "accept length, served")
    )
    pages = [n["name"] for n in data["notebooks"] if (directory / f"{n['name']}.html").exists()]
    page = next((p for p in pages if "verdict" in p), pages[0] if pages else None)
    return Row(
        case=case,
        headline="; ".join([headline.of_run(data), *data["problems"]]),
        change=_change(data),
        step0=step0,
        replayed=replayed,
        served=served,
        fails=sum(f.status is Status.FAIL for f in findings),
        broken=sum(n["error"] is not None for n in data["notebooks"]),
        seconds=data["seconds"],
        page=page and Path(os.path.relpath(directory / f"{page}.html", root)).as_posix(),
    )


def _change(data: Mapping[str, Any]) -> str | None:
    changes = own_changes(read_verdict(data["verdict"]).changes) if data["verdict"] else []
    return headline.edit(changes[0]).replace("`", "") if changes else None


def lines(rows: Sequence[Row], width: int, root: Path) -> list[str]:
    """A table `width` characters wide; a page's path has a line of its own, whole, so that it can be copied."""
    first = max(4, min(28, max(len(r.case) for r in rows)))
    head = f"{'case':{first}}  step 0  replayed  served  fails  broken  seconds"
    beside = width - len(head) - 2 >= NARROW  # else a headline stands below its numbers
    indent, room = (" " * (len(head) + 2), width - len(head) - 2) if beside else ("  ", max(NARROW, width - 2))
    out = [f"{head}  verdict" if beside else head]
    for r in rows:
        numbers = (_share(r.step0), _length(r.replayed), _length(r.served), _count(r.fails), _count(r.broken), _count(r.seconds))
        cells = "  ".join(f"{n:>{w}}" for n, w in zip(numbers, (6, 8, 6, 5, 6, 7), strict=True))
        case = r.case if len(r.case) <= first else "…" + r.case[1 - first :]
        said = [indent + line for line in wrap(r.headline.replace("`", ""), room)]
        line = f"{case:{first}}  {cells}"
        out += [f"{line}  {said[0].strip()}", *said[1:]] if beside and said else [line, *said]
        if r.page:
            out.append(f"  {root / r.page}")
    out += ["", "step 0: marginal acceptance of the replay; replayed, served: accept lengths, of the replay's walk and of the server"]
    return [line.rstrip() for line in out]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"  # noqa: RUF001


def _length(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"  # noqa: RUF001


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"  # noqa: RUF001


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write `results.csv` in one step: a column for each field of `Row`, empty where not known. Raises OSError."""
    out = io.StringIO()
    table = csv.DictWriter(out, [f.name for f in fields(Row)])
    table.writeheader()
    table.writerows({k: _cell(v) for k, v in asdict(r).items()} for r in rows)
    write_text(path, out.getvalue())


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula is marked as text: it may come from a case's files."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
