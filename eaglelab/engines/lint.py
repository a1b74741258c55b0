"""Keys of a drafter's config that an engine ignores or reads with another meaning, as findings.

Each check is a small function from a `_Subject` to findings; `lint` runs them all. Ids are `config.<what>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eaglelab.drafter.config import FAMILIES, IDS_KEY, DrafterConfig, first_architecture
from eaglelab.engines.capabilities import holds, support, table
from eaglelab.engines.config_ids import config_ids, ignored_ids, read_keys
from eaglelab.engines.conventions import Convention, ConventionError, Engine, check_ids, convention_for, parse_engine
from eaglelab.engines.launch import Launch
from eaglelab.engines.target_config import TargetShape, target_shape
from eaglelab.engines.training import Framework, framework_of, training_findings
from eaglelab.findings import Finding, Status, by_severity
from eaglelab.wiring import Wiring


@dataclass(frozen=True)
class _Subject:
    """What is linted: the drafter's config, raw and parsed, against one engine."""

    config: Mapping[str, Any]
    drafter: DrafterConfig
    engine: Engine
    convention: Convention
    target: TargetShape | None
    framework: Framework
    launch: Launch | None
    biased: bool

    @property
    def title(self) -> str:
        return self.engine.title


def lint(
    draft_config: Mapping[str, Any],
    engine: Engine | str,
    target_config: Mapping[str, Any] | None = None,
    training_framework: str | None = None,
    training_version: str | None = None,
    *,
    launch: Launch | None = None,
    biased: bool = True,
) -> list[Finding]:
    """Findings on a drafter's config under an engine version, those that need a decision first; one `pass` when nothing is wrong.

    `training_framework` is a name of the convention table (`speculators`, `specforge`, …). biased: False where the checkpoint holds no
    biases of the attention whatever its config says (SpecForge builds none). Raises DrafterConfigError for a config that is
    no EAGLE-3 drafter's and ConventionError for an unknown engine.
    """
    engine = parse_engine(engine) if isinstance(engine, str) else engine
    shape = None if target_config is None else target_shape(target_config)
    findings = []
    try:
        framework = framework_of(draft_config, training_framework, training_version)
    except ConventionError as error:
        framework, mend = framework_of(draft_config), "Mend framework and version under [training] in case.toml."
        findings.append(Finding("config.training", f"What trained the drafter is not understood: {error}", Status.CANNOT_TELL, next=mend))
    subject = _Subject(
        config=draft_config,
        drafter=DrafterConfig.from_dict(draft_config, framework.name if framework.told and framework.name in FAMILIES else None),
        engine=engine,
        convention=convention_for(engine, None if shape is None else shape.architecture),
        target=shape,
        framework=framework,
        launch=launch,
        biased=biased,
    )
    findings += [finding for check in CHECKS for finding in check(subject)] if engine.is_engine else []
    findings += training_findings(draft_config, engine, shape, framework)
    open_questions = [f for f in findings if f.status in (Status.FAIL, Status.CANNOT_TELL)]
    return by_severity(findings if open_questions else [*findings, _nothing_found(subject)])


def _nothing_found(s: _Subject) -> Finding:
    return Finding(
        id="config.flags",
        title=f"{s.title} reads every flag of the drafter's config that changes what it computes",
        status=Status.PASS,
        claim=f"In effect: {', '.join(flag for flag in UNREAD if getattr(s.drafter, flag, False)) or 'none of them'}.",
        evidence="Each key was looked up in the table of what this engine honours.",
    )


def _launch(s: _Subject) -> Iterator[Finding]:
    if s.launch is None:
        return
    if s.launch.problems:
        yield Finding(
            id="config.launch",
            title="The launch line cannot be read in full: " + "; ".join(s.launch.problems),
            status=Status.CANNOT_TELL,
            evidence="What could not be read counts as not given.",
            next="Mend the launch line in case.toml, with the values that the server was really started with.",
        )
    if s.engine.name == "sglang" and (s.launch.algorithm or "").upper() in ("EAGLE", "NEXTN"):
        yield Finding(
            id="config.algorithm",
            title=f"The launch line says {s.launch.algorithm}, the drafter is an EAGLE-3 drafter: no slots are captured and fc is skipped",
            status=Status.FAIL,
            claim=f"--speculative-algorithm {s.launch.algorithm}",
            evidence="SGLang captures layers only for EAGLE3; with EAGLE the drafter is handed one state of its own width and fc is passed "
            "over without an error. The accept length is then about 1.00.",
            next="Start the server with --speculative-algorithm EAGLE3.",
        )


def _architecture(s: _Subject) -> Iterator[Finding]:
    name, known = first_architecture(s.config), table()["drafters"].get(s.engine.name, {})
    loads = holds(s.engine, known[name]) if name in known else False
    if loads or (s.engine.name == "vllm" and "speculators_model_type" in s.config):
        return
    yield Finding(
        id="config.architecture",
        title=f"{s.title} has no EAGLE-3 drafter class named {name}" if name else "The drafter's config names no architecture",
        status=Status.CANNOT_TELL if loads is None else Status.FAIL,
        claim=f"architectures = {s.config.get('architectures')!r}",
        evidence=f"Names loaded as EAGLE-3 drafters by the versions that were read: {', '.join(known)}.",
        next="Serve it with vLLM, which reads the speculators layout. Or convert it: a flat config with LlamaForCausalLMEagle3 and ids "
        "under eagle_config, possible only where norm_before_residual is false and the draft layer is of the Llama type."
        if s.engine.name == "sglang" and s.drafter.family == "speculators"
        else "For a Llama-type draft layer write LlamaForCausalLMEagle3 into architectures, and check the names of the tensors."
        if s.drafter.layer_type == "llama"
        else "Serve it with an engine that has the class.",
    )


UNREAD = {
    "norm_before_residual": "the draft layer adds another residual than in training",
    "norm_before_fc": "the slots go into fc without the norm over all of them",
    "fc_norm": "the slots go into fc without the norm that each had in training",
    "norm_output": "the next draft step starts from the state before the final norm, not from the normed one",
    "attention_bias": "biases of the attention are dropped without a word",
    "qk_norm": "the weights of q_norm and k_norm are dropped without a word",
    "num_hidden_layers": "a drafter of more than one layer is refused at start-up",
    "further_norm": "the layers after the first norm their input without the gain that was trained",
}
"""What happens where an engine does not read a flag."""
SAID = {"further_norm": "input_layernorm of the layers after the first"}
"""Flags that are no key of the config, in words."""


def _flags(s: _Subject) -> Iterator[Finding]:
    """Flags that are on and that this engine, for this type of draft layer, does not honour."""
    given = {flag: getattr(s.drafter, flag, False) for flag in UNREAD}
    given |= {"qk_norm": s.drafter.layer_type == "qwen3", "num_hidden_layers": s.drafter.num_layers > 1}
    given["further_norm"] = given["num_hidden_layers"] and _support(s, "num_hidden_layers")[0] == "honoured"
    given["attention_bias"] = s.drafter.attention_bias and s.biased
    given["norm_output"] = bool(s.config.get("norm_output")) and s.framework.name != "specforge"  # whose meaning is another one
    family = s.convention.family["title"]
    for flag, effect in UNREAD.items():
        answer, row = _support(s, flag)
        if not given[flag] or answer in (None, "honoured"):
            continue
        unknown, since = answer == "unknown", row.get("since")
        key = "num_hidden_layers" if flag == "further_norm" else flag
        yield Finding(
            id=f"config.{flag}",
            title=f"It is not known whether {s.title} reads {flag}" if unknown else f"{s.title} ignores {SAID.get(flag, flag)}: {effect}",
            status=Status.CANNOT_TELL if unknown else Status.FAIL,
            claim=f"{key} = {s.config.get(key, given[flag])!r} in the drafter's config",
            evidence=row["read"] + (f"; {family} honours it from {since} on." if since else "."),
            next=f"Serve with {family} {since} or newer." if since else "Serve with an engine that honours it, or train without it.",
        )


def _missing_residual(s: _Subject) -> Iterator[Finding]:
    if s.config.get("norm_before_residual") is None and s.drafter.family == "speculators":
        reads = "true" if s.engine.name == "vllm" else "false"
        yield Finding(
            id="config.norm_before_residual",
            title=f"norm_before_residual is not in the config: {s.title} takes it as {reads}, speculators' own class as false",
            status=Status.CANNOT_TELL,
            claim="Nothing is said about norm_before_residual.",
            evidence="speculators up to 0.3 always trained with true, its command line does so by default; vLLM takes a missing key so.",
            next="Replay both ways and write the one that fits into the config.",
        )


def _norm_output(s: _Subject) -> Iterator[Finding]:
    """SpecForge's norm_output is about lm_head, everybody else's about the recurrence."""
    stated = s.config.get("norm_output")
    if stated is None or s.framework.name != "specforge":
        return
    if stated and _support(s, "norm_output")[0] == "ignored":
        return  # an engine that does not know the flag does what SpecForge trained: norm before lm_head, recurrence before the norm
    effect = (
        f"{s.title} takes it as 'the next draft step starts from the normed state'; SpecForge always goes on from the one before the norm."
        if stated
        else f"{s.title} always norms before lm_head; SpecForge trained without."
    )
    remedy = (
        "If 'before' fits, remove norm_output from the config that is served."
        if stated
        else "No engine serves this: train again with the norm."
    )
    yield Finding(
        id="config.norm_output",
        title=f"norm_output = {str(bool(stated)).lower()} means one thing to SpecForge and another to {s.title}",
        status=Status.FAIL if s.framework.told else Status.CANNOT_TELL,
        claim=f"{s.framework.title}: {'norm' if stated else 'no norm'} before lm_head",
        evidence=effect,
        next=f"Replay with the recurrence before and after the norm. {remedy}",
    )


def _ids_elsewhere(s: _Subject) -> Iterator[Finding]:
    """Ids that stand where this engine does not look, unless it feeds the same boundaries by its default."""
    for key, value in ignored_ids(s.config, s.convention).items():
        meaning = convention_for("speculators" if key == IDS_KEY else "specforge")
        meant = served = None
        if s.target is not None:
            meant = meaning.feed(check_ids(value, key), s.target.num_layers).boundaries
            served = s.convention.feed(config_ids(s.config, s.convention).ids, s.target.num_layers).boundaries
        same = meant is not None and meant == served
        yield Finding(
            id="config.ids_ignored",
            title=f"{s.title} does not read the layer ids under {key}" + (", but feeds the same boundaries without them" if same else ""),
            status=Status.PASS if same else Status.CANNOT_TELL if meant is None else Status.FAIL,
            claim=f"{key} = {value}" + ("" if meant is None else f": boundaries {Wiring(meant)} in the numbering usual for this key"),
            evidence=f"It looks at {' and '.join(read_keys(s.config, s.convention))}"
            + ("." if served is None else f" and feeds {Wiring(served)}."),
            numbers={} if meant is None else {"meant": list(meant), "served": list(served)},
            next=""
            if same
            else "Write the ids where the engine looks: `eaglelab wiring CONFIG --target … --engine … --boundaries … --write`.",
        )


def _ids_by_runner(s: _Subject) -> Iterator[Finding]:
    """vLLM's two model runners do not read the same keys."""
    key_note = s.convention.family.get("key_note")
    found = config_ids(s.config, s.convention)
    if not key_note or found.key != key_note["key"]:
        return
    numbers: dict[str, Any] = {}
    if s.target is not None:
        read = s.convention.feed(found.ids, s.target.num_layers).boundaries
        default = s.convention.feed(None, s.target.num_layers).boundaries
        if read == default:
            return
        numbers = {"older_runner": list(read), "newer_runner": list(default)}
    yield Finding(
        id="config.ids_runner",
        title=f"Whether {s.title} reads these layer ids depends on its model runner",
        status=Status.CANNOT_TELL,
        claim=f"{found.key} = {found.ids}",
        evidence=key_note["text"],
        numbers=numbers,
        next=f"Write the ids to {s.convention.family['write_key']} at the top level, which both read; the server's log says "
        "'Using Eagle3 auxiliary layers from config' or 'from model'.",
    )


def _support(s: _Subject, flag: str) -> tuple[str | None, dict[str, str]]:
    return support(s.engine, s.drafter.layer_type, flag)


CHECKS = (_launch, _architecture, _flags, _missing_residual, _norm_output, _ids_elsewhere, _ids_by_runner)
