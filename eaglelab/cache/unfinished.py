"""What an interrupted computation had done: pieces by name, so that the next run of it goes on from there.

A computation that is long asks for its `Pieces`, skips what is among them, and puts in each part when it is whole. They live as long as the
result that they are for is not there: `Unfinished.work` drops them when it is, and keeps them when the block ends by an interrupt or an error.
Nothing of a part that was cut is ever among them, so what is computed at last is what one run without a stop computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SAVE_EVERY = 60.0
"""Seconds after which pieces are also saved while the computation runs: a kernel may be killed."""
LEFT = 4
"""Interrupted computations whose pieces stay in memory."""


class Pieces(dict[Any, Any]):
    """The parts of one computation that are whole, by name. added: called after each one. end: to be called when all are there."""

    def __init__(self, added: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.added = added
        self.end: Callable[[], Any] = lambda: None

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, value)
        self.added()


class Work:
    """The pieces of all computations that one result takes, by what tells these apart."""

    def __init__(self, save: Callable[[dict[str, dict]], Any], before: dict[str, dict]) -> None:
        self.save, self.before = save, before
        self.pieces: dict[str, Pieces] = {}
        self.saved = time.monotonic()

    def of(self, which: str) -> Pieces:
        if which not in self.pieces:
            self.pieces[which] = Pieces(self._added)
            self.pieces[which].update(self.before.pop(which, {}))
        return self.pieces[which]

    def all(self) -> dict[str, dict]:
        return {**self.before, **{which: dict(mine) for which, mine in self.pieces.items() if mine}}

    def _added(self) -> None:
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.save(self.all())
            self.saved = time.monotonic()


class Unfinished:
    """Of one investigation. Computations ask for theirs by `of`, whichever result they run for."""

    def __init__(self, left: dict[str, dict[str, dict]] | None = None) -> None:
        """left: where the pieces of what was interrupted stay in memory, by the result's key."""
        self.left: dict[str, dict[str, dict]] = {} if left is None else left
        self._works: list[Work] = []
        self._alone: dict[str, Pieces] = {}
        """Of computations that run for no result."""

    def of(self, *what: Any) -> Pieces:
        """The pieces of the computation that these values tell from all others of the same result: what they are is what their repr says."""
        which = repr(what)
        if self._works:
            return self._works[-1].of(which)
        mine = self._alone.setdefault(which, Pieces())
        mine.end = lambda: self._alone.pop(which, None)
        for oldest in list(self._alone)[:-LEFT]:
            del self._alone[oldest]
        return mine

    @contextmanager
    def work(
        self,
        key: str,
        load: Callable[[], dict[str, dict]] = dict,
        save: Callable[[dict[str, dict]], bool] = lambda pieces: True,
    ) -> Iterator[None]:
        """Around the computation of one result. load, save: where pieces lie beyond this process; what `save` refuses (False) is dropped."""
        work = Work(save, self.left.pop(key, None) or load())
        self._works.append(work)
        try:
            yield
        except BaseException:
            if (pieces := work.all()) and save(pieces):
                self.left[key] = pieces
                for oldest in list(self.left)[:-LEFT]:
                    del self.left[oldest]
            raise
        finally:
            self._works.pop()
