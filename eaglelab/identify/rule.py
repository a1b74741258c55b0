"""When a slot holds a boundary, in one sample: the rule with its numbers, and why they are what they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from eaglelab.identify.compare import MIN_ROWS, SampleStats
from eaglelab.wiring import FINAL, Boundary

ERROR_FLOOR = 5e-4
"""Errors below this count as this in a margin: a quarter of bfloat16's rounding, and more than a sketch's float16 loses."""


SWAPPED = "swapped rows"


@dataclass(frozen=True)
class Rule:
    """A slot holds the best boundary when its error is small AND the runner-up is well above it. Norms alone never decide.

    Two ways to pass. *Clear*: relative error at most `clear_error` and the runner-up `clear_margin` times further. Measured noise of
    another bf16 engine is 0.005 to 0.01, of fp8 about 0.03; neighbours in a 61-layer target differ by 0.05 to 0.10. *Consistent*: a
    quantised target can be off by more than its neighbours differ, but its noise does not point at them, so the error may be up to
    `error` and the margin down to `margin` when the best boundary is nearer than the runner-up in `wins` of the tokens. And the slot
    must not lie on the way to a neighbour (from the share `between` of the step on): that is a state inside the layer, such as after
    attention alone.

    When the forward stopped early, the last boundary looked at could be best because the true one comes later: there the slot must
    be as near as rounding (`edge_error`) and the runner-up `edge_margin` times further. With the embedding alone it must be the row
    itself (`embedding_error`: bf16 rounding is 0.002).

    In some layers a few channels are the same for all tokens and make any row look near. So the error must also be at most
    `tokens` of the error to the same boundary's rows of other tokens. `agree`: share of samples that must say the same.
    """

    clear_error: float = 0.10
    clear_margin: float = 2.0
    error: float = 0.30
    margin: float = 1.15
    wins: float = 0.90
    between: float = 0.15
    edge_error: float = 0.03
    edge_margin: float = 3.0
    embedding_error: float = 0.01
    tokens: float = 0.5
    agree: float = 0.90

    def loosened(self, dim: int | None) -> Rule:
        """For errors estimated through a projection to `dim` numbers: two standard deviations of the estimate, 1 + 2/sqrt(2 dim)."""
        if dim is None:
            return self
        slack = 1 + 2 / (2 * dim) ** 0.5
        names = ("clear_error", "clear_margin", "error", "margin", "edge_error", "edge_margin")
        return replace(self, **{name: getattr(self, name) * slack for name in names})


@dataclass
class Judgement:
    """One slot in one sample. `boundary` is the answer; `kind` and `found` say what else it is (boundary `found`, shifted, …)."""

    boundary: Boundary = None
    tested: bool = True
    best: Boundary = None
    error: float = float("nan")
    cosine: float = float("nan")
    ratio: float = float("nan")
    runner_up: Boundary = None
    runner_up_error: float = float("nan")
    margin: float = float("nan")
    wins: float = float("nan")
    rows: int = 0
    kind: str | None = None
    found: Boundary = None
    reason: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


def margin_of(error: float, runner_up_error: float) -> float:
    return runner_up_error / max(error, ERROR_FLOOR)


def judge(stats: SampleStats, s: int, boundaries: list[Boundary], complete: bool, rule: Rule) -> Judgement:
    """Apply the rule to slot `s` of one sample. `complete`: all boundaries were looked at, FINAL too."""
    error = torch.stack([line[s] for line in stats.error])  # [B, R]
    medians = error.nanmedian(dim=-1).values  # [B]
    rows = int(error.isfinite().sum(dim=-1).max())
    if rows < MIN_ROWS:
        return Judgement(tested=False, rows=rows, reason=f"only {rows} rows to compare, {MIN_ROWS} needed")
    order = medians.nan_to_num(torch.inf).argsort(stable=True).tolist()
    best = order[0]
    runner = order[1] if len(order) > 1 and medians[order[1]].isfinite() else None
    out = Judgement(
        best=boundaries[best],
        error=float(medians[best]),
        cosine=float(stats.cosine[best][s].nanmedian()),
        ratio=float(stats.ratio[best][s].nanmedian()),
        rows=rows,
    )
    if runner is not None:
        out.runner_up, out.runner_up_error = boundaries[runner], float(medians[runner])
        out.margin = margin_of(out.error, out.runner_up_error)
        both = error[[best, runner]].isfinite().all(dim=0)
        out.wins = float((error[best] < error[runner])[both].float().mean())
    if not medians.isfinite().sum() > 1:
        return _judge_embedding(out, rule)
    _decide(out, stats, s, best, runner, boundaries, complete, rule)
    return out


def _judge_embedding(out: Judgement, rule: Rule) -> Judgement:
    """Only one boundary could be looked at: the embedding. A slot is a copy of its rows or it is not."""
    if out.error <= rule.embedding_error:
        out.boundary = out.best
        out.reason = f"equals the embedding rows of its tokens (relative error {out.error:.4f})"
    else:
        out.reason = (
            f"not the embedding (relative error {out.error:.3g}, cosine {out.cosine:.3g}, norm ratio {out.ratio:.3g}); "
            "which boundary: needs a sketch or a forward"
        )
    return out


def _decide(
    out: Judgement, stats: SampleStats, s: int, best: int, runner: int, boundaries: list[Boundary], complete: bool, rule: Rule
) -> None:
    at_edge = not complete and best == len(boundaries) - 1
    clear = out.error <= rule.clear_error and out.margin >= rule.clear_margin
    consistent = out.error <= rule.error and out.margin >= rule.margin and out.wins >= rule.wins
    alpha = _toward_runner(stats, s, best, runner, boundaries)
    fit = f"relative error {out.error:.3g}; next is {out.runner_up} at {out.runner_up_error:.3g}, {out.margin:.3g} times further"
    if out.error > rule.error:
        out.kind = "no match"
        out.reason = (
            f"no boundary fits: the nearest is {out.best} at relative error {out.error:.3g} (at most {rule.error:.2g}), "
            f"cosine {out.cosine:.3g}, norm ratio {out.ratio:.3g}"
        )
    elif out.error > rule.tokens * (other := float(stats.other[best][s])):
        out.kind = "other tokens"
        out.reason = f"boundary {out.best} at other tokens is about as near (relative error {other:.3g}) as at the slot's own ({fit})"
    elif at_edge and not (out.error <= rule.edge_error and out.margin >= rule.edge_margin):
        out.kind = "edge"
        out.reason = f"the last boundary looked at fits best ({fit}); the true one may come later: look further than boundary {out.best}"
    elif rule.between <= alpha <= 1 - rule.between:
        out.kind = "in between"
        out.reason = (
            f"lies {alpha:.0%} of the way from boundary {out.best} to {out.runner_up}: a state inside the layer, or clipped values ({fit})"
        )
    elif clear or consistent:
        out.boundary = out.best
        out.reason = fit
    else:
        out.kind = "tie"
        out.reason = (
            f"boundaries {out.best} and {out.runner_up} fit about equally well ({fit}, nearer in {out.wins:.0%} of the tokens; "
            f"needed: {rule.clear_margin:.2g} times, or {rule.margin:.3g} times and {rule.wins:.0%})"
        )


def _toward_runner(stats: SampleStats, s: int, best: int, runner: int, boundaries: list[Boundary]) -> float:
    """How far the slot lies from the best boundary toward an adjacent runner-up, as a share of that step; 0 when not adjacent."""
    if FINAL in (boundaries[best], boundaries[runner]):
        return 0.0
    if runner == best - 1:
        share = stats.toward[best][s].nanmedian()
    elif runner == best + 1:
        share = 1 - stats.toward[runner][s].nanmedian()
    else:
        return 0.0
    return float(share.nan_to_num(0.0))
