"""Opening and fingerprinting one sample of each format, and listing a dump of 10,000 files.

    python benchmarks/formats.py

One synthetic sample (1281 tokens x 4 slots x 7168, bf16, 73 MB) is written by each format's documented schema and read from the page
cache. In turn, in one run: open the folder, load the sample, take its fingerprint. The peer is the plain list-of-four zip; a legacy
save and a gzip cannot be mapped and are read whole. Then `open_dump` over 10,000 files of each kind of name: it opens four of them.

A table, then one line of JSON. Nothing here is a gate.
"""

from __future__ import annotations

import gzip
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eaglelab.dumps import open_dump
from eaglelab.fingerprint import fingerprint

TOKENS, SLOTS, HIDDEN = 1281, 4, 7168
REPEATS, FILES = 5, 10_000


def contents() -> dict[str, tuple[str, Any]]:
    """Name -> (file name, what it holds), by each writer's schema."""
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16() for _ in range(SLOTS)]  # S x [T, H]
    ids, mask, last = torch.arange(1, TOKENS + 1), torch.ones(TOKENS, dtype=torch.int64), states[-1]
    aux = torch.cat(states[:-1], dim=-1)  # [T, (S - 1) * H]
    stacked = torch.stack(states, dim=1)  # [T, S, H]
    fp8, scales = to_fp8(stacked)
    text = {"input_ids": ids, "loss_mask": mask}
    four = {**text, "hidden_states": states}
    return {
        "list_of_four": ("data_0.pt", four),
        "list_of_four, legacy save": ("data_0.pt", legacy(four)),
        "list_of_four, gzip": ("data_0.pt.gz", gzip.compress(zipped(four), 1)),
        "speculators_v0": ("data_0.pt", {**text, "hidden_state": aux, "target": last}),
        "specforge": ("data_0.ckpt", {**text, "aux_hidden_state": aux[None], "hidden_state": last[None]}),
        "specforge_capture": ("s_0.ckpt", {"input_ids": ids[None], "loss_mask": mask[None], "hidden_state": aux[None], "target": last[None]}),
        "angelslim": ("data_0.ckpt", {"input_ids": ids[None], "loss_mask": mask[None], "hidden_states": aux[None], "target_hiddens": last[None]}),
        "modelopt": ("c_0.pt", {**text, "aux_hidden_states": aux, "hidden_states": last}),
        "eagle": ("data_0.ckpt", {**text, "hidden_state": last.half()}),
        "vllm": ("hs_0.safetensors", {"hidden_states": stacked, "token_ids": ids}),
        "vllm, fp8": ("hs_0.safetensors", {"hidden_states": fp8, "hidden_states_scales": scales, "token_ids": ids}),
    }  # fmt: skip


def to_fp8(states: Tensor) -> tuple[Tensor, Tensor]:
    """[T, S, H] in float8_e4m3fn and one scale a token [T, 1, 1], as hs-connectors 0.9.0 writes them."""
    scales = states.float().abs().amax(dim=(1, 2), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return (states.float() / scales).to(torch.float8_e4m3fn), scales


def zipped(data: Any) -> bytes:
    torch.save(data, buffer := io.BytesIO())
    return buffer.getvalue()


def legacy(data: Any) -> bytes:
    torch.save(data, buffer := io.BytesIO(), _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def write(path: Path, data: Any) -> None:
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif path.suffix == ".safetensors":
        save_file(data, path)
    else:
        torch.save(data, path)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Callable[[], object]] = {}
        sizes = {}
        for place, (name, (file, data)) in enumerate(contents().items()):
            root = Path(folder) / str(place)
            root.mkdir()
            write(root / file, data)
            sizes[name] = (root / file).stat().st_size / 1e6
            ways[name] = lambda root=root: fingerprint(open_dump(root).samples())
        times = measure(ways)
    peer = statistics.median(times["list_of_four"])
    rows = [(name, sizes[name], 1e3 * statistics.median(t), statistics.median(t) / peer) for name, t in times.items()]
    print(f"{'one sample, opened and fingerprinted':<38}{'MB':>8}{'ms':>9}{'/ list_of_four':>16}")
    for name, size, milliseconds, ratio in rows:
        print(f"{name:<38}{size:>8.1f}{milliseconds:>9.1f}{ratio:>16.2f}")
    listed = listing()
    print(f"\nopen_dump over {FILES:,} files, one process")
    for kind, seconds in listed.items():
        print(f"{kind:<38}{seconds:>8.2f} s{1e3 * seconds / FILES:>9.3f} ms a file")
    print(json.dumps({"samples": [dict(zip(("format", "mb", "ms", "ratio"), row, strict=True)) for row in rows], "listing_s": listed}))


def measure(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each way, taken in turn after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round in range(REPEATS + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if round:
                times[name].append(time.perf_counter() - start)
    return times


def listing() -> dict[str, float]:
    """Median seconds of `open_dump` over many small files."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(8, SLOTS, 16, generator=generator).bfloat16()  # [T, S, H]
    ids = torch.arange(8)
    small = {
        "data_{}.pt (list_of_four)": {"input_ids": ids, "loss_mask": ids > 2, "hidden_states": list(states.unbind(1))},
        "hs_{}.safetensors (vllm)": {"hidden_states": states, "token_ids": ids},
    }
    found = {}
    for name, data in small.items():
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder) / name.split()[0].format(0)
            write(first, data)
            held = first.read_bytes()
            for i in range(1, FILES):
                shard = Path(folder) / f"rows_{i // 2000}"
                shard.mkdir(exist_ok=True)
                (shard / name.split()[0].format(i)).write_bytes(held)
            times = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                dump = open_dump(folder)
                times.append(time.perf_counter() - start)
                assert len(dump) == FILES
        found[name] = statistics.median(times)
    return found


if __name__ == "__main__":
    main()
