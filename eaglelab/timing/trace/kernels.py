"""What kernels' and operators' names tell: collectives, and the few that only one stage of speculation runs.

Names as in NCCL, RCCL, gloo, SGLang 0.5.23 and vLLM 0.32 with the libraries that they call (flashinfer, TensorRT-LLM, torch's symmetric memory,
mscclpp, quick reduce, DeepEP).
"""

from __future__ import annotations

import re
from functools import lru_cache

from eaglelab.timing.phases import Phase

COLLECTIVE = re.compile(
    r"(?i)\bnccl\w*Kernel|\brccl|cross_device_reduce|multimem_|nvls|quickreduce|deep_ep::|moe_?a2a|all_?to_?all|all_?reduce|all_?gather|"
    r"reduce_?scatter|lamport|sendrecv|qknorm_across_head"
)
NO_COLLECTIVE = re.compile(r"(?i)at::native|splitK|merge_attn")
"""`reduce` is in many names that no other rank hears of."""
KINDS = (
    ("reduce_scatter", re.compile(r"(?i)reduce_?scatter")),
    ("all_gather", re.compile(r"(?i)all_?gather")),
    ("all_to_all", re.compile(r"(?i)all_?to_?all|moe_?a2a|deep_ep::\w+::(dispatch|combine)|deep_ep::")),
    (
        "all_reduce",
        re.compile(r"(?i)all_?reduce|cross_device_reduce|multimem_reduce|quickreduce|lamport|one_?shot|two_?shot|nvls|across_head"),
    ),
    ("broadcast", re.compile(r"(?i)broadcast")),
    ("send/recv", re.compile(r"(?i)send_?recv|\bsend|\brecv|ncclDevKernel_Send|ncclDevKernel_Recv")),
    ("reduce", re.compile(r"(?i)reduce")),
)
CPU_COLLECTIVE = re.compile(r"^(gloo:|mpi:|ccl:|c10d::)|shm_?all_?reduce|shm_?all_?gather|shm_?allreduce|shm_(send|recv)")

SAMPLING = re.compile(
    r"(?i)verify_?tree_?greedy|tree_?speculative_?sampling|chain_?speculative_?sampling|rejection_(greedy|random)_sample|"
    r"sample_recovered_tokens|_rejection_kernel|_resample_kernel|correct_drafts_and_bonus|finalize_accept_lens|fill_bonus_tokens|"
    r"_gumbel_sample_kernel|top_?[kp]_?renorm|SamplingFromProb|TopKTopPSampling"
)
"""Only accepting or rejecting drafts runs these."""
SAMPLING_LIKE = re.compile(r"(?i)softmax|top_?[kp]|topk_topp|sort|argmax|penalt|temperature|min_p_kernel")
"""Sampling runs these, and attention, routers and drafters too: they count only right before one of `SAMPLING`."""
DRAFTING = re.compile(
    r"(?i)\beagle_(prepare|step)|_eagle_inputs|_prepare_eagle|eagle_expand|build_(chain_)?tree|draft_topk1_|assign_draft_cache_locs"
)
"""Only drafting runs these."""


@lru_cache(maxsize=65536)
def collective(name: str) -> str | None:
    """The kind of collective that a kernel of this name runs (`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`,
    `send/recv`, `reduce`, `collective` where only that is told); None for any other kernel."""
    if not COLLECTIVE.search(name) or NO_COLLECTIVE.search(name):
        return None
    return _kind(name)


@lru_cache(maxsize=65536)
def cpu_collective(name: str) -> str | None:
    """The same for an operator or span on the CPU: gloo's, c10d's, shared memory's."""
    return _kind(name) if CPU_COLLECTIVE.search(name) else None


def _kind(name: str) -> str:
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "collective")


@lru_cache(maxsize=65536)
def only_in(name: str) -> Phase | None:
    """The phase that alone runs a kernel of this name; None for nearly all kernels."""
    if SAMPLING.search(name):
        return Phase.SAMPLING
    return Phase.DRAFT if DRAFTING.search(name) else None


@lru_cache(maxsize=65536)
def like_sampling(name: str) -> bool:
    return bool(SAMPLING_LIKE.search(name))
