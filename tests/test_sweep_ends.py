"""The whole command of a sweep as a process of its own, and what ends it: signals, SIGKILL, bad arguments."""

import json
import signal
import subprocess
import sys
import time

import pytest
from sweep_world import OFF, WAIT, make_world, until

from eaglelab.cli import main
from eaglelab.timing.sweep import processes
from eaglelab.timing.sweep.command import Template
from eaglelab.timing.sweep.servers import Interrupted, Running, free_port, interruptible

LIMITS = ("--boot-timeout", str(WAIT), "--timeout", str(10 * WAIT))


@pytest.fixture
def world(tmp_path, monkeypatch):
    yield from make_world(tmp_path, monkeypatch)


def command(world, *more):
    file = world.root / "prompts.jsonl"
    file.write_text("".join(json.dumps({"token_ids": [i + 1, 2, 3]}) + "\n" for i in range(5)))
    return ["sweep", str(world.root), "--settings", "1", "--batch", "1", "--prompts", str(file), "--max-new-tokens", "24", *LIMITS, *more]


@pytest.fixture
def begun(world):
    """The command as a process of its own, once so many servers were started. SIGINT is ignored, as in a background job, and SIGHUP is not, as under
    nohup, where a sweep is to go on. Nothing of it outlives the test."""
    sweeps = []

    def as_in_the_background():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start(servers, *more):
        line = [sys.executable, "-m", "eaglelab.cli", *command(world, *more)]
        sweep = subprocess.Popen(line, preexec_fn=as_in_the_background, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        sweeps.append(sweep)
        reached = until(lambda: len(world.starts) >= servers or sweep.poll() is not None)
        if not reached or sweep.poll() is not None:
            sweep.kill()
            pytest.fail(f"{len(world.starts)} servers were started, {servers} were expected: {sweep.communicate(timeout=WAIT)}")
        return sweep, int(world.starts[servers - 1][0])

    yield start
    for sweep in sweeps:
        sweep.kill()
        sweep.communicate(timeout=WAIT)


def running(pid):
    return pid in processes.processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_sweep_ends_its_server(world, begun, number):
    sweep, server = begun(1, "--max-new-tokens", "100000")
    sweep.send_signal(number)
    out, err = sweep.communicate(timeout=WAIT)
    assert not running(server)
    assert (sweep.returncode, f"interrupted ({number.name})" in out) == (2, True), err


def test_a_second_signal_shortens_the_grace(world, monkeypatch):
    """The server ignores SIGTERM."""
    world.fault("ignores")
    made, sent, send = Template.read(world.launch, folder=world.root), [], processes._send

    def sent_and_hurried(tree, number):
        sent.append((number, time.monotonic()))
        send(tree, number)
        if len(sent) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes, "_send", sent_and_hurried)

    def interrupted():
        with interruptible(), Running(made.command(OFF, free_port()), world.root / "log", {}):
            assert until(lambda: world.starts)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM"):
        interrupted()
    (first, asked), (second, insisted) = sent[:2]
    assert (first, second) == (signal.SIGTERM, signal.SIGKILL)
    assert insisted - asked < processes.GRACE


def test_a_sweep_that_was_killed_goes_on_where_it_was(world, begun):
    sweep, server = begun(2, "--settings", "1,2")
    sweep.kill()
    sweep.communicate(timeout=WAIT)
    assert until(lambda: not running(server))  # by the guard
    results = world.root / "sweep/results.jsonl"
    assert json.loads(results.read_text().splitlines()[0])["run"] == "off"
    with results.open("a") as file:
        file.write('{"batch": 1, "ste')
    assert main(command(world, "--settings", "1,2")) == 0
    assert [json.loads(line)["run"] for line in results.read_text().splitlines()] == ["off", "1-1-2", "2-1-3"]
    assert sum(s == "0-1-1" for _, s, _ in world.starts) == 1


def test_a_plan_starts_nothing(world, capsys):
    assert main(command(world, "--plan", "--json", "--settings", "auto")) == 0
    out = json.loads(capsys.readouterr().out)
    assert not world.starts
    assert not (world.root / "sweep").exists()
    assert {c["name"]: c["tried"] for c in out["candidates"]}["off"]
    assert "--port PORT" in out["commands"]["1-1-2"]
    assert ["[dump] path" in note for note in out["notes"]] == [True]  # one reason, however many settings
    tried = sum(c["tried"] for c in out["candidates"])
    assert out["planned"] == {"servers": tried, "requests": 5 * tried, "requests_of_each": {"1": 5}}  # of five prompts


def test_a_plan_says_how_much_it_means(world, capsys):
    """Off and one setting; five prompts, and two for each of four streams; two repeats. Without prompts the requests are not known."""
    assert main(command(world, "--plan", "--batch", "1,4", "--repeats", "2")) == 0
    said = capsys.readouterr().out
    assert "2 servers at most, one after the other, and 52 requests: to each 10 at batch 1, 16 at batch 4" in said
    assert main(["sweep", str(world.root), "--settings", "1", "--plan"]) == 0
    assert "2 servers at most, one after the other; how many requests is not known" in capsys.readouterr().out
    assert main(["sweep", str(world.root), "--settings", "1", "--plan", "--prompts", str(world.root / "absent")]) == 2


def test_what_cannot_be_swept_is_an_error(world, capsys):
    (world.root / "binary").write_bytes(b"\xff\xfe\x00")
    for more, said in (
        (("--launch", str(world.root / "binary")), "binary is a file that holds no text"),
        (("--settings", "x"), "expected off, STEPS"),
        (("--launch", "./serve.sh"), "names no server"),
        (("--prompts", str(world.root / "absent")), "no such file"),
        (("--env", "A"), "expected NAME=VALUE"),
    ):
        assert main(command(world, *more, "--json")) == 2
        assert said in json.loads(capsys.readouterr().out)["error"]
    with pytest.raises(SystemExit):
        main(command(world, "--batch", "0"))
    (world.root / "case.toml").write_text('[drafter]\npath = "."\n')
    assert main([*command(world), "--json"]) == 2
    assert "give the server's command line with --launch" in json.loads(capsys.readouterr().out)["error"]
