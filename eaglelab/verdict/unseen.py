"""What the case lacks that could say more, with the cheapest way to get each: few, and those that matter for what is still open."""

from __future__ import annotations

from collections.abc import Mapping

from eaglelab.findings import Finding, Status, Verdict
from eaglelab.verdict.rules import matches

MOST = 5
ASKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("what the training data hold", ("dump.health",), ("dump", "wiring", "training")),
    ("whether the checkpoint is whole", ("drafter.complete",), ("training", "wiring")),
    ("what the engine feeds", ("wiring.engine",), ("wiring", "engine")),
    ("which layer each slot really holds", ("wiring.dump", "wiring.match"), ("wiring", "dump")),
    ("whether the drafter works on its own", ("replay.works",), ("training", "wiring")),
    ("what the server reached", ("served.acceptance",), ("engine",)),
    ("whether the server reaches what the replay predicts", ("served.expected",), ("engine",)),
    ("whether the server writes the text that the drafter learned", ("served.text",), ("engine",)),
    ("what the flags really lead to", ("flags", "flags.*"), ("engine",)),
    ("whether the last state is the target's own", ("dump.last_state", "replay.targets"), ("dump", "training")),
    ("whether the mask lies on the answers", ("text.mask", "text.shift", "text.tokens"), ("dump",)),
    ("whether the map is the one of the training", ("drafter.vocabulary.other",), ("training",)),
    ("whether the drafter reaches what its trainer printed", ("training.metric",), ("training",)),
    ("where the gap opens between trainer, replay and server", ("triangle",), ("training", "engine")),
    ("where the milliseconds go", ("timing.phases",), ("cost",)),
    ("whether speculation pays", ("cost.worth",), ("cost",)),
)
"""(question, findings that would answer it, stages that it bears on), in the order of the data's way."""


def not_looked_at(by_id: Mapping[str, Finding], said: Verdict, only: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Checks that broke, then at most five: what bears on a stage that is not settled, each input once. Where a fault is sure its own stage is settled; cost is open
    only where acceptance shows no fault."""
    broke = [f.id for f in by_id.values() if f.numbers.get("defect")]
    ours = (f"What {', '.join(broke)} would say: eaglelab broke there, which is a defect of its own.",) if broke else ()
    if only:
        return (*ours, f"Everything but {', '.join(only)}: run `eaglelab check CASE` without --only.")
    sure = {f.stage for f in said.faults if f.confidence == "sure"}
    found: dict[str, str] = {}
    if by_id and "dump.health" not in by_id:
        found["cheap"] = "Dump, target and replay: run `eaglelab check CASE` without --cheap."
    for question, ids, stages in ASKS:
        if set(stages) <= sure or (stages == ("cost",) and said.faults):
            continue
        absent = [f for f in by_id.values() if matches(f, ids) and f.next and _lacks(f)]
        if absent:
            found.setdefault(absent[0].next, f"{question[0].upper()}{question[1:]}: {absent[0].next.rstrip('.')}.")
    return (*ours, *tuple(found.values())[:MOST])


def _lacks(finding: Finding) -> bool:
    """Whether an input is absent, or the values that would settle the wiring could not be had."""
    return finding.status is Status.NOT_GIVEN or (finding.id == "wiring.dump" and finding.status is Status.CANNOT_TELL)
