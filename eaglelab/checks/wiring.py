"""The dump's wiring by comparison of values, set beside what people say and what the engine feeds."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eaglelab.case import Claim
from eaglelab.claims import claimed_boundary, claimed_ids, claimed_readings
from eaglelab.engines.conventions import CannotFeed, Engine, parse_engine
from eaglelab.engines.wiring_report import corrected_config, engine_wiring
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.opened import DUMP
from eaglelab.wiring import Boundary, Wiring, boundary_name, boundary_phrase

if TYPE_CHECKING:
    from eaglelab.identify import Identification

OTHER_ENGINES = ("sglang", "vllm")
"""Engines for which the ids are worked out beside the one that the case names, in their newest known version."""
FAULTS = {
    "nan": "NaN or infinite",
    "zero": "all zero",
    "duplicate": "a duplicate",
    "length": "of another length",
    "width": "of another width",
}
"""Kinds of anomalies that need more words in a sentence."""
NO_FAULT = ("padding", "far from rounding", "tie", "edge", "no match", "other tokens")
"""Anomalies that are no fault of the dump: answers, roundings, and where the comparison decides nothing (another target, too few layers)."""


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
        evidence=f"{inv.compared} compared with {found.source}. "
        + " ".join(f"Slot {s}: {reason}." for s, reason in enumerate(found.reasons)),
        numbers={"wiring": wiring.to_json(), "slots": found.to_json()["slots"]},
        next=found.next_step,
    )
    if far := [a for a in found.anomalies if a.kind == "far from rounding"]:
        yield Finding(
            id="wiring.target",
            title="The dump's states are not quite this checkpoint's: another revision, a quantised target, or another precision",
            status=Status.CANNOT_TELL,
            evidence=" ".join(f"Slot {a.slot}: {a.detail}." for a in far),
            numbers={"anomalies": [a.to_json() for a in far]},
            next="Compare with the very checkpoint that made the dump; a drafter trained on another target's states loses acceptance.",
        )
    serious = [a for a in found.anomalies if a.kind not in NO_FAULT]
    if serious:
        yield Finding(
            id="wiring.anomalies",
            title="The dump's states are faulty: " + ", ".join(sorted({f"slot {a.slot} {FAULTS.get(a.kind, a.kind)}" for a in serious})),
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
    num_layers = inv.served_wiring.target.num_layers if inv.served_wiring else None
    seen: Counter[int] = Counter()
    for c in on_slots:
        said = claimed_readings(c.text)
        source = f", in {c.source}" if c.source else ""
        claim = f"Slot {c.slot} is said to be {c.text!r}{source}: boundary {' or '.join(boundary_name(b, num_layers) for b in said)}."
        seen[c.slot] += 1
        id = f"wiring.claims.slot{c.slot}" + (f".{seen[c.slot]}" if seen[c.slot] > 1 else "")  # the second claim on a slot
        yield _claim_finding(inv, id, c.slot, said, claim, wiring)
    for c in inv.case.claims:
        ids = claimed_ids(c.text) if c.key is not None else None
        if ids is not None and inv.served_wiring is not None:
            yield _ids_finding(inv, c, ids)
    vague = [f"slot {c.slot}: {c.text!r}" for c in inv.case.claims if c.slot is not None and c not in on_slots]
    if vague:
        title = f"{len(vague)} claim{'s name' if len(vague) > 1 else ' names'} no boundary: nothing to compare"
        yield Finding("wiring.claims", title, Status.NOT_APPLICABLE, claim="; ".join(vague))


def _ids_finding(inv: Investigation, claim: Claim, ids: list[int]) -> Finding:
    """Layer ids that somebody says the dump was captured with, by this engine's convention, against the dump."""
    fed = inv.engine_wiring.convention.feed(ids, inv.engine_wiring.target.num_layers)
    meant, held = Wiring(fed.boundaries), None if inv.dump is None else inv.dump_wiring.select(inv.dump.feed.aux)
    told = held is not None and held.known
    same = told and held == meant
    moved = told and not same and sorted(map(str, held)) == sorted(map(str, meant))
    end = f", which the dump {'holds' if same else 'feeds in another order' if moved else 'does not hold'}"
    end = end if told else "; what the dump holds cannot be told"
    return Finding(
        f"wiring.claims.{claim.key}",
        f"{ids} means boundaries {meant} to {inv.engine.title}{end}",
        (Status.PASS if same else Status.FAIL) if told else Status.CANNOT_TELL,
        claim=f"{claim.key} = {claim.text}" + (f" ({claim.source})." if claim.source else "."),
        evidence=" ".join(fed.notes),
        numbers={"ids": ids, "boundaries": list(fed.boundaries), "dump": None if held is None else held.to_json()},
        next="" if told else inv.identification.next_step if inv.dump is not None else DUMP,
    )


def _claim_finding(inv: Investigation, id: str, slot: int, readings: tuple[Boundary, ...], claim: str, wiring: Wiring | None) -> Finding:
    if wiring is None:
        return Finding(id, f"Slot {slot}: no dump to hold the claim against", Status.NOT_GIVEN, claim, next=DUMP)
    if slot >= len(wiring):
        title = f"There is no slot {slot}: the dump has {len(wiring)} slots, 0 to {len(wiring) - 1}"
        return Finding(id, title, Status.FAIL, claim, next="Slots are counted from 0; mend the claim.")
    found, holds, said = inv.identification, wiring[slot], readings[0]
    if holds is not None:
        right = holds in readings
        title = f"Slot {slot} holds {boundary_phrase(holds)}, " + ("as claimed" if right else f"not {boundary_phrase(said)}")
        status = Status.PASS if right else Status.FAIL
    elif all(is_not(found, slot, b) for b in readings):
        title, status = f"Slot {slot} does not hold {boundary_phrase(said)}; what it holds cannot be told", Status.FAIL
    else:
        title, status = f"Slot {slot}: whether it holds {boundary_phrase(said)} cannot be told", Status.CANNOT_TELL
    row = found.slots.iloc[slot]
    numbers = {
        "claimed": said,
        "identified": holds,
        "error_to_claimed": _error_to(found, slot, said),
        "best": row["best"],
        "error_to_best": row["relative_error"],
        "cosine_to_best": row["cosine"],
    }
    return Finding(id, title, status, claim, found.reasons[slot] + ".", numbers, found.next_step if holds is None else "")


def _error_to(found: Identification, slot: int, boundary: Boundary) -> float:
    """Median relative error of a slot to one boundary; NaN where they were not compared (a NaN slot, a boundary not looked at)."""
    return float(found.error[slot, found.boundaries.index(boundary)]) if boundary in found.boundaries else float("nan")


def is_not(found: Identification, slot: int, boundary: Boundary) -> bool:
    """Whether a slot that holds no boundary for certain is at least certain not to hold this one.

    Not where it was never compared, where it is this boundary with a fault, where two boundaries fit about equally and this is one of
    them, or where no slot of the dump fits anything: then the target may be another one.
    """
    if math.isnan(_error_to(found, slot, boundary)):
        return False
    mine = [a for a in found.anomalies if a.slot == slot]
    if boundary in {a.boundary for a in mine}:
        return False  # it is this boundary, shifted, swapped, scaled, …: a fault of the dump, not of the wiring
    kinds, row = {a.kind for a in mine}, found.slots.iloc[slot]
    if kinds & {"tie", "edge", "in between"} and boundary in (row["best"], row["runner_up"]):
        return False
    return "no match" not in kinds or any(b is not None for b in found.wiring)


def match(inv: Investigation) -> Iterator[Finding]:
    """The drafter's feed out of the dump against what the engine feeds, and the ids that make engines feed it."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    fed = inv.engine_wiring
    if fed is None:
        raise NotGiven(
            "the engine, or one of the two configs", "`[engine] name` and `version`, `[drafter] path` and `[target] config` say what is fed"
        )
    inv.check_feed()
    if not fed.captures_boundaries:
        title = f"{fed.engine.title} captures this target's layers without the residual: what it feeds is no boundary, whatever the ids"
        yield Finding(
            "wiring.match", title, Status.FAIL, next="Serve with another engine or version; a drafter cannot be told to fit this."
        )
        return
    held = inv.dump_wiring.select(inv.dump.feed.aux)
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
    same, aux = held == fed.wiring, tuple(inv.dump.feed.aux)
    in_order = aux == tuple(range(len(aux)))
    ids = {str(e): ids_for(inv.draft_config, held, inv.target_config, e) for e in _engines(inv)}
    mine = ids[str(fed.engine)]
    if ids.get(fed.engine.name) == mine and fed.engine.version is not None:
        del ids[fed.engine.name]  # the newest version wants the same
    yield Finding(
        id="wiring.match",
        title=f"{fed.engine.title} feeds {fed.wiring}, "
        + ("as the dump holds" if same else f"the dump holds {held}" if in_order else f"the dump's feed (slots {list(aux)}) is {held}"),
        status=Status.PASS if same else Status.FAIL,
        claim=f"{inv.draft_config_name} says " + (f"layer ids {fed.ids}." if fed.ids is not None else "no layer ids."),
        evidence="Slot by slot: " + "; ".join(f"{_said(a)} fed, {_said(b)} trained on" for a, b in zip_all(fed.wiring, held)) + ".",
        numbers={"engine": fed.wiring.to_json(), "dump": held.to_json(), "ids": ids},
        next="" if same else _next(inv, held, mine),
    )


def _refuted(inv: Investigation, held: Wiring) -> str:
    """Why the wirings differ although the dump's is not known in full: a slot that cannot be what the engine feeds in its place."""
    found = inv.identification
    wrong = [
        (slot, fed)
        for slot, fed, holds in zip(inv.dump.feed.aux, inv.engine_wiring.wiring, held, strict=False)
        if fed is not None and (holds != fed if holds is not None else is_not(found, slot, fed))
    ]
    return " ".join(f"Slot {slot} is not {boundary_name(b)}, which the engine feeds in its place." for slot, b in wrong)


def _engines(inv: Investigation) -> list[Engine]:
    """The case's engine, and the newest version of each that is known."""
    others = [parse_engine(name) for name in OTHER_ENGINES]
    return [inv.engine] + [e for e in others if e.name != inv.engine.name]


def ids_for(draft_config: Mapping[str, Any], wanted: Wiring, target_config: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    """The key and ids that make an engine feed the wanted boundaries with all edits of the config, or the reason why none do."""
    try:
        new, _ = corrected_config(draft_config, wanted.boundaries, target_config, engine)
    except CannotFeed as reason:
        return {"ids": None, "key": None, "edits": {}, "why": str(reason)}
    fed = engine_wiring(new, target_config, engine)
    return {"ids": fed.ids, "key": fed.key, "edits": edits(draft_config, new), "why": ""}


def edits(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """What was set in a config, by dotted key: {"eagle_config.eagle_aux_hidden_state_layer_ids": [2, 15, 27]}."""
    found: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, (dict, type(None))):
            found |= edits(before or {}, value, f"{above}{key}.")
        elif value != before:
            found[above + key] = value
    return found


def _next(inv: Investigation, wanted: Wiring, mine: dict[str, Any]) -> str:
    if not mine["edits"]:
        return f"{mine['why']} Train on boundaries that it can feed, or serve with another engine."
    what = " and ".join(f"{key} = {json.dumps(value)}" for key, value in mine["edits"].items())
    return f"Set {what} in {inv.draft_config_name}; `{_write_command(inv, wanted)}`, run beside case.toml, writes a corrected copy; with `--in-place` instead of `--write` the file itself, and the old one is kept."


def _write_command(inv: Investigation, wanted: Wiring) -> str:
    target = inv.case.target.config or inv.case.target.path
    files = [shlex.quote(os.path.relpath(path, inv.case.root)) for path in (inv.case.engine.draft_config or inv.case.drafter.path, target)]
    boundaries = ",".join(str(b) for b in wanted)
    return f"eaglelab wiring {files[0]} --target {files[1]} --engine {inv.engine} --boundaries {boundaries} --write"


def _said(boundary: Boundary) -> str:
    return "nothing" if boundary is None else boundary_name(boundary)


def zip_all(a: Wiring, b: Wiring) -> list[tuple[Boundary, Boundary]]:
    """Pairs over the longer of both wirings."""
    return [(a[i] if i < len(a) else None, b[i] if i < len(b) else None) for i in range(max(len(a), len(b)))]
