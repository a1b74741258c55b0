"""Tiny drafters that are really trained, with any choice of flags, and the texts that they are trained on.

Each text walks along one of four permutations of the vocabulary. Which one it is stands in one row near its beginning alone, so that the
drafter has to attend to it; the rest of a row's states is its own token's, at a size that differs from row to row, so that norms matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample

V, H, MODES, LENGTH, PROMPT = 16, 32, 2, 24, 4


def walks(count: int = 8, seed: int = 0, vocabulary: int = V) -> tuple[list[Sample], EmbeddingRows]:
    """(samples of three aux slots and a last state that spells the next token, embedding rows). The texts say the last `vocabulary` ids."""
    g = torch.Generator().manual_seed(seed)
    cycles = [V - vocabulary + torch.randperm(vocabulary, generator=g) for _ in range(MODES)]
    table, marks, embedding = (torch.randn(n, H, generator=g) for n in (3 * V, MODES, V))
    samples = []
    for i in range(count):
        mode, start, mark = i % MODES, int(torch.randint(0, vocabulary, (1,), generator=g)), 1 + i % (PROMPT - 1)
        ids = cycles[mode][(start + torch.arange(LENGTH + 1)) % vocabulary]
        size = torch.exp(torch.randn(LENGTH, 1, generator=g))
        slots = [size * table[s * V + ids[:-1]] for s in range(3)]
        slots[1][mark] = 6 * size[mark] * marks[mode]
        last = 8 * F.one_hot(ids[1:], H).float()
        mask = (torch.arange(LENGTH) >= PROMPT).long()
        samples.append(Sample(f"s{i:02}", ids[:-1], (*slots, last), mask, ("low", "middle", "high", "last")))
    return samples, EmbeddingRows(torch.arange(V), embedding, "test embedding")


def trained(samples: list[Sample], embedding: EmbeddingRows, updates: int = 40, steps: int = 2, seed: int = 0, **flags) -> Drafter:
    """A drafter trained by Adam on all rows of the samples, `steps` drafted tokens each. flags: of its config."""
    torch.manual_seed(seed)
    config = DrafterConfig(
        **{
            "hidden_size": H,
            "target_hidden_size": H,
            "num_slots": 3,
            "vocab_size": V,
            "draft_vocab_size": V,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 48,
            "rms_norm_eps": 1e-6,
            "rope": {"rope_theta": 1e4},
            "max_position_embeddings": 64,
            **flags,
        }
    )
    drafter = Drafter(config)
    with torch.no_grad():
        for name, weight in drafter.named_parameters():
            if "norm" in name:
                weight.normal_()  # of either sign, so that leaving a norm out changes more than a size
            elif name.endswith("bias"):
                weight.normal_(0, 2)
        drafter.d2t.fill_(V - config.draft_vocab_size)
    packed = Packed.of([s.token_ids for s in samples], "cpu")
    rows = torch.cat([torch.arange(LENGTH - 1 - steps) + first for first in packed.starts[:-1]])
    slots = [torch.cat([s.slots[p] for s in samples]) for p in range(3)]
    adam = torch.optim.Adam(drafter.parameters(), lr=2e-2)
    for _ in range(updates):
        fused = drafter.fuse([drafter.slot_product(p, x) for p, x in enumerate(slots)], slots)
        loss = torch.zeros(())
        for k, output in enumerate(draft_chains(drafter, packed, fused, embedding, rows, steps)):
            loss = loss + F.cross_entropy(output.logits, packed.token_ids[rows + 2 + k] - drafter.d2t[0])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return drafter.eval()
