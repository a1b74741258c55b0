"""`eaglelab check`: findings as they come, then the verdict; a few checks only; what a check looks at."""

from __future__ import annotations

import argparse
import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eaglelab.commands import error_text
from eaglelab.commands.arguments import count, samples, where
from eaglelab.commands.opening import investigation
from eaglelab.commands.terminal import MARKS, print_finding, print_json, show, visible
from eaglelab.findings import Finding, Status, Verdict, exit_code

CHEAP = ("config", "log")
NO_CASE = "check needs a case: `eaglelab check CASE`; `--error TEXT` explains a message and `--explain ID` a check without one"


def add(command: Callable[..., argparse.ArgumentParser], case: str, steps: str, way: str, ways: tuple[str, ...], dtype: str) -> None:
    sub = command("check", run, "all findings and the verdict for a case; cheap ones first")
    sub.add_argument("case", type=Path, nargs="?", help=f"{case}; may be left out with --error and --explain")
    sub.add_argument("--error", metavar="TEXT", help=error_text.HELP)
    text = "checks by id or family, as in wiring,replay.works; the verdict then speaks of these alone (default: all)"
    sub.add_argument("--only", metavar="ID[,ID]", help=text)
    text = "say what a check or finding looks at, needs and goes by, and where its rule is from; without an id, list them all"
    sub.add_argument("--explain", metavar="ID", nargs="?", const="", help=f"{text} (default: check the case)")
    sub.add_argument(
        "--cheap", action="store_true", help="configs, file headers, counters and logs only: no torch, no dump (default: everything)"
    )
    sub.add_argument("--steps", type=count, metavar="K", help=steps)
    sub.add_argument("--way", default="auto", choices=ways, help=way)
    samples(sub, 32)
    where(sub, dtype)


def run(args: argparse.Namespace) -> int:
    if args.explain is not None:
        return explain(args)
    if args.error is not None:
        return error_text.run(args)
    if args.case is None:
        raise ValueError(NO_CASE)
    gc.set_threshold(
        100_000, 50, 50
    )  # importing torch and transformers makes millions of objects that stay: a second of looking for garbage
    from eaglelab.checks import run_checks
    from eaglelab.verdict import verdict

    only, asked = (None, []) if args.only is None else _asked(args.only, args.cheap)
    inv = investigation(args)
    findings: list[Finding] = []
    said_before: set[str] = set()
    for finding in run_checks(inv, costs=CHEAP if args.cheap else None, only=only):
        findings.append(finding)
        if not args.json and finding.status is not Status.NOT_GIVEN:
            print_finding(finding, said_before)
    said = verdict(findings, inv, only=asked)
    if args.json:
        print_json(check_json(findings, said, inv, cheap=args.cheap, only=only is not None))
    else:
        absent = [f for f in findings if f.status is Status.NOT_GIVEN]
        if absent:
            print(f"\nNot given ({len(absent)}), with how to get it:")
        for finding in absent:  # behind what is known, so that it does not hide it
            print_finding(finding, said_before)
        if findings:
            print(f"\n{counted(findings)}")
        print(visible(told(said)))
    code = exit_code(findings)
    return 3 if code == 0 and said.stage == "cannot tell" else code


def _asked(text: str, cheap: bool) -> tuple[frozenset[str], list[str]]:
    """(checks to run, what the verdict then speaks of): as it was asked, or check by check where --cheap leaves some out."""
    from eaglelab.checks import CHECKS
    from eaglelab.checks.explain import chosen

    only = chosen(text)
    ran = [c.id for c in CHECKS if c.id in only and (not cheap or c.cost in CHEAP)]
    if not ran:
        raise ValueError(
            f"--cheap leaves out all that --only names ({', '.join(sorted(only))}): they read dump or target; run without --cheap"
        )
    asked = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    return only, asked if len(ran) == len(only) else ran


def check_json(findings: list[Finding], said: Verdict, inv, cheap: bool = False, only: bool = False) -> dict[str, Any]:
    """The one shape of a check's result. only: what was not asked for is not measured, so that the dump's and the drafter's wiring are None."""
    from eaglelab.checks import wirings

    return {
        "case": inv.case.name,
        "wiring": wirings(inv, findings, cheap=cheap or only),
        "findings": [f.to_json() for f in findings],
        "verdict": said.to_json(),
    }


def counted(findings: list[Finding]) -> str:
    """How many findings of each status, as in `2 FAIL, 1 cannot tell, 30 ok`."""
    by_status = Counter(f.status for f in findings)
    order = (Status.FAIL, Status.CANNOT_TELL, Status.PASS, Status.NOT_GIVEN, Status.NOT_APPLICABLE)
    return ", ".join(f"{by_status[s]} {MARKS[s]}" for s in order if by_status[s])


def told(said: Verdict) -> str:
    """The verdict for a terminal: each fault on a line of its own, the changes, what was not looked at."""
    sure = "" if said.confidence == said.stage else f" ({said.confidence})"
    costs = {f"({i})": f"[costs about {f.effect:.2f} of accept length] " for i, f in enumerate(said.faults, 1) if f.effect is not None}
    lines = [f"\nVerdict{sure}: {said.stage}"]
    for part in said.paragraphs:
        number, _, rest = part.partition(" ")
        lines.append(f"  {number} {costs[number]}{rest}" if number in costs else f"  {part}")
    lines += [f"  for {c.engine}: {c.key} = {c.value}" for c in said.changes]
    lines += ["Not looked at:", *(f"  - {line}" for line in said.not_looked_at)] if said.not_looked_at else []
    return "\n".join(lines)


def explain(args: argparse.Namespace) -> int:
    from eaglelab.checks.explain import entries, explanation

    family = {id: e for id, e in entries().items() if args.explain and id.startswith(f"{args.explain}.")}
    if args.explain and (args.explain in entries() or not family):
        found = explanation(args.explain)
        show(args, found.to_json(), visible(found.text))
        return 0
    known = family or entries()
    width = max(map(len, known))
    show(args, {id: e.to_json() for id, e in known.items()}, "\n".join(f"{id:{width}}  {e.line}" for id, e in known.items()))
    return 0
