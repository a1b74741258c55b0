"""States that vLLM's hidden-states connector wrote to a file, named in the answer (`kv_transfer_params.hidden_states_path`; 0.32.0,
kv_connector/v1/example_hidden_states_connector.py:446-515). The file may still be written when the answer comes: its writer holds a lock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eaglelab.capture.write import CaptureError
from eaglelab.dumps.containers import load_file
from eaglelab.dumps.layouts.vllm import VllmStates

WAIT = 60.0
"""Seconds that a file is waited for."""
HOW = "start it with the extract_hidden_states method and a hidden-states connector (docs/capture.md)"


def read_extracted(named: Any, tokens: Sequence[int], wait: float = WAIT) -> list[Tensor]:
    """S tensors [T, H] of the file that an answer names. Raises CaptureError, DumpError where it is absent, cut, or of other tokens."""
    if not isinstance(named, str) or not named:
        raise CaptureError(f"the answer names no file of states: is this server one that extracts them? If not, {HOW}")
    path = Path(named)
    _wait_for(path, wait)
    sample = VllmStates().sample(path.name, load_file(path), path, path.parent)
    if tuple(sample.token_ids.tolist()) != tuple(tokens):
        raise CaptureError(f"{path} holds {len(sample.token_ids)} tokens that are not the {len(tokens)} that were sent")
    short = [len(slot) for slot in sample.slots if len(slot) != len(tokens)]
    if short:
        raise CaptureError(f"{path} holds {short[0]} rows for {len(tokens)} tokens; start the server with --no-enable-prefix-caching")
    return [slot.clone() for slot in sample.slots]


def _wait_for(path: Path, wait: float) -> None:
    """Until the file is there and its writer has let go of the lock beside it."""
    import fcntl

    lock, end = path.with_name(path.name + ".lock"), time.monotonic() + wait
    while True:
        if path.is_file():
            if not lock.is_file():
                return
            with open(lock, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return
                except OSError:
                    pass
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    if not path.is_file() and not path.parent.is_dir():
        raise CaptureError(f"{path} is on the server's machine: run this there, or give it a folder that both see (shared_storage_path)")
    raise CaptureError(f"{path} was not written within {wait:g} s: look into the server's log for 'Hidden-states write failed'")
