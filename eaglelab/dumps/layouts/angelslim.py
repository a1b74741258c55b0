"""Files of AngelSlim: `hidden_states` holds the aux slots side by side, `target_hiddens` the last state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import SideBySide
from eaglelab.dumps.sample import Sample

NOT_READ = ("inputs_embeds", "position_ids")
"""What targets with images add."""


class AngelSlim(SideBySide):
    """`rank_{r}/rows_{a}-{b}/data_{i}.ckpt` of `tools/generate_hidden_for_draft_model.py`."""

    name = "angelslim"
    looks_for = "a dict with input_ids and loss_mask [1, T], hidden_states [1, T, S * H] and target_hiddens [1, T, H]"
    decided_by, aux_key, last_key = "target_hiddens", "hidden_states", "target_hiddens"
    says = Implied(
        writer="AngelSlim",
        framework="angelslim",
        last_state="final",
        mask="1 = a token of the answer",
        source="AngelSlim 67394ce, tools/generate_hidden_for_draft_model.py, target_model_wrapper.py:578-629, :801, :1716-1742",
    )

    def sample(self, key: str, data: Mapping[str, Any], path: Path, root: Path) -> Sample:
        sample = super().sample(key, data, path, root)
        extra = [name for name in NOT_READ if data.get(name) is not None]
        return replace(sample, notes=(*sample.notes, f"{' and '.join(extra)} not read: no slot of the drafter")) if extra else sample
