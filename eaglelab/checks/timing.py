"""Time and cost: what the launch flags lead to, which phase the milliseconds go to, whether speculation pays, which setting is best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.opened import relative_to_case
from eaglelab.timing.cost import ONE_RUN, CostRow, impossible_text
from eaglelab.timing.phases import COLUMNS, Phase
from eaglelab.timing.predict import CANNOT_TELL, CLEAR, MEASURED, NO_INTERVAL, Recommendation
from eaglelab.timing_case import METRICS, TABLE, TRACE, TimingCase

if TYPE_CHECKING:
    from eaglelab.timing.trace import TraceReport

UNKNOWN = 0.05
"""Share of the cycles' time without a span from which on nothing is said of the rest."""
IDLE, COLLECTIVES, SAMPLED, DRAFTED = 0.25, 0.25, 0.15, 0.35
"""Shares of a cycle from which a part is too large: a device that waits for its host, collectives that nothing hides, sampling, drafting."""
FREE = 1.15
"""A verify pass of so many plain decode steps is as good as free: what is read from memory is the same."""
DEAR = 1.5
"""And of so many is dear where few tokens are verified."""
FEW_TOKENS = 64
"""Tokens in a pass, of all requests, below which a dense target on a GPU is bound by memory: the weights are read once either way."""
POSSIBLE = 0.9
"""A verify pass does all that a decode step does: one of fewer steps was recorded under other conditions."""
CYCLES = 3
"""Cycles at a batch size below which their median is not compared."""
OTHER_RUN = 0.1
"""Relative difference of accept lengths from which the table's runs are not the server's."""
FLAT = 1.25
"""Growth of a draft pass from the smallest to the largest batch below which it is the launches that take the time."""

CAUSES = {
    Phase.HOST_GAP: (
        IDLE,
        "The device waits for the host: run drafter and target as captured graphs at this batch size, use the engine's overlap schedule, keep the host's cores free.",
    ),
    Phase.COMMUNICATION: (
        COLLECTIVES,
        "Collectives that nothing hides: try the engine's custom, symmetric-memory or fused all-reduce, NCCL_ALGO and NCCL_PROTO, fewer ranks, and no "
        "tensor parallelism for the drafter. `eaglelab sweep --env` measures them.",
    ),
    Phase.SAMPLING: (
        SAMPLED,
        "Sampling is dear: top-k, top-p and penalties sort the whole vocabulary in every verify pass. Measure greedily, and leave out what is not needed.",
    ),
    Phase.DRAFT: (
        DRAFTED,
        "Drafting is dear: fewer steps, the drafter in a captured graph, a smaller draft vocabulary (its lm_head is most of its bytes), no tensor parallelism for it.",
    ),
}


def flags(inv: Investigation) -> Iterator[Finding]:
    """What the launch line leads to, in this version."""
    yield from inv.timing.flags.findings


def phases(inv: Investigation) -> Iterator[Finding]:
    """Which phase the milliseconds go to: by the trace, else by the server's own timers."""
    case = inv.case.timing
    if case.trace is None and case.metrics is None:
        raise NotGiven("a profiler trace, or two scrapes of the server's timers", f"{TRACE}; or {METRICS}")
    if case.trace is not None:
        yield from _by_trace(inv.timing)
    if case.metrics is not None:
        yield _by_timers(inv.timing)


def _by_trace(side: TimingCase) -> Iterator[Finding]:
    from eaglelab.timing.trace.report import NO_KERNELS

    trace = side.trace
    if not trace.speculative:
        yield Finding(
            "timing.phases",
            f"The trace holds no speculative cycle: {trace.summary}",
            Status.CANNOT_TELL,
            evidence=" ".join(trace.notes),
            next="Record while the server generates, with speculation on: at least a few tokens of each request.",
        )
        return
    shares = {Phase(p): float(s) for p, s in zip(trace.phases["phase"], trace.phases["share"], strict=True) if s > 0}
    largest = max(shares, key=shares.get)
    wall = float(trace.cycles["wall_ms"].median())
    unknown = shares.get(Phase.UNATTRIBUTED, 0.0)
    usual = {p: float((trace.cycles[COLUMNS[p]] / trace.cycles["wall_ms"]).median()) for p in CAUSES}  # one long wait is no cause
    large = [p for p, (limit, _) in CAUSES.items() if min(shares.get(p, 0.0), usual[p]) >= limit]
    faults = large if trace.device == "cuda" else []
    second = max((share for p, share in shares.items() if p not in (largest, Phase.UNATTRIBUTED)), default=0.0)
    hidden = [p for p, (limit, _) in CAUSES.items() if shares.get(p, 0.0) < limit <= shares.get(p, 0.0) + unknown]
    open_ = unknown > UNKNOWN and (largest is Phase.UNATTRIBUTED or shares[largest] - second <= unknown or bool(hidden))
    told = ", ".join(f"{phase} {share:.1%}" for phase, share in sorted(shares.items(), key=lambda kv: -kv[1]))
    batches = sorted(set(trace.cycles["batch"].dropna().astype(int)))
    where = {"cpu": "on a CPU", "cuda": "by the device's kernels", "host": "in launching alone: the GPU's kernels were not recorded"}[
        trace.device
    ]
    title = f"{str(largest).capitalize()} takes {shares[largest]:.1%} of the cycles' time (median cycle {_ms(wall)} ms), {where}"
    if unknown > UNKNOWN and largest is not Phase.UNATTRIBUTED:
        title += f"; {unknown:.1%} is in no known span and may be of any phase"
    yield Finding(
        "timing.phases",
        title,
        Status.CANNOT_TELL if open_ or trace.device == "host" else Status.FAIL if faults else Status.PASS,
        claim=f"{len(trace.cycles):,} cycles of {trace.engine or 'an unknown engine'}"
        + (f" at batch {few([str(b) for b in batches], 6)}" if batches else ""),
        evidence=" ".join(f"{part[0].upper()}{part[1:]}." for part in (told, *(note for note in trace.notes[:4] if note != NO_KERNELS))),
        numbers={"shares": {str(p): s for p, s in shares.items()}, "wall_ms": wall, "cycles": len(trace.cycles), "device": trace.device},
        next=" ".join(CAUSES[p][1] for p in faults) or _record(trace, unknown),
    )
    yield from _draft(side, shares)


def _record(trace: TraceReport, unknown: float) -> str:
    """What to record, so that the trace tells more."""
    from eaglelab.timing.trace.attribute import SCOPES
    from eaglelab.timing.trace.report import NO_KERNELS

    if trace.device == "host":
        return f"{NO_KERNELS[0].upper()}{NO_KERNELS[1:]}."
    if any(SCOPES in note for note in trace.notes):
        return f"To tell drafting and sampling apart, record with {SCOPES}."
    return "The table of what is unattributed (page 06, `eaglelab trace`) names what ran there." if unknown > UNKNOWN else ""


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _by_timers(side: TimingCase) -> Finding:
    timers = side.timers
    if not timers.share:
        return Finding(
            "timing.timers",
            f"The scrapes tell no seconds by phase: {timers.summary}",
            Status.CANNOT_TELL,
            evidence=" ".join(timers.notes),
            next=METRICS,
        )
    largest = max(timers.share, key=timers.share.get)
    return Finding(
        "timing.timers",
        f"{str(largest).capitalize()} takes {timers.share[largest]:.1%} of the forward passes' time, by the server's own timers",
        Status.PASS,
        claim=timers.source,
        evidence=" ".join([timers.summary, *timers.notes]),
        numbers=timers.to_json(),
    )


def _draft(side: TimingCase, shares: dict[Phase, float]) -> Iterator[Finding]:
    """Whether drafting is bound by launches: it does not grow with the batch. Nothing where that is open and drafting takes little."""
    trace, share = side.trace, shares.get(Phase.DRAFT, 0.0)
    if trace.device == "host" or not share:
        unknown = shares.get(Phase.UNATTRIBUTED, 0.0)
        yield Finding(
            "timing.draft",
            "How long drafting takes cannot be told: "
            + (
                "its kernels were not recorded"
                if share
                else f"no span claims it; it is in what is unattributed ({unknown:.1%}), if anywhere"
            ),
            Status.CANNOT_TELL,
            next=_record(trace, unknown),
        )
        return
    by = trace.by_batch().dropna(subset=["batch"])
    by = by[by["cycles"] >= CYCLES]
    column = COLUMNS[Phase.DRAFT]
    low, high = (by.iloc[0], by.iloc[-1]) if len(by) else (None, None)
    numbers = {"share": share, "by_batch": dict(zip(by["batch"].astype(int).astype(str), by[column].astype(float), strict=True))}
    if len(by) < 2 or high["batch"] < 4 * low["batch"] or not low[column] > 0:
        if share >= DRAFTED:
            yield Finding(
                "timing.draft",
                f"Drafting takes {share:.1%} of a cycle; whether its launches or its work take the time needs two batch sizes in the trace, with {CYCLES} cycles each",
                Status.CANNOT_TELL,
                evidence="A draft pass that takes as long for 16 requests as for one is bound by its launches.",
                numbers=numbers,
                next="Record at batch 1 and at 16, or run `eaglelab bench CASE`.",
            )
        return
    growth = float(high[column] / low[column])
    bound = growth < FLAT
    more = f"{growth:.2f} times as long at batch {int(high['batch'])} as at batch {int(low['batch'])}"
    yield Finding(
        "timing.draft",
        f"Drafting is bound by its launches: it takes {more}" if bound else f"Drafting grows with the batch: it takes {more}",
        Status.FAIL if bound and share >= DRAFTED and trace.device == "cuda" else Status.PASS,
        evidence=f"Drafting takes {share:.1%} of a cycle.",
        numbers=numbers | {"growth": growth},
        next=CAUSES[Phase.DRAFT][1] if bound and share >= DRAFTED else "",
    )


def verify(inv: Investigation) -> Iterator[Finding]:
    """Whether the verify pass is near what it can cost: one plain decode step."""
    side = inv.timing
    if not side.trace.speculative or side.trace.device == "host":  # `timing.phases` says it
        return
    from eaglelab.timing.experts import experts_of

    table = side.verify_over_decode()
    experts = None if inv.target_config is None else experts_of(inv.target_config)
    table["bound"] = [
        1.0 if experts is None else experts.distinct(b * n) / experts.distinct(b) for b, n in zip(table.batch, table.tokens, strict=True)
    ]
    memory = (side.trace.device == "cuda") & (table.batch * table.tokens <= FEW_TOKENS)
    dear = memory & (table.ratio > DEAR * table.bound)
    sure = dear & (table.low > DEAR * table.bound)
    odd = table.high.fillna(table.ratio) < POSSIBLE
    shown = next(rows for rows in (table[sure], table[odd], table[dear], table) if len(rows))
    worst = shown.loc[shown["ratio"].idxmin() if odd.any() and not sure.any() else shown["ratio"].idxmax()]
    batch, tokens, ratio, bound = int(worst["batch"]), int(worst["tokens"]), float(worst["ratio"]), float(worst["bound"])
    allowed = f" (a mixture of experts reads up to {bound:.2f} times the experts)" if experts is not None else ""
    title = f"Verifying {tokens} tokens costs {ratio:.2f} plain decode steps at batch {batch}"
    if odd[worst.name]:
        title += ", less than is possible: the two were recorded under different conditions"
        more = "Record both again right after each other, with the same flags, prompts and load, captured graphs in both or in none."
    elif sure[worst.name]:
        more = (
            "Dearer than its bytes: is the verify pass a captured graph at this batch, does its attention backend read the cache once for all tokens, "
            "are the tokens of a tree more than the setting needs?"
        )
    elif dear[worst.name]:
        title += ", of too few passes to be sure that it is too many"
        more = "Record more cycles and more plain decode steps at this batch size: 20 of each."
    else:
        title += ", as good as nothing on top" if ratio <= FREE * bound else ""
        more = ""
    yield Finding(
        "timing.verify",
        title,
        Status.FAIL if sure.any() else Status.CANNOT_TELL if odd.any() or dear.any() else Status.PASS,
        claim=f"A pass over few tokens reads the same weights as a decode step{allowed}.",
        evidence="; ".join(_beside(row) for row in table.itertuples())
        + ". The target's pass with its collectives, without gaps"
        + ("." if side.trace.device == "cuda" else "; on a CPU the work of each token counts, so that verifying is never free."),
        numbers={"ratios": table.to_dict(orient="records"), "bound": bound},
        next=more,
    )


def _beside(row) -> str:
    interval = f" ({row.low:.2f} to {row.high:.2f})" if row.low == row.low else ""
    times = f"verify {_ms(row.verify_ms)} ms (n = {row.cycles:,}), decode {_ms(row.decode_ms)} ms (n = {row.steps:,})"
    return f"batch {row.batch}: {times}, ratio {row.ratio:.2f}{interval}"


def worth(inv: Investigation) -> Iterator[Finding]:
    """Whether speculation pays at the batch sizes that were measured, with the setting that the case's server runs or with those of the table."""
    side = inv.timing
    if inv.case.timing.table is None and inv.case.timing.trace is not None:
        yield from _worth_by_trace(side)
        return
    rows = [r for r in side.rows if r.speedup is not None]
    if not rows:
        without = "no run without speculation" if side.rows else "no run with speculation"
        title = f"Whether speculation pays cannot be told: the table has {without} at the batch sizes of the others"
        yield Finding(
            "cost.worth",
            title,
            Status.CANNOT_TELL,
            evidence=" ".join(side.cost.notes),
            next="Measure both: a row with steps 0 is the baseline.",
        )
        return
    served = [r for r in rows if r.measured.setting == side.setting]
    own = [r for r in served or rows if not r.impossible]
    if not own:
        yield _impossible(served or rows)
        return
    loses = [r for r in own if (r.speedup_interval[1] if r.speedup_interval else r.speedup * (1 + ONE_RUN)) < 1]
    wins = [r for r in own if (r.speedup_interval[0] if r.speedup_interval else r.speedup / (1 + ONE_RUN)) > 1]
    shown = sorted(own, key=lambda r: (r.measured.batch, -r.speedup))
    best = max(wins or own, key=lambda r: r.speedup)
    single = "" if best.speedup_interval else " (one run each)"
    at = _batch(best)
    what = best.measured.setting.name
    need = "" if best.r is None else f"; it has accept length {best.measured.accept_length:.2f} and breaks even at {best.r:.2f}"
    title = (
        f"Speculation does not pay: {what} runs at {best.speedup:.2f} of no speculation at {at}{single}, the best of what was measured{need}"
        if len(loses) == len(own)
        else f"Speculation pays: {what} is {best.speedup:.2f} times as fast as no speculation at {at}{single}{need}"
        if wins
        else f"Whether speculation pays cannot be told: {what} is {best.speedup:.2f} times as fast at {at}{single}, within what runs differ by{need}"
    )
    slower = sorted({r.measured.batch for r in loses} - {r.measured.batch for r in own if r not in loses})
    if wins and slower:
        title += f"; slower at batch {few([str(b) for b in slower], 5)}"
    status = Status.FAIL if len(loses) == len(own) else Status.PASS if wins else Status.CANNOT_TELL
    reached = _reached(inv)
    apart = ""
    if reached is not None and best.r is not None and abs(reached / best.measured.accept_length - 1) > OTHER_RUN:
        apart = (
            f"The measured runs reached accept length {best.measured.accept_length:.2f} and this case's server {reached:.2f}: they were of another "
            "wiring, drafter or text. What a cycle costs is taken from them. "
        )
        if reached < best.r and len(loses) != len(own):
            status = Status.FAIL
            title = (
                f"As served speculation does not pay: the server reached accept length {reached:.2f}, and {what} breaks even at {best.r:.2f} at {at}; with "
                f"the {best.measured.accept_length:.2f} of the measured runs it is {best.speedup:.2f} times as fast"
            )
    shown += [r for r in served or rows if r.impossible]
    unserved = "" if served or side.setting is None else f"The server runs {side.setting.name}, which was not measured beside a baseline. "
    yield Finding(
        "cost.worth",
        title,
        status,
        claim=f"Measured runs: {relative_to_case(inv.case, side.measured.path)}" if side.measured.path else "",
        evidence=unserved + apart + "; ".join(_row(r) for r in shown[:8]) + ".",
        numbers={"rows": [r.to_json() for r in shown]},
        next="The setting to use is in the finding cost.setting." if loses else "",
    )


def _reached(inv: Investigation) -> float | None:
    """The accept length that the case's server reached; None where that is not given or cannot be read."""
    try:
        reached = inv.served.reached
    except ValueError:  # `served.acceptance` says why
        return None
    return None if reached is None else reached.accept_length


def _impossible(rows: list[CostRow]) -> Finding:
    """All that was measured is faster than its accept length allows."""
    worst = max(rows, key=lambda r: r.speedup / r.measured.accept_length)
    return Finding(
        "cost.worth",
        f"Whether speculation pays cannot be told: {worst.measured.setting.name} is {worst.speedup:.2f} times as fast at {_batch(worst)} with accept "
        f"length {worst.measured.accept_length:.2f}, more than can be",
        Status.CANNOT_TELL,
        evidence="; ".join(impossible_text(r.speedup, r.measured.accept_length) for r in rows[:4]) + ".",
        numbers={"rows": [r.to_json() for r in rows], "impossible": True},
        next="Measure both right after each other, with the same prompts, flags and load.",
    )


def _worth_by_trace(side: TimingCase) -> Iterator[Finding]:
    """What a trace tells without a table: the accept length that breaks even. Raises NotGiven where it holds no plain decode steps."""
    from eaglelab.timing.traced import cycles_in_decode_steps

    table = cycles_in_decode_steps(side.trace)
    if not len(table):
        raise NotGiven("measured throughputs of settings", TABLE)
    told = [f"accept length {r.r:.2f} at batch {r.batch}" for r in table.itertuples()]
    yield Finding(
        "cost.worth",
        f"By the trace speculation breaks even at {few(told, 4)}",
        Status.CANNOT_TELL,
        evidence="; ".join(
            f"batch {r.batch}: {r.cycle_ms:.3g} ms a cycle ({r.cycles:,}), {r.decode_ms:.3g} ms a plain decode step ({r.steps:,})"
            for r in table.itertuples()
        )
        + ". Medians of wall time, the profiler's own cost included.",
        numbers={"break_even": table.to_dict(orient="records")},
        next=f"Hold the served accept length against it. {TABLE}.",
    )


def _batch(row: CostRow) -> str:
    return f"batch {row.measured.batch}" if row.measured.batch_told else "the table's batch size"


def _row(row: CostRow) -> str:
    m = row.measured
    r = "" if row.r is None else f", accept length {m.accept_length:.2f}, break-even {row.r:.2f}"
    return f"{m.setting.name} at {_batch(row)}: {m.tok_s:.4g} tok/s, {row.speedup:.2f} of {row.baseline_tok_s:.4g}{r}"


def setting(inv: Investigation) -> Iterator[Finding]:
    """The best setting of each batch size, with the gain and its interval."""
    side = inv.timing
    try:
        report = side.cost_with_replay
        source = "accept lengths of settings that were not run: the drafter alone on the dump"
    except (NotGiven, ValueError) as error:
        side.measured  # noqa: B018 - an absent table is what is said, not an absent dump
        report, source = side.cost, f"settings that were not run are bounded by their neighbours ({error})"
    if not report.recommendations:
        yield Finding(
            "cost.setting",
            "Which setting is best cannot be told: nothing was measured beside a run without speculation",
            Status.CANNOT_TELL,
            evidence=" ".join(report.notes),
            next="`eaglelab sweep CASE` measures off and the settings that could win.",
        )
        return
    statuses = [_status(r, side) for r in report.recommendations]
    asks = [r for r, s in zip(report.recommendations, statuses, strict=True) if s is Status.FAIL]
    order = (Status.FAIL, Status.CANNOT_TELL, Status.PASS)
    texts = [r.text for r in report.recommendations]
    yield Finding(
        "cost.setting",
        f"Best setting (steps-top-k-draft tokens): {few(texts, 4, '. ')}",
        min(statuses, key=order.index),
        claim=f"The server runs {side.setting.name}" if side.setting else "",
        evidence=f"{source[0].upper()}{source[1:]}. " + " ".join(f"{n[0].upper()}{n[1:].rstrip('.')}." for n in report.notes[:4]),
        numbers={"recommendations": [r.to_json() for r in report.recommendations], "notes": list(report.notes)},
        next=_change(asks[0], inv) if asks else _more(report.recommendations),
    )


def _status(found: Recommendation, side: TimingCase) -> Status:
    if found.over_off not in (CLEAR, NO_INTERVAL):
        return Status.CANNOT_TELL
    if found.too_close:
        return Status.CANNOT_TELL
    running = next((o for o in found.outlooks if o.setting == side.setting and o.source == MEASURED), None)
    if running is None or running.setting == found.best.setting or found.best.source != MEASURED:
        return Status.PASS
    if found.over_off == NO_INTERVAL or running.high is None or found.best.low is None:
        return Status.CANNOT_TELL
    return Status.FAIL if running.high < found.best.low else Status.PASS


def _change(found: Recommendation, inv: Investigation) -> str:
    best = found.best.setting
    at = f"batch {found.batch}" if found.batch_told else "the table's batch size"
    if best.off:
        return f"At {at} serve without speculation: leave its flags out."
    flags = best.flags(inv.engine.name if inv.engine is not None else "sglang")
    words = [f"--{name.replace('_', '-')} {value}" for name, value in flags.items()]
    return f"At {at} write {' '.join(words)}."


def _more(found: tuple[Recommendation, ...]) -> str:
    open_ = [o.name for r in found for o in r.not_ruled_out]
    if open_:
        return f"Not ruled out and not run: {few(list(dict.fromkeys(open_)), 4)}. `eaglelab sweep CASE` runs what could win."
    doubts = [r.runner_up for r in found if r.runner_up is not None and r.over_runner_up == CANNOT_TELL]
    if any(r.over_off != CLEAR for r in found) or any(o.source == MEASURED for o in doubts):
        return "Repeat the runs (`eaglelab sweep CASE --repeats 3`): the intervals hang on it."
    return ""
