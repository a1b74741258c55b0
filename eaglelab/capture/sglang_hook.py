"""A hook factory for SGLang's `--forward-hooks`: records what the drafter's own `fc` receives, with the tokens of each pass.

Runs inside the engine's process, so it needs nothing but torch and the standard library: install eaglelab there with `--no-deps`, or copy
this one file onto the engine's PYTHONPATH. It never changes an output and never raises: a full disk, an exception or the limit on bytes
ends the recording with a last note, not the server.

SGLang registers the hooks of a spec on the target and on the drafter alike and calls the factory once for each (0.5.23,
model_executor/hook_manager.py:11-57, cuda_graph_setup.py:452-459). So one hook sees only the target's `embed_tokens` (the tokens of each
pass) and the other the drafter's `embed_tokens` and `fc` (llama_eagle3.py:236-247: the embedding first, then fc, both before the layers).
`fc` runs only on states of the target, K * H wide: a drafted step starts from H wide ones and goes round it.

The file: `MAGIC`, then frames of (`FRAME`: tag, header bytes, payload bytes), a JSON header, the payload, and the crc32 of both.
`eaglelab.capture.hook_records` reads it; a frame that was cut off is where reading ends.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import torch

MAGIC = b"EAGLREC1"
FRAME = struct.Struct("<4sIQ")
TAG = b"FRM\n"
SUFFIX = ".records"
MODULES = ("model.embed_tokens", "model.fc", "*.model.embed_tokens", "model.input_norm")
"""Patterns (fnmatch) for `target_modules`. `input_norm` comes before fc where `norm_before_fc` is set: the first of both is recorded."""
MAX_BYTES = 4 << 30
"""Of one process, unless the spec says otherwise."""

_recorders: dict[str, Recorder] = {}
_lock = threading.Lock()


def hook_spec(
    out: str | os.PathLike, max_bytes: int = MAX_BYTES, factory: str = "eaglelab.capture.sglang_hook:record"
) -> list[dict[str, Any]]:
    """What `--forward-hooks` takes, as JSON. out: a folder on the engine's machine. factory: `sglang_hook:record` for the copied file."""
    config = {"out": os.path.abspath(out), "max_bytes": max_bytes}
    return [{"name": "eaglelab", "target_modules": list(MODULES), "hook_factory": factory, "config": config}]


def record(config: dict[str, Any]) -> Any:
    """The factory: a `hook(module, args, output)` that returns None. All hooks of a process write into one file."""
    try:
        out = str(config["out"])
        with _lock:
            if out not in _recorders:
                _recorders[out] = Recorder(out, int(config.get("max_bytes", MAX_BYTES)))
        return _recorders[out].hook()
    except Exception as error:
        print(f"eaglelab: nothing is recorded ({error!r})", flush=True)
        return lambda module, args, output: None


class Recorder:
    """One file of one process, appended to by every hook in it."""

    def __init__(self, out: str, max_bytes: int) -> None:
        self.max_bytes, self.written, self.whole, self.count, self.hooks = max_bytes, 0, 0, 0, 0
        self.stopped = ""
        """Why nothing more is recorded; "" while it goes on."""
        self._lock = threading.Lock()
        Path(out).mkdir(parents=True, exist_ok=True)
        rank = torch.distributed.get_rank() if torch.distributed.is_available() and torch.distributed.is_initialized() else 0
        self.path = Path(out) / f"rank{rank}_pid{os.getpid()}_{int(time.time())}{SUFFIX}"
        self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - open as long as the server runs
        self._put(MAGIC)
        self._frame({"kind": "start", "pid": os.getpid(), "rank": rank, "torch": torch.__version__, "max_bytes": max_bytes})

    def hook(self) -> Any:
        number = self.hooks
        self.hooks += 1

        def hook(module: torch.nn.Module, args: tuple, output: Any) -> None:
            if self.stopped:
                return
            try:
                if not args or not isinstance(args[0], torch.Tensor) or not _eager():
                    return
                self._take(number, args[0])
            except Exception as error:
                self.stop(repr(error)[:500])

        return hook

    def _take(self, number: int, value: torch.Tensor) -> None:
        """Integers [T] are the tokens of a pass, floats [T, K * H] what fc is given."""
        if value.dim() == 1 and not value.is_floating_point():
            kind = "tokens"
        elif value.dim() == 2 and value.is_floating_point():
            kind = "states"
        else:
            return
        with self._lock:
            size = value.numel() * value.element_size()
            if self.written + size > self.max_bytes:
                self.stop(f"max_bytes = {self.max_bytes:,} reached")
                return
            flat = value.detach().contiguous().cpu().reshape(-1)
            payload = flat.view(torch.uint8).numpy().data if flat.numel() else b""
            dtype = str(value.dtype).removeprefix("torch.")
            self._frame({"kind": kind, "n": self.count, "hook": number, "shape": list(value.shape), "dtype": dtype}, payload)
            self.count += 1

    def stop(self, why: str) -> None:
        """The last note, in the place of the frame that failed; a disk that takes no more may not take it either."""
        self.stopped = why
        print(f"eaglelab: the recording {self.path} has stopped: {why}", flush=True)
        try:
            self._file.truncate(self.whole)
            self._file.seek(self.whole)
            self._frame({"kind": "stopped", "why": why})
        except Exception:
            pass

    def _frame(self, header: dict[str, Any], payload: Any = b"") -> None:
        text = json.dumps(header).encode()
        text += b" " * (-(FRAME.size + len(text)) % 8)  # payloads begin at multiples of 8, where they can be mapped
        tail = struct.pack("<I", zlib.crc32(payload, zlib.crc32(text)))
        pad = b"\0" * (-(len(payload) + len(tail)) % 8)
        self._put(FRAME.pack(TAG, len(text), len(payload)) + text)
        self._put(payload)
        self._put(tail + pad)
        self.whole = self._file.tell()

    def _put(self, data: Any) -> None:
        view = memoryview(data)
        while len(view):  # an unbuffered file may take a part
            taken = self._file.write(view)
            self.written += taken
            view = view[taken:]


def _eager() -> bool:
    """False while a graph is captured or compiled: a copy to the CPU would break it, and its replays call no hook."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
