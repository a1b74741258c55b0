"""The names of a dump's files, without opening any: 100,000 of them are listed in a second or two."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eaglelab.dumps.containers import DumpError

STRAY_STEMS = (
    *("token_freq", "vocab_mapping", "d2t", "t2d", "cache", "optimizer", "scheduler", "training_state"),
    *("model", "pytorch_model", "adapter_model"),
)
"""Tensor files that trainers put beside samples and that are none; a checkpoint's may be numbered, `model-00001-of-00002`."""


@dataclass(frozen=True)
class Listing:
    """All files under a dump's root, or the one file that the path names."""

    path: Path
    """As given."""
    root: Path
    """The folder that keys are relative to."""
    files: tuple[str, ...]
    """Relative paths with forward slashes, in natural order (data_2 before data_10)."""
    closed: tuple[str, ...] = ()
    """What to say of folders that cannot be listed."""

    def found(self) -> str:
        """What is there, in words: `3 files: 2 .pt, 1 .json`."""
        kinds = Counter(Path(name).suffix.lower() or "without a suffix" for name in self.files)
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(6))
        return f"{len(self.files)} file{'s' * (len(self.files) != 1)}" + (f": {listed}" if listed else "")


def list_dump(path: str | os.PathLike) -> Listing:
    """Every regular file under `path`, hidden ones and names that are no UTF-8 left out (no report could name them); links to folders
    are followed, but never back into the dump.

    Pipes, sockets and devices are no samples, whatever their name: opening one may wait for ever.
    """
    path = Path(path).expanduser()
    if path.is_file():
        return Listing(path, path.parent, (path.name,))
    if not path.is_dir():
        near = next((p for p in path.parents if p.exists()), None)
        raise DumpError(f"{path}: no such file or folder (what exists of it: {near}). Check the path.", "missing")
    try:
        closed: list[str] = []
        files = sorted(_walk(path, closed), key=natural)
    except OSError as error:
        raise DumpError(f"{path}: cannot be listed: {error.strerror or error}. Check its permissions.") from error
    if not files:
        raise DumpError(f"{path}: the folder holds no files. Check the path, or dump samples first.", "empty")
    return Listing(path, path, tuple(files), tuple(closed))


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which data_2 comes before data_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def split_stray(names: Iterable[str], numbered: bool = True) -> tuple[list[str], list[str]]:
    """(sample names, stray names) by name alone.

    Stray are the files that trainers are known to leave beside samples, and, where most are numbered, files without a number.
    numbered: False where the writer names its files by ids of any kind.
    """
    names = list(names)
    known = {name for name in names if re.sub(r"-\d{5}-of-\d{5}$", "", _stem(name)) in STRAY_STEMS}
    without = {name for name in names if not re.search(r"\d", _stem(name))} - known
    if numbered and 2 * len(without) < len(names) - len(known):
        known |= without
    return [n for n in names if n not in known], [n for n in names if n in known]


def _stem(name: str) -> str:
    return name.rsplit("/", 1)[-1].split(".", 1)[0]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk(root: Path, closed: list[str]) -> Iterable[str]:
    """The files' names; `closed` gets the folders below the root that cannot be listed, with the reason."""
    inside, entered = os.path.realpath(root), set()
    stack = [("", str(root))]
    while stack:
        prefix, folder = stack.pop()
        try:
            entries = os.scandir(folder)
        except OSError as error:
            if not prefix:
                raise
            closed.append(f"the folder {prefix} cannot be listed ({error.strerror or error}): its samples are left out")
            continue
        with entries:
            for entry in entries:
                if entry.name.startswith(".") or not _is_text(entry.name):
                    continue
                link = entry.is_symlink()
                if not (os.path.isdir(entry.path) if link else entry.is_dir()):  # a DirEntry raises for a link to itself
                    regular = os.path.isfile(entry.path) if link else entry.is_file()
                    if regular or not os.path.exists(entry.path):  # a link that leads nowhere is a sample that is lost
                        yield prefix + entry.name
                    continue
                if link:
                    target = os.path.realpath(entry.path)
                    if target in entered or f"{inside}/".startswith(f"{target}/") or target.startswith(f"{inside}/"):
                        continue
                    entered.add(target)
                stack.append((f"{prefix}{entry.name}/", entry.path))
