"""Files of speculators: the list-of-four layout (v0.3 and v0.4), `{"input_ids": [T], "hidden_states": [S x [T, H]], "loss_mask": [T]}`,
flat or in `rows_A-B/` folders, with or without `data_config.json`.

The list may have any length from two on. Layer ids in `data_config.json` are claims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import Layout
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Sample, as_mask, as_slot, as_token_ids

V1 = Implied(
    writer="speculators 0.3 to 0.4",
    framework="speculators==0.4.0",
    last_state="N",
    mask="1 = a token of the answer that trains",
    source="speculators v0.3.0, data_generation/custom_worker.py:44-52, scripts/data_generation_offline.py:269-279",
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
        )

    def implied(self, listing: Listing) -> tuple[Implied | None, list[str]]:
        """With the layer ids of a `data_config.json`. Metadata only adds to the data: a broken one is told, never raised."""
        found = [name for name in listing.files if name.rsplit("/", 1)[-1] == "data_config.json"]
        uncertain = replace(V1, certain=False)
        if not found:
            return uncertain, []
        name = min(found, key=len)
        try:
            ids = json.loads((listing.root / name).read_text(encoding="utf-8"))["hidden_states"]["layer_ids"]
        except (KeyError, TypeError):
            return uncertain, [f"{name}: has no hidden_states.layer_ids"]
        except (OSError, ValueError, RecursionError) as error:
            return uncertain, [f"{name}: cannot be read as JSON ({str(error)[:200]})"]
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            return uncertain, [f"{name}: hidden_states.layer_ids is {str(ids)[:200]!r}, expected a list of ints"]
        return replace(V1, layer_ids=tuple(ids)), []
