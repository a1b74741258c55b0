"""The drafter run alone on samples: all positions at once, all variants, ranked."""

from eaglelab.replay.answers import Judge, TargetHead
from eaglelab.replay.race import race, rank_feeds
from eaglelab.replay.rank import Ranking, difference, rank, sample_interval
from eaglelab.replay.run import Replay, SampleOutcome, replay
from eaglelab.replay.variants import EMBEDDING, Variant, other_choices, places_changed, slot_orders, with_embedding

__all__ = [
    "EMBEDDING",
    "Judge",
    "Ranking",
    "Replay",
    "SampleOutcome",
    "TargetHead",
    "Variant",
    "difference",
    "other_choices",
    "places_changed",
    "race",
    "rank",
    "rank_feeds",
    "replay",
    "sample_interval",
    "slot_orders",
    "with_embedding",
]
