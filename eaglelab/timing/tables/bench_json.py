"""Benchmarks' results in JSON or JSON lines, and a sweep's.

Read in SGLang 0.5.3 (bench_serving.py, bench_one_batch_server.py) and 0.5.23 (benchmark/serving.py, benchmark/one_batch_server.py), in its
scripts/playground/bench_speculative.py, in SpecForge's benchmarks/bench_eagle3.py and benchmarker/utils.py, and vLLM 0.32
(benchmarks/serve.py). Which of them an object is from is told by its keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eaglelab.outside_json import too_deep
from eaglelab.served import server_info
from eaglelab.served.bench_lines import LIFETIME, OVER_VERIFY
from eaglelab.served.counts import count_of
from eaglelab.served.lines import LineReader, LogError
from eaglelab.timing.errors import TimingError
from eaglelab.timing.setting import Setting
from eaglelab.timing.tables.names import column, setting_in
from eaglelab.timing.tables.rows import Rows

LARGEST, LONGEST = 2**28, 2**26
WHOLE_RUN = "tok_s of bench_serving: output tokens of the whole run over its wall time, prompts and the thinning end included"
HEAVY = ("generated_texts", "input_lens", "output_lens", "ttfts", "itls", "errors", "server_info", "cached_tokens", "histogram")
"""Of a result what no table of settings needs."""
Cells = dict[str, Any]


def read_json(path: Path, rows: Rows) -> None:
    """Every result of a file into `rows`. Raises TimingError for one that cannot be read."""
    for content, where in _objects(path, rows):
        if too_deep(content):
            rows.leave_out(where, "nested too deep for a benchmark's result")
            continue
        for one in content if isinstance(content, list) else [content]:
            if not isinstance(one, dict):
                rows.leave_out(where, f"{type(one).__name__}, expected an object")
                continue
            for cells in cells_of(one, rows):
                rows.add(cells, where)


def _objects(path: Path, rows: Rows) -> Iterator[tuple[Any, str]]:
    if path.stat().st_size <= LARGEST:
        try:
            yield json.loads(path.read_bytes()), "the file's object"
            return
        except (ValueError, RecursionError):
            pass
    reader = LineReader(path, LONGEST)
    try:
        for line in reader:
            if not line.text.strip():
                continue
            where = f"line {line.number}"
            try:
                yield json.loads(line.text), where
            except (ValueError, RecursionError):
                rows.leave_out(where, "no JSON, or cut off" if line.whole else "cut off at its end")
    except LogError as error:
        raise TimingError(str(error)) from None
    if reader.broken:
        rows.say(reader.broken)


def cells_of(content: dict[str, Any], rows: Rows) -> Iterator[Cells]:
    """The rows of one result."""
    kinds: tuple[tuple[bool, Callable[[dict[str, Any], Rows], Iterator[Cells]]], ...] = (
        (any(_is_specforge(value) for value in content.values()), _specforge),
        ("step_time" in content and "speed" in content, _speculative),
        ("last_gen_throughput" in content and "batch_size" in content, _one_batch),
        ("max_concurrency" in content and "output_throughput" in content, _serving),
        (True, _own),
    )
    yield from next(read for fits, read in kinds if fits)(content, rows)


def _is_specforge(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(v, dict) and isinstance(v.get("metrics"), list) and "batch_size" in v for v in value)


def _specforge(content: dict[str, Any], rows: Rows) -> Iterator[Cells]:
    """`{"model": drafter, "mtbench": [{batch_size, steps, topk, num_draft_tokens, metrics: [{output_throughput, accept_length}]}]}`."""
    rows.say(f"accept lengths of SpecForge's benchmark are {OVER_VERIFY}")
    for dataset, settings in content.items():
        for one in settings if _is_specforge(settings) else []:
            for metric in one.get("metrics", ()) if isinstance(one, dict) else ():
                if isinstance(metric, dict):
                    yield {
                        "batch": one.get("batch_size"),
                        "steps": one.get("steps"),
                        "topk": one.get("topk"),
                        "draft_tokens": one.get("num_draft_tokens"),
                        "tok_s": metric.get("output_throughput"),
                        "accept_length": metric.get("accept_length"),
                        "draft": content.get("model"),
                        "dataset": dataset,
                    }


def _speculative(content: dict[str, Any], rows: Rows) -> Iterator[Cells]:
    """bench_speculative.py: `speed` is accept length / step time, of one request."""
    rows.say("speed of bench_speculative.py is that of one request, from the 20th percentile of step times: times batch here")
    yield {**_own_cells(content), "tok_s_each": content["speed"], "tok_s": None}


def _one_batch(content: dict[str, Any], rows: Rows) -> Iterator[Cells]:
    """bench_one_batch_server: acc_length is -1 or null where the server tells none."""
    told = {name: content.get(name) for name in ("model_path", "input_len", "output_len", "run_name")}
    steady = content.get("steady_state_output_throughput")
    if steady is not None:
        rows.say("tok_s of bench_one_batch_server: its steady-state throughput, where it tells one")
    length = content.get("acc_length")
    if length not in (None, -1):
        rows.say(f"accept lengths of bench_one_batch_server are {LIFETIME}")
    cells = {
        "batch": content["batch_size"],
        "tok_s": content.get("output_throughput") if steady is None else steady,
        "accept_length": length,
    }
    yield _named({**_own_cells(told), **cells}, content.get("run_name"), rows, told=length not in (None, -1))


def _serving(content: dict[str, Any], rows: Rows) -> Iterator[Cells]:
    """bench_serving of SGLang (server_info has the flags in force) and vLLM (per-position rates have a number for each step)."""
    cells: Cells = {name: value for name, value in _own_cells(content).items() if name not in ("tok_s", "batch", "accept_length")}
    cells |= {"tok_s": content["output_throughput"], "batch": content["max_concurrency"]}
    rows.say(WHOLE_RUN)
    if cells["batch"] is None and isinstance(content.get("concurrency"), (int, float)):
        cells["batch"] = max(1, round(content["concurrency"]))
        rows.say("no limit on concurrency was set: batch is the mean number of requests in flight, rounded")
    drafts, drafted = count_of(content.get("spec_decode_num_drafts")), count_of(content.get("spec_decode_draft_tokens"))
    rates, length = content.get("spec_decode_per_position_acceptance_rates"), content.get("spec_decode_acceptance_length")
    if length is not None:
        steps = len(rates) if isinstance(rates, list) and rates else drafted / drafts if drafts and drafted else None
        yield {**cells, "accept_length": length, "steps": steps}
        return
    length = content.get("accept_length")
    if length is not None:
        rows.say(f"accept lengths of bench_serving are {LIFETIME}")
    yield _named(
        {**cells, "accept_length": length, **_flags(content.get("server_info"), rows)}, content.get("tag"), rows, told=length is not None
    )


def _flags(info: Any, rows: Rows) -> Cells:
    """The setting that a server tells of itself; {} where it tells none."""
    if not isinstance(info, dict):
        return {}
    inner = info.get("server_args")
    flags = {**(inner if isinstance(inner, dict) else {}), **info}
    found = server_info.settings(info)
    told: Cells = {"model": flags.get("model_path"), "tp": flags.get("tp_size"), "draft": flags.get("speculative_draft_model_path")}
    if flags.get("speculative_adaptive") is True:
        rows.say("the server's number of steps is adaptive: a row stands for the steps that it began with, if any")
    if "speculative_algorithm" in flags and not flags["speculative_algorithm"]:
        return {**told, "steps": 0}
    names = {"steps": "speculative_num_steps", "topk": "speculative_eagle_topk", "draft_tokens": "speculative_num_draft_tokens"}
    return told | {ours: found[theirs] for ours, theirs in names.items() if theirs in found}


def _own(content: dict[str, Any], rows: Rows) -> Iterator[Cells]:
    """One object a run under the names of a table's columns: a sweep's `results.jsonl`, or somebody's own."""
    cells = _own_cells(content)
    failed = content.get("error") or content.get("failed")
    if cells.get("tok_s") is None and failed:
        rows.leave_out(f"{content.get('source') or _name(cells)}", f"it failed ({str(failed)[:200]})")
        return
    yield cells


def _own_cells(content: dict[str, Any]) -> Cells:
    cells: Cells = {}
    for name, value in content.items():
        if name not in HEAVY and value is not None:
            cells.setdefault(column(name), value)
    return cells


def _name(cells: Cells) -> str:
    return f"batch {cells.get('batch')}, {cells.get('steps')} steps"


def _named(cells: Cells, name: Any, rows: Rows, *, told: bool) -> Cells:
    """With the setting that the run's name tells (`3-1-4`, `baseline`), where the result does not. A result without an accept length and
    without a setting is one of no speculation."""
    if cells.get("steps") is None and isinstance(name, str):
        try:
            named = setting_in(name)
        except ValueError:
            named = None
        if named is not None:
            return {**cells, "steps": named.steps, "topk": named.topk, "draft_tokens": named.draft_tokens}
    if cells.get("steps") is None and not told:
        rows.say("results without an accept length that name no setting are taken as without speculation")
        return {**cells, "steps": Setting(0).steps}
    return cells
