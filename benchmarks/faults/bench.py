"""A world with faults put into it: what eaglelab says of each case, and whether that names what was put in."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from random import Random
from typing import Any

import torch

from eaglelab.acceptance import ratio_interval, ratios_apart
from eaglelab.case import open_case
from eaglelab.checks import run_checks
from eaglelab.engines.conventions import CannotFeed
from eaglelab.findings import Finding, Status, Verdict
from eaglelab.investigation import Investigation
from eaglelab.verdict import verdict
from faults.healthy import healthy
from faults.plan import Inapplicable, Kind, Plan, World
from faults.server import accepted_of, serve
from faults.worlds import make_world
from faults.write import write

CALIBRATION = {"llama:0": (0.3, 1.0), "qwen3:0": (0.3, 1.0), "deepseek:0": (0.3, 1.0), "example:0": (0.3, 1.0)}
HELD_OUT = {"gemma:0": (0.55, 0.85), "gemma:1": (0.55, 0.85), "llama:1": (0.55, 0.85), "qwen3:1": (0.55, 0.85), "deepseek:1": (0.55, 0.85)}
"""World and seed -> strengths at which faults are put into it."""
COLUMNS = (
    "world", "seed", "column", "kinds", "fault", "cls", "strength", "effect", "low", "high", "above_noise", "named_findings", "fails", "stage",
    "confidence", "faults", "outcome", "wrong_and_sure", "broke", "seconds", "commit", "text",
)  # fmt: skip
NONE = "none found"


# -- healthy variations -------------------------------------------------------------------------------------------------------------------

VARIATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sketch for a target": {"target": "sketch"},
    "embedding rows alone": {"target": "none"},
    "no recording": {"told": ()},
    "log alone": {"told": ("log",)},
    "five steps": {"steps": 5},
    "vLLM": {"engine": ("vllm", "0.32.0")},
    "older SGLang": {"engine": ("sglang", "0.5.14")},
}


def variations(world: World) -> Iterator[tuple[str, Plan]]:
    """Healthy cases of a world: engines and versions, and what a case may lack."""
    for name, how in VARIATIONS.items():
        try:
            yield name, healthy(world, **how)
        except CannotFeed:  # this engine takes no states from this target
            continue


# -- one case -----------------------------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What eaglelab says of one case."""

    findings: list[Finding]
    verdict: Verdict
    seconds: float

    @property
    def fails(self) -> set[str]:
        return {f.id for f in self.findings if f.status is Status.FAIL}

    @property
    def broke(self) -> list[str]:
        """Checks that ended in an error of their own."""
        return [f.id for f in self.findings if "the check itself broke" in f.title]


def look(plan: Plan, answers: Any = None, keep: Path | None = None) -> Seen:
    """Write the case, and look at it as `eaglelab check` does. keep: a folder to leave it in."""
    folder = Path(tempfile.mkdtemp(prefix="eaglelab-fault-")) if keep is None else keep
    try:
        if keep is not None:
            shutil.rmtree(keep, ignore_errors=True)
            keep.mkdir(parents=True)
        write(plan, folder, answers)
        start = time.perf_counter()
        inv = Investigation(open_case(folder))
        found = list(run_checks(inv))
        return Seen(found, verdict(found, inv), time.perf_counter() - start)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def outcome(kind: Kind, seen: Seen) -> str:
    """`named`: a finding that names this fault fails, and the verdict rests on it. `noticed`: something else fails. `cannot tell`: it is said that
    this cannot be told or is not given. `missed`: nothing of it."""
    hit = kind.named_by & seen.fails
    if hit and _rests_on(seen, hit):
        return "named"
    if seen.fails or seen.verdict.stage not in (NONE, "cannot tell", "cost"):
        return "noticed"
    unsaid = {f.id for f in seen.findings if f.status in (Status.CANNOT_TELL, Status.NOT_GIVEN)}
    return "cannot tell" if kind.named_by & unsaid or seen.verdict.stage == "cannot tell" else "missed"


def _rests_on(seen: Seen, ids: set[str] | frozenset[str]) -> bool:
    if any(ids & set(f.findings) for f in seen.verdict.faults):
        return True
    return any(f.id in ids and f.title in seen.verdict.text for f in seen.findings if f.status is Status.FAIL)


def wrong_and_sure(kinds: Iterable[Kind], seen: Seen) -> bool:
    """Something is called sure that is none of the injected: a fault of the verdict that rests on no finding which names any of them."""
    right = frozenset().union(*(k.named_by for k in kinds))
    if seen.verdict.faults:
        return any(f.confidence == "sure" and not right & set(f.findings) for f in seen.verdict.faults)
    if seen.verdict.stage == NONE:
        return bool(right) and seen.verdict.confidence == "sure"  # sure that nothing is wrong
    return seen.verdict.confidence == "sure" and seen.verdict.stage != "cost" and not _rests_on(seen, right & seen.fails)


def healthy_outcome(seen: Seen) -> str:
    if seen.fails or seen.verdict.stage not in (NONE, "cannot tell"):
        return "false alarm"
    return "clean" if seen.verdict.stage == NONE else "cannot tell"


# -- effects ------------------------------------------------------------------------------------------------------------------------------


def same_server(one: Plan, other: Plan) -> bool:
    """Whether two plans are served alike."""
    a, b = one.server, other.server
    if a is None or b is None:
        return True
    alike = (a.wiring, a.config, a.target, a.num_steps, a.flags) == (b.wiring, b.config, b.target, b.num_steps, b.flags)
    return alike and a.spoil is None and b.spoil is None and _same_tensors(a.tensors, b.tensors) and one.world.folder == other.world.folder


def _same_tensors(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(a[n].shape == b[n].shape and torch.equal(a[n].float(), b[n].float()) for n in a)


def changed(one: Plan, other: Plan) -> bool:
    """Whether two plans' cases differ in anything beyond rounding."""
    said = ("slots", "config", "target_config", "engine", "launch", "sections", "claims", "log", "trainer", "files", "target", "told")
    if any(getattr(one, name) != getattr(other, name) for name in said) or not _same_tensors(one.tensors, other.tensors):
        return True
    return len(one.samples) != len(other.samples) or not all(map(_same_sample, one.samples, other.samples))


def _same_sample(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Ids and mask equal, states within bf16's rounding (8 bits)."""
    if a.keys() != b.keys() or len(a["hidden_states"]) != len(b["hidden_states"]):
        return False
    pairs = [(a["input_ids"], b["input_ids"]), (a["loss_mask"], b["loss_mask"]), *zip(a["hidden_states"], b["hidden_states"], strict=True)]
    return all(x.shape == y.shape and torch.allclose(x.float(), y.float(), rtol=2**-7, atol=1e-6) for x, y in pairs)


def effect(plain: list[tuple[int, int]], spoilt: list[tuple[int, int]]) -> tuple[float, float, float]:
    """(accept length of the faulted server minus the healthy one's, and its 95 % interval, by request)."""
    if len(plain) != len(spoilt) or not all(n for _, n in (*plain, *spoilt)):
        return float("nan"), float("nan"), float("nan")
    return ratios_apart(spoilt, plain)


def effect_of_text(plain: list[tuple[int, int]], other: list[tuple[int, int]]) -> tuple[float, float, float]:
    """`effect` of other prompts: nothing is paired, so the two intervals' squares add up."""
    (a, low_a, high_a), (b, low_b, high_b) = (_rate(side) for side in (other, plain))
    return a - b, a - b - hypot(a - low_a, high_b - b), a - b + hypot(high_a - a, b - low_b)


def _rate(side: list[tuple[int, int]]) -> tuple[float, float, float]:
    accepted, passes = zip(*side, strict=True)
    return sum(accepted) / sum(passes), *ratio_interval(accepted, passes)


# -- all cases of a world -----------------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    world: str
    seed: int
    kinds: tuple[Kind, ...]
    strength: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.world, str(self.seed), " + ".join(k.name for k in self.kinds), f"{self.strength:g}"


class Bench:
    """One world, and what is put into it."""

    def __init__(self, kind: str, seed: int, commit: str, keep: Path | None = None) -> None:
        self.world, self.commit, self.keep = make_world(kind, seed), commit, keep
        self.column = "calibration" if f"{kind}:{seed}" in CALIBRATION else "held out"
        self.base = healthy(self.world)
        self.answers = serve(self.world, self.base.server)
        self.length = accepted_of(self.answers)

    def healthy(self) -> Iterator[dict[str, Any]]:
        for name, plan in variations(self.world):
            seen = look(plan, self.answers if same_server(self.base, plan) else None, self._place(f"healthy-{name}"))
            yield self._row(seen, f"healthy: {name}", "", "", 0.0, healthy_outcome(seen), set(), wrong_and_sure((), seen))

    def faulted(self, job: Job) -> Iterator[dict[str, Any]]:
        """One row a fault; none where the world has nothing to put it into."""
        seed = hashlib.sha256(repr(job.key).encode()).hexdigest()
        plan, names = self.base.copy(), " + ".join(k.name for k in job.kinds)
        try:
            for kind in job.kinds:
                kind.inject(plan, job.strength, Random(f"{seed} {kind.name}"))
        except Inapplicable:
            return
        plain, answers = self.base, self.answers
        if plan.server is not None and not same_server(plain, plan):
            answers = serve(self.world, plan.server)
            moved = effect(self.length, accepted_of(answers))
        elif plan.counted:
            moved = effect_of_text(self.length, plan.counted)
        else:
            moved = None
        seen = look(plan, answers, self._place(f"{names}-{job.strength}"))
        for kind in job.kinds:
            row = self._row(
                seen, names, kind.name, kind.cls, job.strength, outcome(kind, seen), kind.named_by, wrong_and_sure(job.kinds, seen)
            )
            yield row | (_input(changed(self.base, plan)) if moved is None else _moved(*moved))

    def _place(self, name: str) -> Path | None:
        return None if self.keep is None else self.keep / f"{self.world.kind}-{self.world.seed}" / name.replace("/", "_")

    def _row(self, seen: Seen, kinds: str, fault: str, cls: str, strength: float, result: str, named_by, wrong: bool) -> dict[str, Any]:
        return {
            "world": self.world.kind,
            "seed": self.world.seed,
            "column": self.column,
            "kinds": kinds,
            "fault": fault,
            "cls": cls,
            "strength": f"{strength:g}",
            "effect": "",
            "low": "",
            "high": "",
            "above_noise": "",
            "named_findings": " ".join(sorted(named_by & seen.fails)),
            "fails": " ".join(sorted(seen.fails)),
            "stage": seen.verdict.stage,
            "confidence": seen.verdict.confidence,
            "faults": "; ".join(f"{f.stage} ({f.confidence}): {' '.join(f.findings)}" for f in seen.verdict.faults),
            "outcome": result,
            "wrong_and_sure": int(wrong),
            "broke": " ".join(seen.broke),
            "seconds": f"{seen.seconds:.2f}",
            "commit": self.commit,
            "text": seen.verdict.text[:300],
        }


def _input(differs: bool) -> dict[str, Any]:
    """A fault of what the case says or of what was trained on: the server runs as before, and what is wrong is in the input."""
    return {"effect": "input", "above_noise": int(differs)}


def _moved(difference: float, low: float, high: float) -> dict[str, Any]:
    return {"effect": f"{difference:.3f}", "low": f"{low:.3f}", "high": f"{high:.3f}", "above_noise": int(not low <= 0 <= high)}


def jobs(spec: str, strengths: Iterable[float], kinds: list[Kind], pairs: int) -> Iterator[Job]:
    """Every kind at every strength, then `pairs` pairs of different classes, chosen by the world's name."""
    world, seed = spec.split(":")
    for strength in strengths:
        for kind in kinds:
            yield Job(world, int(seed), (kind,), strength)
    r, gross = Random(f"pairs {spec}"), max(strengths)
    possible = [(a, b) for i, a in enumerate(kinds) for b in kinds[i + 1 :] if a.cls != b.cls]
    for pair in r.sample(possible, min(pairs, len(possible))):
        yield Job(world, int(seed), pair, gross)
