"""What counts as right: the target's own choice after each position, from its last state, or the text's token where there is no lm_head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.target.head import target_argmax
from eaglelab.target.norms import FinalNorm

PROBE_ROWS = 256  # rows that decide between "norm it first" and "as it is"


@dataclass(frozen=True)
class TargetHead:
    """The target's output head, for turning its last state into its choice of token."""

    lm_head: Tensor
    """[V, H]."""
    norm: FinalNorm | None = None
    """The final norm; None where it is not at hand."""


@dataclass(frozen=True)
class Answers:
    """The right token after each position of one sample."""

    token: Tensor
    """[T] int64: what should follow position t. Where there is no lm_head the last one is -1: no text follows."""
    logsumexp: Tensor | None
    """[T] float32 of the target's logits, for probabilities; None without lm_head."""
    agrees: tuple[int, int]
    """(positions, of n) of the trained text at which the token is the text's own next token. (n, n) by definition without lm_head."""


class Judge:
    """Says what counts as right in each sample, once a sample, for every variant and every replay."""

    def __init__(self, last: int | None = None, head: TargetHead | None = None) -> None:
        """last: the slot of the last state. Without it or without head, the text's token is what counts as right."""
        self.last, self.head = last, head if last is not None else None
        self.norm_last: bool | None = None
        """Whether the last state still needs the final norm: measured on the first samples that are asked for."""
        self._answers: dict[str, Answers] = {}

    @property
    def judged_by(self) -> str:
        return "the text's token" if self.head is None else "the target's argmax"

    def answers(self, samples: list[Sample], device: str = "cpu") -> list[Answers]:
        """The right tokens of each sample."""
        if self.head is not None and self.norm_last is None:
            self.norm_last, _ = last_state_needs_norm(samples[:4], self.last, self.head)
        for sample in samples:
            if sample.key not in self._answers:
                self._answers[sample.key] = self._answer(sample, device)
        return [self._answers[s.key] for s in samples]

    def states(self, sample: Sample, device: str = "cpu") -> Tensor:
        """[T, H] the last state as lm_head wants it."""
        states = sample.slots[self.last].to(device)
        return self.head.norm(states).to(states.dtype) if self.norm_last else states

    def _answer(self, sample: Sample, device: str) -> Answers:
        ids, says = sample.token_ids, trained_positions(sample)[1:]
        n = int(says.sum())
        if self.head is None:
            return Answers(torch.cat([ids[1:], ids.new_tensor([-1])]), None, (n, n))
        token, logsumexp = target_argmax(self.states(sample, device), self.head.lm_head)
        token = token.cpu()
        return Answers(token, logsumexp.cpu(), (int((token[:-1] == ids[1:])[says].sum()), n))


def trained_positions(sample: Sample) -> Tensor:
    """[T] bool: positions that the loss mask counts; all of them where the mask is unknown (the result says so)."""
    if sample.loss_mask is None:
        return torch.ones(len(sample.token_ids), dtype=torch.bool)
    return sample.loss_mask == 1


def last_state_needs_norm(samples: list[Sample], last: int, head: TargetHead) -> tuple[bool, dict[str, tuple[int, int]]]:
    """Whether the last state still needs the final norm, by trying both: which one makes the head say the text that follows.

    Returns the answer and the counts (agreeing, of n) of both. Without a norm the states are taken as they are.
    """
    counts = {"as it is": (0, 0), "normed": (0, 0)}
    if head.norm is None:
        return False, counts
    for sample in samples:
        positions = trained_positions(sample)[1:].nonzero()[:, 0][: PROBE_ROWS // max(1, len(samples)) + 1]
        states = sample.slots[last][positions]
        for name, rows in (("as it is", states), ("normed", head.norm(states))):
            token, _ = target_argmax(rows, head.lm_head)
            agree = int((token.cpu() == sample.token_ids[positions + 1]).sum())
            counts[name] = (counts[name][0] + agree, counts[name][1] + len(positions))
    return counts["normed"][0] > counts["as it is"][0], counts
