"""One sample's text, place by place: what a step drafted there, the walk through it, and what both models hold likeliest at one row.

At step k the chain of row t is fed the text's token x[t+1+k] and drafts the token at place t+2+k. It is teacher-forced: what it says is
what a server's chain says as long as its own earlier tokens are the text's (`Strip.own_fed`).

A text of T tokens has T + 1 places: at place T nothing stands any more, and the target still has a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eaglelab.drafter.chains import draft_chains
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample
from eaglelab.dumps.mask import spans
from eaglelab.replay.answers import Answers, Judge
from eaglelab.replay.run import FusedBatch, SampleOutcome, check_variant, check_width, draft_to_target
from eaglelab.replay.variants import Variant
from eaglelab.replay.walk import NEAR_TIE, walk_passes
from eaglelab.target.head import adjust

TOP = 5
"""Candidates of each model that are shown."""
BLOCK_ROWS = 1024
"""Rows at most whose draft states are kept: K x 1024 x H numbers, however long the sample is."""
LEAST_ROWS = 64
"""Rows drafted at a time in a short sample, a quarter of it in a longer one: the first answer comes soon, and few are drafted anew."""
HEAD_ROWS = 4096
"""Rows of the target's lm_head that are widened to float32 at a time."""


class Mark(IntEnum):
    """What a drafted token was."""

    NOT_COUNTED = 0
    """Nothing was drafted for this place, or the loss mask leaves it out."""
    RIGHT = 1
    WRONG = 2
    OUTSIDE = 3
    """Wrong, since the right token is not in the draft vocabulary."""
    OWN = 4
    """In the walk: the target's own token, for which nothing is drafted: an answer's first, and the bonus after a whole draft."""


class Pass(NamedTuple):
    """One verify pass of the walk."""

    row: int
    """The row t from which it drafts; its tokens stand at t + 2 .. t + 2 + accepted, the target's own among them last."""
    accepted: int


@dataclass(frozen=True)
class Line:
    """What happened at each of the T + 1 places, at one step or along the walk."""

    mark: np.ndarray
    """[T + 1] int8: `Mark`."""
    column: np.ndarray
    """[T + 1] int: the place in the outcome's rows of the chain that drafted here; -1 where none did."""
    step: np.ndarray
    """[T + 1] int: the step of that chain; -1 where none did."""
    passes: tuple[Pass, ...] = ()
    """Of the walk."""

    def count(self, mark: Mark) -> int:
        return int((self.mark[:-1] == mark).sum() if mark == Mark.NOT_COUNTED else (self.mark == mark).sum())


@dataclass(frozen=True)
class Strip:
    """One sample under one feed."""

    token_ids: np.ndarray
    """[T] int64."""
    wanted: np.ndarray
    """[K, R] int64: the right token's id; -1 where nobody said."""
    outcome: SampleOutcome
    passes: tuple[Pass, ...] | None
    """The walk's, None where the mask is unknown."""
    first_tokens: tuple[int, ...] = ()
    """The place of each answer's first token; empty where the mask is unknown."""

    @classmethod
    def of(cls, outcome: SampleOutcome, sample: Sample, answer: Answers) -> Strip:
        """outcome, answer: those of this sample. Raises ValueError where they are not."""
        ids, rows = sample.token_ids, outcome.rows
        if outcome.key != sample.key or len(answer.token) != len(ids):
            raise ValueError(f"an outcome of {outcome.key} with {len(answer.token)} answers, beside {sample.key} of {len(ids)} tokens")
        fed = rows + 1 + np.arange(len(outcome.right))[:, None]  # [K, R]
        wanted = answer.token.numpy()[fed.clip(max=len(ids) - 1)] if len(ids) else fed
        mask = sample.loss_mask
        passes = None if mask is None else tuple(Pass(*p) for p in walk_passes(rows, outcome.counted, outcome.right, mask))
        firsts = () if mask is None else tuple(first for first, _ in spans(mask))
        return cls(ids.numpy(), np.where(fed < len(ids), wanted, -1), outcome, passes, firsts)

    @property
    def steps(self) -> int:
        return len(self.outcome.right)

    @cached_property
    def marks(self) -> np.ndarray:
        """[K, R] int8: the `Mark` of each drafted token."""
        o = self.outcome
        wrong = np.where(o.outside, Mark.OUTSIDE, Mark.WRONG)
        return np.where(~o.counted, Mark.NOT_COUNTED, np.where(o.right, Mark.RIGHT, wrong)).astype(np.int8)

    def at_step(self, step: int) -> Line:
        """Every row's token at one step."""
        line = self._blank()
        columns = np.flatnonzero(self.outcome.counted[step])
        places = self.outcome.rows[columns] + 2 + step
        line.mark[places], line.column[places], line.step[places] = self.marks[step, columns], columns, step
        return line

    def along_walk(self) -> Line:
        """Each token by the verify pass that gives it. Raises ValueError where the mask is unknown."""
        if self.passes is None:
            raise ValueError(f"{self.outcome.key}: no loss mask says where answers begin, and a walk needs that")
        line = self._blank(self.passes)
        line.mark[list(self.first_tokens)] = Mark.OWN
        for row, accepted in self.passes:
            column = self.column(row)
            for step in range(accepted + 1):
                at = row + 2 + step
                drafted = step < self.steps
                line.mark[at] = self.marks[step, column] if drafted else Mark.OWN
                line.column[at], line.step[at] = (column, step) if drafted else (-1, -1)
        return line

    def _blank(self, passes: tuple[Pass, ...] = ()) -> Line:
        size = len(self.token_ids) + 1
        return Line(np.zeros(size, np.int8), np.full(size, -1), np.full(size, -1), passes)

    def column(self, row: int) -> int | None:
        """A row's place in the outcome's rows; None where nothing counts at it."""
        at = int(np.searchsorted(self.outcome.rows, row))
        return at if at < len(self.outcome.rows) and self.outcome.rows[at] == row else None

    def rejections(self, step: int) -> np.ndarray:
        """[n] rows whose token at one step is wrong."""
        return self.outcome.rows[self.outcome.counted[step] & ~self.outcome.right[step]]

    def walk_rejections(self) -> np.ndarray:
        """[n] rows of the verify passes that end at a wrong token."""
        return np.array([p.row for p in self.passes or () if p.accepted < self.steps], dtype=np.int64)

    def own_fed(self, row: int, step: int) -> int:
        """How many of steps 0..step-1 of a chain drafted the text's own token: `step` of them, and what the chain says at `step` is what a
        server's says; fewer, and a server's chain has gone another way since."""
        column, fed = self.column(row), self.token_ids[row + 2 : row + 2 + step]
        same = self.outcome.drafted[: len(fed), column] == fed
        return int(np.logical_and.accumulate(same).sum())


@dataclass(frozen=True)
class Choices:
    """What one model holds likeliest at one place."""

    ids: np.ndarray
    """[n] int64, the target's ids, the likeliest first."""
    probability: np.ndarray
    """[n] float32."""
    ranks: dict[int, int]
    """Of the tokens asked for: 1 is the likeliest. Without those that the model cannot say."""
    probabilities: dict[int, float]
    """Of the same tokens."""


class RowDrafts:
    """The drafter's choices at single rows of one sample under one variant. Draft states are computed once a block of rows."""

    def __init__(
        self,
        drafter: Drafter,
        sample: Sample,
        embed: EmbeddingRows,
        variant: Variant,
        *,
        steps: int,
        target_embed: EmbeddingRows | None = None,
    ) -> None:
        """Arguments: `eaglelab.replay.replay`. Raises ValueError where variant or rows do not fit the drafter."""
        check_variant(variant, drafter, [sample])
        check_width(drafter, embed)
        self.drafter, self.sample, self.variant, self.steps = drafter, sample, variant, steps
        weight = drafter.fc.weight
        self.target_table = (target_embed or embed).to(weight.device, weight.dtype)
        given = variant.flags is not None and variant.flags.target_embedding
        self.table = self.target_table if given else embed.to(weight.device, weight.dtype)
        self.to_target = draft_to_target(drafter, variant)  # [Vd]
        self._rows = min(BLOCK_ROWS, max(LEAST_ROWS, len(sample.token_ids) // 4))
        self._block, self._spoken = -1, torch.empty(0)

    def choices(self, row: int, step: int, first: int = -1, asked: Iterable[int] = (), count: int = TOP) -> Choices:
        """What the chain of a row says at one step. first: the token that the replay drafted, which goes first among equals; asked: tokens
        whose rank is wanted."""
        logits = self._logits(row, step)  # [Vd]
        place = {int(t): i for i, t in reversed(list(enumerate(self.to_target.tolist()))) if t >= 0}
        near = NEAR_TIE.get(self.drafter.lm_head.weight.dtype, 0.0)
        found = ranked(logits, place.get(first), near, {t: place[t] for t in asked if t in place}, count)
        return Choices(self.to_target.numpy()[found.ids], found.probability, found.ranks, found.probabilities)

    @torch.no_grad()
    def _logits(self, row: int, step: int) -> Tensor:
        """[Vd] float32, on the CPU."""
        if row // self._rows != self._block:
            self._block, self._spoken = row // self._rows, self._draft(row // self._rows)
        state = self._spoken[step, row % self._rows]  # [H]
        return self.drafter.lm_head(state[None])[0].float().cpu()

    @torch.no_grad()
    def _draft(self, block: int) -> Tensor:
        """[K, R, H] what lm_head reads, for the rows of one block."""
        weight = self.drafter.fc.weight
        batch = FusedBatch(self.drafter, [self.sample], self.target_table, weight.device, weight.dtype)
        last = min((block + 1) * self._rows, len(self.sample.token_ids) - 1)
        rows = torch.arange(block * self._rows, last, device=weight.device)
        chains = draft_chains(
            self.drafter,
            batch.packed,
            batch.fuse(self.variant)[0],
            self.table,
            rows,
            self.steps,
            token_shift=self.variant.token_shift,
            flags=self.variant.flags,
        )
        return torch.stack([output.spoken for output in chains])


def target_choices(judge: Judge, sample: Sample, place: int, asked: Iterable[int] = (), count: int = TOP) -> Choices:
    """What the target itself would write at a place, from its last state one position before. Raises ValueError without its lm_head."""
    if judge.head is None:
        raise ValueError(f"{sample.key}: the target's choices need its lm_head, and this replay is judged by {judge.judged_by}")
    logits = head_logits(judge, sample, place - 1)  # [V]
    first = int(judge.answers([sample])[0].token[place - 1])
    asked = {t: t for t in asked if 0 <= t < len(logits)}
    return ranked(logits, first if first >= 0 else None, NEAR_TIE[torch.float32], asked, count)


@torch.no_grad()
def head_logits(judge: Judge, sample: Sample, position: int) -> Tensor:
    """[V] float32, the target's logits after one position. Of a head on disk each row is read once."""
    head = judge.head
    state = judge.states([sample], [torch.tensor([position])])[0].float()  # [H]
    parts = [_widened(head.lm_head, first) @ state.to("cpu") for first in range(0, head.lm_head.shape[0], HEAD_ROWS)]
    return adjust(torch.cat(parts), head.scale, head.softcap)


def _widened(lm_head: Tensor | Any, first: int) -> Tensor:
    """[n, H] float32 rows of a head."""
    return lm_head[first : first + HEAD_ROWS].to("cpu", torch.float32)


def ranked(logits: Tensor, first: int | None, near: float, asked: dict[int, int], count: int) -> Choices:
    """The `count` largest of logits [n] with their probabilities, and the ranks of some.

    first: an index that goes first where it is as good as the largest, up to `near`: another order of summing may turn a tie round.
    asked: name -> index.
    """
    order = logits.argsort(descending=True, stable=True)
    if first is not None and first != int(order[0]) and logits[first] >= logits[order[0]] - near:
        order = torch.cat([order.new_tensor([first]), order[order != first]])
    probability, rank = logits.softmax(-1), torch.empty_like(order)
    rank[order] = torch.arange(1, len(order) + 1)
    return Choices(
        order[:count].numpy(),
        probability[order[:count]].numpy(),
        {name: int(rank[i]) for name, i in asked.items()},
        {name: float(probability[i]) for name, i in asked.items()},
    )


def window(length: int, around: int, size: int) -> tuple[int, int]:
    """(first, stop) of at most `size` of `length` places with `around` among them, as near its middle as the ends allow."""
    first = max(0, min(around - size // 2, length - size))
    return first, min(length, first + size)


def step_after(rows: Sequence[int] | np.ndarray, row: int, direction: int) -> tuple[int | None, bool]:
    """(the next of ascending `rows` after `row`, or before it for a direction of -1; whether that went round). None where there are none."""
    if not len(rows):
        return None, False
    ahead = [r for r in rows if (r > row if direction > 0 else r < row)]
    if ahead:
        return int(ahead[0] if direction > 0 else ahead[-1]), False
    return int(rows[0] if direction > 0 else rows[-1]), True
