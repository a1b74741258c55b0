"""What an engine feeds a drafter, from the two configs alone; and a config that makes it feed what is wanted."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglelab.drafter.config import config_path, num_slots, read_config
from eaglelab.engines.config_ids import config_ids, look_up, uses_aux_hidden_states
from eaglelab.engines.conventions import (
    CannotFeed,
    Convention,
    ConventionError,
    Engine,
    Fed,
    VersionFed,
    convention_for,
    parse_engine,
    versions_that_differ,
)
from eaglelab.engines.target_config import TargetShape, target_shape
from eaglelab.findings import write_json
from eaglelab.wiring import FINAL, Boundary, Wiring, boundary_name


class CorrectedConfigError(ValueError):
    """A corrected config that cannot be written, with the reason."""


@dataclass(frozen=True)
class EngineWiring:
    """The boundaries that an engine feeds, slot by slot, and on what ground that is said."""

    engine: Engine
    target: TargetShape
    wiring: Wiring
    ids: list[int] | None
    """The ids that the engine reads; None where it takes its default."""
    key: str | None
    """The dotted config key that it reads them from."""
    convention: Convention
    notes: tuple[str, ...]
    """What happened on the way, one plain sentence each."""
    other_versions: tuple[VersionFed, ...]
    """Versions of the same engine in which the same config feeds other boundaries."""
    fails: str = ""
    """How the engine ends with these configs, at start-up or in the first forward; empty where nothing known says that it does."""

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        return self.wiring.boundaries

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What had to be assumed: unknown architecture, unknown version."""
        return self.convention.assumptions

    @property
    def captures_boundaries(self) -> bool:
        """False where a known bug makes the slots hold something else (Gemma 3 in SGLang: no residual added)."""
        return self.convention.bug is None

    @property
    def headline(self) -> str:
        """What is fed, or that nothing will be served, in one line."""
        fed = f"{self.wiring} ({self.target.architecture}, N = {self.target.num_layers})"
        if self.fails:
            captured = any(b is not None for b in self.wiring)
            return f"{self.engine.title} will not serve this: {self.fails}" + (f"; what it captures: {fed}" if captured else "")
        bug = "" if self.captures_boundaries else ", without the residual: no slot holds its boundary"
        return f"{self.engine.title} feeds {fed}{bug}"

    def rows(self) -> list[dict[str, Any]]:
        """One row a slot, for a table: slot, id, boundary, in words."""
        # Reordered, collapsed or not all captured: then it is not said which id belongs to which slot.
        in_order = self.ids is not None and self.ids == sorted(set(self.ids)) and self.wiring.known and len(self.ids) == len(self.wiring)
        unread = self.ids is not None and self.convention.rule == "fixed"
        ids = self.ids if in_order and not unread else [None] * len(self.wiring)
        words = [boundary_name(b, self.target.num_layers) if b is not None else "not captured" for b in self.wiring]
        words = [f"{word} (ids not read)" if unread else word for word in words]
        return [{"slot": s, "id": ids[s], "boundary": b, "is": words[s]} for s, b in enumerate(self.wiring)]

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": str(self.engine),
            "version": self.engine.version,
            "architecture": self.target.architecture,
            "num_layers": self.target.num_layers,
            "ids": self.ids,
            "key": self.key,
            "wiring": {"engine": self.wiring.to_json()},
            "rule": self.convention.rule,
            "bug": self.convention.bug,
            "fails": self.fails,
            "read": self.convention.read,
            "notes": list(self.notes),
            "assumptions": list(self.assumptions),
            "other_versions": [{"versions": v.versions, "boundaries": list(v.boundaries)} for v in self.other_versions],
        }


def engine_wiring(draft_config: Mapping[str, Any], target_config: Mapping[str, Any], engine: Engine | str) -> EngineWiring:
    """The boundaries that `engine` feeds a drafter with this config on a target with that one.

    Raises ConventionError for ids that are not integers or an unknown engine, TargetConfigError for a target without a layer count.
    """
    engine = parse_engine(engine) if isinstance(engine, str) else engine
    target = target_shape(target_config)
    convention = convention_for(engine, target.architecture)
    found = config_ids(draft_config, convention)
    value = json.dumps(look_up(draft_config, "eagle_config.use_aux_hidden_state"))
    if engine.is_engine and not uses_aux_hidden_states(draft_config, convention):
        note = f"eagle_config.use_aux_hidden_state is {value}: no layers are captured, the drafter gets the target's final normed state."
        fed, found, others = Fed((FINAL,), (note,)), found._replace(ids=None, key=None), []
    else:
        fed = convention.feed(found.ids, target.num_layers)
        others = versions_that_differ(engine, target.architecture, found.ids, target.num_layers)
    notes, captured, slots = [*found.notes, *fed.notes], len(fed.boundaries), num_slots(draft_config)
    if engine.is_engine and fed.boundaries != (FINAL,) and not uses_aux_hidden_states(draft_config):
        notes.append(f"eagle_config.use_aux_hidden_state is {value}, which {engine.title} does not read: it captures all the same.")
    fails = fed.fails if engine.is_engine else ""
    if engine.is_engine and captured != slots:
        notes.append(f"The config describes an fc of {slots} slots and {engine.title} captures {captured}: the widths do not fit.")
        fails = fails or f"the config describes an fc of {slots} slots and {captured} are captured"
    notes += [f"Other versions feed other boundaries for the same config: {other}." for other in others]
    return EngineWiring(engine, target, Wiring(fed.boundaries), found.ids, found.key, convention, tuple(notes), tuple(others), fails)


def wiring_of_ids(
    draft_config: Mapping[str, Any], ids: Sequence[int] | None, target_config: Mapping[str, Any], engine: Engine | str
) -> EngineWiring:
    """`engine_wiring` as if these ids stood where the engine reads them (None: no ids at all), the rest of the config as it is.

    A framework that reads none from a drafter's config is asked by its rule alone. Raises ConventionError, TargetConfigError,
    CorrectedConfigError.
    """
    engine = parse_engine(engine) if isinstance(engine, str) else engine
    target, given = target_shape(target_config), None if ids is None else list(ids)
    convention = convention_for(engine, target.architecture)
    with suppress(ConventionError):  # what stands there and is no list of ids is replaced
        if config_ids(draft_config, convention).ids == given:
            return engine_wiring(draft_config, target_config, engine)
    key = convention.family.get("write_key")
    if key is None:
        fed, others = convention.feed(given, target.num_layers), versions_that_differ(engine, target.architecture, given, target.num_layers)
        return EngineWiring(engine, target, Wiring(fed.boundaries), given, None, convention, fed.notes, tuple(others), fed.fails)
    _check_nested(draft_config)
    new = _without_ids(draft_config, convention)
    if given is not None:
        _write_ids(new, given, key)
    return engine_wiring(new, target_config, engine)


def _without_ids(draft_config: Mapping[str, Any], convention: Convention) -> dict[str, Any]:
    """A copy of the config without the layer ids that this engine would read."""
    new = copy.deepcopy(dict(draft_config))
    for key in (*convention.family["keys"], *filter(None, [convention.family.get("layer_output_key")])):
        *parents, name = key.split(".")
        holder = new.get(parents[0]) if parents else new
        if isinstance(holder, dict):
            holder.pop(name, None)
    return new


def corrected_config(
    draft_config: Mapping[str, Any], wanted: Sequence[Boundary], target_config: Mapping[str, Any], engine: Engine | str
) -> tuple[dict[str, Any], str]:
    """A copy of the config that makes `engine` feed the wanted boundaries, and the unified diff against the original.

    The copy is run through `engine_wiring` first. Raises CannotFeed where no config does it, CorrectedConfigError for a broken one.
    """
    engine = parse_engine(engine) if isinstance(engine, str) else engine
    target = target_shape(target_config)
    convention = convention_for(engine, target.architecture)
    wanted = tuple(wanted)
    new = copy.deepcopy(dict(draft_config))
    _check_nested(new)
    if not convention.family.get("write_key"):
        raise CannotFeed(engine.title, wanted, ["It reads no layer ids from a drafter's config; give an engine, such as sglang==0.5.23."])
    if wanted == (FINAL,):
        new["eagle_config"] = {**(new.get("eagle_config") or {}), "use_aux_hidden_state": False}
    else:
        _write_ids(new, convention.ids_for(wanted, target.num_layers), convention.family["write_key"])
    check = engine_wiring(new, target_config, engine)
    if check.boundaries != wanted:
        raise CannotFeed(engine.title, wanted, [f"The corrected config would feed {check.wiring}.", *check.notes])
    lines = [json.dumps(c, indent=2, ensure_ascii=False).splitlines(keepends=True) for c in (draft_config, new)]
    diff = difflib.unified_diff(*lines, "config.json", corrected_name(engine))
    return new, "".join(line if line.endswith("\n") else line + "\n" for line in diff)


def _check_nested(config: Mapping[str, Any]) -> None:
    if not isinstance(config.get("eagle_config"), (dict, type(None))):
        raise CorrectedConfigError(f"eagle_config in the drafter's config is {config['eagle_config']!r}, expected an object or nothing")


def _write_ids(config: dict[str, Any], ids: list[int], key: str) -> None:
    nested = dict(config.get("eagle_config") or {})
    if not nested.get("use_aux_hidden_state", True):
        nested["use_aux_hidden_state"] = True
    *parents, name = key.split(".")
    if parents:
        nested[name] = ids
    else:
        config[name] = ids
    if nested:
        config["eagle_config"] = nested
    # The drafter classes count slots by eagle_config's ids or take 3; vLLM sees only the nested layer of a speculators config.
    nested_layer = config.get("transformer_layer_config")
    holder = nested_layer if isinstance(nested_layer, dict) and not parents else config
    if len(ids) != 3 or holder.get("num_aux_hidden_states") is not None:
        holder["num_aux_hidden_states"] = len(ids)


def corrected_name(engine: Engine) -> str:
    """`config.sglang-0.5.23.json`: beside the original, never in its place."""
    return f"config.{engine.in_a_file_name}.json"


def write_corrected(config: str | Path, new: Mapping[str, Any], engine: Engine) -> Path:
    """Write a corrected copy beside `config` (a config.json or its folder) and return its path.

    The original is never touched, nor a file of that name with other content. Raises CorrectedConfigError.
    """
    source = config_path(config)
    path = source.with_name(corrected_name(engine))
    if path == source:
        raise CorrectedConfigError(f"{path} is itself a corrected copy for {engine}: give the original config.json")
    if path.exists() and read_config(path) != new:
        raise CorrectedConfigError(f"{path} is there already with other content: move it away")
    try:
        write_json(path, new)
    except OSError as error:
        raise CorrectedConfigError(f"{path} cannot be written ({error.strerror}): copy the diff by hand") from None
    return path
