"""Bars for who watches, one line for logs and reports; nothing is left of a loop that was stopped."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import pytest

from eaglelab import progress
from eaglelab.progress import counting, stage


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setattr(progress, "watched", lambda: False)


def lines(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_loop_leaves_one_line_with_what_was_done(capsys):
    assert list(progress.progress(range(32), "health", delay=0, unit="samples")) == list(range(32))
    (line,) = lines(capsys)
    assert line.startswith("health: 32 samples, 0.")
    assert line.endswith(" s")


def test_a_short_loop_says_nothing(capsys):
    list(progress.progress(range(3), "health"))
    with counting(3, "replay") as step:
        step()
    assert lines(capsys) == []


def test_steps_that_are_counted_by_hand_leave_a_line(capsys):
    with counting(64, "replay", delay=0, said="32 samples") as step:
        for _ in range(64):
            step()
    (line,) = lines(capsys)
    assert line.startswith("replay: 32 samples, 0.")


def test_a_stage_leaves_one_line_for_all_that_runs_inside(capsys):
    with stage("the feeds, ranked by replay", delay=0):
        for _ in range(4):
            with counting(2, "replay", delay=0, said="32 samples") as step:
                time.sleep(0.02)  # the longest of the loops is told
                step(2)
        with stage("the replay on the dump's feed", delay=0):
            list(progress.progress(range(3), "layers", delay=0, unit="layers"))
    (line,) = lines(capsys)
    assert line.startswith("the feeds, ranked by replay: 32 samples, 0.")


def test_an_interrupted_loop_says_nothing_and_leaves_no_stage(capsys):
    with pytest.raises(KeyboardInterrupt), stage("replay", delay=0), counting(3, "rows", delay=0):
        raise KeyboardInterrupt
    assert lines(capsys) == []
    assert progress._stages == []


def test_a_bar_moves_on_a_terminal_and_goes_when_it_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with suppress(KeyboardInterrupt), counting(3, "rows", delay=0) as step:
        step()
        raise KeyboardInterrupt
    shown = capsys.readouterr().err
    assert "rows" in shown
    assert not shown.rsplit("\r", 1)[-1].strip()  # the line was cleared
    assert "0.0 s" not in shown
