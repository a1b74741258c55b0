"""A drafter's config against an engine version: what it ignores, reads with another meaning or cannot serve. What it makes of
its launch line by itself is `engines/effective/`'s to say.

Each check is a small function from a `Subject` to findings; `lint` runs them all. Ids are `config.<what>`. Facts: `capabilities.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglelab.drafter.config import FAMILIES, DrafterConfig
from eaglelab.engines.conventions import ConventionError, Engine, convention_for, parse_engine
from eaglelab.engines.launch import Launch
from eaglelab.engines.lint import flags, ids, line, positions, sizes
from eaglelab.engines.lint.subject import Subject
from eaglelab.engines.target_config import target_shape
from eaglelab.engines.training import framework_of, training_findings
from eaglelab.findings import Finding, Status, by_severity

CHECKS = (
    line.quantisation,
    flags.architecture,
    flags.target,
    flags.layer_types,
    flags.flags,
    flags.missing_residual,
    flags.norm_output,
    ids.ids_elsewhere,
    ids.ids_by_runner,
    ids.slots,
    sizes.widths,
    sizes.activation,
    sizes.head,
    sizes.vocabulary,
    positions.context,
    positions.rope,
)


def lint(
    draft_config: Mapping[str, Any],
    engine: Engine | str,
    target_config: Mapping[str, Any] | None = None,
    training_framework: str | None = None,
    training_version: str | None = None,
    *,
    launch: Launch | None = None,
    biased: bool = True,
    audited: bool = False,
) -> list[Finding]:
    """Findings on a drafter's config under an engine version, those that need a decision first; one `pass` when nothing is wrong.

    `training_framework` is a name of the convention table (`speculators`, `specforge`, …). biased: False where the checkpoint holds no
    biases of the attention whatever its config says (SpecForge builds none). audited: the checkpoint's tensors are looked at by others,
    who then say what becomes of its lm_head. Raises DrafterConfigError for a config that is no EAGLE-3 drafter's and ConventionError for
    an unknown engine.
    """
    engine = parse_engine(engine) if isinstance(engine, str) else engine
    shape = None if target_config is None else target_shape(target_config)
    findings = []
    try:
        framework = framework_of(draft_config, training_framework, training_version)
    except ConventionError as error:
        framework, mend = framework_of(draft_config), "Mend framework and version under [training] in case.toml."
        findings.append(Finding("config.training", f"What trained the drafter is not understood: {error}", Status.CANNOT_TELL, next=mend))
    subject = Subject(
        config=draft_config,
        drafter=DrafterConfig.from_dict(draft_config, framework.name if framework.told and framework.name in FAMILIES else None),
        engine=engine,
        convention=convention_for(engine, None if shape is None else shape.architecture),
        target=shape,
        target_config=target_config or {},
        framework=framework,
        launch=launch,
        biased=biased,
        audited=audited,
    )
    findings += [finding for check in CHECKS for finding in check(subject)] if engine.is_engine else []
    findings += training_findings(draft_config, engine, shape, framework)
    open_questions = [f for f in findings if f.status in (Status.FAIL, Status.CANNOT_TELL)]
    return by_severity(findings if open_questions else [*findings, _nothing_found(subject)])


def _nothing_found(s: Subject) -> Finding:
    return Finding(
        id="config.flags",
        title=f"{s.title} reads every flag of the drafter's config that changes what it computes",
        status=Status.PASS,
        claim=f"In effect: {', '.join(flag for flag in flags.UNREAD if getattr(s.drafter, flag, False)) or 'none of them'}.",
        evidence="Each key was looked up in the table of what this engine honours.",
    )
