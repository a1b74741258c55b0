"""`eaglelab report`: the notebooks run on cases, as pages; two runs side by side."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eaglelab.cache import SINCE
from eaglelab.commands.arguments import count
from eaglelab.commands.terminal import print_json, show, visible

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def add(command: Callable[..., argparse.ArgumentParser], case: str) -> None:
    sub = command("report", run, "run the notebooks on cases and write self-contained HTML pages")
    text = f"{case}; several, as a shell's glob gives them, make a fleet; @FILE holds one a line (not with --compare)"
    sub.add_argument("cases", nargs="*", metavar="CASE", help=text)
    sub.add_argument("--only", metavar="NUMBERS", help="notebooks by number: 02,04 (default: all)")
    text = "a notebook's parameter, as in -p max_samples 64; may be given again (default: as in the notebook)"
    sub.add_argument("-p", dest="parameters", action="append", nargs=2, metavar=("NAME", "VALUE"), default=[], help=text)
    text = "YAML or JSON file of parameters; -p goes before it (default: none)"
    sub.add_argument("-f", dest="parameters_file", type=Path, metavar="FILE", help=text)
    sub.add_argument("--out", type=Path, metavar="DIR", help="folder of all reports (default: reports)")
    sub.add_argument("--timeout", type=count, default=1800, metavar="S", help="seconds that one notebook may take (default: 1800)")
    text = "kernels at a time; a GPU takes one (default: as cores and memory allow)"
    sub.add_argument("--jobs", type=count, metavar="N", help=text)
    text = "go on with each case's newest run of the same notebooks, parameters, inputs and versions; what is finished is skipped; without one a new run is made"
    sub.add_argument("--resume", action="store_true", help=f"{text} (default: a new run)")
    text = "take out text of the data, token ids, sample keys, names of files, models, hosts and people, and whatever looks like a secret; say what was removed"
    sub.add_argument("--redact", action="store_true", help=f"{text} (default: show everything)")
    sub.add_argument(
        "--fresh", action="store_true", help="compute everything again (default: take heavy results of the same inputs from the cache)"
    )
    text = "instead, show what changed between two runs: a run's folder, or a case's folder under the reports for its newest run"
    sub.add_argument("--compare", nargs=2, metavar=("RUN_A", "RUN_B"), help=f"{text} (default: none)")


def run(args: argparse.Namespace) -> int:
    try:
        return _compare(args) if args.compare else _report(args)
    except ModuleNotFoundError as missing:
        raise ValueError(f"reports need the workbook's packages ({missing.name} is absent): pip install 'eaglelab[notebooks]'") from missing


def _report(args: argparse.Namespace) -> int:
    from eaglelab.reports import results
    from eaglelab.reports.run import Interrupted, run_reports

    if args.fresh:  # for the kernels, which take from each other what was computed since
        os.environ[SINCE] = str(time.time())
    given = {**_from_file(args.parameters_file), **_once(args.parameters)}
    options = {"only": args.only, "out": args.out, "timeout": args.timeout, "jobs": args.jobs, "resume": args.resume, "redact": args.redact}
    say = (lambda line: print(visible(line), flush=True)) if not args.json else None
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's way to say Ctrl-C
    try:
        fleet = run_reports(args.cases, parameters=given, say=say, live=sys.stderr.isatty(), **options)
    except KeyboardInterrupt as stopped:
        print(f"eaglelab report: {stopped if isinstance(stopped, Interrupted) else 'interrupted before a notebook ran'}", file=sys.stderr)
        if not args.redact:
            print(f"go on with: {_command(args)}", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    if args.json:
        print_json(_json(fleet))
        return fleet.exit_code
    width = shutil.get_terminal_size((120, 24)).columns
    print("\n" + visible("\n".join(results.lines(fleet.rows, width, fleet.index.parent))))
    pages = sum(len(r.notebooks) for r in fleet.runs.values())
    where = next(iter(fleet.runs.values())).directory if len(fleet.asked) == 1 else fleet.index.parent
    table = f"; table: {fleet.index.parent / results.CSV}" if len(fleet.asked) > 1 else ""
    print(f"{pages} pages in {where}; all runs: {fleet.index}{table}")
    return fleet.exit_code


def _json(fleet: Any) -> dict[str, Any]:
    """One case: its run, as `findings.json` has it, with its row. Several: the rows, and the runs by name."""
    if len(fleet.asked) == 1:
        return {**next(iter(fleet.runs.values())).to_json(), "table": fleet.rows}
    runs = {name: r.to_json() for name, r in fleet.runs.items()}
    return {"table": fleet.rows, "runs": runs, "index": str(fleet.index)}


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise ValueError(f"-f {path}: cannot be read as YAML or JSON: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ValueError(f"-f {path}: cannot be read as YAML or JSON: nested too deeply") from error
    strange = [name for name in given if not isinstance(name, str)] if isinstance(given, dict) else []
    if not isinstance(given, dict) or strange:
        got = f"the name {strange[0]!r}" if strange else "an empty file" if given is None else type(given).__name__
        raise ValueError(f"-f {path}: got {got}, expected names with values, as in `max_samples: 64`")
    return given


def _once(pairs: Sequence[Sequence[str]]) -> dict[str, str]:
    """The parameters of `-p`; of two values for one name nobody knows which was meant."""
    given: dict[str, str] = {}
    for name, value in pairs:
        if given.setdefault(name, value) != value:
            raise ValueError(f"-p {name}: got both {given[name]!r} and {value!r}, expected one value")
    return given


def _command(args: argparse.Namespace) -> str:
    """The command that goes on, to be pasted into a shell."""
    return shlex.join(["eaglelab", *args.argv, *([] if args.resume else ["--resume"])])


def _compare(args: argparse.Namespace) -> int:
    given = (args.cases, args.resume, args.redact, args.only, args.parameters, args.parameters_file, args.jobs, args.fresh)
    if any(given):
        raise ValueError(
            "--compare takes two runs and nothing else (--out and --json apart): `eaglelab report --compare RUN_A RUN_B`, where a run is a folder "
            "reports/CASE/DATE that holds findings.json, or reports/CASE for that case's newest run"
        )
    from eaglelab.reports import compare

    comparison = compare.compare_runs(*args.compare)
    page = compare.write_page(comparison, args.out)
    show(args, {**compare.to_json(comparison), "page": str(page)}, visible("\n".join([*compare.lines(comparison), "", f"page: {page}"])))
    return 0
