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

from eaglelab.metrics.definitions import OTHER_NAMES, RATES, define, definitions
from eaglelab.metrics.reported import Reported, Row
from eaglelab.outside_json import MAX_DEPTH, too_deep

RECENT = 50
"""Values at the end of a log whose mean is kept beside the last one: a training step's own is one batch's."""
LONGEST = 2**16
"""Bytes of a line that are looked at, and of a record that a console has wrapped over several lines."""
LARGEST_JSON = 2**28
MOST_UNKNOWN, LONGEST_NAME, MOST_NAMES = 100, 200, 10_000
MOST_RANKS = 4096
MOST_EVALUATIONS = 100_000

NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,4})?"
NAME = r"""(?<![\w/.\-])["']?([A-Za-z_][\w/.\-]*)["']?\s{0,4}[:=]\s{0,4}"""
PAIR = re.compile(rf"""{NAME}["']?({NUMBER}|nan|NaN|-?inf|-?Infinity)(?![\w:/\-.])(\s?%)?""")
LIST = re.compile(rf"""{NAME}\[({NUMBER}(?:,\s{{0,4}}{NUMBER})*)\]""")
POSITION = re.compile(rf"(Train|Test|Eval) Epoch \[(\d+)/\d+\], position (\d+),\s*(Acc|pLoss): ({NUMBER})\s?(%?)", re.IGNORECASE)
MODELOPT = re.compile(rf"Step (\d+) (Training Acc|Estimated Training AR|AR): \[?({NUMBER}(?:,\s*{NUMBER})*)\]?\s?(%?)")
VLLM = re.compile(rf"(Mean acceptance length|Draft acceptance rate|Per-position acceptance rate): ({NUMBER}(?:, {NUMBER})*)(%?)")
SGLANG = re.compile(rf"accept (len|rate): ({NUMBER})(%?)")
WRAPPED = re.compile(rf"\b(?:tensor|float\d{{2}})\(\[?({NUMBER}|nan|-?inf)\]?(?:,[^()]{{0,80}})?\)")
"""`tensor(0.51, device='cuda:0')`, `np.float64(0.5)`: how torch and numpy print a number that nobody turned into one."""
MODULE = re.compile(r"\b(?:torch|numpy|np)\.(?=tensor\(|float\d)")
RANK = re.compile(rb"(?i)(?<![a-z0-9_])(?:global[_ ]|local[_ ])?rank[\"']?[ :=]{0,3}(\d{1,5})(?![\w.])|(?<![\w])DP(\d{1,5})(?![\w.])")
"""The process that printed a line: torchrun's `[rank3]:`, a logger's `rank=3`, SGLang's `DP3`."""
CUT = re.compile(rb"[-+]?\d*\.$")
"""A number that a log ends in the middle of."""
MODELOPT_NAMES = {"Training Acc": "train_acc", "Estimated Training AR": "estimated_training_ar", "AR": "validate_ar"}

ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
WORTH = re.compile(rb"acc|loss|_ar|ar:|kl_div|tau", re.IGNORECASE)
WORTH_NAME = re.compile(r"acc|loss|ar|kl_div|tau|eal", re.IGNORECASE)
"""Names that a metric can have, or that get listed: the others of a line are not looked up."""
NUMBERS = re.compile(NUMBER)
STEP = re.compile(r"""\b_?(global_step|[sS]tep|[eE]poch|STEP|EPOCH)["']?[ :=]{1,3}["']?(\d{1,12}(?:\.\d{1,12})?)""")
SPLIT = re.compile(r"(train|eval|val|valid|validation|test)[/_.](?=.)")
SPLITS = {"train": "train"}
SPEAKS = re.compile(r"acc(?!elerat|um|ess|ount)|loss|tau|(?<![a-z])(?:eal|ar)(?![a-z])", re.IGNORECASE)
"""Names that speak of accuracy, acceptance, accept length or loss: those that are listed where nobody knows them."""


SHARES = (*RATES, "overlap", "mean_marginal", "accepted_share", "length_share")
"""Kinds that lie between 0 and 1."""


class MetricsError(ValueError):
    """A log that cannot be read; the message says which and why."""


class Printed(NamedTuple):
    """One number as it was printed."""

    name: str
    value: float
    decimals: int | None
    at: str
    rank: str = ""
    """The process that printed it, where the line says so."""


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
        _refuse_other_encodings(path)
        for printed in _printed(path):
            collected.take(printed)
    except (OSError, csv.Error) as error:
        raise MetricsError(f"{path.name} cannot be read: {error}") from None
    return collected.reported(path)


def _refuse_other_encodings(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(4)
    if head[:2] == b"\x1f\x8b":
        raise MetricsError(f"{path.name} is packed with gzip, expected the log itself: unpack it first (`gzip -dc`)")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise MetricsError(
            f"{path.name} is UTF-16 (PowerShell writes it so), expected UTF-8: `iconv -f UTF-16 -t UTF-8 {path.name}` turns it into that"
        )


class _Collected:
    """The last value of each metric, and what else was printed."""

    def __init__(self, framework: str | None, version: str | None) -> None:
        self.framework, self.version = framework, version
        self.names: dict[str, tuple[tuple, int, str | None]] = {}
        self.rows: dict[tuple, dict[str, Any]] = {}
        self.recent: dict[tuple, deque[float]] = {}
        self.ranks: dict[tuple, dict[str, float]] = {}
        self.evaluations: dict[tuple, dict[str, float]] = {}
        self.unknown: dict[str, int] = {}
        self.not_finite: dict[str, int] = {}
        self.no_rate: dict[str, int] = {}

    def take(self, printed: Printed) -> None:
        name, value = printed.name[:LONGEST_NAME], printed.value
        if name not in self.names:
            if len(self.names) >= MOST_NAMES:
                self.names.clear()
            self.names[name] = self._look_up(name)
        found, step, split = self.names[name]
        if not found:
            if SPEAKS.search(name) and (name in self.unknown or len(self.unknown) < MOST_UNKNOWN):
                self.unknown[name] = self.unknown.get(name, 0) + 1
            return
        if not math.isfinite(value):
            self.not_finite[name] = self.not_finite.get(name, 0) + 1
            return
        if not 0 <= value <= 1 and all(d.kind in SHARES for d in found):
            self.no_rate[name] = self.no_rate.get(name, 0) + 1
            return
        key = (name, split)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = {"name": name, "step": step, "split": split, "definitions": found, "seen": 0}
            self.recent[key], self.ranks[key], self.evaluations[key] = deque(maxlen=RECENT), {}, {}
        row["value"], row["at"], row["decimals"] = value, printed.at, printed.decimals
        row["seen"] += 1
        self.recent[key].append(value)
        if printed.at and split not in (None, "train") and len(self.evaluations[key]) < MOST_EVALUATIONS:
            self.evaluations[key][printed.at] = value
        if printed.rank and (printed.rank in self.ranks[key] or len(self.ranks[key]) < MOST_RANKS):
            self.ranks[key][printed.rank] = value

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
        rows = [
            Row(
                **row | _over_ranks(row, self.ranks[key]),
                recent=sum(self.recent[key]) / len(self.recent[key]),
                evaluations=tuple(self.evaluations[key].items()),
            )
            for key, row in self.rows.items()
        ]
        rows.sort(key=lambda r: (r.split or "", r.definitions[0].kind, r.name.rstrip("0123456789"), r.step))
        unknown, not_finite, no_rate = tuple(sorted(self.unknown)), dict(self.not_finite), dict(self.no_rate)
        return Reported(path.name, self.framework, self.version, tuple(rows), unknown, not_finite, no_rate)


def _over_ranks(row: dict[str, Any], last: dict[str, float]) -> dict[str, Any]:
    """Where several ranks printed a metric, the mean of their last values in place of whoever came last."""
    if len(last) < 2:
        return {}
    where = ", ".join(filter(None, (row["at"], f"the mean of {len(last)} ranks")))
    return {"value": sum(last.values()) / len(last), "at": where, "decimals": None}


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
        found = _in_text(line.decode("utf-8", "replace")) if content is None else _objects(content)
        rank = RANK.search(line) if b"ank" in line or b"RANK" in line or b"DP" in line else None
        if rank is None:
            yield from found
        else:
            where = rank[0].decode("ascii").lower()
            yield from (printed._replace(rank=where) for printed in found)


def _parsed(text: bytes) -> Any:
    """JSON, or None for what is not, or is nested too deep to be anyone's metrics."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    nested = text.count(b"{") + text.count(b"[") > MAX_DEPTH and too_deep(content)
    return None if nested else content


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
    first = next(reader, [])
    runs = dict.fromkeys(h.rsplit(" - ", 1)[0] for h in first if " - " in h and not h.endswith(("__MIN", "__MAX")) and "_step" not in h)
    if len(runs) > 1:
        shown = ", ".join(list(runs)[:6]) + (", …" if len(runs) > 6 else "")
        raise MetricsError(f"{path.name} holds {len(runs)} runs ({shown}), expected one: export the run that trained this drafter alone")
    heads = [h.rsplit(" - ", 1)[-1].strip() for h in first]
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
    record = CUT.sub(b"", record)
    if WORTH.search(record):
        yield record


def _lines(path: Path) -> Iterator[bytes]:
    """Lines by \\n or \\r, no more than their first LONGEST bytes, of a file of any size."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(2**20):
            whole = (rest[:LONGEST] + block).splitlines()
            rest = b"" if block[-1:] in b"\r\n" else whole.pop()
            yield from (line[:LONGEST] for line in whole)
    yield rest[:LONGEST]


def _in_text(line: str) -> Iterator[Printed]:
    """Numbers of one line of a log."""
    if "tensor(" in line or "float" in line:
        line = WRAPPED.sub(r"\1", MODULE.sub("", line))
    if "position" in line and (match := POSITION.search(line)):
        split, name = match[1].lower(), {"acc": "acc", "ploss": "ploss"}[match[4].lower()]
        yield _number(f"{split}/epoch_{name}_{match[3]}", match[5], f"epoch {match[2]}", percent=bool(match[6]))
        return
    if "Step " in line and (match := MODELOPT.search(line)):
        name, values = MODELOPT_NAMES[match[2]], NUMBERS.findall(match[3])
        several, percent = name == "train_acc", bool(match[4])
        yield from (_number(f"{name}_{k}" if several else name, v, f"step {match[1]}", percent) for k, v in enumerate(values))
        return
    if "SpecDecoding metrics:" in line:
        for match in VLLM.finditer(line):
            yield from _vllm(match)
        return
    if "accept len" in line or "accept rate" in line:
        yield from (_number(f"accept_{match[1]}", match[2], "", percent=bool(match[3])) for match in SGLANG.finditer(line))
        return
    lists = [match for match in LIST.finditer(line) if WORTH_NAME.search(match[1])] if "[" in line else []
    pairs = [match for match in PAIR.finditer(line) if WORTH_NAME.search(match[1])]
    if not lists and not pairs:
        return
    at = _place({name.lower(): number for name, number in STEP.findall(line)})
    for match in lists:
        yield from (_number(f"{match[1]}_{k}", v, at) for k, v in enumerate(NUMBERS.findall(match[2])))
    yield from (_number(match[1], match[2], at, percent=bool(match[3])) for match in pairs)


def _vllm(match: re.Match[str]) -> Iterator[Printed]:
    values = NUMBERS.findall(match[2])
    name = match[1].lower().replace("-", "_").replace(" ", "_")
    for k, value in enumerate(values):
        yield _number(f"{name}_{k}" if name.startswith("per") else name, value, "", percent=bool(match[3]))


def _number(name: str, text: str, at: str, percent: bool = False) -> Printed:
    """A printed number with the decimals that it was rounded to."""
    fraction = text.partition(".")[2]
    decimals = len(fraction) if fraction.isdecimal() else None
    value = float(text.replace("Infinity", "inf"))
    return Printed(name, value / 100 if percent else value, decimals + 2 if percent and decimals is not None else decimals, at)
