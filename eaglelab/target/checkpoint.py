"""A target's checkpoint folder: names, shapes, single tensors and single rows, read from its shards only when asked for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.findings import few
from eaglelab.outside_json import LAYER_KEYS, text_part, too_deep
from eaglelab.stored_names import logical_names
from eaglelab.target.errors import CheckpointError
from eaglelab.target.names import EMBEDDINGS, HEADS, NORMS, count_layers, find_tensor, outside_layers
from eaglelab.target.quantised import FLOATS, dequantise, is_quantised, logical_shape
from eaglelab.target.shards import TorchShard, open_shard, row_spans
from eaglelab.weight_files import weight_files

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""In which a model runs."""
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "dim")


class Checkpoint:
    """A Hugging Face checkpoint folder. Make one with `open_checkpoint`.

    Names are logical: those that the model asks for. A quantised weight has one name and is read as floats, its scales have none
    (`eaglelab.stored_names`). Reading keeps nothing open and nothing in memory.
    """

    def __init__(self, path: Path, config: dict[str, Any], shard_of: dict[str, str]):
        self.path = path
        self.config = config
        """config.json as it is."""
        self._shard_of = shard_of  # stored name -> file name
        self._carrier = logical_names(shard_of)  # logical name -> stored name

    def __repr__(self) -> str:
        return f"Checkpoint({self.path.name!r}, {len(self._carrier)} tensors)"

    # -- tensors ----------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All logical names, sorted."""
        return sorted(self._carrier)

    def __contains__(self, name: str) -> bool:
        return name in self._carrier

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the logical tensor. Raises CheckpointError as `tensor` does."""
        carrier, shape, _ = self._header(name)
        return logical_shape(carrier, shape, lambda: self._read(name + "_shape"))

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that `tensor` gives: the stored one, or the model's own for a quantised weight."""
        carrier, _, stored = self._header(name)
        return self.model_dtype if is_quantised(carrier, stored) else stored

    def tensor(self, name: str) -> Tensor:
        """One whole tensor, on the CPU, in memory of its own.

        Raises CheckpointError: no such name, its shard is missing or cut short, a quantised layout that cannot be read.
        """
        carrier, _, stored = self._header(name)
        if is_quantised(carrier, stored):
            return dequantise(name, carrier, self._read, self._shard_of.__contains__, self.model_dtype)
        return self._read(carrier)

    def rows(self, name: str, ids: Iterable[int] | Tensor) -> Tensor:
        """Rows `ids` of a two-dimensional tensor, in the order given: [len(ids), width]. Only those rows are read.

        Each distinct row is read once, neighbours in one piece. Raises CheckpointError as `tensor` does and for rows that the
        table does not have.
        """
        wanted = torch.as_tensor(ids if isinstance(ids, Tensor) else list(ids)).to("cpu", torch.int64)  # [n]
        shape = self.shape(name)
        outside = wanted[(wanted < 0) | (wanted >= shape[0])]
        if len(outside):
            raise CheckpointError(
                f"{self.path.name}: {name} has rows 0..{shape[0] - 1}, asked for {few([str(i) for i in outside.unique().tolist()], 5)}; "
                "the token ids belong to another tokenizer or the file is damaged"
            )
        carrier, _, stored = self._header(name)
        if is_quantised(carrier, stored):
            return self.tensor(name)[wanted]
        distinct, place = wanted.unique(return_inverse=True)  # [U], [n]
        spans = row_spans(distinct.tolist())
        rows = torch.empty(len(distinct), *shape[1:], dtype=stored)  # [U, H]
        filled = 0
        for (start, stop), piece in zip(spans, self._shard(carrier).rows(carrier, spans), strict=True):
            kept = distinct[(distinct >= start) & (distinct < stop)] - start
            rows[filled : filled + len(kept)] = piece[kept]
            filled += len(kept)
        return rows[place]

    def lazy(self, name: str) -> LazyRows:
        """The tensor as something to slice by rows, read slice by slice."""
        return LazyRows(self, name)

    def _header(self, name: str) -> tuple[str, tuple[int, ...], torch.dtype]:
        """The stored name that carries a logical tensor, its shape and its dtype."""
        if name not in self._carrier:
            raise CheckpointError(f"{self.path.name}: no tensor {name} among {len(self._carrier)}{_nearest(name, self._carrier)}")
        carrier = self._carrier[name]
        return carrier, *self._shard(carrier).header(carrier)

    def _shard(self, stored: str) -> TorchShard:
        file = self.path / self._shard_of[stored]
        if not file.is_file():
            files = set(self._shard_of.values())
            gone = [f for f in files if not (self.path / f).is_file()]
            raise CheckpointError(
                f"{self.path.name}: {stored} is in {file.name}, which the index names and the folder lacks "
                f"({len(gone)} of {len(files)} files missing); copy or download it"
            )
        return open_shard(file)

    def _read(self, stored: str) -> Tensor:
        if stored not in self._shard_of:
            raise CheckpointError(f"{self.path.name}: no tensor {stored}, which a quantised weight needs")
        return self._shard(stored).tensor(stored)

    # -- the model --------------------------------------------------------------------------------------------------------

    @cached_property
    def text_config(self) -> dict[str, Any]:
        """The text decoder's part of config.json: `text_config` (or its like) of a multimodal wrapper, else all of it."""
        return text_part(self.config)

    @property
    def architectures(self) -> list[str]:
        return list(self.config.get("architectures") or self.text_config.get("architectures") or [])

    @property
    def model_type(self) -> str:
        """The text decoder's model type, "" when config.json has none."""
        return self.text_config.get("model_type") or self.config.get("model_type") or ""

    @cached_property
    def num_layers(self) -> int:
        """N, from config.json; by the names of the layers where it does not say."""
        number = next((self.text_config[k] for k in LAYER_KEYS if isinstance(self.text_config.get(k), int)), None)
        if number is None:
            number = count_layers(self._carrier, self.decoder_prefix)
        if not number:
            raise CheckpointError(f"{self.path.name}/config.json: number of layers not found (looked for {', '.join(LAYER_KEYS)})")
        return number

    @cached_property
    def hidden_size(self) -> int:
        """H, from config.json, else the width of the embedding table."""
        width = next((self.text_config[k] for k in WIDTH_KEYS if isinstance(self.text_config.get(k), int)), None)
        return width or self.shape(self.embedding_name)[1]

    @cached_property
    def vocab_size(self) -> int:
        """V: rows of the embedding table (config.json may leave it out or round it)."""
        return self.shape(self.embedding_name)[0]

    @cached_property
    def model_dtype(self) -> torch.dtype:
        """The dtype that the model runs in by its config, else its embedding table's, else bfloat16."""
        for config in (self.text_config, self.config):
            name = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
            if name in DTYPES:
                return DTYPES[name]
        try:
            _, _, stored = self._header(self.embedding_name)
        except CheckpointError:
            return torch.bfloat16
        return stored if stored in FLOATS else torch.bfloat16

    @cached_property
    def embedding_name(self) -> str:
        return find_tensor(self._carrier, EMBEDDINGS, "embedding table", self.path.name)

    @property
    def decoder_prefix(self) -> str:
        """What stands before the decoder's own names: `model.`, `language_model.model.`, …"""
        ending = next((e for e in EMBEDDINGS if self.embedding_name.endswith(e)), "")
        return self.embedding_name.removesuffix(ending)

    @cached_property
    def norm_name(self) -> str:
        return find_tensor(self._carrier, NORMS, "final norm", self.path.name)

    @cached_property
    def tied(self) -> bool:
        """True when the lm_head is the embedding table: it is not stored and the config does not say that they differ."""
        if outside_layers(self._carrier, HEADS):
            return False
        return self.text_config.get("tie_word_embeddings", self.config.get("tie_word_embeddings")) is not False

    @cached_property
    def head_name(self) -> str:
        """The lm_head's weight [V, H]; the embedding table where they are tied."""
        return self.embedding_name if self.tied else find_tensor(self._carrier, HEADS, "lm_head", self.path.name)


class LazyRows:
    """A two-dimensional tensor on disk: `.shape`, and `[start:stop]`, which reads those rows."""

    def __init__(self, checkpoint: Checkpoint, name: str):
        self.checkpoint, self.name = checkpoint, name
        self.shape = checkpoint.shape(name)

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, step = rows.indices(self.shape[0])
        return self.checkpoint.rows(self.name, range(start, stop, step))


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint folder: `model.safetensors`, `pytorch_model.bin`, or shards of either with their index.

    Reads config.json, and the index or the headers; no tensor. Raises CheckpointError when the path is no such folder. A shard
    that the index names and the folder lacks is an error only when one of its tensors is asked for.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such folder; expected a checkpoint folder with config.json and weights")
    if not path.is_dir():
        raise CheckpointError(f"{path} is a file; expected the folder that holds config.json and the weights")
    return Checkpoint(path, _read_config(path), _find_tensors(path))


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{path.name}: no config.json in the folder; expected a Hugging Face checkpoint (config.json and weights)")
    return read_json(file)


def _find_tensors(path: Path) -> dict[str, str]:
    """{stored name: file name}, from the index, a single file's header, or the headers of all weight files."""
    try:
        held = weight_files(path)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if held.shard_of is not None:
        return held.shard_of
    if not held.files:
        raise CheckpointError(
            f"{path.name}: no weights in the folder; expected model.safetensors, pytorch_model.bin, or shards of either with an index"
        )
    return {name: file for file in held.files for name in open_shard(path / file).names()}


def read_json(file: Path) -> dict[str, Any]:
    """A checkpoint's config.json or one like it. Raises CheckpointError where it is not readable, not JSON, or no object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_hook=_float_or_object)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.parent.name}/{file.name} is not readable JSON: {error}") from error
    if too_deep(content):
        raise CheckpointError(f"{file.parent.name}/{file.name} is nested too deeply to be a config")
    if not isinstance(content, dict):
        raise CheckpointError(f"{file.parent.name}/{file.name} holds a {type(content).__name__}, expected an object")
    return content


def _float_or_object(value: dict[str, Any]) -> Any:
    """transformers 5 writes infinities as {"__float__": "Infinity"}."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def _nearest(name: str, names: Iterable[str]) -> str:
    ending = name.split(".")[-2:]
    near = difflib.get_close_matches(name, [n for n in names if n.split(".")[-2:] == ending][:2000], n=1)
    return f"; the nearest name is {near[0]}" if near else ""
