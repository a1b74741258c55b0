"""Recordings survive crashes: what was written whole is read, what was cut off is counted."""

import json

import pytest

from eaglelab.served import Recording, RecordingError, RecordingWriter, Request, ServedCounts
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
