"""The dump's wiring by comparison of values, set beside what people say and what the engine feeds."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelab.case import Claim
from eaglelab.claims import claimed_boundary, claimed_ids
from eaglelab.engines.conventions import CannotFeed, Engine, parse_engine
from eaglelab.engines.wiring_report import corrected_config, engine_wiring
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.wiring import Boundary, Wiring, boundary_name

DUMP = "`[dump] path` names the folder of hidden states that the drafter was trained on"
OTHER_ENGINES = ("sglang", "vllm")
"""Engines for which the ids are worked out beside the one that the case names, in their newest known version."""


def identity(inv: Investigation) -> Iterator[Finding]:
    """Which boundary each slot holds."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    found = inv.identification
    wiring = found.wiring
    yield Finding(
        id="wiring.dump",
        title=f"The dump holds {wiring}" if wiring.known else f"The dump's wiring cannot be told in full: {wiring}",
        status=Status.PASS if wiring.known else Status.CANNOT_TELL,
        claim=f"Slots {', '.join(inv.dump.slot_names)}, whatever their names say.",
        evidence=f"Compared with {found.source}. " + " ".join(f"Slot {s}: {reason}." for s, reason in enumerate(found.reasons)),
        numbers={"wiring": wiring.to_json(), "slots": found.to_json()["slots"]},
        next=found.next_step,
    )
    serious = [a for a in found.anomalies if a.kind not in ("normed", "far from rounding", "tie", "edge")]
    if serious:
        yield Finding(
            id="wiring.anomalies",
            title="The dump has " + ", ".join(sorted({f"{a.kind} (slot {a.slot})" for a in serious})),
            status=Status.FAIL,
            evidence=" ".join(f"Slot {a.slot}, {a.kind}: {a.detail}." for a in serious),
            numbers={"anomalies": [a.to_json() for a in serious]},
            next="A drafter trained on these rows learned them; mend the capture and dump again.",
        )


def claims(inv: Investigation) -> Iterator[Finding]:
    """Each claim on a slot, beside the evidence."""
    on_slots = [c for c in inv.case.claims if c.slot is not None and claimed_boundary(c.text) is not None]
    if not inv.case.claims:
        yield Finding("wiring.claims", "Nobody claims anything of the slots in this case", Status.NOT_APPLICABLE)
    wiring = inv.dump_wiring if on_slots and inv.dump is not None else None
    num_layers = inv.engine_wiring.target.num_layers if inv.engine_wiring else None
    for c in on_slots:
        said = claimed_boundary(c.text)
        source = f", in {c.source}" if c.source else ""
        claim = f"Slot {c.slot} is said to be {c.text!r}{source}: boundary {boundary_name(said, num_layers)}."
        yield _claim_finding(inv, c.slot, said, claim, wiring)
    for c in inv.case.claims:
        ids = claimed_ids(c.text) if c.key is not None else None
        if ids is not None and inv.engine_wiring is not None:
            yield _ids_finding(inv, c, ids)


def _ids_finding(inv: Investigation, claim: Claim, ids: list[int]) -> Finding:
    """Layer ids that somebody says the dump was captured with, by this engine's convention, against the dump."""
    fed = inv.engine_wiring.convention.feed(ids, inv.engine_wiring.target.num_layers)
    meant, held = Wiring(fed.boundaries), None if inv.dump is None else inv.dump_wiring.select(inv.dump.feed.aux)
    told = held is not None and held.known
    same = told and held == meant
    end = f", which the dump {'holds' if same else 'does not hold'}" if told else "; what the dump holds cannot be told"
    return Finding(
        f"wiring.claims.{claim.key}",
        f"{ids} means boundaries {meant} to {inv.engine.title}{end}",
        (Status.PASS if same else Status.FAIL) if told else Status.CANNOT_TELL,
        claim=f"{claim.key} = {claim.text}" + (f" ({claim.source})." if claim.source else "."),
        evidence=" ".join(fed.notes),
        numbers={"ids": ids, "boundaries": list(fed.boundaries), "dump": None if held is None else held.to_json()},
        next="" if told else inv.identification.next_step if inv.dump is not None else DUMP,
    )


def _claim_finding(inv: Investigation, slot: int, said: Boundary, claim: str, wiring: Wiring | None) -> Finding:
    if wiring is None or slot >= len(wiring):
        status, evidence, title = Status.NOT_GIVEN, "There is no such slot at hand.", f"Slot {slot}: nothing to hold the claim against"
        return Finding(f"wiring.claims.slot{slot}", title, status, claim, evidence, next=DUMP)
    holds = wiring[slot]
    reason = inv.identification.reasons[slot]
    if holds is not None:
        right = holds == said
        title = f"Slot {slot} is {boundary_name(holds)}, " + ("as claimed" if right else f"not {boundary_name(said)}")
        status = Status.PASS if right else Status.FAIL
    elif said in inv.identification.boundaries:  # compared with what is claimed, and it is not that
        title, status = f"Slot {slot} is not {boundary_name(said)}; what it is cannot be told", Status.FAIL
    else:
        title, status = f"Slot {slot}: whether it is {boundary_name(said)} cannot be told", Status.CANNOT_TELL
    row = inv.identification.slots.iloc[slot]
    numbers = {"claimed": said, "identified": holds, "relative_error": row["relative_error"], "cosine": row["cosine"]}
    return Finding(
        f"wiring.claims.slot{slot}", title, status, claim, reason + ".", numbers, inv.identification.next_step if holds is None else ""
    )


def match(inv: Investigation) -> Iterator[Finding]:
    """The drafter's feed out of the dump against what the engine feeds, and the ids that make engines feed it."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    held = inv.dump_wiring.select(inv.dump.feed.aux)
    fed = inv.engine_wiring
    if fed is None:
        raise NotGiven(
            "the engine, or one of the two configs", "`[engine] name` and `version`, `[drafter] path` and `[target] config` say what is fed"
        )
    if not held.known:
        refuted = _refuted(inv, held)
        yield Finding(
            "wiring.match",
            f"{fed.engine.title} feeds {fed.wiring}; the dump holds {held}: "
            + ("they differ" if refuted else "cannot be compared in full"),
            Status.FAIL if refuted else Status.CANNOT_TELL,
            claim=f"{inv.draft_config_name} says {fed.ids}.",
            evidence=refuted or "The slots' boundaries are not known.",
            numbers={"engine": fed.wiring.to_json(), "dump": held.to_json()},
            next=inv.identification.next_step,
        )
        return
    same = held == fed.wiring
    ids = {str(e): _ids_for(inv, held, e) for e in _engines(inv)}
    mine = ids[str(fed.engine)]
    yield Finding(
        id="wiring.match",
        title=f"{fed.engine.title} feeds {fed.wiring}, " + ("as the dump holds" if same else f"the dump holds {held}"),
        status=Status.PASS if same else Status.FAIL,
        claim=f"{inv.draft_config_name} says " + (f"layer ids {fed.ids}." if fed.ids is not None else "no layer ids."),
        evidence="Slot by slot: " + "; ".join(f"{_said(a)} fed, {_said(b)} trained on" for a, b in zip_all(fed.wiring, held)) + ".",
        numbers={"engine": fed.wiring.to_json(), "dump": held.to_json(), "ids": ids},
        next="" if same else _next(inv, mine),
    )


def _refuted(inv: Investigation, held: Wiring) -> str:
    """Why the wirings differ although the dump's is not known in full: a boundary that was compared and is in no such slot."""
    compared = set(inv.identification.boundaries)
    wrong = [
        (slot, b)
        for slot, b in enumerate(inv.engine_wiring.wiring)
        if slot < len(held) and b is not None and b in compared and held[slot] != b
    ]
    return " ".join(f"Slot {inv.dump.feed.aux[slot]} is compared with {boundary_name(b)} and is not it." for slot, b in wrong)


def _engines(inv: Investigation) -> list[Engine]:
    others = [parse_engine(name) for name in OTHER_ENGINES]
    return [inv.engine] + [e for e in others if str(e) != str(inv.engine)]


def _ids_for(inv: Investigation, wanted: Wiring, engine: Engine) -> dict:
    """The key and ids that make an engine feed the wanted boundaries, or the reason why none do."""
    try:
        new, _ = corrected_config(inv.draft_config, wanted.boundaries, inv.target_config, engine)
    except CannotFeed as reason:
        return {"ids": None, "key": None, "why": str(reason)}
    fed = engine_wiring(new, inv.target_config, engine)
    return {"ids": fed.ids, "key": fed.key, "why": ""}


def _next(inv: Investigation, mine: dict) -> str:
    if mine["ids"] is None:
        return f"{mine['why']} Train on boundaries that it can feed, or serve with another engine."
    return f"Set {mine['key']} = {mine['ids']} in {inv.draft_config_name} (`eaglelab wiring … --write` makes the corrected copy)."


def _said(boundary: Boundary) -> str:
    return "nothing" if boundary is None else boundary_name(boundary)


def zip_all(a: Wiring, b: Wiring) -> list[tuple[Boundary, Boundary]]:
    """Pairs over the longer of both wirings."""
    return [(a[i] if i < len(a) else None, b[i] if i < len(b) else None) for i in range(max(len(a), len(b)))]
