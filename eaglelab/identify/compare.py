"""Slots against one boundary after the other. What is kept is small: numbers per token, never the states."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eaglelab.identify.rows import Rows, massive
from eaglelab.wiring import FINAL, Boundary

MIN_ROWS = 4
"""Fewer rows than this decide nothing."""


@dataclass
class BoundaryRows:
    """One boundary at the chosen rows of one sample, in the space of `Rows.states`; NaN where it is not known."""

    states: Tensor  # [R, D] float32
    norms: Tensor  # [R]
    gram: Tensor | None = None  # [G, G]
    order: Tensor | None = None  # [G, Q]


@dataclass
class BoundaryText:
    """One boundary at all rows of one text, projected: where rows are looked for that are not where they should be."""

    states: Tensor  # [T, dim]
    norms: Tensor  # [T]


@dataclass
class SampleStats:
    """What one sample said. B boundaries looked at, S slots, R rows, P probes, M texts; medians are over rows that count."""

    # rows looked for elsewhere in the same text, per probe the best over boundaries and positions
    own_error: Tensor  # [S, P]
    own_boundary: Tensor  # [S, P] index of the boundary
    own_offset: Tensor  # [S, P] the slot's row t is the boundary's row t + offset
    # rows of other texts at the same position, best over boundaries
    other_error: Tensor  # [S, M]
    other_boundary: Tensor  # [S, M]
    error: list[Tensor] = field(default_factory=list)  # B of [S, R], relative error, NaN where a row does not count
    cosine: list[Tensor] = field(default_factory=list)  # B of [S, R]
    ratio: list[Tensor] = field(default_factory=list)  # B of [S, R]
    toward: list[Tensor] = field(default_factory=list)  # B of [S, R], how far the slot lies from b toward b-1, 1 = there
    other: list[Tensor] = field(default_factory=list)  # B of [S], median relative error to the boundary at other tokens
    branch: list[Tensor] = field(default_factory=list)  # B of [S], median relative error to the branch without the residual
    gram: list[Tensor] = field(default_factory=list)  # B of [S], Gram matrices' distance over the boundary's spread
    order: list[Tensor] = field(default_factory=list)  # B of [S], order statistics' relative error
    order_other: list[Tensor] = field(default_factory=list)  # B of [S], the same against other tokens' rows
    norms: list[Tensor] = field(default_factory=list)  # B of [R], the boundary's own norm, NaN where it is not known
    massive: int = 0

    @classmethod
    def empty(cls, rows: Rows, texts: int) -> SampleStats:
        S, P = rows.probe_states.shape[:2]
        nowhere = torch.zeros(S, P, dtype=torch.int64)
        return cls(torch.full((S, P), torch.inf), nowhere, nowhere.clone(), torch.full((S, texts), torch.inf), nowhere.new_zeros(S, texts))

    def copy(self) -> SampleStats:
        """With lists and tensors of its own, as far as further boundaries change them."""
        own = {n: v.clone() if isinstance(v, Tensor) else list(v) if isinstance(v, list) else v for n, v in vars(self).items()}
        return SampleStats(**own)


class Comparison:
    """Takes boundaries in order, for all samples at once; `stats` and `boundaries` are the result."""

    def __init__(self, rows: list[Rows], text_ids: list[Tensor], own_text: list[int | None]) -> None:
        self.rows, self.own_text = rows, own_text
        self.boundaries: list[Boundary] = []
        self.stats = [SampleStats.empty(r, len(text_ids)) for r in rows]
        self._before: list[Tensor | None] = [None] * len(rows)
        self._swap_probes = [
            [_distinct_probes(r, ids, own == j) for j, ids in enumerate(text_ids)] for r, own in zip(rows, own_text, strict=True)
        ]

    def add(self, boundary: Boundary, at_rows: list[BoundaryRows], texts: list[BoundaryText]) -> None:
        """One boundary: `at_rows` one per sample, `texts` one per text."""
        self.boundaries.append(boundary)
        for i, here in enumerate(at_rows):
            self._compare(i, here, self._before[i] if boundary != FINAL else None)
            self._before[i] = here.states
            self._look_elsewhere(i, texts)

    def found(self) -> tuple[list[Boundary], list[SampleStats], list[Tensor | None]]:
        """What the boundaries so far came to, apart from what the next ones change: for `go_on`."""
        return list(self.boundaries), [stats.copy() for stats in self.stats], list(self._before)

    def go_on(self, found: tuple[list[Boundary], list[SampleStats], list[Tensor | None]]) -> None:
        """Stand where another comparison of the same rows and texts stood."""
        boundaries, stats, before = found
        self.boundaries, self.stats, self._before = list(boundaries), [s.copy() for s in stats], list(before)

    def _compare(self, i: int, here: BoundaryRows, before: Tensor | None) -> None:
        rows, stats = self.rows[i], self.stats[i]
        stats.norms.append(here.norms)
        left_out = massive(here.norms)[None] | massive(rows.norms)  # [S, R]
        stats.massive = max(stats.massive, int(left_out.any(dim=0).sum()))
        per_row = [_against(slot, norms, here, before) for slot, norms in zip(rows.states, rows.norms, strict=True)]
        for name in ("error", "cosine", "ratio", "toward"):
            value = torch.stack([row[name] for row in per_row])  # [S, R]
            getattr(stats, name).append(value.masked_fill(left_out, float("nan")))
        for name in ("other", "branch"):
            getattr(stats, name).append(torch.stack([row[name].nanmedian() for row in per_row]))  # [S]
        self._compare_shape(i, here, left_out)

    def _compare_shape(self, i: int, here: BoundaryRows, left_out: Tensor) -> None:
        """Gram matrices and order statistics, massive tokens left out."""
        rows, stats = self.rows[i], self.stats[i]
        results = [(float("nan"),) * 3] * rows.norms.shape[0]
        if here.gram is not None:
            results = [_shape(rows.gram[s], rows.order[s], here, ~left_out[s, rows.fixed]) for s in range(len(results))]
        for name, values in zip(("gram", "order", "order_other"), zip(*results, strict=True), strict=True):
            getattr(stats, name).append(torch.tensor(values))

    def _look_elsewhere(self, i: int, texts: list[BoundaryText]) -> None:
        rows, stats, b = self.rows[i], self.stats[i], len(self.boundaries) - 1
        own = self.own_text[i]
        if own is not None:
            error, offset = _nearest_row(rows, texts[own])
            better = error < stats.own_error
            stats.own_error[better], stats.own_offset[better], stats.own_boundary[better] = error[better], offset[better], b
        for j, text in enumerate(texts):
            probes = self._swap_probes[i][j]
            if len(probes) < MIN_ROWS:
                continue
            places = rows.positions[rows.probes[probes]]
            gap = (rows.probe_states[:, probes] - text.states[places]).norm(dim=-1) / text.norms[places]  # [S, P']
            error = gap.nanmedian(dim=-1).values.nan_to_num(torch.inf)
            better = error < stats.other_error[:, j]
            stats.other_error[better, j], stats.other_boundary[better, j] = error[better], b


def _distinct_probes(rows: Rows, ids: Tensor, own: bool) -> Tensor:
    """Probes at which another text has another token: there its rows cannot be taken for the sample's own."""
    places = rows.positions[rows.probes]  # [P]
    if own or not len(ids):
        return places[:0]
    inside = places < len(ids)
    return (inside & (rows.token_ids[places] != ids[places.clamp(max=len(ids) - 1)])).nonzero()[:, 0]


def _against(slot: Tensor, slot_norms: Tensor, here: BoundaryRows, before: Tensor | None) -> dict[str, Tensor]:
    """One slot [R, D] against one boundary [R, D], per row: [R] each. `before` is the boundary one layer earlier."""
    gap = slot - here.states
    out = {
        "error": gap.norm(dim=-1) / here.norms,
        "cosine": torch.nn.functional.cosine_similarity(slot, here.states, dim=-1),
        "ratio": slot_norms / here.norms,
        "other": (slot - here.states.roll(1, dims=0)).norm(dim=-1) / here.norms.roll(1),
    }
    nothing = torch.full_like(slot_norms, float("nan"))
    if before is None:
        return out | {"toward": nothing, "branch": nothing}
    branch = here.states - before  # [R, D] the layer's output without the residual
    length = branch.pow(2).sum(dim=-1)
    return out | {"toward": -(gap * branch).sum(dim=-1) / length, "branch": (slot - branch).norm(dim=-1) / length.sqrt()}


def _shape(slot_gram: Tensor, slot_order: Tensor, here: BoundaryRows, keep: Tensor) -> tuple[float, float, float]:
    """(Gram distance over the spread, order statistics' error at the same tokens, and at other tokens) of one slot."""
    keep = keep & slot_order.isfinite().all(dim=-1)
    if int(keep.sum()) < MIN_ROWS:
        return (float("nan"),) * 3
    a, b = slot_gram[keep][:, keep], here.gram[keep][:, keep]  # [G', G']
    off = ~torch.eye(len(a), dtype=torch.bool)
    distance = (a[off] - b[off]).pow(2).mean().sqrt() / b[off].std().clamp_min(1e-6)
    p, q = slot_order[keep], here.order[keep]  # [G', Q]
    length = q.norm(dim=-1).clamp_min(1e-30)
    same = ((p - q).norm(dim=-1) / length).median()
    other = ((p - q.roll(1, dims=0)).norm(dim=-1) / length.roll(1)).median()
    return float(distance), float(same), float(other)


def _nearest_row(rows: Rows, text: BoundaryText) -> tuple[Tensor, Tensor]:
    """Per probe the nearest row of the text: relative error [S, P] and offset [S, P]. Among equals the smallest offset."""
    places = rows.positions[rows.probes]  # [P]
    gap = torch.cdist(rows.probe_states.nan_to_num(0.0), text.states.expand(rows.probe_states.shape[0], -1, -1))  # [S, P, T]
    error = gap / text.norms.clamp_min(1e-30)
    offset = torch.arange(len(text.states))[None] - places[:, None]  # [P, T]
    # whole percents decide first, so that rounding cannot prefer a far row of the same token
    rank = (error * 100).floor().double() * 2 * len(text.states) + offset.abs()
    best = rank.argmin(dim=-1)  # [S, P]
    found = error.gather(-1, best[..., None])[..., 0]
    found = found.masked_fill(rows.probe_states.isnan().any(dim=-1), torch.inf)
    return found, offset.expand(len(error), -1, -1).gather(-1, best[..., None])[..., 0]
