"""What a training framework at a version does without being asked, set against the engine that serves: as findings.

Sources: speculators a54a7283 (final norm, 0.4.0), 4e2e6407 (norm_before_residual can be turned off, 0.4.0), 2a1443c8 (layer convention,
0.5.0); SpecForge, AngelSlim and ModelOpt loaders as named in the convention table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from eaglelab.drafter.config import config_family, written_ids
from eaglelab.engines.config_ids import config_ids
from eaglelab.engines.conventions import Engine, convention_for, parse_engine
from eaglelab.engines.target_config import TargetShape
from eaglelab.findings import Finding, Status
from eaglelab.wiring import FINAL, Boundary, Wiring, boundary_name


@dataclass(frozen=True)
class Framework:
    """The training framework, and whether it was told or guessed from the config's layout."""

    engine: Engine
    told: bool

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def title(self) -> str:
        return self.engine.title if self.told else f"{self.engine.title} (guessed from the config's layout)"

    def older_than(self, version: str) -> bool | None:
        """None where the version is not known."""
        return None if self.engine.version is None else Version(self.engine.version) < Version(version)


def framework_of(config: Mapping[str, Any], name: str | None = None, version: str | None = None) -> Framework:
    """The framework named in the case, else the one whose layout the config has. Raises ConventionError for a name that is not known."""
    if name is not None:
        return Framework(parse_engine(name, version, what="training framework"), told=True)
    return Framework(Engine(config_family(config), _written_version(config)), told=False)


def _written_version(config: Mapping[str, Any]) -> str | None:
    version = config.get("speculators_version")
    try:
        return str(Version(version)) if isinstance(version, str) else None
    except InvalidVersion:
        return None


def training_findings(
    config: Mapping[str, Any], engine: Engine, target: TargetShape | None, framework: Framework, last_state: Boundary = None
) -> list[Finding]:
    """Findings on the trainer against the engine. `last_state`: what the dump's last slot was identified as (N or `final`), or None."""
    return [
        *_forced_residual(config, engine, framework),
        *_default_layers(config, engine, target, framework),
        *_final_norm(framework, target, last_state),
    ]


def _forced_residual(config: Mapping[str, Any], engine: Engine, framework: Framework) -> Iterator[Finding]:
    stated = config.get("norm_before_residual")
    if framework.name != "speculators" or stated or (stated is False and not framework.older_than("0.4.0")):
        return
    forced = framework.older_than("0.4.0")
    if stated is None and "speculators_model_type" in config and not forced:
        return  # lint's own finding on the missing key says it
    how = (
        "always trained with norm_before_residual = true, whatever was asked"
        if forced
        else "trains with norm_before_residual = true by default"
    )
    yield Finding(
        id="config.training_residual",
        title=f"{framework.title} {how}; the config says {'false' if stated is False else 'nothing'}",
        status=Status.FAIL if forced and framework.told else Status.CANNOT_TELL,
        claim=f"norm_before_residual = {stated!r} in the drafter's config",
        evidence="speculators 0.3.0 scripts/train.py:28 sets it; the switch came with 0.4.0 and is on unless turned off.",
        next="Replay with norm_before_residual on and off. If 'on' fits, write it into the config and serve with vLLM: SGLang ignores it."
        if engine.name == "sglang"
        else "Replay with norm_before_residual on and off, and write the one that fits into the config.",
    )


def _default_layers(config: Mapping[str, Any], engine: Engine, target: TargetShape | None, framework: Framework) -> Iterator[Finding]:
    """speculators up to 0.4 captured one layer deeper by default than every engine takes by default, and wrote no ids."""
    if (
        framework.name != "speculators"
        or not framework.older_than("0.5.0")
        or target is None
        or written_ids(config)
        or not engine.is_engine
    ):
        return
    trained = convention_for(framework.engine).feed(None, target.num_layers).boundaries
    served_by = convention_for(engine, target.architecture)
    served = served_by.feed(config_ids(config, served_by).ids, target.num_layers).boundaries
    if trained == served:
        return
    yield Finding(
        id="config.training_layers",
        title=f"{framework.title} trains on boundaries {Wiring(trained)} by default, {engine.title} feeds {Wiring(served)}",
        status=Status.CANNOT_TELL,
        claim="No layer ids in the drafter's config: each side takes its own default.",
        evidence="Offline dumps of speculators up to 0.4 hold the outputs of layers 2, N//2, N-3: one deeper than the engines take.",
        numbers={"trained": list(trained), "served": list(served)},
        next="Identify the slots of the dump; if it holds the deeper ones, write their ids: `eaglelab wiring … --boundaries … --write`.",
    )


def _final_norm(framework: Framework, target: TargetShape | None, last_state: Boundary) -> Iterator[Finding]:
    """The trainer turns the last slot into the target's next-token distribution: it must norm it exactly once.

    Nothing is said of a framework that was only guessed: whoever trained may have used another.
    """
    if not framework.told:
        return
    norms_itself = framework.name == "speculators" and not framework.older_than("0.4.0")
    wants = "the state before the final norm (boundary N)" if norms_itself else "the state after the final norm"
    claim = f"{framework.title} {'norms the last slot itself' if norms_itself else 'applies lm_head to the last slot as it is'}."
    if last_state is None:
        yield Finding(
            id="config.final_norm",
            title=f"{framework.title} expects {wants} in the dump's last slot; what it holds is not known yet",
            status=Status.NOT_GIVEN,
            claim=claim,
            next="Identify the dump's last slot (`eaglelab identify`): the final norm's weight alone tells normed from not.",
        )
    elif (last_state == FINAL) == norms_itself:
        what = boundary_name(last_state, None if target is None else target.num_layers)
        effect = "it is normed twice" if norms_itself else "lm_head is applied to a state that was never normed"
        modelopt = " A ModelOpt dump may carry hidden_states_prenorm = true, which repairs this."
        yield Finding(
            id="config.final_norm",
            title=f"The dump's last slot is {what}, and {framework.title} expects {wants}: {effect}",
            status=Status.FAIL if framework.name != "speculators" or framework.engine.version else Status.CANNOT_TELL,
            claim=claim,
            evidence=f"The last slot was identified as {what}.",
            next="The drafter learned another distribution than the target's. Convert the last slot (or the trainer's norm) and train again; "
            "the replay with and without the norm says how much it cost." + (modelopt if framework.name.startswith("modelopt") else ""),
        )
