"""The target's verify pass beside its plain decode step, of the same traces."""

from __future__ import annotations

import numpy as np
import pandas as pd

from eaglelab.timing.trace.report import TraceReport, median_interval

COLUMNS = ("batch", "tokens", "verify_ms", "decode_ms", "ratio", "low", "high", "cycles", "steps")
RECORD = "record the same server without speculation too, with equally many requests, and put that trace into the same folder"
BENCH = "or measure both with `eaglelab bench CASE`"


def beside_decode(report: TraceReport, verified: int | None) -> tuple[pd.DataFrame, str]:
    """One row a batch size that has both, and where there is none what to do about it.

    verified: tokens for one request, where the spans do not tell them (SGLang's). Columns `COLUMNS`: medians of the target's own pass, collectives
    in it included and gaps left out; ratio with the interval that both medians' 95 % intervals leave (NaN below six passes of either).
    """
    outside = report.outside
    plain = outside[(outside["kind"] == "decode") & (outside["target_ms"] > 0)].dropna(subset=["batch"]).set_index("batch")
    rows, untold = [], False
    for batch, found in report.cycles.dropna(subset=["batch"]).groupby("batch"):
        if batch not in plain.index or not (verify := float(found["target_ms"].median())) > 0:
            continue
        tokens = float(found["verified"].median())
        tokens = verified if tokens != tokens else tokens
        if tokens is None:
            untold = True
            continue
        low, high = median_interval(found["target_ms"].to_numpy(np.float64))
        step = plain.loc[batch]
        ratios = (verify / step["target_ms"], low / step["target_high_ms"], high / step["target_low_ms"])
        rows.append((int(batch), round(tokens), verify, step["target_ms"], *ratios, len(found), int(step["count"])))
    return pd.DataFrame(rows, columns=COLUMNS), "" if rows else _missing(report, plain, untold)


def _missing(report: TraceReport, plain: pd.DataFrame, untold: bool) -> str:
    if untold:
        return f"`[engine] launch` says how many tokens a pass verifies, which SGLang's spans do not; {BENCH}"
    if len(plain):
        told = [", ".join(str(b) for b in sorted(set(found))) or "?" for found in (report.cycles["batch"].dropna(), plain.index)]
        return f"the trace has verify passes at batch {told[0]} and plain decode steps at batch {told[1]}: {RECORD}; {BENCH}"
    return f"{RECORD}; {BENCH}"
