"""The accept length of every setting, from the drafter alone: what a cost model needs before anything is served with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from eaglelab.acceptance import ratio_interval
from eaglelab.cache import kept
from eaglelab.timing.setting import Setting

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation
    from eaglelab.replay import Judge, Replay
    from eaglelab.replay.tree import TreeReplay

DEEPEST = 7
"""Steps of the longest chain that is replayed: as far as SGLang's adaptive table goes (0.5.23, speculative/adaptive_spec_params.py)."""

SAYS_THE_TEXT = 0.8
"""Share of the text that lm_head says from a slot which is the last state without doubt, in a text that the target wrote."""


@dataclass(frozen=True)
class Expected:
    """An accept length, tokens per verify pass with the bonus token, and its 95 % interval over other samples like these."""

    accept_length: float
    low: float
    high: float
    """Both are the value itself where there are too few samples for an interval."""
    source: str


def of_counts(accepted: Sequence[Sequence[int]], source: str) -> Expected | None:
    """From the accepted drafted tokens of each verify pass, one list a sample. None without a pass."""
    told = [(len(passes) + sum(passes), len(passes)) for passes in accepted if len(passes)]
    if not told:
        return None
    tokens, passes = zip(*told, strict=True)
    value = sum(tokens) / sum(passes)
    low, high = ratio_interval(tokens, passes)
    if not low <= value <= high or high == float("inf"):
        low = high = value
    return Expected(value, max(1.0, low), high, source)


class ReplayedAcceptance:
    """`acceptance(setting)` by the walk of the replay on the dump's feed: chains of up to `DEEPEST` steps, and SGLang's trees."""

    def __init__(self, inv: Investigation) -> None:
        self.inv = inv
        self._trees: dict[Setting, Expected | None] = {}
        self._replayed: dict[int, dict[int, Expected | None]] = {}

    def __call__(self, setting: Setting) -> Expected | None:
        """None where the setting cannot be replayed, or no answer is long enough. Raises NotGiven without a dump and a drafter."""
        if setting.off:
            return Expected(1.0, 1.0, 1.0, "one token a pass")
        if setting.chain:
            return self._chains(self.inv.steps if setting.steps <= self.inv.steps else DEEPEST).get(setting.steps)
        if setting not in self._trees:
            self._trees[setting] = self._tree(setting)
        return self._trees[setting]

    @property
    def _source(self) -> str:
        return f"the drafter alone on {len(self.inv.samples)} samples, boundaries as in the dump"

    @cached_property
    def _judge(self) -> Judge:
        """The case's own; where lm_head says the text from the last slot, that slot needs no comparison with the target's forward (minutes) first."""
        from eaglelab.opened import NotGiven
        from eaglelab.replay import Judge

        try:
            state = self.inv.last_state
        except (NotGiven, ValueError):
            return self.inv.judge
        says = state.rate("as it is" if state.normed else "normed") or 0.0
        if state.normed is None or says < SAYS_THE_TEXT or self.inv.head is None:
            return self.inv.judge
        return Judge(self.inv.dump.feed.last, self.inv.head, measure=lambda: state)

    def _chains(self, deepest: int) -> dict[int, Expected | None]:
        """One replay serves all: a walk of k steps asks for the first k only. The case's own is taken where it was made anyway."""
        from eaglelab.replay.walk import walk_sample

        if deepest not in self._replayed:
            made = vars(self.inv).get("own_replay") if deepest == self.inv.steps else None
            replayed = made or self._replay(deepest)
            found: dict[int, Expected | None] = {}
            for k in range(1, deepest + 1):
                walks = [
                    walk_sample(o.rows, o.counted[:k], o.right[:k], s.loss_mask)
                    for o, s in zip(replayed.outcomes, self.inv.samples, strict=True)
                ]
                found[k] = None if any(w is None for w in walks) else of_counts(walks, self._source)
            self._replayed[deepest] = found
        return self._replayed[deepest]

    @kept("the replay of long chains")
    def _replay(self, deepest: int) -> Replay:
        return self.inv.replay_of([self.inv.dump_feed], steps=deepest, judge=self._judge)[0]

    @kept("the replay of draft trees")
    def _tree_replay(self, steps: int, topk: int, draft_tokens: int) -> TreeReplay | None:
        return self.inv.tree_replay(steps=steps, topk=topk, num_draft_tokens=draft_tokens, judge=self._judge)

    def _tree(self, setting: Setting) -> Expected | None:
        try:
            tree = self._tree_replay(setting.steps, setting.topk, setting.draft_tokens)
        except ValueError:  # rows of the draft vocabulary are missing, or the tree cannot be
            return None
        if tree is None or tree.walk is None:
            return None
        return of_counts([o.accepted for o in tree.outcomes], self._source)
