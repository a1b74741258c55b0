"""The dump's files, and its last state."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven

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
        title=f"{summary['text']}" + (f"; {warnings} warnings" if warnings else ""),
        status=Status.FAIL if errors else Status.PASS,
        claim=f"A {inv.dump.format} dump of {len(inv.dump):,} samples with {len(inv.dump.slot_names)} slots.",
        evidence=(f"Found, by number of samples: {listed}." if listed else "No file is broken, no state is NaN, zero or of another width.")
        + f" Training split: {inv.case.dump.split or 'not said'}.",
        numbers=dict(summary),
        next="`eaglelab dump CASE` lists them file by file; dump the broken ones again." if errors else "",
    )


def last_state(inv: Investigation) -> Iterator[Finding]:
    """The last state must have gone through the final norm exactly once before lm_head: which way does it say the text?"""
    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    if inv.head is None:
        raise NotGiven(
            "the target's lm_head and final norm", "`[target] path` names the target's checkpoint; three tensors of it are enough"
        )
    from eaglelab.engines.lint import lint
    from eaglelab.replay.answers import last_state_needs_norm

    slot = inv.dump.feed.last
    needs, counts = last_state_needs_norm(inv.samples[:4], slot, inv.head)
    rates = {name: (right / n if n else None) for name, (right, n) in counts.items()}
    identified = inv.dump_wiring[slot]
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
        next="Neither way says the text: is the text the target's own, and the target the right one?" if near else "",
    )
    if identified is not None and inv.draft_config is not None and inv.engine is not None:
        trained = inv.case.training
        known = lint(inv.draft_config, inv.engine, inv.target_config, trained.framework, trained.version, last_state=identified)
        yield from (f for f in known if f.id == "config.final_norm")
