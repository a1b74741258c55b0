"""What differs between two runs: parameters, provenance, verdict, findings, numbers, notebooks that broke. Data in, data out.

Numbers are compared by their name within a finding; lists of the same length item by item.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eaglelab.findings import SEVERITY, Finding, plain
from eaglelab.provenance import facts
from eaglelab.reports import headline
from eaglelab.reports.stored import Run

ABSENT = "not there"
"""Stands where one run has no such value."""
SAME = 1e-9
"""Relative difference up to which two floats are the same number: what JSON and the order of a sum leave."""
MOST_ITEMS = 64
"""Items of a list up to which it is compared one by one; longer ones are compared whole."""
SHORT = 8
"""Items of a list of ids, boundaries or names up to which it is compared and shown whole: `[3, 16, 28, final]`."""


@dataclass(frozen=True)
class Pair:
    """One named value in both runs."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Moved:
    """One finding that is not the same in both runs."""

    kind: str
    """`appeared`, `gone`, `status changed` or `text changed`."""
    a: Finding | None
    b: Finding | None

    @property
    def now(self) -> Finding:
        return self.b or self.a  # type: ignore[return-value] - one of the two is there

    def to_json(self) -> dict[str, Any]:
        short = lambda f: f and {"status": str(f.status), "title": f.title}  # noqa: E731
        return {"id": self.now.id, "kind": self.kind, "a": short(self.a), "b": short(self.b)}


@dataclass(frozen=True)
class Number:
    """One number (or other value) that is not the same in both runs."""

    source: str
    """A finding's id, or `result <name>`."""
    name: str
    a: Any
    b: Any

    @property
    def difference(self) -> float | None:
        return self.b - self.a if _is_number(self.a) and _is_number(self.b) else None

    @property
    def relative(self) -> float | None:
        """The difference as a share of A's number; None where that is 0 or no number."""
        return self.difference / abs(self.a) if self.difference is not None and self.a else None

    def to_json(self) -> dict[str, Any]:
        known = {"source": self.source, "name": self.name, "a": self.a, "b": self.b}
        return known | {"difference": self.difference, "relative": self.relative}


@dataclass(frozen=True)
class Comparison:
    """Run A beside run B."""

    a: Run
    b: Run
    parameters: tuple[Pair, ...]
    """Of the notebooks, defaults included; those that differ."""
    provenance: tuple[Pair, ...]
    """Versions, git state, device, the inputs' hashes; those that differ."""
    verdict: tuple[Pair, ...]
    """Stage, confidence, changes and text, where they differ."""
    broke: tuple[Pair, ...]
    """Notebooks that ran through in one run only, or that only one run has."""
    findings: tuple[Moved, ...]
    numbers: tuple[Number, ...]
    """Those of findings that both runs have, then results."""
    same_findings: int
    same_numbers: int

    @property
    def changed(self) -> bool:
        """Whether what the runs say differs; parameters and provenance alone are no difference in what they say."""
        return bool(self.verdict or self.broke or self.findings or self.numbers)

    def to_json(self) -> dict[str, Any]:
        pairs = {k: [vars(p) for p in getattr(self, k)] for k in ("parameters", "provenance", "verdict", "broke")}
        moved = {"findings": [f.to_json() for f in self.findings], "numbers": [n.to_json() for n in self.numbers]}
        return plain(pairs | moved | {"same_findings": self.same_findings, "same_numbers": self.same_numbers})


def differences(a: Run, b: Run) -> Comparison:
    """All that differs between two runs."""
    moved, same = _findings(a, b)
    numbers, equal = _numbers(a, b)
    return Comparison(
        a,
        b,
        parameters=_pairs(_parameters(a), _parameters(b)),
        provenance=_pairs(_provenance(a), _provenance(b)),
        verdict=_pairs(_verdict(a), _verdict(b)),
        broke=_pairs(_notebooks(a), _notebooks(b)),
        findings=tuple(moved),
        numbers=tuple(numbers),
        same_findings=same,
        same_numbers=equal,
    )


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Pair, ...]:
    names = dict.fromkeys([*a, *b])
    return tuple(Pair(n, a.get(n, ABSENT), b.get(n, ABSENT)) for n in names if not _same(a.get(n, ABSENT), b.get(n, ABSENT)))


def _parameters(run: Run) -> dict[str, Any]:
    """By name; where notebooks differ, by name and notebook."""
    by_name: dict[str, dict[str, Any]] = {}
    for notebook in run.data["notebooks"]:
        for name, value in notebook.get("parameters", {}).items():
            by_name.setdefault(name, {})[notebook["name"]] = value
    found = {}
    for name, values in by_name.items():
        one = next(iter(values.values()))
        alike = all(_same(v, one) for v in values.values())
        found |= {name: one} if alike else {f"{name} ({book})": v for book, v in values.items()}
    return found


def _provenance(run: Run) -> dict[str, Any]:
    origin = run.data["provenance"]
    rows = {k: v for k, v in facts(origin) if k not in ("date", "versions") and not k.startswith("parameter ")}
    rows |= {f"version of {k}": v for k, v in origin.get("versions", {}).items()}
    for item in origin.get("inputs", []):
        digest = item.get("sha256")
        size = f"{item['bytes']:,} bytes, " if item.get("bytes") is not None else ""
        rows[f"input {item['name']}"] = f"{size}sha256 {digest[:12]} of {item['of']}" if digest else item.get("of")
    return rows


def _verdict(run: Run) -> dict[str, Any]:
    if run.verdict is None:
        return {"stage at fault": "no verdict in this run"}
    changes = [f"{headline.edit(c)} in {c.file}{f', for {c.engine}' if c.engine else ''}" for c in run.verdict.changes]
    said = {"stage at fault": run.verdict.stage, "how sure": run.verdict.confidence}
    return said | {"changes": "; ".join(changes) or "none", "text": run.verdict.text}


def _notebooks(run: Run) -> dict[str, str]:
    return {n["name"]: "ran through" if n["error"] is None else f"broke: {n['error'].splitlines()[0]}" for n in run.data["notebooks"]}


def _findings(a: Run, b: Run) -> tuple[list[Moved], int]:
    """(findings that moved, what needs a decision now first; how many are the same)."""
    mine, yours = {f.id: f for f in a.findings}, {f.id: f for f in b.findings}
    moved = []
    for name in dict.fromkeys([*yours, *mine]):
        old, new = mine.get(name), yours.get(name)
        if old is None or new is None:
            moved.append(Moved("gone" if new is None else "appeared", old, new))
        elif old.status != new.status:
            moved.append(Moved("status changed", old, new))
        elif (old.title, old.claim, old.evidence, old.next) != (new.title, new.claim, new.evidence, new.next):
            moved.append(Moved("text changed", old, new))
    kinds = ("status changed", "appeared", "gone", "text changed")
    moved.sort(key=lambda m: (kinds.index(m.kind), SEVERITY.index(m.now.status)))
    return moved, len(mine.keys() | yours.keys()) - len(moved)


def _numbers(a: Run, b: Run) -> tuple[list[Number], int]:
    """(values that differ, how many are the same), of findings and results that both runs have."""
    found, same = [], 0
    for source, mine, yours in _sources(a, b):
        old, new = dict(flat(mine)), dict(flat(yours))
        for name in dict.fromkeys([*old, *new]):
            x, y = old.get(name, ABSENT), new.get(name, ABSENT)
            if _same(x, y):
                same += 1
            else:
                found.append(Number(source, name, x, y))
    return found, same


def _sources(a: Run, b: Run) -> Iterator[tuple[str, Any, Any]]:
    mine = {f.id: f for f in a.findings}
    yield from ((f.id, mine[f.id].numbers, f.numbers) for f in b.findings if f.id in mine)
    results = a.data.get("results", {})
    yield from ((f"result {k}", results[k], v) for k, v in b.data.get("results", {}).items() if k in results)


def flat(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    """A JSON value as (dotted name, scalar): `fed.requests`, `marginal[0]`. Long lists, empty ones and short ones of ids stay whole."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and 0 < len(value) <= MOST_ITEMS and not _ids(value):
        for i, inner in enumerate(value):
            yield from flat(inner, f"{name}[{i}]")
    else:
        yield name or "value", value


def _ids(value: list[Any]) -> bool:
    return all(isinstance(v, str) for v in value) or (len(value) <= SHORT and all(isinstance(v, (int, str)) for v in value))


def _same(a: Any, b: Any) -> bool:
    if _is_number(a) and _is_number(b):
        return math.isclose(a, b, rel_tol=SAME, abs_tol=0.0)
    return type(a) is type(b) and a == b


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
