"""Where acceptance is lost: by class of token, by step, by confidence, at which tokens. Information, unless something is wrong that can be changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import FEW_SAMPLES, ratio_interval
from eaglelab.checks.replay import JUDGED, WEAK, ready_to_replay
from eaglelab.checks.text import need_masks
from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation

if TYPE_CHECKING:
    import pandas as pd

MATTERS = 0.05
"""Accept length below which nothing needs an action: at 2 tokens a pass it is 2.5 % of the speed, what one benchmark run differs from the next."""
COLLAPSE = 0.5
"""Share of step 0's acceptance below which a later step's (conditional, upper bound against lower bound) has collapsed. Published drafters
stay far above it: 0.71, 0.68, 0.71 (vllm-project/vllm#25961), 0.59, 0.51, 0.50, 0.53, 0.54 (a weak one); those that come to a step have been right
so far, which are the easier rows."""
KEPT = 0.99
"""Share of the accept length that a confidence threshold must keep to be called free."""
MOST = 3
"""Classes and tokens that a sentence names."""
MORE_TEXT = "Train on more of the target's own answers that hold such text; other texts stay as they are."
REMEDIES = {
    "outside": "Choose the draft vocabulary by the counts of the target's own answers to such prompts (see drafter.vocabulary.coverage).",
    "seen in no": "Train on more, and more various, answers of the target: what it has seldom seen it cannot draft.",
    "ends a run": "It does not copy what the text already says: train on longer samples with such text, or serve an n-gram drafter for it.",
    "the answer's": "Look at text.first_token: which prediction of an answer is the first that trains.",
    "within": "Train on answers with these markers, rendered as the server renders them (see text.tokens).",
    "digits": MORE_TEXT,
    "code": MORE_TEXT,
    "CJK": MORE_TEXT,
    "other scripts": MORE_TEXT,
    "parts": MORE_TEXT,
}


def working_drafter(inv: Investigation, id: str, what: str) -> Finding | None:
    """What is said instead, where the drafter is hardly ever right: then no part of the text is to blame."""
    ready_to_replay(inv)
    counts = inv.own_replay.counts
    if not counts.complete:
        raise ValueError(
            f"no row counts at all {inv.steps} steps: the answers are shorter than the draft; read longer samples or draft fewer steps"
        )
    rate = counts.marginal(0)
    if rate >= WEAK:
        return None
    said = f"is right {rate:.1%} of the time at step 0"
    return Finding(id, f"{what} is not asked of a drafter that {said}", Status.NOT_APPLICABLE, next="See replay.works first.")


def classes(inv: Investigation) -> Iterator[Finding]:
    """Which classes of tokens cost most, and whether one points at something that can be changed."""
    if (said := working_drafter(inv, "lost.classes", "Which tokens it loses acceptance at")) is not None:
        yield said
        return
    from eaglelab.lost.classes import FIRST_DRAFTED

    costs, length, n = inv.lost.costs, inv.own_replay.counts.accept_length, inv.own_replay.counts.complete
    numbers = {"classes": costs.to_dict(orient="records"), "accept_length": length, "rows": n, "tokenizer": inv.lost.tokenizer is not None}
    told = costs[costs["told"] & (costs["low"] >= MATTERS)].sort_values("low", ascending=False)  # what they cost at least
    how = (
        f"Over {n:,} rows of {inv.sampled}, judged by {inv.own_replay.judged_by}; intervals are 95 %, for all classes together, by sample."
    )
    if inv.lost.tokenizer is None:
        how += " Without a tokenizer only the classes that token ids tell."
    if len(inv.samples) < FEW_SAMPLES:
        yield Finding(
            "lost.classes",
            f"{len(inv.samples)} sample(s) do not tell which tokens cost acceptance",
            Status.CANNOT_TELL,
            evidence=how,
            numbers=numbers,
            next="Read more samples: `--max-samples`, or dump more.",
        )
        return
    if told.empty:
        yield Finding(
            "lost.classes",
            "No class of tokens costs acceptance beyond chance and beyond what matters",
            Status.PASS,
            evidence=how,
            numbers=numbers,
        )
        return
    worst, first = told.iloc[0], told[told["class"] == FIRST_DRAFTED]
    untrained = len(first) and first.iloc[0]["marginal"] < COLLAPSE * first.iloc[0]["others"] and _never_trains(inv)
    if untrained:
        worst = first.iloc[0]
    yield Finding(
        id="lost.classes",
        title=f"Most acceptance is lost at one class of tokens: {worst['class']}. Were they right as often as the others, "
        f"the mean accept length over all rows would be {length + worst['gain']:.2f} instead of {length:.2f}",
        status=Status.FAIL if untrained else Status.PASS,
        claim="",
        evidence=f"{'; '.join(_class_words(row) for _, row in told.head(MOST).iterrows())}. {how} Classes overlap, so that what they cost does not add up."
        + (" The first prediction of an answer never trains by the trainer's rule (text.first_token)." if untrained else ""),
        numbers=numbers,
        next="Extend the loss mask by one position at the start of each answer, and train again."
        if untrained
        else next((text for start, text in REMEDIES.items() if worst["class"].startswith(start)), ""),
    )


def _class_words(row: pd.Series) -> str:
    """`digits: 12.0 % right against 58.6 % of the others, 12.1 % of the tokens, costs 0.22 (0.13 to 0.31)`."""
    return (
        f"{row['class']}: {row['marginal']:.1%} right at step 0 against {row['others']:.1%} of the others (marginal), {row['share']:.1%} of the tokens "
        f"(n = {row['n']:,}), costs {row['gain']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
    )


def _never_trains(inv: Investigation) -> bool:
    """Whether the trainer's rule leaves out the first prediction that an engine makes of an answer (sgl-project/SpecForge#885)."""
    from eaglelab.checks.text import first_token
    from eaglelab.opened import NotGiven

    try:
        numbers = next(iter(first_token(inv))).numbers
    except (NotGiven, ValueError):
        return False
    return numbers.get("framework") is not None and min((numbers.get("first_trained") or {"": 0}).values()) > 2


def steps(inv: Investigation) -> Iterator[Finding]:
    """Conditional acceptance by step, and whether it collapses after step 0."""
    if (said := working_drafter(inv, "lost.steps", "At which step it loses acceptance")) is not None:
        yield said
        return
    rows = inv.lost.rows
    asked, right = rows.by_sample(rows.reached), rows.by_sample(rows.joint)  # [K, S]
    table = []
    for k, (a, r) in enumerate(zip(asked, right, strict=True)):
        low, high = ratio_interval(r[a > 0], a[a > 0])
        rate = r.sum() / a.sum() if a.sum() else None
        table.append({"step": k, "n": int(a.sum()), "conditional": rate, "low": low, "high": min(high, 1.0), "samples": int((a > 0).sum())})
    known = [row for row in table if row["conditional"] is not None]
    first = known[0]
    fallen = [s for s in known[1:] if s["samples"] >= FEW_SAMPLES and s["high"] < COLLAPSE * first["low"]]
    listed = ", ".join(f"{row['conditional']:.1%}" for row in known)
    numbers: dict[str, Any] = {"steps": table, "collapse": bool(fallen)}
    evidence = "Of the chains that come to a step, so many are right there (conditional): "
    evidence += (
        "; ".join(f"step {s['step']}: {s['conditional']:.1%} ({s['low']:.1%} to {s['high']:.1%}, n = {s['n']:,})" for s in known) + "."
    )
    if not fallen:
        which = f"No step collapses: right in {listed} of the chains that come to steps 0 to {known[-1]['step']} (conditional)"
        title = which if len(known) > 1 else f"One drafted step has none after it that could collapse; it is right {listed} of the time"
        yield Finding("lost.steps", title, Status.PASS, evidence=evidence, numbers=numbers)
        return
    step = fallen[0]
    other = _other_recurrence(inv, step["step"])
    yield Finding(
        id="lost.steps",
        title=f"Acceptance collapses at step {step['step']}: right in {listed} of the chains that come to steps 0 to {known[-1]['step']} (conditional)",
        status=Status.FAIL if other else Status.CANNOT_TELL,
        claim="A drafter trained on its own drafts is about as often right at each step that it comes to.",
        evidence=evidence
        + (
            f" Where {other}, step {step['step']} is right in {inv.fitting_choice.counts.conditional(step['step']):.1%}, and the drafter fits that better "
            "beyond chance (replay.choices)."
            if other
            else " No other recurrence mends it, so that training on a single step is the likelier reason."
        ),
        numbers={**numbers, "fits_better": other},
        next="See replay.choices for the key to change, and ask its trainer: a drafter that never saw its own drafts can gain by it too, and then wants "
        "training on more steps."
        if other
        else f"Was it trained on more than {step['step']} step(s) of its own drafts? If not, train it so, or serve it with "
        f"`--speculative-num-steps {step['step']}`.",
    )


def _other_recurrence(inv: Investigation, step: int) -> str:
    """The choice of replay.choices that changes what a step hands to the next, fits better and mends the step; "" where none does. One that
    is better alone does not: a drafter that never saw its own state guesses a little better from either."""
    best = inv.fitting_choice
    if "next step" not in best.variant.name:
        return ""
    first, then = best.counts.conditional(0), best.counts.conditional(step)
    return best.variant.name if then is not None and then >= COLLAPSE * first else ""


def confidence(inv: Investigation) -> Iterator[Finding]:
    """The drafter's probability of its own token beside being right, and what a threshold would save."""
    if (said := working_drafter(inv, "lost.confidence", "What its confidence tells")) is not None:
        yield said
        return
    from eaglelab.lost import confidence as look

    table, saving = look.reliability(inv.lost.rows), look.thresholds(inv.lost.rows)
    off, free = look.off_by(table), saving[saving["kept"] >= KEPT].iloc[-1]
    worth = (
        f"Stopping a draft below {free['threshold']:g} would save {free['saved']:.0%} of the drafted tokens and keep {free['kept']:.1%} of the accept length"
        if free["saved"] >= MATTERS
        else f"No threshold saves drafted tokens for less than {1 - KEPT:.0%} of the accept length"
    )
    yield Finding(
        id="lost.confidence",
        title=f"The drafter's confidence is off by {off:.1%} on average (over bins, against the share right). {worth}",
        status=Status.PASS,
        evidence=f"{int(table['n'].sum()):,} drafted tokens that a chain comes to, in {inv.sampled}, in {len(table)} bins of confidence: "
        f"of the least sure ({table['confidence'].iloc[0]:.0%}) {table['right'].iloc[0]:.0%} are right, of the surest ({table['confidence'].iloc[-1]:.0%}) "
        f"{table['right'].iloc[-1]:.0%}.",
        numbers={"bins": table.to_dict(orient="records"), "thresholds": saving.to_dict(orient="records"), "off_by": off},
    )


def tokens(inv: Investigation) -> Iterator[Finding]:
    """The tokens at which the walk stops most, in their text."""
    if (said := working_drafter(inv, "lost.tokens", "Which tokens cost most")) is not None:
        yield said
        return
    table, walk = inv.lost.costly, inv.own_replay.walk
    if table.empty:
        need_masks(inv)
        raise ValueError("the walk stops at no token: no answer of these samples is long enough")
    named = few([f"“{r.token}” ({r.saved:,} passes, “{r.drafted}” drafted {r.times} of {r.stops} times)" for r in table.itertuples()], MOST)
    share = table["saved"].sum() / walk.verify_steps
    yield Finding(
        id="lost.tokens",
        title=f"The costliest tokens: {', '.join(f'“{t}”' for t in table['token'][:MOST])} cost up to {table['saved'].iloc[0]:,} of {walk.verify_steps:,} verify passes each",
        status=Status.PASS,
        evidence=f"Passes that the walk would not need, were the token always right: {named}. The {len(table)} costliest stand for {share:.0%} of the "
        f"passes at most ({inv.sampled}{'' if inv.own_replay.judged_by == JUDGED else ', judged by the text'}).",
        numbers={"tokens": table.to_dict(orient="records"), "verify_steps": walk.verify_steps},
    )
