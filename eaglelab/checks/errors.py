"""Errors in a server's log, or in a text that somebody gives, and what they mean for this case. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from eaglelab.engines.errors import Explanation, Facts, Reader, explain_error
from eaglelab.engines.target_config import target_shape
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.outside_json import text_part
from eaglelab.served.lines import LineReader

LOG = "`[engine] log` names the file that the server writes; `eaglelab check CASE --error @FILE` explains a message without one"
STANDING = {
    "established": "Established in {where}.",
    "claimed": "So says a participant of {where}.",
    "inferred": "Our reading, after {where}.",
    "not known": "No public report of it is known here.",
}
SHOWN, MESSAGE = 300, 60
"""Characters of a message that are shown; lines up to which a text is a message or a traceback, not a log."""


def facts_of(inv: Investigation) -> Facts:
    """What a case tells about widths, vocabularies and layers; what cannot be read is left out, the checks of that part say so."""
    found: dict[str, object] = {}
    with suppress(ValueError):
        config = inv.drafter_config
        if config is not None:
            found |= {
                "hidden": config.target_hidden_size,
                "draft_hidden": config.hidden_size,
                "slots": config.num_slots,
                "vocab": config.vocab_size,
                "draft_vocab": config.draft_vocab_size,
            }
    with suppress(ValueError):
        if inv.target_config is not None:
            text = text_part(inv.target_config)
            sizes = {"hidden": text.get("hidden_size"), "vocab": text.get("vocab_size")}
            found |= {name: size for name, size in sizes.items() if isinstance(size, int) and not isinstance(size, bool) and size > 0}
            found["num_layers"] = target_shape(inv.target_config).num_layers
    with suppress(ValueError):
        config = inv.draft_config or {}
        positions = config.get("max_position_embeddings")
        found["positions"] = positions if isinstance(positions, int) and not isinstance(positions, bool) else None
        ids = None if inv.served_wiring is None else inv.served_wiring.ids
        found["ids"] = tuple(ids) if ids is not None else None
    with suppress(ValueError):
        found["engine"] = inv.engine
        if (launch := inv.launch) is not None:
            found |= {"steps": launch.num_steps, "draft_tokens": launch.num_draft_tokens}
            found["pipeline"] = launch.number("pp_size", "pipeline_parallel_size", "pp")
    return Facts(**found)


def log(inv: Investigation) -> Iterator[Finding]:
    """Errors and warnings in `[engine] log` that say something of drafter, target or engine."""
    if inv.case.engine.log is None:
        raise NotGiven("a server's log", LOG)
    yield from in_log(inv.case.engine.log, inv)


def in_log(path: Path, inv: Investigation | None = None) -> Iterator[Finding]:
    """The same of any log, streamed; one `pass` where nothing is known, `cannot tell` where the file is
    empty or breaks off. Raises LogError."""
    lines = LineReader(path)
    found = list(_of_lines(((line.number, line.text) for line in lines), inv))
    if [f.id for f in found] == ["errors"] and (lines.broken or not lines.lines):
        title = f"No error in the {lines.lines:,} lines that could be read" if lines.lines else f"{path.name} holds no line"
        why = f"{lines.broken}." if lines.broken else "Nothing was written into it, or it was emptied."
        found = [Finding("errors", title, Status.CANNOT_TELL, evidence=why, numbers=found[0].numbers, next="Give the whole log.")]
    yield from found


def given(text: str, inv: Investigation | None = None) -> list[Finding]:
    """Findings for a text that somebody gives, one each message; a text of many lines is read as a log. Raises ValueError for an empty one."""
    lines = text.splitlines()
    if len(lines) > MESSAGE:
        return list(_of_lines(enumerate(lines, start=1), inv))
    found = explain_error(text, Facts() if inv is None else facts_of(inv))
    if not found:
        raise ValueError("the text of --error is empty: expected an error message, a traceback or a part of a log")
    return [finding(e) for e in found]


def _of_lines(lines: Iterable[tuple[int, str]], inv: Investigation | None) -> Iterator[Finding]:
    reader, number = Reader(Facts() if inv is None else facts_of(inv)), 0
    for number, text in lines:
        reader.take(number, text)
    found = [finding(e) for e in reader.explanations()]
    yield from found
    if reader.left_out:
        title = f"{reader.left_out:,} further lines of the log hold other errors"
        yield Finding("errors.more", title, Status.CANNOT_TELL, next="Mend the first ones, and give the new log.")
    if not found:
        yield Finding("errors", f"No error in {number:,} lines of the log that is known here", Status.PASS, numbers={"lines": number})


def finding(e: Explanation) -> Finding:
    """An explanation as a finding: `fail` for an established error, `cannot tell` for a warning, for what the server lived on after, and for
    what is not known or only inferred."""
    sure = e.standing in ("established", "claimed") and e.level in ("error", "text") and not e.went_on
    where = ", ".join(e.sources)
    at = f"line {e.line:,}" if e.line else "given"
    often = f", {e.count:,} times" if e.count > 1 else ""
    message = e.message.strip()
    shown = message if len(message) <= SHOWN else f"{message[: SHOWN - 1]}…"
    parts = [
        *e.widths.sentences,
        e.meaning,
        f"Raised in {e.place}." if e.place and e.id != "unknown" else "",
        f"The server went on: {e.went_on:,} lines of decoding follow." if e.went_on else "",
        STANDING[e.standing].format(where=where),
    ]
    return Finding(
        id=f"errors.{e.id}",
        title=_title(e),
        status=Status.FAIL if sure else Status.CANNOT_TELL,
        claim=f"The message ({at}{often}): {shown}",
        evidence=" ".join(filter(None, parts)),
        numbers=e.to_json(),
        next=e.next,
    )


def _title(e: Explanation) -> str:
    told = e.widths.numbers
    for came, asked in (("given_slots", "expected_slots"), ("built_slots", "stored_slots")):
        if came in told and asked in told and e.widths.cause != "all_states":
            words = "given" if came == "given_slots" else "built"
            return f"{e.title}: {told[came]} {words}, {told[asked]} {'expected' if words == 'given' else 'in the checkpoint'} (H = {told['hidden']:,})"
    if "slots" in told and "hidden" in told:
        return f"{e.title}: {' and '.join(map(str, told['slots']))} of H = {told['hidden']:,}"
    return e.title
