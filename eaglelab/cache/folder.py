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
        self.path, self.bound, self._said = path, bound, set()
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
            self._say("read", f"{file.name} in the cache is left out and computed again: {error}")
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
                why = f"{error.strerror or error} ({self.path})" if isinstance(error, OSError) else f"{error}"
                self._say(why, f"not kept in the cache: {why}")
            return False
        return True

    def _say(self, what: str, text: str) -> None:
        """Once of each kind: a full disk is full for every result."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(text, CacheWarning, stacklevel=3)

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
        """Hold a result's lock, which ends with the process; yields the seconds of waiting. After `wait` seconds, and where nothing can be locked
        (a folder that may only be read, a file system without locks), it goes on without."""
        path, begun = self.path / f"{key}{LOCK}", time.monotonic()
        handle = None
        try:
            with suppress(OSError):
                while (handle := _locked(path)) is None and time.monotonic() - begun < wait:
                    time.sleep(0.05)
            yield time.monotonic() - begun
        finally:
            if handle is not None:
                with suppress(OSError):
                    path.unlink()  # still locked: whoever waits finds another file in its place and tries again
                os.close(handle)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _locked(path: Path) -> int | None:
    """A handle that holds the lock, None while another does. Raises OSError where there are no locks."""
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):  # removed by who held it: another file's lock is the one that counts now
            if os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
    except BlockingIOError:
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def place() -> Path | None:
    """Where the environment puts the cache; None: it is off. Raises CacheError where it names nobody's home."""
    named = os.environ.get(PLACE, "")
    if named.strip().lower() == OFF:
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "eaglelab"
    except RuntimeError as error:  # no HOME, and a user without an entry, as in a container
        raise CacheError(f"{error}. {PLACE} names a folder, or `{OFF}`") from None


def open_folder() -> Folder | None:
    """The user's cache folder; None where it is off, or cannot be used, which is said."""
    try:
        path, bound = place(), _bound(os.environ.get(SIZE, ""))
        return None if path is None else Folder(path, bound)
    except CacheError as error:
        warnings.warn(f"results are not kept: {error}", CacheWarning, stacklevel=2)
        return None


def _bound(text: str) -> int:
    try:
        return int(float(text)) if text else BOUND
    except (ValueError, OverflowError):
        raise CacheError(f"{SIZE} is {text!r}, expected a number of bytes") from None
