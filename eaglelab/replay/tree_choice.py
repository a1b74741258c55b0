"""Which nodes a draft tree has, by SGLang's rule (0.5.23, speculative/spec_utils.py:417-486, eagle_utils.py:94-128).

A tree grows by one depth a step. At depth 1 its `topk` likeliest tokens are the *lanes*; each later step drafts from every lane, scores
its `topk` likeliest tokens by the product of the probabilities along their path, and the best `topk` of these topk * topk become the
lanes. All tokens ever scored are *candidates*; the best num_draft_tokens - 1 of them, whatever their depth, are the tree.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_tree(steps: int, topk: int, num_draft_tokens: int | None) -> int:
    """num_draft_tokens of a tree, where it is None that of a chain. Raises ValueError for a tree that cannot be: with the numbers."""
    if min(steps, topk) < 1:
        raise ValueError(f"a tree needs 1 step and 1 token a step at least, got steps {steps} and topk {topk}")
    if topk == 1:  # SGLang overrides what is asked for (arg_groups/speculative_hook.py:1256)
        return steps + 1
    if num_draft_tokens is None:
        raise ValueError(f"a tree of topk {topk} needs num_draft_tokens: the nodes of a verify pass, the root included")
    pool = topk + (steps - 1) * topk * topk
    if not 2 <= num_draft_tokens <= pool + 1:
        raise ValueError(
            f"num_draft_tokens is {num_draft_tokens}, expected 2 to {pool + 1}: {steps} steps of topk {topk} score topk + (steps - 1) * topk^2 = "
            f"{pool} candidates, and the root is one more. SGLang fails to choose more nodes than there are"
        )
    return num_draft_tokens


class Candidates:
    """The candidates of W trees that grow together."""

    def __init__(self, near: float) -> None:
        """near: two scores whose ratio is nearer to 1 than this may change places in another program."""
        self.near = near
        self.scores: list[Tensor] = []
        """[W, candidates of a depth] each, float32."""
        self.tokens: list[Tensor] = []
        self.parents: list[Tensor] = []
        """Each candidate's parent, by its place among all candidates; -1 is the root."""
        self.near_tie: Tensor | None = None
        """[W] bool: somewhere a choice hung on a near-tie."""
        self._lanes: tuple[Tensor, Tensor] | None = None  # their places among the candidates, and their scores, [W, topk] each

    def grow(self, p: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """One more depth. p: [W, lanes, topk + 1] float32, the largest probabilities after each lane, in descending order (one lane at the
        root; the last one shows how near the choice was and is absent where the vocabulary has no more); tokens: [W, lanes, topk].
        Returns the new lanes: their tokens and the lanes that they come from, [W, topk] int64 each."""
        trees, lanes, topk = tokens.shape
        place = sum(s.shape[1] for s in self.scores)
        if self._lanes is None:
            self.near_tie = self._close(p[:, 0])
            scores, chosen = p[:, 0, :topk], torch.arange(topk, device=p.device).expand(trees, -1)
            parents = chosen.new_full((trees, topk), -1)
            best = scores
        else:
            at, before = self._lanes
            parents = at.repeat_interleave(topk, dim=1)  # [W, topk * topk]
            scores = (before[..., None] * p[..., :topk]).flatten(1)
            best, chosen = scores.topk(topk, dim=-1)
            ordered = scores.topk(min(topk + 1, scores.shape[1]), dim=-1).values
            self.near_tie = self.near_tie | self._close(ordered) | self._close(p[..., topk - 1 :]).any(-1)
        self.scores.append(scores)
        self.tokens.append(tokens.flatten(1))
        self.parents.append(parents)
        self._lanes = place + chosen, best
        return self.tokens[-1].gather(1, chosen), chosen // topk if lanes > 1 else torch.zeros_like(chosen)

    def tree(self, num_draft_tokens: int) -> Tensor:
        """[W, candidates] bool: the nodes that are verified."""
        scores = torch.cat(self.scores, dim=1)
        ordered, place = scores.topk(min(num_draft_tokens, scores.shape[1]), dim=-1)
        self.near_tie = self.near_tie | self._close(ordered[:, num_draft_tokens - 2 :])
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, place[:, : num_draft_tokens - 1], True)

    def accepted(self, num_draft_tokens: int, text: Tensor) -> Tensor:
        """[W] int64: nodes on the path from the root that says the text. text: [W, K] int64, the true tokens; -1 where none is known."""
        nodes, tokens, parents = self.tree(num_draft_tokens), torch.cat(self.tokens, dim=1), torch.cat(self.parents, dim=1)
        at = text.new_full((len(text),), -1)
        n, going = torch.zeros_like(at), torch.ones_like(at, dtype=torch.bool)
        for k in range(text.shape[1]):
            child = nodes & (parents == at[:, None]) & (tokens == text[:, k, None])  # [W, candidates]
            going = going & child.any(1) & (text[:, k] >= 0)
            at = torch.where(going, child.int().argmax(1), at)
            n = n + going
        return n

    def _close(self, ordered: Tensor) -> Tensor:
        """[..., n] in descending order -> [...] bool: whether two neighbours are as good as equal."""
        return (ordered[..., 1:] > ordered[..., :-1] * (1 - self.near)).any(-1)
