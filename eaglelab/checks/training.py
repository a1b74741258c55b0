"""What the trainer printed, in one definition, and the same number counted again in the replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import FEW_SAMPLES, ratio, ratio_interval
from eaglelab.checks.course import amount, course
from eaglelab.checks.replay import SPLITS, _interval, ready_to_replay
from eaglelab.engines.training import framework_of
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.metrics import Definition, Reported, Row, read_metrics

if TYPE_CHECKING:
    from eaglelab.replay import SampleOutcome

HOW = "`[training] metrics` names the trainer's log (text, .json, .jsonl or .csv); `framework` and `version` beside it say what its names mean"
OWN_SPLIT = {"train": "train", "heldout": "eval"}
"""Which split of a trainer the dump's samples are of."""
MOST_STEPS = 7
"""Steps that are counted again: EAGLE's own training unrolls seven."""
HALF = 0.5
"""A drafter that reaches less than this share of what was printed does not do so because of the split: no split costs half."""


def metric(inv: Investigation) -> Iterator[Finding]:
    """What the log reports; then its accuracy beside the same accuracy counted in the replay."""
    section = inv.case.training
    yield from amount(section.samples)
    if section.metrics is None:
        raise NotGiven("the trainer's metrics", HOW)
    framework, version = _framework(inv)
    reported = read_metrics(section.metrics, framework, version)
    yield _reported(reported)
    yield from course(reported)
    claimed = _claimed(reported, inv.case.dump.split)
    if not claimed:
        title = "The trainer's log holds no accuracy that a replay can count again"
        yield Finding("training.metric", title, Status.CANNOT_TELL, numbers=reported.to_json(), next=HOW)
        return
    yield _beside_the_replay(inv, claimed)


def _framework(inv: Investigation) -> tuple[str | None, str | None]:
    """As the case says, else None: a name guessed from the config's layout would decide what a printed number means."""
    section = inv.case.training
    if section.framework is None:
        return None, None
    told = framework_of({}, section.framework, section.version)
    return told.name, told.engine.version


def _reported(reported: Reported) -> Finding:
    length = reported.accept_length()
    if length.value is None:
        lengths = f"No accept length: {length.how}."
    else:
        lengths = f"Accept length {'about ' if length.approximate else ''}{length.value:.2f}, the bonus token included ({length.how})."
    listed = "; ".join(f"{r.name} = {r.value:.4g} ({r.in_words})" for r in _first_steps(reported.rows))
    unknown = (
        f" Not understood: {', '.join(reported.unknown[:12])}{', …' if len(reported.unknown) > 12 else ''}." if reported.unknown else ""
    )
    broken = f" Printed as NaN or infinite: {', '.join(list(reported.not_finite)[:6])}." if reported.not_finite else ""
    refused = ", ".join(f"{name} ({n})" for name, n in list(reported.no_rate.items())[:6])
    broken += f" Not used, since no rate lies outside 0 to 1: {refused}; percentages need their %." if refused else ""
    if not reported.rows:
        title = f"Nothing in {reported.file} is understood as a metric of {reported.framework or 'any trainer'}"
        return Finding(
            "training.reported", title, Status.CANNOT_TELL, evidence=(unknown + broken).strip(), numbers=reported.to_json(), next=HOW
        )
    return Finding(
        id="training.reported",
        title=f"{reported.file} reports {len(reported.rows)} number{'s' if len(reported.rows) != 1 else ''}; "
        + (
            "no accept length can be made of them"
            if length.value is None
            else f"as an accept length: {'about ' if length.approximate else ''}{length.value:.2f}"
        ),
        status=Status.FAIL if reported.not_finite else Status.PASS,
        claim=f"{listed}.",
        evidence=f"{lengths}{unknown}{broken}",
        numbers=reported.to_json(),
        next="A loss or an accuracy that is no number spoils the weights that follow: train again from before it."
        if reported.not_finite
        else "",
    )


def _first_steps(rows: Sequence[Row]) -> list[Row]:
    """The rows of step 0 and those without a step, losses last, at most eight."""
    shown = [r for r in rows if r.step <= 0]
    return sorted(shown, key=lambda r: r.kind == "loss")[:8]


def _claimed(reported: Reported, dump_split: str | None) -> list[Row]:
    """The rates of one kind and split that the replay can count again: the dump's split where it was printed, else the evaluation's."""
    chains = [
        [r for r in reported.rates(kind, split) if all(d.rederived for d in r.definitions)]
        for split in (OWN_SPLIT.get(dump_split), "eval", "train", None)
        for kind in ("marginal", "joint", "conditional")
    ]
    return next((chain[:MOST_STEPS] for chain in chains if chain and chain[0].step == 0), [])


@dataclass(frozen=True)
class _Again:
    """One metric at one step, counted again by one definition."""

    definition: Definition
    right: float
    counted: int
    low: float
    high: float

    @property
    def rate(self) -> float | None:
        return ratio(self.right, self.counted)


def _beside_the_replay(inv: Investigation, claimed: list[Row]) -> Finding:
    ready_to_replay(inv)
    if any(s.loss_mask is None for s in inv.samples):
        raise NotGiven("the samples' loss mask", "a trainer counts by it: dump it with the states")
    if inv.last_fault:
        raise NotGiven("a last state to judge by", f"{inv.last_fault}: a trainer's targets came out of it; see dump.last_state")
    if inv.judge.head is None:
        raise NotGiven("the target's lm_head", "`[target] path`: a trainer counts the target's own choice as right, not the text")
    own = inv.own_replay.counts
    counted = {d: _count(inv, d, len(claimed)) for d in claimed[0].definitions}
    steps = [[_again(d, counted[d], row.step) for d in row.definitions if d in counted] for row in claimed]
    first, again = claimed[0], steps[0]
    nearest = min(again, key=lambda a: abs((a.rate or 0.0) - first.value))
    status, why, todo = _status(inv, first, again)
    which = "its own definition" if first.definition else "the nearest of its definitions"
    collapsed = [row for row, found in zip(claimed, steps, strict=True) if _less_than_half(row, found)]
    if status is not Status.FAIL and len(inv.samples) >= FEW_SAMPLES and collapsed:
        status, todo = (
            Status.FAIL,
            _what_to_do(below=True) + " A first step that holds and later ones that do not: the recurrence (replay.choices).",
        )
        why = f"Step {collapsed[0].step} falls to less than half of what was printed."
    rates = f"{nearest.right:,} of {nearest.counted:,} tokens in {inv.sampled} ({_interval(nearest.low, nearest.high)})"
    others = "; ".join(
        f"step {row.step}: {row.value:.1%} printed, {_percent(min(found, key=lambda a: abs((a.rate or 0.0) - row.value)).rate)} counted"
        for row, found in zip(claimed[1:], steps[1:], strict=True)
    )
    return Finding(
        id="training.metric",
        title=f"The trainer printed {first.name} = {first.value:.1%}; by {which} the replay gives {_percent(nearest.rate)}",
        status=status,
        claim=f"{first.title}{f', {first.at}' if first.at else ''}, split {first.split or 'not said'}: {first.in_words}."
        + (f" Mean of the last {min(first.seen, 50)} values: {first.recent:.1%}." if first.seen > 1 else ""),
        evidence=f"{rates}. In this project's definition: marginal {_percent(own.marginal(0))}, joint at step 0 {_percent(own.joint_rate(0))}."
        + (f" Further steps: {others}." if others else "")
        + f" {SPLITS[inv.case.dump.split]} {why}",
        numbers=_numbers(claimed, steps) | {"ours": own.to_json()},
        next=todo,
    )


def _count(inv: Investigation, definition: Definition, steps: int) -> tuple[Sequence[SampleOutcome], list[Any]]:
    """Outcomes of every row as the definition's target judges them, and each sample's counts."""
    from dataclasses import replace

    from eaglelab.replay import Judge, replay
    from eaglelab.replay.trainers import draft_vocabulary_judge, every_row, trainer_counts

    inside = definition.outside == "unseen"
    judge, variant = inv.judge, inv.feeds.dump
    judge = draft_vocabulary_judge(judge, inv.drafter.target_ids) if inside else Judge(judge.last, judge.head, judge.norm_last)
    variant = replace(variant, vocabulary="identity" if inside else "d2t")
    outcomes = replay(inv.drafter, every_row(inv.samples), inv.embedding, [variant], judge=judge, steps=steps)[0].outcomes
    return outcomes, [trainer_counts(definition, o, s.loss_mask) for o, s in zip(outcomes, inv.samples, strict=True)]


def _again(definition: Definition, counted: tuple[Sequence[SampleOutcome], list[Any]], step: int) -> _Again:
    """The interval is by sample; where the trainer takes the mean of batches' rates, it reaches over both ways of averaging."""
    parts = [(c.right[step], c.counted[step]) for c in counted[1] if c.counted[step]]
    right, whole = [p for p, _ in parts], [n for _, n in parts]
    intervals = [ratio_interval(right, whole)]
    if definition.averaged == "batches":
        intervals.append(ratio_interval([p / n for p, n in parts], [1.0] * len(parts)))
    return _Again(definition, sum(right), sum(whole), min(low for low, _ in intervals), max(high for _, high in intervals))


def _status(inv: Investigation, row: Row, again: list[_Again]) -> tuple[Status, str, str]:
    """Inside any definition's interval: pass. Outside of all that the framework has: fail where the split is the same or no split explains it."""
    if len(inv.samples) < FEW_SAMPLES or not any(a.counted for a in again):
        return (
            Status.CANNOT_TELL,
            "Too few samples for an interval.",
            f"{len(inv.samples)} samples say little about the next: read more of them.",
        )
    slack = 0.5 * 10.0**-row.decimals if row.decimals is not None else 0.0
    printed = sorted((row.value, row.value if row.recent is None else row.recent))
    if any(a.low - slack <= printed[1] and printed[0] <= a.high + slack for a in again):
        return Status.PASS, "The two agree.", ""
    split = OWN_SPLIT.get(inv.case.dump.split)
    below = max(a.high for a in again) < printed[0]
    if _less_than_half(row, again):
        return Status.FAIL, "No split and no batch explains a fall to less than half.", _what_to_do(below)
    if len({d.source for d in row.definitions}) > 1:
        return Status.CANNOT_TELL, "The log's names stand for several things.", "Say `[training] framework` and `version`."
    if split is None or row.split is None:
        return (
            Status.CANNOT_TELL,
            "Whether both are of the same split is not said.",
            "Say `[dump] split`; a trainer's name without a prefix says none.",
        )
    if split != row.split:
        gap = (
            "The drafter knows its training data better than other data"
            if row.split == "train" and below
            else "They are of different splits"
        )
        return (
            Status.CANNOT_TELL,
            f"{gap}: printed on {row.split}, counted on {split}.",
            "Dump samples of the split that was printed, or log the other.",
        )
    return Status.FAIL, "The split is the same, and the printed number is outside the interval.", _what_to_do(below)


def _less_than_half(row: Row, again: list[_Again]) -> bool:
    found = [a for a in again if a.counted]
    return bool(found) and max(a.high for a in found) < HALF * min(row.value, row.value if row.recent is None else row.recent)


def _what_to_do(below: bool) -> str:
    if below:
        return (
            "This is not the drafter, the dump, the feed or the target that the log is of: see replay.order and replay.choices, and compare the "
            "checkpoint's step with the log's last."
        )
    return "The drafter is better than its log says: the log is of an earlier step or of another run."


def _percent(rate: float | None) -> str:
    return "nothing" if rate is None else f"{rate:.1%}"


def _numbers(claimed: list[Row], steps: list[list[_Again]]) -> dict[str, Any]:
    return {
        "steps": [
            {
                "step": row.step,
                "name": row.name,
                "printed": row.value,
                "recent": row.recent,
                "split": row.split,
                "again": [
                    {
                        "definition": a.definition.in_words,
                        "rate": a.rate,
                        "right": a.right,
                        "counted": a.counted,
                        "interval": [a.low, a.high],
                    }
                    for a in found
                ],
            }
            for row, found in zip(claimed, steps, strict=True)
        ]
    }
