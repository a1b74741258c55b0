"""What this machine can do at most: bytes a second read from memory, floating-point operations a second in a matrix product.

Measured in the same run as what is set beside them, since a data sheet's numbers are those of another clock and another load.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from eaglelab.timing.bench.clock import Call, free_bytes, time_calls
from eaglelab.timing.errors import TimingError

BUFFER_BYTES = {"cpu": 2**29, "cuda": 2**32}
"""Larger than any cache of its kind: CPUs have up to about 400 MB at the last level, GPUs up to about 130 MB."""
SIDES = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the square matrices whose product gives the peak."""
ROW = 4096
REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """A device, and the best that was measured on it in the dtype of the bench. Medians of `REPEATS` runs."""

    device: str
    """`cpu` or `cuda`."""
    name: str
    dtype: str
    threads: int | None
    """Torch threads on a CPU; None on CUDA."""
    read_gb_s: float
    """10^9 bytes a second, read only: the better of a sum and a matrix-vector product over one buffer."""
    read_by: str
    """`sum` or `matrix-vector`."""
    copy_gb_s: float
    """Bytes read and bytes written together, of a copy."""
    peak_tflop_s: float
    """10^12 operations a second (a multiplication and an addition are two) of a square matrix product."""
    buffer_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_machine(
    device: torch.device, dtype: torch.dtype, *, buffer_bytes: int | None = None, side: int | None = None, repeats: int = REPEATS
) -> Machine:
    """Read-only bandwidth, copy bandwidth and the peak of a matrix product. Raises TimingError where the buffers do not fit."""
    wanted = buffer_bytes or BUFFER_BYTES.get(device.type, 2**29)
    free = free_bytes(device)
    size = wanted if free is None else min(wanted, free // 4)
    side = side or SIDES.get(device.type, 2048)
    width = torch.empty(0, dtype=dtype).element_size()
    rows = size // (width * ROW)
    if rows < 1:
        raise TimingError(f"{device}: {free or 0:,} bytes free, no room for a buffer to measure the bandwidth with; free some memory")
    buffer = torch.ones(rows, ROW, dtype=dtype, device=device)  # [rows, ROW]
    vector = torch.ones(ROW, dtype=dtype, device=device)
    into, flat = torch.empty_like(buffer), buffer.flatten()
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))  # [side, side]
    calls = [
        Call("sum", lambda: flat.sum()),
        Call("matrix-vector", lambda: buffer @ vector),
        Call("copy", lambda: into.copy_(buffer)),
        Call("product", lambda: left @ right),
    ]
    times = time_calls(calls, device, repeats)
    failed = next((t.note for t in times.values() if not t.ms), None)
    if failed:
        raise TimingError(f"{device}: the bandwidth could not be measured ({failed}); free some memory")
    seconds = {name: median(t.ms) / 1e3 for name, t in times.items()}
    held = buffer.numel() * width
    best = min(("sum", "matrix-vector"), key=seconds.__getitem__)
    return Machine(
        device=device.type,
        name=device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        threads=torch.get_num_threads() if device.type == "cpu" else None,
        read_gb_s=held / seconds[best] / 1e9,
        read_by=best,
        copy_gb_s=2 * held / seconds["copy"] / 1e9,
        peak_tflop_s=2 * side**3 / seconds["product"] / 1e12,
        buffer_bytes=held,
    )


def best_of(runs: Sequence[Machine]) -> Machine:
    """The limits of one machine that was measured several times: the best of each."""
    fastest = max(runs, key=lambda m: m.read_gb_s)
    return replace(fastest, copy_gb_s=max(m.copy_gb_s for m in runs), peak_tflop_s=max(m.peak_tflop_s for m in runs))


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's as Linux tells it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
