"""A chrome trace's events as a stream, in bounded memory.

The file is one JSON object with `traceEvents`, or a bare list of events; some producers leave the end out. Only events that a reader asks for
are decoded: of a large trace nearly all are `cpu_op` and `python_function`, which are stepped over as bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


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


@dataclass
class TraceFile:
    """One file, read once from front to back with `events`; the rest is filled while reading."""

    path: Path
    events_seen: int = 0
    kept: int = 0
    by_category: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Top-level keys beside the events (`distributedInfo` with rank and world size, `deviceProperties`, `schemaVersion`, …), and
    `process_labels`, `process_name`, `thread_name` by (pid, tid)."""
    notes: list[str] = field(default_factory=list)
    """What was skipped or mended: events without a duration or with a negative one, a file that ends in the middle, …"""

    def events(self, categories: Collection[str], names: Collection[str] = ()) -> Iterator[Event]:
        """Complete events of these categories, in the file's order; `names` adds events of any category that begin with one of these.

        Raises TimingError for what is no chrome trace, and for a gzip that breaks before its first event; a file that ends later gives what
        it holds, with a note.
        """
        raise NotImplementedError
