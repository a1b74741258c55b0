"""vLLM 0.32's ExampleHiddenStatesConnector without CUDA: it copies on CUDA streams into pinned memory, this one writes from the cache.

Given to the engine as `kv_connector_module_path`, with `kv_connector` = "CPUHiddenStatesConnector".
"""

import os

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class Done:
    """Stands for the CUDA event of a copy that is over."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class CPUHiddenStatesConnector(ExampleHiddenStatesConnector):
    def _submit_async_write(self, pending) -> None:
        """Writes hidden_states [T, ids, H] and token_ids [T] of one request, then lets go of the lock that its reader waits for."""
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (torch.arange(self._block_size)[None] + blocks[:, None] * self._block_size).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0]).contiguous().clone()
        lock = self._lock_fds.pop(pending.req_id, None)
        self._req_copy_events[pending.req_id] = Done()
        try:
            if os.path.dirname(pending.filename):
                os.makedirs(os.path.dirname(pending.filename), exist_ok=True)
            save_file({"hidden_states": states, "token_ids": pending.token_ids.clone()}, pending.filename)
        finally:
            if lock is not None:
                os.close(lock)
