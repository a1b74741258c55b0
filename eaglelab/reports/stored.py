"""A run as it lies on disk: its folder with `findings.json`, found by whatever names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eaglelab.findings import Change, Fault, Finding, Verdict

SIDECAR = "findings.json"


class RunError(ValueError):
    """A run that cannot be read: no such folder, no `findings.json`, or one that holds something else."""


@dataclass(frozen=True)
class Run:
    """One run that was read."""

    directory: Path
    data: Mapping[str, Any]
    """What `findings.json` holds; see `eaglelab.reports.run`."""

    @property
    def name(self) -> str:
        """`case/2026-01-02_030405`, as the index has it."""
        return f"{self.directory.parent.name}/{self.directory.name}"

    @cached_property
    def findings(self) -> list[Finding]:
        return [Finding.from_json(f) for f in self.data["findings"]]

    @cached_property
    def verdict(self) -> Verdict | None:
        return read_verdict(self.data["verdict"]) if self.data["verdict"] else None

    @property
    def pages(self) -> dict[str, str]:
        """By a finding's id, the notebook that recorded it."""
        return {f["id"]: f["notebook"] for f in self.data["findings"] if f.get("notebook")}


def open_run(where: str | Path) -> Run:
    """The run that `where` names: a run's folder, its `findings.json`, or a case's folder under the reports (its newest run).

    Raises RunError.
    """
    path = Path(where)
    if path.name == SIDECAR:
        path = path.parent
    if not path.is_dir():
        raise RunError(f"{where}: no such folder. Give a run's folder, its {SIDECAR}, or a case's folder under reports/ (its newest run)")
    if not (path / SIDECAR).exists():
        done = sorted(p.parent for p in path.glob(f"*/{SIDECAR}"))
        if not done:
            raise RunError(f"{where}: no {SIDECAR} in it or in a folder below it: the run did not finish, or this is no folder of reports")
        path = max(done, key=lambda p: p.name)
    return read_run(path)


def read_run(directory: Path) -> Run:
    """The run in `directory`. Raises RunError on a `findings.json` that is damaged, FileNotFoundError where there is none."""
    directory = directory.resolve()
    try:
        run = Run(directory, json.loads((directory / SIDECAR).read_text(encoding="utf-8")))
        run.findings, run.verdict, run.data["provenance"]["date"]  # that they can be read is what is asked
        run.data["notebooks"], run.data["provenance"]["parameters"]
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever lies in the folder
        raise RunError(f"{SIDECAR} cannot be read: {error!r}"[:240]) from error
    return run


def read_verdict(data: Mapping[str, Any]) -> Verdict:
    """The verdict from its JSON."""
    changes = tuple(Change(**c) for c in data["changes"])
    faults = tuple(
        Fault(**{**f, "changes": tuple(Change(**c) for c in f["changes"]), "findings": tuple(f["findings"])})
        for f in data.get("faults", ())
    )
    return Verdict(**{**data, "changes": changes, "faults": faults, "not_looked_at": tuple(data.get("not_looked_at", ()))})
