"""What the loop counted and how long it took: verify pass by verify pass, beside plain decoding of the same prompts in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import ratio_interval
from eaglelab.served.counts import ServedCounts
from eaglelab.served.recording import Recording, Request, Session
from eaglelab.timing.phases import Phase
from eaglelab.timing.setting import Setting
from eaglelab.wiring import Boundary

if TYPE_CHECKING:
    import pandas as pd

    from eaglelab.timing.measured import Measured

OWN = "milliseconds of this loop (eager PyTorch, one request at a time, no graphs); they say nothing about an engine's"
"""Said wherever its times are."""
SPLIT = (Phase.DRAFT, Phase.VERIFY, Phase.SAMPLING, Phase.DRAFT_EXTEND, Phase.OTHER)


@dataclass(frozen=True)
class VerifyPass:
    """One cycle of draft, verify, sample, draft extend. Seconds each."""

    drafted: tuple[int, ...]
    """K token ids, in the target's vocabulary."""
    accepted: int
    """The first ones of these that are the target's own choice. Counted before the answer's end cuts, as engines do."""
    kept: int
    """Tokens that the answer got: accepted + 1, fewer where it ended inside them."""
    draft: float
    """K - 1 passes of the drafter: the first token comes with the draft extend before."""
    verify: float
    sample: float
    draft_extend: float
    wall: float
    """Of the whole cycle."""

    @property
    def cut(self) -> bool:
        """The answer ended inside it: some of what it accepted, or its bonus token, was dropped."""
        return self.kept <= self.accepted

    @property
    def other(self) -> float:
        """What no phase holds: taking rejected tokens back, bookkeeping."""
        return self.wall - self.draft - self.verify - self.sample - self.draft_extend

    def seconds(self, phase: Phase) -> float:
        return dict(zip(SPLIT, (self.draft, self.verify, self.sample, self.draft_extend, self.other), strict=True))[phase]


@dataclass(frozen=True)
class Speculated:
    """One answer by speculative decoding."""

    token_ids: tuple[int, ...]
    prefill: float
    """Seconds until the first token, the drafter's prefill included."""
    passes: tuple[VerifyPass, ...]

    @property
    def seconds(self) -> float:
        """Of decoding: all tokens but the first."""
        return sum(p.wall for p in self.passes)


@dataclass(frozen=True)
class Plain:
    """One answer by greedy decoding without a drafter."""

    token_ids: tuple[int, ...]
    prefill: float
    """Seconds until the first token."""
    passes: tuple[float, ...]
    """Seconds of each further token."""

    @property
    def seconds(self) -> float:
        return sum(self.passes)


@dataclass(frozen=True)
class Difference:
    """Where the text of one answer parts from plain decoding's."""

    position: int
    """Of the answer's tokens, 0-based."""
    tokens: tuple[int | None, int | None]
    """(speculative, plain); None where the answer had ended."""
    gap: float
    """Between the two largest logits there, by a pass over the whole prefix. Near 0: rounding decides, passes over one and over K + 1
    tokens sum in another order."""


@dataclass(frozen=True)
class LoopRequest:
    """One prompt, answered both ways, as often as was asked for."""

    index: int
    """Place in the prompts."""
    prompt: tuple[int, ...]
    sample: str | None
    speculated: tuple[Speculated, ...]
    """One a round."""
    plain: tuple[Plain, ...]
    difference: Difference | None
    """None: the same text, token for token."""


@dataclass(frozen=True)
class LoopResult:
    """All prompts of one setting."""

    setting: Setting
    wiring: tuple[Boundary, ...]
    """The boundary that each place of fc was fed."""
    requests: tuple[LoopRequest, ...]
    max_new_tokens: int
    device: str
    dtype: str
    threads: int
    """torch's, on the CPU."""
    notes: tuple[str, ...] = ()
    """Prompts that were left out, and why; where the text differs."""

    # -- counts -------------------------------------------------------------------------------------------------------------

    @property
    def passes(self) -> list[VerifyPass]:
        """Verify passes of the first round: the counts are the same in each."""
        return [p for r in self.requests for p in r.speculated[0].passes]

    @property
    def counts(self) -> ServedCounts:
        """Of all verify passes, those that the end of an answer cuts included, as an engine counts them."""
        return ServedCounts.from_accepted((p.accepted for p in self.passes), self.setting.steps)

    @property
    def accept_length(self) -> float | None:
        return self.counts.accept_length

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % of the accept length by request, no more than a cycle can give; None for fewer than two."""
        answered = [r.speculated[0].passes for r in self.requests if r.speculated[0].passes]
        if len(answered) < 2:
            return None
        low, high = ratio_interval([sum(p.accepted for p in passes) for passes in answered], [len(passes) for passes in answered])
        return 1 + low, min(1 + high, 1 + self.setting.steps)

    @property
    def tokens_per_pass(self) -> float | None:
        """What the answers got of each verify pass: the accept length without what their ends cut off."""
        passes = self.passes
        return sum(p.kept for p in passes) / len(passes) if passes else None

    @property
    def same_text(self) -> int:
        """Answers that are plain decoding's, token for token."""
        return sum(r.difference is None for r in self.requests)

    # -- times --------------------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        return len(self.requests[0].plain)

    def _by_round(self, of: Callable[[LoopRequest, int], tuple[int, float]]) -> tuple[float, ...]:
        """Tokens a second of each round, over all requests; empty where no answer has a second token."""
        rates = []
        for i in range(self.rounds):
            tokens, seconds = (sum(x) for x in zip(*(of(r, i) for r in self.requests), strict=True))
            rates += [tokens / seconds] if seconds else []
        return tuple(rates)

    @cached_property
    def tok_s(self) -> tuple[float, ...]:
        """Tokens a second of decoding, one number a round; prefill and the first token are left out."""
        return self._by_round(lambda r, i: (len(r.speculated[i].token_ids) - 1, r.speculated[i].seconds))

    @cached_property
    def plain_tok_s(self) -> tuple[float, ...]:
        """The same without speculation."""
        return self._by_round(lambda r, i: (len(r.plain[i].token_ids) - 1, r.plain[i].seconds))

    @property
    def speedup(self) -> tuple[float, float, float] | None:
        """(median, lowest, highest) over the rounds of tok/s with speculation over tok/s without, of the same round."""
        return _spread([a / b for a, b in zip(self.tok_s, self.plain_tok_s, strict=True)])

    @property
    def cost_ratio(self) -> float | None:
        """r: what a cycle costs in plain passes, the accept length that breaks even here. Tokens per pass over the speedup."""
        return self.tokens_per_pass / self.speedup[0] if self.speedup and self.tokens_per_pass else None

    @property
    def split(self) -> pd.DataFrame:
        """One row a phase of a cycle: phase, median_ms, low_ms, high_ms (5 to 95 % of cycles), total_ms, share (of the cycles' time), cycles."""
        import pandas as pd

        from eaglelab.timing.bench.result import Spread

        passes = [p for r in self.requests for s in r.speculated for p in s.passes]
        columns = ["phase", "median_ms", "low_ms", "high_ms", "total_ms", "share", "cycles"]
        wall, rows = sum(p.wall for p in passes), []
        for phase in SPLIT if passes else ():
            times = [1e3 * p.seconds(phase) for p in passes]
            s = Spread.of(times)
            rows.append((phase.value, s.median, s.low, s.high, sum(times), sum(times) / (1e3 * wall), s.n))
        return pd.DataFrame(rows, columns=columns)

    def median_ms(self, phase: Phase) -> float | None:
        """Of one phase, over all cycles of all rounds."""
        times = [p.seconds(phase) for r in self.requests for s in r.speculated for p in s.passes]
        return 1e3 * statistics.median(times) if times else None

    @property
    def prefill_ms(self) -> tuple[float | None, float | None]:
        """Median over prompts and rounds of the time to the first token: (with the drafter's, plain)."""
        sides = ([s.prefill for r in self.requests for s in r.speculated], [p.prefill for r in self.requests for p in r.plain])
        return tuple(1e3 * statistics.median(side) if side else None for side in sides)

    @property
    def decode_ms(self) -> float | None:
        """Median of a plain pass over one token."""
        times = [t for r in self.requests for p in r.plain for t in p.passes]
        return 1e3 * statistics.median(times) if times else None

    # -- for others -----------------------------------------------------------------------------------------------------------

    def recording(self) -> Recording:
        """What `eaglelab.served.predict` compares with the walk: each answer's tokens, and the accepted count of every verify pass."""
        s = self.setting
        session = Session(None, num_steps=s.steps, eagle_topk=s.topk, num_draft_tokens=s.draft_tokens, max_new_tokens=self.max_new_tokens)
        requests = (
            Request(r.index, r.prompt, one.token_ids, sample=r.sample, accepted=tuple(p.accepted for p in one.passes))
            for r in self.requests
            for one in r.speculated[:1]
        )
        return Recording(None, session, tuple(requests))

    def measured(self) -> tuple[Measured, ...]:
        """Rows for the cost model, of one request at a time: plain decoding, and this setting."""
        from eaglelab.timing.measured import Measured

        if not self.tok_s or not self.plain_tok_s:
            return ()
        plain, own = (statistics.median(x) for x in (self.plain_tok_s, self.tok_s))
        source, extra = "eaglelab's own loop", {"device": self.device, "dtype": self.dtype}
        return (
            Measured(1, Setting(0), plain, None, source, extra),
            Measured(1, self.setting, own, self.accept_length, source, extra),
        )

    @property
    def where(self) -> str:
        """`CPU timings, 1 thread, float32`."""
        kind = f"CPU timings, {self.threads} thread{'s' * (self.threads != 1)}" if self.device == "cpu" else self.device
        return f"{kind}, {self.dtype}"

    @property
    def summary(self) -> str:
        """In a few lines, for the command line."""
        n, counts = len(self.requests), self.counts
        if not counts.verify_steps:
            return f"{self.setting.name}: {n} answers of one token each: nothing was drafted"
        interval = f" (95 % by prompt: {self.interval[0]:.2f} to {self.interval[1]:.2f})" if self.interval else ""
        lines = [
            f"{self.setting.name} (steps-topk-draft tokens), boundaries {list(self.wiring)}, {n} prompts: accept length "
            f"{self.accept_length:.3f}{interval}, {counts.accepted:,} of {counts.verify_steps * self.setting.steps:,} drafted tokens accepted in "
            f"{counts.verify_steps:,} verify passes",
            f"{self.same_text} of {n} answers are plain decoding's, token for token",
        ]
        if self.speedup is not None:
            middle, low, high = self.speedup
            spread = f"{low:.2f} to {high:.2f} in {self.rounds} rounds" if self.rounds > 1 else "one round, so nothing tells how sure"
            lines.append(
                f"{statistics.median(self.tok_s):.1f} tok/s against {statistics.median(self.plain_tok_s):.1f} without: {middle:.2f} x "
                f"({spread}); a cycle costs {self.cost_ratio:.2f} plain passes ({self.where})"
            )
            if self.cost_ratio < 1:
                lines.append(
                    "A cycle that costs less than the plain pass within it was not measured on a quiet machine: take no speedup from this run."
                )
            lines.append("cycle: " + ", ".join(f"{r.phase} {r.median_ms:.2f} ms ({r.share:.0%})" for r in self.split.itertuples()))
        lines.append(OWN[0].upper() + OWN[1:] + ".")
        return "\n".join([*lines, *self.notes])

    def to_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting.to_json(),
            "wiring": list(self.wiring),
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "max_new_tokens": self.max_new_tokens,
            "rounds": self.rounds,
            **self.counts.to_json(),
            "interval": self.interval,
            "tokens_per_pass": self.tokens_per_pass,
            "same_text": [self.same_text, len(self.requests)],
            "tok_s": list(self.tok_s),
            "plain_tok_s": list(self.plain_tok_s),
            "speedup": self.speedup,
            "cost_ratio": self.cost_ratio,
            "split": self.split.to_dict("records"),
            "prefill_ms": dict(zip(("speculative", "plain"), self.prefill_ms, strict=True)),
            "decode_ms": self.decode_ms,
            "requests": [_request(r) for r in self.requests],
            "times_are": OWN,
            "notes": list(self.notes),
        }


def _request(r: LoopRequest) -> dict[str, Any]:
    one, apart = r.speculated[0], r.difference
    return {
        "request": r.index,
        "sample": r.sample,
        "prompt_tokens": len(r.prompt),
        "token_ids": list(one.token_ids),
        "accepted": [p.accepted for p in one.passes],
        "cut": bool(one.passes) and one.passes[-1].cut,
        "difference": None if apart is None else {"position": apart.position, "tokens": list(apart.tokens), "gap": apart.gap},
    }


def _spread(values: Sequence[float]) -> tuple[float, float, float] | None:
    """(median, lowest, highest)."""
    return (statistics.median(values), min(values), max(values)) if values else None
