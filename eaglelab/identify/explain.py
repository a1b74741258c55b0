"""Why a slot fits no boundary on its own tokens: shifted, another sample's rows, no residual, another basis, a scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eaglelab.identify.compare import MIN_ROWS, SampleStats
from eaglelab.identify.rows import Rows
from eaglelab.identify.rule import SWAPPED, Judgement, Rule
from eaglelab.wiring import Boundary

SHARE = 0.6
"""Share of the probes that must agree on an offset."""
BETTER = 0.5
"""Another explanation must have at most this share of the error that the best boundary has in place."""
GRAM_DISTANCE = 0.2
"""Gram matrices are equal when they differ by less than this share of their spread; neighbours of a shallow target differ by more."""
NORM_DISTANCE = 0.05
GRAM_MARGIN = 1.5
GRAM_MIN_COSINE = 0.5


def absent(rows: Rows, s: int, width: int) -> Judgement | None:
    """A slot with nothing to compare: missing, of another width, NaN or zero throughout."""
    if rows.widths[s] is None:
        return Judgement(tested=False, kind="missing", reason="the sample has no such slot")
    if rows.widths[s] != width:
        return Judgement(
            tested=False,
            kind="width",
            reason=f"the slot is {rows.widths[s]} wide, the target {width}: another target, or slots side by side in one tensor",
        )
    count = rows.norms.shape[1]
    left = int(rows.norms[s].isfinite().sum())
    if left >= MIN_ROWS:
        return None
    for kind, text, what in (("nan", "NaN or infinite", rows.bad[s]), ("zero", "all zero", rows.zero[s])):
        n = int(what.sum())
        if 2 * n >= count:
            return Judgement(kind=kind, rows=left, reason=f"{n} of {count} rows are {text}", numbers={"rows": n, "of": count})
    return None


def explain(out: Judgement, stats: SampleStats, s: int, boundaries: list[Boundary], texts: list[str], rule: Rule) -> None:
    """Give an undecided judgement a kind, the first of these that fits with numbers; else leave it as it is."""
    found = (
        _shifted(out, stats, s, boundaries, rule)
        or _swapped(out, stats, s, boundaries, texts, rule)
        or _without_residual(out, stats, s, boundaries, rule)
        or _other_basis(stats, s, boundaries)
        or _scaled(out, stats, s, boundaries, rule)
    )
    if found:
        out.kind, out.found, out.numbers, out.reason = found


Explanation = tuple[str, Boundary, dict[str, Any], str] | None
"""kind, the boundary that the slot is a version of, numbers, reason."""


def _mode(values: Tensor) -> tuple[int, float]:
    """The most frequent value and its share."""
    found, counts = values.unique(return_counts=True)
    return int(found[counts.argmax()]), float(counts.max()) / len(values)


def _shifted(out: Judgement, stats: SampleStats, s: int, boundaries: list[Boundary], rule: Rule) -> Explanation:
    error = stats.own_error[s]
    finite = error.isfinite()
    good = finite & (error <= rule.error)
    if int(good.sum()) < MIN_ROWS or int(good.sum()) < SHARE * int(finite.sum()):
        return None
    offset, share = _mode(stats.own_offset[s][good])
    hits = good & (stats.own_offset[s] == offset)
    at_offset = float(error[hits].median())
    if offset == 0 or share < SHARE or at_offset > BETTER * out.error:
        return None
    place, place_share = _mode(stats.own_boundary[s][hits])
    found = boundaries[place] if place_share >= SHARE else None
    reason = (
        f"row t holds boundary {'?' if found is None else found} of row t{offset:+d} (relative error {at_offset:.3g} in "
        f"{share:.0%} of the rows looked for; in place {out.error:.3g})"
    )
    return "shifted", found, {"offset": offset, "relative_error": at_offset, "share": share}, reason


def _swapped(out: Judgement, stats: SampleStats, s: int, boundaries: list[Boundary], texts: list[str], rule: Rule) -> Explanation:
    j = int(stats.other_error[s].argmin())
    error = float(stats.other_error[s, j])
    if not error <= min(rule.error, BETTER * out.error):
        return None
    found = boundaries[int(stats.other_boundary[s, j])]
    reason = (
        f"holds the rows of {texts[j]}: boundary {found} there at relative error {error:.3g}; "
        f"on its own tokens the nearest is {out.best} at {out.error:.3g}"
    )
    return SWAPPED, found, {"other": texts[j], "relative_error": error}, reason


def _without_residual(out: Judgement, stats: SampleStats, s: int, boundaries: list[Boundary], rule: Rule) -> Explanation:
    b, best, following = _two_least(torch.stack([line[s] for line in stats.branch]))
    if not (best <= rule.error and best <= BETTER * out.error and following >= rule.margin * best):
        return None
    reason = (
        f"is what layer {boundaries[b] - 1} adds, without the residual (relative error {best:.3g} to boundary {boundaries[b]} minus "
        f"{boundaries[b] - 1}, the next layer's {following:.3g})"
    )
    return "without residual", boundaries[b], {"relative_error": best, "next": following}, reason


def _other_basis(stats: SampleStats, s: int, boundaries: list[Boundary]) -> Explanation:
    """Equal norms per token and equal Gram matrices with another direction: a rotation; equal sorted values too: a permutation."""
    b, distance, following = _two_least(torch.stack([line[s] for line in stats.gram]))
    norm_distance = float((stats.ratio[b][s] - 1).abs().nanmedian())
    cosine = float(stats.cosine[b][s].nanmedian())
    if not (distance <= GRAM_DISTANCE and norm_distance <= NORM_DISTANCE and cosine <= GRAM_MIN_COSINE):
        return None
    found = boundaries[b] if following >= GRAM_MARGIN * max(distance, 1e-3) else None
    same, other = float(stats.order[b][s]), float(stats.order_other[b][s])
    kind = "permuted channels" if same <= BETTER * other else "rotated basis"
    numbers = {
        "gram_distance": distance, "gram_next": following, "norm_distance": norm_distance, "cosine": cosine,
        "sorted_values_error": same, "sorted_values_other_tokens": other,
    }  # fmt: skip
    reason = (
        f"boundary {'?' if found is None else found} in another basis ({kind}): equal norms (off by {norm_distance:.2g}) "
        f"and token Gram matrices (off by {distance:.2g}, next boundary {following:.2g}), but cosine {cosine:.2g}; "
        f"sorted values off by {same:.2g}, other tokens' by {other:.2g}"
    )
    return kind, found, numbers, reason


def _scaled(out: Judgement, stats: SampleStats, s: int, boundaries: list[Boundary], rule: Rule) -> Explanation:
    """The direction of a boundary, and one factor for all tokens (an embedding multiplier that nobody names)."""
    cosine = torch.stack([line[s] for line in stats.cosine])  # [B, R]
    b, best, following = _two_least((1 - cosine.clamp(-1, 1).pow(2)).sqrt().nanmedian(dim=-1).values)  # of the sine, [B]
    limit = rule.clear_error if following < torch.inf else rule.embedding_error
    if not (best <= limit and best <= BETTER * out.error and following >= rule.clear_margin * best):
        return None
    factor, spread = _centre(stats.ratio[b][s])
    if not spread <= NORM_DISTANCE < abs(factor - 1):
        return None
    reason = f"boundary {boundaries[b]} times {factor:.4g} (what is left of the direction {best:.3g}, next boundary {following:.3g}; relative error as it is {out.error:.3g})"
    return "scaled", boundaries[b], {"factor": factor, "factor_spread": spread, "sine": best, "next": following}, reason


def _two_least(distances: Tensor) -> tuple[int, float, float]:
    """Place of the least of [B] distances, the least, and the one after it; NaN counts as infinite."""
    values, order = distances.nan_to_num(torch.inf).sort(stable=True)
    return int(order[0]), float(values[0]), float(values[1]) if len(values) > 1 else float("inf")


def _centre(values: Tensor) -> tuple[float, float]:
    """Median, and the distance of the quartiles over it."""
    values = values[values.isfinite()]
    low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    return middle, (high - low) / max(abs(middle), 1e-30)
