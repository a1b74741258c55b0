"""Traces that real engines wrote (tests/traces), against what is counted in them by hand and by the engines' own counters."""

import gzip
import importlib.util
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from eaglelab.timing.phases import COLUMNS, Phase
from eaglelab.timing.timers import read_timers
from eaglelab.timing.trace import TraceReport, read_trace

TRACES = Path(__file__).with_name("traces")
SHIPPED = Path(__file__).parents[1] / "data" / "example" / "engine" / "vllm-chain.trace.json.gz"

VERIFYING = {  # passes of requests that the server counted while the profiler ran: the difference of both scrapes
    "vllm-0.32.0-chain-b1": 14,
    "vllm-0.32.0-chain-b4": 53,
    "vllm-0.32.0-chain-default-b1": 9,
    "sglang-0.5.23-chain-b1": 14,
    "sglang-0.5.23-chain-b4": 53,
    "sglang-0.5.23-tree-b2": 24,
}
NO_SCOPES = "vllm-0.32.0-chain-default-b1"
SPLIT = [name for name in VERIFYING if name != NO_SCOPES]
"""Traces whose spans tell every phase."""
PLAIN = ("vllm-0.32.0-plain-b2", "sglang-0.5.23-plain-b2")


@cache
def spans(name: str) -> list[dict]:
    """Annotations of a trace in the order of their begin, read with the standard library."""
    path = SHIPPED if name == "shipped" else TRACES / f"{name}.trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sorted((e for e in events if e.get("cat") == "user_annotation"), key=lambda e: e["ts"])


@cache
def report(name: str) -> TraceReport:
    return read_trace(SHIPPED if name == "shipped" else TRACES / f"{name}.trace.json.gz")


def total(name: str, phase: Phase) -> float:
    return report(name).phases.set_index("phase").total_ms[phase]


def duration(found: list[dict]) -> float:
    """Milliseconds of spans that do not overlap."""
    return sum(e["dur"] for e in found) / 1e3


def vllm_steps(name: str) -> list[tuple[int, int, int]]:
    """(requests in prefill, requests in decode, their tokens) of each engine step."""
    steps = (re.fullmatch(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\((\d+)\)", e["name"]) for e in spans(name))
    return [tuple(int(n) for n in step.groups()) for step in steps if step]


def by_hand(name: str) -> list[int]:
    """Requests of each pass that verifies and does nothing else, from the spans' names."""
    if name.startswith("sglang"):
        return [int(found[1]) for e in spans(name) if (found := re.fullmatch(r"step\[VERIFY bs=(\d+)\]", e["name"]))]
    return [decoding for prefill, decoding, tokens in vllm_steps(name) if not prefill and tokens > decoding]


# -- the recordings themselves ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "passes"), VERIFYING.items())
def test_a_recording_is_whole(name, passes):
    """The engine's own counters rose by as many passes as the names of its spans tell, those in mixed steps included."""
    assert read_timers(TRACES / f"{name}.metrics.txt").verify_passes == passes
    mixed = [decoding for prefill, decoding, tokens in vllm_steps(name) if prefill and tokens > decoding]
    assert sum(by_hand(name)) + sum(mixed) == passes


def test_recordings_are_small_and_name_no_machine():
    for path in [SHIPPED, *TRACES.glob("*.gz")]:
        assert path.stat().st_size < 150_000, path
        text = gzip.decompress(path.read_bytes()).decode()
        assert not re.search(r"/(root|home|work|tmp|Users)/", text), path
        assert "host_name" not in text


# -- phases ----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERIFYING)
def test_cycles_are_the_passes_that_verify(name):
    found, counted = report(name), by_hand(name)
    assert found.speculative
    assert found.engine == name.split("-")[0]
    assert found.device == "cpu"
    assert list(found.cycles.batch) == counted
    assert set(found.by_batch().batch) == set(counted)
    assert any("CPU" in note for note in found.notes)


@pytest.mark.parametrize("name", VERIFYING)
def test_phases_sum_to_the_wall_time(name):
    cycles = report(name).cycles
    sums = cycles[list(COLUMNS.values())].sum(axis=1)
    assert list(sums) == pytest.approx(list(cycles.wall_ms), abs=1e-6)
    assert (cycles[list(COLUMNS.values())] >= 0).all(axis=None)
    assert (cycles[COLUMNS[Phase.VERIFY]] > 0.5 * cycles.wall_ms).all()  # 30 layers against 1


@pytest.mark.parametrize("name", SPLIT)
def test_hardly_any_time_is_unattributed(name):
    cycles = report(name).cycles
    assert cycles[COLUMNS[Phase.UNATTRIBUTED]].sum() <= 0.05 * cycles.wall_ms.sum()


def test_without_vllms_scopes_the_rest_of_a_cycle_is_unattributed_and_the_note_says_what_to_record():
    """By default vLLM opens spans around the target's passes alone: nothing may be guessed of what runs between them."""
    found = report(NO_SCOPES)
    verify = [e for e in spans(NO_SCOPES) if re.match(r"execute_context_0\(0\)_generation_[1-9]", e["name"])]
    assert total(NO_SCOPES, Phase.VERIFY) == pytest.approx(duration(verify))
    assert total(NO_SCOPES, Phase.DRAFT) == total(NO_SCOPES, Phase.SAMPLING) == 0
    assert 0.05 < found.cycles[COLUMNS[Phase.UNATTRIBUTED]].sum() / found.cycles.wall_ms.sum() < 0.15  # drafter and sampling
    assert "_C::onednn_mm" in set(found.unattributed.name)  # the drafter's own products
    assert any("VLLM_CUSTOM_SCOPES_FOR_PROFILING=1" in note for note in found.notes)


@pytest.mark.parametrize("name", [n for n in VERIFYING if n.startswith("sglang")])
def test_sglangs_phases_are_its_spans_durations(name):
    """Verify and sampling lie between the end of `draft` and the begin of `draft_extend`; no span is around them."""
    drafts = [e for e in spans(name) if e["name"] == "draft"]
    extends = [min((e for e in spans(name) if e["name"] == "draft_extend" and e["ts"] > d["ts"]), key=lambda e: e["ts"]) for d in drafts]
    between = sum(e["ts"] - d["ts"] - d["dur"] for d, e in zip(drafts, extends, strict=True)) / 1e3
    forwards = duration([e for e in spans(name) if e["name"].startswith("step[VERIFY")])
    assert total(name, Phase.DRAFT) == pytest.approx(duration(drafts))
    assert total(name, Phase.DRAFT_EXTEND) == pytest.approx(duration(extends))
    assert total(name, Phase.VERIFY) + total(name, Phase.SAMPLING) == pytest.approx(between)
    assert forwards <= total(name, Phase.VERIFY) <= 1.01 * forwards


@pytest.mark.parametrize("name", [n for n in SPLIT if n.startswith("vllm")] + ["shipped"])
def test_vllms_phases_are_its_spans_durations(name):
    steps = [i for i, e in enumerate(spans(name)) if e["name"].startswith("execute_")]
    inside = [
        e
        for begin, end in zip(steps, [*steps[1:], None], strict=True)
        if re.match(r"execute_context_0\(0\)_generation_[1-9]", spans(name)[begin]["name"])
        for e in spans(name)[begin:end]
    ]
    of = {
        part: duration([e for e in inside if e["name"] == f"gpu_model_runner: {part}"])
        for part in ("forward", "postprocess", "sample", "draft")
    }
    assert total(name, Phase.DRAFT) == pytest.approx(of["draft"])
    assert total(name, Phase.SAMPLING) == pytest.approx(of["sample"])
    target = of["forward"] + of["postprocess"]  # the lm_head is in the second
    assert target <= total(name, Phase.VERIFY) <= 1.01 * target
    assert set(report(name).cycles.verified) == {4}


def test_vllms_own_histogram_tells_the_same_cycle_by_another_clock():
    """The mean interval between a request's outputs, measured by the front end, against the cycles of the worker's trace."""
    told = read_timers(TRACES / "vllm-0.32.0-chain-b1.metrics.txt")
    cycles = report("vllm-0.32.0-chain-b1").cycles
    assert told.intervals[1] == len(cycles) == 14
    assert told.cycle_ms == pytest.approx(cycles.wall_ms.mean(), rel=0.02)


@pytest.mark.parametrize("name", [n for n in VERIFYING if n.startswith("sglang")])
def test_sglangs_device_timer_tells_the_same_seconds_by_another_clock(name):
    """Around the forward alone, inside the span. Outside captured graphs it books drafting under `decode`, draft extend under `extend`."""
    told = read_timers(TRACES / f"{name}.metrics.txt")
    steps = {
        part: duration([e for e in spans(name) if e["name"].startswith(f"step[{part} ")]) / 1e3 for part in ("VERIFY", "EXTEND", "DRAFT")
    }
    assert told.seconds[Phase.VERIFY] == pytest.approx(steps["VERIFY"], rel=0.01)
    assert told.total == pytest.approx(sum(steps.values()), rel=0.05)
    assert {category: phase for _, category, phase, _ in told.rows} == {
        "target_verify": Phase.VERIFY,
        "decode": Phase.DRAFT,
        "extend": Phase.PREFILL,
    }
    assert any("no `eagle_draft`" in note for note in told.notes)
    assert any("no `eagle_draft_extend`" in note for note in told.notes)


def test_sglangs_device_timer_books_plain_decoding_as_decode():
    name = "sglang-0.5.23-plain-b2"
    told = read_timers(TRACES / f"{name}.metrics.txt")
    assert set(told.seconds) == {Phase.PREFILL, Phase.DECODE}
    assert told.seconds[Phase.DECODE] == pytest.approx(
        duration([e for e in spans(name) if e["name"].startswith("step[DECODE")]) / 1e3, rel=0.05
    )


def test_the_shipped_trace_is_the_spans_of_a_recording():
    whole, alone = report("vllm-0.32.0-chain-b4"), report("shipped")
    assert list(alone.cycles.batch) == list(whole.cycles.batch)
    for phase in (Phase.VERIFY, Phase.DRAFT, Phase.SAMPLING):
        assert total("shipped", phase) == pytest.approx(total("vllm-0.32.0-chain-b4", phase), rel=0.01)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_decoding_has_no_cycles_and_says_what_it_has(name):
    found = report(name)
    assert not found.speculative
    assert len(found.cycles) == 0
    decode = found.outside.set_index("kind").loc[["decode"]]
    assert decode["count"].sum() == 7  # 8 tokens, the first with the prefill
    assert any("no speculative cycle" in note for note in found.notes)
    assert "no speculative cycle" in found.summary


def test_the_librarys_own_loop_is_read_like_an_engine():
    """Chains of 3 for 16 tokens took 12 passes (its own count); the same prompt decoded plainly took 15 steps behind the prefill."""
    found = report("loop")
    of = {
        name: [e for e in spans("loop") if e["name"] == f"eaglelab.{name}"]
        for name in ("cycle", "draft", "verify", "sample", "draft_extend")
    }
    assert (found.engine, found.device, len(found.cycles)) == ("eaglelab", "cpu", 12)
    assert all(len(each) == 12 for each in of.values())
    outside = found.outside.set_index("kind")["count"]
    assert (outside["decode"], outside["prefill"]) == (15, 2)
    assert list(found.cycles[list(COLUMNS.values())].sum(axis=1)) == pytest.approx(list(found.cycles.wall_ms), abs=1e-6)
    for phase, span in ((Phase.DRAFT, "draft"), (Phase.VERIFY, "verify"), (Phase.SAMPLING, "sample"), (Phase.DRAFT_EXTEND, "draft_extend")):
        assert total("loop", phase) == pytest.approx(duration(of[span]))
    assert total("loop", Phase.UNATTRIBUTED) <= 0.05 * found.cycles.wall_ms.sum()


# -- how they were cut -----------------------------------------------------------------------------------------------------------------------


def test_the_filter_drops_by_its_rule_and_changes_nothing(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "engines_cpu"))
    source = importlib.util.spec_from_file_location("recording_traces", Path(__file__).parents[1] / "engines_cpu" / "trace.py")
    recording = importlib.util.module_from_spec(source)
    monkeypatch.setitem(sys.modules, "recording_traces", recording)
    source.loader.exec_module(recording)

    def event(name, ts, dur, cat="cpu_op"):
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, "args": {"External id": 7}}

    round_of = [
        event("scheduler.run_batch", 0, 100, "user_annotation"),
        event("step[VERIFY bs=4]", 10, 50, "user_annotation"),
        event("in the step", 20, 10),
        event("inside of it", 22, 5),
        event("sampling", 70, 20),
        event("inside of that", 75, 5),
        event("between rounds", 150, 10),
    ]
    later = [e | {"ts": e["ts"] + 200, "name": e["name"].replace("bs=4", "bs=3")} for e in round_of]
    idle = event("scheduler.idle", 3e6, 10, "user_annotation")
    label = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}
    events = [label, *round_of, *later, idle]
    untouched = json.dumps(events)
    kept = list(recording.kept(events))
    first = ["scheduler.run_batch", "step[VERIFY bs=4]", "sampling", "between rounds"]
    second = ["scheduler.run_batch", "step[VERIFY bs=3]", "in the step", "sampling", "between rounds"]
    assert [e["name"] for e in kept] == ["process_name", *first, *second]
    assert json.dumps(events) == untouched
    assert all(any(e is one for one in events) for e in kept)
