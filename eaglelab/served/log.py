"""A server's log as one tidy table: SGLang's and vLLM's lines, starts and restarts, benchmarks' summaries."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import ratio_interval
from eaglelab.engines.conventions import Engine, parse_engine
from eaglelab.served import bench_lines, sglang_log, vllm_log
from eaglelab.served.counts import ServedCounts
from eaglelab.served.lines import LONGEST, Line, LineReader
from eaglelab.served.rates import RateFormula, rate_formula
from eaglelab.served.row import LogRow, as_table

if TYPE_CHECKING:
    import pandas as pd

WORTH = re.compile(
    r"batch|server_args=|Speculative metrics|Decoding metrics|Avg prompt throughput|non-default args|LLM engine \(v|ersion \d|ccept|acc_len|draft|spec_"
)
SUMMARY = re.compile(r"(?i)accept|acc_len|draft|throughput|batch size|position|^====")
LARGEST_JSON, LONGEST_JSON = 2**28, 2**26
NUMBERS = ("running", "queue", "accept_length", "accept_rate", "accepted", "tok_s", "prompt_tok_s", "new_tokens", "graph")
"""A row has one of them, or its line was not understood."""
FEW_LINES = 5
"""Below this many lines no interval is given."""


@dataclass(frozen=True)
class ServerStart:
    """One start of a server, as far as it was printed."""

    line: int
    time: datetime | None
    settings: dict[str, Any] = field(default_factory=dict)
    """engine, version, model, draft_model, algorithm, num_steps, eagle_topk, num_draft_tokens, dtype, decode_log_interval, tp_size, …: what was
    printed; `given`: all of SGLang's own flags in force."""


@dataclass(frozen=True)
class ServedLength:
    """An accept length out of a log's lines, and how it was made."""

    value: float | None
    """Tokens per verify pass, the bonus token included."""
    interval: tuple[float, float] | None
    """95 %, each line one observation; None below `FEW_LINES` lines. Lines that follow each other are alike, so it is rather too narrow."""
    lines: int
    left_out: int
    weight: str
    """What each line counts with, in words."""
    exact: bool
    """True: from verify passes and accepted tokens as counted. False: a mean of printed means."""
    counts: ServedCounts | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedLog:
    path: Path
    rows: tuple[LogRow, ...]
    starts: tuple[ServerStart, ...] = ()
    formulas: dict[int, RateFormula] = field(default_factory=dict)
    """What SGLang's `accept rate` was, by start."""
    lines: int = 0
    bytes: int = 0
    not_understood: dict[str, int] = field(default_factory=dict)
    """Counts of lines: `decode`, `prefill`, `interval`, `total` (recognised, without a number that can be used), `impossible` (an accept length below
    1), `cut` (cut off), `long` (only the first 64 KiB looked at)."""
    notes: tuple[str, ...] = ()

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row an event, in the order of the log; columns of `LogRow`. Times are naive, as printed."""
        return as_table(self.rows)

    @property
    def server_args(self) -> dict[str, Any]:
        """Settings of the last start under our names (`ServerStart.settings`), {} where the log has none."""
        return self.starts[-1].settings if self.starts else {}

    @property
    def engine(self) -> str | None:
        """The engine that printed most of the lines; None for a log without any."""
        seen = Counter(row.engine for row in self.rows)
        return seen.most_common(1)[0][0] if seen else None

    def measured(self, start: int | None = None) -> list[LogRow]:
        """Rows with an accept length, of one start (None: the last that has any); of the kinds of rows the finest that is there."""
        told = [row for row in self.rows if row.accept_length is not None]
        if start is None:
            start = max((row.start for row in told), default=0)
        told = [row for row in told if row.start == start]
        for events in (("decode", "interval"), ("request",), ("total",)):
            found = [row for row in told if row.event in events]
            if found:
                return found[-1:] if events == ("total",) else found
        return []

    def accept_length(self, start: int | None = None) -> ServedLength:
        """The accept length over the lines of one start (None: the last that has any).

        SGLang's line is a mean over `decode_log_interval` decode passes, rounded to two decimals; it counts with the requests that ran at its
        moment, since each of them verifies once a pass. The first line of a start and rank holds the warm-up request and is left out where
        others are there. vLLM's lines count with their verify passes, and where these are told for all lines the result is exact.
        """
        rows = self.measured(start)
        notes = []
        if not rows:
            return ServedLength(None, None, 0, 0, "none", False, notes=("no line of this log holds an accept length",))
        if len({row.start for row in self.rows if row.accept_length is not None}) > 1 and start is None:
            notes.append(f"the log holds {len(self.starts)} starts of a server: only the last is counted")
        kept, left_out = _without_warm_up(rows) if self.starts else (rows, 0)
        if left_out:
            notes.append(f"{left_out} first line{'s' if left_out > 1 else ''} after a start left out: the warm-up request is in there")
        if all(row.verify_steps is not None and row.accepted is not None for row in kept):
            return self._exact(kept, left_out, notes)
        if kept[0].event == "total":
            notes.append(f"one printed total: {kept[0].accept_definition}")
            return ServedLength(kept[0].accept_length, None, 1, left_out, "one total", False, notes=tuple(notes))
        weights = [max(1, row.running or 1) if row.event == "decode" else row.verify_steps or 1 for row in kept]
        parts = [row.accept_length * weight for row, weight in zip(kept, weights, strict=True)]
        interval = ratio_interval(parts, weights) if len(kept) >= FEW_LINES else None
        words = "requests running" if kept[0].event == "decode" else "verify passes, 1 where not told"
        notes.append("a weighted mean of means that were rounded to two decimals, not counted passes")
        return ServedLength(sum(parts) / sum(weights), interval, len(kept), left_out, words, False, notes=tuple(notes))

    def _exact(self, rows: Sequence[LogRow], left_out: int, notes: list[str]) -> ServedLength:
        counts = [_counts(row) for row in rows]
        total = sum(counts[1:], counts[0])
        interval = None
        if len(rows) >= FEW_LINES:
            low, high = ratio_interval([c.accepted for c in counts], [c.verify_steps for c in counts])
            interval = (1 + low, 1 + high)
        return ServedLength(total.accept_length, interval, len(rows), left_out, "verify passes", True, total, tuple(notes))


def read_log(
    path: str | Path, *, engine: str | Engine | None = None, num_draft_tokens: int | None = None, steps: int | None = None
) -> ServedLog:
    """A log of any size (text or gzip), streamed; also the output of a benchmark, as printed or in JSON.

    engine: with its version (`sglang==0.5.9`) where known; it decides what an accept rate means where the lines cannot. num_draft_tokens, steps:
    in force, where the log does not print them. Raises LogError for a file that cannot be read; nothing in a readable one raises.
    """
    reader = LineReader(path, LONGEST_JSON if Path(path).suffix == ".jsonl" else LONGEST)
    known = parse_engine(engine) if isinstance(engine, str) else engine
    reading = _Reading(known, num_draft_tokens, steps)
    whole = _json(reader.path)
    if whole is not None:
        reading.take_json(whole, 0)
        reader.lines = 0
    else:
        for line in reader:
            reading.take(line)
    return reading.log(reader)


def _json(path: Path) -> Any:
    """A whole file of JSON, or None."""
    if path.suffix not in (".json", ".jsonl") or not path.is_file() or path.stat().st_size > LARGEST_JSON:
        return None
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        return None
    return content if isinstance(content, (dict, list)) else None


class _Reading:
    """Rows as they come, line by line."""

    def __init__(self, engine: Engine | None, num_draft_tokens: int | None, steps: int | None) -> None:
        self.engine, self.num_draft_tokens, self.steps = engine, num_draft_tokens, steps
        self.rows: list[LogRow] = []
        self.starts: list[ServerStart] = []
        self.summaries = bench_lines.Summaries()
        self.odd: Counter[str] = Counter()
        self.before_any = True  # whether rows were seen since the last start

    def take(self, line: Line) -> None:
        text = line.text
        if text.startswith("{") and line.whole and WORTH.search(text):
            try:
                self.take_json(json.loads(text), line.number)
                return
            except (ValueError, RecursionError):
                pass
        if not WORTH.search(text) and not (self.summaries.found and SUMMARY.search(text)) and "throughput" not in text:
            return
        start = sglang_log.parse_start(line) or vllm_log.parse_start(line)
        if start is not None:
            self._start(line, *start)
            return
        found = sglang_log.parse(line) or vllm_log.parse(line, version=self._version("vllm"), steps=self._setting("num_steps", self.steps))
        for row in found:
            self._keep(row)
        if not found and SUMMARY.search(text):
            row = self.summaries.feed(line)
            if row is not None:
                self._keep(row)

    def take_json(self, content: Any, line: int) -> None:
        from eaglelab.served.answers import answers_in, as_row

        for answer in answers_in(content):
            self._keep(as_row(answer, line))
        for row in bench_lines.from_json(content, line):
            self._keep(row)

    def _keep(self, row: LogRow) -> None:
        row.start = max(0, len(self.starts) - 1)
        if row.accept_length is not None and row.accept_length < 1:
            self.odd["impossible"] += 1
            row.accept_length = row.accept_definition = None
        if all(getattr(row, name) is None for name in NUMBERS):
            self.odd[row.event] += 1
            return
        self.before_any = False
        if self.rows and vllm_log.same_moment(self.rows[-1], row):
            vllm_log.join(self.rows[-1], row)
        else:
            self.rows.append(row)

    def _start(self, line: Line, time: datetime | None, settings: dict[str, Any]) -> None:
        last = self.starts[-1] if self.starts else None
        if last is not None and self.before_any and last.settings.get("engine") == settings["engine"]:
            self.starts[-1] = ServerStart(last.line, last.time or time, {**settings, **last.settings})
            return
        self.starts.append(ServerStart(line.number, time, settings))
        event = "start" if len(self.starts) == 1 else "restart"
        self.rows.append(LogRow(event, settings["engine"], line.number, time, start=len(self.starts) - 1))
        self.before_any = True

    def _version(self, engine: str) -> str | None:
        printed = self.starts[-1].settings if self.starts else {}
        if printed.get("engine") == engine and printed.get("version"):
            return _valid(printed["version"])
        return self.engine.version if self.engine is not None and self.engine.name == engine else None

    def _setting(self, name: str, given: int | None, start: int = -1) -> int | None:
        """As the server printed it; a launch line asks for what an engine may change."""
        value = self.starts[start].settings.get(name) if self.starts else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else given

    def log(self, reader: LineReader) -> ServedLog:
        left = self.summaries.end()
        if left is not None:
            self._keep(left)
        formulas = dict(self._formulas())
        for name, count in (("cut", reader.cut), ("long", reader.long)):
            if count:
                self.odd[name] = count
        notes = [reader.broken] if reader.broken else []
        return ServedLog(
            reader.path, tuple(self.rows), tuple(self.starts), formulas, reader.lines, reader.bytes, dict(self.odd), tuple(notes)
        )

    def _formulas(self) -> Iterator[tuple[int, RateFormula]]:
        """Each start's formula, written into its rows."""
        by_start: dict[int, list[LogRow]] = {}
        for row in self.rows:
            if row.event == "decode" and row.accept_length is not None and row.accept_rate is not None:
                by_start.setdefault(row.start, []).append(row)
        version = self.engine.version if self.engine is not None and self.engine.name == "sglang" else None
        for start, rows in by_start.items():
            formula = rate_formula(
                ((row.accept_length, row.accept_rate) for row in rows),
                version=version,
                num_draft_tokens=self._setting("num_draft_tokens", self.num_draft_tokens, start),
                steps=self._setting("num_steps", self.steps, start),
            )
            for row in rows:
                row.rate_definition = formula.kind
            yield start, formula


def _valid(version: str) -> str | None:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(version))
    except InvalidVersion:
        return None


def _without_warm_up(rows: Sequence[LogRow]) -> tuple[list[LogRow], int]:
    """Without the first decode line of each rank behind a start that the log shows, where that rank has others."""
    if rows[0].event != "decode":
        return list(rows), 0
    of_rank = Counter(row.rank for row in rows)
    kept, seen = [], set()
    for row in rows:
        if row.rank in seen or of_rank[row.rank] == 1:
            kept.append(row)
        seen.add(row.rank)
    return kept, len(rows) - len(kept)


def _counts(row: LogRow) -> ServedCounts:
    """Of a row with verify passes and accepted tokens. The positions' rates have three decimals: they become counts where these add up."""
    joint = None
    if row.joint is not None:
        joint = tuple(round(rate * row.verify_steps) for rate in row.joint)
        if sum(joint) != row.accepted or any(abs(n / row.verify_steps - rate) > 0.00051 for n, rate in zip(joint, row.joint, strict=True)):
            joint = None
    return ServedCounts(row.verify_steps, row.accepted, joint)
