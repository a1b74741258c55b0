"""How fast is the fingerprint? Against the obvious way, and against one bare pass over the same bytes, in one run.

    python benchmarks/fingerprint.py

One synthetic sample (1281 tokens x 4 slots x 7168, bf16, 73 MB) is written to a temporary folder and read from the page cache. Timed,
in turn, so that a busy machine slows all of them alike:

- fingerprint: open the sample (memory-mapped) and fingerprint it: norms, cosines, first values, massive tokens
- obvious: `torch.load` and `.float().norm(dim=-1)` per slot, which gives the norms only
- bare pass: one sum over the same bytes as 64-bit integers, already in memory, on one thread like the fingerprint
- health: the file checks of the same sample

A small table, then one line of JSON. Aim: obvious / fingerprint of 4 or more.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from eaglelab.dumps import open_dump
from eaglelab.dumps.health import check_health
from eaglelab.dumps.rows import one_thread
from eaglelab.fingerprint import fingerprint

TOKENS, SLOTS, HIDDEN = 1281, 4, 7168
REPEATS, SECONDS = 15, 6.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_sample(Path(folder))
        dump = open_dump(path)
        states = torch.load(path, weights_only=True)["hidden_states"]  # S x [T, H]
        times = measure(
            {
                "fingerprint": lambda: fingerprint(dump.samples()),
                "obvious": lambda: [s.float().norm(dim=-1) for s in torch.load(path, weights_only=True)["hidden_states"]],
                "bare pass": lambda: bare_pass(states),
                "health": lambda: check_health(dump),
            }
        )
        check_equal(dump, states)
    report(times)


def write_sample(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16() for _ in range(SLOTS)]  # S x [T, H]
    path = folder / "data_0.pt"
    torch.save({"input_ids": torch.arange(TOKENS), "hidden_states": states, "loss_mask": torch.ones(TOKENS)}, path)
    return path


@one_thread()
def bare_pass(states: list[torch.Tensor]) -> list[torch.Tensor]:
    return [s.view(torch.int64).sum() for s in states]


def measure(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each way, taken in turn after one warm-up round, until `REPEATS` rounds or `SECONDS` are over."""
    for run in ways.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + SECONDS
    while len(times["obvious"]) < REPEATS and (time.perf_counter() < end or len(times["obvious"]) < 3):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def check_equal(dump, states) -> None:
    """The quick way and the obvious way give the same norms."""
    quick = torch.from_numpy(fingerprint(dump.samples()).samples[0].norms)  # [T, S]
    obvious = torch.stack([s.float().norm(dim=-1) for s in states], dim=1)  # [T, S]
    torch.testing.assert_close(quick, obvious, rtol=1e-5, atol=0)


def report(times: dict[str, list[float]]) -> None:
    size = TOKENS * SLOTS * HIDDEN * 2
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{TOKENS} x {SLOTS} x {HIDDEN} bf16, {size / 1e6:.1f} MB, {torch.get_num_threads()} threads, CPU")
    print(f"{'':12}{'median ms':>10}{'min':>8}{'max':>8}{'GB/s':>8}")
    for name, values in times.items():
        speed = size / median[name] / 1e9
        print(f"{name:12}{median[name] * 1e3:10.1f}{min(values) * 1e3:8.1f}{max(values) * 1e3:8.1f}{speed:8.1f}")
    result = {
        "benchmark": "fingerprint",
        "obvious_over_fingerprint": round(median["obvious"] / median["fingerprint"], 2),
        "fingerprint_over_bare_pass": round(median["fingerprint"] / median["bare pass"], 2),
        "health_over_bare_pass": round(median["health"] / median["bare pass"], 2),
        "ms": {name: round(value * 1e3, 2) for name, value in median.items()},
        "repeats": len(times["obvious"]),
        "threads": torch.get_num_threads(),
        "mb": round(size / 1e6, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
