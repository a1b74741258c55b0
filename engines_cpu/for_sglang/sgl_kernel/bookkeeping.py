"""Slots of requests in the KV pool: Triton kernels in SGLang, loops here. `r2t` is [requests, positions], the slot of each token."""

import ctypes

import numpy as np
import torch
from torch import Tensor


def _ranges(rpi: Tensor, start: Tensor, end: Tensor):
    """(request, first position, end, place in the flat list of slots) of each request."""
    place = 0
    for request, first, last in zip(rpi.tolist(), start.tolist(), end.tolist(), strict=True):
        yield request, first, last, place
        place += last - first


def assign_req_to_token_pool_cpu(rpi: Tensor, r2t: Tensor, start: Tensor, end: Tensor, out_loc: Tensor, pool_len: int) -> None:
    for request, first, last, place in _ranges(rpi, start, end):
        r2t[request, first:last] = out_loc[place : place + last - first].to(r2t.dtype)


def assign_extend_cache_locs_cpu(rpi: Tensor, r2t: Tensor, start: Tensor, end: Tensor, out_loc: Tensor, pool_len: int) -> None:
    for request, first, last, place in _ranges(rpi, start, end):
        out_loc[place : place + last - first] = r2t[request, first:last].to(out_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    rpi: Tensor, r2t: Tensor, seq_lens: Tensor, out_loc: Tensor, pool_len: int, topk: int, num_steps: int
) -> None:
    size = topk * num_steps
    for i, (request, length) in enumerate(zip(rpi.tolist(), seq_lens.tolist(), strict=True)):
        out_loc[i * size : (i + 1) * size] = r2t[request, length : length + size].to(out_loc.dtype)


def build_draft_decode_metadata_cpu(r2t: Tensor, rpi: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int) -> Tensor:
    """[B * topk, longest + num_steps]: the slots that each branch sees, the prefix and then its own drafted tokens."""
    rows = torch.zeros(len(rpi) * topk, int(seq_lens.max()) + num_steps, dtype=r2t.dtype)
    for i, (request, length) in enumerate(zip(rpi.tolist(), seq_lens.tolist(), strict=True)):
        for branch in range(topk):
            own = length + branch * num_steps
            rows[i * topk + branch, :length] = r2t[request, :length]
            rows[i * topk + branch, length : length + num_steps] = r2t[request, own : own + num_steps]
    return rows


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_loc: Tensor, accept_out_loc: Tensor) -> None:
    accepted = accept_index.flatten()
    accepted = accepted[accepted > -1].long()
    accept_out_loc[: len(accepted)] = out_loc[accepted]


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus: Tensor, stride: int) -> None:
    last = torch.arange(len(accept_lens)) * stride + accept_lens.long() - 1
    bonus.copy_(accept_tokens.flatten()[last])


def rotate_input_ids_cpu(ids: Tensor, ext_start: Tensor, ext_lens: Tensor, topk_index: Tensor, select_index: Tensor | None = None) -> None:
    """Each request's tokens one place to the left; the token that the target chose goes last, or where `select_index` says."""
    for i, (start, length) in enumerate(zip(ext_start.tolist(), ext_lens.tolist(), strict=True)):
        if length > 0:
            ids[start : start + length - 1] = ids[start + 1 : start + length].clone()
            last = start + length - 1 if select_index is None else int(select_index[i])
            ids[last] = topk_index.flatten()[i].to(ids.dtype)


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt: Tensor, src: Tensor) -> None:
    """Rows `src` of every layer's cache to rows `tgt`. data_ptrs: addresses as int64; strides: bytes of a row."""
    targets, sources = tgt.tolist(), src.tolist()
    if not targets:
        return
    rows = max(*targets, *sources) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address & (1 << 64) - 1)
        cache = np.ctypeslib.as_array(memory).reshape(rows, stride)
        cache[targets] = cache[sources].copy()
