"""The draft vocabulary: is its map sound, what can it say of what the target says, and is it the map that the drafter was trained with?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import FEW_SAMPLES
from eaglelab.checks.weights import DRAFTER, engines_of
from eaglelab.engines.loading import consequences
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.opened import relative_to_case

if TYPE_CHECKING:
    from eaglelab.drafter.vocabulary import Coverage, VocabularyMap

CLAIM = "d2t holds offsets: target id = draft id + d2t[draft id]."
LOW = 0.75
"""Coverage under which the vocabulary itself is called a fault: each fourth draft fails before the drafter is asked. A convention."""
SHOWN = 10  # uncovered tokens that are named


def vocabulary_map(inv: Investigation) -> Iterator[Finding]:
    """d2t by itself and against t2d: offsets, in range, in order, no token twice."""
    held, config = _own_map(inv), inv.drafter_config
    vd, v = config.draft_vocab_size, config.vocab_size
    numbers: dict[str, Any] = {"draft_vocab_size": vd, "vocab_size": v}
    if held is None or held.d2t is None:
        yield _without_d2t(inv, held, numbers)
        return
    from eaglelab.drafter.vocabulary import audit_map

    faults = audit_map(held, vd, v)
    worst = next((s for s in ("fail", "cannot_tell") if any(f.status == s for f in faults)), "pass")
    ids = held.ids
    numbers |= {
        "ascending": bool((ids.diff() > 0).all()),
        "identity": not bool(held.d2t.long().any()),
        "faults": [{"kind": f.kind, "status": f.status, "text": f.text} for f in faults],
        "t2d": "agrees" if held.t2d is not None and not faults else "not stored" if held.t2d is None else "see faults",
    }
    sound = (
        f"The draft vocabulary's map is sound; {vd:,} of {v:,} tokens"
        if vd < v
        else "The drafter speaks the target's whole vocabulary, and its map says so"
    )
    first = next((f for f in faults if f.status == worst), None)
    agrees = " t2d marks the same tokens." if held.t2d is not None and not faults else ""
    yield Finding(
        id="drafter.vocabulary",
        title=sound if first is None else f"The draft vocabulary's map is {'wrong' if worst == 'fail' else 'odd'}: {first.text}",
        status=Status(worst),
        claim=CLAIM,
        evidence=(". ".join(f.text for f in faults) + "." if faults else f"Target ids ascend and are in range.{agrees}"),
        numbers=numbers,
        next={
            "fail": "Export d2t from the training run again: with this one an engine turns drafted ids into other tokens.",
            "cannot_tell": "Compare it with the map of the training run: `[drafter] vocabulary` names that file.",
            "pass": "",
        }[worst],
    )


def _without_d2t(inv: Investigation, held: VocabularyMap | None, numbers: dict[str, Any]) -> Finding:
    vd, v = numbers["draft_vocab_size"], numbers["vocab_size"]
    if vd == v:
        return Finding(
            "drafter.vocabulary",
            "The drafter speaks the target's whole vocabulary: no map is needed",
            Status.NOT_APPLICABLE,
            numbers=numbers,
        )
    does = consequences(engines_of(inv), "missing", "d2t", inv.drafter_config.layer_type)
    from_t2d = held is not None and held.ids is not None and len(held.ids) == vd
    return Finding(
        id="drafter.vocabulary",
        title=f"There is no d2t: what the {vd:,} draft ids stand for among {v:,} tokens is not said",
        status=Status.FAIL,
        claim=CLAIM,
        evidence="No d2t in the checkpoint." + "".join(f" {c.engine} {c.text}." for c in does),
        numbers=numbers | {"kind": "absent", "t2d": "stored" if held is not None else "not stored"},
        next="t2d is there: d2t is nonzero(t2d) minus arange; write it into the checkpoint."
        if from_t2d
        else "Export d2t from the training run.",
    )


def _own_map(inv: Investigation) -> VocabularyMap | None:
    if inv.case.drafter.path is None:
        raise NotGiven("a drafter", DRAFTER)
    from eaglelab.drafter.vocabulary import read_map

    absent = inv.audit.absent_shards  # raises where there are no weights at all
    held = read_map(inv.case.drafter.path)
    if absent and (held is None or held.d2t is None):
        raise ValueError(f"no d2t in the files that are there, and {', '.join(absent)} is not; copy or download it")
    return held


def _own_ids(inv: Investigation) -> Any:
    """[Vd] the target ids of the draft ids as an engine takes them. Raises NotGiven where the whole vocabulary is spoken."""
    import torch

    config = inv.drafter_config
    if config.draft_vocab_size == config.vocab_size:
        return None
    held = _own_map(inv)
    return torch.arange(config.draft_vocab_size) if held is None or held.d2t is None else held.ids


def vocabulary_coverage(inv: Investigation) -> Iterator[Finding]:
    """How much of what the target says can be drafted at all: a bound on acceptance that no training lifts."""
    if inv.case.drafter.path is None:
        raise NotGiven("a drafter", DRAFTER)
    samples, ids = inv.samples, _own_ids(inv)
    if ids is None:
        yield Finding("drafter.vocabulary.coverage", "The drafter can say every token of the target", Status.NOT_APPLICABLE)
        return
    from eaglelab.drafter.vocabulary import coverage
    from eaglelab.replay.answers import trained_positions

    steps = inv.steps
    answers = inv.judge.answers(samples)
    got = coverage(ids, [a.token[trained_positions(s)] for s, a in zip(samples, answers, strict=True)], steps)
    n = sum(got.said)
    if not n:
        raise ValueError("no trained token in the samples: nothing was said that the vocabulary could be held against")
    by = "the target's own choices" if inv.judge.head is not None else "the text's tokens"
    low, surely = got.share < LOW, _surely_below(got.shares, LOW)
    uncovered = [{"token": t, "text": text, "count": c} for (t, c), text in zip(got.uncovered[:SHOWN], _texts(inv, got), strict=True)]
    spread = f"; by sample {min(got.shares):.1%} to {max(got.shares):.1%} ({len(got.shares)} samples)" if len(got.shares) > 1 else ""
    bound = 1 + got.run / got.starts if got.starts else None
    counted = ", ".join(f"{u['text']} ({u['count']:,})" for u in uncovered)
    most = f" The most frequent of the others: {counted}." if uncovered else ""
    yield Finding(
        id="drafter.vocabulary.coverage",
        title=f"The draft vocabulary can say {got.share:.1%} of {by}"
        + (": whatever the drafter, no step is accepted more often" if low else ""),
        status=Status.FAIL if surely else Status.CANNOT_TELL if low else Status.PASS,
        claim=f"{inv.drafter_config.draft_vocab_size:,} of {inv.drafter_config.vocab_size:,} tokens are enough to draft with.",
        evidence=f"{sum(got.covered):,} of {n:,} tokens (by {by}){spread}. No acceptance of a step can be higher"
        + (f", and no accept length above {bound:.2f} at {steps} steps ({got.starts:,} start rows)" if bound else "")
        + f".{most}{_by_counts(inv, ids)}",
        numbers={
            "coverage": got.share,
            "covered": sum(got.covered),
            "tokens": n,
            "by_sample": [None if not m else c / m for c, m in zip(got.covered, got.said, strict=True)],
            "judged_by": inv.judge.judged_by,
            "steps": steps,
            "start_rows": got.starts,
            "accept_length_bound": bound,
            "uncovered": uncovered,
        },
        next="Choose the draft vocabulary by the counts of the target's own answers to such prompts, and train lm_head on it."
        if surely
        else f"Too few samples, or too different ones, to say it of the next: look at more than {len(got.shares)}."
        if low
        else "",
    )


def _by_counts(inv: Investigation, ids: Any) -> str:
    """What the token counts that speculators leaves beside the samples say of the same vocabulary."""
    import torch

    from eaglelab.drafter.vocabulary import read_counts

    name = next((n for n in inv.dump.stray if Path(n).name == "token_freq.pt"), None)
    counts = None if name is None else read_counts(inv.dump.root / name)  # [n, 2]
    if counts is None or not int(counts[:, 1].sum()):
        return ""
    covered = int(counts[torch.isin(counts[:, 0], ids), 1].sum())
    total = int(counts[:, 1].sum())
    return f" By the counts of {name} it covers {covered:,} of {total:,} training tokens ({covered / total:.1%})."


def _surely_below(shares: list[float], bound: float) -> bool:
    """Whether the mean over enough samples is below, by two standard errors: tokens of one sample are no independent draws."""
    return len(shares) >= FEW_SAMPLES and mean(shares) + 2 * stdev(shares) / len(shares) ** 0.5 < bound


def _texts(inv: Investigation, got: Coverage) -> list[str]:
    from eaglelab.text import token_texts

    try:
        tokenizer = inv.tokenizer
    except NotGiven:
        tokenizer = None
    return token_texts(tokenizer, [t for t, _ in got.uncovered[:SHOWN]])


def vocabulary_other(inv: Investigation) -> Iterator[Finding]:
    """The drafter's map against the one it was trained with, as far as a file of it is at hand."""
    mine = _own_map(inv)
    named, beside = inv.case.drafter.vocabulary, _beside_the_dump(inv)
    if named is None and not beside:
        raise NotGiven(
            "another map to compare with",
            "`[drafter] vocabulary` names the training run's: a checkpoint, vocab_mapping.pt, or d2t.npy; such files in the dump are found",
        )
    if mine is None or mine.ids is None:
        title = "The drafter stores no map to compare"
        yield Finding("drafter.vocabulary.other", title, Status.CANNOT_TELL, next="`drafter.vocabulary` says whether it needs one.")
        return
    for path in ([named] if named is not None else []) + beside:
        yield _compared(inv, mine, path, path == named)


def _beside_the_dump(inv: Investigation) -> list[Path]:
    """Map files that a trainer left among the samples; one of two arrays stands for both."""
    from eaglelab.drafter.vocabulary import MAP_FILES

    if inv.dump is None:
        return []
    found = [inv.dump.root / name for name in inv.dump.stray if Path(name).name in MAP_FILES]
    found += [inv.dump.root / name for name in ("d2t.npy", "t2d.npy") if (inv.dump.root / name).is_file()][:1]
    return list(dict.fromkeys(found))


def _compared(inv: Investigation, mine: VocabularyMap, path: Path, named: bool) -> Finding:
    from eaglelab.drafter.vocabulary import audit_map, compare_maps, read_map

    name = relative_to_case(inv.case, path)
    other = read_map(path)
    if other is None or other.ids is None:
        raise ValueError(f"{name} holds no d2t and no t2d; expected a checkpoint, SpecForge's vocab_mapping.pt, or d2t.npy")
    d = compare_maps(mine.ids, other.ids)
    same = not d.differ and d.sizes[0] == d.sizes[1]
    faults = [] if other.d2t is None else audit_map(other, len(other.d2t), inv.drafter_config.vocab_size)
    doubt = next((f.text for f in faults if f.status != "note"), None)
    if doubt is not None and not same:
        return Finding(
            id="drafter.vocabulary.other" if named else "drafter.vocabulary.other.dump",
            title=f"{name} is no sound map to compare with: {doubt}",
            status=Status.CANNOT_TELL,
            claim=f"The drafter was trained with the map of {name}.",
            evidence=". ".join(f.text for f in faults) + ".",
            numbers={"file": name, "sizes": list(d.sizes), "differ": d.differ, "faults": [f.kind for f in faults]},
            next="Find the map that the training run really used; do not write this one into the checkpoint.",
        )
    differs = (
        f"{d.differ:,} of {min(d.sizes):,} draft ids stand for another token" + (f", from draft id {d.first} on" if d.differ else "")
        if d.sizes[0] == d.sizes[1]
        else f"it has {d.sizes[1]:,} draft ids, the drafter's {d.sizes[0]:,}"
    )
    whose = "" if named else " (it lies in the dump)"
    fits = _fits(inv, other.ids) if not same and d.sizes[0] == d.sizes[1] else None
    if fits is not None:
        return _settled(fits, name, whose, differs, named)
    return Finding(
        id="drafter.vocabulary.other" if named else "drafter.vocabulary.other.dump",
        title=f"The drafter's map is the one of {name}{whose}" if same else f"The drafter's map is not the one of {name}{whose}: {differs}",
        status=Status.PASS if same else Status.FAIL if named else Status.CANNOT_TELL,
        claim=f"The drafter was trained with the map of {name}.",
        evidence=f"Compared draft id by draft id: {differs}. {d.only[0]:,} tokens only the drafter's can say, {d.only[1]:,} only the other's."
        + (
            "" if same else " Where the drafter was trained with the other map, an engine reads each such id as a token that was not meant."
        ),
        numbers={
            "file": name,
            "sizes": list(d.sizes),
            "differ": d.differ,
            "first": d.first,
            "only_mine": d.only[0],
            "only_other": d.only[1],
        },
        next=""
        if same
        else "One of the two is of another run: the replay would say which (it needs the dump and embedding rows). Until then write neither."
        if named
        else f"If the drafter was trained on this dump, its map should be this one: name {name} as `[drafter] vocabulary`, or take it away.",
    )


def _fits(inv: Investigation, ids: Any) -> tuple[float, float, float, float] | None:
    """Step-0 acceptance by the drafter's own map and by another, and the interval of the difference; None where no replay can be had."""
    from eaglelab.replay import difference

    if inv.dump is None:
        return None
    try:
        inv.check_feed()
        own, other = inv.own_replay, inv.with_map(ids)
    except (NotGiven, ValueError):  # no drafter that loads, no embedding rows: said elsewhere
        return None
    _, low, high = difference(own, other)
    return own.counts.marginal(0) or 0.0, other.counts.marginal(0) or 0.0, low, high


def _settled(fits: tuple[float, float, float, float], name: str, whose: str, differs: str, named: bool) -> Finding:
    mine, other, low, high = fits
    own, told = low > 0, low > 0 or high < 0
    both = f"{mine:.1%} by its own map against {other:.1%} by that of {name}{whose} at step 0"
    return Finding(
        id="drafter.vocabulary.other" if named else "drafter.vocabulary.other.dump",
        title=f"{name}{whose} is of another run: the drafter fits its own map, {mine:.1%} against {other:.1%} at step 0"
        if own
        else f"The drafter fits the map of {name}{whose}, {other:.1%} at step 0, not the one in its checkpoint, {mine:.1%}"
        if told
        else f"Which map the drafter was trained with cannot be told: {both}",
        status=Status.PASS if own else Status.FAIL if told else Status.CANNOT_TELL,
        claim=f"The drafter was trained with the map of {name}.",
        evidence=f"The maps differ: {differs}. Both replayed on the same text; the difference is {low:+.1%} to {high:+.1%} (95 % by sample).",
        numbers={"file": name, "own": mine, "other": other, "interval": [low, high]},
        next=""
        if own
        else f"Write the d2t of {name} into the drafter's checkpoint."
        if told
        else "Read more samples; until then write neither.",
    )
