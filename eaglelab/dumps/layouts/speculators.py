"""Files of speculators up to 0.4, with or without `data_config.json` and `sample_lengths.json`: metadata only adds to the data, a broken
one is told, never raised.

The research layout (`SideBySide`) was only ever read by published code. The list-of-four layout, flat or in `rows_A-B/` folders, may have
a list of any length from two on. Layer ids in `data_config.json` are claims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import Layout, SideBySide
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Probe, Sample, as_mask, as_slot, as_token_ids

V1 = Implied(
    writer="speculators 0.3 to 0.4",
    framework="speculators==0.4.0",
    last_state="N",
    mask="1 = a token of the answer that trains",
    source="speculators v0.3.0, data_generation/custom_worker.py:44-52, scripts/data_generation_offline.py:269-279",
)
CONFIG, LENGTHS = "data_config.json", "sample_lengths.json"
NEWER = Version("0.5.0.dev0")
"""From here on speculators writes another layout and counts its layers by another rule."""
MIXED_UP = (
    "written by speculators 0.3, which could give a sample rows of another request, or too few (put right in 0.4.0): "
    "look at lengths that differ, and whether the states are those of the tokens"
)


class ListOfFour(Layout):
    """speculators v0.3 and v0.4, and every pipeline that took over its layout."""

    name = "list_of_four"
    looks_for = "a dict with input_ids [T], hidden_states (a list of two or more [T, H]) and loss_mask [T]"

    def fits(self, data: Any) -> bool:
        return isinstance(data, Mapping) and "input_ids" in data and isinstance(data.get("hidden_states"), (list, tuple))

    def sample(self, key: str, data: Mapping[str, Any], path: Path, root: Path) -> Sample:
        where, notes, states = str(path), [], list(data["hidden_states"])
        if len(states) < 2:
            raise DumpError(
                f"{where}: hidden_states holds {len(states)} tensors, expected two or more (aux slots and the last state).",
                "not a sample",
            )
        names = tuple(f"hidden_states[{s}]" for s in range(len(states)))
        return Sample(
            key=key,
            token_ids=as_token_ids(data["input_ids"], "input_ids", where, notes),
            slots=tuple(as_slot(state, name, where, notes) for state, name in zip(states, names, strict=True)),
            loss_mask=as_mask(data.get("loss_mask"), "loss_mask", where, notes),
            slot_names=names,
            notes=tuple(notes),
            listed_tokens=_listed(path),
        )

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        """With the layer ids and the version of a `data_config.json`."""
        notes = [f"{name}: {error}" for name in _beside(listing, LENGTHS) if (error := _read(listing.root / name)[1])]
        if not (found := _beside(listing, CONFIG)):
            return replace(V1, certain=False), notes
        name = min(found, key=len)
        config, error = _read(listing.root / name)
        if error:
            return replace(V1, certain=False), [*notes, f"{name}: {error}"]
        says, more = _implied_by(config)
        return says, [*notes, *(f"{name}: {note}" for note in more)]


class SpeculatorsV0(SideBySide):
    """speculators' research layout."""

    name = "speculators_v0"
    looks_for = "a dict with input_ids [T], loss_mask [T], hidden_state [T, S * H] and target [T, H]"
    decided_by, ranks, aux_key, last_key = "target", (2,), "hidden_state", "target"
    says = Implied(
        writer="speculators' research code (layout v0)",
        last_state="final",
        mask=V1.mask,
        certain=False,
        source="speculators 8a2d4837, train/data.py, standardize_data_v0; commit a54a7283",
    )


def _implied_by(config: dict[str, Any]) -> tuple[Implied, list[str]]:
    """(what `data_config.json` says, what is wrong with it). Versions 1.0 and 2.0 of the file have the ids at the same place."""
    hidden_states, says, notes = config.get("hidden_states"), V1, []
    version = _version(config)
    if version is not None and version >= NEWER:
        says = replace(says, certain=False)
        notes.append(f"says speculators {version}, which writes another layout: this one is read as that of 0.4")
    elif version is not None:
        says = replace(says, writer=f"speculators {version}", framework=f"speculators=={version}")
        notes += [MIXED_UP] if version < Version("0.4.0.dev0") else []
    ids = hidden_states.get("layer_ids") if isinstance(hidden_states, dict) else None
    if ids is None:
        return replace(says, certain=False), [*notes, "has no hidden_states.layer_ids"]
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        return replace(says, certain=False), [*notes, f"hidden_states.layer_ids is {str(ids)[:200]!r}, expected a list of ints"]
    order = sorted(set(ids))
    if order != ids:
        notes.append(f"asks for layers {ids}; speculators stores each once and in ascending order: {order}")
    return replace(says, layer_ids=tuple(order)), notes


def _version(config: dict[str, Any]) -> Version | None:
    """The writer's version: stated from file version 2.0 on. `format.data_format_version` was dropped on the way to 0.4.0."""
    try:
        return Version(Version(config.get("speculators_version")).public)
    except (InvalidVersion, TypeError):
        inner = config.get("format")
        old = config.get("version") == "1.0" or (isinstance(inner, dict) and "data_format_version" in inner)
        return Version("0.3.0") if old else None


def _listed(path: Path) -> int | None:
    """The number of tokens that `sample_lengths.json` beside a file states for it: {"42": 1281} for data_42.pt."""
    file = path.with_name(LENGTHS)
    lengths = _read_once(file, file.stat().st_mtime_ns) if file.is_file() else {}
    listed = lengths.get(path.name.split(".", 1)[0].rsplit("_", 1)[-1])
    return listed if type(listed) is int else None


@lru_cache(maxsize=4)
def _read_once(file: Path, changed: int) -> dict[str, Any]:
    """The file as it stood at a time: it lists 100,000 samples, and each of them asks."""
    return _read(file)[0]


def _read(file: Path) -> tuple[dict[str, Any], str]:
    """(the object that a JSON file holds, why it cannot be used)."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"cannot be read as JSON ({str(error)[:200]})"
    return (content, "") if isinstance(content, dict) else ({}, f"holds {type(content).__name__}, expected an object")


def _beside(listing: Listing, name: str) -> list[str]:
    return [file for file in listing.files if file.rsplit("/", 1)[-1] == name]
