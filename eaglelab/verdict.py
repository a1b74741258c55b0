"""What all findings together say: the stage at fault, the change to make, how sure.

A verdict never rests on one statistic where a second, independent one is at hand: the wiring is compared by value *and* the replay shows
what the other feed costs. Nothing is called `sure` on one of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from eaglelab.acceptance import FEW_SAMPLES
from eaglelab.findings import Change, Finding, Status, Verdict
from eaglelab.investigation import Investigation
from eaglelab.wiring import Wiring

FAIL, PASS = Status.FAIL, Status.PASS
BROKEN_SHARE = 0.05
"""Share of samples with errors from which on the dump may be at fault; below it, bad files are a side remark."""

FLAGS = {
    f"config.{flag}"
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "attention_bias", "qk_norm", "further_norm")
}
"""Findings on flags that the replay can turn."""
COST = ("timing.", "cost.")
"""Findings on time: they say what a setting costs, never what is wrong with a drafter."""


def verdict(findings: Iterable[Finding], inv: Investigation) -> Verdict:
    """Faults are named in the order of the data's way: drafter, dump, wiring, training, server. All that are found are named."""
    by_id = {f.id: f for f in findings}
    faults = [fault for look in (_drafter, _dump, _text, _wiring, _training, _config, _served) if (fault := look(by_id, inv)) is not None]
    if not faults:
        return _cost(by_id, _no_fault({k: f for k, f in by_id.items() if not k.startswith(COST)}, inv))
    stages = list(dict.fromkeys(f.stage for f in faults))
    confidence = max((f.confidence for f in faults), key=("sure", "likely", "cannot tell").index)  # no surer than the least sure
    text = " ".join(f.text for f in faults) + (_harmless(by_id) if _unharmed(by_id) else "")
    return _cost(by_id, Verdict(" and ".join(stages), confidence, text, tuple(c for f in faults for c in f.changes)))


def _status(by_id: dict[str, Finding], key: str) -> Status | None:
    return by_id[key].status if key in by_id else None


def _drafter(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    bad = [f for f in by_id.values() if f.id.startswith("drafter.") and f.status is FAIL]
    if not bad:
        return None
    certain = {f.id for f in bad} & {"drafter.complete", "drafter.vocabulary"}  # by name and by number, whatever the text
    sure = certain and _status(by_id, "replay.works") is not PASS  # a drafter that works on its own contradicts them
    mend = set(by_id["drafter.complete"].numbers.get("mend", ())) if "drafter.complete" in {f.id for f in bad} else set()
    # A file that was not copied or a key of the config is no fault of the training.
    stage = "engine" if len(bad) == 1 and mend and "export" not in mend else "training"
    return Verdict(stage, "sure" if sure else "likely", " ".join(f"{f.title}. {f.next}" for f in bad))


def _dump(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    bad = [by_id[k] for k in ("wiring.anomalies", "dump.last_state") if _status(by_id, k) is FAIL]
    health = by_id.get("dump.health")
    unproven = _status(by_id, "replay.works") is not PASS  # a drafter that works on the dump was not spoilt by its bad files
    if health is not None and health.status is FAIL and unproven and _broken_share(health) > BROKEN_SHARE:
        bad.append(health)
    if not bad:
        return None
    return Verdict("dump", "likely", " ".join(f"{f.title}. {f.next}" for f in bad))


def _text(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    """What was trained on: the mask and the text. The states may be whole all the same."""
    bad = [by_id[k] for k in ("text.mask", "text.shift", "text.faults", "text.tokens") if _status(by_id, k) is FAIL]
    if not bad:
        return None
    works = by_id.get("replay.works")
    still = (
        f" The drafter works all the same ({works.title}): mend it before the next training."
        if works is not None and works.status is PASS
        else ""
    )
    return Verdict("dump", "likely", " ".join(f"{f.title}. {f.next}" for f in bad) + still)


def _broken_share(health: Finding) -> float:
    return health.numbers["with_errors"] / max(1, health.numbers["checked"])


def _wiring(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    """The engine feeds another wiring than the dump holds. Two witnesses: values, and the replay on both feeds."""
    match, served = by_id.get("wiring.match"), by_id.get("replay.engine")
    if match is None or match.status is not FAIL:
        return _claimed_wiring(match, served)
    if (other := _another_feed(by_id, inv)) is not None:
        return other
    works = _status(by_id, "replay.works")
    fed, held = inv.engine_wiring.wiring, inv.dump_wiring.select(inv.dump.feed.aux)
    cost = f" {served.title}." if served is not None and served.status is FAIL else ""
    both = works is PASS and served is not None and served.status is FAIL and held.known
    confidence = "sure" if both and "wiring.target" not in by_id else "likely"
    if held.known:
        ground = "The drafter was trained on" if works is PASS else "The dump feeds"
        words = f"{ground} boundaries {held} and {inv.engine.title} feeds it {fed}.{cost}"
    else:
        words = f"{inv.engine.title} feeds boundaries {fed}, and the dump does not hold that. {match.evidence}{cost}"
    words += _confirmed(by_id, fed, inv)
    changes = _changes(match.numbers.get("ids", {}), inv)
    if works is FAIL:
        words += " The drafter does not work on its own dump either, so this change alone may not help."
    if said := _another_config(by_id, fed, held):
        would = f"By the case's config it would feed {fed}, and the dump feeds {held}." + (f" What that would cost:{cost}" if cost else "")
        then = "Name the config that was served in `[engine] draft_config` and check again, before any ids are changed."
        return Verdict("wiring", "likely", f"{said} {would} {then}")
    if held.known:
        words += f" {match.next}"
    else:
        words += " Which boundaries the dump holds needs the target or a sketch before the ids can be written."
    return Verdict("wiring", confidence, words, changes)


def _another_config(by_id: dict[str, Finding], fed: Wiring, held: Wiring) -> str:
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


def _confirmed(by_id: dict[str, Finding], fed: Wiring, inv: Investigation) -> str:
    """What the server itself says of a wrong wiring: states captured from it, and its counters beside the prediction for what it feeds."""
    words, parity, expected = "", by_id.get("served.parity"), by_id.get("served.expected")
    if parity is not None and parity.status is FAIL:
        words += f" States captured from the server show it: {parity.title}."
    numbers = {} if expected is None else expected.numbers
    if numbers.get("as_fed") and numbers.get("engine") in (None, inv.engine.name):
        if not numbers["same_text"]:
            words += f" What the server says agrees: {expected.title}."
        elif numbers["fed"]["wiring"] == fed.to_json():
            words += f" The server's own counters confirm it: {expected.title}."
    return words


def _another_feed(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    """The dump's feed differs from the engine's, and the replay says that the drafter fits another feed than the dump's: then the feed,
    not the engine's config, is what is out of order."""
    order, served = by_id.get("replay.order"), by_id.get("replay.engine")
    better = served is not None and served.status is PASS and inv.engine_fits_better
    if not better and (order is None or order.status is not FAIL):
        return None
    fits, fed = inv.drafter_wiring, inv.engine_wiring.wiring
    right = better or (fits is not None and fits == fed)
    held = inv.dump_wiring.select(inv.dump.feed.aux)
    words = f"The dump's feed, slots {list(inv.dump.feed.aux)}, is {held}, and the drafter fits {'the engine' if better else 'another feed'} better"
    words += f" ({served.title}). " if better else f": {order.title}. "
    if right:
        words += f"So {inv.engine.title} feeds what the drafter was trained on, and the config is right: `[dump] feed` names the slots in another order."
        return Verdict("dump", "likely", words)
    return Verdict("training", "likely", words + (order.next if order is not None else ""))


def _claimed_wiring(match: Finding | None, served: Finding | None) -> Verdict | None:
    """The slots' boundaries are not known, and fed as claims and config together say, the drafter does not work."""
    if match is None or match.status is not Status.CANNOT_TELL or served is None or served.status is not FAIL:
        return None
    text = f"{served.title}. So the claims on the dump's slots are wrong, or the engine feeds another wiring: which of them, the replay cannot tell."
    return Verdict("wiring", "cannot tell", f"{text} {match.next}".strip())


def _changes(ids: dict[str, Any], inv: Investigation) -> tuple[Change, ...]:
    """The case's own engine first; the others so that a drafter can be moved."""
    return tuple(Change(inv.draft_config_name, key, value, engine) for engine, how in ids.items() for key, value in how["edits"].items())


def _training(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    replayed = ("replay.works", "replay.order", "replay.choices", "replay.targets")
    reordered = _status(by_id, "wiring.match") is FAIL and _another_feed(by_id, inv) is not None  # said there
    others = any(look(by_id, inv) is not None for look in (_drafter, _dump, _text))
    other_map = by_id.get("drafter.vocabulary.other")
    if _dump(by_id, inv) is not None or reordered or (other_map is not None and other_map.status is FAIL and "own" in other_map.numbers):
        replayed = ()  # on broken states no drafter can be judged, and the map that it fits explains what the replay finds
    elif _status(by_id, "replay.choices") is FAIL:
        replayed = replayed[1:]  # the choice that fits is why it does not work
    habits = ("config.training_residual",) if _unharmed(by_id) else ("config.final_norm", "config.training_residual")
    bad = [by_id[k] for k in (*replayed, *habits) if _status(by_id, k) is FAIL]
    printed = by_id.get("training.metric")
    if printed is not None and printed.status is FAIL and not bad and not others:
        bad = [printed]  # behind every other fault: each of them alone makes another number than the trainer's
    if not bad:
        return None
    families = {f.id.split(".")[0] for f in bad}  # the trainer's habit and the replay: two independent witnesses
    sure = "sure" if {"config", "replay"} <= families else "likely"
    text = " ".join(f"{f.title}. {f.next}" for f in bad)
    if _status(by_id, "replay.choices") is FAIL and "replay.choices" in {f.id for f in bad} and _status(by_id, "replay.flags") is PASS:
        text += f" {inv.engine.title} computes what the drafter fits already: there only the config says otherwise."
    return Verdict("training", sure, text)


def _unharmed(by_id: dict[str, Finding]) -> bool:
    """The trainer would norm the last state wrongly, and yet the drafter learned the target's own choice: it was trained otherwise."""
    return _status(by_id, "config.final_norm") is FAIL and _status(by_id, "replay.targets") is PASS


def _harmless(by_id: dict[str, Finding]) -> str:
    title = by_id["config.final_norm"].title
    return f" {title}. This drafter learned the target's own choice all the same: mend the dump before the next training."


def _config(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    """What the engine ignores or reads otherwise, and a wiring that cannot be captured at all."""
    told = {"config.final_norm", "config.training_residual"}  # faults of the training, or of none
    if _status(by_id, "wiring.match") is FAIL:
        told.add("wiring.engine")
    costs = by_id.get("replay.flags")
    if costs is not None and costs.status is PASS:
        told |= FLAGS  # read otherwise than trained, at no cost
    if "served.expected" in by_id and by_id["served.expected"].numbers.get("as_fed"):
        told.add("flags.algorithm")  # the server drafts as EAGLE3 does, whatever the case's launch line says
    bad = [
        f for k, f in by_id.items() if (k.startswith(("config.", "flags.")) or k == "wiring.engine") and f.status is FAIL and k not in told
    ]
    reads = any(not f.id.startswith("flags.") for f in bad)
    if costs is not None and costs.status is FAIL and _status(by_id, "replay.choices") is not FAIL:
        bad.append(costs)
    if not bad:
        return None
    sure = costs in bad and reads  # the table of what the engine reads and the replay: two witnesses
    return Verdict("engine", "sure" if sure else "likely", " ".join(f"{f.title}. {f.next}" for f in bad))


def _served(by_id: dict[str, Finding], inv: Investigation) -> Verdict | None:
    """The server does not do what its config says, or not what the replay predicts for it."""
    told, expected = set(), by_id.get("served.expected")
    if _status(by_id, "wiring.match") is FAIL:  # said there
        told = {"served.parity"}
        if expected is not None and (expected.numbers.get("as_fed") or expected.numbers.get("as_right")):
            told.add("served.expected")
        flags = by_id.get("served.flags")
        if flags is not None and flags.numbers.get("apart") == ["boundaries"]:
            told.add("served.flags")
    bad = [f for k, f in by_id.items() if k.startswith("served.") and f.status is FAIL and k not in told]
    if not bad:
        return None
    both = {"served.parity", "served.expected"} <= {f.id for f in bad}  # by value, and by what it costs
    return Verdict("engine", "sure" if both else "likely", " ".join(f"{f.title}. {f.next}".strip() for f in bad))


def _cost(by_id: dict[str, Finding], said: Verdict) -> Verdict:
    """What time and throughput say, behind everything else: it is measured with whatever faults there are."""
    bad = [f for k, f in by_id.items() if k.startswith(COST) and f.status is FAIL]
    if not bad:
        return said
    words = " ".join(f"{f.title}. {f.next}".strip() for f in bad)
    if said.stage != "none found":
        return replace(said, text=f"{said.text} On cost: {words}")
    both = {"timing", "cost"} <= {f.id.split(".")[0] for f in bad}  # the clock inside a cycle, and the throughput
    return Verdict("cost", "sure" if both and said.confidence == "sure" else "likely", f"{words} {said.text}")


def _no_fault(by_id: dict[str, Finding], inv: Investigation) -> Verdict:
    settled = FLAGS | {"config.training_residual"} if _status(by_id, "replay.choices") is PASS else set()  # replayed both ways
    open_questions = [f for f in by_id.values() if f.status is Status.CANNOT_TELL and f.id not in settled]
    missing = [f for f in by_id.values() if f.status is Status.NOT_GIVEN and not f.id.startswith(("served.", "flags"))]
    expected = by_id.get("replay.expected")
    reach = f" {expected.title}." if expected is not None and expected.status is PASS else ""
    wrong = [f.title for f in by_id.values() if f.id.startswith(("wiring.claims", "dump.format")) and f.status is FAIL]
    right = _status(by_id, "wiring.match") is PASS
    but = ", though the config is right" if right else ""
    aside = f" What is said of the dump is wrong{but}: {'; '.join(wrong)}." + " Mend the label." * right if wrong else ""
    aside += _harmless(by_id) if _unharmed(by_id) else ""
    health = by_id.get("dump.health")
    if health is not None and health.status is FAIL:
        aside += f" Some files are bad: {health.title}."
    questions = "; ".join(_distinct(open_questions))
    failing = [f.title for f in by_id.values() if f.status is FAIL and f.title not in aside]
    aside += f" Also failing: {'; '.join(failing)}." if failing else ""
    # That there is nothing to hold a mask against is no sign against it.
    doubts = failing or [f for f in open_questions if f.id != "text.shift" or f.numbers.get("by", "error")]
    served = by_id.get("served.expected")
    if served is not None and served.numbers.get("outside"):
        return Verdict("cannot tell", "cannot tell", f"{served.title}. Configs, dump and drafter show no fault.{aside} {served.next}")
    if _status(by_id, "wiring.match") is PASS and _status(by_id, "replay.works") is PASS:
        reached = served is not None and served.status is PASS
        text = f"The engine feeds what the drafter was trained on, and the drafter works on its own.{reach}{aside} " + (
            f"{served.title}: nothing is lost on the way to the server; if it is slow, that is a matter of cost."
            if reached
            else "A lower accept length is made elsewhere; a good one that is slow is a matter of cost."
        )
        left = f" Still open: {questions}." if questions else ""
        few = inv.dump is not None and len(inv.samples) < FEW_SAMPLES
        return Verdict("none found", "likely" if doubts or few else "sure", text + left)
    if not open_questions and "dump.health" not in by_id and not missing:  # `check --cheap`
        return Verdict(
            "none found", "cannot tell", "What can be read without the dump shows no fault by itself; nothing else was looked at."
        )
    broken = [f for f in open_questions if "error" in f.numbers]  # an input that cannot be used: first of all mend it
    steps = "; ".join(dict.fromkeys(f.next.rstrip(".") for f in broken or [*open_questions, *missing] if f.next))
    text = (
        f"No fault was found in what could be looked at, but not everything could: {questions.rstrip('.') or 'too little is given'}.{aside}"
    )
    return Verdict("cannot tell", "cannot tell", f"{text} Next: {steps}." if steps else text)


def _distinct(questions: list[Finding]) -> list[str]:
    """Titles; checks that stopped at one and the same error are named once."""
    by_reason: dict[str, str] = {}
    for f in questions:
        by_reason.setdefault(f.evidence if "error" in f.numbers else f.id, f.title)
    return list(by_reason.values())
