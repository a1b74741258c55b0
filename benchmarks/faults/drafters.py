"""Drafters of the tiny targets, trained as EAGLE-3 drafters are: on the target's own answers, over its states, several drafted steps at once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Drafter, Flags
from faults.language import VOCAB
from faults.targets import HIDDEN

DRAFT_VOCAB = 60
UPDATES, BATCH, RATE, STEPS = 150, 10, 4e-3, 3
Boundary = int | str


@dataclass(frozen=True)
class Material:
    """What drafters of one target are trained on."""

    texts: list[Tensor]
    prompts: list[int]
    states: list[dict[Boundary, Tensor]]
    embedding: Tensor
    """[V, H], as stored."""
    lm_head: Tensor
    """[V, H]."""


def draft_config(**changes: Any) -> dict[str, Any]:
    """A config.json as SpecForge writes it, without layer ids."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **changes,
    }


def draft_vocabulary(material: Material, size: int) -> Tensor:
    """[Vd] int64, ascending: the most frequent tokens of the answers; where answers have fewer, the first others."""
    counts = Counter(t for text, p in zip(material.texts, material.prompts, strict=True) for t in text[p:].tolist())
    ranked = sorted(range(VOCAB), key=lambda t: (-counts[t], t))
    return torch.tensor(sorted(ranked[:size]))


def train_drafter(
    material: Material,
    wiring: list[Boundary],
    *,
    samples: int | None = None,
    updates: int | None = None,
    token_shift: int = 0,
    mask: str = "answer",
    steps: int = STEPS,
    seed: int = 0,
    config: dict[str, Any] | None = None,
    **flags: bool,
) -> dict[str, Tensor]:
    """The tensors of a checkpoint, bf16, d2t and t2d among them.

    wiring: what fc is fed, place by place; "zero" feeds zeros. samples: the first ones alone. token_shift: as in `draft_chains`. mask: which rows
    train: `answer`, `all`, `prompt` (the wrong way round), `late` (one row late), `none` (the weights as they start). config: keys of
    config.json, as norm_before_residual; flags: fields of `Flags`, computed otherwise than the config says.
    """
    made = DrafterConfig.from_dict(draft_config(num_aux_hidden_states=len(wiring), **(config or {})))
    unknown = flags.keys() - {f.name for f in fields(Flags)}
    if unknown:
        raise TypeError(f"no flags {sorted(unknown)}: keys of config.json go into `config`")
    torch.manual_seed(seed)
    drafter = Drafter(made)
    kept = draft_vocabulary(material, made.draft_vocab_size)
    drafter.d2t.copy_(kept - torch.arange(len(kept)))
    texts, prompts, states = (x[:samples] for x in (material.texts, material.prompts, material.states))
    whole = made.fc_norm or made.norm_before_fc  # norms of their own come between the states and fc: nothing can be folded into it
    scales = [1.0 if b == "zero" or whole else torch.cat([s[b] for s in states]).pow(2).mean().sqrt().item() for b in wiring]
    _start(drafter, material.lm_head[kept])
    if mask != "none":
        _fit(drafter, material, texts, prompts, states, wiring, scales, kept, UPDATES if updates is None else updates, token_shift, mask, steps,
             replace(Flags.of(made), **flags), random.Random(seed))  # fmt: skip
    with torch.no_grad():
        for place, scale in enumerate(scales):
            drafter.fc.weight[:, place * HIDDEN : (place + 1) * HIDDEN] /= scale
    t2d = torch.zeros(made.vocab_size, dtype=torch.bool)
    t2d[kept] = True
    tensors = {n: t.detach().to(torch.bfloat16) if t.is_floating_point() else t.clone() for n, t in drafter.state_dict().items()}
    return {**{n: t for n, t in tensors.items() if "rotary" not in n}, "t2d": t2d}


def _start(drafter: Drafter, head: Tensor) -> None:
    """From the target: its lm_head's rows, of the size that a normed state needs; norms of either size, so that none can be left out unseen."""
    with torch.no_grad():
        drafter.lm_head.weight.copy_(head / head.norm(dim=1, keepdim=True).mean() * 2)
        for name, weight in drafter.named_parameters():
            if "norm" in name and weight.ndim == 1:
                weight.uniform_(0.4, 1.8)


def _fit(drafter, material, texts, prompts, states, wiring, scales, kept, updates, token_shift, mask, steps, flags, r) -> None:
    table = EmbeddingRows(torch.arange(VOCAB), material.embedding, "the target's embedding table")
    to_draft = torch.full((VOCAB,), -100)
    to_draft[kept] = torch.arange(len(kept))
    adam = torch.optim.AdamW(drafter.parameters(), lr=RATE, betas=(0.9, 0.97), weight_decay=0.0)
    for update in range(updates):
        for group in adam.param_groups:
            group["lr"] = RATE * min(1.0, (update + 1) / 20, 1.1 * (1 - update / updates) + 0.03)
        chosen = [r.randrange(len(texts)) for _ in range(BATCH)]
        packed = Packed.of([texts[i] for i in chosen], "cpu")
        rows = []
        for n, i in enumerate(chosen):
            first, last = _trained(mask, prompts[i], len(texts[i]), steps)
            rows.append(packed.starts[n] + torch.arange(first, last))
        rows = torch.cat(rows)
        fed = [torch.zeros(len(packed.token_ids), HIDDEN) if b == "zero" else torch.cat([states[i][b] for i in chosen]) / scale
               for b, scale in zip(wiring, scales, strict=True)]  # fmt: skip
        fused = drafter.fuse([drafter.slot_product(p, x) for p, x in enumerate(fed)], fed)
        loss = torch.zeros(())
        for k, output in enumerate(draft_chains(drafter, packed, fused, table, rows, steps, token_shift=token_shift, flags=flags)):
            wanted = to_draft[packed.token_ids[rows + 2 + k]]
            loss = loss + 0.9**k * F.cross_entropy(output.logits, wanted, ignore_index=-100)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        adam.step()


def _trained(mask: str, prompt: int, length: int, steps: int) -> tuple[int, int]:
    """Rows of a text at which chains start."""
    end = length - 1 - steps
    return {"answer": (prompt - 1, end), "all": (0, end), "prompt": (0, prompt), "late": (prompt, end)}[mask]
