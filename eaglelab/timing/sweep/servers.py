"""A server of one's own: started, waited for, and stopped whatever happens.

Four things see to the last: leaving the `with`, a handler for SIGINT, SIGTERM and SIGHUP, `atexit`, and the guard, a small process that
ends the server when this one is gone without a word.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from eaglelab.live.connect import connect
from eaglelab.live.prompts import Prompt
from eaglelab.live.server import Server, ServerError
from eaglelab.timing.errors import TimingError
from eaglelab.timing.sweep import processes
from eaglelab.timing.sweep.command import Command
from eaglelab.timing.sweep.processes import MARK, Tree

BOOT_SECONDS = 1800
"""Seconds until a server must have answered: large models are read from disk, and graphs are captured."""
TAIL = 25
"""Lines of a server's log that a message shows."""
REFUSALS = 3
"""Times that a server which answers may refuse its first request for good until it is given up."""
LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


class SettingFailed(TimingError):
    """One setting that could not be measured: its server did not start, died, or answered nothing usable. The sweep goes on."""


class Interrupted(KeyboardInterrupt):
    """A signal that asks this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


# -- signals ---------------------------------------------------------------------------------------------------------------------


class _Signals:
    """Signals become `Interrupted`; while something must not be cut in two they wait (`held`)."""

    def __init__(self) -> None:
        self.holds, self.pending, self.active = 0, 0, False

    def handle(self, number: int, frame: object = None) -> None:
        if self.holds:
            self.pending = number
            return
        raise Interrupted(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.holds += 1
        try:
            yield
        finally:
            self.holds -= 1
            if not self.holds and self.pending:
                number, self.pending = self.pending, 0
                if sys.exc_info()[0] is None or not issubclass(sys.exc_info()[0], KeyboardInterrupt):
                    raise Interrupted(number)


_signals = _Signals()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise `Interrupted` inside. A SIGHUP that is ignored (nohup) stays so; a SIGINT that is ignored (a job
    that a shell started in the background) does not: who sends it wants this program to end."""
    if threading.current_thread() is not threading.main_thread() or _signals.active:
        yield
        return
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, _signals.handle)
    _signals.active = True
    try:
        yield
    finally:
        _signals.active = False
        for number, handler in before.items():
            signal.signal(number, handler)


# -- one server ------------------------------------------------------------------------------------------------------------------


class Running:
    """A started server. Never one that was there before."""

    def __init__(self, command: Command, log: Path, environment: Mapping[str, str]) -> None:
        """Starts it; environment: on top of this program's own. Raises SettingFailed."""
        self.command, self.log, self.mark = command, log, uuid.uuid4().hex
        self.tree = Tree(self.mark)
        self.process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            with _signals.held(), log.open("ab") as sink:
                self._start(sink, {k: v for k, v in os.environ.items() if k != MARK}, dict(environment))
        except OSError as error:
            self.stop()
            raise SettingFailed(f"the server cannot be started ({error.strerror}): {command.shown}") from None
        except BaseException:
            self.stop()
            raise

    def _start(self, sink: BinaryIO, own: dict[str, str], environment: dict[str, str]) -> None:
        _running.add(self)
        guard = [sys.executable, "-I", processes.__file__, self.mark]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, env=own, cwd="/", start_new_session=True, **quiet)
        self.process = subprocess.Popen(
            [shutil.which("bash") or "/bin/sh", "-c", self.command.line],
            cwd=self.command.folder,
            env=own | environment | {MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.tree.root = self.process.pid
        self._tell(f"root {self.process.pid}\n")

    @property
    def url(self) -> str:
        return self.command.url

    def check(self) -> None:
        """Raises SettingFailed with the log's end where the server is gone. One whose first process ended well may live on as a daemon."""
        status = self.process.poll()
        if status or (status == 0 and not self.tree.look()):
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
            raise SettingFailed(f"the server ended {how}; the end of {self.log}:\n{self.tail()}")

    def tail(self, lines: int = TAIL) -> str:
        return tail(self.log, lines)

    def stop(self, grace: float = processes.GRACE) -> None:
        """End all its processes. A signal meanwhile shortens the grace and is raised when they are gone. Raises TimingError where one stays."""
        if self not in _running:
            return
        with _signals.held():
            left = []
            if self.process is not None:
                threading.Thread(target=self.process.wait, daemon=True).start()  # reaps it
                left = processes.stop(self.tree, grace, hurry=lambda: bool(_signals.pending))
            _running.discard(self)
            self._tell("done\n")
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                if self._guard is not None:
                    self._guard.stdin.close()
                    self._guard.wait(5)
        if left:
            raise TimingError(
                f"processes of the server cannot be ended, even by SIGKILL: {', '.join(map(str, left))}. Is a driver hanging?"
            )

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # without a guard there are still the three other ways
            if self._guard is not None:
                self._guard.stdin.write(text.encode())
                self._guard.stdin.flush()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_running: set[Running] = set()


@atexit.register
def _stop_all() -> None:
    for server in tuple(_running):
        with contextlib.suppress(Exception, KeyboardInterrupt):
            server.stop(grace=5.0)


def wait_ready(
    running: Running,
    prompt: Prompt,
    *,
    engine: str | None = None,
    key: str | None = None,
    seconds: float = BOOT_SECONDS,
) -> Server:
    """The server, when it has answered a first request. Raises SettingFailed where it ends, is another program, or does not within `seconds`."""
    until, said, refused, pause = time.monotonic() + seconds, "", 0, 0.05
    while True:
        running.check()
        try:
            server = connect(running.url, engine=engine, key=key, timeout=max(1.0, until - time.monotonic()), attempts=1)
            _check_owner(running)
            server.generate(prompt.token_ids, 1)
            return server
        except ServerError as error:
            said = str(error)
            refused += error.status is not None and error.status >= 400 and not error.transient and _generating(said)
            if error.status in (401, 403) or refused >= REFUSALS:
                raise SettingFailed(
                    f"the server is up and refuses its first request: {said}; the end of {running.log}:\n{running.tail()}"
                ) from None
        if time.monotonic() > until:
            raise SettingFailed(
                f"the server did not answer within {seconds:g} s (--boot-timeout gives it longer). Last: {said}; the end of {running.log}:\n{running.tail()}"
            )
        running.tree.look()
        time.sleep(pause)
        pause = min(1.0, pause * 1.5)


def _generating(text: str) -> bool:
    return "/generate" in text or "/v1/completions" in text


def _check_owner(running: Running) -> None:
    """That the port is this server's: another program may have taken it between the choice and the start."""
    if running.command.elsewhere:
        return
    sockets = listening(running.command.port)
    if sockets and not any(sockets & _sockets(pid) for pid in running.tree.look()):
        raise SettingFailed(
            f"another program has taken port {running.command.port} in the meantime and answers there; it was left alone. Start the sweep again"
        )


def listening(port: int) -> set[str]:
    """The sockets that listen at a port of this machine; empty where /proc does not tell."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError):
            rows = (line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:])
            found |= {f"socket:[{r[9]}]" for r in rows if r[3] == LISTENS and int(r[1].rsplit(":", 1)[1], 16) == port}
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def check_free(port: int, host: str = "127.0.0.1") -> None:
    """Raises TimingError where something listens at the port already."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.settimeout(2.0)
        taken = bool(listening(port)) or s.connect_ex((host, port)) == 0
    if taken:
        raise TimingError(
            f"port {port} of the launch line is in use, and what listens there was not started by the sweep: it is left alone. Stop it, or leave --port "
            "out of the launch line, so that a free one is taken"
        )


def tail(log: Path, lines: int = TAIL) -> str:
    """The last lines of a log, without what moves a terminal."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    rows = [line[:300].rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return "\n".join("".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in row) for row in rows[-lines:])
