"""The list-of-four layout (speculators v0.3 and v0.4): one torch file a sample,
`{"input_ids": [T], "hidden_states": [S x [T, H]], "loss_mask": [T]}`, flat or in `rows_A-B/` folders, with or without
`data_config.json`.

The list may have any length from two on. Layer ids in `data_config.json` are claims.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from eaglelab.dumps.listing import Listing, split_stray
from eaglelab.dumps.sample import Sample, as_mask, as_slot, as_token_ids
from eaglelab.dumps.torch_files import DumpError, is_torch_name, load_torch

SPECULATORS_V1 = (
    "Up to speculators 0.4, which writes such a file, id k is the output of layer k, and the last one the state before the final norm."
)
"""speculators v0.3.0, `data_generation/custom_worker.py`."""


@dataclass(frozen=True)
class ListOfFour:
    allow_pickle: bool = False

    name = "list_of_four"
    looks_for = (
        "torch files (.pt, .pth, .ckpt, also .gz) that hold a dict with input_ids [T], hidden_states (a list of two or more "
        "[T, H]) and loss_mask [T]"
    )

    def keys(self, listing: Listing) -> tuple[list[str], list[str]]:
        """(sample keys, stray torch files), by name alone."""
        return split_stray(name for name in listing.files if is_torch_name(name))

    def paths(self, root: Path, key: str) -> list[Path]:
        return [root / key]

    def load(self, root: Path, key: str) -> Sample:
        """The sample as the file holds it; lengths and widths are not compared yet. Raises DumpError."""
        where = str(root / key)
        data = load_torch(root / key, self.allow_pickle)
        states = _states(data, where)
        notes: list[str] = []
        names = tuple(f"hidden_states[{s}]" for s in range(len(states)))
        return Sample(
            key=key,
            token_ids=as_token_ids(data["input_ids"], "input_ids", where, notes),
            slots=tuple(as_slot(state, name, where, notes) for state, name in zip(states, names, strict=True)),
            loss_mask=as_mask(data.get("loss_mask"), "loss_mask", where, notes),
            slot_names=names,
            notes=tuple(notes),
        )

    def claims(self, listing: Listing) -> tuple[list[str], list[str]]:
        """The layer ids of a `data_config.json`. Metadata only adds to the data: a broken one is told, never raised."""
        found = [name for name in listing.files if name.rsplit("/", 1)[-1] == "data_config.json"]
        if not found:
            return [], []
        name = min(found, key=len)
        try:
            ids = json.loads((listing.root / name).read_text(encoding="utf-8"))["hidden_states"]["layer_ids"]
        except (KeyError, TypeError):
            return [], [f"{name}: has no hidden_states.layer_ids"]
        except (OSError, ValueError, RecursionError) as error:
            return [], [f"{name}: cannot be read as JSON ({str(error)[:200]})"]
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            return [], [f"{name}: hidden_states.layer_ids is {str(ids)[:200]!r}, expected a list of ints"]
        return [f"{name} says that the slots are layer ids {ids}. {SPECULATORS_V1}"], []


def _states(data: Any, where: str) -> list[Any]:
    if not isinstance(data, dict):
        raise DumpError(f"{where}: holds {describe(data)}, expected a dict with input_ids, hidden_states, loss_mask.", "not a sample")
    missing = [key for key in ("input_ids", "hidden_states") if key not in data]
    if missing:
        held = ", ".join(sorted(str(key)[:40] for key in data)[:12])
        raise DumpError(f"{where}: has no {' and no '.join(missing)}; its keys are: {held or 'none'}.", "not a sample")
    states = data["hidden_states"]
    if not isinstance(states, (list, tuple)):
        raise DumpError(
            f"{where}: hidden_states is {describe(states)}, expected a list of tensors [T, H]: this is another layout.",
            "not a sample",
        )
    if len(states) < 2:
        raise DumpError(
            f"{where}: hidden_states holds {len(states)} tensors, expected two or more (aux slots and the last state).",
            "not a sample",
        )
    return list(states)


def describe(value: Any) -> str:
    """What a file holds, for an error: `one tensor [3, 4] of bfloat16`, `a list`."""
    if isinstance(value, Tensor):
        return f"one tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"
