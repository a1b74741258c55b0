"""What a result depends on, as one digest: the case and the content of its inputs, the settings, eaglelab's own files, versions, the machine.

The number of threads is no part of it: torch splits a matrix product by rows or columns, each of which one thread sums, and eaglelab's own
sums run on one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.cache.inputs import Inputs
from eaglelab.case import SECTIONS, Case
from eaglelab.dumps.arrow import dataset_files, find_dataset
from eaglelab.dumps.containers import DumpError
from eaglelab.engines.conventions import ALIASES
from eaglelab.engines.source.archive import DISTRIBUTIONS, SourceError, source_files

if TYPE_CHECKING:
    from eaglelab.opened import OpenedCase

HERE = Path(__file__).resolve().parents[1]
OWN = "eaglelab"
"""Name of eaglelab's own files among the inputs."""
PACKAGES = ("torch", "numpy", "pandas", "transformers", "tokenizers", "safetensors", "pyarrow")
"""Packages whose versions numbers may depend on."""
LIBRARIES = ("ATEN_", "BLIS_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "MKL_", "NVIDIA_", "ONEDNN_", "OPENBLAS_", "TORCH_")
"""How variables of the environment begin that choose how torch's libraries compute (NVIDIA_TF32_OVERRIDE, MKL_CBWR)."""
ELSEWHERE = ("_NUM_THREADS", "_VISIBLE_DEVICES", "_HOME", "_PATH")
"""How those end that change no number."""
SETTINGS = ("max_samples", "seed", "device", "dtype", "way", "_steps")
"""Of `OpenedCase`."""


def inputs_of(case: Case) -> Inputs:
    """The files and folders that a case names, what is read beside them, and eaglelab's own files."""
    named = {f"{name}.{key}": path for name in SECTIONS for key, path in vars(getattr(case, name)).items() if isinstance(path, Path)}
    beside = [*_engine_source(case), *_masks(case)]
    return Inputs({**named, **{f"beside {i}": path for i, path in enumerate(beside)}, OWN: HERE})


def _engine_source(case: Case) -> list[Path]:
    """The files of the engine that the case asks; what this process knows of them is from before, and forgotten."""
    name, at, place = (case.engine.spec or "").partition("@")
    name = ALIASES.get(name.strip().lower(), name.strip().lower())
    if not at or name not in DISTRIBUTIONS:
        return []
    from eaglelab.engines.source.convention import forget

    forget()
    try:
        return source_files(name, place)
    except SourceError:  # or a version, `sglang@0.5.23`
        return [Path(place)]


def _masks(case: Case) -> list[Path]:
    """The Arrow dataset that the loss masks of a dump may be in, which may be the folder above."""
    dump = case.dump.path
    dataset = None if dump is None else find_dataset(dump if dump.is_dir() else dump.parent)
    if dataset is None or dataset == dump:
        return []
    try:
        return [dataset / "state.json", *dataset_files(dataset)]
    except DumpError:
        return [dataset / "state.json"]


def key_of(inv: OpenedCase, inputs: Inputs) -> str:
    """64 hex digits that are the same only where every number of an investigation is, on one `machine`."""
    case = inv.case
    told = {
        "versions": versions(),
        "case": _text(case.file),
        "sections": {name: _told(getattr(case, name)) for name in (*SECTIONS, "claims")},
        "inputs": inputs.digest,
        "settings": {name: getattr(inv, name) for name in SETTINGS},
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@cache
def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def machine(device: str) -> dict[str, Any]:
    """What of the hardware, and of torch's settings, shows in the last bits of a number. A device that is not here counts by its name."""
    import torch

    from eaglelab.drafter.device import DrafterError, choose_device

    try:
        chosen = choose_device(device)
    except DrafterError:
        return {"device": device}
    found = {
        "processor": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()),
        "device": str(chosen),
        "environment": {n: v for n, v in sorted(os.environ.items()) if n.startswith(LIBRARIES) and not n.endswith(ELSEWHERE)},
        "precision": [torch.get_float32_matmul_precision(), str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled()],
    }
    if chosen.type == "cuda":
        flags = [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]
        found["gpu"] = [torch.cuda.get_device_name(chosen), list(torch.cuda.get_device_capability(chosen)), torch.version.cuda, *flags]
    return found


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        return f"cannot be read: {error.errno}"


def _told(value: Any) -> Any:
    """A section as JSON; of a path its last two names, which messages show: the content stands among the inputs."""
    if isinstance(value, Path):
        return "/".join(value.parts[-2:])
    if is_dataclass(value):
        return {f.name: _told(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): _told(v) for k, v in value.items()}
    return [_told(v) for v in value] if isinstance(value, (list, tuple)) else value
