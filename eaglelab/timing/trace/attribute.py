"""One rank's recording to cycles, on the device's timeline where kernels were recorded, else on that of the loop's thread.

A kernel belongs to the span that was open on the thread that launched it when it did (the launch with the same `correlation`; all kernels of a
graph share one). So a step that the device runs while the host is a step ahead stays with its own step. Where no launch was recorded, the
annotation on the kernel's stream counts; where there is none either, the kernel is unattributed.
"""

from __future__ import annotations

import numpy as np

from eaglelab.timing.phases import Phase
from eaglelab.timing.trace.cycles import COMPUTE, COPY, HIDDEN, SPAN, TALK, RankCycles, Work, fill_in, whole_cycles
from eaglelab.timing.trace.divide import Layer, divide, own_parts
from eaglelab.timing.trace.kernels import collective, cpu_collective, like_sampling, only_in
from eaglelab.timing.trace.passes import AFTER, CODE, GAP, NONE, Timeline, timeline
from eaglelab.timing.trace.recording import Recording

Columns = dict[str, np.ndarray]
SCOPES = "VLLM_CUSTOM_SCOPES_FOR_PROFILING=1 and VLLM_USE_V2_MODEL_RUNNER=0"
NO_SCOPES = (
    "vLLM's scopes are off: its spans tell the target's pass alone, sampling and drafting only where kernels' names do; "
    f"record with {SCOPES}"
)
"""The second model runner has no scopes (0.32.0, v1/worker/gpu/model_runner.py)."""
LOST = 0.02
"""Share of a pass's launches that may lack their kernels, beyond what is usual in the trace."""


def attribute(recording: Recording) -> RankCycles:
    """Cycles of one rank; without any where it did not speculate."""
    return _on_device(recording) if len(recording.kernels.start) else _on_cpu(recording)


def _main(lines: dict[int, Timeline]) -> int | None:
    """Where the passes are: of several threads the one with the most cycles, then with the most passes."""
    told = [place for place, line in lines.items() if line.passes]
    return max(told, key=lambda place: (sum(p.kind == "verify" for p in lines[place].passes), len(lines[place].passes)), default=None)


# -- the device's timeline ----------------------------------------------------------------------------------------------------------


def _on_device(recording: Recording) -> RankCycles:
    kernels, launches = recording.kernels.columns(), recording.launches.columns()
    order = np.argsort(kernels["start"], kind="stable")
    kernels = {key: column[order] for key, column in kernels.items()}
    launch = _match(kernels["correlation"], launches["correlation"])
    launched = launch >= 0

    lines = {thread: timeline(spans) for thread, spans in recording.spans.items()}
    streams = {stream: timeline(spans) for stream, spans in recording.device_spans.items()}
    main = _main(lines)
    by_stream = main is None or not launched.any()
    if by_stream:
        main = _main(streams)
    if main is None:
        return RankCycles(None, "cuda")
    line = streams[main] if by_stream else lines[main]
    result = RankCycles(line.engine, "cuda")

    code = np.full(len(launch), NONE, np.int8)
    number = np.full(len(launch), -1, np.int64)
    if by_stream:
        number = line.pass_at(kernels["start"])
    else:
        at, thread = launches["at"][launch], launches["thread"][launch]
        for place, own in lines.items():
            mine = launched & (thread == place)
            code[mine] = own.code_at(at[mine])
        number[launched] = line.pass_at(at[launched])
    without = np.ones(len(launch), bool) if by_stream else ~launched
    for place, own in streams.items():
        mine = without & (kernels["stream"] == place)
        code[mine] = own.code_at(kernels["start"][mine])
    if without.any():
        number = number if by_stream else _carried(number, kernels["stream"], without)
        many = f"{int(without.sum()):,} of {len(without):,} kernels"
        result.notes.append(f"{many} have no launch in the trace: told by the annotations on their stream, else unattributed")

    names = recording.names.all
    talks = np.array([collective(n) is not None for n in names], bool)[kernels["name"]]
    layer = np.where(talks, TALK, np.where(kernels["copy"] == 1, COPY, COMPUTE))
    code = _settled(code, number, kernels["name"], names)
    work = Work(kernels["start"], kernels["end"], kernels["name"], code, layer, np.arange(len(code)))
    bounds = _bounds(number, kernels, len(line.passes))
    if line.engine == "vllm" and line.open_ended:
        result.notes.append(NO_SCOPES)
    in_vain = np.zeros(len(line.passes), bool) if by_stream else _launched_in_vain(launches, launch, line)
    keep = whole_cycles(line, bounds[0], in_vain, result)
    fill_in(result, line, keep, bounds, work, names, collective, Phase.HOST_GAP)
    return result


def _match(wanted: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """For every kernel the first launch with its correlation, -1 where there is none."""
    if not len(correlation):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(correlation, kind="stable")
    place = np.minimum(np.searchsorted(correlation[order], wanted), len(order) - 1)
    return np.where((correlation[order][place] == wanted) & (wanted >= 0), order[place], -1)


def _carried(number: np.ndarray, stream: np.ndarray, without: np.ndarray) -> np.ndarray:
    """Kernels without a launch are in the pass of the kernel before them on their stream."""
    out = number.copy()
    for place in np.unique(stream):
        mine = np.flatnonzero(stream == place)
        last = np.maximum.accumulate(np.where(without[mine], -1, np.arange(len(mine))))
        out[mine] = np.where(last >= 0, number[mine[np.maximum(last, 0)]], -1)
    return out


def _settled(code: np.ndarray, number: np.ndarray, name: np.ndarray, names: list[str]) -> np.ndarray:
    """Codes without GAP, AFTER and NONE: what only names and order tell.

    In a GAP all is verify up to the first kernel that only sampling runs and those right before it that sampling runs too. In an AFTER (vLLM
    without its scopes) all is sampling up to the first kernel that only drafting runs.
    """
    out = code.astype(np.int64)
    sampling, verify, draft, unknown = (CODE[p] for p in (Phase.SAMPLING, Phase.VERIFY, Phase.DRAFT, Phase.UNATTRIBUTED))
    phases = [only_in(n) for n in names]
    only = np.array([-1 if phase is None else CODE[phase] for phase in phases], np.int64)[name]
    like = np.array([like_sampling(n) for n in names], bool)[name]
    for untold in (GAP, AFTER):
        rows = np.flatnonzero(code == untold)
        rows = rows[np.argsort(number[rows], kind="stable")]
        for mine in np.split(rows, np.flatnonzero(np.diff(number[rows])) + 1) if len(rows) else ():
            marks = np.flatnonzero(only[mine] == (sampling if untold == GAP else draft))
            first = int(marks[0]) if len(marks) else len(mine)
            if untold == AFTER:
                out[mine[:first]], out[mine[first:]] = sampling, draft
                if first == len(mine):
                    out[mine] = np.where(only[mine] >= 0, only[mine], unknown)
                continue
            while 0 < first < len(mine) and like[mine[first - 1]]:
                first -= 1
            out[mine[:first]], out[mine[first:]] = verify, sampling
    rows = np.flatnonzero(code == NONE)
    out[rows] = np.where(only[rows] >= 0, only[rows], unknown)
    return out


def _bounds(number: np.ndarray, kernels: Columns, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """First kernel of each pass on the stream that does most of the work, and the end of its last kernel on any; NaN where it has none."""
    begins, ends = np.full(passes, np.nan), np.full(passes, -np.inf)
    inside = number >= 0
    if not inside.any():
        return begins, ends
    busy = np.bincount(kernels["stream"][inside], weights=(kernels["end"] - kernels["start"])[inside])
    for rows in (inside, inside & (kernels["stream"] == int(np.argmax(busy)))):  # a copy for a pass may run long before it
        first, place = np.unique(number[rows], return_index=True)
        begins[first] = kernels["start"][rows][place]
    np.maximum.at(ends, number[inside], kernels["end"][inside])
    told = ~np.isnan(begins)
    begins[told] = np.maximum.accumulate(begins[told])
    return begins, np.where(told, np.maximum(ends, begins), np.nan)


def _launched_in_vain(launches: Columns, launch: np.ndarray, line: Timeline) -> np.ndarray:
    """Passes that launched more than the trace holds, [passes] bool: more than is usual (some calls named launch run nothing), the last pass by
    any, the others by `LOST` (where kernels lack their launch, it is the pairing that was lost: then only the last)."""
    ran = np.isin(launches["correlation"], launches["correlation"][launch[launch >= 0]])
    number = line.pass_at(launches["at"])
    counted = (launches["launch"] == 1) & (number >= 0)
    calls = np.bincount(number[counted], minlength=len(line.passes))
    missing = np.bincount(number[counted & ~ran], minlength=len(line.passes)) / np.maximum(calls, 1)
    some = (calls > 0) & (missing < 1)
    usual = float(np.median(missing[some])) if some.any() else 0.0
    allowed = np.full(len(calls), usual + LOST if (launch >= 0).all() else np.inf)
    before = calls[:-1].sum()
    allowed[-1] = float((missing[:-1] * calls[:-1]).sum() / before) if before else 0.0
    return missing > allowed


# -- the thread's timeline, where there is no device ------------------------------------------------------------------------------------


def _on_cpu(recording: Recording) -> RankCycles:
    lines = {thread: timeline(spans) for thread, spans in recording.spans.items()}
    main = _main(lines)
    if main is None:
        return RankCycles(None, "cpu")
    line = lines[main]
    # The loop of eaglelab.loop may run on the CPU of a machine with a GPU; an engine's build for a GPU does not.
    hosts = bool((recording.launches.columns()["launch"] == 1).any()) or (recording.has_device and line.engine != "eaglelab")
    result = RankCycles(line.engine, "host" if hosts else "cpu")
    names = recording.names.all
    ops = recording.operators.columns()
    ops = {key: column[ops["thread"] == main] for key, column in ops.items()}
    plain = np.array([cpu_collective(n) is None for n in names], bool)[ops["name"]]
    work = _with_exposed(_cpu_work(recording, line, main, ops, plain), ops, plain)

    begins = np.array([p.begin for p in line.passes])
    ends = np.array([min(p.spans_end, p.until) for p in line.passes])
    keep = whole_cycles(line, begins, np.zeros(len(begins), bool), result)
    if keep.any() and line.engine == "vllm" and line.open_ended:
        result.notes.append(NO_SCOPES)
    if keep.any() and not recording.operators_read:
        result.notes.append("no operators were recorded: time in no span may be work or waiting, and is unattributed")
    gap = Phase.HOST_GAP if recording.operators_read else Phase.UNATTRIBUTED
    fill_in(result, line, keep, (begins, ends), work, names, cpu_collective, gap)
    return result


def _cpu_work(recording: Recording, line: Timeline, main: int, ops: Columns, plain: np.ndarray) -> Work:
    """Spans of the loop's thread; its operators, which no span claims where none is open; collectives, each once (c10d hands over what gloo
    runs, often on a thread of its own)."""
    talks = recording.collectives.columns()
    handed = np.array([n.startswith("c10d::") for n in recording.names.all], bool)[talks["name"]]
    if not handed.all():
        talks = {key: column[~handed] for key, column in talks.items()}
    talk_code = line.code_at(talks["start"]).astype(np.int64)
    talk_code[talk_code < 0] = CODE[Phase.UNATTRIBUTED]
    told = (line.codes >= 0) & np.isfinite(line.ends)
    spans, others = int(told.sum()), int(plain.sum())
    parts = (
        (line.starts[told], line.ends[told], np.full(spans, -1), line.codes[told], np.full(spans, SPAN)),
        (ops["start"][plain], ops["end"][plain], ops["name"][plain], np.full(others, CODE[Phase.UNATTRIBUTED]), np.full(others, COMPUTE)),
        (talks["start"], talks["end"], talks["name"], talk_code, np.where(talks["thread"] == main, TALK, HIDDEN)),
    )
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Work(*columns, owner=np.arange(len(columns[0])))


def _with_exposed(work: Work, ops: Columns, plain: np.ndarray) -> Work:
    """Adds the pieces of other threads' collectives during which the loop's thread runs no operator of its own.

    An operator that itself holds a collective (a wrapper around one) waits for it and hides nothing.
    """
    rows = np.flatnonzero(work.layer == HIDDEN)
    if not len(rows):
        return work
    talks = (work.layer == HIDDEN) | (work.layer == TALK)
    begun = np.sort(np.concatenate([work.start[talks], ops["start"][~plain]]))
    holds = np.searchsorted(begun, ops["end"]) > np.searchsorted(begun, ops["start"])
    own = Layer(ops["start"][plain & ~holds], ops["end"][plain & ~holds], np.flatnonzero(plain & ~holds))
    covering = own_parts(Layer(work.start[rows], work.end[rows], rows))
    pieces = divide((covering.starts, covering.ends), [own])
    free = pieces.layer < 0
    owner = covering.items[pieces.window[free]]
    left = pieces.left[free]
    extra = (left, left + pieces.length[free], work.name[owner], work.code[owner], np.full(len(owner), TALK), owner)
    return Work(*(np.concatenate([getattr(work, key), more]) for key, more in zip(vars(work), extra, strict=True)))
