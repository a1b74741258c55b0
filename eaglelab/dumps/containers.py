"""Read one file of tensors without running anything from it, memory-mapped where the container allows.

Four containers are met: safetensors and torch's zip (torch >= 1.6), both memory-mapped, a legacy pickle stream and a gzip of either
torch save (read whole). A zip that was packed again with compression is read whole too: torch would map its packed bytes as numbers.
torch's own messages name the wrong cause for several bad files (an empty file is "mmap can only be used with …"), so the
container is looked at first and every failure is told in plain words.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

ZIP, GZIP, PICKLE = b"PK\x03\x04", b"\x1f\x8b", b"\x80"
TORCH_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""What torch's legacy save pickles first (torch/serialization.py, MAGIC_NUMBER); a pickle without it is another program's."""
LFS_POINTER = b"version https://git-lfs"
END_OF_ZIP = b"PK\x05\x06"  # the record that closes a zip; a file that was cut has lost it
TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".pt.gz", ".pth.gz", ".ckpt.gz")

MAX_UNPACKED = 4 << 30
"""Bytes of one sample in a gzip or a compressed zip. A sample of 8,192 tokens with four slots of 7,168 in bf16 has 0.47 * 10^9."""
MAX_RATIO, SMALL = 20, 64 << 20
"""A gzip that unpacks to more than `SMALL` bytes and to more than so many times its size holds no states, which shrink by a third: it is
not unpacked further, however large it may be."""


class DumpError(ValueError):
    """A dump or a sample that cannot be used. `problem` is the short name that the health table groups by."""

    def __init__(self, message: str, problem: str = "unreadable"):
        super().__init__(message.encode("utf-8", "backslashreplace").decode())  # a damaged key need not be text
        self.problem = problem


def load_file(path: Path, allow_pickle: bool = False) -> Any:
    """What a safetensors file or a torch save holds, by the file's name. Raises DumpError as `load_torch` and `load_safetensors` do."""
    return load_safetensors(path) if path.name.lower().endswith(".safetensors") else load_torch(path, allow_pickle)


def load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, memory-mapped. Raises DumpError with what was found, the file, and what to do."""
    from safetensors import SafetensorError, safe_open

    _, size = _head(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        if "incomplete" in str(error).lower() or "invalidoffset" in str(error).lower():  # the header promises more than the file holds
            raise DumpError(_cut(path, size), "truncated") from error
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise DumpError(f"{path}: damaged or not a safetensors file ({text[0][:200]}). Dump it again.") from error


def load_torch(path: Path, allow_pickle: bool = False) -> Any:
    """What `torch.save` wrote to `path`, tensors on the CPU; a zip's tensors are memory-mapped.

    Raises DumpError with what was found, the file, and what to do.
    """
    head, size = _head(path)
    if not head.startswith((ZIP, GZIP, PICKLE)):
        raise DumpError(
            f"{path}: not a torch file: it starts with {head[:16]!r}; expected a torch.save zip, a legacy torch save or a gzip "
            "of one. Check what wrote it."
        )
    if head.startswith(ZIP) and not _has_end_of_zip(path, size):
        raise DumpError(_cut(path, size), "truncated")
    source, mapped = path, None
    try:
        if head.startswith(GZIP):
            source = _unpacked(path, size)
            head = source.getbuffer()[:64].tobytes()
        elif head.startswith(ZIP):
            mapped = _all_stored(path) or None
        _check_torch(path, head)
        return torch.load(source, map_location="cpu", weights_only=not allow_pickle, mmap=mapped)
    except DumpError:
        raise
    except Exception as error:  # a bad file is a row in a report, whatever torch raises for it
        raise _plain_error(path, size, error) from error


def split_key(key: str) -> tuple[str, int | None]:
    """(file, number) of the key of one of several samples in a file, `answers.jsonl#3`; (file, None) of any other."""
    found = re.fullmatch(r"(.+)#(\d{1,9})", key, re.DOTALL)
    return (found[1], int(found[2])) if found else (key, None)


def is_torch_name(name: str) -> bool:
    return name.lower().endswith(TORCH_SUFFIXES)


def _head(path: Path) -> tuple[bytes, int]:
    """(the first bytes, the size) of a file that holds something. Raises DumpError."""
    if path.exists() and not path.is_file():  # a pipe would be waited on for ever
        raise DumpError(f"{path}: not a regular file (a folder, pipe, socket or device). Remove it, or give the file itself.")
    try:
        with open(path, "rb") as file:
            head, size = file.read(64), path.stat().st_size
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror or error}. Check the path and its permissions.") from error
    if size == 0:
        raise DumpError(f"{path}: the file is empty (0 bytes); its writer was interrupted. Delete it and dump it again.", "empty")
    if head.startswith(LFS_POINTER):
        raise DumpError(f"{path}: a Git LFS pointer of {size} bytes, not the data. Run `git lfs pull`.")
    return head, size


def _check_torch(path: Path, head: bytes) -> None:
    """Raise DumpError where a file, or what a gzip holds, is no torch save by its first bytes: no switch would help to read it."""
    if head.startswith(PICKLE) and TORCH_MAGIC not in head:
        text = f"{path}: a plain pickle, which torch.save did not write. It is not read: save the same value with torch.save."
        raise DumpError(text, "foreign objects")
    if not head.startswith((ZIP, PICKLE)):
        inside = (
            "another gzip: unpack it once" if head.startswith(GZIP) else f"no torch save: it starts with {head[:16]!r}. Check what wrote it"
        )
        raise DumpError(f"{path}: the gzip holds {inside}.")


def _unpacked(path: Path, size: int) -> io.BytesIO:
    """A gzip's content, read once: torch seeks in what it loads, and in a gzip each step back unpacks it again from the start."""
    most = min(MAX_UNPACKED, max(SMALL, MAX_RATIO * size))
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _too_large(path, most)
    return io.BytesIO(content)


def _all_stored(path: Path) -> bool:
    """Whether a zip's entries lie in it as they are. Raises DumpError where they unpack to more than memory should hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [entry for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return False  # torch says what is wrong with it
    if sum(entry.file_size for entry in packed) > MAX_UNPACKED:
        raise _too_large(path, MAX_UNPACKED)
    return not packed


def _too_large(path: Path, most: int) -> DumpError:
    text = f"{path}: unpacks to more than {most / 2**30:g} GiB, which is not read into memory. Save one sample a file."
    return DumpError(text, "too large")


def _has_end_of_zip(path: Path, size: int) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, size - 65_557))  # the record's 22 bytes and the longest comment
        return END_OF_ZIP in file.read()


def _cut(path: Path, size: int) -> str:
    return f"{path}: the file is cut off: {size:,} bytes and then it ends too early. Delete it and dump it again."


def _plain_error(path: Path, size: int, error: Exception) -> DumpError:
    text = str(error)
    if isinstance(error, EOFError) or "unexpected EOF" in text or "failed finding central directory" in text:
        return DumpError(_cut(path, size), "truncated")
    if "Weights only load failed" in text:
        found = re.search(r"Unsupported (?:global: GLOBAL|class|operand) ?(\S+)", text)
        what = f"Python objects ({found.group(1)})" if found else "Python objects"
        return DumpError(
            f"{path}: holds {what}, not only tensors and plain values. Reading them would run code from the file, so it is "
            "refused. Save tensors, lists, dicts and numbers only; if you trust the file, set `[dump] allow_pickle = true` in "
            "case.toml (open_dump(..., allow_pickle=True)).",
            "foreign objects",
        )
    first_line = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return DumpError(f"{path}: damaged or not a torch file ({type(error).__name__}: {first_line[:200]}). Dump it again.")
