"""Times of several calls on one device, round after round, so that drift of the machine hits all of them alike."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eaglelab.timing.errors import TimingError

WARM_UP = 2
"""Untimed runs of each call before the first round."""
LEAST = 3
"""Rounds without which a median says little: where the time does not reach for them, a place is left out, but for the first of a grid."""
LEFT_OUT = "left out"


@dataclass(frozen=True)
class Call:
    """One thing to time."""

    name: Hashable
    run: Callable[[], Any]
    warm: bool = False
    """One more untimed run goes right before each timed one: what repeats at once in an engine (draft steps) finds its weights in the caches."""


@dataclass(frozen=True)
class Times:
    """What one call took."""

    ms: tuple[float, ...]
    """Milliseconds, one a round, in the order of the rounds; empty where it could not run."""
    note: str = ""
    graph: bool = False
    """A captured CUDA graph was replayed."""


class Budget:
    """Seconds for several places of a grid, cheap ones first: each may take an equal part of what is left when its turn comes."""

    def __init__(self, seconds: float | None, places: int, now: Callable[[], float] = time.perf_counter) -> None:
        """seconds: None for no limit. now: a clock in seconds."""
        self.seconds, self.places, self._now = seconds, places, now
        self._end = math.inf if seconds is None else now() + seconds
        self._share = math.inf
        self.begun = 0

    def begin(self) -> None:
        """The next place's turn."""
        self._share = self._now() + max(0.0, self.left) / max(1, self.places - self.begun)
        self.begun += 1

    @property
    def left(self) -> float:
        return self._end - self._now()

    @property
    def share_left(self) -> float:
        return self._share - self._now()

    def note(self, what: str) -> str:
        return f"{LEFT_OUT}: {what}, {max(0.0, self.left):.0f} s of {self.seconds:g} s are left; more with --seconds, or a smaller grid"


@torch.no_grad()
def time_calls(
    calls: Sequence[Call], device: torch.device, repeats: int, *, graphs: bool = False, budget: Budget | None = None
) -> dict[Hashable, Times]:
    """Time each call `repeats` times, in rounds of seeded random order. CUDA: events; CPU: `perf_counter`.

    budget: rounds end early, all calls alike, where the share of this turn is spent, and none is begun where `LEAST` do not fit into what
    is left: then no call has times, and each has a note. The first place of a grid has one round at least, whatever it takes.

    graphs: on CUDA, capture each call once and replay it; one that cannot be captured is timed as it is, with a note. A call that runs out
    of memory, or fails otherwise, has a note and no times; the others go on. Raises TimingError for a device other than a CPU or CUDA.
    """
    stopwatch = _cuda_ms if device.type == "cuda" else _cpu_ms
    if device.type not in ("cpu", "cuda"):
        raise TimingError(f"device {device}: bench has clocks for cpu and cuda; give one of them")
    ready: list[tuple[Call, Callable[[], Any]]] = []
    times: dict[Hashable, list[float]] = {call.name: [] for call in calls}
    notes: dict[Hashable, str] = {}
    replayed: set[Hashable] = set()
    broken: set[Hashable] = set()
    budget = budget or Budget(None, 1)
    a_round = 0.0  # seconds
    for call in calls:
        if budget.left <= 0 and budget.begun > 1:
            return {call.name: Times((), budget.note("its warm-up alone takes longer")) for call in calls}
        try:
            for _ in range(WARM_UP):
                seconds = _seconds(call.run, device)
            a_round += seconds * (1 + call.warm)
        except FAILURES as error:
            notes[call.name] = failure(error)
            continue
        run = call.run
        if graphs and device.type == "cuda":
            try:
                run = _captured(call.run)
                replayed.add(call.name)
            except RuntimeError as error:
                notes[call.name] = f"not captured as a CUDA graph, timed without ({_first_line(error)})"
        ready.append((call, run))
    order, least = random.Random(0), min(LEAST, repeats)
    if budget.begun <= 1 and a_round > 0:
        least = max(1, min(least, int(min(budget.left / a_round, least))))
    if least * a_round > budget.left and budget.begun > 1:
        note = budget.note(f"{least} rounds take about {least * a_round:.0f} s")
        return {call.name: Times((), notes.get(call.name, note)) for call in calls}
    for number in range(repeats):
        if number >= least and a_round > budget.share_left:
            break
        for call, run in order.sample(ready, len(ready)):
            if call.name in broken:
                continue
            try:
                if call.warm:
                    run()
                times[call.name].append(stopwatch(run, device))
            except FAILURES as error:
                broken.add(call.name)
                notes[call.name] = failure(error)
                times[call.name] = []  # rounds are paired: a part of them cannot be
    return {name: Times(tuple(ms), notes.get(name, ""), name in replayed) for name, ms in times.items()}


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _cpu_ms(run: Callable[[], Any], device: torch.device) -> float:
    return _seconds(run, device) * 1e3


def _cuda_ms(run: Callable[[], Any], device: torch.device) -> float:
    torch.cuda.synchronize(device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _captured(run: Callable[[], Any]) -> Callable[[], None]:
    """The call as a CUDA graph. What it computes stays in the memory that the graph owns."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # torch asks for a warm-up on a side stream before a capture
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


# -- memory -------------------------------------------------------------------------------------------------------------------------

OUT_OF_MEMORY = "out of memory"
CPU_REFUSALS = ("not enough memory", "can't allocate memory", "cannot allocate memory")
"""How torch's allocator on the CPU says it (c10/core/impl/alloc_cpu.cpp)."""
FAILURES = (RuntimeError, MemoryError, ValueError, TypeError, IndexError, KeyError, AttributeError, NotImplementedError)
"""What a model's own code raises for an input that it cannot take."""


def failure(error: BaseException) -> str:
    """A note for a call that did not run. What CUDA keeps in reserve is given back."""
    text = str(error).lower()
    if not (isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(refusal in text for refusal in CPU_REFUSALS)):
        return f"failed: {type(error).__name__}: {_first_line(error)}"
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return f"{OUT_OF_MEMORY}: {_first_line(error)}"


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be taken on the device; None where nothing tells. A CPU grants more than it has, and kills later."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]
