"""The replay of draft trees (topk > 1), as SGLang drafts them: every walk takes its verify steps in turn, all walks side by side.

A branch is fed its own tokens, so the all-at-once pass serves its first step only. Then each lane (`tree_choice`) is one row: its token,
the state of the lane that it comes from, and position t + step. Its attention sees the true text up to row t and the *lane's own* earlier
rows: SGLang gives each lane cache slots of its own and leaves them where they are when a lane goes on from another one
(cache_locs.py:263-275, intel_amx_backend.py:462-470 in 0.5.23), so that a branch may see keys of another branch: of the example's 48
recorded requests all are as predicted so, 45 if each branch saw its own ancestors. What is accepted is written again from the target's
states: a step starts as a chain's does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eaglelab.acceptance import Walk
from eaglelab.cache import Unfinished
from eaglelab.drafter.attention import chain_attention
from eaglelab.drafter.chains import Cache, first_step
from eaglelab.drafter.embedding import EmbeddingError, EmbeddingRows
from eaglelab.drafter.model import Drafter, Flags, StepOutput
from eaglelab.dumps import Sample
from eaglelab.dumps.mask import spans
from eaglelab.progress import counting
from eaglelab.replay.answers import Judge
from eaglelab.replay.run import BATCH_ROWS, FusedBatch, batches, check_variant, draft_to_target, pieces_of, rows_that_fit
from eaglelab.replay.tree_choice import Candidates, check_tree
from eaglelab.replay.variants import Variant
from eaglelab.replay.walk import NEAR_TIE, AnswerWalk, walk_answer


@dataclass(frozen=True)
class TreeOutcome:
    """The walk through one sample's answers."""

    key: str
    walks: tuple[AnswerWalk, ...] | None
    """One an answer; None where the mask is unknown."""
    near_ties: int
    """Verify steps in which a choice of nodes or lanes hung on a near-tie: another program may choose otherwise."""

    @property
    def accepted(self) -> tuple[int, ...] | None:
        """Accepted tokens of each verify step whose whole draft lies inside the text, as `SampleOutcome.walk` has them."""
        return None if self.walks is None else tuple(n for w in self.walks for n in w.accepted[: w.whole])


@dataclass(frozen=True)
class TreeReplay:
    """One variant over all samples."""

    variant: Variant
    steps: int
    topk: int
    num_draft_tokens: int
    """Nodes of a verify pass, the root included."""
    outcomes: tuple[TreeOutcome, ...]
    judged_by: str

    @property
    def walk(self) -> Walk | None:
        """None where a mask is unknown."""
        if any(o.accepted is None for o in self.outcomes):
            return None
        return sum((Walk(len(o.accepted), sum(o.accepted)) for o in self.outcomes), Walk(0, 0))

    @property
    def histogram(self) -> tuple[int, ...] | None:
        """K + 1 ints: verify steps of the walk that accept i tokens."""
        if self.walk is None:
            return None
        accepted = [n for o in self.outcomes for n in o.accepted]
        return tuple(accepted.count(i) for i in range(self.steps + 1))

    @property
    def accept_length(self) -> float | None:
        return None if self.walk is None else self.walk.accept_length

    @property
    def near_ties(self) -> int:
        return sum(o.near_ties for o in self.outcomes)

    @property
    def summary(self) -> str:
        """In one line."""
        what = f"trees of topk {self.topk}, {self.num_draft_tokens} nodes"
        if self.accept_length is None:
            return f"{what}: no answer long enough to walk through"
        ties = f", {self.near_ties:,} of them with a near-tie of nodes" if self.near_ties else ""
        return f"{what}: walk {self.accept_length:.3f} over {self.walk.verify_steps:,} verify steps{ties}; accepted 0 to {self.steps}: {list(self.histogram)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "variant": self.variant.name,
            "steps": self.steps,
            "topk": self.topk,
            "num_draft_tokens": self.num_draft_tokens,
            "judged_by": self.judged_by,
            "walk": self.walk.to_json() if self.walk else None,
            "histogram": self.histogram,
            "near_ties": self.near_ties,
        }


@torch.no_grad()
def tree_replay(
    drafter: Drafter,
    samples: Sequence[Sample],
    embed: EmbeddingRows,
    variant: Variant,
    judge: Judge | None = None,
    *,
    steps: int = 3,
    topk: int,
    num_draft_tokens: int | None = None,
    target_embed: EmbeddingRows | None = None,
    unfinished: Unfinished | None = None,
) -> TreeReplay:
    """Walk through every answer with trees of `num_draft_tokens` nodes, the root included (of a chain, topk 1: steps + 1).

    judge: says what counts as right; by default the text's token does. Where a head's choice is not the text's token, the walk goes on by
    the text, and a branch by what it drafted. embed: also the rows of the tokens that are drafted, of the whole draft vocabulary to be safe.
    target_embed, unfinished: as for `replay`.
    Raises ValueError for a tree that cannot be or a variant that does not fit, EmbeddingError for a token without a row.
    """
    nodes = check_tree(steps, topk, num_draft_tokens)
    if topk > drafter.config.draft_vocab_size:
        raise ValueError(f"topk is {topk}, more than the {drafter.config.draft_vocab_size} tokens of the draft vocabulary")
    if variant.token_shift:
        raise ValueError(f"{variant.name}: a tree is fed its own tokens, which cannot be shifted")
    check_variant(variant, drafter, samples)
    if embed.width != drafter.config.hidden_size:
        raise EmbeddingError(f"{embed.source}: rows are {embed.width} wide, the drafter's hidden_size is {drafter.config.hidden_size}")
    judge, device, dtype = judge or Judge(), drafter.fc.weight.device, drafter.fc.weight.dtype
    table = embed.to(device, dtype)
    target_table = table if target_embed is None else target_embed.to(device, dtype)
    judge.answers(list(samples), str(device))
    groups = list(batches(samples, min(BATCH_ROWS, rows_that_fit(drafter, [variant], 1))))
    told = (variant, steps, topk, nodes, judge.judged_by, judge.last, judge.norm_last)
    done = pieces_of(unfinished, "trees", drafter, samples, *told)
    todo = [i for i in range(len(groups)) if i not in done]
    with counting(len(todo), "draft trees", said=f"{len(samples):,} samples") as step:
        for number in todo:
            batch = FusedBatch(drafter, groups[number], target_table, device, dtype)
            rows = target_table if variant.flags is not None and variant.flags.target_embedding else table
            trees = _Trees(drafter, batch, variant, rows, steps, topk, nodes)
            done[number] = trees.outcomes(groups[number], [a.token for a in judge.answers(groups[number])])
            step()
    outcomes = tuple(o for number in range(len(groups)) for o in done[number])
    done.end()
    return TreeReplay(variant, steps, topk, nodes, outcomes, judge.judged_by)


@dataclass
class _Walker:
    """One answer that is walked through."""

    sample: int
    going: Generator[tuple[int, int], int, AnswerWalk]
    row: int = 0
    """Where the next tree starts, in its sample."""
    known: int = 0
    """Tokens of the text that it is held against."""
    walk: AnswerWalk | None = None
    near_ties: int = 0

    def go_on(self, said: int | None = None) -> _Walker:
        try:
            self.row, self.known = self.going.send(said)
        except StopIteration as stop:
            self.walk = stop.value
        return self


class _Trees:
    """The trees of one batch of samples, drafted wherever walks stand."""

    def __init__(
        self, drafter: Drafter, batch: FusedBatch, variant: Variant, table: EmbeddingRows, steps: int, topk: int, nodes: int
    ) -> None:
        self.drafter, self.packed, self.table = drafter, batch.packed, table
        self.steps, self.topk, self.nodes = steps, topk, nodes
        self.flags = variant.flags or Flags.of(drafter.config)
        self.to_target = draft_to_target(drafter, variant).to(batch.device)
        self.near = NEAR_TIE[batch.dtype]
        answered = [
            torch.arange(first - 1, end - 1) + start  # from the last prompt row on
            for sample, start in zip(batch.samples, self.packed.starts, strict=False)
            for first, end in _answers(sample)
        ]
        self.rows = torch.cat([torch.arange(0), *answered]).to(batch.device)
        self.first, self.caches = first_step(drafter, self.packed, batch.fuse(variant)[0], table, self.rows, flags=self.flags)

    def outcomes(self, samples: list[Sample], right: list[Tensor]) -> list[TreeOutcome]:
        """Walk through all answers side by side. right: [T] int64 a sample, what should follow each position."""
        walkers = [_Walker(i, walk_answer(f, e, self.steps)).go_on() for i, s in enumerate(samples) for f, e in _answers(s)]
        while standing := [w for w in walkers if w.walk is None]:
            text = torch.full((len(standing), self.steps), -1)
            for line, w in zip(text, standing, strict=True):
                line[: w.known] = right[w.sample][w.row + 1 : w.row + 1 + w.known]
            rows = torch.tensor([self.packed.starts[w.sample] + w.row for w in standing])
            trees = self.draft(rows.to(self.rows.device), [w.sample for w in standing])
            accepted = trees.accepted(self.nodes, text.to(self.rows.device)).tolist()
            for w, n, near in zip(standing, accepted, trees.near_tie.tolist(), strict=True):
                w.near_ties += near
                w.go_on(n)
        found = []
        for i, sample in enumerate(samples):
            mine = [w for w in walkers if w.sample == i]
            walks = None if sample.loss_mask is None else tuple(w.walk for w in mine)
            found.append(TreeOutcome(sample.key, walks, sum(w.near_ties for w in mine)))
        return found

    def draft(self, rows: Tensor, samples: list[int]) -> Candidates:
        """Trees from `rows` [W] of the batch; samples: the one that each row is of."""
        trees, at = Candidates(self.near), torch.searchsorted(self.rows, rows)
        output = StepOutput(self.first.carried[at], self.first.spoken[at], self.first.lm_head)
        own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.caches]
        for step in range(1, self.steps + 1):
            tokens, parents = trees.grow(*self._likeliest(output, len(rows)))  # [W, topk] both
            if step < self.steps:
                hidden = output.carried.unflatten(0, (len(rows), -1))  # [W, lanes, H]
                hidden = hidden.gather(1, parents[..., None].expand(-1, -1, hidden.shape[-1]))  # [W, topk, H]
                output = self._feed(tokens, hidden, rows, samples, step, own)
        return trees

    def _likeliest(self, output: StepOutput, trees: int) -> tuple[Tensor, Tensor]:
        """The largest probabilities [W, lanes, topk + 1] after each row of `output`, and the tokens of the first topk, in the target's ids."""
        p, ids = [], []
        for _, logits in output.blocks():
            best = logits.float().softmax(-1).topk(min(self.topk + 1, logits.shape[-1]), dim=-1)
            p.append(best.values)
            ids.append(best.indices[:, : self.topk])
        return torch.cat(p).unflatten(0, (trees, -1)), self.to_target[torch.cat(ids)].unflatten(0, (trees, -1))

    def _feed(self, tokens: Tensor, hidden: Tensor, rows: Tensor, samples: list[int], step: int, own: list) -> StepOutput:
        """One row more in every lane. tokens: [W, topk]; hidden: [W, topk, H]; own: each layer's keys and values [W, topk, kv_heads, D] of
        the steps before, which grows."""
        try:
            embeds = self.table(tokens.flatten()).to(hidden.dtype)  # [W * topk, H]
        except EmbeddingError as error:
            raise EmbeddingError(
                f"a tree is fed the tokens that it drafts: {error} The rows of the whole draft vocabulary are wanted, as the target's "
                "checkpoint has them"
            ) from None
        hidden = hidden.flatten(0, 1)
        rotary = self.drafter.rotary(self.packed.positions[rows].repeat_interleave(self.topk) + step, hidden)
        for layer, cache, mine in zip(self.drafter.stack, self.caches, own, strict=True):
            x, residual = layer.enter(embeds, hidden, self.flags)
            mine.append(tuple(part.unflatten(0, tokens.shape) for part in layer.self_attn.keys_values(x, rotary, self.flags)))
            queries = layer.self_attn.queries(x, rotary, self.flags).unflatten(0, tokens.shape)  # [W, topk, heads, D]
            attended = self._attend(queries, cache, [torch.stack(p, dim=2) for p in zip(*mine, strict=True)], rows, samples)
            hidden, embeds = layer.leave(attended.flatten(0, 1), residual, self.flags), None
        return self.drafter.speak(hidden, self.flags)

    def _attend(self, queries: Tensor, cache: Cache, own: list[Tensor], rows: Tensor, samples: list[int]) -> Tensor:
        """Tree by tree: the true rows up to its own, and each lane's earlier rows. own: keys, values [W, topk, step, kv_heads, D]."""
        parts = []
        for tree, (row, sample) in enumerate(zip(rows.tolist(), samples, strict=True)):
            seen = slice(self.packed.starts[sample], row + 1)
            last = torch.full((self.topk,), seen.stop - seen.start - 1, device=rows.device)
            keys, values = cache.keys[seen], cache.values[seen]
            parts.append(chain_attention(queries[tree], keys, values, own[0][tree], own[1][tree], last, cache.scale))
        return torch.stack(parts)


def _answers(sample: Sample) -> list[tuple[int, int]]:
    """(first, end) of each answer that has a row before it."""
    return [] if sample.loss_mask is None else [(first, end) for first, end in spans(sample.loss_mask) if first]
