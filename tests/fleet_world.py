"""Small cases and notebooks for tests of reports: no torch, a kernel start each."""

import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from eaglelab.reports.machine import GIB, Machine

PARAMETERS = 'case: str = "case.toml"  # the case\nmax_samples: int = 8  # samples read'
DEVICE = 'device: str = "auto"  # auto, cpu, cuda'
TWO_CORES = Machine(cores=2, memory=64 * GIB)
VERDICT = """from eaglelab import notebook
from eaglelab.findings import Change, Finding, Status, Verdict
notebook.record(Finding("a.one", "It fails", Status.FAIL))
notebook.record(Finding("replay.expected", "2", Status.PASS, numbers={"walk": {"accept_length": 1.8}}))
notebook.record(Verdict("wiring", "sure", "Feed 3, 16, 28", (Change("config.json", "ids", [2, 15, 27]),)))"""
LOGS = """import os, pathlib
with open(pathlib.Path(case).parent / "ran.txt", "a") as log: log.write(__name__ and {name!r} + "\\n")"""
WAITS = """import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"])
folder = pathlib.Path(case).parent
(folder / "pids.part").write_text(f"{os.getpid()} {child.pid}")
(folder / "pids.part").rename(folder / "pids.txt")
while not (folder / "go").exists(): time.sleep(0.05)
child.kill()"""


def make_case(place, name="a"):
    folder = place / "cases" / name
    (folder / "dump").mkdir(parents=True)
    (folder / "case.toml").write_text('[dump]\npath = "dump"\n')
    return folder


def add_notebook(place, name, *sources, parameters=PARAMETERS):
    """A notebook that logs to `ran.txt` of its case when it runs."""
    (place / "books").mkdir(exist_ok=True)
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    cells += [new_code_cell(s, metadata={"tags": []}) for s in (LOGS.format(name=name), *sources)]
    nbformat.write(new_notebook(cells=cells), place / "books" / f"{name}.ipynb")


def ran(folder):
    return (folder / "ran.txt").read_text().split() if (folder / "ran.txt").exists() else []


def command(place, *arguments, **options):
    """`eaglelab report` on this place's own notebooks, in a process of its own."""
    code = f"import sys; from eaglelab.reports import run, select; run.notebooks_folder = lambda f=None: select.Path({str(place / 'books')!r})\n"
    code += "from eaglelab import provenance; provenance.git_state = lambda *folder: None  # whatever is committed meanwhile\n"
    code += "from eaglelab.cli import main; sys.exit(main())"
    given = [sys.executable, "-c", code, "report", *map(str, arguments)]
    return subprocess.Popen(given, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_for(path, seconds=90):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come in {seconds} s"
        time.sleep(0.05)
    return path


def gone(pid, seconds=30):
    """Whether a process ends within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False
