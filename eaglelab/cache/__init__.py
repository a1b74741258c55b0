"""Results that were computed once, in the user's cache folder, by the content of what they depend on.

    inv = Investigation(case)                 # computes everything
    inv.results = open_results(inv)           # as `nb.investigate` does: what the cache has is taken from there
    inv.own_replay
    inv.results.used                          # the replay on the dump's feed (computed 2026-11-30 20:11 UTC, 3.1 s)

`key` is what a result depends on, `inputs` the content of files, `codec` results as bytes, `folder` the place on disk, `unfinished` what an
interrupted computation had done. No torch is loaded for this.
"""

from eaglelab.cache.folder import OFF, PLACE, CacheError, CacheWarning, Folder, open_folder
from eaglelab.cache.results import SINCE, Results, Use, kept, open_results
from eaglelab.cache.unfinished import Pieces, Unfinished

__all__ = [
    "OFF",
    "PLACE",
    "SINCE",
    "CacheError",
    "CacheWarning",
    "Folder",
    "Pieces",
    "Results",
    "Unfinished",
    "Use",
    "kept",
    "open_folder",
    "open_results",
]
