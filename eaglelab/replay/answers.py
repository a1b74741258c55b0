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


def answers_of(sample: Sample, last: int | None, head: TargetHead | None, norm_last: bool, device: str = "cpu") -> Answers:
    """The right tokens of one sample. last: the slot of the last state. norm_last: its states still need the final norm."""
    ids, trained = sample.token_ids, trained_positions(sample)
    if head is None or last is None:
        token = torch.cat([ids[1:], ids.new_tensor([-1])])
        n = int(trained[1:].sum())
        return Answers(token, None, (n, n))
    states = sample.slots[last].to(device)
    if norm_last:
        states = head.norm(states).to(states.dtype)
    token, logsumexp = target_argmax(states, head.lm_head)
    token = token.cpu()
    says = trained[1:]
    return Answers(token, logsumexp.cpu(), (int((token[:-1] == ids[1:])[says].sum()), int(says.sum())))


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
