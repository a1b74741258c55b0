"""A stand-in in plain torch for SGLang's CPU kernel package, which PyPI does not carry for the CPU.

It lets `device="cpu"` with the `intel_amx` attention backend, the only CPU backend that takes EAGLE, run a Llama-type target with an
EAGLE-3 drafter, as a chain or a tree. Scheduler, drafting, verifying, metrics and HTTP server stay SGLang's own. Written from the call
sites and Triton kernels of the PyPI wheel of SGLang 0.5.23. Results are right; speed means nothing.
"""

from sgl_kernel import attention, dense, setup  # noqa: F401, they register operators
from sgl_kernel.bookkeeping import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from sgl_kernel.operators import Unsupported
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "Unsupported",
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
