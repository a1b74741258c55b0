"""vLLM's own lines: `SpecDecoding metrics` and throughput of V1, `Speculative metrics` of V0, and the settings that a start prints.

Read in vLLM 0.32 (v1/spec_decode/metrics.py, v1/metrics/loggers.py, v1/engine/core.py, entrypoints/serve/utils/api_utils.py); older lines
as users printed them: V1 of 0.8 (`Draft acceptance rate` first, at first without a length) and V0 of 0.6 to 0.9. All are `key: value` joined
by a comma and a space; the rates of the positions are a list of such pieces without keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from eaglelab.metrics.definitions import define
from eaglelab.served.lines import Line
from eaglelab.served.row import LogRow
from eaglelab.served.sglang_log import literal, moment

MARK = re.compile(
    r"SpecDecoding metrics: |Speculative metrics: |((?:Engine \d{1,5}|\d{1,5} Engines Aggregated): )?(?P<first>Avg prompt throughput: )"
)
HEAD = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR) (?:(\d{4})-)?(\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(?!\d)")
GLUED = re.compile(r"\(\w+ pid=\d+|\b(?:DEBUG|INFO|WARNING|ERROR) (?:\d{4}-)?\d{2}-\d{2} ")
PIECE = re.compile(r"([A-Za-z][\w -]*): (\S.*)$")
RATE = re.compile(r"[01]\.\d{3}")
LIST = "Per-position acceptance rate"
YEAR = "2000"

START = re.compile(r"\bnon-default args: \{|\bInitializing an? (?:V1 )?LLM engine \(v|\bvLLM API server version |█.*\bversion (?=\d)")
VERSION = re.compile(r"(?:\bLLM engine \(v|\bversion )v?(\d[\w.+]*)(?=\)|\s|$)")
SETTING = re.compile(r"""(?:'(\w+)': |\b(\w+)=)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None|True|False|-?\d+(?:\.\d+)?)(?=[,)}])""")
SPECULATIVE = re.compile(r"(?:'speculative_config': \{|speculative_config=(?:SpeculativeConfig\(|\{))([^)}]*[)}])")
SPECULATIVE_NAMES = {
    "method": "algorithm",
    "model": "draft_model",
    "draft_model": "draft_model",
    "num_speculative_tokens": "num_steps",
    "num_spec_tokens": "num_steps",
}

BONUS = "mean acceptance length, the bonus token included"
NO_BONUS = "mean acceptance length without the bonus token (vLLM before 0.9), 1 added"
EMITTED = "emitted tokens / (draft tokens / steps)"


def parse(line: Line, *, version: str | None = None, steps: int | None = None) -> list[LogRow]:
    """Rows of a line. version, steps: what is known of the server, for lines that need it (a length without the positions' rates)."""
    marks = list(MARK.finditer(line.text))
    rows, behind = [], 0
    for place, mark in enumerate(marks):
        end = marks[place + 1].start() if place + 1 < len(marks) else len(line.text)
        glued = GLUED.search(line.text, mark.end(), end)
        body = line.text[mark.start("first") if mark["first"] else mark.end() : glued.start() if glued else end]
        whole = line.whole and glued is None and end == len(line.text)
        if mark[0].startswith("SpecDecoding"):
            row = _interval(*_fields(body, whole), whole=whole, version=version, steps=steps)
        elif mark[0].startswith("Speculative"):
            row = _v0(_fields(body, whole)[0])
        else:
            row = _throughput(_fields(body, whole)[0])
            row.rank = (mark[1] or "").removesuffix(": ")
        row.line, row.time = line.number, _time(line.text[behind : mark.start()])
        rows.append(row)
        behind = mark.end()
    return rows


def same_moment(before: LogRow, row: LogRow) -> bool:
    """Whether `row` is the speculation's half of the interval whose throughput `before` has: vLLM prints one behind the other."""
    return (
        before.event == row.event == "interval"
        and before.accept_length is before.accepted is None
        and row.tok_s is None
        and (before.time, before.start) == (row.time, row.start)
    )


def join(before: LogRow, row: LogRow) -> None:
    """Write the speculation's numbers of `row` into `before`."""
    for name in ("accept_length", "accept_definition", "joint", "accept_rate", "rate_definition", "verify_steps", "accepted", "proposed"):
        setattr(before, name, getattr(row, name))


def _fields(body: str, whole: bool) -> tuple[dict[str, str], list[float] | None]:
    """`key: value` pieces and the rates of the positions, None unless the list is whole: something stands behind it, or it ends a line of 0.8."""
    pieces = body.rstrip().rstrip(".,").split(", ") if whole else body.split(", ")[:-1]
    known: dict[str, str] = {}
    rates: list[float] | None = None
    behind = False
    for piece in pieces:
        match = PIECE.match(piece)
        if match is not None:
            behind = rates is not None
            known.setdefault(match[1], match[2])
            if match[1] == LIST:
                rates = [float(match[2])] if RATE.fullmatch(match[2]) else None
        elif rates is not None and not behind and RATE.fullmatch(piece):
            rates.append(float(piece))
        else:
            rates = rates if behind else None
            break
    old = whole and next(iter(known), "") == "Draft acceptance rate"
    return known, rates if behind or old else None


def _throughput(known: dict[str, str]) -> LogRow:
    row = LogRow("interval", "vllm", running=_integer(known, "Running", " reqs"))
    row.queue = _integer(known, "Waiting", " reqs")
    if row.queue is None:
        row.queue = _integer(known, "Pending", " reqs")
    row.tok_s = _number(known, "Avg generation throughput", r"(\d{1,12}\.\d) tokens/s")
    row.prompt_tok_s = _number(known, "Avg prompt throughput", r"(\d{1,12}\.\d) tokens/s")
    for name in ("GPU KV cache usage", "CPU KV cache usage", "KV cache usage"):
        percent = _number(known, name, r"(\d{1,3}\.\d)%") if row.cache_usage is None else None
        row.cache_usage = row.cache_usage if percent is None else percent / 100
    hit = _number(known, "Prefix cache hit rate", r"(\d{1,3}\.\d)%")
    row.prefix_hit = None if hit is None else hit / 100
    return row


def _interval(known: dict[str, str], rates: list[float] | None, *, whole: bool, version: str | None, steps: int | None) -> LogRow:
    row = LogRow("interval", "vllm", accepted=_integer(known, "Accepted", " tokens"), proposed=_integer(known, "Drafted", " tokens"))
    for name in ("Avg Draft acceptance rate", "Draft acceptance rate"):
        percent = _number(known, name, r"(\d{1,3}\.\d)%")
        if percent is not None:
            row.accept_rate, row.rate_definition = percent / 100, "accepted_share"
    length = _number(known, "Mean acceptance length", r"(\d{1,6}\.\d\d)")
    row.joint = tuple(rates) if rates else None
    if row.proposed == 0:  # nothing drafted: vLLM 0.8 printed such lines
        row.joint, length = None, None
    drafted = len(rates) if rates else steps
    if length is not None:
        bonus = _counts_bonus(length, rates, row, drafted, version)
        if bonus is not None:
            row.accept_length, row.accept_definition = (length, BONUS) if bonus else (length + 1, NO_BONUS)
    row.verify_steps = _verify_steps(row, drafted)
    return row


def _counts_bonus(length: float, rates: Sequence[float] | None, row: LogRow, drafted: int | None, version: str | None) -> bool | None:
    """Decided by the line's own numbers: the positions' rates sum up to the length without the bonus token, accepted tokens a pass do as
    well; by the version where neither is there; None where nothing decides."""
    without = (
        sum(rates) if rates else row.accepted * drafted / row.proposed if row.accepted is not None and row.proposed and drafted else None
    )
    if without is not None:
        slack = 0.0051 + 0.0005 * len(rates or ())
        fits = [bonus for bonus in (True, False) if abs(length - without - bonus) <= slack]
        return fits[0] if len(fits) == 1 else None
    meanings = {d.bonus for d in define("mean_acceptance_length", "vllm", version)[0]} if version else set()
    return meanings.pop() if len(meanings) == 1 else None


def _verify_steps(row: LogRow, drafted: int | None) -> int | None:
    """Passes, which vLLM does not print: drafted tokens / K where every pass drafted K (a chain of EAGLE does), if that gives the printed length."""
    if row.accepted is None or not row.proposed or not drafted or row.proposed % drafted or row.accept_length is None:
        return None
    passes = row.proposed // drafted
    return passes if abs(1 + row.accepted / passes - row.accept_length) <= 0.0051 else None


def _v0(known: dict[str, str]) -> LogRow:
    """Counts since the start. `Number of accepted tokens` counts tokens behind a rejected one too, so ours come from the emitted ones."""
    row = LogRow("total", "vllm", rank="since the start")
    row.num_steps, row.proposed = _integer(known, "Number of speculative tokens"), _integer(known, "Number of draft tokens")
    row.accept_rate = _number(known, "Draft acceptance rate", r"([01]\.\d{3})")
    emitted, efficiency = _integer(known, "Number of emitted tokens"), _number(known, "System efficiency", r"([01]\.\d{3})")
    if emitted and row.proposed and row.num_steps and row.proposed % row.num_steps == 0:
        passes = row.proposed // row.num_steps
        fits = efficiency is None or abs(emitted / (passes * (row.num_steps + 1)) - efficiency) <= 0.00051
        if passes <= emitted and fits:
            row.verify_steps, row.accepted = passes, emitted - passes
            row.accept_length, row.accept_definition = emitted / passes, EMITTED
    return row


def _integer(known: dict[str, str], name: str, unit: str = "") -> int | None:
    match = re.fullmatch(rf"(\d{{1,15}}){unit}", known.get(name, ""))
    return None if match is None else int(match[1])


def _number(known: dict[str, str], name: str, pattern: str) -> float | None:
    match = re.fullmatch(pattern, known.get(name, ""))
    return None if match is None else float(match[1])


def _time(before: str) -> datetime | None:
    heads = list(HEAD.finditer(before[-300:]))
    return moment(f"{heads[-1][1] or YEAR}-{heads[-1][2]} {heads[-1][3]}") if heads else None


def parse_start(line: Line) -> tuple[datetime | None, dict[str, Any]] | None:
    """(time, settings) as in `sglang_log.parse_start`; vLLM prints its settings over several lines of a start, each with its share."""
    match = START.search(line.text)
    if match is None:
        return None
    settings: dict[str, Any] = {"engine": "vllm"}
    version = VERSION.search(line.text, match.start())
    if version is not None and (line.whole or version.end() < len(line.text)):
        settings["version"] = version[1].rstrip(".")
    inner = SPECULATIVE.search(line.text, match.start())
    for text, names in ((inner[1] if inner else "", SPECULATIVE_NAMES), (line.text[match.start() :], {"model": "model", "dtype": "dtype"})):
        for setting in SETTING.finditer(text):
            name, value = setting[1] or setting[2], literal(setting[3])
            if name in names and value is not None:
                settings.setdefault(names[name], value)
    return _time(line.text[: match.start()]), settings
