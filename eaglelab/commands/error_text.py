"""`check --error`: what an error message means, with or without a case."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eaglelab.commands.terminal import print_finding, print_json
from eaglelab.findings import Finding, by_severity, exit_code

HELP = "explain an error message or a part of a log instead: TEXT, @FILE, or - for what comes in (default: check the case)"
SHORT = 2**18
"""Bytes up to which a text is read whole, as a message; a longer one is read as a log, line by line."""

PACKED = (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff")
"""What gzip and UTF-16 begin with: the log's reader unpacks the one and says what to do about the other."""


def run(args: argparse.Namespace) -> int:
    """Explain `args.error`, with the widths of `args.case` where one is given. Raises ValueError for a text that is none."""
    inv = None
    if args.case is not None:
        from eaglelab.investigation import Investigation

        inv = Investigation(str(args.case))
    found = by_severity(explained(args.error, inv))
    if args.json:
        print_json({"case": None if inv is None else inv.case.name, "findings": [f.to_json() for f in found]})
    else:
        said: set[str] = set()
        for finding in found:
            print_finding(finding, said)
    return exit_code(found)


def explained(error: str, inv=None) -> list[Finding]:
    """Findings for TEXT, `@FILE` or `-`."""
    from eaglelab.checks.errors import given, in_log

    if error == "-":
        return given(sys.stdin.read(2**26), inv)
    if not error.startswith("@"):
        return given(error, inv)
    path = Path(error[1:]).expanduser()
    if not path.is_file():
        raise ValueError(f"--error {error}: no such file; expected @FILE with a log or a message, the message itself, or - for stdin")
    with path.open("rb") as file:
        head = file.read(2)
    if path.stat().st_size > SHORT or head in PACKED:
        return list(in_log(path, inv))
    return given(path.read_text(encoding="utf-8", errors="replace"), inv)
