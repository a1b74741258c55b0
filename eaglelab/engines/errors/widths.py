"""What the widths in a shape error mean: each as so many slots of H, as a vocabulary, or as nothing that is known here.

All numbers are channels of the last dimension, or rows (tokens) where the message says so. Without H the pairs (H, slots) that are
consistent with the message are listed; none of them is invented beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglelab.engines.conventions import Engine

STEP = 64
"""Hidden sizes of the targets that are served are multiples of it (2,880 = 45 * 64, 896 = 14 * 64, 7,168 = 112 * 64)."""
SMALLEST = 256
"""Smaller than any target's hidden size."""
MOST_SLOTS = 8
"""More slots than any public drafter takes (3, some 4 or 5)."""
LAYERS = (16, 200)
"""Layers of targets that drafters are made for: Llama-3.2-1B has 16."""
USUAL = 3
"""EAGLE-3's usual number of slots."""
SHOWN = 4
"""Readings that are spelled out; of more the number is said."""
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Facts:
    """What is known of the case; None: not known."""

    hidden: int | None = None
    """H of the target."""
    draft_hidden: int | None = None
    slots: int | None = None
    """Slots that the drafter's fc takes."""
    ids: tuple[int, ...] | None = None
    num_layers: int | None = None
    """N of the target."""
    vocab: int | None = None
    draft_vocab: int | None = None
    positions: int | None = None
    """The drafter's max_position_embeddings."""
    steps: int | None = None
    draft_tokens: int | None = None
    """Nodes of a verify pass, the root included."""
    pipeline: int | None = None
    """Pipeline-parallel stages."""
    engine: Engine | None = None


@dataclass(frozen=True)
class Read:
    """What was read out of a message's numbers."""

    sentences: tuple[str, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)
    """`hidden` and the slots of each width where they are certain; else `readings`, each {hidden, slots}."""
    cause: str = ""
    """`missing_slots`, `one_slot`, `too_many_slots`, `all_states`, `two_sizes`, `eagle1`, `built_other`, `rows`, `vocabulary` or empty: not known."""


NO_FACTS, NOT_READ = Facts(), Read()


def words(slots: int) -> str:
    return f"{NUMBERS[slots] if slots < len(NUMBERS) else f'{slots:,}'} slot{'s' * (slots != 1)}"


def candidates(widths: Sequence[int], out: int | None = None) -> list[tuple[int, tuple[int, ...]]]:
    """(H, slots of each width) for every H that all widths are whole multiples of, the most plausible first.

    H is a multiple of 64, from 256 on; each width is at most 8 slots, or (the first, beside another) all N + 1 states of a target of 16 to
    200 layers. First stands an H with three slots that is also the drafter's own width (`out`), then one of both, then the largest.
    """
    shared = math.gcd(*widths)
    found = []
    for hidden in {d for i in range(1, math.isqrt(shared) + 1) if shared % i == 0 for d in (i, shared // i)}:
        slots = tuple(w // hidden for w in widths)
        all_states = len(slots) > 1 and LAYERS[0] < slots[0] <= LAYERS[1] + 1
        if hidden % STEP == 0 and hidden >= SMALLEST and (slots[0] <= MOST_SLOTS or all_states) and max(slots[1:], default=0) <= MOST_SLOTS:
            found.append((hidden, slots))
    return sorted(found, key=lambda h: ((h[0] != out) + (USUAL not in h[1]), -h[0]))


def name(width: int, facts: Facts) -> list[str]:
    """Everything that a width can be in this case, in words; empty: nothing of it."""
    found, hidden, draft = [], facts.hidden, facts.draft_hidden
    if hidden and width % hidden == 0:
        slots = width // hidden
        if facts.num_layers and slots == facts.num_layers + 1:
            found.append(f"all {slots} hidden states of the target (N + 1 = {facts.num_layers} + 1), {hidden:,} wide each")
        elif slots <= MOST_SLOTS:
            found.append(f"{words(slots)} of H = {hidden:,}")
    if draft and width == draft and draft != hidden:
        found.append("the drafter's hidden size")
    if draft and width == 2 * draft:
        found.append("embedding and state side by side, the input of the draft layer")
    found += [
        f"the {what} ({size:,})"
        for what, size in (("target's vocabulary", facts.vocab), ("draft vocabulary", facts.draft_vocab))
        if size == width
    ]
    return found


def rows(values: Sequence[int], facts: Facts) -> Read:
    """Numbers of tokens."""
    known = {
        facts.draft_tokens: "the nodes of a verify pass",
        None if facts.steps is None else facts.steps + 1: "the drafted steps and the bonus token",
    }
    told = [f"{v:,} is {known[v]}" for v in values if v and v in known]
    first = f"{' and '.join(f'{v:,}' for v in values)} count rows (tokens), not channels: no slot is wrong by this message."
    return Read((first, *(f"{t[0].upper()}{t[1:]}." for t in told)), {"rows": list(values)}, "rows")


def fc(given: int, expected: int, facts: Facts, out: int | None = None) -> Read:
    """A product with fc: `given` channels came, `expected` were to come, `out` is fc's own output (the drafter's hidden size)."""
    if facts.hidden and expected % facts.hidden == 0 and given % facts.hidden == 0:
        hidden, came, asked = facts.hidden, given // facts.hidden, expected // facts.hidden
        return Read(
            _fc_sentences(hidden, came, asked, facts), {"hidden": hidden, "given_slots": came, "expected_slots": asked}, _cause(came, asked)
        )
    if facts.hidden:
        return _another_target(_against_facts(given, expected, facts), (given, expected), facts)
    found = candidates((given, expected), out)
    if not found:
        return _odd((given, expected))
    hidden, (came, asked) = found[0]
    likely = len(found) == 1 or (hidden == out and (USUAL in (came, asked) or not any(USUAL in s for _, s in found)))
    if not likely:
        causes = {_cause(*s) for _, s in found}
        return Read(_listed(found, ("given", "expected")), _as_numbers(found), causes.pop() if len(causes) == 1 else "")
    first = (
        f"H = {hidden:,} is the one hidden size that fits." if len(found) == 1 else f"H = {hidden:,}, as wide as fc's output, fits best."
    )
    others = _listed(found[1:], ("given", "expected"), start="Less likely: ")
    numbers = {"hidden": hidden, "given_slots": came, "expected_slots": asked, **_as_numbers(found)}
    return Read((first, *_fc_sentences(hidden, came, asked, facts), *others), numbers, _cause(came, asked))


def _cause(came: int, asked: int) -> str:
    return (
        "all_states"
        if came > MOST_SLOTS
        else "one_slot"
        if came == 1 < asked
        else "missing_slots"
        if came < asked
        else "too_many_slots"
        if came > asked
        else ""
    )


def _fc_sentences(hidden: int, came: int, asked: int, facts: Facts) -> tuple[str, ...]:
    said = [
        f"{asked * hidden:,} = {asked} * {hidden:,}: {words(asked)} expected. {came * hidden:,} = {came} * {hidden:,}: "
        + (f"{came} states given." if came > MOST_SLOTS else f"{words(came)} given.")
    ]
    if came > MOST_SLOTS:
        said.append(
            f"{came} = N + 1 for N = {came - 1}: all hidden states of the target were concatenated."
            if facts.num_layers in (None, came - 1)
            else f"The target has N = {facts.num_layers}, so N + 1 = {facts.num_layers + 1} states: {came} are of another target."
        )
    elif came < asked:
        said += _lost(asked - came, facts)
    return tuple(said)


def _lost(count: int, facts: Facts) -> list[str]:
    """Which ids of the case the engine may not have captured."""
    n, ids = facts.num_layers, facts.ids
    if not n or not ids:
        return []
    far = [i for i in ids if i >= n - 1]
    what = f"{'id' if len(far) == 1 else 'ids'} {', '.join(map(str, far))}"
    return [f"Of the ids {list(ids)}, {what} may lie beyond the last state that is captured (N = {n})."] if far else []


def sides(a: int, b: int, facts: Facts) -> Read:
    """Two widths that should be equal, where the message does not say which one was expected."""
    if facts.hidden and a % facts.hidden == 0 and b % facts.hidden == 0:
        expected = next((w for w in (a, b) if w == (facts.slots or USUAL) * facts.hidden), None)
        if expected is not None:
            return fc(b if expected == a else a, expected, facts)
    if facts.hidden:
        return _against_facts(a, b, facts)
    if any(w % STEP for w in (a, b)):
        return _odd((a, b))
    most, least = sorted((a, b), reverse=True)
    found = candidates((most, least))
    if len(found) == 1 and USUAL in found[0][1]:
        hidden, slots = found[0]
        told = " and ".join(f"{w:,} = {s} * {hidden:,}, {words(s)}" for w, s in zip((most, least), slots, strict=True))
        first = f"H = {hidden:,} is the one hidden size that fits: {told}."
        second = f"EAGLE-3 drafters usually take {words(USUAL)}: then {words(USUAL)} expected, {words(next(s for s in slots if s != USUAL))} given."
        return Read((first, second), {"hidden": hidden, "slots": list(slots)}, "missing_slots" if max(slots) == USUAL else "too_many_slots")
    two = f"two hidden sizes, {most:,} and {least:,}: the target's and the drafter's" if a != b else ""
    return Read(_listed(found, (f"for {most:,}", f"for {least:,}"), two), _as_numbers(found), "" if found else "two_sizes")


def load(stored: Sequence[int], built: Sequence[int], facts: Facts) -> Read:
    """A weight of the checkpoint that does not fit the parameter that the engine built for it; both as [out, in]."""
    if len(stored) != len(built):
        return Read((f"The checkpoint's has {len(stored)} dimensions, the engine's {len(built)}: they are two different tensors.",))
    apart = [i for i, (s, b) in enumerate(zip(stored, built, strict=True)) if s != b]
    if apart == [1] and stored[0] == built[0]:  # the same output, another input
        out, came, asked = stored[0], stored[1], built[1]
        if asked == 2 * out and came % out == 0:
            first = f"The checkpoint's takes {came:,} = {came // out} * {out:,} ({words(came // out)}), the engine's {asked:,} = 2 * {out:,}: embedding and state, EAGLE-1's fc."
            return Read((first,), {"stored_slots": came // out, "hidden": out}, "eagle1")
        found = fc(asked, came, facts, out)  # the checkpoint says how many slots belong
        if found.numbers.get("hidden"):
            numbers = {
                "hidden": found.numbers["hidden"],
                "stored_slots": found.numbers["expected_slots"],
                "built_slots": found.numbers["given_slots"],
            }
            first = f"At H = {numbers['hidden']:,} the checkpoint's fc takes {words(numbers['stored_slots'])}, the engine built one for {words(numbers['built_slots'])}."
            return Read((first,), numbers, "built_other")
        return Read(
            tuple(s.replace("given", "built").replace("expected", "stored") for s in found.sentences),
            found.numbers,
            "built_other" if found.cause else "",
        )
    said = [
        f"Dimension {i}: {stored[i]:,} stored" + _named(stored[i], facts) + f", {built[i]:,} built" + _named(built[i], facts) + "."
        for i in apart
    ]
    sizes = {facts.vocab, facts.draft_vocab} - {None}
    vocabulary = apart == [0] and bool(sizes & {stored[0], built[0]})
    return Read(tuple(said), {"stored": list(stored), "built": list(built)}, "vocabulary" if vocabulary else "")


def shape(dims: Sequence[int], facts: Facts) -> Read:
    """One shape, [.., width]."""
    width = dims[-1]
    if facts.hidden:
        what = name(width, facts)
        told = f"{width:,} is {' or '.join(what)}." if what else f"{width:,} is no whole number of states of H = {facts.hidden:,}."
        slots = width // facts.hidden if width % facts.hidden == 0 else None
        return Read((told,), {"width": width, "slots": slots}, "too_many_slots" if slots and slots > 1 else "")
    found = candidates((width,))
    return Read(_listed(found, ("",)), _as_numbers(found)) if found else _odd((width,))


def index(size: int, facts: Facts) -> Read:
    """The size of a table that an index missed."""
    what = name(size, facts) + ([f"the drafter's max_position_embeddings ({facts.positions:,})"] if size == facts.positions else [])
    told = (f"{size:,} is {' or '.join(what)}.",) if what else (f"{size:,} is the size of the table that was indexed.",)
    return Read(told, {"size": size}, "vocabulary" if any("vocabulary" in w for w in what) else "")


def _named(width: int, facts: Facts) -> str:
    what = name(width, facts)
    return f" ({' or '.join(what)})" if what else ""


def _against_facts(a: int, b: int, facts: Facts) -> Read:
    told, cause = [], ""
    for width in (a, b):
        what = name(width, facts)
        told.append(f"{width:,} is {' or '.join(what)}" if what else f"{width:,} is no whole number of states of H = {facts.hidden:,}")
    if {facts.hidden, facts.draft_hidden} == {a, b}:
        cause = "two_sizes"
    elif {a, b} & {facts.vocab, facts.draft_vocab}:
        cause = "vocabulary"
    return Read((f"{'; '.join(told)}.",), {"widths": [a, b]}, cause)


def _another_target(said: Read, widths: Sequence[int], facts: Facts) -> Read:
    """Widths of which the case's H divides none, and one other H both."""
    found = candidates(widths)
    if said.cause or len(found) != 1 or any(name(w, facts) for w in widths):
        return said
    asked = f"They are {' and '.join(words(s) for s in found[0][1])} of H = {found[0][0]:,}: is the case's target the one that was served?"
    return Read((*said.sentences, asked), said.numbers, said.cause)


def _listed(
    found: Sequence[tuple[int, tuple[int, ...]]],
    names: Sequence[str],
    also: str = "",
    start: str = "Without the target's hidden size H the numbers can be read as: ",
) -> tuple[str, ...]:
    each = []
    for hidden, slots in found[:SHOWN]:
        told = [f"{words(s) if s <= MOST_SLOTS else f'{s} states'} {n}".strip() for s, n in zip(slots, names, strict=True)]
        each.append(f"H = {hidden:,} with {' and '.join(told)}")
    more = [f"{len(found) - SHOWN} more"] if len(found) > SHOWN else []
    every = [*([also] if also else []), *each, *more]
    return (f"{start}{'; '.join(every)}.",) if every else ()


def _as_numbers(found: Sequence[tuple[int, tuple[int, ...]]]) -> dict[str, Any]:
    return {"readings": [{"hidden": hidden, "slots": list(slots)} for hidden, slots in found]}


def _odd(widths: Sequence[int]) -> Read:
    told = " and ".join(f"{w:,}" for w in widths)
    return Read(
        (f"{told} fit no hidden size (a multiple of {STEP}) in whole slots: they may be tokens, heads or a vocabulary.",),
        {"widths": list(widths)},
    )


def read(kind: str, found: Mapping[str, str | None], facts: Facts) -> Read:
    """The numbers of a message, by the kind of message (`widths` in patterns.toml) and its named groups."""
    numbers = {key: int(value) for key, value in found.items() if value and value.isdigit() and len(value) < 12}
    if kind == "fc" and numbers.get("given") and numbers.get("expected"):
        return fc(numbers["given"], numbers["expected"], facts, numbers.get("out"))
    if kind == "sides" and numbers.get("a") and numbers.get("b"):
        if numbers.get("dim") == 0 or numbers.get("except", 0) > 0:
            return rows((numbers["a"], numbers["b"]), facts)
        return sides(numbers["a"], numbers["b"], facts)
    if kind == "rows" and numbers.get("a") and numbers.get("b"):
        return rows((numbers["a"], numbers["b"]), facts)
    if kind == "load":
        stored, built = ([int(n) for n in (found.get(key) or "").replace(",", " ").split() if len(n) < 12] for key in ("stored", "built"))
        return load(stored, built, facts) if stored and built and min(*stored, *built) > 0 else NOT_READ
    if kind == "shape":
        dims = [int(n) for n in (found.get("dims") or "").replace(",", " ").split() if len(n) < 12]
        return shape(dims, facts) if dims and dims[-1] > 0 else NOT_READ
    if kind == "index" and numbers.get("size"):
        return index(numbers["size"], facts)
    return NOT_READ
