"""A recording: what one server answered to a list of prompts, one JSON object a line, written as it comes.

Kinds of line: `session` (first: engine, command, speculation settings, drafter's config), `scrape` (counters of the server at a moment),
`request` (one prompt, its answer and what the engine counted), `failure` (a request that got no answer), `end`. A line that was
cut off is counted, not read. The same file is what `eaglelab live` writes and what `[engine] counters` and `recordings` name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from eaglelab.served.counts import LARGEST, MOST_STEPS, ServedCounts, count_of, counts_of

FORMAT = 1
KINDS = ("session", "scrape", "request", "failure", "end")


class RecordingError(ValueError):
    """A file that is no recording, with what was found in it."""


@dataclass(frozen=True)
class Session:
    """What was asked of which server. None: not known."""

    engine: str | None = None
    """`sglang==0.5.23`, as `parse_engine` takes it."""
    url: str | None = None
    command: str | None = None
    """The exact command line of the server."""
    dtype: str | None = None
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    """Nodes of a verify pass, the root included (SGLang's counting)."""
    temperature: float = 0.0
    max_new_tokens: int | None = None
    draft_config: dict[str, Any] | None = None
    """config.json of the drafter as it was served."""
    started: str | None = None
    """ISO 8601, with the offset from UTC."""
    server_info: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class Request:
    """One prompt, its answer, and what the engine counted for it. None: the engine does not tell."""

    index: int
    """Place of the prompt in the list that was sent."""
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...] | None = None
    """The answer's tokens."""
    text: str | None = None
    sample: str | None = None
    """Key of the dump's sample that the prompt is of."""
    accepted: tuple[int, ...] | None = None
    """Drafted tokens accepted in each verify pass, in order."""
    histogram: tuple[int, ...] | None = None
    """Entry i counts the passes that accepted i drafted tokens."""
    verify_steps: int | None = None
    finish_reason: str | None = None
    seconds: float | None = None
    meta_info: dict[str, Any] = field(default_factory=dict)
    """What the engine sent beside the answer, as it came."""

    def counts(self, steps: int | None = None) -> ServedCounts | None:
        """None where the engine told neither accepted counts nor a histogram for this request, or more accepted in a pass than the K steps draft."""
        if self.beyond(steps):
            return None
        if self.accepted is not None:
            return ServedCounts.from_accepted(self.accepted, steps)
        return None if self.histogram is None else ServedCounts.from_histogram(self.histogram[: (steps or MOST_STEPS) + 1], steps)

    def beyond(self, steps: int | None) -> bool:
        """Whether a pass is said to have accepted more drafted tokens than K steps draft."""
        most = max(self.accepted or [i for i, n in enumerate(self.histogram or ()) if n], default=0)
        return most > (MOST_STEPS if steps is None else steps)


@dataclass(frozen=True)
class Scrape:
    """Counters of a server at a moment. `when`: `before` and `after` the prompts, or `during`."""

    when: str
    time: str
    metrics: str | None = None
    """Prometheus text."""
    server_info: dict[str, Any] | None = None


@dataclass(frozen=True)
class Failure:
    """A request that got no answer."""

    index: int
    error: str
    time: str | None = None


@dataclass(frozen=True)
class Recording:
    path: Path | None
    session: Session
    requests: tuple[Request, ...] = ()
    scrapes: tuple[Scrape, ...] = ()
    failures: tuple[Failure, ...] = ()
    ended: bool = False
    """False: the run was cut off."""
    cut_lines: int = 0
    """Lines that could not be read, as a crash leaves them."""

    @property
    def counts(self) -> ServedCounts | None:
        """Over all requests; None where the engine told nothing for any."""
        told = [c for r in self.requests if (c := r.counts(self.session.num_steps)) is not None]
        return sum(told[1:], told[0]) if told else None

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Raises RecordingError for a file that cannot be read or holds no session line first."""
        path = Path(path)
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")  # U+2028 in an answer ends no line
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
        found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        cut, ended = 0, False
        for number, line in enumerate(lines, start=1):
            entry = _object(line)
            if number == 1 and entry.get("kind") != "session":
                raise RecordingError(f"{path}: line 1 is no session of a recording, expected one written by `eaglelab live`")
            if entry.get("kind") not in KINDS:
                cut += bool(line.strip())
                continue
            ended = entry["kind"] == "end"  # and not gone on with after that
            try:
                found[entry["kind"]].append(_record(entry, f"{path}, line {number}"))
            except RecordingError:
                if number == 1:
                    raise
                cut += 1
        if not found["session"]:
            raise RecordingError(f"{path} is empty, expected a recording written by `eaglelab live`")
        answered = {r.index: r for r in found["request"]}  # asked again after a restart: the last answer counts
        failures = tuple(f for f in found["failure"] if f.index not in answered)
        requests = tuple(answered[i] for i in sorted(answered))
        return cls(path, found["session"][0], requests, tuple(found["scrape"]), failures, ended, cut)


TYPES = {"session": Session, "scrape": Scrape, "request": Request, "failure": Failure}


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST


VALUES = (
    (
        ("index", "num_steps", "eagle_topk", "num_draft_tokens", "max_new_tokens", "verify_steps", "format"),
        "an integer, 0 or more",
        lambda v: count_of(v) is not None,
    ),
    (
        ("prompt_token_ids", "token_ids", "accepted", "histogram"),
        "a list of integers, 0 or more",
        lambda v: counts_of(v) is not None,
    ),
    (("temperature", "seconds"), "a number", _number),
    (("draft_config", "server_info", "meta_info"), "an object", lambda v: isinstance(v, dict)),
    (("notes",), "a list of texts", _texts),
    (
        ("engine", "url", "command", "dtype", "started", "text", "sample", "finish_reason", "when", "time", "metrics", "error"),
        "text",
        lambda v: isinstance(v, str),
    ),
)
"""(fields, what each holds, whether a value does)."""


def _object(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _record(entry: Mapping[str, Any], where: str) -> Any:
    kind = entry["kind"]
    if kind == "end":
        return True
    known = {f.name for f in fields(TYPES[kind])}
    values = {key: value for key, value in entry.items() if key in known and value is not None}
    for name, value in values.items():
        what, fits = next(kind_of for names, *kind_of in VALUES if name in names)
        if not fits(value):
            raise RecordingError(f"{where}: {name} is {str(value)[:60]!r}, expected {what}")
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    try:
        return TYPES[kind](**values)
    except TypeError as error:
        raise RecordingError(f"{where}: {kind} lacks a field ({error})") from None


class RecordingWriter:
    """Appends lines and puts each on disk before it returns, so that a crash costs at most the line that was being written.

    A file that is there already is gone on with (its session must be of the same engine): `done` names the requests that it holds.
    """

    def __init__(self, path: str | Path, session: Session) -> None:
        self.path = Path(path)
        self.done: set[int] = set()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size:
            before = Recording.load(self.path)
            if before.session.engine != session.engine:
                raise RecordingError(f"{self.path} is a recording of {before.session.engine}, not of {session.engine}: give another file")
            self.done = {r.index for r in before.requests}
            with self.path.open("rb+") as file:  # a line that was cut off must not swallow the next one
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
        else:
            self._write("session", asdict(session))

    def write(self, record: Request | Scrape | Failure) -> None:
        kind = next(k for k, t in TYPES.items() if isinstance(record, t))
        self._write(kind, asdict(record))
        if isinstance(record, Request):
            self.done.add(record.index)

    def end(self) -> None:
        self._write("end", {})

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        kept = {key: value for key, value in values.items() if value not in (None, (), {})}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **kept}, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
