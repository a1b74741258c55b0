"""What counts as right: the target's own choice after each position, from its last state, or the text's token where there is no lm_head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.replay.last_state import LastState, measure_last_state, wide
from eaglelab.target.head import target_argmax, target_choice
from eaglelab.target.norms import FinalNorm

if TYPE_CHECKING:
    from eaglelab.target.checkpoint import Checkpoint

LARGE_HEAD = 512 * 2**20
"""Bytes from which a head stays on disk and is read slice by slice."""


@dataclass(frozen=True)
class TargetHead:
    """The target's output head, for turning its last state into its choice of token."""

    lm_head: Tensor | Any
    """[V, H]: a tensor, or one on disk (`Checkpoint.lazy`)."""
    norm: FinalNorm | None = None
    """The final norm; None where it is not at hand."""
    scale: float = 1.0
    """What the target multiplies its logits with."""
    softcap: float | None = None
    """The bound that the target's tanh holds its logits to."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, norm: FinalNorm | None = None) -> TargetHead:
        """The head of a checkpoint, left on disk where it is large, with what its config does to the logits."""
        name, config = checkpoint.head_name, checkpoint.text_config
        rows, width = checkpoint.shape(name)
        lm_head = checkpoint.lazy(name) if 2 * rows * width >= LARGE_HEAD else checkpoint.tensor(name)
        scale = float(config.get("logit_scale") or 1.0) / float(config.get("logits_scaling") or 1.0)
        return cls(lm_head, norm, scale, config.get("final_logit_softcapping"))


@dataclass(frozen=True)
class Answers:
    """The right token after each position of one sample."""

    token: Tensor
    """[T] int64: what should follow position t; -1 where nobody said. With lm_head that is at positions that no trained token touches,
    without it at the last one: no text follows."""
    agrees: tuple[int, int]
    """(positions, of n) of the trained text at which the token is the text's own next token. (n, n) by definition without lm_head."""


class Judge:
    """Says what counts as right in each sample, once a sample, for every variant and every replay.

    A race asks for the beginning of a sample under the whole one's key, before it or after: the longest that was asked for is kept, and serves both.
    """

    def __init__(
        self,
        last: int | None = None,
        head: TargetHead | None = None,
        norm_last: bool | None = None,
        measure: Callable[[], LastState] | None = None,
    ) -> None:
        """last: the slot of the last state. Without it or without head, the text's token is what counts as right.
        norm_last: whether the final norm is applied to it; None: as `measure` says, by default measured on the first samples asked for."""
        self.last, self.head = last, head if last is not None else None
        self.norm_last, self._measure = norm_last, measure
        self._answers: dict[str, Answers] = {}
        self._logsumexp: dict[str, Tensor] = {}

    @property
    def judged_by(self) -> str:
        return "the text's token" if self.head is None else "the target's argmax"

    def answers(self, samples: list[Sample], device: str = "cpu") -> list[Answers]:
        """The right tokens of each sample. The head is read once for all samples that are new."""
        new = [s for s in samples if s.key not in self._answers or len(self._answers[s.key].token) < len(s.token_ids)]
        if self.head is None:
            self._answers |= {s.key: _text_answers(s) for s in new}
        elif new:
            asked = [touched_positions(s) for s in new]
            tokens = target_choice(self.states(new, asked, device), self.head.lm_head).cpu().split([len(a) for a in asked])
            for sample, positions, said in zip(new, asked, tokens, strict=True):
                token = torch.full_like(sample.token_ids, -1)
                token[positions] = said
                self._answers[sample.key] = Answers(token, _agreement(sample, token))
        return [self._answers[s.key] for s in samples]

    def logsumexp(self, samples: list[Sample], device: str = "cpu") -> dict[str, Tensor]:
        """[T] float32 of the target's logits by sample key, for probabilities; infinite (probabilities of 0) where no answer is asked for."""
        new = [s for s in samples if s.key not in self._logsumexp or len(self._logsumexp[s.key]) < len(s.token_ids)]
        if new:
            asked, head = [touched_positions(s) for s in new], self.head
            found = target_argmax(self.states(new, asked, device), head.lm_head, scale=head.scale, softcap=head.softcap)[1].cpu()
            for sample, positions, values in zip(new, asked, found.split([len(a) for a in asked]), strict=True):
                whole = torch.full((len(sample.token_ids),), torch.inf)
                whole[positions] = values
                self._logsumexp[sample.key] = whole
        return self._logsumexp

    def states(self, samples: list[Sample], positions: list[Tensor], device: str = "cpu") -> Tensor:
        """[R, H] the last states at some positions of each sample, one sample after the other, as lm_head wants them."""
        if self.norm_last is None:
            measured = self._measure() if self._measure else measure_last_state(samples[:4], self.last, self.head.norm, self.head.lm_head)
            self.norm_last = measured.normed is False and self.head.norm is not None
        states = torch.cat([wide(s.slots[self.last][at]) for s, at in zip(samples, positions, strict=True)]).to(device)
        if self.norm_last:
            for block in states.split(1024):  # the norm works in float32
                block.copy_(self.head.norm(block))
        return states


def _text_answers(sample: Sample) -> Answers:
    token = torch.cat([sample.token_ids[1:], sample.token_ids.new_tensor([-1])])
    n = int(trained_positions(sample)[1:].sum())
    return Answers(token, (n, n))


def _agreement(sample: Sample, token: Tensor) -> tuple[int, int]:
    """(trained positions at which the text is the target's choice, of n)."""
    says = trained_positions(sample)[1:]
    return int((token[:-1] == sample.token_ids[1:])[says].sum()), int(says.sum())


def touched_positions(sample: Sample) -> Tensor:
    """[n] int64: positions whose next token is asked for: those of the trained tokens (a drafted token is held against it) and those
    before them (what the target would have written in the text's place)."""
    trained = trained_positions(sample)
    before = torch.cat([trained[1:], trained.new_zeros(1)]) if len(trained) else trained
    return (trained | before).nonzero()[:, 0]


def trained_positions(sample: Sample) -> Tensor:
    """[T] bool: positions that the loss mask counts; all of them where the mask is unknown (the result says so)."""
    if sample.loss_mask is None:
        return torch.ones(len(sample.token_ids), dtype=torch.bool)
    return sample.loss_mask == 1
