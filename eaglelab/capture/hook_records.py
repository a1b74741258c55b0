"""Reads what `sglang_hook` recorded, and puts a sample's states together out of the passes of its request.

A pass is one call of the drafter's fc: the tokens that the target was given in it (`tokens`, the target's own embedding call before it)
and the states that came of them (`states`), row by row. Prompts come whole or in chunks; then each verify pass of a chain holds its root
and the drafted tokens, of which those that the text goes on with were accepted: only their rows are kept (SGLang 0.5.23,
eagle_worker_v2.py:961-1096 and 1110-1294). Requests must have been sent one at a time.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.capture.sglang_hook import FRAME, MAGIC, SUFFIX, TAG
from eaglelab.capture.write import CaptureError

DTYPES = {"float32", "float16", "bfloat16", "float64", "int32", "int64"}
MAX_HEADER = 1 << 16


@dataclass(frozen=True)
class Pass:
    """One call of the drafter's fc, T rows."""

    tokens: tuple[int, ...] | None
    """T ints: what the target was given. None where no call of its embedding with as many rows came before."""
    states: Tensor  # [T, K * H]


@dataclass
class Records:
    path: Path
    passes: list[Pass] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """How the recording ended, where it did not simply stop with the server."""
    start: dict[str, Any] = field(default_factory=dict)


def read_records(path: str | Path) -> Records:
    """The passes of one file, its tensors mapped. Raises CaptureError for a file that is no recording."""
    path = Path(path)
    records, tokens = Records(path), {}
    for header, value in _frames(path, records.notes):
        kind, hook = header.get("kind"), header.get("hook")
        if kind == "start":
            records.start = header
        elif kind == "stopped":
            records.notes.append(f"{path.name}: the recording stopped: {str(header.get('why'))[:300]}")
        elif kind == "tokens":
            tokens.pop(hook, None)
            tokens[hook] = value  # the last call of each embedding, the latest at the end
        elif kind == "states":
            if hook not in tokens:
                continue  # no drafter's fc: its own embedding is called first
            target = [t for h, t in tokens.items() if h != hook and len(t) == len(value)]
            records.passes.append(Pass(tuple(target[-1].tolist()) if target else None, value))
            tokens.pop(hook)  # a second module with the same pass (fc after input_norm) is not a pass of its own
    return records


def record_files(folder: str | Path) -> list[Path]:
    """The recordings in a folder. Raises CaptureError where there is none."""
    files = sorted(Path(folder).glob(f"*{SUFFIX}"))
    if not files:
        raise CaptureError(
            f"{folder}: no recording (*{SUFFIX}) there. Is it the server's `out`, on this machine, and does its log say 'Registered forward "
            "hook 'eaglelab''?"
        )
    return files


def assemble(records: Records, texts: Sequence[Sequence[int]]) -> list[tuple[Tensor | None, str]]:
    """For each text (prompt and answer, as token ids, in the order in which they were sent) its states [T, K * H], one row for each of its
    first T tokens, or None; and what is to be said about it: "" where every token that was fed has its row."""
    out, at = [], 0
    for text in map(tuple, texts):
        best, end = [], at
        for begin in range(at, len(records.passes)):
            rows, after = _follow(records.passes, begin, text)
            if sum(map(len, rows)) > sum(map(len, best)):  # a health check may begin like a prompt
                best, end = rows, after
            if sum(map(len, best)) >= len(text) - 1:
                break
        if not best:
            out.append((None, _why_absent(records.passes[at:], text)))
            continue
        at = end
        missing = len(text) - sum(map(len, best))
        # the answer's last token is never fed
        said = f"the last {missing} of {len(text)} tokens have no rows" if missing > 1 else ""
        out.append((torch.cat(best), said))
    return out


def _follow(passes: Sequence[Pass], begin: int, text: tuple[int, ...]) -> tuple[list[Tensor], int]:
    """(the rows of a text whose first pass is `begin`, the pass after its last); no rows where that pass is not the text's beginning."""
    if _matching(passes[begin], text, 0) != len(passes[begin].states):
        return [], begin
    rows, place, at = [], 0, begin
    while at < len(passes) and place < len(text):
        right = _matching(passes[at], text, place)
        if right == 0:
            break
        rows.append(passes[at].states[:right])
        place, at = place + right, at + 1
    return rows, at


def _matching(one: Pass, text: tuple[int, ...], place: int) -> int:
    """Leading rows of a pass whose tokens are the text's from `place` on."""
    if not one.tokens:
        return 0
    expected = text[place : place + len(one.tokens)]
    count = 0
    while count < len(expected) and one.tokens[count] == expected[count]:
        count += 1
    return count


def _why_absent(passes: Sequence[Pass], text: tuple[int, ...]) -> str:
    if not passes:
        return "no pass was recorded after the request before it: graphs replay without hooks (switch them off), or the recording stopped"
    tails = (p for p in passes if p.tokens and len(p.tokens) < len(text) and p.tokens == text[len(text) - len(p.tokens) :])
    tail = max((len(p.states) for p in tails), default=0)
    if tail > 1:
        return f"only its last {tail} of {len(text)} tokens were run: the rest came from the cache; start the server with --disable-radix-cache"
    return "no pass begins with its tokens: was it sent to this server, one request at a time?"


def _frames(path: Path, notes: list[str]) -> Iterator[tuple[dict[str, Any], Tensor | None]]:
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise CaptureError(f"{path} is no recording of eaglelab's hook: it begins with other bytes")
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # writable as torch wants it; the file stays as it is
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {error.strerror or error}") from None
    place, size = len(MAGIC), len(whole)
    while place < size:
        frame = _frame(whole, place)
        if frame is None:
            notes.append(f"{path.name}: cut off or damaged at byte {place:,} of {size:,}; what comes before is read")
            return
        header, start, length, place = frame
        yield header, _tensor(whole, header, start, length)


def _frame(whole: mmap.mmap, place: int) -> tuple[dict[str, Any], int, int, int] | None:
    """(header, where the payload starts, its bytes, where the next frame starts); None for a broken one."""
    if place + FRAME.size > len(whole):
        return None
    tag, head, length = FRAME.unpack_from(whole, place)
    start = place + FRAME.size + head
    end = start + length
    if tag != TAG or head > MAX_HEADER or end + 4 > len(whole):
        return None
    text = whole[place + FRAME.size : start]
    if zlib.crc32(memoryview(whole)[start:end], zlib.crc32(text)) != int.from_bytes(whole[end : end + 4], "little"):
        return None
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    return header, start, length, end + 4 + (-(length + 4)) % 8


def _tensor(whole: mmap.mmap, header: dict[str, Any], start: int, length: int) -> Tensor | None:
    shape, name = header.get("shape"), header.get("dtype")
    if shape is None or name not in DTYPES:
        return None
    dtype = getattr(torch, name)
    if length == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(whole, dtype=dtype, count=length // dtype.itemsize, offset=start).reshape(shape)
