"""What of a trace file is needed, as columns: spans, launches and kernels of each rank."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from eaglelab.timing.trace.kernels import cpu_collective
from eaglelab.timing.trace.passes import Span
from eaglelab.timing.trace.spans import frame_prefixes, rule_of
from eaglelab.timing.trace.stream import KERNELS, LAUNCHES, SPANS, Event, TraceFile

COLLECTIVES = ("c10d::", "gloo:", "mpi:", "sgl_kernel::shm", "_C::shm", "_C_cpu::shm")
"""How the names of a CPU's collectives begin."""
LAUNCH = re.compile(r"(?i)launch")
RANK = re.compile(r"(?i)(?<![a-z])(TP|DP|PP|EP)-?(\d+)(?=[-._\]]|$)")
MERGED = re.compile(r"^\[(?:TP|DP|PP|EP)\d+")
NO_CORRELATION = -1


@dataclass
class Names:
    """Names, or places in a trace, to numbers."""

    index: dict[Any, int] = field(default_factory=dict)

    def number(self, name: Any) -> int:
        return self.index.setdefault(name, len(self.index))

    @property
    def all(self) -> list[Any]:
        return list(self.index)


class Rows:
    """Columns of the standard library's arrays: a trace of a gigabyte holds millions of events."""

    def columns(self) -> dict[str, np.ndarray]:
        """As numpy arrays [n], of the same memory."""
        return {key: np.frombuffer(value, value.typecode) for key, value in vars(self).items()}

    def kept(self, keep: np.ndarray) -> Rows:
        """The rows where `keep` [n] is true."""
        return type(self)(
            **{key: array(value.typecode, np.frombuffer(value, value.typecode)[keep].tobytes()) for key, value in vars(self).items()}
        )


@dataclass
class Kernels(Rows):
    """The device's timeline."""

    start: array = field(default_factory=lambda: array("d"))
    end: array = field(default_factory=lambda: array("d"))
    name: array = field(default_factory=lambda: array("i"))
    stream: array = field(default_factory=lambda: array("i"))
    correlation: array = field(default_factory=lambda: array("q"))
    copy: array = field(default_factory=lambda: array("b"))


@dataclass
class Launches(Rows):
    """Calls of the driver or the runtime that have a correlation."""

    at: array = field(default_factory=lambda: array("d"))
    thread: array = field(default_factory=lambda: array("i"))
    correlation: array = field(default_factory=lambda: array("q"))
    launch: array = field(default_factory=lambda: array("b"))


@dataclass
class Operators(Rows):
    """The CPU's operators, or its collectives."""

    start: array = field(default_factory=lambda: array("d"))
    end: array = field(default_factory=lambda: array("d"))
    name: array = field(default_factory=lambda: array("i"))
    thread: array = field(default_factory=lambda: array("i"))


@dataclass
class Recording:
    """One rank's part of a file."""

    path: Path
    rank: str
    names: Names
    places: Names = field(default_factory=Names)
    """Threads and streams."""
    kernels: Kernels = field(default_factory=Kernels)
    launches: Launches = field(default_factory=Launches)
    operators: Operators = field(default_factory=Operators)
    """Only of a trace without kernels."""
    collectives: Operators = field(default_factory=Operators)
    spans: dict[int, list[Span]] = field(default_factory=dict)
    """By thread."""
    device_spans: dict[int, list[Span]] = field(default_factory=dict)
    """`gpu_user_annotation`, by stream."""
    homes: dict[int, Any] = field(default_factory=dict)
    """The process of a thread, the device of a stream."""
    other_spans: Counter = field(default_factory=Counter)
    """Annotations that no rule knows."""
    operators_read: bool = False
    has_device: bool = False
    """The file tells of a GPU, whether or not its kernels were recorded."""


def read_recordings(path: Path) -> tuple[list[Recording], list[str]]:
    """The ranks of a file, and notes. Raises TimingError."""
    file = TraceFile(path)
    reader = _Reader(file)
    reader.read((*KERNELS, *LAUNCHES, *SPANS), (*frame_prefixes(), *COLLECTIVES))
    notes = list(file.notes)
    if not any(len(r.kernels.start) for r in reader.ranks.values()) and any(r.spans for r in reader.ranks.values()):
        again = TraceFile(path)
        _Operators(again, reader).read()
    ranks = [
        one for rank in reader.ranks.values() if rank.spans or rank.device_spans or len(rank.kernels.start) for one in _processes(rank)
    ]
    if reader.skipped:
        notes.append(f"{reader.skipped:,} events with a time that is no number or a negative duration left out")
    return ranks, notes


def _processes(whole: Recording) -> list[Recording]:
    """One recording a process, where several run a loop; a device goes with the process that launched most of its kernels."""
    looping = {whole.homes[place] for place, spans in whole.spans.items() if any(s.rule.begins is not None for s in spans)}
    if len(looping) < 2:
        return [whole]
    order = sorted(looping, key=str)
    homes = np.full(len(whole.places.index), -1)
    devices = Names()
    device_of = np.full(len(homes), -1)
    for place, home in whole.homes.items():
        homes[place] = order.index(home) if home in looping else -1
        device_of[place] = devices.number(home)
    launches, kernels = whole.launches.columns(), whole.kernels.columns()
    device = device_of[kernels["stream"].astype(int)]
    owner = np.full(len(device), -1)
    for one in np.unique(device):
        mine = device == one
        by = [launches["correlation"][homes[launches["thread"].astype(int)] == i] for i in range(len(order))]
        owner[mine] = int(np.argmax([int(np.isin(kernels["correlation"][mine], own).sum()) for own in by]))
    out = []
    for i, pid in enumerate(order):
        label = f"{whole.rank} process {pid}".strip()
        rows = {
            key: getattr(whole, key).kept(homes[np.array(getattr(whole, key).thread, int)] == i)
            for key in ("launches", "operators", "collectives")
        }
        spans = {place: spans for place, spans in whole.spans.items() if homes[place] == i}
        streams = set(kernels["stream"][owner == i].tolist())
        device_spans = {place: spans for place, spans in whole.device_spans.items() if place in streams}
        out.append(replace(whole, rank=label, kernels=whole.kernels.kept(owner == i), spans=spans, device_spans=device_spans, **rows))
    return out


def file_rank(path: Path, metadata: dict[str, Any]) -> str:
    """`TP0`, `TP1 DP0`, `rank 3`, `DP1 rank 0`: from the file's name, else from `distributedInfo`; `` where nothing tells."""
    name = path.name
    found = re.search(r"(?<![a-z])rank[-_]?(\d+)", name)
    parts = [f"{kind.upper()}{int(number)}" for kind, number in RANK.findall(name)]
    if found:  # vLLM 0.32 (v1/worker/gpu_worker.py): dp1_pp0_tp0_…_rank0, a rank's number within its data-parallel group
        return " ".join([*(part for part in parts if part.startswith("DP")), f"rank {int(found[1])}"])
    if parts:
        return " ".join(parts)
    info = metadata.get("distributedInfo")
    if isinstance(info, dict) and isinstance(info.get("rank"), int):
        return f"rank {info['rank']}"
    return ""


class _Reader:
    """Events to columns. A merged file has ranks in its process ids (SGLang: `[TP00-DP00] 1234`)."""

    def __init__(self, file: TraceFile) -> None:
        self.file = file
        self.ranks: dict[str, Recording] = {}
        self.names = Names()
        self.skipped = 0

    def read(self, categories: tuple[str, ...], names: tuple[str, ...]) -> None:
        for event in self.file.events(categories, names):
            if not (math.isfinite(event.ts) and math.isfinite(event.dur) and event.dur >= 0):
                self.skipped += 1
                continue
            self.take(event)
        whole = self.ranks.get("")
        if whole is not None:
            whole.rank = file_rank(self.file.path, self.file.metadata)
        for rank in self.ranks.values():
            rank.has_device = bool(self.file.metadata.get("deviceProperties"))

    def rank(self, event: Event) -> Recording:
        label = ""
        if isinstance(event.pid, str) and MERGED.match(event.pid):
            label = " ".join(f"{kind.upper()}{int(number)}" for kind, number in RANK.findall(event.pid.split("]")[0] + "]"))
        if label not in self.ranks:
            self.ranks[label] = Recording(self.file.path, label, self.names)
        return self.ranks[label]

    def take(self, event: Event) -> None:
        rank = self.rank(event)
        end = event.ts + event.dur
        if event.cat in KERNELS:
            rows = rank.kernels
            rows.start.append(event.ts)
            rows.end.append(end)
            rows.name.append(self.names.number(event.name))
            rows.stream.append(_stream(rank, event))
            rows.correlation.append(_correlation(event))
            rows.copy.append(event.cat != "kernel")
        elif event.cat in LAUNCHES:
            correlation = _correlation(event)
            if correlation >= 0:
                rows = rank.launches
                rows.at.append(event.ts)
                rows.thread.append(_thread(rank, event))
                rows.correlation.append(correlation)
                rows.launch.append(bool(LAUNCH.search(event.name)))
        elif event.cat == "gpu_user_annotation":
            rule = rule_of(event.name)
            if rule is not None:
                place = _stream(rank, event)
                rank.device_spans.setdefault(place, []).append(Span(event.ts, end, rule, event.name))
        else:
            rule = rule_of(event.name, event.cat == "python_function")
            if rule is not None:
                rank.spans.setdefault(_thread(rank, event), []).append(Span(event.ts, end, rule, event.name))
            elif cpu_collective(event.name):
                _append(rank.collectives, event.ts, end, self.names.number(event.name), _thread(rank, event))
            elif event.cat == "user_annotation":
                rank.other_spans[event.name] += 1


class _Operators(_Reader):
    """The second reading of a trace without kernels: operators of the threads that have spans."""

    def __init__(self, file: TraceFile, first: _Reader) -> None:
        super().__init__(file)
        self.ranks, self.names = first.ranks, first.names
        self.first = first

    def read(self) -> None:
        for event in self.file.events(("cpu_op",)):
            rank = self.rank(event)
            rank.operators_read = True
            place = rank.places.index.get(("thread", event.pid, event.tid))
            if place in rank.spans and math.isfinite(event.ts) and event.dur >= 0:
                _append(rank.operators, event.ts, event.ts + event.dur, self.names.number(event.name), place)


def _append(rows: Operators, start: float, end: float, name: int, thread: int) -> None:
    rows.start.append(start)
    rows.end.append(end)
    rows.name.append(name)
    rows.thread.append(thread)


def _thread(rank: Recording, event: Event) -> int:
    place = rank.places.number(("thread", event.pid, event.tid))
    rank.homes[place] = event.pid
    return place


def _stream(rank: Recording, event: Event) -> int:
    device = event.args.get("device", event.pid)
    place = rank.places.number(("stream", device, event.args.get("stream", event.tid)))
    rank.homes[place] = device
    return place


def _correlation(event: Event) -> int:
    """-1 where the event has none."""
    value = event.args.get("correlation", NO_CORRELATION)
    try:
        return int(value)
    except (TypeError, ValueError):
        return NO_CORRELATION
