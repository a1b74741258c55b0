"""Embedding rows of the tokens at hand. Most drafter checkpoints carry no table, and a whole table is never needed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor


class EmbeddingError(ValueError):
    """Embedding rows are missing or do not fit."""


class EmbeddingRows:
    """Rows of an embedding table by token id. Call it with ids [R] to get [R, H]."""

    def __init__(self, token_ids: Tensor, rows: Tensor, source: str) -> None:
        """token_ids: [n] int64, distinct; rows: [n, H]; source: where they come from, for error messages and reports."""
        if token_ids.ndim != 1 or rows.ndim != 2 or len(token_ids) != len(rows):
            raise EmbeddingError(f"{source}: expected token_ids [n] and rows [n, H], got {list(token_ids.shape)} and {list(rows.shape)}")
        order = token_ids.argsort()
        self.token_ids, self.rows, self.source = token_ids[order].long(), rows[order], source

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> EmbeddingRows:
        return EmbeddingRows(self.token_ids.to(device), self.rows.to(device, dtype), self.source)

    def missing(self, ids: Tensor) -> Tensor:
        """The distinct ids that have no row here."""
        wanted = ids.unique()
        return wanted[~torch.isin(wanted, self.token_ids)]

    def __call__(self, ids: Tensor) -> Tensor:
        place = torch.searchsorted(self.token_ids, ids).clamp(max=len(self.token_ids) - 1)
        if not bool((self.token_ids[place] == ids).all()):
            absent = self.missing(ids)
            raise EmbeddingError(
                f"{self.source} holds no embedding row for {len(absent)} of the sample's tokens (first: {absent[:5].tolist()}). "
                "Give the target's checkpoint, or a file with the rows of all tokens of the samples."
            )
        return self.rows[place]


def load_embedding_rows(path: str | Path) -> EmbeddingRows:
    """A safetensors file with `token_ids` [n] and `rows` [n, H]. Raises EmbeddingError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise EmbeddingError(f"{path}: not a readable safetensors file ({error})") from error
    absent = {"token_ids", "rows"} - tensors.keys()
    if absent:
        raise EmbeddingError(f"{path}: expected the tensors token_ids [n] and rows [n, H], found only {sorted(tensors)}")
    return EmbeddingRows(tensors["token_ids"], tensors["rows"], Path(path).name)


def save_embedding_rows(path: str | Path, token_ids: Tensor, rows: Tensor) -> None:
    """Write the file that `load_embedding_rows` reads."""
    from safetensors.torch import save_file

    save_file({"token_ids": token_ids.contiguous(), "rows": rows.contiguous()}, path)
