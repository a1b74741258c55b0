"""Embedding rows of the tokens at hand. Most drafter checkpoints carry no table, and a whole table is never needed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

HOW = "`eaglelab sketch TARGET --dump DUMP --embedding FILE` writes the rows of all their tokens, and `[drafter] embed` names the file"
"""How to get embedding rows, for messages."""


class EmbeddingError(ValueError):
    """Embedding rows are missing or do not fit."""


class EmbeddingRows:
    """Rows of an embedding table by token id. Call it with ids [R] to get [R, H]."""

    def __init__(self, token_ids: Tensor, rows: Tensor, source: str) -> None:
        """token_ids: [n] int64, distinct; rows: [n, H]; source: where they come from, for error messages and reports."""
        if token_ids.ndim != 1 or rows.ndim != 2 or len(token_ids) != len(rows) or not len(rows):
            raise EmbeddingError(
                f"{source}: expected token_ids [n] and rows [n, H] with n > 0, got {list(token_ids.shape)} and {list(rows.shape)}"
            )
        order = token_ids.argsort()
        self.token_ids, self.rows, self.source = token_ids[order].long(), rows[order], source

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> EmbeddingRows:
        if (self.rows.device, self.rows.dtype) == (torch.device(device), dtype):
            return self
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
                f"{HOW}; or give more samples and rows to the sketch, or the target's checkpoint."
            )
        return self.rows[place]


def apart(rows: Tensor, other: Tensor) -> Tensor:
    """[n] float32: how far two tables' rows [n, H] are apart, relative to the second's norms; infinite where one is not finite."""
    other = other.float()
    return ((rows.float() - other).norm(dim=1) / other.norm(dim=1).clamp(min=1e-12)).nan_to_num(nan=torch.inf)


def load_embedding_rows(path: str | Path) -> EmbeddingRows:
    """A safetensors file with `token_ids` [n] and `rows` [n, H], or a sketch, with the rows of its texts' tokens. Raises EmbeddingError.

    Rows are those of the table, as stored: where a target scales its embedding (Gemma, Granite, MiniCPM) the drafter is not given the
    scaled ones. A sketch keeps boundary 0, which is then the scaled rows: for such a target write the rows of the table.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(path).is_file():  # nor a pipe, which would be waited on for ever
        raise EmbeddingError(f"{path}: no such file (a folder or a pipe is none); {HOW}")
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise EmbeddingError(f"{path}: not a readable safetensors file ({error})") from error
    for ids, rows in (("token_ids", "rows"), ("embedding_ids", "embedding_rows")):
        if {ids, rows} <= tensors.keys():
            return EmbeddingRows(tensors[ids], tensors[rows], Path(path).name)
    raise EmbeddingError(
        f"{path}: expected the tensors token_ids [n] and rows [n, H], or a sketch, found only {sorted(tensors)[:12]}; {HOW}"
    )


def save_embedding_rows(path: str | Path, token_ids: Tensor, rows: Tensor) -> None:
    """Write the file that `load_embedding_rows` reads. token_ids: [n] int64, distinct; rows: [n, H], as the table has them."""
    from safetensors.torch import save_file

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_file({"token_ids": token_ids.contiguous(), "rows": rows.contiguous()}, path)
