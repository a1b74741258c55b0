"""Where a drafter runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaglelab.drafter.audit import DrafterError

if TYPE_CHECKING:
    import torch


def choose_device(device: str = "auto") -> torch.device:
    """`auto` is CUDA where there is one, else the CPU. Raises DrafterError for a device that is not here."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise DrafterError(f"device {device!r}: expected auto, cpu, cuda or cuda:1") from None
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise DrafterError(f"device {device!r}: this machine has {torch.cuda.device_count()} CUDA devices; expected auto or cpu")
    return place
