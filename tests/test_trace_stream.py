"""Events of chrome traces: what `json.load` and a filter find, in any layout, at any block size; and a clear word on what is no trace."""

import gzip
import json
import math
import random
import sqlite3
import tracemalloc
import zipfile
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelab.timing.errors import TimingError
from eaglelab.timing.trace.borders import borders
from eaglelab.timing.trace.stream import KERNELS, LAUNCHES, SPANS, Event, TraceFile

WANTED = ("kernel", "user_annotation", "cuda_runtime")
KINETO = """ {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320
    }
  ],
    "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [
    
  {
    "ph": "M",
    "name": "process_name",
    "ts": 5175442283453.691,
    "pid": 7,
    "tid": 0,
    "args": {
      "name": "python"
    }
  },
  {
    "ph": "M",
    "name": "thread_name",
    "ts": 5175442283453.691,
    "pid": 7,
    "tid": 70,
    "args": {
      "name": "thread 70 (sglang)"
    }
  },
  {
    "ph": "X",
    "cat": "user_annotation",
    "name": "step[VERIFY bs=1]",
    "pid": 7,
    "tid": 70,
    "ts": 5175442310976.184,
    "dur": 26711.257
    ,
    "args": {
      "External id": 1,"Record function id": 0, "Ev Idx": 0
    }
  },
  {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::randn",
    "pid": 7,
    "tid": 70,
    "ts": 5175442310977.084,
    "dur": 2372.210
    ,
    "args": {
      "External id": 2,"Concrete Inputs": ["[8, 8]", "", "", "", "False"], "Input Dims": [[], [], [], [], []], "Ev Idx": 1
    }
  },
  {
    "ph": "X",
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
    "pid": 7,
    "tid": 70,
    "ts": 5175442310978.000,
    "dur": 1.5
    ,
    "args": {
      "External id": 2, "cbid": 211, "correlation": 2
    }
  },
  {
    "ph": "s",
    "id": 2,
    "pid": 7,
    "tid": 70,
    "ts": 5175442310978.000,
    "cat": "ac2g",
    "name": "ac2g"
  },
  {
    "ph": "X",
    "cat": "kernel",
    "name": "void at::native::elementwise_kernel<4, at::native::{lambda(float)#1}>",
    "pid": 0,
    "tid": 7,
    "ts": 5175442310985.249,
    "dur": 3.008
    ,
    "args": {
      "External id": 2, "device": 0, "stream": 7, "correlation": 2, "blocks per SM": 0.25, "grid": [1, 1, 1]
    }
  },
  {
    "ph": "i",
    
    "s": "g",
    "name": "Record Window End",
    "pid": "",
    "tid": "",
    "ts": 5175442358478.627
    
  }
  ],"traceName": "a.json" }"""


def written(folder, content, name="trace.json"):
    path = folder / name
    data = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(path, categories=WANTED, names=(), block=1 << 20):
    file = TraceFile(path, block=block)
    return list(file.events(categories, names)), file


def x(name="k", cat="kernel", ts=1, dur=2, **more):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur, **more}


# -- Kineto's own layout ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace"])
@pytest.mark.parametrize("block", [1, 100, 1000, 1 << 20])
def test_a_trace_as_kineto_writes_it(tmp_path, name, block):
    events, file = read(written(tmp_path, KINETO, name), block=block)
    first = 5175442283453
    assert [(e.cat, e.name, e.pid, e.tid, e.dur) for e in events] == [
        ("user_annotation", "step[VERIFY bs=1]", 7, 70, 26711.257),
        ("cuda_runtime", "cudaLaunchKernel", 7, 70, 1.5),
        ("kernel", "void at::native::elementwise_kernel<4, at::native::{lambda(float)#1}>", 0, 7, 3.008),
    ]
    assert file.zero == 5175442310976  # of the first event that is no name of a process
    assert [e.ts for e in events] == [0.184, 2.0, 9.249]
    assert events[2].args == {"External id": 2, "device": 0, "stream": 7, "correlation": 2, "blocks per SM": 0.25, "grid": [1, 1, 1]}
    assert (file.events_seen, file.kept) == (8, 3)
    assert file.zero - first == 27523
    assert file.by_category == {"user_annotation": 1, "cpu_op": 1, "cuda_runtime": 1, "kernel": 1}
    assert file.metadata["distributedInfo"]["rank"] == 1
    assert file.metadata["deviceProperties"][0]["name"] == "NVIDIA H200"
    assert file.metadata["baseTimeNanoseconds"] == 1790857026000000000
    assert file.metadata["traceName"] == "a.json"
    assert file.metadata["process_name"] == {(7, 0): "python"}
    assert file.metadata["thread_name"] == {(7, 70): "thread 70 (sglang)"}
    assert file.notes == []


def test_a_second_pass_starts_anew(tmp_path):
    file = TraceFile(written(tmp_path, KINETO))
    once = list(file.events(WANTED))
    seen = (file.events_seen, file.kept, dict(file.by_category), list(file.notes))
    assert list(file.events(WANTED)) == once
    assert (file.events_seen, file.kept, file.by_category, file.notes) == seen


def test_names_add_events_of_other_categories(tmp_path):
    path = written(tmp_path, KINETO)
    for block in (1, 300, 1 << 20):
        assert [e.name for e in read(path, (), ("aten::", "cudaL"), block)[0]] == ["aten::randn", "cudaLaunchKernel"]
        assert [e.name for e in read(path, "kernel", "step[VERIFY bs=1] and more", block)[0]] == [
            "void at::native::elementwise_kernel<4, at::native::{lambda(float)#1}>"
        ]


def test_a_large_trace_of_one_layout_is_hardly_decoded(tmp_path, monkeypatch):
    """The quick way is taken: of 4,000 events, 1 % of them asked for, few more than those are decoded."""
    trace = {"traceEvents": [x("a" if i % 100 else "k", "cpu_op" if i % 100 else "kernel", i) for i in range(4000)]}
    for indent in (None, 2):
        path = written(tmp_path, json.dumps(trace, indent=indent))
        decoded = []
        loads = json.loads
        monkeypatch.setattr(json, "loads", lambda text, loads=loads, decoded=decoded, **k: decoded.append(len(text)) or loads(text, **k))
        events, file = read(path, block=1 << 14)
        monkeypatch.undo()
        assert len(events) == 40
        assert file.by_category == {"cpu_op": 3960, "kernel": 40}
        assert sum(decoded) < path.stat().st_size / 20


def test_memory_does_not_grow_with_the_file(tmp_path):
    part = ", ".join(json.dumps(x("f" * 40, "python_function", i)) for i in range(1000))
    peaks = []
    for repeats in (20, 80):
        path = written(tmp_path, '{"traceEvents": [' + ", ".join([part] * repeats) + "]}")
        tracemalloc.start()
        assert sum(1 for _ in TraceFile(path, block=1 << 18).events(WANTED)) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert path.stat().st_size > 9e6
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 5e6


# -- any layout --------------------------------------------------------------------------------------------------------------------------------

NASTY = (
    '"cat": "kernel"', "}, {", '}, {"ph": "X", "cat": "kernel", "name": "no", "ts": 1, "dur": 1}', "{", "}", "[{", ", {", '\\"', "\\", "]}", "é漢\U0001f600",
    "\n  },\n  {\n    \"ph\": \"X\",", "{lambda()#1}", "[{'a': 1}, {'b': 2}]", "kernel", "step[", "\x01\t", "", ":{", ',{ "', "\u2028",
)  # fmt: skip
texts = st.sampled_from(NASTY) | st.text(max_size=6) | st.lists(st.sampled_from(NASTY), max_size=3).map("".join)
numbers = st.integers(-5, 10**13) | st.floats(-1, 1e13) | st.floats(allow_nan=True) | st.decimals(0, 10**10, places=3).map(float)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.sampled_from(("ph", "cat", "name", "ts")), inner, max_size=3),
    max_leaves=6,
)
plain_event = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(("kernel", "cpu_op", "python_function", "user_annotation")), "name": texts},
    optional={
        "pid": st.integers(0, 3),
        "tid": st.integers(0, 3),
        "ts": numbers,
        "dur": numbers,
        "args": st.dictionaries(texts, values, max_size=3),
    },
)
odd_event = st.dictionaries(st.sampled_from(("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "")), values, max_size=6)
some_ph = st.fixed_dictionaries(
    {"ph": st.sampled_from(("i", "C", "s", "f", "b", "M", "X"))}, optional={"cat": texts, "name": texts, "ts": numbers, "args": values}
)
FIRST = {"ph": "X", "cat": "first", "name": "first", "pid": 0, "tid": 0, "ts": 0, "dur": 0}


def spelled(value, draw, escape, depth=0):
    """JSON of any spelling: white space anywhere, keys in any order, letters as escapes."""
    space = lambda: draw.choice(draw.spaces)  # noqa: E731
    if isinstance(value, dict):
        items = list(value.items())
        if draw.shuffled:
            draw.shuffle(items)
        inner = f"{space()},{space()}".join(f"{spelled(k, draw, escape)}{space()}:{space()}{spelled(v, draw, escape)}" for k, v in items)
        return "{" + space() + inner + space() + "}"
    if isinstance(value, list):
        return "[" + space() + f"{space()},{space()}".join(spelled(v, draw, escape) for v in value) + space() + "]"
    if isinstance(value, str) and draw.random() < escape:
        return (
            '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in value) + '"' if value.isprintable() else json.dumps(value)
        )
    return json.dumps(value, ensure_ascii=draw.random() < 0.5)


def filtered(trace, categories, names):
    """What the stream has to find, from the decoded trace: (cat, name, pid, tid, ts, dur, args), and the counts of complete events."""
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    found, counts = [], {}
    for e in events:
        if not isinstance(e, dict) or e.get("ph") != "X":
            continue
        text = [v if isinstance(v, str) else "" if v is None else str(v) for v in (e.get("cat"), e.get("name"))]
        counts[text[0]] = counts.get(text[0], 0) + 1
        if text[0] not in categories and not text[1].startswith(tuple(names)):
            continue
        times = [float(v) if isinstance(v, str) and is_number(v) else v for v in (e.get("ts"), e.get("dur"))]
        if all(type(v) in (int, float) and math.isfinite(v) for v in times) and times[1] >= 0:
            place = [str(v) if isinstance(v, (dict, list)) else v for v in (e.get("pid"), e.get("tid"))]
            found.append((*text, *place, times[0], times[1], e["args"] if isinstance(e.get("args"), dict) else {}))
    return found, counts


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def same(a, b):
    return json.dumps(a, sort_keys=True, default=str) == json.dumps(b, sort_keys=True, default=str)  # NaN equals NaN


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(plain_event | some_ph | odd_event, max_size=12),
    beside=st.dictionaries(texts, values, max_size=3),
    seed=st.integers(0, 2**32),
    spaces=st.sampled_from(([""], [" "], ["", " "], ["\n  "], ["", "\n", " \t", "\r\n   "], [" " * 70, ""])),
    escape=st.sampled_from((0, 0, 0.2)),
    block=st.sampled_from((1, 7, 64, 500, 1 << 20)),
    names=st.sampled_from(((), ("step[",), ("é漢", '"cat'), ("}, {",))),
    bare=st.booleans(),
)
def test_events_are_what_json_load_and_a_filter_find(tmp_path_factory, events, beside, seed, spaces, escape, block, names, bare):
    draw = random.Random(seed)
    draw.spaces, draw.shuffled = spaces, draw.random() < 0.3
    items = [(k, v) for k, v in beside.items() if k != "traceEvents"]
    at = draw.randrange(len(items) + 1)
    events = [FIRST, *events]
    trace = events if bare else dict([*items[:at], ("traceEvents", events), *items[at:]])
    text = spelled(trace, draw, escape)
    trace = json.loads(text)
    found, counts = filtered(trace, WANTED, names)
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    got, file = read(path, WANTED, names, block)
    assert file.events_seen == len(events)
    assert file.by_category == counts
    assert file.kept == len(got) == len(found)
    for mine, theirs in zip(got, found, strict=True):
        assert mine[:4] == theirs[:4]
        assert same(mine.args, theirs[6])
        assert mine.dur == theirs[5]
        assert mine.ts == pytest.approx(theirs[4] - file.zero, abs=1e-3, rel=1e-12)
    if not bare:
        described = ("process_name", "process_labels", "thread_name")
        keys = {k for k in trace if k != "traceEvents"}
        assert keys - set(described) <= set(file.metadata) <= keys | set(described)
        assert all(same(file.metadata[k], trace[k]) for k in keys - set(described))


@settings(max_examples=80, deadline=None)
@given(
    events=st.lists(plain_event | odd_event, min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    spaces=st.sampled_from(([""], [" "], ["\n  "], ["", "\n", " \t"])),
)
def test_borders_are_those_of_the_events(events, seed, spaces):
    """All that `borders` says is true, and up to what it doubts it says all."""
    draw = random.Random(seed)
    draw.spaces, draw.shuffled = spaces, False
    data, true = b"", []
    for i, event in enumerate(events):
        text = spelled(event, draw, 0).encode("utf-8", "surrogatepass")
        data += (b"" if i == 0 else b"," + draw.choice(spaces).encode()) + text
        true.append((len(data) - len(text), len(data)))
    found = borders(data, 0)
    told = list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    assert told == true[: len(told)]
    assert found.next_start == true[len(told)][0]
    if found.doubt is None:
        assert len(told) >= len(true) - 2  # the last one's begin may lie too near the end


def test_plain_layouts_leave_no_doubt():
    for indent, event in product((None, 1, 4), (x(), x(args={"grid": [1, 2], "a": {"b": {}}}))):
        text = json.dumps([event] * 50, indent=indent)
        found = borders(text.encode(), text.index("{"))
        assert len(found.starts) == 49
        assert found.doubt is None


def test_layouts_with_lists_of_objects_in_their_events_are_read_too(tmp_path):
    nested = [x("n", args={"inner": [x("no"), x("no")], "text": "}, {"}) if i % 3 else x("k", ts=i) for i in range(500)]
    for block in (100, 1 << 14):
        events, file = read(written(tmp_path, {"traceEvents": nested}), block=block)
        assert len(events) == file.events_seen == 500
        assert {e.name for e in events} == {"n", "k"}


# -- other producers ---------------------------------------------------------------------------------------------------------------------------


def test_pairs_of_begin_and_end(tmp_path):
    pair = [
        {"ph": "B", "cat": "kernel", "name": "outer", "pid": 1, "tid": 1, "ts": 10, "args": {"a": 1}},
        {"ph": "B", "cat": "other", "name": "inner", "pid": 1, "tid": 1, "ts": 12},
        {"ph": "B", "cat": "kernel", "name": "elsewhere", "pid": 1, "tid": 2, "ts": 13},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 15},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 20, "args": {"b": 2}},
        {"ph": "E", "pid": 9, "tid": 9, "ts": 21},
    ]
    for block in (1, 1 << 20):
        events, file = read(written(tmp_path, pair), block=block)
        assert events == [Event("kernel", "outer", 1, 1, 0.0, 10.0, {"a": 1, "b": 2})]
        assert file.by_category == {"kernel": 1, "other": 1}
        assert file.events_seen == 6
        assert file.notes == [
            "1 event left out: that end (`ph` E) and never began",
            "1 event left out: that begin (`ph` B) and never end",
        ]


def test_an_end_with_a_name_ends_the_begin_of_that_name(tmp_path):
    events = [
        {"ph": p, "cat": "kernel", "name": n, "pid": 1, "tid": 1, "ts": t}
        for p, n, t in (("B", "a", 0), ("B", "b", 1), ("E", "a", 5), ("E", "b", 9))
    ]
    assert [(e.name, e.ts, e.dur) for e in read(written(tmp_path, events))[0]] == [("a", 0, 5), ("b", 1, 8)]


def test_a_bare_list_may_lack_its_end(tmp_path):
    for text in ("[" + json.dumps(x()) + ",\n", "[" + json.dumps(x()) + "\n", "[" + json.dumps(x()) + ",]", "[," + json.dumps(x()) + "]"):
        events, file = read(written(tmp_path, text))
        assert len(events) == 1
        assert file.notes == []


def test_byte_order_mark_and_no_events(tmp_path):
    events, file = read(written(tmp_path, b"\xef\xbb\xbf" + KINETO.encode()))
    assert len(events) == 3
    events, file = read(written(tmp_path, '{"traceEvents": [], "a": 1}'))
    assert events == []
    assert file.metadata == {"a": 1}
    assert file.zero is None


def test_old_kineto_in_several_keys_a_line_and_bare_inf(tmp_path):
    """The layout and the `inf` of pytorch/kineto#105."""
    text = (
        '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  \n'
        '  {\n    "ph": "X", "cat": "Memcpy", \n    "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": "stream 7",\n'
        '    "ts": 1614800519473220, "dur": 0,\n    "args": {\n      "device": 0, "bytes": 200, "memory bandwidth (GB/s)": inf\n    }\n  },\n'
        '  {\n    "ph": "X", "cat": "Memcpy", \n    "name": "second", "pid": 0, "tid": "stream 7",\n    "ts": 1614800519473221, "dur": 1,\n    "args": {\n    }\n  }\n]}'
    )
    for block in (1, 1 << 20):
        events, file = read(written(tmp_path, text), ("Memcpy",), block=block)
        assert [(e.tid, e.ts, e.dur) for e in events] == [("stream 7", 0.0, 0.0), ("stream 7", 1.0, 1.0)]
        assert math.isnan(events[0].args["memory bandwidth (GB/s)"])
        assert file.notes == []


# -- times -------------------------------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    zero=st.sampled_from((0, 5175442283453, 1790857026123456, 2**43, 2**53 + 1)),
    places=st.sampled_from((0, 3, 6)),
    quoted=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_times_are_exact_however_large(tmp_path_factory, zero, places, quoted, seed):
    """Against fractions: what a float64 of the difference can hold, also where one of the time itself cannot."""
    draw = random.Random(seed)
    stamps = [f"{zero + draw.randrange(10**7)}" + (f".{draw.randrange(10**places):0{places}d}" if places else "") for _ in range(6)]
    sign = '"' if quoted and not places else ""
    text = ",".join(f'{{"ph": "X", "cat": "kernel", "name": "k", "args": {{"ts": 1}}, "ts": {sign}{s}{sign}, "dur": 1}}' for s in stamps)
    path = tmp_path_factory.getbasetemp() / "times.json"
    path.write_text(f"[{text}]")
    events, file = read(path)
    assert file.zero == int(Fraction(stamps[0]))
    allowed = max(2e-9, np.spacing(float(zero)) if places == 6 and zero < 2**43 else 0)  # six decimals at 5e12 are beyond Kineto's own
    for event, stamp in zip(events, stamps, strict=True):
        assert abs(Fraction(event.ts) - (Fraction(stamp) - file.zero)) <= allowed


@pytest.mark.parametrize(
    ("event", "note"),
    [
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": 3}', "1 event left out: without a finite `dur`"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": 3, "dur": -1}', "1 event left out: with a negative duration"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}', "1 event left out: without a finite `ts`"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e999, "dur": 1}', "1 event left out: without a finite `ts`"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}', "1 event left out: without a finite `ts`"),
        ('{"ph": "X", "cat": "kernel", "name": "k", "ts": true, "dur": 1}', "1 event left out: without a finite `ts`"),
        ('{"ph": "X", "cat": "kernel", "name": "a "quoted" name", "ts": 3, "dur": 1}', "1 event left out: what stands there is no JSON"),
        ('{"ph": "X", "cat": "kernel", "name": "C:\\", "ts": 3, "dur": 1}', "1 event left out: what stands there is no JSON"),
        ('{"ph": "X", "cat": "kernel", "name": "odd " quote", "ts": 3, "dur": 1}', "1 event left out: what stands there is no JSON"),
        ("17", "1 event left out: no event, it has no `ph`"),
        ('{"cat": "kernel"}', "1 event left out: no event, it has no `ph`"),
    ],
)
@pytest.mark.parametrize("block", [1, 200, 1 << 20])
def test_one_bad_event_is_a_note_and_the_others_are_read(tmp_path, event, note, block):
    good = [json.dumps(x(f"k{i}", ts=i)) for i in range(20)]
    text = '{"traceEvents": [' + ",\n".join([*good[:9], event, *good[9:]]) + '], "traceName": "t"}'
    events, file = read(written(tmp_path, text), block=block)
    assert [e.name for e in events] == [f"k{i}" for i in range(20)]
    assert file.notes == [note]
    assert file.events_seen == 21
    assert file.metadata == {"traceName": "t"}


def test_a_value_too_large_ends_the_reading(tmp_path, monkeypatch):
    monkeypatch.setattr("eaglelab.timing.trace.cursor.LARGEST", 10_000)
    huge = x("huge", args={"a": "b" * 50_000})
    events, file = read(written(tmp_path, {"traceEvents": [x(), huge, x()]}), block=1000)
    assert len(events) == 1
    assert file.notes == ["a value of more than 64 MB at byte 99: read up to there"]
    with pytest.raises(TimingError, match=r"a value of more than 64 MB at byte 17, before its first event"):
        read(written(tmp_path, {"traceEvents": [huge]}), block=1000)


def test_bytes_that_are_no_utf8(tmp_path):
    text = KINETO.encode().replace(b"cudaLaunchKernel", b"cuda\xffKernel")
    for block in (1, 1 << 20):
        assert [e.name for e in read(written(tmp_path, text), block=block)[0]][1] == "cuda\ufffdKernel"


# -- files that end early ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_a_cut_json_gives_what_it_holds(tmp_path, block):
    data = json.dumps({"a": 1, "traceEvents": [x(f"k{i}", ts=i) for i in range(30)], "z": 2}).encode()
    first = data.index(b"}") + 1
    for end in range(0, len(data), 37):
        path = written(tmp_path, data[:end])
        if end < first:
            with pytest.raises(TimingError, match=r"before its first event|empty"):
                read(path, block=block)
            continue
        events, file = read(path, block=block)
        assert len(events) == data[:end].count(b"}") - (data[:end].endswith(b"]}"))
        assert len(file.notes) == 1
        assert file.notes[0].startswith("the file ends in the middle (after ")


def test_a_cut_gzip_gives_what_it_holds(tmp_path):
    draw = random.Random(1)
    data = json.dumps({"traceEvents": [x(f"k{draw.random()}", ts=i) for i in range(5000)]}).encode()
    packed = gzip.compress(data)
    path = tmp_path / "cut.json.gz"
    counts = []
    for share in (0.3, 0.9):
        path.write_bytes(packed[: int(share * len(packed))])
        events, file = read(path, block=1 << 16)
        counts.append(len(events))
        assert file.notes == ["the gzip ends early: read up to there"]
        assert abs(len(events) / 5000 - share) < 0.1
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    path.write_bytes(broken)
    events, file = read(path)
    assert counts[0] < len(events) <= 5000
    assert any("the gzip is damaged" in note or "no JSON" in note for note in file.notes)
    path.write_bytes(packed[:20])
    with pytest.raises(TimingError, match=r"cut\.json\.gz: the gzip ends early.*Copy it again"):
        read(path)
    path.write_bytes(packed[:4] + b"\0" * 100)
    with pytest.raises(TimingError, match=r"cut\.json\.gz: "):
        read(path)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), block=st.sampled_from((1, 100, 1 << 20)), packed=st.booleans())
def test_damaged_files_end_in_events_and_notes_or_in_the_room_s_error(tmp_path_factory, seed, block, packed):
    draw = random.Random(seed)
    data = bytearray(gzip.compress(KINETO.encode()) if packed else KINETO.encode())
    for _ in range(draw.randrange(1, 4)):
        at, length = draw.randrange(len(data)), draw.randrange(1, 30)
        data[at : at + length] = draw.choice(
            (b"", b'"', b"{", b"]", b"\\", b"\0", bytes(draw.randrange(256) for _ in range(length)), data[:length])
        )
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(data)
    try:
        events, file = read(path, block=block)
    except TimingError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert len(events) == file.kept <= file.events_seen
        assert all(isinstance(e.args, dict) and math.isfinite(e.ts) and e.dur >= 0 for e in events)


def test_gzip_of_several_members_padding_and_a_wrong_name(tmp_path):
    data = KINETO.encode()
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(data[:700]) + gzip.compress(b"") + gzip.compress(data[700:]) + b"\0" * 512)
    events, file = read(path, block=64)
    assert len(events) == 3
    assert file.notes == []
    path.write_bytes(gzip.compress(data) + b"more")
    events, file = read(path)
    assert len(events) == 3
    assert file.notes == ["something else follows the end of the gzip: read up to there"]


def test_what_follows_the_trace_is_said(tmp_path):
    events, file = read(written(tmp_path, KINETO + "\n" + KINETO))
    assert len(events) == 3
    assert file.notes == [f"something else follows the end of the trace at byte {len(KINETO) + 2:,}: not read"]


# -- what is no trace --------------------------------------------------------------------------------------------------------------------------


def sqlite(path):
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (a)")
    return path


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trace.json", KINETO)
    return path


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: sqlite(p / "nsys.sqlite"), "an SQLite database"),
        (lambda p: zipped(p / "t.json.zip"), "a zip archive"),
        (lambda p: written(p, b"\x28\xb5\x2f\xfd" + b"0" * 50, "t.json.zst"), "packed with zstd, which is not read here: `zstd -d FILE` unpacks it"),
        (lambda p: written(p, gzip.compress(KINETO.encode()), "t.json.gz"), "a gzip that holds a second gzip"),
        (lambda p: written(p, b"\x18\0\0\0\0\0\0\0\xa3\x7fK\x22\x09\0\0\xc0\xb8\xab\xcd\xda\x41\x1a\x0dbrain.Event:2", "events.out"), "a TensorBoard event file"),
        (lambda p: written(p, "<!DOCTYPE html><html>404</html>"), "a web page"),
        (lambda p: written(p, ""), "empty"),
        (lambda p: written(p, "", "t.json.gz"), "a gzip that holds empty"),
        (lambda p: written(p, " \n"), "nothing but white space"),
        (lambda p: written(p, "batch,steps\n1,2\n"), "no JSON: it begins with 'batch,steps"),
        (lambda p: written(p, KINETO.encode("utf-16")), "UTF-16"),
        (lambda p: written(p, b"\x80\x04\x95" + b"0" * 30), "a pickle"),
        (lambda p: written(p, {"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]}), "JSON without `traceEvents` (its keys: 'schema', 'nodes')"),
        (lambda p: written(p, {}), "JSON without `traceEvents` (its keys: none)"),
        (lambda p: written(p, {"traceEvents": {"a": 1}}), "its `traceEvents` is no list"),
        (lambda p: written(p, [{"text": "a"}, {"text": "b"}]), "a list of something else than trace events"),
        (lambda p: written(p, "[1, 2, 3]"), "a list of something else than trace events"),
        (lambda p: written(p, '[{"ph" 1}, {"ph": "X"}]'), "its first event is no JSON"),
        (lambda p: written(p, '{"traceEvents" [}'), "what is no JSON at byte"),
        (lambda p: written(p, "[" * 100_000), "before its first event"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_named(tmp_path, make, told):
    path = make(tmp_path)
    with pytest.raises(TimingError) as error:
        read(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)
    assert "POST /start_profile" in str(error.value) or "Copy it again" in str(error.value)


def test_places_that_hold_no_file(tmp_path):
    with pytest.raises(TimingError, match=r"a folder, expected one trace file"):
        read(tmp_path)
    with pytest.raises(TimingError, match=r"there is no such file.*export_chrome_trace"):
        read(tmp_path / "none.json")


def test_a_trace_of_torch_itself(tmp_path):
    """torch's profiler writes it now, json.load reads it: the same spans, to the nanosecond."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as profiler:
        for i in range(3):
            with record_function(f'step[VERIFY bs={i}] "quoted" {{}} é'):
                torch.ones(4, 4) @ torch.ones(4, 4)
    path = tmp_path / "torch.json.gz"
    profiler.export_chrome_trace(str(path))
    text = gzip.decompress(path.read_bytes()).decode()
    trace = json.loads(text, parse_float=Fraction)
    for block in (1 << 12, 1 << 20):
        events, file = read(path, KERNELS + LAUNCHES + SPANS, ("aten::mm",), block)
        theirs = [e for e in trace["traceEvents"] if e["ph"] == "X" and (e["cat"] in SPANS or e["name"].startswith("aten::mm"))]
        assert [e.name for e in events] == [e["name"] for e in theirs]
        assert sum(e.cat == "user_annotation" for e in events) == 3
        for mine, them in zip(events, theirs, strict=True):
            assert abs(Fraction(mine.ts) - (them["ts"] - file.zero)) < 1e-6
            assert abs(Fraction(mine.dur) - them["dur"]) < 1e-6
        assert file.events_seen == len(trace["traceEvents"])
        assert file.notes == []
