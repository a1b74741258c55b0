"""The drafter run alone: does it work on its own data, on which feed, and what does the engine's feed cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglelab.acceptance import FEW_SAMPLES, StepCounts, ratio_interval
from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.opened import DUMP
from eaglelab.wiring import boundary_name

if TYPE_CHECKING:
    from eaglelab.replay import Ranking, Replay
    from eaglelab.replay.tree import TreeReplay
    from eaglelab.served import ServedCounts

SPLITS = {
    None: "Whether the drafter was trained on these samples is not said (`[dump] split`).",
    "train": "The drafter was trained on these samples.",
    "heldout": "These samples were held out from the drafter's training.",
}
JUDGED = "the target's argmax"
WEAK = 0.2
"""Step-0 acceptance below which a drafter is not said to work: public drafters are at 0.6 to 0.8, this one would gain next to nothing."""
HARDLY = 0.05
"""A place whose zeroing costs less than this share of the drafter's step-0 acceptance (upper bound of the interval) is hardly used."""
READ_MORE = "Read more samples: `--max-samples`, or dump more."
OWN_TEXT = 0.9
"""Share of trained text that must be the target's own choice before the walk predicts an engine."""


def ready_to_replay(inv: Investigation) -> None:
    """Raise the reason why nothing can be replayed, the cheapest first."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    inv.drafter  # noqa: B018 - raises its own reasons
    inv.check_feed()
    from eaglelab.replay.answers import trained_positions

    if not any(bool(trained_positions(s)[1:].any()) for s in inv.samples):
        raise ValueError(
            f"no token trains in the {len(inv.samples)} samples read: the loss mask is all zeros; mend it, or read more samples"
        )
    if inv.embedding is None:
        inv._rows()


def length_words(counts: StepCounts | ServedCounts) -> str:
    """The accept length for a sentence: "1.83", or "not known" where no row has all steps."""
    return "not known" if counts.accept_length is None else f"{counts.accept_length:.2f}"


def works(inv: Investigation) -> Iterator[Finding]:
    """Acceptance on the dump's own feed, against the best constant guess."""
    ready_to_replay(inv)
    own = inv.own_replay
    counts = own.counts
    from eaglelab.replay import sample_interval

    low, high = sample_interval(own)
    chance = inv.constant_guess
    few = len(inv.samples) < FEW_SAMPLES
    good, bad = not few and low > max(WEAK, 2 * chance), not few and high <= 2 * chance
    yield Finding(
        id="replay.works",
        title=f"On its own the drafter is right {counts.marginal(0):.1%} of the time at step 0 on the dump's feed",
        status=Status.PASS if good else Status.FAIL if bad else Status.CANNOT_TELL,
        claim=SPLITS[inv.case.dump.split],
        evidence=f"{counts.right[0]:,} of {counts.counted[0]:,} tokens in {inv.sampled} ({_interval(low, high)}), "
        f"judged by {own.judged_by}. Always saying the commonest token would be right {chance:.1%} of the time. "
        f"{counts.out_of_vocabulary[0] / counts.counted[0]:.1%} of the right tokens are outside the draft vocabulary."
        + ("" if own.mask_known else " The loss mask is unknown: all positions count.")
        + f" {inv.drafter.config.note}".rstrip(),
        numbers={"interval": [low, high], "constant_guess": chance, **own.to_json()},
        next=""
        if good
        else "Training did not take, or this is not the dump (or feed) that it was trained on, or not with this config and map: see "
        "replay.order and replay.choices."
        if bad
        else f"{len(inv.samples)} samples say little about the next: read more of them."
        if few
        else "Above guessing, and far below what trained drafters reach: train longer, or check that this is its dump and feed.",
    )


def order(inv: Investigation) -> Iterator[Finding]:
    """Every ordered choice of slots and the embedding, ranked on the same tokens."""
    ready_to_replay(inv)
    ranking, finalists = inv.replays
    names = ranking.table["variant"].tolist()
    tied = [n for n, t in zip(names, ranking.table["tied"], strict=True) if t]
    fits = 0 in ranking.tied
    if ranking.note or len(tied) == len(names) > 1:
        why = ranking.note or f"none of the {len(names)} feeds is told from the best by {len(inv.replay_samples)} samples"
        status, title = Status.CANNOT_TELL, f"Which order of slots the drafter fits cannot be told: {why}"
    elif fits:
        others = [n for n in tied if n != "the dump's feed"]
        first = names[0] == "the dump's feed"
        title = "No order of slots fits the drafter better than the dump's own" + ("" if first else " beyond doubt")
        title += f"; {len(others)} cannot be told from it" if others else ""
        title += "" if first else f", and {names[0].removeprefix('feed ')} is ahead"
        status = Status.PASS
    else:
        status, title = Status.FAIL, f"The drafter fits another feed better than the dump's: {names[0]}"
    listed = few([n.removeprefix("feed ") for n in tied], 4, "; ")
    yield Finding(
        id="replay.order",
        title=title,
        status=status,
        claim=f"The dump's feed: slots {list(inv.dump.feed.aux)} in this order.",
        evidence=f"{len(names)} feeds ({ranking.compared}, and the embedding put in) over {inv.sampled}; paired differences resampled by sample, corrected "
        f"for all pairs.{_left(ranking)} Best: {names[0]} ({ranking.table['acceptance'].iloc[0]:.1%}). Cannot be told from the best: {listed}.",
        numbers={
            "ranking": ranking.table.head(12).to_dict(orient="records"),
            "variants": len(names),
            "finalists": [r.to_json() for r in finalists],
        },
        next="Set `[dump] feed` to the order that fits, or have the trainer read the slots as the engine feeds them."
        if status is Status.FAIL
        else "",
    )


def engine_feed(inv: Investigation) -> Iterator[Finding]:
    """The replay on what the engine feeds, beside the dump's feed: the accuracy under both wirings."""
    ready_to_replay(inv)
    if inv.engine_wiring is None:  # raises where engine or config cannot be understood
        raise NotGiven("the engine's wiring", "`[engine] name` and `version`, `[drafter] path` and `[target] config` say what is fed")
    fed = inv.engine_wiring.wiring
    variant = inv.feeds.engine
    if not inv.engine_wiring.captures_boundaries:
        title = f"{inv.engine.title} captures this target's layers without the residual: such states are not in the dump"
        yield Finding("replay.engine", title, Status.CANNOT_TELL, next="See wiring.engine.")
        return
    if variant is None:
        yield Finding(
            "replay.engine",
            f"The replay cannot show {inv.engine.title}'s feed {fed}: {inv.feeds.engine_reason}",
            Status.CANNOT_TELL,
            next="States that are not in the dump cannot be replayed: what the wrong ids cost shows when they are mended (wiring.match names them)."
            if inv.dump_wiring.known
            else "Give the target or a sketch, so that the slots get their boundaries.",
        )
        return
    if variant.feed == inv.feeds.dump.feed:
        yield Finding(
            "replay.engine", f"{inv.engine.title} feeds what the drafter was replayed on", Status.PASS, numbers={"feed": list(variant.feed)}
        )
        return
    own, served = inv.own_replay, inv.replay_named("the engine's feed")
    gap, low, high = _difference(own, served)
    a, b = own.counts, served.counts
    yield Finding(
        id="replay.engine",
        title=f"Fed as by {inv.engine.title}, step-0 acceptance is {b.marginal(0):.1%} instead of {a.marginal(0):.1%}, "
        f"accept length {_reached(served)} instead of {_reached(own)}",
        status=Status.CANNOT_TELL
        if len(inv.samples) < FEW_SAMPLES
        else Status.FAIL
        if low > 0
        else Status.PASS
        if high < 0
        else Status.CANNOT_TELL,
        claim=f"{inv.engine.title} feeds {fed}; in the replay: {', '.join(_source_name(inv, s) for s in variant.feed)} ({inv.feeds.engine_reason}).",
        evidence=f"Difference {gap:.1%} ({_interval(low, high)}) over {a.counted[0]:,} tokens in {inv.sampled}.",
        numbers={"difference": gap, "interval": [low, high], "dump_feed": own.to_json(), "engine_feed": served.to_json()},
        next="Make the engine feed what the drafter was trained on: see wiring.match."
        if low > 0
        else "The engine's feed fits better than the dump's: `[dump] feed` names the slots in another order than the drafter was trained on."
        if high < 0
        else "The replay does not tell these two feeds apart: the slots that differ may hardly be used (replay.slots), or more samples tell.",
    )


def _left(ranking: Ranking) -> str:
    return (
        f" {ranking.left} of them were far behind on the first third of each answer and were not run on the rest." if ranking.left else ""
    )


def choices(inv: Investigation) -> Iterator[Finding]:
    """Token shift, flags, lm_head and vocabulary map the other way, ranked by accept length: does one of them fit better?"""
    ready_to_replay(inv)
    from eaglelab.replay.variants import mend

    base, others = inv.other_choices
    every, ranking = [base, *others], inv.choice_ranking
    rows = dict(zip(ranking.order, ranking.table.itertuples(), strict=True))
    # What is no better than guessing fits nothing, though it may be ahead.
    worth = [r.counts.accept_length or 1 + (r.counts.marginal(0) or 0.0) for r in every]
    floor = 1 + 2 * inv.constant_guess
    better = [] if 0 in ranking.tied else [i for i in ranking.order if i in ranking.tied and worth[i] > floor]
    tied = [every[i].variant.name for i in ranking.tied if i and 0 in ranking.tied]
    unsure = ranking.note or ("the drafter is hardly ever right" if worth[0] <= floor and not better else "")
    if not unsure and len(tied) == len(others):
        unsure = "all of them fit alike"
    if better:
        title = f"The drafter fits better with: {', '.join(every[i].variant.name for i in better)}; by "
        title += _tokens(rows[0].behind, rows[0].low, rows[0].high)
    elif unsure:
        title = f"Whether another choice of the trainer fits better cannot be told: {unsure}"
    else:
        title = "No other choice of trainer or engine fits the drafter better than its config"
        title += f"; not told from it: {', '.join(tied)}" if tied else ""
    listed = "; ".join(f"{r.variant.name}: {length_words(r.counts)}" for r in others)
    yield Finding(
        id="replay.choices",
        title=title,
        status=Status.FAIL if better else Status.CANNOT_TELL if unsure else Status.PASS,
        claim="The config's flags are those that it was trained with.",
        evidence=f"Accept length over all rows, as the config says: {length_words(base.counts)}. One by one the other way: {listed}. Paired differences resampled by "
        f"sample, corrected for all pairs of {len(every)}.{_left(ranking)}",
        numbers={"base": base.to_json(), "others": [r.to_json() for r in others], "ranking": ranking.table.to_dict(orient="records")},
        next=" Or: ".join(dict.fromkeys(mend(every[i].variant, inv.drafter.config) for i in better))
        if better
        else READ_MORE
        if unsure
        else "",
    )
    yield from _norm_output(inv)


def _norm_output(inv: Investigation) -> Iterator[Finding]:
    """`norm_output` is the norm before lm_head to SpecForge, and the next step's start to everybody else: which meaning fits its drafter?"""
    stated = inv.draft_config.get("norm_output")
    if stated is None or inv.drafter.config.norm_output_meaning != "logits":
        return
    from eaglelab.drafter.model import Flags
    from eaglelab.replay.variants import differences

    base, others = inv.other_choices
    turn = "post_norm_recurrence" if stated else "skip_final_norm"  # in what the two meanings differ
    own = Flags.of(inv.drafter.config)
    other = next(r for r in others if r.variant.flags is not None and [*differences(own, r.variant.flags)] == [turn])
    gap, low, high = _by_length(base, other)
    fits = "SpecForge reads it" if low > 0 else "the engines read it" if high < 0 else ""
    engine = inv.computed_flags
    computes = "" if engine is None else "SpecForge reads it" if getattr(engine, turn) == getattr(own, turn) else "the engines read it"
    wrong = bool(fits and computes) and fits != computes
    remedy = "Remove norm_output from the config that is served." if stated else "No engine serves this: train again with the norm."
    yield Finding(
        id="replay.norm_output",
        title=(f"norm_output = {str(bool(stated)).lower()} fits as {fits}" if fits else "Which meaning of norm_output fits cannot be told")
        + (f"; {inv.engine.title} computes it as {computes}" if computes else ""),
        status=Status.FAIL if wrong else Status.PASS if fits else Status.CANNOT_TELL,
        claim="To SpecForge norm_output is the norm before lm_head, to speculators, vLLM and SGLang the state that the next step starts from.",
        evidence=f"Accept length as SpecForge reads it {length_words(base.counts)}, as the engines do {length_words(other.counts)}: {_tokens(gap, low, high)}.",
        numbers={"difference": gap, "interval": [low, high], "fits": fits, "engine_computes": computes},
        next=remedy if wrong else "",
    )


def flags(inv: Investigation) -> Iterator[Finding]:
    """What the engine makes of the config's flags, beside the flags that the drafter fits: what that costs."""
    ready_to_replay(inv)
    if inv.engine_flags is None:
        raise NotGiven("the engine", "`[engine] name` and `version` say which flags of the config are read")
    from eaglelab.drafter.model import Flags
    from eaglelab.replay.variants import differences

    fits, own = inv.fitting_choice, Flags.of(inv.drafter.config)
    trained = fits.variant.flags or own
    does = differences(trained, inv.engine_flags)
    if not does:
        yield Finding("replay.flags", f"{inv.engine.title} computes what the drafter fits", Status.PASS, numbers={"differences": []})
        return
    base, others = inv.other_choices
    served = next((r for r in others if r.variant.flags == inv.engine_flags), base)
    gap, low, high = _by_length(fits, served)
    alone = [(does[turn], r) for r in others if r.variant.flags for turn in does if [*differences(trained, r.variant.flags)] == [turn]]
    apart = "; ".join(f"{what}: {length_words(r.counts)}" for what, r in alone) if len(does) > 1 else ""
    few = len(inv.samples) < FEW_SAMPLES
    hurts, harmless = not few and low > 0, not few and high < HARDLY * ((fits.counts.accept_length or 1.0) - 1.0)
    yield Finding(
        id="replay.flags",
        title=f"{inv.engine.title} {' and '.join(does.values())}: "
        + (
            f"that costs {_tokens(gap, low, high)}"
            if hurts
            else f"no cost, {_tokens(gap, low, high)}"
            if harmless
            else "what that costs cannot be told"
        ),
        status=Status.FAIL if hurts else Status.PASS if harmless else Status.CANNOT_TELL,
        claim=f"The drafter fits {fits.variant.name if fits is not base else 'the flags of its config'}.",
        evidence=f"Accept length {length_words(served.counts)} instead of {length_words(fits.counts)}, step-0 acceptance {_share(served)} instead of {_share(fits)} "
        f"in {inv.sampled}." + (f" One by one: {apart}." if apart else ""),
        numbers={"differences": list(does), "difference": gap, "interval": [low, high], "engine": served.to_json()},
        next="Serve with an engine that honours it (see config.*), or train as this one computes."
        if hurts
        else ""
        if harmless
        else READ_MORE,
    )


def targets(inv: Investigation) -> Iterator[Finding]:
    """Judged by the target's own choice, and by what a trainer takes for it that norms the last state once too often, or not at all."""
    ready_to_replay(inv)
    if inv.dump.feed.last is None:
        raise NotGiven("a last state", "dump it as well: without it there are no targets to judge by")
    own, other, (same, of) = inv.both_targets
    gap, low, high = _difference(own, other)
    wrong = "normed twice" if inv.last_state.normed else "never normed"
    few, alike = len(own.outcomes) < FEW_SAMPLES, same == of
    trained = (
        "" if inv.trainer is None else f" {inv.trainer.title} {'norms' if inv.trainer_norms else 'does not norm'} the last slot itself."
    )
    if alike:
        status, title = Status.PASS, f"Targets that are {wrong} would name the same tokens: the norm decides nothing here"
    elif few or low <= 0 <= high:
        status, title = Status.CANNOT_TELL, f"Whether the drafter learned targets that were {wrong} cannot be told"
    elif low > 0:
        status, title = Status.PASS, "The drafter learned the target's own choice" + f", not targets that were {wrong}"
    else:
        status, title = Status.FAIL, f"The drafter fits targets that were {wrong} better than the target's own choice"
    yield Finding(
        id="replay.targets",
        title=title,
        status=status,
        claim=f"The drafter was trained to say what the target says.{trained}",
        evidence=f"The argmax of targets {wrong} is the target's own choice at {same:,} of {of:,} trained tokens. Step-0 acceptance of the drafter: "
        f"{_share(own)} judged by the target's own choice, {_share(other)} by targets {wrong}; difference {gap:.1%} ({_interval(low, high)}) in "
        f"{len(own.outcomes)} samples. Accept length {length_words(own.counts)} and {length_words(other.counts)}.",
        numbers={"same": [same, of], "difference": gap, "interval": [low, high], "own": own.to_json(), "other": other.to_json()},
        next="Mend what config.final_norm or dump.last_state names, and train again."
        if status is Status.FAIL
        else READ_MORE
        if status is Status.CANNOT_TELL
        else "",
    )


def _difference(better: Replay, worse: Replay, step: int | None = 0) -> tuple[float, float, float]:
    """`eaglelab.replay.difference`, imported when there is something to compare: it brings torch."""
    from eaglelab.replay import difference

    return difference(better, worse, step)


def _by_length(better: Replay, worse: Replay) -> tuple[float, float, float]:
    """The paired difference in accept length; in step-0 acceptance where no row has all steps."""
    return _difference(better, worse, step=None if better.counts.complete else 0)


def _tokens(gap: float, low: float, high: float) -> str:
    return f"{gap:.2f} of accept length (95 % interval by sample {low:.2f} to {high:.2f})"


def _share(result: Replay) -> str:
    rate = result.counts.marginal(0)
    return "not known" if rate is None else f"{rate:.1%}"


def slots(inv: Investigation) -> Iterator[Finding]:
    """Each slot's share of the fused input, and what zeroing it or moving it by a row costs."""
    ready_to_replay(inv)
    base, changed = inv.places
    count = len(base.variant.feed)
    rows = []
    for place in range(count):
        zeroed, late = changed[place], changed[count + place]
        cost, low, high = _difference(base, zeroed)
        rows.append(
            {
                "place": place,
                "slot": base.variant.feed[place],
                "share": base.shares[place],
                "zeroed_costs": cost,
                "low": low,
                "high": high,
                "one_row_late_costs": _difference(base, late)[0],
            }
        )
    little = HARDLY * (base.counts.marginal(0) or 0.0)
    unused = [r for r in rows if r["high"] < little]
    open_ = [r for r in rows if r["low"] <= 0 and r not in unused]
    yield Finding(
        id="replay.slots",
        title=f"The drafter hardly uses {_slots(inv, unused)}: no replay can tell what is in it"
        if unused
        else f"Whether the drafter uses {_slots(inv, open_)} cannot be told from {inv.sampled}"
        if open_
        else "The drafter uses every slot that it is fed",
        status=Status.CANNOT_TELL if open_ and not unused else Status.PASS,
        claim="",
        evidence=" ".join(
            f"Slot {r['slot']}: {r['share']:.0%} of the fused input, zeroing it costs {r['zeroed_costs']:.1%} ({_interval(r['low'], r['high'])}), "
            f"one row late {r['one_row_late_costs']:.1%}."
            for r in rows
        ),
        numbers={"places": rows, "hardly_used": [r["slot"] for r in unused]},
        next="Where the identity of such a slot matters, compare values: a sketch or a forward of the target." if unused else "",
    )


def _slots(inv: Investigation, rows: list[dict]) -> str:
    """`slot 0 (boundary 3), slot 2`."""
    wiring = inv.dump_wiring
    names = [wiring[r["slot"]] for r in rows]
    return ", ".join(
        f"slot {r['slot']}" + ("" if b is None else f" (boundary {boundary_name(b)})") for r, b in zip(rows, names, strict=True)
    )


def _interval(low: float, high: float) -> str:
    if not math.isfinite(high - low) or (low, high) == (0.0, 1.0):
        return "no interval from one sample"
    return f"95 % interval by sample {low:.1%} to {high:.1%}"


def expected(inv: Investigation) -> Iterator[Finding]:
    """The accept length that this drafter should reach, and what an engine's counters should say on this text."""
    ready_to_replay(inv)
    own = inv.own_replay
    counts, walk, steps = own.counts, own.walk, own.steps
    if counts.accept_length is None:
        title = "No answer in the samples is long enough for all steps"
        yield Finding("replay.expected", title, Status.CANNOT_TELL, next="Replay fewer steps.")
        return
    doubt = _no_prediction(own)
    agree, n = own.text_agreement
    per_step = ", ".join(f"step {k} {counts.joint_rate(k):.1%}" for k in range(steps))
    numbers = {"accept_length": counts.accept_length, "walk": walk.to_json() if walk else None, "steps": steps}
    numbers["text_agreement"] = agree / n if n and own.judged_by == JUDGED else None
    evidence = f"Mean over all {counts.complete:,} start rows {counts.accept_length:.2f} (joint acceptance: {per_step}). "
    if doubt:
        title = (
            f"The accept length on a server cannot be predicted from this text; over all rows of it the mean is {counts.accept_length:.2f}"
        )
        evidence += f"No prediction of an engine's counters: {doubt}."
        todo = "Dump the target's own greedy answers, with their loss mask, and give `[target] path` so that its own choice is the judge."
    else:
        low, high = ratio_interval([sum(o.walk) for o in own.outcomes], [len(o.walk) for o in own.outcomes])
        tree, no_tree = _tree(inv)
        title = (
            f"With {steps} drafted step{'s' if steps != 1 else ''}{' as a chain' if tree or no_tree else ''} this drafter should reach an accept "
            f"length of {walk.accept_length:.2f}"
        )
        if tree is not None:
            title = (
                f"With a tree of {tree.steps} steps, top-k {tree.topk} and {tree.num_draft_tokens} draft tokens this drafter should reach an accept "
                f"length of {tree.accept_length:.2f}; a chain of as many steps {walk.accept_length:.2f}"
            )
            numbers["tree"] = {"accept_length": tree.accept_length, "topk": tree.topk, "num_draft_tokens": tree.num_draft_tokens}
        elif no_tree:
            title += f"; the launch line's tree cannot be replayed: {no_tree}"
        evidence += "As a chain: " if tree is not None else ""
        evidence += (
            f"A greedy engine walking through this text would count {walk.accepted:,} accepted tokens in {walk.verify_steps:,} verify steps; "
            f"on other text like it, {1 + low:.2f} to {1 + high:.2f} (95 % by sample). {agree / n:.1%} of the text is the target's own choice."
        )
        numbers["interval"] = [1 + low, 1 + high]
        todo = "Compare it with the server's `accept len` on the same prompts: below it, the engine feeds or computes something else."
    claim = "Accept length: tokens per verify pass, the bonus token included."
    yield Finding("replay.expected", title, Status.CANNOT_TELL if doubt else Status.PASS, claim, evidence, numbers, todo)


def _tree(inv: Investigation) -> tuple[TreeReplay | None, str]:
    """The launch line's own tree drafted along the answers, where it asks for one; else why it cannot be."""
    try:
        tree = inv.tree_replay()
    except (NotGiven, ValueError) as reason:
        return None, str(reason).splitlines()[0]
    return (None, "") if tree is None else (tree, "") if tree.accept_length is not None else (None, "no answer is long enough")


def _no_prediction(own: Replay) -> str:
    """Why the walk predicts no engine's counters; "" where it does."""
    agree, n = own.text_agreement
    if own.walk is None:
        return "the loss mask is unknown"
    if not own.walk.verify_steps:
        return "no answer is as long as a whole step"
    if own.judged_by != JUDGED:
        return "without the target's lm_head it is not known whether the text is its own; the text's token counts as right"
    return "" if agree >= OWN_TEXT * n else f"only {agree / n:.0%} of the text is the target's own choice"


def sampling(inv: Investigation) -> Iterator[Finding]:
    """Acceptance when the server samples instead of taking the likeliest token."""
    ready_to_replay(inv)
    own = inv.own_replay
    if own.judged_by != JUDGED:
        raise NotGiven("the target's lm_head", "`[target] path` names the target's checkpoint: its probabilities come from the last state")
    first, greedy = own.sampling[0], own.counts.marginal(0)
    if greedy is None:
        yield Finding("replay.sampling", "No trained token to judge sampling by", Status.CANNOT_TELL, next="Read more samples.")
        return
    yield Finding(
        id="replay.sampling",
        title=f"At temperature 1 step-0 acceptance is {first['p_drafted']:.1%} with greedy drafts, {first['overlap']:.1%} with rejection sampling",
        status=Status.PASS,
        claim=f"Greedy acceptance at step 0 is {greedy:.1%}; a server that samples accepts by probability.",
        evidence=f"Mean over {first['n']:,} tokens in {inv.sampled}: the target's probability of the drafted token (SGLang's target-only rule), and "
        "the sum over tokens of min(target, drafter) (rejection sampling). Temperature 1, no top-p or top-k.",
        numbers={"steps": own.sampling, "greedy": greedy},
    )


def _reached(result: Replay) -> str:
    """The accept length that an engine would count on this text (the walk); the mean over all rows where there is no walk."""
    walk = result.walk
    if walk is not None and walk.verify_steps:
        return f"{walk.accept_length:.2f}"
    return length_words(result.counts) + (" (mean over all rows)" if result.counts.complete else "")


def _source_name(inv: Investigation, source: int | str) -> str:
    """`slot 0`, `embedding`, or the name of a state that is not the dump's."""
    if isinstance(source, str):
        return source
    return f"slot {source}" if source < len(inv.samples[0].slots) else inv.replay_samples[0].slot_names[source]
