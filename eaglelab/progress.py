"""Progress for what takes longer than two seconds, on stderr only: a bar for people, one line at the end for logs and reports.

for key in progress(keys, "health", unit="samples"):        # "health: 32 samples, 12.3 s"
    …
with counting(len(groups), "replay", said="32 samples") as step:
    step()
with stage("the replay on the dump's feed"):                 # one line for all that runs inside
    …
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

HEADLESS = "EAGLELAB_HEADLESS"
"""Set by the report runner: in this kernel nobody watches a bar, which papermill would freeze at 0 %."""
DELAY = 2.0
"""Seconds from which something is worth a bar or a line."""
_stages: list[list[tuple[float, str]]] = []
"""(seconds, what was counted) of the loops inside of each stage that is running."""


def in_ipython() -> bool:
    """True in Jupyter, live or under papermill."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def watched() -> bool:
    """True in live Jupyter, where a person sees what moves; False in a report's kernel, under papermill and on a terminal."""
    return in_ipython() and not os.environ.get(HEADLESS) and _may_be_asked()


def _may_be_asked() -> bool:
    """Whether a person sits at the front end: one that runs notebooks by itself (papermill, nbconvert, nbclient) says that it has nobody for
    `input()`, JupyterLab and editors say that they have. A terminal's IPython has no kernel."""
    kernel = getattr(sys.modules["IPython"].get_ipython(), "kernel", None)
    request = kernel.get_parent() if hasattr(kernel, "get_parent") else {}
    return request.get("content", {}).get("allow_stdin", True)


def moving() -> bool:
    """Whether a bar is seen moving: on a terminal, and in live Jupyter."""
    return sys.stderr.isatty() or watched()


def progress(items: Iterable[T], what: str, total: int | None = None, delay: float = DELAY, unit: str = "") -> Iterator[T]:
    """Yield from `items`, with a bar once `delay` seconds have passed. unit: what they are, in the plural, for the line at the end."""
    done = 0
    with counting(
        total if total is not None else _length(items), what, delay=delay, said=lambda: f"{done:,} {unit}" if unit else ""
    ) as step:
        for item in items:
            yield item
            done += 1
            step()


@contextmanager
def counting(total: int | None, what: str, *, delay: float = DELAY, said: str | Callable[[], str] = "") -> Iterator[Callable[[], object]]:
    """A bar of `total` steps, each counted by calling what this yields; it goes when the block is left, also by an interrupt.

    said: how much was done, for the line at the end: `32 samples`.
    """
    from tqdm.auto import tqdm

    start = time.monotonic()
    with tqdm(total=total, desc=what, delay=delay, leave=False, disable=not moving()) as bar:
        yield bar.update
    _tell(what, time.monotonic() - start, said if isinstance(said, str) else said(), delay)


@contextmanager
def stage(title: str, delay: float = DELAY) -> Iterator[None]:
    """Of all loops inside only one line is left at the end, in the name of `title`; what is inside of a stage is no stage of its own."""
    start, loops = time.monotonic(), []
    _stages.append(loops)
    try:
        yield
    finally:
        _stages.pop()
    longest = max(loops, default=(0.0, ""))[1]
    _tell(title, time.monotonic() - start, longest, delay)


def _tell(what: str, seconds: float, said: str, delay: float) -> None:
    if _stages:
        _stages[-1].append((seconds, said))
    elif seconds >= delay and not moving():
        print(f"{what}: {f'{said}, ' if said else ''}{seconds:.1f} s", file=sys.stderr)


def _length(items: Iterable[T]) -> int | None:
    return len(items) if hasattr(items, "__len__") else None
