"""Which boundary of the target does each slot of a dump hold? By comparison of values on the same tokens, never by labels or norms.

    found = identify(list(dump.samples(8)), ForwardSource("path/to/target"))
    found.wiring        # [3, 16, 28, final]
    found.reasons       # per slot, in words with numbers
    found.anomalies     # shifted, swapped, rotated, without residual, …

Relative error ‖s − b‖ / ‖b‖, cosine and norm ratio are taken per token and joined by medians, so that the first token and massive
activations do not decide; the rule is `eaglelab.identify.rule.Rule`. The target comes one boundary at a time and is not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from eaglelab.cache import Unfinished
from eaglelab.identify.compare import MIN_ROWS
from eaglelab.identify.explain import absent, explain
from eaglelab.identify.result import Anomaly, BySample, Identification, SlotVerdict, over_all, over_samples, sample_line
from eaglelab.identify.rows import Rows
from eaglelab.identify.rule import Judgement, Rule, judge, margin_of
from eaglelab.identify.sources import MAKE_SKETCH, Compared, against_forward, against_sketch
from eaglelab.identify.three_tensors import find_normed
from eaglelab.target.sketch import Sketch
from eaglelab.target.tensors import TensorSource
from eaglelab.wiring import Wiring

__all__ = ["Anomaly", "Identification", "identify"]

SAME_SLOT = 1e-3
"""Two slots nearer than this to each other are the same tensor."""


def identify(
    samples: Iterable[Any], source: Any, *, rows: int = 256, seed: int = 0, unfinished: Unfinished | None = None
) -> Identification:
    """Find each slot's boundary in `samples` (of one dump) by comparison with `source`.

    `source` is a `ForwardSource` (or has its `hidden_size`, `num_layers` and `visit`), a `Sketch`, or a `TensorSource`, which tells
    only the embedding and the final-normed state. At most `rows` seeded rows a sample are compared. Slots are matched over samples by
    name. unfinished: where the boundaries that were compared are kept if this is interrupted. Raises ValueError for no samples or too few rows, and what the source raises.
    """
    samples = list(samples)
    if not samples:
        raise ValueError("no samples to identify: the dump is empty or none of the files chosen can be read (see its health table)")
    if rows < MIN_ROWS:
        raise ValueError(f"rows is {rows}, expected at least {MIN_ROWS}: fewer decide nothing")
    names = Counter(tuple(s.slot_names) for s in samples).most_common(1)[0][0]
    if isinstance(source, Sketch):
        compared = against_sketch(samples, source, names, rows)
    else:
        compared = against_forward(samples, source, names, rows, seed, unfinished)
    judged = _judge_all(len(samples), len(names), compared, Rule().loosened(compared.dim))
    if isinstance(source, TensorSource):
        find_normed(samples, names, judged, source)
    verdicts = [over_samples(s, [line[s] for line in judged], Rule(), source.num_layers) for s in range(len(names))]
    anomalies = [a for v in verdicts for a in v.anomalies]
    anomalies += [a for s in range(len(names)) for a in _row_anomalies(s, compared.comparison.rows)]
    anomalies += _duplicates(verdicts, compared.comparison.rows)
    by_sample = _by_sample(compared, [s.key for s in samples], len(names))
    error, cosine, ratio = (over_all(m, (len(names), len(compared.comparison.boundaries))) for m in by_sample.measures)
    boundaries = tuple(compared.comparison.boundaries)
    wiring = Wiring.of(v.boundary for v in verdicts)
    return Identification(
        slots=_slot_table(names, verdicts, judged, boundaries, error, cosine, ratio),
        per_sample=pd.DataFrame(
            sample_line(sample.key, s, name, j)
            for sample, line in zip(samples, judged, strict=True)
            for (s, name), j in zip(enumerate(names), line, strict=True)
        ),
        error=error,
        cosine=cosine,
        norm_ratio=ratio,
        boundaries=boundaries,
        num_layers=source.num_layers,
        wiring=wiring,
        reasons=tuple(v.reason for v in verdicts),
        anomalies=tuple(anomalies),
        source=_in_words(source, boundaries),
        notes=tuple(_notes(compared, source.num_layers, len(samples))),
        by_sample=by_sample,
        next_step=_next_step(compared, source, {a.kind for a in anomalies if wiring[a.slot] is None}, wiring),
    )


def _judge_all(samples: int, slots: int, compared: Compared, rule: Rule) -> list[list[Judgement]]:
    """A judgement per sample and slot: [n][S]."""
    place = {i: k for k, i in enumerate(compared.used)}
    out = [
        [
            _judge_slot(s, place[i], compared, rule) if i in place else Judgement(tested=False, reason=compared.untested[i])
            for s in range(slots)
        ]
        for i in range(samples)
    ]
    whole = [i for i in compared.used if i not in compared.embedding_only]
    for i, why in compared.embedding_only.items():
        for j in out[i]:
            if j.boundary is None and j.tested and j.kind is None:
                j.tested, j.reason = not whole, f"{j.reason.partition(';')[0]}; {why}"
    return out


def _judge_slot(s: int, k: int, compared: Compared, rule: Rule) -> Judgement:
    comparison = compared.comparison
    rows, stats = comparison.rows[k], comparison.stats[k]
    gone = absent(rows, s, compared.width)
    if gone is not None:
        return gone
    out = judge(stats, s, comparison.boundaries, compared.complete, rule)
    if out.boundary is None and out.tested:
        explain(out, stats, s, comparison.boundaries, compared.texts, rule)
    elif out.error > rule.clear_error:
        out.kind, out.found = "far from rounding", out.boundary
        out.reason += "; more than rounding explains: a quantised target, another checkpoint, or another precision"
    return out


def _by_sample(compared: Compared, keys: list[str], slots: int) -> BySample:
    """Medians over tokens, sample by sample: [n, S, B] each, and the boundaries' own norms [n, B]."""
    comparison = compared.comparison
    shape = (len(comparison.stats), slots, len(comparison.boundaries))

    def medians(lines: list[Tensor]) -> np.ndarray:  # B of [..., R] to [..., B]
        return torch.stack([line.nanmedian(dim=-1).values for line in lines], dim=-1).double().numpy()

    def stacked(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.stack([medians(getattr(stats, name)) for stats in comparison.stats]) if all(shape) else np.empty(shape)

    return BySample(
        keys=tuple(keys[i] for i in compared.used),
        error=stacked("error", shape),
        cosine=stacked("cosine", shape),
        norm_ratio=stacked("ratio", shape),
        norms=stacked("norms", shape[::2]),
    )


def _slot_table(
    names: tuple[str, ...],
    verdicts: list[SlotVerdict],
    judged: list[list[Judgement]],
    boundaries: tuple,
    error: np.ndarray,
    cosine: np.ndarray,
    ratio: np.ndarray,
) -> pd.DataFrame:
    lines = []
    for s, name in enumerate(names):
        order = [int(b) for b in np.argsort(error[s], kind="stable") if np.isfinite(error[s, b])]
        best, runner = [*order, None, None][:2]
        best_error, best_cosine, best_ratio = (float("nan") if best is None else v[s, best] for v in (error, cosine, ratio))
        runner_error = float("nan") if runner is None else error[s, runner]
        lines.append(
            {
                "slot": s,
                "name": name,
                "best": None if best is None else boundaries[best],
                "relative_error": best_error,
                "cosine": best_cosine,
                "norm_ratio": best_ratio,
                "runner_up": None if runner is None else boundaries[runner],
                "runner_up_error": runner_error,
                "margin": margin_of(best_error, runner_error),
                "margin_min": min((j[s].margin for j in judged if np.isfinite(j[s].margin)), default=float("nan")),
                "agree": verdicts[s].agree,
                "decision": "cannot tell" if verdicts[s].boundary is None else verdicts[s].boundary,
            }
        )
    return pd.DataFrame(lines).astype(dict.fromkeys(("best", "runner_up", "decision"), object))


def _row_anomalies(s: int, rows: list[Rows]) -> list[Anomaly]:
    """Rows of a slot that could not be compared although most could, and lengths that differ."""
    out = []
    usable = [r for r in rows if r.norms[s].isfinite().any()]
    of = sum(r.norms.shape[1] for r in usable)
    for kind, word, counts in (
        ("nan", "NaN or infinite", [int(r.bad[s].sum()) for r in usable]),
        ("padding", "all zero", [int(r.zero[s].sum()) for r in usable]),
    ):
        if n := sum(map(bool, counts)):
            detail = f"{sum(counts)} of {of} rows compared are {word}, in {n} of {len(usable)} samples; left out"
            out.append(Anomaly(s, kind, detail, None, n, len(usable), {"rows": sum(counts), "of": of}))
    padded = [r for r in rows if r.start]
    if padded and s == 0:
        detail = f"{len(padded)} of {len(rows)} samples start with padding (up to {max(r.start for r in padded)} zero rows); left out"
        out.append(Anomaly(s, "padding", detail, None, len(padded), len(rows)))
    wrong = [r for r in rows if r.lengths[s] is not None and r.lengths[s] != len(r.token_ids) + r.start]
    if wrong:
        first, tokens = wrong[0], len(wrong[0].token_ids) + wrong[0].start
        detail = f"{len(wrong)} of {len(rows)} samples: {first.key} has {first.lengths[s]} rows for {tokens} tokens"
        out.append(Anomaly(s, "length", detail, None, len(wrong), len(rows)))
    return out


def _duplicates(verdicts: list[SlotVerdict], rows: list[Rows]) -> list[Anomaly]:
    """Slots that are the same tensor, or that hold the same boundary."""
    out = []
    for b in range(len(verdicts)):
        for a in range(b):
            same = [r for r in rows if float(r.slot_distance[a, b]) <= SAME_SLOT]
            if rows and 2 * len(same) > len(rows):
                detail = f"slots {a} and {b} are the same tensor in {len(same)} of {len(rows)} samples"
                out.append(Anomaly(b, "duplicate", detail, verdicts[b].boundary, len(same), len(rows), {"other": a}))
            elif verdicts[a].boundary is not None and verdicts[a].boundary == verdicts[b].boundary:
                detail = f"slots {a} and {b} both hold boundary {verdicts[a].boundary}"
                out.append(Anomaly(b, "duplicate", detail, verdicts[b].boundary, len(rows), len(rows), {"other": a}))
    return out


def _in_words(source: Any, boundaries: tuple) -> str:
    span = (
        f"boundaries {boundaries[0]} to {boundaries[-1]}" if len(boundaries) > 1 else "the embedding alone" if boundaries else "no boundary"
    )
    if isinstance(source, Sketch):
        return f"a sketch of {source.target or 'the target'} ({span})"
    return f"{getattr(source, 'kind', 'the target')} {Path(source.path).name} ({span})"


def _notes(compared: Compared, num_layers: int | None, samples: int) -> list[str]:
    notes = list(compared.notes)
    if compared.comparison.boundaries and not compared.complete:
        last = compared.comparison.boundaries[-1]
        beyond = f"boundaries {last + 1} to {num_layers} and final" if num_layers and last < num_layers else "boundaries beyond it"
        notes.append(f"looked at up to boundary {last}; {beyond} not looked at")
    reasons = Counter(compared.untested.values())
    notes += [f"{n} of {samples} samples not compared: {why}" for why, n in reasons.most_common(3)]
    massive = sum(stats.massive for stats in compared.comparison.stats)
    if massive:
        notes.append(f"{massive} rows have massive activations (norm above 10 medians) somewhere; left out there")
    return notes


def _next_step(compared: Compared, source: Any, kinds: set[str], wiring: Wiring) -> str:
    """The cheapest measurement that would tell more. `kinds`: the anomalies of the slots that cannot be told."""
    looked_at = len(compared.comparison.boundaries)
    if wiring.known:
        return ""
    if isinstance(source, Sketch) and (compared.embedding_only or not compared.used):
        return (
            f"sketch this dump's own samples ({MAKE_SKETCH}), or dump the sketch's token ids with the engine that made the dump "
            "(`eaglelab sketch --probe sketch.safetensors` prints them)"
        )
    if "edge" in kinds or (looked_at > 1 and not compared.complete):
        return "run the forward further: a larger --up-to, or all layers"
    if looked_at == 1:
        return f"which boundary: run the forward (eaglelab identify DUMP --target TARGET), or make a sketch ({MAKE_SKETCH})"
    if "tie" in kinds:
        return "compare with the checkpoint in the dtype that made the dump, on more samples"
    if "no match" in kinds:
        return "check that the target is the checkpoint (and the tokenizer) that made the dump: nothing of it fits these values"
    if kinds:
        return "see the anomalies of the slots that cannot be told"
    return "read more samples, longer ones and of this target's tokens: the reasons say what these lack"
