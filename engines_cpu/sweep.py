"""vLLM with the right wiring, swept over chains of 0 to 3 steps at batch 1 and 4: the example's table of measured runs.

    .venv/bin/python engines_cpu/sweep.py           # about 15 minutes on two idle cores; goes on where it was interrupted
    .venv/bin/python engines_cpu/sweep.py --write   # measures nothing: writes data/example/engine/vllm-sweep.csv from what was measured

Every raw result lies in .live/sweep. A time on a busy machine is no measurement: leave it alone meanwhile.
"""

from __future__ import annotations

import csv
import os
import sys

from runs import EXAMPLE, LIVE, RECORDED, ROOT, RUNS

from eaglelab.cli import main as eaglelab
from eaglelab.timing.measured import read_measured

OUT = LIVE / "sweep"
TABLE = RECORDED / "vllm-sweep.csv"
OPTIONS = ["--settings", "off,1,2,3", "--batch", "1,4", "--repeats", "2", "--max-samples", "6", "--max-new-tokens", "64"]


def main() -> int:
    os.chdir(ROOT)  # the launch line's paths are relative to the repository
    if sys.argv[1:] != ["--write"]:
        launch = LIVE / "sweep-launch.txt"
        launch.parent.mkdir(exist_ok=True)
        launch.write_text(RUNS["vllm-right"].command(8000).rsplit(" --host", 1)[0] + "\n")
        code = eaglelab(["sweep", str(EXAMPLE), "--launch", str(launch), *OPTIONS, "--out", str(OUT)])
        if code:
            return code
    rows = sorted(read_measured(OUT).rows, key=lambda m: (m.batch, m.setting))
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("batch", "steps", "topk", "draft_tokens", "tok_s", "accept_length"))
        for m in rows:
            s = m.setting
            length = "" if m.accept_length is None or s.off else f"{m.accept_length:.4f}"
            writer.writerow((m.batch, s.steps, *(("", "") if s.off else (s.topk, s.draft_tokens)), f"{m.tok_s:.3f}", length))
    print(f"{TABLE.relative_to(ROOT)}: {len(rows)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
