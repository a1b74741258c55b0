"""The phases of a speculative cycle, and what a table of phases looks like.

A *cycle* is one pass of a rank's scheduler loop that verifies: drafting, the target's verify pass, sampling, draft extend. Its time is the wall
time from its begin to the begin of the next one (of the last: to its own end). Every instant of it belongs to exactly one phase, so that the
phases of a cycle sum to its wall time.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    VERIFY = "verify"  # the target's pass over the drafted tokens
    DRAFT = "draft"  # the drafter's own steps, the building of a tree included
    DRAFT_EXTEND = "draft extend"  # the drafter's pass over what was accepted
    SAMPLING = "sampling"  # accept or reject, penalties, top-k and top-p
    COMMUNICATION = "communication"  # collectives that nothing else hides, wherever they run
    PREFILL = "prefill"  # prompts, of the target and of the drafter
    DECODE = "decode"  # a target's pass without drafted tokens
    OTHER = "other"  # known and none of these: scheduling, copies
    HOST_GAP = "host gap"  # the device has nothing to do and waits for the host
    UNATTRIBUTED = "unattributed"  # work that no span claims: shown, never spread over the rest


COLUMNS = {phase: f"{phase.replace(' ', '_')}_ms" for phase in Phase}
"""Each phase's column in a table with one row a cycle."""
