"""The cache of results, in ratios of one run: reports without it, with an empty one and with a full one; the key; a dump of many files.

    python benchmarks/cache.py [--case data/example] [--only 02,04,08] [--files 100000]

Prints wall and CPU seconds (of all kernels), and each row's share of the first. No gate: a busy machine may double any number.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import tempfile
import time
from pathlib import Path

from eaglelab.cache import PLACE
from eaglelab.cache.inputs import Inputs
from eaglelab.cache.key import inputs_of, key_of
from eaglelab.cli import main
from eaglelab.investigation import Investigation


def report(case: str, only: str | None, cache: str, out: str) -> tuple[float, float]:
    """(wall, CPU) seconds of one report, its kernels' included."""
    os.environ[PLACE] = cache
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(["report", case, "--out", out, *(["--only", only] if only else [])])
    assert code == 0, code
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def reports(case: str, only: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = f"{folder}/cache"
        rows = [(name, *report(case, only, where, folder)) for name, where in (("off", "off"), ("empty", cache), ("full", cache))]
    print(f"\nreport {case}" + (f" --only {only}" if only else ""))
    print(f"{'cache':<8}{'wall s':>8}{'CPU s':>8}{'wall':>8}{'CPU':>8}")
    for name, wall, cpu in rows:
        print(f"{name:<8}{wall:8.1f}{cpu:8.1f}{wall / rows[0][1]:8.2f}{cpu / rows[0][2]:8.2f}")


def keys(case: str) -> None:
    """The first key of a process, without its imports; one more; whether anything changed. CPU milliseconds."""
    inv = Investigation(case)
    inputs, told = [], []
    for take in (lambda: key_of(inv, inputs_of(inv.case)), lambda: inputs.append(inputs_of(inv.case)), lambda: inputs[0].changed()):
        start = time.process_time()
        take()
        told.append(1e3 * (time.process_time() - start))
    print(f"\nkey of {case}: {told[0]:.1f} ms at first, {told[1]:.1f} ms again, {told[2]:.1f} ms to see that nothing changed")


def many_files(count: int) -> None:
    """A dump of sparse files, a terabyte in name."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            path = Path(folder, f"rows_{i // 1000 * 1000}", f"data_{i}.pt")
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                file.truncate(10 * 2**20)
        start = time.perf_counter()
        inputs = Inputs({"dump.path": Path(folder)})
        first = time.perf_counter() - start
        start = time.perf_counter()
        assert not inputs.changed()
        print(
            f"\ndump of {count:,} files: {first:.2f} s for its part of the key, {time.perf_counter() - start:.2f} s to see that nothing changed"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="data/example")
    parser.add_argument("--only", help="notebooks by number (default: all)")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--keys", action="store_true", help="the keys alone")
    options = parser.parse_args()
    keys(options.case)
    many_files(options.files)
    if not options.keys:
        reports(options.case, options.only)
