"""Which deviation reproduces what a server accepted: every candidate drafts along the served text, and its counts are held against the server's.

The states are computed once and shared; a candidate's later steps are drafted only where its earlier ones are right. All candidates draft
through the first requests, those that are not hopeless there through some more (both in the arithmetic of `replay.race.rough`), and those
that are not hopeless there again through all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eaglelab.acceptance import FEW_SAMPLES, Z95
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.dumps import Sample
from eaglelab.opened import NotGiven
from eaglelab.progress import progress
from eaglelab.replay.race import rough
from eaglelab.replay.run import BATCH_ROWS, FusedBatch, draft_to_target
from eaglelab.replay.variants import Variant
from eaglelab.replay.walk import AnswerWalk
from eaglelab.served import likelihood
from eaglelab.served.candidates import CONFIG, OWN, PAIR, RANDOM_EMBEDDING, RANDOM_HEAD, SAMPLED, TARGETS_HEAD, Candidate, candidates, pairs
from eaglelab.served.counts import FEW_PASSES, ServedCounts
from eaglelab.served.leads import AnswerRows, answer_mask, leads
from eaglelab.served.recording import Recording, Request
from eaglelab.wiring import Wiring

if TYPE_CHECKING:
    import pandas as pd

    from eaglelab.investigation import Investigation

LOOK_ROWS = (128, 400)
"""Rows of answers through which all candidates draft, and those that are not far behind there."""
HOPELESS = 8.0
"""Log likelihood by which a candidate is behind the best in a look when it is given up: odds of 1 to 3,000."""
HARDLY_ANY = 0.1
"""Share of the first rows with a right first token below which a candidate's later steps are not drafted there: reading its weights for a
handful of rows costs as much as for all."""
FINALISTS = 6
"""Candidates at most that draft through everything."""
OTHER_ARITHMETIC = 0.1
"""Share of passes that may be counted otherwise by a server in another arithmetic. Measured on the example: the drafter in bfloat16 accepts another
number than in float32 in 3 % of rows; a quantised target, or a walk that meets one such row and goes on elsewhere, makes some more."""
PAIRED = 2
"""Wirings that are tried with each deviation of another kind where nothing fits by itself; the others with the nearest deviation alone."""
TWENTY = 20
"""Candidates whose weight is within this factor of the best's are not told from it: the usual odds of 1 in 20."""
PASSES, HISTOGRAMS, TOTALS = "pass by pass", "histograms by request", "totals on other text"


@dataclass(frozen=True)
class Fit:
    """One candidate beside the server."""

    candidate: Candidate
    predicted: ServedCounts
    """Of its own walk through the same answers (or through the dump's)."""
    served: ServedCounts
    """What the server counted for the same answers."""
    behind: float
    """Log likelihood less than that of the best over the same rows; of totals half the likelihood ratio, over the overdispersion."""
    weight: float
    """0 to 1, of all candidates together; 0 for those that were given up after the first rows."""
    same: float | None
    """Share of passes that are as predicted (of histograms: that can be, at most); None for totals."""
    fits: bool
    """Whether what the server counted can be this and nothing else."""
    rows: int
    """Rows through which it drafted."""

    @property
    def name(self) -> str:
        return self.candidate.name


@dataclass(frozen=True)
class VariantFit:
    """All candidates, best first."""

    fits: tuple[Fit, ...]
    served: ServedCounts
    evidence: str
    """`pass by pass`, `histograms by request` or `totals on other text`."""
    requests: int
    """Requests (or, for totals, the dump's samples) that were compared."""
    steps: int
    notes: tuple[str, ...] = ()
    text: tuple[str, str] = field(default=("not compared", ""))
    """What the served text says of the target: `TextComparison.diagnosis`."""

    @property
    def best(self) -> Fit:
        return self.fits[0]

    @property
    def alike(self) -> tuple[Fit, ...]:
        """The best one and what is not told from it."""
        return tuple(f for f in self.fits if f.weight * TWENTY >= self.best.weight)

    @property
    def trained(self) -> Fit:
        return next(f for f in self.fits if f.candidate.trained)

    @property
    def config(self) -> Fit | None:
        """What the server's config makes its engine do."""
        return next((f for f in self.fits if CONFIG in f.candidate.roles), None)

    @property
    def joint(self) -> list[float]:
        """K joint rates of the server."""
        return [self.served.joint_rate(k) or 0.0 for k in range(self.steps)]

    @property
    def few(self) -> bool:
        """Whether too few passes are compared, of the server's or of the prediction's."""
        return self.passes < FEW_PASSES

    @property
    def passes(self) -> int:
        """Verify passes that are compared: the server's, or as many as the answers could take at most, where these are fewer."""
        return min(self.served.verify_steps, self.trained.predicted.verify_steps * (self.steps + 1))

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a candidate, best first: candidate, kind, accept_length, joint_0 … joint_{K-1}, served (accept length over the
        same answers), passes, behind, weight, same, fits, trained, rows."""
        import pandas as pd

        return pd.DataFrame([self._row(f) for f in self.fits])

    def _row(self, fit: Fit) -> dict[str, Any]:
        joint = {f"joint_{k}": fit.predicted.joint_rate(k) for k in range(self.steps)}
        said = {"candidate": fit.name, "kind": fit.candidate.kind, "accept_length": fit.predicted.accept_length}
        return (
            said
            | joint
            | {
                "served": fit.served.accept_length,
                "passes": fit.served.verify_steps,
                "behind": fit.behind,
                "weight": fit.weight,
                "same": fit.same,
                "fits": fit.fits,
                "trained": fit.candidate.trained,
                "rows": fit.rows,
            }
        )

    def to_json(self) -> dict[str, Any]:
        rows = [self._row(f) | {"roles": sorted(f.candidate.roles)} for f in self.fits]
        about = {"evidence": self.evidence, "requests": self.requests, "steps": self.steps, "notes": list(self.notes)}
        return {"served": self.served.to_json(), **about, "text": self.text[0], "candidates": rows}


def fit_variants(inv: Investigation) -> VariantFit:
    """Every candidate beside what the case's server counted. Raises NotGiven where it told no acceptance by step, drafted trees, or nothing can
    be replayed."""
    side, recording = inv.served, inv.served.recording
    counted = recording is not None and recording.counts is not None and recording.counts.joint is not None
    reached = side.reached
    if not counted and (reached is None or reached.counts is None or not reached.counts.joint):
        raise NotGiven(
            "acceptance by step",
            "a recording of `eaglelab live`, vLLM's /metrics or its log tell it (docs/served.md); a mean accept length alone fits many deviations",
        )
    topk = recording.session.eagle_topk if counted else inv.launch.eagle_topk if inv.launch else None
    if (topk or 1) > 1:
        raise NotGiven(
            "a chain", f"the server drafts trees (top-k {topk}): record once with `--speculative-eagle-topk 1`, the fault stays the same"
        )
    texts = _same_text(inv, recording) if counted else None
    if texts is None or sum(texts.told) < FEW_PASSES:
        other = _other_text(inv, recording.counts if counted else reached.counts, recording if counted else None)
        texts = other if texts is None or sum(texts.told) < sum(other.told) else texts
    return _Ranking(inv, texts).result()


# -- what is compared on which states --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Texts:
    """Samples with what was counted in each, and what the candidates may feed."""

    samples: list[Sample]
    requests: tuple[Request, ...]
    """One a sample; none where the counts are of other text."""
    totals: tuple[np.ndarray, ...]
    """Histograms [K + 1] on other text: one a request, or one of all."""
    steps: int
    candidates: list[Candidate]
    rows: EmbeddingRows
    target_rows: EmbeddingRows | None
    wanted: list[Tensor]
    """[T] int64 a sample: what should follow each position."""
    last: int | None
    """Where the last state lies."""
    notes: tuple[str, ...] = ()
    text: tuple[str, str] = ("not compared", "")
    known: dict[tuple, list[np.ndarray]] = field(default_factory=dict)
    """Feed -> what `served.expected` has drafted of it already, sample by sample [r]."""

    @property
    def told(self) -> tuple[int, ...]:
        """Passes of each request."""
        return tuple(len(r.accepted) if r.accepted is not None else sum(r.histogram) for r in self.requests) or tuple(
            int(h.sum()) for h in self.totals
        )


def _same_text(inv: Investigation, recording: Recording) -> _Texts | None:
    """The recorded answers with the states along them; None where there are none."""
    from eaglelab.replay.variants import EMBEDDING
    from eaglelab.served.predict import from_dump

    side, feed = inv.served, inv.dump.feed
    fed = side.wiring_of(recording)
    wiring = None if fed is None else fed.wiring
    layout = side.states_layout(wiring)
    if layout is None:
        samples, rows, table = from_dump(recording, inv.replay_samples), inv._rows(), inv.boundary_rows
        base, slots, place, source = _in_the_dump(inv, wiring)
        last = feed.last
    else:
        samples = side._states(recording, layout)
        rows, table = side._rows_of(samples, False) if samples else (None, None)
        place = {0: EMBEDDING} | {b: i for i, b in enumerate(layout)}
        base, slots = (tuple(place[b] for b in inv.dump_wiring.select(s)) for s in (feed.aux, _known_slots(inv, place)))
        source = None if wiring is None or any(b not in place for b in wiring) else tuple(place[b] for b in wiring)
        last = place.get("final")
    by_key = {s.key: s for s in samples}
    steps = recording.session.num_steps or inv.steps
    asked = [(r, s) for r in recording.requests if (s := by_key.get(f"request {r.index}")) is not None and _usable(r, s, steps)]
    if not asked:
        return None
    found = candidates(
        inv, base, slots, place, fed=source, fed_wiring=wiring, draft_config=recording.session.draft_config or inv.draft_config, last=last
    )
    requests, samples = zip(*asked, strict=True)
    wanted = [torch.cat([s.token_ids[1:], s.token_ids.new_tensor([-1])]) for s in samples]
    known = {}
    for c in found:
        drafted = side.leads_of(recording, c.wiring) if c.plain and c.wiring is not None else {}
        if all(r.index in drafted for r in requests):
            known[c.variant.feed] = [drafted[r.index] for r in requests]
    return _Texts(list(samples), requests, (), steps, found, rows, table, wanted, last, text=_text(inv, recording), known=known)


def _usable(request: Request, sample: Sample, steps: int) -> bool:
    whole = len(sample.token_ids) == len(request.prompt_token_ids) + len(request.token_ids)
    told = request.accepted is not None or (whole and request.histogram is not None)
    return told and not request.beyond(steps)


def _text(inv: Investigation, recording: Recording) -> tuple[str, str]:
    try:
        return inv.served.text(recording).diagnosis
    except (NotGiven, ValueError):
        return "not compared", ""


def _known_slots(inv: Investigation, place: dict) -> list[int]:
    """The dump's slots that the target gives as well."""
    return [s for s, b in enumerate(inv.dump_wiring) if b in place]


def _in_the_dump(inv: Investigation, wiring: Wiring | None) -> tuple:
    """(the dump's feed, its slots, where each boundary lies, the sources that hold what a wiring feeds or None)."""
    held, slots = inv.dump_wiring, tuple(range(len(inv.samples[0].slots)))
    place = {b: s for s, b in reversed(list(enumerate(held))) if b is not None}
    if inv.boundary_rows is not None:
        place = {0: "embedding"} | place
    place |= {b: len(slots) + i for i, b in enumerate(inv._beyond_the_dump)}
    source = None if wiring is None else inv.sources_of(wiring)[0]
    return tuple(inv.dump.feed.aux), slots, place, source


def _other_text(inv: Investigation, counts: ServedCounts, recording: Recording | None) -> _Texts:
    """The dump's answers as a sample of what is asked: the server's totals are draws from their distribution."""
    steps = len(counts.joint)
    fed = inv.served_wiring if recording is None else inv.served.wiring_of(recording)
    wiring = None if fed is None else fed.wiring
    base, slots, place, source = _in_the_dump(inv, wiring)
    found = candidates(inv, base, slots, place, fed=source, fed_wiring=wiring, last=inv.dump.feed.last)
    own = inv.own_replay
    if own.steps >= steps and all(o.p_drafted is not None for o in own.outcomes):
        found.append(Candidate("sampling", "sampling at temperature 1", Variant(base), SAMPLED))
    histograms = [np.diff([0, *reversed((counts.verify_steps, *counts.joint))])[::-1]]
    if recording is not None:
        told = [c for r in recording.requests if (c := r.counts(steps)) is not None and c.verify_steps]
        histograms = [np.diff([0, *reversed((c.verify_steps, *c.joint[:steps]))])[::-1] for c in told]
    wanted = [a.token for a in inv.judge.answers(inv.replay_samples)]
    note = "whose text the server answered is not known: the dump's answers stand for it"
    text = ("not compared", "") if recording is None else _text(inv, recording)
    return _Texts(
        inv.replay_samples, (), tuple(histograms), steps, found, inv._rows(), inv.boundary_rows, wanted, inv.dump.feed.last, (note,), text
    )


# -- drafting --------------------------------------------------------------------------------------------------------------------------------


class _Drafting:
    """Candidates drafting from every row of the answers in some samples; states and products are shared."""

    def __init__(self, inv: Investigation, texts: _Texts, chosen: Sequence[int], first_look: bool = False) -> None:
        """first_look: in the arithmetic of `rough`."""
        self.inv, self.last, self.chosen = inv, texts.last, tuple(chosen)
        self.samples = [texts.samples[i] for i in chosen]
        self.known = {feed: np.concatenate([mine[i] for i in chosen]) for feed, mine in texts.known.items() if not first_look}
        models = {name: inv.with_targets_head if name == TARGETS_HEAD else inv.drafter for name in (OWN, TARGETS_HEAD)}
        self.models = {name: rough(m) if first_look and m is not None else m for name, m in models.items()}
        self.quick = self.models[OWN] is not inv.drafter
        device, dtype = inv.drafter.fc.weight.device, self.models[OWN].fc.weight.dtype
        self.rows_table = texts.rows.to(device, dtype)
        self.target_rows = self.rows_table if texts.target_rows is None else texts.target_rows.to(device, dtype)
        self.batch = FusedBatch(self.models[OWN], self.samples, self.target_rows, device, dtype)
        self.at = AnswerRows.of(self.samples, [texts.wanted[i] for i in chosen], self.batch.packed.starts, texts.steps)
        self._first: dict[Any, Tensor] = {}

    def leads(self, candidate: Candidate, least: float = 0.0) -> np.ndarray:
        """[R] drafted tokens that are right before the first wrong one. least: see `eaglelab.served.leads`."""
        if candidate.weights == RANDOM_HEAD:
            return np.zeros(len(self.at.rows), dtype=np.int64)  # right once in Vd tokens, by chance
        variant, table = candidate.variant, self.rows_table
        if candidate.plain and variant.feed in self.known:
            return self.known[variant.feed]
        if candidate.weights == RANDOM_EMBEDDING:
            table = _random(table)
        elif variant.flags is not None and variant.flags.target_embedding:
            table = self.target_rows
        drafter = self.models[TARGETS_HEAD if candidate.weights == TARGETS_HEAD else OWN]
        fused = self.batch.states(self.last) if candidate.without_fc else self.batch.fuse(variant)[0]
        chain = (replace(variant, vocabulary="d2t", label=""), candidate.weights, candidate.without_fc)  # readings of the map share it
        ids, options = draft_to_target(drafter, variant), {"token_shift": variant.token_shift, "flags": variant.flags}
        lead, self._first[chain] = leads(
            drafter, self.batch.packed, fused, table, self.at, ids, first=self._first.get(chain), least=least, **options
        )
        return lead

    def walks(self, lead: np.ndarray) -> list[list[AnswerWalk]]:
        """The walk through each answer of each sample."""
        return [self.at.walks(i, lead) for i in range(len(self.samples))]


def _random(table: EmbeddingRows) -> EmbeddingRows:
    """Rows as an initialisation leaves them: N(0, 0.02), transformers' default."""
    draw = torch.randn(table.rows.shape, generator=torch.Generator().manual_seed(0)) * 0.02
    return EmbeddingRows(table.token_ids, draw.to(table.rows), "random rows")


# -- ranking ---------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scored:
    """One candidate's counts and how likely they make the server's."""

    log: np.ndarray
    """[R] by request; [1] of totals."""
    counts: tuple[ServedCounts, ...]
    """Predicted, by request or sample."""
    same: float | None
    fits: bool


class _Ranking:
    def __init__(self, inv: Investigation, texts: _Texts) -> None:
        self.inv, self.texts = inv, texts
        self.kept, rows = [], 0
        for i, sample in enumerate(texts.samples):  # as many as make one pass
            if self.kept and rows + len(sample.token_ids) > BATCH_ROWS:
                break
            self.kept.append(i)
            rows += len(sample.token_ids)

    def result(self) -> VariantFit:
        texts, notes = self.texts, list(self.texts.notes)
        exact = _Drafting(self.inv, texts, self.kept)
        looks = [_Drafting(self.inv, texts, some, first_look=True) for some in dict.fromkeys(self._about(rows) for rows in LOOK_ROWS)]
        stages = [*(look for look in looks if look.quick or look.chosen != exact.chosen), exact]
        known, scores = [], [{} for _ in stages]

        def draft(more: list[Candidate]) -> None:
            going = list(range(len(known), len(known) + len(more)))
            known.extend(more)
            for n, (stage, mine) in enumerate(zip(stages, scores, strict=True)):
                last = n == len(stages) - 1
                going += [i for i, c in enumerate(known) if last and c.roles and i not in going]
                new = progress([i for i in going if i not in mine], "deviations", unit="candidates")
                mine.update({i: self._score(stage, known[i], 0.0 if n or last else HARDLY_ANY) for i in new})
                totals = {i: s.log.sum() for i, s in mine.items()}
                near = sorted(totals, key=lambda i: -totals[i])[:FINALISTS]
                going = [i for i in near if totals[i] >= max(totals.values()) - HOPELESS]

        draft(texts.candidates)
        final = scores[-1]
        if not any(s.fits for s in final.values()):  # two faults at once
            order = sorted(range(len(known)), key=lambda i: (not known[i].roles, -scores[0][i].log.sum()))
            wirings, others = (
                [known[i] for i in order if (known[i].kind == "wiring") is own and not known[i].trained] for own in (True, False)
            )
            nearest = [c for c in others if c.kind in PAIR and not c.roles][:1]
            draft(pairs(wirings[:PAIRED], others) + pairs(wirings[PAIRED:], nearest))
        weights = dict(zip(final, likelihood.weights(np.stack([s.log for s in final.values()])), strict=True))
        found = []
        for i, c in enumerate(known):
            n = max(n for n, mine in enumerate(scores) if i in mine)
            s, best = scores[n][i], max(other.log.sum() for other in scores[n].values())
            served, rows = self._served(stages[n].chosen), len(stages[n].at.rows)
            found.append(
                Fit(c, _sum(s.counts), served, float(best - s.log.sum()), float(weights.get(i, 0.0)), s.same, s.fits and i in final, rows)
            )
        found.sort(key=lambda f: (-f.weight, f.behind, not f.candidate.roles))
        if len(self.kept) < len(texts.samples):
            notes.append(f"{len(self.kept)} of {len(texts.samples)} answers were compared")
        return VariantFit(tuple(found), self._served(self.kept), self._evidence, len(self.kept), texts.steps, tuple(notes), texts.text)

    def _about(self, most: int) -> tuple[int, ...]:
        """The first answers with this many rows together, or a few more; two at least."""
        chosen, rows = (), 0
        for i in self.kept:
            more = int((answer_mask(self.texts.samples[i]) == 1).sum())
            if not chosen or rows + more <= most * 5 // 4:  # one long answer more would double the cost
                chosen, rows = (*chosen, i), rows + more
            if rows >= most and len(chosen) > 1:
                break
        return chosen

    @property
    def _evidence(self) -> str:
        if not self.texts.requests:
            return TOTALS
        return PASSES if all(r.accepted is not None for r in self.texts.requests) else HISTOGRAMS

    def _served(self, chosen: Sequence[int]) -> ServedCounts:
        if not self.texts.requests:
            return _sum([ServedCounts.from_histogram(h.tolist(), self.texts.steps) for h in self.texts.totals])
        return _sum([self.texts.requests[i].counts(self.texts.steps) for i in chosen])

    def _score(self, drafting: _Drafting, candidate: Candidate, least: float = 0.0) -> _Scored:
        if candidate.weights == SAMPLED:
            return self._sampled(drafting, candidate)
        lead = drafting.leads(candidate, least)
        walks = drafting.walks(lead)
        counts = tuple(ServedCounts.from_accepted([n for w in mine for n in w.accepted[: w.whole]], self.texts.steps) for mine in walks)
        histograms = [_histogram([n for w in mine for n in w.accepted], self.texts.steps) for mine in walks]
        pi = likelihood.distribution(sum(histograms))
        if candidate.weights == RANDOM_HEAD:
            pi = _chance(self.inv.drafter.config.draft_vocab_size, self.texts.steps)
        if not self.texts.requests:
            return self._of_totals(histograms, pi, candidate, counts)
        return self._of_requests(drafting, lead, walks, histograms, pi, counts)

    def _sampled(self, drafting: _Drafting, candidate: Candidate) -> _Scored:
        """By the target's probabilities of the drafted tokens, over all rows of the dump's answers that have every step."""
        outcomes, histograms = {o.key: o for o in self.inv.own_replay.outcomes}, []
        for sample in drafting.samples:
            outcome = outcomes[sample.key]
            p = outcome.p_drafted[: self.texts.steps, outcome.counted.all(0)]  # [K, r]
            reached = np.vstack([np.ones_like(p[:1]), np.cumprod(p, 0), np.zeros_like(p[:1])]).sum(1)  # [K + 2]
            histograms.append(reached[:-1] - reached[1:])
        counts = tuple(ServedCounts.from_histogram([round(x) for x in h], self.texts.steps) for h in histograms)
        return self._of_totals(histograms, likelihood.distribution(sum(histograms)), candidate, counts)

    def _of_requests(self, drafting, lead, walks, histograms, pi, counts) -> _Scored:
        """Each request in turn at each noise; the likeliest noise is kept."""
        chosen = drafting.chosen
        by_noise = np.zeros((len(likelihood.NOISE), len(chosen)))
        same = passes = 0
        pairs = []
        for place, (i, mine, histogram) in enumerate(zip(chosen, walks, histograms, strict=True)):
            request, walk = self.texts.requests[i], mine[0] if mine else AnswerWalk((), 0, False)
            if request.accepted is not None:
                served, predicted = self._along(drafting, lead, place, request)
                same, passes = same + int((served == predicted).sum()), passes + len(served)
                pairs.append((int(served.sum()), int(predicted.sum()), len(served)))
                logs = [likelihood.of_passes(served, predicted, pi, e) for e in likelihood.NOISE]
            else:
                served = _cut(_padded(request.histogram, self.texts.steps), histogram, walk.cut)
                both = int(np.minimum(served, histogram).sum())
                same, passes = same + both, passes + max(int(served.sum()), int(histogram.sum()))
                weights = np.arange(len(served))
                pairs.append((int(served @ weights), int(histogram @ weights), int(served.sum())))
                logs = [likelihood.of_histogram(served, histogram, pi, e) for e in likelihood.NOISE]
            by_noise[:, place] = logs
        best = by_noise[by_noise.sum(1).argmax()]
        share = same / passes if passes else None
        return _Scored(best, counts, share, share is not None and share >= 1 - OTHER_ARITHMETIC and _level(pairs))

    def _along(self, drafting: _Drafting, lead: np.ndarray, place: int, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """(served, predicted) accepted counts of the passes whose whole draft lies inside the text, along the server's own path."""
        ends, known = drafting.at.answers[place], drafting.at.of_sample(place, lead)
        if not ends:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        (first, end), served, predicted = ends[0], [], []
        t = first - 1
        for n in request.accepted:
            if end - t - 2 < self.texts.steps:
                break
            served.append(n)
            predicted.append(known[t])
            t += n + 1
        return np.array(served, np.int64), np.array(predicted, np.int64)

    def _of_totals(self, histograms, pi, candidate, counts) -> _Scored:
        steps, mine = self.texts.steps, sum(histograms)
        served = sum(self.texts.totals)
        if candidate.weights == RANDOM_HEAD:
            mine = pi * 1e9  # known exactly
        over = max(self._over, likelihood.overdispersion(histograms))
        ratio = likelihood.homogeneity(served, mine) / over
        return _Scored(np.array([-ratio / 2]), counts, None, ratio <= likelihood.chi_squared_95(steps))

    @cached_property
    def _over(self) -> float:
        return likelihood.overdispersion(self.texts.totals) if len(self.texts.totals) >= FEW_SAMPLES else 1.0


def _level(pairs: list[tuple[int, int, int]]) -> bool:
    """Whether served and predicted accept lengths agree. pairs: (accepted, predicted, passes) by request."""
    from eaglelab.served_case import CLOSE

    passes = sum(n for *_, n in pairs)
    if not passes:
        return False
    gaps = [s - p for s, p, _ in pairs]
    gap = sum(gaps) / passes
    length = 1 + sum(p for _, p, _ in pairs) / passes
    if abs(gap) <= CLOSE * length:
        return True
    spread = float(np.sqrt(sum((g - gap * n) ** 2 for g, (*_, n) in zip(gaps, pairs, strict=True)) * len(pairs) / max(1, len(pairs) - 1)))
    return len(pairs) >= FEW_SAMPLES and abs(gap) <= Z95 * spread / passes


def _histogram(accepted: list[int], steps: int) -> np.ndarray:
    """[K + 1]"""
    return np.bincount(np.array(accepted, np.int64), minlength=steps + 1)


def _padded(histogram: Sequence[int], steps: int) -> np.ndarray:
    return np.array([*histogram, *[0] * (steps + 1 - len(histogram))][: steps + 1])


def _cut(served: np.ndarray, predicted: np.ndarray, cut: bool) -> np.ndarray:
    """Without the pass that the end of the text cuts, in the place where there is one more than predicted."""
    if not cut or served.sum() != predicted.sum() + 1:
        return served
    less = served.copy()
    less[int((served - predicted).argmax())] -= 1
    return less


def _chance(draft_vocab_size: int, steps: int) -> np.ndarray:
    """[K + 1] of a head that is right once in Vd tokens."""
    p = 1 / draft_vocab_size
    return np.array([p**k * (1 - p) for k in range(steps)] + [p**steps])


def _sum(counts: Sequence[ServedCounts]) -> ServedCounts:
    return sum(counts[1:], counts[0])
