"""Where a number comes from: versions, git state, device, parameters, and the inputs' sizes and hashes.

Small inputs are hashed whole. A dump or a target of terabytes is named by a hash over its files' names and sizes; it is never read for
this. No user name, no host name, no path outside of the case's folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from eaglelab.case import SECTIONS, Case
from eaglelab.opened import relative_to_case

PACKAGES = ("eaglelab", "torch", "transformers", "safetensors", "numpy", "pandas", "matplotlib", "papermill", "nbconvert", "sglang", "vllm")
HERE = Path(__file__).resolve().parent
HASH_LIMIT = 64 * 2**20
"""Bytes of one input (a file, or all files of a folder) up to which its content is hashed."""
STAT_LIMIT = 20_000
"""Files of one folder up to which each one's size is asked for; on a network disk 100,000 of them take a minute."""


def collect(case: Case | None = None) -> dict[str, Any]:
    """date (UTC, ISO 8601), versions, git (eaglelab's own commit, None outside of a checkout), device, platform; with a case its inputs."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": versions(),
        "git": git_state(),
        "device": device(),
        "platform": f"{platform.system()} {platform.machine()}",
        "inputs": case_inputs(case) if case else [],
    }


def facts(origin: dict[str, Any]) -> list[tuple[str, Any]]:
    """The rows of a provenance table: everything but the inputs."""
    rows = [("date", origin["date"]), ("git", origin["git"] or "not a git checkout")]
    rows += [("device", origin["device"]), ("platform", origin["platform"])]
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in origin["versions"].items())))
    return rows + [(f"parameter {k}", v) for k, v in origin.get("parameters", {}).items()]


def harmless(origin: dict[str, Any]) -> list[str]:
    """Of what `collect` gives, the texts that name nobody: a redacted report keeps them as they are."""
    return [*origin["versions"].values(), origin["git"] or "", origin["device"], origin["platform"], origin["date"]]


def versions() -> dict[str, str]:
    """Installed versions of Python and of the packages that numbers may depend on, without importing them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def git_state(folder: Path = HERE) -> str | None:
    """`1a2b3c4d5e6f` or `1a2b3c4d5e6f-dirty` of the checkout that tracks eaglelab; None when there is none or git is missing."""
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # an installed copy may sit inside another project's checkout
    return _git(folder, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12") if tracked else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def device() -> str:
    """The device that torch would use by default, in words; only the CPU's where torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(0)} (CUDA {torch.version.cuda}), {_counted(torch.cuda.device_count())}"
    threads = f", {torch.get_num_threads()} torch threads" if torch is not None else ""
    return f"CPU, {os.cpu_count()} cores{threads}"


def _counted(seen: int) -> str:
    """GPUs that this process sees: a report's kernel sees the one that it was given."""
    limited = " (CUDA_VISIBLE_DEVICES is set)" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
    return f"{seen} GPU{'s' if seen != 1 else ''} visible{limited}"


def case_inputs(case: Case) -> list[dict[str, Any]]:
    """case.toml and the files and folders that it names, one row each: see `describe`."""
    named = {f"{name}.{key}": path for name in SECTIONS for key, path in vars(getattr(case, name)).items() if isinstance(path, Path)}
    return [{"name": name, "path": relative_to_case(case, path), **describe(path)} for name, path in {"case": case.file, **named}.items()]


def describe(path: Path) -> dict[str, Any]:
    """files, bytes (None above `STAT_LIMIT` files), sha256 and what it is `of`. Reads at most `HASH_LIMIT` bytes."""
    try:
        files = [path] if path.is_file() else sorted(Path(root, f) for root, _, names in os.walk(path) for f in names)
        sizes = None
        if len(files) <= STAT_LIMIT:
            files = [f for f in files if f.is_file()]  # reading a pipe would wait for ever
            sizes = [f.stat().st_size for f in files]
        digest, of = hashlib.sha256(), "content"
        if sizes is not None and sum(sizes) <= HASH_LIMIT:
            for file in files:
                digest.update(file.read_bytes())
        else:
            of = "names" if sizes is None else "names and sizes"
            for file, size in zip(files, sizes or [""] * len(files), strict=True):
                digest.update(f"{file.relative_to(path.parent)}\t{size}\n".encode("utf-8", "surrogateescape"))
    except OSError as error:
        return {"of": f"cannot be read: {error.strerror}"}
    return {"files": len(files), "bytes": None if sizes is None else sum(sizes), "sha256": digest.hexdigest(), "of": of}
