"""The loss mask that stands in an Arrow dataset beside the states, as `datasets.save_to_disk` writes it: `state.json` names the
`data-*.arrow` files, IPC streams with one row a sample. They are memory-mapped and read by row; nothing but pyarrow is needed.

A mask is only ever taken from a row whose `input_ids` are the sample's own tokens. Whatever else is found is told, and the mask
stays unknown.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.dumps.containers import DumpError
from eaglelab.dumps.listing import natural
from eaglelab.dumps.sample import as_mask, as_token_ids

MASK = "loss_mask"
ARROW_FILES = "data-*.arrow"
NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "bool")


def find_dataset(folder: Path) -> Path | None:
    """The dataset that a file of states in `folder` belongs to: `folder` itself, or the one that it lies in (`hidden_states/`)."""
    places = (folder, folder.parent)
    named = next((place for place in places if (place / "state.json").is_file()), None)
    return named or next((place for place in places if any(place.glob(ARROW_FILES))), None)


def mask_of_row(dataset: Path, row: int, token_ids: Tensor) -> tuple[Tensor | None, list[str]]:
    """(mask [T] int64 or None, what to know about it) for the sample with the tokens token_ids [T], which is row `row` of the dataset.

    A sample shorter than its row was cut by its writer (vLLM's `max_model_len`); it gets the row's mask up to there.
    """
    unknown = "; the loss mask is unknown"
    try:
        ids, mask, notes = _read_row(dataset, row)
    except DumpError as error:
        return None, [f"{error}{unknown}"]
    both = min(len(ids), len(token_ids))
    differ = (ids[:both] != token_ids[:both]).nonzero()
    here = f"row {row} of the Arrow dataset {dataset}"
    if len(differ):
        text = f"{here} holds other tokens from position {int(differ[0])} on: it belongs to another sample (prepared again, or shuffled?)"
        return None, [f"{text}{unknown}"]
    if len(ids) < len(token_ids):
        return None, [f"{here} holds {len(ids)} tokens, the file of states {len(token_ids)}{unknown}"]
    if len(mask) != len(ids):
        return None, [f"{here} has {len(mask)} mask values for {len(ids)} tokens{unknown}"]
    if len(ids) > len(token_ids):
        notes.append(f"{here} has {len(ids)} tokens, the states end after {len(token_ids)} (cut at max_model_len?)")
    return mask[: len(token_ids)], notes


def _read_row(dataset: Path, row: int) -> tuple[Tensor, Tensor, list[str]]:
    """(input_ids [L], loss_mask [L], notes). Raises DumpError, in words that end without a full stop."""
    try:
        import pyarrow as pa
    except ImportError:
        text = f"the Arrow dataset {dataset} is not read without pyarrow: pip install 'eaglelab[arrow]'"
        raise DumpError(text, "no pyarrow") from None
    seen = 0
    for file in dataset_files(dataset):
        try:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    if row < seen + batch.num_rows:
                        return _cells(batch, row - seen, file)
                    seen += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, DumpError):
                raise
            raise DumpError(f"{file} is damaged or no Arrow stream ({str(error).strip()[:200]})") from error
    raise DumpError(f"the Arrow dataset {dataset} has {seen} rows, no row {row}")


def _cells(batch: Any, at: int, file: Path) -> tuple[Tensor, Tensor, list[str]]:
    notes: list[str] = []
    ids, mask = (_cell(batch, name, at, file) for name in ("input_ids", MASK))
    return as_token_ids(ids, "input_ids", str(file), notes), as_mask(mask, MASK, str(file), notes), notes


def _cell(batch: Any, name: str, at: int, file: Path) -> Tensor:
    """One row of a list column as a tensor [L] of the column's own type, copied out of the memory map."""
    if name not in batch.schema.names:
        raise DumpError(f"{file} has no column {name}, only {', '.join(batch.schema.names)[:200]}")
    column = batch.column(name)
    column.validate(full=True)  # offsets of a damaged file may lead anywhere
    cell = column.slice(at, 1)
    values = cell.flatten() if hasattr(cell, "flatten") else cell
    if values is cell or cell.null_count or values.null_count or str(values.type) not in NUMBERS:
        raise DumpError(f"{file}: {name} is a column of {column.type}, with or without nulls; expected lists of whole numbers")
    return torch.from_numpy(values.to_numpy(zero_copy_only=False).copy())


def dataset_files(dataset: Path) -> list[Path]:
    """The dataset's files in the order of its rows. Raises DumpError where the order is not that of the files."""
    state_file = dataset / "state.json"
    if not state_file.is_file():
        return sorted(dataset.glob(ARROW_FILES), key=lambda path: natural(path.name))
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
        names = [entry["filename"] for entry in state["_data_files"]]
        moved = any(state[key] for key in state if key.startswith("_indices"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DumpError(f"{state_file} cannot be read ({type(error).__name__})") from error
    if moved:
        raise DumpError(f"{state_file} names an indices mapping, so its rows are in another order; save it after flatten_indices()")
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise DumpError(f"{state_file} names files outside of its folder")
    return [dataset / name for name in names]
