"""Which findings make which charge. A failing finding belongs to the first rule that names it; what no rule names makes a charge of its own,
so that none is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from eaglelab.findings import Finding, Status
from eaglelab.verdict.charge import FAIL, PASS, Charge, sentences
from eaglelab.verdict.effect import coverage_effect, effect_of

ById = Mapping[str, Finding]

BROKEN_SHARE = 0.05
"""Share of samples with errors from which on the dump may be at fault; below it, bad files are a side remark."""
FLAGS = tuple(
    f"config.{flag}"
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "attention_bias", "qk_norm", "further_norm")
)
"""Findings on flags that the replay can turn."""
FITS = ("replay.works", "replay.order", "replay.choices", "replay.targets")
"""What the replay finds where the drafter does not fit the dump: a consequence of most faults before it."""


@dataclass(frozen=True)
class Rule:
    """One kind of fault. Ids may be patterns."""

    stage: str
    leads: tuple[str, ...]
    """Findings any of which, failing, makes the charge. `id=kind` wants that kind of deviation (`numbers["kind"]`) as well."""
    agree: tuple[str, ...] = ()
    """Findings that, failing too, are further witnesses of the same fault."""
    explains: tuple[str, ...] = ()
    """Findings whose failing follows from it: named with it, no witness, no charge of their own."""
    excused: tuple[str, ...] = ()
    """Findings that, passing, show that it does no harm: a remark then, and no charge."""
    contradicted: tuple[str, ...] = ()
    """Findings that, passing, speak against it: likely at most."""
    each: bool = False
    """Each lead is a charge of its own (else they are one)."""
    remark: str = ""
    """What is said of it where it is excused."""


WORKS = ("replay.works",)
BELOW = ("served.expected", "served.variant", "served.acceptance", "served.position")
"""What the counters say where the server accepts less than it should."""
UPSTREAM = (
    Rule("engine", ("config.target_hidden_size",), agree=("drafter.complete",), explains=("drafter.embedding", "dump.health", *FITS)),
    Rule(
        "drafter", ("drafter.complete",), agree=(*WORKS, "served.variant=weights", "served.acceptance"), contradicted=WORKS, explains=FITS
    ),
    Rule(
        "training",
        ("drafter.vocabulary",),
        agree=(*WORKS, "replay.choices", "served.variant=vocabulary"),
        contradicted=WORKS,
        explains=("drafter.vocabulary.coverage", "served.acceptance", *FITS),
    ),
    Rule(
        "training",
        ("drafter.vocabulary.other", "drafter.vocabulary.other.dump"),
        agree=("served.variant=vocabulary",),
        explains=("drafter.vocabulary.coverage", *FITS),
    ),
    Rule("training", ("drafter.embedding",), agree=(*WORKS, "served.variant=weights"), contradicted=WORKS),
    Rule("dump", ("text.side",), agree=WORKS, explains=("drafter.vocabulary.coverage", "text.shift", "text.mask", *FITS)),
    Rule("training", ("drafter.vocabulary.coverage",)),
    Rule("dump", ("wiring.anomalies", "dump.last_state"), agree=WORKS, explains=("dump.health", *FITS)),
    Rule("dump", ("text.mask",), explains=("dump.health", *FITS)),
    Rule("dump", ("dump.health",), excused=WORKS, explains=FITS, remark="Some files are bad: {title}."),
    Rule("dump", ("text.*", "dump.images"), each=True),
)
"""Rules for what lies before the wiring on the data's way."""
DOWNSTREAM = (
    Rule("training", ("context.rope_fit",), agree=("context.rope",), explains=("context.knee", "replay.works", "replay.order")),
    Rule(
        "training",
        ("replay.choices", "config.training_residual"),
        agree=("replay.choices", "config.training_residual"),
        explains=(*FITS, "replay.flags", "lost.steps", "config.norm_before_residual"),
        excused=("replay.choices",),
        remark="{title}. The drafter fits its config all the same.",
    ),
    Rule(
        "training",
        ("replay.targets", "config.final_norm"),
        agree=("replay.targets", "config.final_norm"),
        excused=("replay.targets",),
        remark="{title}. This drafter learned the target's own choice all the same: mend the dump before the next training.",
    ),
    Rule("training", ("replay.works", "replay.order"), agree=("training.amount",), explains=("lost.steps",)),
    Rule("training", ("training.reported",), excused=WORKS, remark="{title}. The drafter works all the same."),
    Rule(
        "engine",
        ("replay.flags", "replay.norm_output"),
        agree=("replay.flags", "replay.norm_output", *FLAGS, "served.variant=flags"),
    ),
    Rule("engine", FLAGS, agree=("served.variant=flags",), excused=("replay.flags",), remark="{title}: at no cost to this drafter."),
    Rule("engine", ("wiring.engine", "wiring.engine_source"), explains=("config.ids_ignored",)),
    Rule(
        "engine",
        ("flags.algorithm",),
        agree=("served.variant=launch",),
        excused=("as_fed:served.expected",),
        remark="{title}; the server drafts as EAGLE3 does, whatever the case's launch line says.",
    ),
    Rule("engine", ("flags.simulated", "served.log.constant"), agree=("flags.simulated", "served.log.constant"), explains=BELOW),
    Rule("engine", ("flags.dummy",), agree=("served.variant=weights", "served.acceptance"), explains=BELOW),
    Rule("engine", ("flags.cuda_graph", "served.log.graphs"), agree=("flags.cuda_graph", "served.log.graphs")),
    Rule("engine", ("served.lossless",), explains=("served.text",)),
    Rule("engine", ("served.text",), explains=BELOW),
    Rule(
        "engine",
        ("served.flags",),
        agree=("served.parity", "served.variant=wiring"),
        excused=("served.expected", "as_fed:served.expected"),
        remark="{title}. What it reached was predicted for what it ran with: mend the case, not the server.",
        explains=BELOW,
    ),
    Rule("engine", ("served.parity", "served.golden", *BELOW), agree=("served.parity", "served.golden", *BELOW)),
    Rule("engine", ("config.*", "flags.*", "served.*", "engine.*", "errors.*"), each=True),
)
"""Rules for what comes behind it. The wiring itself is `wiring.wiring_charge`."""
GAPS: Mapping[str, tuple[str, ...]] = {"engine": ("engine", "wiring"), "training": ("training", "dump"), "dump": ("dump", "training")}
"""Where the triangle says that acceptance is lost -> stages whose faults are the reason: a charge of its own where there is none."""
LABELS = ("wiring.claims*", "dump.format")
"""What is said of the dump. Wrong, it misleads people, and nothing that is served."""
COST = ("timing.*", "cost.*")
STAGES = {"text": "dump", "dump": "dump", "wiring": "wiring", "replay": "training", "training": "training", "drafter": "training"}
STAGES |= {"lost": "training", "context": "training"}
"""Family -> stage, for findings that no rule names and that do not say their own (`numbers["stage"]`)."""


def matches(finding: Finding, patterns: tuple[str, ...]) -> bool:
    parts = (p.partition("=") for p in patterns)
    return any(fnmatchcase(finding.id, id) and (not kind or finding.numbers.get("kind") == kind) for id, _, kind in parts)


def charge_by(rule: Rule, by_id: ById, taken: set[str]) -> tuple[list[Charge], list[str]]:
    """(charges, remarks) of one rule; what they use is added to `taken`."""
    leads = [f for f in by_id.values() if f.status is FAIL and f.id not in taken and matches(f, rule.leads)]
    if not leads:
        return [], []
    if any(_excuses(by_id, e) for e in rule.excused):
        taken |= {f.id for f in leads}
        return [], [rule.remark.format(title=f.title) for f in leads]
    groups = [[f] for f in leads] if rule.each else [leads]
    return [_charge(rule, group, by_id, taken) for group in groups], []


def _excuses(by_id: ById, name: str) -> bool:
    number, _, id = name.rpartition(":")
    finding = by_id.get(id)
    if finding is None:
        return False
    return bool(finding.numbers.get(number)) if number else finding.status is PASS


def _charge(rule: Rule, leads: list[Finding], by_id: ById, taken: set[str]) -> Charge:
    failing = [f for f in by_id.values() if f.status is FAIL and f.id not in taken and f not in leads]
    agree = [f for f in failing if matches(f, rule.agree)]
    named = any(f.id == "served.variant" for f in agree)  # the deviation that reproduces the counts: they are explained with it
    told = [f for f in failing if matches(f, (*rule.explains, *(BELOW if named else ()))) and f not in agree]
    if any(f.id == "drafter.vocabulary" for f in told):  # without a map nothing is covered
        told += [f for f in failing if f.id == "drafter.vocabulary.coverage"]
    against = [f for name in rule.contradicted if (f := by_id.get(name)) is not None and f.status is PASS]
    taken |= {f.id for f in (*leads, *agree, *told)}
    stage = _drafter_stage(leads) if rule.stage == "drafter" else stage_of(leads[0], rule.stage)
    words = " ".join(sentences(f) for f in (*leads, *agree))
    effect = effect_of((*leads, *agree, *told))
    if leads[0].id == "drafter.vocabulary.coverage" and "replay.works" in by_id:
        effect = coverage_effect(leads[0].numbers, by_id["replay.works"].numbers)
    return Charge(stage, f"{stage.capitalize()}: {words}", (*leads, *agree), tuple(told), tuple(against), effect=effect)


def _drafter_stage(leads: list[Finding]) -> str:
    """A file that was not copied or a key of the config is no fault of the training."""
    mend = set(leads[0].numbers.get("mend", ()))
    return "engine" if mend and "export" not in mend else "training"


def stage_of(finding: Finding, otherwise: str | None = None) -> str:
    told = finding.numbers.get("stage")
    return told if told in ("wiring", "dump", "training", "engine") else otherwise or STAGES.get(finding.id.split(".")[0], "engine")


def own_charge(finding: Finding, stage: str | None = None) -> Charge:
    """A failing finding that no rule names."""
    stage = stage or stage_of(finding)
    return Charge(stage, f"{stage.capitalize()}: {sentences(finding)}", (finding,), effect=effect_of([finding]))


def broken_share(health: Finding) -> float:
    return health.numbers.get("with_errors", 0) / max(1, health.numbers.get("checked", 0))


def failing(by_id: ById, *patterns: str) -> list[Finding]:
    return [f for f in by_id.values() if f.status is FAIL and matches(f, patterns)]


def settled(by_id: ById) -> set[str]:
    """Open questions that a replay of both answers has settled."""
    choices = by_id.get("replay.choices")
    return {*FLAGS, "config.training_residual"} if choices is not None and choices.status is Status.PASS else set()
