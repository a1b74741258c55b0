"""What a server's log tells of its caches: room for the requests, and prompts that need no prefill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation

if TYPE_CHECKING:
    import pandas as pd

FULL = 0.95
"""Share of the KV cache from which a request that waits does so for room: both engines keep some blocks back."""
OFTEN = 0.1
"""Share of the lines from which a full cache is no burst."""
DROPS = (
    "vLLM drops the last matched block where EAGLE drafts, and on hybrid models with large blocks nothing may be left: 0 % in place of "
    "72.7 %, and 12.4 s to the first token in place of 1.0 s (vllm-project/vllm#50438)."
)


def caches(inv: Investigation) -> Iterator[Finding]:
    """The KV cache's fill beside the queue, and the prefix cache's hits."""
    if inv.case.engine.log is None:
        return
    log = inv.served.log
    lines = log.table[log.table["cache_usage"].notna()]
    if lines.empty:
        return
    most, full = float(lines["cache_usage"].max()), lines[(lines["cache_usage"] >= FULL) & (lines["queue"].fillna(0) > 0)]
    crowded = len(full) >= OFTEN * len(lines)
    hit, how = _prefix(log.table)
    none = hit == 0 and log.engine == "vllm"
    told = "" if hit is None else f"; {hit:.1%} of the prompts' tokens came out of the prefix cache"
    yield Finding(
        id="served.caches",
        title=f"Requests waited while the KV cache was {FULL:.0%} full or more, in {len(full):,} of {len(lines):,} lines"
        if crowded
        else f"The KV cache was at most {most:.0%} full{told}",
        status=Status.CANNOT_TELL if crowded else Status.PASS,
        claim="Requests run as soon as they come, and prompts that begin alike are computed once.",
        evidence=f"Highest fill {most:.0%} in {len(lines):,} lines{told}{how}." + (f" {DROPS}" if none else ""),
        numbers={"highest": most, "full_and_waiting": len(full), "lines": len(lines), "prefix_hit": hit},
        next="Drafted tokens and the drafter's own layer take room too: compare with speculation off at the same load by the tokens that requests "
        "get, not by those drafted; fewer steps, or more memory for the cache."
        if crowded
        else "Send the same prompts with speculation off and compare this share and the time to the first token."
        if none
        else "",
    )


def _prefix(table: pd.DataFrame) -> tuple[float | None, str]:
    """(share of the prompts' tokens out of the prefix cache, how it is counted)."""
    counted = table[table["cached_tokens"].notna() & table["new_tokens"].notna()]
    if len(counted):
        cached, new = int(counted["cached_tokens"].sum()), int(counted["new_tokens"].sum())
        return (cached / (cached + new) if cached + new else None), f" ({cached:,} of {cached + new:,} tokens)"
    said = table["prefix_hit"].dropna()
    return (float(said.iloc[-1]), " (the last line's share, over the latest requests)") if len(said) else (None, "")
