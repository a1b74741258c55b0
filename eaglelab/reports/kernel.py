"""Execute one notebook through papermill, in a kernel of this very interpreter, with an end.

What papermill leaves open and this closes: the kernel is `sys.executable` whether or not a kernelspec is installed; a deadline for the
whole notebook; a kernel that dies or hangs becomes an error output in the cell where it happened; each kernel has its own
environment, so that two can run at a time; a kernel that does not start is tried a second time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from eaglelab.notebook import RECORD
from eaglelab.progress import HEADLESS

START_TIMEOUT = 60  # seconds for a kernel to answer; a loaded machine needs a third of it


class KernelStartError(RuntimeError):
    """The kernel did not start; the message ends with what it wrote."""


class _Manager(AsyncKernelManager):
    """Starts this interpreter's ipykernel, asking no kernelspec."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


_running: set[_Manager] = set()
_lock = threading.Lock()
_stopping = threading.Event()


def allow_start() -> None:
    """Let kernels start again after `kill_all`."""
    _stopping.clear()


def kill_all() -> None:
    """Kill the kernels that this process runs and start no more (after Ctrl-C: their threads then end by themselves)."""
    _stopping.set()
    with _lock:
        for manager in _running:
            process = getattr(manager.provisioner, "process", None)
            if process is not None:
                with contextlib.suppress(OSError):
                    process.kill()


class _Client(PapermillNotebookClient):
    """papermill's client with its own kernel and a deadline for the whole notebook."""

    def __init__(self, nb_man: Any, folder: Path, transport: str, seconds: float, **options: Any) -> None:
        super().__init__(nb_man, timeout_func=self._left, shutdown_kernel="immediate", **options)
        self.folder, self.transport, self.seconds = folder, transport, seconds
        self.deadline: float | None = None  # set when the first cell starts
        self.manager: _Manager | None = None  # nbclient forgets its own at the end

    def _left(self, _cell: Any) -> int:
        return max(1, round((self.deadline or 0.0) - time.monotonic()))

    def create_kernel_manager(self) -> _Manager:
        # Unix sockets in this run's own folder: no port races, no "TCP without encryption" notice. The default IPC path collides.
        place = {"transport": "ipc", "ip": str(self.folder / "k")} if self.transport == "ipc" else {}
        self.km = self.manager = _Manager(kernel_name="python3", connection_file=str(self.folder / "connection.json"), **place)
        with _lock:
            _running.add(self.manager)
        return self.km

    def papermill_execute_cells(self) -> None:
        self.deadline = time.monotonic() + self.seconds
        super().papermill_execute_cells()


class ReportEngine(NBClientEngine):
    """papermill engine `eaglelab`; see the module's docstring."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
        folder, transport, timeout, env = (options[k] for k in ("folder", "transport", "timeout", "env"))
        client = _Client(nb_man, folder, transport, timeout, kernel_name=kernel_name, startup_timeout=START_TIMEOUT)
        log = folder / "kernel.log"
        try:
            with log.open("ab") as sink:
                client.execute(env=env, stdout=sink, stderr=sink)
        except (CellTimeoutError, DeadKernelError) as error:
            _mark(nb_man, error, timeout)
        except Exception as error:
            if client.deadline is not None:
                raise
            tail = log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()
            raise KernelStartError(f"the kernel did not start: {error}\n{tail}".strip()) from error
        finally:
            with _lock:
                _running.discard(client.manager)


papermill_engines.register("eaglelab", ReportEngine)
# papermill's own inspection does not see `int | None` and calls such a parameter unknown; `select` has checked them all.
logging.getLogger("papermill").addFilter(lambda entry: "Passed unknown parameter" not in entry.getMessage())


def _mark(nb_man: Any, error: Exception, timeout: float) -> None:
    """Turn a hang or a death of the kernel into an error output of the cell that was running."""
    begun = [i for i, c in enumerate(nb_man.nb.cells) if c.cell_type == "code" and c.metadata.get("papermill", {}).get("start_time")]
    index = begun[-1] if begun else 0
    if isinstance(error, CellTimeoutError):
        name, value = (
            "Timeout",
            f"the notebook was stopped after {timeout:g} s, in this cell. Give it a longer timeout or a smaller sample.",
        )
    else:
        name, value = "KernelDied", "the kernel died in this cell. Most often the machine ran out of memory: lower max_samples."
    cell = nb_man.nb.cells[index]
    cell.outputs.append(nbformat.v4.new_output("error", ename=name, evalue=value, traceback=[f"{name}: {value}"]))
    nb_man.cell_exception(cell, cell_index=index, exception=error)


@dataclass(frozen=True)
class Executed:
    """What executing one notebook left."""

    notebook: nbformat.NotebookNode
    record: str
    """The sidecar's text: one JSON object a line."""
    error: str | None
    """`Name: message` of what broke the notebook, None when it ran through."""
    seconds: float


def execute(path: Path, parameters: Mapping[str, Any], *, timeout: float, threads: int) -> Executed:
    """Run the notebook at `path`; what goes wrong in it comes back in `Executed.error`, never as an exception.

    `timeout` in seconds bounds all cells of the notebook together, `threads` the threads that torch and BLAS take.
    """
    start = time.monotonic()
    transports = ("tcp", "tcp") if sys.platform == "win32" else ("ipc", "tcp")
    for attempt, transport in enumerate(transports):
        folder = Path(tempfile.mkdtemp(prefix="eaglelab-"))  # private to this user; a short path, as Unix sockets need
        try:
            notebook, error = _attempt(path, parameters, folder, transport, timeout, threads)
        except KernelStartError as failure:
            if attempt + 1 < len(transports) and not _stopping.is_set():
                continue
            notebook, error = nbformat.read(path, as_version=4), f"KernelStartError: {failure}"
        finally:
            sidecar = folder / "record.jsonl"
            record = sidecar.read_text(encoding="utf-8", errors="replace") if sidecar.exists() else ""
            shutil.rmtree(folder, ignore_errors=True)
        break
    return Executed(_tidy(notebook), record, error, time.monotonic() - start)


def _attempt(
    path: Path, parameters: Mapping[str, Any], folder: Path, transport: str, timeout: float, threads: int
) -> tuple[nbformat.NotebookNode, str | None]:
    source, output = folder / "in.ipynb", folder / "out.ipynb"  # papermill formats {braces} in paths; these have none
    shutil.copyfile(path, source)
    try:
        notebook = papermill.execute_notebook(
            source,
            output,
            parameters=dict(parameters),
            engine_name="eaglelab",
            kernel_name="python3",
            language="python",
            progress_bar=False,
            folder=folder,
            transport=transport,
            timeout=timeout,
            env=_environment(folder, threads),
        )
        return notebook, None
    except KernelStartError:
        raise
    except PapermillExecutionError as error:
        notebook = nbformat.read(output, as_version=4)
        return notebook, _first_error(notebook) or f"{error.ename}: {error.evalue}"
    except Exception as error:  # a notebook that papermill cannot handle is a broken notebook, not the end of the report
        saved = output if output.exists() else path
        return nbformat.read(saved, as_version=4), f"{type(error).__name__}: {error}"


def _environment(folder: Path, threads: int) -> dict[str, str]:
    bound = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    own = {
        RECORD: str(folder / "record.jsonl"),
        HEADLESS: "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    return {**os.environ, **bound, **own}


def _first_error(notebook: nbformat.NotebookNode) -> str | None:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error" and not (output.ename == "SystemExit" and output.evalue in ("", "0")):
                return f"{output.ename}: {output.evalue}"
    return None


def _tidy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop what a shared file must not carry: papermill's marker cells, paths of this machine, widget state."""
    notebook.cells = [c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]
    notebook.metadata.pop("widgets", None)
    papermill_notes = notebook.metadata.get("papermill", {})
    for key in ("input_path", "output_path"):
        papermill_notes.pop(key, None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                output.evalue, output.traceback = scrub(output.evalue), [scrub(line) for line in output.traceback]
            elif output.output_type == "stream":
                output.text = scrub(output.text)
    return notebook


def scrub(text: str) -> str:
    """Text with this machine's folders taken out: the working directory, the environment, the home directory."""
    for folder, name in ((os.getcwd() + os.sep, ""), (sys.prefix, "<env>"), (os.path.expanduser("~"), "~")):
        if len(folder) > 2:
            text = text.replace(folder, name)
    return text
