"""Attention of chains against one plain softmax over all keys, forward and backward (the recipe trains through it)."""

import torch

from eaglelab.drafter import attention
from eaglelab.drafter.attention import chain_attention


def plain(q, prefix_k, prefix_v, own_k, own_v, last, scale):
    """One chain and head at a time, nothing shared."""
    rows, heads, _ = q.shape
    shared = heads // prefix_k.shape[1]
    out = torch.zeros(rows, heads, prefix_v.shape[-1])
    for r in range(rows):
        for h in range(heads):
            keys = torch.cat([prefix_k[: last[r] + 1, h // shared], own_k[r, :, h // shared]])
            values = torch.cat([prefix_v[: last[r] + 1, h // shared], own_v[r, :, h // shared]])
            out[r, h] = torch.softmax(keys @ q[r, h] * scale, 0) @ values
    return out


def test_blocks_equal_one_softmax_and_carry_the_gradient(monkeypatch):
    torch.manual_seed(0)
    q, k, v = torch.randn(40, 4, 8), torch.randn(50, 2, 8) * 3, torch.randn(50, 2, 6)  # values of another width
    own_k, own_v, last = torch.randn(40, 3, 2, 8), torch.randn(40, 3, 2, 6), torch.arange(5, 45)
    monkeypatch.setattr(attention, "SCORE_BYTES", 1)  # blocks of 16 chains: three of them
    inputs = [t.requires_grad_() for t in (q, k, v, own_k, own_v)]
    results = []
    for run in (chain_attention, plain):
        out = run(*inputs, last, 0.3)
        out.square().sum().backward()
        results.append([out.detach()] + [t.grad.clone() for t in inputs])
        for t in inputs:
            t.grad = None
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
