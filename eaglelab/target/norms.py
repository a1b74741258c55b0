"""The target's final norm out of its checkpoint, and applied to states, without running or building the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eaglelab.target.checkpoint import Checkpoint

ONE_PLUS = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "recurrent_gemma",
    "vaultgemma",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "nemotron",
)
"""Model types whose norms store the gain minus one. Read in transformers 5.24; a test asks its modules. (gemma3n and gemma4 do not.)"""
MEAN_REMOVED = ("cohere", "cohere2", "nemotron")
"""Model types with a LayerNorm that may come without a bias; a bias in the checkpoint means a LayerNorm anyway."""
EPS_KEYS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")


@dataclass(frozen=True)
class FinalNorm:
    """An RMSNorm, or a LayerNorm where `mean_removed`: h = gain * x / rms(x) + bias."""

    gain: Tensor
    """[H] float32: the stored weight, plus one where the model's family stores it so."""
    bias: Tensor | None = None
    """[H] float32."""
    mean_removed: bool = False
    eps: float = 1e-6

    def __call__(self, states: Tensor) -> Tensor:
        """[T, H] any float dtype to [T, H] float32, on the states' device. Raises ValueError for states of another width."""
        if states.shape[-1] != len(self.gain):
            raise ValueError(
                f"states are {states.shape[-1]} wide, the target's final norm {len(self.gain)}: they are not of the same target"
            )
        x = states.float()  # [T, H]
        if self.mean_removed:
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain.to(x.device)
        return x if self.bias is None else x + self.bias.to(x.device)


def final_norm(checkpoint: Checkpoint) -> FinalNorm:
    """The final norm by its weight and config.json. Raises CheckpointError when it cannot be found or read."""
    weight = checkpoint.tensor(checkpoint.norm_name).float()  # [H]
    bias_name = checkpoint.norm_name.removesuffix("weight") + "bias"  # a LayerNorm has one
    bias = checkpoint.tensor(bias_name).float() if bias_name in checkpoint else None
    config, kind = checkpoint.text_config, checkpoint.model_type
    return FinalNorm(
        gain=weight + 1 if kind in ONE_PLUS else weight,
        bias=bias,
        mean_removed=bias is not None or kind in MEAN_REMOVED,
        eps=float(next((config[k] for k in EPS_KEYS if config.get(k) is not None), 1e-6)),
    )
