"""SGLang's `/server_info` (until 0.5.6 `/get_server_info`): the accept length over a server's life, and its flags in force.

Read in 0.4.9, 0.5.3 (srt/managers/scheduler.py) and 0.5.23 (srt/managers/scheduler_components/internal_state.py): `avg_spec_accept_length` of each
data-parallel rank is the sum of accepted and bonus tokens over that of verify passes, brought up to date at each decode log line, absent before the
first, and begun anew by a flush of the cache (0.5.6 on) and by changed acceptance thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SETTINGS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "version", "decode_log_interval")
DEFINITION = "avg_spec_accept_length: accepted and bonus tokens / verify passes since the start or the last flush, the warm-up included"


def is_server_info(content: Any) -> bool:
    return isinstance(content, dict) and ("internal_states" in content or "avg_spec_accept_length" in content)


def _states(content: Mapping[str, Any]) -> list[Any]:
    states = content.get("internal_states", [content])
    return [states] if isinstance(states, dict) else states if isinstance(states, list) else []


def ranks(content: Mapping[str, Any]) -> int:
    return len(_states(content))


def accept_lengths(content: Mapping[str, Any]) -> dict[str, float]:
    """{rank: accept length} of the ranks that tell one."""
    states, found = _states(content), {}
    for rank, state in enumerate(states):
        value = state.get("avg_spec_accept_length") if isinstance(state, dict) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 1:
            found[f"DP{rank}" if len(states) > 1 else ""] = float(value)
    return found


def settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Flags in force, under SGLang's own names; 0.4 nests them in `server_args`."""
    inner = content.get("server_args")
    places = (content, inner if isinstance(inner, dict) else {})
    return {name: place[name] for name in SETTINGS for place in places if place.get(name) is not None}
