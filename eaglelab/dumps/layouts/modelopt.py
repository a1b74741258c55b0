"""Files of ModelOpt: `aux_hidden_states` holds the aux slots side by side, `hidden_states` the last state.

Its transformers dump and its vLLM dump have the same keys, with the last state after and before the final norm. A flag that would tell
them apart, `hidden_states_prenorm`, is read by its trainer and written by none of its dump scripts: without it numbers must decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import SideBySide, describe
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Probe, Sample, is_dense

FLAG = "hidden_states_prenorm"


class ModelOpt(SideBySide):
    """`{conversation}.pt` of `collect_hidden_states`, by transformers, vLLM, or TensorRT-LLM after its post-processing."""

    name = "modelopt"
    looks_for = "a dict with input_ids [T], aux_hidden_states [T, S * H] and hidden_states [T, H]"
    numbered = False
    decided_by, aux_key, last_key = "aux_hidden_states", "aux_hidden_states", "hidden_states"
    says = Implied(
        writer="ModelOpt",
        framework="modelopt",
        last_state="final",
        mask="all ones, or with --answer-only-loss 1 = a token of the answer",
        certain=False,
        source="Model-Optimizer a2fbac7b, compute_hidden_states_hf.py:181-202, compute_hidden_states_vllm.py:315-326, eagle/utils.py:84-163",
    )

    def fits(self, data: Any) -> bool:
        return _is_raw(data) or super().fits(data)

    def sample(self, key: str, data: Any, path: Path, root: Path) -> Sample:
        if _is_raw(data):
            raise DumpError(
                f"{path}: a list with id and hidden_state, as TensorRT-LLM writes it (dp_0_0.pt): it holds no token ids. Run ModelOpt's "
                "post-processing of the TensorRT-LLM dump first, and give the folder that it writes.",
                "not a sample",
            )
        sample, flag = super().sample(key, data, path, root), data.get(FLAG)
        if is_dense(flag) and flag.dtype == torch.bool and flag.dim() == 0:
            flag = bool(flag)
        if isinstance(flag, bool):
            return replace(sample, last_state="N" if flag else "final")
        return (
            sample
            if flag is None
            else replace(sample, notes=(*sample.notes, f"{FLAG} is {describe(flag)}, expected true or false: not used"))
        )

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        """By the flag too, where all samples have the same one. It is of the last state alone: which layers were asked for stays open."""
        says, notes = super().implied(listing, probes)
        stated = {probe.last_state for probe in probes}
        if stated == {"N"}:  # as vLLM's dump stores it, whose ids count otherwise
            says = replace(says, last_state="N", framework="modelopt-vllm")
        return says, notes


def _is_raw(data: Any) -> bool:
    return isinstance(data, list) and len(data) > 0 and isinstance(data[0], Mapping) and {"id", "hidden_state"} <= data[0].keys()
