"""How far the server's own counters rose during a recording, beside what its requests counted: was anybody else there?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eaglelab.served import prometheus
from eaglelab.served.counts import ServedCounts
from eaglelab.served.recording import Recording, Scrape


@dataclass(frozen=True)
class Rise:
    verify_steps: int | None
    """Verify passes by the counters, over all parts of the run that have a scrape before and after; None where they tell none."""
    counts: ServedCounts | None
    """The same with the accepted drafts (vLLM's counters)."""
    own: int | None
    """Verify passes by the requests themselves; None where the engine does not tell."""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        counts = None if self.counts is None else self.counts.to_json()
        return {"verify_steps": self.verify_steps, "counts": counts, "requests_verify_steps": self.own, "notes": list(self.notes)}


def rise(recording: Recording) -> Rise:
    told = [c.verify_steps if (c := r.counts()) is not None else r.verify_steps for r in recording.requests]
    own = None if None in told or not told else sum(told)
    pairs, open_ends = _pairs(recording.scrapes)
    steps, counts, notes = None, None, []
    for before, after in pairs:
        risen, passes = _difference(before, after, notes)
        if passes is not None:
            steps = passes + (steps or 0)
        if risen is not None:
            counts = risen if counts is None else counts + risen
    if open_ends:
        notes.append(f"{open_ends} part(s) of the run ended without a last scrape: what was served in them is not in the counters")
    if steps is not None and own is not None:
        notes.append(_beside(steps, own, len(recording.failures), bool(open_ends)))
    return Rise(steps, counts, own, tuple(dict.fromkeys(notes)))


def _beside(steps: int, own: int, failures: int, open_ends: bool) -> str:
    if steps == own:
        return f"the server's counters rose by {steps:,} verify passes, exactly those of these requests: nobody else was served meanwhile"
    if steps > own:
        lost = f", or the {failures} requests without an answer were" if failures else ""
        return (
            f"the server's counters rose by {steps:,} verify passes, {steps - own:,} more than these requests': other requests were served "
            f"meanwhile (somebody else's, the server's own warm-up{lost}). These requests' own counts are free of them"
        )
    why = "not all of the run lies between two scrapes" if open_ends else "they were reset meanwhile (a restart), or lag behind"
    return f"the server's counters rose by {steps:,} verify passes, {own - steps:,} fewer than these requests': {why}"


def _pairs(scrapes: tuple[Scrape, ...]) -> tuple[list[tuple[str, str]], int]:
    """(Prometheus text before and after each part of the run, parts without an end)."""
    pairs, before, open_ends = [], None, 0
    for scrape in scrapes:
        if scrape.when == "before":
            open_ends += before is not None
            before = scrape.metrics
        elif scrape.when == "after" and before is not None:
            if scrape.metrics:
                pairs.append((before, scrape.metrics))
            else:
                open_ends += 1
            before = None
    return pairs, open_ends + (before is not None)


def _difference(before: str, after: str, notes: list[str]) -> tuple[ServedCounts | None, int | None]:
    scrapes = [prometheus.parse_scrapes(text)[-1] for text in (before, after)]
    found, said = prometheus.vllm_counts(scrapes)
    notes += said
    if found:
        counts = list(found.values())
        total = sum(counts[1:], counts[0])
        return total, total.verify_steps
    _, passes, fell = prometheus.sglang_verify_calls(scrapes)
    if fell:
        notes.append("the counters fell between two scrapes (a restart): counted since then")
    return None, passes
