"""The fingerprint of a dump's slots: how large the states are, which tokens stand out, how alike the slots are.

A fingerprint describes, it names nothing: many boundaries may share a norm, and a rotated basis has equal norms. Which boundary a slot
holds is told by comparing values (`eaglelab.identify`).

    fp = fingerprint(dump.samples(32), total=len(dump))
    fp.slots     # one row a slot: n, mean, median, p5, p95 of the L2 norm, RMS, the first token apart, zero and NaN rows
    fp.tokens    # norm of every token of the first samples
    fp.massive   # tokens with a norm over 10 times their slot's median
    fp.values    # the first five values of chosen rows, to hold against another dump or a print of the engine
    fp.cosine    # slot by slot, the median over tokens

What is kept of a sample are its norms and cosines per token, 40 bytes a token at four slots.
The states are read once, in blocks that stay in cache, in their own dtype (bf16, f16, f32, fp8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from eaglelab.cache import Pieces, Unfinished
from eaglelab.dumps import Sample
from eaglelab.dumps.listing import natural
from eaglelab.dumps.rows import float_blocks, one_thread

MASSIVE = 10.0
"""A token is massive in a slot when its norm is over this many times the slot's median in its sample. Massive activations (Sun et al.
2024, arXiv 2402.17762) are few values of a few tokens, often the first, some thousand times the median; in the norm of a whole state
they show as a factor of 10 to 1000."""
VALUES = 5
TOKEN_SAMPLES = 4  # samples in the table of single tokens


@dataclass(frozen=True)
class SampleFingerprint:
    """What is kept of one sample."""

    key: str
    hidden_size: int
    slot_names: tuple[str, ...]
    token_ids: np.ndarray  # [T] int64
    norms: np.ndarray  # [T, S] float32, L2; NaN where a row holds NaN or Inf
    cosines: np.ndarray  # [T, P] float32, of the slot pairs (0, 1), (0, 2), … (S-2, S-1); NaN where a norm is 0 or NaN
    values: dict[int, np.ndarray]  # row -> [S, 5] float32, the first five values
    peaks: dict[tuple[int, int], tuple[int, float]]  # massive (row, slot) -> (channel, value) of the largest value

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row a token and slot, slot by slot, with the columns of `Fingerprint.tokens`."""
        return _token_table(self)


@dataclass(frozen=True)
class Fingerprint:
    """Fingerprints of samples; the tables are computed from them when asked for."""

    samples: tuple[SampleFingerprint, ...]
    total: int | None = None
    """How many samples the dump has, for "n of N"."""

    @cached_property
    def slots(self) -> pd.DataFrame:
        """One row a slot. n, mean, median, p5 and p95 are over usable tokens (no NaN, no Inf, not all zero) but the first of each
        sample; `first` is the median over the samples' first tokens; `mean_all` is over all usable tokens, the first too, which is
        what `states.norm(dim=-1).mean()` prints. Norms are L2; RMS = L2 / √H. Shares are of all rows."""
        rows = [self._slot_row(s) for s in range(self._num_slots)]
        return pd.DataFrame(rows, columns=SLOT_COLUMNS)

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row a token and slot of the first few samples: sample, position, token_id, slot, name, norm, rms, massive."""
        parts = [sample.tokens for sample in self.samples[:TOKEN_SAMPLES]]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=TOKEN_COLUMNS)

    @cached_property
    def massive(self) -> pd.DataFrame:
        """One row a massive token and slot, the largest ratio first: sample, position, token_id, slot, name, norm, ratio (to the slot's
        median in its sample), channel and value (the largest by magnitude), share (of the squared norm in that channel)."""
        rows = [row for sample in self.samples for row in _massive_rows(sample)]
        table = pd.DataFrame(rows, columns=MASSIVE_COLUMNS)
        return table.sort_values("ratio", ascending=False, kind="stable", ignore_index=True)

    @cached_property
    def values(self) -> pd.DataFrame:
        """The first five values of the chosen rows: sample, position, token_id, slot, name, v0 … v4."""
        rows = [
            (sample.key, row, int(sample.token_ids[row]), s, name, *map(float, sample.values[row][s]))
            for sample in self.samples
            for row in sample.values
            for s, name in enumerate(sample.slot_names)
        ]
        width = max((len(row) - 5 for row in rows), default=VALUES)
        return pd.DataFrame(rows, columns=["sample", "position", "token_id", "slot", "name", *(f"v{i}" for i in range(width))])

    @cached_property
    def cosine(self) -> pd.DataFrame:
        """[S, S] cosine between slots at the same token, the median over tokens; NaN where no token has both."""
        size = self._num_slots
        table = np.eye(size)  # [S, S]
        for p, (i, j) in enumerate(_pairs(size)):
            table[i, j] = table[j, i] = _quantile(np.concatenate([s.cosines[:, p] for s in self.samples]), 0.5)
        return pd.DataFrame(table, index=range(size), columns=range(size))

    @property
    def slot_names(self) -> tuple[str, ...]:
        return self.samples[0].slot_names if self.samples else ()

    @property
    def counted(self) -> str:
        """`32 of 100,000 samples, 41,234 tokens`."""
        tokens = sum(len(sample.token_ids) for sample in self.samples)
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{len(self.samples):,}{of} sample{'s' * ((self.total or len(self.samples)) != 1)}, {tokens:,} tokens"

    @property
    def _num_slots(self) -> int:
        return len(self.slot_names)

    def _slot_row(self, s: int) -> tuple:
        per_sample = [sample.norms[:, s] for sample in self.samples]
        norms = np.concatenate(per_sample).astype(np.float64)  # [tokens]
        is_first = np.concatenate([np.arange(len(part)) == 0 for part in per_sample])
        usable = np.isfinite(norms) & (norms > 0)
        rest, first = norms[usable & ~is_first], _quantile(norms[usable & is_first], 0.5)
        if not len(rest):  # samples of a single token
            rest = norms[usable]
        median, root = _quantile(rest, 0.5), math.sqrt(self.samples[0].hidden_size)
        massive = sum(1 for sample in self.samples for _, slot in sample.peaks if slot == s)
        return (
            *(s, self.slot_names[s], self.samples[0].hidden_size, len(self.samples), len(rest)),
            *(_mean(rest), median, _quantile(rest, 0.05), _quantile(rest, 0.95), _mean(norms[usable])),
            *(first, first / median if median else math.nan, _mean(rest) / root, median / root, massive),
            *(float(np.mean(norms == 0)), float(np.mean(~np.isfinite(norms)))),
        )


SLOT_COLUMNS = [
    *("slot", "name", "hidden", "samples", "n", "mean", "median", "p5", "p95", "mean_all"),
    *("first", "first_ratio", "rms_mean", "rms_median", "massive", "zero_share", "nan_share"),
]
TOKEN_COLUMNS = ["sample", "position", "token_id", "slot", "name", "norm", "rms", "massive"]
MASSIVE_COLUMNS = [*("sample", "position", "token_id", "slot", "name"), *("norm", "ratio", "channel", "value", "share")]


def fingerprint(
    samples: Iterable[Sample], rows: Sequence[int] = (0, 1, 2), total: int | None = None, unfinished: Unfinished | None = None
) -> Fingerprint:
    """The fingerprint of some samples, read once and one at a time.

    rows: whose first five values are kept, negative ones from the end; rows that a sample lacks are left out.
    total: how many samples the dump has, for "n of N".
    unfinished: where the samples that were read are kept if this is interrupted.
    Raises ValueError for a sample whose slots differ in length or width (`Dump.load` gives none of these).
    """
    done = Pieces() if unfinished is None else unfinished.of("norms", tuple(rows))
    keys = []
    for sample in samples:
        keys.append(sample.key)
        if sample.key not in done:
            done[sample.key] = fingerprint_sample(sample, rows)
    done.end()
    return Fingerprint(tuple(done[key] for key in sorted(set(keys), key=natural)), total)


def fingerprint_sample(sample: Sample, rows: Sequence[int] = (0, 1, 2)) -> SampleFingerprint:
    """What is kept of one sample; see `fingerprint`."""
    shapes = [tuple(slot.shape) for slot in sample.slots]
    if len(set(shapes)) > 1 or shapes[0][0] != len(sample.token_ids):
        raise ValueError(f"{sample.key}: {len(sample.token_ids)} tokens and slots of the shapes {shapes}, expected one [T, H] for all")
    norms, cosines = _norms_and_cosines(sample.slots)
    kept = dict.fromkeys(row % len(norms) for row in rows if -len(norms) <= row < len(norms))
    return SampleFingerprint(
        key=sample.key,
        hidden_size=shapes[0][1],
        slot_names=sample.slot_names,
        token_ids=sample.token_ids.numpy(),
        norms=norms,
        cosines=cosines,
        values={row: np.stack([slot[row, :VALUES].float().numpy() for slot in sample.slots]) for row in kept},
        peaks={(row, s): _peak(sample.slots[s][row]) for row, s in _massive(norms)},
    )


@one_thread()
def _norms_and_cosines(slots: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """(norms [T, S], cosines [T, P]) from the slots' Gram matrix at each token, block by block."""
    gram = torch.empty(slots[0].shape[0], len(slots), len(slots), dtype=torch.float32)  # [T, S, S]
    for start, block in float_blocks(slots):
        torch.bmm(block, block.transpose(1, 2), out=gram[start : start + len(block)])
    gram = gram.double().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        norms = np.sqrt(np.diagonal(gram, axis1=1, axis2=2))  # [T, S]
        norms = np.where(np.isfinite(norms), norms, np.nan)
        first, second = np.array(list(_pairs(len(slots))), dtype=int).reshape(-1, 2).T
        cosines = gram[:, first, second] / (norms[:, first] * norms[:, second])  # [T, P]
    return norms.astype(np.float32), np.where(np.isfinite(cosines), cosines, np.nan).astype(np.float32)


def _pairs(size: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(size) for j in range(i + 1, size)]


def _massive(norms: np.ndarray) -> list[tuple[int, int]]:
    """(row, slot) of the tokens whose norm is over `MASSIVE` times the slot's median in this sample."""
    return [(int(row), int(s)) for row, s in np.argwhere(norms > MASSIVE * _medians(norms))]


def _medians(norms: np.ndarray) -> np.ndarray:
    """[S] median norm over usable rows; NaN where there are none."""
    return np.array([_quantile(column, 0.5) for column in np.where(norms > 0, norms, np.nan).T])


def _peak(state: Tensor) -> tuple[int, float]:
    """(channel, value) of the largest value by magnitude in a state [H]."""
    values = state.float()  # [H]
    channel = int(values.abs().argmax())
    return channel, float(values[channel])


def _massive_rows(sample: SampleFingerprint) -> Iterable[tuple]:
    medians = _medians(sample.norms)
    for (row, s), (channel, value) in sample.peaks.items():
        norm = float(sample.norms[row, s])
        yield (
            *(sample.key, row, int(sample.token_ids[row]), s, sample.slot_names[s]),
            *(norm, norm / float(medians[s]), channel, value, (value / norm) ** 2),
        )


def _token_table(sample: SampleFingerprint) -> pd.DataFrame:
    tokens, slots = sample.norms.shape
    massive = np.zeros((tokens, slots), dtype=bool)  # [T, S]
    for row, s in sample.peaks:
        massive[row, s] = True
    norms = sample.norms.astype(np.float64).T.ravel()  # slot by slot
    columns = {
        "sample": sample.key,
        "position": np.tile(np.arange(tokens), slots),
        "token_id": np.tile(sample.token_ids, slots),
        "slot": np.repeat(np.arange(slots), tokens),
        "name": np.repeat(np.array(sample.slot_names, dtype=object), tokens),
        "norm": norms,
        "rms": norms / math.sqrt(sample.hidden_size),
        "massive": massive.T.ravel(),
    }
    return pd.DataFrame(columns, columns=TOKEN_COLUMNS)


def _quantile(values: np.ndarray, q: float) -> float:
    values = values[np.isfinite(values)]
    return float(np.quantile(values.astype(np.float64), q)) if len(values) else math.nan


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
