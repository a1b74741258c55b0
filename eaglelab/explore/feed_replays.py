"""What the replay says of a feed: from the ranking of all feeds where it is among them, else a look at a few samples, kept."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

from eaglelab.engines.wiring_report import EngineWiring
from eaglelab.investigation import NotGiven
from eaglelab.wiring import Wiring

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation
    from eaglelab.replay import Ranking, Replay
    from eaglelab.replay.variants import Source

SECONDS = 0.1
"""A further sample is replayed within a look only while this long has not passed."""
LENGTH = "accept length over all rows"
"""Not the walk's, which a server counts: feeds are ranked on every row."""


class FeedReplays:
    """The feeds of one case's drafter. Nothing is computed before something is asked."""

    def __init__(self, inv: Investigation) -> None:
        self.inv = inv
        self._looks: dict[tuple[Source, ...], list[Replay]] = {}

    @cached_property
    def _ranked(self) -> tuple[tuple[Ranking, list[Replay]] | None, str]:
        """`inv.replays`, or None and why there is none."""
        inv = self.inv
        try:
            if inv.dump is None or inv.case.drafter.path is None:
                raise NotGiven("a dump and a drafter to replay", "`[dump] path` and `[drafter] path` name them")
            inv.check_feed()
            return inv.replays, ""
        except (NotGiven, ValueError) as reason:
            return None, f"No replay: {reason}."

    @property
    def reason(self) -> str:
        """Why nothing can be replayed; "" where it can."""
        return self._ranked[1]

    @cached_property
    def drafter_wiring(self) -> Wiring | None:
        """What the drafter fits, as far as the ranking tells."""
        try:
            return None if self._ranked[0] is None else self.inv.drafter_wiring
        except (NotGiven, ValueError):
            return None

    def short(self, fed: EngineWiring) -> str:
        """For a table's cell: the acceptance, or why it is not known."""
        if self._ranked[0] is None:
            return "no replay"
        feed, why = self._sources(fed)
        if feed is None:
            return f"not replayed: {why}"
        place = self._place(feed)
        if place is None:
            return self._look(feed)
        table = self._ranked[0][0].table
        where = "the best" if place == 0 else "not told from the best" if table["tied"].iloc[place] else "clearly behind"
        row, length = table.iloc[place], self._length(feed)
        reached = "" if length is None else f", {LENGTH} {length:.2f}"
        return f"step 0 {row['acceptance']:.1%} of {row['n']:,}{reached}: {where}"

    def text(self, fed: EngineWiring) -> str:
        """For a sentence; "" where `reason` says all."""
        if self._ranked[0] is None:
            return ""
        feed, why = self._sources(fed)
        if feed is None:
            return f"What the drafter makes of this feed cannot be replayed: {why}."
        return f"Replay of this feed ({self._words(feed)}): {self._of(feed)}."

    def _sources(self, fed: EngineWiring) -> tuple[tuple[Source, ...] | None, str]:
        if not fed.captures_boundaries:
            return None, "the states are captured without the residual"
        return self.inv.sources_of(fed.wiring)

    def _words(self, feed: tuple[Source, ...]) -> str:
        names = self.inv.replay_samples[0].slot_names
        held = len(self.inv.samples[0].slots)
        return ", ".join(s if isinstance(s, str) else f"slot {s}" if s < held else names[s] for s in feed)

    def _of(self, feed: tuple[Source, ...]) -> str:
        place, length = self._place(feed), self._length(feed)
        if place is None:
            return self._look(feed)
        row = self._ranked[0][0].table.iloc[place]
        said = f"step-0 acceptance {row['acceptance']:.1%} ({row['n']:,} tokens)"
        return said + (f", {LENGTH} {length:.2f}" if length is not None else "") + self._against(place)

    def _place(self, feed: tuple[Source, ...]) -> int | None:
        """In the ranking, from 0; None where the feed is not among the ranked."""
        return next((p for p, i in enumerate(self._ranked[0][0].order) if self.inv.variants[i].feed == feed), None)

    def _length(self, feed: tuple[Source, ...]) -> float | None:
        """The mean accept length over all rows, of the feeds that were replayed over all steps."""
        return next((r.counts.accept_length for r in self._ranked[0][1] if r.variant.feed == feed), None)

    def _against(self, place: int) -> str:
        """Where it stands among all feeds."""
        ranking = self._ranked[0][0]
        best, tied = ranking.table["acceptance"].iloc[0], len(ranking.tied)
        if ranking.note:
            return f"; {ranking.note}"
        if place == 0:
            return f"; the best of {len(ranking.order)} feeds" + (f", {tied - 1} of which cannot be told from it" if tied > 1 else "")
        how = "cannot be told from" if ranking.table["tied"].iloc[place] else "clearly behind"
        return f"; {how} the best feed, {best:.1%}"

    def _look(self, feed: tuple[Source, ...]) -> str:
        """Step 0 on the first samples, beside the dump's own feed on the same rows."""
        from eaglelab.replay import Variant

        if feed not in self._looks:
            found: list[Replay] = []
            started = time.perf_counter()
            for sample in sorted(self.inv.replay_samples, key=lambda s: len(s.token_ids)):
                if found and time.perf_counter() - started > SECONDS / 2:
                    break
                found += self.inv.replay_of([Variant(feed)], samples=[sample], steps=1)
            self._looks[feed] = found
        looked = self._looks[feed]
        keys = {o.key for r in looked for o in r.outcomes}
        n, right = (sum(int(getattr(o, part)[0].sum()) for r in looked for o in r.outcomes) for part in ("counted", "right"))
        own = [o for o in self.inv.own_replay.outcomes if o.key in keys]
        base = sum(int(o.right[0].sum()) for o in own), sum(int(o.counted[0].sum()) for o in own)
        if not n or not base[1]:
            return "no trained token in the shortest samples"
        return (
            f"step-0 acceptance {right / n:.1%} ({n:,} tokens in {len(looked)} of {len(self.inv.samples)} samples, a look at the shortest; the "
            f"dump's own feed there {base[0] / base[1]:.1%})"
        )
