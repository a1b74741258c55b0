"""What an engine's or a trainer's error message means for an EAGLE-3 drafter, and what its widths say.

The messages are data (`patterns.toml`, each with its public source), the arithmetic is in `widths.py`. What no pattern fits is said to be
not known, with what can still be read from it.
"""

from __future__ import annotations

import re
import tomllib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from eaglelab.engines.errors.widths import NO_FACTS, NOT_READ, Facts, Read, read, shape
from eaglelab.findings import plain

__all__ = ["Explanation", "Facts", "Reader", "explain_error", "explain_lines"]

SIGNS = (
    *("rror", "RROR", "ssert", "xception", "arn", "ARN", "ailed", "NaN", "nan", "memory", "mismatch", "not support", "only support"),
    *("state_dict", "params_dict", "not initialized", "out of bounds", "not contain", "not used", "alling back", "greater than"),
)
"""One of them stands in every line that a pattern may fit: the rest of a log, nearly all of it, is passed over."""
TRACEBACK, FRAME = "Traceback (most recent call last)", re.compile(r'File "([^"\n]{1,400})", line \d+, in ([\w<>.]{1,80})')
RAISED = re.compile(r"(?:^|[\s\])|:])((?:\w+\.)*\w*(?:Error|Exception|OutOfMemory|Exit))(?:: ?(.*))?$")
"""The last line of a traceback, behind whatever a logger puts in front."""
TRAFFIC = re.compile(r"\b(?:Receive|Finish): obj=|\bReceived request \S+: prompt|\bGenerated response|\bprompt: ['\"]")
"""Lines that print what users sent: their words are no error of the server's."""
QUIET = re.compile(r"\b(?:INFO|DEBUG)\b")
"""Levels at which no server prints an error of its own; behind them stand requests, in a form that TRAFFIC does not know."""
LEVEL = 64
"""Characters at a line's head in which the level stands, behind a process, a date and a rank."""
WENT_ON = ("accept len: ", "SpecDecoding metrics", "Mean acceptance length", "gen throughput")
FRAMES, LONGEST, KEPT, VALUE, PASSED = 24, 4096, 20, 160, 4096
"""Frames of a traceback that are kept; characters of a line that are looked at; explanations; characters of a value from the message;
kinds of lines that are known to say nothing."""
DIGITS = re.compile(r"\b[0-9a-f]{8,}\b|\d+")
"""What differs from line to line: numbers, and ids of requests."""
HARMLESS = (
    "KeyboardInterrupt",
    "SystemExit",
    "CancelledError",
    "ConnectionResetError",
    "BrokenPipeError",
    "ClientDisconnect",
    "FutureWarning",
)
PLACES = (
    ("disaggregation", "the exchange between prefill and decode servers"),
    ("eagle3|kimi_k25_eagle|cnets", "the drafter's own forward"),
    ("eagle_worker|eagle_info|eagle_utils|spec_decode|proposer|speculative", "drafting and verifying"),
    ("cuda_graph|graph_runner", "capturing a graph"),
    ("loader|load_weights|weight_utils|load_model", "loading weights"),
)
"""Words of a traceback's files and functions -> where the error was raised, the most exact first."""


@dataclass(frozen=True)
class Explanation:
    """One message and what it means."""

    id: str
    """`fc_width`, `memory`, …; `unknown` where no pattern fits."""
    title: str
    message: str
    """The line as it was printed, cut at 4,096 characters; untrusted."""
    meaning: str
    next: str
    standing: str
    """`established`, `claimed`, `inferred`, or `not known`."""
    sources: tuple[str, ...] = ()
    widths: Read = NOT_READ
    place: str = ""
    """Where it was raised, in words; empty: not told."""
    line: int | None = None
    """1-based, of the first."""
    count: int = 1
    level: str = "error"
    went_on: int = 0
    """Lines of decoding that were printed behind the last of them."""

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "widths"}
        return plain(told | {"widths": {"text": " ".join(self.widths.sentences), **self.widths.numbers, "cause": self.widths.cause}})


def explain_error(text: str, facts: Facts = NO_FACTS) -> list[Explanation]:
    """What is known of the messages in a text that somebody gives by hand: served text counts too. Never raises for a text, however broken.

    Of a text in which nothing is recognised, one explanation `unknown`; none for an empty one.
    """
    reader = Reader(facts, log=False)
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        reader.take(number, line)
    found = reader.explanations()
    if not found and text.strip():
        first = next(line for line in text.splitlines() if line.strip())
        found = [_unknown(first[:LONGEST], None, "", facts)]
    return found


def explain_lines(lines: Iterable[tuple[int, str]], facts: Facts = NO_FACTS) -> list[Explanation]:
    """The same for the lines (number, text) of a log, streamed: only what the server itself says counts, not its users' words."""
    reader = Reader(facts)
    for number, line in lines:
        reader.take(number, line)
    return reader.explanations()


class Pattern(NamedTuple):
    """A row of patterns.toml, compiled."""

    match: re.Pattern[str]
    near: re.Pattern[str] | None
    row: Mapping[str, Any]


@cache
def table() -> dict[str, Any]:
    """patterns.toml."""
    return tomllib.loads(Path(__file__).with_name("patterns.toml").read_text(encoding="utf-8"))


@cache
def patterns() -> tuple[Pattern, ...]:
    rows = table()["patterns"]
    return tuple(Pattern(re.compile(r["match"]), re.compile("|".join(map(re.escape, r["near"]))) if "near" in r else None, r) for r in rows)


@dataclass
class _Seen:
    """One message, as often as it came: the same pattern with the same values."""

    pattern: Pattern | None
    groups: dict[str, str]
    message: str
    frames: str
    line: int
    count: int = 1
    last: int = 0
    """Lines of decoding before the last of them."""


@dataclass
class Reader:
    """Reads lines one by one, in little memory however long the log."""

    facts: Facts = NO_FACTS
    log: bool = True
    seen: dict[Any, _Seen] = field(default_factory=dict)
    left_out: int = 0
    """Other messages beyond the first `KEPT`."""
    decoded: int = 0
    """Lines of decoding so far."""

    passed: set[str] = field(default_factory=set)
    """Lines that nothing fitted, their numbers left out: a warning that comes a million times is looked at once."""

    def __post_init__(self) -> None:
        self.frames: deque[str] = deque(maxlen=FRAMES)
        self.raising = False

    def take(self, number: int, text: str) -> None:
        if self.log and any(words in text for words in WENT_ON):
            self.decoded += 1
        if 'File "' in text:
            self.frames += [f"{Path(file).name} {function} {file[-80:]}" for file, function in FRAME.findall(text[:LONGEST])]
        if TRACEBACK in text:
            self.frames.clear()
            self.raising = True
        line = text[:LONGEST].rstrip()
        if self.log and (not any(sign in line for sign in SIGNS) or TRAFFIC.search(line)):
            return
        kind = DIGITS.sub("#", line)
        if kind in self.passed:
            return
        frames, quiet = "\n".join(self.frames), self.log and QUIET.search(line, 0, LEVEL)
        for pattern in patterns():
            level = pattern.row.get("level", "error")
            found = None if self.log and (level == "text" or (quiet and level == "error")) else pattern.match.search(line)
            if found and (pattern.near is None or pattern.near.search(f"{frames}\n{line}")):
                groups = {name: value[:VALUE].strip() for name, value in found.groupdict().items() if value is not None}
                self._keep((pattern.row["id"], *sorted(groups.items())), _Seen(pattern, groups, line, frames, number))
                return
        raised = RAISED.search(line)
        if raised and (self.raising or not self.log) and not raised[1].endswith(HARMLESS):
            words = DIGITS.sub("#", raised[2] or "")[:VALUE]
            self._keep(("unknown", raised[1], words), _Seen(None, {"type": raised[1], "what": raised[2] or ""}, line, frames, number))
            self.raising = False
        elif not self.raising and len(self.passed) < PASSED:
            self.passed.add(kind)

    def _keep(self, key: Any, new: _Seen) -> None:
        new.last = self.decoded
        if key in self.seen:
            self.seen[key].count += 1
            self.seen[key].last = self.decoded
        elif len(self.seen) < KEPT:
            self.seen[key] = new
        else:
            self.left_out += 1

    def explanations(self) -> list[Explanation]:
        """Causes first, in the order in which they came; what follows from them only where there is nothing else."""
        told = [self._explained(s) for s in self.seen.values()]
        causes = [e for e in told if e.level != "after" and e.id != "unknown"]
        # A log has tracebacks of many kinds: what is not known counts where it has to do with drafting, or where the server ended with it.
        stray = [e for e in told if e.id == "unknown" and (not self.log or e.place or not e.went_on)]
        errors = [e for e in causes if e.level == "error"]
        return [*causes, *([] if errors else stray)] or [e for e in told if e.level == "after"]

    def _explained(self, seen: _Seen) -> Explanation:
        place = next((where for words, where in PLACES if re.search(words, seen.frames)), "")
        if seen.pattern is None:
            told = _unknown(seen.message, seen.groups, place, self.facts)
            return _with(told, seen, self.decoded)
        row = seen.pattern.row
        numbers = read(row["widths"], seen.groups, self.facts) if "widths" in row else NOT_READ
        said = table()["causes"].get(numbers.cause, row) if row.get("widths") not in (None, "index") else row
        sentences = list(numbers.sentences)
        if numbers.cause in ("missing_slots", "one_slot") and (self.facts.pipeline or 1) > 1:
            sentences.append(f"The target runs in {self.facts.pipeline} pipeline stages: states of all but the last may be lost.")
        sources = (*said["source"], *(s for s in row["source"] if s not in said["source"]))
        text = {key: said[key].format_map(_Values(seen.groups)) for key in ("title", "meaning", "next")}
        made = Explanation(
            id=row["id"],
            message=seen.message,
            standing=said["standing"],
            sources=tuple(sources),
            widths=Read(tuple(sentences), numbers.numbers, numbers.cause),
            place=place,
            level=row.get("level", "error"),
            **text,
        )
        return _with(made, seen, self.decoded)


class _Values(dict):
    """Groups of a message in a sentence; what the message left out is said to be not named."""

    def __missing__(self, key: str) -> str:
        return "(not named)"


def _with(made: Explanation, seen: _Seen, decoded: int) -> Explanation:
    return replace(made, line=seen.line, count=seen.count, went_on=decoded - seen.last)


def _unknown(message: str, groups: Mapping[str, str] | None, place: str, facts: Facts) -> Explanation:
    kind = (groups or {}).get("type", "")
    told = [f"Raised in {place}." if place else "Where it was raised is not told."]
    numbers = NOT_READ
    found = re.search(r"[(\[](\d{1,7}(?:, ?\d{1,7})+)[)\]]", message)
    if found and facts.hidden:  # without H any number is some number of slots
        numbers = shape([int(n) for n in found[1].replace(",", " ").split()], facts)
    return Explanation(
        id="unknown",
        title=f"Not known here: {kind or 'a message'}",
        message=message,
        meaning=" ".join(told),
        next="Give the whole traceback, from `Traceback` to its last line; the file that it ends in says which part of the engine stopped."
        if kind or not any(words in message for words in (*WENT_ON, "accept"))
        else "A line about acceptance is no error: name the whole log in `[engine] log` of a case and run `eaglelab check CASE`.",
        standing="not known",
        widths=numbers,
        place=place,
    )
