"""What was measured: throughput and accept length of settings, one row a setting and batch size, from whatever printed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from eaglelab.timing.setting import Setting

COLUMNS = ("batch", "steps", "topk", "draft_tokens", "tok_s", "accept_length", "source")


@dataclass(frozen=True)
class Measured:
    """One run of one setting."""

    batch: int
    """Requests that ran at the same time."""
    setting: Setting
    tok_s: float
    """Output tokens a second of all requests together."""
    accept_length: float | None = None
    """Tokens per verify pass, the bonus token included; None for off, or where it was not told."""
    source: str = ""
    """File and line, or who measured."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What else was told: itl_ms, ttft_ms, group (one table may hold several models or machines), env, …"""


@dataclass(frozen=True)
class MeasuredTable:
    rows: tuple[Measured, ...]
    path: Path | None = None
    notes: tuple[str, ...] = ()
    """What was left out or converted, one sentence each."""

    @property
    def table(self) -> pd.DataFrame:
        """One row a run; columns `COLUMNS`."""
        rows = [(m.batch, m.setting.steps, m.setting.topk, m.setting.draft_tokens, m.tok_s, m.accept_length, m.source) for m in self.rows]
        return pd.DataFrame(rows, columns=COLUMNS)

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({m.batch for m in self.rows}))

    def baselines(self, batch: int) -> Sequence[Measured]:
        """The runs without speculation at this batch size."""
        return [m for m in self.rows if m.batch == batch and m.setting.off]


def read_measured(path: str | Path) -> MeasuredTable:
    """A hand-written CSV, a benchmark's JSON lines (SGLang, vLLM, SpecForge), or the folder of a sweep. Raises TimingError."""
    raise NotImplementedError
