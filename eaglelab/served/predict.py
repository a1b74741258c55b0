"""What the replay says an engine should have counted, against what it counted, request by request and step by step.

A greedy engine's own answer is its own choice at every position, so the text itself says which drafted tokens were accepted: no near-tie
of the target can come between. The target's head, where it is at hand, says how sure that text is: how much of it is the argmax of these
states, and how many choices hang on a near-tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from eaglelab.cache import Unfinished
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample
from eaglelab.progress import counting
from eaglelab.replay import Judge, TargetHead, Variant
from eaglelab.replay.run import BATCH_ROWS, FusedBatch, batches, check_variant, check_width, draft_to_target, pieces_of, rows_that_fit
from eaglelab.replay.walk import NEAR_TIE, AnswerWalk
from eaglelab.served.counts import ServedCounts
from eaglelab.served.leads import AnswerRows, leads
from eaglelab.served.recording import Recording, Request
from eaglelab.target import visit_boundaries
from eaglelab.target.head import BLOCK_ROWS, adjust
from eaglelab.wiring import Boundary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RequestPrediction:
    """One request: the walk through its answer, and what the engine counted."""

    index: int
    walk: AnswerWalk
    request: Request
    partial: bool
    """The states end before the answer does: only the first steps are predicted."""
    agrees: tuple[int, int] | None
    """(tokens of the answer that are the target's argmax, of n); None where the target's head is not at hand."""
    near_ties: int | None
    """Of these n, the choices whose two largest logits are nearer than NEAR_TIE; None likewise."""
    leads: np.ndarray | None = field(default=None, compare=False)
    """[r] drafted tokens that are right from each row of the answer (`eaglelab.served.leads`); None for trees."""

    @property
    def told(self) -> str:
        """How much the engine told: `every step`, `histogram`, `number of steps` or `nothing`."""
        r = self.request
        if r.accepted is not None:
            return "every step"
        if self.partial:
            return "nothing"  # of the first steps alone
        return "histogram" if r.histogram is not None else "number of steps" if r.verify_steps is not None else "nothing"

    @property
    def differing(self) -> tuple[int, ...]:
        """Places of the verify steps whose accepted count is not the predicted one. Known only where the engine told every step."""
        if self.request.accepted is None:
            return ()
        return tuple(i for i, n in enumerate(self.walk.accepted) if self.request.accepted[i : i + 1] != (n,))

    @property
    def equal(self) -> bool | None:
        """Whether everything that the engine told is as predicted; None where it told nothing.

        A step that the text cuts is left out: an engine may count there any of the drafts that run past the end of the answer. So every
        step before it is equal, or the histogram is that of the walk and one entry more, or the number of steps is one more.
        """
        walk, told, request = self.walk, self.told, self.request
        if told == "every step":
            return not self.differing and (self.partial or len(request.accepted) == len(walk.accepted) + walk.cut)
        if told == "histogram":
            rest = list(request.histogram) + [0] * (1 + max(walk.accepted, default=0) - len(request.histogram))
            for n in walk.accepted:
                rest[n] -= 1
            return min(rest) >= 0 and sum(rest) == walk.cut
        return request.verify_steps == len(walk.accepted) + walk.cut if told == "number of steps" else None


@dataclass(frozen=True)
class Prediction:
    """All requests of a recording whose states are at hand."""

    requests: tuple[RequestPrediction, ...]
    steps: int
    topk: int
    num_draft_tokens: int
    without_states: tuple[int, ...]
    """Requests that are not predicted: no answer, or no states for it."""

    @property
    def equal(self) -> bool | None:
        """Whether every request is as predicted; None where the engine told nothing for any of them."""
        found = [r.equal for r in self.requests if r.equal is not None]
        return all(found) if found else None

    @property
    def compared(self) -> int:
        """Verify steps that were predicted and told about."""
        return sum(len(r.walk.accepted) for r in self.requests if r.equal is not None)

    @property
    def differing(self) -> int | None:
        """Verify steps whose accepted count is not the predicted one; None unless the engine told every step of every request."""
        if any(r.told != "every step" for r in self.requests):
            return None
        return sum(len(r.differing) for r in self.requests)

    @property
    def predicted(self) -> ServedCounts:
        """Over the steps whose whole draft lies inside the text, so that the end of an answer does not bend the mean."""
        accepted = [n for r in self.requests for n in r.walk.accepted[: r.walk.whole]]
        return ServedCounts.from_accepted(accepted, self.steps)

    @property
    def served(self) -> ServedCounts | None:
        """What the engine told for these requests, their last steps included. None where it told neither counts nor a histogram."""
        told = [c for r in self.requests if (c := r.request.counts(self.steps)) is not None]
        return sum(told[1:], told[0]) if told else None

    @property
    def agrees(self) -> tuple[int, int] | None:
        """(tokens of all answers that are the target's argmax, of n). Low: these are not the states of the target that was served."""
        if not self.requests or any(r.agrees is None for r in self.requests):
            return None
        return sum(r.agrees[0] for r in self.requests), sum(r.agrees[1] for r in self.requests)

    @property
    def near_ties(self) -> int | None:
        return None if self.agrees is None else sum(r.near_ties for r in self.requests)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a request: request, sample, told, equal, steps, differing, cut, predicted, served, agrees, tokens, near_ties."""
        import pandas as pd

        rows = []
        for r in self.requests:
            served = r.request.counts(self.steps)
            rows.append(
                {
                    "request": r.index,
                    "sample": r.request.sample,
                    "told": r.told,
                    "equal": r.equal,
                    "steps": len(r.walk.accepted),
                    "differing": len(r.differing) if r.told == "every step" else None,
                    "cut": r.walk.cut,
                    "predicted": ServedCounts.from_accepted(r.walk.accepted[: r.walk.whole]).accept_length,
                    "served": None if served is None else served.accept_length,
                    "agrees": None if r.agrees is None else r.agrees[0],
                    "tokens": len(r.request.token_ids),
                    "near_ties": r.near_ties,
                }
            )
        types = {"equal": "boolean", "differing": "Int64", "agrees": "Int64", "near_ties": "Int64"}
        columns = [
            "request",
            "sample",
            "told",
            "equal",
            "steps",
            "differing",
            "cut",
            "predicted",
            "served",
            "agrees",
            "tokens",
            "near_ties",
        ]
        return pd.DataFrame(rows, columns=columns).astype(types)

    @property
    def summary(self) -> str:
        """In a few sentences, for reports and the command line."""
        told = [r for r in self.requests if r.equal is not None]
        served, said = self.served, []
        if self.predicted.accept_length is not None:
            reaches = "" if served is None or served.accept_length is None else f", served {served.accept_length:.3f}"
            said.append(f"accept length predicted {self.predicted.accept_length:.3f}{reaches}")
        if not told:
            said.append(f"the engine told nothing that could be compared for any of {len(self.requests)} requests")
        else:
            same = sum(r.equal for r in told)
            said.append(f"{same} of {len(told)} requests as predicted, {self.compared:,} verify steps compared")
            if self.differing:
                said.append(f"{self.differing:,} of them differ")
        if self.agrees is not None:
            right, n = self.agrees
            said.append(f"{right:,} of {n:,} answer tokens are the target's argmax, {self.near_ties:,} choices are near-ties")
        if self.without_states:
            said.append(f"{len(self.without_states)} requests have no states and are not predicted")
        return "; ".join(said)


def predict(
    recording: Recording,
    drafter: Drafter,
    samples: Sequence[Sample],
    embed: EmbeddingRows,
    variant: Variant,
    judge: Judge | None = None,
    *,
    steps: int | None = None,
    topk: int | None = None,
    num_draft_tokens: int | None = None,
    target_embed: EmbeddingRows | None = None,
    unfinished: Unfinished | None = None,
) -> Prediction:
    """Walk through every answer of a recording as its engine should have, and compare.

    samples: the target's states along each request's prompt and answer, from `states_of` or `from_dump`. variant: what the engine feeds.
    judge: with the target's head it tells how much of the text is its argmax; the walk itself goes by the text.
    steps, topk, num_draft_tokens: by default what the recording's session says; topk is 1 where it says nothing.
    unfinished: as for `replay`.
    Raises ValueError where the number of steps is not known, and what `replay` and `tree_replay` raise.
    """
    session = recording.session
    steps = steps or session.num_steps
    if steps is None:
        raise ValueError(f"{recording.path or 'the recording'} does not say how many steps were drafted: give steps")
    topk = topk or session.eagle_topk or 1
    nodes = num_draft_tokens or session.num_draft_tokens
    by_key = {s.key: s for s in samples}
    asked = [r for r in recording.requests if _key(r) in by_key]
    samples = [by_key[_key(r)] for r in asked]
    if topk == 1:
        nodes = steps + 1
        walks, drafted = _chains(drafter, samples, embed, target_embed, variant, steps, unfinished)
    else:
        drafted = [None] * len(asked)
        from eaglelab.replay.tree import tree_replay

        options = {"steps": steps, "topk": topk, "num_draft_tokens": nodes, "target_embed": target_embed, "unfinished": unfinished}
        walks = [w for o in tree_replay(drafter, samples, embed, variant, **options).outcomes for w in o.walks]
    agrees, ties = _sureness(judge, samples, next(drafter.parameters()).device)
    found = tuple(
        RequestPrediction(r.index, walk, r, len(s.token_ids) < len(r.prompt_token_ids) + len(r.token_ids), agree, tied, lead)
        for r, walk, s, agree, tied, lead in zip(asked, walks, samples, agrees, ties, drafted, strict=True)
    )
    taken = {r.index for r in asked}
    return Prediction(found, steps, topk, nodes, tuple(r.index for r in recording.requests if r.index not in taken))


def states_of(
    recording: Recording,
    target: str | Path,
    boundaries: Sequence[Boundary],
    *,
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
) -> list[Sample]:
    """The target's own states along prompt and answer of every request that has an answer, one sample each, by its forward.

    target: its checkpoint folder. boundaries: one a slot, in order. Slots are [T, H] of `dtype` on the CPU; the loss mask is the answer.
    Raises what `visit_boundaries` raises.
    """
    asked = [r for r in recording.requests if r.token_ids]
    if not asked:
        return []
    kept: dict[Boundary, list[Tensor]] = {}

    def keep(boundary: Boundary, states: list[Tensor]) -> None:
        if boundary in boundaries:
            kept[boundary] = [s.cpu().clone() for s in states]

    up_to = None if any(isinstance(b, str) for b in boundaries) else max(boundaries)
    visit_boundaries(target, [_tokens(r) for r in asked], keep, up_to=up_to, dtype=dtype, device=device)
    return [_sample(r, [kept[b][i] for b in boundaries], tuple(f"boundary {b}" for b in boundaries)) for i, r in enumerate(asked)]


def from_dump(recording: Recording, samples: Sequence[Sample]) -> list[Sample]:
    """The dump's states for the requests whose tokens they are the states of: one sample each, as long as the tokens are the same.

    A state depends on its whole prefix, so rows count up to the first token in which request and sample differ; requests that differ
    within the prompt, or in the answer's first two tokens, get none.
    """
    found, named = [], {s.key: s for s in samples}
    for request in recording.requests:
        if not request.token_ids:
            continue
        tokens, prompt = _tokens(request), len(request.prompt_token_ids)
        candidates = [named[request.sample]] if request.sample in named else samples
        same, best = max(((_common(tokens, s.token_ids), i) for i, s in enumerate(candidates)), default=(0, 0))
        if same > prompt + 1 or same == len(tokens) > prompt:
            found.append(_sample(request, [slot[:same] for slot in candidates[best].slots], candidates[best].slot_names))
    return found


def _key(request: Request) -> str:
    return f"request {request.index}"


def _tokens(request: Request) -> Tensor:
    """[T] int64: prompt and answer."""
    return torch.tensor([*request.prompt_token_ids, *request.token_ids])


def _sample(request: Request, slots: list[Tensor], names: tuple[str, ...]) -> Sample:
    rows = len(slots[0])
    mask = (torch.arange(rows) >= len(request.prompt_token_ids)).long()
    return Sample(_key(request), _tokens(request)[:rows], tuple(slots), mask, names)


def _common(one: Tensor, other: Tensor) -> int:
    """How many first tokens are the same."""
    n = min(len(one), len(other))
    differ = (one[:n] != other[:n]).nonzero()
    return int(differ[0]) if len(differ) else n


def _chains(
    drafter: Drafter,
    samples: list[Sample],
    embed: EmbeddingRows,
    target_embed: EmbeddingRows | None,
    variant: Variant,
    steps: int,
    unfinished: Unfinished | None,
) -> tuple[list[AnswerWalk], list[np.ndarray]]:
    """The walk through each sample's answer, and the right drafted tokens [r] from each of its rows. Raises what `replay` raises."""
    check_variant(variant, drafter, samples)
    check_width(drafter, embed)
    device, dtype = drafter.fc.weight.device, drafter.fc.weight.dtype
    table = embed.to(device, dtype)
    target = table if target_embed is None else target_embed.to(device, dtype)
    rows = target if variant.flags is not None and variant.flags.target_embedding else table
    ids, options = draft_to_target(drafter, variant), {"token_shift": variant.token_shift, "flags": variant.flags}
    groups = list(batches(samples, min(BATCH_ROWS, rows_that_fit(drafter, [variant], steps))))
    done = pieces_of(unfinished, "walks", drafter, samples, variant, steps)
    todo = [i for i in range(len(groups)) if i not in done]
    with counting(len(todo), "predictions", said=f"{len(samples):,} answers") as step:
        for number in todo:
            group = groups[number]
            batch = FusedBatch(drafter, group, target, device, dtype)
            said = [torch.cat([s.token_ids[1:], s.token_ids.new_tensor([-1])]) for s in group]
            at = AnswerRows.of(group, said, batch.packed.starts, steps)
            lead = leads(drafter, batch.packed, batch.fuse(variant)[0], rows, at, ids, **options)[0]
            walks = [next(iter(at.walks(i, lead)), AnswerWalk((), 0, cut=False)) for i in range(len(group))]
            done[number] = walks, [np.array([*at.of_sample(i, lead).values()], dtype=np.int64) for i in range(len(group))]
            step()
    walks, drafted = ([x for number in range(len(groups)) for x in done[number][side]] for side in (0, 1))
    done.end()
    return walks, drafted


def _sureness(judge: Judge | None, samples: list[Sample], device: torch.device) -> tuple[list, list]:
    """Each sample's agreement of text and argmax, and the near-ties among these choices; lists of None without the target's head."""
    if judge is None or judge.head is None or not samples:
        return [None] * len(samples), [None] * len(samples)
    positions = [s.loss_mask[1:].nonzero()[:, 0] for s in samples]  # of the choices that wrote the answer
    token, gap = (x.split([len(p) for p in positions]) for x in _two_best(judge.head, judge.states(samples, positions, str(device))))
    agrees = [(int((t == s.token_ids[p + 1]).sum()), len(p)) for t, s, p in zip(token, samples, positions, strict=True)]
    return agrees, [int((g < NEAR_TIE.get(s.slots[judge.last].dtype, 2.0**-4)).sum()) for g, s in zip(gap, samples, strict=True)]


def _two_best(head: TargetHead, states: Tensor, chunk: int = 4096) -> tuple[Tensor, Tensor]:
    """The argmax [R] and its lead over the second best logit [R] float32, without holding the logits [R, V]; on the CPU."""
    best = torch.full((len(states), 2), -torch.inf, device=states.device)
    token = torch.full((len(states), 2), -1, device=states.device)
    for first in range(0, head.lm_head.shape[0], chunk):
        weights = head.lm_head[first : first + chunk].to(states.device, torch.float32)  # [C, H]
        for start in range(0, len(states), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            top, where = (states[block].float() @ weights.T).topk(min(2, len(weights)), dim=-1)
            best[block], order = torch.cat([best[block], top], 1).topk(2, dim=-1)
            token[block] = torch.cat([token[block], where + first], 1).gather(1, order)
    best = adjust(best, head.scale, head.softcap)
    return token[:, 0].cpu(), (best[:, 0] - best[:, 1]).cpu()
