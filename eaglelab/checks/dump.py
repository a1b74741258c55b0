"""The dump's files, and its last state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven

if TYPE_CHECKING:
    import pandas as pd
from eaglelab.wiring import boundary_name

UNLIKE = 1.5
"""A sample whose slot norm is this many times the dump's (or its inverse) is unlike the rest."""
DUMP = "`[dump] path` names the folder of hidden states that the drafter was trained on"


def health(inv: Investigation) -> Iterator[Finding]:
    """Files that cannot be read or mislead."""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    summary = inv.health.summary
    errors, warnings = summary["severity"].get("error", 0), summary["severity"].get("warning", 0)
    listed = ", ".join(f"{what} ({n})" for what, n in list(summary["problems"].items())[:6])
    yield Finding(
        id="dump.health",
        title=summary["text"] + (f": {listed}" if errors else f"; warnings: {warnings}" if warnings else ""),
        status=Status.FAIL if errors else Status.PASS,
        claim=f"A {inv.dump.format} dump of {len(inv.dump):,} samples with {len(inv.dump.slot_names)} slots.",
        evidence=(f"Found, by number of samples: {listed}." if listed else "No file is broken, no state is NaN, zero or of another width.")
        + f" Training split: {inv.case.dump.split or 'not said'}.",
        numbers=dict(summary),
        next="`eaglelab dump CASE` lists them file by file; dump the broken ones again." if errors else "",
    )


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


def last_state(inv: Investigation) -> Iterator[Finding]:
    """The last state must have gone through the final norm exactly once before lm_head: which way does it say the text?"""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    slot = inv.dump.feed.last
    identified = inv.dump_wiring[slot]
    if isinstance(identified, int) and identified != inv.identification.num_layers:
        yield _not_last(slot, identified, inv.identification.num_layers)
        return
    if inv.head is None:
        raise NotGiven(
            "the target's lm_head and final norm", "`[target] path` names the target's checkpoint; three tensors of it are enough"
        )
    from eaglelab.engines.lint import lint
    from eaglelab.replay.answers import last_state_needs_norm

    needs, counts = last_state_needs_norm(inv.samples[:4], slot, inv.head)
    inv.judge.norm_last = needs  # measured once: the replay judges by the same way
    rates = {name: (right / n if n else None) for name, (right, n) in counts.items()}
    best, other = ("normed", "as it is") if needs else ("as it is", "normed")
    near = rates[best] is None or rates[best] < 0.5
    yield Finding(
        id="dump.last_state",
        title=f"The last state says the text {rates[best]:.1%} of the time {'after the final norm' if needs else 'as it is'}, "
        f"{rates[other]:.1%} {'as it is' if needs else 'normed (again)'}"
        if rates[best] is not None
        else "No trained token to judge the last state by",
        status=Status.CANNOT_TELL if near else Status.PASS,
        claim=f"Slot {slot} is the last state; a trainer turns it into the target's choice of token.",
        evidence="lm_head applied both ways, compared with the text's next token"
        + (f"; identified as {identified}." if identified is not None else "."),
        numbers={"as_it_is": counts["as it is"], "normed": counts["normed"], "needs_norm": needs, "identified": identified},
        next="Mend the loss mask, or read more samples."
        if rates[best] is None
        else "Neither way says the text: is the text the target's own, and the target the right one?"
        if near
        else "",
    )
    if identified is not None and inv.served_wiring is not None:
        trained = inv.case.training
        known = lint(inv.draft_config, inv.engine, inv.target_config, trained.framework, trained.version, last_state=identified)
        yield from (f for f in known if f.id == "config.final_norm")


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
