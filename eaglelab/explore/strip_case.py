"""What the token strip shows of a case: samples under its feeds, lines of marks, what tokens say. Computed when asked for; the last few are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglelab.investigation import NotGiven
from eaglelab.replay.strip import Line, RowDrafts, Strip
from eaglelab.text import token_texts

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation
    from eaglelab.replay import Variant

STEP, WALK = "one step of every row", "the walk of a greedy engine"
"""Kinds of lines."""
KEPT = 4
"""Samples whose outcomes and draft states are kept."""


class StripCase:
    """The replay of one case, sample by sample."""

    def __init__(self, inv: Investigation) -> None:
        """Raises NotGiven where there is no replay, and the error of what cannot be used."""
        self.inv, self.own = inv, inv.own_replay
        self.feeds, self.no_engine = _feeds(inv)
        try:
            self.tokenizer, self.no_text = inv.tokenizer, ""
        except (NotGiven, ValueError) as reason:
            self.tokenizer, self.no_text = None, f"Tokens are shown as ids: {reason}."
        self._names: dict[int, str] = {}
        self._kept: dict[tuple[int, int], tuple[Strip, RowDrafts]] = {}
        self._last_line: tuple[Any, Line] | None = None

    @property
    def judged(self) -> bool:
        """Whether the target's own choices are what counts as right."""
        return self.inv.judge.head is not None

    def strip(self, sample: int, feed: int = 0) -> Strip:
        """One sample under one feed (0: the dump's)."""
        return self.opened(sample, feed)[0]

    def opened(self, sample: int, feed: int) -> tuple[Strip, RowDrafts]:
        """The same, with the drafter's choices at its rows."""
        if (sample, feed) not in self._kept:
            samples = self.inv.replay_samples if feed else self.inv.samples
            text, variant = samples[sample], self.feeds[feed]
            result = self.inv.replay_of([variant], samples=[text], confidences=True)[0].outcomes[0] if feed else self.own.outcomes[sample]
            strip = Strip.of(result, text, self.inv.judge.answers([text])[0])
            while len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[sample, feed] = strip, self.inv.row_drafts(variant, text)
        return self._kept[sample, feed]

    def line(self, sample: int, feed: int, kind: str, step: int) -> Line:
        """One sample's marks, at a step or along the walk (which has no step)."""
        key = (sample, feed, kind, step if kind == STEP else 0)
        if self._last_line is None or self._last_line[0] != key:
            strip = self.strip(sample, feed)
            self._last_line = key, strip.at_step(step) if kind == STEP else strip.along_walk()
        return self._last_line[1]

    def texts(self, ids: Iterable[int]) -> list[str]:
        """What tokens say; each is asked for once."""
        ids = [int(i) for i in ids]
        new = list(dict.fromkeys(i for i in ids if i not in self._names))
        self._names |= dict(zip(new, token_texts(self.tokenizer, new), strict=True))
        return [self._names[i] for i in ids]

    def rejections(self, sample: int, feed: int, kind: str, step: int) -> np.ndarray:
        """[n] rows at which something drafted is wrong, at one step or in the walk."""
        strip = self.strip(sample, feed)
        return strip.rejections(step) if kind == STEP else strip.walk_rejections()


def _feeds(inv: Investigation) -> tuple[list[Variant], str]:
    """The dump's feed, and the engine's where it is another one; else why there is none."""
    try:
        feeds = inv.feeds
    except (NotGiven, ValueError) as reason:
        return [inv.dump_feed], f"Without the engine's feed: {reason}."
    if feeds.engine is None:
        return [feeds.dump], f"Without the engine's feed: {feeds.engine_reason}."
    if feeds.engine.feed == feeds.dump.feed:
        return [feeds.dump], "The engine feeds what the dump holds: there is one feed."
    return [feeds.dump, feeds.engine], ""
