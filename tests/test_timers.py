"""Seconds by phase out of counters: hand-made scrapes with exact sums, and real ones of both engines."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelab.findings import plain
from eaglelab.served.prometheus import parse_scrapes
from eaglelab.served.recording import RecordingWriter, Scrape, Session
from eaglelab.timing.errors import TimingError
from eaglelab.timing.phases import Phase
from eaglelab.timing.timers import TimerSplit, read_timers, split_timers

TRACES = Path(__file__).with_name("traces")
LINES = Path(__file__).with_name("served_lines")
RANK = 'engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"'


def sglang(seconds=None, *, passes=None, tokens=None, itl=None, rank=RANK, extra=""):
    """A scrape of SGLang's counters, as 0.5.23 names and labels them."""
    lines = ["# HELP sglang:forward_execution_seconds_total Total time that GPU is busy"]
    for category, value in (seconds or {}).items():
        lines.append(f'sglang:forward_execution_seconds_total{{category="{category}",{rank}}} {value}')
    if passes is not None:
        lines.append(f'sglang:spec_verify_calls_total{{model_name="m"}} {passes}')
    if tokens is not None:
        lines.append(f'sglang:generation_tokens_total{{is_streaming="false",model_name="m"}} {tokens}')
    if itl is not None:
        lines += [
            f'sglang:inter_token_latency_seconds_bucket{{le="+Inf",model_name="m"}} {itl[1]}',
            f'sglang:inter_token_latency_seconds_sum{{model_name="m"}} {itl[0]}',
            f'sglang:inter_token_latency_seconds_count{{model_name="m"}} {itl[1]}',
        ]
    return "\n".join(lines) + f"\n{extra}"


FIRST = {"target_verify": 10.0, "eagle_draft": 2.0, "eagle_draft_extend": 1.0, "extend": 4.0, "idle": 0.5}
LAST = {"target_verify": 18.0, "eagle_draft": 2.5, "eagle_draft_extend": 2.0, "extend": 4.25, "idle": 0.75}


def test_what_lies_between_two_scrapes_is_their_exact_difference():
    split = split_timers(
        [sglang(FIRST, passes=1000, tokens=2000, itl=(3.0, 100)), sglang(LAST, passes=2000, tokens=4500, itl=(23.0, 2600))],
        wall_seconds=20.0,
    )
    assert split.seconds == {Phase.VERIFY: 8.0, Phase.DRAFT: 0.5, Phase.DRAFT_EXTEND: 1.0, Phase.PREFILL: 0.25, Phase.OTHER: 0.25}
    assert (split.total, split.busy, split.verify_passes, split.tokens) == (10.0, 0.5, 1000, 2500)
    assert split.share[Phase.VERIFY] == 0.8
    assert math.fsum(split.share.values()) == pytest.approx(1)
    assert split.ms_per_pass[Phase.VERIFY] == pytest.approx(8.0)  # 8 s over 1000 passes
    assert split.cycle_ms == pytest.approx(20.0 / 2500 * 1e3 * 2.5)  # a token's 8 ms, 2.5 tokens a pass
    assert not split.since_start
    assert any("sampling, scheduling and gaps" in note for note in split.notes)
    assert split.summary.startswith("10 s of forward passes by sglang's own timers: verify 80.0%, draft extend 10.0%, draft 5.0%")
    table = split.table.set_index("category")
    assert table.seconds["eagle_draft"] == 0.5
    assert table.ms_per_pass.sum() == pytest.approx(10.0)


def test_two_scrapes_in_one_file_are_two_moments(tmp_path):
    path = tmp_path / "metrics.txt"
    path.write_text(sglang(FIRST, passes=1) + sglang(LAST, passes=3))
    split = read_timers(path)
    assert (split.scrapes, split.total, split.verify_passes, split.wall_seconds) == (2, 10.0, 2, None)
    assert read_timers([path]).seconds == split.seconds
    assert split.busy is None


def test_of_three_scrapes_the_first_and_the_last_count():
    texts = [sglang({"target_verify": v}, passes=v) for v in (1, 50, 11)]
    assert split_timers(texts[::2]).total == 10.0
    reset = split_timers(texts)  # 50 fell to 11
    assert reset.total == 11.0


def test_a_single_scrape_is_since_the_servers_start_and_says_so():
    split = split_timers([sglang(LAST, passes=10)], wall_seconds=3.0)
    assert split.since_start
    assert split.total == sum(LAST.values())
    assert "since the server's start" in split.notes[0]
    assert split.wall_seconds is None  # between which moments?


def test_a_restart_counts_from_the_reset_on_all_counters_alike():
    """The new server ran drafts longer than the old one: that counter did not fall, the server was restarted all the same."""
    before = sglang({"target_verify": 100.0, "eagle_draft": 1.0}, passes=500)
    after = sglang({"target_verify": 8.0, "eagle_draft": 2.0}, passes=40)
    split = split_timers([before, after])
    assert split.seconds == {Phase.VERIFY: 8.0, Phase.DRAFT: 2.0}
    assert split.verify_passes == 40
    assert any("were reset between two scrapes" in note for note in split.notes)


def test_vllms_creation_times_tell_a_restart_that_no_fall_tells():
    def one(created, drafts):
        return f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}\nvllm:spec_decode_num_drafts_created{{engine="0"}} {created}\n'

    assert split_timers([one(1.5e9, 10), one(1.5e9, 30)]).verify_passes == 20
    assert split_timers([one(1.5e9, 10), one(1.6e9, 30)]).verify_passes == 30


def test_a_category_that_appears_later_counts_from_zero():
    split = split_timers([sglang({"extend": 1.0}), sglang({"extend": 1.0, "target_verify": 3.0})])
    assert split.seconds == {Phase.VERIFY: 3.0}


def test_a_last_scrape_that_is_cut_loses_counters_and_says_so():
    whole = sglang(LAST, passes=10, tokens=20)
    cut = whole[: whole.index('sglang:forward_execution_seconds_total{category="extend"')]
    split = split_timers([sglang(FIRST, passes=5, tokens=10), cut])
    assert Phase.PREFILL not in split.seconds
    assert split.verify_passes is None
    assert any("missing in the last" in note for note in split.notes)
    half = split_timers([sglang(FIRST), sglang(LAST)[:-4]])  # half a line
    assert any("1 lines are no samples" in note for note in half.notes)
    assert Phase.OTHER not in half.seconds


def test_unknown_categories_are_other_by_name():
    split = split_timers([sglang({"target_verify": 3.0, "warp_drive": 1.0})])
    assert split.seconds == {Phase.VERIFY: 3.0, Phase.OTHER: 1.0}
    assert any("shown as other: warp_drive" in note for note in split.notes)


def test_eager_drafting_is_booked_under_decode():
    eager = split_timers([sglang({"target_verify": 6.0, "decode": 3.0, "extend": 1.0}, passes=10)])
    assert eager.seconds == {Phase.VERIFY: 6.0, Phase.DRAFT: 3.0, Phase.PREFILL: 1.0}
    assert any("no `eagle_draft`" in note for note in eager.notes)
    assert any("no `eagle_draft_extend`" in note for note in eager.notes)
    graphs = split_timers([sglang({"target_verify": 6.0, "decode": 3.0, "eagle_draft": 1.0, "eagle_draft_extend": 1.0}, passes=10)])
    assert graphs.seconds[Phase.DECODE] == 3.0
    assert not any("eagle_draft" in note for note in graphs.notes)


def test_plain_decoding_stays_decode():
    split = split_timers([sglang({"decode": 3.0, "extend": 1.0}, tokens=100)])
    assert split.seconds == {Phase.PREFILL: 1.0, Phase.DECODE: 3.0}
    assert split.ms_per_pass == {}
    assert "verify passes not counted" in split.summary


def test_verify_passes_outside_graphs_were_extend_once():
    split = split_timers([sglang({"extend": 5.0, "decode": 1.0}, passes=10)])
    assert any("no `target_verify`" in note for note in split.notes)


def test_whole_batches_of_0_5_9_cannot_be_split():
    text = sglang(passes=10) + "".join(
        f'sglang:gpu_execution_seconds_total{{category="{c}",{RANK}}} {v}\n' for c, v in (("forward_decode", 9.0), ("forward_extend", 1.0))
    )
    split = split_timers([text])
    assert split.seconds == {Phase.PREFILL: 1.0, Phase.UNATTRIBUTED: 9.0}
    assert any("cannot be told apart" in note for note in split.notes)


def test_ranks_of_one_pass_are_not_added_up_to_a_slower_pass():
    def ranks(scale, *labels):
        return "".join(sglang({"target_verify": 2.0 * scale}, rank=label) for label in labels)

    tp = ['model_name="m",tp_rank="0"', 'model_name="m",tp_rank="1"']
    split = split_timers([sglang(passes=0, rank=tp[0]) + ranks(1, *tp), sglang(passes=1000, rank=tp[0]) + ranks(2, *tp)])
    assert (split.ranks, split.copies, split.total) == (("tp_rank 0", "tp_rank 1"), 2.0, 4.0)
    assert split.ms_per_pass[Phase.VERIFY] == pytest.approx(2.0)  # each rank 2 s over 1000 passes
    assert list(split.table.ms_per_pass) == pytest.approx([2.0, 2.0])
    dp = ['dp_rank="0",model_name="m",tp_rank="0"', 'dp_rank="1",model_name="m",tp_rank="1"']
    split = split_timers([sglang(passes=0) + ranks(1, *dp), sglang(passes=1000) + ranks(2, *dp)])
    assert split.copies == 1.0
    assert split.ms_per_pass[Phase.VERIFY] == pytest.approx(4.0)  # 1000 passes shared by two: 4 s


def vllm(drafts, tokens, itl, steps, name="inter_token_latency_seconds"):
    label = 'engine="0",model_name="m"'
    return (
        f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}\nvllm:generation_tokens_total{{{label}}} {tokens}\n"
        f"vllm:{name}_sum{{{label}}} {itl[0]}\nvllm:{name}_count{{{label}}} {itl[1]}\n"
        f"vllm:iteration_tokens_total_sum{{{label}}} 999\nvllm:iteration_tokens_total_count{{{label}}} {steps}\n"
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="0"}} 5\n'
    )


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_vllm_tells_a_cycles_time_and_no_phase(name):
    split = split_timers([vllm(10, 30, (1.0, 10), 12, name), vllm(110, 250, (6.0, 110), 52, name)])
    assert (split.engine, split.rows, split.seconds, split.share, split.ms_per_pass) == ("vllm", (), {}, {}, {})
    assert (split.verify_passes, split.tokens, split.engine_steps, split.intervals) == (100, 220, 40, (5.0, 100))
    assert split.cycle_ms == pytest.approx(50.0)
    assert any("times no phase" in note for note in split.notes)
    assert (
        split.summary
        == "vllm tells no seconds by phase; 100 verify passes of requests. A request waits 50 ms from pass to pass (n = 100 intervals)."
    )
    assert "25 ms from token to token" in split_timers([vllm(0, 20, (0.5, 20), 21, name)]).summary
    assert len(split.table) == 0


def test_json_carries_the_same_numbers():
    split = split_timers([sglang(FIRST, passes=1000), sglang(LAST, passes=2000)], wall_seconds=20.0)
    data = json.loads(json.dumps(plain(split.to_json()), allow_nan=False))
    assert data["seconds"]["verify"] == 8.0
    assert data["ms_per_pass"]["draft"] == pytest.approx(0.5)
    assert sum(row["seconds"] for row in data["table"]) == data["busy"] * data["wall_seconds"] == 10.0
    assert data["intervals"] is None


# -- input that cannot be used ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "\n", "nonsense\n", "# HELP a b\n", 'node:cpu_seconds_total{cpu="0"} 1\n', "vllm:num_requests_running 3\n"]
)
def test_text_without_such_counters_is_refused_with_what_to_do(tmp_path, text):
    path = tmp_path / "metrics.txt"
    path.write_text(text)
    with pytest.raises(TimingError, match=r"metrics\.txt: no counter of SGLang or vLLM.*SGLANG_ENABLE_METRICS_DEVICE_TIMER=1"):
        read_timers(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(TimingError, match=r"none\.txt cannot be read: No such file or directory; expected Prometheus text"):
        read_timers(tmp_path / "none.txt")
    with pytest.raises(TimingError, match="cannot be read"):
        read_timers(tmp_path)
    with pytest.raises(TimingError, match="no file was given"):
        read_timers([])


def test_two_servers_are_not_one():
    with pytest.raises(TimingError, match=r"samples of 2 engines \(sglang, vllm\), expected those of one server"):
        split_timers([sglang(FIRST), vllm(1, 2, (1, 2), 3)])
    other = sglang(FIRST, rank='model_name="n"')
    with pytest.raises(TimingError, match=r"samples of 2 models \(m, n\)"):
        split_timers([sglang(FIRST) + other])


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_wall_seconds_have_to_be_some(seconds):
    with pytest.raises(TimingError, match="expected the seconds between"):
        split_timers([sglang(FIRST), sglang(LAST)], wall_seconds=seconds)


def test_values_that_are_no_counts_are_left_out():
    split = split_timers([sglang({"target_verify": "NaN", "eagle_draft": -3.0, "extend": 2.0, "idle": "+Inf"})])
    assert split.seconds == {Phase.PREFILL: 2.0}
    assert any("3 samples are no counts" in note for note in split.notes)


@given(st.text(max_size=300), st.integers(0, 400))
def test_damage_never_ends_in_anything_but_a_timing_error(noise, at):
    text = sglang(LAST, passes=3, tokens=9, itl=(1.0, 9))
    try:
        split = split_timers([sglang(FIRST), text[:at] + noise + text[at:]])
    except TimingError:
        return
    assert split.total >= 0
    assert json.dumps(plain(split.to_json()), allow_nan=False)


# -- recordings and real scrapes -------------------------------------------------------------------------------------------------------------


def test_a_recording_tells_its_own_wall_seconds(tmp_path):
    writer = RecordingWriter(tmp_path / "r.jsonl", Session(engine="sglang==0.5.23"))
    writer.write(Scrape("before", "2026-01-01T00:00:00+00:00", sglang(FIRST, passes=0)))
    writer.write(Scrape("after", "2026-01-01T00:00:20+00:00", sglang(LAST, passes=1000)))
    writer.end()
    split = read_timers(tmp_path / "r.jsonl")
    assert (split.total, split.wall_seconds, split.busy) == (10.0, 20.0, 0.5)
    (tmp_path / "other.jsonl").write_text('{"kind": "x"}\n')
    with pytest.raises(TimingError, match=r"no session of a recording.*; or Prometheus text"):
        read_timers(tmp_path / "other.jsonl")
    RecordingWriter(tmp_path / "empty.jsonl", Session()).end()
    with pytest.raises(TimingError, match="holds no Prometheus text"):
        read_timers(tmp_path / "empty.jsonl")


def test_the_filter_of_samples_keeps_what_it_is_told():
    text = vllm(1, 2, (3, 4), 5)
    assert {name for name, _ in parse_scrapes(text)[0].samples} == {
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    }
    assert len(parse_scrapes(text, ("",))[0].samples) == 7


def test_a_real_scrape_of_each_engine():
    told = read_timers(LINES / "vllm-0.32.0-metrics.txt")
    assert (told.engine, told.verify_passes, told.since_start) == ("vllm", 47, True)
    told = read_timers(LINES / "sglang-0.5.23-metrics.txt")
    assert (told.engine, told.verify_passes, told.tokens, told.rows) == ("sglang", 53, 104, ())
    assert any("SGLANG_ENABLE_METRICS_DEVICE_TIMER=1" in note for note in told.notes)


def test_the_default_is_nothing_told():
    assert TimerSplit("sglang", "x", 1, True).to_json()["table"] == []
