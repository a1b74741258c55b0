"""Is the drafter's checkpoint whole? Names, shapes and dtypes out of the file headers, set against what the config implies. No tensor is read.

What an engine does about what is wrong: `eaglelab.engines.loading`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.shapes import expected_tensors, optional_tensors
from eaglelab.stored_names import COMPANIONS, logical_names
from eaglelab.weight_files import WeightFiles, weight_files

Header = dict[str, tuple[tuple[int, ...], str]]
"""Tensor name -> (shape, dtype as safetensors spells it)."""

LEGACY_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
PACKED_SHAPE = (-1,)
"""In place of a packed weight's shape, which its header does not say."""
WHOLE_NUMBERS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
FLOATS = ("F64", "F32", "F16", "BF16")
ONE_BYTE = ("I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E4M3FN", "F8_E5M2FNUZ", "F8_E4M3FNUZ")


class DrafterError(ValueError):
    """A drafter that cannot be loaded, with what is wrong and where."""


@dataclass(frozen=True)
class Audit:
    """What a checkpoint holds against what its config implies, by name."""

    missing: tuple[str, ...]
    """Names that the config implies and the file lacks."""
    unexpected: tuple[str, ...]
    """Names in the file that this config has no use for."""
    wrong_shape: tuple[str, ...]
    """One sentence a tensor: name, got, expected."""
    borrowed: tuple[str, ...]
    """Names that may be missing, because the engine takes them from the target."""
    wrong_dtype: dict[str, str] = field(default_factory=dict)
    """Name as stored -> its dtype: whole numbers where floats belong and no scales beside them, or a d2t of floats."""
    quantised: tuple[str, ...] = ()
    """Names as stored of weights in one byte or packed, which scales stand beside."""
    dtypes: dict[str, int] = field(default_factory=dict)
    """Dtype -> how many weights are stored in it, maps left out."""
    respelt: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """`prefix` (stored as `model.…`), `map_prefix` (a d2t with anything before it) and `legacy` (`aux_norm_low`) -> names that not every
    engine takes."""
    twice: tuple[tuple[str, ...], ...] = ()
    """Names as stored that are one tensor: `midlayer.…` beside `layers.0.…`. The last one was audited."""
    absent_shards: dict[str, int] = field(default_factory=dict)
    """File that the index names and the folder lacks -> how many tensors were in it."""
    other_files: tuple[str, ...] = ()
    """Weight files beside those that were read, without an index that says which count."""
    unread_files: tuple[str, ...] = ()
    """Weight files that the index does not name."""
    embedding: str | None = None
    """The drafter's own embedding table, as stored."""
    head: str | None = None
    """Its own lm_head."""

    @property
    def whole(self) -> bool:
        return not self.missing and not self.wrong_shape


def canonical_name(name: str) -> str:
    """One name for one tensor: the EAGLE/SpecForge spelling (`midlayer.*`) whatever the layout."""
    if name.endswith((".d2t", ".t2d")):  # SGLang takes them whatever stands before
        return name[-3:]
    name = name.removeprefix("model.").replace("layers.0.", "midlayer.", 1)
    for legacy, now in LEGACY_NORMS.items():
        name = name.replace(legacy, now)
    return name


def audit_names(config: DrafterConfig, shapes: Mapping[str, tuple[int, ...]]) -> Audit:
    """Set a checkpoint's names and shapes against the config. shapes: logical name as stored -> shape."""
    have = {canonical_name(n): (n, tuple(s)) for n, s in shapes.items()}
    spelt = [tuple(n for n in shapes if canonical_name(n) == name) for name in have] if len(have) < len(shapes) else []
    expected, optional = expected_tensors(config), optional_tensors(config)
    borrowable = {"lm_head.weight"} if config.draft_vocab_size == config.vocab_size else set()
    absent = [n for n in expected if n not in have]
    wrong = [
        f"{have[name][0]} is {list(have[name][1])}, the config implies {list(shape)}"
        for name, shape in (optional | expected).items()
        if name in have and have[name][1] not in (shape, PACKED_SHAPE)
    ]
    return Audit(
        missing=tuple(n for n in absent if n not in borrowable),
        unexpected=tuple(sorted(stored for name, (stored, _) in have.items() if name not in expected and name not in optional)),
        wrong_shape=tuple(wrong),
        borrowed=tuple(n for n in absent if n in borrowable),
        respelt={kind: names for kind, names in _respelt(shapes).items() if names},
        twice=tuple(names for names in spelt if len(names) > 1),
        embedding=have.get("embed_tokens.weight", (None,))[0],
        head=have.get("lm_head.weight", (None,))[0],
    )


def _respelt(names: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    return {
        "prefix": tuple(n for n in names if n.startswith("model.") and not n.endswith((".d2t", ".t2d"))),
        "map_prefix": tuple(n for n in names if n.endswith(".d2t")),
        "legacy": tuple(n for n in names if any(legacy in n for legacy in LEGACY_NORMS)),
    }


def audit_header(config: DrafterConfig, header: Header) -> Audit:
    """`audit_names`, with what the dtypes say: quantised weights under their logical names, whole numbers where floats belong."""
    carriers = logical_names(header)
    packed = {stored for logical, stored in carriers.items() if stored != logical or stored + ".absmax" in header}
    scaled = {n for n in carriers.values() if header[n][1] in ONE_BYTE and any(n + ending in header for ending in COMPANIONS)}
    quantised = tuple(n for n in carriers.values() if n in packed | scaled)
    shapes = {logical: PACKED_SHAPE if stored in packed else header[stored][0] for logical, stored in carriers.items()}
    weights = {n: header[n][1] for n in carriers.values() if canonical_name(n) not in ("d2t", "t2d")}
    wrong = {n: kind for n, kind in weights.items() if kind not in FLOATS and n not in quantised}
    wrong |= {n: header[n][1] for n in carriers.values() if canonical_name(n) == "d2t" and header[n][1] not in WHOLE_NUMBERS}
    return replace(audit_names(config, shapes), wrong_dtype=wrong, quantised=quantised, dtypes=dict(Counter(weights.values())))


def audit_folder(folder: str | Path, config: DrafterConfig) -> Audit:
    """Audit of a drafter folder from headers alone. Raises DrafterError as `read_headers` does."""
    header, absent = read_headers(folder)
    held = files_of(Path(folder))
    others = {"other_files" if held.shard_of is None else "unread_files": held.others}
    return replace(audit_header(config, header), absent_shards=absent, **others)


def read_headers(folder: str | Path) -> tuple[Header, dict[str, int]]:
    """(names, shapes and dtypes of a folder's tensors; {shard that the index names and the folder lacks: its tensors}).

    A `.bin` file has no header: its names are read with torch, mapped where it can be. Raises DrafterError: no such folder, no weights, a
    file that cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DrafterError(f"{folder}: no such folder; `[drafter] path` is the folder with config.json and the weights")
    held = files_of(folder)
    absent = held.absent(folder)
    header: Header = {}
    for name in sorted(held.files.keys() - absent):  # as engines do: of two tensors with one name the last one stays
        header |= (_header_of if name.endswith(".safetensors") else _bin_header_of)(folder / name)
    return header, absent


def files_of(folder: Path) -> WeightFiles:
    """The weight files of a drafter's folder. Raises DrafterError where there are none, or the index cannot be read."""
    try:
        held = weight_files(folder)
    except ValueError as error:
        raise DrafterError(f"{folder}: not a checkpoint's index ({error})") from error
    if not held.files:
        found = sorted(p.name for p in folder.iterdir())[:8]
        raise DrafterError(
            f"{folder}: no weights; looked for model.safetensors, model.safetensors.index.json, pytorch_model.bin, found {found}"
        )
    return held


def _header_of(file: Path) -> Header:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as shard:
            parts = {key: shard.get_slice(key) for key in shard.keys()}  # noqa: SIM118 - safe_open is no dict
            return {key: (tuple(part.get_shape()), part.get_dtype()) for key, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise DrafterError(f"{file}: not readable ({error}); is it cut short or missing? Copy it again.") from error


def _bin_header_of(file: Path) -> Header:
    from eaglelab.target.errors import CheckpointError
    from eaglelab.target.shards import open_shard

    shard = open_shard(file)
    try:
        return {n: (shape, safetensors_dtype(dtype)) for n in shard.names() for shape, dtype in [shard.header(n)]}
    except CheckpointError as error:
        raise DrafterError(f"{file.parent}: {error}") from error


def safetensors_dtype(dtype: object) -> str:
    """A torch dtype as safetensors spells it: `torch.bfloat16` is BF16."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "BF"), ("float8_", "F8_"), ("float", "F"), ("uint", "U"), ("int", "I")):
        if name.startswith(long):
            return short + name.removeprefix(long).upper()
    return name.upper()
