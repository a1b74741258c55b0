"""What a sweep runs on: results of two machines are never one sweep's."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
DEVICES = ("nvidia*", "kfd", "dri", "accel*", "davinci*")
"""Under /dev, where there is an accelerator: NVIDIA's, AMD's, anything with a display driver, TPUs and Gaudi, Ascend."""


def machine() -> dict[str, Any]:
    """`cpu`, `cores`, and `gpus` by name: NVIDIA's, without torch, which may see none of them. Empty where its tool is not there."""
    try:
        told = CPUINFO.read_text().splitlines()
    except OSError:
        told = []
    cpu = next((line.partition(":")[2].strip() for line in told if line.startswith("model name")), platform.machine())
    return {"cpu": cpu, "cores": os.cpu_count(), "gpus": _gpus()}


def accelerated(dev: Path = Path("/dev")) -> bool:
    """Whether this machine may have an accelerator."""
    return any(next(dev.glob(name), None) is not None for name in DEVICES)


def _gpus() -> list[str]:
    try:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.splitlines() if line.strip()]
