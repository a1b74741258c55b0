"""JupyterLab as `make lab` starts it, on copies of the notebooks, for a browser to drive."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "lab-test"
START = 90  # seconds
APP = "--LabApp.expose_app_in_browser=True"


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab whose root is `folder`."""

    url: str
    folder: Path

    @property
    def opens(self) -> str:
        """The address that the user's browser is sent to."""
        said, end = self.folder / "opened.html", time.monotonic() + START
        while not said.exists() and time.monotonic() < end:
            time.sleep(0.2)
        return html.unescape(re.search(r'href="([^"]+)"', said.read_text())[1])

    def page(self, notebook: str) -> str:
        return f"{self.url}/lab/tree/{notebook}?token={TOKEN}"


@contextmanager
def lab(folder: Path, **environment: str) -> Iterator[Lab]:
    """JupyterLab on `folder` (which gets the notebooks and the example case), with settings and folders of its own. Ended in any case."""
    command = next(line for line in made("lab") if " lab " in line)
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    (folder / "data").symlink_to(ROOT / "data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {f"JUPYTER_{name}_DIR": str(folder / f".{name.lower()}") for name in ("CONFIG", "RUNTIME", "DATA")}
    env = (
        os.environ
        | own
        | {
            "BROWSER": str(folder / "browser.sh"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / ".user"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".workspaces"),
        }
    )
    browser = folder / "browser.sh"  # the user's: it keeps the page that it is told to open
    browser.write_text(f'#!/bin/sh\ncp "${{1#file://}}" "{folder}/opening.html" && mv "{folder}/opening.html" "{folder}/opened.html"\n')
    browser.chmod(0o755)
    log = (folder / "lab.log").open("wb")
    server = subprocess.Popen(
        [*shlex.split(command), f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", APP],
        cwd=folder,
        env=env | environment,
        stdout=log,
        stderr=log,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, folder / "lab.log")
        yield Lab(f"http://127.0.0.1:{port}", folder)
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
        log.close()


def made(target: str) -> list[str]:
    """The commands that `make` would run, with this environment in place of `.venv`."""
    told = subprocess.run(["make", "-n", target, f"VENV={sys.prefix}"], cwd=ROOT, capture_output=True, text=True, check=True)
    return told.stdout.splitlines()


def wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    """Until the server answers; its log's end is the error where it does not."""
    end = time.monotonic() + START
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError(f"JupyterLab did not start within {START} s:\n{log.read_text(errors='replace')[-3000:]}")
