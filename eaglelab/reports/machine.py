"""What this machine has for kernels: cores, memory, GPUs. Counted without torch, which takes seconds to load and holds a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """What kernels may use."""

    cores: int
    memory: int
    """Bytes that are free now."""
    gpus: tuple[str, ...] = field(default=())
    """What `CUDA_VISIBLE_DEVICES` calls each, in torch's order: `cuda:1` is the second."""


def here() -> Machine:
    """This machine, within the limits of this process's container."""
    return Machine(cores(), memory(), gpus(os.environ))


def cores(cgroup: Path = CGROUP) -> int:
    """Cores that this process may use, its container's quota counted."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # "max 100000" without a quota
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
        allowed = min(allowed, max(1, quota // period))
    return allowed


def memory(cgroup: Path = CGROUP) -> int:
    """Free bytes, of the container's limit where there is one."""
    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError):
        free = min(free, int((cgroup / "memory.max").read_text()) - int((cgroup / "memory.current").read_text()))
    return max(0, free)


def gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """CUDA devices: those of `CUDA_VISIBLE_DEVICES`, else those that `nvidia-smi -L` lists, by number."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return tuple(names[: next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))])  # CUDA stops reading there
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if tool is None:
        return ()
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
        return tuple(re.findall(r"^GPU (\d+):", listed, re.MULTILINE))
    return ()
