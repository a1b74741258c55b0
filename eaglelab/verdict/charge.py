"""A charge: one thing that is wrong, with the findings that witness it. How sure it is follows from them and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from eaglelab.acceptance import FEW_SAMPLES
from eaglelab.findings import Change, Fault, Finding, Status

FAIL, PASS, CANNOT_TELL = Status.FAIL, Status.PASS, Status.CANNOT_TELL

KINDS: Mapping[str, str] = {
    "wiring.engine_source": "the engine's code",
    "wiring.engine": "the config",
    "wiring.*": "the states' values",
    "config": "the config",
    "config.*": "the config",
    "drafter.embedding": "the table's rows",
    "drafter.vocabulary.coverage": "the text",
    "drafter.*": "the checkpoint",
    "dump.*": "the states' values",
    "text.*": "the text",
    "replay.*": "the replay",
    "context.*": "the replay",
    "lost.*": "the replay",
    "training.*": "the trainer's log",
    "served.golden": "another engine on the same feed",
    "served.parity": "states captured from the server",
    "served.flags": "the server's own words",
    "served.log*": "the server's own words",
    "served.text": "the served answers",
    "served.*": "the server's counters",
    "triangle": "the server's counters",
    "errors.*": "an error message",
    "engine.*": "the engine's known faults",
    "flags.*": "the launch line",
    "timing.*": "the clock",
    "cost.*": "the throughput",
}
"""Finding id (or pattern, the first that fits) -> what it looked at. Findings of one kind are one witness."""
AGAINST_T2D = ("absolute", "order", "shifted", "late", "disagrees")
AGAINST_CONFIG = ("length", "range")
"""Kinds of a map's faults by what refutes it: t2d beside it, or the config's numbers."""
SAMPLED = ("the replay", "the server's counters", "the trainer's log", "the states' values")
"""Kinds that speak by statistics over samples or requests."""


def kinds(finding: Finding) -> frozenset[str]:
    """What a finding looked at. Two where it sets two records side by side that were made apart: a checkpoint's header and what the
    engine's own code does with it, a map and the t2d (or the config) that it contradicts, a map and the replay that it loses against."""
    found = {next((kind for pattern, kind in KINDS.items() if fnmatchcase(finding.id, pattern)), finding.id.split(".")[0])}
    if finding.id == "drafter.complete" and any(e.get("effect") != "harmless" for e in finding.numbers.get("engines", ())):
        found.add("the engine's code")
    if finding.id == "drafter.vocabulary":
        wrong = {f["kind"] for f in finding.numbers.get("faults", ()) if f["status"] == "fail"}
        found |= {"t2d beside it"} if wrong & set(AGAINST_T2D) else set()
        found |= {"the config"} if wrong & set(AGAINST_CONFIG) else set()
    if finding.id.startswith("drafter.vocabulary.other") and "own" in finding.numbers:
        found = {"the replay"}  # that the two maps differ refutes neither
    if finding.id == "triangle" and finding.numbers.get("gap") in ("training", "dump"):
        found = {"the trainer's log"}
    return frozenset(found)


def enough(finding: Finding, samples: int | None) -> bool:
    """Whether a finding rests on enough samples or requests to be a witness. samples: those that the case's checks read, None = not known."""
    if not kinds(finding) & set(SAMPLED):
        return True
    if finding.id.startswith(("served.", "triangle")):
        requests = (finding.numbers.get("fed") or {}).get("requests", finding.numbers.get("requests"))
        return requests is None or requests >= FEW_SAMPLES
    return samples is None or samples >= FEW_SAMPLES


@dataclass(frozen=True)
class Charge:
    """What becomes a `Fault`."""

    stage: str
    words: str
    """What is wrong, what to change, and the evidence: whole sentences."""
    witnesses: tuple[Finding, ...]
    """Findings that say so, the most direct first."""
    told: tuple[Finding, ...] = ()
    """Failing findings that follow from it: explained by it, and no witness."""
    against: tuple[Finding, ...] = ()
    """Findings that contradict it, or put one of its witnesses in doubt."""
    changes: tuple[Change, ...] = ()
    effect: float | None = None
    command: str = ""
    """What to run, in a sentence that begins with `The command: `."""
    open: bool = False
    """That something is wrong is certain, and the findings cannot say which of two things."""
    thin: tuple[str, ...] = field(default=())
    """Ids of witnesses with too few samples or requests."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the witnesses looked at, each kind once, those with enough samples alone."""
        found = [k for f in self.witnesses if f.id not in self.thin for k in sorted(kinds(f))]
        return tuple(dict.fromkeys(found))

    @property
    def confidence(self) -> str:
        """The one rule: sure where two independent kinds of witnesses agree and nothing contradicts them."""
        if self.open:
            return "cannot tell"
        return "sure" if len(self.kinds) >= 2 and not self.against else "likely"

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.id for f in (*self.witnesses, *self.told)))

    def fault(self) -> Fault:
        counted = any(f.id == "served.expected" and f.title in self.words for f in self.witnesses)  # then the triangle's numbers are said
        also = [f.title for f in self.told if f.title not in self.words and not (counted and f.id == "triangle")]
        follows = f"From it follows as well: {'; '.join(also)}." if also else ""
        text = " ".join(part for part in (self.words, follows, self.ground, self.command) if part)
        return Fault(self.stage, self.confidence, text, self.changes, self.ids, self.effect)

    @property
    def ground(self) -> str:
        """How sure, and why, in a sentence."""
        if self.open:
            return ""
        if not self.witnesses:
            return ""
        if self.against:
            return f"Likely, not sure, because of this: {'; '.join(f'{f.title} ({f.id})' for f in self.against)}."
        if self.confidence == "sure":
            return f"{('Two', 'Three', 'Four')[min(len(self.kinds), 4) - 2]} independent witnesses agree: {_and(self.kinds)}."
        few = f"; {', '.join(self.thin)} on fewer than {FEW_SAMPLES} samples or requests" if self.thin else ""
        return f"Likely, not sure: it rests on {_and(self.kinds) or 'too little'} alone{few}."


def _and(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def sentences(finding: Finding) -> str:
    """A finding's title and what to do, as sentences."""
    return " ".join(
        part if part.endswith((".", "?", ":")) else f"{part}."
        for part in (finding.title, f"{finding.next[:1].upper()}{finding.next[1:]}")
        if part
    )
