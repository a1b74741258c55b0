"""Rows with outcomes of known rates, and whole cases on disk of drafters that were really trained."""

import json

import numpy as np
import torch
from case_builder import write_case, write_drafter

from eaglelab.drafter.embedding import save_embedding_rows
from eaglelab.lost import Rows


def drawn_rows(samples, length, steps, rate, wanted=None, seed=0, prompt=0):
    """Rows of independent outcomes: right at step k of row t of sample s with probability rate(s, t, k) (arrays). wanted: [S, K, T] ids."""
    draws = np.random.default_rng(seed)
    s, t, k = np.meshgrid(np.arange(samples), np.arange(length), np.arange(steps), indexing="ij")
    right = draws.random(s.shape) < rate(s, t, k)
    flat = lambda x: x.transpose(2, 0, 1).reshape(steps, -1)  # noqa: E731
    counted = np.ones((steps, samples * length), dtype=bool)
    ids = np.zeros((samples, length, steps), dtype=int) if wanted is None else wanted
    return Rows(
        sample=s[..., 0].ravel(),
        row=t[..., 0].ravel() + prompt,
        start=np.zeros(samples * length, dtype=int),
        wanted=flat(ids),
        counted=counted,
        right=flat(right),
        outside=np.zeros_like(counted),
        drafted=flat(np.where(right, ids, -2)),
        confidence=np.full(counted.shape, 0.5),
        keys=tuple(f"s{i}" for i in range(samples)),
    )


def trained_case(root, drafter, samples, embedding, theta=None, target_theta=None, **config):
    """A case of a trained drafter and its samples, judged by the text. theta: written into its config instead of what it was trained with."""
    c = drafter.config
    written = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": 1,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": theta or c.rope["rope_theta"],
        "max_position_embeddings": c.max_position_embeddings,
        "tie_word_embeddings": False,
        **config,
    }
    tensors = {n: t.detach().clone() for n, t in drafter.state_dict().items() if not n.startswith("rotary")}
    tensors["t2d"] = torch.isin(torch.arange(c.vocab_size), drafter.target_ids)
    write_drafter(root / "drafter", tensors, written)
    for i, sample in enumerate(samples):
        folder = root / "dump" / "rows_0-100"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(
            {
                "input_ids": sample.token_ids.clone(),
                "hidden_states": [s.clone() for s in sample.slots],
                "loss_mask": sample.loss_mask.clone(),
            },
            folder / f"data_{i}.pt",
        )
    save_embedding_rows(root / "rows.safetensors", embedding.token_ids, embedding.rows)
    sections = {"dump": {"path": "dump"}, "drafter": {"path": "drafter", "embed": "rows.safetensors"}}
    if target_theta is not None:
        target = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 6, **{k: written[k] for k in (
            "hidden_size", "num_attention_heads", "head_dim", "vocab_size", "max_position_embeddings")}, "rope_theta": target_theta}  # fmt: skip
        (root / "target-config.json").write_text(json.dumps(target))
        sections["target"] = {"config": "target-config.json"}
    return write_case(root, sections)
