"""Arguments that several commands take, and their types."""

from __future__ import annotations

import argparse
import re

DTYPES = ("auto", "float32", "bfloat16", "float16")


def samples(sub: argparse.ArgumentParser, default: int) -> None:
    text = f"samples of the dump that are read, a seeded choice over all files; 0 = all (default: {default})"
    sub.add_argument("--max-samples", type=count_or_all, default=default, metavar="N", help=text)
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="seed of that choice (default: 0)")


def where(sub: argparse.ArgumentParser, dtype: str | None = None) -> None:
    text = "auto, cpu, cuda, cuda:1, ... (default: auto = CUDA where there is one)"
    sub.add_argument("--device", default="auto", type=device, metavar="D", help=text)
    if dtype is not None:
        sub.add_argument("--dtype", default="auto", choices=DTYPES, help=dtype)


def device(text: str) -> str:
    """A device by name; whether this machine has it is torch's to say, later."""
    if not re.fullmatch(r"auto|cpu|(cuda|xpu|mps|npu)(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r}, expected auto, cpu, cuda or cuda:1")
    return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def count(text: str) -> int:
    """A number of things, 1 or more."""
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of things, expected 1 or more")
    return number


def count_or_all(text: str) -> int:
    """0 or more."""
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative, expected 0 or more")
    return number
