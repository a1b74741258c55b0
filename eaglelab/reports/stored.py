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
_NONE = type(None)
_CHANGES = [{"file": str, "key": str, "engine?": (str, _NONE)}]
_SHAPE = {
    "notebooks": [{"name": str, "error": (str, _NONE), "parameters?": dict}],
    "planned?": [str],
    "findings": [
        {
            "id": str,
            "title": str,
            "status": str,
            "evidence?": {"text?": str, "numbers?": dict},
            "claim?": str,
            "next?": str,
            "notebook?": str,
        }
    ],
    "verdict": (dict, _NONE),
    "results?": dict,
    "provenance": {
        **{"date": str, "versions": dict, "git": (str, _NONE), "device": str, "platform": str, "parameters": dict},
        "inputs?": [{"name": str, "of?": (str, _NONE), "sha256?": (str, _NONE), "bytes?": (int, _NONE)}],
    },
}
"""What is read of a `findings.json`: other people's files, and those of earlier versions, lie among the runs. `?`: may be absent."""
_VERDICT = {"stage": str, "confidence": str, "text": str, "changes": _CHANGES, "faults?": [{"text": str, "changes": _CHANGES}]}


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
    try:
        return read_run(path)
    except RunError as error:
        raise RunError(f"{path}: {error}. Give another run, or make this one again") from error


def read_run(directory: Path) -> Run:
    """The run in `directory`. Raises RunError on a `findings.json` that is damaged, FileNotFoundError where there is none."""
    directory = directory.resolve()
    try:
        run = Run(directory, json.loads((directory / SIDECAR).read_text(encoding="utf-8")))
        _check(run.data, _SHAPE, "it")
        if run.data["verdict"]:
            _check(run.data["verdict"], _VERDICT, "verdict")
        _ = run.findings, run.verdict  # that they can be read is what is asked
    except FileNotFoundError:
        raise
    except RunError as error:
        raise RunError(f"{SIDECAR} cannot be read: {error}"[:240]) from error
    except RecursionError as error:
        raise RunError(f"{SIDECAR} cannot be read: it is nested too deeply") from error
    except Exception as error:  # whatever lies in the folder
        raise RunError(f"{SIDECAR} cannot be read: {error!r}"[:240]) from error
    return run


def _check(value: Any, shape: Any, where: str) -> None:
    """Raises RunError where a value has another type than `shape` says."""
    kinds = shape if isinstance(shape, (type, tuple)) else type(shape)
    if not isinstance(value, kinds):
        expected = " or ".join("null" if kind is _NONE else kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise RunError(f"{where} is {'null' if value is None else type(value).__name__}, expected {expected}")
    if isinstance(shape, list):
        for i, item in enumerate(value):
            _check(item, shape[0], f"{where}[{i}]")
    elif isinstance(shape, dict):
        for name, inner in shape.items():
            key = name.removesuffix("?")
            if key in value:
                _check(value[key], inner, key if where == "it" else f"{where}.{key}")
            elif key == name:
                raise RunError(f"{where} has no {key}")


def read_verdict(data: Mapping[str, Any]) -> Verdict:
    """The verdict from its JSON."""
    changes = tuple(Change(**c) for c in data["changes"])
    faults = tuple(
        Fault(**{**f, "changes": tuple(Change(**c) for c in f["changes"]), "findings": tuple(f["findings"])})
        for f in data.get("faults", ())
    )
    return Verdict(**{**data, "changes": changes, "faults": faults, "not_looked_at": tuple(data.get("not_looked_at", ()))})
