"""What a server on this machine names by a path."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")
LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


def served_config(path: Any, url: str) -> dict[str, Any] | None:
    """config.json of the drafter that a server on this machine was started with; None for another machine's, or an unreadable one.

    A relative path is followed from the server's own working folder, where Linux shows it.
    """
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK or not isinstance(path, str) or not path:
        return None
    folder = Path(path) if Path(path).is_absolute() else working_folder(parts.port)
    from eaglelab.drafter.config import read_config

    try:
        return None if folder is None else read_config(folder / path)
    except (ValueError, OSError):
        return None


def working_folder(port: int | None) -> Path | None:
    """Of the process that listens at a port of this machine; None where /proc does not tell (another user's, no Linux)."""
    sockets: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = (line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:])
            sockets |= {f"socket:[{r[9]}]" for r in rows if r[3] == LISTENS and int(r[1].rsplit(":", 1)[1], 16) == port}
    for link in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if os.readlink(link) in sockets:
                return Path(os.readlink(link.parents[1] / "cwd"))
    return None
