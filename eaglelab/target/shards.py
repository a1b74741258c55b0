"""The files of a checkpoint, one reader per container. Nothing is kept open or in memory between two reads."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eaglelab.target.errors import CheckpointError

GAP = 8
"""Wanted rows with up to this many unwanted rows between them are read in one piece: a seek costs more than a few rows."""


class TorchShard:
    """A `pytorch_model*.bin` file, loaded with `weights_only=True` and memory-mapped where its container allows."""

    def __init__(self, path: Path):
        self.path = path

    def names(self) -> list[str]:
        return list(self._content())

    def header(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype."""
        tensor = self._mapped(name)
        return tuple(tensor.shape), tensor.dtype

    def tensor(self, name: str) -> Tensor:
        """In memory of its own."""
        return self._mapped(name).clone()

    def rows(self, name: str, spans: list[tuple[int, int]]) -> Iterator[Tensor]:
        table = self._mapped(name)
        for start, stop in spans:
            yield table[start:stop].clone()

    def _mapped(self, name: str) -> Tensor:
        content = self._content()
        if name not in content:
            raise CheckpointError(self._lacks(name))
        return content[name].detach()

    def _content(self) -> dict[str, Tensor]:
        try:
            content = load_mapped(self.path)
        except Exception as error:  # garbage makes the unpickler raise whatever it likes
            if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
                raise CheckpointError(
                    f"{self.path.name} holds more than tensors, and running code out of a checkpoint is refused; convert it to safetensors"
                ) from error
            raise CheckpointError(self._broken(error)) from error
        content = content.get("state_dict", content) if isinstance(content, dict) else content
        if not isinstance(content, dict):
            raise CheckpointError(f"{self.path.name} holds a {type(content).__name__}, expected a dict of tensors by name")
        return {str(k): v for k, v in content.items() if isinstance(v, Tensor)}

    def _lacks(self, name: str) -> str:
        return f"{self.path.name} does not hold {name}, though the index says so; index and shards are of different checkpoints"

    def _broken(self, error: Exception) -> str:
        size = self.path.stat().st_size if self.path.exists() else 0
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        return (
            f"{self.path.name} ({size:,} bytes) cannot be read as a checkpoint file: {first_line}. "
            "It is cut short or not what its name says; copy or download it again"
        )


class SafetensorsShard(TorchShard):
    """A `.safetensors` file. Opened anew for every read, so that the pages of a tensor go when the tensor goes."""

    def names(self) -> list[str]:
        try:
            with safe_open(self.path, framework="pt") as file:
                return list(file.keys())
        except (SafetensorError, OSError) as error:
            raise CheckpointError(self._broken(error)) from error

    def _mapped(self, name: str) -> Tensor:
        try:
            with safe_open(self.path, framework="pt") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            lacks = "does not contain tensor" in str(error)
            raise CheckpointError(self._lacks(name) if lacks else self._broken(error)) from error

    def rows(self, name: str, spans: list[tuple[int, int]]) -> Iterator[Tensor]:
        """Rows by plain reads: through a mapping each row would pull in its surroundings (measured: 4 MB a row, 5 ms)."""
        shape, dtype = self.header(name)
        row = math.prod(shape[1:]) * dtype.itemsize  # bytes
        with open(self.path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            length = int.from_bytes(file.read(8), "little")  # 8 bytes of header length, the header in JSON, the values
            begin = 8 + length + json.loads(file.read(length))[name]["data_offsets"][0]
            for start, stop in spans:
                piece = torch.empty((stop - start) * row, dtype=torch.uint8)
                file.seek(begin + start * row)
                if _read_into(file, piece) < len(piece):
                    raise CheckpointError(f"{self.path.name} ends within rows {start}..{stop - 1} of {name}; copy or download it again")
                yield piece.view(dtype).view(stop - start, *shape[1:])


def _read_into(file: BinaryIO, piece: Tensor) -> int:
    buffer, got = memoryview(piece.numpy()), 0
    while got < len(buffer) and (n := file.readinto(buffer[got:])):
        got += n
    return got


def load_mapped(path: Path):
    """torch.load of tensors only. Files from before torch 1.6 are no zip and cannot be mapped: they are read whole."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)


def open_shard(path: Path) -> TorchShard:
    return SafetensorsShard(path) if path.suffix == ".safetensors" else TorchShard(path)


def row_spans(ids: list[int], gap: int = GAP) -> list[tuple[int, int]]:
    """Sorted distinct row numbers as half-open spans, neighbours up to `gap` rows apart joined."""
    spans: list[tuple[int, int]] = []
    for row in ids:
        if spans and row - spans[-1][1] <= gap:
            spans[-1] = (spans[-1][0], row + 1)
        else:
            spans.append((row, row + 1))
    return spans
