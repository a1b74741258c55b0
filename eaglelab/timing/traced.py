"""What a trace tells the cost model: how a cycle is divided, its collectives, and what it costs in plain decode steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eaglelab.timing.phases import Phase
from eaglelab.timing.step_time import Collectives

if TYPE_CHECKING:
    import pandas as pd

    from eaglelab.timing.trace import TraceReport


def collectives_of(report: TraceReport) -> Collectives | None:
    """Milliseconds of a verify pass in collectives that nothing hides, the mean over cycles and ranks. A plain pass of the same target has equally
    many, bound by latency, and is taken to spend as much on them. None where the trace shows none."""
    table = report.collectives
    exposed = float(table.loc[table["phase"] == Phase.VERIFY.value, "exposed_ms"].sum())
    return Collectives(exposed / len(report.cycles), exposed / len(report.cycles)) if exposed > 0 and report.speculative else None


def shares_of(report: TraceReport) -> dict[str, Any]:
    """verify_share (the target's pass, collectives in it included), draft_share, collectives, share_source: as `cost_report` takes them; {} of a trace without
    cycles, or with the host's side alone."""
    if not report.speculative or report.device == "host":
        return {}
    verify = float(report.cycles["target_ms"].sum() / report.cycles["wall_ms"].sum())
    return {
        "verify_share": verify,
        "draft_share": report.share(Phase.DRAFT),
        "collectives": collectives_of(report),
        "share_source": "the trace",
    }


def cycles_in_decode_steps(report: TraceReport) -> pd.DataFrame:
    """batch, cycle_ms, decode_ms (medians of wall time), r, cycles, steps (how many of each): one row a batch size of which the trace has both. r is
    what a cycle costs in plain decode steps, and so the accept length at which speculation breaks even."""
    import pandas as pd

    decode = report.outside[report.outside["kind"] == "decode"].dropna(subset=["batch"]).set_index("batch")
    rows = []
    for row in report.by_batch().dropna(subset=["batch"]).itertuples():
        if report.device != "host" and row.batch in decode.index and decode.loc[row.batch, "median_ms"] > 0:
            step = decode.loc[row.batch]
            ms = float(step["median_ms"])
            rows.append((int(row.batch), float(row.wall_ms), ms, float(row.wall_ms) / ms, int(row.cycles), int(step["count"])))
    return pd.DataFrame(rows, columns=["batch", "cycle_ms", "decode_ms", "r", "cycles", "steps"])
