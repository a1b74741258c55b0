"""Tiny targets of four kinds, trained on the language, and the states and greedy answers that they really have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from eaglelab.target.skeleton import cache_argument
from faults.language import BOS, EOS, PAD, VOCAB, Language

HIDDEN = 64
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
MLA = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 48,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", COMMON),
    "qwen3": ("qwen3", {**COMMON, "rope_theta": 1e6}),
    "deepseek": ("deepseek_v3", {k: v for k, v in {**COMMON, **MLA, "num_hidden_layers": 6}.items() if k != "head_dim"}),
    "gemma": ("gemma3_text", {**COMMON, "query_pre_attn_scalar": 16, "sliding_window": 24, "tie_word_embeddings": True}),
}
"""Kind -> transformers' model type and its config."""
UPDATES, BATCH, LENGTH, RATE = 300, 24, 64, 3e-3


def train_target(kind: str, seed: int, folder: Path, updates: int = UPDATES) -> None:
    """Train a target of a kind on the language of this seed, and save it as a checkpoint."""
    model_type, config = KINDS[kind]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**config), attn_implementation="eager").float().train()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # gains as uneven as those of real models: with even ones a second norm, or none, would change nothing
                weight.uniform_(0.4, 1.8).sub_(1.0 if kind == "gemma" else 0.0)
    language, r = Language(seed), random.Random(seed)
    adam = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for update in range(updates):
        for group in adam.param_groups:
            group["lr"] = RATE * min(1.0, (update + 1) / 30, 1.2 * (1 - update / updates) + 0.02)
        ids = language.batch(BATCH, LENGTH, r)  # [B, T]
        logits = model(ids).logits[:, :-1]  # [B, T - 1, V]
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
    model.eval().save_pretrained(folder)


def load_target(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def greedy(model: Any, prompts: list[list[int]], length: int) -> list[Tensor]:
    """Each prompt with the model's own greedy answer, [T] int64, `length` tokens in all. Prompts of one length go together."""
    texts: list[Tensor | None] = [None] * len(prompts)
    argument = cache_argument(model)
    for size in sorted({len(p) for p in prompts}):
        mine = [i for i, p in enumerate(prompts) if len(p) == size]
        ids, cache = torch.tensor([prompts[i] for i in mine]), None
        new = ids
        while ids.shape[1] < length:
            out = model(new, **{argument: cache}, use_cache=True)
            cache, new = out[argument], out.logits[:, -1:].argmax(-1)  # [B, 1]
            ids = torch.cat([ids, new], 1)
        for i, row in zip(mine, ids, strict=True):
            texts[i] = row
    return texts


@torch.no_grad()
def states_of(model: Any, texts: list[Tensor]) -> list[dict[int | str, Tensor]]:
    """Per text: boundary (0 to N, "final") -> [T, H] float32, as transformers gives them; N by a hook before the final norm."""
    before: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, args: before.append(args[0]))
    found: list[dict[int | str, Tensor] | None] = [None] * len(texts)
    try:
        for size in sorted({len(t) for t in texts}):
            mine = [i for i, t in enumerate(texts) if len(t) == size]
            before.clear()
            given = model(torch.stack([texts[i] for i in mine]), output_hidden_states=True).hidden_states
            layers = len(given) - 1
            named = {**dict(enumerate(given[:-1])), layers: before[0], "final": given[-1]}
            for row, i in enumerate(mine):
                found[i] = {b: h[row].clone() for b, h in named.items()}
    finally:
        hook.remove()
    return found
