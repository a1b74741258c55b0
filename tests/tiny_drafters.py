"""Tiny random drafters with any choice of flags, and random samples for them."""

import torch

from eaglelab.drafter.config import DrafterConfig, Latent
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample

V, VD, H = 64, 40, 24

FLAG_SETS = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "norm_before_fc": {"norm_before_fc": True, "norm_output": True},
    "fc_norm": {"fc_norm": True},
    "specforge_no_final_norm": {"norm_output_meaning": "logits", "norm_output": False},
    "qwen3": {"layer_type": "qwen3"},
    "biases": {"attention_bias": True, "mlp_bias": True, "fc_bias": True},
    "gelu": {"hidden_act": "gelu"},
}


def mla(q_rank: int | None = 10, *, interleaved: bool = True) -> dict:
    """The config's changes for an MLA layer of 4 heads."""
    latent = Latent(q_rank, kv_rank=12, nope=6, rope=4, value=7, interleaved=interleaved)
    return {"layer_type": "mla", "latent": latent, "num_key_value_heads": 4, "head_dim": 10}


FLAG_SETS |= {"mla": mla(), "mla, no q rank": mla(None), "mla, halves": mla(interleaved=False), "two layers": {"num_layers": 2}}


def tiny_config(**changes) -> DrafterConfig:
    options = {
        "hidden_size": H,
        "target_hidden_size": H,
        "num_slots": 3,
        "vocab_size": V,
        "draft_vocab_size": VD,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-6,
        "rope": {"rope_theta": 10000.0},
        "max_position_embeddings": 512,
    }
    return DrafterConfig(**(options | changes))


def tiny_drafter(seed: int = 0, **changes) -> Drafter:
    """Random weights, norms included, large enough that every part matters; d2t a random ascending choice."""
    torch.manual_seed(seed)
    drafter = Drafter(tiny_config(**changes))
    for name, parameter in drafter.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
        parameter.requires_grad_(False)
    chosen = torch.randperm(V)[: drafter.config.draft_vocab_size].sort().values
    drafter.d2t.copy_(chosen - torch.arange(len(chosen)))
    return drafter.eval()


def tiny_embedding(seed: int = 1, width: int = H) -> EmbeddingRows:
    rows = torch.randn(V, width, generator=torch.Generator().manual_seed(seed))
    return EmbeddingRows(torch.arange(V), rows, "test embedding")


def tiny_sample(key: str, length: int, prompt: int, seed: int, slots: int = 4, width: int = H) -> Sample:
    g = torch.Generator().manual_seed(seed)
    return Sample(
        key=key,
        token_ids=torch.randint(0, V, (length,), generator=g),
        slots=tuple(torch.randn(length, width, generator=g) * (i + 1) for i in range(slots)),
        loss_mask=(torch.arange(length) >= prompt).long(),
        slot_names=tuple(f"hidden_states[{i}]" for i in range(slots)),
    )
