"""The tree of drafted tokens and its greedy verification: the results of the engine's own Triton kernels (kernels/ops/speculative/
spec_tree.py, 0.5.23), against which `engines_cpu/against_triton.py` holds them.

Letters: B requests, n nodes of a verify pass with the root at 0, K draft steps.
"""

import torch
from torch import Tensor

from sgl_kernel.operators import unsupported

FULL, QUERIES_ONLY = 0, 1  # SGLang's TreeMaskMode


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    depth: int,
    n: int,
    mask_mode: int,
) -> None:
    """parent_list [B, ·], selected [B, n-1]: each chosen node by its place among all candidates. Writes mask, positions and links.

    next_token[b, i] is the first child of node i, next_sibling[b, i] its next brother, -1 for none.
    """
    if int(mask_mode) not in (FULL, QUERIES_ONLY):
        raise unsupported(f"tree mask of mode {int(mask_mode)} (0 and 1 are known)")
    retrieve_index, next_token, next_sibling = (x.view(-1, n) for x in (retrieve_index, next_token, next_sibling))
    positions, offset = positions.view(-1, n), 0
    for b, length in enumerate(seq_lens.tolist()):
        parents = _parents(selected[b].tolist()[: n - 1], parent_list[b].tolist(), topk)
        children, brothers = next_token[b].tolist(), next_sibling[b].tolist()
        for node in range(n - 1, 0, -1):
            parent = parents[node]
            if parent is not None:
                if children[parent] != -1:
                    brothers[node] = children[parent]
                children[parent] = node
        next_token[b] = torch.tensor(children, dtype=next_token.dtype)
        next_sibling[b] = torch.tensor(brothers, dtype=next_sibling.dtype)
        retrieve_index[b] = torch.arange(b * n, (b + 1) * n, dtype=retrieve_index.dtype)
        seen, depths = _ancestors(parents, depth)
        positions[b] = torch.tensor(depths, dtype=positions.dtype) + length
        if int(mask_mode) == FULL:  # the caller has set the columns of the prefix
            rows = tree_mask[offset : offset + n * (length + n)].view(n, length + n)
            rows[:, length:] = seen.to(rows.dtype)
            offset += n * (length + n)
        else:
            tree_mask.view(-1)[b * n * n : (b + 1) * n * n] = seen.flatten().to(tree_mask.dtype)


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int | None]:
    """The parent of each node, 0 the root; None where the parent was not chosen. Entry 0 is the root's own."""
    node_of: dict[int, int] = {}
    for node, candidate in enumerate(selected, start=1):
        node_of.setdefault(candidate, node)  # the kernel searches in order: the first one counts
    groups = [candidate // topk for candidate in selected]
    return [None] + [0 if group == 0 else node_of.get(parent_list[group]) for group in groups]


def _ancestors(parents: list[int | None], depth: int) -> tuple[Tensor, list[int]]:
    """What each node sees, [n, n] bool (the root, its ancestors and itself), and its depth below the root."""
    n = len(parents)
    seen, depths = torch.zeros(n, n, dtype=torch.bool), [0] * n
    seen[:, 0] = True
    for node in range(1, n):
        at = node
        while at and depths[node] < depth:
            depths[node] += 1
            seen[node, at] = True
            at = parents[at]
    return seen, depths


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down from the root along drafted tokens that are the target's choice. candidates, target_predict [B, n]; writes predicts
    [B * n], accept_index [B, K + 1] and accept_token_num [B]. (The parameters' spelling is SGLang's: it calls by keyword.)"""
    n = candidates.shape[1]
    drafted, index = candidates.tolist(), retrive_index.view(-1, n).tolist()
    children, brothers = retrive_next_token.view(-1, n).tolist(), retrive_next_sibling.view(-1, n).tolist()
    choice = target_predict.reshape(-1).tolist()
    for b in range(len(drafted)):
        last, node, accepted = index[b][0], 0, 0
        accept_index[b, 0] = last
        for _ in range(1, accept_index.shape[1]):
            node = children[b][node]
            while node != -1 and drafted[b][node] != choice[last]:
                node = brothers[b][node]
            if node == -1:
                break
            predicts[last] = choice[last]
            accepted += 1
            last = index[b][node]
            accept_index[b, accepted] = last
        accept_token_num[b] = accepted
        predicts[last] = choice[last]
