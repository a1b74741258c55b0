"""Progress for what takes longer than two seconds, on stderr only: a bar for people, one line at the end for logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

HEADLESS = "EAGLELAB_HEADLESS"
"""Set by the report runner: in this kernel nobody watches a bar, which papermill would freeze at 0 %."""


def in_ipython() -> bool:
    """True in Jupyter, live or under papermill."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def watched() -> bool:
    """True in live Jupyter, where a person sees what moves; False in a report's kernel and on a terminal."""
    return in_ipython() and not os.environ.get(HEADLESS)


def progress(items: Iterable[T], what: str, total: int | None = None, delay: float = 2.0) -> Iterator[T]:
    """Yield from `items`, with a bar once `delay` seconds have passed, on a terminal or in live Jupyter."""
    from tqdm.auto import tqdm

    seen = sys.stderr.isatty() or watched()
    start = time.monotonic()
    yield from tqdm(items, what, total, delay=delay, leave=False, disable=not seen)
    seconds = time.monotonic() - start
    if not seen and seconds >= delay:
        print(f"{what}: {seconds:.1f} s", file=sys.stderr)
