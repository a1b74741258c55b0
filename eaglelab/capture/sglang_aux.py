"""States that an SGLang server returns with an answer (`return_hidden_states`), checked row by row.

`meta_info["hidden_states"]` is [[a row for each prompt token that was run], row, …] (0.5.23, scheduler_components/batch_result_processor.py:
307-341, 426-445): prompt tokens from the cache or an earlier chunk have none. A row is K * H numbers, the aux states side by side in the
order of the layers. JSON carries bf16 exactly, at some 20 bytes a number and five times that in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from eaglelab.capture.write import CaptureError
from eaglelab.dumps.sglang_responses import state_rows
from eaglelab.live.server import Generated


def rows_of(answer: Generated, tokens: int, info: Mapping[str, Any]) -> Tensor:
    """[T, K * H] float32 for the `tokens` tokens that were sent. Raises CaptureError for fewer rows, DumpError for no rows of numbers."""
    states = state_rows(answer.hidden_states, "the answer", [])  # [T or more, K * H]
    if len(states) >= tokens:
        return states[:tokens]  # later rows are of new tokens
    raise CaptureError(f"{len(states)} rows came for {tokens} tokens: {_why(answer, tokens, info)}")


def _why(answer: Generated, tokens: int, info: Mapping[str, Any]) -> str:
    cached, chunk = answer.meta_info.get("cached_tokens"), info.get("chunked_prefill_size")
    if cached or info.get("disable_radix_cache") is False:
        came = f"{cached} tokens came from the cache" if cached else "the radix cache is on"
        return f"{came}; start the server with --disable-radix-cache"
    if type(chunk) is int and 0 < chunk < tokens:
        return (
            f"the prompt was read in chunks of {chunk}, and only the last one is returned; start the server with --chunked-prefill-size -1"
        )
    return 'start the server with --disable-radix-cache --chunked-prefill-size -1, and ask for return_hidden_states: true, not "last"'
