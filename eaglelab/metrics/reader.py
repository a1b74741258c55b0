"""Metrics out of a training log, as trainers print them: text with anything around it, JSON, JSON lines, or a table with commas.

Lines that were looked at (project, file): SpecForge training/assembly.py `_logger` (`step 50: {'acc_0': …}`) and scripts/train_eagle3.py
(`Train Epoch [1/10], position 0,  Acc: …`, progress bars); EAGLE eagle/traineagle3/main.py (the same, and `Test Epoch`); speculators
train/logger.py `FormatDictFilter` (`train/full_acc_0=0.512, …, global_step=12`, wrapped by rich); AngelSlim eagle3_trainer.py through
transformers' trainer (`{'train/acc_0': 0.512, …, 'epoch': 0.03}`, numbers in quotes since transformers 5); ModelOpt eagle_utils.py
(`Step 100 Training Acc: [0.5123, 0.3012]`, `Step 100 Estimated Training AR: …`, `Step 100 AR: …`); vLLM v1/spec_decode/metrics.py
(`SpecDecoding metrics: …`); SGLang's decode lines (`accept len: 2.17, accept rate: 0.54`); tables as wandb exports them.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eaglelab.metrics.definitions import OTHER_NAMES, define, definitions
from eaglelab.metrics.reported import Reported, Row
from eaglelab.outside_json import too_deep

RECENT = 50
"""Values at the end of a log whose mean is kept beside the last one: a training step's own is one batch's."""
LONGEST = 2**16
"""Bytes of a line that are looked at, and of a record that a console has wrapped over several lines."""
LARGEST_JSON = 2**28
MOST_UNKNOWN, LONGEST_NAME = 100, 200

NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,4})?"
NAME = r"""(?<![\w/.\-])["']?([A-Za-z_][\w/.\-]*)["']?\s{0,4}[:=]\s{0,4}"""
PAIR = re.compile(rf"""{NAME}["']?({NUMBER}|nan|NaN|-?inf|-?Infinity)(?![\w:/\-.])(%?)""")
LIST = re.compile(rf"""{NAME}\[({NUMBER}(?:,\s{{0,4}}{NUMBER})*)\]""")
POSITION = re.compile(rf"(Train|Test|Eval) Epoch \[(\d+)/\d+\], position (\d+),\s*(Acc|pLoss): ({NUMBER})", re.IGNORECASE)
MODELOPT = re.compile(rf"Step (\d+) (Training Acc|Estimated Training AR|AR): \[?({NUMBER}(?:,\s*{NUMBER})*)")
VLLM = re.compile(rf"(Mean acceptance length|Draft acceptance rate|Per-position acceptance rate): ({NUMBER}(?:, {NUMBER})*)(%?)")
SGLANG = re.compile(rf"accept (len|rate): ({NUMBER})")
MODELOPT_NAMES = {"Training Acc": "train_acc", "Estimated Training AR": "estimated_training_ar", "AR": "validate_ar"}

ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
WORTH = re.compile(rb"acc|loss|_ar|AR:", re.IGNORECASE)
STEP = re.compile(r"""\b_?(global_step|step|epoch)["']?[ :=]{1,3}["']?(\d{1,12}(?:\.\d{1,12})?)""", re.IGNORECASE)
SPLIT = re.compile(r"(train|eval|val|valid|validation|test)[/_.](?=.)")
SPLITS = {"train": "train"}
SPEAKS = re.compile(r"acc(?!elerat|um|ess|ount)|loss|tau|(?<![a-z])(?:eal|ar)(?![a-z])", re.IGNORECASE)
"""Names that speak of accuracy, acceptance, accept length or loss: those that are listed where nobody knows them."""


class MetricsError(ValueError):
    """A log that cannot be read; the message says which and why."""


class Printed(NamedTuple):
    """One number as it was printed."""

    name: str
    value: float
    decimals: int | None
    at: str


def read_metrics(path: str | Path, framework: str | None = None, version: str | None = None) -> Reported:
    """All metrics of a log, the last value of each name, step and split, by what `framework` at `version` means with the name.

    framework: specforge, eagle, angelslim, speculators, modelopt, vllm or sglang; None looks a name up in all of them. The file is streamed and
    may be larger than memory. Raises MetricsError for a file that cannot be read, or a framework that is not in the table.
    """
    path = Path(path)
    known = sorted({d.source for d in definitions()})
    if framework is not None and OTHER_NAMES.get(framework, framework) not in known:
        raise MetricsError(
            f"no metrics of {framework!r} are known here, only those of {', '.join(known)}; leave `[training] framework` out to try them all"
        )
    if not path.is_file():
        raise MetricsError(
            f"{path.name}: expected the log of a training run (text, .json, .jsonl or .csv), got {'a folder' if path.is_dir() else 'nothing there'}"
        )
    collected = _Collected(framework, version)
    try:
        for printed in _printed(path):
            collected.take(printed)
    except (OSError, csv.Error) as error:
        raise MetricsError(f"{path.name} cannot be read: {error}") from None
    return collected.reported(path)


class _Collected:
    """The last value of each metric, and what else was printed."""

    def __init__(self, framework: str | None, version: str | None) -> None:
        self.framework, self.version = framework, version
        self.rows: dict[tuple, dict[str, Any]] = {}
        self.recent: dict[tuple, deque[float]] = {}
        self.unknown: dict[str, int] = {}
        self.not_finite: dict[str, int] = {}

    def take(self, printed: Printed) -> None:
        printed = printed._replace(name=printed.name[:LONGEST_NAME])
        found, step, split = self._look_up(printed.name)
        if not found:
            if SPEAKS.search(printed.name) and (printed.name in self.unknown or len(self.unknown) < MOST_UNKNOWN):
                self.unknown[printed.name] = self.unknown.get(printed.name, 0) + 1
            return
        if not math.isfinite(printed.value):
            self.not_finite[printed.name] = self.not_finite.get(printed.name, 0) + 1
            return
        key = (printed.name, split)
        row = self.rows.setdefault(key, {"seen": 0})
        row |= {"name": printed.name, "step": step, "split": split, "definitions": found, "value": printed.value}
        row |= {"at": printed.at, "seen": row["seen"] + 1, "decimals": printed.decimals}
        self.recent.setdefault(key, deque(maxlen=RECENT)).append(printed.value)

    def _look_up(self, name: str) -> tuple[tuple, int, str | None]:
        """What a name can stand for, its step, its split. A prefix that is part of the name (`train_acc`) stays."""
        prefix = SPLIT.match(name)
        split = None if prefix is None else SPLITS.get(prefix[1], "eval")
        found, step = define(name, self.framework, self.version)
        if not found and prefix is not None:
            found, step = define(name[prefix.end() :], self.framework, self.version)
        if split is None and len({d.split for d in found}) == 1:
            split = found[0].split
        return found, step, split

    def reported(self, path: Path) -> Reported:
        rows = [Row(**row, recent=sum(self.recent[key]) / len(self.recent[key])) for key, row in self.rows.items()]
        rows.sort(key=lambda r: (r.split or "", r.definitions[0].kind, r.name.rstrip("0123456789"), r.step))
        return Reported(path.name, self.framework, self.version, tuple(rows), tuple(sorted(self.unknown)), dict(self.not_finite))


# -- numbers out of files ----------------------------------------------------------------------------------------------------------------------


def _printed(path: Path) -> Iterator[Printed]:
    if path.suffix == ".csv":
        yield from _table(path)
        return
    if path.suffix == ".json" and path.stat().st_size <= LARGEST_JSON:
        content = _parsed(path.read_bytes())
        if content is not None:
            yield from _objects(content)
            return
    for line in _records(path):
        content = _parsed(line) if line.lstrip()[:1] == b"{" else None
        if content is not None:
            yield from _objects(content)
        else:
            yield from _in_text(line.decode("utf-8", "replace"))


def _parsed(text: bytes) -> Any:
    """JSON, or None for what is not, or is nested too deep to be anyone's metrics."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if too_deep(content) else content


def _objects(content: Any, prefix: str = "", at: str = "") -> Iterator[Printed]:
    """Numbers of nested objects, their keys joined by a slash; a list of objects is a history, a list of numbers one value a step."""
    if isinstance(content, list):
        for item in content:
            yield from _objects(item, prefix)
        return
    if not isinstance(content, dict):
        return
    at = _place({k.lstrip("_"): v for k, v in content.items() if _is_number(v)}) or at
    for key, value in content.items():
        name = f"{prefix}{key}"
        if _is_number(value):
            yield Printed(name, float(value), None, at)
        elif isinstance(value, list) and value and all(_is_number(v) for v in value):
            yield from (Printed(f"{name}_{k}", float(v), None, at) for k, v in enumerate(value))
        elif isinstance(value, (dict, list)):
            yield from _objects(value, "" if isinstance(value, list) else f"{name}/", at)


def _place(numbers: dict[str, Any]) -> str:
    """`step 500` or `epoch 3`: where in the training something was printed."""
    for name in ("global_step", "step", "epoch"):
        if name in numbers:
            return f"{name.removeprefix('global_')} {numbers[name]}"
    return ""


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float)


def _table(path: Path) -> Iterator[Printed]:
    """A table with a row a step. wandb heads its columns `run - name`, with `name__MIN` and `name__MAX` beside each."""
    reader = csv.reader(line.decode("utf-8-sig", "replace").replace("\0", "") for line in _lines(path))
    heads = [h.rsplit(" - ", 1)[-1].strip() for h in next(reader, [])]
    steps = [i for i, h in enumerate(heads) if h.lower() in ("step", "_step", "global_step", "epoch")]
    for cells in reader:
        at = _place({heads[i].lower().lstrip("_"): cells[i] for i in steps if i < len(cells) and cells[i]})
        for i, (head, cell) in enumerate(zip(heads, cells, strict=False)):
            if i not in steps and not head.endswith(("__MIN", "__MAX")) and re.fullmatch(f"{NUMBER}|nan|NaN", cell.strip()):
                yield Printed(head, float(cell), None, at)


def _records(path: Path) -> Iterator[bytes]:
    """Lines worth a look, without colours; a record that a console wrapped (its next lines are indented) in one. Progress bars end in \\r."""
    record = b""
    for line in _lines(path):
        if b"\x1b" in line:
            line = ANSI.sub(b"", line)
        if record and line[:8].isspace() and len(record) < LONGEST:
            record += b" " + line.strip()
            continue
        if WORTH.search(record):
            yield record
        record = line
    if WORTH.search(record):
        yield record


def _lines(path: Path) -> Iterator[bytes]:
    """Lines by \\n or \\r, no more than their first LONGEST bytes, of a file of any size."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(2**20):
            *whole, tail = re.split(rb"[\r\n]+", rest[:LONGEST] + block)
            yield from (line[:LONGEST] for line in whole)
            rest = tail
    yield rest[:LONGEST]


def _in_text(line: str) -> Iterator[Printed]:
    """Numbers of one line of a log."""
    if "position" in line and (match := POSITION.search(line)):
        split, name = match[1].lower(), {"acc": "acc", "ploss": "ploss"}[match[4].lower()]
        yield _number(f"{split}/epoch_{name}_{match[3]}", match[5], f"epoch {match[2]}")
        return
    if "Step " in line and (match := MODELOPT.search(line)):
        name, values = MODELOPT_NAMES[match[2]], re.findall(NUMBER, match[3])
        several = name == "train_acc"
        yield from (_number(f"{name}_{k}" if several else name, v, f"step {match[1]}") for k, v in enumerate(values))
        return
    if "SpecDecoding metrics:" in line:
        for match in VLLM.finditer(line):
            yield from _vllm(match)
        return
    at = _place({name.lower(): number for name, number in STEP.findall(line)})
    if "accept len" in line or "accept rate" in line:
        yield from (_number(f"accept_{match[1]}", match[2], at) for match in SGLANG.finditer(line))
        return
    for match in LIST.finditer(line):
        yield from (_number(f"{match[1]}_{k}", v, at) for k, v in enumerate(re.findall(NUMBER, match[2])))
    for match in PAIR.finditer(line):
        yield _number(match[1], match[2], at, percent=bool(match[3]))


def _vllm(match: re.Match[str]) -> Iterator[Printed]:
    values = re.findall(NUMBER, match[2])
    name = match[1].lower().replace("-", "_").replace(" ", "_")
    for k, value in enumerate(values):
        yield _number(f"{name}_{k}" if name.startswith("per") else name, value, "", percent=bool(match[3]))


def _number(name: str, text: str, at: str, percent: bool = False) -> Printed:
    """A printed number with the decimals that it was rounded to."""
    decimals = len(text.partition(".")[2]) if re.fullmatch(r"-?\d*\.\d+", text) else None
    value = float(text.replace("Infinity", "inf"))
    return Printed(name, value / 100 if percent else value, decimals + 2 if percent and decimals is not None else decimals, at)
