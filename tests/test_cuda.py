"""The replay on CUDA against the CPU; skipped with the reason where there is no CUDA device."""

import numpy as np
import pytest
import torch
from conftest import requires_cuda
from tiny_drafters import tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.replay import Judge, TargetHead, Variant, places_changed, replay


def outcomes(device: str, dtype: torch.dtype):
    drafter, embed = tiny_drafter().to(device), tiny_embedding()
    for parameter in drafter.parameters():
        parameter.data = parameter.data.to(dtype)
    samples = [tiny_sample("a", 40, 5, seed=3), tiny_sample("b", 31, 2, seed=4)]
    head = TargetHead(torch.randn(64, 24, generator=torch.Generator().manual_seed(8)))
    base = Variant((0, 1, 2))
    variants = [base, *places_changed(base)]
    return replay(drafter, samples, embed, variants, judge=Judge(3, head), steps=4, probabilities=True)


@requires_cuda
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_the_replay_on_cuda_equals_the_cpu(dtype, tolerance):
    for ours, theirs in zip(outcomes("cuda", dtype), outcomes("cpu", dtype), strict=True):
        for a, b in zip(ours.outcomes, theirs.outcomes, strict=True):
            assert (a.counted == b.counted).all()
            np.testing.assert_allclose(a.confidence, b.confidence, atol=tolerance)
            same = a.drafted == b.drafted
            assert same.mean() > (0.999 if dtype is torch.float32 else 0.95)
            np.testing.assert_allclose(a.overlap, b.overlap, atol=tolerance)
