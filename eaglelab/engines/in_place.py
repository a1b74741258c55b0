"""A corrected config in the place of the old one, which is kept beside it."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from eaglelab.drafter.config import config_path
from eaglelab.engines.wiring_report import CorrectedConfigError


def write_in_place(config: str | Path, new: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write `new` into `config` (a config.json or its folder), in its own indent and encoding of letters; returns (file, backup).

    The backup is `config.json.bak`, `.bak.1` where that is there, and holds the old bytes. The file is replaced in one step: a broken run
    leaves the old one or the new one. Raises CorrectedConfigError for a link, a file or folder that is read-only, and where the disk is full.
    """
    path = config_path(config)
    if path.is_symlink():
        raise CorrectedConfigError(
            f"{path} is a link to {os.readlink(path)}, as in a download cache that others share: copy the drafter's folder and name the copy, "
            "or use --write for a corrected copy"
        )
    mode = path.stat().st_mode
    if not mode & stat.S_IWUSR or not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise CorrectedConfigError(f"{path} is read-only: change its rights, or name a copy of the drafter's folder")
    old = path.read_bytes()
    staged = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        backup = _backup(path, old)
        staged.write_bytes(_like(old, new))
        staged.chmod(stat.S_IMODE(mode))
        os.replace(staged, path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise CorrectedConfigError(f"{path} cannot be written ({error.strerror}): it is as it was") from None
    return path, backup


def _backup(path: Path, old: bytes) -> Path:
    """The old bytes under the first name that is free; no file that is there is ever written over."""
    for n in count():
        backup = path.with_name(f"{path.name}.bak" + (f".{n}" if n else ""))
        try:
            with backup.open("xb") as file:
                file.write(old)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            continue
        return backup
    raise AssertionError("count() does not end")


def _like(old: bytes, new: Mapping[str, Any]) -> bytes:
    """JSON in the indent of the old text, its way of writing other letters than ASCII, its line ends and its last line's end."""
    text = old.decode("utf-8-sig")
    found = re.search(r"[{\[]\r?\n([ \t]+)", text)
    indent = None if "\n" not in text.strip() else found.group(1) if found else 2
    written = json.dumps(new, indent=indent, ensure_ascii=text.isascii())
    written += "\n" if text.endswith("\n") else ""
    return (written.replace("\n", "\r\n") if "\r\n" in text else written).encode()
