"""A queue of notebooks over this machine's cores and GPUs: how many kernels at a time, and which GPU each one gets.

A notebook whose parameter `device` means CUDA has a GPU for itself while it runs, and sees no other (`CUDA_VISIBLE_DEVICES`); `cuda:1`
takes the second and sees all, so that the name stays what it is. All others run beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from eaglelab.reports.machine import GIB, Machine
from eaglelab.reports.select import ReportError

T = TypeVar("T")
R = TypeVar("R")

BASE = 2 * GIB
"""Bytes for one kernel: torch, transformers and the samples of a page take 1 to 1.5 GiB on the example."""
TIMES = 3
"""A drafter's bytes on disk that its kernel takes besides: bfloat16 on disk is float32 on the CPU, and what it computes."""
MOST = 32
"""Kernels at a time by default: one process feeds them and renders their pages."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SECONDS_TO_END = 20  # for threads whose kernels were killed


@dataclass(frozen=True)
class Job(Generic[T]):
    """One notebook of one case."""

    what: T
    device: str | None
    """Its parameter `device`; None where it has none."""


@dataclass(frozen=True)
class Place:
    """What a job gets while it runs."""

    gpu: int | None
    """Index of its GPU."""
    environment: Mapping[str, str]


class Gpus:
    """Who has which GPU."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._free = list(range(len(names))) or [0]  # CUDA asked for where none was counted: torch may know better, one at a time

    def take(self, device: str | None) -> Place | None:
        """A place for a job; None where it must wait for its GPU."""
        pinned = re.fullmatch(r"cuda(?::(\d+))?", device or "")
        if not pinned and (device != "auto" or not self.names):
            return Place(None, {})
        if pinned and pinned[1]:
            index = int(pinned[1]) if self.names else 0
            return self._taken(index, {}) if index in self._free else None
        if not self._free:
            return None
        index = self._free[0]
        return self._taken(index, {"CUDA_VISIBLE_DEVICES": self.names[index]} if self.names else {})

    def _taken(self, index: int, environment: Mapping[str, str]) -> Place:
        self._free.remove(index)
        return Place(index, environment)

    def give(self, place: Place) -> None:
        if place.gpu is not None:
            self._free = sorted([*self._free, place.gpu])


def refuse_absent_gpu(device: Any, machine: Machine) -> None:
    """Raises ReportError on `cuda:N` that this machine does not have; where no GPU was counted, torch has the last word."""
    pinned = re.fullmatch(r"cuda:(\d+)", str(device))
    if pinned and machine.gpus and int(pinned[1]) >= len(machine.gpus):
        known = ", ".join(f"cuda:{i}" for i in range(len(machine.gpus)))
        raise ReportError(f"parameter device: got {device!r}, expected one of this machine's GPUs: {known}, or auto, cpu, cuda")


def kernels_at_a_time(asked: int | None, jobs: int, machine: Machine, drafter_bytes: int = 0) -> int:
    """What was asked for, else as many as there are cores and memory for; no more than there are jobs."""
    fits = machine.memory // (BASE + TIMES * drafter_bytes)
    return max(1, min(asked or min(machine.cores, fits, MOST), jobs))


def threads_each(machine: Machine, kernels: int) -> dict[str, str]:
    """The environment that shares the cores among kernels."""
    return dict.fromkeys(THREADS, str(max(1, machine.cores // kernels)))


def work(
    jobs: Sequence[Job[T]], kernels: int, gpus: Gpus, do: Callable[[T, Place], R], stop: Callable[[], None]
) -> Iterator[tuple[Job[T], R]]:
    """Run `do` on every job in a thread of its own, `kernels` at a time; yields each when it is done, and raises what it raised.

    Jobs start in their order, but one that waits for a GPU lets others pass. However it ends, `stop` is called (it must make `do` return
    soon) and no job is left running.
    """
    waiting, running = list(jobs), {}
    done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()

    def run(number: int, job: Job[T], place: Place) -> None:
        try:
            done.put((number, do(job.what, place), None))
        except BaseException as error:  # it is the caller's, who waits for it
            done.put((number, None, error))

    try:
        number = 0
        while waiting or running:
            for job in list(waiting):
                place = gpus.take(job.device) if len(running) < kernels else None
                if place is not None:
                    waiting.remove(job)
                    number += 1
                    thread = Thread(target=run, args=(number, job, place), daemon=True)
                    running[number] = (job, place, thread)
                    thread.start()
            number_done, result, error = done.get()
            job, place, _ = running.pop(number_done)
            gpus.give(place)
            if error is not None:
                raise error
            yield job, result
    finally:
        stop()
        for _, _, thread in running.values():
            thread.join(SECONDS_TO_END)
