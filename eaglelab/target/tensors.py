"""Way (b): a target of which only single tensors are read, the embedding rows of the tokens at hand, the final norm, the lm_head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.target.checkpoint import Checkpoint, LazyRows, open_checkpoint
from eaglelab.target.norms import FinalNorm, final_norm

SCALED_BY_ROOT = ("gemma", "t5gemma", "recurrent_gemma", "vaultgemma")
"""Model types, by their beginning, that multiply the embedding by sqrt(H)."""


class TensorSource:
    """A target of which only single tensors are read. `identify` takes it where no forward is wanted."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoint = open_checkpoint(path)
        self.num_layers: int = self.checkpoint.num_layers
        self.hidden_size: int = self.checkpoint.hidden_size

    @cached_property
    def norm(self) -> FinalNorm:
        return final_norm(self.checkpoint)

    @property
    def lm_head(self) -> LazyRows:
        """[V, H], read slice by slice."""
        return self.checkpoint.lazy(self.checkpoint.head_name)

    @property
    def vocab_size(self) -> int:
        return self.checkpoint.vocab_size

    def embedding_rows(self, token_ids: Tensor) -> Tensor:
        """[T] to [T, H], as stored; the table is never read whole. Raises CheckpointError for ids that it does not have."""
        return self.checkpoint.rows(self.checkpoint.embedding_name, token_ids)

    def visit(self, token_ids: Sequence[Tensor], visit: Callable[..., Any]) -> None:
        """Calls `visit(0, states)` alone: what enters layer 0, one [T, H] per sample."""
        multiplier = embedding_multiplier(self.checkpoint)
        rows = [self.embedding_rows(ids) for ids in token_ids]  # per sample [T, H]
        visit(0, [r * torch.tensor(multiplier, dtype=r.dtype) if multiplier != 1 else r for r in rows])


def embedding_multiplier(checkpoint: Checkpoint) -> float:
    """What the model multiplies its embedding rows by before layer 0, by its config; 1 for most.

    sqrt(H) for Gemma (rounded to bfloat16 by the models themselves), `embedding_multiplier` (Granite, Falcon-H1), `scale_emb` (MiniCPM).
    """
    config = checkpoint.text_config
    for key in ("embedding_multiplier", "scale_emb"):
        if isinstance(config.get(key), (int, float)):
            return float(config[key])
    return checkpoint.hidden_size**0.5 if checkpoint.model_type.startswith(SCALED_BY_ROOT) else 1.0
