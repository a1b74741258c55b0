"""Results as bytes and back, by a format of our own: what is read can only become plain data.

A file is a line (format, digest of all the rest), a line of JSON (what is said of the result, and the result as a tree) and a block of raw
numbers. The tree may name Python's plain containers, numpy arrays, torch tensors, pandas tables and eaglelab's own dataclasses, named tuples and
enums; nothing else is looked up and no code of a file's choice runs, which a pickle cannot promise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import sys
from enum import Enum
from pathlib import PurePath
from typing import Any

FORMAT = "eaglelab result 1"
ALIGN = 64
"""Bytes to whose multiples arrays are placed, so that they can be used where they were read."""
PANDAS_DTYPES = ("str", "string", "Int64", "Float64", "boolean")
"""Of columns that are no numpy array."""
KINDS = (
    *("list", "tuple", "set", "frozenset", "dict", "path", "enum", "own"),
    *("array", "objects", "scalar", "tensor", "table", "NA"),
)
"""What a compound value of a tree may be: each is written by `Writer` and read by the method of `Reader` of its name."""
MADE_OF = (
    *("acceptance", "wiring", "findings", "fingerprint", "served_case", "dumps.health", "drafter.parts", "timing.trace.report"),
    *("identify.result", "identify.rows", "identify.compare", "identify.three_tensors"),
    *(f"replay.{name}" for name in ("run", "rank", "variants", "walk", "tree", "last_state")),
    *(f"served.{name}" for name in ("counts", "recording", "predict", "variant_fit", "candidates")),
)
"""Modules of eaglelab whose types a result may hold. Reading one imports these and no others."""


class NotStorable(TypeError):
    """A value that the format has no way for."""


class Damaged(ValueError):
    """Bytes that are no result: cut off, changed, or of another format."""


def dump(value: Any, about: dict[str, Any], limit: float = math.inf) -> bytes:
    """value and what is said of it (JSON) as bytes. Raises NotStorable, also for more than `limit` bytes of numbers."""
    writer = Writer(limit)
    tree = json.dumps([about, writer.tree(value)], separators=(",", ":")).encode()
    rest = b"".join([tree, b"\n", *writer.blocks])
    return head(rest) + b"\n" + rest


def load(data: bytes) -> tuple[Any, dict[str, Any]]:
    """(value, what is said of it). Raises Damaged."""
    line, _, rest = data.partition(b"\n")
    if not line.startswith(FORMAT.encode()):
        raise Damaged(f"begins with {line[:40]!r}, expected {FORMAT!r}")
    if line != head(rest):
        raise Damaged(f"holds {len(rest):,} bytes that are not those of its head: it was cut off or changed")
    try:
        tree, _, block = rest.partition(b"\n")
        about, value = json.loads(tree)
        return Reader(bytearray(block)).value(value), about
    except Damaged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ImportError, RecursionError) as error:
        raise Damaged(f"cannot be read as a result: {type(error).__name__}: {error}") from None


def head(rest: bytes) -> bytes:
    """A file's first line, from all that follows."""
    return f"{FORMAT} {hashlib.blake2b(rest, digest_size=16).hexdigest()}".encode()


class Writer:
    """Values to a tree. Every compound is `[kind, …]`; None, bool, int, float and str stand for themselves."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.blocks: list[bytes] = []
        self.size = 0

    def tree(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.tree(v) for v in (value if kind in (list, tuple) else sorted(value, key=repr))]]
        if kind is dict:
            return ["dict", [[self.tree(k), self.tree(v)] for k, v in value.items()]]
        if is_ours(kind.__module__):
            return self.own(value)
        if isinstance(value, PurePath):
            return ["path", str(value)]
        numpy, torch, pandas = (sys.modules.get(name) for name in ("numpy", "torch", "pandas"))
        if numpy is not None and kind is numpy.ndarray:
            return self.array(value)
        if numpy is not None and isinstance(value, numpy.generic):
            return ["scalar", self.array(numpy.asarray(value))]
        if torch is not None and kind is torch.Tensor:
            return self.tensor(value)
        if pandas is not None and value is pandas.NA:
            return ["NA"]
        if pandas is not None and kind is pandas.DataFrame:
            return self.table(value)
        raise NotStorable(f"a result holds {kind.__module__}.{kind.__qualname__}, which cannot be stored")

    def own(self, value: Any) -> list[Any]:
        """One of eaglelab's dataclasses (fields alone: what is computed from them is computed again), named tuples and enums."""
        kind = type(value)
        name = f"{kind.__module__}:{kind.__qualname__}"
        if isinstance(value, Enum):
            return ["enum", name, value.name]
        if dataclasses.is_dataclass(value):
            return ["own", name, {f.name: self.tree(getattr(value, f.name)) for f in dataclasses.fields(value)}]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["own", name, {n: self.tree(v) for n, v in zip(kind._fields, value, strict=True)}]
        raise NotStorable(f"a result holds {name}, which is no dataclass")

    def array(self, value: Any) -> list[Any]:
        """An array [...] of numbers, or of objects one by one."""
        if value.dtype.hasobject:
            return ["objects", list(value.shape), [self.tree(v) for v in value.ravel().tolist()]]
        if value.dtype.kind not in "biufcmM":
            raise NotStorable(f"an array of {value.dtype}, which cannot be stored")
        return ["array", value.dtype.str, list(value.shape), self.block(value.tobytes())]

    def tensor(self, value: Any) -> list[Any]:
        import torch

        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            raise NotStorable(f"a tensor on {value.device}, which cannot be stored")
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), self.block(raw)]

    def block(self, raw: bytes) -> list[int]:
        start = self.size
        self.blocks += [raw, bytes(-len(raw) % ALIGN)]
        self.size += len(raw) + -len(raw) % ALIGN
        if self.size > self.limit:
            raise NotStorable(f"a result of more than {self.limit:,} bytes, which is too large to be stored")
        return [start, len(raw)]

    def table(self, value: Any) -> list[Any]:
        columns = [self.column(value.iloc[:, i]) for i in range(value.shape[1])]
        return ["table", self.labels(value.columns), self.labels(value.index), columns, self.tree(value.attrs)]

    def column(self, value: Any) -> list[Any]:
        """[dtype, values] of a Series or an Index."""
        import numpy as np

        if isinstance(value.dtype, np.dtype):
            return [value.dtype.str, self.tree(value.to_numpy())]
        if str(value.dtype) not in PANDAS_DTYPES:
            raise NotStorable(f"a column of {value.dtype}, which cannot be stored")
        return [str(value.dtype), ["list", [self.tree(v) for v in value.tolist()]]]

    def labels(self, value: Any) -> list[Any]:
        """[kind, values, name] of an Index."""
        import pandas as pd

        if type(value) is pd.RangeIndex:
            return ["range", [value.start, value.stop, value.step], self.tree(value.name)]
        if value.nlevels > 1:
            raise NotStorable("a table with several levels of labels, which cannot be stored")
        return ["labels", self.column(value), self.tree(value.name)]


class Reader:
    """Trees to values; arrays are views of one block of memory."""

    def __init__(self, block: bytearray) -> None:
        self.raw = block

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, list):
            return tree
        if not tree or tree[0] not in KINDS:
            raise Damaged(f"holds a value of the kind {tree[:1]}")
        return getattr(self, f"_{tree[0]}")(*tree[1:])

    def _list(self, items: list) -> list:
        return [self.value(v) for v in items]

    def _tuple(self, items: list) -> tuple:
        return tuple(self.value(v) for v in items)

    def _set(self, items: list) -> set:
        return {self.value(v) for v in items}

    def _frozenset(self, items: list) -> frozenset:
        return frozenset(self._set(items))

    def _dict(self, items: list) -> dict:
        return {self.value(k): self.value(v) for k, v in items}

    def _path(self, text: str) -> Any:
        from pathlib import Path

        return Path(text)

    def _enum(self, name: str, member: str) -> Any:
        return own_type(name, Enum)[member]

    def _own(self, name: str, values: dict[str, Any]) -> Any:
        kind = own_type(name)
        found = {n: self.value(v) for n, v in values.items()}
        if not dataclasses.is_dataclass(kind):
            return kind(**found)
        made = object.__new__(kind)
        if set(found) != {f.name for f in dataclasses.fields(kind)}:
            raise Damaged(f"{name} with the fields {sorted(found)}: written by another version")
        for n, v in found.items():
            object.__setattr__(made, n, v)
        return made

    def _array(self, dtype: str, shape: list[int], at: list[int]) -> Any:
        import numpy as np

        kind = np.dtype(dtype)
        if not at[1]:
            return np.empty(shape, kind)
        return np.frombuffer(self.raw, kind, count=at[1] // kind.itemsize, offset=at[0]).reshape(shape)

    def _objects(self, shape: list[int], items: list) -> Any:
        import numpy as np

        made = np.empty(len(items), dtype=object)
        for i, v in enumerate(items):
            made[i] = self.value(v)
        return made.reshape(shape)

    def _scalar(self, array: list) -> Any:
        return self.value(array)[()]

    def _tensor(self, dtype: str, shape: list[int], at: list[int]) -> Any:
        import torch

        kind = getattr(torch, dtype)
        if not isinstance(kind, torch.dtype):
            raise Damaged(f"{dtype} is no dtype")
        if not at[1]:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(self.raw, dtype=torch.uint8, count=at[1], offset=at[0]).view(kind).reshape(shape)

    def _NA(self) -> Any:
        import pandas as pd

        return pd.NA

    def _table(self, labels: list, index: list, columns: list, attrs: Any) -> Any:
        import pandas as pd

        rows = self.labels(*index)
        made = pd.DataFrame({i: self.column(*c).set_axis(rows) for i, c in enumerate(columns)}, index=rows)
        made.columns = self.labels(*labels)
        made.attrs = self.value(attrs)
        return made

    def column(self, dtype: str, values: list) -> Any:
        import numpy as np
        import pandas as pd

        return pd.Series(self.value(values), dtype=dtype if dtype in PANDAS_DTYPES else np.dtype(dtype))

    def labels(self, kind: str, values: list, name: Any) -> Any:
        import pandas as pd

        if kind == "range":
            return pd.RangeIndex(*values, name=self.value(name))
        return pd.Index(self.column(*values), name=self.value(name))


def own_type(name: str, base: type | None = None) -> type:
    """One of the types of `MADE_OF` by `module:name`. Raises Damaged for anything else."""
    module, _, path = name.partition(":")
    if not path or not is_ours(module):
        raise Damaged(f"names {name}, which is none of the types that results are made of")
    found = vars(importlib.import_module(module)).get(path)
    if not isinstance(found, type) or found.__module__ != module or not (issubclass(found, base) if base else has_fields(found)):
        raise Damaged(f"names {name}, which is none of the types that results are made of")
    return found


def is_ours(module: str) -> bool:
    return module.removeprefix("eaglelab.") in MADE_OF and module.startswith("eaglelab.")


def has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
