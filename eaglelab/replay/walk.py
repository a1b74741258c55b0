"""The walk: the path that a greedy engine takes through text that the target itself wrote.

After prefill the engine holds the answer's first token. It drafts K tokens from the last prompt row, verifies, keeps the n that are
right plus the target's own next token, and goes on n + 1 rows later. Teacher-forced outcomes are enough, since everything before the
first wrong step is the true text. The last step of an answer is left out: an engine cuts it at the end of the text.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from eaglelab.dumps.mask import spans


def walk_sample(rows: np.ndarray, counted: np.ndarray, right: np.ndarray, loss_mask: Tensor | None) -> tuple[int, ...] | None:
    """Accepted tokens of each verify step, over every answer of the sample. None where the mask is unknown.

    rows: [R] positions at which chains start; counted, right: [K, R] bool.
    """
    if loss_mask is None:
        return None
    complete, place = counted.all(0), {int(t): i for i, t in enumerate(rows)}
    accepted = []
    for first, end in spans(loss_mask):
        t = first - 1  # the last prompt row: its state goes with the answer's first token
        while t + 1 + len(right) < end and t in place and complete[place[t]]:  # the last drafted token is still the text
            wrong = ~right[:, place[t]]
            n = int(wrong.argmax()) if wrong.any() else len(wrong)
            accepted.append(n)
            t += n + 1
    return tuple(accepted)
