"""Parity: a dump against states captured from a live engine, slot by slot and token by token. The direct proof of what a server feeds.

    found = parity(open_dump("dump"), open_dump("captured"), dump_wiring=Wiring((3, 16, 28, "final")))
    found.status, found.summary, found.wiring, found.table

A state depends on the tokens before it alone, so samples are compared over the tokens that they share from the first one on.
Relative error per token ‖captured − dumped‖ / ‖dumped‖; medians decide, since rounding is large in a few tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from eaglelab.capture.write import CaptureInfo
from eaglelab.dumps import Dump, Sample
from eaglelab.findings import Status, few
from eaglelab.wiring import Boundary, Wiring, boundary_phrase

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation

ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.01, torch.bfloat16: 0.03}
"""Median relative error up to which two states are the same, by the coarser dtype of both. bfloat16: the kernels of two engines leave 0.005
to 0.006 (vLLM against transformers, 30 layers) and up to 0.013 against float32 (SGLang; boundary 28 of 30), and it grows with depth;
neighbouring boundaries of a 61-layer target are 0.05 to 0.10 apart. float32: sums in another order, 1e-6 to 1e-4."""
COARSE = 0.10
"""The same for fp8: one rounding alone leaves about 0.03."""
NEAR = 0.30
"""Up to here a slot is near enough to be a neighbouring boundary, or the same one in another precision or of a quantised target."""
WRONG = 10
"""A row is wrong from this many times the median's limit on: in bfloat16 the worst of 529 right rows had 0.09."""
CHANGE = 0.9
"""Share of rows that must be right before and wrong after a place for rows to go wrong from there on."""
MOST_WRONG = 0.5
"""A row is wrong from here on whatever the limit: a row of zeros has 1."""
FEW = 0.01
"""Share of wrong rows up to which nothing is sure: a row whose experts are chosen by a near-tie is one."""
SAMPLE = 2
"""A sample is wrong from this many times the limit in its own median on, where the median over all samples is right."""
SHIFT_ROWS = 64
"""Rows that are looked at for a shift by one."""
STRAIGHT = 0.999
"""Cosine from which on states that differ have the same direction: they were scaled."""
MIN_ROWS = 4
"""Fewer shared tokens than this compare nothing."""


@dataclass(frozen=True)
class SlotParity:
    """One captured slot against the dump's."""

    slot: int
    expected: int | None
    """The dump's slot at the same place of its feed; None for what is no part of it, such as a last state: that decides nothing."""
    verdict: str
    """`same`, `other slot`, `near`, `rows differ`, `few rows differ`, `no match`; `not compared` without a shared row."""
    nearest: int | None = None
    """The dump's slot with the smallest median error."""
    error: float | None = None
    """Its median relative error."""
    worst: float | None = None
    cosine: float | None = None
    boundary: Boundary = None
    """By the dump's wiring, or by comparison with the target; None where neither tells."""
    row: int | None = None
    """The first row that is wrong, where the rows differ from there on."""
    sample: str | None = None
    """The captured sample that `row` is in."""
    wrong: int = 0
    """Rows that are wrong, or not numbers, where the median is right …"""
    of: int = 0
    """… of so many."""
    hint: str = ""
    """What else is seen of states that are not the same: rows one place off, another scale."""

    def sentence(self) -> str:
        holds = "" if self.boundary is None else f", {boundary_phrase(self.boundary)}"
        numbers = "" if self.error is None else f" (median error {self.error:.2g}, worst token {self.worst:.2g})"
        some = f"captured slot {self.slot} is the dump's slot {self.nearest} but for {self.wrong:,} of {self.of:,} rows, first row {self.row} of {self.sample}"
        return {
            "same": f"captured slot {self.slot} is the dump's slot {self.nearest}{holds}{numbers}",
            "other slot": f"captured slot {self.slot} is the dump's slot {self.nearest}{holds}, not its slot {self.expected}{numbers}",
            "near": f"captured slot {self.slot} is near the dump's slot {self.nearest}, further than rounding{numbers}{holds and '; it is' + holds[1:]}",
            "rows differ": some
            if self.wrong
            else f"captured slot {self.slot} is the dump's slot {self.nearest} up to row {self.row} of {self.sample} and differs from there on",
            "few rows differ": some,
            "no match": f"captured slot {self.slot} is none of the dump's slots{holds and '; it is' + holds[1:]}",
            "not compared": f"captured slot {self.slot} was not compared",
        }[self.verdict] + (self.hint and f": {self.hint}")


@dataclass(frozen=True)
class Parity:
    slots: tuple[SlotParity, ...]
    table: pd.DataFrame
    """A row for each captured slot and dump slot: samples, rows, median, p99 and worst relative error, median cosine."""
    samples: pd.DataFrame
    """A row for each captured sample: the dump's sample, rows compared of how many, why not."""
    status: Status
    """`pass`: every captured slot is the dump's at its place of the feed; `cannot_tell`: near, or nothing to compare."""
    info: CaptureInfo | None
    limit: float
    """Median relative error up to which slots are the same."""
    feed: tuple[int, ...]
    """The dump's slots that go into fc, in order."""
    uneven: str
    """Another number of slots than the dump feeds, in words; "" where they are as many."""

    @property
    def wiring(self) -> Wiring:
        """The boundaries that were captured, by evidence."""
        return Wiring(tuple(s.boundary for s in self.slots))

    @property
    def rows(self) -> int:
        return int(self.samples["rows"].sum()) if len(self.samples) else 0

    @property
    def compared(self) -> int:
        return int((self.samples["rows"] > 0).sum()) if len(self.samples) else 0

    @property
    def differences(self) -> tuple[str, ...]:
        """What is not as the dump feeds it, a clause each."""
        wrong = (s.sentence() for s in self.slots if s.expected is not None and s.verdict not in ("same", "not compared"))
        return (*([self.uneven] if self.uneven else []), *wrong)

    @property
    def summary(self) -> str:
        """One or two sentences with numbers."""
        if not self.compared:
            why = few(sorted(set(self.samples["why"])), 2, "; ") if len(self.samples) else "no captured sample could be read"
            return f"Nothing to compare: {why}."
        held, unread = int(self.samples["of"].sum()), int((self.samples["of"] == 0).sum())
        over = f"{self.rows:,} {'' if held == self.rows else f'of {held:,} '}rows of {self.compared} samples{f', {unread} more could not be read' if unread else ''}"
        if self.status is Status.PASS:
            error, worst = (max(getattr(s, n) for s in self.slots if s.expected is not None) for n in ("error", "worst"))
            return (
                f"The captured states are those of the dump: {over}, median relative error at most {error:.2g} (limit {self.limit:g}), "
                f"worst row {worst:.2g}."
            )
        return f"Of {over}: {'; '.join(self.differences)}."

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "summary": self.summary,
            "limit": self.limit,
            "feed": list(self.feed),
            "wiring": self.wiring.to_json(),
            "claimed": None if self.info is None or self.info.wiring is None else self.info.wiring.to_json(),
            "slots": [vars(s) for s in self.slots],
            "table": self.table.to_dict(orient="records"),
            "samples": self.samples.to_dict(orient="records"),
        }


def parity(
    dump: Dump, capture: Dump, max_samples: int | None = 8, *, seed: int = 0, dump_wiring: Wiring | None = None, source: Any = None
) -> Parity:
    """Compare captured samples with those of the dump that begin with the same tokens.

    max_samples: of the capture. dump_wiring: the dump's boundaries, one a slot, by which captured slots are named. source: the target, as
    `identify` takes it, for captured slots that are none of the dump's. Raises DumpError where the capture cannot be read, CaptureError for
    a broken `capture.json`.
    """
    info = CaptureInfo.load(capture.root)
    captured = list(capture.samples(max_samples, seed))
    pairs, lines, dtypes = [], [], set(_engine_dtype(info))
    find = _Finder(dump, info)
    for sample in captured:
        other, shared, why = find(sample)
        lines.append({"captured": sample.key, "dump": other and other.key, "rows": shared, "of": len(sample.token_ids), "why": why})
        if shared:
            pairs.append(_compare(sample, other, shared))
            dtypes |= {s.dtype for s in (*sample.slots, *other.slots)}
    limit = max((ROUNDING.get(d, COARSE) for d in dtypes), default=max(ROUNDING.values()))
    lines += [{"captured": key, "dump": None, "rows": 0, "of": 0, "why": f"cannot be read: {why}"} for key, why in capture.skipped.items()]
    count = len(captured[0].slots)
    feed = tuple(dump.feed.aux)
    aux = [s for s in range(count) if s != capture.feed.last]
    expected = [feed[s] if s in aux and s < len(feed) else None for s in range(count)]
    slots = tuple(_judge(s, expected[s], pairs, limit, dump_wiring) for s in range(count))
    if any(s.boundary is None for s in slots):
        named = _identified(captured, source)
        slots = tuple(s if named is None or s.boundary is not None else replace(s, boundary=named[s.slot]) for s in slots)
    columns = ["captured", "dump", "rows", "of", "why"]
    uneven = ""
    if len(aux) < len(feed) or (len(aux) > len(feed) and (info is None or info.way != "extract")):  # vLLM extracts what it was asked for
        uneven = f"{len(aux)} slots were captured where the dump feeds {len(feed)}"
    status = Status.FAIL if uneven and pairs else _status(slots)
    return Parity(slots, _table(pairs, dump_wiring), pd.DataFrame(lines, columns=columns), status, info, limit, feed, uneven)


def parity_of(inv: Investigation, folder: Any, max_samples: int | None = 8) -> Parity:
    """`parity` of a case's dump with a captured one; slots are named by comparison with the case's target. Raises NotGiven without a dump."""
    from eaglelab.dumps import open_dump
    from eaglelab.opened import DUMP, NotGiven

    if inv.dump is None:
        raise NotGiven("a dump", DUMP)
    try:
        wiring, source = inv.dump_wiring, inv.source
    except (NotGiven, ValueError):  # `wiring.dump` says why
        wiring, source = None, None
    return parity(inv.dump, open_dump(folder), max_samples, seed=inv.seed, dump_wiring=wiring, source=source)


@dataclass(frozen=True)
class _Pair:
    """One captured sample against one of the dump."""

    key: str
    error: np.ndarray  # [C, S, T] of C captured and S dumped slots
    cosine: np.ndarray  # [C, S, T]
    shifted: np.ndarray  # [2, C, S] median error of the captured rows against the dump's next, and its previous, rows


def _compare(ours: Sample, theirs: Sample, rows: int) -> _Pair:
    shape = (len(ours.slots), len(theirs.slots), rows)
    error, cosine = np.full(shape, np.nan), np.full(shape, np.nan)
    shifted = np.full((2, *shape[:2]), np.nan)
    for s, slot in enumerate(theirs.slots):
        b = slot[:rows].float()  # [T, H]
        norms = b.norm(dim=-1).clamp_min(1e-30)
        for c, states in enumerate(ours.slots):
            if states.shape[1] != b.shape[1]:
                continue
            a = states[:rows].float()
            error[c, s] = ((a - b).norm(dim=-1) / norms).numpy()
            cosine[c, s] = torch.nn.functional.cosine_similarity(a, b, dim=-1).numpy()
            few = min(rows, SHIFT_ROWS)
            for k, (mine, its) in enumerate(((slice(0, few - 1), slice(1, few)), (slice(1, few), slice(0, few - 1)))):
                shifted[k, c, s] = np.median(((a[mine] - b[its]).norm(dim=-1) / norms[its]).numpy())
    return _Pair(ours.key, error, cosine, shifted)


class _Finder:
    """The dump's sample that a captured one belongs to: the one noted with it, else the one that shares the most tokens from the first on."""

    def __init__(self, dump: Dump, info: CaptureInfo | None) -> None:
        self.dump, self.noted = dump, {} if info is None else info.samples
        self._by_start: dict[tuple[int, ...], list[str]] | None = None

    def __call__(self, sample: Sample) -> tuple[Sample | None, int, str]:
        """(the dump's sample, tokens shared from the first one on, why none are compared)."""
        best, most = None, 0
        for other in self._candidates(sample):
            shared = shared_tokens(sample.token_ids, other.token_ids)
            if shared > most:
                best, most = other, shared
            if shared == len(sample.token_ids):
                break
        if most < MIN_ROWS:
            return best, 0, "no sample of the dump begins with its tokens"
        return best, most, ""

    def _candidates(self, sample: Sample) -> Iterator[Sample]:
        from eaglelab.dumps import DumpError

        noted = self.noted.get(sample.key)
        keys = [noted] if noted in self.dump.keys else []
        yield from self._read(keys)
        if self._by_start is None:
            self._by_start = defaultdict(list)
            for key in self.dump.choose(MOST_SAMPLES):
                try:
                    self._by_start[_start(self.dump.read(key).token_ids)].append(key)
                except DumpError:
                    continue
        yield from self._read(k for k in self._by_start.get(_start(sample.token_ids), ()) if k not in keys)

    def _read(self, keys: Any) -> Iterator[Sample]:
        from eaglelab.dumps import DumpError

        for key in keys:
            try:
                yield self.dump.load(key)
            except DumpError:
                continue


MOST_SAMPLES = 2_000
"""Of the dump, that are looked through for a captured sample that does not say whose it is."""


def _start(token_ids: Tensor) -> tuple[int, ...]:
    return tuple(token_ids[:MIN_ROWS].tolist())


def shared_tokens(a: Tensor, b: Tensor) -> int:
    """Tokens that two sequences share from the first one on."""
    length = min(len(a), len(b))
    differ = (a[:length] != b[:length]).nonzero()
    return int(differ[0]) if len(differ) else length


def _judge(s: int, expected: int | None, pairs: Sequence[_Pair], limit: float, wiring: Wiring | None) -> SlotParity:
    if not pairs:
        return SlotParity(s, expected, "not compared")
    error = np.concatenate([p.error[s] for p in pairs], axis=1)  # [S, T over all samples]
    medians = _median(error)  # [S]
    if not np.isfinite(medians).any():
        return SlotParity(s, expected, "no match")
    d, row, sample = int(np.nanargmin(medians)), None, None
    broken = next(
        ((p.key, d2, r) for p in pairs for d2 in _likely(expected, d) if (r := first_wrong(p.error[s, d2], limit)) is not None), None
    )
    if broken is not None:
        verdict, (sample, d, row) = "rows differ", broken
    elif medians[d] <= limit:
        verdict = "same" if expected in (None, d) else "other slot"
    else:
        verdict = "near" if medians[d] <= NEAR else "no match"
    wrong, of = 0, error.shape[1]
    if verdict == "same":
        masks = [(p.key, wrong_rows(p.error[s, d], limit)) for p in pairs]
        wrong = sum(int(mask.sum()) for _, mask in masks)
        if wrong:
            odd = not np.isfinite(error[d]).all()  # which no rounding makes
            verdict = "rows differ" if odd or wrong > FEW * of else "few rows differ"
            sample, row = next((key, int(mask.argmax())) for key, mask in masks if mask.any())
    hint = (
        ""
        if verdict in ("same", "other slot")
        else _hint(s, d, pairs, limit, {key: mask for key, mask in masks if mask.all()} if wrong else {})
    )
    told = wiring[d] if wiring is not None and verdict in ("same", "other slot", "rows differ", "few rows differ") else None
    cosine = np.concatenate([p.cosine[s, d] for p in pairs])
    numbers = float(medians[d]), float(np.nanmax(error[d])), float(np.nanmedian(cosine))
    return SlotParity(s, expected, verdict, d, *numbers, told, row, sample, wrong, of, hint)


def wrong_rows(error: np.ndarray, limit: float) -> np.ndarray:
    """[T] bool of the [T] errors of one sample: rows far above the limit or no numbers; all rows where the sample's own median is."""
    wrong = _wrong(error, limit)
    return np.full_like(wrong, True) if not _median(error) <= SAMPLE * limit else wrong


def _wrong(error: np.ndarray, limit: float) -> np.ndarray:
    return ~(error <= min(WRONG * limit, MOST_WRONG))


def _hint(s: int, d: int, pairs: Sequence[_Pair], limit: float, whole: dict[str, np.ndarray]) -> str:
    """What is seen of a captured slot that is not the dump's, in words. whole: samples that are wrong as a whole."""
    pairs = [p for p in pairs if p.key in whole] or pairs
    said = [f"all of {few(sorted(whole), 3)}"] if whole else []
    by_slot = _median(np.concatenate([p.error[s] for p in pairs], axis=1))  # [S]
    other = int(np.nanargmin(by_slot))
    if whole and other != d and by_slot[other] <= limit:
        said.append(f"there it is the dump's slot {other}")
    shifted = np.median([p.shifted[:, s] for p in pairs], axis=0)  # [2, S]
    if np.nanmin(shifted, initial=np.inf) <= limit:
        place, slot = np.unravel_index(np.nanargmin(shifted), shifted.shape)
        said.append(f"its row t is row t {'+-'[place]} 1 of the dump's slot {slot}: rows are one place off")
    cosines = np.nan_to_num(_median(np.concatenate([p.cosine[s] for p in pairs], axis=1)), posinf=-1.0, nan=-1.0)  # [S]
    near = int(cosines.argmax())
    turned = (2 * max(0.0, 1 - cosines[near])) ** 0.5  # what the direction alone explains of the error
    if cosines[near] > STRAIGHT and by_slot[near] > max(limit, 2 * turned):
        said.append(f"the direction of the dump's slot {near} (cosine {cosines[near]:.4f}) in another scale")
    return ", ".join(said)


def _likely(expected: int | None, nearest: int) -> tuple[int, ...]:
    return (nearest,) if expected in (None, nearest) else (expected, nearest)


def first_wrong(error: np.ndarray, limit: float) -> int | None:
    """The row from which on the rows of one sample are wrong, after right ones. error: [T]. None where they are not so divided.

    The place is the one that divides right rows from wrong ones best; a row that is not a number is wrong.
    """
    wrong = _wrong(error, limit)
    before = np.concatenate([[0], np.cumsum(~wrong)])  # right rows before t
    after = wrong.sum() - np.concatenate([[0], np.cumsum(wrong)])  # wrong rows from t on
    t = int((before + after).argmax())
    if t < MIN_ROWS or len(error) - t < MIN_ROWS:
        return None
    return t if before[t] >= CHANGE * t and after[t] >= CHANGE * (len(error) - t) else None


def _median(error: np.ndarray) -> np.ndarray:
    """[S] over the last axis; a row that is not a number counts as infinitely wrong, a slot that was not compared stays NaN."""
    absent = np.isnan(error).all(axis=-1)
    medians = np.median(np.nan_to_num(error, nan=np.inf), axis=-1)
    return np.where(absent, np.nan, medians)


def _table(pairs: Sequence[_Pair], wiring: Wiring | None) -> pd.DataFrame:
    rows = []
    for c in range(pairs[0].error.shape[0] if pairs else 0):
        for d in range(pairs[0].error.shape[1]):
            error = np.concatenate([p.error[c, d] for p in pairs])  # [T over all samples]
            finite = error[np.isfinite(error)]
            cosine = np.concatenate([p.cosine[c, d] for p in pairs])
            rows.append(
                {
                    "captured slot": c,
                    "dump slot": d,
                    "boundary": None if wiring is None else wiring[d],
                    "samples": len(pairs),
                    "rows": len(finite),
                    "median": float(np.median(finite)) if len(finite) else None,
                    "p99": float(np.quantile(finite, 0.99)) if len(finite) else None,
                    "worst": float(finite.max()) if len(finite) else None,
                    "cosine": float(np.nanmedian(cosine)) if len(finite) else None,
                }
            )
    return pd.DataFrame(rows)


def _status(slots: Sequence[SlotParity]) -> Status:
    said = {s.verdict for s in slots if s.expected is not None} or {"not compared"}
    if said <= {"same"}:
        return Status.PASS
    return Status.CANNOT_TELL if said <= {"same", "near", "few rows differ", "not compared"} else Status.FAIL


def _identified(captured: Sequence[Sample], source: Any) -> Wiring | None:
    """The captured slots by comparison with the target; None where it is not at hand or they cannot be compared with it."""
    if source is None:
        return None
    from eaglelab.identify import identify

    try:
        return identify(captured[:4], source).wiring
    except ValueError:
        return None


def _engine_dtype(info: CaptureInfo | None) -> Iterator[torch.dtype]:
    dtype = getattr(torch, info.dtype.removeprefix("torch."), None) if info is not None and info.dtype else None
    if isinstance(dtype, torch.dtype):
        yield dtype
