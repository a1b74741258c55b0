"""Which settings are worth a server: those whose best conceivable speedup beats the best that was measured, and no speculation at all.

Speedup = accept length / r, r being a cycle's cost in plain decode steps (`timing.cost`). Both sides are bounded by what is known so far:

- r never falls when more is drafted or verified, so a measured setting bounds every larger one from below and every smaller one from above;
  before anything is measured a cycle costs at least one plain step and a little for each drafted step.
- of a chain the accept length grows by the joint acceptance of the added step, which never rises with the step: what the last step of a
  measured chain brought bounds every further one. The replay bounds it too, until a server beats it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglelab.timing.acceptance import Expected
from eaglelab.timing.cost import CHEAPEST, CostRow, cost_ratio, cost_rows
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import Measured, MeasuredTable
from eaglelab.timing.predict import Acceptance
from eaglelab.timing.setting import Setting

OFF = Setting(0)
AUTO = "auto"
CHAINS = (1, 2, 3, 4, 5, 7)
"""Steps of the chains that `auto` considers."""
TREES = (Setting(3, 4, 8), Setting(5, 4, 8), Setting(5, 8, 32))
"""Trees that `auto` considers where the engine drafts them; the second is SGLang's own choice for a Llama target."""
CPU_NODES = 16
"""Nodes of the largest tree that `auto` considers on a CPU, whose cost grows with every token of a pass: the weights are not what it waits for."""
DRAFT_LEAST = 0.01
"""Plain decode steps that a drafted step costs at least: one layer and a head beside some 60 layers."""
NOISE = 0.05
"""Share by which a measured cost, beyond the range of its repeats, or accept length may be off when it bounds another setting's."""
OTHER_NOISE = 0.15
"""The same for a table that was measured elsewhere or before."""
WALK = 0.03
"""Share by which an engine's own accept length may lie outside of the replay's interval."""

Bounds = Callable[[int, Setting], tuple[float, float] | None]
"""(batch, setting) -> the least and the most speedup that is conceivable; None: nothing is known."""


@dataclass(frozen=True)
class Candidate:
    """One setting, and whether it gets a server."""

    setting: Setting
    tried: bool
    reason: str
    accept: Expected | None = None
    bounds: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """By batch size; high may be inf."""

    def to_json(self) -> dict[str, Any]:
        accept = None
        if self.accept is not None:
            low, high = (self.accept.low, self.accept.high) if told(self.accept) else (None, None)
            accept = {"value": self.accept.accept_length, "low": low, "high": high}
        bounds = [{"batch": b, "low": low, "high": high} for b, (low, high) in self.bounds.items()]
        return {**self.setting.to_json(), "tried": self.tried, "reason": self.reason, "accept_length": accept, "speedup": bounds}


def parse_settings(text: str) -> tuple[Setting, ...] | None:
    """`off,1-1-2,3,5-4-8`: names, or the steps of a chain; None for `auto`. Off is always among them, first. Raises TimingError."""
    if text.strip() == AUTO:
        return None
    found, expected = [OFF], "expected off, STEPS or STEPS-TOPK-DRAFT_TOKENS, as in off,2,3-1-4,5-4-8"
    words = [word for w in text.split(",") if (word := w.strip())]
    if not words:
        raise TimingError(f"--settings {text!r} names no setting; {expected}, or auto")
    for word in words:
        numbers = ["0"] if word == "off" else word.split("-")
        if len(numbers) not in (1, 3) or not all(n.isascii() and n.isdecimal() and len(n) < 5 for n in numbers):
            raise TimingError(f"--settings {word!r}: one or three numbers of at most four digits are expected; {expected}")
        numbers = [int(n) for n in numbers]
        try:
            setting = Setting(*numbers)
        except ValueError as error:
            raise TimingError(f"--settings {word!r}: {error}; {expected}") from None
        if len(numbers) == 3 and setting.chain and not setting.off and numbers[2] not in (0, setting.draft_tokens):
            raise TimingError(
                f"--settings {word!r}: a chain of {setting.steps} steps verifies {setting.draft_tokens} tokens: {setting.name}"
            )
        if setting.topk > 1 and not 2 <= setting.draft_tokens <= most_nodes(setting):
            raise TimingError(f"--settings {word!r}: such a tree has 2 to {most_nodes(setting)} nodes, the bonus token's included")
        found.append(setting)
    return tuple(dict.fromkeys(found))


def most_nodes(setting: Setting) -> int:
    """Nodes that a tree can have: topk in the first step, topk times topk in each further one, and the root (SGLang 0.5.23, eagle_utils.py)."""
    return 1 + setting.topk + (setting.steps - 1) * setting.topk**2


def auto_settings(engine: str | None) -> tuple[Setting, ...]:
    return (OFF, *(Setting(k) for k in CHAINS), *(TREES if engine != "vllm" else ()))


@dataclass
class Knowledge:
    """What was measured so far, of one environment."""

    own: list[Measured] = field(default_factory=list)
    """By this sweep."""
    before: list[Measured] = field(default_factory=list)
    """By a table that the case names: bounds costs with a wider margin, and is no result to beat."""
    joint: dict[Setting, float] = field(default_factory=dict)
    """Of measured chains: the joint acceptance of their last step, where the server told it."""
    accept: Acceptance = lambda setting: None
    """The replay's."""

    def speedups(self, batch: int) -> dict[Setting, float]:
        """Measured by this sweep: medians over repeats."""
        return {c.measured.setting: c.speedup for c in _costs(self.own, batch) if c.speedup is not None}

    def best(self, batch: int) -> tuple[Setting, float]:
        """The fastest so far; off, which is 1, at least."""
        return max([(OFF, 1.0), *self.speedups(batch).items()], key=lambda found: found[1])

    def costs(self, batch: int) -> dict[Setting, tuple[float, float]]:
        """{setting: (r's lower bound, its upper bound)} of what was measured at this batch size."""
        rows = ((c, noise) for rows, noise in ((self.before, OTHER_NOISE), (self.own, NOISE)) for c in _costs(rows, batch))
        return {c.measured.setting: _r_bounds(c, noise) for c, noise in rows if c.r is not None}

    def lengths(self, batch: int) -> dict[Setting, float]:
        rows = (c.measured for c in _costs(self.own, batch))
        return {m.setting: m.accept_length for m in rows if m.accept_length is not None}

    def bounds(self, batch: int, setting: Setting) -> tuple[float, float]:
        """The least and the most speedup that is conceivable."""
        (al_low, al_high), (r_low, r_high) = self.accept_bounds(batch, setting), self.cost_bounds(batch, setting)
        return al_low / r_high, al_high / r_low

    def cost_bounds(self, batch: int, setting: Setting) -> tuple[float, float]:
        """Of r. The upper one is inf where nothing larger was measured."""
        measured = self.costs(batch)
        lows = [low for other, (low, _) in measured.items() if _within(other, setting)]
        highs = [high for other, (_, high) in measured.items() if _within(setting, other)]
        low = max([1 + DRAFT_LEAST * setting.steps, *lows])
        return low, max(low, min(highs, default=float("inf")))

    def cost_ground(self, batch: int, setting: Setting) -> str:
        """Where the lower bound of r comes from, in words."""
        measured, (low, _) = self.costs(batch), self.cost_bounds(batch, setting)
        if not measured:
            return f"nothing is measured at batch {batch}"
        by = next((other for other, (least, _) in measured.items() if least >= low and _within(other, setting)), None)
        if by is None:
            return f"what is measured at batch {batch} says no more"
        own = any(m.setting == by and m.batch == batch for m in self.own)
        return f"{by.name}'s in {'this sweep' if own else '`[timing] table`'}, less what noise may be"

    def accept_bounds(self, batch: int, setting: Setting) -> tuple[float, float]:
        measured = self.lengths(batch)
        if setting in measured:
            return measured[setting] * (1 - NOISE), measured[setting] * (1 + NOISE)
        low, high = 1.0, float(setting.steps + 1)
        replayed = self.accept(setting)
        if replayed is not None and told(replayed) and not self.beaten(batch):
            low, high = max(low, replayed.low * (1 - WALK)), min(high, replayed.high * (1 + WALK))
        if setting.chain:
            high = min(high, self._concave(setting, measured))
        smaller = [length * (1 - NOISE) for other, length in measured.items() if _within(other, setting)]
        low = max([low, *smaller])
        return low, max(low, high)

    def _concave(self, setting: Setting, measured: Mapping[Setting, float]) -> float:
        """Of the largest measured chain below: what its last step brought, again and again."""
        chains = {s.steps: length for s, length in measured.items() if s.chain and s.steps < setting.steps}
        if not chains:
            return float("inf")
        steps = max(chains)
        length, below = chains[steps], [k for k in chains if k < steps]
        gain = self.joint.get(Setting(steps))
        if gain is None:  # the mean gain of the steps since the measured chain below is no less than the last one's
            shorter, start = (1.0, 0) if not below else (chains[max(below)], max(below))
            gain = (length - shorter) / (steps - start)
        return length * (1 + NOISE) + (setting.steps - steps) * min(1.0, max(0.0, gain) * (1 + NOISE) + 0.01)

    def beaten(self, batch: int) -> bool:
        """Whether a server accepted more than the replay thinks possible: then the replay is of another feed or other text, and no bound."""
        pairs = ((length, self.accept(s)) for s, length in self.lengths(batch).items())
        return any(a is not None and told(a) and length > a.high * (1 + WALK + NOISE) for length, a in pairs)


def told(expected: Expected) -> bool:
    """Whether an accept length comes with an interval: one sample tells no bound."""
    return expected.low < expected.high


def _costs(rows: Sequence[Measured], batch: int) -> tuple[CostRow, ...]:
    return cost_rows(MeasuredTable(tuple(m for m in rows if m.batch == batch)))


def _r_bounds(row: CostRow, noise: float) -> tuple[float, float]:
    """Of r, as far as the repeats differ, and `noise` more."""
    slow, fast = row.tok_s_range or (row.measured.tok_s,) * 2
    low, high = row.baseline_range or (row.baseline_tok_s,) * 2
    length = row.measured.accept_length
    return cost_ratio(length, fast, low) * (1 - noise), cost_ratio(length, slow, high) * (1 + noise)


def _within(one: Setting, other: Setting) -> bool:
    """Whether `one` drafts and verifies no more than `other` in every respect, so that its cycle cannot cost more."""
    return not one.off and one.steps <= other.steps and one.topk <= other.topk and one.verified <= other.verified


def decide(
    setting: Setting,
    batches: Sequence[int],
    known: Knowledge,
    *,
    asked_for: bool,
    engine: str | None,
    bounds: Bounds | None = None,
    cpu: str = "",
) -> Candidate:
    """Whether a setting gets a server now.

    asked_for: it was named, so that the model has no say. bounds: of another model, in place of `known`'s; no speedup is taken to lie above the
    accept length over `cost.CHEAPEST`. cpu: why the server is taken to run on a CPU, as in `the launch line says --device cpu`; empty: it is not.
    """
    if setting.off:
        return Candidate(setting, True, "the baseline")
    if not possible(setting, engine):
        return Candidate(setting, False, "vLLM drafts chains")
    if cpu and not asked_for and setting.verified > CPU_NODES:
        return Candidate(
            setting, False, f"{setting.verified} nodes a pass are too many for a CPU ({cpu}); --settings {setting.name} has it"
        )
    other = {b: found for b in batches if bounds is not None and (found := bounds(b, setting)) is not None}
    found = {
        b: _below(other[b], known.accept_bounds(b, setting)[1] / CHEAPEST) if b in other else known.bounds(b, setting) for b in batches
    }
    accept = known.accept(setting)
    if asked_for:
        return Candidate(setting, True, "asked for", accept, found)
    margin = {b: found[b][1] / known.best(b)[1] for b in batches}
    batch = max(margin, key=lambda b: margin[b])
    best, speedup = known.best(batch)
    (_, high), (_, length), (cost, _) = found[batch], known.accept_bounds(batch, setting), known.cost_bounds(batch, setting)
    why = f"accept length at most {length:.2f}"
    if accept is not None and told(accept) and length == accept.high * (1 + WALK):
        why += f", the replay's and {WALK:.0%}"
    if batch not in other:
        why += f", a cycle costs at least {cost:.2f} plain steps: {known.cost_ground(batch, setting)}"
    elif high < other[batch][1]:
        why += f", and no cycle costs less than {CHEAPEST} plain steps"
    what = f"{high:.2f}x at batch {batch} ({why})"
    if margin[batch] <= 1:
        beaten = "off is 1" if best.off else f"{best.name} reached {speedup:.2f}x"
        return Candidate(setting, False, f"at most {what}, where {beaten}", accept, found)
    return Candidate(setting, True, f"could reach {what}", accept, found)


def possible(setting: Setting, engine: str | None) -> bool:
    """Whether the engine drafts it."""
    return setting.chain or engine != "vllm"


def _below(bounds: tuple[float, float], most: float) -> tuple[float, float]:
    low, high = bounds
    return min(low, most), min(high, most)
