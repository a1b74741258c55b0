"""Execute one notebook through papermill, in a kernel of this very interpreter, with an end.

What papermill leaves open and this closes: the kernel is `sys.executable`, whatever kernelspecs are installed; a deadline for the whole
notebook; a kernel that dies or hangs becomes an error output in the cell where it happened; a kernel that does not start is tried a
second time; no process that a kernel started outlives its notebook, and all kernels can be ended at once.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from eaglelab.progress import HEADLESS

START_TIMEOUT = 60  # seconds for a kernel to answer; a loaded machine needs a third of it


class Stopped(Exception):
    """The kernels were ended from outside: what this one was doing is not a result."""


class Kernels:
    """The kernels that run now, each with the processes that it started."""

    def __init__(self) -> None:
        self.stopped = False
        self._groups: set[int] = set()
        self._lock = Lock()

    def add(self, group: int) -> None:
        """A kernel has started. Raises Stopped, and ends it, where it is too late for that."""
        with self._lock:
            self._groups.add(group)
            stopped = self.stopped
        if stopped:
            self.end(group)
            raise Stopped

    def end(self, group: int) -> None:
        """Kill what is left of a kernel."""
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if group in self._groups:
                self._groups.discard(group)
                os.killpg(group, signal.SIGKILL)

    def stop(self) -> None:
        """Kill all, now and from now on."""
        self.stopped = True
        for group in list(self._groups):
            self.end(group)


class KernelStartError(RuntimeError):
    """The kernel did not start; the message ends with what it wrote."""


class Manager(AsyncKernelManager):
    """Starts this interpreter's ipykernel, asking no kernelspec, and calls `started` with its process id."""

    started: Callable[[int], None]

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--HistoryManager.enabled=False"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")

    async def start_kernel(self, **options: Any) -> None:
        await super().start_kernel(**options)
        self.started(self.provisioner.pid)  # it leads a session of its own, so that a terminal's Ctrl-C does not reach it


class Client(PapermillNotebookClient):
    """papermill's, with `Manager`."""

    def __init__(self, nb_man: Any, kernels: Kernels, **options: Any) -> None:
        super().__init__(nb_man, kernel_manager_class=Manager, **options)
        self.kernels = kernels
        self.group: int | None = None

    def create_kernel_manager(self) -> Manager:
        manager = super().create_kernel_manager()
        manager.started = self.started
        return manager

    def started(self, pid: int) -> None:
        self.group = pid
        self.kernels.add(pid)


class ReportEngine(NBClientEngine):
    """See the module's docstring."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, *, timeout: float, log: IO[bytes], kernels: Kernels, environment: Mapping[str, str], **_: Any
    ) -> None:
        end = time.monotonic() + timeout
        client = Client(
            nb_man,
            kernels,
            kernel_name=kernel_name,
            startup_timeout=START_TIMEOUT,
            timeout_func=lambda cell: max(1, round(end - time.monotonic())),
            shutdown_kernel="immediate",
        )
        try:
            client.execute(env={**os.environ, HEADLESS: "1", **environment}, stdout=log, stderr=log)
        except (CellTimeoutError, DeadKernelError, RuntimeError) as error:
            begun = [i for i, c in enumerate(nb_man.nb.cells) if c.metadata.papermill.get("start_time")]
            if not begun:
                log.seek(0)
                raise KernelStartError(f"the kernel did not start: {error}\n{log.read().decode(errors='replace')[-2000:]}") from error
            _mark(nb_man, begun[-1], error, timeout)
        finally:
            if client.group is not None:
                kernels.end(client.group)


def _mark(nb_man: Any, index: int, error: Exception, timeout: float) -> None:
    """Turn a hang or a death of the kernel into an error output of the cell that was running."""
    if isinstance(error, CellTimeoutError):
        name, hint = "Timeout", f"the notebook was stopped after {timeout:g} s, in this cell. Give it a longer timeout or a smaller sample."
    else:
        name, hint = "KernelDied", "the kernel died in this cell. Most often the machine ran out of memory: lower max_samples."
    cell = nb_man.nb.cells[index]
    cell.outputs.append(nbformat.v4.new_output("error", ename=name, evalue=hint, traceback=[f"{name}: {hint}"]))
    nb_man.cell_exception(cell, cell_index=index, exception=error)


@dataclass(frozen=True)
class Executed:
    """What executing one notebook left."""

    notebook: NotebookNode
    error: str | None
    """`Name: message` of what broke the notebook, None when it ran through."""
    seconds: float


def execute(path: Path, parameters: Mapping[str, Any], timeout: float, kernels: Kernels, environment: Mapping[str, str]) -> Executed:
    """Run the notebook at `path`, all its cells within `timeout` seconds; what breaks it comes back in `Executed.error`.

    `environment` is what its kernel gets besides this process's own. Raises Stopped when the kernels are ended from outside.
    """
    start = time.monotonic()
    notebook = parameterize_notebook(load_notebook_node(str(path)), dict(parameters), kernel_name="python3", language="python")
    options = {"progress_bar": False, "timeout": timeout, "kernels": kernels, "environment": environment}
    for _ in range(2):
        error = None
        with tempfile.TemporaryFile() as log:
            try:
                ReportEngine.execute_notebook(notebook, "python3", log=log, **options)
                break
            except (KernelStartError, OSError) as failure:  # OSError: no memory for a process, no room for its connection file
                error = f"KernelStartError: {failure}"
            finally:
                if kernels.stopped:
                    raise Stopped
    _tidy(notebook)
    failures = [o for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "error"]
    return Executed(notebook, f"{failures[0].ename}: {failures[0].evalue}" if failures else error, time.monotonic() - start)


def _tidy(notebook: NotebookNode) -> None:
    """Drop what a shared file must not carry: paths of this machine, widget state."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                output.evalue, output.traceback = _scrub(output.evalue), [_scrub(line) for line in output.traceback]
            elif output.output_type == "stream":
                output.text = _scrub(output.text)


def _scrub(text: str) -> str:
    for folder, name in ((os.getcwd() + os.sep, ""), (sys.prefix, "<env>"), (os.path.expanduser("~"), "~")):
        if len(folder) > 2:
            text = text.replace(folder, name)
    return text
