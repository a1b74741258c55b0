"""One run of a case: execute its notebooks, two at a time, render each, write `findings.json`, rewrite the index of all runs.

    result = run_report("data/example/case.toml", only="02,04", parameters={"max_samples": 8})
    result.exit_code        # 1 only when a notebook broke

A run lies in `reports/<case>/<date and time>/`: per notebook the executed `.ipynb` and the `.html`, and `findings.json`:

    case, state (done | running), date, seconds, parameters, provenance, verdict, results {name: anything}
    findings   [finding + notebook]
    notebooks  [{name, title, status (ok | failed), seconds, error, html, ipynb, parameters, findings [ids], warnings}]
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat

from eaglelab.case import open_case
from eaglelab.findings import Finding, Verdict, by_severity, plain, write_json
from eaglelab.provenance import collect
from eaglelab.reports.index import SIDECAR, write_index
from eaglelab.reports.kernel import Executed, allow_start, execute, kill_all
from eaglelab.reports.render import read_findings, read_verdict, render
from eaglelab.reports.select import ReportError, Source, find_sources, fit_parameters, notebooks_folder

__all__ = ["NotebookRun", "ReportError", "RunResult", "run_report"]

TIMEOUT = 1800.0
"""Seconds for one notebook."""


@dataclass(frozen=True)
class NotebookRun:
    """One notebook of a run."""

    name: str
    title: str
    error: str | None
    """What broke it, None when it ran through."""
    seconds: float
    ipynb: Path
    html: Path
    parameters: dict[str, Any]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    """What is wrong with the page: a figure without alt text, a widget without a static twin."""

    @property
    def ok(self) -> bool:
        return self.error is None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "status": "ok" if self.ok else "failed",
            "seconds": round(self.seconds, 2),
            "error": self.error,
            "html": self.html.name,
            "ipynb": self.ipynb.name,
            "parameters": self.parameters,
            "findings": [f.id for f in self.findings],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class RunResult:
    """What `run_report` leaves."""

    case: str
    directory: Path
    index: Path
    notebooks: tuple[NotebookRun, ...]
    findings: tuple[Finding, ...]
    """What needs a decision first; a finding that several notebooks record stands once, as the last one recorded it."""
    verdict: Verdict | None
    results: dict[str, Any]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(n.ok for n in self.notebooks)

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    def to_json(self) -> dict[str, Any]:
        """The CLI's JSON: where everything lies, and what was found."""
        return {
            "case": self.case,
            "directory": str(self.directory),
            "index": str(self.index),
            "notebooks": [n.to_json() for n in self.notebooks],
            "findings": [f.to_json() for f in self.findings],
            "verdict": self.verdict.to_json() if self.verdict else None,
            "results": plain(self.results),
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class _Record:
    """What one notebook recorded."""

    findings: list[Finding]
    verdict: dict[str, Any] | None
    results: dict[str, Any]
    provenance: dict[str, Any]


def run_report(
    case_path: str | Path,
    only: str | Iterable[str | int] | None = None,
    parameters: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    timeout: float = TIMEOUT,
    *,
    notebooks: str | Path | None = None,
    jobs: int | None = None,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Run a case's notebooks and write their pages.

    `only` chooses notebooks by number ("02,04"); `parameters` may be text as a command line gives it; `out` is the folder of all
    reports (default `reports`); `timeout` in seconds bounds each notebook; `jobs` notebooks run at a time (default 2, or 1 on one core);
    `say` is called with a line when a notebook is done. Raises ReportError for a wrong number, parameter or folder, before anything
    runs, and CaseError for a case that cannot be used. A notebook that breaks raises nothing: see `RunResult.exit_code`.
    """
    start = time.monotonic()
    case_file = open_case(case_path).file
    sources = find_sources(notebooks_folder(notebooks), only)
    fitted = fit_parameters(sources, parameters)
    if timeout <= 0:
        raise ReportError(f"timeout: got {timeout}, expected seconds above 0")
    root = Path(out) if out is not None else Path("reports")
    run = _Run(case_file, _new_directory(root, case_name(case_file)), sources, fitted, dict(parameters or {}), timeout, jobs)
    run.write_sidecar(state="running")
    allow_start()
    try:
        done = run.execute_all(say or (lambda line: None))
    except BaseException:
        kill_all()
        raise
    return run.finish(root, done, time.monotonic() - start)


def case_name(case_file: Path) -> str:
    """The folder's name for a `case.toml`, else the file's; only characters that are safe in a path and a link."""
    name = case_file.absolute().parent.name if case_file.name == "case.toml" else case_file.stem
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "case"


def _new_directory(root: Path, case: str) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H%M%S")
    for attempt in range(1, 1000):
        directory = root / case / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            directory.mkdir(parents=True)
            return directory
        except FileExistsError:
            if not (root / case).is_dir():
                raise ReportError(f"cannot write reports to {root}: {root / case} is a file") from None
        except OSError as error:
            raise ReportError(f"cannot write reports to {root}: {error.strerror}") from error
    raise ReportError(f"cannot make a new folder in {root / case}")


@dataclass
class _Run:
    case_file: Path
    directory: Path
    sources: list[Source]
    fitted: dict[str, dict[str, Any]]
    given: dict[str, Any]
    timeout: float
    jobs: int | None

    def __post_init__(self) -> None:
        self.case = case_name(self.case_file)
        self.origin = collect(None, self.given).to_json()
        cores = os.cpu_count() or 1
        self.jobs = max(1, min(self.jobs or 2, cores, len(self.sources)))
        self.threads = max(1, cores // self.jobs)

    def execute_all(self, say: Callable[[str], None]) -> list[tuple[NotebookRun, _Record]]:
        """All notebooks, `jobs` at a time; kernels are processes of their own, so threads here are enough."""
        done: dict[str, tuple[NotebookRun, _Record]] = {}
        pool = ThreadPoolExecutor(self.jobs)
        try:
            futures = [pool.submit(self._one, s) for s in self.sources]
            self.origin = collect(self.case_file, self.given).to_json()  # hashes the inputs while the first kernels start
            for future in as_completed(futures):
                page, record = future.result()
                done[page.name] = (page, record)
                say(f"{page.name}  {'ok' if page.ok else 'FAILED: ' + (page.error or '').splitlines()[0][:200]}  {page.seconds:.1f} s")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
        return [done[s.name] for s in self.sources]

    def _one(self, source: Source) -> tuple[NotebookRun, _Record]:
        passed = dict(self.fitted[source.name])
        if "case" in source.parameters:
            passed = {"case": _relative(self.case_file), **passed}
        values = {name: p.value for name, p in source.parameters.items()} | passed
        executed = execute(source.path, passed, timeout=self.timeout, threads=self.threads)
        record = read_record(executed.record)
        notebook = self._annotated(executed, record, values)
        ipynb, html = (self.directory / f"{source.name}.{kind}" for kind in ("ipynb", "html"))
        _write_text(ipynb, nbformat.writes(notebook))
        siblings = [(s.name, f"{s.name}.html") for s in self.sources]
        page = render(notebook, html, siblings=siblings, index="../../index.html", folder=source.path.parent)
        done = NotebookRun(
            name=source.name,
            title=page.title,
            error=executed.error,
            seconds=executed.seconds,
            ipynb=ipynb,
            html=html,
            parameters=values,
            findings=tuple(record.findings),
            warnings=page.problems,
        )
        return done, record

    def _annotated(self, executed: Executed, record: _Record, values: dict[str, Any]) -> nbformat.NotebookNode:
        """The notebook with what its page needs in its metadata."""
        origin = {**self.origin, **record.provenance, "parameters": values}
        notes = {
            "case": self.case,
            "error": executed.error,
            "seconds": round(executed.seconds, 2),
            "findings": [f.to_json() for f in record.findings],
            "verdict": record.verdict,
            "provenance": {**origin, "inputs": self.origin.get("inputs") or collect(self.case_file).to_json()["inputs"]},
        }
        executed.notebook.metadata["eaglelab"] = nbformat.from_dict(plain(notes))
        return executed.notebook

    def finish(self, root: Path, done: list[tuple[NotebookRun, _Record]], seconds: float) -> RunResult:
        findings = {f.id: (f, page.name) for page, record in done for f in record.findings}
        results = {name: data for _, record in done for name, data in record.results.items()}
        verdicts = [r.verdict for _, r in done if r.verdict]
        device = next((r.provenance["device"] for _, r in done if r.provenance.get("device")), self.origin["device"])
        ordered = by_severity(f for f, _ in findings.values())
        self.origin = {**self.origin, "device": device}
        self.write_sidecar(
            state="done",
            seconds=round(seconds, 2),
            findings=[{**f.to_json(), "notebook": findings[f.id][1]} for f in ordered],
            verdict=verdicts[-1] if verdicts else None,
            results=results,
            notebooks=[page.to_json() for page, _ in done],
        )
        return RunResult(
            case=self.case,
            directory=self.directory,
            index=write_index(root),
            notebooks=tuple(page for page, _ in done),
            findings=tuple(ordered),
            verdict=read_verdict(verdicts[-1]) if verdicts else None,
            results=results,
            seconds=seconds,
        )

    def write_sidecar(self, **data: Any) -> None:
        head = {"case": self.case, "date": self.origin["date"], "parameters": self.given}
        write_json(self.directory / SIDECAR, {**head, **data, "provenance": self.origin})


def _relative(path: Path) -> str:
    """A path as seen from the working directory, where the kernels run too; absolute only across drives."""
    try:
        return os.path.relpath(path)
    except ValueError:
        return str(path.absolute())


def _write_text(path: Path, text: str) -> None:
    staged = path.with_name(path.name + ".part")
    staged.write_text(text, encoding="utf-8", errors="replace")
    staged.replace(path)


def read_record(text: str) -> _Record:
    """What a notebook recorded; a line that a killed kernel left half-written is left out."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    lines = [item for item in lines if isinstance(item, dict) and "kind" in item]
    findings = {f.id: f for f in read_findings([i.get("data") for i in lines if i["kind"] == "finding"])}
    verdicts = [i.get("data") for i in lines if i["kind"] == "verdict"]
    results = {str(i.get("name")): i.get("data") for i in lines if i["kind"] == "result"}
    starts = [i["data"].get("provenance") or {} for i in lines if i["kind"] == "start" and isinstance(i.get("data"), dict)]
    origin = {k: v for k, v in starts[-1].items() if k in ("device", "versions", "git", "platform", "date")} if starts else {}
    return _Record(list(findings.values()), verdicts[-1] if verdicts else None, results, origin)
