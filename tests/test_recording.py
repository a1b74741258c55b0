"""Recordings survive crashes: what was written whole is read, what was cut off is counted."""

import json

import pytest

from eaglelab.served import Recording, RecordingError, RecordingWriter, Request, ServedCounts
from eaglelab.served.counters import read_counters
from eaglelab.served.recording import Failure, Scrape, Session

SESSION = Session(engine="sglang==0.5.23", num_steps=3)


def written(path):
    writer = RecordingWriter(path, SESSION)
    writer.write(Scrape("before", "2026-01-01T00:00:00+00:00", metrics="a 1\n"))
    writer.write(Request(0, (1, 2), (3, 4, 5), accepted=(0, 2)))
    writer.write(Failure(1, "timed out"))
    writer.write(Request(2, (7,), (8, 9), histogram=(1, 0, 1)))
    return writer


def test_what_is_written_is_read(tmp_path):
    written(tmp_path / "r.jsonl").end()
    r = Recording.load(tmp_path / "r.jsonl")
    assert r.session == SESSION
    assert r.ended
    assert r.cut_lines == 0
    assert [q.index for q in r.requests] == [0, 2]
    assert r.requests[0].accepted == (0, 2)
    assert r.failures[0].index == 1
    assert r.scrapes[0].metrics == "a 1\n"
    assert r.counts == ServedCounts(4, 4, (2, 2, 0))  # 0 and 2, 0 and 2 accepted
    assert r.counts.accept_length == 2.0
    assert r.counts.joint_rate(1) == 0.5
    assert r.counts.conditional(2) == 0.0


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_cut_off_costs_itself_and_no_other(tmp_path, cut):
    path = tmp_path / "r.jsonl"
    written(path)
    path.write_bytes(path.read_bytes()[:-cut])
    r = Recording.load(path)
    assert next(q.index for q in r.requests) == 0
    assert r.cut_lines <= 1
    assert not r.ended
    again = RecordingWriter(path, SESSION)  # and can be gone on with
    assert again.done == {q.index for q in r.requests}
    again.write(Request(1, (5,), (6,), histogram=(1,)))
    assert {q.index for q in Recording.load(path).requests} == again.done
    assert not Recording.load(path).failures  # answered after all


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"kind": "request", "index": 0, "prompt_token_ids": [1]}', "[" * 10000])
def test_what_is_no_recording_is_refused(tmp_path, content):
    (tmp_path / "r.jsonl").write_text(content)
    with pytest.raises(RecordingError, match="recording"):
        Recording.load(tmp_path / "r.jsonl")


@pytest.mark.parametrize("bad", [[1, -1], [1.5], ["1"], 7, [True]])
def test_counts_that_are_none_are_not_read(tmp_path, bad):
    path = tmp_path / "r.jsonl"
    written(path)
    with path.open("a") as f:
        f.write(json.dumps({"kind": "request", "index": 3, "prompt_token_ids": [1], "accepted": bad}) + "\n")
    r = Recording.load(path)
    assert r.cut_lines == 1
    assert 3 not in {q.index for q in r.requests}


def test_another_engine_does_not_go_on_with_it(tmp_path):
    written(tmp_path / "r.jsonl")
    with pytest.raises(RecordingError, match="not of vllm"):
        RecordingWriter(tmp_path / "r.jsonl", Session(engine="vllm==0.32.0"))


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x1c"])
def test_line_ends_of_unicode_in_an_answer_end_no_line(tmp_path, mark):
    writer = RecordingWriter(tmp_path / "r.jsonl", SESSION)
    writer.write(Request(0, (1,), (2,), text=f"one{mark}two", accepted=(1,)))
    r = Recording.load(tmp_path / "r.jsonl")
    assert (r.cut_lines, r.requests[0].text) == (0, f"one{mark}two")
    assert read_counters(tmp_path / "r.jsonl").accept_length == 2.0
    answers = "".join(json.dumps({"text": mark, "meta_info": m}, ensure_ascii=False) + "\n" for m in [META] * 2)
    (tmp_path / "a.jsonl").write_text(answers)
    assert read_counters(tmp_path / "a.jsonl").counts == ServedCounts(8, 8)
    assert read_counters(tmp_path / "a.jsonl").unread == 0


META = {"spec_verify_ct": 4, "spec_num_correct_drafts": 4}


@pytest.mark.parametrize(
    "bad",
    [
        {"index": "3"},
        {"index": 3.0},
        {"index": -1},
        {"prompt_token_ids": None},
        {"text": 7},
        {"meta_info": [1]},
        {"seconds": "1"},
        {"seconds": float("nan")},
        {"verify_steps": True},
        {"sample": {}},
        {"finish_reason": 1},
    ],
    ids=str,
)
def test_values_of_another_kind_are_no_request(tmp_path, bad):
    path = tmp_path / "r.jsonl"
    written(path)
    with path.open("a") as f:
        f.write(json.dumps({"kind": "request", "index": 3, "prompt_token_ids": [1], **bad}) + "\n")
    r = Recording.load(path)
    assert (r.cut_lines, [q.index for q in r.requests]) == (1, [0, 2])


@pytest.mark.parametrize(
    "bad", [{"num_steps": "3"}, {"draft_config": "x"}, {"temperature": []}, {"notes": [1]}, {"server_info": 1}], ids=str
)
def test_a_session_of_other_values_is_refused(tmp_path, bad):
    (tmp_path / "r.jsonl").write_text(json.dumps({"kind": "session", "engine": "sglang", **bad}) + "\n")
    with pytest.raises(RecordingError, match=f"line 1: {next(iter(bad))} is .*, expected"):
        Recording.load(tmp_path / "r.jsonl")


def test_more_accepted_than_drafted_is_left_out_and_said(tmp_path):
    writer = RecordingWriter(tmp_path / "r.jsonl", SESSION)
    writer.write(Request(0, (1,), (2,), accepted=(3, 0)))
    writer.write(Request(1, (2,), (2,), accepted=(4, 0)))
    writer.write(Request(2, (3,), (2,), histogram=(0, 0, 0, 0, 1)))
    writer.write(Request(3, (4,), (2,), histogram=(0, 0, 0, 1, 0)))  # no pass at 4
    assert Recording.load(tmp_path / "r.jsonl").counts == ServedCounts(3, 6, (2, 2, 2))
    told = read_counters(tmp_path / "r.jsonl")
    assert "2 of 4 requests accepted more in a pass than K = 3 steps draft, and are left out" in told.notes
    assert told.accept_length == 3.0


def test_what_is_gone_on_with_after_its_end_has_not_ended(tmp_path):
    writer = written(tmp_path / "r.jsonl")
    writer.end()
    writer.write(Request(1, (5,), (6,)))
    assert not Recording.load(tmp_path / "r.jsonl").ended
