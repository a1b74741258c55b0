"""A sweep's folder: what it is of, every result as it comes, every answer, every log.

`sweep.json` says what the sweep is of (a folder holds one: the same launch line, prompts and bounds); `results.jsonl` has a measured repeat a
line, with the keys of `measured.COLUMNS` and more; `failures.jsonl` what could not be measured; `runs/NAME/` the server's log and the answers.
A line is on disk before the next thing happens, and one that a crash cut off is mended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eaglelab.findings import plain
from eaglelab.timing.errors import TimingError

FORMAT = 1
IDENTITY = ("launch", "engine", "max_new_tokens", "requests", "prompts")
"""Keys of sweep.json that must be the same when a sweep is gone on with."""
IDENTITY_IF_TOLD = ("command", "machine")
"""The same, of a folder that has them."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Store:
    """One folder, held by one sweep at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def held(self, about: Mapping[str, Any]) -> Iterator[Store]:
        """The folder made or gone on with. about: what the sweep is of. Raises TimingError where another sweep holds it or it is of another."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise TimingError(f"--out {self.folder} cannot be used as a folder: {error.strerror}") from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TimingError(
                    f"{self.folder} is in use by another sweep that is running: wait for it, or give another folder, --out DIR"
                ) from None
            self._same(about)
            self.rows, self.failures = (self._read(self.folder / name) for name in ("results.jsonl", "failures.jsonl"))
            yield self
        finally:
            os.close(lock)

    def _same(self, about: Mapping[str, Any]) -> None:
        path = self.folder / "sweep.json"
        new = plain({"format": FORMAT, **about})
        if not path.exists():
            if (self.folder / "results.jsonl").exists():
                raise TimingError(
                    f"{self.folder} holds results and no sweep.json, which says what they are of: give another folder, --out DIR"
                )
            write_whole(path, new)
            return
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TimingError(f"{path} cannot be read ({error}): it says what the results are of. Give another folder, --out DIR") from None
        told = [key for key in IDENTITY_IF_TOLD if isinstance(old, dict) and key in old]
        for key in (*IDENTITY, *told) if isinstance(old, dict) else ():
            if old.get(key) != new.get(key):
                shown = [json.dumps(v, ensure_ascii=False)[:300] for v in (old.get(key), new.get(key))]
                raise TimingError(
                    f"{self.folder} holds a sweep with another {key}: {shown[0]}, now {shown[1]}. Give another folder, --out DIR"
                )
        if not isinstance(old, dict):
            raise TimingError(f"{path} holds no JSON object: it says what the results are of. Give another folder, --out DIR")
        write_whole(path, old | {k: v for k, v in new.items() if k not in ("created", *IDENTITY)})

    def _read(self, path: Path) -> list[dict[str, Any]]:
        """The lines of a file, mended: a last one that was cut off is taken away."""
        if not path.exists():
            return []
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            if _object(content[end:]) is None:
                with path.open("rb+") as file:
                    file.truncate(end)
                self.notes.append(f"{path.name}: its last line was cut off and is left out; what it was of is measured again")
            else:
                append(path, b"\n")
        rows, bad = [], 0
        for line in path.read_bytes().split(b"\n"):
            found = _object(line)
            bad += found is None and bool(line.strip())
            rows += [] if found is None else [found]
        if bad:
            self.notes.append(f"{path.name}: {bad} lines are no JSON objects and are left out")
        return rows

    def result(self, row: Mapping[str, Any]) -> None:
        self._add("results.jsonl", self.rows, row)

    def failure(self, row: Mapping[str, Any]) -> None:
        self._add("failures.jsonl", self.failures, row)

    def _add(self, name: str, rows: list[dict[str, Any]], row: Mapping[str, Any]) -> None:
        entry = plain(dict(row))
        append(self.folder / name, _line(entry))
        rows.append(entry)

    def run(self, name: str) -> Path:
        """The folder of one run."""
        folder = self.folder / "runs" / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _disk(folder, error) from None
        return folder

    def answers(self, run: str, rows: list[dict[str, Any]]) -> None:
        """Appended to the run's answers in one piece."""
        append(self.run(run) / "answers.jsonl", b"".join(_line(plain(row)) for row in rows))

    def read_answers(self, run: str, batch: int, repeat: int) -> dict[int, dict[str, Any]]:
        """{prompt: its answer} of one repeat; {} where there is none."""
        path = self.folder / "runs" / run / "answers.jsonl"
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError:
            return {}
        found = (entry for line in lines if (entry := _object(line)) is not None)
        return {e["prompt"]: e for e in found if (e.get("batch"), e.get("repeat")) == (batch, repeat) and isinstance(e.get("prompt"), int)}


def append(path: Path, content: bytes) -> None:
    """On disk when it returns, or not at all. Raises TimingError where the disk is full or cannot be written."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise _disk(path, error) from None
    try:
        before = os.fstat(file).st_size
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise _disk(path, error) from None
    finally:
        os.close(file)


def write_whole(path: Path, content: Any) -> None:
    """A JSON file in one step: never half of it."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise _disk(path, error) from None


def _disk(path: Path, error: OSError) -> TimingError:
    if error.errno in NO_SPACE:
        return DiskFull(
            f"no space is left on the disk for {path}: free some and start the same sweep again. What was measured before is kept"
        )
    return TimingError(f"{path} cannot be written: {error.strerror}")


class DiskFull(TimingError):
    """Nothing more can be kept, so that nothing more is measured."""


def _line(entry: Any) -> bytes:
    return json.dumps(entry, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
