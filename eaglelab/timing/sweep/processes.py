"""All processes of a server that was started here, and an end to them. Standard library alone: the guard runs this file by its path.

A server's children may leave its process group, its session and their parent (daemons), or overwrite their environment (setproctitle does).
So a process counts as the server's where any of these tells: the session or group of the first process, a parent that counts, the mark in
its environment, or that it counted when it was looked at before.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

MARK = "EAGLELAB_SWEEP_RUN"
"""Environment variable that every process of a started server inherits."""
GRACE = 20.0
"""Seconds between asking (SIGTERM) and insisting (SIGKILL)."""
INSIST = 10.0
LOOK = 1.0
"""Seconds between two looks of the guard at what the server has started."""


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    started: int
    """Clock ticks since boot: with the pid, the same process and not a later one."""


def processes() -> dict[int, Process]:
    """What runs now, without zombies; {} where there is no /proc."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (process := _process(int(name))) is not None:
                found[process.pid] = process
    return found


def _process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *numbers = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if state in (b"Z", b"X") or len(numbers) < 19:
        return None
    return Process(pid, int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[18]))


class Tree:
    """The processes that one server consists of. root: its first one, the leader of its session; None where only the mark is known."""

    def __init__(self, mark: str, root: int | None = None) -> None:
        self.mark, self.root = mark, root
        self._known: set[tuple[int, int]] = set()
        self._others: set[tuple[int, int]] = set()  # whose environment was read and holds no mark

    def look(self) -> dict[int, Process]:
        """Those that live now."""
        now = processes()
        mine = {p.pid for p in now.values() if self._counts(p)}
        while more := {p.pid for p in now.values() if p.parent in mine and p.pid not in mine}:
            mine |= more
        mine.discard(os.getpid())
        self._known |= {(pid, now[pid].started) for pid in mine}
        return {pid: now[pid] for pid in mine}

    def _counts(self, process: Process) -> bool:
        if self.root is not None and self.root in (process.session, process.group):
            return True
        key = (process.pid, process.started)
        if key in self._known:
            return True
        if key not in self._others and not self._marked(process.pid):
            self._others.add(key)
        return key not in self._others

    def _marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return f"{MARK}={self.mark}".encode() in file.read().split(b"\0")
        except OSError:  # another user's, or gone
            return False


def stop(tree: Tree, grace: float = GRACE, hurry: Callable[[], bool] = lambda: False) -> list[int]:
    """Ask all processes of a server to end, then insist. Returns the pids that are still there, which should be none.

    hurry: asked while waiting; True goes on to SIGKILL at once.
    """
    _send(tree, signal.SIGTERM)
    _wait(tree, grace, hurry)
    until = time.monotonic() + INSIST
    while alive(tree):
        _send(tree, signal.SIGKILL)
        if not alive(tree):
            break
        if time.monotonic() > until:
            return sorted(tree.look())
        time.sleep(0.02)
    return []


def alive(tree: Tree) -> bool:
    if tree.look():
        return True
    if os.path.exists("/proc/self/stat") or tree.root is None:
        return False
    try:  # without /proc only the group can be asked, whose leader may be an unreaped child
        with contextlib.suppress(ChildProcessError):
            os.waitpid(tree.root, os.WNOHANG)
        os.killpg(tree.root, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _wait(tree: Tree, seconds: float, hurry: Callable[[], bool]) -> None:
    until, pause = time.monotonic() + seconds, 0.01
    while alive(tree) and time.monotonic() < until and not hurry():
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)


def _send(tree: Tree, number: signal.Signals) -> None:
    found = tree.look()
    if tree.root is not None and (not found or any(p.group == tree.root for p in found.values())):
        with contextlib.suppress(OSError):
            os.killpg(tree.root, number)
    for process in found.values():
        if process.group != tree.root and _process(process.pid) == process:
            with contextlib.suppress(OSError):
                os.kill(process.pid, number)


def guard(mark: str) -> None:
    """Stop the server when the program that started it is gone, however it went (SIGKILL leaves it no time to do so itself).

    Standard input says `root PID`, then `done` when the server was stopped; its end without that means the program is gone.
    """
    tree, said = Tree(mark), b""
    while True:
        ready, _, _ = select.select([0], [], [], LOOK)
        if ready:
            block = os.read(0, 4096)
            said += block
            if b"done" in said:
                return
            if tree.root is None and b"\n" in said:
                tree.root = int(said.split(b"\n")[0].split()[1])
            if not block:
                break
        tree.look()
    stop(tree)


if __name__ == "__main__":
    guard(sys.argv[1])
