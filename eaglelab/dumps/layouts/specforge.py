"""Files of SpecForge. All its last states are after the final norm; a batch dimension of 1 is part of the layout.

The offline script pads the samples of a batch at the end and stores them padded, without an attention mask. Padding must not be taken for
text: its rows are left out, so that lengths, norms and counts are of real tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import SideBySide, unbatched, without_rows
from eaglelab.dumps.sample import Sample, as_mask, shape_problems

LEAST_PADDING = 2
"""Rows of token 0 outside the mask that make padding. One alone may be the text's last token."""
OFFLINE = Implied(
    writer="SpecForge's offline script",
    framework="specforge",
    last_state="final",
    mask="1 = a token of the answer, found in the text; its trainer leaves the last row out",
    source="SpecForge a6b6b023, scripts/prepare_hidden_states.py:578-594, offline_capture/sglang_backend/utils.py:63-90; eagle3/data.py:10-27",
)


class SpecForgeOffline(SideBySide):
    """`data_{i}.ckpt[.gz]` of `scripts/prepare_hidden_states.py`."""

    name = "specforge"
    looks_for = "a dict with input_ids [T], loss_mask [T], aux_hidden_state [1, T, S * H] and hidden_state [1, T, H]"
    decided_by, aux_key, last_key = "aux_hidden_state", "aux_hidden_state", "hidden_state"
    says = OFFLINE

    def sample(self, key: str, data: Mapping[str, Any], path: Path, root: Path) -> Sample:
        notes: list[str] = []
        attended = as_mask(unbatched(data.get("attention_mask"), 1), "attention_mask", str(path), notes)  # [T]
        sample = super().sample(key, data, path, root)
        if next(shape_problems(sample), None) or (attended is not None and len(attended) != len(sample.token_ids)):
            return sample  # rows are not cut where it is not known which belong together
        if attended is not None:
            real, why = attended != 0, "attention_mask 0"
        elif sample.loss_mask is not None:
            real, why = (sample.token_ids != 0) | (sample.loss_mask != 0), "token 0, mask 0"  # [T]
        else:
            return sample
        rows = real.nonzero().flatten()  # [n]
        first, end = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        if attended is None:  # token 0 outside the mask may also begin a prompt
            return without_rows(sample, 0, end, why) if len(real) - end >= LEAST_PADDING else sample
        if end - first > len(rows):
            text = f"attention_mask is 0 in {end - first - len(rows)} rows between others: they are kept"
            sample = replace(sample, notes=(*sample.notes, text))
        return without_rows(sample, first, end, why) if end - first < len(real) else sample


class SpecForgeWithoutAux(SpecForgeOffline):
    """What SpecForge 0.1 wrote without `--enable-aux-hidden-states`."""

    name = "specforge_no_aux"
    looks_for = "a dict with input_ids [T], loss_mask [T] and hidden_state [1, T, H] alone"
    decided_by, ranks, aux_key, last_key = "", (3,), None, "hidden_state"
    says = replace(OFFLINE, writer="SpecForge 0.1 without --enable-aux-hidden-states")

    def fits(self, data: Any) -> bool:
        """With an attention mask it would be a capture (aux slots under this very key) that lost its last state."""
        return super().fits(data) and "attention_mask" not in data


class SpecForgeCapture(SpecForgeOffline):
    """Samples under the trainer's own names, `{sample}.ckpt` or `{sample}.g{generation}.ckpt`: `hidden_state` holds the aux slots."""

    name = "specforge_capture"
    looks_for = "a dict with input_ids, loss_mask, attention_mask [1, T], hidden_state [1, T, S * H] and target [1, T, H]"
    numbered = False
    decided_by, ranks, aux_key, last_key = "target", (3,), "hidden_state", "target"
    says = replace(
        OFFLINE,
        writer="SpecForge's server capture",
        source="SpecForge a6b6b023, algorithms/eagle3/providers.py:214-228, patches/sglang/v0.5.14/spec-capture.patch",
    )
