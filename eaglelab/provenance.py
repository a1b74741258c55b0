"""Where a number comes from: versions, git state, device, parameters, and the inputs' sizes and hashes.

Small inputs are hashed whole. A dump or a target of terabytes is named by its size, its count of files and a hash over their names
and sizes; it is never read for this. No user name, no host name, no path that the case itself does not give.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from eaglelab.findings import plain

PACKAGES = ("eaglelab", "torch", "transformers", "safetensors", "numpy", "pandas", "matplotlib", "papermill", "nbconvert", "sglang", "vllm")
HASH_LIMIT = 64 * 2**20
"""Bytes of one input (a file, or all files of a folder) up to which its content is hashed."""
STAT_LIMIT = 20_000
"""Files of one folder up to which each one's size is asked for; on a network disk 100,000 of them take a minute."""

# The keys of case.toml whose values may name a file or a folder.
PATH_KEYS = frozenset(
    ("path", "config", "sketch", "tokenizer", "embed", "launch", "log", "counters", "draft_config", "trace", "metrics", "table")
)


@dataclass(frozen=True)
class Input:
    """One file or folder that a case names."""

    name: str
    """Where the case names it: `dump.path`."""
    path: str
    """As the case gives it."""
    files: int | None = None
    bytes: int | None = None
    """Total size; None for a folder with more than `STAT_LIMIT` files."""
    sha256: str | None = None
    """Hash of the content, None above `HASH_LIMIT`."""
    names_sha256: str | None = None
    """Hash of the sorted file names and sizes of a folder."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Provenance:
    """Everything a reader needs to make the numbers again."""

    date: str
    """UTC, ISO 8601."""
    versions: dict[str, str]
    git: dict[str, Any] | None
    """`{"sha", "dirty"}` of eaglelab's own checkout, None when it is not one."""
    device: str
    platform: str
    parameters: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return plain(dict(vars(self)))

    def rows(self) -> list[tuple[str, Any]]:
        """Name and value, for a table: everything but the inputs."""
        return facts(self.to_json())


def facts(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The rows of a provenance table from its JSON: date, versions, git, device, parameters."""
    git = data.get("git")
    state = "not a git checkout" if not git else f"{git.get('sha')}{' with uncommitted changes' if git.get('dirty') else ''}"
    rows = [("date", data.get("date")), ("git", state), ("device", data.get("device")), ("platform", data.get("platform"))]
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in (data.get("versions") or {}).items())))
    return rows + [(f"parameter {k}", v) for k, v in (data.get("parameters") or {}).items()]


def collect(case_path: str | Path | None = None, parameters: Mapping[str, Any] | None = None, *, inputs: bool = True) -> Provenance:
    """The provenance of a run. `inputs=False` leaves the files alone (what a live notebook shows at its start)."""
    return Provenance(
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        versions=versions(),
        git=git_state(),
        device=device(),
        platform=f"{platform.system()} {platform.machine()}",
        parameters=dict(parameters or {}),
        inputs=tuple(case_inputs(case_path)) if inputs and case_path is not None else (),
    )


def versions() -> dict[str, str]:
    """Installed versions of Python and of the packages that numbers may depend on, without importing them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path | None = None) -> dict[str, Any] | None:
    """`{"sha", "dirty"}` of the checkout that tracks eaglelab; None when there is none or git is missing."""
    folder = folder or Path(__file__).resolve().parent
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")  # an installed copy may sit inside another project's checkout
    sha = _git(folder, "rev-parse", "HEAD") if tracked else None
    if not sha:
        return None
    return {"sha": sha[:12], "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def device() -> str:
    """The device that torch would use by default, in words; only the CPU's where torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(0)} (CUDA {torch.version.cuda}), {torch.cuda.device_count()} in this machine"
    threads = f", {torch.get_num_threads()} torch threads" if torch is not None else ""
    return f"CPU, {os.cpu_count()} cores{threads}"


def case_inputs(case_path: str | Path) -> Iterator[Input]:
    """The files and folders that a case.toml names, and the case.toml itself. What does not exist is listed as such."""
    case_file = Path(case_path)
    if case_file.is_dir():
        case_file = case_file / "case.toml"
    yield describe("case", case_file.name, case_file)
    try:
        sections = tomllib.loads(case_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return  # the case's own reader says what is wrong with it
    for section, values in sections.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in PATH_KEYS and isinstance(value, str) and value:
                given = _within(case_file.parent, value)
                if given is not None:
                    yield describe(f"{section}.{key}", value, given)


def _within(folder: Path, value: str) -> Path | None:
    """The path that a value names, or None where the value is text and no path (a launch line)."""
    path = folder / os.path.expanduser(value)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # too long for a path, NUL
        return None
    return path if exists or not any(c.isspace() for c in value) else None


def describe(name: str, shown: str, path: Path) -> Input:
    """Size and hashes of one input, reading at most `HASH_LIMIT` bytes of it."""
    try:
        if path.is_dir():
            return _describe_folder(name, shown, path)
        size = path.stat().st_size
        return Input(name, shown, files=1, bytes=size, sha256=_hash([path]) if size <= HASH_LIMIT else None)
    except OSError as error:
        return Input(name, shown, note=error.strerror or type(error).__name__)


def _describe_folder(name: str, shown: str, folder: Path) -> Input:
    files = sorted(Path(root, f).relative_to(folder).as_posix() for root, _, names in os.walk(folder) for f in names)
    sizes = [(folder / f).stat().st_size for f in files] if len(files) <= STAT_LIMIT else None
    total = sum(sizes) if sizes is not None else None
    listing = "\n".join(files if sizes is None else (f"{f}\t{s}" for f, s in zip(files, sizes, strict=True)))
    whole = total is not None and total <= HASH_LIMIT
    return Input(
        name,
        shown,
        files=len(files),
        bytes=total,
        sha256=_hash([folder / f for f in files]) if whole else None,
        names_sha256=hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest(),
        note="" if sizes is not None else "sizes not asked for: too many files",
    )


def _hash(paths: list[Path]) -> str:
    """sha256 over the contents of `paths`, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()
