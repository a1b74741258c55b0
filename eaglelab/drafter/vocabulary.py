"""The map from draft ids to the target's token ids: target id = draft id + d2t[draft id], draft ids in the order of the target ids.

SpecForge, speculators, EAGLE, AngelSlim and ModelOpt write offsets, sorted by target id, so that arange(Vd) + d2t == nonzero(t2d);
SGLang and vLLM add them (specforge preprocessing.py, speculators vocab_mapping.py, EAGLE cnets.py, sglang and vllm llama_eagle3.py).
t2d [V] marks the tokens that the drafter can say. Trainers choose the rows of the target's logits by it; engines never read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import Tensor

from eaglelab.drafter.audit import DrafterError, canonical_name
from eaglelab.drafter.config import DrafterConfig
from eaglelab.target.shards import load_mapped, open_shard
from eaglelab.weight_files import weight_files

MAP_FILES = ("vocab_mapping.pt", "cache.pt", "d2t.npy", "t2d.npy")
"""Files of a folder that is no checkpoint: SpecForge's map, EAGLE's and AngelSlim's cache, speculators' arrays."""
FEW_NEIGHBOURS = 20
"""Expected pairs of neighbouring tokens from which having none is no chance: e^-20."""


@dataclass(frozen=True)
class VocabularyMap:
    """A map as stored: d2t [Vd], t2d [V], one of them may be absent."""

    d2t: Tensor | None
    t2d: Tensor | None
    source: str

    @property
    def ids(self) -> Tensor | None:
        """[Vd] int64: the target id of each draft id, by d2t, else by t2d."""
        if self.d2t is not None:
            return self.d2t.long() + torch.arange(len(self.d2t))
        return None if self.t2d is None else self.t2d.nonzero()[:, 0]


@dataclass(frozen=True)
class Fault:
    """One thing that a map has and should not."""

    kind: str
    """`floats`, `length`, `range`, `duplicates`, `order`, `absolute`, `shifted`, `late`, `disagrees`, `zeros`, `arange`, `t2d`."""
    text: str
    status: str
    """`fail` (wrong for certain), `cannot_tell` (right only for an odd drafter), `note` (nothing reads it)."""


def audit_map(vocabulary: VocabularyMap, draft_vocab_size: int, vocab_size: int) -> list[Fault]:
    """What is wrong with a map that has a d2t, the most telling fault first; empty for a sound one."""
    d2t, faults = vocabulary.d2t, []
    if d2t.is_floating_point():
        faults.append(Fault("floats", f"d2t is {str(d2t.dtype).removeprefix('torch.')}, expected whole numbers", "fail"))
        d2t = d2t.nan_to_num().clamp(-(2**62), 2**62)
    d2t = d2t.long()
    if len(d2t) != draft_vocab_size:
        faults.append(Fault("length", f"d2t has {len(d2t):,} entries, the config says {draft_vocab_size:,} draft tokens", "fail"))
    marked = None
    if vocabulary.t2d is not None:
        marked, about = _marked(vocabulary.t2d, draft_vocab_size, vocab_size)
        faults += about
    ids = d2t + torch.arange(len(d2t))  # [Vd]
    if marked is None:
        return faults + _by_numbers(d2t, vocab_size)
    if torch.equal(ids, marked):
        first_ones = draft_vocab_size < vocab_size and not bool(d2t.any())
        return faults + ([_zeros(len(d2t))] if first_ones else [])
    against = _against_t2d(d2t, marked)
    if against is None:
        return faults + _outside(ids, vocab_size)
    return faults + ([*_by_numbers(d2t, vocab_size), against] if against.kind == "disagrees" else [against, *_outside(ids, vocab_size)])


def _marked(t2d: Tensor, draft_vocab_size: int, vocab_size: int) -> tuple[Tensor | None, list[Fault]]:
    """The ids that t2d marks, None where it cannot be believed, and what is wrong with it. Engines read none of it."""
    if len(t2d) != vocab_size:
        return None, [Fault("t2d", f"t2d has {len(t2d):,} entries, the config says {vocab_size:,} tokens; engines never read it", "note")]
    marked = t2d.nonzero()[:, 0]
    if len(marked) != draft_vocab_size:
        text = f"t2d marks {len(marked):,} tokens, the config says {draft_vocab_size:,} draft tokens; trainers choose by it, engines never read it"
        return None, [Fault("t2d", text, "cannot_tell")]
    return marked, []


def _against_t2d(d2t: Tensor, marked: Tensor) -> Fault | None:
    """In what way a d2t is another map than its t2d's. None where its length leaves it open (it is a part of the map)."""
    places, n = torch.arange(len(d2t)), min(len(d2t), len(marked))
    ids = d2t + places
    if len(d2t) != len(marked):
        return None if torch.equal(ids[:n], marked[:n]) else _disagrees(ids, marked)
    if torch.equal(d2t.sort().values, marked):
        return Fault("absolute", "d2t holds token ids (those that t2d marks), where offsets belong (id minus place)", "fail")
    if torch.equal(ids.sort().values, marked):
        moved = int((ids != marked).sum())
        return Fault("order", f"d2t names the tokens that t2d marks in another order: {moved:,} of {n:,} draft ids are moved", "fail")
    by = int(marked[0] - ids[0])
    if torch.equal(ids + by, marked):
        return Fault("shifted", f"every token id is {-by:+d} from the one that t2d marks", "fail")
    for late in (1, -1):
        if n > 2 and torch.equal((d2t.roll(late) + places)[1:-1], marked[1:-1]):
            return Fault("late", f"the entries of d2t stand one place {'early' if late == 1 else 'late'}, against t2d", "fail")
    return _disagrees(ids, marked)


def _disagrees(ids: Tensor, marked: Tensor) -> Fault:
    n = min(len(ids), len(marked))
    only = int((~torch.isin(ids, marked)).sum())
    lacks = marked[~torch.isin(marked, ids)]
    return Fault(
        "disagrees",
        f"d2t and t2d are of two maps: {int((ids[:n] != marked[:n]).sum()):,} of {n:,} draft ids differ; {only:,} tokens of d2t are not marked in "
        f"t2d and {len(lacks):,} marked ones are not in d2t"
        + (f" (first: {', '.join(map(str, lacks[:5].tolist()))})" if len(lacks) else ""),
        "fail",
    )


def _by_numbers(d2t: Tensor, vocab_size: int) -> list[Fault]:
    """What d2t shows by itself, without a t2d to hold it against."""
    n, ids = len(d2t), d2t + torch.arange(len(d2t))
    if n < vocab_size and not bool(d2t.any()):
        return [_zeros(n)]
    if n > 1 and torch.equal(d2t, torch.arange(n)):
        return [Fault("arange", "d2t counts 0, 1, 2, …: as offsets it names every second token; a default that nobody filled", "fail")]
    faults = _outside(ids, vocab_size)
    if n > 1 and looks_absolute(d2t, vocab_size):
        expected = n * (n - 1) / vocab_size
        what = f"d2t ascends at every step, as token ids do; as offsets no two of {n:,} tokens would be neighbours"
        if faults or expected >= FEW_NEIGHBOURS:
            text = f"{what} (by chance {expected:,.0f} would be). It holds token ids, where offsets belong (id minus place)"
            faults.insert(0, Fault("absolute", text, "fail"))
        else:
            faults.append(Fault("absolute", f"{what}: so few tokens may be spread like that, or these are token ids", "cannot_tell"))
        return faults
    steps = ids.diff()
    if bool((steps <= 0).any()):
        repeated = n - len(ids.unique())
        if repeated:
            faults.append(Fault("duplicates", f"{repeated:,} of {n:,} draft ids name a token that another names too", "fail"))
        if bool((steps < 0).any()):
            back = f"target ids do not ascend: {int((steps < 0).sum()):,} of {n - 1:,} steps go back"
            text = f"{back}. Trainers sort them; engines only add, so that it is right where the rows of lm_head stand in the same order"
            faults.append(Fault("order", text, "cannot_tell"))
    return faults


def _outside(ids: Tensor, vocab_size: int) -> list[Fault]:
    outside = ((ids < 0) | (ids >= vocab_size)).nonzero()[:, 0]
    if not len(outside):
        return []
    first = int(outside[0])
    return [
        Fault(
            "range",
            f"d2t points outside the target's vocabulary (0..{vocab_size - 1}) for {len(outside):,} of {len(ids):,} draft ids; first: draft id "
            f"{first} -> {int(ids[first])}",
            "fail",
        )
    ]


def _zeros(n: int) -> Fault:
    return Fault(
        "zeros", f"d2t is all zeros: the first {n:,} tokens of the vocabulary, right only if it was trained on just these", "cannot_tell"
    )


# -- reading ------------------------------------------------------------------------------------------------------------------------


def read_map(path: str | Path) -> VocabularyMap | None:
    """The map of a checkpoint folder, a weight file, SpecForge's `vocab_mapping.pt` ({d2t, t2d}), or `d2t.npy` with `t2d.npy` beside it.

    None where the file or folder holds none. Raises DrafterError for what cannot be read or is no map; nothing from a file is run.
    """
    path = Path(path)
    found: dict[str, Tensor] = {}
    for file in _files_of(path):
        try:
            found |= {n: t for n, t in _maps_in(file).items() if n not in found}
        except (OSError, ValueError, EOFError, TypeError, BadZipFile) as error:
            raise DrafterError(
                f"{file}: no vocabulary map can be read: {(str(error) or type(error).__name__).splitlines()[0][:200]}"
            ) from error
    for name, tensor in found.items():
        if tensor.ndim != 1 or not len(tensor):
            raise DrafterError(f"{path}: {name} is {list(tensor.shape)}, expected one row of numbers")
    return VocabularyMap(found.get("d2t"), found.get("t2d"), path.name) if found else None


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        beside = path.with_name({"d2t.npy": "t2d.npy", "t2d.npy": "d2t.npy"}.get(path.name, path.name))
        return [path, *([beside] if beside != path and beside.is_file() else [])]
    if not path.is_dir():
        raise DrafterError(f"{path}: no such file or folder; expected a checkpoint, vocab_mapping.pt or d2t.npy")
    try:
        names = sorted(weight_files(path).files, reverse=True) or MAP_FILES  # engines load in order: the last file's word counts
    except ValueError as error:
        raise DrafterError(f"{path}: {error}") from error
    return [path / name for name in names if (path / name).is_file()]


def _maps_in(file: Path) -> dict[str, Tensor]:
    """`d2t` and `t2d`, those that one file holds."""
    if file.suffix == ".npy":
        import numpy

        return {file.stem: torch.from_numpy(numpy.load(file, allow_pickle=False))} if file.stem in ("d2t", "t2d") else {}
    shard = open_shard(file)
    return {canonical_name(n): shard.tensor(n) for n in shard.names() if canonical_name(n) in ("d2t", "t2d")}


def read_counts(file: Path) -> Tensor | None:
    """[n, 2] int64 (token id, count) of speculators' `token_freq.pt`; None where it is something else."""
    try:
        held: Any = load_mapped(file)
    except Exception:  # torch raises many kinds for a file that is none of its own; it is a file beside the dump, not asked for
        return None
    whole = isinstance(held, dict) and held and all(type(k) is int and type(v) is int and v >= 0 for k, v in held.items())
    return torch.tensor(list(held.items()), dtype=torch.int64) if whole else None


# -- what a map can say ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """How many of the tokens that were said a draft vocabulary can say."""

    covered: tuple[int, ...]
    """Per sample."""
    said: tuple[int, ...]
    """Per sample."""
    uncovered: tuple[tuple[int, int], ...]
    """(token id, count) of what it cannot say, the most frequent first."""
    starts: int
    """Rows from which `steps` tokens in a row were said."""
    run: int
    """Over these rows, tokens in a row from the start that it can say: 1 + run / starts bounds the accept length."""

    @property
    def share(self) -> float | None:
        return sum(self.covered) / sum(self.said) if sum(self.said) else None

    @property
    def shares(self) -> list[float]:
        """Per sample that said something."""
        return [c / n for c, n in zip(self.covered, self.said, strict=True) if n]


def coverage(ids: Tensor, said: list[Tensor], steps: int) -> Coverage:
    """ids: [Vd] the target ids of the draft vocabulary. said: per sample [n] int64, tokens in order; -1 where nobody said one."""
    rows = [tokens >= 0 for tokens in said]
    can = [torch.isin(tokens, ids) & row for tokens, row in zip(said, rows, strict=True)]
    missed = torch.cat([t[r & ~c] for t, c, r in zip(said, can, rows, strict=True)]) if said else torch.zeros(0, dtype=torch.int64)
    tokens, counts = missed.unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    starts = run = 0
    for c, r in zip(can, rows, strict=True):
        if len(c) < steps:
            continue
        whole = r.unfold(0, steps, 1).all(1)  # [n - K + 1]
        starts += int(whole.sum())
        run += int(c.unfold(0, steps, 1)[whole].long().cumprod(1).sum())
    return Coverage(
        covered=tuple(int(c.sum()) for c in can),
        said=tuple(int(r.sum()) for r in rows),
        uncovered=tuple(zip(tokens[order].tolist(), counts[order].tolist(), strict=True)),
        starts=starts,
        run=run,
    )


@dataclass(frozen=True)
class Difference:
    """Two maps, draft id by draft id."""

    sizes: tuple[int, int]
    differ: int
    """Draft ids that name another token."""
    first: int | None
    """The first such draft id."""
    only: tuple[int, int]
    """Tokens that only the one, only the other can say."""


def compare_maps(mine: Tensor, other: Tensor) -> Difference:
    """mine, other: [Vd] int64, the target id of each draft id."""
    n = min(len(mine), len(other))
    differ = (mine[:n] != other[:n]).nonzero()[:, 0]
    only = int((~torch.isin(mine, other)).sum()), int((~torch.isin(other, mine)).sum())
    return Difference((len(mine), len(other)), len(differ), int(differ[0]) if len(differ) else None, only)


# -- for loading ----------------------------------------------------------------------------------------------------------------------


def check_d2t(d2t: Tensor, config: DrafterConfig, folder: Path) -> Tensor:
    """[Vd] int64 offsets: target id = draft id + d2t[draft id]. Raises DrafterError where an id falls outside 0..V-1."""
    if d2t.is_floating_point():
        raise DrafterError(f"{folder}: d2t is {d2t.dtype}, expected integers")
    d2t = d2t.long()
    for fault in _outside(d2t + torch.arange(len(d2t)), config.vocab_size):
        hint = " The values look like token ids; d2t holds offsets (id minus place)." if looks_absolute(d2t, config.vocab_size) else ""
        raise DrafterError(f"{folder}: {fault.text}.{hint}")
    return d2t


def looks_absolute(d2t: Tensor, vocab_size: int) -> bool:
    """d2t as ascending token ids instead of offsets: strictly ascending and in range by itself."""
    return bool((d2t.diff() > 0).all()) and int(d2t[0]) >= 0 and int(d2t[-1]) < vocab_size
