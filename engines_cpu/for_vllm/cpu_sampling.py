"""Sampling under speculation on the CPU, through vLLM's entry-point group `vllm.general_plugins`.

vLLM 0.32.0's CPU kernel behind `expand_batch_to_tokens` drops its output (vLLM issue 55005): temperatures and top-p of drafted tokens are
memory that nobody wrote. Greedy requests do not use it.
"""

import torch


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """x [B], cu_num_tokens [B] cumulated: each request's value once for each of its drafted tokens, [num_tokens]."""
    counts = torch.diff(cu_num_tokens.to(torch.int64), prepend=torch.zeros(1, dtype=torch.int64))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(replaced, counts)


def register() -> None:
    """What vLLM calls in each of its processes."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        import vllm.v1.sample.rejection_sampler as sampler

        sampler.expand_batch_to_tokens = expand_batch_to_tokens
