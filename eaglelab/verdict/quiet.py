"""Where no fault is named: whether that is because there is none, or because too little could be looked at."""

from __future__ import annotations

from collections.abc import Mapping

from eaglelab.acceptance import FEW_SAMPLES
from eaglelab.findings import Finding, Status, Verdict
from eaglelab.investigation import Investigation
from eaglelab.verdict.charge import PASS, sentences
from eaglelab.verdict.rules import BROKEN_SHARE, broken_share, matches, settled

PATTERNS = ("lost.*", "context.*", "training.course", "served.caches")
"""Findings that describe where acceptance is lost; open, they leave no doubt of what the others say."""


def no_fault(
    by_id: Mapping[str, Finding],
    inv: Investigation | None,
    remarks: list[str],
    labels: list[Finding],
    samples: int | None,
    only: tuple[str, ...] = (),
) -> Verdict:
    questions = [f for f in by_id.values() if f.status is Status.CANNOT_TELL and f.id not in settled(by_id)]
    missing = [
        f for f in by_id.values() if f.status is Status.NOT_GIVEN and not f.id.startswith(("served.", "flags", "errors", "triangle"))
    ]
    right = _passes(by_id, "wiring.match")
    aside = "".join(f" {r}" for r in remarks)
    if labels:
        though = ", though the config is right" if right else ""
        aside += f" What is said of the dump is wrong{though}: {'; '.join(f.title for f in labels)}." + " Mend the label." * right
    if only:
        return _asked(by_id, only, aside)
    served, open_ = by_id.get("served.expected"), "; ".join(_distinct(questions)).rstrip(".")
    if served is not None and served.numbers.get("outside"):
        return Verdict("cannot tell", "cannot tell", f"{served.title}. Configs, dump and drafter show no fault.{aside} {served.next}")
    if right and _passes(by_id, "replay.works"):
        return _none_found(by_id, questions, open_, aside, bool(labels), samples)
    if not questions and "dump.health" not in by_id and not missing:  # `check --cheap`
        text = f"What can be read without the dump shows no fault by itself; nothing else was looked at.{aside}"
        return Verdict("none found", "cannot tell", text)
    broken = [f for f in questions if "error" in f.numbers]  # an input that cannot be used: first of all mend it
    text = "No fault was found in what could be looked at, but not everything could"
    first = next(iter(sorted(broken or questions or missing, key=_importance)), None)
    if first is None:
        return Verdict("cannot tell", "cannot tell", f"{text}: too little is given.{aside}")
    rest = [f.id for f in questions if f is not first and f.title in _distinct(questions)]
    also = f" Also open: {', '.join(rest)}." if rest else ""
    return Verdict("cannot tell", "cannot tell", f"{text}. The first thing to settle: {sentences(first)}{also}{aside}")


IMPORTANT = (
    "dump.health",
    "wiring.dump",
    "wiring.match",
    "drafter.complete",
    "replay.works",
    "wiring.engine",
    "served.expected",
    "replay.*",
)
"""What is settled first where several things are open: the others hang on it."""


def _importance(finding: Finding) -> int:
    return next((i for i, id in enumerate(IMPORTANT) if matches(finding, (id,))), len(IMPORTANT))


def _none_found(
    by_id: Mapping[str, Finding], questions: list[Finding], open_: str, aside: str, mislabelled: bool, samples: int | None
) -> Verdict:
    """Sure where values (wiring.match) and replay (replay.works) both say so on enough samples, and nothing is in doubt."""
    expected, served = by_id.get("replay.expected"), by_id.get("served.expected")
    reach = f" {expected.title}." if expected is not None and expected.status is PASS else ""
    text = f"No fault found: the engine feeds what the drafter was trained on, and the drafter works on its own.{reach}{aside} " + (
        f"{served.title}: nothing is lost on the way to the server; if it is slow, that is a matter of cost."
        if served is not None and served.status is PASS
        else "A lower accept length is made elsewhere; a good one that is slow is a matter of cost."
    )
    # That there is nothing to hold a mask against is no sign against it; nor is it one that a pattern of losses cannot be made out.
    # A drafter that collapses after its first step loses much, whatever the reason.
    patterns = [f for f in questions if matches(f, PATTERNS) and not f.numbers.get("collapse")]
    doubts = [f for f in questions if (f.id != "text.shift" or f.numbers.get("by", "error")) and f not in patterns]
    few = samples is not None and samples < FEW_SAMPLES
    health = by_id.get("dump.health")  # the drafter works all the same, but a dump that is mostly bad is no clean bill
    bad = health is not None and health.status is Status.FAIL and broken_share(health) > BROKEN_SHARE
    return Verdict("none found", "likely" if doubts or few or bad else "sure", text + (f" Still open: {open_}." if open_ else ""))


def _asked(by_id: Mapping[str, Finding], only: tuple[str, ...], aside: str) -> Verdict:
    """A few checks that were asked for: no fault in them says nothing of the rest. What found nothing to look at shows nothing."""
    if not by_id:
        silent = f"Nothing was found by {', '.join(only)}: what is looked at there is not given, or shows nothing."
        return Verdict("none found", "cannot tell", f"{silent} Nothing else was looked at.{aside}")
    if all(f.status is Status.NOT_GIVEN for f in by_id.values()):
        first = sentences(next(iter(by_id.values())))
        return Verdict("cannot tell", "cannot tell", f"Nothing could be looked at for {', '.join(only)}. {first}{aside}")
    questions = "; ".join(_distinct([f for f in by_id.values() if f.status is Status.CANNOT_TELL])).rstrip(".")
    text = f"Looked at {', '.join(only)} only, which show{'s' * (len(only) == 1)} no fault; nothing else was looked at.{aside}"
    return Verdict("none found", "cannot tell", text + (f" Still open: {questions}." if questions else ""))


def _passes(by_id: Mapping[str, Finding], id: str) -> bool:
    return id in by_id and by_id[id].status is PASS


def _distinct(questions: list[Finding]) -> list[str]:
    """Titles; checks that stopped at one and the same error are named once."""
    by_reason: dict[str, str] = {}
    for f in questions:
        by_reason.setdefault(f.evidence if "error" in f.numbers else f.id, f.title)
    return list(by_reason.values())
