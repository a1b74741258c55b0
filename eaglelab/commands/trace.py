"""`eaglelab trace`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelab.commands.terminal import first_rows, show, visible

if TYPE_CHECKING:
    from eaglelab.timing.trace import TraceReport

LOOK = {
    "verify": "It should cost about one plain decode step at the same batch: compare with the decode steps outside cycles, or record some.",
    "draft extend": "The drafter's pass over what was accepted: is it in a captured graph, is the draft vocabulary small?",
    "prefill": "Prompts run inside these cycles: record while all requests are in decode.",
    "decode": "Passes without drafted tokens run inside these cycles: do all requests speculate?",
    "other": "Scheduling and copies: the overlap schedule hides most of them.",
    "unattributed": "No span claims it: the table of what is unattributed names what ran there.",
}
"""What to look at where a phase takes most of a cycle, beside the causes that `check` names."""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("trace", run, "where the milliseconds of profiler traces go: verify, draft, sampling, communication, gaps")
    text = "chrome traces of PyTorch's profiler (.json, .json.gz), one a rank, or a folder of them"
    sub.add_argument("files", nargs="+", type=Path, metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    from eaglelab.timing.trace import read_trace

    report = read_trace(args.files)
    show(args, report.to_json(), visible(_text(report)))
    return 0


def _text(report: TraceReport) -> str:
    parts = [report.summary]
    if report.speculative:
        found = report.phases[report.phases["total_ms"] > 0].sort_values("total_ms", ascending=False)
        found = found.assign(share=[f"{share:.1%}" for share in found["share"]])
        parts.append(f"ms a cycle, n = {len(report.cycles):,} (low and high: 5 to 95 % of cycles)\n" + first_rows(found, "phases"))
        for table, what in ((report.by_batch(), "batch"), (report.by_rank(), "rank")):
            if len(table) > 1:
                seen = table[[c for c in table.columns if not c.endswith("_ms") or (table[c] > 0).any()]]
                parts.append(f"median ms by {what}\n" + first_rows(seen.astype({what: str}), "rows"))
    for table, title in (
        (report.collectives, "collectives (exposed: nothing else ran meanwhile)"),
        (report.unattributed, "unattributed: in cycles, claimed by no span"),
        (report.outside, "outside cycles"),
    ):
        if len(table):
            parts.append(f"{title}\n" + first_rows(_short_names(table), "rows"))
    notes = report.notes if report.speculative else report.notes[1:]  # the first is the summary
    if notes := [note for note in notes if note != report.several]:  # that one too
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join([*parts, f"What to look at: {advice(report)}"])


def advice(report: TraceReport) -> str:
    """One line: what dominates, and what to look at because of it."""
    from eaglelab.checks.timing import CAUSES
    from eaglelab.timing.phases import Phase

    if report.several:
        return "give the recordings of each engine by themselves; their shares mean nothing together."
    if not report.speculative:
        return "record again while the server generates with speculation on, 20 steps or more."
    if report.device == "host":
        return "record the GPU's kernels too; times of launching do not tell which stage takes long."
    shares = {Phase(p): float(s) for p, s in zip(report.phases["phase"], report.phases["share"], strict=True)}
    largest = max(shares, key=shares.__getitem__)
    texts = {phase: text for phase, (_, text) in CAUSES.items()} | LOOK
    told = f"{largest} takes most ({shares[largest]:.1%})."
    if report.device == "cpu":
        return f"{told} On a CPU every verified token costs its own work: before you change a setting, record on the GPU that serves."
    told += f" {texts[largest]}"
    next_ = max((p for p, (limit, _) in CAUSES.items() if p is not largest and shares[p] >= limit), key=shares.__getitem__, default=None)
    return told if next_ is None else f"{told} Then {next_} ({shares[next_]:.1%}): {texts[next_]}"


def _short_names(table, width: int = 100):
    """Kernels' names can be thousands of characters long."""
    if "name" not in table.columns:
        return table.astype({"batch": str}) if "batch" in table.columns else table
    return table.assign(name=[name if len(name) <= width else name[: width - 1] + "…" for name in table["name"]])
