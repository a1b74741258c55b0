"""The drafter run alone on samples: all positions at once, several variants over one reading of the data.

Row t counts at step k when the loss mask of the token that is fed, l[t+1+k], is 1 and the right token is known (speculators' and
ModelOpt's rule; SpecForge and EAGLE count by l[t+k], which is another number). A drafted token is right when it is the target's
choice after position t+1+k.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglelab.acceptance import StepCounts, Walk
from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.embedding import EmbeddingError, EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample
from eaglelab.progress import progress
from eaglelab.replay.answers import Answers, Judge, trained_positions
from eaglelab.replay.variants import EMBEDDING, Source, Variant
from eaglelab.replay.walk import walk_sample

BATCH_ROWS = 4096
"""Rows packed into one pass; longer samples make a pass of their own."""


@dataclass(frozen=True)
class SampleOutcome:
    """What happened in one sample. R rows at which something counts, K steps."""

    key: str
    rows: np.ndarray
    """[R] int: positions t at which chains start."""
    counted: np.ndarray
    """[K, R] bool."""
    right: np.ndarray
    """[K, R] bool; False where not counted."""
    outside: np.ndarray
    """[K, R] bool: counted, and the right token is not in the draft vocabulary."""
    drafted: np.ndarray
    """[K, R] int32: the drafted token, in the target's ids."""
    confidence: np.ndarray
    """[K, R] float32: the drafter's probability of the token that it drafts."""
    p_drafted: np.ndarray | None
    """[K, R] float32: the target's probability of the drafted token (acceptance of greedy drafts when sampling at temperature 1)."""
    overlap: np.ndarray | None
    """[K, R] float32: sum over tokens of min(target, drafter), the acceptance of rejection sampling."""
    walk: tuple[int, ...] | None
    """Accepted tokens of each verify step of the walk; None where the mask is unknown."""
    agrees: tuple[int, int]
    """Trained positions whose text is the target's own choice, of n."""

    @property
    def counts(self) -> StepCounts:
        complete = self.counted.all(0)
        joint = np.logical_and.accumulate(self.right, axis=0) & complete
        return StepCounts(
            counted=_sums(self.counted),
            right=_sums(self.right),
            out_of_vocabulary=_sums(self.outside),
            complete=int(complete.sum()),
            joint=_sums(joint),
        )


@dataclass(frozen=True)
class Replay:
    """One variant over all samples."""

    variant: Variant
    steps: int
    outcomes: tuple[SampleOutcome, ...]
    judged_by: str
    """`the target's argmax` or `the text's token`."""
    mask_known: bool
    shares: tuple[float, ...] = field(default=())
    """Each place's share of the fused input: mean norm of its product with fc, over the sum of all places'."""

    @property
    def counts(self) -> StepCounts:
        zero = (0,) * self.steps
        return sum((o.counts for o in self.outcomes), StepCounts(zero, zero, zero, 0, zero))

    @property
    def walk(self) -> Walk | None:
        """The path of a greedy engine over these samples; None where a mask is unknown."""
        if any(o.walk is None for o in self.outcomes):
            return None
        return sum((Walk(len(o.walk), sum(o.walk)) for o in self.outcomes), Walk(0, 0))

    @property
    def sampling(self) -> list[dict[str, float | int | None]]:
        """Per step, over the counted rows: n, the target's mean probability of the drafted token (greedy drafts under sampling at
        temperature 1: SGLang), and the mean overlap of both distributions (rejection sampling). Empty without probabilities."""
        if any(o.p_drafted is None for o in self.outcomes):
            return []
        rows = []
        for k in range(self.steps):
            counted = [o.counted[k] for o in self.outcomes]
            n = int(sum(c.sum() for c in counted))
            p, both = (
                sum(float(table[k][c].sum()) for table, c in zip(tables, counted, strict=True))
                for tables in ([o.p_drafted for o in self.outcomes], [o.overlap for o in self.outcomes])
            )
            rows.append({"step": k, "n": n, "p_drafted": p / n if n else None, "overlap": both / n if n else None})
        return rows

    @property
    def accepted(self) -> list[int]:
        """Drafted tokens accepted in each verify step of the walk."""
        return [n for o in self.outcomes for n in o.walk or ()]

    @property
    def text_agreement(self) -> tuple[int, int]:
        """(trained positions at which the text is the target's own choice, of n). Low: the walk predicts no engine."""
        return sum(o.agrees[0] for o in self.outcomes), sum(o.agrees[1] for o in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        walk = self.walk
        return {
            "variant": self.variant.name,
            "feed": list(self.variant.feed),
            "samples": len(self.outcomes),
            "judged_by": self.judged_by,
            "mask_known": self.mask_known,
            "text_agreement": self.text_agreement,
            "fused_share": list(self.shares),
            "walk": walk.to_json() if walk else None,
            "sampling": self.sampling,
            **self.counts.to_json(),
        }


@torch.no_grad()
def replay(
    drafter: Drafter,
    samples: Sequence[Sample],
    embed: EmbeddingRows,
    variants: Sequence[Variant],
    *,
    judge: Judge | None = None,
    steps: int = 3,
    probabilities: bool = False,
) -> list[Replay]:
    """Run every variant over the samples, on the drafter's device and in its dtype.

    judge: says what counts as right; by default the text's token does.
    probabilities: also the target's probability of each drafted token and the overlap of both distributions (needs a judge with lm_head; costs one
    product with the draft vocabulary's rows of lm_head a step). Returns one `Replay` a variant, in order.
    Raises EmbeddingError when a token has no embedding row or the rows have another width, ValueError when a variant does not fit the drafter.
    """
    judge = judge or Judge()
    if probabilities and judge.head is None:
        raise ValueError("probabilities need the target's lm_head")
    for variant in variants:
        check_variant(variant, drafter, samples)
    if embed.width != drafter.config.hidden_size:
        raise EmbeddingError(f"{embed.source}: rows are {embed.width} wide, the drafter's hidden_size is {drafter.config.hidden_size}")
    device, dtype = drafter.fc.weight.device, drafter.fc.weight.dtype
    table = embed.to(device, dtype)
    outcomes: list[list[SampleOutcome]] = [[] for _ in variants]
    shares: list[list[Tensor]] = [[] for _ in variants]
    groups = list(batches(samples, BATCH_ROWS))
    bar = progress(range(len(groups) * len(variants)), "replay")
    for group in groups:
        batch = _Batch(drafter, group, table, device, dtype)
        answers = judge.answers(group, str(device))
        plan = _Plan(group, answers, batch.packed, steps)
        scores = _Probabilities(drafter, group, answers, judge, plan) if probabilities else None
        for i, variant in enumerate(variants):
            next(bar)
            fused, share = batch.fuse(variant)
            shares[i].append(share)
            outcomes[i] += plan.run(drafter, batch.packed, fused, table, variant, scores)
    known = all(s.loss_mask is not None for s in samples)
    return [
        Replay(v, steps, tuple(o), judge.judged_by, known, tuple(_mean_shares(s)))
        for v, o, s in zip(variants, outcomes, shares, strict=True)
    ]


def check_variant(variant: Variant, drafter: Drafter, samples: Sequence[Sample]) -> None:
    """Raise ValueError where the variant does not fit the drafter's fc or the dump's slots."""
    config = drafter.config
    if len(variant.feed) != config.num_slots:
        raise ValueError(f"{variant.name}: feeds {len(variant.feed)} slots, the drafter's fc takes {config.num_slots}")
    for sample in samples:
        for source in variant.feed:
            if source != EMBEDDING and not (isinstance(source, int) and 0 <= source < len(sample.slots)):
                raise ValueError(f"{variant.name}: no slot {source!r} in {sample.key}, which has slots 0..{len(sample.slots) - 1}")
        width = sample.slots[0].shape[-1]
        if width != config.target_hidden_size:
            raise ValueError(
                f"{sample.key}: states are {width} wide, the drafter's fc expects {config.num_slots} slots of {config.target_hidden_size}"
            )


def batches(samples: Iterable[Sample], rows: int) -> Iterator[list[Sample]]:
    """Samples in groups of at most `rows` rows together."""
    group, filled = [], 0
    for sample in samples:
        if group and filled + len(sample.token_ids) > rows:
            yield group
            group, filled = [], 0
        group.append(sample)
        filled += len(sample.token_ids)
    if group:
        yield group


class _Batch:
    """Packed states of a few samples, and each slot's product with each place of fc, computed once and shared by all variants."""

    def __init__(self, drafter: Drafter, samples: list[Sample], table: EmbeddingRows, device: torch.device, dtype: torch.dtype) -> None:
        self.drafter, self.samples, self.table = drafter, samples, table
        self.device, self.dtype = device, dtype
        self.packed = Packed.of([s.token_ids for s in samples], device)
        self._states: dict[Source, Tensor] = {}
        self._products: dict[tuple[int, Source, int], Tensor] = {}

    def states(self, source: Source) -> Tensor:
        """[M, Ht] of one source."""
        if source not in self._states:
            if source == EMBEDDING:
                self._states[source] = self.table(self.packed.token_ids)
            else:
                self._states[source] = torch.cat([s.slots[source] for s in self.samples]).to(self.device, self.dtype)
        return self._states[source]

    def _late(self, states: Tensor, by: int) -> Tensor:
        """Rows moved `by` places down within each sample; the first rows are held."""
        if by == 0:
            return states
        rows = torch.arange(len(states), device=states.device)
        return states[rows - torch.minimum(self.packed.positions, torch.tensor(by, device=states.device))]

    def product(self, place: int, source: Source, late: int) -> Tensor:
        key = (place, source, late)
        if key not in self._products:
            self._products[key] = self.drafter.slot_product(place, self._late(self.states(source), late))  # [M, H]
        return self._products[key]

    def fuse(self, variant: Variant) -> tuple[Tensor, Tensor]:
        """The fused input [M, H] of a variant, and each place's mean product norm [S]."""
        late = variant.state_shift or (0,) * len(variant.feed)
        products = [self.product(p, s, by) for p, (s, by) in enumerate(zip(variant.feed, late, strict=True))]
        states = [self._late(self.states(s), by) for s, by in zip(variant.feed, late, strict=True)]
        for place in variant.zeroed:
            products[place], states[place] = torch.zeros_like(products[place]), torch.zeros_like(states[place])
        return self.drafter.fuse(products, states), torch.stack([p.float().norm(dim=-1).sum() for p in products])


class _Plan:
    """Which rows count at which step, and the right tokens: the same for all variants."""

    def __init__(self, samples: list[Sample], answers: list[Answers], packed: Packed, steps: int) -> None:
        self.samples, self.answers, self.steps = samples, answers, steps
        self.rows, self.counted, self.wanted = [], [], []
        for sample, answer in zip(samples, answers, strict=True):
            length = len(sample.token_ids)
            source = torch.arange(max(0, length - 1)) + 1 + torch.arange(steps)[:, None]  # [K, T-1]: position t + 1 + k
            inside = source < length
            source = source.clamp(max=length - 1)
            wanted = answer.token[source]
            counted = inside & trained_positions(sample)[source] & (wanted >= 0)
            rows = counted.any(0).nonzero()[:, 0]
            self.rows.append(rows)
            self.counted.append(counted[:, rows])
            self.wanted.append(wanted[:, rows])
        offsets = packed.starts[:-1]
        device = packed.token_ids.device
        self.packed_rows = torch.cat([r + o for r, o in zip(self.rows, offsets, strict=True)]).to(device)

    def run(
        self,
        drafter: Drafter,
        packed: Packed,
        fused: Tensor,
        table: EmbeddingRows,
        variant: Variant,
        scores: _Probabilities | None,
    ) -> list[SampleOutcome]:
        """Outcomes of each sample under one variant."""
        draft_ids = torch.arange(drafter.config.draft_vocab_size, device=fused.device)
        to_target = draft_ids if variant.identity_vocabulary else drafter.target_ids
        chains = draft_chains(
            drafter, packed, fused, table, self.packed_rows, self.steps, token_shift=variant.token_shift, flags=variant.flags
        )
        drafted, confidence, p_drafted, overlap = [], [], [], []
        for step, output in enumerate(chains):
            top, choice = output.logits.max(-1)  # [R]
            confidence.append((top.float() - output.logits.float().logsumexp(-1)).exp().cpu())
            drafted.append(to_target[choice].cpu())
            if scores is not None:
                p, both = scores.step(step, output.logits, choice)
                p_drafted.append(p.cpu())
                overlap.append(both.cpu())
        in_vocabulary = torch.zeros(max(drafter.config.vocab_size, int(to_target.max()) + 1), dtype=torch.bool)
        in_vocabulary[to_target.cpu()] = True
        return self._split(variant, torch.stack(drafted), torch.stack(confidence), p_drafted, overlap, in_vocabulary)

    def _split(self, variant, drafted, confidence, p_drafted, overlap, in_vocabulary) -> list[SampleOutcome]:
        """Packed [K, R] results, cut into samples."""
        sizes = [len(r) for r in self.rows]
        columns = [drafted.split(sizes, 1), confidence.split(sizes, 1)]
        columns += [torch.stack(x).split(sizes, 1) if x else [None] * len(sizes) for x in (p_drafted, overlap)]
        outcomes = []
        for i, (sample, answer) in enumerate(zip(self.samples, self.answers, strict=True)):
            counted, wanted, mine = self.counted[i], self.wanted[i], columns[0][i]
            right = counted & (mine == wanted)
            outside = counted & ~in_vocabulary[wanted.clamp(min=0)]
            outcomes.append(
                SampleOutcome(
                    key=sample.key,
                    rows=self.rows[i].numpy(),
                    counted=counted.numpy(),
                    right=right.numpy(),
                    outside=outside.numpy(),
                    drafted=mine.to(torch.int32).numpy(),
                    confidence=columns[1][i].numpy(),
                    p_drafted=None if columns[2][i] is None else columns[2][i].numpy(),
                    overlap=None if columns[3][i] is None else columns[3][i].numpy(),
                    walk=walk_sample(self.rows[i].numpy(), counted.numpy(), right.numpy(), sample.loss_mask),
                    agrees=answer.agrees,
                )
            )
        return outcomes


class _Probabilities:
    """The target's probabilities over the draft vocabulary at each step, from its last states."""

    def __init__(self, drafter: Drafter, samples: list[Sample], answers: list[Answers], judge: Judge, plan: _Plan) -> None:
        device = drafter.fc.weight.device
        self.head = judge.head.lm_head[drafter.target_ids.cpu()].to(device).float()  # [Vd, H]
        self.states = [judge.states(s).float() for s in samples]
        self.logsumexp = [a.logsumexp for a in answers]
        self.plan, self.device = plan, device

    def step(self, step: int, logits: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """(target's probability of each drafted token [R], overlap sum_v min(p, q) [R]) at one step."""
        states, lse = [], []
        for rows, x, z in zip(self.plan.rows, self.states, self.logsumexp, strict=True):
            source = (rows + 1 + step).clamp(max=len(x) - 1)
            states.append(x[source])
            lse.append(z[source])
        states, lse = torch.cat(states).to(self.device), torch.cat(lse).to(self.device)
        p_drafted, overlap = torch.empty(len(states)), torch.empty(len(states))
        for first in range(0, len(states), 512):  # [512, Vd] at a time
            part = slice(first, first + 512)
            p = (states[part] @ self.head.T - lse[part, None]).exp()  # [r, Vd]; sums to the draft vocabulary's share
            q = logits[part].float().softmax(-1)
            p_drafted[part] = p.gather(1, choice[part, None])[:, 0].cpu()
            overlap[part] = torch.minimum(p, q).sum(-1).cpu()
        return p_drafted, overlap


def _sums(table: np.ndarray) -> tuple[int, ...]:
    return tuple(int(n) for n in table.sum(1))


def _mean_shares(norms: list[Tensor]) -> list[float]:
    total = torch.stack(norms).sum(0) if norms else torch.zeros(0)
    return (total / total.sum().clamp(min=1e-30)).tolist()
