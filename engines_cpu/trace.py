"""Profiler traces and scrapes of real engines on the CPU, as they lie in tests/traces and with the example.

    .venv/bin/python engines_cpu/trace.py                  # every recording; about 15 minutes
    .venv/bin/python engines_cpu/trace.py vllm-chain       # single ones, by name
    .venv/bin/python engines_cpu/trace.py --cut            # serve nothing: cut what lies in .live/traces anew

A profile covers whole requests, so that the engine's own counters of the same time say how many verify passes the trace must hold.
What is written is cut by `kept`: events are dropped, none is changed. tests/traces/README.md says what is there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from runs import EXAMPLE, LIVE, RECORDED, ROOT, Run
from serving import prompts, started

from eaglelab.live.prompts import Prompt
from eaglelab.live.server import Server

OUT = ROOT / "tests" / "traces"
RAW = LIVE / "traces"
SETTLE_SECONDS = {"vllm": 2, "sglang": 6}
"""Until a finished request is in the engine's counters."""
LIMIT = 150_000
"""Bytes of a written trace."""
SHIPPED = ("vllm-chain", 4)
"""The recording whose spans go with the example."""
LOOP = "loop"
"""The library's own speculative loop, with plain decoding of the same prompts."""
STEPS = ("step[", "execute_", "eaglelab.")
LOOSE = ("scheduler.run_batch", "execute_", "eaglelab.cycle")
"""Spans with work of several phases, where spans are in them: the operators right in them are all kept, and those in no span."""
WHOLE = 2
"""Of the other spans of one name, the one whose outermost operators are kept: not the first, which warms up."""
OF_THE_MACHINE = ("host_name", "traceName")
"""Top-level entries that are not written."""
COUNTED = re.compile(
    r"(sglang:(forward_execution_seconds|scheduler_stage_seconds|spec_verify_calls|generation_tokens_total|inter_token_latency_seconds)"
    r"|vllm:(spec_decode_num_(drafts|accepted_tokens_total)|generation_tokens_total|inter_token_latency_seconds|iteration_tokens_total))"
)
"""Samples of a scrape that are written."""


@dataclass(frozen=True)
class Profiled(Run):
    """A run with the profiler let in. `batches`: one profile for each, of so many requests together."""

    speculate: bool = True
    scopes: bool = True
    """vLLM: VLLM_CUSTOM_SCOPES_FOR_PROFILING, without which only the target's passes have spans."""
    batches: tuple[int, ...] = (1, 4)
    tokens: int = 24
    """New tokens of each request."""

    def arguments(self, port: int) -> list[str]:
        given = super().arguments(port)
        if not self.speculate:
            given = list(without_speculation(given))
        if self.engine == "vllm":
            config = {"profiler": "torch", "torch_profiler_dir": str(RAW / self.name), "torch_profiler_with_stack": False}
            given += ["--profiler-config", json.dumps(config | {"ignore_frontend": True})]
        return given

    @property
    def environment(self) -> dict[str, str]:
        if self.engine == "vllm":
            return {"VLLM_CUSTOM_SCOPES_FOR_PROFILING": str(int(self.scopes))}
        return {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"}


PROFILED = {
    run.name: run
    for run in (
        Profiled("vllm-chain", "vllm", "right"),
        Profiled("vllm-chain-default", "vllm", "right", scopes=False, batches=(1,), tokens=16),
        Profiled("vllm-plain", "vllm", "right", speculate=False, batches=(2,), tokens=8),
        Profiled("sglang-chain", "sglang", "right"),
        Profiled("sglang-tree", "sglang", "right", topk=4, nodes=8, batches=(2,)),
        Profiled("sglang-plain", "sglang", "right", speculate=False, batches=(2,), tokens=8),
    )
}


def without_speculation(arguments: Sequence[str]) -> Iterator[str]:
    """The same command without its `--spec…` options and the one value of each."""
    rest = iter(arguments)
    for argument in rest:
        if argument.startswith("--spec") or argument == "--per-request-spec-decode-metrics":
            next(rest)
        else:
            yield argument


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*PROFILED, LOOP])} (default: all)")
    parser.add_argument("--cut", action="store_true", help="serve nothing: cut what lies in .live/traces")
    args = parser.parse_args()
    known = [*PROFILED, LOOP]
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no recording is called {unknown[0]}; known: {', '.join(known)}")
    chosen = args.names or known
    asked = [] if args.cut else prompts()
    if LOOP in chosen:
        if not args.cut:
            record_loop()
        write_loop()
    for run in (run for run in PROFILED.values() if run.name in chosen):
        if not args.cut:
            record(run, asked)
        for batch in run.batches:
            write(run, batch)
    return 0


# -- recording -----------------------------------------------------------------------------------------------------------------------------------


def record(run: Profiled, asked: Sequence[Prompt]) -> None:
    """Serve and profile: RAW/<name>/b<batch>/ gets the engine's trace as it is, a scrape before and one after, and what was asked."""
    folder = RAW / run.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ.update(run.environment)
    with started(run, folder / "engine.log") as (server, _):
        ask(run, server, asked[:2])  # what is done once is done before
        for batch in run.batches:
            place = folder / f"b{batch}"
            place.mkdir()
            (place / "before.txt").write_text(server.metrics() or "")
            begun = time.time()
            post(server, "start_profile", profile_request(run, place))
            ask(run, server, asked[2 : 2 + batch])
            post(server, "stop_profile", {})
            time.sleep(SETTLE_SECONDS[run.engine])
            (place / "after.txt").write_text(server.metrics() or "")
            for path in traces(folder):
                shutil.move(path, place / path.name)
            told = {"run": run.name, "batch": batch, "begun": begun, "seconds": time.time() - begun}
            (place / "told.json").write_text(json.dumps(told))
            print(f"{run.name}, {batch} together: {[p.name for p in traces(place)]}", flush=True)


def record_loop() -> None:
    """The loop on the example's first prompt, fed as the dump was: RAW/loop/trace.json.gz, and what it counted."""
    from eaglelab.investigation import Investigation
    from eaglelab.loop.run import run_loop

    folder = RAW / LOOP
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    inv = Investigation(str(EXAMPLE), max_samples=1)
    result = run_loop(inv, feed="dump", steps=3, max_prompts=1, max_new_tokens=16, rounds=1, trace=folder / "trace.json.gz")
    passes = [len(request.speculated[0].passes) for request in result.requests]
    (folder / "told.json").write_text(json.dumps({"passes": passes}))
    print(f"{LOOP}: {passes} verify passes", flush=True)


def profile_request(run: Profiled, place: Path) -> dict[str, Any]:
    if run.engine == "vllm":
        return {"profile_prefix": place.name}
    return {"output_dir": str(place), "activities": ["CPU"], "with_stack": False, "record_shapes": False}


def ask(run: Profiled, server: Server, asked: Sequence[Prompt]) -> None:
    with ThreadPoolExecutor(len(asked)) as pool:
        list(pool.map(lambda prompt: server.generate(prompt.token_ids, run.tokens), asked))


def post(server: Server, what: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{server.url}/{what}", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        answer.read()


def traces(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.json*") if ".trace.json" in p.name)


# -- cutting -------------------------------------------------------------------------------------------------------------------------------------


def write(run: Profiled, batch: int) -> None:
    """OUT/<name>-b<batch>.trace.json.gz, and both scrapes in .metrics.txt; of SHIPPED also the spans alone, with the example."""
    place = RAW / run.name / f"b{batch}"
    found = traces(place)
    if len(found) != 1:
        sys.exit(f"{place}: {len(found)} traces, expected one: record it again")
    whole = json.loads(gzip.decompress(found[0].read_bytes()))
    OUT.mkdir(exist_ok=True)
    name = f"{run.version.replace('==', '-')}-{run.name.partition('-')[2]}-b{batch}"
    store(whole | {"traceEvents": list(kept(whole["traceEvents"]))}, OUT / f"{name}.trace.json.gz")
    lines = [line for when in ("before", "after") for line in (place / f"{when}.txt").read_text().splitlines(keepends=True)]
    (OUT / f"{name}.metrics.txt").write_text("".join(line for line in lines if COUNTED.match(line) and "_bucket" not in line))
    if (run.name, batch) == SHIPPED:
        spans = [event for event in kept(whole["traceEvents"]) if event.get("cat") != "cpu_op"]
        store(whole | {"traceEvents": spans}, RECORDED / f"{run.name}.trace.json.gz")


def write_loop() -> None:
    whole = json.loads(gzip.decompress((RAW / LOOP / "trace.json.gz").read_bytes()))
    store(whole | {"traceEvents": list(kept(whole["traceEvents"]))}, OUT / f"{LOOP}.trace.json.gz")


def store(trace: dict[str, Any], path: Path) -> None:
    text = json.dumps({key: value for key, value in trace.items() if key not in OF_THE_MACHINE}, separators=(",", ":"))
    packed = gzip.compress(text.encode(), mtime=0)
    print(f"{path.relative_to(ROOT)}: {len(trace['traceEvents']):,} events, {len(packed):,} bytes{' TOO MANY' * (len(packed) > LIMIT)}")
    path.write_bytes(packed)


def kept(events: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All but: operators inside of operators; operators in a span other than LOOSE, except in one span of each name (numbers aside); and what
    an idle loop does, up to one second before the first step and from one second after the last."""
    complete = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    steps = [e for e in complete if e["name"].startswith(STEPS)]
    begin, end = min(e["ts"] for e in steps) - 1e6, max(e["ts"] + e["dur"] for e in steps) + 1e6
    dropped: set[int] = set()
    for thread in {(e["pid"], e["tid"]) for e in complete}:
        dropped |= unneeded([e for e in complete if (e["pid"], e["tid"]) == thread])
    for event in events:
        outside = event.get("ph") == "X" and not begin <= event["ts"] <= end
        if id(event) not in dropped and not outside:
            yield event


def unneeded(events: list[dict[str, Any]]) -> set[int]:
    """ids of the operators of one thread that are not kept."""
    around: list[dict[str, Any]] = []
    held: dict[int, dict[str, Any]] = {}  # operator: the innermost span around it
    dropped, holding, seen, whole = set(), set(), Counter(), set()
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"]:
            around.pop()
        if event["cat"] == "user_annotation":
            name = re.sub(r"\d+", "N", event["name"])
            seen[name] += 1
            if seen[name] == WHOLE:
                whole.add(id(event))
            holding |= {id(span) for span in around}
        elif around and around[-1]["cat"] == "cpu_op":
            dropped.add(id(event))
        elif around:
            held[id(event)] = around[-1]
        around.append(event)
    loose = {id(span) for span in held.values() if span["name"].startswith(LOOSE) and id(span) in holding}
    return dropped | {op for op, span in held.items() if id(span) not in loose | whole}


if __name__ == "__main__":
    sys.exit(main())
