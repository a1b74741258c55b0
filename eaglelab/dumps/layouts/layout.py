"""What a layout has to know: a dict of tensors out of one file, turned into a sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from eaglelab.dumps.containers import TORCH_SUFFIXES, DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Probe, Sample, as_mask, as_slot, as_token_ids, is_dense

MOST_SLOTS = 64
"""A width of more aux slots than this is no number of slots, but a last state of another model."""
DECIDING_KEYS = ("token_ids", "target_hiddens", "aux_hidden_states", "aux_hidden_state", "target")
"""Keys that one writer uses (`target`: two), in the order in which they decide."""


class Layout(ABC):
    """Base of all layouts of one file a sample. `fits` decides by keys, types and shapes alone and reads no values."""

    name: str
    looks_for: str
    """In words, for the error when no format fits: `token_ids [T] and hidden_states [T, L, H]`."""
    suffixes: tuple[str, ...] = TORCH_SUFFIXES
    numbered: bool = True
    """Whether the writer numbers its files: one without a number is then no sample. False: they are named by ids of any kind."""
    last_state_kept: bool = True
    """Whether the last slot is the last state; False: all slots are aux slots."""

    @abstractmethod
    def fits(self, data: Any) -> bool:
        """Whether what a file holds is of this layout. Never raises."""

    @abstractmethod
    def sample(self, key: str, data: Mapping[str, Any], path: Path, root: Path) -> Sample:
        """The sample as the file holds it; lengths and widths are not compared yet. path: the file, for errors. Raises DumpError."""

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        """(what the layout and the metadata beside the samples say, what is wrong with the metadata or lacks in the layout).
        probes: of the samples that were tried."""
        return None, []


class SideBySide(Layout):
    """`input_ids`, `loss_mask`, the aux slots side by side in one tensor, and the last state in another."""

    decided_by: str
    """The deciding key; "" for those that have none."""
    ranks: tuple[int, ...] = (2, 3)
    """[T, …] or [1, T, …], where only that tells two writers of the same keys apart."""
    aux_key: str | None
    last_key: str
    says: Implied

    def fits(self, data: Any) -> bool:
        if not isinstance(data, Mapping) or "input_ids" not in data or deciding_key(data) != self.decided_by:
            return False
        return all(len(shape(data, key) or ()) in self.ranks for key in (self.last_key, self.aux_key) if key)

    def sample(self, key: str, data: Mapping[str, Any], path: Path, root: Path) -> Sample:
        where, notes, last = str(path), [], data[self.last_key]
        slots, names = [], []
        if self.aux_key:
            slots, names = split_slots(data[self.aux_key], self.aux_key, last.shape[-1], path)
        slots, names = [*slots, last], [*names, self.last_key]
        return Sample(
            key=key,
            token_ids=as_token_ids(unbatched(data["input_ids"], 1), "input_ids", where, notes),
            slots=tuple(as_slot(unbatched(slot, 2), name, where, notes) for slot, name in zip(slots, names, strict=True)),
            loss_mask=as_mask(unbatched(data.get("loss_mask"), 1), "loss_mask", where, notes),
            slot_names=tuple(names),
            notes=tuple(notes),
        )

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        return self.says, [] if self.aux_key else [
            f"{self.says.writer} stores the last state alone: no aux slots that feed an EAGLE-3 drafter"
        ]


def deciding_key(data: Mapping[str, Any]) -> str:
    """The first of the keys that tell the writer; a list of states comes before all of them."""
    if isinstance(data.get("hidden_states"), (list, tuple)):
        return "a list"
    return next((key for key in DECIDING_KEYS if key in data), "")


def shape(data: Any, key: str) -> tuple[int, ...] | None:
    """The shape of the dense tensor under `key`, None where there is none."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return tuple(value.shape) if is_dense(value) else None


def split_slots(value: Any, name: str, width: int | None, path: Path) -> tuple[list[Tensor], list[str]]:
    """(slots, names) of a tensor that holds several side by side: [T, S * H] or [1, T, S * H] into S views [T, H], in order.

    width: H, from the last state beside it. Raises DumpError where the width is no multiple of it, or one of more than `MOST_SLOTS`.
    """
    whole = isinstance(value, Tensor) and value.dim() in (2, 3) and width and value.shape[-1] and value.shape[-1] % width == 0
    if not whole or value.shape[-1] // width > MOST_SLOTS:
        raise DumpError(
            f"{path}: {name} is {describe(value)}, expected [T, S * H] or [1, T, S * H], 1 to {MOST_SLOTS} slots side by side, with "
            f"H = {width} from the last state.",
            "not a sample",
        )
    count = value.shape[-1] // width
    return list(value.split(width, dim=-1)), [f"{name}[{s} of {count}]" for s in range(count)]


def unbatched(value: Any, dims: int) -> Any:
    """Without the batch dimension of 1 that the writer adds to a tensor of `dims` dimensions; anything else as it is."""
    return value[0] if is_dense(value) and value.dim() == dims + 1 and value.shape[0] == 1 else value


def without_rows(sample: Sample, first: int, end: int, why: str) -> Sample:
    """Rows `first` to `end` of a sample whose other rows are padding, with a note that says how many were left out and why."""
    counts = ((first, "at the start"), (len(sample.token_ids) - end, "at the end"))
    return replace(
        sample,
        token_ids=sample.token_ids[first:end],
        slots=tuple(slot[first:end] for slot in sample.slots),
        loss_mask=None if sample.loss_mask is None else sample.loss_mask[first:end],
        padding=sum(rows for rows, _ in counts),
        notes=(*sample.notes, *(f"{rows} rows of padding {where} were left out ({why})" for rows, where in counts if rows)),
    )


def describe(value: Any) -> str:
    """What a file holds, for an error: `one tensor [3, 4] of bfloat16`, `a list`."""
    if isinstance(value, Tensor) and not value.is_nested:
        return f"one tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"
