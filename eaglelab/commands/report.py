"""`eaglelab report`: the notebooks run on a case, as pages."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from eaglelab.commands.arguments import count
from eaglelab.commands.terminal import show


def add(command: Callable[..., argparse.ArgumentParser], case: str) -> None:
    sub = command("report", run, "run the notebooks on a case and write self-contained HTML pages")
    sub.add_argument("case", type=Path, help=case)
    sub.add_argument("--only", metavar="NUMBERS", help="notebooks by number: 02,04 (default: all)")
    text = "a notebook's parameter, as in -p max_samples 64; may be given again (default: as in the notebook)"
    sub.add_argument("-p", dest="parameters", action="append", nargs=2, metavar=("NAME", "VALUE"), default=[], help=text)
    sub.add_argument("--out", type=Path, metavar="DIR", help="folder for the run (default: reports)")
    sub.add_argument("--timeout", type=count, default=1800, metavar="S", help="seconds that one notebook may take (default: 1800)")


def run(args: argparse.Namespace) -> int:
    try:
        from eaglelab.reports.run import run_report
    except ModuleNotFoundError as missing:
        raise ValueError(f"reports need the workbook's packages ({missing.name} is absent): pip install 'eaglelab[notebooks]'") from missing

    say = None if args.json else print
    result = run_report(args.case, only=args.only, parameters=dict(args.parameters), out=args.out, timeout=args.timeout, say=say)
    done = f"{len(result.notebooks)} pages in {result.directory}; all runs: {result.index}"
    show(args, result.to_json(), done)
    return result.exit_code
