"""What a printed name stands for, by source and version: `definitions.toml`, read."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.version import Version

RATES = ("marginal", "joint", "conditional")
LENGTHS = ("accept_length", "product_length")
OTHER_NAMES = {"modelopt-vllm": "modelopt"}
"""Names of one trainer's other dumps: its metrics are the same."""


@dataclass(frozen=True)
class Definition:
    """One row of the table. The fields are explained at its head."""

    source: str
    names: tuple[str, ...]
    kind: str
    read: str
    since: str | None = None
    before: str | None = None
    mask: int = 1
    outside: str = "wrong"
    fed: str = "text"
    averaged: str = "counts"
    over: str = "rows"
    bonus: bool = True
    last: str = ""
    split: str | None = None
    note: str = ""

    @property
    def title(self) -> str:
        """The source as people write it."""
        return table()["sources"][self.source]

    @property
    def rederived(self) -> bool:
        """Whether a replay's outcomes give this number: `eaglelab.replay.trainers`."""
        return self.kind in (*RATES, "overlap") and self.over == "rows" and not (self.fed == "own" and self.kind == "marginal")

    @property
    def in_words(self) -> str:
        """`joint, over rows with l[t+1+k], the target's choice within the draft vocabulary`."""
        if self.kind in LENGTHS:
            return KINDS[self.kind] + (", the bonus token included" if self.bonus else ", without the bonus token")
        if self.kind not in (*RATES, "overlap", "mean_marginal"):
            return KINDS[self.kind]
        rows = "verify passes" if self.over == "passes" else f"rows with l[t{'+1' if self.mask else ''}+k]"
        fed = "" if self.fed == "text" else ", fed with its own tokens"
        batches = ", a mean over batches" if self.averaged == "batches" else ""
        return f"{KINDS[self.kind]}, over {rows}, {OUTSIDE[self.outside]}{fed}{batches}"

    def covers(self, version: str | None) -> bool:
        if version is None:
            return True
        at = Version(version)
        return (self.since is None or at >= Version(self.since)) and (self.before is None or at < Version(self.before))

    def step_of(self, name: str) -> int | None:
        """The step in a printed name (-1 for a name without one); None where the name is not this metric's."""
        for pattern in _patterns(self.names):
            if (match := pattern.fullmatch(name)) is not None:
                return int(match["k"]) if "k" in match.groupdict() else -1
        return None


KINDS = {
    "marginal": "marginal",
    "joint": "joint",
    "conditional": "conditional",
    "overlap": "overlap of both distributions",
    "mean_marginal": "marginal, all steps together",
    "accept_length": "accept length as counted",
    "product_length": "product of marginals summed up, which is not an accept length",
    "accepted_share": "accepted of all drafted tokens",
    "length_share": "accept length over draft tokens",
    "loss": "loss",
}
OUTSIDE = {
    "wrong": "a right token outside the draft vocabulary counts as wrong",
    "dropped": "rows whose right token is outside the draft vocabulary do not count",
    "unseen": "the target chooses within the draft vocabulary",
}


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    """`definitions.toml` as it stands: `sources` with their titles, `metric`."""
    return tomllib.loads(Path(__file__).with_name("definitions.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def definitions() -> tuple[Definition, ...]:
    rows = table()["metric"]
    return tuple(Definition(**{**row, "names": tuple(row["names"])}) for row in rows)


@lru_cache(maxsize=4096)
def define(name: str, source: str | None = None, version: str | None = None) -> tuple[tuple[Definition, ...], int]:
    """(what a printed name can stand for, its step or -1). Several where source or version leave it open, none for an unknown name."""
    wanted = OTHER_NAMES.get(source, source)
    found = [(d, d.step_of(name)) for d in definitions() if wanted in (None, d.source) and d.covers(version)]
    found = [(d, k) for d, k in found if k is not None]
    return tuple(d for d, _ in found), found[0][1] if found else -1


@lru_cache(maxsize=256)
def _patterns(names: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(re.escape(n).replace(r"\{k\}", r"(?P<k>\d{1,2})")) for n in names)
