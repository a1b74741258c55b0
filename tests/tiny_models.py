"""Tiny random targets, saved to a folder as a real checkpoint is. No download, milliseconds to make.

`make_llama(folder)` and its like save and return the folder; keyword arguments go to the config. Norm weights are random, since all
ones would hide a missing norm, and biases where there are any.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCAB, HIDDEN, LAYERS = 128, 64, 4

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK: dict[str, Any] = {
    **COMMON,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
del DEEPSEEK["head_dim"]
GEMMA: dict[str, Any] = {**COMMON, "query_pre_attn_scalar": 16, "sliding_window": 8}


def make_model(model_type: str, folder: str | Path, seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> Path:
    """Save a random causal language model of a transformers model type; returns the folder."""
    save = {k: config.pop(k) for k in ("max_shard_size", "safe_serialization") if k in config}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**config)).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn_like(buffer))
    model.save_pretrained(folder, **save)
    return Path(folder)


def make_llama(folder: str | Path, **config: Any) -> Path:
    return make_model("llama", folder, **{**COMMON, **config})


def make_qwen3(folder: str | Path, **config: Any) -> Path:
    return make_model("qwen3", folder, **{**COMMON, **config})


def make_deepseek_v3(folder: str | Path, **config: Any) -> Path:
    """MLA attention; layer 0 dense, the others 8 experts in 2 groups, 2 per token, 1 shared."""
    return make_model("deepseek_v3", folder, **{**DEEPSEEK, **config})


def make_gemma2(folder: str | Path, **config: Any) -> Path:
    """Embedding multiplier sqrt(H) in the model's forward, norms with gain 1 + w, sliding and full layers, soft-capped logits."""
    return make_model("gemma2", folder, **{**GEMMA, **config})


def make_gemma3(folder: str | Path, **config: Any) -> Path:
    """Embedding multiplier sqrt(H) in the embedding module, gain 1 + w, two rotary tables."""
    return make_model("gemma3_text", folder, **{**GEMMA, **config})


def tokens(length: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    """Random token ids [length] int64."""
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed))


def hidden_states(folder: str | Path, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """transformers' own `output_hidden_states` for one sample: N + 1 tensors [T, H], the last one after the final norm."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    for parameter in model.parameters():  # out of the mapped file: the product of a single row differs in its last bit by alignment
        parameter.data = parameter.data.clone()
    with torch.no_grad():
        return [h[0] for h in model(ids[None], output_hidden_states=True).hidden_states]
