"""Reading a large profiler trace: eaglelab's stream against `json.load` and what else is installed; seconds and peak memory in one run, JSON last.

    python benchmarks/trace.py [--mb 1024] [--folder /tmp] [--python /other/venv/bin/python]

The trace is synthetic, in the layout that Kineto writes (torch 2.x with stacks and shapes, on CUDA): about 88 % `python_function` and `cpu_op`.
The job is one and the same: count and milliseconds of kernels, copies, launches and spans by name. Each reader has a process of its own;
imports are not in its seconds, and are in its peak memory. On a busy machine the seconds of CPU are the fairer ones (a second thread that
unpacks is in them). HolisticTraceAnalysis (its `parse_trace_file`, which makes a DataFrame of all
events) and perfetto's trace processor (SQL) run where `--python`, by default this one, can import them.
"""

import argparse
import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WANTED = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "gpu_user_annotation")

SUM = """
def add(sums, name, dur):
    count, total = sums.get(name, (0, 0.0))
    sums[name] = (count + 1, total + dur)
"""
READERS = {
    "eaglelab": """
from eaglelab.timing.trace.stream import TraceFile
def job(path):
    sums = {}
    for event in TraceFile(Path(path)).events(WANTED):
        add(sums, event.name, event.dur)
    return sums
""",
    "json.load": """
def job(path):
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        trace = json.load(file)
    sums = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") in WANTED:
            add(sums, event["name"], event["dur"])
    return sums
""",
    "json.load, gc off": """
import gc
def job(path):
    gc.disable()
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        trace = json.load(file)
    sums = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") in WANTED:
            add(sums, event["name"], event["dur"])
    return sums
""",
    "HolisticTraceAnalysis": """
from hta.common.trace import parse_trace_file
def job(path):
    _, frame, symbols = parse_trace_file(path)
    names = symbols.get_sym_table()
    wanted = {i for i, name in enumerate(names) if name in WANTED}
    frame = frame[frame["cat"].isin(wanted)]
    table = frame.groupby("name")["dur"].agg(["count", "sum"])
    return {names[i]: (int(row["count"]), float(row["sum"])) for i, row in table.iterrows()}
""",
    "perfetto": """
from perfetto.trace_processor import TraceProcessor
def job(path):
    with TraceProcessor(trace=path) as processor:
        categories = ", ".join(f"'{name}'" for name in WANTED)
        query = f"select name, count(*) as n, sum(dur) / 1e3 as total from slice where category in ({categories}) group by name"
        return {row.name: (row.n, row.total) for row in processor.query(query)}
""",
}
ELSEWHERE = ("HolisticTraceAnalysis", "perfetto")
CHILD = """
import gzip, json, resource, sys, time
from pathlib import Path
WANTED = {wanted!r}
{sum}
try:
    {imports}
except ImportError as error:
    print(json.dumps({{"missing": str(error)}}))
    sys.exit()
started, cpu = time.perf_counter(), time.process_time()
sums = job(sys.argv[1])
seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
count, total = sum(n for n, _ in sums.values()), sum(ms for _, ms in sums.values()) / 1e3
print(json.dumps({{"seconds": seconds, "cpu_s": cpu, "peak_mb": peak, "names": len(sums), "events": count, "total_ms": total}}))
"""


def event(ph: str, cat: str, name: str, place: tuple, ts: float, dur: float, args: str) -> str:
    return (
        f'  {{\n    "ph": "{ph}",\n    "cat": "{cat}",\n    "name": "{name}",\n    "pid": {place[0]},\n    "tid": {place[1]},\n'
        f'    "ts": {ts:.3f},\n    "dur": {dur:.3f}\n    ,\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def flow(ph: str, number: int, place: tuple, ts: float) -> str:
    end = ',\n    "bp": "e"' if ph == "f" else ""
    return (
        f'  {{\n    "ph": "{ph}",\n    "id": {number},\n    "pid": {place[0]},\n    "tid": {place[1]},\n    "ts": {ts:.3f},\n'
        f'    "cat": "ac2g",\n    "name": "ac2g"{end}\n  }}'
    )


def write_trace(path: Path, megabytes: int) -> None:
    """A trace of this size: one recording of 100,000 events, over and over, at ever later times."""
    random.seed(0)
    host, device, start = (4711, 4711), (0, 7), 5175442283453.691
    with path.open("w") as file:
        file.write(
            ' {\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320}\n  ],\n'
        )
        file.write(
            '    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},\n    "displayTimeUnit": "ms",\n'
            '    "baseTimeNanoseconds": 1790857026000000000,\n    "traceEvents": [\n    \n'
        )
        number, time, first = 0, start, True
        while file.tell() < megabytes * 2**20:
            parts = []
            for _ in range(5000):
                number += 1
                time += random.expovariate(1.0)
                parts += one_more(number, time, host, device)
            file.write(("" if first else ",\n") + ",\n".join(parts))
            first = False
        file.write('\n  ],\n  "traceName": "/tmp/trace.json"\n}')


PYTHON = (
    "nn/modules/module.py(1784): _call_impl",
    "_ops.py(1243): __call__",
    "models/llama.py(412): forward",
    "layers/linear.py(388): forward",
)
OPS = ("aten::mm", "aten::empty", "aten::copy_", "aten::view", "aten::linear", "aten::as_strided", "aten::slice")
KERNELS = (
    "nvjet_tst_128x64_64x8_2x1_v_bz_TNT",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)",
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}>",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)
SPANS = ("scheduler.run_batch", "step[VERIFY bs=4]", "draft", "draft_extend")


def one_more(number: int, time: float, host: tuple, device: tuple) -> list[str]:
    kind, dur = random.random(), random.expovariate(0.1)
    if kind < 0.63:
        args = f'"Python parent id": {number - 1}, "Python id": {number}, "Ev Idx": {number}'
        return [event("X", "python_function", random.choice(PYTHON), host, time, dur, args)]
    if kind < 0.945:
        shape = f"[{random.choice((1, 4, 16))}, 4096]"
        args = (
            f'"External id": {number},"Record function id": 0, "Concrete Inputs": ["", "", "[{number % 7}]"], "Input type": ["c10::BFloat16", "c10::BFloat16", "ScalarList"], '
            f'"Input Strides": [[4096, 1], [4096, 1], []], "Input Dims": [{shape}, [4096, 4096], []], "Ev Idx": {number}'
        )
        return [event("X", "cpu_op", random.choice(OPS), host, time, dur, args)]
    if kind < 0.99:  # a launch, its kernel, and the arrow from one to the other
        linked = f'"External id": {number}, "correlation": {number}'
        args = (
            f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {number}, "registers per thread": 168, '
            '"shared memory": 213504, "blocks per SM": 0.992424, "warps per SM": 11.909091, "grid": [131, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 0'
        )
        return [
            event("X", "cuda_runtime", "cudaLaunchKernel", host, time, dur / 9, f'{linked}, "cbid": 211'),
            event("X", "kernel", random.choice(KERNELS), device, time + 5, dur, args),
            flow("s", number, host, time),
            flow("f", number, device, time + 5),
        ]
    return [event("X", "user_annotation", random.choice(SPANS), host, time, 20 * dur, f'"External id": {number}, "Ev Idx": {number}')]


def measure(reader: str, python: str, path: Path) -> dict:
    code = CHILD.format(wanted=WANTED, sum=SUM, imports=READERS[reader].strip().replace("\n", "\n    "))
    done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]}


def row(reader: str, result: dict, ours: dict) -> str:
    if why := result.get("missing") or result.get("failed"):
        return f"  {reader:24s} not measured: {why}"
    ratio, cpu, memory = (result[key] / ours[key] for key in ("seconds", "cpu_s", "peak_mb"))
    same = "" if (result["events"], result["names"]) == (ours["events"], ours["names"]) else f"  other sums: {result['events']:,} events"
    return f"  {reader:24s} {result['seconds']:8.1f} s {result['cpu_s']:8.1f} s CPU {result['peak_mb']:8.0f} MB   {ratio:5.1f} x time {cpu:5.1f} x CPU {memory:5.1f} x memory{same}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1024, help="size of the trace in MiB, unpacked (default 1024)")
    parser.add_argument("--folder", type=Path, help="where to write it (default: the system's folder for temporary files)")
    parser.add_argument("--python", default=sys.executable, help="a Python with HolisticTraceAnalysis or perfetto (default: this one)")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        plain = Path(folder) / "trace.json"
        write_trace(plain, args.mb)
        packed = plain.with_name("trace.json.gz")
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        for path in (plain, packed):
            print(f"{path.name}, {path.stat().st_size / 2**20:,.0f} MiB: {'multiples of the first row at the right':>40s}", flush=True)
            rows = results[path.name] = {}
            for reader in READERS:
                rows[reader] = measure(reader, args.python if reader in ELSEWHERE else sys.executable, path)
                if "seconds" not in rows["eaglelab"]:
                    sys.exit(f"eaglelab's own reader: {rows['eaglelab']}")
                print(row(reader, rows[reader], rows["eaglelab"]), flush=True)
    print(json.dumps({"benchmark": "trace", "mb": args.mb, **results}))


if __name__ == "__main__":
    main()
