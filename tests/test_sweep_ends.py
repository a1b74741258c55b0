"""The whole command of a sweep as a process of its own, and what ends it: signals, SIGKILL, bad arguments."""

import json
import signal
import subprocess
import sys
import time

import pytest
from sweep_world import make_world

from eaglelab.cli import main
from eaglelab.timing.sweep import processes


@pytest.fixture
def world(tmp_path, monkeypatch):
    yield from make_world(tmp_path, monkeypatch)


def command(world, *more):
    file = world.root / "prompts.jsonl"
    file.write_text("".join(json.dumps({"token_ids": [i + 1, 2, 3]}) + "\n" for i in range(5)))
    return ["sweep", str(world.root), "--settings", "1", "--batch", "1", "--prompts", str(file), "--max-new-tokens", "24", *more]


def begun(world, servers, *more):
    """The command as a process of its own, when so many servers were started and the last one runs. SIGINT is ignored, as in a background job."""
    line = [sys.executable, "-m", "eaglelab.cli", *command(world, *more)]
    ignored = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    sweep = subprocess.Popen(line, preexec_fn=ignored, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 100
    while len(world.starts) < servers and time.monotonic() < until and sweep.poll() is None:
        time.sleep(0.01)
    assert len(world.starts) == servers, sweep.communicate()
    server = int(world.starts[-1][0])
    assert server in processes.processes()
    return sweep, server


def gone(pid, seconds=20):
    until = time.monotonic() + seconds
    while pid in processes.processes() and time.monotonic() < until:
        time.sleep(0.02)
    return pid not in processes.processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_sweep_ends_its_server(world, number):
    """Of SIGINT there are two, and a server that ignores SIGTERM: the second one shortens the wait of 20 seconds."""
    world.fault("ignores" if number == signal.SIGINT else "")
    sweep, server = begun(world, 1, "--max-new-tokens", "4000")
    sweep.send_signal(number)
    if number == signal.SIGINT:
        time.sleep(0.5)
        assert server in processes.processes()
        sweep.send_signal(number)
    began = time.monotonic()
    out, err = sweep.communicate(timeout=60)
    assert gone(server, 0)
    assert time.monotonic() - began < 15
    assert (sweep.returncode, f"interrupted ({number.name})" in out) == (2, True), err


def test_a_sweep_that_was_killed_goes_on_where_it_was(world):
    sweep, server = begun(world, 2, "--settings", "1,2")
    sweep.kill()
    sweep.communicate()
    assert gone(server)
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


def test_what_cannot_be_swept_is_an_error(world, capsys):
    for more, said in (
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
