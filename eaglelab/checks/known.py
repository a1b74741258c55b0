"""Faults that this version of the engine is known to have, where the case's target, drafter or flags meet them. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from eaglelab.engines.conventions import parse_engine
from eaglelab.engines.known import Situation, known_faults
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation


def situation(inv: Investigation) -> Situation | None:
    """What of a case decides; None without an engine. What cannot be read is not known: the checks of that part say so."""
    found: dict[str, object] = {}
    for name, read in (
        ("launch", lambda: inv.launch),
        ("target", lambda: inv.target_config),
        ("drafter", lambda: inv.draft_config),
        ("draft_hidden", lambda: inv.drafter_config and inv.drafter_config.hidden_size),
        ("own_embedding", lambda: inv.audit and inv.audit.embedding is not None),
        ("own_head", lambda: inv.audit and inv.audit.head is not None),
        ("temperature", lambda: inv.recording and inv.recording.session.temperature),
    ):
        with suppress(ValueError, OSError):
            found[name] = read()
    engine = inv.engine
    if engine is None or not engine.is_engine:
        return None
    if engine.version is None:  # what the recording's server said of itself
        with suppress(ValueError, OSError):
            said = inv.recording and inv.recording.session.engine
            ran = parse_engine(said) if said else engine
            engine = ran if ran.name == engine.name else engine
    return Situation(engine, **found)


def known(inv: Investigation) -> Iterator[Finding]:
    """One finding each; nothing where none is known to meet this case."""
    here = situation(inv)
    for fault in () if here is None else known_faults(here):
        row, title = fault.row, fault.row["title"].format(engine=here.engine.title)
        read = f" Read in {row['read']}." if "read" in row else ""
        said = "Established" if row["standing"] == "established" else "Claimed"
        open_ = f" Not known here: {'; '.join(fault.open)}." if fault.open else ""
        yield Finding(
            id=f"engine.known.{row['id']}",
            title=title if fault.sure else f"It may be that {title}",
            status=Status.FAIL if fault.sure else Status.CANNOT_TELL,
            claim=f"{here.engine.title} serves this drafter as its config and flags say.",
            evidence=f"{row['text']} {said} in {', '.join(row['source'])}.{read}{open_}",
            numbers={
                "fault": row["id"],
                "versions": {k: row[k] for k in ("after", "from", "to", "fixed") if k in row},
                "open": list(fault.open),
            },
            next=row["next"],
        )
