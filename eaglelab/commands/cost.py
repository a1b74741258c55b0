"""`eaglelab cost`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    command("cost", run, "cost ratio, break-even accept length and speedup of measured settings; the best setting per batch size")


def run(args: argparse.Namespace) -> int:
    raise ValueError("not built yet")
