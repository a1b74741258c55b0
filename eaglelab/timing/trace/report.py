"""What a trace tells: the phases of every cycle, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class TraceReport:
    """All ranks of one run."""

    files: tuple[Path, ...]
    engine: str | None
    """`sglang`, `vllm`, `eaglelab` (the loop of `eaglelab.loop`), None where nothing tells."""
    device: str
    """`cuda` (kernels were recorded) or `cpu`."""
    cycles: pd.DataFrame
    """One row a cycle and rank: file, rank, cycle, start_ms, wall_ms, batch, verified (tokens a request, where told), then a column a phase
    (`phases.COLUMNS`). In every row the phases sum to wall_ms."""
    phases: pd.DataFrame
    """One row a phase, over all cycles: phase, total_ms, share, median_ms, low_ms, high_ms (5 to 95 % of cycles), cycles (in which it occurs)."""
    collectives: pd.DataFrame
    """One row a collective and the phase that it runs in: collective, phase, count, total_ms, exposed_ms (nothing else ran meanwhile), median_us."""
    unattributed: pd.DataFrame
    """The largest of what no span claims: name, count, total_ms."""
    outside: pd.DataFrame
    """Steps that are no speculative cycle: kind (prefill, decode, idle), count, total_ms, median_ms, batch."""
    notes: tuple[str, ...] = ()

    @property
    def speculative(self) -> bool:
        """Whether any cycle was found."""
        return len(self.cycles) > 0

    def by_batch(self) -> pd.DataFrame:
        """Median milliseconds of each phase: one row a batch size, columns cycles, wall_ms and `phases.COLUMNS`."""
        raise NotImplementedError

    def by_rank(self) -> pd.DataFrame:
        """The same, one row a rank."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """In one or two lines."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError


def read_trace(paths: str | Path | Sequence[str | Path]) -> TraceReport:
    """Chrome traces of PyTorch's profiler (`.json`, `.json.gz`), one a rank, or a folder of them. Raises TimingError."""
    raise NotImplementedError
