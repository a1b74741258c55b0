"""One run of a case while it is made: its notebooks executed, a page for each, `findings.json` replaced after every one.

A run lies in `reports/<case>/<date and time>/`: per notebook the executed `.ipynb` and the `.html`, and `findings.json`:

    case, seconds, provenance (with the given parameters), verdict, results {name: anything}
    planned    [names of all notebooks of this run]; those that `notebooks` lacks have not finished
    notebooks  [{name, error (None: it ran through), seconds, parameters}]
    findings   [finding + notebook], what needs a decision first
    problems   [what went wrong besides a notebook], as of writing report.md
    identity   what must be the same for another report to go on with this run, as hashes
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

import nbformat

from eaglelab.files import write_text
from eaglelab.findings import Finding, by_severity, plain, write_json
from eaglelab.notebook import RECORD
from eaglelab.redact.redaction import Redaction
from eaglelab.reports.cases import Asked
from eaglelab.reports.jobs import Place
from eaglelab.reports.kernel import Kernels, execute
from eaglelab.reports.render import render, render_run
from eaglelab.reports.select import ReportError, Source
from eaglelab.reports.state import Held, finished
from eaglelab.reports.stored import SIDECAR, Run
from eaglelab.reports.summary import NAME as SUMMARY
from eaglelab.reports.summary import write_markdown


@dataclass(frozen=True)
class Settings:
    """What all cases of a report have in common."""

    sources: Sequence[Source]
    given: Mapping[str, Any]
    """The parameters as they were given."""
    fitted: Mapping[str, Mapping[str, Any]]
    """Per notebook, the given parameters that it declares, as its types."""
    root: Path
    timeout: float
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of every kernel, besides this process's own."""
    redaction: Redaction | None = None
    """What takes out of every file what may not be shown to anybody (`--redact`)."""


@dataclass(frozen=True)
class Done:
    """One notebook that was run."""

    entry: Mapping[str, Any]
    """Its row in `notebooks`."""
    notes: Mapping[str, Any]
    """findings, verdict, results, provenance: they lie in the executed notebook's metadata."""


class CaseRun:
    """See the module's docstring. Its notebooks may finish in any order, in several threads."""

    def __init__(
        self, asked: Asked, settings: Settings, origin: Mapping[str, Any], identity: Mapping[str, Any], earlier: Run | None = None
    ) -> None:
        """`earlier` is a run to go on with. Raises ReportError where nothing can be written."""
        self.asked, self.settings, self.origin, self.identity = asked, settings, dict(origin), identity
        self.directory = settings.root / asked.folder / earlier.directory.name if earlier else _new_directory(settings.root, asked.folder)
        self.held = Held(self.directory)
        self._done = _done_earlier(earlier) if earlier else {}
        self._before, self._begun = (earlier.data["seconds"] if earlier else 0.0), None
        self._problems: list[str] = []
        self._lock = Lock()

    @property
    def waiting(self) -> list[Source]:
        """The notebooks that are still to be run."""
        return [s for s in self.settings.sources if s.name not in self._done]

    def execute(self, source: Source, place: Place, kernels: Kernels) -> Mapping[str, Any]:
        """Run one notebook and write all that it leaves. Returns its row in `notebooks`. Raises Stopped, and OSError of a full disk."""
        with self._lock:
            self._begun = self._begun or time.monotonic()
        passed = {"case": os.path.relpath(self.asked.case.file), **self.settings.fitted[source.name]}
        done = execute(source.path, passed, self.settings.timeout, kernels, {**place.environment, **self.settings.environment})
        records = list(take_records(done.notebook))
        entry = {"name": source.name, "error": done.error, "seconds": round(done.seconds, 2), "parameters": source.defaults | passed}
        entry["cached"] = _of_kind("cached", records)
        started = {k: v for data in _of_kind("start", records) for k, v in data.items() if k != "inputs"}  # knows torch's device
        notes = {"case": self.asked.folder, "error": done.error, "provenance": self.origin | started | {"parameters": entry["parameters"]}}
        notes |= {"findings": _of_kind("finding", records), "verdict": next(iter(_of_kind("verdict", records)), None)}
        notes["results"] = {k: v for data in _of_kind("result", records) for k, v in data.items()}
        if (redaction := self.settings.redaction) is not None:
            entry, notes = redaction.value(entry), redaction.notebook(done.notebook, notes)
        done.notebook.metadata["eaglelab"] = nbformat.from_dict(plain(notes))
        write_text(self.directory / f"{source.name}.ipynb", nbformat.writes(done.notebook))
        render(done.notebook, self.directory / f"{source.name}.html", [s.name for s in self.settings.sources])
        with self._lock:
            self._done[source.name] = Done(entry, notes)
            self.write()
        return entry

    def write(self) -> dict[str, Any]:
        """Replace `findings.json`; returns what it holds. Raises OSError."""
        data = self.data()
        write_json(self.directory / SIDECAR, data)
        return data

    def data(self) -> dict[str, Any]:
        """What `findings.json` holds now."""
        done = [self._done[s.name] for s in self.settings.sources if s.name in self._done]
        findings = {f["id"]: {**f, "notebook": d.entry["name"]} for d in done for f in d.notes["findings"]}
        verdicts = [d.notes["verdict"] for d in done if d.notes["verdict"]]
        origin = dict(done[0].notes["provenance"]) if done else self.origin
        data = {
            "case": self.asked.folder,
            "seconds": round(self._before + (time.monotonic() - self._begun if self._begun else 0), 2),
            "planned": [s.name for s in self.settings.sources],
            "notebooks": [d.entry for d in done],
            "findings": [findings[f.id] for f in by_severity(map(Finding.from_json, findings.values()))],
            "verdict": verdicts[-1] if verdicts else None,
            "results": {k: v for d in done for k, v in d.notes["results"].items()},
            "provenance": origin | {"parameters": dict(self.settings.given)},
            "problems": self._problems,
            "identity": self.identity,
        }
        redaction = self.settings.redaction
        return data if redaction is None else redaction.data(data, [d.notes["redacted"] for d in done])

    def finish(self) -> dict[str, Any]:
        """All notebooks are through: link the pages, write `report.md`; returns what `findings.json` holds. Raises OSError and LeakError."""
        for what, do in (
            ("the pages' links", lambda: render_run(self.directory)),
            (SUMMARY, lambda: write_markdown(self.directory, self.data())),
        ):
            try:
                do()
            except OSError:
                raise
            except Exception as error:  # the notebooks are worth more than this
                self._problems.append(f"{what}: {type(error).__name__}: {error}")
        data = self.write()
        self.held.give()
        if self.settings.redaction is not None:
            self.settings.redaction.search(self.directory)
        return data


def _done_earlier(run: Run) -> dict[str, Done]:
    """The notebooks that a run has finished, by name, as far as they can still be read."""
    entries, done = {n["name"]: n for n in run.data["notebooks"]}, {}
    for name in finished(run.data):
        try:
            notes = nbformat.read(run.directory / f"{name}.ipynb", as_version=4).metadata["eaglelab"]
            done[name] = Done(entries[name], {k: notes[k] for k in ("findings", "verdict", "results", "provenance")})
        except Exception:  # damaged or deleted: it is run again
            continue
    return done


def _new_directory(root: Path, case: str) -> Path:
    while True:
        directory = root / case / datetime.now().strftime("%Y-%m-%d_%H%M%S_%f")
        try:
            directory.mkdir(parents=True)
        except FileExistsError as error:
            if not directory.is_dir():  # a file lies where a folder should
                raise ReportError(f"cannot write reports to {root}: {error.strerror}") from error
        except OSError as error:
            raise ReportError(f"cannot write reports to {root}: {error.strerror}") from error
        else:
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
