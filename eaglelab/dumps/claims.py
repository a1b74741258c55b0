"""What a dump's own metadata says about its slots. Claims, never evidence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

SPECULATORS_V1 = "speculators<=0.4: output of layer k"
"""The convention of the layer ids in a `data_config.json`: id k is captured after layer k has run
(speculators v0.3.0, `data_generation/custom_worker.py`). Later versions write no such file."""


@dataclass(frozen=True)
class Claim:
    """One statement of a dump's metadata about one slot."""

    slot: int
    key: str
    """Where it stands in the file: `hidden_states.layer_ids[0]`."""
    text: str
    source: str
    """The file, relative to the dump."""
    layer_id: int | None = None
    convention: str | None = None
    """The rule that turns `layer_id` into a boundary."""


def read_data_config(root: Path, name: str) -> tuple[list[Claim], str | None]:
    """(claims of a `data_config.json`, what is wrong with the file or None). Never raises: metadata only adds to the data."""
    path = root / name
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        ids = config["hidden_states"]["layer_ids"]
    except (KeyError, TypeError):
        return [], f"{path}: has no hidden_states.layer_ids"
    except (OSError, ValueError, RecursionError) as error:
        return [], f"{path}: cannot be read as JSON ({str(error)[:200]})"
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        return [], f"{path}: hidden_states.layer_ids is {str(ids)[:200]!r}, expected a list of ints"
    return [_claim(slot, ids, name) for slot in range(len(ids))], None


def _claim(slot: int, ids: list[int], source: str) -> Claim:
    last = "; the last slot is claimed to be the last state, before the final norm" if slot == len(ids) - 1 else ""
    return Claim(
        slot=slot,
        key=f"hidden_states.layer_ids[{slot}]",
        text=f"slot {slot} is layer id {ids[slot]}{last}",
        source=source,
        layer_id=ids[slot],
        convention=SPECULATORS_V1,
    )
