"""`eaglelab bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    command("bench", run, "the drafter's step and the target's verify pass, measured standalone on this machine")


def run(args: argparse.Namespace) -> int:
    raise ValueError("not built yet")
