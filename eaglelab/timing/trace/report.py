"""What a trace tells: the phases of every cycle, and their sums."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eaglelab.progress import progress
from eaglelab.timing.errors import TimingError
from eaglelab.timing.phases import COLUMNS, Phase
from eaglelab.timing.trace.attribute import attribute
from eaglelab.timing.trace.cycles import RankCycles
from eaglelab.timing.trace.recording import Recording, read_recordings

CYCLE_COLUMNS = ("file", "rank", "cycle", "start_ms", "wall_ms", "batch", "verified", "target_ms", *COLUMNS.values())
LOW, HIGH = 0.05, 0.95
LARGEST = 30
"""Names of what is unattributed that are kept."""
ENDINGS = (".json", ".json.gz")
NO_RUN = re.compile(r"capture|server_args|distributedInfo")
"""Files beside traces of a run, by name: graph captures, settings."""
WHERE = {
    "cuda": "kernels on the device",
    "cpu": "spans on the CPU",
    "host": "launching, on the host of a GPU",
}
NO_KERNELS = (
    "a GPU ran this and the trace holds none of its kernels: the times say how long the host took to launch each stage, not how long the stage took; "
    'record both (SGLang: POST /start_profile with {"activities": ["CPU", "GPU"]}; torch: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])'
)
SEVERAL = "recordings of several kinds are counted together"
WANTED = "no step of SGLang, vLLM or eaglelab's loop"


@dataclass(frozen=True)
class TraceReport:
    """All ranks of one run."""

    files: tuple[Path, ...]
    engine: str | None
    """`sglang`, `vllm`, `eaglelab` (the loop of `eaglelab.loop`), None where nothing tells."""
    device: str
    """`cuda` (kernels were recorded), `cpu`, or `host`: a GPU ran it and its kernels were not recorded, so that times are those of launching."""
    cycles: pd.DataFrame
    """One row a cycle and rank: file, rank, cycle, start_ms, wall_ms, batch, verified (tokens a request, where told), target_ms (the target's pass,
    collectives in it included), then a column a phase (`phases.COLUMNS`). In every row the phases sum to wall_ms."""
    phases: pd.DataFrame
    """One row a phase, over all cycles: phase, total_ms, share, median_ms, low_ms, high_ms (5 to 95 % of cycles), cycles (in which it occurs)."""
    collectives: pd.DataFrame
    """One row a collective and the phase that it runs in: collective, phase, count, total_ms, exposed_ms (nothing else ran meanwhile), median_us."""
    unattributed: pd.DataFrame
    """The largest of what no span claims: name, count, total_ms."""
    outside: pd.DataFrame
    """Steps that are no speculative cycle: kind (prefill, decode, mixed, idle, other), count, total_ms, median_ms, target_ms (of it the target's
    own pass, median: what a verify pass compares with), target_low_ms and target_high_ms (95 % interval of that median, NaN for few steps), batch;
    one row a kind and batch."""
    notes: tuple[str, ...] = ()

    @property
    def speculative(self) -> bool:
        """Whether any cycle was found."""
        return len(self.cycles) > 0

    def by_batch(self) -> pd.DataFrame:
        """Median milliseconds of each phase: one row a batch size, columns cycles, wall_ms and `phases.COLUMNS`."""
        return self._medians("batch")

    def by_rank(self) -> pd.DataFrame:
        """The same, one row a rank."""
        return self._medians("rank")

    def _medians(self, key: str) -> pd.DataFrame:
        wanted = ["wall_ms", *COLUMNS.values()]
        groups = self.cycles.groupby(key, dropna=False, sort=True)
        table = groups[wanted].median()
        table.insert(0, "cycles", groups.size())
        return table.reset_index()

    def share(self, phase: Phase) -> float | None:
        """Of the time of all cycles; None without cycles, and where only launching was timed (`host`)."""
        if not self.speculative or self.device == "host":
            return None
        return float(self.phases.set_index("phase").loc[phase.value, "share"])

    @property
    def several(self) -> str | None:
        """The note that recordings of different engines or devices are counted together; None where they are of one kind."""
        return next((note for note in self.notes if note.startswith(SEVERAL)), None)

    @property
    def summary(self) -> str:
        """In one to three lines; first that recordings of several kinds are mixed, where they are."""
        first = f"{self.several[0].upper()}{self.several[1:]}\n" if self.several else ""
        if not self.speculative:
            return first + (self.notes[0] if self.notes else "no speculative cycle in this trace")
        count, wall = len(self.cycles), float(self.cycles["wall_ms"].median())
        ranks = self.cycles["rank"].nunique()
        told = sorted(((float(s), p) for p, s in zip(self.phases["phase"], self.phases["share"], strict=True) if s > 0), reverse=True)
        parts = ", ".join(f"{phase} {share:.1%}" for share, phase in told)
        where = WHERE[self.device]
        over = f" of {ranks} ranks" if ranks > 1 else ""
        most = f"\n{told[0][1]} dominates: {told[0][0]:.1%} of the time" if told and told[0][0] > 0.5 else ""
        of = "all kinds together" if self.several else f"{self.engine}, times of {where}"
        return f"{first}{count:,} cycles{over} ({of}), median {wall:.3f} ms: {parts}{most}"

    def to_json(self) -> dict[str, Any]:
        return {
            "files": [str(path) for path in self.files],
            "engine": self.engine,
            "device": self.device,
            "speculative": self.speculative,
            "summary": self.summary,
            "cycles": _records(self.cycles),
            "phases": _records(self.phases),
            "by_batch": _records(self.by_batch()),
            "by_rank": _records(self.by_rank()),
            "collectives": _records(self.collectives),
            "unattributed": _records(self.unattributed),
            "outside": _records(self.outside),
            "notes": list(self.notes),
        }


def read_trace(paths: str | Path | Sequence[str | Path]) -> TraceReport:
    """Chrome traces of PyTorch's profiler (`.json`, `.json.gz`), one a rank, or a folder of them. Raises TimingError.

    Of several files those that cannot be used are left out with a note; the error comes where none can.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not given:
        raise TimingError("no trace was given: expected files of PyTorch's profiler (.json, .json.gz) or a folder of them")
    notes: list[str] = []
    files = list({file.resolve(): file for path in given for file in _files(Path(path), notes)}.values())
    once: dict[tuple, Path] = {}
    results: list[tuple[Recording, RankCycles]] = []
    used: list[Path] = []
    first_error: TimingError | None = None
    others: Counter[str] = Counter()
    for file in progress(files, "reading the trace", unit="files"):
        try:
            recordings, said = read_recordings(file)
        except TimingError as error:
            if len(files) == 1:
                raise
            first_error = first_error or error
            notes.append(f"left out: {error}")
            continue
        used.append(file)
        prefix = f"{file.name}: " if len(files) > 1 else ""
        notes += [prefix + note for note in said]
        for recording in recordings:
            found = attribute(recording)
            first = once.setdefault(_times(recording, found), file)
            if first is not file:
                notes.append(f"{file.name}: the same recording as {first.name}, left out")
                continue
            notes += [
                (f"{file.name}: " if len(files) > 1 else f"{recording.rank}: " if len(recordings) > 1 else "") + n for n in found.notes
            ]
            others.update(recording.other_spans)
            results.append((recording, found))
    if not used and first_error is not None:
        raise first_error
    return _report(tuple(used), results, notes, others)


def _times(recording: Recording, found: RankCycles) -> tuple:
    """What no two recordings share: the lengths of their passes. A rank without passes equals itself alone."""
    lengths = (*(one["wall_ms"] for one in found.cycles), *(ms for _, _, ms, _ in found.outside))
    return (recording.rank, found.engine, *lengths) if lengths else (id(recording),)


def _files(path: Path, notes: list[str]) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(ENDINGS) and not _hidden(p.relative_to(path)))
    told = [p for p in found if ".trace.json" in p.name] or found
    kept = [p for p in told if not NO_RUN.search(str(p.relative_to(path)))]
    merged = [p for p in kept if p.name.startswith("merged-")]
    if merged and len(merged) < len(kept):
        kept = [p for p in kept if p not in merged]
        notes.append(f"{path}: {', '.join(p.name for p in merged)} left out, its ranks are there file by file")
    if not kept:
        there = ", ".join(sorted({p.suffix or p.name for p in path.iterdir()})[:6]) or "nothing"
        raise TimingError(f"{path}: a folder without traces; expected *.trace.json.gz or *.json of PyTorch's profiler, got {there}")
    if len(kept) < len(told):
        notes.append(f"{path}: {len(told) - len(kept):,} files left out by their name (graph captures, settings, merged traces)")
    return kept


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _report(files: tuple[Path, ...], results: list[tuple[Recording, RankCycles]], notes: list[str], others: Counter[str]) -> TraceReport:
    rows: list[dict[str, Any]] = []
    numbers: Counter[str] = Counter()
    for recording, found in results:
        for one in found.cycles:
            rows.append({"file": recording.path.name, "rank": recording.rank, "cycle": numbers[recording.rank], **one})
            numbers[recording.rank] += 1
    cycles = pd.DataFrame(rows, columns=CYCLE_COLUMNS)
    cycles["batch"] = cycles["batch"].astype("Int64")
    cycles["verified"] = cycles["verified"].astype("float64")
    engines = Counter(found.engine for _, found in results if found.engine)
    engine = engines.most_common(1)[0][0] if engines else None
    devices = {found.device for _, found in results if found.cycles or found.outside}
    device = next((one for one in WHERE if one != "cpu" and one in devices), "cpu")
    notes = _first_notes(cycles, results, others, engine) + list(dict.fromkeys(notes))
    return TraceReport(
        files,
        engine,
        device,
        cycles,
        _phases(cycles),
        _collectives(row for _, found in results for row in found.collectives),
        _unattributed(found.unattributed for _, found in results),
        _outside(row for _, found in results for row in found.outside),
        tuple(notes),
    )


def _first_notes(cycles: pd.DataFrame, results: list[tuple[Recording, RankCycles]], others: Counter[str], engine: str | None) -> list[str]:
    passes = sum((found.passes for _, found in results), Counter())
    kinds = Counter(f"{found.engine} on {found.device}" for _, found in results if found.passes)
    pooled = [f"{SEVERAL} ({', '.join(sorted(kinds))}): read them apart"] if len(kinds) > 1 else []
    if any(found.device == "host" for _, found in results):
        pooled.append(NO_KERNELS)
    if len(cycles):
        first = pooled
        if engine == "vllm" and cycles[COLUMNS[Phase.DRAFT]].any():
            first.append("vLLM opens no span for draft extend: the drafter's pass over what was accepted is in draft")
        if any(found.device == "cpu" and found.cycles for _, found in results):
            first.append("CPU times: no GPU ran this; a stage's time is from its begin to its end in the thread that runs the model")
        if passes["mixed"]:
            first.append(
                f"mixed steps, prompts beside requests in decode: {passes['mixed']:,}; they stand outside, whether or not they verify"
            )
        return first
    if passes["verify"]:
        return [f"no whole speculative cycle: {passes['verify']} seen, cut by the recording's beginning or end; record more steps"]
    words = {"decode": "plain decode steps", "other": "steps of which no span tells what they do"}
    told = ", ".join(f"{words.get(kind, f'{kind} steps')} {count:,}" for kind, count in passes.most_common())
    if told:
        return [f"no speculative cycle in this trace; found instead: {told}", *pooled]
    seen = ", ".join(f"`{name}`" for name, _ in others.most_common(4))
    return [f"no speculative cycle: {WANTED} in this trace" + (f"; its spans are {seen}" if seen else "; it has no spans at all")]


def _phases(cycles: pd.DataFrame) -> pd.DataFrame:
    values = cycles[list(COLUMNS.values())].to_numpy(np.float64)  # [cycles, phases]
    wall = float(cycles["wall_ms"].sum())
    total = values.sum(axis=0)
    median, low, high = np.quantile(values, [0.5, LOW, HIGH], axis=0) if len(values) else np.zeros((3, 0))
    columns = {
        "phase": [phase.value for phase in COLUMNS],
        "total_ms": total,
        "share": total / wall if wall else total,
        "median_ms": median,
        "low_ms": low,
        "high_ms": high,
        "cycles": (values > 0).sum(axis=0),
    }
    return pd.DataFrame(columns if len(values) else {name: [] for name in columns})


def _grouped(rows: Iterable[tuple], keys: int) -> list[tuple[tuple, np.ndarray]]:
    """Rows by their first `keys` columns; the others as an array [rows of the group, columns]. The largest sum of the first of these first."""
    groups: dict[tuple, list[tuple]] = {}
    for row in rows:
        groups.setdefault(row[:keys], []).append(row[keys:])
    made = [(key, np.array(values, np.float64)) for key, values in groups.items()]
    return sorted(made, key=lambda group: -group[1][:, 0].sum())


def _collectives(rows: Iterable[tuple[str, str, float, float]]) -> pd.DataFrame:
    made = [
        (*key, len(ms), float(ms[:, 0].sum()), float(ms[:, 1].sum()), float(np.median(ms[:, 0])) * 1e3) for key, ms in _grouped(rows, 2)
    ]
    return pd.DataFrame(made, columns=["collective", "phase", "count", "total_ms", "exposed_ms", "median_us"])


def _unattributed(parts: Iterable[dict[str, tuple[int, float]]]) -> pd.DataFrame:
    told: dict[str, list[float]] = {}
    for part in parts:
        for name, (count, ms) in part.items():
            mine = told.setdefault(name, [0, 0.0])
            mine[0] += count
            mine[1] += ms
    table = pd.DataFrame([(name, int(count), ms) for name, (count, ms) in told.items()], columns=["name", "count", "total_ms"])
    return table.sort_values("total_ms", ascending=False, ignore_index=True).head(LARGEST)


def _outside(rows: Iterable[tuple[str, int | None, float, float]]) -> pd.DataFrame:
    made = [
        (kind, len(ms), float(ms[:, 0].sum()), float(np.median(ms[:, 0])), float(np.median(ms[:, 1])), *median_interval(ms[:, 1]), batch)
        for (kind, batch), ms in _grouped(rows, 2)
    ]
    table = pd.DataFrame(made, columns=["kind", "count", "total_ms", "median_ms", "target_ms", "target_low_ms", "target_high_ms", "batch"])
    return table.astype({"batch": "Int64"})


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the median of values [n], by the ranks that a binomial distribution leaves out; NaN below 6, where none has 95 %."""
    n, rank, below = len(values), 0, 0.0
    if n > 64:
        rank = int((n - 1.96 * math.sqrt(n)) / 2)
    else:
        while (below := below + math.comb(n, rank) / 2**n) <= 0.025:
            rank += 1
    if rank == 0:
        return math.nan, math.nan
    ordered = np.sort(values)
    return float(ordered[rank - 1]), float(ordered[n - rank])


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain Python values, None for what is not known."""
    return [
        {key: None if pd.isna(value) else getattr(value, "item", lambda value=value: value)() for key, value in row.items()}
        for row in table.to_dict("records")
    ]
