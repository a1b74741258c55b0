"""What a training framework at a version does without being asked, set against the engine that serves: as findings.

Sources: speculators a54a7283 (final norm, 0.4.0; one drafter's acceptance rose from 25 to 40 % with it), 4e2e6407 (norm_before_residual can be turned off, 0.4.0), 2a1443c8 (layer convention,
0.5.0); SpecForge, AngelSlim and ModelOpt loaders as named in the convention table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from eaglelab.drafter.config import config_family, written_ids
from eaglelab.engines.config_ids import config_ids
from eaglelab.engines.conventions import ConventionError, Engine, convention_for, parse_engine
from eaglelab.engines.target_config import TargetShape
from eaglelab.findings import Finding, Status
from eaglelab.wiring import FINAL, Boundary, Wiring, boundary_name

OWN_LAYOUT = ("modelopt", "angelslim", "specforge")
"""Frameworks whose dumps are read by their own trainer alone. speculators' layouts are written and read by other pipelines too."""
NEVER_NORMED = {
    "speculators": (
        "speculators 0.3 took its targets from the state before the norm (mended in 0.4.0, a54a7283).",
        "Use speculators 0.4.0 or newer",
    ),
    "modelopt": (
        "ModelOpt's compute_hidden_states_vllm.py stores the state before the norm and writes no hidden_states_prenorm, so that its trainer "
        "takes it for the one after (Model-Optimizer a2fbac7b).",
        "Write hidden_states_prenorm = True into each file",
    ),
    "angelslim": (
        "AngelSlim's vLLM capture falls back to the state before the norm, with a warning, where its hook on the norm finds nothing "
        "(target_model_wrapper.py:1719-1742).",
        "Dump again with a capture that finds the final norm",
    ),
}
"""Framework -> (how it is known to apply lm_head to a state that was never normed, what to do)."""


@dataclass(frozen=True)
class Framework:
    """The training framework, and whether it was told or guessed."""

    engine: Engine
    told: bool
    guessed_from: str = "the config's layout"
    sure: bool = False
    """Guessed, but config and dump are both of this framework's making."""

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def title(self) -> str:
        return self.engine.title if self.told else f"{self.engine.title} (guessed from {self.guessed_from})"

    def older_than(self, version: str) -> bool | None:
        """None where the version is not known."""
        return None if self.engine.version is None else Version(self.engine.version) < Version(version)


def framework_of(config: Mapping[str, Any], name: str | None = None, version: str | None = None) -> Framework:
    """The framework named in the case, else the one whose layout the config has. Raises ConventionError for a name that is not known."""
    if name is not None:
        return Framework(parse_engine(name, version, what="training framework"), told=True)
    return Framework(Engine(config_family(config), _written_version(config)), told=False)


def trainer_of(
    config: Mapping[str, Any] | None, layout: str | None = None, name: str | None = None, version: str | None = None
) -> Framework | None:
    """What read the dump to train on it: as told, else by the version that speculators writes into its configs, else the only trainer
    that reads a dump of this layout (a name of the convention table). None where none of these says it, or the name is not known."""
    if name is not None:
        try:
            return framework_of({}, name, version)
        except ConventionError:
            return None  # config.training says so
    guessed = None if config is None else framework_of(config)
    if guessed is not None and guessed.engine.version is not None:
        return replace(guessed, guessed_from="the version in the config")
    family = "" if layout is None else parse_engine(layout, what="training framework").name
    own = next((trainer for trainer in OWN_LAYOUT if family.startswith(trainer)), None)
    if own is None:
        return None
    return Framework(Engine(own), False, "the dump's layout", sure=guessed is not None and guessed.name == own)


def norms_last_slot(framework: Framework, flagged: str | None = None) -> bool:
    """Whether a trainer puts the dump's last slot through the final norm itself. flagged: `N` or `final` where the files say it
    themselves (`hidden_states_prenorm`, which ModelOpt's reader obeys: modelopt/torch/speculative/eagle/utils.py:84-163)."""
    if framework.name == "speculators":
        return not framework.older_than("0.4.0")
    return framework.name.startswith("modelopt") and flagged == "N"


def _written_version(config: Mapping[str, Any]) -> str | None:
    version = config.get("speculators_version")
    try:
        return str(Version(version)) if isinstance(version, str) else None
    except InvalidVersion:
        return None


def training_findings(config: Mapping[str, Any], engine: Engine, target: TargetShape | None, framework: Framework) -> list[Finding]:
    """Findings on the trainer against the engine, from the config alone: what the dump's last slot holds is not known here."""
    return [
        *_forced_residual(config, engine, framework),
        *_default_layers(config, engine, target, framework),
        *(final_norm(framework, None) if framework.told else ()),
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


def final_norm(framework: Framework, last_state: Boundary, num_layers: int | None = None, flagged: str | None = None) -> Iterator[Finding]:
    """The trainer turns the last slot into the target's next-token distribution: it must be normed exactly once.

    last_state: what the slot was measured to be, N or `final`. flagged: what the dump's own files say of it.
    """
    norms_itself = norms_last_slot(framework, flagged)
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
        what = boundary_name(last_state, num_layers)
        effect = "it is normed twice" if norms_itself else "lm_head is applied to a state that was never normed"
        certain = framework.sure or (framework.told and (framework.name != "speculators" or framework.engine.version is not None))
        otherwise = "", "Convert the last slot (or the trainer's norm)"
        known, mend = otherwise if norms_itself else NEVER_NORMED.get(framework.name.split("-")[0], otherwise)
        yield Finding(
            id="config.final_norm",
            title=f"The dump's last slot is {what}, and {framework.title} expects {wants}: {effect}",
            status=Status.FAIL if certain else Status.CANNOT_TELL,
            claim=claim,
            evidence=f"The last slot was measured to be {what}." + (f" {known}" if known else ""),
            next=f"A drafter trained so learns another distribution than the target's. {mend} and train again; replay.targets says how often those "
            "targets are the target's own choice.",
        )
