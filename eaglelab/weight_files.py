"""Which files of a folder are its weights: one rule for the header audit, the vocabulary map and the loading. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from eaglelab.outside_json import read_weight_map

KINDS = (("model.safetensors", "*.safetensors"), ("pytorch_model.bin", "pytorch_model*.bin"))
"""(The file of an unsharded checkpoint, how weight files are named); safetensors go first, as in transformers and the engines."""


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of one folder."""

    files: dict[str, int]
    """File name -> tensors that the index says are in it; 0 without an index."""
    shard_of: dict[str, str] | None
    """The index: tensor name -> file name. None without one."""
    others: tuple[str, ...]
    """Weight files of the same kind beside them. Engines read them too, unless there is an index."""

    def absent(self, folder: Path) -> dict[str, int]:
        """Those that the index names and the folder lacks; a pipe, which is waited on for ever, counts as lacking."""
        return {name: count for name, count in self.files.items() if not (folder / name).is_file()}


def weight_files(folder: Path) -> WeightFiles:
    """The index's files, else the one unsharded file, else all of the kind; none at all where the folder holds no weights.

    Raises ValueError for an index that cannot be read.
    """
    for single, pattern in KINDS:
        index = folder / f"{single}.index.json"
        present = sorted(p.name for p in folder.glob(pattern) if p.is_file())
        if index.is_file():
            shard_of = read_weight_map(index)
            return _listed(dict(Counter(shard_of.values())), shard_of, present)
        if present:
            return _listed(dict.fromkeys([single] if single in present else present, 0), None, present)
    return WeightFiles({}, None, ())


def _listed(files: dict[str, int], shard_of: dict[str, str] | None, present: Iterable[str]) -> WeightFiles:
    beside = [name for name in present if name not in files]
    # Mistral's own copy of the weights: both engines leave it out where these two are all there is (filter_duplicate_safetensors_files).
    return WeightFiles(files, shard_of, () if beside == ["consolidated.safetensors"] and not shard_of else tuple(beside))
