"""Findings and the verdict: one shape for the CLI's JSON, the notebooks and the reports.

A finding sets a claim (what a label, comment, config or log says) beside the evidence (what was computed from numbers).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from eaglelab.files import write_text


class Status(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    CANNOT_TELL = "cannot_tell"  # the inputs are there, the evidence is not enough
    NOT_GIVEN = "not_given"  # an input is absent; `next` says how to get it
    NOT_APPLICABLE = "not_applicable"


SEVERITY = (Status.FAIL, Status.CANNOT_TELL, Status.PASS, Status.NOT_GIVEN, Status.NOT_APPLICABLE)
"""The order in which findings are shown: what needs a decision first."""


@dataclass(frozen=True)
class Finding:
    """One check's result."""

    id: str
    """Stable, dotted: `<family>.<what>`, e.g. `wiring.claim`."""
    title: str
    """The finding as a sentence: "The config feeds boundaries 0, 3, 16; the dump holds 3, 16, 28"."""
    status: Status
    claim: str = ""
    """What is said, and where it is said."""
    evidence: str = ""
    """What the numbers say."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The evidence's numbers, JSON-ready: str, int, float, bool, None, lists and dicts of them."""
    next: str = ""
    """What to do next, or how to get the missing input."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "status": str(self.status),
            "claim": self.claim,
            "evidence": {"text": self.evidence, "numbers": plain(self.numbers)},
            "next": self.next,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Finding:
        evidence = data.get("evidence", {})
        return cls(
            id=data["id"],
            title=data["title"],
            status=Status(data["status"]),
            claim=data.get("claim", ""),
            evidence=evidence.get("text", ""),
            numbers=evidence.get("numbers", {}),
            next=data.get("next", ""),
        )


@dataclass(frozen=True)
class Change:
    """One edit that the verdict asks for."""

    file: str
    key: str
    value: Any
    engine: str | None = None
    """`name==version` that the value is meant for, None when it holds for all."""

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "key": self.key, "value": plain(self.value), "engine": self.engine}


def own_changes(items: Iterable[Change]) -> list[Change]:
    """Those for the first change's engine (the case's own comes first), and for all."""
    items = list(items)
    return [c for c in items if c.engine in (None, items[0].engine)]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, named by the findings that say so."""

    stage: str
    """As `Verdict.stage`."""
    confidence: str
    text: str
    changes: tuple[Change, ...] = ()
    findings: tuple[str, ...] = ()
    """Ids of the findings that it rests on, the most direct first."""
    effect: float | None = None
    """Accept length that it costs; None where nothing at hand measures it."""

    def to_json(self) -> dict[str, Any]:
        changes = [c.to_json() for c in self.changes]
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "changes": changes, "findings": list(self.findings)}


@dataclass(frozen=True)
class Verdict:
    """What all findings together say."""

    stage: str
    """The stage at fault: `wiring`, `dump`, `training`, `engine`, `cost` (acceptance is as it should be), `none found`, or `cannot tell`."""
    confidence: str
    """`sure`, `likely` or `cannot tell`."""
    text: str
    changes: tuple[Change, ...] = ()
    faults: tuple[Fault, ...] = ()
    """All that were found, the largest effect on accept length first."""
    not_looked_at: tuple[str, ...] = ()
    """What the case lacks for checks that could say more, with the cheapest way to get each."""

    @property
    def paragraphs(self) -> list[str]:
        """The text with each of several faults, what is said besides, and what is said of cost in a paragraph of its own."""
        return re.split(r" (?=\(\d+\) (?:Wiring|Dump|Training|Engine|Cost): |Besides: |On cost: |The command: `)", self.text)

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "confidence": self.confidence,
            "text": self.text,
            "changes": [c.to_json() for c in self.changes],
            "faults": [f.to_json() for f in self.faults],
            "not_looked_at": list(self.not_looked_at),
        }


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that need a decision first; the order within a status is kept."""
    return sorted(findings, key=lambda f: SEVERITY.index(f.status))


def exit_code(findings: Iterable[Finding]) -> int:
    """`check`'s exit code: 1 when something fails, 3 when nothing fails but something cannot be told, else 0."""
    statuses = {f.status for f in findings}
    if Status.FAIL in statuses:
        return 1
    return 3 if Status.CANNOT_TELL in statuses else 0


def few(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first `most` of some texts, and how many more there are."""
    more = f"{between}and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def plain(value: Any) -> Any:
    """Numbers as JSON can carry them: numpy and torch scalars and arrays to Python, tuples to lists, NaN and infinities to None."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy arrays and scalars, torch tensors
        return plain(value.tolist())
    if hasattr(value, "to_json") and not isinstance(value, type):
        return plain(value.to_json())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return str(value)


def write_json(path: Path, data: Any) -> None:
    """Write JSON in one step, so that a broken run never leaves half a file. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
