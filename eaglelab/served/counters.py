"""What an engine counted, from any file that holds it: a recording, Prometheus text, server info, answers' own counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.findings import few
from eaglelab.outside_json import too_deep
from eaglelab.served import answers, prometheus, server_info
from eaglelab.served.counts import ServedCounts, count_of
from eaglelab.served.recording import Recording, RecordingError

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 2**29
EXPECTED = (
    "a recording of `eaglelab live`, Prometheus text (curl …/metrics), SGLang's /server_info, or answers with their meta_info or speculative metrics "
    "(JSON or JSON lines)"
)


class CountersError(ValueError):
    """A file without counts of speculation; the message says what was found and what to do."""


@dataclass(frozen=True)
class Part:
    """One request, engine or rank."""

    name: str
    counts: ServedCounts | None
    accept_length: float | None
    verify_steps: int | None = None


@dataclass(frozen=True)
class Counters:
    """What a file tells of served acceptance. `counts` are exact; where there are none, `accept_length` is what the engine says, as `definition` names it."""

    path: Path
    kind: str
    """`recording`, `prometheus`, `server_info` or `answers`."""
    engine: str | None
    """`sglang` or `vllm`, with the version where the file tells it (`sglang==0.5.23`)."""
    counts: ServedCounts | None
    accept_length: float | None
    """Tokens per verify pass; the bonus token is included in every definition that occurs here."""
    definition: str | None
    parts: tuple[Part, ...] = ()
    num_steps: int | None = None
    num_draft_tokens: int | None = None
    unread: int = 0
    """Lines or answers that could not be read or hold no counts."""
    notes: tuple[str, ...] = ()
    recording: Recording | None = field(default=None, repr=False)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a part: name, verify_steps, accepted, accept_length, joint (tuple of rates or None)."""
        import pandas as pd

        return pd.DataFrame([_row(part) for part in self.parts], columns=["name", "verify_steps", "accepted", "accept_length", "joint"])


def _row(part: Part) -> dict[str, Any]:
    counts = part.counts
    joint = None if counts is None or counts.joint is None else tuple(counts.joint_rate(k) for k in range(len(counts.joint)))
    steps = part.verify_steps if counts is None else counts.verify_steps
    accepted = None if counts is None else counts.accepted
    return {"name": part.name, "verify_steps": steps, "accepted": accepted, "accept_length": part.accept_length, "joint": joint}


def read_counters(path: str | Path, *, before: str | Path | None = None) -> Counters:
    """Counts of speculation in a file, told apart by what it holds.

    before: an earlier scrape of the same server (Prometheus text), whose counters are taken off. A file may also hold several scrapes one
    behind the other; then the first is taken off the last. Raises CountersError for a file that cannot be read or holds no such counts.
    """
    path = Path(path)
    text = _text(path)
    if text.lstrip()[:1] in ("{", "["):
        if before is not None:
            raise CountersError(f"{path.name} is JSON: an earlier scrape is only taken off Prometheus text")
        return _from_json(path, text)
    if prometheus.is_prometheus(text):
        scrapes = prometheus.parse_scrapes(text)
        if before is not None:
            scrapes = [prometheus.parse_scrapes(_text(Path(before)))[-1], *scrapes]
        return from_scrapes(path, scrapes)
    raise CountersError(f"{path.name} holds no counts of speculation, expected {EXPECTED}; a server's log goes into `[engine] log`")


def _text(path: Path) -> str:
    if not path.is_file():
        raise CountersError(f"{path.name}: expected {EXPECTED}, got {'a folder' if path.is_dir() else 'nothing there'}")
    if path.stat().st_size > LARGEST:
        raise CountersError(
            f"{path.name} has {path.stat().st_size:,} bytes, expected at most {LARGEST:,}: give the counters of fewer answers"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CountersError(f"{path.name} cannot be read: {error.strerror}") from None
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise CountersError(
            f"{path.name} is UTF-16 (PowerShell writes it so), expected UTF-8: `iconv -f UTF-16 -t UTF-8 {path.name}` turns it into that"
        )
    return content.decode("utf-8", "replace").removeprefix("\ufeff")


# -- Prometheus --------------------------------------------------------------------------------------------------------------------------------


def from_scrapes(path: Path, scrapes: Sequence[prometheus.Scrape]) -> Counters:
    """scrapes: of one server, in order of time. Raises CountersError where they hold nothing of speculation."""
    told = prometheus.servers(scrapes[-1])
    if len(told) > 1:
        raise CountersError(
            f"{path.name} holds the counters of several servers ({few(told, 4)}): give the text of one, or one model's lines"
        )
    unread = prometheus.unread(scrapes)
    found, notes = prometheus.vllm_counts(scrapes)
    total = _sum(list(found.values())) if found else None
    if total is not None and total.verify_steps:
        if len(scrapes) == 1:
            notes.append("one scrape: everything since the server's start, warm-up and other people's requests included")
        parts = tuple(Part(name, counts, counts.accept_length) for name, counts in found.items())
        steps = None if total.joint is None else len(total.joint)
        return Counters(path, "prometheus", "vllm", total, total.accept_length, answers.COUNTED, parts, steps, None, unread, tuple(notes))
    gauges = prometheus.sglang_gauges(scrapes[-1])
    lengths = {rank: values["spec_accept_length"] for rank, values in gauges.items() if values.get("spec_accept_length", 0) >= 1}
    lengths = _possible(lengths, _one(values.get("spec_num_draft_tokens") for values in gauges.values()), notes)
    generated, verify, fell = prometheus.sglang_verify_calls(scrapes)
    steps, tokens = (_one(values.get(name) for values in gauges.values()) for name in ("spec_num_steps", "spec_num_draft_tokens"))
    parts = tuple(Part(rank, None, value) for rank, value in lengths.items())
    if fell:
        notes.append("SGLang's counters fell between two scrapes (a restart): counted since then")
    if verify:
        if len(scrapes) == 1:
            notes.append("one scrape: everything since the server's start, the warm-up included")
        definition = "generated tokens / verify passes of finished requests: counts each answer's first token and is cut at its end"
        value = generated / verify
    elif lengths:
        definition = "the gauge sglang:spec_accept_length: the last log interval alone, the bonus token included"
        value = sum(lengths.values()) / len(lengths)
        if len(set(lengths.values())) > 1:
            notes.append(f"{len(lengths)} ranks with different values: their plain mean, since their verify passes are not told")
    else:
        what = (
            "; ".join(notes) or "no counter of vllm:spec_decode_num_… and no gauge sglang:spec_accept_length above 0"
            if total is None
            else "no verify pass was counted"
        )
        raise CountersError(
            f"{path.name} is Prometheus text without speculation ({what}): was the server started with a drafter, and has it answered?"
        )
    return Counters(path, "prometheus", "sglang", None, value, definition, parts, steps, tokens, unread, tuple(notes))


def _possible(lengths: dict[str, float], tokens: int | None, notes: list[str]) -> dict[str, float]:
    """Without accept lengths above the draft tokens of a pass."""
    kept = {rank: value for rank, value in lengths.items() if not tokens or value <= tokens}
    if len(kept) < len(lengths):
        notes.append(f"an accept length of {max(lengths.values()):g} with {tokens} draft tokens a pass cannot be: left out")
    return kept


def _one(values: Iterator[float | None]) -> int | None:
    told = {value for value in values if value}
    value = told.pop() if len(told) == 1 else None
    return int(value) if value is not None and value == int(value) else None


def _sum(counts: Sequence[ServedCounts]) -> ServedCounts:
    return sum(counts[1:], counts[0])


# -- JSON --------------------------------------------------------------------------------------------------------------------------------------


def _from_json(path: Path, text: str) -> Counters:
    whole = _parsed(text)
    if whole is None:
        first = _parsed(text.lstrip().split("\n", 1)[0])
        if isinstance(first, dict) and first.get("kind") == "session":
            return _from_recording(path)
    elif isinstance(whole, dict) and whole.get("kind") == "session":
        return _from_recording(path)
    if server_info.is_server_info(whole) and (info := _from_server_info(path, whole)) is not None:
        return info
    unread, found = 0, []
    if whole is not None:
        found = list(answers.answers_in(whole))
    else:
        for line in text.split("\n"):  # U+2028 in an answer ends no line
            entry = _parsed(line)
            told = list(answers.answers_in(entry)) if entry is not None else []
            unread += bool(line.strip()) and not told
            found += told
    if not found:
        raise CountersError(f"{path.name} is JSON without counts of speculation, expected {EXPECTED}")
    return from_answers(path, found, unread)


def _parsed(text: str) -> Any:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if too_deep(content) else content


def from_answers(path: Path, found: Sequence[answers.Answer], unread: int = 0) -> Counters:
    """One set of counts over answers; of a streamed answer, whose counts are sent again and again, the last."""
    latest: dict[Any, answers.Answer] = {(answer.request or index): answer for index, answer in enumerate(found)}
    kept = list(latest.values())
    notes = []
    if len(kept) < len(found):
        notes.append(f"{len(found) - len(kept)} earlier counts of the same requests left out: a stream repeats them")
    doubts = [answer.doubt for answer in kept if answer.doubt and answer.counts is not None]
    if doubts:
        notes.append(f"{len(doubts)} of {len(kept)} answers contradict themselves ({doubts[0]}): their histograms were taken")
    impossible = [answer.doubt for answer in kept if answer.doubt and answer.counts is None]
    if impossible:
        notes.append(f"{len(impossible)} of {len(kept)} answers tell what cannot be ({impossible[0]}) and are left out")
    told = [answer.counts for answer in kept if answer.counts is not None]
    parts = tuple(
        Part(answer.request or str(index), answer.counts, answer.accept_length, answer.verify_steps) for index, answer in enumerate(kept)
    )
    engine = kept[0].engine
    steps = _one(answer.num_steps for answer in kept)
    if told:
        if len(told) < len(kept):
            notes.append(f"{len(kept) - len(told)} of {len(kept)} answers tell no accepted drafts and are left out")
        if any(counts.joint is None for counts in told) and any(counts.joint is not None for counts in told):
            notes.append("some answers have no histogram: acceptance by step is left out")
        total = _sum(told)
        unread += len(kept) - len(told)
        return Counters(path, "answers", engine, total, total.accept_length, answers.COUNTED, parts, steps, None, unread, tuple(notes))
    pairs = [(a.completion_tokens, a.verify_steps) for a in kept if a.accept_length is not None]
    if not pairs:
        raise CountersError(
            f"{path.name}: {len(kept)} answers, none with a verify pass that counts{': ' + notes[-1] if impossible else ''}: was the server started "
            "with a drafter?"
        )
    value = sum(tokens for tokens, _ in pairs) / sum(passes for _, passes in pairs)
    notes.append("no answer tells its accepted drafts (SGLang has told them since 0.5.6): too high by about one token an answer")
    return Counters(path, "answers", engine, None, value, answers.OVER_VERIFY, parts, steps, None, unread, tuple(notes))


def _from_server_info(path: Path, content: dict[str, Any]) -> Counters | None:
    lengths, known = server_info.accept_lengths(content), server_info.settings(content)
    notes: list[str] = []
    steps, tokens = (count_of(known.get(f"speculative_{name}")) or None for name in ("num_steps", "num_draft_tokens"))
    silent = server_info.ranks(content) - len(lengths)
    told, lengths = len(lengths), _possible(lengths, tokens, notes)
    if told and silent:
        notes.append(f"{silent} of {silent + told} ranks tell no accept length yet")
    if not lengths:
        if notes:
            raise CountersError(f"{path.name} is server info without an accept length that can be: {notes[0]}")
        if any(answers.answers_in(content)):
            return None
        raise CountersError(
            f"{path.name} is server info without avg_spec_accept_length: no decode log line yet (every --decode-log-interval passes), or no drafter"
        )
    if len(set(lengths.values())) > 1:
        notes.append(f"{len(lengths)} data-parallel ranks: their plain mean, since their verify passes are not told")
    parts = tuple(Part(rank, None, value) for rank, value in lengths.items())
    version = known.get("version")
    engine = f"sglang=={version}" if isinstance(version, str) and version[:1].isdigit() else "sglang"
    value = sum(lengths.values()) / len(lengths)
    return Counters(path, "server_info", engine, None, value, server_info.DEFINITION, parts, steps, tokens, 0, tuple(notes))


# -- recordings --------------------------------------------------------------------------------------------------------------------------------


def _from_recording(path: Path) -> Counters:
    """Of the requests; where the engine told nothing for them, of the answers' meta_info, then of the scrapes, then of the server's info."""
    try:
        recording = Recording.load(path)
    except RecordingError as error:
        raise CountersError(str(error)) from None
    session, notes = recording.session, []
    if recording.failures:
        notes.append(f"{len(recording.failures)} requests got no answer")
    if not recording.ended:
        notes.append("the recording was cut off")
    steps, tokens = session.num_steps, session.num_draft_tokens

    def counters(counts: ServedCounts | None, value: float | None, definition: str | None, parts: Sequence[Part], more: Sequence[str] = ()):
        unread = recording.cut_lines
        engine = session.engine
        return Counters(
            path, "recording", engine, counts, value, definition, tuple(parts), steps, tokens, unread, (*notes, *more), recording=recording
        )

    told = [(request, request.counts(steps)) for request in recording.requests]
    parts = [Part(str(request.index), counts, counts.accept_length) for request, counts in told if counts is not None]
    if beyond := sum(request.beyond(steps) for request in recording.requests):
        notes.append(f"{beyond} of {len(told)} requests accepted more in a pass than K = {steps} steps draft, and are left out")
    if parts:
        if len(parts) < len(told):
            notes.append(f"{len(told) - len(parts)} of {len(told)} requests have no counts")
        return counters(recording.counts, recording.counts.accept_length, answers.COUNTED, parts)
    found = [answer for request in recording.requests for answer in answers.answers_in(request.meta_info)]
    texts = [scrape.metrics for scrape in recording.scrapes if scrape.metrics]
    texts = texts if len(texts) > 1 else []  # one alone holds what others asked before
    for read in (lambda: from_answers(path, found), lambda: from_scrapes(path, [prometheus.parse_scrapes(text)[-1] for text in texts])):
        try:
            other = read() if found or texts else None
        except (CountersError, IndexError):
            continue
        if other is not None:
            return counters(other.counts, other.accept_length, other.definition, other.parts, other.notes)
    infos = [scrape.server_info for scrape in recording.scrapes if scrape.server_info]
    lengths = server_info.accept_lengths(infos[-1]) if infos and server_info.is_server_info(infos[-1]) else {}
    if lengths:
        parts = [Part(rank, None, value) for rank, value in lengths.items()]
        return counters(None, sum(lengths.values()) / len(lengths), server_info.DEFINITION, parts)
    raise CountersError(
        f"{path.name}: a recording of {len(told)} requests without counts of speculation: was the server started with a drafter?"
    )
