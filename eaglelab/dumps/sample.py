"""A sample, and the checks that turn whatever a file holds into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.implied import LastState

STATE_DTYPES = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)


@dataclass(frozen=True)
class Sample:
    """One training sequence with its slots, token ids and loss mask."""

    key: str
    """Path relative to the dump, with forward slashes: `rows_0-5/data_3.pt`."""
    token_ids: Tensor
    """[T] int64, on the CPU."""
    slots: tuple[Tensor, ...]
    """S tensors [T, H] in the dump's dtype, memory-mapped where the container allows."""
    loss_mask: Tensor | None
    """[T] int64, 1 = trains; None = unknown, which is not the same as all ones."""
    slot_names: tuple[str, ...]
    """What the file calls each slot: `hidden_states[0]` or `aux_0`. Names are claims, not evidence."""
    notes: tuple[str, ...] = ()
    """What the reader had to put right, for the health table: a batch dimension taken off, a mask that is not 0/1."""
    padding: int = 0
    """Rows of padding that the file holds after these T and that were left out."""
    last_state: LastState | None = None
    """What the file itself says about its last state; None = nothing."""
    listed_tokens: int | None = None
    """T by the list of lengths beside the samples; None = there is none."""


@dataclass(frozen=True)
class Probe:
    """What is kept of a sample that was read to open its dump: never its tensors, which may stand in memory."""

    key: str
    slot_names: tuple[str, ...]
    hidden_size: int
    last_state: LastState | None

    @classmethod
    def of(cls, sample: Sample) -> Probe:
        return cls(sample.key, sample.slot_names, sample.slots[0].shape[1], sample.last_state)


def most_common(values: Iterable[Any]) -> Any:
    """What most are, the first of equals; None of none."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


def as_slot(value: Any, name: str, where: str, notes: list[str]) -> Tensor:
    """A [T, H] float tensor from what the file holds under `name`; a batch dimension of 1 is taken off with a note."""
    if not isinstance(value, Tensor):
        raise DumpError(f"{where}: {name} is a {type(value).__name__}, expected a float tensor [T, H].", "not a sample")
    check_dense(value, name, where)
    if value.dtype not in STATE_DTYPES:
        text = f"{where}: {name} holds {_dtype(value)}, expected a float dtype (bf16, f16, f32, f64, fp8)."
        raise DumpError(text, "not a sample")
    if value.dim() == 3 and value.shape[0] == 1:
        _note(notes, "a batch dimension of 1 was taken off")
        value = value[0]
    if value.dim() != 2 or value.shape[1] == 0:
        raise DumpError(f"{where}: {name} has the shape {list(value.shape)}, expected [T, H].", "not a sample")
    return value.detach()  # a state saved with its gradient flag is a plain state


def as_token_ids(value: Any, name: str, where: str, notes: list[str]) -> Tensor:
    """[T] int64 from an integer tensor [T] or [1, T], or from a list of ints."""
    if isinstance(value, (list, tuple)) and all(type(v) is int for v in value):
        value = _tensor(value, name, where, torch.int64)
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        got = _dtype(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise DumpError(f"{where}: {name} is {got}, expected integer token ids [T].", "not a sample")
    return _row(value, name, where, notes).to(torch.int64)


def as_mask(value: Any, name: str, where: str, notes: list[str]) -> Tensor | None:
    """[T] int64 0/1 from a tensor [T] or [1, T] of ints, bools or floats (non-zero = 1); None stays None: unknown."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and all(isinstance(v, (bool, int, float)) for v in value):
        value = _tensor(value, name, where)
    if not isinstance(value, Tensor):
        raise DumpError(f"{where}: {name} is a {type(value).__name__}, expected a loss mask [T] of 0 and 1.", "not a sample")
    mask = _row(value, name, where, notes)
    if ((mask != 0) & (mask != 1)).any():
        _note(notes, "the loss mask holds values other than 0 and 1; non-zero was read as 1")
    return (mask != 0).to(torch.int64)


def check_usable(sample: Sample, slots: int | None = None, hidden_size: int | None = None) -> None:
    """Raise DumpError unless the parts fit each other, and the other samples' number of slots and width where these are known."""
    for what, detail in shape_problems(sample):
        raise DumpError(f"{sample.key}: {what}: {detail}. Dump it again, or leave it out.", what)
    width = sample.slots[0].shape[1]
    if hidden_size not in (None, width):
        text = f"{sample.key}: wrong width: H = {width}, the other samples have {hidden_size}. Does it come from another model?"
        raise DumpError(text, "mixed widths")
    if slots not in (None, len(sample.slots)):
        raise DumpError(f"{sample.key}: {len(sample.slots)} slots, the other samples have {slots}.", "slots differ")


def shape_problems(sample: Sample) -> Iterator[tuple[str, str]]:
    """(what, detail) for each way in which a sample's parts do not fit each other."""
    if len(sample.token_ids) == 0:
        yield "no tokens", "T = 0"
    lengths = {"token ids": len(sample.token_ids)}
    lengths |= {name: slot.shape[0] for name, slot in zip(sample.slot_names, sample.slots, strict=True)}
    if sample.loss_mask is not None:
        lengths["loss mask"] = len(sample.loss_mask)
    if len(set(lengths.values())) > 1:
        yield "lengths differ", ", ".join(f"{name} {length}" for name, length in lengths.items())
    widths = [slot.shape[1] for slot in sample.slots]
    if len(set(widths)) > 1:
        yield "mixed widths", f"the slots have the widths {widths}"


def is_dense(value: Any) -> bool:
    """Whether a value is a tensor whose numbers lie one beside the other."""
    return isinstance(value, Tensor) and not value.is_nested and value.layout == torch.strided


def check_dense(value: Tensor, name: str, where: str) -> None:
    """Raise DumpError unless a tensor is a plain one with its values behind it."""
    if not is_dense(value) or value.is_quantized or value.is_meta:
        raise DumpError(f"{where}: {name} is not a plain dense tensor ({value.layout}). Save it as one.", "not a sample")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():  # a few bytes can claim a shape of any size
        text = f"{where}: {name} claims the shape {list(value.shape)} over fewer stored values. Save tensor.contiguous()."
        raise DumpError(text, "not a sample")


def _row(value: Tensor, name: str, where: str, notes: list[str]) -> Tensor:
    check_dense(value, name, where)
    if value.dim() == 2 and value.shape[0] == 1:
        _note(notes, "a batch dimension of 1 was taken off")
        value = value[0]
    if value.dim() != 1:
        raise DumpError(f"{where}: {name} has the shape {list(value.shape)}, expected [T].", "not a sample")
    return value


def _tensor(values: Sequence[Any], name: str, where: str, dtype: torch.dtype | None = None) -> Tensor:
    """A list of numbers as a tensor; Python's integers have no bound, a tensor's have."""
    try:
        return torch.tensor(values, dtype=dtype)
    except (ValueError, RuntimeError, OverflowError) as error:
        raise DumpError(f"{where}: {name} holds a number that does not fit into 64 bits. Dump it again.", "not a sample") from error


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
