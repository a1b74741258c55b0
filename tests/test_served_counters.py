"""Counters of servers: what the engine counted, from any file that holds it, and never more than that."""

import json
from pathlib import Path

import pytest

from eaglelab.served import CountersError, RecordingWriter, Request, ServedCounts, read_counters
from eaglelab.served.prometheus import parse_sample, parse_scrapes
from eaglelab.served.recording import Failure, Scrape, Session

LINES = Path(__file__).with_name("served_lines")
ONE_ANSWER = ServedCounts(47, 48, (26, 13, 9))
"""The answer of tests/served_lines: 21, 13, 4, 9 passes that accepted 0, 1, 2, 3 drafts; by both engines."""


def read(tmp_path, content, name="counters", **knobs):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_counters(path, **knobs)


# -- real files --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "engine"),
    [
        ("sglang-0.5.23-generate.json", "answers", "sglang"),
        ("vllm-0.32.0-completions.json", "answers", "vllm"),
        ("vllm-0.32.0-metrics.txt", "prometheus", "vllm"),
    ],
)
def test_both_engines_tell_the_same_counts_of_the_same_answer(name, kind, engine):
    counters = read_counters(LINES / name)
    assert (counters.kind, counters.engine, counters.counts) == (kind, engine, ONE_ANSWER)
    assert counters.accept_length == pytest.approx(1 + 48 / 47)
    assert counters.unread == 0
    assert len(counters.parts) == 1
    assert counters.table.joint[0] == pytest.approx((26 / 47, 13 / 47, 9 / 47))
    if engine == "vllm":
        assert counters.num_steps == 3


def test_sglangs_spec_accept_length_is_not_taken_for_an_accept_length():
    meta = json.loads((LINES / "sglang-0.5.23-generate.json").read_text())["meta_info"]
    assert meta["spec_accept_length"] == pytest.approx(96 / 47)  # completion tokens / verify passes
    assert read_counters(LINES / "sglang-0.5.23-generate.json").accept_length < meta["spec_accept_length"]


def test_sglangs_server_info_and_gauges_are_named_by_what_they_are():
    info = read_counters(LINES / "sglang-0.5.23-server_info.json")
    assert (info.kind, info.engine, info.counts, info.accept_length) == ("server_info", "sglang==0.5.23", None, 2.025)
    assert (info.num_steps, info.num_draft_tokens) == (3, 4)
    assert "since the start or the last flush" in info.definition
    metrics = read_counters(LINES / "sglang-0.5.23-metrics.txt")
    assert (metrics.engine, metrics.counts, metrics.num_steps, metrics.num_draft_tokens) == ("sglang", None, 3, 4)
    assert metrics.accept_length == pytest.approx(104 / 53)
    assert "generated tokens / verify passes" in metrics.definition
    assert metrics.parts[0].accept_length == 2.025  # the gauge


# -- answers -----------------------------------------------------------------------------------------------------------------------------------

HISTOGRAM = [21, 13, 4, 9]


@pytest.mark.parametrize(
    "meta",
    [
        {"spec_verify_ct": 47, "spec_accept_token_num": 48, "spec_draft_token_num": 141, "spec_accept_histogram": HISTOGRAM},  # 0.5.9
        {"spec_verify_ct": 47, "spec_accepted_drafts": 48, "spec_proposed_drafts": 141, "spec_accept_histogram": HISTOGRAM},  # 0.5.11
        {
            "spec_verify_ct": 47,
            "spec_num_correct_drafts": 48,
            "spec_accepted_drafts": 48,
            "spec_correct_drafts_histogram": HISTOGRAM,
        },  # 0.5.12
        {"spec_verify_ct": 47, "spec_num_correct_drafts": 48, "spec_correct_drafts_histogram": HISTOGRAM},  # 0.5.23
        {"spec_correct_drafts_histogram": HISTOGRAM},
    ],
)
@pytest.mark.parametrize(
    "wrap", [lambda m: {"text": "a", "meta_info": {"id": "x", "completion_tokens": 96, **m}}, lambda m: [m], lambda m: m]
)
def test_names_of_all_releases(tmp_path, meta, wrap):
    counters = read(tmp_path, wrap(meta))
    assert (counters.counts, counters.engine, counters.notes) == (ONE_ANSWER, "sglang", ())


def test_openai_nests_them(tmp_path):
    details = {"spec_verify_ct": 47, "spec_num_correct_drafts": 48, "spec_correct_drafts_histogram": HISTOGRAM}
    answer = {"choices": [], "usage": {"completion_tokens": 96}, "sglext": {"spec_tokens_details": details}}
    assert read(tmp_path, answer).counts == ONE_ANSWER
    assert read(tmp_path, {"sglext": {"spec_tokens_details": [details, details]}}).counts == ONE_ANSWER + ONE_ANSWER


def test_without_a_histogram_the_two_counts_are_exact_and_the_steps_unknown(tmp_path):
    counters = read(tmp_path, {"meta_info": {"spec_verify_ct": 47, "spec_accept_token_num": 48, "spec_accept_length": 96 / 47}})  # 0.5.6
    assert counters.counts == ServedCounts(47, 48)
    assert counters.accept_length == pytest.approx(1 + 48 / 47)


def test_before_0_5_6_only_completion_tokens_over_passes_and_it_is_called_that(tmp_path):
    counters = read(
        tmp_path,
        [{"meta_info": {"completion_tokens": 96, "spec_verify_ct": 47}}, {"meta_info": {"completion_tokens": 4, "spec_verify_ct": 3}}],
    )
    assert counters.counts is None
    assert counters.accept_length == 2.0
    assert "completion tokens / verify passes" in counters.definition
    assert "too high" in counters.notes[0]


def test_vllms_offline_dumps(tmp_path):
    assert read(tmp_path, {"per_step_accepted": [3, 0, 1]}).counts == ServedCounts(3, 4, (2, 1, 1))
    assert read(tmp_path, {"per_step_accepted": [[3, 0], [1, 0, 0]]}).counts == ServedCounts(5, 4, (2, 1, 1))
    lines = [
        {"prompt": "a", "per_step_accepted": [1], "num_spec_tokens": 3},
        {"prompt": "b", "per_step_accepted": [0], "num_spec_tokens": 3},
    ]
    counters = read(tmp_path, "\n".join(map(json.dumps, lines)))
    assert counters.counts == ServedCounts(2, 1, (1, 0, 0))
    assert counters.num_steps == 3


def test_a_stream_repeats_its_counts(tmp_path):
    chunks = [{"meta_info": {"id": "a", "spec_correct_drafts_histogram": h}} for h in ([1], [1, 1], [1, 1, 1])]
    other = {"meta_info": {"id": "b", "spec_correct_drafts_histogram": [2]}}
    counters = read(tmp_path, "\n".join(map(json.dumps, [*chunks, other])))
    assert counters.counts == ServedCounts(5, 3, (2, 1))
    assert [part.name for part in counters.parts] == ["a", "b"]
    assert "stream" in counters.notes[0]


def test_half_a_file_of_lines_loses_its_last(tmp_path):
    lines = "\n".join(json.dumps({"meta_info": {"id": str(i), "spec_correct_drafts_histogram": [i, 2]}}) for i in range(4))
    for cut in range(1, 40):
        counters = read(tmp_path, lines[:-cut])
        assert (len(counters.parts), counters.unread) == (3, 1)


def test_answers_that_contradict_themselves_are_said(tmp_path):
    counters = read(tmp_path, {"spec_verify_ct": 5, "spec_num_correct_drafts": 1, "spec_correct_drafts_histogram": [2, 1]})
    assert counters.counts == ServedCounts(3, 1, (1,))
    assert "1 of 1 answers contradict themselves (5 verify passes, but 3 in the histogram)" in counters.notes[0]


@pytest.mark.parametrize("bad", [[-1, 2], [1.5], ["1"], [True], {}, "[1]", [10**30]])
def test_histograms_that_are_none_are_not_read(tmp_path, bad):
    with pytest.raises(CountersError, match=r"none with a verify pass|without counts"):
        read(tmp_path, {"meta_info": {"spec_correct_drafts_histogram": bad}})


def test_answers_with_and_without_counts(tmp_path):
    told = {"spec_verify_ct": 3, "spec_num_correct_drafts": 1, "spec_correct_drafts_histogram": [2, 1]}
    counters = read(tmp_path, [told, {"spec_verify_ct": 9, "completion_tokens": 20}])
    assert counters.counts == ServedCounts(3, 1, (1,))
    assert "1 of 2 answers tell no accepted drafts" in counters.notes[0]
    both = read(tmp_path, [told, {"spec_verify_ct": 2, "spec_num_correct_drafts": 1}])
    assert both.counts == ServedCounts(5, 2)
    assert "no histogram" in both.notes[0]


# -- Prometheus --------------------------------------------------------------------------------------------------------------------------------


def vllm(drafts, positions, engine="0", accepted=None, created=None, total="_total"):
    labels = f'engine="{engine}",model_name="a \\"b\\", c\\\\d"'
    accepted = sum(positions) if accepted is None else accepted
    lines = [
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts{total}{{{labels}}} {float(drafts)}",
        f"vllm:spec_decode_num_draft_tokens{total}{{{labels}}} {float(drafts * len(positions))}",
        f"vllm:spec_decode_num_accepted_tokens{total}{{{labels}}} {float(accepted):e}",
        *(f'vllm:spec_decode_num_accepted_tokens_per_pos{total}{{{labels},position="{k}"}} {n}' for k, n in enumerate(positions)),
    ]
    if created:
        lines.append(f"vllm:spec_decode_num_drafts_created{{{labels}}} {created}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("total", ["_total", ""])
def test_engines_add_up_and_labels_are_unescaped(tmp_path, total):
    counters = read(tmp_path, vllm(10, [5, 3, 1], "0", total=total) + vllm(20, [6, 2, 0], "1", total=total))
    assert counters.counts == ServedCounts(30, 17, (11, 5, 1))
    assert [part.name for part in counters.parts] == [f'engine {e}, model_name a "b", c\\d' for e in "01"]
    assert counters.num_steps == 3
    assert "since the server's start" in counters.notes[0]


def test_two_scrapes_are_a_difference(tmp_path):
    before, after = vllm(10, [5, 3, 1]), vllm(30, [11, 5, 1])
    (tmp_path / "before").write_text(before)
    apart = read(tmp_path, after, before=tmp_path / "before")
    behind = read(tmp_path, before + vllm(20, [8, 4, 1]) + after)
    assert apart.counts == behind.counts == ServedCounts(20, 8, (6, 2, 0))
    assert apart.notes == behind.notes == ()


@pytest.mark.parametrize("after", [vllm(4, [2, 1, 0], created=2e9), vllm(40, [22, 11, 5], created=2e9)])
def test_a_reset_between_two_scrapes_is_said_and_never_negative(tmp_path, after):
    """The second has grown past the first: only `_created` tells."""
    before = vllm(10, [5, 3, 1], created=1e9)
    counters = read(tmp_path, before + after)
    assert counters.counts == read(tmp_path, after, name="after").counts
    assert "reset between two scrapes" in counters.notes[0]


@pytest.mark.parametrize("damage", ["nan", "-3", "2.5", "+Inf"])
def test_values_that_are_no_counts_are_not_counted(tmp_path, damage):
    good, bad = vllm(10, [5, 3, 1], "0"), vllm(10, [5, 3, 1], "1").replace("9.000000e+00", damage.replace("nan", "NaN"))
    counters = read(tmp_path, good + bad)
    assert counters.counts == ServedCounts(10, 9, (5, 3, 1))
    assert any("are no counts" in note for note in counters.notes)


def test_positions_that_do_not_add_up_are_left_out(tmp_path):
    assert read(tmp_path, vllm(10, [5, 3, 1], accepted=7)).counts == ServedCounts(10, 7)
    lines = vllm(10, [5, 3, 0]).splitlines(keepends=True)
    assert read(tmp_path, "".join(lines[:-1])).counts == ServedCounts(10, 8)  # cut off: three were drafted


def test_half_a_scrape_gives_no_half_number(tmp_path):
    text = vllm(123, [57, 31, 12])
    for end in range(len(text)):
        try:
            counts = read(tmp_path, text[:end]).counts
        except CountersError:
            continue
        assert (counts.verify_steps, counts.accepted) == (123, 100)
        assert counts.joint in (None, (57, 31, 12))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", ("a", (), 1.0)),
        ('a{b="c",} 1e3 1395066363000', ("a", (("b", "c"),), 1000.0)),
        ('a{x="}",b="\\\\n\\n"} +Inf', ("a", (("b", "\\n\n"), ("x", "}")), float("inf"))),
        ('a{b="c"} 1 # {id="1"} 0.5', ("a", (("b", "c"),), 1.0)),
        ('a{b="c} 1', None),
        ("a{b=c} 1", None),
        ("a 1_000", None),
        ("a 0x10", None),
        ("a", None),
        ("1a 1", None),
        ("a{" * 40000 + "} 1", None),
    ],
)
def test_samples(line, expected):
    assert parse_sample(line) == expected


def test_scrapes_count_what_they_cannot_read():
    scrapes = parse_scrapes('vllm:spec_decode_num_drafts_total{engine="0"} 1\nnonsense\nhalf{a="\nvllm:spec_decode_num_dra')
    assert len(scrapes) == 1
    assert scrapes[0].unread == 3


def test_sglangs_gauges_of_several_ranks(tmp_path):
    text = "".join(
        f'sglang:spec_accept_length{{dp_rank="{r}"}} {v}\nsglang:spec_num_steps{{dp_rank="{r}"}} 3.0\n' for r, v in ((0, 1.5), (1, 2.5))
    )
    counters = read(tmp_path, text)
    assert (counters.accept_length, counters.counts, counters.num_steps) == (2.0, None, 3)
    assert "last log interval" in counters.definition
    assert "plain mean" in counters.notes[0]
    calls = 'sglang:spec_verify_calls_total {}.0\nsglang:generation_tokens_total{{is_streaming="false"}} {}.0\n'
    counters = read(tmp_path, text + calls.format(100, 150) + text + calls.format(300, 650))
    assert counters.accept_length == 2.5
    counters = read(tmp_path, text + calls.format(100, 150) + text + calls.format(40, 100))
    assert counters.accept_length == 2.5
    assert "restart" in counters.notes[0]


def test_a_server_without_speculation_is_told_so(tmp_path):
    with pytest.raises(CountersError, match="started with a drafter"):
        read(tmp_path, "vllm:num_requests_running 1.0\n")
    with pytest.raises(CountersError, match="no verify pass was counted"):
        read(tmp_path, vllm(0, [0, 0, 0]))
    with pytest.raises(CountersError, match="no decode log line yet"):
        read(tmp_path, {"version": "0.5.23", "internal_states": [{"last_gen_throughput": 1.0}]})


def test_server_info_of_several_ranks_and_of_old_releases(tmp_path):
    counters = read(tmp_path, {"internal_states": [{"avg_spec_accept_length": 1.5}, {"avg_spec_accept_length": 2.5}, {}]})
    assert counters.accept_length == 2.0
    assert [(p.name, p.accept_length) for p in counters.parts] == [("DP0", 1.5), ("DP1", 2.5)]
    assert counters.notes[0] == "1 of 3 ranks tell no accept length yet"
    assert "plain mean" in counters.notes[1]
    old = {"server_args": {"speculative_num_steps": 5}, "avg_spec_accept_length": 3.25}
    assert (read(tmp_path, old).accept_length, read(tmp_path, old).num_steps) == (3.25, 5)
    for bad in (float("nan"), "2.0", True, 0.0):
        with pytest.raises(CountersError):
            read(tmp_path, {"internal_states": [{"avg_spec_accept_length": bad}]})


# -- recordings --------------------------------------------------------------------------------------------------------------------------------


def recording(tmp_path, *records, **session):
    path = tmp_path / "recording.jsonl"
    writer = RecordingWriter(path, Session(**{"engine": "sglang==0.5.23", "num_steps": 3, "num_draft_tokens": 4, **session}))
    for record in records:
        writer.write(record)
    return path


def test_a_recording_gives_its_own_counts(tmp_path):
    path = recording(
        tmp_path, Request(0, (1,), accepted=(0, 2)), Request(1, (1,), histogram=(1, 0, 1)), Request(2, (1,)), Failure(3, "timed out")
    )
    counters = read_counters(path)
    assert (counters.kind, counters.engine, counters.num_steps, counters.num_draft_tokens) == ("recording", "sglang==0.5.23", 3, 4)
    assert counters.counts == ServedCounts(4, 4, (2, 2, 0))
    assert counters.recording.failures
    assert [part.name for part in counters.parts] == ["0", "1"]
    assert "; ".join(counters.notes) == "1 requests got no answer; the recording was cut off; 1 of 3 requests have no counts"


def test_a_recording_falls_back_on_meta_info_then_scrapes_then_info(tmp_path):
    meta = {"spec_verify_ct": 47, "spec_accept_token_num": 48}
    assert read_counters(recording(tmp_path, Request(0, (1,), meta_info=meta))).counts == ServedCounts(47, 48)
    (tmp_path / "recording.jsonl").unlink()
    scrapes = [Scrape("before", "t", vllm(10, [5, 3, 1])), Scrape("after", "t", vllm(30, [11, 5, 1]))]
    assert read_counters(recording(tmp_path, Request(0, (1,)), *scrapes, engine="vllm==0.32.0")).counts == ServedCounts(20, 8, (6, 2, 0))
    (tmp_path / "recording.jsonl").unlink()
    info = Scrape("after", "t", server_info={"internal_states": [{"avg_spec_accept_length": 1.75}]})
    assert read_counters(recording(tmp_path, Request(0, (1,)), info)).accept_length == 1.75
    (tmp_path / "recording.jsonl").unlink()
    with pytest.raises(CountersError, match="a recording of 1 requests without counts"):
        read_counters(recording(tmp_path, Request(0, (1,))))
    (tmp_path / "recording.jsonl").unlink()
    with pytest.raises(CountersError, match="a recording of 0 requests"):
        read_counters(recording(tmp_path, scrapes[0]))  # one scrape, before any prompt
    (tmp_path / "recording.jsonl").write_text('{"kind": "session", "engine": "a", "notes": 1, "num_steps": 3}\n{"kind": "sess')
    with pytest.raises(CountersError, match="recording"):
        read_counters(tmp_path / "recording.jsonl")


# -- what is none ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "holds no counts"),
        ("Decode batch, #running-req: 1", "goes into `\\[engine\\] log`"),
        ("{}", "JSON without counts"),
        ("[" * 5000, "JSON without counts"),
        ("[1, 2", "JSON without counts"),
        ("\ufeff{}", "JSON without counts"),
        ('{"meta_info": {"completion_tokens": 3, "spec_verify_ct": 0}}', "none with a verify pass"),
    ],
)
def test_what_holds_no_counts_is_refused(tmp_path, content, text):
    with pytest.raises(CountersError, match=text):
        read(tmp_path, content)


def test_files_that_are_none(tmp_path):
    with pytest.raises(CountersError, match="a folder"):
        read_counters(tmp_path)
    with pytest.raises(CountersError, match="nothing there"):
        read_counters(tmp_path / "no")
    (tmp_path / "wide").write_bytes("{}".encode("utf-16"))
    with pytest.raises(CountersError, match="UTF-16"):
        read_counters(tmp_path / "wide")


# -- what cannot be, and what is not one server's ----------------------------------------------------------------------------------


def test_a_rank_that_was_reset_is_counted_from_there_on_and_the_others_are_not(tmp_path):
    def text(*ranks):
        names = ("spec_verify_calls_total", "generation_tokens_total")
        return "".join(
            f'sglang:{name}{{dp_rank="{r}",model_name="m"{extra}}} {n}\n'
            for r, rank in enumerate(ranks)
            for name, n, extra in zip(names, rank, ("", ',is_streaming="false"'), strict=True)
        )

    (tmp_path / "before").write_text(text((100, 190), (200, 600)))
    (tmp_path / "after").write_text(text((1000, 2000), (10, 18)))
    told = read_counters(tmp_path / "after", before=tmp_path / "before")
    assert told.accept_length == pytest.approx((2000 - 190 + 18) / (1000 - 100 + 10))
    assert any("fell between two scrapes" in note for note in told.notes)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (vllm(5, [1]).replace("model_name=", "was=").replace("engine=", 'model_name="two",engine='), "several servers"),
        ('sglang:spec_accept_length{model_name="m"} 2.0\n', r"several servers \(sglang, vllm\)"),
    ],
    ids=["two models", "two engines"],
)
def test_counters_of_two_servers_are_refused(tmp_path, other, said):
    one = vllm(100, [50, 20, 10]).replace("engine=", 'model_name="one",engine=')
    with pytest.raises(CountersError, match=said):
        read(tmp_path, one + other)


@pytest.mark.parametrize(
    "content",
    [
        vllm(100, [50, 20, 10], accepted=900),
        vllm(100, [150, 20, 10]),
        'sglang:spec_accept_length{tp_rank="0"} 9.0\nsglang:spec_num_draft_tokens{tp_rank="0"} 4\n',
        {"speculative_num_draft_tokens": 4, "internal_states": [{"avg_spec_accept_length": 9.0}]},
        {"meta_info": {"spec_verify_ct": 2, "spec_num_correct_drafts": 90, "spec_num_proposed_drafts": 6, "completion_tokens": 92}},
        {"num_spec_tokens": 3, "acceptance_histogram": [1, 0, 0, 0, 0, 1], "num_spec_steps": 2},
        {"num_spec_tokens": 3, "per_step_accepted": [0, 2**40], "num_spec_steps": 2},
    ],
    ids=["accepted", "position", "gauge", "info", "answer", "histogram", "per step"],
)
def test_numbers_that_cannot_be_are_said_and_not_counted(tmp_path, content):
    with pytest.raises(CountersError, match=r"cannot be|that can be|contradict each other|none with a verify pass that counts"):
        read(tmp_path, content)
