"""The loss mask against the text: how much trains, where spans begin and end, and which prediction a trainer's rule lets through.

l is the mask, x the text. A *span* is a run of l = 1. Places are counted from a span's first token: -1 is the token just before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import pandas as pd
import torch
from torch import Tensor

from eaglelab.dumps.sample import Sample

AHEAD = {"eagle": 2, "specforge": 2, "angelslim": 2, "speculators": 1, "modelopt": 1, "modelopt-vllm": 1}
"""l[i] = 1 trains the prediction of x[i + AHEAD], at every step. Row t predicts x[t+2+k] at step k and counts where l[t+k] is 1 (EAGLE,
SpecForge 0.2 algorithms/eagle3/model.py, AngelSlim) or l[t+1+k] (speculators 0.9 models/metrics.py, ModelOpt hf_eagle.py)."""
REACH = 6
"""Places looked at on either side of a span's start."""
NEAR = 8
"""A header that ends farther than this, and than it is long, from a span's start is not the span's own."""
ALIKE = 0.9
"""Share of spans from which a token counts as the same in all: a few odd samples do not hide a shift."""
FEW_SPANS = 4
"""Below this many spans, tokens that are the same in all of them say nothing."""
MOST_SPANS = 64
"""Spans of a sample that are looked at: a mask that flickers has one every other token."""
OWN = 0.8
"""Tokens before the mask count as the target's own answer where it chooses them this often, relative to those inside the mask."""

Said = Callable[[list[Sample], list[Tensor]], list[Tensor]]
"""What the target says after some positions of each sample: `Judge.states` and lm_head give it."""


def spans(mask: Tensor) -> list[tuple[int, int]]:
    """(start, stop) of each run of ones in a mask [T] of 0 and 1."""
    edges = torch.diff(mask.to(torch.int8), prepend=mask.new_zeros(1), append=mask.new_zeros(1))  # [T + 1]
    return list(zip((edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist(), strict=True))


def _spans_of(sample: Sample) -> list[tuple[int, int]]:
    return [] if sample.loss_mask is None else spans(sample.loss_mask)[:MOST_SPANS]


def mask_table(samples: Iterable[Sample], ends: Sequence[int] = ()) -> pd.DataFrame:
    """One row a sample: tokens, trained, share, spans, first_trained, last_trained, whole_answers, after_end.

    ends: ids of end-of-turn tokens; without them the last two columns are missing values. whole_answers: spans that hold, or are
    followed by, such a token; after_end: trained tokens behind the first one of their span. A mask that is unknown has missing values.
    """
    return pd.DataFrame([_row(s, set(ends)) for s in samples], columns=COLUMNS).astype(
        {
            **dict.fromkeys(("tokens", "trained", "spans", "first_trained", "whole_answers", "after_end"), "Int64"),
            "last_trained": "boolean",
        }
    )


COLUMNS = ["sample", "tokens", "trained", "share", "spans", "first_trained", "last_trained", "whole_answers", "after_end"]


def _row(sample: Sample, ends: set[int]) -> dict:
    mask, ids = sample.loss_mask, sample.token_ids.tolist()
    row = {"sample": sample.key, "tokens": len(ids)}
    if mask is None or not ids:
        return row
    found, trained = spans(mask), int(mask.sum())
    row |= {"trained": trained, "share": trained / len(ids), "spans": len(found), "last_trained": bool(mask[-1])}
    if found:
        row["first_trained"] = found[0][0]
    if ends:
        places = [next((i for i in range(a, b) if ids[i] in ends), None) for a, b in found]
        row["after_end"] = sum(b - 1 - end for (_, b), end in zip(found, places, strict=True) if end is not None)
        row["whole_answers"] = sum(end is not None or (b < len(ids) and ids[b] in ends) for (_, b), end in zip(found, places, strict=True))
    return row


def around_start(samples: Sequence[Sample], said: Said | None = None, reach: int = REACH) -> pd.DataFrame:
    """The tokens at each place around the spans' starts, over all spans: place, n, token (the commonest), same (spans that have it),
    and with `said` agrees, asked: how often the text is what the target says there.
    """
    held: dict[int, list[int]] = {place: [] for place in range(-reach, reach)}
    agrees: Counter[int] = Counter()
    asked: Counter[int] = Counter()
    masked = [s for s in samples if s.loss_mask is not None]
    starts = [[a for a, _ in _spans_of(s)] for s in masked]
    places = [[(a + p, p) for a in mine for p in held if 0 <= a + p < len(s.token_ids)] for s, mine in zip(masked, starts, strict=True)]
    for sample, mine in zip(masked, places, strict=True):
        for position, place in mine:
            held[place].append(int(sample.token_ids[position]))
    if said is not None:
        before = [[(i, p) for i, p in mine if i > 0] for mine in places]  # nothing is said of a sample's first token
        answers = said(masked, [torch.tensor([i - 1 for i, _ in mine], dtype=torch.int64) for mine in before])
        for sample, mine, tokens in zip(masked, before, answers, strict=True):
            for (position, place), token in zip(mine, tokens.tolist(), strict=True):
                asked[place] += 1
                agrees[place] += token == int(sample.token_ids[position])
    rows = []
    for place, tokens in held.items():
        token, same = Counter(tokens).most_common(1)[0] if tokens else (None, 0)
        rows.append({"place": place, "n": len(tokens), "token": token, "same": same, "agrees": agrees[place], "asked": asked[place]})
    table = pd.DataFrame(rows).astype({"token": "Int64"})
    return table if said is not None else table.drop(columns=["agrees", "asked"])


@dataclass(frozen=True)
class Start:
    """Where spans start, against where answers do."""

    offset: int | None
    """0: at the answer's first token; -1: one token early, in its header; 1: one token late; None: it cannot be told."""
    by: str
    """`header`: the template's own header was found before the spans; `ids`: from tokens that are the same before all of them; `` none."""
    spans: int
    """Spans that say so …"""
    of: int
    """… of all that were looked at."""
    remark: str = ""
    """What else is to be known: undecided between what, or a header that is longer than the template's."""
    counts: dict[int, int] | None = None
    """By `header` only: offset -> spans, near a header."""
    header_trains: int = 0
    """Tokens of the header that train on purpose: the whole header does, which no `offset` counts."""

    @property
    def place(self) -> int | None:
        """The first trained token, counted from the answer's first; None where that cannot be told."""
        return None if self.offset is None else self.offset - self.header_trains


def start_by_header(samples: Sequence[Sample], headers: Sequence[Sequence[int]]) -> Start:
    """Hold each span's start against the end of the nearest answer header of the chat template.

    headers: token ids of what the template writes before an answer; a span that starts where any of them ends is right.
    """
    offsets: list[tuple[int, tuple[int, ...]]] = []
    total, whole, reach = 0, 0, max([NEAR, *map(len, headers)])
    for sample in samples:
        found, ids = _spans_of(sample), sample.token_ids.tolist()
        ends = {e for header in headers for e in _ends(ids, list(header))}
        opens = {o for header in headers for o in (e - len(header) for e in _ends(ids, list(header)))}
        order = sorted(ends)
        total += len(found)
        for start, _ in found:
            i = bisect_left(order, start)
            near = min(order[max(0, i - 1) : i + 1], key=lambda e: abs(start - e), default=None)
            if near is not None and abs(start - near) <= reach:
                whole += start in opens and start != near
                offsets.append((start - near, tuple(ids[near:start])))
    if not offsets:
        return Start(None, "", 0, total, "the template's header stands before none of the spans")
    counts = Counter(offset for offset, _ in offsets)
    usual, n = counts.most_common(1)[0]
    by_offset = dict(sorted(counts.items()))
    if n < ALIKE * len(offsets):
        return Start(None, "header", n, total, "the spans start at different places", by_offset)
    if n < ALIKE * total:
        return Start(None, "header", n, total, "the template's header stands before some of the spans only", by_offset)
    if usual < 0 and whole >= ALIKE * len(offsets):
        return Start(0, "header", n, total, "the whole header trains too", by_offset, -usual)
    between = Counter(tokens for offset, tokens in offsets if offset == usual)
    if usual and n < FEW_SPANS:
        return Start(None, "header", n, total, f"{usual:+d} from the template's header, in too few spans to say it of all", by_offset)
    if usual > 0 and between.most_common(1)[0][1] >= ALIKE * n:
        return Start(0, "header", n, total, f"the same {usual} tokens stand between the template's header and the mask", by_offset)
    return Start(usual, "header", n, total, "", by_offset)


def against_ends(start: Start, samples: Sequence[Sample], headers: Sequence[Sequence[int]], ends: Sequence[int]) -> Start:
    """A start that looks right held against the spans' ends: where nearly all whole answers end beside the token that ends the turn, on one
    side, it does not stay so.

    As many tokens off at both ends is a mask that is shifted as a whole. Else it is undecided. Rules that leave that token out, or train the
    line end behind it, are usual: behind a header that ends where the span starts, only an end that is farther away counts.
    """
    if start.offset != 0:
        return start
    certain = start.by == "header" and not start.remark
    counts = end_offsets(samples, ends)
    total = sum(counts.values()) - counts.pop(None, 0)
    for beside in ({k: n for k, n in counts.items() if k < 0}, {k: n for k, n in counts.items() if k > 0}):
        if sum(beside.values()) < max(FEW_SPANS, ALIKE * total):
            continue
        usual = max(beside, key=beside.get)
        if certain and usual >= -1:
            continue
        both = sum(_start_off_by(sample, headers, usual) for sample in samples)
        if beside[usual] >= ALIKE * total and both >= max(FEW_SPANS, ALIKE * start.of):
            return replace(start, offset=usual, spans=both, remark="", header_trains=0)
        where = (
            f"{sum(beside.values())} of {total} whole answers' spans end {'before' if usual < 0 else 'behind'} the token that ends the turn"
        )
        return replace(start, offset=None, remark="; but ".join(filter(None, (start.remark, where))), header_trains=0)
    return start


def _start_off_by(sample: Sample, headers: Sequence[Sequence[int]], places: int) -> int:
    """Spans of a sample that start so many tokens from the end of any header."""
    ids = sample.token_ids.tolist()
    ends = {e for header in headers for e in _ends(ids, list(header))}
    return sum(start - places in ends for start, _ in _spans_of(sample))


def _ends(ids: list[int], header: list[int]) -> list[int]:
    """Positions just behind each occurrence of `header`."""
    size = len(header)
    return [i + size for i in range(len(ids) - size + 1) if ids[i : i + size] == header] if header else []


def start_by_ids(around: pd.DataFrame) -> Start:
    """Without a template: a header's tokens are the same before all spans, and answers differ. So the run of tokens that are the same
    should end just before the mask. around: `around_start`'s table.

    A run that ends inside the mask may be a header or answers that begin alike: undecided. One that ends earlier means tokens of the answer
    left out, where the target itself says them as often as those inside the mask (its own text); else it stays undecided too.
    """
    table = around.set_index("place")
    n = int(table["n"].max()) if len(table) else 0
    alike = {p for p in table.index if table["n"][p] >= max(FEW_SPANS, ALIKE * n) and table["same"][p] >= ALIKE * table["n"][p]}
    runs_end = [p for p in alike if p - 1 in alike and p + 1 not in alike]
    if not runs_end:
        return Start(None, "", 0, n, "too few spans, or no token is the same before all of them")
    end = min(runs_end, key=lambda p: abs(p + 1))
    same, offset = int(table["same"][end]), -1 - end
    if offset == 0:
        return Start(0, "ids", same, n)
    if offset < 0:
        return Start(
            None, "ids", same, n, f"the first {-offset} trained token(s) are the same in all spans: a header's, or answers begin alike"
        )
    if "asked" in table and _said_alike(table, range(end + 1, 0)):
        return Start(offset, "ids", same, n, "the target itself says the tokens left out")
    return Start(None, "ids", same, n, f"{offset} token(s) that differ stand between what is the same in all spans and the mask")


def _said_alike(table: pd.DataFrame, places: Iterable[int]) -> bool:
    """Whether the target says the tokens at some places about as often as those inside the mask."""
    rate = {p: table["agrees"][p] / table["asked"][p] for p in table.index if table["asked"][p]}
    inside, outside = [rate[p] for p in rate if p >= 0], [rate.get(p, 0.0) for p in places]
    return bool(inside) and mean(inside) >= 0.5 and min(outside) >= OWN * mean(inside)


def end_offsets(samples: Iterable[Sample], ends: Sequence[int]) -> Counter[int | None]:
    """Where spans end, against the end-of-turn token that follows their start: 0 on it (it trains), -1 one before it, 1 one behind it;
    None: no such token follows before the next span (a truncated answer)."""
    counts: Counter[int | None] = Counter()
    for sample in samples:
        found, ids = _spans_of(sample), sample.token_ids.tolist()
        for (start, stop), (following, _) in zip(found, [*found[1:], (len(ids), 0)], strict=True):
            end = next((i for i in range(start, following) if ids[i] in ends), None)
            counts[None if end is None else stop - 1 - end] += 1
    return counts
