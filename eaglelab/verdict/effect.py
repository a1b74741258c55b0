"""What a failing finding says its fault costs, in accept length; None where nothing in it measures that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

from eaglelab.findings import Finding

Numbers = Mapping[str, Any]


def effect_of(findings: Iterable[Finding]) -> float | None:
    """The first of the findings that measures it, by a replay of the same samples or by a server's counters beside the prediction."""
    for finding in findings:
        told = finding.numbers.get("effect")
        read = MEASURES.get(finding.id)
        try:
            value = told if told is not None else read(finding.numbers) if read else None
        except (KeyError, TypeError, IndexError, ValueError, AttributeError):  # a finding cut short, or from an older run's file
            value = None
        if isinstance(value, (int, float)) and isfinite(value):
            return float(value)
    return None


def _reached(replay: Numbers) -> float | None:
    """The walk's accept length, as an engine counts; the mean over all rows where there is no walk."""
    walk = replay.get("walk")
    return walk["accept_length"] if walk and walk["verify_steps"] else replay["accept_length"]


def _apart(better: Numbers, worse: Numbers) -> float | None:
    both = [_reached(better), _reached(worse)]
    return None if None in both else both[0] - both[1]


def _flags(numbers: Numbers) -> float | None:
    return numbers["difference"] if numbers["engine"]["accept_length"] is not None else None  # else it is of step 0


def _choices(numbers: Numbers) -> float:
    fits = max(r["accept_length"] for r in numbers["others"])
    return fits - numbers["base"]["accept_length"]


def _order(numbers: Numbers) -> float | None:
    """The feed that fits, less the dump's own."""
    lengths = [_reached(r) for r in numbers["finalists"]]
    own = next(_reached(r) for r in numbers["finalists"] if r["variant"] == "the dump's feed")
    return max(lengths) - own


def _expected(numbers: Numbers) -> float:
    if numbers.get("same_text"):
        best = numbers["right"] if numbers.get("as_fed") else numbers["fed"]
        return best["predicted"] - numbers["fed"]["served"]
    predicted = numbers["predicted"]
    return predicted["right" if numbers.get("as_fed") else "fed"][0] - numbers["served"]


def coverage_effect(coverage: Numbers, works: Numbers) -> float | None:
    """What tokens outside the draft vocabulary cost, were the drafter as often right on them as on the others: step k's joint acceptance
    a_k would be a_k / c^(k+1) at coverage c (each further step needs one more token inside), at most 1."""
    try:
        c, joint = coverage["coverage"], [s["joint"] for s in works["steps"]]
        return sum(min(1.0, a / c ** (k + 1)) - a for k, a in enumerate(joint))
    except (KeyError, TypeError, ZeroDivisionError):
        return None


MEASURES: Mapping[str, Callable[[Numbers], float | None]] = {
    "replay.engine": lambda n: _apart(n["dump_feed"], n["engine_feed"]),
    "replay.flags": _flags,
    "replay.choices": _choices,
    "replay.norm_output": lambda n: abs(n["difference"]),
    "replay.order": _order,
    "context.rope_fit": lambda n: n["costs"],
    "replay.targets": lambda n: _apart(n["other"], n["own"]),
    "served.expected": _expected,
    # Accept length is at least 1 plus step-0 acceptance: what the first step loses is the least that the whole loses.
    "drafter.vocabulary.other": lambda n: n["other"] - n["own"],
    "drafter.vocabulary.other.dump": lambda n: n["other"] - n["own"],
}
"""Finding id -> its numbers to accept length lost."""
