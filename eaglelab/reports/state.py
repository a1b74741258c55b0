"""What lies in a run's folder while it is made: which notebooks are finished, and whether a later report may go on with it.

`findings.json` is there from the start and replaced in one step after every notebook, so that whatever ends a run leaves a folder that can
be read and gone on with. A run is gone on with only where everything that its numbers hang on is the same: see `identity`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from eaglelab.case import SECTIONS, Case
from eaglelab.findings import plain
from eaglelab.reports.select import Source
from eaglelab.reports.stored import Run, RunError, read_run

LOCK = ".running"


def identity(
    case: Case, sources: Sequence[Source], fitted: Mapping[str, Any], origin: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """What must be the same for two runs to be halves of one, by group and name; hashes only where paths or texts would stand."""
    inputs = {i["name"]: [i.get("sha256"), i["of"], _modified(case, i)] for i in origin["inputs"]}
    return plain(
        {
            "case": {"path": hashlib.sha256(os.fsencode(os.path.realpath(case.file))).hexdigest()},
            "notebook": {s.name: hashlib.sha256(s.path.read_bytes()).hexdigest() for s in sources},
            "parameter": {f"{name} of {s.name}": value for s in sources for name, value in fitted[s.name].items()},
            "input": inputs,
            "version": {**origin["versions"], "git": origin["git"]},
            "setting": dict.fromkeys(environment, "set"),  # a value may be a temporary file's name
        }
    )


def _modified(case: Case, described: Mapping[str, Any]) -> int | None:
    """When an input was last changed (ns) whose hash is of sizes: retrained weights are as long as the old ones."""
    if described["of"] != "names and sizes":
        return None
    section, _, key = described["name"].partition(".")
    path = getattr(getattr(case, section), key) if section in SECTIONS else case.file
    files = [path] if path.is_file() else [Path(root, f) for root, _, names in os.walk(path) for f in names]
    times = []
    for file in files:
        with suppress(OSError):
            times.append(file.stat().st_mtime_ns)
    return max(times, default=None)


def differences(old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not the same, in words: `parameter max_samples of 04_replay_drafter: 4, now 8`; hashes are only said to differ."""
    said = []
    for group in new:
        before, now = old.get(group, {}), new[group]
        for name in sorted(before.keys() | now.keys()):
            if name not in now or name not in before:
                said.append(f"{group} {name} is {'new' if name in now else 'gone'}")
            elif before[name] != now[name]:
                shown = group in ("parameter", "version")
                said.append(f"{group} {name}: {before[name]}, now {now[name]}" if shown else f"{group} {name} has changed")
    return said


def finished(data: Mapping[str, Any]) -> list[str]:
    """The notebooks of a run that ran through."""
    return [n["name"] for n in data["notebooks"] if n["error"] is None]


def left(data: Mapping[str, Any]) -> list[str]:
    """The notebooks that a run still owes: not run, or broken."""
    return [name for name in data.get("planned", ()) if name not in finished(data)]


def earlier_runs(folder: Path) -> list[Run]:
    """The runs of a case that can be gone on with, newest first."""
    runs = []
    for directory in sorted(folder.glob("*/"), key=lambda d: d.name, reverse=True):
        with suppress(RunError, OSError):
            run = read_run(directory)
            if "identity" in run.data and "planned" in run.data:
                runs.append(run)
    return runs


class Held:
    """The right to write into a run's folder. The system takes it back from a process that dies."""

    def __init__(self, directory: Path) -> None:
        self._lock = FileLock(directory / LOCK, thread_local=False)

    def take(self) -> bool:
        """False where another process has it. A disk that knows no locks gives it to everybody."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        except (OSError, NotImplementedError):
            pass
        return True

    def give(self) -> None:
        """Give it back, and leave nothing in the folder."""
        if self._lock.is_locked:
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Wait until no other process is in here; where the disk knows no locks, go on."""
    held = FileLock(lock)
    with suppress(OSError, NotImplementedError):
        held.acquire()
    try:
        yield
    finally:
        held.release()
