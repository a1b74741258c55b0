"""`eaglelab sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    command("sweep", run, "launch the engine with each setting worth trying and measure it")


def run(args: argparse.Namespace) -> int:
    raise ValueError("not built yet")
