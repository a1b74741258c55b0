"""What vLLM's `extract_hidden_states` writes, and with it speculators from 0.5 on: `{"hidden_states": [T, S, H], "token_ids": [T]}` in
safetensors, `hs_{row}.safetensors` beside an Arrow dataset that holds the masks, or `{request}.safetensors` as vLLM names it.

The fp8 backend of speculators (hs-connectors 0.9.0, fp8_utils.py) adds `hidden_states_scales` [T, 1, 1]: one scale a token over all
slots; restored = fp8 to bf16 * scale to bf16, as its own reader gives it to the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps.arrow import find_dataset, mask_of_row
from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import Layout, describe, shape
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Probe, Sample, as_slot, as_token_ids, most_common

STATES, SCALES = "hidden_states", "hidden_states_scales"
ROW = re.compile(r"hs_(\d{1,9})\.safetensors")
"""A file of speculators: its number is the row of the Arrow dataset (hs-connectors 0.9.0, transfer.py:142-152)."""

SPECULATORS = Implied(
    writer="speculators from 0.5 on",
    framework="speculators==0.5.0",
    last_state="N",
    mask="1 = a token of the answer that trains, in the Arrow dataset beside the states",
    source="speculators c05b95b3, scripts/launch_vllm.py:128-134, train/data.py:259-340; vLLM 0.32.0, models/llama.py:429-452",
)
VLLM = Implied(
    writer="vLLM (extract_hidden_states)",
    framework="vllm==0.32.0",
    last_state="N",
    certain=False,
    source="vLLM 0.32.0, kv_connector/v1/example_hidden_states_connector.py:446-515: the slots are the ids asked for, ascending",
)
THREE_SLOTS = (
    "the samples have 3 slots where speculators asks vLLM for 4 ([2, N//2, N-3, N]): vLLM before its change 46973 of June 2026 dropped "
    "id N without a word for DeepSeek V2/V3, GLM-MoE and Kimi. Then there is no last state: `[dump] feed = [0, 1, 2, -1]`"
)
ALL_ZERO = "the first and the last row are zero in every slot; vLLM before its change 46301 wrote zeros for hybrid models"
RESTORED = (
    "restored from fp8 with one scale a token over all slots: a slot with a small norm is rounded as coarsely as the largest one allows, "
    "which shows in its norms"
)


class VllmStates(Layout):
    """vLLM's own files and those of speculators from 0.5 on."""

    name = "vllm"
    looks_for = "token_ids [T] and one tensor hidden_states [T, S, H], with hidden_states_scales [T, 1, 1] where it is fp8"
    suffixes = (".safetensors",)
    numbered = False

    def fits(self, data: Any) -> bool:
        return shape(data, "token_ids") is not None and shape(data, STATES) is not None

    def sample(self, key: str, data: Mapping[str, Any], path: Path, root: Path) -> Sample:
        notes: list[str] = []
        ids = as_token_ids(data["token_ids"], "token_ids", str(path), notes)
        states = data[STATES]  # [T, S, H]
        if states.dim() != 3 or 0 in states.shape[1:]:
            raise DumpError(f"{path}: {STATES} is {describe(states)}, expected [T, S, H].", "not a sample")
        names = tuple(f"{STATES}[:, {s}]" for s in range(states.shape[1]))
        slots = [as_slot(states[:, s], name, str(path), notes) for s, name in enumerate(names)]
        scales = _scales(data, path)
        if scales is not None:
            slots = [slot.to(torch.bfloat16) * scales for slot in slots]
            notes.append(RESTORED)
        if len(states) and not any(slot[row].float().any() for slot in slots for row in (0, -1)):
            notes.append(ALL_ZERO)
        mask, about_mask = self._mask(path, ids)
        return Sample(key, ids, tuple(slots), mask, names, (*notes, *about_mask))

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        """The raw files' ids are whatever was asked for; those of speculators are its own, unless one is missing."""
        if not any(ROW.fullmatch(name.rsplit("/", 1)[-1]) for name in listing.files):
            return VLLM, []
        if most_common(len(probe.slot_names) for probe in probes) == 3:
            return replace(SPECULATORS, last_state=None, certain=False), [THREE_SLOTS]
        return SPECULATORS, []

    def _mask(self, path: Path, ids: Tensor) -> tuple[Tensor | None, list[str]]:
        row = ROW.fullmatch(path.name)
        if row is None:
            return None, []
        dataset = find_dataset(path.absolute().parent)
        if dataset is None:
            return None, ["no Arrow dataset (data-*.arrow) in the folder or the one above, so the loss mask is unknown"]
        return mask_of_row(dataset, int(row[1]), ids)


def _scales(data: Mapping[str, Any], path: Path) -> Tensor | None:
    """[T, 1] bf16, None where the states are not quantised. Raises DumpError where scales and states do not go together."""
    states, scales = data[STATES], data.get(SCALES)
    quantised = states.dtype.itemsize == 1
    if scales is None and not quantised:
        return None
    if not quantised or not isinstance(scales, Tensor) or scales.dtype != torch.float32 or scales.shape != (len(states), 1, 1):
        raise DumpError(
            f"{path}: {STATES} is {describe(states)} and {SCALES} {'absent' if scales is None else describe(scales)}; fp8 states need "
            f"scales [{len(states)}, 1, 1] of float32, others have none. Dump it again.",
            "not a sample",
        )
    return scales[:, :, 0].to(torch.bfloat16)  # [T, 1]
