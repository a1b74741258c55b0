"""`eaglelab trace`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelab.commands.terminal import first_rows, show, visible

if TYPE_CHECKING:
    from eaglelab.timing.trace import TraceReport


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
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes)] if notes else parts)


def _short_names(table, width: int = 100):
    """Kernels' names can be thousands of characters long."""
    if "name" not in table.columns:
        return table.astype({"batch": str}) if "batch" in table.columns else table
    return table.assign(name=[name if len(name) <= width else name[: width - 1] + "…" for name in table["name"]])
