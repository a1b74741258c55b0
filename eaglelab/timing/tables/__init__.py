"""Readers of measured tables: one file a format."""

from __future__ import annotations

import re
from pathlib import Path

from eaglelab.served.lines import LogError
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import MeasuredTable
from eaglelab.timing.setting import Setting
from eaglelab.timing.tables.bench_json import read_json
from eaglelab.timing.tables.delimited import read_delimited
from eaglelab.timing.tables.rows import Rows
from eaglelab.timing.tables.server_log import from_log

__all__ = ["from_log", "read_file"]

RESULTS = "results.jsonl"
"""Of a sweep's folder."""
HEAD = 2**20
LOG = re.compile(rb"server_args=|(Decode|Prefill) batch[ .,]|Avg generation throughput|Initializing a V1 LLM engine|Started server process")


def read_file(path: Path, *, setting: Setting | None, batch: int | None, no_bonus: bool) -> MeasuredTable:
    """See `measured.read_measured`."""
    if path.is_dir():
        if not (path / RESULTS).is_file():
            raise TimingError(f"{path.name}: a folder without {RESULTS}, expected a sweep's folder or a file of measurements")
        path = path / RESULTS
    if not path.is_file():
        raise TimingError(f"{path}: no such file, expected a table (CSV), a benchmark's JSON lines, a server's log, or a sweep's folder")
    with path.open("rb") as file:
        head = file.read(HEAD)
    rows = Rows(path, setting=setting, batch=batch, no_bonus=no_bonus)
    try:
        if LOG.search(head) or head[:2] == b"\x1f\x8b":
            return from_log(path, setting=setting)
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" or path.suffix in (".json", ".jsonl"):
            read_json(path, rows)
        else:
            read_delimited(path, rows)
    except LogError as error:
        raise TimingError(str(error)) from None
    return rows.table()
