"""The dump's files, and its last state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglelab.engines.conventions import convention_for, parse_engine
from eaglelab.engines.training import final_norm
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.opened import DUMP
from eaglelab.outside_json import text_part
from eaglelab.wiring import FINAL, Boundary, Wiring, boundary_name

if TYPE_CHECKING:
    import pandas as pd

    from eaglelab.replay.last_state import LastState

UNLIKE = 1.5
"""A sample whose slot norm is this many times the dump's (or its inverse) is unlike the rest."""
SAYS_MOST, SAYS_SOME = 0.5, 0.2
"""Share of the text that the last state must say: to be told by the text alone, and not to be doubted where values tell it. People's own
text is a model's choice about half of the time."""
STATES = {"final": "after the final norm", "N": "before the final norm"}
MIND_TRAINER = "A trainer that goes by the format treats it wrongly: name yours under `[training]`."


def health(inv: Investigation) -> Iterator[Finding]:
    """Files that cannot be read or mislead."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP + _forecast(inv))
    summary = inv.health.summary
    errors, warnings = summary["severity"].get("error", 0), summary["severity"].get("warning", 0)
    per_token = summary["bytes_per_token"]
    listed = ", ".join(f"{what} ({n})" for what, n in list(summary["problems"].items())[:6])
    yield Finding(
        id="dump.health",
        title=summary["text"] + (f": {listed}" if errors else f"; warnings: {warnings}" if warnings else ""),
        status=Status.FAIL if errors else Status.PASS,
        claim=f"A {inv.dump.format} dump of {len(inv.dump):,} samples with {len(inv.dump.slot_names)} slots.",
        evidence=(f"Found, by number of samples: {listed}." if listed else "No file is broken, no state is NaN, zero or of another width.")
        + f" Training split: {inv.case.dump.split or 'not said'}."
        + (f" A token's states take {per_token:,.0f} bytes." if per_token else ""),
        numbers=dict(summary),
        next="`eaglelab dump CASE` lists them file by file; dump the broken ones again." if errors else "",
    )
    yield from _too_few_slots(inv)


def _too_few_slots(inv: Investigation) -> Iterator[Finding]:
    """Fewer slots than the drafter's fc takes: no feed makes this dump the one that the drafter was trained on."""
    try:
        config = inv.drafter_config
    except ValueError:  # `drafter.complete` says why
        return
    aux = len(inv.dump.slot_names) - (inv.dump.feed.last is not None)
    if config is None or not 0 < aux < config.num_slots:
        return
    yield Finding(
        id="dump.feed",
        title=f"The dump holds {aux} slots beside the last state, and the drafter's fc takes {config.num_slots}",
        status=Status.FAIL,
        claim="The drafter was trained on this dump.",
        evidence=f"Slots: {', '.join(inv.dump.slot_names)}. fc takes {config.num_slots} slots of {config.target_hidden_size} by the drafter's config.",
        numbers={"slots": aux, "fc": config.num_slots},
        next="Dump again with all layers' ids: a layer that an engine cannot capture is left out without a word (see wiring.engine). Or this is "
        "another drafter's dump.",
    )


def _forecast(inv: Investigation) -> str:
    """What a dump of this target would take, before it is made."""
    from eaglelab.dumps.health import bytes_of_states

    hidden = None if inv.target_config is None else text_part(inv.target_config).get("hidden_size")
    if isinstance(hidden, bool) or not isinstance(hidden, int) or hidden < 1:
        return ""
    each = bytes_of_states(hidden)
    return f". Four states of {hidden} in bf16 take {each:,} bytes a token: {each * 1e8 / 1e12:.1f} TB for 100 million tokens"


def norms(inv: Investigation) -> Iterator[Finding]:
    """The slots' norms: shown, compared, and never taken for an identity."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    table, odd = inv.fingerprint.slots, unlike_the_rest(inv.fingerprint.tokens)
    medians = ", ".join(f"{m:.4g}" for m in table["median"])
    sinks = [f"slot {r.slot} {r.first_ratio:.0f} times" for r in table.itertuples() if r.first_ratio > 10]
    yield Finding(
        id="dump.norms",
        title=f"Median L2 norms of the slots: {medians}; norms name no layer"
        if not odd
        else f"{len(odd)} of {len(inv.samples)} samples have slots of other norms than the rest",
        status=Status.CANNOT_TELL if odd else Status.PASS,
        claim="A norm is often taken for a sign of the layer that it comes from.",
        evidence=f"{inv.fingerprint.counted}; the first token of a sample is left out"
        + (f", it is {', '.join(sinks)} the median." if sinks else "."),
        numbers={"median": table["median"].tolist(), "first": table["first"].tolist(), "massive": table["massive"].tolist()},
        next=f"Look at {', '.join(odd[:4])}: swapped slots, another target or a broken capture would look like this."
        if odd
        else "Which layer a slot holds is decided by values: see wiring.dump.",
    )


def unlike_the_rest(tokens: pd.DataFrame) -> list[str]:
    """Samples with a slot whose median norm is far from that slot's in the other samples: not all samples are compared with the target,
    and these are the ones to look at.

    tokens: `Fingerprint.tokens`. A dump's samples agree within some ten per cent (measured on the example: 8 %).
    """
    medians = tokens[~tokens["massive"]].groupby(["sample", "slot"])["norm"].median().unstack()  # samples x slots
    typical = medians.median()
    away = (medians / typical).where(typical > 0, 1.0)
    return medians.index[((away > UNLIKE) | (away < 1 / UNLIKE)).any(axis=1)].tolist()


def layout(inv: Investigation) -> Iterator[Finding]:
    """The layers that the format's own writer captures, by the ids beside the samples or by its default, against those found by value."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    implied = inv.dump.implied
    if implied is None or implied.framework is None or not (implied.certain or implied.layer_ids):
        title = f"A {inv.dump.format} dump implies no layers by itself"
        yield Finding("dump.format", title, Status.NOT_APPLICABLE, claim="" if implied is None else f"{implied.describe()}.")
        return
    if not inv.dump.feed.aux:
        yield Finding("dump.format", f"A {inv.dump.format} dump holds no aux slots", Status.NOT_APPLICABLE, claim=f"{implied.describe()}.")
        return
    layers = inv.num_layers
    if layers is None:
        raise NotGiven("the number of the target's layers", "`[target] config` names its config.json")
    writer = parse_engine(implied.framework, what="training framework")
    ids = None if implied.layer_ids is None else list(implied.layer_ids)
    fed = convention_for(writer).feed(ids, layers)
    slots = range(len(inv.dump.slot_names)) if len(fed.boundaries) == len(inv.dump.slot_names) else inv.dump.feed.aux
    said, held = Wiring(fed.boundaries), inv.dump_wiring.select(slots)
    same = held.known and held == said
    source = f"ids {ids} beside the samples" if ids else f"{writer.title}'s default for {layers} layers"
    yield Finding(
        id="dump.format",
        title=f"{source[0].upper() + source[1:]}: boundaries {said}; the dump holds {held}",
        status=Status.CANNOT_TELL if not held.known else Status.PASS if same or not ids else Status.FAIL,
        claim=f"{implied.describe()} ({implied.source}).",
        evidence=" ".join([*fed.notes, f"By comparison of values, slots {list(slots)} hold {held}."]),
        numbers={"ids": ids, "implied": said.to_json(), "dump": held.to_json(), "convention": str(writer)},
        next=inv.identification.next_step
        if not held.known
        else ""
        if same
        else "The ids beside the samples are not those that were captured, or not by this convention: trust the values."
        if ids
        else "Other layers than the default were asked for, or another program wrote the files: trust the values.",
    )


def last_state(inv: Investigation) -> Iterator[Finding]:
    """The last state must have gone through the final norm exactly once before lm_head: is it normed, and what does its trainer do?"""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    slot = inv.dump.feed.last
    if slot is None:
        title = "The dump holds no last state: what the target says is not in it, and the replay is judged by the text's token"
        yield Finding("dump.last_state", title, Status.NOT_APPLICABLE)
        return
    identified = inv.identified_last
    if isinstance(identified, int) and identified != inv.identification.num_layers:
        yield _not_last(slot, identified, inv.identification.num_layers)
        return
    try:
        measured = inv.last_state
    except NotGiven:
        if identified is None:
            raise
        measured = None
    yield _normed(inv, slot, identified, measured)
    if inv.trainer is not None and inv.last_boundary is not None:
        yield from final_norm(inv.trainer, inv.last_boundary, inv.num_layers, inv.flagged_last_state)


def _normed(inv: Investigation, slot: int, identified: Boundary, measured: LastState | None) -> Finding:
    """Normed or not, by comparison, values and lm_head, beside what files and format say of it."""
    boundary = inv.last_boundary
    normed = None if boundary is None else boundary == FINAL
    flagged, implied = inv.flagged_last_state, inv.dump.implied
    stated = flagged or (implied.last_state if implied is not None else None)
    other = None not in (stated, normed) and (stated == "final") != normed
    writer = "" if stated is None else "The files say themselves" if flagged else f"{implied.writer} writes"
    says = {way: measured.rate(way) for way in measured.right or ()} if measured else {}
    rate = says.get("normed" if normed is False else "as it is")
    contradicted = measured is not None and None not in (identified, measured.normed) and normed != measured.normed
    untrained = measured is not None and measured.right is not None and rate is None
    weak = rate is not None and rate < (SAYS_MOST if measured.ground == "lm_head" else SAYS_SOME)
    tried = ", ".join(
        f"{way}{' again' if normed is not False and way == 'normed' else ''} {r:.1%}" for way, r in says.items() if r is not None
    )
    if measured is not None and measured.twice:
        status = Status.FAIL
        todo = "Dump the state as the target gives it, without another norm, and train again: its targets were not the target's choices."
    elif inv.last_fault:
        status, todo = Status.CANNOT_TELL, "Is the target the one that made the dump? If it is, dump the last state again."
    elif other and (flagged or implied.certain):
        status, todo = (
            Status.FAIL,
            f"Trainers that read {inv.dump.format} files take it for the state {STATES[stated]}: write that state into the slot, or have yours take it as it is.",
        )
    elif contradicted:
        status, todo = Status.CANNOT_TELL, "Comparison and numbers disagree: is the target the right one?"
    elif boundary is None:
        status, todo = Status.CANNOT_TELL, "Both norm.weight and lm_head of the target's folder tell it, or a comparison with a sketch."
    elif untrained or weak:
        status = Status.CANNOT_TELL
        todo = "Mend the loss mask, or read more samples." if untrained else "Is the text the target's own, and the target the right one?"
    else:
        status, todo = Status.PASS, (MIND_TRAINER if other and inv.case.training.framework is None else "")
    where = (
        "was normed twice in the dump"
        if measured is not None and measured.twice
        else "fits no boundary of the target"
        if inv.last_fault
        else "cannot be told to be normed or not"
        if normed is None
        else f"is {STATES['final' if normed else 'N']}"
    )
    return Finding(
        id="dump.last_state",
        title=f"The last state {where}" + (f"; by lm_head it says the text: {tried}" if tried else ""),
        status=status,
        claim=f"Slot {slot} is the last state; a trainer turns it into the target's choice of token."
        + (f" {writer}: {STATES[stated]}." if stated else ""),
        evidence=" ".join(_looks(identified, measured, inv)),
        numbers={
            "identified": identified,
            "normed": normed,
            "twice": measured is not None and measured.twice,
            "stated": stated,
            "ground": "comparison" if identified is not None else measured.ground,
            "rms": measured.test.rms if measured and measured.test else None,
            "spread": measured.test.spread if measured and measured.test else None,
            "right": measured.right if measured else None,
        },
        next=todo,
    )


def _looks(identified: Boundary, measured: LastState | None, inv: Investigation) -> Iterator[str]:
    """What was looked at, one sentence each."""
    if identified is not None:
        yield f"Identified as {boundary_name(identified, inv.num_layers)} by comparison of values."
    if measured is not None and (test := measured.test) is not None:
        yield (
            f"RMS of h / the norm's gain: median {test.rms:.4g} over {test.tokens} tokens, spread {test.spread:.2%} (after the norm it is 1 in "
            "every token)."
        )
    if measured is not None and measured.right:
        counts = ", ".join(f"{way} {right} of {n}" for way, (right, n) in measured.right.items())
        yield f"lm_head's argmax is the text's next token: {counts}."
    if measured is not None and measured.why:
        yield (
            f"Not told by the numbers: {measured.why}."
            if not measured.twice
            else "A norm once more leaves that RMS at 1; lm_head tells them apart."
        )
    if inv.last_fault:
        yield f"What counts as right is therefore the text's token, not the target's choice: {inv.last_fault}."


def _not_last(slot: int, identified: int, num_layers: int | None) -> Finding:
    last = "the last layer" if num_layers is None else f"boundary {num_layers} or the state after the final norm"
    return Finding(
        id="dump.last_state",
        title=f"Slot {slot} goes as the last state and holds {boundary_name(identified, num_layers)}, not {last}",
        status=Status.FAIL,
        claim=f"Slot {slot} is the last state; a trainer turns it into the target's choice of token.",
        evidence=f"Identified as boundary {identified} by comparison of values.",
        numbers={"identified": identified, "num_layers": num_layers},
        next="Name the right slot last in `[dump] feed`; if none holds it, the drafter learned from answers that are not the target's.",
    )
