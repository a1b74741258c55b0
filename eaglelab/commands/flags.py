"""`eaglelab flags`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    command("flags", run, "the settings that a launch command really leads to, per engine version")


def run(args: argparse.Namespace) -> int:
    raise ValueError("not built yet")
