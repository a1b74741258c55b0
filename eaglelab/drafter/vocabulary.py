"""The map from draft ids to the target's token ids: target id = draft id + d2t[draft id]."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from eaglelab.drafter.audit import DrafterError
from eaglelab.drafter.config import DrafterConfig


def check_d2t(d2t: Tensor, config: DrafterConfig, folder: Path) -> Tensor:
    """[Vd] int64 offsets: target id = draft id + d2t[draft id]. Raises DrafterError where an id falls outside 0..V-1."""
    if d2t.is_floating_point():
        raise DrafterError(f"{folder}: d2t is {d2t.dtype}, expected integers")
    d2t = d2t.long()
    ids = d2t + torch.arange(len(d2t))
    outside = (ids < 0) | (ids >= config.vocab_size)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        hint = " The values look like token ids; d2t holds offsets (id minus place)." if looks_absolute(d2t, config.vocab_size) else ""
        raise DrafterError(
            f"{folder}: d2t points outside the target's vocabulary (0..{config.vocab_size - 1}) for {int(outside.sum())} of {len(ids)} "
            f"draft ids; first: draft id {first} -> {int(ids[first])}.{hint}"
        )
    return d2t


def looks_absolute(d2t: Tensor, vocab_size: int) -> bool:
    """d2t as ascending token ids instead of offsets: strictly ascending and in range by itself."""
    return bool((d2t.diff() > 0).all()) and int(d2t[0]) >= 0 and int(d2t[-1]) < vocab_size
