"""What reproduces the server's counts, and where between trainer, replay and server acceptance is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import isfinite
from operator import mul
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import ratio_interval
from eaglelab.checks.replay import length_words, ready_to_replay
from eaglelab.checks.served import CHANGE, server_title
from eaglelab.engines.conventions import parse_engine
from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.served import ServedCounts
from eaglelab.served_case import LIVE, Reached, total
from eaglelab.triangle import HOW, REPLAY, SERVER, TRAINER, Corner, Side, Triangle, triangulate

if TYPE_CHECKING:
    from eaglelab.served.variant_fit import Fit, VariantFit

MORE = f"More passes tell them apart: record more prompts of the dump. {LIVE}."


def variant(inv: Investigation) -> Iterator[Finding]:
    """Which deviation reproduces the acceptance that the server counted, step by step."""
    if not inv.served.given:
        raise NotGiven("a server's counters, recordings or log", LIVE)
    ready_to_replay(inv)
    found = inv.served.variant_fit
    status, title, todo = _said(inv, found)
    alike, best = found.alike, found.best
    given_up = sum(not f.weight for f in found.fits)
    yield Finding(
        id="served.variant",
        title=title,
        status=status,
        claim=f"The server feeds and computes what the drafter was trained on: accept length {length_words(found.trained.predicted)}.",
        evidence=f"{len(found.fits)} deviations (wirings, states, token shift, flags, vocabulary map, weights) drafted along {_whose(found)}; compared: "
        f"{found.evidence}, {found.served.verify_steps:,} verify passes, joint acceptance {_joint(found.served, found.steps)}. "
        f"Best: {_one(best, found)}. As trained: {_one(found.trained, found)}."
        + (f" Not told from the best: {few([_one(f, found) for f in alike if f is not best], 4, '; ')}." if len(alike) > 1 else "")
        + f" {given_up} of {len(found.fits)} are behind by odds of a thousand or more."
        + "".join(f" {note[0].upper()}{note[1:]}." for note in found.notes)
        + (f" The text: {found.text[1]}." if found.text[1] and found.text[0] not in ("identical", "near-ties") else "")
        + _lengths(inv, found.served),
        numbers=found.to_json()
        | {"as_config": any(f is found.config for f in alike) and best.fits, "as_trained": found.trained in alike and found.trained.fits}
        | {"best": best.name, "kind": best.candidate.kind, "alike": [f.name for f in alike], "fits": best.fits},
        next=todo,
    )


def _lengths(inv: Investigation, compared: ServedCounts) -> str:
    """Which accept length of this server is of what, where findings name several."""
    reached, expected = inv.served.reached, inv.found.get("served.expected")
    fed = None if expected is None else expected.numbers.get("fed")
    if reached is None or reached.counts is None or not compared.verify_steps:
        return ""
    lengths = {f"{reached.accept_length:.2f}": f"over all its {reached.counts.verify_steps:,} verify passes (served.acceptance)"}
    lengths.setdefault(f"{compared.accept_length:.2f}", f"over the {compared.verify_steps:,} of the answers compared here")
    if fed and fed.get("served"):
        what = "over those of them that the end of an answer does not cut (served.expected)"
        lengths.setdefault(f"{fed['served']:.2f}", what)
    said = "; ".join(f"{length} {of}" for length, of in lengths.items())
    return f" Accept lengths of this server: {said}." if len(lengths) > 1 else ""


def _said(inv: Investigation, found: VariantFit) -> tuple[Status, str, str]:
    best, trained, alike = found.best, found.trained, [f for f in found.alike if f.fits]
    who, length = _who(inv), f"{found.served.accept_length:.2f}" if found.served.verify_steps else "no pass"
    if found.few:
        title = f"What reproduces the server's acceptance cannot be told from {found.passes} verify passes"
        short = found.passes < found.served.verify_steps
        return Status.CANNOT_TELL, title, f"Longer answers of the dump are needed: a draft is {found.steps} tokens." if short else MORE
    if not alike:
        other = found.text[0] in ("other target", "other text")
        why = ": the served text is another target's" if found.text[0] == "other target" else ""
        title = f"No deviation reproduces what {who} accepted (accept length {length}; nearest: {best.name}, {length_words(best.predicted)}){why}"
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
        title = f"{who} accepted what the drafter should on the states that it was trained on: {length}, as trained {length_words(trained.predicted)}"
        return Status.PASS, title + (f"; not told from it: {few([f.name for f in beside], 3, '; ')}" if beside else ""), ""
    config = found.config if found.config in alike else None
    named = config or best
    if config is None and len({f.candidate.kind for f in alike}) > 1:
        names = few([f"{f.name} ({length_words(f.predicted)})" for f in alike], 4, "; ")
        title = f"What {who} accepted ({length}) is not what the drafter was trained for ({length_words(trained.predicted)}); alike reproduce it: {names}"
        first = f"If it is {best.name}: {best.candidate.next}"
        return Status.CANNOT_TELL, title, f"{MORE} Or look at them one by one, the likelier first. {first}"
    title = f"What {who} accepted ({length}) is reproduced by {named.name} ({length_words(named.predicted)}), and not by {trained.name} ({length_words(trained.predicted)})"
    rest = [f.name for f in alike if f is not named]
    title += f"; not told from it: {few(rest, 3, '; ')}" if rest else ""
    wrong = config is not None and config.candidate.wiring is not None and config.candidate.wiring != trained.candidate.wiring
    return Status.FAIL, title, CHANGE if wrong else named.candidate.next


def _who(inv: Investigation) -> str:
    recording = inv.served.recording
    said = inv.served.reached.engine if recording is None else parse_engine(recording.session.engine) if recording.session.engine else None
    return server_title(inv, said)


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
    return f"{fit.name} (accept length {length_words(fit.predicted)}, joint {_joint(fit.predicted, found.steps)}{same}, weight {fit.weight:.2f}{fits})"


def _joint(counts, steps: int) -> str:
    return " / ".join("?" if (rate := counts.joint_rate(k)) is None else f"{rate:.1%}" for k in range(steps))


# -- the triangle --------------------------------------------------------------------------------------------------------------------------


def triangle(inv: Investigation) -> Iterator[Finding]:
    """The trainer's metric, the replay and the server side by side; the side on which acceptance is lost."""
    found = triangle_of(inv)
    expected = inv.found.get("served.expected")
    config = found.gap == "engine" and expected is not None and expected.numbers.get("as_fed")  # then it is the config that it reads
    gap, who = found.gap, " / ".join(f"{c.name} {c.accept_length:.2f}" for c in found.corners)
    lacks = f" ({' and '.join(found.missing)} not given)" if found.missing else ""
    titles = {
        "none": f"Acceptance is as trained{lacks}: {who}",
        "cannot tell": f"Where acceptance is lost cannot be told{lacks}: {who}",
    }
    yield Finding(
        id="triangle",
        title=titles.get(gap, f"Acceptance is lost in the {gap}{lacks}: {who}"),
        status=Status.PASS if gap == "none" else Status.CANNOT_TELL if gap == "cannot tell" else Status.FAIL,
        claim=f"Accept length{f' with {found.steps} drafted steps' if found.steps else ''}, the bonus token included, in one definition for all.",
        evidence=" ".join(_corner(c) for c in found.corners)
        + f" {found.why[0].upper()}{found.why[1:]}."
        + (f" It is what its config makes it do: {expected.title}." if config else ""),
        numbers=found.to_json(),
        next=CHANGE
        if config
        else " ".join([NEXT[gap], *(f"Missing: the {name}; {HOW[name]}." for name in found.missing if gap == "cannot tell")]).strip(),
    )


NEXT = {
    "training": "Train longer, on more and other prompts, answered by the target itself; replay held-out samples again after it.",
    "dump": "Compare checkpoint, dump and trainer's log: training.metric says which number differs, replay.order and replay.choices what would fit.",
    "engine": "Find what the server does otherwise: served.variant names the deviation that reproduces its counts, wiring.match the ids.",
    "none": "",
    "cannot tell": "",
}


def triangle_of(inv: Investigation) -> Triangle:
    """The case's own triangle. Raises NotGiven where fewer than two corners are given."""
    corners = {TRAINER: _trainer(inv), **_replay_and_server(inv)}
    given = [c for c in corners.values() if isinstance(c, Corner) and c.accept_length is not None]
    if len(given) < 2:
        lacks = next(name for name in (SERVER, TRAINER, REPLAY) if name not in {c.name for c in given})
        raise NotGiven(f"two of trainer, replay and server with an accept length (no {lacks})", HOW[lacks])
    return triangulate(**corners, counted_again=_counted_again(inv) if corners[TRAINER] and corners[REPLAY] else None)


def _trainer(inv: Investigation) -> Corner | None:
    """What the trainer printed, on the dump's split where it has it; joint rates, else products of conditional or marginal ones."""
    from eaglelab.checks.training import OWN_SPLIT, _framework
    from eaglelab.metrics import read_metrics

    section = inv.case.training
    if section.metrics is None:
        return None
    reported = read_metrics(section.metrics, *_framework(inv))
    splits = [s for s in dict.fromkeys((OWN_SPLIT.get(inv.case.dump.split), "eval", "train", None)) if s in reported.splits]
    for split in splits:
        for kind in ("joint", "conditional", "marginal"):
            if rows := reported.rates(kind, split):
                rates = [r.value for r in rows]
                joint = tuple(rates if kind == "joint" else accumulate(rates, mul))
                how = (
                    f"{kind} rates {rows[0].name} to {rows[-1].name} of {reported.file}{', multiplied along the chain' * (kind != 'joint')}"
                )
                return Corner(TRAINER, joint, how=how, split={"eval": "heldout"}.get(split, split), approximate=kind == "marginal")
        length = reported.accept_length(split)
        if length.value is not None:
            how, name = length.how, {"eval": "heldout"}.get(split, split)
            return Corner(TRAINER, length=length.value, how=how, split=name, approximate=length.approximate)
    return None


def _replay_and_server(inv: Investigation) -> dict[str, Any]:
    """Both on the served text where there is one, fed what the drafter was trained on; else the walk through the dump's answers, and the server's
    own total."""
    side, recording = inv.served, inv.served.recording if inv.served.given else None
    reached = side.reached if side.given else None
    try:
        ready_to_replay(inv)
        if recording is not None and recording.counts is not None and side.right_wiring is not None and not recording.session.temperature:
            found = side.predicted(recording, side.right_wiring)
            if found.same_text and found.predicted is not None:
                pairs = found.pairs
                less, low, high = (-x for x in found.gap)
                of = f"{len(pairs)} of {len(recording.requests)} requests, the served text"
                keys = {s.key for s in inv.samples}
                elsewhere = not any(r.sample in keys for r in recording.requests)
                return {
                    REPLAY: _of_counts(REPLAY, [p for _, p in pairs], f"fed what the drafter was trained on, {of}", inv.case.dump.split),
                    SERVER: _of_counts(SERVER, [s for s, _ in pairs], of),
                    "served_less": (less, high, low),
                    "dumped": _of_dump(inv) if elsewhere else None,
                }
    except NotGiven:
        return {REPLAY: None, SERVER: _total(reached), "same_text": False}
    return {REPLAY: _of_dump(inv), SERVER: _total(reached), "same_text": False}


def _of_dump(inv: Investigation) -> Corner | None:
    """The walk through the dump's own answers."""
    own = inv.own_replay
    walked = [ServedCounts.from_accepted(o.walk or (), own.steps) for o in own.outcomes]
    return _of_counts(REPLAY, walked, f"the dump's answers, {inv.sampled}", inv.case.dump.split)


def _of_counts(name: str, counts: list[ServedCounts], how: str, split: str | None = None) -> Corner | None:
    whole = total(counts)
    if not whole.verify_steps:
        return None
    low, high = ratio_interval([c.accepted for c in counts], [c.verify_steps for c in counts])
    interval = (1 + low, 1 + high) if isfinite(high) else None
    joint = tuple(n / whole.verify_steps for n in whole.joint or ())
    return Corner(name, joint, whole.accept_length, interval, whole.verify_steps, "verify passes", how, split)


def _total(reached: Reached | None) -> Corner | None:
    """What the server's counters or log tell, of whatever text."""
    if reached is None:
        return None
    counts = reached.counts
    joint = () if counts is None or not counts.joint else tuple(n / counts.verify_steps for n in counts.joint)
    n = None if counts is None else counts.verify_steps
    return Corner(SERVER, joint, reached.accept_length, reached.interval, n, "verify passes", f"{reached.source}: {reached.definition}")


def _counted_again(inv: Investigation) -> Side | None:
    """The trainer's first number less the same number counted in the replay, out of `training.metric`'s finding."""
    from eaglelab.checks.training import metric

    found = inv.found.get("training.metric")
    if found is None:
        try:
            found = next((f for f in metric(inv) if f.id == "training.metric"), None)
        except (NotGiven, ValueError):
            return None
    if found is None or not found.numbers.get("steps"):
        return None
    first = found.numbers["steps"][0]
    again = [a for a in first["again"] if a["rate"] is not None]
    if not again:
        return None
    near = min(again, key=lambda a: abs(a["rate"] - first["printed"]))
    own = {"train": "train", "heldout": "eval"}.get(inv.case.dump.split)
    differ = first["split"] == "train" and own == "eval"
    less = first["printed"] - near["rate"]
    low = min(less, first["printed"] - max(a["interval"][1] for a in again))
    known = differ or found.status is Status.FAIL
    if found.status is Status.PASS:
        low = min(low, 0.0)
    return Side("training" if differ else "dump", less, low, first["printed"] - near["interval"][0], "step-0 acceptance", known)


def _corner(corner: Corner) -> str:
    interval = "" if corner.interval is None else " (95 % {:.2f} to {:.2f})".format(*corner.interval)
    n = "" if corner.n is None else f", {corner.n:,} {corner.of}"
    about = "about " if corner.approximate else ""
    split = "" if corner.split is None else f", {'held out' if corner.split == 'heldout' else 'training data'}"
    first = "" if corner.first is None else f", step 0 {corner.first:.1%}"
    return f"{corner.name.capitalize()}: {about}{corner.accept_length:.2f}{interval}{n}{first}{split} ({corner.how})."
