"""What a layout has to know: a dict of tensors out of one file, turned into a sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from eaglelab.dumps.containers import TORCH_SUFFIXES, DumpError
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Sample


class Layout:
    """Base of all layouts of one file a sample. `fits` decides by keys, types and shapes alone and reads no values."""

    name: str
    looks_for: str
    """In words, for the error when no format fits: `token_ids [T] and hidden_states [T, L, H]`."""
    suffixes: tuple[str, ...] = TORCH_SUFFIXES
    last_state_kept: bool = True
    """Whether the last slot is the last state; False: all slots are aux slots."""

    def fits(self, data: Any) -> bool:
        """Whether what a file holds is of this layout. Never raises."""
        raise NotImplementedError

    def sample(self, key: str, data: Mapping[str, Any], path: Path, root: Path) -> Sample:
        """The sample as the file holds it; lengths and widths are not compared yet. path: the file, for errors. Raises DumpError."""
        raise NotImplementedError

    def implied(self, listing: Listing) -> tuple[Implied | None, list[str]]:
        """(what the layout and the metadata beside the samples say, what is wrong with the metadata)."""
        return None, []


def shape(data: Any, key: str) -> tuple[int, ...] | None:
    """The shape of the tensor under `key`, None where there is none."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return tuple(value.shape) if isinstance(value, Tensor) else None


def split_slots(value: Any, name: str, width: int | None, path: Path) -> tuple[list[Tensor], list[str]]:
    """(slots, names) of a tensor that holds several side by side: [T, S * H] or [1, T, S * H] into S views [T, H], in order.

    width: H, from the last state beside it. Raises DumpError where the width is no multiple of it.
    """
    if not isinstance(value, Tensor) or value.dim() not in (2, 3) or not width or value.shape[-1] % width or not value.shape[-1]:
        raise DumpError(
            f"{path}: {name} is {describe(value)}, expected [T, S * H] or [1, T, S * H], several slots side by side, with "
            f"H = {width} from the last state.",
            "not a sample",
        )
    count = value.shape[-1] // width
    return list(value.split(width, dim=-1)), [f"{name}[{s} of {count}]" for s in range(count)]


def describe(value: Any) -> str:
    """What a file holds, for an error: `one tensor [3, 4] of bfloat16`, `a list`."""
    if isinstance(value, Tensor):
        return f"one tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"
