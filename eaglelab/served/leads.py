"""How many drafted tokens are right from each row of the answers, later steps drafted only where the earlier ones are right.

What is not right so far is never looked at by a walk: half of the work of a replay, and for a drafter that is fed the wrong states nearly all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from eaglelab.drafter.chains import Embed, Packed, draft_chains
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample
from eaglelab.dumps.mask import spans
from eaglelab.replay.walk import AnswerWalk, walk_to_end


@dataclass(frozen=True)
class AnswerRows:
    """The rows of packed samples from which a token of an answer is drafted."""

    rows: Tensor
    """[R] int64, ascending."""
    wanted: Tensor
    """[K, R] int64: what is right at each step; -1 beyond the answer."""
    answers: tuple[tuple[tuple[int, int], ...], ...]
    """(first, end) of each answer that has a row, sample by sample."""
    starts: tuple[int, ...]
    """Row at which each sample starts."""

    @classmethod
    def of(cls, samples: Sequence[Sample], wanted: Sequence[Tensor], starts: Sequence[int], steps: int) -> AnswerRows:
        """wanted: [T] int64 a sample, what should follow each position."""
        rows, right, answers = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(steps, 0, dtype=torch.int64)], []
        for sample, token, start in zip(samples, wanted, starts, strict=False):
            ends = tuple((max(1, first), end) for first, end in spans(answer_mask(sample)) if end - max(1, first) > 1)
            answers.append(ends)
            for first, end in ends:
                mine = torch.arange(first - 1, end - 2)
                rows.append(mine + start)
                later = mine + 1 + torch.arange(steps)[:, None]  # [K, r]: the position whose choice the drafted token should be
                right.append(torch.where(later < end - 1, token[later.clamp(max=len(token) - 1)], -1))
        return cls(torch.cat(rows), torch.cat(right, 1), tuple(answers), tuple(starts))

    @cached_property
    def place(self) -> dict[int, int]:
        """Packed row -> its place among `rows`."""
        return {int(row): i for i, row in enumerate(self.rows)}

    def of_sample(self, i: int, lead: np.ndarray) -> dict[int, int]:
        """Position in sample i -> how many drafted tokens are right from it. lead: [R]."""
        positions = [t for first, end in self.answers[i] for t in range(first - 1, end - 2)]
        return {t: int(lead[self.place[t + self.starts[i]]]) for t in positions}

    def walks(self, i: int, lead: np.ndarray) -> list[AnswerWalk]:
        """The walk through each answer of sample i."""
        known, steps = self.of_sample(i, lead), len(self.wanted)
        return [walk_to_end(lambda t, most: min(most, known[t]), first, end, steps) for first, end in self.answers[i]]


def answer_mask(sample: Sample) -> Tensor:
    """The loss mask [T]; all but the first token where it is unknown."""
    return sample.loss_mask if sample.loss_mask is not None else (torch.arange(len(sample.token_ids)) > 0).long()


@torch.no_grad()
def leads(
    drafter: Drafter,
    packed: Packed,
    fused: Tensor,
    embed: Embed,
    at: AnswerRows,
    ids: Tensor,
    *,
    first: Tensor | None = None,
    least: float = 0.0,
    **options,
) -> tuple[np.ndarray, Tensor]:
    """([R] drafted tokens that are right before the first wrong one, [R] int64 draft ids of step 0).

    fused: [M, H]; ids: [Vd] int64, the target's id of each draft id. first: the draft ids of step 0, where they are known. least: share of rows
    with a right first token from which on the next ones are drafted. options: `draft_chains`'.
    """
    steps, rows = at.wanted.shape
    lead, going = np.zeros(rows, dtype=np.int64), torch.arange(rows)
    if not rows:
        return lead, at.rows
    if first is not None:
        right = ids[first] == at.wanted[0]
        if int(right.sum()) <= least * rows:
            return right.numpy().astype(np.int64), first
    chains, stay = draft_chains(drafter, packed, fused, embed, at.rows.to(fused.device), steps, **options), None
    for k in range(steps):
        blocks = chains.send(stay).blocks()
        drafted = torch.cat([logits.max(-1)[1].cpu() for _, logits in blocks])  # [r]; argmax is four times as slow in bfloat16
        first = drafted if k == 0 else first
        right = (ids[drafted] == at.wanted[k, going]).nonzero()[:, 0]
        going, stay = going[right], right.to(fused.device)
        lead[going.numpy()] += 1
        if len(going) <= (0 if k else least * rows):
            break
    return lead, first
