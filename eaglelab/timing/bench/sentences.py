"""A bench in sentences: what was measured, how near to the machine's limits, what a verified token and a draft step cost in decode steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaglelab.timing.bench.result import EXTEND, STEP, VERIFY, Point, Spread, bound, paired_ratio

if TYPE_CHECKING:
    from eaglelab.timing.bench.result import BenchResult

OWN_CODE = {
    "cpu": "CPU timings, by plain torch and transformers: they say nothing about a GPU or an engine's kernels.",
    "cuda": "By plain torch and transformers, not by an engine's kernels: take the ratios, not the milliseconds.",
}


def sentences(result: BenchResult) -> list[str]:
    """One sentence a line."""
    machine = result.machine
    threads = f", {machine.threads} threads" if machine.threads else ""
    lines = [
        OWN_CODE[machine.device],
        f"{machine.name}{threads}, {machine.dtype}: reads {machine.read_gb_s:.4g} GB/s (by {machine.read_by}), "
        f"computes {machine.peak_tflop_s:.3g} TFLOP/s in a matrix product.",
    ]
    lines += _about_target(result)
    batches = sorted({p.batch for p in result.points})
    context = max(p.context for p in result.points)
    for batch in batches:
        lines += _verify(result, batch, context)
    for batch in batches:
        lines += _draft(result, batch, context)
    lines += _not_measured(result)
    fewest = min((len(p.ms) for p in result.points if p.ms), default=0)
    if fewest < result.repeats:
        cut = sorted({(p.batch, p.context) for p in result.points if 0 < len(p.ms) < result.repeats})
        places = ", ".join(f"batch {batch} context {context}" for batch, context in cut)
        lines.append(
            f"The time ended before all {result.repeats} rounds: {places} have fewer, {fewest} at least (column repeats); more with --seconds."
        )
    uncaptured = [p for p in result.points if p.ms and result.graphs and not p.graph]
    if uncaptured:
        lines.append(f"{len(uncaptured)} of {len(result.points)} points ran without a CUDA graph: {uncaptured[0].note}.")
    return [*lines, *result.notes]


def _not_measured(result: BenchResult) -> list[str]:
    """One sentence a reason: how many points, and the first of them."""
    reasons: dict[str, list[Point]] = {}
    for p in result.points:
        if not p.ms:
            reasons.setdefault(p.note.partition(":")[0], []).append(p)
    lines = []
    for failed in reasons.values():
        first = failed[0]
        place = f"{first.what} of {first.tokens} tokens at batch {first.batch}, context {first.context}"
        lines.append(f"{len(failed)} of {len(result.points)} points were not measured; {place}: {first.note}.")
    return lines


def _about_target(result: BenchResult) -> list[str]:
    target = result.target
    if target is None:
        return []
    lines = []
    if target["layers_in_memory"] < target["num_layers"]:
        share = f"{target['layers_in_memory']} of N={target['num_layers']} layers"
        lines.append(f"The target's passes are scaled from {share}: what these add to a pass, times how many there are of their kind.")
    if target["experts"]:
        e = target["experts"]
        routing = "random weights route at random" if target["random_weights"] else "made-up keys and values route as they come"
        lines.append(
            f"Experts: {e['chosen']} of {e['number']} a token; bytes count the distinct experts that random routing reaches, and {routing}: "
            "real routing is correlated and reads fewer."
        )
    return lines


def _verify(result: BenchResult, batch: int, context: int) -> list[str]:
    decode = result._at(VERIFY, batch, context, 1)
    if decode is None:
        return []
    tokens = sorted({p.tokens for p in result.points if p.what == VERIFY} - {1})
    parts = []
    for n in tokens:
        ratio = paired_ratio(result._at(VERIFY, batch, context, n), decode)
        parts += [f"{_ratio(ratio)} for {n}"] if ratio else []
    costs = f"; a verify pass costs {', '.join(parts)} tokens (in decode steps, n={len(decode.ms)})" if parts else ""
    lines = [f"Batch {batch}, context {context}: plain decode takes {_ms(decode.spread)} and is {_limit(result, decode)}{costs}."]
    last = result._at(VERIFY, batch, context, tokens[-1]) if tokens else None
    if last is not None:
        lines.append(f"  Verifying {last.tokens} tokens is {_limit(result, last)}.")
    return lines


def _draft(result: BenchResult, batch: int, context: int) -> list[str]:
    step, share = result._at(STEP, batch, context, 1), result.head_share(batch, context)
    if step is None:
        return []
    c = paired_ratio(step, result._at(VERIFY, batch, context, 1))
    line = f"Batch {batch}, context {context}: a draft step takes {_ms(step.spread)}"
    line += f" ({_ratio(c)} of a decode step)" if c else ""
    line += f" and is {_limit(result, step)}"
    if share:
        line += f"; its lm_head takes {share.median:.0%} ({share.low:.0%} to {share.high:.0%}) of it"
        line += ", and half the draft vocabulary saves half of that at most"
    lines = [line + "."]
    extends = [p for p in result.points if (p.what, p.batch, p.context) == (EXTEND, batch, context) and p.ms and p.tokens > 1]
    if extends:
        lines.append("  The extend takes " + ", ".join(f"{p.spread.median:.4g} ms over {p.tokens}" for p in extends) + " rows a request.")
    return lines


def _limit(result: BenchResult, point: Point) -> str:
    memory = point.bytes / point.spread.median / 1e6 / result.machine.read_gb_s
    compute = point.flops / point.spread.median / 1e9 / result.machine.peak_tflop_s
    kind = bound(memory, compute)
    shares = f"{memory:.0%} of the bandwidth, {compute:.0%} of the peak"
    if memory > 1.1:
        shares += "; more than memory gives: its weights stay in caches"
    return {"memory": "memory-bound", "compute": "compute-bound", "latency": "near neither limit"}[kind] + f" ({shares})"


def _ms(spread: Spread) -> str:
    return f"{spread.median:.4g} ms ({spread.low:.4g} to {spread.high:.4g})"


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"
