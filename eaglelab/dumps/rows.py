"""Passes over the rows of a slot in blocks that stay in the processor's cache: never a float32 copy of a whole sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_BYTES = 8 << 20
"""float32 bytes of one block over all slots. Measured on a 1281 x 7168 x 4 bf16 sample, one thread, 1 MB of L2 and 32 MB of L3:
blocks of 4, 8 and 16 MB take 10 ms, of 1 MB 13 ms (calls), of 64 MB or the whole sample 15 ms (memory)."""
HEAD = 64
"""Bytes at the beginning of a row by which rows are told apart before they are compared whole."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread inside. The blocks are small, so threads would mostly wait for each other: on a busy machine two of them took
    877 ms for what one does in 34. Samples are spread over processes instead."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def block_rows(width: int, slots: int = 1) -> int:
    """Rows of one block: as many as fit in `BLOCK_BYTES` as float32, at least one."""
    return max(1, BLOCK_BYTES // max(1, 4 * width * slots))


def float_blocks(slots: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """(first row, block [R, S, H] float32) over slots [T, H] of one shape. The block's memory is used again for the next one."""
    rows, width = slots[0].shape
    step = block_rows(width, len(slots))
    buffer = torch.empty(min(step, rows), len(slots), width, dtype=torch.float32)  # [R, S, H]
    for start in range(0, rows, step):
        block = buffer[: min(step, rows - start)]
        for s, slot in enumerate(slots):
            block[:, s].copy_(slot[start : start + step])
        yield start, block


@dataclass(frozen=True)
class BadRows:
    """Rows of one slot that carry no usable state."""

    nan: Tensor  # [n] int64, rows with a NaN
    inf: Tensor  # [n] int64, rows with an infinity (and no NaN)
    zero: Tensor  # [n] int64, rows of zeros only


@one_thread()
def bad_rows(slot: Tensor) -> BadRows:
    """NaN, infinite and all-zero rows of a slot [T, H] of any float dtype.

    One pass for a norm per row finds the suspects (a NaN or infinity always shows in the norm, a zero row always has norm 0);
    only those are looked at value by value, because a norm may also overflow or vanish in a narrow dtype.
    """
    norms = _rough_norms(slot)  # [T]
    suspects = (~torch.isfinite(norms) | (norms == 0)).nonzero().flatten()  # [n]
    kinds: dict[str, list[Tensor]] = {"nan": [], "inf": [], "zero": []}
    for rows in suspects.split(block_rows(slot.shape[1])):
        values = take_rows(slot, rows).float()  # [R, H]
        nan = values.isnan().any(dim=1)  # [R]
        kinds["nan"].append(rows[nan])
        kinds["inf"].append(rows[values.isinf().any(dim=1) & ~nan])
        kinds["zero"].append(rows[(values == 0).all(dim=1)])
    return BadRows(**{kind: torch.cat(found) if found else suspects.new_empty(0) for kind, found in kinds.items()})


def _rough_norms(slot: Tensor) -> Tensor:
    """L2 norm per row, in the slot's own precision where torch can (as fast as one pass over the bytes)."""
    if slot.dtype.itemsize > 1:
        return torch.linalg.vector_norm(slot, dim=1)  # [T]
    norms = torch.empty(slot.shape[0], dtype=torch.float32)  # [T]: fp8 has no arithmetic of its own
    for start, block in float_blocks([slot]):
        norms[start : start + len(block)] = torch.linalg.vector_norm(block[:, 0], dim=1)
    return norms


def take_rows(slot: Tensor, rows: Tensor) -> Tensor:
    """Some rows [R, H] of a slot; fp8 has no gather, so its bytes are gathered."""
    if slot.dtype.itemsize == 1:
        return slot.view(torch.uint8)[rows].view(slot.dtype)
    return slot[rows]


def same_states(one: Tensor, other: Tensor) -> bool:
    """Whether two slots [T, H] hold the same values, not all zero; most differ in the first row and are read no further."""
    if one.shape != other.shape or one.dtype != other.dtype or one.numel() == 0:
        return False
    if one.dtype.itemsize == 1:
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    return torch.equal(one[:1], other[:1]) and torch.equal(one, other) and bool(one.any())


def repeated_rows(slot: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a slot [T, H] that hold the very state of an earlier row of another token: (rows [n], the first row with that state [n]).

    A state depends on its token, so that two tokens never share one (but in an embedding, where neither was ever trained); two rows of one
    token may (a doubled BOS attends to itself alone).
    Rows of zeros and NaN are `bad_rows`' to tell. Most rows differ in their first channels, and only those that do not are looked up whole.
    """
    rows, width = slot.shape
    raw = slot.contiguous().view(torch.uint8).view(rows, -1) if rows and width else torch.empty(0, 1, dtype=torch.uint8)  # [T, bytes]
    heads: dict[bytes, list[int]] = {}
    for row, head in enumerate(raw[:, :HEAD].numpy()):
        heads.setdefault(head.tobytes(), []).append(row)
    found = []
    for alike in heads.values():
        whole: dict[bytes, int] = {}  # digest -> the first row with it
        for row in alike if len(alike) > 1 else ():
            same = whole.setdefault(hashlib.blake2b(raw[row].numpy(), digest_size=16).digest(), row)
            if ids[same] != ids[row]:
                found.append((row, same))
    found.sort()
    told = [(r, e) for r, e in found if raw[r].any() and bool(torch.isfinite(take_rows(slot, torch.tensor([r])).float()).all())]
    pairs = torch.tensor(told, dtype=torch.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
