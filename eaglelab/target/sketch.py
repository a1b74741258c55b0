"""A sketch: what identify needs of a target, in one file of a few MB.

Somebody who can run the target makes it once; who has only the dump compares with it. Per boundary and row it keeps the norm and a
random projection to `dim` numbers; per text the cosines between rows (the token Gram matrix) and a few order statistics of the
values. The projection is linear, so a layer's branch without the residual is the difference of two neighbouring boundaries and
needs no room of its own.

The projection is a matrix of signs ±1/sqrt(dim) whose bits are read from SHAKE-256 of the seed: integers and a hash, so the same
matrix on every platform and version (Achlioptas 2003, "Database-friendly random projections"). A projected squared length has the
true one as its mean and a relative standard deviation of at most sqrt(2/dim); a relative error estimated through it is off by about
1/sqrt(2 dim): 9 % of itself for dim = 64. It is not a detail that decides between 0.01 and 0.1.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eaglelab import __version__
from eaglelab.wiring import FINAL, Boundary

FORMAT = "eaglelab sketch 1"
GRAM_ROWS = 32
"""Rows of a text whose Gram matrix and order statistics are kept."""
ORDER_VALUES = 32
"""Order statistics kept per row, from the smallest value to the largest."""

PROBE_TEXT = (
    "A small harbour town keeps two calendars. The first counts days from the spring tide, and the fishermen trust it; the second hangs "
    "in the post office, and everybody else does. In 1954 the two disagreed by exactly three weeks. Nobody had noticed until a letter, "
    "addressed to a house that had not been built yet, arrived on time. What would you check first? 1) the tide tables, 2) the postmark, "
    "3) the clock: def days(a, b): return abs(a - b) % 29.53"
)
"""A probe text for targets that have no dump yet: prose, a question, numbers, a line of code. Sketched when no dump is given."""

MAX_PROJECTION = 2**27
"""Entries of a projection (512 MB): dim = 64 at a width of two millions."""


class SketchError(ValueError):
    """A sketch cannot be made, read or used; the text says what to do."""


def projection(hidden_size: int, dim: int, seed: int = 0) -> Tensor:
    """The seeded projection: [H, dim] float32, entries ±1/sqrt(dim). The same on every platform (bits of SHAKE-256)."""
    if hidden_size < 1 or dim < 1:
        raise SketchError(f"a projection needs a width and a dim of at least 1, got H = {hidden_size}, dim = {dim}")
    if hidden_size * dim > MAX_PROJECTION:
        raise SketchError(f"a projection of H = {hidden_size} to dim = {dim} has more than {MAX_PROJECTION:,} entries; take a smaller dim")
    count = hidden_size * dim
    digest = hashlib.shake_256(f"eaglelab projection 1 seed {seed}".encode()).digest(-(-count // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8), count=count, bitorder="little")
    signs = torch.from_numpy(bits.astype(np.float32)) * 2 - 1
    return (signs / math.sqrt(dim)).reshape(hidden_size, dim)  # [H, dim]


def gram(states: Tensor) -> Tensor:
    """Cosines between the rows of `states` [..., G, H]: [..., G, G] float32. Any rotation of the basis leaves them as they are."""
    unit = torch.nn.functional.normalize(states.float(), dim=-1)
    return unit @ unit.mT  # [..., G, G]


def order_values(states: Tensor, count: int = ORDER_VALUES) -> Tensor:
    """`count` order statistics of each row over its RMS: [..., H] to [..., count] float32. A permutation of channels keeps them."""
    values = states.float()
    rms = values.pow(2).mean(dim=-1, keepdim=True).sqrt()
    places = torch.linspace(0, values.shape[-1] - 1, count).round().long()
    return values.sort(dim=-1).values[..., places] / rms.clamp_min(1e-30)  # [..., count]


@dataclass(frozen=True)
class Text:
    """One text of a sketch, and what it holds at every boundary: float32 on load. R rows, G <= R rows with Gram matrix."""

    token_ids: Tensor  # [R] int64
    norms: Tensor  # [B, R]
    states: Tensor  # [B, R, dim], projected
    gram: Tensor  # [B, G, G]
    order: Tensor  # [B, G, ORDER_VALUES]


@dataclass(frozen=True)
class Sketch:
    """A target's boundaries on the first rows of a few texts, projected. See `make_sketch`, `load_sketch`."""

    boundaries: tuple[Boundary, ...]
    num_layers: int
    hidden_size: int
    dim: int
    seed: int
    texts: tuple[Text, ...]
    embedding_ids: Tensor  # [U] int64, ascending
    embedding_rows: Tensor  # [U, H], boundary 0 of these tokens, the target's dtype
    target: str = ""
    dtype: str = ""

    def projection(self) -> Tensor:
        return projection(self.hidden_size, self.dim, self.seed)

    def common_prefix(self, token_ids: Tensor) -> tuple[int, int]:
        """(text, rows): the text that shares the longest prefix with `token_ids`, from position 0, and its length in rows."""
        lengths = [int((token_ids[: len(t)] == t[: len(token_ids)]).long().cumprod(0).sum()) for t in (x.token_ids for x in self.texts)]
        best = max(range(len(lengths)), key=lengths.__getitem__)
        return best, lengths[best]

    def probe(self) -> list[list[int]]:
        """The token ids of each text: dump these with an engine, and the dump has rows that the sketch can be compared with."""
        return [text.token_ids.tolist() for text in self.texts]

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file, through a temporary name. Norms float32, projections over the norm and Gram in float16."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(path.name + ".part")
        header = {"format": FORMAT, "eaglelab": __version__} | {name: getattr(self, name) for name in HEADER}
        save_file(_pack(self), str(staged), metadata={"eaglelab": json.dumps(header)})
        staged.replace(path)
        return path


def make_sketch(
    source: Any, samples: Iterable[Any], rows: int = 64, dim: int = 64, seed: int = 0, target: str = "", max_texts: int | None = 8
) -> Sketch:
    """Sketch `source` on the first `rows` tokens of each sample.

    `source` has `visit` and `num_layers` as `eaglelab.target.ForwardSource`; a sample is a `Sample` or a tensor of token ids.
    Texts with the same first rows are kept once, and `max_texts` of them (None = all). A target is causal, so only the first `rows` tokens are run.
    Raises SketchError when no sample has a token.
    """
    if rows < 1:
        raise SketchError(f"a sketch needs at least 1 row, got rows = {rows}")
    texts = (torch.as_tensor(getattr(s, "token_ids", s)).long().cpu()[:rows] for s in samples)
    tokens = list({tuple(ids.tolist()): ids for ids in texts if len(ids)}.values())[:max_texts]
    if not tokens:
        raise SketchError("no sample with at least one token to sketch: choose another dump, or sketch the probe text")
    boundaries: list[Boundary] = []
    kept: list[list[dict[str, Tensor]]] = [[] for _ in tokens]
    first: list[Tensor] = []

    def visit(boundary: Boundary, states: Sequence[Tensor]) -> None:
        boundaries.append(boundary)
        signs = projection(states[0].shape[-1], dim, seed)
        for row, state in zip(kept, states, strict=True):
            row.append(_describe(state.cpu(), signs))
        if boundary == 0:
            first.extend(state.detach().cpu().clone() for state in states)

    source.visit(tokens, visit)
    ids, places = np.unique(torch.cat(tokens).numpy(), return_index=True)
    return Sketch(
        boundaries=tuple(boundaries),
        num_layers=source.num_layers,
        hidden_size=first[0].shape[-1],
        dim=dim,
        seed=seed,
        texts=tuple(
            Text(token_ids=t, **{name: torch.stack([row[name] for row in k]) for name in ("norms", "states", "gram", "order")})
            for t, k in zip(tokens, kept, strict=True)
        ),
        embedding_ids=torch.from_numpy(ids),
        embedding_rows=torch.cat(first)[torch.from_numpy(places)].contiguous(),  # [U, H]
        target=target,
        dtype=str(first[0].dtype).removeprefix("torch."),
    )


def _describe(state: Tensor, signs: Tensor) -> dict[str, Tensor]:
    """One text at one boundary: norms [R], projection [R, dim], Gram matrix [G, G], order statistics [G, Q]."""
    values = state.float()  # [R, H]
    return {
        "norms": values.norm(dim=-1),
        "states": values @ signs,
        "gram": gram(values[:GRAM_ROWS]),
        "order": order_values(values[:GRAM_ROWS]),
    }


def _pack(sketch: Sketch) -> dict[str, Tensor]:
    """Texts side by side. Projections go over the row's norm, so that massive tokens stay inside float16."""
    texts = sketch.texts
    norms = torch.cat([t.norms for t in texts], dim=1)  # [B, sum R]
    states = torch.cat([t.states for t in texts], dim=1)  # [B, sum R, dim]
    upper = [t.gram[:, *torch.triu_indices(t.gram.shape[1], t.gram.shape[1], offset=1)] for t in texts]  # [B, G (G-1) / 2]
    return {
        "token_ids": torch.cat([t.token_ids for t in texts]).to(torch.int32),
        "lengths": torch.tensor([len(t.token_ids) for t in texts], dtype=torch.int32),
        "norms": norms.float().contiguous(),
        "states": (states / norms.clamp_min(1e-30)[..., None]).half().contiguous(),
        "gram": torch.cat(upper, dim=1).half().contiguous(),
        "order": torch.cat([t.order for t in texts], dim=1).half().contiguous(),  # [B, sum G, Q]
        "embedding_ids": sketch.embedding_ids.to(torch.int32),
        "embedding_rows": sketch.embedding_rows.contiguous(),
    }


HEADER = ("boundaries", "num_layers", "hidden_size", "dim", "seed", "target", "dtype")
"""Fields of a Sketch that stand in the file's header."""


def load_sketch(path: str | Path) -> Sketch:
    """Read a sketch file. Raises SketchError: no such file, truncated or not safetensors, another format, tensors that do not fit."""
    path = Path(path)
    again = "make it again: eaglelab sketch TARGET --dump DUMP --out sketch.safetensors"
    if not path.is_file():
        raise SketchError(f"no sketch at {path}; {again}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise SketchError(f"{path} is truncated or not a safetensors file ({error}); {again}") from error
    header = _parse_header(path, metadata, again)
    try:
        return _unpack(header, tensors)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise SketchError(f"{path}: the tensors do not fit the header ({type(error).__name__}: {error}); {again}") from error


def _parse_header(path: Path, metadata: dict[str, str], again: str) -> dict[str, Any]:
    try:
        header = json.loads(metadata["eaglelab"])
        found = header["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise SketchError(f"{path} is a safetensors file but no sketch: no eaglelab header; expected {FORMAT!r}; {again}") from error
    if found != FORMAT:
        raise SketchError(
            f"{path} has format {str(found)[:60]!r} (eaglelab {str(header.get('eaglelab', '?'))[:20]}), "
            f"this eaglelab {__version__} reads {FORMAT!r}; {again}"
        )
    return header


def _unpack(header: dict[str, Any], tensors: dict[str, Tensor]) -> Sketch:
    fields = {name: header[name] for name in HEADER} | {"boundaries": tuple(header["boundaries"])}
    lengths = tensors["lengths"].tolist()
    kept = [min(n, GRAM_ROWS) for n in lengths]
    _check_header(fields, tensors, lengths, kept)
    norms = tensors["norms"].float()
    states = tensors["states"].float() * norms[..., None]  # [B, sum R, dim]
    grams = tensors["gram"].float().split([g * (g - 1) // 2 for g in kept], dim=1)
    texts = zip(
        tensors["token_ids"].long().split(lengths),
        norms.split(lengths, dim=1),
        states.split(lengths, dim=1),
        [_square(upper, g) for upper, g in zip(grams, kept, strict=True)],
        tensors["order"].float().split(kept, dim=1),
        strict=True,
    )
    return Sketch(
        **fields,
        texts=tuple(Text(*parts) for parts in texts),
        embedding_ids=tensors["embedding_ids"].long(),
        embedding_rows=tensors["embedding_rows"],
    )


def _check_header(fields: dict[str, Any], tensors: dict[str, Tensor], lengths: list[int], kept: list[int]) -> None:
    """ValueError unless the header's numbers are those of the tensors: what is computed from them is then no larger than the file is."""
    for name in ("num_layers", "hidden_size", "dim", "seed"):
        if type(fields[name]) is not int or (fields[name] < 1 and name != "seed"):
            raise ValueError(f"{name} is {repr(fields[name])[:80]}, expected a whole number")
    bad = [b for b in fields["boundaries"] if b != FINAL and (type(b) is not int or not 0 <= b <= fields["num_layers"])]
    if bad:
        raise ValueError(f"boundaries hold {repr(bad[0])[:80]}, expected 0..{fields['num_layers']} and 'final'")
    if not lengths or min(lengths) < 1 or not len(tensors["embedding_ids"]):
        raise ValueError(f"texts of {lengths[:8]} tokens and {len(tensors['embedding_ids'])} embedding rows, expected at least one of each")
    count, rows = len(fields["boundaries"]), sum(lengths)
    shapes = {
        "token_ids": (rows,),
        "norms": (count, rows),
        "states": (count, rows, fields["dim"]),
        "gram": (count, sum(g * (g - 1) // 2 for g in kept)),
        "order": (count, sum(kept), ORDER_VALUES),
        "embedding_ids": (len(tensors["embedding_ids"]),),
        "embedding_rows": (len(tensors["embedding_ids"]), fields["hidden_size"]),
    }
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{name} is {list(tensors[name].shape)}, expected {list(shape)}")
    if fields["hidden_size"] * fields["dim"] > MAX_PROJECTION:
        raise ValueError(f"H = {fields['hidden_size']} and dim = {fields['dim']} are no sketch's")


def _square(upper: Tensor, size: int) -> Tensor:
    """The symmetric matrices whose upper triangles are given, with a diagonal of ones: [B, G, G]."""
    full = torch.eye(size).repeat(upper.shape[0], 1, 1)
    i, j = torch.triu_indices(size, size, offset=1)
    full[:, i, j] = upper
    full[:, j, i] = upper
    return full
