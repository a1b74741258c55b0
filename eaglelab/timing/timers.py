"""Seconds by phase out of a server's own counters: Prometheus text of two moments, without any trace.

SGLang counts the device's seconds of forward passes by category, `sglang:forward_execution_seconds_total{category}`, where it was started with
SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 and --enable-metrics (read in 0.5.12 to 0.5.23: srt/utils/device_timer.py, model_executor/runner/,
speculative/eagle_draft*_cuda_graph_runner.py). Only forwards are timed: sampling, scheduling and gaps are in no category. In 0.5.9 the counter is
`sglang:gpu_execution_seconds_total` and one category spans a whole batch, drafting and verifying together (managers/scheduler_metrics_mixin.py:757).
vLLM (0.32, v1/metrics/loggers.py) times no phase: its histograms tell how long a cycle takes, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.served.prometheus import Labels, Scrape, parse_scrapes
from eaglelab.timing.errors import TimingError
from eaglelab.timing.phases import Phase

if TYPE_CHECKING:
    import pandas as pd

FORWARD = "sglang:forward_execution_seconds"
WHOLE_BATCH = "sglang:gpu_execution_seconds"
STAGES = "sglang:scheduler_stage_seconds"
PASSES = {"sglang": "sglang:spec_verify_calls", "vllm": "vllm:spec_decode_num_drafts"}
TOKENS = {"sglang": "sglang:generation_tokens", "vllm": "vllm:generation_tokens"}
INTERVALS = {
    "sglang": ("sglang:inter_token_latency_seconds",),
    "vllm": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
}
"""Histograms of the time between outputs of a request; vLLM's second name is the older one. SGLang observes a share for each token, vLLM
one interval an engine step, however many tokens it brought (v1/metrics/stats.py:551)."""
STEPS = "vllm:iteration_tokens_total"
"""A histogram: observed once an engine step."""
NAMES = (FORWARD, WHOLE_BATCH, STAGES, STEPS, *PASSES.values(), *TOKENS.values(), *INTERVALS["sglang"], *INTERVALS["vllm"])

PHASES = {
    "target_verify": Phase.VERIFY,
    "eagle_draft": Phase.DRAFT,
    "frozen_kv_draft": Phase.DRAFT,
    "eagle_draft_extend": Phase.DRAFT_EXTEND,
    "draft_extend": Phase.DRAFT_EXTEND,
    "draft_extend_v2": Phase.DRAFT_EXTEND,
    "extend": Phase.PREFILL,
    "mixed": Phase.PREFILL,
    "split_prefill": Phase.PREFILL,
    "dllm_extend": Phase.PREFILL,
    "decode": Phase.DECODE,
    "idle": Phase.OTHER,  # an empty pass, run so that other ranks' collectives do not wait
    "prebuilt": Phase.OTHER,
}
"""Categories of FORWARD. Of any other the name is shown and the phase is other."""
NO_RANK = frozenset({"category", "forward_overlap", "is_streaming", "le", "model_name", "num_prefill_ranks", "priority"})
"""Labels that tell no rank apart."""
COLUMNS = ("rank", "category", "phase", "seconds", "share", "ms_per_pass")

Key = tuple[str, Labels]


@dataclass(frozen=True)
class TimerSplit:
    """What a server counted between two moments, or since its start. None: it does not tell."""

    engine: str
    """`sglang` or `vllm`."""
    source: str
    scrapes: int
    since_start: bool
    """Whether a single scrape was given: everything since the server's start, its warm-up included."""
    rows: tuple[tuple[str, str, Phase, float], ...] = ()
    """(rank, category as the engine names it, phase, seconds of the device)."""
    verify_passes: int | None = None
    """Summed over requests: a pass that verifies four requests counts four, in both engines. SGLang adds a request's at its end."""
    tokens: int | None = None
    """Generated tokens; SGLang adds a request's at its end, its first token (of the prefill) included."""
    engine_steps: int | None = None
    """vLLM: passes of the engine, whatever was in them, prefills included."""
    intervals: tuple[float, int] | None = None
    """(seconds, count) of the histogram of the time between outputs of a request."""
    wall_seconds: float | None = None
    """Between the two moments, where it was told."""
    host: Mapping[str, float] = field(default_factory=dict)
    """SGLang 0.5.23: seconds of the scheduler's loop by stage, of all ranks; each instant in one stage."""
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> dict[Phase, float]:
        """Device seconds of each phase, all ranks together; only phases that were counted."""
        found: dict[Phase, float] = {}
        for _, _, phase, seconds in self.rows:
            found[phase] = found.get(phase, 0.0) + seconds
        return {phase: found[phase] for phase in Phase if phase in found}

    @property
    def total(self) -> float:
        """Device seconds of all phases and ranks."""
        return math.fsum(seconds for *_, seconds in self.rows)

    @property
    def share(self) -> dict[Phase, float]:
        """Of all that was timed; {} where nothing was. Sampling, scheduling and gaps are not timed, so no share is one of the wall time."""
        return {phase: seconds / self.total for phase, seconds in self.seconds.items()} if self.total > 0 else {}

    @property
    def ranks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rank for rank, *_ in self.rows))

    @property
    def copies(self) -> float:
        """Ranks that work on one pass together (tensor, pipeline and expert parallel): all ranks by data-parallel ones."""
        groups = {next((part for part in rank.split(", ") if part.startswith("dp_rank ")), "") for rank in self.ranks}
        return len(self.ranks) / len(groups) if groups else 1.0

    @property
    def ms_per_pass(self) -> dict[Phase, float]:
        """Device milliseconds for one verify pass of one request: those of the whole batch's pass over the requests in it."""
        if not self.verify_passes:
            return {}
        return {phase: 1e3 * seconds / self.copies / self.verify_passes for phase, seconds in self.seconds.items()}

    @property
    def cycle_ms(self) -> float | None:
        """Milliseconds that a request waits from one verify pass to the next (from one token to the next without speculation), on average.

        vLLM: the mean interval. SGLang: the mean time of a token times tokens a pass.
        """
        if self.intervals is None or not self.intervals[1]:
            return None
        mean = 1e3 * self.intervals[0] / self.intervals[1]
        if self.engine == "vllm" or not self.verify_passes:
            return mean
        return None if self.tokens is None else mean * self.tokens / self.verify_passes

    @property
    def busy(self) -> float | None:
        """Share of the wall time in which a rank's device ran a timed forward; None without wall seconds or timers."""
        if not self.wall_seconds or not self.rows:
            return None
        return self.total / len(self.ranks) / self.wall_seconds

    @property
    def table(self) -> pd.DataFrame:
        """One row a rank and category; columns `COLUMNS`, ms_per_pass of the rank's own seconds (None without verify passes)."""
        import pandas as pd

        groups = max(len(self.ranks) / self.copies, 1) if self.ranks else 1
        rows = []
        for rank, category, phase, seconds in self.rows:
            a_pass = 1e3 * seconds * groups / self.verify_passes if self.verify_passes else None
            rows.append((rank, category, phase.value, seconds, seconds / self.total if self.total else None, a_pass))
        return pd.DataFrame(rows, columns=COLUMNS)

    @property
    def summary(self) -> str:
        """In one or two lines."""
        passes = f"{self.verify_passes:,} verify passes of requests" if self.verify_passes is not None else "verify passes not counted"
        cycle = ""
        if self.cycle_ms is not None and self.intervals is not None:
            between = "from pass to pass" if self.verify_passes else "from token to token"
            cycle = f" A request waits {self.cycle_ms:.4g} ms {between} (n = {self.intervals[1]:,} intervals)."
        if not self.rows:
            return f"{self.engine} tells no seconds by phase; {passes}.{cycle}"
        parts = ", ".join(f"{phase} {share:.1%}" for phase, share in sorted(self.share.items(), key=lambda item: -item[1]))
        return f"{self.total:.4g} s of forward passes by {self.engine}'s own timers: {parts or 'none'}; {passes}.{cycle}"

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "source": self.source,
            "scrapes": self.scrapes,
            "since_start": self.since_start,
            "seconds": {phase.value: seconds for phase, seconds in self.seconds.items()},
            "share": {phase.value: share for phase, share in self.share.items()},
            "ms_per_pass": {phase.value: ms for phase, ms in self.ms_per_pass.items()},
            "verify_passes": self.verify_passes,
            "tokens": self.tokens,
            "engine_steps": self.engine_steps,
            "intervals": None if self.intervals is None else {"seconds": self.intervals[0], "count": self.intervals[1]},
            "cycle_ms": self.cycle_ms,
            "wall_seconds": self.wall_seconds,
            "busy": self.busy,
            "host_seconds": dict(self.host),
            "ranks": list(self.ranks),
            "table": self.table.to_dict("records"),
            "notes": list(self.notes),
        }


def read_timers(paths: str | Path | Sequence[str | Path], *, wall_seconds: float | None = None) -> TimerSplit:
    """Prometheus text of one server: files with a scrape or several each, in the order of time, or a recording of `eaglelab live`.

    wall_seconds: between the first and the last scrape; a recording tells it itself. Raises TimingError.
    """
    files = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(p) for p in paths]
    if not files:
        raise TimingError("no file was given, expected one or two with Prometheus text (`curl -s http://HOST:PORT/metrics`)")
    texts: list[str] = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise TimingError(f"{path} cannot be read: {error.strerror}; expected Prometheus text of a server's /metrics") from None
        if text.lstrip().startswith("{"):
            of_recording, told = _recording(path)
            texts += of_recording
            wall_seconds = told if wall_seconds is None and len(files) == 1 else wall_seconds
        else:
            texts.append(text)
    return split_timers(texts, wall_seconds=wall_seconds, source=", ".join(str(path) for path in files))


def split_timers(texts: Sequence[str], *, wall_seconds: float | None = None, source: str = "the scrapes") -> TimerSplit:
    """The same of texts at hand. Raises TimingError where none holds a sample of SGLang or vLLM that is asked for here."""
    scrapes = [scrape for text in texts for scrape in parse_scrapes(text, NAMES)]
    unread = sum(scrape.unread for scrape in scrapes)
    scrapes = [scrape for scrape in scrapes if scrape.samples]
    if not scrapes:
        raise TimingError(
            f"{source}: no counter of SGLang or vLLM that tells time or passes, {unread} lines are no samples; expected Prometheus text of a "
            "server's /metrics (SGLang needs --enable-metrics, and SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 for seconds by phase)"
        )
    if wall_seconds is not None and not (math.isfinite(wall_seconds) and wall_seconds > 0):
        raise TimingError(f"wall seconds {wall_seconds}, expected the seconds between the first and the last scrape, more than 0")
    engine = _one_server(scrapes, source)
    values, notes = _rises(scrapes)
    single = len(scrapes) == 1
    if single:
        notes.insert(0, "a single scrape: everything since the server's start, its warm-up included; two of them measure what lies between")
    if unread:
        notes.append(f"{unread} lines are no samples and were left out (the last one, where its end is missing)")
    tokens, passes = _count(values, TOKENS[engine]), _count(values, PASSES[engine])
    rows, told = _rows(values, passes)
    return TimerSplit(
        engine=engine,
        source=source,
        scrapes=len(scrapes),
        since_start=single,
        rows=rows,
        verify_passes=passes,
        tokens=tokens,
        engine_steps=_count(values, f"{STEPS}_count"),
        intervals=_intervals(values, engine),
        wall_seconds=None if single else wall_seconds,
        host=_host(values),
        notes=tuple(notes + told + _about(engine, rows, passes)),
    )


# -- scrapes ---------------------------------------------------------------------------------------------------------------------------------


def _recording(path: Path) -> tuple[list[str], float | None]:
    """(Prometheus texts, seconds between the first and the last). Raises TimingError."""
    from eaglelab.served.recording import Recording, RecordingError

    try:
        kept = [scrape for scrape in Recording.load(path).scrapes if scrape.metrics]
    except RecordingError as error:
        raise TimingError(f"{error}; or Prometheus text of a server's /metrics") from None
    if not kept:
        raise TimingError(f"{path}: the recording holds no Prometheus text, expected a server that answers /metrics")
    try:
        seconds = (datetime.fromisoformat(kept[-1].time) - datetime.fromisoformat(kept[0].time)).total_seconds()
    except (TypeError, ValueError):
        seconds = 0.0
    return [scrape.metrics or "" for scrape in kept], seconds if seconds > 0 else None


def _one_server(scrapes: Sequence[Scrape], source: str) -> str:
    """The engine. Raises TimingError for samples of several servers, whose sums would mean nothing."""
    engines = sorted({name.split(":")[0] for scrape in scrapes for name, _ in scrape.samples})
    models = sorted({value for scrape in scrapes for _, labels in scrape.samples for label, value in labels if label == "model_name"})
    for what, found in (("engines", engines), ("models", models)):
        if len(found) > 1:
            raise TimingError(f"{source}: samples of {len(found)} {what} ({', '.join(found)[:200]}), expected those of one server")
    return engines[0]


def _rises(scrapes: Sequence[Scrape]) -> tuple[dict[Key, float], list[str]]:
    """(what each counter rose by, notes): from the first scrape to the last, of a single one since the start.

    Any counter that fell, or was created anew, tells of a restart: then all are counted from there on.
    """
    notes: list[str] = []
    kept = [{key: value for key, value in scrape.samples.items() if math.isfinite(value) and value >= 0} for scrape in scrapes]
    if bad := sum(len(scrape.samples) - len(values) for scrape, values in zip(scrapes, kept, strict=True)):
        notes.append(f"{bad} samples are no counts (negative, NaN or infinite) and were left out")
    base, last, resets = (kept[0] if len(kept) > 1 else {}), kept[0], 0
    for now in kept[1:]:
        both = last.keys() & now.keys()
        if any(now[key] != last[key] if key[0].endswith("_created") else now[key] < last[key] for key in both):
            base, resets = {}, resets + 1
        last = now
    if resets:
        notes.append(f"the counters were reset between two scrapes (a restart, {resets} times): counted from the last reset on")
    elif lost := sum(key not in last for key in base):
        notes.append(f"{lost} counters of the first scrape are missing in the last and were left out: is the last one whole?")
    return {key: value - base.get(key, 0.0) for key, value in last.items() if not key[0].endswith("_created")}, notes


def _count(values: Mapping[Key, float], name: str) -> int | None:
    """Sum over labels of a counter, whose name may end in `_total`; None where it is not there."""
    found = [value for (named, _), value in values.items() if named.removesuffix("_total") == name.removesuffix("_total")]
    return round(math.fsum(found)) if found else None


def _intervals(values: Mapping[Key, float], engine: str) -> tuple[float, int] | None:
    for name in INTERVALS[engine]:
        total = [value for (named, _), value in values.items() if named == f"{name}_sum"]
        count = _count(values, f"{name}_count")
        if total and count is not None:
            return math.fsum(total), count
    return None


def _host(values: Mapping[Key, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for (name, labels), value in values.items():
        if name.removesuffix("_total") == STAGES:
            stage = dict(labels).get("category", "")
            found[stage] = found.get(stage, 0.0) + value
    return {stage: found[stage] for stage in sorted(found) if found[stage] > 0}


# -- phases ----------------------------------------------------------------------------------------------------------------------------------


def _rows(values: Mapping[Key, float], passes: int | None) -> tuple[tuple[tuple[str, str, Phase, float], ...], list[str]]:
    found: dict[tuple[str, str, str], float] = {}
    for (name, labels), value in values.items():
        counter = name.removesuffix("_total")
        if counter in (FORWARD, WHOLE_BATCH) and value > 0:
            rank = ", ".join(f"{label} {text[:40]}" for label, text in labels if label not in NO_RANK)
            key = (rank, counter, dict(labels).get("category", ""))
            found[key] = found.get(key, 0.0) + value
    categories = {category for _, counter, category in found if counter == FORWARD}
    eager = "target_verify" in categories and "decode" in categories and not categories & {"eagle_draft", "frozen_kv_draft"}
    rows, notes = [], []
    for (rank, counter, category), seconds in sorted(found.items()):
        phase = PHASES.get(category, Phase.OTHER)
        if counter == WHOLE_BATCH:
            phase = {"forward_extend": Phase.PREFILL, "forward_mixed": Phase.PREFILL}.get(category, Phase.OTHER)
            if category == "forward_decode":
                phase = Phase.UNATTRIBUTED if passes else Phase.DECODE
        elif eager and category == "decode":
            phase = Phase.DRAFT
        rows.append((rank, category, phase, seconds))
    if unknown := sorted(categories - PHASES.keys()):
        notes.append(f"categories that are not known here, shown as other: {', '.join(name[:60] or 'none' for name in unknown[:10])}")
    if eager:
        notes.append(
            "no `eagle_draft`: the drafter's steps ran outside a captured graph, and SGLang books those under `decode`, which is taken for draft "
            "(a target that speculates runs no plain decode)"
        )
    if "target_verify" in categories and "eagle_draft_extend" not in categories and "extend" in categories:
        notes.append("no `eagle_draft_extend`: draft extend ran outside a captured graph and is in `extend`, together with the prefills")
    if passes and categories and "target_verify" not in categories:
        notes.append(
            "no `target_verify` though passes were verified: up to 0.5.14 SGLang books a verify pass outside a captured graph under `extend`, "
            "together with the prefills"
        )
    if passes and any(counter == WHOLE_BATCH for _, counter, _ in found):
        notes.append(
            "SGLang 0.5.9 times whole batches: drafting and verifying cannot be told apart, their seconds are unattributed; 0.5.12 and later split them"
        )
    return tuple(rows), notes


def _about(engine: str, rows: Sequence[Any], passes: int | None) -> list[str]:
    notes = []
    if engine == "vllm":
        notes.append("vLLM times no phase of a cycle: a trace, or SGLang's device timers, would; the mean interval is a cycle's wall time")
    elif not rows:
        notes.append(
            "no seconds by phase: start SGLang (0.5.12 or later) with SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 and --enable-metrics, on a device "
            "that has events"
        )
    else:
        notes.append("only forward passes are timed: sampling, scheduling and gaps are in no category")
    if passes == 0 or (engine == "vllm" and passes is None):
        notes.append("no verify pass was counted: the server does not speculate, or answered nothing meanwhile")
    elif engine == "sglang" and passes is None:
        notes.append(
            "verify passes are not told: `sglang:spec_verify_calls_total` is there from 0.5.13 on, once a request that speculates has ended"
        )
    return notes
