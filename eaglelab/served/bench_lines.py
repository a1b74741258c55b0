"""What benchmarks print or save at their end: SGLang's (serving, one batch), vLLM's (`vllm bench serve`, the offline example), SpecForge's.

Read in SGLang 0.5.3, 0.5.9 (bench_serving.py, bench_one_batch_server.py) and 0.5.23 (benchmark/serving.py, one_batch_server.py), vLLM 0.32
(benchmarks/serve.py), its examples' spec_decode.py, SpecForge benchmarks/bench_eagle3.py and benchmarker/utils.py. All are lines of
`name: number`, or JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from eaglelab.outside_json import too_deep
from eaglelab.served.counts import count_of
from eaglelab.served.lines import Line
from eaglelab.served.row import LogRow
from eaglelab.served.vllm_log import BONUS, NO_BONUS

LINE = re.compile(r"\s*([A-Za-z][\w ()%/.-]{0,60}?):\s{0,60}(-?\d{1,15}(?:\.\d{1,20})?)(?: (?:tok/s|token/s|s|ms))?\s*")
POSITION = re.compile(r"(?:acceptance at token|position) (\d{1,3})")

LIFETIME = "SGLang's average since its start or the last flush of its cache (avg_spec_accept_length), the bonus token included: not of this run alone"
OVER_VERIFY = "completion tokens / verify passes: counts each answer's first token, which no verify pass made"
NAMES = {
    "accept length": ("accept_length", "sglang", LIFETIME),
    "acc_length": ("accept_length", "sglang", LIFETIME),
    "average accept length": ("accept_length", "specforge", OVER_VERIFY),
    "acceptance length": ("accept_length", "vllm", BONUS),
    "mean acceptance length": ("accept_length", "vllm", BONUS),
    "acceptance rate (%)": ("accept_rate", "vllm", "%"),
    "drafts": ("verify_steps", "vllm", ""),
    "num_drafts": ("verify_steps", "vllm", ""),
    "draft tokens": ("proposed", "vllm", ""),
    "num_draft_tokens": ("proposed", "vllm", ""),
    "accepted tokens": ("accepted", "vllm", ""),
    "num_accepted_tokens": ("accepted", "vllm", ""),
    "output token throughput (tok/s)": ("tok_s", None, ""),
    "output throughput": ("tok_s", None, ""),
    "average output throughput": ("tok_s", None, ""),
    "batch size": ("running", None, ""),
}
"""As printed, in small letters -> (our field, whose it is, definition)."""
LENGTH_KEYS = {"accept_length": LIFETIME, "acc_length": LIFETIME, "spec_decode_acceptance_length": BONUS}
COUNT_KEYS = {"spec_decode_num_drafts": "verify_steps", "spec_decode_draft_tokens": "proposed", "spec_decode_accepted_tokens": "accepted"}
OUTPUT_KEYS = ("output_throughput", "output_token_throughput")
PATIENCE = 60
"""Lines of something else within which a summary must go on."""


class Summaries:
    """Collects a summary over its lines. `feed` gives the row once a summary is over, `end` what is left at the end of the log."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.found: dict[str, Any] = {}
        self.joint: list[float] = []
        self.line = self.idle = 0

    def feed(self, line: Line) -> LogRow | None:
        match = LINE.fullmatch(line.text) if line.whole and len(line.text) < 200 else None
        name = match[1].lower() if match else ""
        position = POSITION.fullmatch(name)
        if match is None or (name not in NAMES and position is None):
            self.idle += bool(self.found)
            over = self.idle > PATIENCE or ("accept_length" in self.found and line.text.startswith("===="))
            return self._row() if over else None
        self.idle = 0
        row = None
        if name in NAMES and NAMES[name][0] in self.found:
            row = self._row()
        if position is not None:
            if int(position[1]) == len(self.joint):
                self.joint.append(float(match[2]) / (100 if name.startswith("position") else 1))
            return row
        field, engine, definition = NAMES[name]
        self.found[field] = match[2]
        if engine is not None:
            self.found["engine"] = engine
        if field == "accept_length":
            self.found["definition"], self.line = definition, line.number
        if name in ("acc_length", "average accept length"):
            return self._row() if row is None else row
        return row

    def end(self) -> LogRow | None:
        return self._row()

    def _row(self) -> LogRow | None:
        found, joint, line = self.found, self.joint, self.line
        self._clear()
        if "accept_length" not in found:
            return None
        counts = {name: int(found[name]) for name in ("verify_steps", "accepted", "proposed", "running") if found.get(name, "").isdecimal()}
        row = LogRow("total", found["engine"], line=line, accept_definition=found["definition"], **counts)
        row.accept_length, row.tok_s = float(found["accept_length"]), _float(found.get("tok_s"))
        if "accept_rate" in found:
            row.accept_rate, row.rate_definition = float(found["accept_rate"]) / 100, "accepted_share"
        row.joint = tuple(joint) or None
        return _checked(row)


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


def _checked(row: LogRow) -> LogRow | None:
    """Without what the row's own counts contradict; None where nothing was verified or the length is none."""
    if row.accept_length is None or row.accept_length <= 0 or row.verify_steps == 0:
        return None
    if row.verify_steps and row.accepted is not None:
        without = row.accepted / row.verify_steps
        if abs(without - row.accept_length) < 0.0051 < abs(1 + without - row.accept_length):
            row.accept_length, row.accept_definition = row.accept_length + 1, NO_BONUS
        elif abs(1 + without - row.accept_length) > 0.0051:
            row.verify_steps = row.accepted = row.joint = None
    if row.joint and row.verify_steps and row.proposed and len(row.joint) * row.verify_steps < row.proposed:
        row.joint = None  # a list that was cut off
    return row if row.accept_length >= 1 else None


def from_json(content: Any, line: int = 0) -> Iterator[LogRow]:
    """Rows of a benchmark's saved results: SGLang's and vLLM's JSON (lines), SpecForge's nested results."""
    if not too_deep(content):
        yield from _objects(content, line, {}, "")


def _objects(content: Any, line: int, outer: dict[str, Any], name: str) -> Iterator[LogRow]:
    if isinstance(content, list):
        for item in content:
            yield from _objects(item, line, outer, name)
        return
    if not isinstance(content, dict):
        return
    key = next((k for k in LENGTH_KEYS if _is_number(content.get(k))), None)
    if key is not None:
        row = _from_object(content, key, outer, name)
        row.line = line
        checked = _checked(row)
        if checked is not None:
            yield checked
    nested = isinstance(content.get("metrics"), list) and "batch_size" in content
    for inner, value in content.items():
        if isinstance(value, (dict, list)) and inner != "server_info":
            yield from _objects(value, line, content if nested else outer, name if nested else inner)


def _from_object(content: dict[str, Any], key: str, outer: dict[str, Any], name: str) -> LogRow:
    engine = "vllm" if key.startswith("spec_decode") else "specforge" if outer else "sglang"
    row = LogRow("total", engine, rank=name if outer else str(content.get("run_name") or content.get("tag") or "")[:200])
    row.accept_length = float(content[key])
    row.accept_definition = OVER_VERIFY if outer else LENGTH_KEYS[key]
    row.tok_s = next((float(content[k]) for k in OUTPUT_KEYS if _is_number(content.get(k))), None)
    settings = {**content, **outer}
    row.running = count_of(settings.get("batch_size"))
    row.num_steps, row.num_draft_tokens = count_of(settings.get("steps")), count_of(settings.get("num_draft_tokens")) if outer else None
    for printed, ours in COUNT_KEYS.items():
        setattr(row, ours, count_of(content.get(printed)))
    if _is_number(content.get("spec_decode_acceptance_rate")):
        row.accept_rate, row.rate_definition = content["spec_decode_acceptance_rate"] / 100, "accepted_share"
    rates = content.get("spec_decode_per_position_acceptance_rates")
    if isinstance(rates, list) and rates and all(_is_number(r) for r in rates):
        row.joint = tuple(float(r) for r in rates)
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
