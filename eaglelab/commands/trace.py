"""`eaglelab trace`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    command("trace", run, "where the milliseconds of profiler traces go: verify, draft, sampling, communication, gaps")


def run(args: argparse.Namespace) -> int:
    raise ValueError("not built yet")
