"""SGLang's own lines: decode and prefill batches of every release since 0.4.2, and the flags that a start prints.

Read in the releases 0.4.2 (srt/managers/scheduler.py), 0.5.3 to 0.5.10 (scheduler_metrics_mixin.py), 0.5.11, 0.5.12
(srt/observability/scheduler_metrics_mixin.py) and 0.5.13 to 0.5.23 (srt/managers/scheduler_components/metrics_reporter.py,
pool_stats_observer.py); prefixes in srt/utils/common.py `configure_logger`. What changed: `batch.` became `batch,` in 0.5.4;
`accept rate` is there since 0.5.3.post3; `#token` is `#full token` and `#swa token` or `mamba num` on hybrid models; ranks and an iteration
(`[123]`) may stand before; `cap len`, disaggregation and FLOPS may stand between or behind. All are `key: value`, joined by a comma and a
space, and are read as that, so that a key nobody has met costs nothing.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from eaglelab.engines.launch import SGLANG_NAMES
from eaglelab.served.lines import Line
from eaglelab.served.row import LogRow

MARK = re.compile(r"\b(Decode|Prefill) batch(?: \[\d+\])?[.,] (?=#)")
HEAD = re.compile(
    r"(?<![\d:])(?:(\d{4}-\d{2}-\d{2})[ T])?(\d{2}:\d{2}:\d{2})(?:[.,](\d{1,6})\d*)?((?: (?:DP|TP|PP|EP|ATTN_CP|MOE_DP)\d{1,5})*)(?![\d:])"
)
GPU = re.compile(r"\[gpu[=_ ]?(\d{1,4})\]")
GLUED = re.compile(r"\[(?:\d{4}-\d{2}-\d{2} )?\d{2}:\d{2}:\d{2}|\(\w+ pid=\d+")
"""Where the next line begins that another process wrote into this one."""
PIECE = re.compile(r"\s?(#?[A-Za-z][\w ./()#-]*): (\S+)$")
WHOLE_NUMBER = re.compile(r"\d{1,12}")
THROUGHPUT = "gen throughput (token/s)"
"""On every decode line."""
LAST = {"Decode": THROUGHPUT, "Prefill": "#queue-req"}
"""Behind all other numbers of use."""
TWO_DECIMALS = re.compile(r"\d{1,12}\.\d\d")

START = re.compile(r"\bserver_args=(?:ServerArgs\(|\{)")
SETTING = re.compile(r"""(?:'(\w+)': |\b(\w+)=)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None|True|False|-?\d+(?:\.\d+)?(?:e-?\d+)?)(?=[,)}])""")
SETTINGS = SGLANG_NAMES | {
    "model_path": "model",
    "speculative_draft_model_path": "draft_model",
    "speculative_draft_model": "draft_model",
    "dtype": "dtype",
    "decode_log_interval": "decode_log_interval",
    "tp_size": "tp_size",
    "dp_size": "dp_size",
    "disable_cuda_graph": "disable_cuda_graph",
}
"""A start's own names -> ours."""
DEFINITION = "accept len: tokens per verify pass, the bonus token included"


def parse(line: Line) -> list[LogRow]:
    """Rows of a line: none, one, or several where processes wrote into each other's lines."""
    marks = list(MARK.finditer(line.text))
    rows, behind = [], 0
    for place, mark in enumerate(marks):
        end = marks[place + 1].start() if place + 1 < len(marks) else len(line.text)
        glued = GLUED.search(line.text, mark.end(), end)
        body = line.text[mark.end() : glued.start() if glued else end]
        known = _fields(body, whole=line.whole and glued is None and end == len(line.text))
        if known and LAST[mark[1]] not in known:
            known.popitem()  # ends before its time: so may the last number
        row = _row(mark[1].lower(), known)
        row.line = line.number
        row.time, row.rank = _head(line.text[behind : mark.start()])
        rows.append(row)
        behind = mark.end()
    return rows


def _fields(body: str, whole: bool) -> dict[str, str]:
    """`key: value` pieces up to the first that is none. Of a line that was cut off the last piece is left out: its number may be half of one."""
    pieces = body.rstrip().rstrip(",").split(", ") if whole else body.split(", ")[:-1]
    known: dict[str, str] = {}
    for piece in pieces:
        match = PIECE.match(piece)
        if match is None:
            break
        known.setdefault(match[1], match[2])
    return known


def _row(event: str, known: dict[str, str]) -> LogRow:
    def integer(name: str) -> int | None:
        text = known.get(name, "")
        return int(text) if WHOLE_NUMBER.fullmatch(text) else None

    def number(name: str) -> float | None:
        text = known.get(name, "")
        return float(text) if TWO_DECIMALS.fullmatch(text) else None

    row = LogRow(event, "sglang", running=integer("#running-req"), queue=integer("#queue-req"))
    row.graph = {"True": True, "False": False}.get(next((v for k, v in known.items() if k.endswith(" graph")), ""))
    row.cache_usage = number("full token usage") if "full token usage" in known else number("token usage")
    if event == "prefill":
        hit = known.get("cache hit rate", "")
        row.prefix_hit = float(hit[:-1]) / 100 if hit.endswith("%") and TWO_DECIMALS.fullmatch(hit[:-1]) else None
        row.new_tokens, row.cached_tokens = integer("#new-token"), integer("#cached-token")
        row.prompt_tok_s = number("input throughput (token/s)")
        return row
    row.tok_s = number(THROUGHPUT)
    row.accept_length, row.accept_rate = number("accept len"), number("accept rate")
    if row.accept_length is not None:
        row.accept_definition = DEFINITION
    return row


def _head(before: str) -> tuple[datetime | None, str]:
    """Time and ranks, from what stands before a mark (the last time of day in it: a container's own may stand further left)."""
    heads = list(HEAD.finditer(before[-300:]))
    if not heads:
        gpu = GPU.search(before)
        return None, f"GPU{gpu[1]}" if gpu else ""
    date, clock, fraction, ranks = heads[-1].groups()
    return moment(f"{date} {clock}", fraction) if date else None, ranks.strip()


def moment(text: str, fraction: str | None = None) -> datetime | None:
    try:
        when = datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return when.replace(microsecond=int((fraction or "").ljust(6, "0")))


def parse_start(line: Line) -> tuple[datetime | None, dict[str, Any]] | None:
    """(time, settings under our names and `given` with all of the engine's) where a line prints a start's flags; None elsewhere."""
    match = START.search(line.text)
    if match is None:
        return None
    given: dict[str, Any] = {}
    for setting in SETTING.finditer(line.text, match.end() - 1):
        given.setdefault(setting[1] or setting[2], literal(setting[3]))
    settings = {ours: given[name] for name, ours in SETTINGS.items() if given.get(name) is not None}
    return _head(line.text[: match.start()])[0], {"engine": "sglang", **settings, "given": given}


def literal(text: str) -> Any:
    """A number, a quoted text, True, False or None, as Python prints it."""
    if text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    return float(text) if "." in text or "e" in text else int(text)
