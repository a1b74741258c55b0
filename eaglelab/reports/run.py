"""A report: one case or many, their notebooks in one queue over the cores and GPUs there are, all runs on an index.

    from eaglelab.reports.run import run_reports
    fleet = run_reports(["runs/a", "runs/b", "@more.txt"], only="03,04", parameters={"max_samples": 64}, say=print)
    fleet.rows          # one a case: headline, change, acceptance, seconds, page
    fleet.exit_code     # 1 when a notebook broke or a case could not be opened

Whatever ends a report, what was finished stays; `resume=True` goes on with it.
"""

from __future__ import annotations

import errno
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eaglelab.provenance import collect
from eaglelab.reports import results, state
from eaglelab.reports.case_run import CaseRun, Settings
from eaglelab.reports.cases import Asked, listed, open_all
from eaglelab.reports.index import write_index
from eaglelab.reports.jobs import Gpus, Job, Place, kernels_at_a_time, refuse_absent_gpu, threads_each, work
from eaglelab.reports.kernel import Kernels
from eaglelab.reports.machine import Machine, here
from eaglelab.reports.redacted import redacted
from eaglelab.reports.select import ReportError, Source, find_sources, fit_parameters, notebooks_folder

TIMEOUT = 1800.0
"""Seconds for one notebook."""
INDEX_EVERY = 5.0
"""Seconds between two writings of the index while notebooks finish; reading many runs takes a moment."""
Say = Callable[[str], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while notebooks ran: `finished` of `total` are kept."""

    def __init__(self, finished: int, total: int) -> None:
        super().__init__(f"interrupted: {finished} of {total} notebooks are finished and kept")
        self.finished, self.total = finished, total


@dataclass(frozen=True)
class RunResult:
    """One case's run."""

    directory: Path
    index: Path
    data: dict[str, Any]
    """What `findings.json` holds."""

    @property
    def notebooks(self) -> list[dict[str, Any]]:
        return self.data["notebooks"]

    @property
    def exit_code(self) -> int:
        return int(bool(self.data["problems"]) or any(n["error"] is not None for n in self.notebooks))

    def to_json(self) -> dict[str, Any]:
        return {"directory": str(self.directory), "index": str(self.index), **{k: v for k, v in self.data.items() if k != "identity"}}


@dataclass(frozen=True)
class Fleet:
    """What a report leaves."""

    asked: Sequence[Asked]
    runs: Mapping[str, RunResult]
    """By the case's name; a case that cannot be opened has none."""
    refused: Mapping[str, str]
    """By the case's name, why there is no report of it."""
    index: Path

    @property
    def exit_code(self) -> int:
        return int(bool(self.refused) or any(r.exit_code for r in self.runs.values()))

    @cached_property
    def rows(self) -> list[results.Row]:
        return [self._row(a.name) for a in self.asked]

    def _row(self, name: str) -> results.Row:
        run = self.runs.get(name)
        return results.refused(name, self.refused[name]) if run is None else results.row(name, run.data, run.directory, self.index.parent)


@dataclass
class _Report:
    """A report while it runs."""

    settings: Settings
    say: Say
    bar: tqdm
    refused: dict[str, str]
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    kernels: Kernels = field(default_factory=Kernels)
    written: float = 0.0

    def finish(self, run: CaseRun, alone: bool) -> None:
        """A case's notebooks are through. One that may not be shown is a row, and an error of the only case."""
        try:
            self.data[run.asked.name] = run.finish()
        except ValueError as error:
            if alone:
                raise
            self.refused[run.asked.name] = f"no report: {error}"

    def index(self, now: bool = True) -> Path:
        """Rewrite the index, one process at a time: the last one to do so has seen all runs."""
        root = self.settings.root
        if now or time.monotonic() - self.written > INDEX_EVERY:
            with state.one_at_a_time(root / ".index.lock"):
                write_index(root)
            self.written = time.monotonic()
        return root / "index.html"

    def line(self, text: str) -> None:
        with tqdm.external_write_mode(file=sys.stdout):
            self.say(text)


def run_reports(
    cases: Sequence[str | Path],
    only: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    timeout: float = TIMEOUT,
    *,
    jobs: int | None = None,
    resume: bool = False,
    redact: bool = False,
    notebooks: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    say: Say | None = None,
    live: bool = False,
    machine: Machine | None = None,
) -> Fleet:
    """Run the notebooks of every case and write their pages.

    cases: paths, and `@file` for a list of them. only: notebooks by number ("02,04"). parameters: may be text, as a command line gives it. out: the
    folder of all reports (default `reports`). timeout: seconds for each notebook. jobs: kernels at a time (default by cores and memory).
    resume: go on with each case's newest run that asks for the same, and skip what is finished. redact: see `eaglelab.redact`. environment: of
    every kernel. say: called with a line when a notebook is done. live: a counter on stderr. machine: default this one.

    Raises ReportError for a wrong number, parameter or folder and for a disk that cannot be written, CaseError for the only case when it
    cannot be used, Interrupted on Ctrl-C. A notebook that breaks raises nothing: see `Fleet.exit_code`.
    """
    given, asked = dict(parameters or {}), open_all(listed(cases))
    sources = find_sources(notebooks_folder(notebooks), only)
    fitted = fit_parameters(sources, given)
    machine = machine or here()
    refuse_absent_gpu(given.get("device"), machine)
    if timeout <= 0:
        raise ReportError(f"timeout: got {timeout}, expected seconds above 0")
    settings = Settings(sources, given, fitted, Path(out or "reports"), timeout, dict(environment or {}))
    say = say or (lambda line: None)
    for item in asked:
        if item.error:
            say(f"{item.name}  cannot be opened: {item.error}")
    with _disk(settings.root), redacted(redact, resume, asked, settings) as (asked, settings):
        settings.root.mkdir(parents=True, exist_ok=True)
        runs = [_begin(item, settings, resume, say) for item in asked if item.case]
        return _run_all(asked, runs, settings, jobs, machine, say, live)


def run_report(case: str | Path, *arguments: Any, **options: Any) -> RunResult:
    """`run_reports` for one case."""
    fleet = run_reports([case], *arguments, **options)
    return fleet.runs[fleet.asked[0].name]


@contextmanager
def _disk(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            todo = "A file lies where the folder of reports should be: give another folder with --out"
        elif isinstance(error, PermissionError) or error.errno in (errno.EROFS, errno.ENAMETOOLONG):
            todo = "Give another folder with --out"
        elif isinstance(error, FileNotFoundError):
            todo = "The folder cannot be made there, or it was moved or deleted while the report ran: run it again, or with another --out"
        else:
            todo = "Finished notebooks are kept: make room, then run it again with --resume"
        raise ReportError(f"cannot write reports to {root}: {error.strerror or error}. {todo}") from error


def _begin(asked: Asked, settings: Settings, resume: bool, say: Say) -> CaseRun:
    """The run of a case: an earlier one to go on with, or a new one; nobody else writes into it from now on."""
    origin = collect(asked.case)
    same = state.identity(asked.case, settings.sources, settings.fitted, origin, settings.environment)
    run = _earlier(asked, settings, origin, same, say) if resume else None
    if run is None:
        run = CaseRun(asked, settings, origin, same)
        run.held.take()
    run.write()
    return run


def _earlier(asked: Asked, settings: Settings, origin: Mapping[str, Any], same: Mapping[str, Any], say: Say) -> CaseRun | None:
    """The newest run of the case that asks for the same; None, and why, where there is none."""
    earlier = state.earlier_runs(settings.root / asked.folder)
    for old in earlier:
        if old.data["identity"] != same:
            continue
        run = CaseRun(asked, settings, origin, same, old)
        if not run.held.take():
            say(f"{asked.name}  {old.name} is being written by another report")
            continue
        done = len(settings.sources) - len(run.waiting)
        say(f"{asked.name}  {'is finished' if not run.waiting else f'goes on, {done} of {len(settings.sources)} finished'}: {old.name}")
        return run
    nearest = next((old for old in earlier if state.left(old.data)), earlier[0] if earlier else None)
    if nearest:
        changed = "; ".join(state.differences(nearest.data["identity"], same)[:4]) or "it is being written"
        say(f"{asked.name}  {nearest.name} is not gone on with ({changed}): a new run")
    else:
        say(f"{asked.name}  no earlier run to go on with: a new one")
    return None


def _run_all(
    asked: Sequence[Asked], runs: Sequence[CaseRun], settings: Settings, jobs: int | None, machine: Machine, say: Say, live: bool
) -> Fleet:
    queue = [Job((run, s), _device(s, settings)) for run in runs for s in run.waiting]
    kernels = kernels_at_a_time(jobs, len(queue), machine, max((_drafter_bytes(run) for run in runs), default=0))
    threads = threads_each(machine, kernels)
    owed = Counter(id(job.what[0]) for job in queue)
    with tqdm(total=len(queue), unit="notebook", disable=not live, leave=False) as bar:
        report = _Report(settings, say, bar, {a.name: f"cannot be opened: {a.error}" for a in asked if a.error})

        def do(what: tuple[CaseRun, Source], place: Place) -> Mapping[str, Any]:
            return what[0].execute(what[1], Place(place.gpu, {**threads, **place.environment}), report.kernels)

        try:
            for run in runs:
                if not owed[id(run)]:
                    report.finish(run, alone=len(asked) == 1)
            report.index()
            with closing(work(queue, kernels, Gpus(machine.gpus), do, report.kernels.stop)) as finished:
                for job, entry in finished:
                    run, source = job.what
                    ok = "ok" if entry["error"] is None else "FAILED: " + entry["error"].splitlines()[0][:200]
                    report.line(f"{f'{run.asked.name}  ' if len(asked) > 1 else ''}{source.name}  {ok}  {entry['seconds']:.1f} s")
                    bar.update()
                    owed[id(run)] -= 1
                    if not owed[id(run)]:
                        report.finish(run, alone=len(asked) == 1)
                    report.index(now=False)
        except KeyboardInterrupt:
            raise Interrupted(
                sum(len(r.settings.sources) - len(r.waiting) for r in runs), sum(len(r.settings.sources) for r in runs)
            ) from None
        finally:
            for run in runs:
                run.held.give()
            index = report.index()
    made = {run.asked.name: RunResult(run.directory, index, data) for run in runs if (data := report.data.get(run.asked.name))}
    fleet = Fleet(asked, made, report.refused, index)
    if len(asked) > 1:
        results.write_csv(settings.root / results.CSV, fleet.rows)
    return fleet


def _device(source: Source, settings: Settings) -> str | None:
    """The notebook's parameter `device` in this report."""
    return settings.fitted[source.name].get("device", source.defaults.get("device"))


def _drafter_bytes(run: CaseRun) -> int:
    return next((i.get("bytes") or 0 for i in run.origin["inputs"] if i["name"] == "drafter.path"), 0)
