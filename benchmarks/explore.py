"""How soon does an explorer answer? Milliseconds from a control's change to the new view, for every value worth trying of every control.

    python benchmarks/explore.py [CASE]

One thread; the case (data/example by default) is measured before, as a notebook's cells do it. Wall-clock time is what a person waits
for; processor time beside it is the same on a busy machine. A table, then one line of JSON. Aim: below 200 ms each.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from eaglelab.explore import Explorer, Live
from eaglelab.explore.cost_playground import CostPlayground
from eaglelab.explore.dump_browser import DumpBrowser
from eaglelab.explore.heatmap import SlotBoundaryHeatmap
from eaglelab.explore.norms import NormFingerprint
from eaglelab.explore.token_strip import TokenStrip
from eaglelab.explore.wiring_playground import WiringPlayground
from eaglelab.investigation import Investigation

EXPLORERS: list[tuple[Callable[[Investigation], Explorer], str]] = [
    (DumpBrowser, "samples"),
    (NormFingerprint, "fingerprint"),
    (SlotBoundaryHeatmap, "identification"),
    (TokenStrip, "own_replay"),
    (WiringPlayground, "replays"),
    (CostPlayground, "timing"),
]
"""Each explorer with the measurement of `Investigation` that it shows."""
TYPED = {"ids": ["-1, 2, 15", "[2 15 27]", "-1, 2, 27", "1, 2, 3", ""], "tok_s": [50.0, 94.0], "at": [1.5], "baseline": [8.0, 88.8]}
"""What is typed into fields, by the control's name."""
LIMIT = 0.2
"""Seconds."""
REPEATS = 3


def main() -> None:
    torch.set_num_threads(1)
    case = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "data" / "example" / "case.toml"
    inv = Investigation(str(case))
    rows = []
    for make, measured in EXPLORERS:
        getattr(inv, measured)
        live = Live(make(inv), strict=True)
        rows += [{"explorer": type(live.explorer).__name__, **row} for row in measure(live)]
    report(rows)


def measure(live: Live) -> Iterator[dict[str, Any]]:
    """One row a control or button: its changes, timed `REPEATS` times after one that warms caches up."""
    live.strict = False  # what cannot be, and that the last span has no next one, is said in a sentence
    for name, control in live.controls.items():
        change, values = partial(setattr, control, "value"), TYPED.get(name) or worth_trying(control)
        rounds = [*values, control.value] if values else []
        times = [timed(partial(change, value)) for _ in range(REPEATS + 1) for value in rounds]
        yield {"control": name, "times": times[len(rounds) :]}
    for label, button in live.buttons.items():
        yield {"control": label, "times": [timed(button.click) for _ in range(REPEATS + 1)][1:]}


def worth_trying(control: Any) -> list[Any]:
    """A few other values that a control can have: options, the other side of a switch, the ends of a range."""
    if hasattr(control, "options"):
        values = [o[1] if isinstance(o, tuple) else o for o in control.options]
        return [v for v in (values[:2] + values[-2:]) if v != control.value]
    if isinstance(control.value, bool):
        return [] if control.disabled else [not control.value]
    if hasattr(control, "max"):
        return [v for v in dict.fromkeys((control.min, min(control.max, control.value + 1), control.max)) if v != control.value]
    return []


def timed(change: Callable[[], None]) -> tuple[float, float]:
    """(seconds on the wall, seconds of the processor)."""
    wall, cpu = time.perf_counter(), time.process_time()
    change()
    return time.perf_counter() - wall, time.process_time() - cpu


def report(rows: list[dict[str, Any]]) -> None:
    print(f"{'ms to answer':22}{'control':28}{'n':>4}{'median':>9}{'worst':>9}{'cpu median':>12}{'cpu worst':>11}")
    worst: dict[str, float] = {}
    for row in (r for r in rows if r["times"]):
        wall, cpu = ([1e3 * t[i] for t in row["times"]] for i in (0, 1))
        median, middle = statistics.median(wall), statistics.median(cpu)
        over = "  over the limit" if median > 1e3 * LIMIT else ""
        print(f"{row['explorer']:22}{row['control']:28}{len(wall):4}{median:9.0f}{max(wall):9.0f}{middle:12.0f}{max(cpu):11.0f}{over}")
        worst[row["explorer"]] = max(worst.get(row["explorer"], 0.0), max(wall))
    threads = torch.get_num_threads()
    print(
        json.dumps(
            {"limit_ms": 1e3 * LIMIT, "worst_ms": {k: round(v) for k, v in worst.items()}, "load": os.getloadavg()[0], "threads": threads}
        )
    )


if __name__ == "__main__":
    main()
