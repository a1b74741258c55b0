"""What a result depends on, as one digest: the case and the content of its inputs, the settings, eaglelab's own source, versions, the machine.

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
from eaglelab.dumps.arrow import ARROW_FILES

if TYPE_CHECKING:
    from eaglelab.opened import OpenedCase

HERE = Path(__file__).resolve().parents[1]
SOURCE = (".py", ".toml", ".json")
"""Endings of eaglelab's files that numbers may come from."""
PACKAGES = ("torch", "numpy", "pandas", "transformers", "tokenizers", "safetensors", "pyarrow", "sglang", "vllm")
"""Packages whose versions numbers may depend on; the engines' for `[engine] source = "installed"`."""
SETTINGS = ("max_samples", "seed", "device", "dtype", "way", "_steps")
"""Of `OpenedCase`."""


def inputs_of(case: Case) -> Inputs:
    """The files and folders that a case names, and the Arrow dataset that a dump's loss masks may be in."""
    named = {f"{name}.{key}": path for name in SECTIONS for key, path in vars(getattr(case, name)).items() if isinstance(path, Path)}
    _, _, place = (case.engine.spec or "").partition("@")
    if place and os.path.exists(place):
        named["engine.source"] = Path(place)
    if (dump := case.dump.path) is not None:
        around = dump.parents[: 1 if dump.is_dir() else 2]
        found = [file for folder in around for file in (folder / "state.json", *sorted(folder.glob(ARROW_FILES))) if file.is_file()]
        named |= {f"beside the dump {i}": file for i, file in enumerate(found)}
    return Inputs(named)


def key_of(inv: OpenedCase, inputs: Inputs) -> str:
    """64 hex digits that are the same only where every number of an investigation is."""
    case = inv.case
    told = {
        "source": source(),
        "versions": versions(),
        "machine": machine(inv.device),
        "case": _text(case.file),
        "sections": {name: _told(getattr(case, name)) for name in (*SECTIONS, "claims")},
        "inputs": inputs.digest,
        "settings": {name: getattr(inv, name) for name in SETTINGS},
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@cache
def source() -> str:
    """Of eaglelab's own files, as they were when this process first asked."""
    found = hashlib.sha256()
    for file in sorted(p for p in HERE.rglob("*") if p.suffix in SOURCE):
        found.update(f"{file.relative_to(HERE)}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()


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
    """What of the hardware, and of torch's settings, shows in the last bits of a number."""
    import torch

    from eaglelab.drafter.checkpoint import choose_device

    chosen = choose_device(device)
    found = {
        "processor": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()),
        "device": str(chosen),
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
