"""One event of a server's log, the same for every engine, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(slots=True)
class LogRow:
    """What one line (or one printed summary) says. None: not said there."""

    event: str
    """`start`, `restart` (of a server); `decode`, `prefill` (SGLang's lines); `interval` (vLLM's, every few seconds); `total` (of a run or since the
    start: benchmarks, offline summaries, vLLM before V1); `request` (one answer's own counts)."""
    engine: str
    """`sglang`, `vllm` or `specforge` (its benchmark of SGLang)."""
    line: int = 0
    time: datetime | None = None
    """Naive, as printed by the server's clock. vLLM prints no year: 2000 stands for it."""
    rank: str = ""
    """As printed: `DP0 TP0`, `Engine 000`, a benchmark's name."""
    start: int = 0
    """Of which start of the server, counted from 0, in the order of the log."""
    running: int | None = None
    """Requests running; of a benchmark its batch size."""
    queue: int | None = None
    accept_length: float | None = None
    """Tokens per verify pass, the bonus token included, as rounded by the printer."""
    accept_definition: str | None = None
    """What the source's number was, in words."""
    joint: tuple[float, ...] | None = None
    """K rates: passes whose drafted tokens of steps 0..k were all accepted."""
    accept_rate: float | None = None
    """As printed, 0 to 1."""
    rate_definition: str | None = None
    """`accepted_share` (accepted of all drafted tokens) or `length_share` (accept length over draft tokens); None where it cannot be told."""
    verify_steps: int | None = None
    accepted: int | None = None
    """Drafted tokens accepted, the bonus tokens not included."""
    proposed: int | None = None
    """Drafted tokens."""
    tok_s: float | None = None
    """Generated tokens a second, over the printer's interval (idle time included)."""
    prompt_tok_s: float | None = None
    graph: bool | None = None
    """Whether the target's pass was a captured graph (`cuda graph`, `cpu graph`, `npu graph`). Says nothing of the drafter's."""
    new_tokens: int | None = None
    cached_tokens: int | None = None
    """Of a prefill."""
    cache_usage: float | None = None
    """Share of the KV cache that is in use, 0 to 1."""
    prefix_hit: float | None = None
    """Share of the prompts' tokens that came out of the prefix cache, 0 to 1: vLLM's over its last requests, SGLang's before 0.4.4."""
    num_steps: int | None = None
    num_draft_tokens: int | None = None
    """Of a benchmark's configuration, or what the row itself names."""


COLUMNS = tuple(f.name for f in fields(LogRow))
INTEGERS = (
    *("line", "start", "running", "queue", "verify_steps", "accepted", "proposed"),
    *("new_tokens", "cached_tokens", "num_steps", "num_draft_tokens"),
)
FLOATS = ("accept_length", "accept_rate", "tok_s", "prompt_tok_s", "cache_usage", "prefix_hit")


def as_table(rows: Sequence[LogRow]) -> pd.DataFrame:
    """One row an event, columns as in `LogRow` (`Int64`, `float64`, `boolean`, `datetime64`, text; missing as pandas has it)."""
    import pandas as pd

    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    for name in INTEGERS:
        columns[name] = pd.array(columns[name], dtype="Int64")
    for name in FLOATS:
        columns[name] = pd.array(columns[name], dtype="float64") if rows else pd.Series(dtype="float64")
    columns["graph"] = pd.array(columns["graph"], dtype="boolean")
    columns["time"] = pd.Series(columns["time"], dtype="datetime64[us]")
    return pd.DataFrame(columns, columns=list(COLUMNS))
