"""The loss mask and the text: what trains, where the mask lies, and faults of the text itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import ratios_apart
from eaglelab.checks.replay import OWN_TEXT
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven

if TYPE_CHECKING:
    import pandas as pd

    from eaglelab.dumps.mask import Start
    from eaglelab.text import Frame

EMPTY_THINK = re.compile(r"<think>\s*</think>")
SIDE = 16
"""Samples whose tokens are held against the target's choice, to see on which side of the mask its own text lies."""
FEW = 4
"""Below this many samples, nothing is said of what they have in common."""
DRAFTS_FROM = "An engine drafts from an answer's second token on: the first one comes from the target itself, at prefill."
ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}


def frame(inv: Investigation) -> Frame | None:
    """What the chat template writes around an answer; None without a tokenizer."""
    from eaglelab.text import answer_frame

    try:
        return answer_frame(inv.tokenizer)
    except NotGiven:
        return None


def mask_table(inv: Investigation) -> pd.DataFrame:
    """`eaglelab.dumps.mask.mask_table` of the samples, with the template's ends of a turn where they are known."""
    from eaglelab.dumps import mask

    known = frame(inv)
    return mask.mask_table(inv.samples, known.ends if known else ())


def around_start(inv: Investigation) -> pd.DataFrame:
    """`eaglelab.dumps.mask.around_start` of the samples, with the target's own choice where its lm_head is at hand."""
    from eaglelab.dumps import mask

    need_masks(inv)
    return mask.around_start(inv.samples, None if inv.judge.head is None else partial(_said, inv))


def _said(inv: Investigation, samples: list[Any], positions: list[Any]) -> list[Any]:
    """What the target says after some positions of each sample, by its lm_head."""
    from eaglelab.target.head import target_choice

    states = inv.judge.states(samples, positions)
    return list(target_choice(states, inv.judge.head.lm_head).cpu().split([len(p) for p in positions]))


def mask_start(inv: Investigation) -> Start:
    """Where spans start against the answers: by the template's header where it is found, else by tokens that are the same in all samples."""
    from eaglelab.dumps.mask import against_ends, start_by_header, start_by_ids

    known = frame(inv)
    found = start_by_header(inv.samples, known.headers) if known is not None and known.headers else None
    if found is None or not found.by:
        by_ids = start_by_ids(around_start(inv))
        found = by_ids if found is None else replace(by_ids, remark="; ".join(filter(None, (by_ids.remark, found.remark))))
    return found if known is None else against_ends(found, inv.samples, known.headers, known.ends)


def _told_start(inv: Investigation) -> Start:
    """`mask_start`. Raises NotGiven where the tokens alone say nothing and there is no tokenizer."""
    start = mask_start(inv)
    if not start.by and frame(inv) is None:
        raise NotGiven("a tokenizer with a chat template", "`[target] tokenizer` names its folder; the tokens alone do not decide")
    return start


def need_masks(inv: Investigation) -> list[Any]:
    """The samples whose mask trains something. Raises NotGiven where no sample stores a mask."""
    if all(s.loss_mask is None for s in inv.samples):
        why = next((note for s in inv.samples for note in s.notes if "mask" in note), "")  # a reader's own: no dataset beside the states
        how = "put the trainer's mask beside the states (docs/formats.md says where each format has it); which tokens train cannot be told from the text"
        raise NotGiven("a loss mask", f"{how}. {why[0].upper()}{why[1:]}" if why else how)
    return [s for s in inv.samples if s.loss_mask is not None and bool(s.loss_mask.any())]


def mask(inv: Investigation) -> Iterator[Finding]:
    """How much trains, in counts."""
    trains, table = need_masks(inv), mask_table(inv)
    n, unknown = len(table), int(table["trained"].isna().sum())
    zero, full = int((table["trained"] == 0).sum()), int((table["trained"] == table["tokens"]).sum())
    trained, tokens = int(table["trained"].sum()), int(table["tokens"][table["trained"].notna()].sum())
    whole, after = table["whole_answers"].sum(), int((table["after_end"] > 0).sum())
    spans, last = int(table["spans"].sum()), int(table["last_trained"].sum())
    bad = [f"{count} of {n} samples {words}" for count, words in ((zero, "train nothing"), (full, "train every token")) if count]
    told = "" if table["whole_answers"].isna().all() else f" {int(whole)} of {spans} answers are whole, with the token that ends the turn; "
    told += f"{after} of {n} samples train tokens behind it." if told else ""
    yield Finding(
        id="text.mask",
        title="; ".join(bad) if bad else f"{trained:,} of {tokens:,} tokens train, in {spans} spans of {n} samples",
        status=Status.FAIL if zero == n - unknown else Status.CANNOT_TELL if bad else Status.PASS,
        claim="The loss mask marks the answers, and only them.",
        evidence=f"Share of trained tokens by sample: {_range(table['share'])}. The last token trains in {last} of {n} samples.{told}"
        + (f" The mask is unknown in {unknown} of {n}." if unknown else ""),
        numbers={
            **{"samples": n, "unknown": unknown, "zero": zero, "full": full, "trained": trained, "tokens": tokens, "spans": spans},
            **{"last_token_trained": last, "whole_answers": None if not told else int(whole), "after_end": None if not told else after},
            "training_samples": len(trains),
        },
        next="Was the mask lost or cut off on the way? Hold it against the text in notebook 01, and dump these samples again."
        if bad
        else "",
    )


def _range(shares: pd.Series) -> str:
    known = shares.dropna()
    return f"{known.min():.0%} to {known.max():.0%}, median {known.median():.0%}" if len(known) else "unknown"


def first_token(inv: Investigation) -> Iterator[Finding]:
    """Which predicted token is the first that trains, by the framework's own rule."""
    from eaglelab.dumps.mask import AHEAD

    need_masks(inv)
    start = _told_start(inv)
    name, ground = _framework(inv)
    if (place := start.place) is None:
        yield Finding(
            id="text.first_token",
            title="Which prediction trains first in an answer cannot be told: nothing says whether the mask starts at the answer",
            status=Status.CANNOT_TELL,
            claim=DRAFTS_FROM,
            numbers={"framework": name, "start": None, "first_trained": None},
            next="text.shift says what would decide.",
        )
        return
    where = (
        "at the answer's first token"
        if not place
        else f"{abs(place)} token(s) {'before' if place < 0 else 'behind'} the answer's first one"
    )
    rules = {1: "speculators and ModelOpt", 2: "SpecForge, EAGLE and AngelSlim"}
    readings = {ahead: _reading(ahead + place) for ahead in ((AHEAD[name],) if name else (1, 2))}
    words = "; ".join(f"{text} ({name or rules[ahead]})" for ahead, text in readings.items())
    yield Finding(
        id="text.first_token",
        title=f"The first prediction that trains in an answer: {words}",
        status=Status.PASS if name else Status.NOT_GIVEN,
        claim=DRAFTS_FROM,
        evidence=f"The mask starts {where} ({start.spans} of {start.of} spans). l[i] = 1 trains the prediction of token i + 1 by the rule of "
        f"speculators and ModelOpt, of token i + 2 by that of SpecForge, EAGLE and AngelSlim{ground}.",
        numbers={"framework": name, "start": place, "first_trained": {rules[a]: a + place + 1 for a in readings}},
        next="" if name else "`[training] framework` names the trainer, whose rule decides.",
    )


def _reading(place: int) -> str:
    """place: of the first trained prediction, counted from the answer's first token."""
    if place < 1:
        return "one before its second token, which no engine drafts"
    which = f"its {ORDINALS.get(place + 1, f'{place + 1}th')} token"
    if place == 1:
        return f"{which}, the first that an engine drafts"
    skipped = "the one" if place == 2 else f"the {place - 1}"
    return f"{which}, so that {skipped} drafted before it never train{'s' if place == 2 else ''}"


def _framework(inv: Investigation) -> tuple[str | None, str]:
    from eaglelab.dumps.mask import AHEAD
    from eaglelab.engines.conventions import parse_engine

    implied, told = inv.dump.implied, inv.case.training.framework
    if told is not None:
        name, ground = parse_engine(told, inv.case.training.version, what="training framework").name, ""
    elif implied is not None and implied.framework is not None and implied.certain:
        name, ground = parse_engine(implied.framework).name, "; the framework is taken from the dump's format"
    else:
        return None, ""
    return (name, ground) if name in AHEAD else (None, f"; the rule of {name} is not known")


def shift(inv: Investigation) -> Iterator[Finding]:
    """Does the mask lie on the answers, or some tokens beside them?"""
    from eaglelab.dumps.mask import end_offsets

    yield from _wrong_side(inv, need_masks(inv)[:SIDE])
    start, known = _told_start(inv), frame(inv)
    ends = end_offsets(inv.samples, known.ends) if known else Counter()
    yield Finding(
        id="text.shift",
        title=_shift_title(start),
        status=Status.CANNOT_TELL if start.offset is None else Status.FAIL if start.offset else Status.PASS,
        claim="The loss mask starts at each answer's first token.",
        evidence=" ".join(_shift_evidence(start, ends)),
        numbers={
            **{"offset": start.offset, "by": start.by, "spans": start.spans, "of": start.of, "remark": start.remark},
            "starts": {str(k): v for k, v in (start.counts or {}).items()},
            "ends": {"no end token" if k is None else str(k): v for k, v in ends.items()},
        },
        next=""
        if start.offset == 0
        else "Look at the text around the mask in notebook 01."
        + (" Was the mask made with another template or tokenizer, or moved to fit a trainer's rule?" if start.offset else "")
        + ("" if known else " `[target] tokenizer` names the tokenizer, whose template would decide."),
    )


def _wrong_side(inv: Investigation, samples: list[Any]) -> Iterator[Finding]:
    """The mask lies on the prompts: what is outside is the target's own text (`OWN_TEXT`), and what is inside is so less often, beyond chance."""
    import torch

    if inv.judge.head is None or not samples:
        return
    said = _said(inv, samples, [torch.arange(len(s.token_ids) - 1) for s in samples])
    counts: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # inside the mask or not -> (the target's own, all) of each sample
    for sample, tokens in zip(samples, said, strict=True):
        own, inside = tokens == sample.token_ids[1:], sample.loss_mask[1:].bool()  # [T - 1]
        for side, rows in ((True, inside), (False, ~inside)):
            counts[side].append((int(own[rows].sum()), int(rows.sum())))
    (right, of), (outside, others) = (tuple(map(sum, zip(*counts[side], strict=True))) for side in (True, False))
    own_outside, own_inside = outside >= OWN_TEXT * others, right >= OWN_TEXT * of
    if not others or not of or not own_outside or own_inside or ratios_apart(counts[False], counts[True])[1] <= 0:
        return
    yield Finding(
        id="text.side",
        title=f"The loss mask lies on the prompts: the target itself says {outside / others:.0%} of what it leaves out, and {right / of:.0%} of what trains",
        status=Status.FAIL,
        claim="The loss mask marks the answers, and only them.",
        evidence=f"By lm_head on the last states of {len(samples)} samples: {outside:,} of {others:,} tokens outside the mask are the target's own choice, "
        f"{right:,} of {of:,} inside.",
        numbers={"inside": [right, of], "outside": [outside, others]},
        next="Does the mask's rule look for the right role? Mark the answers, and train again: this drafter learned the prompts.",
    )


def _shift_title(start: Start) -> str:
    counted = f"{start.spans} of {start.of} spans"
    if start.offset is None:
        return f"Whether the mask lies on the answers cannot be told: {start.remark} ({counted})"
    if start.offset == 0:
        return f"The mask starts at the answer in {counted}" + (f"; {start.remark}" if start.remark else "")
    if start.offset < 0:
        return f"The mask starts {-start.offset} token(s) early in {counted}: the end of the answer's header trains"
    return f"The mask starts {start.offset} token(s) late in {counted}: the beginning of the answer does not train"


def _shift_evidence(start: Start, ends: Counter[int | None]) -> Iterator[str]:
    by = {"header": "Held against the header that the chat template writes before an answer", "ids": "By the tokens that all spans share"}
    if start.by:
        yield by[start.by] + (f" ({start.remark})." if start.remark else ".")
    if start.counts and len(start.counts) > 1:
        yield "Places of the start, by spans: " + ", ".join(f"{k:+d}: {n}" for k, n in start.counts.items()) + "."
    total, (usual, n) = (
        sum(ends.values()) - ends[None],
        max(((k, n) for k, n in ends.items() if k is not None), key=lambda e: e[1], default=(None, 0)),
    )
    if usual is not None:
        where = "on the token that ends the turn" if usual == 0 else f"{abs(usual)} token(s) {'before' if usual < 0 else 'behind'} it"
        yield f"{n} of {total} whole answers' spans end {where}."
        if usual and usual == start.offset:
            yield "Both ends are off by the same number: the whole mask is shifted."


def faults(inv: Investigation) -> Iterator[Finding]:
    """BOS twice or missing, empty think blocks, truncated answers, the same text again and again."""
    counts, n = fault_counts(inv), len(inv.samples)
    told = {what: count for what, count in counts.items() if count}
    wrong = counts["BOS twice"] or counts["BOS missing"] or (n >= FEW and counts["the same answer"] > n / 2)
    yield Finding(
        id="text.faults",
        title=f"Faults of the text, of {n} samples: " + (", ".join(f"{what} {count}" for what, count in told.items()) or "none found"),
        status=Status.FAIL if wrong else Status.CANNOT_TELL if counts["empty think block"] else Status.PASS,
        claim="The dump's text is what the server renders and the target answers.",
        evidence=f"{', '.join(f'{what}: {count}' for what, count in counts.items())} (of {n} samples). A truncated answer is one without the "
        "token that ends the turn; the same prompt or answer counts the samples that repeat an earlier one.",
        numbers={"samples": n, **counts},
        next="Render the prompts as the server does, and dump these samples again."
        if wrong
        else "Is thinking off at serving too? An empty block is what the template writes when it is."
        if counts["empty think block"]
        else "",
    )


def fault_counts(inv: Investigation) -> dict[str, int]:
    """Fault -> samples that have it. Raises NotGiven without a tokenizer."""
    known, tokenizer = frame(inv), inv.tokenizer
    assert known is not None  # inv.tokenizer has raised
    counts = dict.fromkeys(("BOS twice", "BOS missing", "empty think block", "truncated answer", "the same prompt", "the same answer"), 0)
    prompts, answers, bos = set(), set(), tokenizer.bos_token_id
    for sample in inv.samples:
        ids = sample.token_ids.tolist()
        counts["BOS twice"] += bos is not None and ids[:2] == [bos, bos]
        counts["BOS missing"] += known.bos is not None and ids[:1] != [known.bos]
        trained = [] if sample.loss_mask is None else sample.loss_mask.nonzero()[:, 0].tolist()
        if not trained:
            continue
        first, last = trained[0], trained[-1]
        prompt, answer = tuple(ids[:first]), tuple(ids[first : last + 1])
        counts["empty think block"] += EMPTY_THINK.search(_decoded(tokenizer, [ids[i] for i in trained])) is not None
        counts["truncated answer"] += not any(i in known.ends for i in (*answer[-3:], *ids[last + 1 : last + 2]))
        counts["the same prompt"] += bool(prompt) and prompt in prompts
        counts["the same answer"] += answer in answers
        prompts.add(prompt)
        answers.add(answer)
    return {what: int(count) for what, count in counts.items()}


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    try:
        return tokenizer.decode(ids, skip_special_tokens=False)
    except Exception:  # out of range; `dump.health` counts such ids
        return ""


def tokens(inv: Investigation) -> Iterator[Finding]:
    """Prompts turned to text and back to tokens: another tokenizer's ids do not come back."""
    from eaglelab.text import controls, encoded_again, first_difference, token_texts

    tokenizer = inv.tokenizer
    prompts = [(s.key, s.token_ids[: int(s.loss_mask.argmax())].tolist()) for s in need_masks(inv)]
    prompts = [(key, ids) for key, ids in prompts if ids]
    if not prompts:
        raise NotGiven("a prompt before the mask", "only a prompt is sure to be its text's own tokens; no sample has one")
    differ = []
    for key, ids in prompts:
        again = encoded_again(tokenizer, ids) or []
        if (place := first_difference(ids, again)) is not None:
            pair = (token_texts(tokenizer, x[place : place + 1]) or ["(the end)"] for x in (ids, again))
            differ.append((key, place, *(text[0] for text in pair)))
    faithful = all(encoded_again(tokenizer, ids) == ids for ids in controls(tokenizer))
    n, bad = len(prompts), len(differ)
    first = f" The first: {differ[0][0]}, token {differ[0][1]}: {differ[0][2]!r} against {differ[0][3]!r}." if differ else ""
    yield Finding(
        id="text.tokens",
        title=f"{n - bad} of {n} prompts are the tokens that this tokenizer makes of their text",
        status=Status.PASS if not bad else Status.FAIL if faithful and bad > n / 2 else Status.CANNOT_TELL,
        claim="The dump's prompts were made with the target's tokenizer.",
        evidence="Each prompt (what stands before the mask) decoded and encoded again."
        + first
        + ("" if faithful else " This tokenizer does not give a question of its own template back either, so nothing follows from it."),
        numbers={"prompts": n, "differ": bad, "faithful": faithful},
        next="Was the dump made with another tokenizer, or from pieces that were tokenised one by one? "
        "`eaglelab dump CASE --against OTHER` shows two renderings side by side."
        if bad
        else "",
    )
