"""What commands print: one JSON document, or text without anything that moves a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from eaglelab.findings import Finding, Status, plain

MARKS = {
    Status.PASS: "ok",
    Status.FAIL: "FAIL",
    Status.CANNOT_TELL: "cannot tell",
    Status.NOT_GIVEN: "not given",
    Status.NOT_APPLICABLE: "n/a",
}

TABLE_ROWS = 12
"""Rows of a long table that are printed; `--json` has all."""


def print_finding(finding: Finding, said_before: set[str]) -> None:
    """One finding as lines; a reason or a next step that was printed before is not printed again."""
    print(visible(f"[{MARKS[finding.status]}] {finding.title}  ({finding.id})"))
    lines = []
    if finding.status in (Status.FAIL, Status.CANNOT_TELL):
        lines += [("claim", finding.claim), ("evidence", finding.evidence)]
    lines.append(("next", finding.next))
    for label, line in lines:
        if line and line not in said_before and not finding.title.endswith(line):
            print(visible(f"    {label}: {line}"))
            said_before.add(line)
    sys.stdout.flush()


def visible(text: str) -> str:
    """Text from cases and dumps without what moves or colours a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def short(value: float) -> str:
    """Four digits, for tables. pandas takes a function for columns that mix numbers and words, and not always a format."""
    return f"{value:.4g}"


def first_rows(table, what: str) -> str:
    """The head of a long table, and how many rows were left out."""
    left = len(table) - TABLE_ROWS
    text = table.head(TABLE_ROWS).to_string(index=False, float_format=short)
    return text if left <= 0 else f"{text}\n… {left:,} more {what} (--json has all)"


def show(args: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    if args.json:
        print_json(data)
    else:
        print(text)


def print_json(data: Any) -> None:
    print(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False))
