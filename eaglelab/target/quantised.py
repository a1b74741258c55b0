"""Quantised weights, one tensor at a time: which can be turned back into floats, and what the others are.

Layouts, as written by their producers: FP8 with one `weight_scale_inv` per 128 x 128 block (DeepSeek-V3) or one `weight_scale` per
tensor or row (compressed-tensors, ModelOpt), INT8 with `weight_scale` per tensor or row (compressed-tensors): value = stored x scale.
`weight_packed` (compressed-tensors pack-quantized, symmetric): 32 / bits values per int32, the first in the lowest bits, each stored
plus 2^(bits-1), one scale per row and group of columns. `_blocks` and `_scales` (gpt-oss, MXFP4): two 4-bit floats per byte, the low
half first, one power of two per 32; the logical tensor is transposed, as its module holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from eaglelab.target.errors import CheckpointError

SCALED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def is_quantised(carrier: str, dtype: torch.dtype) -> bool:
    """True when the stored tensor is not the logical one: values of one byte, or packed. Maps and masks are what they say."""
    one_byte = dtype.itemsize == 1 and dtype != torch.bool and not carrier.endswith(("d2t", "t2d"))
    return one_byte or carrier.endswith((".weight_packed", "_blocks", ".qweight"))


def dequantise(logical: str, carrier: str, read: Callable[[str], Tensor], has: Callable[[str], bool], out: torch.dtype) -> Tensor:
    """The logical tensor in dtype `out`, multiplied in float32. Raises CheckpointError for a layout that cannot be read."""
    if carrier.endswith(".weight_packed"):
        return _packed_int(logical, carrier, read, has).to(out)
    if carrier.endswith("_blocks"):
        return mxfp4(read(carrier), read(logical + "_scales"), out)
    if carrier.endswith(".qweight"):
        raise _unreadable(logical, "GPTQ or AWQ integers (qweight, qzeros, scales)")
    stored = read(carrier)
    if has(logical + ".absmax") or has(logical.removesuffix("weight") + "SCB"):
        raise _unreadable(logical, "bitsandbytes")
    if has(logical + "_scale_2"):
        raise _unreadable(logical, "NVFP4 (two levels of scales)")
    if stored.dtype not in SCALED:
        raise _unreadable(logical, f"{stored.dtype} without a layout that is known here")
    for ending in ("_scale_inv", "_scale"):
        if has(logical + ending):
            return scaled(stored, read(logical + ending), logical).to(out)
    raise _unreadable(logical, f"{stored.dtype} and its scale {logical}_scale_inv is missing", "get the shard that holds the scale")


def scaled(stored: Tensor, scale: Tensor, name: str) -> Tensor:
    """stored x scale in float32; `scale` is a scalar, one per row, or one per block of the last two dimensions."""
    if scale.dtype not in FLOATS:
        raise _unreadable(name, f"{stored.dtype} with scales in {scale.dtype}")
    values, scale = stored.float(), scale.float()
    if scale.numel() == 1:
        return values.mul_(scale.reshape(()))
    if scale.dim() == 1 and scale.shape[0] == values.shape[0]:
        scale = scale.reshape(-1, *[1] * (values.dim() - 1))
    if scale.dim() != values.dim():
        raise CheckpointError(f"{name}: a scale of shape {tuple(scale.shape)} does not fit a weight of shape {tuple(values.shape)}")
    return values.mul_(_spread(scale, values.shape, name))


def _spread(scale: Tensor, shape: torch.Size, name: str) -> Tensor:
    """Repeat a scale per block to one per value. The block is the smallest power of two that fits; 1 per dimension broadcasts."""
    for dim, (blocks, size) in enumerate(zip(scale.shape, shape, strict=True)):
        if blocks in (1, size):
            continue
        block = 2 ** math.ceil(math.log2(size / blocks))
        if math.ceil(size / block) != blocks:
            raise CheckpointError(f"{name}: {blocks} scales over {size} values are no blocks of a power of two")
        scale = scale.repeat_interleave(block, dim).narrow(dim, 0, size)
    return scale


def _packed_int(logical: str, carrier: str, read: Callable[[str], Tensor], has: Callable[[str], bool]) -> Tensor:
    packed = read(carrier)  # [out, in * bits / 32] int32
    if packed.dtype != torch.int32 or packed.dim() != 2:
        raise _unreadable(logical, f"packed as {packed.dtype}, expected int32 in two dimensions")
    for ending, what in (("_zero_point", "zero points (asymmetric)"), ("_g_idx", "an activation order")):
        if has(logical + ending):
            raise _unreadable(logical, f"packed integers with {what}")
    for ending in ("_shape", "_scale"):
        if not has(logical + ending):
            raise _unreadable(logical, f"packed integers, and {logical}{ending} is missing", "get the shard that holds it")
    rows, columns = (int(n) for n in read(logical + "_shape"))
    per_word = columns // packed.shape[1] if packed.shape[1] else 0
    if per_word not in (4, 8) or packed.shape != (rows, columns // per_word):
        raise _unreadable(logical, f"packed {tuple(packed.shape)} for a weight of {rows} x {columns}")
    return scaled(unpack_integers(packed, 32 // per_word), read(logical + "_scale"), logical)


def unpack_integers(packed: Tensor, bits: int) -> Tensor:
    """[R, C] int32 to [R, C * 32 / bits] int8: lowest bits first, stored with an offset of 2^(bits-1)."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)  # [32 / bits]
    values = (packed.unsqueeze(-1) >> shifts) & (2**bits - 1)  # [R, C, 32 / bits]
    return (values - 2 ** (bits - 1)).to(torch.int8).flatten(1)


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""The sixteen values of a float with one sign, two exponent bits and one mantissa bit (OCP microscaling formats)."""


def mxfp4(blocks: Tensor, scales: Tensor, out: torch.dtype) -> Tensor:
    """blocks [E, R, G, 16] and scales [E, R, G], both uint8, to [E, G * 32, R], one expert at a time."""
    experts, rows, groups, half = blocks.shape
    values = torch.empty(experts, groups * half * 2, rows, dtype=out)  # [E, C, R]
    for e in range(experts):
        pairs = torch.stack([FP4[(blocks[e] & 15).int()], FP4[(blocks[e] >> 4).int()]], dim=-1).flatten(2)  # [R, G, 32]
        values[e] = torch.ldexp(pairs, scales[e].int().unsqueeze(-1) - 127).flatten(1).T
    return values


def logical_shape(carrier: str, stored: tuple[int, ...], read_shape: Callable[[], Tensor]) -> tuple[int, ...]:
    """The shape of the logical tensor by that of the stored one; `read_shape` reads the `_shape` beside packed integers."""
    if carrier.endswith(".weight_packed"):
        return tuple(int(n) for n in read_shape())
    if carrier.endswith("_blocks") and len(stored) == 4:
        return stored[0], stored[2] * stored[3] * 2, stored[1]
    return stored


def _unreadable(name: str, what: str, then: str = "take the unquantised checkpoint") -> CheckpointError:
    return CheckpointError(f"{name} is stored quantised as {what}, which cannot be read here: {then}")
