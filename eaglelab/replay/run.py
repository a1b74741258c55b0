"""The drafter run alone on samples: all positions at once, several variants over one reading of the data.

Row t counts at step k when the loss mask of the token that is fed, l[t+1+k], is 1 and the right token is known (speculators' and
ModelOpt's rule; SpecForge and EAGLE count by l[t+k], which is another number). A drafted token is right when it is the target's
choice after position t+1+k.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eaglelab.acceptance import StepCounts, Walk
from eaglelab.cache import Pieces, Unfinished
from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.embedding import EmbeddingError, EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample
from eaglelab.progress import counting
from eaglelab.replay.answers import Answers, Judge, trained_positions
from eaglelab.replay.variants import EMBEDDING, Source, Variant
from eaglelab.replay.walk import walk_sample
from eaglelab.target.head import adjust, head_rows

BATCH_ROWS = 4096
"""Rows packed into one pass at most; longer samples make a pass of their own."""
BATCH_BYTES = 2**30
"""States, products with fc, keys and values that one pass keeps for its variants: sets its rows, and what is dropped and made again."""


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
    confidence: np.ndarray | None
    """[K, R] float32: the drafter's probability of the token that it drafts; None where it was not asked for."""
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
            counted=row_sums(self.counted),
            right=row_sums(self.right),
            out_of_vocabulary=row_sums(self.outside),
            complete=int(complete.sum()),
            joint=row_sums(joint),
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
    confidences: bool = True,
    probabilities: bool = False,
    target_embed: EmbeddingRows | None = None,
    unfinished: Unfinished | None = None,
) -> list[Replay]:
    """Run every variant over the samples, on the drafter's device and in its dtype.

    judge: says what counts as right; by default the text's token does.
    confidences: also the drafter's probability of each drafted token; a ranking does without.
    probabilities: also the target's probability of each drafted token and the overlap of both distributions (needs a judge with lm_head; costs one
    product with the draft vocabulary's rows of lm_head a step).
    target_embed: the target's rows, where `embed` are those of a table of the drafter's own: for boundary 0, and for `Flags.target_embedding`.
    unfinished: where groups of samples that are whole are kept if this is interrupted, and where the same call finds them.
    Returns one `Replay` a variant, in order.
    Raises EmbeddingError when a token has no embedding row or the rows have another width, ValueError when a variant does not fit the drafter.
    """
    judge = judge or Judge()
    if probabilities and judge.head is None:
        raise ValueError("probabilities need the target's lm_head")
    for variant in variants:
        check_variant(variant, drafter, samples)
    check_width(drafter, embed)
    device, dtype = drafter.fc.weight.device, drafter.fc.weight.dtype
    table = embed.to(device, dtype)
    target_table = table if target_embed is None else target_embed.to(device, dtype)
    groups = list(batches(samples, min(BATCH_ROWS, rows_that_fit(drafter, variants, steps))))
    judge.answers(list(samples), str(device))  # of all samples at once: the head is read once
    scores = _Probabilities(drafter, list(samples), judge) if probabilities else None
    judged = (judge.judged_by, judge.last, judge.norm_last)
    done = pieces_of(unfinished, "replay", drafter, samples, tuple(variants), steps, confidences, probabilities, judged)
    todo = [i for i in range(len(groups)) if i not in done]
    with counting(len(todo) * len(variants), "replay", said=f"{len(samples):,} samples") as step:
        for number in todo:
            group = groups[number]
            batch = FusedBatch(drafter, group, target_table, device, dtype)
            plan = _Plan(group, judge.answers(group), batch.packed, steps)
            if scores is not None:
                scores.start(group, plan)
            found: dict[int, tuple[Tensor, list[SampleOutcome]]] = {}
            for alike in same_chains(variants):
                variant = variants[alike[0]]
                fused, share = batch.fuse(variant)
                rows = target_table if variant.flags is not None and variant.flags.target_embedding else table
                drafts = plan.draft(drafter, batch.packed, fused, rows, variant, confidences, scores)
                for i in alike:
                    found[i] = share.cpu(), plan.outcomes(drafts, draft_to_target(drafter, variants[i]), drafter.config.vocab_size)
                    step()
            done[number] = found
    parts = [[done[number][i] for number in range(len(groups))] for i in range(len(variants))]
    done.end()
    known = all(s.loss_mask is not None for s in samples)
    return [
        Replay(v, steps, tuple(o for _, mine in part for o in mine), judge.judged_by, known, tuple(_mean_shares([s for s, _ in part])))
        for v, part in zip(variants, parts, strict=True)
    ]


def pieces_of(unfinished: Unfinished | None, name: str, drafter: Drafter, samples: Sequence[Sample], *told: Any) -> Pieces:
    """The parts of this computation that an interrupted run of it left. told: what tells it from others with the same weights and samples."""
    if unfinished is None:
        return Pieces()
    texts = [(s.key, len(s.token_ids), len(s.slots)) for s in samples]
    return unfinished.of(name, _weights(drafter), drafter.fc.weight.dtype, texts, *told)


def _weights(drafter: Drafter) -> str:
    """Tells drafters of one case apart: a digest of their tensors' shapes, whole vocabulary maps, and a few values of all others."""
    found = hashlib.sha256()
    for name, tensor in drafter.state_dict().items():
        flat = tensor.reshape(-1)
        some = flat if not tensor.is_floating_point() else flat[:: max(1, len(flat) // 64)].float()
        found.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + some.cpu().numpy().tobytes())
    return found.hexdigest()


def judged_again(result: Replay, samples: Sequence[Sample], judge: Judge, to_target: Tensor) -> Replay:
    """The same drafts held against what another judge with a head calls right. samples: those of the outcomes; to_target: [Vd] int64."""
    outcomes = []
    for outcome, sample, answer in zip(result.outcomes, samples, judge.answers(list(samples)), strict=True):
        source = outcome.rows + 1 + np.arange(result.steps)[:, None]  # [K, R]
        wanted = answer.token.numpy()[source.clip(max=len(sample.token_ids) - 1)]
        right = outcome.counted & (outcome.drafted == wanted)
        outcomes.append(
            replace(
                outcome,
                right=right,
                outside=outcome.counted & ~np.isin(wanted, to_target.numpy()),
                p_drafted=None,
                overlap=None,
                walk=walk_sample(outcome.rows, outcome.counted, right, sample.loss_mask),
                agrees=answer.agrees,
            )
        )
    return replace(result, outcomes=tuple(outcomes))


def check_variant(variant: Variant, drafter: Drafter, samples: Sequence[Sample]) -> None:
    """Raise ValueError where the variant does not fit the drafter's fc or the dump's slots."""
    config = drafter.config
    if EMBEDDING in variant.feed and config.hidden_size != config.target_hidden_size:
        raise ValueError(
            f"{variant.name}: the embedding is {config.hidden_size} wide, the drafter's fc takes states of {config.target_hidden_size}"
        )
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


def check_width(drafter: Drafter, embed: EmbeddingRows) -> None:
    """Raise EmbeddingError where the rows are not as wide as the drafter."""
    if embed.width != drafter.config.hidden_size:
        raise EmbeddingError(f"{embed.source}: rows are {embed.width} wide, the drafter's hidden_size is {drafter.config.hidden_size}")


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


def rows_that_fit(drafter: Drafter, variants: Sequence[Variant], steps: int) -> int:
    """Rows whose states and products with fc, for all variants, and keys and values, for all steps, stay within BATCH_BYTES."""
    products = {key for v in variants for key in places_of(v)}
    config, size = drafter.config, drafter.fc.weight.element_size()
    width = len(products) * config.hidden_size + len({p.source for p in products}) * config.target_hidden_size
    value = config.latent.value if config.latent else config.head_dim
    width += config.num_layers * steps * config.num_key_value_heads * (config.head_dim + value)
    return max(1, BATCH_BYTES // (size * width))


class Place(NamedTuple):
    """What one place of fc is fed, and how: with it, its product with fc is known."""

    place: int
    source: Source
    late: int
    """Rows late."""
    skip_norms: bool


def places_of(variant: Variant) -> list[Place]:
    late = variant.state_shift or (0,) * len(variant.feed)
    skip = variant.flags is not None and variant.flags.skip_fc_norms
    return [Place(place, source, by, skip) for place, (source, by) in enumerate(zip(variant.feed, late, strict=True))]


def same_chains(variants: Sequence[Variant]) -> list[list[int]]:
    """Variants that draft the same ids and only read them by another vocabulary map, together."""
    alike: dict[Variant, list[int]] = {}
    for i, variant in enumerate(variants):
        alike.setdefault(replace(variant, vocabulary="d2t", label=""), []).append(i)
    return list(alike.values())


def draft_to_target(drafter: Drafter, variant: Variant) -> Tensor:
    """[Vd] int64, CPU: the target's id of each draft id, as a variant reads them."""
    if variant.vocabulary == "identity":
        return torch.arange(drafter.config.draft_vocab_size)
    if variant.vocabulary == "ids":
        return drafter.d2t.cpu()
    return drafter.target_ids.cpu() + {"d2t": 0, "up": 1, "down": -1}[variant.vocabulary]


class FusedBatch:
    """Packed states of a few samples, and each slot's product with each place of fc, computed once and shared by all variants."""

    def __init__(self, drafter: Drafter, samples: list[Sample], table: EmbeddingRows, device: torch.device, dtype: torch.dtype) -> None:
        self.drafter, self.samples, self.table = drafter, samples, table
        self.device, self.dtype = device, dtype
        self.packed = Packed.of([s.token_ids for s in samples], device)
        self._states: dict[Source, Tensor] = {}
        self._products: dict[Place, Tensor] = {}
        self._norms: dict[Place, Tensor] = {}

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

    def product(self, key: Place) -> Tensor:
        """[M, H] one place's part of the fused input. The oldest ones are dropped beyond BATCH_BYTES."""
        if key not in self._products:
            states = self._late(self.states(key.source), key.late)
            product = self.drafter.slot_product(key.place, states, skip_norms=key.skip_norms)  # [M, H]
            kept = [*self._states.values(), *self._products.values(), product]
            while self._products and sum(t.nbytes for t in kept) > BATCH_BYTES:
                dropped = self._products.pop(next(iter(self._products)))
                kept = [t for t in kept if t is not dropped]
            self._products[key] = product
            self._norms[key] = torch.linalg.vector_norm(product, dim=-1, dtype=torch.float32).sum()
        return self._products[key]

    def fuse(self, variant: Variant) -> tuple[Tensor, Tensor]:
        """The fused input [M, H] of a variant, and the sum of each place's product norms [S]."""
        keys = places_of(variant)
        products = [self.product(key) for key in keys]
        norms = torch.stack([self._norms[key] for key in keys])
        states = [self._late(self.states(p.source), p.late) for p in keys] if self.drafter.config.norm_before_fc else []
        for place in variant.zeroed:
            products[place], norms[place] = torch.zeros_like(products[place]), 0.0
            if states:
                states[place] = torch.zeros_like(states[place])
        return self.drafter.fuse(products, states, skip_norms=keys[0].skip_norms), norms


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
        self.last_row = packed.last_row[self.packed_rows]
        self.sizes = [len(r) for r in self.rows]

    def draft(
        self,
        drafter: Drafter,
        packed: Packed,
        fused: Tensor,
        table: EmbeddingRows,
        variant: Variant,
        confidences: bool,
        scores: _Probabilities | None,
    ) -> _Drafts:
        """What the chains of all samples draft under one variant."""
        chains = draft_chains(
            drafter, packed, fused, table, self.packed_rows, self.steps, token_shift=variant.token_shift, flags=variant.flags
        )
        shape = (self.steps, len(self.packed_rows))
        ids, numbers = torch.empty(shape, dtype=torch.int64), torch.zeros(3, *shape)
        for step, output in enumerate(chains):
            for part, logits in output.blocks():
                top, choice = logits.max(-1)  # [r]
                ids[step, part] = choice.cpu()
                if scores is not None:
                    numbers[1, step, part], numbers[2, step, part] = scores.of(step, part, logits, choice)
                if confidences:
                    spread = logits.float().sub_(top[:, None]) if logits.dtype != torch.float32 else logits.sub_(top[:, None])
                    numbers[0, step, part] = spread.exp_().sum(-1).reciprocal().cpu()
        return _Drafts(ids, numbers[0] if confidences else None, *(numbers[1:] if scores is not None else (None, None)))

    def outcomes(self, drafts: _Drafts, to_target: Tensor, vocab_size: int) -> list[SampleOutcome]:
        """Outcomes of each sample, the draft ids read by one vocabulary map [Vd]."""
        in_vocabulary = torch.zeros(max(vocab_size, int(to_target.max()) + 1), dtype=torch.bool)
        in_vocabulary[to_target[to_target >= 0]] = True
        tables = (to_target[drafts.ids], drafts.confidence, drafts.p_drafted, drafts.overlap)
        columns = [[None] * len(self.sizes) if x is None else x.split(self.sizes, 1) for x in tables]
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
                    confidence=None if columns[1][i] is None else columns[1][i].numpy(),
                    p_drafted=None if columns[2][i] is None else columns[2][i].numpy(),
                    overlap=None if columns[3][i] is None else columns[3][i].numpy(),
                    walk=walk_sample(self.rows[i].numpy(), counted.numpy(), right.numpy(), sample.loss_mask),
                    agrees=answer.agrees,
                )
            )
        return outcomes


@dataclass(frozen=True)
class _Drafts:
    """What all chains of a pass draft, [K, R] each, on the CPU."""

    ids: Tensor
    """int64, draft ids."""
    confidence: Tensor | None
    p_drafted: Tensor | None
    overlap: Tensor | None


class _Probabilities:
    """The target's probabilities over the draft vocabulary at each step, from its last states."""

    def __init__(self, drafter: Drafter, samples: list[Sample], judge: Judge) -> None:
        self.judge, self.device = judge, drafter.fc.weight.device
        self.head = head_rows(judge.head.lm_head, drafter.target_ids.cpu()).to(self.device)  # [Vd, H], in its own dtype
        self.logsumexp = judge.logsumexp(samples, str(self.device))

    def start(self, samples: list[Sample], plan: _Plan) -> None:
        """Go on to the samples of one pass."""
        everything = [torch.arange(len(s.token_ids)) for s in samples]
        self.states = self.judge.states(samples, everything, str(self.device))  # [M, H]
        self.normaliser = torch.cat([self.logsumexp[s.key] for s in samples]).to(self.device)  # [M]
        self.rows, self.last_row = plan.packed_rows, plan.last_row

    def of(self, step: int, part: slice, logits: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """(target's probability of each drafted token [r], overlap sum_v min(p, q) [r]) of some rows at one step, on the CPU."""
        source = torch.minimum(self.rows[part] + 1 + step, self.last_row[part])
        states = self.states[source].float()
        z = torch.cat([states @ block.float().T for block in self.head.split(4096)], dim=1)  # [r, Vd]
        p = (adjust(z, self.judge.head.scale, self.judge.head.softcap) - self.normaliser[source, None]).exp()  # sums to the share of Vd
        q = logits.float().softmax(-1)
        return p.gather(1, choice[:, None])[:, 0].cpu(), torch.minimum(p, q).sum(-1).cpu()


def row_sums(table: np.ndarray) -> tuple[int, ...]:
    """Of a table [K, R]: K ints."""
    return tuple(int(n) for n in table.sum(1))


def _mean_shares(norms: list[Tensor]) -> list[float]:
    total = torch.stack(norms).sum(0) if norms else torch.zeros(0)
    return (total / total.sum().clamp(min=1e-30)).tolist()
