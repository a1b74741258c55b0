"""What each check looks at, needs and goes by: `explain.toml`, the one source of `check --explain` and of `docs/checks.md`."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from eaglelab.checks import CHECKS

FILE = Path(__file__).with_name("explain.toml")
HOW = {"pass": "passes", "fail": "fails"}
KEYS = ("looks_at", "needs", "rule", "source", "pass", "fail")
COSTS = {
    "config": "configs and file headers",
    "log": "what the server wrote",
    "dump": "samples of the dump",
    "target": "the target",
    "replay": "the drafter, run",
}
"""`Check.cost` in words: what is read."""


@dataclass(frozen=True)
class Explanation:
    id: str
    """A finding's id, or a pattern of ids."""
    question: str
    """What its check asks; "" for a finding that a check makes beside its own."""
    by: str
    """Id of the check that makes it."""
    cost: str
    told: dict[str, Any]
    """As in the file, keys `KEYS`."""

    @property
    def line(self) -> str:
        """For a list: the question, else the first sentence of what it looks at."""
        return self.question or self.told["looks_at"].split(". ")[0].rstrip(".") + "."

    @property
    def text(self) -> str:
        told = self.told
        lines = [f"{self.id}: {self.question}" if self.question else f"{self.id}, made by the check {self.by}"]
        lines += [f"  looks at: {told['looks_at']}", f"  reads: {COSTS[self.cost]}", "  needs:", *(f"    - {n}" for n in told["needs"])]
        lines += [f"  rule: {told['rule']}"]
        lines += [f"  source: {told['source']}"] if told["source"] else []
        lines += [f"  {HOW[how]}, as in: {told[how]}" for how in ("pass", "fail") if told[how]]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "question": self.question, "check": self.by, "reads": COSTS[self.cost], **{k: self.told[k] for k in KEYS}}


@cache
def entries() -> dict[str, Explanation]:
    """Id (or pattern) -> explanation, in the order of the checks, what a check makes beside its own behind it."""
    told = tomllib.loads(FILE.read_text(encoding="utf-8"))
    checks = {c.id: c for c in CHECKS}
    made: dict[str, list[str]] = {c.id: [] for c in CHECKS}
    for id, entry in told.items():
        made[id if id in checks else entry.get("by") or _check_of(id)].append(id)
    found = {}
    for check in CHECKS:
        for id in sorted(made[check.id], key=lambda i: i != check.id):
            found[id] = Explanation(id, check.title if id == check.id else "", check.id, check.cost, told[id])
    return found


def _check_of(id: str) -> str:
    """The check whose id is the longest beginning of a finding's."""
    fits = [c.id for c in CHECKS if id.startswith(f"{c.id}.") or id == c.id]
    if not fits:
        raise ValueError(f"{FILE.name}: no check makes {id!r}; `by` names the one that does")
    return max(fits, key=len)


def explanation(id: str) -> Explanation:
    """The explanation of a check or finding; of the most exact pattern where the id has a part that varies. Raises ValueError for an id
    that nothing has, with the nearest."""
    known = entries()
    if id in known:
        return known[id]
    fits = [p for p in known if "*" in p and (fnmatchcase(id, p) or p == f"{id}.*")]
    if fits:
        return known[max(fits, key=len)]
    raise ValueError(_unknown(id))


def chosen(text: str) -> frozenset[str]:
    """Ids of the checks that `--only` asks for: `wiring,replay.works`. A family asks for all its checks, a finding that a check makes beside
    its own for that check. Raises ValueError for what is none of these."""
    wanted: set[str] = set()
    for asked in filter(None, (part.strip() for part in text.split(","))):
        family = {c.id for c in CHECKS if c.id == asked or c.id.startswith(f"{asked}.")}
        family |= {e.by for id, e in entries().items() if id.startswith(f"{asked}.")}
        if not family:
            try:
                family = {explanation(asked).by}
            except ValueError:
                raise ValueError(f"--only: {_unknown(asked)}") from None
        wanted |= family
    if not wanted:
        raise ValueError("--only names no check; expected ids with commas between, as in wiring,replay.works")
    return frozenset(wanted)


def _unknown(id: str) -> str:
    known = [*entries(), *(c.id for c in CHECKS), *sorted({c.id.split(".")[0] for c in CHECKS})]
    near = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
    nearest = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ";"
    return f"no check and no finding is called {id[:80]!r}{nearest} `eaglelab check --explain` lists all"


def reference() -> str:
    """All of it as a page of Markdown: `docs/checks.md`, written by `python -m eaglelab.checks.explain`."""
    lines = [
        "# Checks",
        "",
        "What each check looks at, needs and goes by, in the order in which `eaglelab check` runs them, cheap ones first. The same is said by",
        "`eaglelab check --explain ID`; `--only ID[,ID]` runs a few. This page is made from `eaglelab/checks/explain.toml` by",
        "`python -m eaglelab.checks.explain > docs/checks.md`. Titles are examples as they come out.",
    ]
    cost = ""
    for id, e in entries().items():
        if e.cost != cost and e.question:
            cost = e.cost
            lines += ["", f"## Read: {COSTS[cost]}"]
        told = e.told
        lines += [
            "",
            f"### `{id}`",
            "",
            f"*{e.question}* {told['looks_at']}" if e.question else f"Made by `{e.by}`. {told['looks_at']}",
            "",
        ]
        lines += ["- needs " + "; ".join(told["needs"]), f"- rule: {told['rule']}"]
        lines += [f"- source: {told['source']}"] if told["source"] else []
        lines += [f"- {HOW[how]}: “{told[how]}”" for how in HOW if told[how]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
