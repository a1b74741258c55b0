"""The walk: the path that a greedy engine takes through text that the target itself wrote.

After prefill the engine holds the answer's first token. It drafts K tokens from the last prompt row, verifies, keeps the n that are
right plus the target's own next token, and goes on n + 1 rows later. Teacher-forced outcomes are enough, since everything before the
first wrong step is the true text. A mean over the walk leaves out the steps whose draft reaches past the end of an answer; for a
comparison with one engine's run step by step, `walk_to_end` goes on as far as the text decides.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eaglelab.dumps.mask import spans

NEAR_TIE = {torch.float32: 1e-4, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}
"""Two logits of a size around 10 that are nearer than this may change places between two programs that compute in this dtype. States
saved in half precision cannot tell them apart either."""


def walk_sample(rows: np.ndarray, counted: np.ndarray, right: np.ndarray, loss_mask: Tensor | None) -> tuple[int, ...] | None:
    """Accepted tokens of each verify step, over every answer of the sample. None where the mask is unknown. Arguments: `walk_passes`."""
    if loss_mask is None:
        return None
    return tuple(accepted for _, accepted in walk_passes(rows, counted, right, loss_mask))


def walk_passes(rows: np.ndarray, counted: np.ndarray, right: np.ndarray, loss_mask: Tensor) -> list[tuple[int, int]]:
    """(the row t from which it drafts, accepted tokens) of each verify step, over every answer of the sample.

    rows: [R] positions at which chains start; counted, right: [K, R] bool.
    """
    complete, place = counted.all(0), {int(t): i for i, t in enumerate(rows)}
    passes = []
    for first, end in spans(loss_mask):
        t = first - 1  # the last prompt row: its state goes with the answer's first token
        while t + 1 + len(right) < end and t in place and complete[place[t]]:  # the last drafted token is still the text
            n = leading(right[:, place[t]])
            passes.append((t, n))
            t += n + 1
    return passes


@dataclass(frozen=True)
class AnswerWalk:
    """The verify steps of one answer, as far as its text decides them."""

    accepted: tuple[int, ...]
    """Accepted tokens of each verify step, in order."""
    whole: int
    """Of these, the first ones: steps whose whole draft lies inside the text, so that any outcome could have been seen."""
    cut: bool
    """One more step reaches the end of the text with every token right so far: how much of it the engine counts, the text cannot say."""


def walk_answer(first: int, end: int, steps: int) -> Generator[tuple[int, int], int, AnswerWalk]:
    """Walk through the answer x[first:end]: yields (t, known) and is sent how many of the `known` tokens x[t+2], x[t+3], … the draft from
    row t has right before its first wrong one, where no more than `known` (at most `steps`) of them are text."""
    t, accepted, whole = first - 1, [], 0
    while (known := min(steps, end - t - 2)) > 0:
        n = yield t, known
        if n == known < steps:
            return AnswerWalk(tuple(accepted), whole, cut=True)
        accepted.append(n)
        whole += known == steps
        t += n + 1
    return AnswerWalk(tuple(accepted), whole, cut=False)


def walk_to_end(accepted_at: Callable[[int, int], int], first: int, end: int, steps: int) -> AnswerWalk:
    """`walk_answer` with its question put to a function of (t, known)."""
    walk, said = walk_answer(first, end, steps), None
    while True:
        try:
            said = accepted_at(*walk.send(said))
        except StopIteration as stop:
            return stop.value


def leading(right: np.ndarray) -> int:
    """How many entries of a bool array are True before the first False."""
    return int((~right).argmax()) if not right.all() else len(right)
