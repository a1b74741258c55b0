"""Many variants compared at little cost: all of them on the beginning of each answer, and on all of it those that were not far behind there.

What is far behind is decided as the ranking itself decides, at a stricter level: a variant leaves the race only where the corrected
interval of its distance from the best leaves out 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import perm

import pandas as pd
import torch

from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample
from eaglelab.replay.answers import trained_positions
from eaglelab.replay.rank import Ranking, rank
from eaglelab.replay.run import Replay, replay
from eaglelab.replay.variants import EMBEDDING, Variant
from eaglelab.target.head import multiplies_bfloat16

FINALISTS = 2
"""How many of the best are replayed over all steps, whatever they are called."""
FIRST = 1 / 3
"""Share of each answer that everybody runs, in the arithmetic of `rough`."""
LEVEL = 0.99
"""Level of the first look: the second has its own 0.95."""
WORTH = 800
"""Trained rows below which nobody is left out: a race saves nothing there."""


def race(
    run: Callable[[Sequence[Variant], Sequence[Sample]], list[Replay]],
    variants: Sequence[Variant],
    samples: Sequence[Sample],
    *,
    step: int | None = 0,
    always: Collection[int] = (0,),
) -> tuple[Ranking, list[Replay]]:
    """Rank variants by marginal acceptance at `step` (None: by accept length).

    run: replays variants on samples. always: indices that run on everything. Returns the ranking of all, those that left the race last, with
    what the first look said of them, and all replays in the order of the variants: of the first rows alone for those that left.
    """
    if sum(int(trained_positions(s).sum()) for s in samples) < WORTH:
        replays = run(variants, samples)
        return rank(replays, step), replays
    replays = run(variants, [beginning(s) for s in samples])
    if step is None and not replays[0].counts.complete:
        replays = run(variants, samples)
        return rank(replays, step), replays
    look = rank(replays, step, level=LEVEL)
    left = [i for i in look.order if i not in look.tied and i not in always]
    stay = [i for i in range(len(variants)) if i not in left]
    for i, whole in zip(stay, run([variants[i] for i in stay], samples), strict=True):
        replays[i] = whole
    final = rank([replays[i] for i in stay], step)
    out = look.table[[i in left for i in look.order]]
    return replace(
        final, table=pd.concat([final.table, out], ignore_index=True), order=(*(stay[i] for i in final.order), *left), left=len(left)
    ), replays


def rank_feeds(
    drafter,
    samples: Sequence[Sample],
    embed,
    variants: Sequence[Variant],
    *,
    steps: int = 3,
    keep: int = FINALISTS,
    known: Sequence[Replay] = (),
    **options,
) -> tuple[Ranking, list[Replay]]:
    """Rank many variants cheaply: one step for all of them, all steps for the best few and for those that carry a label.

    known: full replays of some of the variants, which are not run again. Returns the ranking at step 0 of all variants, and the full replays
    of the finalists, best first.
    """
    full, quick = {r.variant: r for r in known}, rough(drafter)

    def run(wanted: Sequence[Variant], texts: Sequence[Sample], finalists: bool = False) -> list[Replay]:
        whole = texts is samples
        done = dict(full) if whole else {}
        new = [v for v in wanted if v not in done]
        over = {v: steps if whole and (finalists or v.label) else 1 for v in new}
        for many in sorted(set(over.values())):
            mine = [v for v in new if over[v] == many]
            model = drafter if whole else quick
            done |= {r.variant: r for r in replay(model, texts, embed, mine, steps=many, confidences=False, **options)}
        full.update({v: done[v] for v in new if over[v] == steps and whole})
        return [done[v] for v in wanted]

    named = [i for i, v in enumerate(variants) if v.label]
    ranking, _ = race(run, variants, samples, always=named)
    chosen = [variants[i] for place, i in enumerate(ranking.order) if place < keep or i in named]
    return replace(ranking, compared=_compared(variants)), run(chosen, samples, finalists=True)


def rough(drafter: Drafter) -> Drafter:
    """The drafter in the arithmetic of a first look: a copy in bfloat16 where the CPU multiplies that in half the time, else the drafter itself.

    In bfloat16 it drafts another token in a few rows of a hundred, as engines do that serve it so: too few to put anybody out of the race.
    """
    own = drafter.fc.weight
    if own.device.type != "cpu" or own.dtype != torch.float32 or not multiplies_bfloat16():
        return drafter
    with torch.device("meta"):
        other = Drafter(drafter.config)
    tensors = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in drafter.state_dict().items()}
    other.load_state_dict(tensors, strict=False, assign=True)
    return other.requires_grad_(False).eval()


def _compared(variants: Sequence[Variant]) -> str:
    """Distinct slot orders among the variants, of all that their slots allow; slots that only a labelled variant feeds are its own."""
    candidates = [v for v in variants if not v.label] or variants
    slots = {s for v in candidates for s in v.feed if s != EMBEDDING}
    feeds = {v.feed for v in variants if slots.issuperset(v.feed) and len(set(v.feed)) == len(v.feed)}
    return f"{len(feeds):,} of {perm(len(slots), len(variants[0].feed)):,} orders"


def beginning(sample: Sample, share: float = FIRST) -> Sample:
    """A sample up to the first `share` of its trained tokens."""
    trained = trained_positions(sample).nonzero()[:, 0]
    if not len(trained):
        return sample
    end = int(trained[min(len(trained) - 1, int(len(trained) * share))]) + 1
    mask = sample.loss_mask
    return replace(
        sample,
        token_ids=sample.token_ids[:end],
        slots=tuple(s[:end] for s in sample.slots),
        loss_mask=None if mask is None else mask[:end],
    )
