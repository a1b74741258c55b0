"""The engine feeds another wiring than the dump holds: whose fault, which change, and what witnesses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglelab.findings import Change, Finding
from eaglelab.investigation import Investigation
from eaglelab.verdict.charge import CANNOT_TELL, FAIL, PASS, Charge, sentences
from eaglelab.verdict.effect import effect_of
from eaglelab.verdict.rules import FITS
from eaglelab.wiring import Wiring

ById = Mapping[str, Finding]
EXPLAINED = ("wiring.engine", "config.ids_ignored", "config.slots", "replay.engine")
"""Findings that say over again what a wrong wiring says."""


def wiring_charge(by_id: ById, inv: Investigation | None) -> Charge | None:
    match, replayed = by_id.get("wiring.match"), by_id.get("replay.engine")
    if match is None or match.status is not FAIL:
        return _claimed_wiring(match, replayed)
    if not match.numbers:  # states without the residual: no boundary, whatever the ids
        told = tuple(f for name in EXPLAINED if (f := by_id.get(name)) is not None and f.status is FAIL)
        return Charge("wiring", f"Wiring: {sentences(match)}", (match,), told)
    if (other := _another_feed(by_id, inv)) is not None:
        return other
    fed, held = (Wiring.of(match.numbers.get(side) or ()) for side in ("engine", "dump"))
    title = match.title.split(" feeds ")[0]
    works = by_id.get("replay.works")
    working = works is not None and works.status is PASS
    witnesses = [f for f in (match, replayed if held.known else None) if f is not None and f.status is FAIL]
    told = [f for name in EXPLAINED if (f := by_id.get(name)) is not None and f.status is FAIL and f not in witnesses]
    against = [f for name in ("wiring.target",) if (f := by_id.get(name)) is not None]
    if not working:
        against += [works] if works is not None and works.status is FAIL else []
    server, words_of_it, contradicts = _server(by_id, match, fed)
    witnesses += server
    cost = f" {replayed.title}." if replayed in (*witnesses, *told) else ""
    if not len(held) or not held.known:
        words = f"Wiring: {match.title}. {match.evidence}{cost}{words_of_it} Which boundaries the dump holds needs the target or a sketch before the ids can be written."
        return Charge("wiring", f"{words} {match.next}".strip(), tuple(witnesses), tuple(told), tuple(against), effect=effect_of(witnesses))
    if said := _another_config(by_id, fed, held):
        would = f"By the case's config it would feed {fed}, and the dump feeds {held}." + (f" What that would cost:{cost}" if cost else "")
        then = "Name the config that was served in `[engine] draft_config` and check again, before any ids are changed."
        blamed = [f for f in (by_id.get("served.flags"), by_id.get("served.expected")) if f is not None and f.status is FAIL]
        return Charge(
            "wiring",
            f"Wiring: {said} {would} {then}",
            tuple(w for w in witnesses if w not in blamed),
            (*told, *blamed),
            tuple(f for f in (by_id.get("served.flags"), *contradicts, *against) if f is not None),
            effect=effect_of(witnesses),
        )
    ground = "the drafter was trained on" if working else "the dump feeds"
    apart = f"{title} feeds the drafter boundaries {fed}, and {ground} {held} (boundary b: what the target's first b layers put out)"
    change, _, command = match.next.partition("; `")
    words = f"Wiring: {apart}: {change[:1].lower()}{change[1:]}." if command else f"Wiring: {apart}. {match.next}"
    words += f"{cost}{words_of_it}"
    words += (
        ""
        if works is None or works.status is not FAIL
        else (" The drafter does not work on its own dump either, so this change alone may not help.")
    )
    command = f"The command: `{command}" if command else ""
    return Charge(
        "wiring",
        words,
        tuple(witnesses),
        tuple(told),
        (*against, *contradicts),
        changes(match, inv),
        effect_of([*witnesses, *told]),
        command,
    )


def changes(match: Finding, inv: Investigation | None) -> tuple[Change, ...]:
    """The case's own engine first; the others so that a drafter can be moved."""
    file = "the drafter's config.json" if inv is None else inv.draft_config_name
    ids: dict[str, Any] = match.numbers.get("ids", {})
    return tuple(Change(file, key, value, engine) for engine, how in ids.items() for key, value in how["edits"].items())


def _server(by_id: ById, match: Finding, fed: Wiring) -> tuple[list[Finding], str, list[Finding]]:
    """(what the server itself witnesses, in words, what of it contradicts): states captured from it, its counters beside the prediction."""
    witnesses, words, against = [], "", []
    parity, expected = by_id.get("served.parity"), by_id.get("served.expected")
    if parity is not None and parity.status is FAIL:
        witnesses.append(parity)
        words += f" States captured from the server show it: {parity.title}."
    elif parity is not None and parity.status is PASS:
        against.append(parity)
    numbers = {} if expected is None else expected.numbers
    same_engine = numbers.get("engine") in (None, _name(match))
    if numbers.get("as_fed") and same_engine:
        if not numbers.get("same_text"):
            words += f" What the server says agrees: {expected.title}."
            witnesses += [expected] if expected.status is FAIL else []
        elif numbers["fed"]["wiring"] == fed.to_json():
            words += f" The server's own counters confirm it: {expected.title}."
            witnesses += [expected] if expected.status is FAIL else []
    elif numbers.get("as_right"):
        against.append(expected)
    variant = by_id.get("served.variant")
    if variant is not None and same_engine:
        against += [variant] if variant.status is PASS else []
        if variant.status is FAIL and variant.numbers.get("as_config"):
            witnesses.append(variant)
            words += "" if numbers.get("as_fed") else f" The server's counters show it: {variant.title}."
    return witnesses, words, against


def _name(match: Finding) -> str:
    """The engine's own name out of its title: `sglang`."""
    return match.title.split(" ")[0].lower()


def _another_config(by_id: ById, fed: Wiring, held: Wiring) -> str:
    """What the server says against the case's config being the one that it read; empty where nothing does."""
    flags, expected = by_id.get("served.flags"), by_id.get("served.expected")
    ran = None if flags is None else flags.numbers.get("ran", {}).get("boundaries")
    words = ""
    if ran is not None and ran != fed.to_json():
        right = ", on which the drafter was trained" if ran == held.to_json() else ""
        words = f"The case names another config than the one served: the config in the recording feeds boundaries {ran}{right}."
        words += f" {expected.title}." if expected is not None and expected.numbers.get("as_fed") else ""
    elif expected is not None and expected.numbers.get("as_right"):
        words = (
            f"The server seems to feed the right wiring already, and the case to name another config than the one served: {expected.title}."
        )
    return words


def _another_feed(by_id: ById, inv: Investigation | None) -> Charge | None:
    """The dump's feed differs from the engine's, and the replay says that the drafter fits another feed than the dump's: then the feed,
    not the engine's config, is what is out of order."""
    match, order, replayed = by_id["wiring.match"], by_id.get("replay.order"), by_id.get("replay.engine")
    better = replayed is not None and replayed.status is PASS and inv is not None and inv.engine_fits_better
    if not better and (order is None or order.status is not FAIL):
        return None
    fits, fed = None if inv is None else inv.drafter_wiring, Wiring.of(match.numbers["engine"])
    held = match.numbers["dump"]
    right = better or (fits is not None and fits == fed)
    slots = "" if inv is None else f", slots {list(inv.dump.feed.aux)},"
    words = f"The dump's feed{slots} is {Wiring.of(held)}, and the drafter fits {'the engine' if better else 'another feed'} better"
    words += f" ({replayed.title}). " if better else f": {order.title}. "
    explained = (by_id.get(name) for name in (*EXPLAINED, *FITS))  # on another feed nothing fits
    told = tuple(f for f in (match, *explained) if f is not None and f.status is FAIL)
    fitting = replayed if better else order
    witnesses = (fitting, match) if right else (fitting,)  # by the replay, and by the values where what fits is what is fed
    title = match.title.split(" feeds ")[0]
    if right:
        words += f"{title} feeds {fed}, which fits better: the config is right, and `[dump] feed` names the slots in another order than the drafter was trained on."
        return Charge("dump", f"Dump: {words}", witnesses, told, effect=effect_of(witnesses))
    words += f"{title} feeds {fed}, which is neither. "
    return Charge(
        "training", f"Training: {words}{'' if order is None else order.next}".strip(), witnesses, told, effect=effect_of(witnesses)
    )


def _claimed_wiring(match: Finding | None, replayed: Finding | None) -> Charge | None:
    """The slots' boundaries are not known, and fed as claims and config together say, the drafter does not work."""
    if replayed is None or replayed.status is not FAIL:
        return None
    next_ = match.next if match is not None and match.status is CANNOT_TELL else ""
    text = f"Wiring: {replayed.title}. So the claims on the dump's slots are wrong, or the engine feeds another wiring: which of them, the replay cannot tell."
    return Charge("wiring", f"{text} {next_}".strip(), (replayed,), effect=effect_of([replayed]), open=True)
