"""Which layer ids of a drafter's config an engine reads, and which it passes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eaglelab.drafter.config import IDS_KEYS, takes_slots
from eaglelab.engines.conventions import Convention, ConventionError, check_ids

NESTED_KEY = IDS_KEYS[1]


class ConfigIds(NamedTuple):
    """`ids, key, notes = config_ids(config, convention)`."""

    ids: list[int] | None
    """None where the engine finds none and takes its default."""
    key: str | None
    """The dotted key that the engine reads them from."""
    notes: tuple[str, ...]


def config_ids(drafter_config: Mapping[str, Any], convention: Convention) -> ConfigIds:
    """The ids that the engine reads from the drafter's config. Raises ConventionError when what stands there is no list of integers."""
    keys = read_keys(drafter_config, convention)
    empty_counts = convention.family.get("empty_ids") == "nothing"
    ids, key = None, None
    for candidate in keys:
        value = look_up(drafter_config, candidate)
        if value is None or (value == [] and not empty_counts):
            continue
        ids, key = check_ids(value, f"{candidate} in the drafter's config"), candidate
        break
    after_key, after = convention.family.get("layer_output_key"), None
    if ids is None and after_key and (after := look_up(drafter_config, after_key)):
        ids, key = convention.from_layer_outputs(check_ids(after, f"{after_key} in the drafter's config")), after_key
    looks_at, taken = " or ".join(keys) or "no config key", "the ids there" if key else "its default"
    notes = [
        f"{ignored} = {value} is not read by {convention.engine.title}, which looks at {looks_at} and takes {taken}."
        for ignored, value in ignored_ids(drafter_config, convention).items()
    ]
    if after:
        notes.append(f"{after_key} = {after} counts layers' outputs: {convention.engine.title} takes each id + 1.")
    key_note = convention.family.get("key_note")
    if key_note and key == key_note["key"]:
        notes.append(key_note["text"])
    for other, add in convention.family.get("newer_keys", {}).items() if key in (None, NESTED_KEY) and keys[1:] else ():
        if newer := look_up(drafter_config, other):
            taken = [layer_id + add for layer_id in check_ids(newer, f"{other} in the drafter's config")]
            notes.append(f"{other} = {newer} is read by the newer of {convention.engine.title}'s two model runners alone, as {taken}.")
            break
    return ConfigIds(ids, key, tuple(notes))


def ignored_ids(drafter_config: Mapping[str, Any], convention: Convention) -> dict[str, Any]:
    """Ids that stand in the config and that this engine does not read, by dotted key."""
    keys = read_keys(drafter_config, convention)
    return {key: value for key in IDS_KEYS if key not in keys and (value := look_up(drafter_config, key)) is not None}


def read_keys(drafter_config: Mapping[str, Any], convention: Convention) -> tuple[str, ...]:
    """The keys that the engine looks at, in order. vLLM rebuilds a speculators config from its top level and loses `eagle_config`."""
    family = convention.family
    return tuple(family["speculators_keys" if "speculators_model_type" in drafter_config and "speculators_keys" in family else "keys"])


def uses_aux_hidden_states(drafter_config: Mapping[str, Any], convention: Convention | None = None) -> bool:
    """Whether layers are captured: not where `eagle_config.use_aux_hidden_state` is false, null or 0, by every version that reads the key.

    Without capture the drafter is handed the target's final state alone. Always true for an engine version (`convention`) that does not read
    the key.
    """
    return takes_slots(drafter_config) or (convention is not None and not convention.reads_use_aux)


def look_up(config: Mapping[str, Any], key: str) -> Any:
    """A dotted key, None where a part of it is absent. Raises ConventionError when `eagle_config` is something other than an object."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping):
            raise ConventionError(f"{key}: got {value!r} on the way, expected an object")
        value = value.get(part)
        if value is None:
            return None
    return value
