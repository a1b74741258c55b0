"""The stand-in for SGLang's CPU kernels: against torch's own attention, hand-made trees, and SGLang's kernels where SGLang is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
SGLANG = ROOT / ".live" / "sglang" / "bin" / "python"


@pytest.fixture(scope="module")
def kernels():
    """The stand-in's modules. torch keeps registered operators for good, so it is imported once."""
    sys.path.insert(0, str(ROOT / "engines_cpu" / "for_sglang"))
    try:
        import sgl_kernel
    finally:
        sys.path.pop(0)
    return sgl_kernel


def test_a_chain_is_walked_to_the_first_wrong_token(kernels):
    parents, selected = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 2]])
    tree = built(kernels, parents, selected, topk=1, steps=3, nodes=4)
    assert tree["next_token"].tolist() == [[1, 2, 3, -1]]
    assert tree["positions"].tolist() == [7, 8, 9, 10]
    assert tree["mask"].view(4, 4).tolist() == torch.ones(4, 4).tril().bool().tolist()
    # The target says 5, 6, 9, 3 after each node; the draft is 5, 6, 8: two right, then the target's own 9.
    accepted = verified(kernels, tree, drafted=[[1, 5, 6, 8]], choice=[[5, 6, 9, 3]])
    assert accepted == ([2], [[0, 1, 2, -1]], [5, 6, 9, 0])


def test_a_tree_tries_the_brothers(kernels):
    # Root with children 1 and 2 (candidates 0 and 1), node 3 below 2 (candidate 4 of the second step: the first child of candidate 1).
    parents, selected = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 4]])
    tree = built(kernels, parents, selected, topk=2, steps=2, nodes=4)
    assert tree["next_token"].tolist() == [[1, -1, 3, -1]]
    assert tree["next_sibling"].tolist() == [[-1, 2, -1, -1]]
    assert tree["positions"].tolist() == [7, 8, 8, 9]
    assert tree["mask"].view(4, 4)[3].tolist() == [True, False, True, True]
    assert verified(kernels, tree, drafted=[[1, 5, 6, 8]], choice=[[6, 0, 8, 3]]) == ([2], [[0, 2, 3]], [6, 0, 8, 3])


def built(kernels, parents, selected, topk, steps, nodes, mask_mode=1):
    tree = {"mask": torch.zeros(nodes * nodes, dtype=torch.bool), "positions": torch.zeros(nodes, dtype=torch.int64)}
    tree |= {name: torch.full((1, nodes), -1) for name in ("index", "next_token", "next_sibling")}
    kernels.build_tree_kernel_efficient_cpu(parents, selected, torch.tensor([7]), *tree.values(), topk, steps, nodes, mask_mode)
    return tree | {"steps": steps}


def verified(kernels, tree, drafted, choice):
    """(accepted counts, accepted nodes, what the target says at each node on the way)."""
    nodes = tree["index"].shape[1]
    predicts = torch.zeros(nodes, dtype=torch.int32)
    places, counts = torch.full((1, tree["steps"] + 1), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    links = (tree["index"], tree["next_token"], tree["next_sibling"])
    kernels.verify_tree_greedy_cpu(predicts, places, counts, torch.tensor(drafted), *links, torch.tensor(choice))
    return counts.tolist(), places.tolist(), predicts.tolist()


def test_an_unknown_tree_mask_is_refused(kernels):
    with pytest.raises(kernels.Unsupported, match=r"the stand-in for sgl_kernel has no tree mask of mode 2 \(0 and 1 are known\)"):
        built(kernels, torch.tensor([[-1]]), torch.tensor([[0]]), topk=1, steps=1, nodes=2, mask_mode=2)


def extended(cached: int, rows: int, tree_mask=None, cap=0.0, window=-1):
    """Attention of `rows` new rows behind `cached` ones, 4 query heads on 2 key heads; and the inputs."""
    torch.manual_seed(0)
    q, k, v = torch.randn(rows, 4, 8), torch.randn(rows, 2, 8), torch.randn(rows, 2, 8)
    pool_k, pool_v, out = torch.randn(32, 2, 8), torch.randn(32, 2, 8), torch.zeros(rows, 4, 8)
    slots = torch.randperm(32)[None, : cached + rows].int()
    one = torch.tensor
    torch.ops.sgl_kernel.extend_attention_cpu(
        *(q, k, v, out, pool_k, pool_v, 1.0, 1.0, slots, one([0]), one([cached + rows]), one([rows]), one([0]), rows, 0.3, cap),
        *(False, window, None, None, tree_mask, True),
    )
    keys, values = (torch.cat([pool[slots[0, :cached].long()], new]) for pool, new in ((pool_k, k), (pool_v, v)))
    return q, keys, values, out


def by_hand(q, keys, values, seen):
    """[rows, 4, 8] softmax attention, written out; seen [rows, keys] bool."""
    scores = torch.einsum("rhd,khd->rhk", q, keys.repeat_interleave(2, 1)) * 0.3
    weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    return torch.einsum("rhk,khd->rhd", weights, values.repeat_interleave(2, 1))


def test_extending_sees_the_prefix_and_the_rows_before(kernels):
    q, keys, values, out = extended(cached=5, rows=3)
    seen = torch.arange(8)[None] <= torch.arange(5, 8)[:, None]
    torch.testing.assert_close(out, by_hand(q, keys, values, seen))


def test_verifying_sees_the_prefix_and_the_branch(kernels):
    pairs = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    q, keys, values, out = extended(cached=5, rows=3, tree_mask=pairs[None])
    torch.testing.assert_close(out, by_hand(q, keys, values, torch.cat([torch.ones(3, 5).bool(), pairs], 1)))


@pytest.mark.parametrize(("option", "name"), [({"cap": 30.0}, "logit cap"), ({"window": 128}, "sliding window")])
def test_attention_that_it_lacks_is_refused_by_name(kernels, option, name):
    with pytest.raises(kernels.Unsupported, match=f"has no {name}: it runs a Llama-type target"):
        extended(cached=2, rows=1, **option)


def test_tensor_parallelism_is_refused(kernels):
    with pytest.raises(kernels.Unsupported, match=r"no tensor parallelism \(asked for 2 ranks\)"):
        torch.ops.sgl_kernel.initialize(2, 0)


def test_the_residual_is_kept_and_the_norm_is_of_the_sum(kernels):
    x, residual, w = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]), torch.tensor([1.0, 10.0])
    torch.ops.sgl_kernel.fused_add_rmsnorm_cpu(x, residual, w, 0.0)
    assert residual.tolist() == [[3.0, 4.0]]
    rms = (12.5) ** 0.5  # of (3, 4)
    torch.testing.assert_close(x, torch.tensor([[3 / rms, 40 / rms]]))


def test_a_quarter_turn_of_the_rotary_embedding(kernels):
    cos_sin = torch.tensor([[0.0, 1.0]])  # one pair, turned by 90 degrees
    q, k = torch.ops.sgl_kernel.rotary_embedding_cpu(
        torch.tensor([0]), torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), 2, cos_sin, True
    )
    assert (q.tolist(), k.tolist()) == ([[-2.0, 1.0]], [[-4.0, 3.0]])


@pytest.mark.skipif(not SGLANG.exists(), reason="no SGLang in .live/sglang (`make live-all` builds it)")
def test_the_trees_are_those_of_sglangs_own_kernels():
    environment = os.environ | {"PYTHONPATH": "engines_cpu/for_sglang", "TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run([SGLANG, "engines_cpu/against_triton.py"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "63 comparisons with SGLang's own kernels, all equal" in done.stdout
