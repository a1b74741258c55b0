"""A case whose launch line starts the fake engine, and what is left of its processes."""

import json
import os
import sys
import time
from pathlib import Path

import fake_engine

from eaglelab.investigation import Investigation
from eaglelab.live.prompts import Prompt, Prompts
from eaglelab.timing.setting import Setting
from eaglelab.timing.sweep import processes
from eaglelab.timing.sweep import run as runs
from eaglelab.timing.sweep.command import Template
from eaglelab.timing.sweep.plan import parse_settings
from eaglelab.timing.sweep.run import Options, Sweep

OFF = Setting(0)
WAIT = 60
"""Seconds that any wait of the sweep's tests may take on a machine with much else to do; otherwise it is over in one or two."""
LINE = "python -m sglang.launch_server --model-path m --tp-size 2 --speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --disable-radix-cache"


def make_world(tmp_path, monkeypatch):
    """For a fixture. A case whose launch line starts the fake engine; at the end no process of it may be left."""
    modules = fake_engine.installed(tmp_path / "modules")
    launch = f"PYTHONPATH={modules} {sys.executable} -S {LINE.removeprefix('python ')}"
    (tmp_path / "case.toml").write_text(f'[engine]\nname = "sglang"\nlaunch = {json.dumps(launch)}\n')
    monkeypatch.setenv("FAKE_STARTS", str(tmp_path / "starts"))
    monkeypatch.setattr(runs, "collect", lambda: {"device": "CPU", "git": None})  # asking git takes seconds where the disk is busy
    monkeypatch.setattr(runs, "accelerated", lambda: True)  # whatever machine the tests run on
    yield World(tmp_path, launch, monkeypatch)
    assert until(lambda: not left_over(tmp_path))


def until(true, seconds=WAIT):
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while not (reached := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return reached


def left_over(folder):
    """Pids of fake engines of this test that still run."""
    found = []
    for process in processes.processes():
        try:
            words = Path(f"/proc/{process}/environ").read_bytes() + Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and process not in (os.getpid(), os.getppid()) and b"pytest" not in words:
            found.append(process)
    return found


class World:
    def __init__(self, root, launch, monkeypatch):
        self.root, self.launch, self.monkeypatch = root, launch, monkeypatch
        self.prompts = Prompts(tuple(Prompt(i, (i + 1, 2, 3)) for i in range(5)), "a test")
        self.said = []

    def fault(self, name):
        self.monkeypatch.setenv("FAKE_FAULT", name)

    def sweep(self, chosen="1", launch=None, out="out", **options):
        options = {"batches": (1, 2), "max_new_tokens": 24, "boot_timeout": WAIT, "timeout": WAIT, **options}
        made = Options(settings=parse_settings(chosen), **options)
        engine = Template.read(launch or self.launch, folder=self.root)
        return Sweep(Investigation(str(self.root)), engine, made, out=self.root / out, say=self.said.append).run(self.prompts)

    @property
    def starts(self):
        """`PID SETTING ENV` of each server that started."""
        path = self.root / "starts"
        return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def results(self):
        return [json.loads(line) for line in (self.root / "out" / "results.jsonl").read_text().splitlines()]
