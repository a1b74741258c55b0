"""Spans of the loop: seconds for the result, and names for a profiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

import torch
from torch.profiler import record_function

PREFIX = "eaglelab."
"""Of the spans' names in a trace: `eaglelab.cycle`, inside it `.draft`, `.verify`, `.sample`, `.draft_extend`; `.prefill`; `.decode` (plain)."""


class Span:
    """`with Span(...) as s:` and then `s.seconds`. On a GPU it waits for the device at both ends: no span holds another's kernels."""

    def __init__(self, name: str, wait: Callable[[], None] | None) -> None:
        self.wait, self.seconds = wait, 0.0
        self._record = record_function(PREFIX + name)

    def __enter__(self) -> Span:
        if self.wait is not None:
            self.wait()
        self._record.__enter__()
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.wait is not None:
            self.wait()
        self.seconds = time.perf_counter() - self._start
        self._record.__exit__(kind, error, trace)


class Clock:
    """Makes the spans of one device."""

    def __init__(self, device: torch.device) -> None:
        self.wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None

    def __call__(self, name: str) -> Span:
        return Span(name, self.wait)
