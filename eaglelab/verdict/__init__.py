"""What all findings together say: every fault with its stage and change, how sure, and what was not looked at.

The rule. Each fault lists its witnesses: the failing findings that say so, by what they looked at (`charge.KINDS`: the states' values, the
replay, the server's counters, the checkpoint, …). A fault is *sure* where at least two independent kinds agree, each on enough samples or
requests, and no finding contradicts it; *likely* on one kind, or against a contradiction; *cannot tell* where something is wrong for certain
and the findings do not say which of two things. The whole verdict is no surer than its least sure fault. Two findings of one kind are one
witness, however many statistics they hold.

Which findings make which fault is a table (`rules`) and, for the wiring, a function. A failing finding is a fault, or a witness of
one, or follows from one, or is remarked as harmless (with the finding that shows it), or belongs to cost: none is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from eaglelab.findings import Finding, Status, Verdict
from eaglelab.investigation import Investigation
from eaglelab.verdict.charge import Charge, enough
from eaglelab.verdict.quiet import no_fault
from eaglelab.verdict.rules import (
    BROKEN_SHARE,
    COST,
    DOWNSTREAM,
    GAPS,
    LABELS,
    UPSTREAM,
    broken_share,
    charge_by,
    failing,
    matches,
    own_charge,
)
from eaglelab.verdict.unseen import not_looked_at
from eaglelab.verdict.wiring import wiring_charge

__all__ = ["verdict"]


def verdict(findings: Iterable[Finding], inv: Investigation | None = None, only: Iterable[str] = ()) -> Verdict:
    """All faults, the costliest in accept length first; those that nothing measures last, in the order of the data's way.

    inv: the case, where it is at hand: it knows files, engine and how many samples were read. only: ids that `check --only` asked for, when
    it did: then nothing is said of what was not asked.
    """
    by_id = {f.id: f for f in findings}
    samples = _samples(inv)
    charges, remarks = _charges(by_id, inv)
    charges = [replace(c, thin=tuple(f.id for f in c.witnesses if not enough(f, samples))) for c in charges]
    charges.sort(key=lambda c: -c.effect if c.effect is not None else float("inf"))  # stable: the rest keeps its order
    labels = failing(by_id, *LABELS)
    if not charges:
        said = no_fault({k: f for k, f in by_id.items() if not matches(f, COST)}, inv, remarks, labels, samples, tuple(only))
    else:
        said = _joined(charges, remarks, labels)
    unseen = not_looked_at(by_id, said, tuple(only))
    return replace(_with_cost(by_id, said), not_looked_at=unseen)


def _samples(inv: Investigation | None) -> int | None:
    """How many samples the checks have read; None where none did: the verdict reads nothing by itself."""
    read = vars(inv).get("samples") if inv is not None else None
    return None if read is None else len(read)


def _charges(by_id: Mapping[str, Finding], inv: Investigation | None) -> tuple[list[Charge], list[str]]:
    """(charges in the order of the data's way, remarks)."""
    charges, remarks = [], []
    taken = {f.id for f in failing(by_id, *LABELS, *COST)}
    health = by_id.get("dump.health")
    if health is not None and health.status is Status.FAIL and broken_share(health) <= BROKEN_SHARE:
        taken.add(health.id)
        remarks.append(f"Some files are bad: {health.title}.")
    if (doubtful := _of_other_text(by_id)) is not None:
        taken.add(doubtful.id)
        remarks.append(f"{doubtful.title}: no prediction, since the dump's text is not the target's own (replay.expected).")
    for rules in (UPSTREAM, DOWNSTREAM):
        if rules is DOWNSTREAM and (wiring := wiring_charge(_left(by_id, taken), inv)) is not None:
            charges.append(wiring)
            taken |= set(wiring.ids)
        for rule in rules:
            made, said = charge_by(rule, by_id, taken)
            charges += made
            remarks += said
    return _with_the_gap(by_id, charges, taken), remarks


def _with_the_gap(by_id: Mapping[str, Finding], charges: list[Charge], taken: set[str]) -> list[Charge]:
    """What is left: the trainer's number and the triangle are explained by a fault of the stage that they point at, or make their own."""
    for finding in [f for f in by_id.values() if f.status is Status.FAIL and f.id not in taken]:
        gap = "dump" if finding.id == "training.metric" else finding.numbers.get("gap") if finding.id == "triangle" else None
        reason = next((i for i, c in enumerate(charges) if c.stage in GAPS.get(gap, ())), None)
        if reason is not None:
            charges[reason] = replace(charges[reason], told=(*charges[reason].told, finding))
        else:
            charges.append(own_charge(finding, gap if finding.id == "triangle" else None))
    return charges


def _of_other_text(by_id: Mapping[str, Finding]) -> Finding | None:
    """A server held against a walk through text that it would not write: its falling short means nothing."""
    served, expected = by_id.get("served.expected"), by_id.get("replay.expected")
    if served is None or served.status is not Status.FAIL or served.numbers.get("same_text", True) or expected is None:
        return None
    return served if expected.status is Status.CANNOT_TELL and not served.numbers.get("as_fed") else None


def _left(by_id: Mapping[str, Finding], taken: set[str]) -> dict[str, Finding]:
    """The findings without what other faults explain: a drafter that fails on broken states says nothing of feeds."""
    return {k: f for k, f in by_id.items() if k not in taken or not k.startswith("replay.")}


def _joined(charges: list[Charge], remarks: list[str], labels: list[Finding]) -> Verdict:
    faults = tuple(c.fault() for c in charges)
    stages = list(dict.fromkeys(f.stage for f in faults))
    confidence = max((f.confidence for f in faults), key=("sure", "likely", "cannot tell").index)
    if len(faults) == 1:
        text = faults[0].text
    else:
        ranked = ", the costliest in accept length first" if faults[0].effect is not None else ""
        text = f"{len(faults)} faults{ranked}. " + " ".join(f"({i}) {f.text}" for i, f in enumerate(faults, 1))
    if labels:
        remarks = [*remarks, f"What is said of the dump is wrong: {'; '.join(f.title for f in labels)}."]
    text += f" Besides: {' '.join(remarks)}" if remarks else ""
    return Verdict(" and ".join(stages), confidence, text, tuple(c for f in faults for c in f.changes), faults)


def _with_cost(by_id: Mapping[str, Finding], said: Verdict) -> Verdict:
    """What time and throughput say, behind everything else: it is measured with whatever faults there are."""
    bad = failing(by_id, *COST)
    if not bad and said.stage == "none found" and (odd := [f for f in by_id.values() if f.numbers.get("impossible")]):
        words = " ".join(f"{f.title}. {f.next}" for f in odd)  # something was counted wrongly, and what it was is not known
        return replace(said, confidence="likely" if said.confidence == "sure" else said.confidence, text=f"{said.text} On cost: {words}")
    if not bad:
        return said
    words = " ".join(f"{f.title}. {f.next}".strip() for f in bad)
    if said.stage != "none found":
        return replace(said, text=f"{said.text} On cost: {words}")
    charge = Charge("cost", f"Cost: {words}", tuple(bad))  # the clock inside a cycle, and the throughput: two witnesses
    if said.confidence != "sure":
        charge = replace(charge, thin=tuple(charge.ids))
    fault = charge.fault()
    return replace(said, stage="cost", confidence=fault.confidence, text=f"{fault.text} {said.text}", faults=(fault,))
