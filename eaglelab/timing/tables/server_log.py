"""A server's log over time as measured rows: throughput and accept length by the number of requests that ran."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eaglelab.served.log import ServedLog, read_log
from eaglelab.served.row import LogRow
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import Measured, MeasuredTable
from eaglelab.timing.setting import Setting

PASSES = ("decode", "interval")
FEW = 3
"""Below this many lines of one batch size no row is made."""


def from_log(log: ServedLog | str | Path, *, setting: Setting | None = None) -> MeasuredTable:
    """One row a start of the server and number of running requests: medians of the lines of which the one before, of the same rank, had as many
    running and no prompt came in between.

    A line's throughput is of one rank, over the time since its last line, waiting included. extra: lines, tok_s_low and tok_s_high (the
    quartiles), start. setting: of the starts that speculate and print none. Raises TimingError where no line can be used, LogError for no log.
    """
    log = log if isinstance(log, ServedLog) else read_log(log)
    notes: list[str] = []
    rows: list[Measured] = []
    for start in sorted({row.start for row in log.rows if row.event in PASSES}):
        lines = [row for row in log.rows if row.start == start]
        found = _setting(log, start, lines, setting, notes)
        if found is not None:
            rows += _rows(log, start, lines, found, notes)
    if not rows:
        said = "; ".join(notes) or f"none of its {log.lines:,} lines tells a throughput at a number of running requests"
        raise TimingError(f"{log.path.name}: no line of a running server that can be used ({said})")
    notes.insert(0, "throughput of a log's lines: medians over lines of one number of running requests, of one rank")
    return MeasuredTable(tuple(rows), log.path, tuple(notes))


def _rows(log: ServedLog, start: int, lines: list[LogRow], setting: Setting, notes: list[str]) -> Iterator[Measured]:
    by_batch: dict[int, list[LogRow]] = defaultdict(list)
    for row in _steady(lines):
        by_batch[row.running].append(row)
    settings = log.starts[start].settings if start < len(log.starts) else {}
    few = []
    for batch, steady in sorted(by_batch.items()):
        if len(steady) < FEW:
            few.append(f"{batch} ({len(steady)})")
            continue
        told = [row.accept_length for row in steady if row.accept_length is not None]
        speeds = [row.tok_s for row in steady]
        low, _, high = statistics.quantiles(speeds, n=4, method="inclusive")
        extra: dict[str, Any] = {"start": start, "lines": len(steady), "tok_s_low": low, "tok_s_high": high}
        extra |= {
            name: settings[key] for name, key in (("model", "model"), ("tp", "tp_size"), ("draft", "draft_model")) if settings.get(key)
        }
        length = statistics.fmean(told) if told and not setting.off else None
        if length is not None and length > setting.steps + 1:
            notes.append(f"an accept length of {length:.2f} at {batch} running cannot be of {setting.name}: not used")
            length = None
        source = f"{log.path.name}, lines {steady[0].line} to {steady[-1].line}"
        yield Measured(batch, setting, statistics.median(speeds), length, source, extra)
    if few:
        notes.append(f"numbers of running requests with fewer than {FEW} lines in a row are left out: {', '.join(few)}")


def _steady(lines: list[LogRow]) -> Iterator[LogRow]:
    """Lines whose whole interval ran at one batch size."""
    before: dict[str, LogRow] = {}
    for row in lines:
        last = before.get(row.rank)
        before[row.rank] = row
        usable = row.event in PASSES and row.running and row.tok_s
        if usable and last is not None and last.event == row.event and last.running == row.running and not row.prompt_tok_s:
            yield row


def _setting(log: ServedLog, start: int, lines: list[LogRow], said: Setting | None, notes: list[str]) -> Setting | None:
    """In force at a start: as printed; off where nothing speaks of speculation; else `said`. None, with a note, where it cannot be told."""
    told = log.starts[start].settings if start < len(log.starts) else {}
    given = told.get("given", {})
    lengths = any(row.accept_length is not None for row in lines)
    if given.get("speculative_adaptive") is True:
        notes.append(f"start {start}: the number of steps is adaptive, its lines are of no one setting")
        return None
    steps, topk, nodes = (told.get(name) for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if isinstance(steps, int) and steps > 0:
        try:
            return Setting(steps, topk or 1, nodes or 0)
        except ValueError as error:
            notes.append(f"start {start}: {error}")
            return None
    if not lengths and not told.get("algorithm"):
        if not told:
            notes.append("the log holds no start and no accept length: taken as without speculation")
        return Setting(0)
    if said is not None:
        return said
    notes.append(
        f"start {start}: its lines are of speculation and the log does not print the number of steps; say it (3-1-4: steps, topk, draft tokens)"
    )
    return None
