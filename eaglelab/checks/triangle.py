"""What reproduces the server's counts, and where between trainer, replay and server acceptance is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglelab.checks.replay import _ready
from eaglelab.checks.served import CHANGE
from eaglelab.engines.conventions import parse_engine
from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.served_case import LIVE

if TYPE_CHECKING:
    from eaglelab.served.variant_fit import Fit, VariantFit

MORE = f"More passes tell them apart: record more prompts of the dump. {LIVE}."


def variant(inv: Investigation) -> Iterator[Finding]:
    """Which deviation reproduces the acceptance that the server counted, step by step."""
    if not inv.served.given:
        raise NotGiven("a server's counters, recordings or log", LIVE)
    _ready(inv)
    found = inv.served.variant_fit
    status, title, todo = _said(inv, found)
    alike, best = found.alike, found.best
    given_up = sum(not f.weight for f in found.fits)
    yield Finding(
        id="served.variant",
        title=title,
        status=status,
        claim=f"The server feeds and computes what the drafter was trained on: accept length {_length(found.trained)}.",
        evidence=f"{len(found.fits)} deviations (wirings, states, token shift, flags, vocabulary map, weights) drafted along {_whose(found)}; compared: "
        f"{found.evidence}, {found.served.verify_steps:,} verify passes, joint acceptance {_joint(found.served, found.steps)}. "
        f"Best: {_one(best, found)}. As trained: {_one(found.trained, found)}."
        + (f" Not told from the best: {few([_one(f, found) for f in alike if f is not best], 4, '; ')}." if len(alike) > 1 else "")
        + f" {given_up} of {len(found.fits)} are behind by odds of a thousand or more."
        + "".join(f" {note[0].upper()}{note[1:]}." for note in found.notes)
        + (f" The text: {found.text[1]}." if found.text[1] and found.text[0] not in ("identical", "near-ties") else ""),
        numbers=found.to_json()
        | {"as_config": any(f is found.config for f in alike) and best.fits, "as_trained": found.trained in alike and found.trained.fits}
        | {"best": best.name, "kind": best.candidate.kind, "alike": [f.name for f in alike], "fits": best.fits},
        next=todo,
    )


def _said(inv: Investigation, found: VariantFit) -> tuple[Status, str, str]:
    best, trained, alike = found.best, found.trained, [f for f in found.alike if f.fits]
    who, length = _who(inv), f"{found.served.accept_length:.2f}" if found.served.verify_steps else "no pass"
    if found.few:
        title = f"What reproduces the server's acceptance cannot be told from {found.served.verify_steps} verify passes"
        return Status.CANNOT_TELL, title, MORE
    if not alike:
        other = found.text[0] in ("other target", "other text")
        why = ": the served text is another target's" if found.text[0] == "other target" else ""
        title = f"No deviation reproduces what {who} accepted (accept length {length}; nearest: {best.name}, {_length(best)}){why}"
        todo = (
            "Serve the very target that wrote the dump, unquantised and greedily, and record again."
            if other
            else (
                "So it is something that cannot be replayed, or two faults at once: states of other requests or older ones, another drafter, target or "
                "precision. `eaglelab live CASE --url … --capture DIR` captures what is fed."
            )
        )
        return Status.CANNOT_TELL, title, todo
    if trained in alike:
        beside = [f for f in alike if f is not trained]
        title = f"{who} accepted what the drafter should on the states that it was trained on: {length}, as trained {_length(trained)}"
        return Status.PASS, title + (f"; not told from it: {few([f.name for f in beside], 3, '; ')}" if beside else ""), ""
    config = found.config if found.config in alike else None
    named = config or best
    if config is None and len({f.candidate.kind for f in alike}) > 1:
        names = few([f"{f.name} ({_length(f)})" for f in alike], 4, "; ")
        title = f"What {who} accepted ({length}) is not what the drafter was trained for ({_length(trained)}); alike reproduce it: {names}"
        return Status.CANNOT_TELL, title, f"{MORE} Or look at them one by one, the likelier first. {best.candidate.next}"
    title = (
        f"What {who} accepted ({length}) is reproduced by {named.name} ({_length(named)}), and not by {trained.name} ({_length(trained)})"
    )
    rest = [f.name for f in alike if f is not named]
    title += f"; not told from it: {few(rest, 3, '; ')}" if rest else ""
    wrong = config is not None and config.candidate.wiring is not None and config.candidate.wiring != trained.candidate.wiring
    return Status.FAIL, title, CHANGE if wrong else named.candidate.next


def _who(inv: Investigation) -> str:
    recording = inv.served.recording
    said = parse_engine(recording.session.engine) if recording is not None and recording.session.engine else inv.engine
    return "the server" if said is None else said.title


def _whose(found: VariantFit) -> str:
    from eaglelab.served.variant_fit import TOTALS

    return (
        f"the dump's answers in {found.requests} samples"
        if found.evidence == TOTALS
        else f"the {found.requests} answers that the server gave"
    )


def _one(fit: Fit, found: VariantFit) -> str:
    """`boundaries [0, 3, 16] (accept length 1.09, 100 % of passes as served, weight 1.00)`."""
    same = "" if fit.same is None else f", {fit.same:.1%} of passes as served"
    fits = "" if fit.fits else ", does not fit"
    return f"{fit.name} (accept length {_length(fit)}, joint {_joint(fit.predicted, found.steps)}{same}, weight {fit.weight:.2f}{fits})"


def _length(fit: Fit) -> str:
    length = fit.predicted.accept_length
    return "not known" if length is None else f"{length:.2f}"


def _joint(counts, steps: int) -> str:
    return " / ".join("?" if (rate := counts.joint_rate(k)) is None else f"{rate:.1%}" for k in range(steps))
