"""What a bench tells: a tidy table, ratios, and times for the cost model. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from eaglelab.findings import plain

if TYPE_CHECKING:
    from eaglelab.timing.bench.bandwidth import Machine

VERIFY, STEP, LAYER, HEAD, EXTEND = "verify", "draft step", "draft layer", "draft lm_head", "draft extend"
"""`verify` with one token is plain decode. A step is its layers and its lm_head (with the final norm and the choice of the token)."""
COLUMNS = (
    "what",
    "batch",
    "context",
    "tokens",
    "repeats",
    "median_ms",
    "low_ms",
    "high_ms",
    "bytes",
    "gb_s",
    "share_of_bandwidth",
    "flops",
    "tflop_s",
    "share_of_peak",
    "bound",
    "note",
)
LATENCY = 0.5
"""Below this share of the bandwidth and of the peak, neither is what the time goes into."""


@dataclass(frozen=True)
class Spread:
    """Median and 5 to 95 % of `n` measurements."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        if not len(values):
            return None
        low, high = np.percentile(values, [5, 95])
        return cls(float(median(values)), float(low), float(high), len(values))


@dataclass(frozen=True)
class Point:
    """One measured call."""

    what: str
    batch: int
    context: int
    """Rows of keys and values that each request had before the call."""
    tokens: int
    """Rows of each request that the call computes."""
    ms: tuple[float, ...]
    """One a round; empty where it could not be measured. Points of one batch and context share their rounds."""
    bytes: float
    flops: float
    note: str = ""
    graph: bool = False

    @property
    def spread(self) -> Spread | None:
        return Spread.of(self.ms)


@dataclass(frozen=True)
class BenchResult:
    """All points of one run on one device."""

    machine: Machine
    points: tuple[Point, ...]
    target: dict[str, Any] | None
    """name, num_layers, layers_in_memory, random_weights, experts (their number, the chosen) or None; None without a target."""
    drafter: dict[str, Any] | None
    """name, hidden_size, vocab_size, draft_vocab_size, random_weights; None without a drafter."""
    repeats: int
    graphs: bool = False
    notes: tuple[str, ...] = ()

    # -- tables ---------------------------------------------------------------------------------------------------------------------

    @property
    def table(self) -> pd.DataFrame:
        """One row a point; columns `COLUMNS`. Bytes and flops are counted, not measured; gb_s in 10^9 bytes a second."""
        return pd.DataFrame([self._row(point) for point in self.points], columns=COLUMNS)

    def _row(self, p: Point) -> tuple[Any, ...]:
        s = p.spread
        head = (p.what, p.batch, p.context, p.tokens, len(p.ms))
        if s is None:
            return (*head, None, None, None, p.bytes, None, None, p.flops, None, None, None, p.note)
        gb_s, tflop_s = p.bytes / s.median / 1e6, p.flops / s.median / 1e9
        shares = gb_s / self.machine.read_gb_s, tflop_s / self.machine.peak_tflop_s
        return (*head, s.median, s.low, s.high, p.bytes, gb_s, shares[0], p.flops, tflop_s, shares[1], bound(*shares), p.note)

    @property
    def ratios(self) -> pd.DataFrame:
        """One row a batch, context and n > 1: verify_over_decode with low and high (5 to 95 % of the rounds' own ratios), and n.

        draft_over_decode (c, one draft step beside plain decode) and its low and high are the same in all rows of a batch and context. None
        where a part was not measured.
        """
        rows = []
        for batch, context in sorted({(p.batch, p.context) for p in self.points}):
            decode, step = self._at(VERIFY, batch, context, 1), self._at(STEP, batch, context, 1)
            c = paired_ratio(step, decode)
            for n in sorted({p.tokens for p in self.points if p.what == VERIFY} - {1}):
                v = paired_ratio(self._at(VERIFY, batch, context, n), decode)
                rows.append((batch, context, n, *_three(v), *_three(c), v.n if v else 0))
        names = [f"{name}{end}" for name in ("verify_over_decode", "draft_over_decode") for end in ("", "_low", "_high")]
        return pd.DataFrame(rows, columns=["batch", "context", "tokens", *names, "repeats"])

    # -- for the cost model ---------------------------------------------------------------------------------------------------------

    def verify_ms(self, batch: int, tokens: int, context: int | None = None) -> float | None:
        """Median milliseconds of a verify pass. Between measured batches, contexts and tokens: linear; outside of them: None.

        context None: the longest that was measured.
        """
        return self._between(VERIFY, batch, context, tokens)

    def decode_ms(self, batch: int, context: int | None = None) -> float | None:
        """A verify pass of one token."""
        return self.verify_ms(batch, 1, context)

    def draft_step_ms(self, batch: int, context: int | None = None) -> float | None:
        """One draft step of all requests. `batch` is rows: a tree's step has batch * topk of them."""
        return self._between(STEP, batch, context, 1)

    def extend_ms(self, batch: int, rows: int, context: int | None = None) -> float | None:
        """The drafter's pass over `rows` accepted rows a request, which drafts the first token."""
        return self._between(EXTEND, batch, context, rows)

    def draft_ms(self, batch: int, steps: int, context: int | None = None, rows: int | None = None) -> float | None:
        """All drafting of one cycle: the extend over `rows` rows (default: steps + 1, as engines pad it) and steps - 1 further steps."""
        extend = self.extend_ms(batch, rows or steps + 1, context)
        step = self.draft_step_ms(batch, context) if steps > 1 else 0.0
        return None if extend is None or step is None else extend + (steps - 1) * step

    def head_share(self, batch: int, context: int) -> Spread | None:
        """Share of a draft step that its lm_head takes, of both parts' own times: half of it is what half the draft vocabulary saves at most."""
        head, layer = self._at(HEAD, batch, context, 1), self._at(LAYER, batch, context, 1)
        if head is None or layer is None:
            return None
        return Spread.of([h / (h + r) for h, r in zip(head.ms, layer.ms, strict=True) if h + r > 0])

    def _at(self, what: str, batch: int, context: int, tokens: int) -> Point | None:
        wanted = (what, batch, context, tokens)
        return next((p for p in self.points if (p.what, p.batch, p.context, p.tokens) == wanted and p.ms), None)

    def _between(self, what: str, batch: int, context: int | None, tokens: int) -> float | None:
        known = {(p.batch, p.context, p.tokens): median(p.ms) for p in self.points if p.what == what and p.ms}
        if not known:
            return None
        context = max(key[1] for key in known) if context is None else context
        return interpolate(known, (batch, context, tokens))

    # -- in words -------------------------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        from eaglelab.timing.bench.sentences import sentences

        return "\n".join(sentences(self))

    def to_json(self) -> dict[str, Any]:
        return plain(
            {
                "machine": self.machine.to_json(),
                "target": self.target,
                "drafter": self.drafter,
                "repeats": self.repeats,
                "graphs": self.graphs,
                "rows": records(self.table),
                "ratios": records(self.ratios),
                "summary": self.summary.split("\n"),
                "notes": list(self.notes),
            }
        )


def bound(share_of_bandwidth: float, share_of_peak: float) -> str:
    """`memory`, `compute`, or `latency` where neither limit is near: launches, the host, small kernels."""
    if max(share_of_bandwidth, share_of_peak) < LATENCY:
        return "latency"
    return "memory" if share_of_bandwidth >= share_of_peak else "compute"


def paired_ratio(over: Point | None, under: Point | None) -> Spread | None:
    """over / under, round by round."""
    if over is None or under is None or len(over.ms) != len(under.ms):
        return None
    return Spread.of([a / b for a, b in zip(over.ms, under.ms, strict=True) if b > 0])


def interpolate(known: dict[tuple[int, ...], float], at: tuple[int, ...]) -> float | None:
    """Linear along one axis after the other, between the nearest known places; None outside of them, or where a corner is missing."""
    if not at:
        return known.get(())
    places = sorted({key[0] for key in known})
    below = max((p for p in places if p <= at[0]), default=None)
    above = min((p for p in places if p >= at[0]), default=None)
    if below is None or above is None:
        return None
    ends = [interpolate({key[1:]: value for key, value in known.items() if key[0] == place}, at[1:]) for place in (below, above)]
    if None in ends:
        return None
    return ends[0] if below == above else ends[0] + (ends[1] - ends[0]) * (at[0] - below) / (above - below)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


def _three(spread: Spread | None) -> Iterable[float | None]:
    return (None, None, None) if spread is None else (spread.median, spread.low, spread.high)
