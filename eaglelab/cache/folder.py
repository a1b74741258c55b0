"""The user's cache folder: one file a result, written at once or not at all, bounded in size, nobody else's to write.

`EAGLELAB_CACHE` names it (`off`: there is none), else it is `eaglelab` in XDG_CACHE_HOME or ~/.cache. It never lies in a case's folder, which
may come from somebody else. A folder that another user owns, or that others may write to, is refused: what lies in it would be believed.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eaglelab.cache import codec

PLACE, SIZE = "EAGLELAB_CACHE", "EAGLELAB_CACHE_BYTES"
OFF = "off"
BOUND = 2 * 10**9
"""Bytes that all results may have together unless EAGLELAB_CACHE_BYTES says otherwise."""
LARGEST = 2**28
"""Bytes of one result, or of the pieces of one."""
KEPT = 0.8
"""Share of the bound that is left when the oldest results go, so that not every write looks through the folder for what to drop."""
ENDING, LOCK = ".result", ".lock"
WAIT = 900.0
"""Seconds that one process waits for another that computes the same result, before it computes it itself."""


class CacheError(ValueError):
    """A cache folder that cannot be used, with what to do."""


class CacheWarning(UserWarning):
    """Something about the cache that costs time and no result."""


class Folder:
    """Results by key. Nothing in it can make a run fail: what cannot be read or written is said once and computed."""

    def __init__(self, path: Path, bound: int = BOUND) -> None:
        """Make the folder, for its owner alone. Raises CacheError where it is not, or cannot be, the user's own."""
        self.path, self.bound = path, bound
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.stat()
        except OSError as error:
            raise CacheError(f"{path}: the cache folder cannot be made: {error.strerror}. {PLACE} names another, or `{OFF}`") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise CacheError(f"{path}: the cache folder belongs to user {found.st_uid}, expected a folder of yours. {PLACE} names another")
        if found.st_mode & 0o022:
            raise CacheError(f"{path}: others may write to the cache folder (mode {found.st_mode & 0o777:o}): `chmod 700 {path}`")

    def file(self, key: str) -> Path:
        return self.path / f"{key}{ENDING}"

    def read(self, key: str) -> tuple[Any, dict[str, Any]] | None:
        """(value, what was said of it); None where there is none that can be used. A damaged one is said and removed."""
        file = self.file(key)
        try:
            with open(file, "rb", opener=_no_link) as opened:
                found = os.fstat(opened.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise codec.Damaged(f"belongs to user {found.st_uid} or is no file")
                value = codec.load(opened.read())
        except FileNotFoundError:
            return None
        except (OSError, codec.Damaged) as error:
            warnings.warn(f"{file.name} in the cache is left out and computed again: {error}", CacheWarning, stacklevel=2)
            self.remove(key)
            return None
        with suppress(OSError):
            os.utime(file)  # the oldest use goes first
        return value

    def write(self, key: str, value: Any, about: dict[str, Any], quiet: bool = False) -> bool:
        """Store a value under a key, in one step. False where it cannot be, which is said unless it is to be `quiet`."""
        try:
            data = codec.dump(value, about, min(LARGEST, self.bound))
            self.make_room(len(data))
            handle, name = tempfile.mkstemp(dir=self.path, prefix="tmp-")
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(data)
                os.replace(name, self.file(key))
            except BaseException:
                os.unlink(name)
                raise
        except (OSError, codec.NotStorable) as error:
            if not quiet:
                warnings.warn(f"not kept in the cache: {error}", CacheWarning, stacklevel=2)
            return False
        return True

    def remove(self, key: str) -> None:
        with suppress(OSError):
            self.file(key).unlink()

    def make_room(self, size: int) -> None:
        """Remove the results whose last use is longest ago where `size` bytes more would pass the bound, and what dead writers left."""
        files, now = [], time.time()
        for entry in os.scandir(self.path):
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if entry.name.endswith(ENDING):
                    files.append((found.st_mtime, found.st_size, entry.path))
                elif now - found.st_mtime > 86400:
                    os.unlink(entry.path)
        held = sum(bytes_ for _, bytes_, _ in files)
        if held + size <= self.bound:
            return
        for _, bytes_, path in sorted(files):
            if held + size <= KEPT * self.bound:
                break
            with suppress(OSError):
                os.unlink(path)
            held -= bytes_

    @contextmanager
    def alone(self, key: str, wait: float = WAIT) -> Iterator[float]:
        """Hold a result's lock, which ends with the process; yields the seconds of waiting. After `wait` seconds it goes on without."""
        path, begun = self.path / f"{key}{LOCK}", time.monotonic()
        handle = None
        try:
            while handle is None and time.monotonic() - begun < wait:
                handle = _locked(path)
                if handle is None:
                    time.sleep(0.05)
            yield time.monotonic() - begun
        finally:
            if handle is not None:
                with suppress(OSError):
                    path.unlink()  # still locked: whoever waits finds another file in its place and tries again
                os.close(handle)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _locked(path: Path) -> int | None:
    """A handle that holds the lock, None while another does."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def place() -> Path | None:
    """Where the environment puts the cache; None: it is off."""
    named = os.environ.get(PLACE, "")
    if named.strip().lower() == OFF:
        return None
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "eaglelab"


def open_folder() -> Folder | None:
    """The user's cache folder; None where it is off, or cannot be used, which is said."""
    path, bound = place(), os.environ.get(SIZE, "")
    if path is None:
        return None
    try:
        return Folder(path, int(float(bound)) if bound else BOUND)
    except (CacheError, ValueError) as error:
        why = error if isinstance(error, CacheError) else f"{SIZE} is {bound!r}, expected a number of bytes"
        warnings.warn(f"results are not kept: {why}", CacheWarning, stacklevel=2)
        return None
