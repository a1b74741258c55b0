"""Spans of one thread (or of one stream's annotations) to passes of the scheduler's loop, and to a phase for every instant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eaglelab.timing.phases import Phase
from eaglelab.timing.trace.spans import SpanRule, numbers

PHASES = tuple(Phase)
CODE = {phase: code for code, phase in enumerate(PHASES)}
NONE = -1  # no span
GAP = -2  # between draft and draft extend, with no step of the target told: verify, then sampling
AFTER = -3  # after a target's forward, with no span for what follows: sampling, then drafting
INSIDE = -4  # in a loose span only; settled before a timeline is returned

SELF_MADE = 4
"""From this number of `begins` on a stage or step stands for the pass: nothing spans it."""
PRIMARY = ("verify", "mixed", "prefill", "decode", "idle")


class Span(NamedTuple):
    """Microseconds since the trace's zero."""

    start: float
    end: float
    rule: SpanRule
    name: str


@dataclass
class Pass:
    """One pass of the scheduler's loop: from where it begins to where the next one does."""

    begin: float
    until: float
    """The next pass begins (infinity for the last)."""
    kind: str = "other"
    """`verify` for a speculative cycle, `prefill`, `decode`, `mixed`, `idle`, `other`."""
    batch: int | None = None
    verified: float | None = None
    stages: frozenset[str] = frozenset()
    """What its spans tell, to see a pass that was cut."""
    spans_end: float = 0.0
    """Where its last span ends."""


@dataclass
class Timeline:
    """Passes in order, and disjoint segments in order with a code: an index of `PHASES`, or NONE, GAP, AFTER."""

    passes: list[Pass]
    starts: np.ndarray  # [segments], float64, us
    ends: np.ndarray  # [segments], float64, us
    codes: np.ndarray  # [segments], int8
    engine: str | None = None
    open_ended: bool = False
    """Nothing marks where a pass ends: the last one cannot be known to be whole."""
    stray: int = 0
    """Stages of speculation before the first pass begins: its beginning was not recorded."""
    clipped: int = 0
    """Spans that reach into the next pass, as when they never closed: cut there."""

    def code_at(self, times: np.ndarray) -> np.ndarray:
        """The code of the segment at each of `times` [n]; NONE between segments."""
        if not len(self.starts):
            return np.full(len(times), NONE, np.int8)
        place = np.searchsorted(self.starts, times, side="right") - 1
        inside = (place >= 0) & (times < self.ends[np.maximum(place, 0)])
        return np.where(inside, self.codes[np.maximum(place, 0)], NONE).astype(np.int8)

    def pass_at(self, times: np.ndarray) -> np.ndarray:
        """The pass in which each of `times` [n] lies; -1 before the first."""
        return np.searchsorted(np.array([p.begin for p in self.passes]), times, side="right") - 1


def timeline(spans: Iterable[Span]) -> Timeline:
    """The spans of one thread, in any order."""
    ordered = sorted(spans, key=lambda s: (s.start, -s.end))
    anchors, number = _anchors(ordered)
    if not anchors:
        return Timeline([], *_columns(_sweep(ordered)))
    begins = [a.start for a in anchors]
    passes, segments = [], []
    made = Timeline(passes, *_columns([]), engine=anchors[0].rule.engine)
    bounds = np.searchsorted([s.start for s in ordered], begins)
    made.stray = sum(1 for s in ordered[: bounds[0]] if s.rule.tells in ("verify", "draft", "extend"))
    vllm = made.engine == "vllm"
    implicit = number >= SELF_MADE
    speculative_steps = any(s.rule.tells == "verify" for s in ordered)
    for i, anchor in enumerate(anchors):
        until = begins[i + 1] if i + 1 < len(anchors) else np.inf
        mine = ordered[bounds[i] : bounds[i + 1] if i + 1 < len(anchors) else len(ordered)]
        made.clipped += sum(1 for s in mine if s.end > until)
        mine = [s._replace(end=min(s.end, until)) for s in mine]
        outer = _in_no_whole(mine)
        one = _tell(Pass(anchor.start, until, spans_end=max(s.end for s in mine)), outer, vllm)
        parts = _sweep(mine)
        if one.kind in ("verify", "mixed"):
            if made.engine == "sglang":
                parts = _untold_sglang(parts, outer)
            elif vllm and not {"sample", "draft"} & one.stages:
                made.open_ended = True
                parts = _untold_vllm(parts, mine, until)
        passes.append(one)
        segments += [(a, b, CODE[Phase.OTHER] if code == INSIDE else code) for a, b, code in parts]
    made.open_ended |= implicit and speculative_steps
    made.starts, made.ends, made.codes = _columns(segments)
    return made


def _columns(segments: Sequence[tuple[float, float, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts and ends [n], float64; codes [n], int8."""
    starts, ends, codes = zip(*segments, strict=True) if segments else ((), (), ())
    return np.array(starts, np.float64), np.array(ends, np.float64), np.array(codes, np.int8)


def _anchors(ordered: Sequence[Span]) -> tuple[list[Span], int]:
    """The spans that begin a pass, by the surest of the marks that there are."""
    told = [s.rule.begins for s in ordered if s.rule.begins is not None]
    if not told and any(s.rule.joins for s in ordered):
        told = [min(min(s.rule.joins) for s in ordered if s.rule.joins)]
    if not told:
        return [], 0
    number = min(told)
    idle_only = [s for s in ordered if s.rule.begins == number and s.rule.tells == "idle"]
    if len(idle_only) == sum(1 for s in ordered if s.rule.begins == number) and any(n > number for n in told):
        number = min(n for n in told if n > number)  # `scheduler.idle` alone marks no pass
    anchors: list[Span] = []
    whole_until, whole_rule = -np.inf, None
    verifies = any(s.rule.tells == "verify" for s in ordered)
    paired = False
    for s in ordered:
        inside = number >= SELF_MADE and s.start < whole_until and s.rule is not whole_rule
        if s.rule.whole and not inside:
            whole_until, whole_rule = s.end, s.rule
        if not s.rule.begins_at(number) or inside:
            continue
        if number >= SELF_MADE and verifies and anchors and s.name == anchors[-1].name and s.rule.tells == "prefill" and not paired:
            paired = True  # the drafter's own prefill of the same prompts
            continue
        paired = False
        anchors.append(s)
    return anchors, number


def _in_no_whole(spans: Sequence[Span]) -> list[Span]:
    """Without what lies inside a span that is whole: a draft stage may run a step that is called VERIFY (0.5.14, 0.5.17)."""
    out, until = [], -np.inf
    for s in spans:
        if s.start >= until:
            out.append(s)
            if s.rule.whole:
                until = s.end
    return out


def _tell(one: Pass, spans: Sequence[Span], vllm: bool) -> Pass:
    """Kind, batch and verified tokens, from the spans of a pass."""
    told = {s.rule.tells for s in spans}
    facts = [(s.rule.tells, numbers(s.name, s.rule)) for s in spans]
    one.stages = frozenset(told - {""})
    kinds = [n.kind for _, n in facts if n.kind]
    if kinds:
        one.kind = kinds[0]
    elif vllm:
        one.kind = "verify" if "draft" in told else "decode"
    else:
        one.kind = next((kind for kind in PRIMARY if kind in told), "verify" if {"draft", "extend"} <= told else "other")
    surest = sorted(facts, key=lambda fact: fact[0] != one.kind)
    one.batch = next((n.batch for _, n in surest if n.batch is not None), None)
    one.verified = next((n.verified for _, n in surest if n.verified is not None), None)
    return one


def _sweep(spans: Sequence[Span]) -> list[tuple[float, float, int]]:
    """Disjoint segments with the code of the innermost span (or of the outermost that is whole); spans in order of their start."""
    out: list[tuple[float, float, int]] = []
    stack: list[Span] = []
    at = 0.0

    def emit(until: float) -> None:
        nonlocal at
        if stack and until > at:
            out.append((at, until, _code(stack)))
        at = max(at, until)

    for s in spans:
        while stack and stack[-1].end <= s.start:
            emit(stack[-1].end)
            stack.pop()
        emit(s.start)
        at = s.start
        end = min(s.end, stack[-1].end) if stack else s.end
        if end > s.start:
            stack.append(s._replace(end=end))
    while stack:
        emit(stack[-1].end)
        stack.pop()
    return out


def _code(stack: Sequence[Span]) -> int:
    for s in stack:
        if s.rule.whole and s.rule.phase is not None:
            return CODE[s.rule.phase]
    for s in reversed(stack):
        if s.rule.loose:
            return INSIDE
        if s.rule.phase is not None:
            return CODE[s.rule.phase]
    return NONE


def _untold_sglang(parts: list[tuple[float, float, int]], spans: Sequence[Span]) -> list[tuple[float, float, int]]:
    """Verify and sampling by their place: after `draft`, before `draft_extend`; of these two what ends with the target's step is verify.

    Before outer spans existed (0.5.12, 0.5.13) the drafter's steps are `step[DECODE]` after the target's, and what lies between two of them is
    drafting.
    """
    steps = [s for s in spans if s.rule.tells == "verify" and not s.rule.loose]
    framed = [s for s in spans if s.rule.tells == "target"]
    verify = steps or framed
    step_end = max((s.end for s in verify), default=None)
    step_start = min((s.start for s in verify), default=None)
    extends = [s.start for s in spans if s.rule.tells == "extend" and (step_end is None or s.start >= step_end)]
    extend = min(extends, default=np.inf)
    before = step_start if step_start is not None else extend
    drafted = max((s.end for s in spans if s.rule.tells == "draft" and s.end <= before), default=-np.inf)
    loose = [s for s in spans if s.rule.loose]
    end = extend if extend < np.inf else max((s.end for s in loose), default=-np.inf)
    out = []
    decode, draft = CODE[Phase.DECODE], CODE[Phase.DRAFT]
    filled = _fill(parts, spans[0].start, end) if not loose else parts
    for a, b, code in filled:
        if code == decode:
            code = draft
        elif code in (INSIDE, NONE) and drafted <= a and b <= end:
            code = GAP if step_end is None else CODE[Phase.VERIFY] if b <= step_end else CODE[Phase.SAMPLING]
        out.append((a, b, code))
    if not loose:
        own = [(a, b) for a, b, code in out if code == draft and step_end is not None and a >= step_end]
        if len(own) > 1:
            out = [
                (a, b, draft if code == NONE and own[0][0] <= a and b <= own[-1][1] else code)
                for a, b, code in _fill(out, own[0][0], own[-1][1])
            ]
    return out


def _untold_vllm(parts: list[tuple[float, float, int]], spans: Sequence[Span], until: float) -> list[tuple[float, float, int]]:
    """Without the scopes of the model runner, sampling and drafting lie between the target's forward and the next pass."""
    target = max((s.end for s in spans if s.rule.tells == "target"), default=None)
    if target is None:
        return parts
    return [(a, b, AFTER if code == NONE and a >= target else code) for a, b, code in _fill(parts, target, until)]


def _fill(parts: list[tuple[float, float, int]], start: float, end: float) -> list[tuple[float, float, int]]:
    """The segments, with NONE for what lies between them within [start, end)."""
    out, at = [], start
    for a, b, code in parts:
        if a > at and at < end:
            out.append((at, min(a, end), NONE))
        out.append((a, b, code))
        at = max(at, b)
    if at < end:
        out.append((at, end, NONE))
    return out
