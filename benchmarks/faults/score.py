"""What the rows of the bench come to: detection, false alarms, and what was called sure and is wrong; published as CSV, as a page, and in the README.

python benchmarks/faults/score.py RUN/cases.csv [MORE/cases.csv] --out docs/faults
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

COLUMN_NAMES = ("calibration", "held out")
OUTCOMES = ("named", "noticed", "cannot tell", "missed", "error")
NOT_PUBLISHED = ("text", "seconds")
"""Columns that hold a machine's own: its folders, its speed."""
BEGIN, END = "<!-- faults: written by benchmarks/faults/score.py -->", "<!-- /faults -->"
Row = dict[str, str]


@dataclass(frozen=True)
class Score:
    """One column of the table. Counts are of injected faults, of healthy cases and of cases."""

    column: str
    single: Counter[str]
    """Outcome -> single faults whose effect is above noise."""
    weak: Counter[str]
    """The same of those whose effect is within it."""
    pairs: Counter[str]
    """Outcome -> faults injected two at a time."""
    healthy: Counter[str]
    wrong_and_sure: int
    cases: int
    kinds: int
    worlds: tuple[str, ...]

    @property
    def told(self) -> int:
        """Single faults above noise that are not `cannot tell`: the rate's denominator."""
        return sum(n for o, n in self.single.items() if o != "cannot tell")

    @property
    def detection(self) -> float | None:
        """Share of these that are named."""
        return self.single["named"] / self.told if self.told else None

    @property
    def false_alarms(self) -> int:
        return self.healthy["false alarm"]


def load(files: Iterable[Path]) -> list[Row]:
    """Rows of one or several runs; of a case that was run twice the last one counts."""
    rows: dict[tuple[str, ...], Row] = {}
    for file in files:
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                rows[tuple(row[k] for k in ("world", "seed", "kinds", "fault", "strength"))] = row
    return list(rows.values())


def is_healthy(row: Row) -> bool:
    return not row["fault"]


def is_pair(row: Row) -> bool:
    return " + " in row["kinds"]


def score(rows: Sequence[Row], column: str) -> Score:
    mine = [r for r in rows if r["column"] == column]
    faults = [r for r in mine if not is_healthy(r)]
    single = [r for r in faults if not is_pair(r)]
    cases = {(r["world"], r["seed"], r["kinds"], r["strength"]): r for r in mine}
    return Score(
        column,
        single=Counter(r["outcome"] for r in single if r["above_noise"] == "1" or r["outcome"] == "error"),
        weak=Counter(r["outcome"] for r in single if r["above_noise"] == "0"),
        pairs=Counter(r["outcome"] for r in faults if is_pair(r)),
        healthy=Counter(r["outcome"] for r in mine if is_healthy(r)),
        wrong_and_sure=sum(r["wrong_and_sure"] == "1" for r in cases.values()),
        cases=len(cases),
        kinds=len({r["fault"] for r in single}),
        worlds=tuple(sorted({f"{r['world']}:{r['seed']}" for r in mine})),
    )


def wilson(part: int, whole: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): honest near 0 and 1, where most of these lie."""
    if not whole:
        return 0.0, 1.0
    p, w = part / whole, z**2 / whole
    middle, half = (p + w / 2) / (1 + w), z / (1 + w) * math.sqrt(p * (1 - p) / whole + w / (4 * whole))
    return max(0.0, middle - half), min(1.0, middle + half)


def share(part: int, whole: int) -> str:
    """`97.1% (101 of 104; 92% to 99%)`."""
    if not whole:
        return "none run"
    low, high = wilson(part, whole)
    return f"{part / whole:.1%} ({part} of {whole}; {low:.0%} to {high:.0%})"


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The short table: a heading, then one line a question; a column each for calibration and held out."""
    scores = [s for c in COLUMN_NAMES if (s := score(rows, c)).cases]
    lines: list[tuple[str, ...]] = [("", *(s.column for s in scores))]

    def line(title: str, *cells: str) -> None:
        lines.append((title, *cells))

    line("worlds", *(", ".join(s.worlds) for s in scores))
    line("kinds of fault, cases", *(f"{s.kinds}, {s.cases}" for s in scores))
    line("single faults with an effect above noise: named", *(share(s.single["named"], s.told) for s in scores))
    line(
        "noticed under another name, missed, broken", *(", ".join(str(s.single[o]) for o in ("noticed", "missed", "error")) for s in scores)
    )
    line("said to be untellable from the inputs (not in the rate)", *(str(s.single["cannot tell"]) for s in scores))
    line("effect within noise: named, of", *(f"{s.weak['named']} of {s.weak.total()}" for s in scores))
    line("faults in pairs: named", *(share(s.pairs["named"], s.pairs.total()) for s in scores))
    line("false alarms on healthy cases", *(f"{s.false_alarms} of {s.healthy.total()}" for s in scores))
    line("wrong, and called sure", *(f"{s.wrong_and_sure} of {s.cases} cases" for s in scores))
    return lines


def markdown(rows: Sequence[Row]) -> str:
    head, *lines = table(rows)
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *(f"| {' | '.join(line)} |" for line in lines)])


def families(row: Row) -> list[str]:
    """What the verdict names: the family of the finding that leads each of its faults (`wiring`, `drafter`, `replay`, …); `nothing` for none."""
    leads = [said.split(": ", 1)[1].split(" ")[0] for said in row["faults"].split("; ") if ": " in said]
    return list(dict.fromkeys(i.split(".")[0] for i in leads)) or ["nothing"]


def confusion(rows: Sequence[Row]) -> tuple[list[str], list[tuple[str, str, Counter[str], int]]]:
    """(families, one (class, kind, family -> cases, cases) an injected kind). Single faults; the healthy cases come first."""
    counted: dict[tuple[str, str], tuple[Counter[str], list[int]]] = {}
    for row in rows:
        if is_pair(row):
            continue
        counts, n = counted.setdefault((row["cls"], row["fault"] or "healthy"), (Counter(), []))
        counts.update(families(row))
        n.append(1)
    names = sorted({f for counts, _ in counted.values() for f in counts} - {"nothing"})
    return [*names, "nothing"], [(cls, kind, counts, len(n)) for (cls, kind), (counts, n) in sorted(counted.items())]


def publish(rows: Sequence[Row], out: Path, frozen: str = "", readme: Path | None = None, note: str = "") -> None:
    """Write cases.csv, confusion.csv, about.json and index.html into `out`, and the README's block."""
    from faults.page import page

    out.mkdir(parents=True, exist_ok=True)
    kept = [k for k in rows[0] if k not in NOT_PUBLISHED]
    with (out / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, kept, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    names, lines = confusion(rows)
    with (out / "confusion.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["class", "injected", "cases", *names])
        writer.writerows([cls, kind, n, *(counts[f] for f in names)] for cls, kind, counts, n in lines)
    about = {"frozen": frozen, "note": note, "commits": sorted({r["commit"] for r in rows if r["commit"]})}
    (out / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    (out / "index.html").write_text(page(rows, about), encoding="utf-8")
    if readme is not None:
        readme.write_text(with_block(readme.read_text(encoding="utf-8"), markdown(rows)), encoding="utf-8")


def with_block(text: str, block: str) -> str:
    """The README with the block between its marks replaced. Raises ValueError where it has no marks."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the README has no block between {BEGIN!r} and {END!r}: write the two marks where the table belongs")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="cases.csv of one run or several")
    parser.add_argument("--out", type=Path, help="publish there; without it the table is printed alone")
    parser.add_argument("--frozen", default="", help="commit at which rules and thresholds were frozen")
    parser.add_argument("--note", default="", help="what was changed after that, and which rows were run again")
    parser.add_argument("--readme", type=Path, help="rewrite its block, too")
    given = parser.parse_args(arguments)
    rows = load(given.runs)
    if not rows:
        parser.error(f"no rows in {', '.join(map(str, given.runs))}")
    if given.out is not None:
        publish(rows, given.out, given.frozen, given.readme, given.note)
    print(markdown(rows))
    for row in rows:
        bad = row["outcome"] in ("noticed", "missed", "error", "false alarm") or row["wrong_and_sure"] == "1"
        if bad and not is_pair(row):
            print(f"{row['world']}:{row['seed']} {row['fault'] or row['kinds']} {row['strength']}: {row['outcome']}, {row['stage']} ({row['confidence']}), "
                  f"effect {row['effect'] or '-'}: {row['fails']}")  # fmt: skip


if __name__ == "__main__":
    main()
