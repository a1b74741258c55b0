"""What a server on this machine names by a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def served_config(path: Any, url: str) -> dict[str, Any] | None:
    """config.json of the drafter that a server on this machine was started with; None for another machine's, or an unreadable one.

    A relative path is the server's own and not followed.
    """
    if urlsplit(url).hostname not in LOOPBACK or not isinstance(path, str) or not Path(path).is_absolute():
        return None
    from eaglelab.drafter.config import read_config

    try:
        return read_config(Path(path))
    except (ValueError, OSError):
        return None
