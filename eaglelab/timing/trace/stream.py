"""A chrome trace's events as a stream, in bounded memory.

The file is one JSON object with `traceEvents`, or a bare list of events; some producers leave the end out. Only events that a reader asks for
are decoded: of a large trace nearly all are `cpu_op` and `python_function`, which are stepped over as bytes.

The format: "Trace Event Format" (Google, 2016) for `ph`, `ts`, `dur` and the list that may lack its end; libkineto's output_json.cpp for the
order of an event's keys (`ph`, `cat`, `name`, …) that `_Reading._kind` makes use of; of a key that stands twice in an event the first counts there.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eaglelab.timing.errors import TimingError
from eaglelab.timing.trace.blocks import BLOCK, Blocks
from eaglelab.timing.trace.borders import borders
from eaglelab.timing.trace.cursor import LARGEST, BadValue, Cursor, CutOff, TooLarge, decoded
from eaglelab.timing.trace.looks import BOM, EXPECTED


class Event(NamedTuple):
    """A complete event (`ph` X). Times in microseconds, as floats, since the trace's own zero."""

    cat: str
    name: str
    pid: Any
    tid: Any
    ts: float
    dur: float
    args: dict[str, Any]


KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
SPANS = ("user_annotation", "gpu_user_annotation")

PROCESS_KEYS = {"process_name": "name", "process_labels": "labels", "thread_name": "name"}
LARGEST_KEPT = 4 << 20
"""Bytes of a value beside the events that is kept in `metadata`."""


@dataclass
class TraceFile:
    """One file, read once from front to back with `events`; the rest is filled while reading."""

    path: Path
    events_seen: int = 0
    """Events of every kind."""
    kept: int = 0
    by_category: dict[str, int] = field(default_factory=dict)
    """All complete events of the file, asked for or not; without a category under ""."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys beside the events (`distributedInfo` with rank and world size, `deviceProperties`, `schemaVersion`, …), and
    `process_labels`, `process_name`, `thread_name` by (pid, tid)."""
    notes: list[str] = field(default_factory=list)
    """What was skipped or mended: events without a duration or with a negative one, a file that ends in the middle, …"""
    zero: int | None = None
    """The file's own `ts` that `Event.ts` counts from: the whole microsecond of the first event that has one, whatever was asked for.
    Traces of one host are laid side by side with it: `baseTimeNanoseconds` (in `metadata`, where told) + 1000 * (zero + ts)."""
    block: int = BLOCK
    """Bytes that are read at once."""

    def events(self, categories: Collection[str], names: Collection[str] = ()) -> Iterator[Event]:
        """Complete events of these categories, in the file's order; `names` adds events of any category that begin with one of these.

        A pair of `ph` B and E (matched per pid and tid) is a complete event too, at the place of its E. Flows, counters, instants and
        async events are none. Left out, with a note: events without a finite time or duration, with a negative duration, or that are no JSON.

        Raises TimingError for what is no chrome trace, and for a gzip that breaks before its first event; a file that ends later gives what
        it holds, with a note.
        """
        self.events_seen = self.kept = 0
        self.by_category, self.metadata, self.notes, self.zero = {}, {}, [], None
        reading = _Reading(self, _strings(categories), _strings(names))
        try:
            for event in reading.run():
                self.kept += 1
                yield event
        finally:
            self.by_category = dict(reading.complete)
            self.notes += reading.told()


def _strings(names: Collection[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


PAST, COMMA, OPEN, CLOSE, LIST, LIST_END, COLON = None, *b",{}[]:"
HEAD = re.compile(rb'\{\s*"ph"\s*:\s*"([^"\\]*)"')
CAT = re.compile(rb'\s*,\s*"cat"\s*:\s*"([^"\\]*)"')
NAME = re.compile(rb'\s*,\s*"name"\s*:\s*"([^"\\]*)')
NEXT = re.compile(rb'\}\s*,\s*(\{\s*"[A-Za-z_])')
TS = re.compile(rb'"ts"\s*:\s*"?(\d+)(\.\d+)"?\s*[,}]')
TAKEN = ("X", "B", "E", "M")
COARSE, FINE = 2.0**33, 2.0**43
"""Above the first a float64 holds a time in microseconds to some picoseconds only, and the difference of two would show it. Below the second it
still tells whole nanoseconds apart (now in microseconds since 1970 it holds to 250 ns)."""
KINDS_KEPT = 1 << 16


class _Reading:
    """One pass over one file."""

    def __init__(self, file: TraceFile, categories: tuple[str, ...], names: tuple[str, ...]) -> None:
        self.file, self.categories, self.names = file, frozenset(categories), names
        self.blocks = Blocks(file.path, file.block)
        self.cursor = Cursor(self.blocks)
        self.complete: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()  # of what was left out, by the words of its note
        self.remarks: list[str] = []
        self.open: defaultdict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)  # B events that wait for their E
        self.raw_names = tuple(name.encode() for name in names)
        # An event's first bytes: its braces and spaces, ph, cat and what of its name is asked for.
        self.width = 64 + 8 * math.ceil(max(map(len, self.raw_names), default=0) / 8)
        self.kinds: dict[bytes, str | bool | None] = {}
        self.weights = np.random.default_rng(0).integers(1, 2**63, self.width // 8, np.uint64) | np.uint64(1)

    def told(self) -> list[str]:
        """The notes, one sentence each."""
        waiting = sum(map(len, self.open.values()))
        counts = self.counts + Counter({"that begin (`ph` B) and never end": waiting})
        return [f"{count:,} event{'s' * (count != 1)} left out: {what}" for what, count in counts.items()] + self.remarks

    # -- the file ------------------------------------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Event]:
        cursor = self.cursor
        cursor.more()
        if cursor.data.startswith(BOM):
            cursor.at = len(BOM)
        try:
            if cursor.peek() == LIST:
                yield from self._list(bare=True)
            else:
                yield from self._object()
        except CutOff:
            self._cut()
        except (TooLarge, BadValue) as error:
            self._stop(error)
        if self.blocks.broken and self.file.events_seen:
            self.remarks.append(f"{self.blocks.broken}: read up to there")

    def _object(self) -> Iterator[Event]:
        """The top level: `traceEvents` and what stands beside it."""
        cursor, found, keys = self.cursor, False, []
        cursor.at += 1
        while (byte := cursor.peek()) != CLOSE:
            if byte is PAST:
                raise CutOff
            if byte == COMMA:
                cursor.at += 1
                continue
            key, _ = cursor.value()
            if not isinstance(key, str) or cursor.peek() != COLON:
                if cursor.peek() is PAST:
                    raise CutOff
                raise BadValue
            cursor.at += 1
            if cursor.peek() is PAST:
                raise CutOff
            keys.append(key)
            if key == "traceEvents" and not found:
                if cursor.peek() != LIST:
                    raise TimingError(f"{self.file.path}: its `traceEvents` is no list. {EXPECTED}")
                found = True
                yield from self._list()
            else:
                self._beside(key)
        cursor.at += 1
        if not found:
            told = ", ".join(map(repr, keys[:6])) + (", …" if len(keys) > 6 else "")
            raise TimingError(f"{self.file.path}: JSON without `traceEvents` (its keys: {told or 'none'}). {EXPECTED}")
        if cursor.peek() is not PAST:
            self.remarks.append(f"something else follows the end of the trace at byte {cursor.position:,}: not read")

    def _beside(self, key: str) -> None:
        """A value that is no list of events, into the metadata."""
        value, raw = self.cursor.value()
        if key == "traceEvents":
            self.remarks.append("a second `traceEvents`: not read")
        elif len(raw) > LARGEST_KEPT:
            self.remarks.append(f"`{key}` of {len(raw):,} bytes: not kept")
        else:
            self.file.metadata[key] = value

    def _list(self, bare: bool = False) -> Iterator[Event]:
        """The events. Whole blocks of them where their borders are sure, one by one elsewhere."""
        cursor, file = self.cursor, self.file
        cursor.at += 1
        alone_until = pause = 0  # events are decoded one by one up to this byte; how far, where borders were in doubt again and again
        while (byte := cursor.peek()) != LIST_END:
            if byte is PAST:
                if bare and not self.blocks.broken:  # the format lets a bare list go without its end
                    return
                raise CutOff
            if byte == COMMA:
                cursor.at += 1
                continue
            if byte == OPEN and file.zero is not None and cursor.position >= alone_until:
                if len(cursor.data) - cursor.at < file.block // 2:
                    cursor.more()
                begun, held = cursor.position, len(cursor.data) - cursor.at
                doubt = yield from self._many()
                passed = cursor.position - begun
                if doubt is None and passed:
                    continue
                pause = min(2 * pause + 1024, file.block) if 4 * passed < held else 0
                alone_until = cursor.position + max(pause, (doubt or 0) + 1)
            try:
                value, raw = cursor.value()
            except BadValue as error:
                if not self._past_bad(error):
                    raise CutOff from None
                continue
            if file.events_seen == 0 and not (isinstance(value, dict) and "ph" in value):
                raise TimingError(f"{file.path}: a list of something else than trace events: its first element has no `ph`. {EXPECTED}")
            file.events_seen += 1
            if (event := self._take(value, raw)) is not None:
                yield event
        cursor.at += 1

    def _past_bad(self, error: BadValue) -> bool:
        """Step over an event that is no JSON: to where its brackets close, or to the next border, whichever comes first."""
        cursor, start = self.cursor, self.cursor.at
        last = len(cursor.data) if error.end is None else error.end
        while (found := NEXT.search(cursor.data, start, last)) is None and error.end is None:
            if len(cursor.data) - cursor.at > LARGEST:
                raise TooLarge
            start = max(0, len(cursor.data) - cursor.at - 256)
            if not cursor.more():
                return False
            last = len(cursor.data)
        cursor.at = found.start(1) if found else error.end
        self._first("is no JSON")
        self.file.events_seen += 1
        self.counts["what stands there is no JSON"] += 1
        return True

    def _first(self, what: str) -> None:
        """Nothing is known to be an event yet: a file that begins with rubbish is no trace."""
        if self.file.events_seen == 0:
            raise TimingError(f"{self.file.path}: its first event {what}. {EXPECTED}")

    def _cut(self) -> None:
        why = self.blocks.broken or f"the file ends in the middle (after {self.cursor.position:,} bytes)"
        if self.file.events_seen == 0:
            raise TimingError(f"{self.file.path}: {why}, before its first event. Copy it again, or record it again.")
        if not self.blocks.broken:
            self.remarks.append(f"{why}: read up to there")

    def _stop(self, error: Exception) -> None:
        what = f"a value of more than {LARGEST >> 20} MB" if isinstance(error, TooLarge) else "what is no JSON"
        where = f"{what} at byte {self.cursor.position:,}"
        if self.file.events_seen == 0:
            raise TimingError(f"{self.file.path}: {where}, before its first event. {EXPECTED}")
        self.remarks.append(f"{where}: read up to there")

    # -- many events at once -------------------------------------------------------------------------------------------------------------------

    def _many(self) -> Iterator[Event]:
        """The events that are whole in what is held, the cursor at the next one then. Returns the bytes from there to a doubtful brace."""
        cursor = self.cursor
        data, at = cursor.data, cursor.at
        found = borders(data, at)
        count = int(np.searchsorted(found.starts, len(data) - at - self.width, "right"))
        following = int(found.starts[count]) if count < len(found.starts) else found.next_start
        if count:
            starts, ends = found.starts[:count] + at, found.ends[:count] + at
            wanted = np.flatnonzero(self._wanted(data, starts))
            raws = [data[start:end] for start, end in zip(starts[wanted].tolist(), ends[wanted].tolist(), strict=True)]
            self.file.events_seen += count
            cursor.at = at + following
            for value, raw in zip(self._decoded(raws), raws, strict=True):
                if value is not None and (event := self._take(value, raw)) is not None:
                    yield event
        return None if found.doubt is None else found.doubt - following

    def _wanted(self, data: bytes, starts: np.ndarray) -> np.ndarray:
        """Which events have to be decoded, by their first bytes; the others are counted. [n] bool."""
        first_bytes = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), self.width)[starts]  # [n, width]
        keys = (first_bytes.view(np.uint64) * self.weights).sum(1, dtype=np.uint64)
        _, one, which = np.unique(keys, return_index=True, return_inverse=True)
        kinds = first_bytes[one]  # [kinds, width]
        if not (kinds[which] == first_bytes).all():  # two of them with one key
            return np.ones(len(starts), bool)
        wanted = np.zeros(len(one), bool)
        counts = np.bincount(which, minlength=len(one)).tolist()
        for i, kind in enumerate(map(bytes, kinds)):
            if (category := self._kind(kind)) is True:
                wanted[i] = True
            elif category is not None:
                self.complete[category] += counts[i]
        return wanted[which]

    def _kind(self, first_bytes: bytes) -> str | bool | None:
        """True: to be decoded; else the category of a complete event that nobody asks for, None of another kind of event."""
        if (kind := self.kinds.get(first_bytes, False)) is not False:
            return kind
        if len(self.kinds) >= KINDS_KEPT:
            self.kinds.clear()
        kind = self.kinds[first_bytes] = self._kind_of(first_bytes)
        return kind

    def _kind_of(self, first_bytes: bytes) -> str | bool | None:
        if not (head := HEAD.match(first_bytes)):
            return True
        if head[1] != b"X":
            return True if head[1].decode("utf-8", "replace") in TAKEN else None
        if not (cat := CAT.match(first_bytes, head.end())):
            return True
        category = cat[1].decode("utf-8", "replace")
        if category in self.categories:
            return True
        if self.raw_names:
            if not (name := NAME.match(first_bytes, cat.end())):
                return True
            if any(name[1].startswith(asked) for asked in self.raw_names):
                return True
            ended = first_bytes[name.end() : name.end() + 1] == b'"'  # else it goes on, or with an escape
            if not ended and any(asked.startswith(name[1]) for asked in self.raw_names):
                return True
        return category

    def _decoded(self, raws: list[bytes]) -> list[Any]:
        """The events of these bytes; None for what is no JSON."""
        try:
            values = json.loads((b"[" + b",".join(raws) + b"]").decode("utf-8"), strict=False)
            if len(values) == len(raws):
                return values
        except (ValueError, RecursionError):
            pass
        return list(map(self._one, raws))

    def _one(self, raw: bytes) -> Any:
        try:
            return decoded(raw)
        except BadValue:
            self.counts["what stands there is no JSON"] += 1
            return None

    # -- one event -----------------------------------------------------------------------------------------------------------------------------

    def _take(self, event: Any, raw: bytes) -> Event | None:
        """A complete event that is asked for, or None."""
        ph = event.get("ph") if type(event) is dict else None
        if type(ph) is not str:
            self.counts["no event, it has no `ph`"] += 1
            return None
        if self.file.zero is None and ph != "M":  # names of processes carry 0, or the time of something else
            time = _number(event.get("ts"))
            self.file.zero = None if time is None else (_parts(raw, time) or (math.floor(time),))[0]
        if ph == "X":
            category, name = _text(event.get("cat")), _text(event.get("name"))
            self.complete[category] += 1
            if category in self.categories or self._named(name):
                return self._built(event, category, name, self._time(event, raw), _number(event.get("dur")))
        elif ph == "B":
            event["ts"] = self._time(event, raw)
            self.open[_place(event)].append(event)
        elif ph == "E":
            return self._ended(event, self._time(event, raw))
        elif ph == "M":
            self._described(event)
        return None

    def _named(self, name: str) -> bool:
        return bool(self.names) and name.startswith(self.names)

    def _built(self, event: dict[str, Any], category: str, name: str, ts: float | None, dur: float | None) -> Event | None:
        if ts is None:
            self.counts["without a finite `ts`"] += 1
        elif dur is None:
            self.counts["without a finite `dur`"] += 1
        elif dur < 0:
            self.counts["with a negative duration"] += 1
        else:
            args = event.get("args")
            return Event(category, name, *_place(event), ts, float(dur), args if type(args) is dict else {})
        return None

    def _ended(self, end: dict[str, Any], ts: float | None) -> Event | None:
        """The last event that began in the same thread, by its name where the end has one, as a complete one."""
        waiting = self.open[_place(end)]
        name = end.get("name")
        for i in range(len(waiting) - 1, -1, -1):
            if name is None or waiting[i].get("name") == name:
                break
        else:
            self.counts["that end (`ph` E) and never began"] += 1
            return None
        begin = waiting.pop(i)
        category, name, started = _text(begin.get("cat")), _text(begin.get("name")), begin["ts"]
        self.complete[category] += 1
        if category not in self.categories and not self._named(name):
            return None
        args = [part for part in (begin.get("args"), end.get("args")) if isinstance(part, dict)]
        begin["args"] = {key: value for part in args for key, value in part.items()}
        return self._built(begin, category, name, started, None if ts is None or started is None else ts - started)

    def _time(self, event: dict[str, Any], raw: bytes) -> float | None:
        """µs since the zero. None where it has no finite time."""
        time, zero = _number(event.get("ts")), self.file.zero
        if time is None or zero is None:
            return None
        if type(time) is float and time >= COARSE:
            ns = round(1000 * time)  # Kineto writes three decimals: whole nanoseconds
            if time < FINE and ns / 1000 == time:
                return (ns - 1000 * zero) / 1000
            if parts := _parts(raw, time):
                return float(parts[0] - zero) + parts[1]
        return float(time - zero)

    def _described(self, event: dict[str, Any]) -> None:
        """The name or labels of a process or thread."""
        name, args = event.get("name"), event.get("args")
        if isinstance(name, str) and name in PROCESS_KEYS and isinstance(args, dict) and PROCESS_KEYS[name] in args:
            self.file.metadata.setdefault(name, {})[_place(event)] = args[PROCESS_KEYS[name]]


def _parts(raw: bytes, time: int | float) -> tuple[int, float] | None:
    """An event's time as it is written: whole microseconds, and the rest; None where it is written without a point, or otherwise."""
    found = TS.search(raw)
    return (int(found[1]), float(found[2])) if found and float(found[1] + found[2]) == time else None


def _text(value: Any) -> str:
    return value if type(value) is str else "" if value is None else str(value)


def _place(event: dict[str, Any]) -> tuple[Any, Any]:
    """(pid, tid), each as told where it is a number or a string."""
    pid, tid = event.get("pid"), event.get("tid")
    return (str(pid) if isinstance(pid, (dict, list)) else pid), (str(tid) if isinstance(tid, (dict, list)) else tid)


def _number(value: Any) -> int | float | None:
    """A finite number, also where it stands in quotes; None for all else."""
    if type(value) is str:
        try:
            value = int(value) if value.isdecimal() else float(value)
        except ValueError:
            return None
    if type(value) not in (float, int):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number that no float holds
        return None
