"""Recordings against each other: the same prompts on another engine or version, without speculation, and at a temperature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, isfinite, sqrt
from typing import TYPE_CHECKING

from eaglelab.acceptance import ratios_apart
from eaglelab.engines.conventions import ConventionError
from eaglelab.engines.launch import parse_launch
from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.served import Recording, Request
from eaglelab.served_case import CLOSE, total
from eaglelab.text import first_difference

if TYPE_CHECKING:
    from eaglelab.live.compare import TextComparison

FEW_REQUESTS = 8
"""Prompts in common below which a difference is not looked at: an interval of fewer is little more than a guess."""
STANDARD_ERRORS = 3 / 1.96
"""Half a 95 % interval times this is three standard errors (a little more where there are few requests)."""
DEPARTS, WARM = 0.03, 0.5
"""Share of tokens at which a server that samples leaves the target's first choice, where nothing measures it, and the temperature from which it
is taken to be that much at least: even a target that is sure of 97 tokens in 100."""
CHANCE = 0.002
"""Probability below which so few departures are no chance: about three standard errors."""
ROWS = 64
"""Tokens of each of some answers whose probabilities are looked at."""
EDITED = 512
"""Tokens of an answer in which edits are counted: their number is the product of both lengths in steps, and what is behind only follows."""
OTHERS = "`[engine] recordings` names a folder of recordings of the same prompts: `eaglelab live CASE --url … --out DIR/NAME.jsonl` on each server"


# -- golden counters -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """The case's recording beside another one of the same prompts, drafted alike and fed alike."""

    name: str
    engine: str
    requests: int
    same_text: int
    """Requests of which both answers are the same to the end."""
    own: float
    other: float
    gap: tuple[float, float, float]
    """own - other, and its 95 % interval, paired by request."""

    @property
    def apart(self) -> bool:
        """Beyond three standard errors and by more than rounding leaves."""
        difference, _, high = self.gap
        return isfinite(high) and abs(difference) > max((high - difference) * STANDARD_ERRORS, CLOSE * self.other)


def golden(inv: Investigation) -> Iterator[Finding]:
    """Whether another engine or version, fed the same for the same prompts, reached another accept length."""
    if not inv.served.given or inv.case.engine.recordings is None or inv.served.recording is None:
        return
    own = inv.served.recording
    found = [b for name, r in inv.served.recordings.items() if r is not own and (b := _beside(inv, own, name, r)) is not None]
    if not found:
        raise NotGiven("another recording of these prompts, fed the same and drafted alike", OTHERS)
    below = [b for b in found if b.apart and b.gap[0] < 0]
    above = [b for b in found if b.apart and b.gap[0] > 0]
    worst = max(below or above or found, key=lambda b: abs(b.gap[0]))
    how = "less than" if below else "more than" if above else "as much as"
    yield Finding(
        id="served.golden",
        title=f"The server reached {worst.own:.2f}, {how} {worst.engine} fed the same for the same {worst.requests} prompts: {worst.other:.2f}",
        status=Status.FAIL if below else Status.CANNOT_TELL if above else Status.PASS,
        claim="What is fed the same for the same prompts reaches the same accept length, whatever engine and version.",
        evidence=few([_line(b) for b in found], 4, " ") + " Called apart beyond three standard errors and 2 %.",
        numbers={"recordings": [vars(b) | {"gap": list(b.gap), "apart": b.apart} for b in found]},
        next="This version or its flags lose acceptance: run the other recording's engine, and change one flag at a time (prefix cache, graphs, "
        "overlap, quantisation) until both agree."
        if below
        else f"Look for what {worst.engine} loses; served.expected says which of both is as predicted."
        if above
        else "",
    )


def _line(b: Beside) -> str:
    difference, low, high = b.gap
    return (
        f"{b.name} ({b.engine}): {b.other:.3f} beside {b.own:.3f} on {b.requests} prompts, {b.same_text} answers the same; "
        f"difference {difference:+.3f} (95 % by request {low:+.3f} to {high:+.3f})."
    )


def _beside(inv: Investigation, own: Recording, name: str, other: Recording) -> Beside | None:
    """None where they are not of the same kind: other steps, another temperature, other boundaries, too few prompts in common."""
    ours, theirs = own.session, other.session
    drafted = [(s.num_steps, s.eagle_topk or 1, s.num_draft_tokens) for s in (ours, theirs)]
    if drafted[0] != drafted[1] or ours.temperature != theirs.temperature:
        return None
    try:
        fed = [inv.served.wiring_of(r) for r in (own, other)]
    except (ConventionError, ValueError):
        return None
    if None in fed or not fed[0].wiring.known or fed[0].wiring != fed[1].wiring:
        return None
    pairs = [(a, b, ours.num_steps) for a, b in _pairs(own, other)]
    counted = [(a, b, a.counts(k), b.counts(k)) for a, b, k in pairs]
    counted = [c for c in counted if all(n is not None and n.verify_steps for n in c[2:])]
    if len(counted) < FEW_REQUESTS:
        return None
    sides = [[(n.accepted, n.verify_steps) for n in side] for side in list(zip(*counted, strict=True))[2:]]
    lengths = [total(side).accept_length for side in list(zip(*counted, strict=True))[2:]]
    same = sum(a.token_ids is not None and a.token_ids == b.token_ids for a, b, *_ in counted)
    return Beside(name, theirs.engine or "another engine", len(counted), same, *lengths, ratios_apart(*sides))


def _pairs(one: Recording, other: Recording) -> list[tuple[Request, Request]]:
    """Requests of the same prompt, each prompt once."""
    by_prompt = {r.prompt_token_ids: r for r in reversed(other.requests)}
    first = {r.prompt_token_ids: r for r in reversed(one.requests)}
    return [(r, by_prompt[p]) for p, r in first.items() if p in by_prompt]


# -- with and without speculation -----------------------------------------------------------------------------------------------------


def lossless(inv: Investigation) -> Iterator[Finding]:
    """The answers with speculation beside those without, both greedy."""
    if not inv.served.given or inv.served.recording is None:
        return
    own = inv.served.recording
    plain = {name: r for name, r in inv.served.recordings.items() if r is not own and is_plain(r) and not r.session.temperature}
    if not plain or own.session.temperature:
        return
    name, other = next(iter(plain.items()))
    compared = _compared(own, other)
    kind, said = compared.diagnosis
    if kind == "not compared":
        raise NotGiven("answers in tokens to the same prompts with and without speculation", OTHERS)
    errors, tokens = word_errors(own, other)
    n = len(compared.table)
    status = {"identical": Status.PASS, "near-ties": Status.PASS, "other text": Status.FAIL}.get(kind, Status.CANNOT_TELL)
    yield Finding(
        id="served.lossless",
        title=f"Speculation changes the text: {n - compared.identical} of {n} answers differ from those without it"
        if status is Status.FAIL
        else f"{compared.identical} of {n} answers are the same with and without speculation",
        status=status,
        claim="Greedy answers do not depend on whether tokens were drafted.",
        evidence=f"Beside {name}, served without: {said.split(': another target')[0]}. Edits from one text to the other, in the first {EDITED} tokens of each: "
        f"{errors:,} in {tokens:,} ({errors / tokens:.1%}); most of them only follow from the first one.",
        numbers={**{k: v for k, v in compared.to_json().items() if k != "text"}, "edits": errors, "tokens": tokens},
        next="Serve greedily once with speculation and without prefix cache and graphs, and compare again: what makes the difference go is at fault."
        if status is Status.FAIL
        else "The target's lm_head (`[target] path`) tells near-ties from a fault; so do more prompts."
        if status is Status.CANNOT_TELL
        else "",
    )


def is_plain(recording: Recording) -> bool:
    """Whether a recording's server surely ran without speculation: by its command, or by a session that says 0 steps."""
    session = recording.session
    if any(r.accepted or r.histogram or r.verify_steps for r in recording.requests) or session.num_steps:
        return False
    if session.num_steps == 0:
        return True
    launch = parse_launch(session.command) if session.command else None
    return launch is not None and launch.engine is not None and launch.algorithm is None and not launch.problems


def _compared(own: Recording, other: Recording) -> TextComparison:
    from eaglelab.live.compare import compare_text
    from eaglelab.live.prompts import Prompt

    pairs = _pairs(own, other)
    expected = [Prompt(r.index, r.prompt_token_ids, o.token_ids, r.sample) for r, o in pairs]
    return compare_text(replace(own, requests=tuple(r for r, _ in pairs)), expected)


def word_errors(own: Recording, other: Recording, most: int = 64) -> tuple[int, int]:
    """(edits, tokens): single-token insertions, deletions and replacements that turn the other's answers into ours, over the first
    `EDITED` tokens of at most `most` answers, and the tokens of the other's (the word error rate is their quotient)."""
    edits = tokens = 0
    for a, b in _pairs(own, other)[:most]:
        if a.token_ids is None or not b.token_ids:
            continue
        ours, theirs = a.token_ids[:EDITED], b.token_ids[:EDITED]
        edits, tokens = edits + _edits(ours, theirs), tokens + len(theirs)
    return edits, max(tokens, 1)


def _edits(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Levenshtein distance."""
    start = first_difference(a, b)
    if start is None:
        return 0
    a, b = a[start:], b[start:]
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


# -- temperature ----------------------------------------------------------------------------------------------------------------------


def sampling(inv: Investigation) -> Iterator[Finding]:
    """Whether a recording that was to be sampled is the greedy text, or repeats itself.

    A server that samples leaves the greedy text with the target's probability of another token than its first choice, token by token; how
    likely so few departures are is Poisson's sum for the expected number. Expected: by the target's own logits along the dump's answers
    where its lm_head is at hand, else by `DEPARTS`.
    """
    if not inv.served.given or inv.served.recording is None or not inv.served.recording.session.temperature:
        return
    own = inv.served.recording
    warm, (against, source) = own.session.temperature, _greedy_answers(inv, own)
    same, compared, tokens = _like_greedy(own, against)
    repeats, alike, repeated = _repeats(own)
    if not compared and not repeats:
        raise NotGiven("greedy answers to the same prompts, or prompts asked several times", f"Record greedily: {OTHERS}")
    measured = departure_rate(inv, warm) if compared else None
    rate = measured if measured is not None else DEPARTS if warm >= WARM else 0.0
    chance, chance_again = at_most(compared - same, rate * tokens), at_most(repeats - alike, rate * repeated)
    greedy, constant = compared > 0 and chance < CHANCE, repeats > 0 and chance_again < CHANCE
    ignored = greedy and (constant or not repeats)
    left = (compared > same and not greedy) or (repeats > alike and not constant)
    how = f"{'measured on' if measured is not None else 'taken, not measured'}{' the target' if measured is not None else ''}"
    told = []
    if compared:
        told.append(f"{same} of {compared} answers are those of {source} to the end, in {tokens:,} tokens.")
        told.append(
            f"Sampling leaves its first choice about {rate:.1%} of the time ({how}): so few departures have a chance of {chance:.1g}."
        )
    if repeats:
        told.append(f"{alike} of {repeats} answers to a prompt that was asked before repeat the first one ({repeated:,} tokens).")
    if constant and not greedy:
        told.append("A fixed seed does that too.")
    title = (
        f"Temperature {warm:g} is ignored: {same} of {compared} answers are the greedy ones to the end"
        if ignored
        else f"Temperature {warm:g} seems to be honoured: {compared - same} of {compared} answers leave the text of {source}"
        if left and compared
        else f"Temperature {warm:g} is honoured: {repeats - alike} of {repeats} repeated prompts got another answer"
        if left
        else f"Whether temperature {warm:g} is honoured cannot be told"
    )
    yield Finding(
        id="served.sampling",
        title=title,
        status=Status.FAIL if ignored else Status.PASS if left and not greedy else Status.CANNOT_TELL,
        claim=f"The session asks for temperature {warm:g}.",
        evidence=" ".join(told),
        numbers={
            "temperature": warm,
            "greedy": same,
            "compared": compared,
            "tokens": tokens,
            "departs": rate,
            "measured": measured is not None,
            "chance": chance,
            "repeats": repeats,
            "repeated_alike": alike,
        },
        next="Look at engine.known: SGLang verifies greedily on ROCm, NPU and CPU (sgl-project/sglang#39253). Accept lengths of this server are those "
        "of greedy text."
        if ignored
        else ""
        if left and not greedy
        else "Ask some prompts several times without a seed, at temperature 1, and greedily as well.",
    )


def departure_rate(inv: Investigation, temperature: float) -> float | None:
    """Mean probability, by the target's own logits at this temperature, of another token than its first choice, along the dump's answers;
    None where its lm_head or last states are not at hand, or its logits are bounded (softcap). No top-p, no top-k."""
    if inv.dump is None:
        return None
    import torch

    from eaglelab.replay.answers import touched_positions
    from eaglelab.target.head import head_rows, target_argmax

    try:
        head = inv.judge.head
    except (NotGiven, ValueError):
        return None
    if head is None or head.softcap:
        return None
    samples = inv.samples[:16]
    states = inv.judge.states(samples, [touched_positions(s)[:ROWS] for s in samples])[:: max(1, len(samples) // 4)].float()  # [R, H]
    token, logsumexp = target_argmax(states, head.lm_head, scale=head.scale / temperature)
    top = torch.linalg.vecdot(states, head_rows(head.lm_head, token).float()) * head.scale / temperature  # [R]
    return float((1 - (top - logsumexp).exp()).clamp(0, 1).mean())


def at_most(k: int, expected: float) -> float:
    """Poisson's probability of at most k events where so many are expected."""
    if expected > 700:  # exp(-expected) is 0 in floating point, and k is far below or near it
        return 0.0 if k < expected - 10 * sqrt(expected) else 1.0
    term = total_ = exp(-expected)
    for i in range(1, k + 1):
        term *= expected / i
        total_ += term
    return min(total_, 1.0)


def _greedy_answers(inv: Investigation, own: Recording) -> tuple[dict[tuple[int, ...], tuple[int, ...]], str]:
    """(answer by prompt, whose): of a greedy recording, else the dump's, which need not be the target's own."""
    for name, r in inv.served.recordings.items():
        if r is not own and not r.session.temperature and _pairs(own, r):
            return {q.prompt_token_ids: q.token_ids for q in r.requests if q.token_ids}, name
    if inv.dump is None:
        return {}, ""
    from eaglelab.live.prompts import PromptError, dump_prompts

    try:
        return {p.token_ids: p.answer for p in dump_prompts(inv.samples).prompts if p.answer}, "the dump"
    except PromptError:
        return {}, ""


def _like_greedy(own: Recording, greedy: dict[tuple[int, ...], tuple[int, ...]]) -> tuple[int, int, int]:
    """(answers that are the greedy ones as far as both go, answers compared, tokens before each first difference)."""
    same = compared = tokens = 0
    for r in own.requests:
        expected = greedy.get(r.prompt_token_ids)
        if not expected or not r.token_ids:
            continue
        n = min(len(expected), len(r.token_ids))
        place = first_difference(expected[:n], r.token_ids[:n])
        compared, same, tokens = compared + 1, same + (place is None), tokens + (n if place is None else place)
    return same, compared, tokens


def _repeats(own: Recording) -> tuple[int, int, int]:
    """(answers to a prompt asked before, those that repeat the first answer to it, their tokens)."""
    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    again = alike = tokens = 0
    for r in own.requests:
        if not r.token_ids:
            continue
        if r.prompt_token_ids not in first:
            first[r.prompt_token_ids] = r.token_ids
            continue
        again += 1
        if r.token_ids == first[r.prompt_token_ids]:
            alike, tokens = alike + 1, tokens + len(r.token_ids)
    return again, alike, tokens
