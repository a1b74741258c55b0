"""The heavy results of one investigation: each computed once, by whichever kernel comes first, and taken from the user's cache after that."""

from __future__ import annotations

import functools
import hashlib
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from eaglelab.cache import codec
from eaglelab.cache.folder import CacheWarning, Folder, open_folder
from eaglelab.cache.unfinished import Unfinished
from eaglelab.progress import stage

if TYPE_CHECKING:
    from eaglelab.opened import OpenedCase

T = TypeVar("T")

WORTH = 0.3
"""Seconds of computing from which a result is kept."""
BEGUN = time.time()
"""When this process imported eaglelab: what is written in its folder after that may run here or not."""
SINCE = "EAGLELAB_CACHE_SINCE"
"""Seconds since 1970: results that were computed before are computed again. `eaglelab report --fresh` sets it, so that its notebooks share
theirs."""
PIECES = ".pieces"
_left: dict[str, dict[str, dict]] = {}
"""Pieces of interrupted computations of this process, by the result's key: a notebook that is run again opens the case again."""


@dataclass(frozen=True)
class Use:
    """A result that came from the cache."""

    result: str
    computed: str
    """When, UTC: `2026-11-30 20:11`."""
    seconds: float
    """What computing it took then."""

    def to_json(self) -> dict[str, Any]:
        return vars(self)

    def __str__(self) -> str:
        return f"{self.result} (computed {self.computed} UTC, {self.seconds:.1f} s)"


class Results:
    """Of one investigation. Without a folder nothing is read or written; what is interrupted goes on all the same."""

    def __init__(self, inv: OpenedCase, folder: Folder | None = None, since: float = 0.0, worth: float = WORTH) -> None:
        self.inv, self.folder, self.since, self.worth = inv, folder, since, worth
        self.used: list[Use] = []
        self._told = 0
        self._why_not = ""
        if folder is not None:
            self._take_key()
        self.unfinished = Unfinished(None if self.folder is None else _left)  # without a folder keys are of this case alone

    def _take_key(self) -> None:
        """At once, before any part of the case is read: a result that is kept is one of these inputs throughout."""
        from eaglelab.cache.key import OWN, inputs_of, key_of

        self.inputs = inputs_of(self.inv.case)
        self.case_key = key_of(self.inv, self.inputs)
        if self.inputs.written[OWN] > BEGUN:
            self._warn("eaglelab's own files changed since this kernel began: restart it")
            self.folder = None

    def untold(self) -> list[Use]:
        """What came from the cache since this was last asked."""
        new, self._told = self.used[self._told :], len(self.used)
        return new

    def of(self, title: str, name: str, compute: Callable[[], T], arguments: tuple[Any, ...] = (), by_path: bool = False) -> T:
        """A result of the case, which `compute` computes where the cache does not have it.

        title: what people call it. name, arguments: what tells it from the case's other results. by_path: it names places on this disk.
        """
        key = self._key(name, arguments, by_path)
        if self.folder is None:
            with stage(title), self.unfinished.work(key):
                return compute()
        found = self._read(key)
        if found is None:
            with self.folder.alone(key):
                found = self._read(key)
                if found is None:
                    return self._compute(title, key, compute)
        value, about = found
        self.used.append(Use(title, about["computed"], about["seconds"]))
        return value

    def _key(self, name: str, arguments: tuple[Any, ...], by_path: bool) -> str:
        told: dict[str, Any] = {"name": name}
        if self.folder is not None:
            from eaglelab.cache.key import machine

            places = [self.inv.case.root, *self.inputs.named.values()] if by_path else []
            told |= {"case": self.case_key, "machine": machine(self.inv.device), "places": [os.path.realpath(p) for p in places]}
        return hashlib.sha256(codec.dump(arguments, told)).hexdigest()[:40]

    def _read(self, key: str) -> tuple[Any, dict[str, Any]] | None:
        found = self.folder.read(key)
        return found if found is not None and found[1]["at"] >= self.since and not self.inputs.changed() else None

    def _compute(self, title: str, key: str, compute: Callable[[], T]) -> T:
        pieces = f"{key}{PIECES}"

        if self.inputs.changed():  # pieces of other inputs are none of this
            self.unfinished.left.pop(key, None)

        def load() -> dict[str, dict]:
            if self.inputs.changed():
                return {}
            found = self.folder.read(pieces)
            return {} if found is None or found[1]["at"] < self.since else found[0]

        def save(parts: dict[str, dict]) -> bool:
            if self._may_keep():
                self.folder.write(pieces, parts, self._about(title, 0.0), quiet=True)
            return not self.inputs.changed()

        start = time.monotonic()
        with stage(title), self.unfinished.work(key, load, save):
            value = compute()
        seconds = time.monotonic() - start
        if seconds >= self.worth and self._may_keep():
            self.folder.write(key, value, self._about(title, seconds))
        self.folder.remove(pieces)
        return value

    def _may_keep(self) -> bool:
        """Whether what was computed is of the inputs that the key is of. What hinders is said once."""
        if self.inputs.changed():
            self._warn("files of the case, or of eaglelab, changed while it was open: open it again")
        elif not self.inputs.settled:
            self._warn("files of the case were written just before it was opened")
        else:
            return True
        return False

    def _warn(self, why: str) -> None:
        if why != self._why_not:
            self._why_not = why
            warnings.warn(f"results are not kept: {why}", CacheWarning, stacklevel=4)

    def _about(self, title: str, seconds: float) -> dict[str, Any]:
        now = datetime.now(UTC)
        return {"title": title, "computed": now.strftime("%Y-%m-%d %H:%M"), "at": now.timestamp(), "seconds": round(seconds, 2)}


def kept(title: str, by_path: bool = False) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """For a method of an investigation, or of a part of one (with `inv`): its result is one of the case's, see `Results.of`."""

    def of(method: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(method)
        def asked(self: Any, *arguments: Any) -> T:
            results = getattr(self, "inv", self).results
            return results.of(title, method.__qualname__, functools.partial(method, self, *arguments), arguments, by_path)

        return asked

    return of


def open_results(inv: OpenedCase, fresh: bool = False) -> Results:
    """With the user's cache, where it is on. fresh: what was computed before now is computed again."""
    since = time.time() if fresh else _since()
    return Results(inv, open_folder(), since)


def _since() -> float:
    try:
        return float(os.environ.get(SINCE) or 0)
    except ValueError:
        warnings.warn(f"{SINCE} is {os.environ[SINCE]!r}, expected seconds since 1970: left out", CacheWarning, stacklevel=3)
        return 0.0
