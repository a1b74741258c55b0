"""Healthy cases and faults put into them, one by one and in pairs, looked at by eaglelab: one row of a CSV a fault.

    python benchmarks/faults/run.py --out .cache/faults/run                     # everything; goes on where it was stopped
    python benchmarks/faults/run.py --worlds llama:0 --kinds "slots swapped" --limit 4 --show

Calibration worlds are those on which rules and thresholds may be looked at; held-out ones differ in architecture, seeds and strengths, and are
run once the rules are frozen (`--frozen COMMIT` writes that down beside the rows).
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import torch  # noqa: E402

from faults.bench import CALIBRATION, COLUMNS, HELD_OUT, Bench, Job, jobs  # noqa: E402
from faults.kinds import KINDS  # noqa: E402


def git_commit() -> str:
    said = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain", "eaglelab"], capture_output=True, text=True).stdout
    return said + ("+" if changed.strip() else "")


def done_in(file: Path) -> set[tuple[str, str, str, str]]:
    if not file.exists():
        return set()
    with file.open(newline="", encoding="utf-8") as lines:
        return {(r["world"], r["seed"], r["kinds"], r["strength"]) for r in csv.DictReader(lines)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="", help="names of kinds, with commas between them (default: all)")
    parser.add_argument("--worlds", default="", help="as llama:0,gemma:1 (default: the calibration worlds; `held-out`: those)")
    parser.add_argument("--strengths", default="", help="in place of the worlds' own, as 0.3,1")
    parser.add_argument("--pairs", type=int, default=0, help="pairs of faults a world")
    parser.add_argument("--limit", type=int, help="at most so many injections a world")
    parser.add_argument("--no-healthy", action="store_true", help="leave the healthy cases out")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache" / "faults" / "run")
    parser.add_argument("--keep", type=Path, help="leave the cases' folders there")
    parser.add_argument("--frozen", default="", help="the commit at which rules and thresholds were frozen, written beside the rows")
    parser.add_argument("--show", action="store_true", help="print each row's verdict")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    wanted = [n.strip() for n in given.kinds.split(",") if n.strip()]
    if unknown := set(wanted) - {k.name for k in KINDS}:
        parser.error(f"no kinds {sorted(unknown)}; known: {', '.join(k.name for k in KINDS)}")
    kinds = [k for k in KINDS if not wanted or k.name in wanted]
    listed = CALIBRATION if not given.worlds else HELD_OUT if given.worlds == "held-out" else dict.fromkeys(given.worlds.split(","))
    given.out.mkdir(parents=True, exist_ok=True)
    file, commit = given.out / "cases.csv", git_commit()
    about = {"commit": commit, "frozen": given.frozen}
    if given.frozen:
        (given.out / "frozen.json").write_text(json.dumps(about) + "\n")
    done = done_in(file)
    with file.open("a", newline="", encoding="utf-8") as lines:
        table = csv.DictWriter(lines, COLUMNS)
        if not done:
            table.writeheader()
        for spec, own in listed.items():
            strengths = (
                [float(s) for s in given.strengths.split(",")] if given.strengths else own or {**CALIBRATION, **HELD_OUT}.get(spec, (1.0,))
            )
            asked = [j for j in islice(jobs(spec, strengths, kinds, given.pairs), given.limit) if j.key not in done]
            sound = not given.no_healthy and not any(
                k[0] == spec.split(":")[0] and k[1] == spec.split(":")[1] and "healthy" in k[2] for k in done
            )
            if not asked and not sound:
                continue
            bench = Bench(spec.split(":")[0], int(spec.split(":")[1]), commit, given.keep)
            for rows in (bench.healthy() if sound else (), *(_guarded(bench, job) for job in asked)):
                for row in rows:
                    table.writerow(row)
                    lines.flush()
                    _say(row, given.show)


def _guarded(bench: Bench, job: Job) -> Iterator[dict[str, Any]]:
    """A fault that cannot be put in, or a case that cannot be looked at, is a row too."""
    try:
        yield from bench.faulted(job)
    except Exception as error:
        world, seed, kinds, strength = job.key
        row = dict.fromkeys(COLUMNS, "") | {"world": world, "seed": seed, "column": bench.column, "kinds": kinds, "strength": strength}
        said = f"{type(error).__name__}: {error}"
        for kind in job.kinds:
            yield row | {
                "fault": kind.name,
                "cls": kind.cls,
                "outcome": "error",
                "wrong_and_sure": 0,
                "commit": bench.commit,
                "text": said[:300],
            }


def _say(row: dict[str, Any], wide: bool) -> None:
    what = row["fault"] or row["kinds"]
    print(
        f"{row['world']}:{row['seed']}  {row['outcome']:<12}{'WRONG AND SURE  ' * int(row['wrong_and_sure'])} {what} {row['strength']}  "
        f"effect {row['effect'] or '-'}  {row['stage']} ({row['confidence']})  {row['fails']}  {row['broke'] and 'BROKE ' + row['broke']} {row['seconds']} s",
        flush=True,
    )
    if wide or row["outcome"] == "error":
        print(f"    {row['text']}", flush=True)


if __name__ == "__main__":
    main()
