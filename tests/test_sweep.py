"""`eaglelab sweep` on a fake engine whose law is known; every server that starts must be gone."""

import errno
import json
import os
import re
import socket
import sys
import time

import fake_engine
import pytest
from sweep_world import OFF, WAIT, make_world, until

from eaglelab.live.prompts import Prompt
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import COLUMNS
from eaglelab.timing.sweep import processes, servers
from eaglelab.timing.sweep import run as runs
from eaglelab.timing.sweep import store as stores
from eaglelab.timing.sweep.command import Template
from eaglelab.timing.sweep.servers import Running, SettingFailed, check_free, free_port, listening


@pytest.fixture
def world(tmp_path, monkeypatch):
    yield from make_world(tmp_path, monkeypatch)


def test_a_sweep_finds_the_law_of_the_engine(world):
    report = world.sweep("1,2-1-3", batches=(2,))
    assert report.exit_code == 0
    assert [s for _, s, _ in world.starts] == ["0-1-1", "1-1-2", "2-1-3"]
    assert set(COLUMNS) <= world.results[0].keys()
    for found in report.choices[0].gains[1:]:
        (row,) = (r for r in world.results if r["steps"] == found.setting.steps)
        assert found.accept_length == 1 + row["accepted"] / row["verify_passes"]
        assert found.same_text == (5, 5)
    texts = [json.loads(line) for line in (world.root / "out/runs/off/answers.jsonl").read_text().splitlines()]
    assert texts[0]["token_ids"] == fake_engine.answer_of([1, 2, 3], 24)
    document = json.loads(json.dumps(report.to_json()))
    assert document["best"][0]["batch"] == 2
    assert "Batch 2" in "\n".join(report.lines())


def test_its_gain_is_the_laws(world):
    """Time is the law's where nothing else runs for a second: one of a few sweeps finds that."""
    for attempt in range(6):
        report = world.sweep("2", batches=(2,), out=f"out{attempt}")
        gain = report.choices[0].gains[1].gain
        if law := gain == pytest.approx(fake_engine.speedup(2, 3), rel=0.15):
            break
    assert law, gain


def test_vllm_is_counted_by_its_counters(world):
    launch = f"PYTHONPATH={world.root / 'modules'} {sys.executable} -S -m vllm.entrypoints.openai.api_server --model m"
    launch += """ --speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'"""
    report = world.sweep("3", launch=launch, batches=(2,))
    found = next(r for r in world.results if r["steps"] == 3)
    accepted = fake_engine.Engine("vllm", ["--speculative-config", '{"num_speculative_tokens": 3}']).passes_of(24)
    assert (found["verify_passes"], found["accepted"]) == (5 * len(accepted), 5 * sum(accepted))
    assert found["joint"] == [5 * sum(n > k for n in accepted) for k in range(3)]
    assert found["counted_by"].startswith("Prometheus")
    assert found["engine"] == "vllm==0.32.0"
    assert not report.failures


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("exits@1", "ended with status 1.*CUDA out of memory"),
        ("500@1", "refuses its first request: .*out of everything"),
        ("dies@1", "the connection broke.*ended with status 3"),
        ("other steps@1", "1-1-2 was asked for and the server runs 7-1-2"),
    ],
)
def test_a_setting_that_fails_is_kept_as_failed_and_the_next_one_runs(world, fault, said):
    world.fault(fault)
    world.monkeypatch.setattr(runs, "DYING", WAIT)
    others = ",2" if fault == "dies@1" else ""
    report = world.sweep(f"1{others}", batches=(1,))
    assert report.exit_code == 0
    assert [f["run"] for f in report.failures] == ["1-1-2"]
    error = report.failures[0]["error"].replace("\n", " ")
    assert re.search(said, error), error
    assert "\x1b" not in error + report.failures[0]["log_tail"]
    assert {r["run"] for r in world.results} == ({"off", "2-1-3"} if others else {"off"})
    assert json.loads((world.root / "out/failures.jsonl").read_text())["log"] == "runs/1-1-2/server.log"


@pytest.mark.parametrize(
    ("fault", "said"), [("never", "nothing listens at"), ("garbage http", "does not speak HTTP"), ("not ready", "503")]
)
def test_a_server_that_never_gets_ready_is_given_up(world, fault, said):
    world.fault(fault)
    made = Template.read(world.launch, folder=world.root)
    with Running(made.command(OFF, free_port()), world.root / "log", {}) as running:

        def given_up():
            with pytest.raises(SettingFailed, match=r"did not answer within 0\.2 s \(--boot-timeout") as caught:
                servers.wait_ready(running, Prompt(0, (1,)), seconds=0.2)
            return re.search(said, str(caught.value))

        assert until(given_up)


def test_a_failed_setting_is_tried_again_and_what_is_there_is_not(world):
    world.fault("exits@1")
    world.sweep("1", batches=(1,))
    world.fault("")
    report = world.sweep("1", batches=(1,))
    assert [s for _, s, _ in world.starts] == ["0-1-1", "1-1-2", "1-1-2"]
    assert (report.failures, [c.reason for c in report.candidates[""]]) == ((), ["measured before", "asked for"])
    assert (world.root / "out/runs/1-1-2/server-2.log").exists()
    before = len(world.starts)
    more = world.sweep("1", batches=(1,), repeats=2)
    assert len(world.starts) == before + 2
    assert [(r["run"], r["repeat"]) for r in more.rows] == [("off", 0), ("1-1-2", 0), ("off", 1), ("1-1-2", 1)]
    with pytest.raises(TimingError, match="another max_new_tokens"):
        world.sweep("1", max_new_tokens=9)
    about = json.loads((world.root / "out/sweep.json").read_text())
    assert "--speculative-draft-model-path d" in about["command"]
    assert about["machine"]["cores"] == os.cpu_count()
    assert "device" not in about["provenance"]


def test_without_a_baseline_nothing_else_is_started(world):
    world.fault("exits@0")
    report = world.sweep("1,2", batches=(1,))
    assert report.exit_code == 2
    assert len(world.starts) == 1
    assert "nothing to compare with" in report.candidates[""][1].reason


def test_servers_that_ignore_sigterm_or_leave_daemons_are_ended(world):
    daemon = world.root / "daemon"
    world.monkeypatch.setenv("FAKE_DAEMON", str(daemon))
    made = Template.read(world.launch, folder=world.root)
    for fault in ("ignores", "forks"):
        world.fault(fault)
        with Running(made.command(OFF, free_port()), world.root / "log", {}) as running:
            servers.wait_ready(running, Prompt(0, (1,)), seconds=WAIT)
            assert fault != "forks" or until(daemon.exists)
            before = running.tree.look()
            start = time.monotonic()
            running.stop(grace=0.3)
        assert time.monotonic() - start < processes.GRACE
        assert not processes.processes().keys() & before.keys()
    assert int(daemon.read_text()) not in processes.processes()


def test_a_port_in_use_is_said_before_anything_is_started(world):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TimingError, match=rf"port {port} of the launch line is in use.* left alone"):
            world.sweep(launch=f"{world.launch} --port {port}")
        assert not world.starts
    check_free(port)


def test_somebody_elses_server_at_the_port_is_never_measured(world):
    """The port was free when it was chosen, and another program took it before the server did."""
    from contract_server import ContractServer

    with ContractServer() as other:
        made = Template.read(world.launch, folder=world.root)
        world.fault("never")
        with (
            Running(made.command(OFF, other.port), world.root / "log", {}) as running,
            pytest.raises(SettingFailed, match="it was left alone"),
        ):
            servers.wait_ready(running, Prompt(0, (1,)), seconds=WAIT)
        assert not other.asked
        assert listening(other.port)


def test_environments_are_an_axis_with_a_baseline_each(world):
    report = world.sweep("1", batches=(1,), environment=(("NCCL_ALGO", ("Ring", "Tree")),), max_runs=3)
    assert [(s, e) for _, s, e in world.starts] == [("0-1-1", "Ring"), ("1-1-2", "Ring"), ("0-1-1", "Tree")]
    assert report.candidates["NCCL_ALGO=Tree"][1].reason.startswith("left to the next call")
    assert {c.variant for c in report.choices} == {"NCCL_ALGO=Ring", "NCCL_ALGO=Tree"}
    assert (world.root / "out/runs/1-1-2+NCCL_ALGO=Ring/server.log").read_text().count("NCCL_ALGO Ring") == 1


def test_too_many_requests_for_the_server_are_no_measurement(world):
    report = world.sweep("1", batches=(1, 64))
    assert report.exit_code == 2
    assert "at most 48 requests together, 64 were asked for" in report.failures[0]["error"]


def test_a_full_disk_ends_the_sweep_and_keeps_what_is_there(world, monkeypatch):
    world.sweep("off", batches=(1,))
    monkeypatch.setattr(stores.os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(TimingError, match="no space is left on the disk"):
        world.sweep("1", batches=(1,))
    monkeypatch.undo()
    assert [r["run"] for r in world.results] == ["off"]


def test_other_text_is_warned_of(world):
    world.fault("other text@1")
    report = world.sweep("1", batches=(1,))
    assert report.choices[0].gains[1].same_text == (0, 5)
    assert "only 0% of the answers" in report.warnings[0]


def test_auto_stops_where_the_law_says(world):
    """A cycle of one step costs 25 plain ones: more than three times any accept length that 7 steps can have."""
    world.monkeypatch.setenv("FAKE_COST", "24")
    report = world.sweep("auto", batches=(1,), max_new_tokens=8)
    assert [s for _, s, _ in world.starts] == ["0-1-1", "1-1-2"]
    assert report.choices[0].best == "off"
    assert all(not c.tried and "where off is 1" in c.reason for c in report.candidates[""][2:])
