"""Traces to phases: known sums on hand-made traces of every era, exact; where a kernel goes and why; what is left out and said."""

import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import trace_builder as tb
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import ALL_REDUCE, GEMM, MAIN, PERIOD, TraceBuilder, era_trace, expected

from eaglelab.cli import main
from eaglelab.commands.trace import advice
from eaglelab.timing.errors import TimingError
from eaglelab.timing.phases import COLUMNS, Phase
from eaglelab.timing.trace import cycles, kernels, read_trace
from eaglelab.timing.trace.report import median_interval
from eaglelab.timing.trace.spans import rule_of, rules

TOLERANCE = 1e-6  # ms


@pytest.fixture
def read(tmp_path):
    """read(builder, name) -> report, with the sums checked."""

    def call(builder, name="run-TP-0.trace.json.gz", **top):
        return checked(read_trace(builder.write(tmp_path / name, **top)))

    return call


def checked(report):
    """Every instant of every cycle in exactly one phase."""
    sums = report.cycles[list(COLUMNS.values())].sum(axis=1)
    assert (abs(sums - report.cycles["wall_ms"]) < TOLERANCE).all()
    assert (report.cycles[list(COLUMNS.values())] >= 0).all(axis=None)
    return report


def totals(report):
    return {column: float(report.cycles[column].sum()) for column in COLUMNS.values()}


def close(got, want):
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert got[key] == pytest.approx(value, abs=TOLERANCE), key


# -- eras ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [60.0, 400.0, 1000.0])
@pytest.mark.parametrize("era", ["0.5.23", "0.5.17", "no verify span", "0.5.9"])
def test_every_era_of_sglang_gives_the_sums_that_it_was_made_with(read, era, lag):
    report = read(era_trace(era, lag=lag))
    assert (report.engine, report.device, len(report.cycles)) == ("sglang", "cuda", 5)
    close(totals(report), expected(5))
    assert list(report.cycles["wall_ms"][:-1]) == pytest.approx([PERIOD / 1e3] * 4, abs=TOLERANCE)
    assert report.cycles["wall_ms"].iloc[-1] == pytest.approx(0.162, abs=TOLERANCE)
    assert set(report.cycles["batch"].dropna()) == (set() if era in ("no verify span", "0.5.9") else {4})
    assert set(report.cycles["rank"]) == {"TP0"}


def test_steps_alone_before_the_outer_spans_existed(read):
    """0.5.12: the target's step, the drafter's two as DECODE, draft extend's own; everything else has no span."""
    b = TraceBuilder()
    for i in range(4):
        t, d = 1000.0 + i * PERIOD, 1300.0 + i * PERIOD
        b.span("step[TARGET_VERIFY bs=2]", t, t + 20)
        b.span("step[DRAFT_EXTEND_V2 bs=2]", t + 40, t + 50)
        b.span("step[DECODE bs=2]", t + 60, t + 70)
        b.span("step[DECODE bs=2]", t + 80, t + 90)
        for at, name, start, length in (
            (5, GEMM, 0, 80),
            (30, "elementwise", 80, 7),  # after the target's step, before draft extend: sampling by its place
            (45, GEMM, 87, 20),
            (65, GEMM, 107, 11),
            (75, "topk", 118, 4),  # between two steps of the drafter
            (85, GEMM, 122, 12),
            (100, "unknown_kernel", 134, 6),
            (110, "build_tree_efficient", 140, 3),  # only drafting runs it
        ):
            b.launch(t + at, name, d + start, length)
    report = read(b)
    assert len(report.cycles) == 3  # where the last one ends is not told
    assert any("last cycle" in note for note in report.notes)
    want = {"verify": 80, "sampling": 7, "draft extend": 20, "draft": 30, "unattributed": 6}
    close(totals(report), expected(3, want, gap=22.0) | {COLUMNS[Phase.HOST_GAP]: 3 * 22 / 1e3})
    assert report.unattributed.to_dict("records") == [{"name": "unknown_kernel", "count": 3, "total_ms": pytest.approx(0.018)}]
    assert list(report.cycles["batch"]) == [2, 2, 2]


def test_vllm_with_its_scopes(read):
    b = era_trace("vllm")
    report = read(b, "dp0_pp0_tp1_dcp0_ep1_rank1.1790000000.pt.trace.json.gz")
    want = {"other": 2.0, "verify": 120.0, "communication": 10.0, "sampling": 10.0, "draft": 20.0}
    close(totals(report), expected(5, want))  # what the plan calls draft is launched in `execute_`, before forward: the target's
    assert report.engine == "vllm"
    assert list(report.cycles["verified"]) == [4.0] * 5
    assert set(report.cycles["rank"]) == {"DP0 rank 1"}
    assert "draft extend" in report.notes[0]


def test_vllm_without_scopes_is_told_by_kernels_that_only_drafting_runs(read):
    b = TraceBuilder()
    for i in range(4):
        t, d = 1000.0 + i * PERIOD, 1200.0 + i * PERIOD
        b.span("execute_context_0(0)_generation_2(8)", t, t + 60)
        b.launch(t + 10, GEMM, d, 80)
        b.launch(t + 70, "softmax", d + 80, 5)
        b.launch(t + 80, "rejection_greedy_sample_kernel", d + 85, 6)
        b.launch(t + 90, "eagle_prepare_inputs_padded_kernel", d + 91, 2)
        b.launch(t + 100, GEMM, d + 93, 30)
    report = read(b)
    assert len(report.cycles) == 3
    close(totals(report), expected(3, {"verify": 80, "sampling": 11, "draft": 32}, gap=42) | {"host_gap_ms": 3 * 0.042})
    assert any("VLLM_CUSTOM_SCOPES_FOR_PROFILING=1" in note for note in report.notes)


def test_vllm_without_scopes_and_without_such_kernels_stays_unattributed(read):
    b = TraceBuilder()
    for i in range(4):
        t = 1000.0 + i * PERIOD
        b.span("execute_context_0(0)_generation_2(8)", t, t + 60)
        b.launch(t + 10, GEMM, t + 20, 80)
        b.launch(t + 100, GEMM, t + 110, 30)
    close(totals(read(b)), expected(3, {"verify": 80, "unattributed": 30}, gap=55) | {"host_gap_ms": 3 * 0.055})


def test_portions_change_nothing(read, monkeypatch):
    """However few rows are divided at once: also with a kernel that runs through three cycles."""
    b = era_trace("0.5.23", 7)
    b.launch(1000.0 + 6 * PERIOD + 45, ALL_REDUCE, 1400.0 + PERIOD + 100, 2.5 * PERIOD, stream=9)
    whole = read(b)
    monkeypatch.setattr(cycles, "PORTION", 3)
    small = read(b, "again-TP-0.json")
    for name in ("cycles", "phases", "collectives", "outside"):
        ours, theirs = (
            getattr(whole, name).drop(columns="file", errors="ignore"),
            getattr(small, name).drop(columns="file", errors="ignore"),
        )
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9)
    talk = whole.phases.set_index("phase").loc["communication", "total_ms"]
    assert talk == pytest.approx((7 * 10 + 3 * 3) / 1e3)  # each cycle's own, and three waits of 3 us that it fills


def test_own_loop(read):
    report = read(era_trace("eaglelab"))
    assert report.engine == "eaglelab"
    close(totals(report), expected(5))
    assert set(report.cycles["batch"]) == {1}


# -- where a kernel goes ------------------------------------------------------------------------------------------------------------


SPANS_AT = {"draft": 25.0, "verify": 55.0, "sampling": 75.0, "draft extend": 90.0, "other": 100.0}
"""A time on the host inside each phase of 0.5.23."""


@settings(max_examples=25, deadline=None)
@given(
    cycle=st.integers(0, 2),
    to=st.sampled_from(sorted(SPANS_AT)),
    start=st.floats(0, 150),
    length=st.floats(0.001, 60),
    lag=st.sampled_from([60.0, 400.0]),
)
def test_moving_a_kernel_to_another_span_moves_exactly_its_time(tmp_path_factory, cycle, to, start, length, lag):
    folder = tmp_path_factory.mktemp("moved")

    def made(at):
        b = TraceBuilder()
        for i in range(4):
            host, device = 1000.0 + i * 400, 1000.0 + lag + i * 400
            tb.cycle(b, "0.5.23", host, device)
            if i == cycle:  # after the cycle's own kernels, on the device
                b.launch(host + at, "moved", device + 162 + start, length)
        return totals(checked(read_trace(b.write(folder / "a.json"))))

    before, after = made(SPANS_AT["verify"]), made(SPANS_AT[to])
    change = {key: after[key] - before[key] for key in before}
    want = dict.fromkeys(COLUMNS.values(), 0.0)
    want["verify_ms"] -= length / 1e3
    want[COLUMNS[Phase(to)]] += length / 1e3
    close(change, want)


def test_a_kernel_launched_in_no_span_is_unattributed_by_its_name(read):
    b = era_trace("0.5.23")
    b.launch(1000.0 + PERIOD + 112, "foreign", 1400.0 + PERIOD + 162, 2.5)  # between run_batch and process_batch_result
    b.launch(1000.0 + PERIOD + 40, "from_elsewhere", 1400.0 + 2 * PERIOD + 162, 1.5, tid=99)  # a thread without spans
    report = read(b)
    want = expected(5)
    want["host_gap_ms"] -= 4.0 / 1e3
    want["unattributed_ms"] += 4.0 / 1e3
    close(totals(report), want)
    assert report.unattributed["name"].tolist() == ["foreign", "from_elsewhere"]
    assert report.unattributed["total_ms"].tolist() == pytest.approx([0.0025, 0.0015])


def test_two_streams_share_no_instant_twice(read):
    """A second stream's kernel under the target's changes nothing; where it sticks out, it counts; copies and collectives yield."""
    b = era_trace("0.5.23")
    b.launch(1025.0, "plan_kernel", 1400.0 + 40, 30.0, stream=20)  # launched in draft, hidden by verify
    b.launch(1025.0 + PERIOD, "plan_kernel", 1400.0 + PERIOD + 161, 2.0, stream=20)  # 1 us beyond draft extend
    b.launch(1100.0, "Memcpy DtoH (Device -> Pinned)", 1400.0 + 3 * PERIOD + 150, 13.0, stream=21, cat="gpu_memcpy")
    want = expected(5)
    want["draft_ms"] += 0.001
    want["host_gap_ms"] -= 0.002
    want["other_ms"] += 0.001
    close(totals(read(b)), want)


def test_a_copy_for_a_pass_long_before_it_does_not_move_the_cycles(read):
    b = era_trace("0.5.23")
    b.launch(1000.0 + 3 * PERIOD + 5, "Memcpy HtoD", 1400.0 + 2 * PERIOD + 50, 3.0, stream=30, cat="gpu_memcpy")
    report = read(b)
    close(totals(report), expected(5))
    assert list(report.cycles["wall_ms"]) == pytest.approx([0.165] * 4 + [0.162], abs=TOLERANCE)


def test_without_launches_the_annotations_on_the_stream_tell(read):
    b = TraceBuilder()
    for i in range(4):
        host, d = 1000.0 + i * PERIOD, 1400.0 + i * PERIOD
        tb.host_spans(b, "0.5.23", host, 4)
        for name, start, end in (
            ("scheduler.run_batch", 0, 162),
            ("draft", 2, 32),
            ("step[VERIFY bs=4]", 32, 132),
            ("draft_extend", 142, 162),
        ):
            b.annotation(name, d + start, d + end)
        for _, name, start, length, _ in tb.PLAN:
            b.kernel(name, d + start, length, cat="gpu_memcpy" if "Memcpy" in name else "kernel")
    report = read(b)
    close(totals(report), expected(4))
    assert any("36 of 36 kernels have no launch in the trace" in note for note in report.notes)


def test_some_launches_missing(read):
    """Two kernels of one cycle lost their launch: one lies under an annotation, one under none."""
    b = era_trace("0.5.23")
    lost = [e for e in b.events if e["cat"] == "kernel" and e["ts"] in (1400.0 + PERIOD + 2, 1400.0 + PERIOD + 142)]
    assert len(lost) == 2
    for event in lost:
        del event["args"]["correlation"]
    b.annotation("draft", 1400.0 + PERIOD + 2, 1400.0 + PERIOD + 32)
    report = read(b)
    want = expected(5)
    want["draft_extend_ms"] -= 0.02
    want["unattributed_ms"] += 0.02
    close(totals(report), want)


# -- collectives --------------------------------------------------------------------------------------------------------------------


def test_collectives_exposed_and_hidden(read):
    b = era_trace("0.5.23")
    for i in range(5):  # 8 us of all-gather on a stream of its own: 5 under verify's attention, 3 after it under nothing… but sampling runs
        d, t = 1400.0 + i * PERIOD, 1000.0 + i * PERIOD
        b.launch(t + 45, "ncclDevKernel_AllGather_RING_LL(…)", d + 100, 8.0, stream=9)
        b.launch(t + 85, "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(…)", d + 160, 4.0, stream=9)  # 2 hidden, 2 exposed of the 3 us gap
    report = read(b)
    want = expected(5)
    want["communication_ms"] += 5 * 2 / 1e3
    want["host_gap_ms"] -= 4 * 2 / 1e3
    close(totals(report), want)
    table = report.collectives.set_index("collective")
    assert table.loc["all_reduce", ["phase", "count"]].tolist() == ["verify", 5]
    assert table["total_ms"].to_dict() == pytest.approx({"all_reduce": 0.05, "all_gather": 0.04, "reduce_scatter": 0.02})
    assert table["exposed_ms"].to_dict() == pytest.approx({"all_reduce": 0.05, "all_gather": 0.0, "reduce_scatter": 0.01})
    assert table["median_us"].to_dict() == pytest.approx({"all_reduce": 10.0, "all_gather": 8.0, "reduce_scatter": 4.0})
    assert table.loc["reduce_scatter", "phase"] == "draft extend"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (ALL_REDUCE, "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(…)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(…)", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(…)", "send/recv"),
        ("ncclDevKernel_Broadcast_RING_LL(…)", "broadcast"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(…)", "all_reduce"),
        ("ncclDevKernel_Generic_4(…)", "collective"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(…)", "all_reduce"),
        ("void sglang::cross_device_reduce_2stage<half, 4>(…)", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<…>", "all_reduce"),
        ("oneshotAllreduceFusionKernel", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<…>", "all_reduce"),
        ("multimem_all_gather_kernel", "all_gather"),
        ("deep_ep::internode_ll::dispatch<…>", "all_to_all"),
        ("aiter::allreduce_fusion_kernel_1stage<…>", "all_reduce"),
        ("aiter::reduce_scatter_cross_device_store<…>", "reduce_scatter"),
        ("quickreduce::allreduce_prototype_twoshot<…>", "all_reduce"),
        ("allreduce_LL_1node", "all_reduce"),
        ("moe_finalize_all_reduce_kernel", "all_reduce"),
        ("all_gather_direct_kernel", "all_gather"),
        ("parallel_qknorm_across_head", "all_reduce"),
        ("deep_ep::intranode::combine<…>", "all_to_all"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", None),
        ("splitKreduce_kernel<32, 16, int, float>", None),
        ("merge_attn_states_kernel", None),
        (GEMM, None),
        ("flash::flash_fwd_kernel", None),
    ],
)
def test_kernels_that_talk(name, kind):
    assert kernels.collective(name) == kind


def test_gloo_on_a_cpu_waited_for_and_hidden(read):
    b = TraceBuilder()
    for i in range(4):
        t = 1000.0 + i * 200
        b.span("scheduler.run_batch", t, t + 190)
        b.span("draft", t + 10, t + 30)
        b.span("step[VERIFY bs=1]", t + 30, t + 150)
        b.span("draft_extend", t + 160, t + 180)
        b.op("aten::mm", t + 31, t + 80)
        b.op("c10d::allreduce_", t + 80, t + 82)
        b.event("user_annotation", "gloo:all_reduce", t + 81, 20.0, tid=77)  # 81 to 101; the loop computes again from 95
        b.op("aten::mm", t + 95, t + 149)
        b.op("aten::add", t + 185, t + 188)
    report = read(b)
    assert report.device == "cpu"
    want = {"draft": 20, "verify": 120 - 14, "communication": 14, "sampling": 10, "draft extend": 20, "other": 20}
    close(totals(report), expected(4, want, gap=10))
    row = report.collectives.to_dict("records")
    assert [(r["collective"], r["phase"], r["count"]) for r in row] == [("all_reduce", "verify", 4)]
    assert row[0]["total_ms"] == pytest.approx(0.08)
    assert row[0]["exposed_ms"] == pytest.approx(0.056)
    assert any("CPU times: no GPU ran this" in note for note in report.notes)
    assert re.fullmatch(r"verify takes most \(5\d\.\d%\)\. On a CPU every verified token costs its own work: .*", advice(report))
    waits = report.phases.assign(share=[{"verify": 0.5, "host gap": 0.3, "draft": 0.2}.get(p, 0.0) for p in report.phases["phase"]])
    told = advice(replace(report, device="cuda", phases=waits))
    assert told.startswith("verify takes most (50.0%). It should cost about one plain decode step")
    assert "Then host gap (30.0%): The device waits for the host" in told  # drafting is below what is too much
    assert advice(replace(report, device="host")).startswith("record the GPU's kernels too")


def test_on_a_cpu_what_no_span_claims_is_shown_and_waiting_is_a_gap(read):
    b = TraceBuilder()
    for i in range(3):
        t = 1000.0 + i * 100
        for name, start, end in (
            ("execute_context_0(0)_generation_1(4)", 0, 50),
            ("gpu_model_runner: sample", 50, 55),
            ("gpu_model_runner: draft", 60, 80),
        ):
            b.span(name, t + start, t + end)
        b.op("aten::slice", t + 56, t + 58)
        b.op("aten::as_strided", t + 56.5, t + 57)  # inside the other
    report = read(b)
    want = {"verify": 50, "sampling": 5, "draft": 20, "unattributed": 2}
    close(totals(report), expected(3, want, gap=0) | {"host_gap_ms": (3 * 3 + 2 * 20) / 1e3})
    assert report.unattributed.to_dict("records") == [{"name": "aten::slice", "count": 3, "total_ms": pytest.approx(0.006)}]
    silent = TraceBuilder(events=[e for e in b.events if e["cat"] != "cpu_op"])
    close(totals(read(silent, "b.json")), expected(3, want, gap=0) | {"unattributed_ms": (5 * 3 + 2 * 20) / 1e3})


# -- what is no cycle -----------------------------------------------------------------------------------------------------------------


def prefill(b, host, device, bs=2):
    b.span("scheduler.run_batch", host, host + 110)
    b.span(f"step[EXTEND bs={bs} toks=512]", host + 10, host + 60)
    b.span("draft_extend", host + 80, host + 95)
    b.launch(host + 20, GEMM, device, 120.0)
    b.launch(host + 85, GEMM, device + 120, 30.0)


def test_prefill_and_idle_stand_outside(read):
    b = TraceBuilder()
    tb.cycle(b, "0.5.23", 1000.0, 1100.0)
    prefill(b, 1165.0, 1265.0)
    tb.cycle(b, "0.5.23", 1330.0, 1430.0)
    b.span("scheduler.idle", 1480.0, 5480.0)
    tb.cycle(b, "0.5.23", 5495.0, 5595.0)
    tb.cycle(b, "0.5.23", 5660.0, 5760.0)
    report = read(b)
    assert list(report.cycles["wall_ms"]) == pytest.approx([0.165, 0.162, 0.165, 0.162])
    rows = report.outside.set_index("kind")
    assert rows.loc["prefill", ["count", "total_ms", "median_ms", "batch"]].tolist() == [1, pytest.approx(0.165), pytest.approx(0.165), 2]
    assert rows.loc["idle", "total_ms"] == pytest.approx((5595 - 1430 - 162) / 1e3)


def test_a_long_wait_without_an_idle_span_is_no_part_of_a_cycle(read):
    b = TraceBuilder()
    for i, t in enumerate([0, 165, 330, 50_000, 50_165]):
        tb.cycle(b, "0.5.17", 1000.0 + t, 1100.0 + t, bs=i + 1)
    report = read(b)
    assert list(report.cycles["wall_ms"]) == pytest.approx([0.165, 0.165, 0.162, 0.165, 0.162])
    assert report.outside["kind"].tolist() == ["idle"]
    assert any("idle, not as part of a cycle: 1 (longer than 10 median cycles" in note for note in report.notes)
    assert report.by_batch()["batch"].tolist() == [1, 2, 3, 4, 5]


def test_a_client_that_thinks_between_requests_makes_no_host_gap(read):
    """Eight passes of waiting behind every eight, below what is always called idle; the gaps inside of requests are 3 us a cycle."""
    b, at = TraceBuilder(), 1000.0
    for _ in range(4):
        prefill(b, at, at + 20)
        for i in range(1, 9):
            tb.cycle(b, "0.5.17", at + i * PERIOD, at + 20 + i * PERIOD)
        at += 17 * PERIOD
    report = read(b)
    close(totals(report), expected(32) | {"host_gap_ms": 4 * 7 * 3 / 1e3})
    idle = report.outside.set_index("kind").loc["idle"]
    assert (idle["count"], idle["total_ms"]) == (3, pytest.approx(3 * (8 * PERIOD + 3) / 1e3))


def test_plain_decoding_has_no_cycle_and_says_what_it_has(read, capsys, tmp_path):
    b = TraceBuilder()
    for i in range(6):
        t = 1000.0 + i * 100
        b.span("scheduler.run_batch", t, t + 60)
        b.span("step[DECODE bs=3]", t + 5, t + 40)
        b.launch(t + 10, GEMM, t + 20, 70.0)
    report = read(b)
    assert not report.speculative
    assert report.engine == "sglang"
    assert report.summary == "no speculative cycle in this trace; found instead: plain decode steps 6"
    assert report.outside.to_dict("records") == [
        {
            "kind": "decode",
            "count": 6,
            "total_ms": pytest.approx(0.57),
            "median_ms": pytest.approx(0.1),
            "target_ms": pytest.approx(0.07),
            "target_low_ms": pytest.approx(0.07),
            "target_high_ms": pytest.approx(0.07),
            "batch": 3,
        }
    ]
    assert main(["trace", str(b.write(tmp_path / "d.json"))]) == 0
    out = capsys.readouterr().out
    assert "no speculative cycle in this trace" in out
    assert out.rstrip().splitlines()[-1].startswith("What to look at: record again while the server generates with speculation on")


def test_plain_vllm_and_mixed_steps(read):
    b = TraceBuilder()
    names = ["execute_context_2(700)_generation_0(0)", "execute_context_1(90)_generation_2(8)", "execute_context_0(0)_generation_3(3)"]
    for i, name in enumerate(names):
        b.span(name, 1000.0 + i * 100, 1060.0 + i * 100)
        b.launch(1010.0 + i * 100, GEMM, 1020.0 + i * 100, 50.0)
    rows = read(b).outside.set_index("kind")
    assert {kind: int(rows.loc[kind, "batch"]) for kind in rows.index} == {"prefill": 2, "mixed": 3, "decode": 3}


def test_a_trace_of_something_else(read):
    b = TraceBuilder()
    b.span("ProfilerStep#3", 1000, 2000)
    b.launch(1010, GEMM, 1020, 50.0)
    report = read(b)
    assert (report.speculative, report.engine) == (False, None)
    assert report.summary == (
        "no speculative cycle: no step of SGLang, vLLM or eaglelab's loop in this trace; its spans are `ProfilerStep#3`"
    )


def test_cut_cycles_are_left_out_with_a_note(read):
    """The recording begins and ends inside run_batch: as SGLang's profiler does."""
    b = era_trace("0.5.23", 6)
    first, last = 1000.0, 1000.0 + 5 * PERIOD
    b.events = [e for e in b.events if not (e["name"] == "scheduler.run_batch" and e["ts"] == first)]
    b.events = [e for e in b.events if not (e["cat"] == "user_annotation" and e["ts"] > last + 60)]
    report = read(b)
    assert len(report.cycles) == 4
    assert any("first cycle was cut by the beginning" in note for note in report.notes)
    assert any("last cycle was cut by the end" in note for note in report.notes)
    close(totals(report), expected(4) | {"host_gap_ms": 4 * 3 / 1e3})


def test_kernels_of_the_last_cycle_not_recorded(read):
    b = era_trace("0.5.23")
    b.events = [e for e in b.events if not (e["cat"] == "kernel" and e["ts"] > 1400.0 + 4 * PERIOD + 100)]
    report = read(b)
    assert len(report.cycles) == 4
    assert any("last cycle was cut" in note for note in report.notes)


def test_negative_durations_and_spans_that_never_close(read):
    b = era_trace("0.5.23")
    b.kernel("broken", 1450.0, -5.0)
    b.kernel("lost", math.nan, 5.0)
    for event in b.events:  # the third `draft` span is open until the end of the recording, and says so
        if event["name"] == "scheduler.process_batch_result" and event["ts"] == 1000.0 + 2 * PERIOD + 115:
            event["dur"] = 1e6
    report = read(b)
    close(totals(report), expected(5))
    assert any("reach into the next pass" in note for note in report.notes)
    assert any("negative" in note for note in report.notes)


def test_a_span_that_never_closes_on_a_cpu_ends_where_the_next_pass_begins(read):
    b = TraceBuilder()
    for i in range(4):
        t = 1000.0 + i * 100
        b.span("scheduler.run_batch", t, t + (1e6 if i == 1 else 90))
        for name, start, end in (("draft", 5, 15), ("step[VERIFY bs=1]", 20, 60), ("draft_extend", 70, 1e6 if i == 1 else 80)):
            b.span(name, t + start, t + end)
        b.op("aten::mm", t + 21, t + 59)
    report = read(b)
    # after `draft` verify is prepared (5), after the step comes sampling (10); the second draft_extend takes 30 where the others take 10
    want = {"draft": 10, "verify": 45, "sampling": 10, "draft extend": 10, "other": 15}
    change = {"draft_extend_ms": (3 * 10 + 30) / 1e3, "other_ms": (3 * 15 + 5) / 1e3, "host_gap_ms": 2 * 10 / 1e3}
    close(totals(report), expected(4, want) | change)


@pytest.mark.parametrize("seed", range(6))
def test_half_of_the_events_missing_still_sums_up(read, seed):
    chance = random.Random(seed)
    b = era_trace(["0.5.23", "0.5.17", "no verify span", "0.5.9", "vllm", "eaglelab"][seed], 8)
    for event in b.events:
        if chance.random() < 0.1:
            event["args"] = chance.choice([{}, {"correlation": "x"}, {"correlation": None, "stream": None}, {"device": "gpu"}])
        if chance.random() < 0.05:
            event["dur"] = chance.choice([-1.0, 0.0, 1e9])
    b.events = [event for event in b.events if chance.random() < 0.6]
    chance.shuffle(b.events)
    report = read(b)
    report.to_json()
    assert report.summary


def test_a_file_that_ends_among_its_kernels_counts_no_half_cycle(read):
    """Kineto writes the host's events first: every span is there, kernels of the first two cycles and a half alone."""
    b = era_trace("0.5.23", 6)
    b.events = [e for e in b.events if not (e["cat"] in ("kernel", "gpu_memcpy") and e["ts"] > 1400.0 + 2 * PERIOD + 100)]
    report = read(b)
    assert len(report.cycles) == 2
    close(totals(report), expected(2) | {"host_gap_ms": 2 * 3 / 1e3})
    assert any("kernels that they launched are not in the trace" in note and note.endswith(": 1") for note in report.notes)


@pytest.mark.parametrize("calls", [True, False])
def test_a_gpus_server_without_its_kernels_is_no_cpu(read, calls):
    """activities CPU alone, or a driver that gave no kernels: spans of 25 us launched 100 us of work."""
    b = era_trace("0.5.23")
    b.events = [e for e in b.events if e["cat"] == "user_annotation" or (calls and e["cat"] == "cuda_runtime")]
    report = read(b, deviceProperties=[] if calls else [{"id": 0, "name": "NVIDIA H200"}])
    assert report.device == "host"
    assert report.share(Phase.VERIFY) is None
    assert "times of launching" in report.summary
    assert '"activities": ["CPU", "GPU"]' in report.notes[0]
    loop = read(era_trace_of_spans("eaglelab"), "loop.json", deviceProperties=[{"id": 0}])  # may well run on such a machine's CPU
    assert loop.device == "cpu"


def era_trace_of_spans(era):
    b = era_trace(era)
    b.events = [e for e in b.events if e["cat"] == "user_annotation"]
    return b


# -- ranks and files ------------------------------------------------------------------------------------------------------------------


def test_two_ranks_in_two_files_and_in_a_folder(tmp_path):
    for rank in (0, 1):
        b = era_trace("0.5.23")
        if rank:  # its verify is 3 us longer
            for event in b.events:
                if event["name"] == "flash::FlashAttnFwd":
                    event["dur"] += 0.0
                    event["ts"] -= 0.0
                if event["name"] == GEMM and event["dur"] == 20.0:
                    event["dur"] += 3.0
        b.write(tmp_path / f"1700000000-TP-{rank}.trace.json.gz", distributedInfo={"rank": rank, "world_size": 2})
    (tmp_path / "server_args.json").write_text("{}")
    report = checked(read_trace(tmp_path))
    assert [p.name for p in report.files] == ["1700000000-TP-0.trace.json.gz", "1700000000-TP-1.trace.json.gz"]
    table = report.by_rank().set_index("rank")
    assert table["cycles"].to_dict() == {"TP0": 5, "TP1": 5}
    assert table["draft_extend_ms"].to_dict() == pytest.approx({"TP0": 0.020, "TP1": 0.023})
    assert table["host_gap_ms"].to_dict() == pytest.approx({"TP0": 0.003, "TP1": 0.0})
    assert report.cycles.groupby("rank")["cycle"].apply(list).to_dict() == {"TP0": [0, 1, 2, 3, 4], "TP1": [0, 1, 2, 3, 4]}


def test_nothing_is_counted_twice(tmp_path):
    """The same file unpacked beside itself, given twice, and under another name; equal ranks are two."""
    b = era_trace("0.5.23")
    for name in ("a-TP-0.trace.json.gz", "a-TP-0.trace.json", "copy-TP-0.trace.json", "a-TP-1.trace.json"):
        b.write(tmp_path / name)
    report = checked(read_trace([tmp_path, tmp_path / "a-TP-0.trace.json"]))
    assert report.by_rank().set_index("rank")["cycles"].to_dict() == {"TP0": 5, "TP1": 5}
    assert sum("the same recording as a-TP-0.trace.json, left out" in note for note in report.notes) == 2


def test_ranks_of_two_data_parallel_groups_of_vllm_are_two(tmp_path):
    for group in (0, 1):
        era_trace("vllm", lag=60.0 + group, bs=group + 1).write(tmp_path / f"dp{group}_pp0_tp0_dcp0_ep{group}_rank0.17.pt.trace.json.gz")
    assert checked(read_trace(tmp_path)).by_rank()["rank"].tolist() == ["DP0 rank 0", "DP1 rank 0"]


def test_engines_in_one_folder_are_said_to_be_several(tmp_path, capsys):
    for era in ("vllm", "0.5.23"):
        era_trace(era).write(tmp_path / f"{era}-rank0.json")
    report = read_trace(tmp_path)
    assert "several kinds are counted together (sglang on cuda, vllm on cuda)" in report.notes[0]
    assert report.summary.startswith("Recordings of several kinds are counted together (sglang on cuda, vllm on cuda): read them apart\n")
    assert main(["trace", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Recordings of several kinds")
    assert out.lower().count("several kinds") == 1
    assert "cycles (all kinds together)" in out
    assert out.rstrip().splitlines()[-1].startswith("What to look at: give the recordings of each engine by themselves")


@pytest.mark.parametrize("n", [5, 6, 17, 65, 400])
def test_the_interval_of_a_median_by_ranks(n):
    """Ranks of the sign test: 2 * P(X < rank) <= 5 %, and no further rank is."""
    values = np.random.default_rng(n).permutation(n) + 0.5  # its own rank
    low, high = median_interval(values)
    left = [sum(math.comb(n, k) for k in range(rank)) / 2**n for rank in range(n // 2)]
    if n < 6:
        assert math.isnan(low)
        return
    rank = max(i for i, p in enumerate(left) if p <= 0.025)
    assert low == pytest.approx(rank - 0.5, abs=1 if n > 64 else 0)
    assert low + high == n


def test_a_merged_trace_is_split_by_rank(tmp_path):
    """SGLang 0.5.23 utils/profile_merger.py: the rank's label before every process id; correlations of two ranks are the same numbers."""
    events = []
    for rank in (0, 1):
        b = era_trace("0.5.23", bs=rank + 1)
        for event in b.events:
            event["pid"] = f"[TP{rank:02d}-DP00] {event['pid']}"
        events += b.events
    report = checked(read_trace(TraceBuilder(events=events).write(tmp_path / "merged-17.trace.json.gz")))
    assert report.by_rank()["rank"].tolist() == ["TP0 DP0", "TP1 DP0"]
    assert report.by_batch()["batch"].tolist() == [1, 2]
    close({k: v / 2 for k, v in totals(report).items()}, expected(5))


def test_two_processes_in_one_file(tmp_path):
    events = []
    for rank in (0, 1):
        b = era_trace("0.5.23", bs=rank + 1)
        b.pid, b.device = 500 + rank, rank
        for event in b.events:
            event["pid"] = 500 + rank if event["pid"] == 4242 else rank
            if "device" in event["args"]:
                event["args"]["device"] = rank
            if "correlation" in event["args"]:
                event["args"]["correlation"] += 10_000 * rank
        events += b.events
    report = checked(read_trace(TraceBuilder(events=events).write(tmp_path / "both.json")))
    assert report.by_rank()["rank"].tolist() == ["process 500", "process 501"]
    close({k: v / 2 for k, v in totals(report).items()}, expected(5))


def test_stages_of_one_rank_are_one_rank(tmp_path):
    b = TraceBuilder()
    prefill(b, 1000.0, 1100.0)
    prefill(b, 1165.0, 1265.0)
    b.write(tmp_path / "7-TP-0-EXTEND.trace.json.gz")
    era_trace("0.5.23").write(tmp_path / "7-TP-0-DECODE.trace.json.gz")
    report = checked(read_trace(tmp_path))
    assert set(report.cycles["rank"]) == {"TP0"}
    assert report.outside["kind"].tolist() == ["prefill"]
    assert int(report.outside["count"].iloc[0]) == 2


def test_a_file_that_cannot_be_used_is_a_note_beside_others_and_an_error_alone(tmp_path, capsys):
    era_trace("0.5.23").write(tmp_path / "a-TP-0.trace.json.gz")
    bad = tmp_path / "a-TP-1.trace.json.gz"
    bad.write_text("<html>not found</html>")
    report = read_trace([tmp_path / "a-TP-0.trace.json.gz", bad])
    assert len(report.cycles) == 5
    assert any(note.startswith("left out: ") and "a-TP-1" in note for note in report.notes)
    with pytest.raises(TimingError, match="a-TP-1"):
        read_trace(bad)
    assert main(["trace", str(bad)]) == 2
    assert "a-TP-1" in capsys.readouterr().err


def test_folders_without_traces(tmp_path):
    with pytest.raises(TimingError, match=r"a folder without traces; expected \*\.trace\.json\.gz or \*\.json .* got nothing"):
        read_trace(tmp_path)
    with pytest.raises(TimingError, match="no trace was given"):
        read_trace([])


# -- names ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "frame", "phase"),
    [
        ("step[VERIFY bs=8]", False, "verify"),
        ("step[TARGET_VERIFY bs=8]", False, "verify"),
        ("step[VERIFY bs=8 g_sq=32 g_sqsq=128 g_sqsk=9 g_sk=9 forward_id=3]", False, "verify"),
        ("step[DRAFT bs=8]", False, "draft"),
        ("step[DRAFT_EXTEND_V2 bs=8]", False, "draft extend"),
        ("step[EXTEND bs=1 toks=9]", False, "prefill"),
        ("gpu_model_runner: postprocess", False, "verify"),
        ("gpu_model_runner: bookkeep", False, "other"),
        ("eaglelab.draft_extend", False, "draft extend"),
        ("sglang/srt/speculative/eagle_worker_v2.py(511): _draft_extend_for_decode", True, "draft extend"),
        ("sglang/srt/speculative/eagle_worker.py(503): draft", True, "draft"),
        ("vllm/v1/spec_decode/llm_base_proposer.py(512): propose", True, "draft"),
    ],
)
def test_names_to_phases(name, frame, phase):
    assert rule_of(name, frame).phase == phase


@pytest.mark.parametrize("name", ["drafting", "step[", "ProfilerStep#1", "nccl:all_reduce", "aten::mm", "draft_forward"])
def test_other_names_are_nobodys(name):
    assert rule_of(name) is None


def test_every_row_of_the_table_says_where_it_was_read():
    import tomllib
    from importlib.resources import files

    rows = tomllib.loads(files("eaglelab.timing.trace").joinpath("spans.toml").read_text())["spans"]
    assert all(row["read"] and row["source"] in ("annotation", "frame") for row in rows)
    assert len(rules()) == len(rows)


def test_verified_tokens_where_annotations_tell_them(read):
    b = era_trace("0.5.23")
    for event in b.events:
        if event["name"] == "step[VERIFY bs=4]":
            event["name"] = "step[VERIFY bs=4 g_sq=24 g_sqsq=144 g_sqsk=9 g_sk=9]"
    assert set(read(b).cycles["verified"]) == {6.0}


# -- the command ----------------------------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_and_one_document(tmp_path, capsys):
    path = era_trace("0.5.23").write(tmp_path / "r-TP-0.trace.json.gz")
    assert main(["trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "5 cycles (sglang, times of kernels on the device)" in out
    assert "verify dominates: 54.7% of the time" in out
    assert "all_reduce" in out
    assert (
        out.rstrip().splitlines()[-1].startswith("What to look at: verify takes most (54.7%). It should cost about one plain decode step")
    )
    assert main(["trace", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert data["speculative"] is True
    assert len(data["cycles"]) == 5
    assert data["cycles"][0]["verified"] is None
    assert sum(row["share"] for row in data["phases"]) == pytest.approx(1.0)
    assert {row["phase"] for row in data["phases"]} == {phase.value for phase in Phase}


def test_the_loops_thread_is_the_one_with_cycles(read):
    b = era_trace("0.5.23")
    b.span("scheduler.recv_requests", 900, 3000, tid=MAIN + 1)
    b.span("copy_result_to_cpu", 1000, 1100, tid=MAIN + 2)
    close(totals(read(b)), expected(5))
