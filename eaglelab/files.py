"""A file in one step: a reader sees the old one or the new one, never half of it, whoever else writes at the same time."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 through a temporary name of its own beside `path`; what UTF-8 cannot hold becomes `?`. Raises OSError, and leaves no part."""
    staged = path.with_name(f".{path.name[:100]}.{uuid4().hex}.part")
    try:
        staged.write_text(text, encoding="utf-8", errors="replace")
        os.replace(staged, path)
    except BaseException:  # a full disk, a Ctrl-C
        staged.unlink(missing_ok=True)
        raise
