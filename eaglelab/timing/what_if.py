"""What a change would give: verify faster, a longer accept length, a smaller draft vocabulary. Before and after, and what was assumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eaglelab.timing.cost import CostRow
from eaglelab.timing.errors import TimingError

if TYPE_CHECKING:
    from eaglelab.drafter.config import DrafterConfig
    from eaglelab.timing.step_time import Collectives


@dataclass(frozen=True)
class Cycle:
    """One cycle of a setting beside a pass without speculation, in milliseconds."""

    batch: int
    steps: int
    accept_length: float
    """Tokens per verify pass, the bonus token included."""
    verify_ms: float
    draft_ms: float
    rest_ms: float
    baseline_ms: float

    def __post_init__(self) -> None:
        parts = (self.verify_ms, self.draft_ms, self.rest_ms)
        if not (all(0 <= p < 1e9 for p in parts) and sum(parts) > 0 and self.baseline_ms > 0 and self.accept_length >= 1):
            raise TimingError(
                f"a cycle of verify {self.verify_ms:g}, draft {self.draft_ms:g}, rest {self.rest_ms:g} ms, baseline {self.baseline_ms:g} ms and accept "
                f"length {self.accept_length:g}: expected times of 0 or more and below 1e9, a baseline above 0, an accept length of 1 or more"
            )

    @classmethod
    def of_row(cls, row: CostRow, verify_share: float = 1.0, draft_share: float = 0.0) -> Cycle:
        """A measured row, of whose cycle the shares are known (or taken). Raises TimingError where it tells no pass time or has no baseline."""
        if row.r is None:
            raise TimingError(
                f"{row.measured.source or row.measured.setting.name}: no baseline or no accept length, so its cycle is not known"
            )
        batch, length = row.measured.batch, row.measured.accept_length
        time = 1000 * batch * length / row.measured.tok_s
        return cls.divided(batch, row.measured.setting.steps, length, time, 1000 * batch / row.baseline_tok_s, verify_share, draft_share)

    @classmethod
    def divided(
        cls, batch: int, steps: int, accept_length: float, cycle_ms: float, baseline_ms: float, verify_share: float, draft_share: float
    ) -> Cycle:
        """A cycle by its length and the shares of it. Raises TimingError for shares that cannot be."""
        if not (verify_share >= 0 and draft_share >= 0 and verify_share + draft_share <= 1 + 1e-9):
            raise TimingError(f"shares of verify {verify_share} and draft {draft_share}, expected 0 or more, and 1 at most together")
        rest = max(0.0, 1 - verify_share - draft_share)
        return cls(batch, steps, accept_length, verify_share * cycle_ms, draft_share * cycle_ms, rest * cycle_ms, baseline_ms)

    @property
    def cycle_ms(self) -> float:
        return self.verify_ms + self.draft_ms + self.rest_ms

    @property
    def break_even(self) -> float:
        return self.cycle_ms / self.baseline_ms

    @property
    def tok_s(self) -> float:
        return 1000 * self.batch * self.accept_length / self.cycle_ms

    @property
    def speedup(self) -> float:
        return self.accept_length / self.break_even

    def to_json(self) -> dict[str, float]:
        return {
            "cycle_ms": self.cycle_ms,
            "baseline_ms": self.baseline_ms,
            "accept_length": self.accept_length,
            "tok_s": self.tok_s,
            "break_even": self.break_even,
            "speedup": self.speedup,
        }


@dataclass(frozen=True)
class WhatIf:
    name: str
    before: Cycle
    after: Cycle | None
    """None where the numbers contradict the change: `assumptions` says how."""
    assumptions: tuple[str, ...]

    @property
    def text(self) -> str:
        if self.after is None:
            return f"{self.name}: {'; '.join(self.assumptions)}"
        return f"{self.name}: {self.before.speedup:.2f} x becomes {self.after.speedup:.2f} x ({self.before.tok_s:.4g} to {self.after.tok_s:.4g} tok/s)"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "before": self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "assumptions": list(self.assumptions),
            "text": self.text,
        }


def verify_faster(cycle: Cycle, by: float = 0.27, *, shared: bool = False, baseline_collective_ms: float | None = None) -> WhatIf:
    """The verify pass takes `by` less.

    shared: what was saved is saved by every pass of the target, as with collectives that are bound by latency, of which both passes have equally
    many: the baseline loses the same milliseconds, of at most `baseline_collective_ms` where that is known. Raises TimingError for a share outside
    0 to 1, and where nothing of the baseline would be left.
    """
    if not 0 <= by < 1:
        raise TimingError(f"verify faster by {by}, expected a share from 0 to below 1")
    saved = by * cycle.verify_ms
    after = replace(cycle, verify_ms=cycle.verify_ms - saved)
    assumptions = [f"verify takes {saved:.3g} ms less, draft and rest what they took", "the accept length stays"]
    if shared:
        shrinks = saved if baseline_collective_ms is None else min(saved, baseline_collective_ms)
        if shrinks >= cycle.baseline_ms:
            raise TimingError(
                f"{saved:.3g} ms saved in verify cannot all be shared with a baseline pass of {cycle.baseline_ms:.3g} ms; give the milliseconds that "
                "its collectives take"
            )
        after = replace(after, baseline_ms=cycle.baseline_ms - shrinks)
        assumptions.append(f"the cause is shared: a pass without speculation takes {shrinks:.3g} ms less as well")
    else:
        assumptions.append("the cause is verify's alone: a pass without speculation takes what it took")
    return WhatIf(f"verify {by:.0%} faster{', the baseline too' if shared else ''}", cycle, after, tuple(assumptions))


def draft_faster(cycle: Cycle, by: float = 0.5) -> WhatIf:
    """Drafting takes `by` less: a pruned lm_head, a graph over its steps. Raises TimingError for a share outside 0 to 1."""
    if not 0 <= by < 1:
        raise TimingError(f"draft faster by {by}, expected a share from 0 to below 1")
    saved = by * cycle.draft_ms
    assumptions = [f"drafting takes {saved:.3g} ms less, verify and rest what they took", "the accept length stays"]
    return WhatIf(f"draft {by:.0%} faster", cycle, replace(cycle, draft_ms=cycle.draft_ms - saved), tuple(assumptions))


def accept_longer(cycle: Cycle, by: float = 0.3) -> WhatIf:
    """The accept length grows by `by`, up to steps + 1, where every drafted token is right. Raises TimingError where it would fall below 1."""
    most = cycle.steps + 1.0
    length = min(most, cycle.accept_length + by)
    assumptions = ["a cycle takes as long as before: the time does not hang on how much of it is accepted"]
    if length < cycle.accept_length + by:
        assumptions.append(f"{cycle.steps} steps give {most:g} tokens a pass at most: counted with that")
    return WhatIf(f"accept length {by:+g}", cycle, replace(cycle, accept_length=length), tuple(assumptions))


def smaller_vocabulary(cycle: Cycle, lm_head_share: float, *, keep: float = 0.5, accept_length: float | None = None) -> WhatIf:
    """The drafter's vocabulary shrinks to `keep` of it, and with it the lm_head, whose share of the bytes of a draft step is `lm_head_share`.

    accept_length: with the smaller vocabulary, where it was replayed; None: not known, the old one is kept and said to be too high.
    """
    if not 0 <= lm_head_share <= 1 or not 0 < keep <= 1:
        raise TimingError(f"lm_head's share {lm_head_share} and {keep} kept, expected shares from 0 to 1")
    after = replace(cycle, draft_ms=cycle.draft_ms * (1 - lm_head_share * (1 - keep)), accept_length=accept_length or cycle.accept_length)
    assumptions = [
        f"a draft step takes as long as its weights take to read, {lm_head_share:.0%} of which are lm_head's; a step bound by launches saves less"
    ]
    if accept_length is None:
        assumptions.append(
            "target tokens outside the smaller vocabulary cost accept length, how much is not known: the speedup is an upper bound"
        )
    name = "half the draft vocabulary" if keep == 0.5 else f"{keep:.0%} of the draft vocabulary"
    return WhatIf(name, cycle, after, tuple(assumptions))


def what_ifs(
    rows: Sequence[CostRow],
    *,
    verify_share: float | None = None,
    draft_share: float = 0.0,
    collectives: Collectives | None = None,
    lm_head: float | None = None,
    faster: float = 0.27,
    longer: float = 0.3,
    share_source: str = "",
) -> Iterator[tuple[CostRow, WhatIf]]:
    """For the fastest setting of each group and batch size, of those that are surely faster than off where some are. verify_share, draft_share: of a cycle; None: all of it is counted as verify, which is said,
    and nothing of how much of it the baseline shares. collectives: what a baseline can lose at most where the cause is shared. lm_head: its share of a draft step (`lm_head_share`).
    share_source: who tells verify_share."""
    told = [row for row in rows if row.r is not None and not row.impossible]
    for group, batch in dict.fromkeys((row.measured.group, row.measured.batch) for row in told):
        row = max((r for r in told if (r.measured.group, r.measured.batch) == (group, batch)), key=_rank)
        cycle = Cycle.of_row(row, 1.0 if verify_share is None else verify_share, draft_share)
        bound = None if collectives is None or not row.measured.batch_told else collectives.decode_ms
        if verify_share is None:
            one = verify_faster(cycle, faster)
            said = f"{share_text(None)}: the most that it can give"
            yield row, replace(one, name=f"{one.name} (at most)", assumptions=(*one.assumptions, said))
        else:
            one = verify_faster(cycle, faster)
            yield row, replace(one, assumptions=(*one.assumptions, share_text(verify_share, share_source)))
            try:
                yield row, verify_faster(cycle, faster, shared=True, baseline_collective_ms=bound)
            except TimingError as error:
                yield row, WhatIf(f"verify {faster:.0%} faster, the baseline too", cycle, None, (str(error),))
        yield row, accept_longer(cycle, longer)
        if draft_share and lm_head is not None:
            yield row, smaller_vocabulary(cycle, lm_head)


def _rank(row: CostRow) -> tuple[bool, float]:
    """In the order of recommendations: a noisy winner comes behind a sure one."""
    return row.speedup_interval is not None and row.speedup_interval[0] > 1, row.speedup


def share_text(verify_share: float | None, source: str = "") -> str:
    """What is counted as verify, and who says so."""
    if verify_share is None:
        return "all of a cycle is counted as verify, since nothing tells its share"
    return f"verify takes {verify_share:.1%} of a cycle{f', by {source}' if source else ''}"


def lm_head_share(config: DrafterConfig) -> float:
    """Of the weights that one draft step reads: all but the embedding (a row), the maps, and fc (once a cycle)."""
    from eaglelab.drafter.shapes import expected_tensors

    sizes = {name: math.prod(shape) for name, shape in expected_tensors(config).items()}
    read = {name: n for name, n in sizes.items() if name.split(".")[0] not in ("embed_tokens", "d2t", "t2d", "fc", "fc_norm", "input_norm")}
    return read["lm_head.weight"] / sum(read.values())
