"""Hand-written tables: comma, semicolon, tab, a table of Markdown, or columns set apart by spaces."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import DRAFTERS, PLACES
from eaglelab.timing.tables.names import COLUMNS, column
from eaglelab.timing.tables.numbers import has_decimal_comma
from eaglelab.timing.tables.rows import CELLS, Rows

LARGEST = 2**26
DELIMITERS = (",", ";", "\t", "|", "  ", " ")
"""Of equally many names the first. Two spaces stand for two or more, so that names may hold one; an empty cell needs a dash there."""
HEAD_LINES = 20
"""Lines within which the header stands; before it there may be words."""
NUMBERS = tuple(name for name in CELLS if name != "mode")
EXTRA = frozenset((*PLACES, *DRAFTERS, "source", "itl_ms", "ttft_ms", "tpot_ms", "latency", "latency_s", "seed", "repeat"))
"""Columns that are kept, beside `names.COLUMNS`."""
RULE = re.compile(r":?-+:?|")


def read_delimited(path: Path, rows: Rows) -> None:
    """Every line of the table into `rows`. Raises TimingError for what is no table of measurements."""
    lines = _text(path).splitlines()
    header, start, delimiter = _header(path, lines)
    _say_unknown(header, rows)
    body = [(number, cells) for number, cells in _cells(lines[start:], delimiter, start) if not all(RULE.fullmatch(c) for c in cells)]
    told = [dict(zip(header, cells, strict=False)) for _, cells in body]
    comma = delimiter != "," and has_decimal_comma(cell for row in told for name, cell in row.items() if name in NUMBERS)
    for (number, cells), row in zip(body, told, strict=True):
        where = f"line {number}"
        if len(cells) > len(header) and any(cells[len(header) :]):
            hint = "; a comma inside a number needs quotes round it" if delimiter == "," else ""
            rows.leave_out(where, f"{len(cells)} cells under {len(header)} columns{hint}")
        elif any(cells):
            rows.add(row, where, comma=comma)


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST:
        raise TimingError(f"{path.name} has {path.stat().st_size:,} bytes, expected a table of measurements of {LARGEST:,} at most")
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what spreadsheets call Unicode text
        return content.decode("utf-16", "replace")
    if b"\0" in content:
        raise TimingError(f"{path.name} is binary, expected a table as text (CSV), JSON lines, or a server's log")
    return content.decode("utf-8-sig", "replace")


def _header(path: Path, lines: list[str]) -> tuple[list[str], int, str]:
    """(column names, the line behind, delimiter): the first line that names a throughput, by the delimiter that finds the most names."""
    first: list[str] = []
    for place, line in enumerate(lines[:HEAD_LINES]):
        found = []
        for delimiter in DELIMITERS:
            names = [column(cell) for cell in _split(line, delimiter)]
            found.append((sum(name in COLUMNS for name in names), names, delimiter))
        known, names, delimiter = max(found, key=lambda f: f[0])
        if known and {"tok_s", "tok_s_each"} & set(names):
            twice = sorted({name for name in names if name in NUMBERS and names.count(name) > 1})
            if twice:
                raise TimingError(f"{path.name}, line {place + 1}: more than one column of {', '.join(twice)}; leave one of them")
            cells = _split(line, delimiter)
            return [n if n not in names[:i] else cells[i].strip() for i, n in enumerate(names)], place + 1, delimiter
        if not first and line.strip():
            first = max((_split(line, d) for d in DELIMITERS), key=len)
    if not first:
        raise TimingError(f"{path.name} is empty, expected a table with a line of column names")
    shown = ", ".join(cell.strip()[:40] for cell in first[:12])
    raise TimingError(
        f"{path.name}: no column of throughput. Found the columns {shown}; expected batch, steps, topk, draft_tokens, tok_s, accept_length "
        "(or their usual names: bs, num_steps, throughput, accept_len, …), the names in one of the first lines"
    )


def _say_unknown(header: list[str], rows: Rows) -> None:
    """A note on columns that nothing reads, where one that is wanted is not there: it may be one of them under another name."""
    wanted = {"batch": ("batch",), "accept_length": ("accept_length", "accepted")}
    wanted |= {name: (name, "mode") for name in ("steps", "topk", "draft_tokens")}
    missing = [name for name, names in wanted.items() if not set(names) & set(header)]
    unknown = [name for name in dict.fromkeys(header) if name and name not in COLUMNS and name.lower() not in EXTRA]
    if missing and unknown:
        rows.say(
            f"columns that were not understood: {', '.join(name[:40] for name in unknown)}; no column of {', '.join(missing)} was found"
        )


def _split(line: str, delimiter: str) -> list[str]:
    if not delimiter.strip() and delimiter != "\t":
        return re.split(r"\s{2,}" if delimiter == "  " else r"\s+", line.strip())
    try:
        return next(csv.reader([line], delimiter=delimiter), [])[slice(1, -1) if _markdown(line, delimiter) else slice(None)]
    except csv.Error:
        return []


def _markdown(line: str, delimiter: str) -> bool:
    return delimiter == "|" and line.strip().startswith("|") and line.strip().endswith("|")


def _cells(lines: list[str], delimiter: str, before: int) -> list[tuple[int, list[str]]]:
    """(line number, cells without space around) of every line that is not blank."""
    return [
        (before + place + 1, [cell.strip() for cell in _split(line, delimiter)])
        for place, line in enumerate(lines)
        if line.strip() and not line.lstrip().startswith("# ")
    ]
