"""What was measured: throughput and accept length of settings, one row a setting and batch size, from whatever printed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.timing.setting import Setting

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("batch", "steps", "topk", "draft_tokens", "tok_s", "accept_length", "source")
PLACES = ("model", "target", "hw", "tp", "engine", "version", "dataset", "input_len", "output_len", "temperature", "env", "group")
"""Extra columns whose values keep rows apart: speculation is compared with the baseline of the same model, machine, text."""
DRAFTERS = ("draft", "feature_input")
"""The same of speculated rows only: a baseline has no drafter, whatever its row says there."""


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
    """What else was told: itl_ms, ttft_ms, env, …; `PLACES` and `DRAFTERS` keep rows apart; `batch_told` False: the source names no batch size."""

    @property
    def place(self) -> dict[str, str]:
        """Where it was measured: of `PLACES` and, when speculated, `DRAFTERS`, those that are told."""
        names = PLACES if self.setting.off else PLACES + DRAFTERS
        return {name: str(self.extra[name]) for name in names if self.extra.get(name) not in (None, "", {})}

    @property
    def group(self) -> str:
        """`place` as one text; empty where nothing was told."""
        return ", ".join(f"{name} {value}" for name, value in self.place.items())

    @property
    def pass_ms(self) -> float | None:
        """Milliseconds of one pass: a cycle (needs the accept length), or of off one decode step. None where a part is not told."""
        length = 1.0 if self.setting.off else self.accept_length
        return None if length is None or not self.batch_told else 1000 * self.batch * length / self.tok_s

    @property
    def batch_told(self) -> bool:
        return self.extra.get("batch_told", True) is not False


@dataclass(frozen=True)
class MeasuredTable:
    rows: tuple[Measured, ...]
    path: Path | None = None
    notes: tuple[str, ...] = ()
    """What was left out or converted, one sentence each."""

    @property
    def table(self) -> pd.DataFrame:
        """One row a run; columns `COLUMNS`."""
        import pandas as pd

        rows = [(m.batch, m.setting.steps, m.setting.topk, m.setting.draft_tokens, m.tok_s, m.accept_length, m.source) for m in self.rows]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({m.batch for m in self.rows}))

    def baselines(self, batch: int, place: Mapping[str, str] | None = None) -> Sequence[Measured]:
        """The runs without speculation at this batch size. place: only those that nothing told sets apart from it (`Measured.place`), and of these
        the ones that tell the most of it and the least beside it: a baseline that names no machine stands for all. None where these are of several
        models or machines, since the row does not say which is its own."""
        found = [m for m in self.rows if m.batch == batch and m.setting.off]
        if place is None:
            return found
        near = [((sum(k in place for k in m.place), -len(m.place)), m) for m in found if fits(m.place, place)]
        most = max((n for n, _ in near), default=None)
        nearest = [m for n, m in near if n == most]
        return nearest if all(fits(m.place, nearest[0].place) for m in nearest) else []

    def settings(self, group: str | None = None) -> tuple[Setting, ...]:
        """Those that were measured, off left out, in order; of one group where it is named."""
        return tuple(sorted({m.setting for m in self.rows if not m.setting.off and group in (None, m.group)}))


def fits(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two places can be the same: nothing that both tell differs."""
    return all(other.get(name, value) == value for name, value in one.items())


def read_measured(path: str | Path, *, setting: Setting | None = None, batch: int | None = None, no_bonus: bool = False) -> MeasuredTable:
    """A hand-written CSV (comma, semicolon, tab, or a table of Markdown), a benchmark's JSON lines (SGLang, vLLM, SpecForge), the folder of a
    sweep (its `results.jsonl`), or a server's log.

    setting, batch: of the rows that do not tell their own; a row that could and has no accept length is off. no_bonus: accept lengths of the file leave the bonus token out; 1 is added. Raises
    TimingError for a file of which nothing can be used.
    """
    from eaglelab.timing.tables import read_file

    return read_file(Path(path), setting=setting, batch=batch, no_bonus=no_bonus)


def merged(tables: Sequence[MeasuredTable]) -> MeasuredTable:
    """Rows and notes of several files as one table: a baseline in one, speculation in the next."""
    if len(tables) == 1:
        return tables[0]
    notes = [
        f"{t.path.name}: {note}" if t.path is not None and not note.startswith(t.path.name) else note for t in tables for note in t.notes
    ]
    return MeasuredTable(tuple(m for t in tables for m in t.rows), None, tuple(notes))
