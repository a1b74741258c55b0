"""Work with a phase to cycles: windows of passes, every instant of them to one owner, and the rows of the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from eaglelab.timing.phases import COLUMNS, Phase
from eaglelab.timing.trace.divide import Divided, Layer, divide
from eaglelab.timing.trace.passes import CODE, PHASES, Pass, Timeline

IDLE_FACTOR = 10
"""A wait after a pass of more than this many median cycles is no part of it: there was nothing to do. Before a pass with new prompts one is
enough: the requests before had ended."""
FEW_CYCLES = 3
"""Below this many cycles no wait is called long."""
COMPUTE, COPY, TALK, HIDDEN, SPAN = range(5)
"""Kernels and operators; copies; collectives; collectives of which only pieces are exposed (CPU); what spans alone tell (CPU)."""
ORDER = {"cuda": (COMPUTE, COPY, TALK), "cpu": (TALK, SPAN, COMPUTE), "host": (TALK, SPAN, COMPUTE)}
"""The first that covers an instant owns it. On a CPU the loop's thread does one thing at a time, and what an operator does its span tells."""
OF_TARGET = [CODE[phase] for phase in (Phase.DECODE, Phase.PREFILL, Phase.VERIFY)]
PORTION = 100_000
"""Rows of work that are divided at once: memory stays bounded."""
NO_OPERATORS = "(no span; operators were not recorded)"


@dataclass
class RankCycles:
    """What one recording gives. Times in ms."""

    engine: str | None
    device: str
    """`cuda`, `cpu`, or `host`: spans of the CPU that drives a GPU, whose kernels were not recorded."""
    cycles: list[dict[str, Any]] = field(default_factory=list)
    outside: list[tuple[str, int | None, float, float]] = field(default_factory=list)
    """Kind, batch, ms, ms of the target's own pass, its collectives included: one a pass that is no cycle."""
    collectives: list[tuple[str, str, float, float]] = field(default_factory=list)
    """Collective, phase, ms, exposed ms: one a run."""
    unattributed: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Name to count and ms."""
    notes: list[str] = field(default_factory=list)
    passes: Counter = field(default_factory=Counter)
    """Passes by kind."""


@dataclass
class Work:
    """What a timeline holds. All arrays [n]; times in us."""

    start: np.ndarray
    end: np.ndarray
    name: np.ndarray
    """Index into the recording's names, -1 for a span's time."""
    code: np.ndarray
    """Index of `PHASES`."""
    layer: np.ndarray
    """One of COMPUTE, COPY, TALK, HIDDEN, SPAN."""
    owner: np.ndarray
    """The row that this one is a piece of; mostly itself."""


def whole_cycles(line: Timeline, begins: np.ndarray, in_vain: np.ndarray, result: RankCycles) -> np.ndarray:
    """The cycles that count, [passes] bool: without passes of which the trace lacks kernels (`in_vain` [passes] bool), and the first and the last
    pass of a recording only where they are whole."""
    passes = line.passes
    result.passes = Counter(p.kind for p in passes)
    keep = np.array([p.kind == "verify" for p in passes], bool) & ~np.isnan(begins)
    if line.stray:
        result.notes.append("the first cycle was cut by the beginning of the recording and is left out")
    if line.clipped:
        result.notes.append(f"{line.clipped:,} spans reach into the next pass, as when they never closed: cut where it begins")
    if not keep.any():
        return keep
    usual = Counter(stage for p in passes if p.kind == "verify" for stage in p.stages)
    needed = {stage for stage, count in usual.items() if count > result.passes["verify"] / 2}
    if keep[-1] and (in_vain[-1] or line.open_ended or not needed <= passes[-1].stages):
        keep[-1] = False
        result.notes.append("the last cycle was cut by the end of the recording and is left out")
    if keep[0] and not needed <= passes[0].stages:
        keep[0] = False
        result.notes.append("the first cycle was cut by the beginning of the recording and is left out")
    if lost := int((keep & in_vain).sum()):
        keep &= ~in_vain
        result.notes.append(
            f"cycles left out, since kernels that they launched are not in the trace (its end is cut off, or records were dropped): {lost:,}"
        )
    return keep


def fill_in(
    result: RankCycles,
    line: Timeline,
    keep: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    work: Work,
    names: list[str],
    kind_of: Callable[[str], str | None],
    gap: Phase,
) -> None:
    """The tables of `result`. keep [passes] bool; bounds: where each pass's work begins and ends, [passes] us, NaN where it has none; gap: the
    phase of an instant at which nothing runs."""
    passes = line.passes
    starts, stops, idle, waits = _windows(passes, keep, *bounds)
    inside = np.flatnonzero(keep)
    table = np.zeros((len(inside), len(PHASES)))
    exposed = np.zeros(len(work.start))
    of_target = np.zeros(len(passes))
    for first, divided, talking, of, code in _pieces(starts[inside], stops[inside], work, ORDER[result.device], gap):
        np.add.at(table, (first + divided.window, code), divided.length / 1e3)
        np.add.at(of_target, inside[first + divided.window[of]], divided.length[of] / 1e3)
        np.add.at(exposed, work.owner[divided.item[talking]], divided.length[talking])
        _unattributed(result, work, divided, code, names)
    for row, i in enumerate(inside):
        one: dict[str, Any] = {"start_ms": float(starts[i]) / 1e3, "wall_ms": float(stops[i] - starts[i]) / 1e3}
        one |= {"batch": passes[i].batch, "verified": passes[i].verified, "target_ms": float(of_target[i])}
        one |= {COLUMNS[phase]: float(table[row, number]) for number, phase in enumerate(PHASES)}
        result.cycles.append(one)
    beside = np.array([i for i, one in enumerate(passes) if one.kind != "verify" and not np.isnan(starts[i])], np.int64)
    for first, divided, _, of, _ in _pieces(starts[beside], stops[beside], work, ORDER[result.device], gap):
        np.add.at(of_target, beside[first + divided.window[of]], divided.length[of] / 1e3)
    for i in beside:
        result.outside.append((passes[i].kind, passes[i].batch, float(stops[i] - starts[i]) / 1e3, float(of_target[i])))
    result.outside += [("idle", None, wait / 1e3, 0.0) for wait in idle + waits]
    if waits:
        limits = f"{IDLE_FACTOR} median cycles, or than one before new prompts"
        result.notes.append(f"waits that count as idle, not as part of a cycle: {len(waits):,} (longer than {limits})")
    _collectives(result, work, exposed, (starts[inside], stops[inside]), lambda number: kind_of(names[number]) or "collective")


def _pieces(
    starts: np.ndarray, stops: np.ndarray, work: Work, order: tuple[int, ...], gap: Phase
) -> Iterator[tuple[int, Divided, np.ndarray, np.ndarray, np.ndarray]]:
    """Windows [n] us, portion by portion: (the portion's first window, every instant with its owner, which pieces are a collective's, which are
    of the target's pass, its collectives included, each piece's phase)."""
    for first, last in _portions(starts, work.start):
        divided, talking = _divided((starts[first:last], stops[first:last]), work, order)
        code = np.full(len(divided.item), CODE[gap])
        owned = divided.item >= 0
        code[owned] = work.code[divided.item[owned]]
        of_target = owned & np.isin(code, OF_TARGET)
        code[talking] = CODE[Phase.COMMUNICATION]
        yield first, divided, talking, of_target, code


def _portions(starts: np.ndarray, work: np.ndarray) -> list[tuple[int, int]]:
    """Windows (their starts [n]) in portions of about `PORTION` rows of work (their starts [m]): [first, last) of each."""
    if not len(starts):
        return []
    order = np.sort(work)
    before = np.searchsorted(order, starts) // PORTION
    cuts = [0, *(np.flatnonzero(np.diff(before)) + 1).tolist(), len(starts)]
    return list(pairwise(cuts))


def _divided(windows: tuple[np.ndarray, np.ndarray], work: Work, order: tuple[int, ...]) -> tuple[Divided, np.ndarray]:
    """The windows with an owner for every instant; which pieces are a collective's, [pieces] bool."""
    rows = np.flatnonzero((work.end > windows[0][0]) & (work.start < windows[1][-1]))
    layers = [Layer(work.start[mine], work.end[mine], mine) for mine in (rows[work.layer[rows] == number] for number in order)]
    divided = divide(windows, layers)
    return divided, divided.layer == order.index(TALK)


def _windows(
    passes: list[Pass], keep: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[float], list[float]]:
    """Where each pass starts and stops: where the next one's work does; before an idle pass, a long wait and at the end, with its own work.
    Then the time of idle passes without work, and of the long waits. All us."""
    starts, stops = begins.copy(), ends.copy()
    idle: list[float] = []
    waits: list[float] = []
    told = np.flatnonzero(~np.isnan(begins))
    for here, there in pairwise(told):
        if any(passes[i].kind == "idle" for i in range(here + 1, there)):
            stops[here] = min(ends[here], starts[there])
            idle.append(float(starts[there] - stops[here]))
        else:
            stops[here] = starts[there]
    lengths = (stops - starts)[keep]
    if len(lengths) >= FEW_CYCLES:
        limit = IDLE_FACTOR * float(np.median(lengths))
        for i, there in pairwise([*told, -1]):
            new = there >= 0 and passes[there].kind in ("prefill", "mixed")
            if passes[i].kind != "idle" and stops[i] - ends[i] > (limit / IDLE_FACTOR if new else limit):
                waits.append(float(stops[i] - ends[i]))
                stops[i] = ends[i]
    return starts, stops, idle, waits


def _collectives(
    result: RankCycles, work: Work, exposed: np.ndarray, windows: tuple[np.ndarray, np.ndarray], kind_of: Callable[[int], str]
) -> None:
    """Every collective that begins inside a cycle, with the phase that it ran in and how long nothing else ran meanwhile ([rows of work] us)."""
    whole = np.flatnonzero(((work.layer == TALK) | (work.layer == HIDDEN)) & (work.owner == np.arange(len(work.owner))))
    if not len(whole) or not len(windows[0]):
        return
    window = np.searchsorted(windows[0], work.start[whole], side="right") - 1
    whole = whole[(window >= 0) & (work.start[whole] < windows[1][np.maximum(window, 0)])]
    for i in whole:
        phase = PHASES[work.code[i]].value
        result.collectives.append((kind_of(int(work.name[i])), phase, float(work.end[i] - work.start[i]) / 1e3, float(exposed[i]) / 1e3))


def _unattributed(result: RankCycles, work: Work, divided: Divided, code: np.ndarray, names: list[str]) -> None:
    pieces = code == CODE[Phase.UNATTRIBUTED]
    item, length = divided.item[pieces], divided.length[pieces] / 1e3
    name = np.where(item >= 0, work.name[np.maximum(item, 0)], -1) if len(work.name) else np.full(len(item), -1)
    for number in np.unique(name):
        mine = name == number
        count = len(np.unique(item[mine])) if number >= 0 else int(mine.sum())
        told = names[number] if number >= 0 else NO_OPERATORS
        before = result.unattributed.get(told, (0, 0.0))
        result.unattributed[told] = (before[0] + count, before[1] + float(length[mine].sum()))
