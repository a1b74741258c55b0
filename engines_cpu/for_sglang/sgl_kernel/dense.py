"""Linear layers, norms, activation, rotary embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl_kernel.operators import operator


@operator("convert_weight_packed(Tensor w) -> Tensor")
def convert_weight_packed(w: Tensor) -> Tensor:
    return w.clone()


@operator("weight_packed_linear(Tensor x, Tensor w, Tensor? bias, bool is_vnni) -> Tensor")
def weight_packed_linear(x: Tensor, w: Tensor, bias: Tensor | None, is_vnni: bool) -> Tensor:
    return F.linear(x, w, None if bias is None else bias.to(x.dtype))


def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype) * w


@operator("rmsnorm_cpu(Tensor x, Tensor w, float eps) -> Tensor")
def rmsnorm_cpu(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return rms_norm(x, w, eps)


@operator("fused_add_rmsnorm_cpu(Tensor(a!) x, Tensor(b!) residual, Tensor w, float eps) -> ()")
def fused_add_rmsnorm_cpu(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> None:
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(rms_norm(total, w.float(), eps))


@operator("silu_and_mul_cpu(Tensor x) -> Tensor")
def silu_and_mul_cpu(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return F.silu(x[..., :half]) * x[..., half:]


@operator("rotary_embedding_cpu(Tensor positions, Tensor q, Tensor k, int head_size, Tensor cos_sin, bool neox) -> (Tensor, Tensor)")
def rotary_embedding_cpu(positions: Tensor, q: Tensor, k: Tensor, head_size: int, cos_sin: Tensor, neox: bool) -> tuple[Tensor, Tensor]:
    table = cos_sin[positions.flatten()].float()  # [T, rotary], the cosines first
    rotary = table.shape[-1]
    cos, sin = table[:, None, : rotary // 2], table[:, None, rotary // 2 :]

    def rotate(x: Tensor) -> Tensor:
        heads = x.reshape(positions.numel(), -1, head_size).float()
        turned, kept = heads[..., :rotary], heads[..., rotary:]
        if neox:
            a, b = turned[..., : rotary // 2], turned[..., rotary // 2 :]
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = turned[..., ::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([turned, kept], -1).to(x.dtype).reshape(x.shape)

    return rotate(q), rotate(k)
