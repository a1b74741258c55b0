"""One run of a case: execute its notebooks, two at a time, render each, write `findings.json`, rewrite the index of all runs.

    result = run_report("data/example/case.toml", only="02,04", parameters={"max_samples": 8})
    result.exit_code        # 1 only when a notebook broke

A run lies in `reports/<case>/<date and time>/`: per notebook the executed `.ipynb` and the `.html`, and at the end `findings.json`:

    case, seconds, provenance (with the given parameters), verdict, results {name: anything}
    notebooks  [{name, error (None: it ran through), seconds, parameters}]
    findings   [finding + notebook], what needs a decision first
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import nbformat

from eaglelab.case import open_case
from eaglelab.findings import Finding, by_severity, plain, write_json
from eaglelab.notebook import RECORD
from eaglelab.provenance import collect
from eaglelab.reports import parts
from eaglelab.reports.index import SIDECAR, write_index
from eaglelab.reports.kernel import JOBS, execute
from eaglelab.reports.render import render
from eaglelab.reports.select import ReportError, Source, find_sources, fit_parameters, notebooks_folder

TIMEOUT = 1800.0
"""Seconds for one notebook."""


@dataclass(frozen=True)
class RunResult:
    """What `run_report` leaves."""

    directory: Path
    index: Path
    data: dict[str, Any]
    """What `findings.json` holds."""

    @property
    def notebooks(self) -> list[dict[str, Any]]:
        return self.data["notebooks"]

    @property
    def exit_code(self) -> int:
        return int(any(n["error"] is not None for n in self.notebooks))

    def to_json(self) -> dict[str, Any]:
        return {"directory": str(self.directory), "index": str(self.index), **self.data}


def run_report(
    case_path: str | Path,
    only: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    timeout: float = TIMEOUT,
    *,
    notebooks: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Run a case's notebooks and write their pages.

    `only` chooses notebooks by number ("02,04"); `parameters` may be text as a command line gives it; `out` is the folder of all
    reports (default `reports`); `timeout` in seconds bounds each notebook; `say` is called with a line when a notebook is done. Raises
    ReportError for a wrong number, parameter or folder, before anything runs, and CaseError for a case that cannot be used. A notebook
    that breaks raises nothing: see `RunResult.exit_code`.
    """
    start = time.monotonic()
    case, given = open_case(case_path), dict(parameters or {})
    sources = find_sources(notebooks_folder(notebooks), only)
    fitted = fit_parameters(sources, given)
    if timeout <= 0:
        raise ReportError(f"timeout: got {timeout}, expected seconds above 0")
    root = Path(out or "reports")
    name = parts.slug(case.name)
    directory = _new_directory(root, name)
    origin = collect(case)

    def run(source: Source) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        """(the notebook's entry in findings.json, what it recorded, its provenance)."""
        passed = {"case": os.path.relpath(case.file), **fitted[source.name]}
        done = execute(source.path, passed, timeout)
        records = list(take_records(done.notebook))
        entry = {"name": source.name, "error": done.error, "seconds": round(done.seconds, 2), "parameters": source.defaults | passed}
        started = {k: v for r in records if r["kind"] == "start" for k, v in r["data"].items() if k != "inputs"}  # knows torch's device
        notes = {"case": name, "error": done.error, "provenance": origin | started | {"parameters": entry["parameters"]}}
        notes |= {"findings": _of_kind("finding", records), "verdict": next(iter(_of_kind("verdict", records)), None)}
        done.notebook.metadata["eaglelab"] = nbformat.from_dict(plain(notes))
        (directory / f"{source.name}.ipynb").write_text(nbformat.writes(done.notebook), encoding="utf-8", errors="replace")
        render(done.notebook, directory / f"{source.name}.html", [s.name for s in sources])
        if say:
            say(f"{source.name}  {'ok' if done.error is None else 'FAILED: ' + done.error.splitlines()[0][:200]}  {done.seconds:.1f} s")
        return entry, records, origin | started

    with ThreadPool(JOBS) as pool:  # kernels are processes of their own; its threads do not outlive a Ctrl-C, and kernels not this process
        done = pool.map(run, sources)
    findings = {f["id"]: {**f, "notebook": entry["name"]} for entry, records, _ in done for f in _of_kind("finding", records)}
    verdicts = [v for _, records, _ in done for v in _of_kind("verdict", records)]
    data = {
        "case": name,
        "seconds": round(time.monotonic() - start, 2),
        "notebooks": [entry for entry, _, _ in done],
        "findings": [findings[f.id] for f in by_severity(map(Finding.from_json, findings.values()))],
        "verdict": verdicts[-1] if verdicts else None,
        "results": {k: v for _, records, _ in done for r in _of_kind("result", records) for k, v in r.items()},
        "provenance": done[0][2] | {"parameters": given},
    }
    write_json(directory / SIDECAR, data)
    return RunResult(directory, write_index(root), data)


def _new_directory(root: Path, case: str) -> Path:
    directory = root / case / datetime.now().strftime("%Y-%m-%d_%H%M%S_%f")
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise ReportError(f"cannot write reports to {root}: {error.strerror}") from error
    return directory


def take_records(notebook: nbformat.NotebookNode) -> Iterator[dict[str, Any]]:
    """What the notebook recorded, in order; taken out of its outputs, which keep what is shown."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield from output.get("data", {}).pop(RECORD, [])
        if "outputs" in cell:
            cell.outputs = [o for o in cell.outputs if o.get("data", True)]


def _of_kind(kind: str, records: list[dict[str, Any]]) -> list[Any]:
    return [r["data"] for r in records if r["kind"] == kind]
