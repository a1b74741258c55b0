"""Progress for what takes longer than two seconds: a bar for people, plain lines on stderr for logs.

A bar drawn under papermill would freeze at 0 % in the report, so a headless run gets text on stderr and one summary line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

HEADLESS = "EAGLELAB_HEADLESS"
"""Set by the report runner: this kernel has nobody who watches a bar."""


def in_kernel() -> bool:
    """True inside a Jupyter kernel (live or under papermill)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _live() -> bool:
    if os.environ.get(HEADLESS):
        return False
    return in_kernel() or sys.stderr.isatty()


def progress(
    iterable: Iterable[T], desc: str = "", total: int | None = None, *, delay: float = 2.0, every: float = 10.0, **bar: Any
) -> Iterator[T]:
    """Yield from `iterable`, showing how far it is once `delay` seconds have passed.

    On a terminal or in live Jupyter: a tqdm bar. Headless: a line on stderr every `every` seconds, and one summary line at the end
    (on stdout inside a notebook, so that it stands in the report; on stderr elsewhere, so that `--json` output stays clean).
    """
    if total is None and hasattr(iterable, "__len__"):
        total = len(iterable)  # type: ignore[arg-type]
    if _live():
        yield from _bar(iterable, desc, total, delay, **bar)
    else:
        yield from _lines(iterable, desc, total, delay, every)


def _bar(iterable: Iterable[T], desc: str, total: int | None, delay: float, **bar: Any) -> Iterator[T]:
    if in_kernel():
        from tqdm.auto import tqdm
    else:
        from tqdm import tqdm
    yield from tqdm(iterable, desc=desc or None, total=total, delay=delay, leave=False, **bar)


def _lines(iterable: Iterable[T], desc: str, total: int | None, delay: float, every: float) -> Iterator[T]:
    start = last = time.monotonic()
    of = "" if total is None else f" of {total}"
    done = 0
    try:
        for item in iterable:
            yield item
            done += 1
            now = time.monotonic()
            if now - last >= every:
                print(f"{desc or 'progress'}: {done}{of}, {now - start:.0f} s", file=sys.stderr, flush=True)
                last = now
    finally:  # also when the consumer stops early
        elapsed = time.monotonic() - start
        if elapsed >= delay:
            out = sys.stdout if in_kernel() else sys.stderr
            print(f"{desc or 'done'}: {done}{of} in {elapsed:.1f} s", file=out, flush=True)
