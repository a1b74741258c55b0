"""SGLang's `--debug-tensor-dump-output-folder`: `TP{r}_PP{p}_Rank{k}_pid{n}/Pass00000.pt`, one dict a forward pass with what every
module without parts of its own put out, on the CPU (0.5.23, debug_utils/tensor_dump_forward_hook.py; the schema was checked by running
that hook). With speculation the passes are under `target/` and `draft/`.

The residual stream is in the norms' second output: `model.layers.n.input_layernorm` gives [normed, what enters layer n], boundary n, for
n > 0, and `model.norm` [the final state, boundary N]. What a file holds under `model` and `logits_processor` is of the pass before, since a
pass is written at the end of the model's own forward; they are not used.

A pass is a batch of requests. Those that begin at position 0 are samples; steps of decoding and later chunks of a prompt are not: the
states they depend on are in other passes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps.containers import DumpError, load_torch, split_key
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Probe, Sample, as_slot, as_token_ids, check_dense, is_dense
from eaglelab.progress import progress

PASS = re.compile(r"(?:.*/)?Pass\d{5,9}\.pt")
OTHER_RANK = re.compile(r"TP[1-9]\d*_PP\d+_Rank\d+_pid\d+")
"""Its states are those of tensor-parallel rank 0 again."""
LAYER = re.compile(r"(.+)\.layers\.(\d{1,5})\.input_layernorm")
MOST_PASSES = 500
"""Opened to find the prompts among them: 20 to 50 ms each, for the names of a few hundred tensors."""
BATCH = ".forward_batch_info."

SAYS = Implied(
    writer="SGLang (--debug-tensor-dump-output-folder)",
    last_state="final",
    source="SGLang 0.5.23, srt/debug_utils/tensor_dump_forward_hook.py, kernels/fused_op.py:327",
)
CHOOSE = "every boundary that the passes hold is a slot: `[dump] feed` says which of them go into the drafter's fc"


@dataclass(frozen=True)
class SglangPasses:
    allow_pickle: bool = False

    name = "sglang_passes"
    looks_for = "Pass00000.pt, … of SGLang's --debug-tensor-dump-output-folder, with model.layers.n.input_layernorm and model.norm"
    last_state_kept = True

    def keys(self, listing: Listing) -> tuple[list[str], list[str]]:
        """(prompts, passes without one). The passes are opened for their positions: a file may hold several prompts or none."""
        names, keys = [name for name in listing.files if PASS.fullmatch(name)], []
        for name in progress(_targets(listing)[:MOST_PASSES], "reading the passes", unit="files"):
            try:
                prompts = len(_prompts(self._read(listing.root / name), listing.root / name))
            except DumpError:
                prompts = 1  # a row that says why
            keys += [name] if prompts == 1 else [f"{name}#{i}" for i in range(prompts)]
        used = {split_key(key)[0] for key in keys}
        return keys, [name for name in names if name not in used]

    def paths(self, root: Path, key: str) -> list[Path]:
        return [root / split_key(key)[0]]

    def load(self, root: Path, key: str) -> Sample:
        """One prompt of a pass. Raises DumpError where the file holds something else or nothing of a prompt."""
        name, number = split_key(key)
        path, notes = root / name, []
        data = self._read(path)
        prompts = _prompts(data, path)
        if (number or 0) >= len(prompts):
            raise DumpError(
                f"{path}: has {len(prompts)} prompts read from position 0 on, no number {number or 0}: a step of decoding, or a later chunk of a "
                "prompt, depends on states in other passes.",
                "not a prompt",
            )
        rows, ids = prompts[number or 0], _batch(data, "input_ids", path)
        states = {name: as_slot(value, name, str(path), notes) for name, value in _states(data, path).items()}
        _check_states(states, len(ids), path)
        return Sample(
            key=key,
            token_ids=as_token_ids(ids[rows], "input_ids", str(path), notes),
            slots=tuple(state[rows] for state in states.values()),
            loss_mask=None,
            slot_names=tuple(states),
            notes=tuple(notes),
        )

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        unopened = len(_targets(listing)) - MOST_PASSES
        more = f"only the first {MOST_PASSES} passes are opened, {unopened} more are left out: move the prompts' passes to a folder of their own"
        return SAYS, [CHOOSE, more] if unopened > 0 else [CHOOSE]

    def _read(self, path: Path) -> Any:
        return load_torch(path, self.allow_pickle)


def _targets(listing: Listing) -> list[str]:
    """The passes of the target on tensor-parallel rank 0; those of the drafter where there are no others, to be refused in words."""
    ours = [name for name in listing.files if PASS.fullmatch(name) and not OTHER_RANK.search(name)]
    return [name for name in ours if not _in_draft_folder(listing.root / name)] or ours


def _in_draft_folder(path: Path) -> bool:
    return path.absolute().parent.parent.name == "draft"


def _top(data: Any, path: Path) -> str:
    """The name of the top module, `model` in most. Raises DumpError where the file is no pass of a target."""
    found = (
        [name[: -len(BATCH + "input_ids")] for name in data if str(name).endswith(BATCH + "input_ids")] if isinstance(data, Mapping) else []
    )
    if len(found) != 1:
        raise DumpError(f"{path}: no model{BATCH}input_ids in it; expected a pass of SGLang's tensor dump.", "not a sample")
    if _in_draft_folder(path) or f"{found[0]}.fc" in data:
        raise DumpError(f"{path}: a pass of the drafter (under draft/). Its states are its own: give the folder target/.", "drafter pass")
    return found[0]


def _batch(data: Mapping[str, Any], what: str, path: Path) -> Tensor:
    """`input_ids`, `positions` [T] or `seq_lens` [requests] of a pass. Raises DumpError."""
    name = f"{_top(data, path)}{BATCH}{what}"
    value = data.get(name)
    if not is_dense(value) or value.dim() != 1 or value.dtype not in (torch.int32, torch.int64):
        raise DumpError(f"{path}: {name} is no tensor of whole numbers in one dimension. Dump it again.", "not a sample")
    check_dense(value, name, str(path))
    return value


def _prompts(data: Any, path: Path) -> list[slice]:
    """The rows of each request of the batch that begins at position 0. Raises DumpError where lengths and positions do not fit."""
    positions, lengths = (_batch(data, what, path) for what in ("positions", "seq_lens"))
    found, row = [], 0
    for length in lengths.tolist():
        first = int(positions[row]) if row < len(positions) else length
        rows = length - first
        if not 0 < rows <= len(positions) - row or not torch.equal(positions[row : row + rows].long(), torch.arange(first, length)):
            raise DumpError(
                f"{path}: seq_lens {lengths.tolist()[:8]} and {len(positions)} positions do not fit: a verify pass, or padded. Only passes "
                "that read a prompt are samples.",
                "not a prompt",
            )
        if first == 0:
            found.append(slice(row, row + rows))
        row += rows
    if row != len(positions):
        text = f"{path}: seq_lens account for {row} of {len(positions)} rows. Only passes that read a prompt are samples."
        raise DumpError(text, "not a prompt")
    return found


def _states(data: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """{slot name: [T, H]} of all boundaries that the pass holds, ascending, and the final state."""
    top = _top(data, path)
    layers = {int(m[2]): data[m[0]] for name in data if (m := LAYER.fullmatch(str(name))) and m[1] == top}
    states = {f"boundary {n} ({top}.layers.{n}.input_layernorm[1])": value[1] for n, value in sorted(layers.items()) if _pair(value)}
    norm = data.get(f"{top}.norm")
    if not states or not _pair(norm):
        raise DumpError(
            f"{path}: has {len(states)} layers whose input_layernorm gives two tensors, and {top}.norm "
            f"{'does' if _pair(norm) else 'does not'}. Both are needed: dump with --pp-size 1, and with layers above 0 in "
            "--debug-tensor-dump-layers; an engine that fuses its norms away cannot be read so.",
            "incomplete",
        )
    return states | {f"before the final norm ({top}.norm[1])": norm[1], f"final ({top}.norm[0])": norm[0]}


def _pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(is_dense(v) for v in value)


def _check_states(states: Mapping[str, Tensor], tokens: int, path: Path) -> None:
    """Raise DumpError where a state has other rows than the pass has tokens, or two slots are one tensor."""
    seen: dict[int, str] = {}
    for name, state in states.items():
        if len(state) != tokens:
            raise DumpError(f"{path}: {name} has {len(state)} rows for {tokens} token ids. Padded? Dump it again.", "lengths differ")
        other = seen.setdefault(state.data_ptr(), name)
        if other != name and state.numel():
            raise DumpError(
                f"{path}: {other} and {name} are one tensor: an engine on the CPU went on writing into what was dumped. Dump on a GPU.",
                "overwritten",
            )
