"""What two configs and an engine's version say by themselves. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelab.engines.conventions import RULES, CannotFeed, Engine
from eaglelab.engines.lint import lint
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation
from eaglelab.wiring import Wiring

CONFIG_HINT = "`[drafter] path` (or `[engine] draft_config`), `[target] config` and `[engine] name` and `version` together say what is fed"


def engine_feeds(inv: Investigation) -> Iterator[Finding]:
    """The boundaries that the engine feeds with the config as it is."""
    absent = [
        name
        for name, part in (
            ("the engine", inv.engine),
            ("the drafter's config", inv.draft_config),
            ("the target's config", inv.target_config),
        )
        if part is None
    ]
    if absent:
        yield Finding(
            "wiring.engine", f"What the engine feeds is not known: {' and '.join(absent)} not given", Status.NOT_GIVEN, next=CONFIG_HINT
        )
        return
    fed = inv.engine_wiring
    lost = [slot for slot, b in enumerate(fed.wiring) if b is None]
    ids = f"layer ids {fed.ids}" if fed.ids is not None else "no layer ids: the engine takes its default"
    broken = bool(lost) or not fed.captures_boundaries
    yield Finding(
        id="wiring.engine",
        title=f"{fed.engine.title} feeds boundaries {fed.wiring} with {inv.draft_config_name}"
        + (" (one of its two model runners: see config.ids_runner)" if any("model runner" in n for n in fed.notes) else ""),
        status=Status.FAIL if broken else Status.CANNOT_TELL if fed.assumptions else Status.PASS,
        claim=f"{inv.draft_config_name} says {ids}" + (f" ({fed.key})" if fed.key else ""),
        evidence=" ".join(
            [f"Rule of {fed.engine.title} for {fed.target.architecture}: {RULES[fed.convention.rule]}.", *fed.notes, *fed.assumptions]
        ),
        numbers={
            "boundaries": fed.wiring.to_json(),
            "ids": fed.ids,
            "num_layers": fed.target.num_layers,
            "rule": fed.convention.rule,
            "read_in": fed.convention.read,
            "other_versions": [{"versions": v.versions, "boundaries": list(v.boundaries)} for v in fed.other_versions],
        },
        next="Give it ids that it captures: see wiring.match, or `eaglelab wiring CONFIG --target … --engine … --boundaries …`."
        if lost
        else "This engine hands over no states of the target's residual: serve with another one."
        if broken
        else 'The same ids mean other layers in other versions: ask the engine\'s own code, where it is installed (`[engine] source = "installed"`), or in its '
        "wheel or checkout (`source = PATH`)."
        if fed.assumptions and fed.engine.version is not None
        else "Name the engine's exact version: the same ids mean other layers in other versions."
        if fed.assumptions
        else "",
    )
    yield from engine_source(inv)


def engine_source(inv: Investigation) -> Iterator[Finding]:
    """Where the engine's own code is given: whether it and the shipped table say the same for this config."""
    fed = inv.engine_wiring
    if fed is None or fed.engine.source is None:
        return
    from eaglelab.engines.source.convention import disagreement

    differ = disagreement(fed.engine, fed.target.architecture, fed.ids, fed.target.num_layers)
    if differ is not None:
        yield Finding(
            "wiring.engine_source",
            f"The code of {fed.engine.title} feeds {Wiring(differ.own.boundaries)}, the shipped table says {Wiring(differ.by_table.boundaries)}",
            Status.FAIL,
            claim=f"The table's row for {fed.target.architecture} in {fed.engine.name} {fed.engine.version}.",
            evidence=" ".join([f"Read in {fed.convention.read}.", *differ.own.notes]),
            numbers={"own": Wiring(differ.own.boundaries).to_json(), "table": Wiring(differ.by_table.boundaries).to_json(), "ids": fed.ids},
            next="The engine's own code holds: is the copy patched? If not, the table is wrong and should be mended.",
        )


def versions(inv: Investigation) -> Iterator[Finding]:
    """Whether the same config feeds something else in other versions of the engine: what an upgrade silently changes."""
    fed = inv.engine_wiring
    if fed is None:
        return
    if not fed.other_versions:
        known = "No known version of {} feeds anything else" if fed.convention.assumptions else "Every known version of {} feeds the same"
        yield Finding("wiring.versions", f"{known.format(Engine(fed.engine.name).title)} with this config", Status.PASS)
        return
    others = "; ".join(f"{v.versions}: {Wiring(v.boundaries)}" for v in fed.other_versions)
    try:
        before = {v.versions: fed.convention.ids_for(v.boundaries, fed.target.num_layers) for v in fed.other_versions}
    except CannotFeed:
        before = {}
    keep = "; ".join(f"{ids} to keep what {name} fed" for name, ids in before.items())
    yield Finding(
        id="wiring.versions",
        title=f"The same config feeds other boundaries in other versions of {fed.engine.name}: {others}",
        status=Status.PASS,
        claim=f"{fed.engine.title} feeds {fed.wiring}.",
        evidence="Layer ids mean what an engine's version makes of them; the convention table says where each rule was read.",
        numbers={"here": fed.wiring.to_json(), "others": {v.versions: list(v.boundaries) for v in fed.other_versions}},
        next=f"After an upgrade the drafter may be fed other layers than before. On {fed.engine.title} write ids {keep}." if keep else "",
    )


def lint_config(inv: Investigation) -> Iterator[Finding]:
    """Keys that this engine ignores or reads with another meaning, and the trainer's habits against the engine's."""
    if inv.engine is None or inv.draft_config is None:
        yield Finding("config", "Ignored keys: the engine or the drafter's config is not given", Status.NOT_GIVEN, next=CONFIG_HINT)
        return
    training = inv.case.training
    biased, audited = _checkpoint(inv)
    inputs = (inv.draft_config, inv.engine, inv.target_config, training.framework, training.version)
    found = lint(*inputs, launch=inv.launch, biased=biased, audited=audited)
    said = {"config.rope", *(["config.final_norm"] if inv.case.dump.path is not None else [])}  # context.rope and dump.last_state say these
    yield from (f for f in found if f.id not in said)


def _checkpoint(inv: Investigation) -> tuple[bool, bool]:
    """(May the checkpoint hold biases of the attention? SpecForge builds none, whatever the config says; are its tensors looked at?)"""
    try:
        audit = inv.audit
    except ValueError:
        return True, False  # `drafter.complete` says why it cannot be read
    missing = () if audit is None else audit.missing
    return not any("self_attn." in name and name.endswith(".bias") for name in missing), audit is not None
