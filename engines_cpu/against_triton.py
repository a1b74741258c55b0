"""The stand-in's tree kernels against SGLang's own Triton kernels, which Triton's interpreter runs on the CPU, on random trees.

PYTHONPATH=engines_cpu/for_sglang TRITON_INTERPRET=1 SGLANG_USE_CPU_ENGINE=1 .live/sglang/bin/python engines_cpu/against_triton.py
"""

import sgl_kernel
import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode, sgl_build_tree_kernel_triton, verify_tree_greedy_triton

SHAPES = ((1, 3, 4), (1, 5, 6), (2, 3, 6), (4, 3, 8), (4, 5, 8), (8, 5, 24), (3, 4, 13))
"""(branches, steps, nodes); the first two are chains, (4, 5, 8) is SGLang's choice for a Llama target."""
REQUESTS, REPEATS = 3, 3


def random_tree(topk: int, steps: int, nodes: int) -> tuple[list[int], list[int]]:
    """(parent_list, selected) of one request, as a drafter with random scores would choose them."""
    scores = torch.rand(topk).tolist()
    parents, kept = list(range(-1, topk)), list(range(topk))
    for step in range(1, steps):
        base = len(scores)
        grown = [scores[node] * share * 0.999 for node in kept for share in torch.rand(topk).tolist()]
        kept = [base + i for i in sorted(range(len(grown)), key=lambda i: -grown[i])[:topk]]
        scores += grown
        if step < steps - 1:
            parents += kept
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[: nodes - 1]
    return parents, sorted(best)


def buffers(mode: int, lengths: torch.Tensor, nodes: int) -> tuple[torch.Tensor, ...]:
    size = int(lengths.sum()) * nodes + nodes * nodes * REQUESTS if mode == 0 else REQUESTS * nodes * nodes
    mask = torch.full((size,), mode == 0, dtype=torch.bool)
    return mask, torch.zeros(REQUESTS * nodes, dtype=torch.int64), *(torch.full((REQUESTS, nodes), -1) for _ in range(3))


def verified(steps: int, nodes: int) -> tuple[torch.Tensor, ...]:
    shapes = ((REQUESTS * nodes,), 0), ((REQUESTS, steps + 1), -1), ((REQUESTS,), 0)
    return tuple(torch.full(shape, value, dtype=torch.int32) for shape, value in shapes)


def check(topk: int, steps: int, nodes: int) -> int:
    """Returns how many comparisons were made. Raises AssertionError."""
    trees = [random_tree(topk, steps, nodes) for _ in range(REQUESTS)]
    parents, selected = (torch.tensor(part) for part in zip(*trees, strict=True))
    lengths = torch.randint(5, 40, (REQUESTS,))
    for mode in (0, 1):
        engine, ours = buffers(mode, lengths, nodes), buffers(mode, lengths, nodes)
        sgl_build_tree_kernel_triton(parents, selected, lengths, *engine, topk, steps, nodes, TreeMaskMode(mode))
        sgl_kernel.build_tree_kernel_efficient_cpu(parents, selected, lengths, *ours, topk, steps, nodes, mode)
        for name, a, b in zip(("mask", "positions", "index", "next token", "next sibling"), engine, ours, strict=True):
            assert torch.equal(a, b), f"{name} of a tree ({topk}, {steps}, {nodes}), mask mode {mode}: SGLang's {a}, the stand-in's {b}"
    drafted, choice = torch.randint(0, 3, (REQUESTS, nodes)), torch.randint(0, 3, (REQUESTS, nodes))
    theirs, mine = verified(steps, nodes), verified(steps, nodes)
    links = engine[2:]
    verify_tree_greedy_triton(*theirs, drafted, *links, choice)
    names = ("retrive_index", "retrive_next_token", "retrive_next_sibling")
    sgl_kernel.verify_tree_greedy_cpu(*mine, candidates=drafted, **dict(zip(names, links, strict=True)), target_predict=choice)
    for name, a, b in zip(("predicted", "accepted places", "accepted counts"), theirs, mine, strict=True):
        assert torch.equal(a, b), f"{name} of a tree ({topk}, {steps}, {nodes}): SGLang's {a}, the stand-in's {b}"
    return 3


if __name__ == "__main__":
    torch.manual_seed(0)
    compared = sum(check(*shape) for shape in SHAPES for _ in range(REPEATS))
    print(f"stand-in: {compared} comparisons with SGLang's own kernels, all equal")
