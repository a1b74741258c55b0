"""Hand-made profiler traces: the span layouts of every era with sums that are known by construction. All times in microseconds."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path

from eaglelab.timing.phases import COLUMNS, Phase

MAIN = 11
"""The thread of the loop."""
STREAM = 7
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"


@dataclass
class TraceBuilder:
    """Events as Kineto writes them."""

    pid: object = 4242
    device: int = 0
    events: list[dict] = field(default_factory=list)
    correlation: int = 100

    def event(self, cat, name, start, length, tid=MAIN, pid=None, **args):
        pid = self.pid if pid is None else pid
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": length, "args": args})
        return self.events[-1]

    def span(self, name, start, end, tid=MAIN):
        return self.event("user_annotation", name, start, end - start, tid)

    def frame(self, name, start, end, tid=MAIN):
        return self.event("python_function", name, start, end - start, tid)

    def op(self, name, start, end, tid=MAIN):
        return self.event("cpu_op", name, start, end - start, tid)

    def annotation(self, name, start, end, stream=STREAM):
        """The span's place on the device."""
        return self.event("gpu_user_annotation", name, start, end - start, stream, self.device, stream=stream, device=self.device)

    def kernel(self, name, start, length, *, correlation=None, stream=STREAM, cat="kernel"):
        args = {"device": self.device, "stream": stream}
        if correlation is not None:
            args["correlation"] = correlation
        return self.event(cat, name, start, length, stream, self.device, **args)

    def call(self, at, *, tid=MAIN, name="cudaLaunchKernel", cat="cuda_runtime"):
        """A launch without kernels; its correlation."""
        self.correlation += 1
        self.event(cat, name, at, 1.0, tid, correlation=self.correlation)
        return self.correlation

    def launch(self, at, name, start, length, *, stream=STREAM, tid=MAIN, cat="kernel"):
        correlation = self.call(at, tid=tid)
        return self.kernel(name, start, length, correlation=correlation, stream=stream, cat=cat)

    def graph(self, at, kernels, *, stream=STREAM, tid=MAIN):
        """One launch, many kernels: (name, start, length)."""
        correlation = self.call(at, tid=tid, name="cudaGraphLaunch")
        return [self.kernel(name, start, length, correlation=correlation, stream=stream) for name, start, length in kernels]

    def write(self, path, **top) -> Path:
        """`.gz` as gzip. top: keys beside the events."""
        text = json.dumps({"schemaVersion": 1, "deviceProperties": [], **top, "traceEvents": self.events})
        path = Path(path)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path


PERIOD = 165.0
"""Of a cycle, on the host and on the device: 162 of kernels and 3 without."""
PLAN = (
    # what, name, where it begins in the cycle on the device, length, where it is launched in the cycle on the host
    ("other", "Memcpy HtoD (Pinned -> Device)", 0.0, 2.0, 5.0),
    ("draft", GEMM, 2.0, 14.0, 12.0),
    ("draft", "_build_chain_tree_kernel", 16.0, 16.0, 20.0),
    ("verify", GEMM, 32.0, 40.0, 40.0),
    ("communication", ALL_REDUCE, 72.0, 10.0, 40.0),
    ("verify", "flash::FlashAttnFwd", 82.0, 50.0, 40.0),
    ("sampling", "void at::native::reduce_kernel<ArgMax, argmax>", 132.0, 4.0, 65.0),
    ("sampling", "VerifyTreeGreedy<int, long>", 136.0, 6.0, 70.0),
    ("draft extend", GEMM, 142.0, 20.0, 85.0),
)
LENGTHS = {"other": 2.0, "draft": 30.0, "verify": 90.0, "communication": 10.0, "sampling": 10.0, "draft extend": 20.0}


def host_spans(b: TraceBuilder, era: str, t: float, bs: int) -> None:
    """The spans of one cycle that begins at `t` on the host."""
    eagle = "sglang/srt/speculative/eagle_worker.py"
    if era in ("0.5.23", "0.5.17", "no verify span"):
        b.span("scheduler.get_next_batch_to_run", t - 10, t - 5)
        b.span("scheduler.run_batch", t, t + 110)
        b.span("draft", t + 10, t + 30)
        b.span("draft_extend", t + 80, t + 95)
        b.span("scheduler.process_batch_result", t + 115, t + 150)
        if era != "no verify span":
            b.span(f"step[{'VERIFY' if era == '0.5.23' else 'TARGET_VERIFY'} bs={bs}]", t + 35, t + 60)
        if era == "0.5.23":
            b.span(f"step[DRAFT bs={bs}]", t + 11, t + 19)
        if era == "0.5.17":  # draft's own step borrows the mode
            b.span(f"step[TARGET_VERIFY bs={bs}]", t + 11, t + 19)
    elif era == "0.5.9":
        b.frame(f"sglang/srt/managers/scheduler.py({2000}): run_batch", t, t + 110)
        b.frame(f"{eagle}(278): forward_batch_generation", t + 3, t + 105)
        b.frame(f"{eagle}(532): draft", t + 10, t + 30)
        b.frame(f"{eagle}(691): verify", t + 32, t + 78)
        b.frame("sglang/srt/managers/tp_worker.py(440): forward_batch_generation", t + 35, t + 60)
        b.frame(f"{eagle}(902): forward_draft_extend_after_decode", t + 80, t + 95)
    elif era == "vllm":
        b.span(f"execute_context_0(0)_generation_{bs}({bs * 4})", t, t + 60)
        b.span("gpu_model_runner: preprocess", t + 1, t + 10)
        b.span("gpu_model_runner: forward", t + 33, t + 55)
        b.span("gpu_model_runner: sample", t + 62, t + 78)
        b.span("gpu_model_runner: draft", t + 80, t + 95)
        b.span("gpu_model_runner: bookkeep", t + 96, t + 100)
    elif era == "eaglelab":
        b.span("eaglelab.cycle", t, t + 110)
        b.span("eaglelab.draft", t + 10, t + 30)
        b.span("eaglelab.verify", t + 35, t + 60)
        b.span("eaglelab.sample", t + 62, t + 78)
        b.span("eaglelab.draft_extend", t + 80, t + 95)
    else:
        raise ValueError(era)


def cycle(b: TraceBuilder, era: str, host: float, device: float, bs: int = 4, skip=()) -> None:
    """One cycle: spans at `host`, kernels at `device`; the target's three kernels are one graph launch."""
    host_spans(b, era, host, bs)
    graph = [row for row in PLAN if row[4] == 40.0]
    for what, name, start, length, at in PLAN:
        if at != 40.0 and what not in skip:
            b.launch(host + at, name, device + start, length, cat="gpu_memcpy" if "Memcpy" in name else "kernel")
    b.graph(host + 40.0, [(name, device + start, length) for _, name, start, length, _ in graph])


def era_trace(era: str, cycles: int = 5, *, lag: float = 400.0, bs: int = 4) -> TraceBuilder:
    """`lag`: how far the device is behind the host. 400 = it runs what the host launched two cycles ago."""
    b = TraceBuilder()
    for i in range(cycles):
        cycle(b, era, 1000.0 + i * PERIOD, 1000.0 + lag + i * PERIOD, bs)
    return b


def expected(cycles: int, lengths=LENGTHS, gap: float = 3.0) -> dict[str, float]:
    """Milliseconds by column over all cycles; the last has no gap after it."""
    out = dict.fromkeys(COLUMNS.values(), 0.0)
    for what, length in lengths.items():
        out[COLUMNS[Phase(what)]] += length * cycles / 1e3
    out[COLUMNS[Phase.HOST_GAP]] += gap * (cycles - 1) / 1e3
    return out
