"""A capture on disk: raw folders, one a sample, that `open_dump` reads as they are, and `capture.json`, which says where they come from.

Captured boundary N is written as the last state (`final.pt`, which is the raw layout's name for it); everything else is an aux slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from eaglelab.findings import write_json
from eaglelab.wiring import Boundary, Wiring

INFO = "capture.json"
FORMAT = 1


class CaptureError(ValueError):
    """States that cannot be captured or read back; the message says what to change in the server's flags."""


@dataclass(frozen=True)
class CaptureInfo:
    """Where captured states come from. None: not known. The boundaries are a claim by convention, as those of any config."""

    engine: str
    """`sglang==0.5.23`, as `parse_engine` takes it."""
    way: str
    """`aux`: returned with the answers; `hook`: recorded where the drafter's fc is called; `extract`: vLLM's files."""
    boundaries: tuple[Boundary, ...] | None = None
    """One a slot, by the engine's convention."""
    layer_ids: tuple[int, ...] | None = None
    num_layers: int | None = None
    dtype: str | None = None
    """In which the engine computes."""
    command: str | None = None
    notes: tuple[str, ...] = ()
    samples: Mapping[str, str | None] = ()
    """Captured sample: the dump's sample that its prompt is of."""
    format: int = FORMAT

    @property
    def wiring(self) -> Wiring | None:
        return None if self.boundaries is None else Wiring(self.boundaries)

    @classmethod
    def load(cls, folder: str | Path) -> CaptureInfo | None:
        """None where the folder holds no `capture.json`: a dump like any other. Raises CaptureError for one that cannot be used."""
        path = Path(folder) / INFO
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            values = {key: tuple(v) if isinstance(v, list) else v for key, v in found.items() if key in cls.__dataclass_fields__}
            info = cls(**values)
            info.wiring  # noqa: B018 - raises
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CaptureError(f"{path} is no record of a capture ({str(error)[:200]}): capture again, or remove it") from None
        return replace(info, samples=dict(info.samples) if isinstance(info.samples, dict) else {})


class CaptureWriter:
    """Writes samples as they come; what is on disk is whole after each."""

    def __init__(self, out: str | Path, info: CaptureInfo) -> None:
        self.out, self.info = Path(out), replace(info, samples={})
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise CaptureError(
                f"{self.out} is there already and not an empty folder: give another one, a capture is never mixed with others"
            )
        self.bytes = 0

    def add(self, index: int, token_ids: Sequence[int], slots: Sequence[Tensor], loss_mask: Tensor | None, sample: str | None) -> None:
        """token_ids: T ints; slots: S tensors [T, H] float; loss_mask: [T] or None. Kept in bfloat16 where that loses nothing."""
        folder = self.out / f"sample_{index:05d}"
        folder.mkdir(parents=True)
        last = self._last(len(slots))
        files = {f"aux_{s}.pt": compact(slot) for s, slot in enumerate(slots) if s != last}
        files |= {} if last is None else {"final.pt": compact(slots[last])}
        files |= {} if loss_mask is None else {"loss_mask.pt": loss_mask.clone()}
        files["input_ids.pt"] = torch.tensor(list(token_ids))
        for name, tensor in files.items():
            torch.save(tensor, folder / name)
        self.bytes += sum((folder / name).stat().st_size for name in files)
        self.info = replace(self.info, samples={**self.info.samples, folder.name: sample})
        write_json(self.out / INFO, asdict(self.info))

    def _last(self, count: int) -> int | None:
        """The slot that holds boundary N, where it is the last of several."""
        boundaries, layers = self.info.boundaries, self.info.num_layers
        known = boundaries is not None and len(boundaries) == count > 1 and layers is not None
        return count - 1 if known and boundaries[-1] == layers else None


def compact(states: Tensor) -> Tensor:
    """[T, H] in bfloat16 where every value is one (JSON carries them as float32), else as it is."""
    half = states.to(torch.bfloat16)
    return half if states.dtype != torch.bfloat16 and torch.equal(half.to(states.dtype), states) else states.clone()
