"""What is interrupted goes on: the parts that were whole are not computed again, and the numbers are those of a run without a stop."""

from __future__ import annotations

import random
import sys
import time
from contextlib import contextmanager, suppress

import pytest
from case_builder import build_case, make_world

from eaglelab import progress
from eaglelab.cache import Folder, Results, Unfinished, codec, unfinished
from eaglelab.cache import results as module
from eaglelab.investigation import Investigation
from eaglelab.replay import run

pytestmark = pytest.mark.usefixtures("steady_keys")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    root = tmp_path_factory.mktemp("case")
    build_case(root, make_world(tmp_path_factory.mktemp("world"), "llama", 6, seed=3), slots=[2, 3, 4, "final"])
    return root


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Two samples a group, so that there are several."""
    monkeypatch.setattr(run, "BATCH_ROWS", 110)


RESULTS = {
    "replay": lambda inv: inv.own_replay,
    "ranking": lambda inv: inv.replays,
    "places": lambda inv: inv.places,
    "choices": lambda inv: inv._choices,
    "fingerprint": lambda inv: inv.fingerprint,
    "identification": lambda inv: inv.identification,
    "health": lambda inv: inv.health,
    "a replay of one's own": lambda inv: inv.replay_of([inv.dump_feed], steps=2),
}


class Stops:
    """Raises KeyboardInterrupt after so many parts were put by, as a stop between two of them would; counts the parts."""

    def __init__(self, monkeypatch) -> None:
        self.parts, self.at = 0, None
        real = unfinished.Pieces.__setitem__

        def put(pieces, name, value) -> None:
            real(pieces, name, value)
            self.parts += 1
            if self.parts == self.at:
                raise KeyboardInterrupt

        monkeypatch.setattr(unfinished.Pieces, "__setitem__", put)


def bits(value) -> bytes:
    return codec.dump(value, {})


@pytest.mark.parametrize("name", RESULTS)
def test_it_goes_on_after_any_part(case, monkeypatch, name):
    get, stops = RESULTS[name], Stops(monkeypatch)
    whole = bits(get(Investigation(case)))
    parts = stops.parts
    assert parts > 1
    for at in sorted({1, parts - 1, *random.Random(0).sample(range(1, parts), min(3, parts - 1))}):
        inv = Investigation(case)
        stops.parts, stops.at = 0, at
        with pytest.raises(KeyboardInterrupt):
            get(inv)
        stops.at = None
        assert bits(get(inv)) == whole
        assert stops.parts == parts  # none twice: those before the stop, and those that were left


@pytest.mark.parametrize("name", ["replay", "identification", "ranking", "fingerprint"])
def test_a_stop_in_the_middle_of_a_part_leaves_nothing_half_done(case, monkeypatch, name):
    """By stops at some lines of the library's own code, wherever these are."""
    whole = bits(RESULTS[name](Investigation(case)))

    def loaded() -> Investigation:
        inv = Investigation(case)
        inv.samples, inv.source  # noqa: B018 - so that the stops fall into the computation
        return inv

    inv = loaded()
    with stopping(10**9) as left:
        RESULTS[name](inv)
    lines = 10**9 - left[0]
    inv, generator = loaded(), random.Random(name)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), stopping(generator.randrange(lines // 10, lines // 3)):
            RESULTS[name](inv)
    assert bits(RESULTS[name](inv)) == whole


@contextmanager
def stopping(after: int):
    """KeyboardInterrupt at a line of eaglelab's code; yields [lines that are left]."""
    left = [after]

    def watch(frame, event, _):
        if "/eaglelab/" not in frame.f_code.co_filename or frame.f_code.co_filename.endswith("progress.py"):
            return None
        left[0] -= event == "line"
        if left[0] == 0:
            raise KeyboardInterrupt
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield left
    finally:
        sys.settrace(before)


def test_an_interrupted_property_is_not_set(case, monkeypatch):
    stops, inv = Stops(monkeypatch), Investigation(case)
    stops.at = 1
    with pytest.raises(KeyboardInterrupt):
        inv.own_replay  # noqa: B018
    assert "own_replay" not in vars(inv)


@pytest.mark.parametrize("name", ["replay", "identification", "fingerprint"])
def test_another_process_goes_on_from_the_folder(case, monkeypatch, tmp_path, name):
    stops, folder = Stops(monkeypatch), Folder(tmp_path / "cache")

    def opened() -> Investigation:
        inv = Investigation(case)
        inv.results = Results(inv, folder, worth=0.0)
        monkeypatch.setattr(module, "_left", {})  # as in another process
        inv.results.unfinished = Unfinished()
        return inv

    whole = bits(RESULTS[name](Investigation(case)))
    parts = stops.parts
    stops.parts, stops.at = 0, 2
    with pytest.raises(KeyboardInterrupt):
        RESULTS[name](opened())
    assert any(p.stem.endswith(".pieces") for p in folder.path.iterdir())
    stops.at = None
    assert bits(RESULTS[name](opened())) == whole
    assert stops.parts == parts
    assert not any(p.stem.endswith(".pieces") for p in folder.path.iterdir())


def test_a_case_that_is_opened_again_goes_on(case, monkeypatch, tmp_path):
    """As when the notebook's first cell is run again."""
    stops, folder = Stops(monkeypatch), Folder(tmp_path / "cache")
    first, second = Investigation(case), Investigation(case)
    for inv in (first, second):
        inv.results = Results(inv, folder, worth=0.0)
    stops.at = 2
    with pytest.raises(KeyboardInterrupt):
        first.own_replay  # noqa: B018
    stops.at = None
    found = second.own_replay
    of_both, stops.parts = stops.parts, 0
    assert bits(found) == bits(Investigation(case).own_replay)
    assert of_both == stops.parts  # none twice


def test_pieces_are_dropped_when_the_result_is_there(case):
    inv = Investigation(case)
    for get in RESULTS.values():
        get(inv)
    assert inv.results.unfinished.left == {}
    assert inv.results.unfinished._alone == {}


def test_few_interrupted_computations_stay_in_memory():
    mine = Unfinished()
    for i in range(10):
        with suppress(KeyboardInterrupt), mine.work(f"r{i}"):
            mine.of("x")[0] = i
            raise KeyboardInterrupt
    assert list(mine.left) == ["r6", "r7", "r8", "r9"]


def test_long_computations_save_their_parts_now_and_then(monkeypatch):
    saved, mine = [], Unfinished()
    with mine.work("r", save=lambda pieces: saved.append({k: dict(v) for k, v in pieces.items()})):
        pieces = mine.of("x")
        pieces[0] = "a"
        assert saved == []
        monkeypatch.setattr(unfinished, "SAVE_EVERY", 0.0)
        pieces[1] = "b"
    assert saved == [{"('x',)": {0: "a", 1: "b"}}]


KERNEL = """
import time
from eaglelab.cache import unfinished
from eaglelab.investigation import Investigation
from eaglelab.replay import run
run.BATCH_ROWS = 110
inv = Investigation({case!r})
inv.judge, inv.feeds  # so that the parts are the replay's
real, parts = unfinished.Pieces.__setitem__, []
def put(pieces, name, value):
    real(pieces, name, value)
    parts.append(name)
    print("part", flush=True)
    time.sleep(slow)
unfinished.Pieces.__setitem__ = put
"""


@pytest.mark.slow
def test_a_kernel_that_is_interrupted_goes_on(case):
    """JupyterLab's stop button, and the cell run again."""
    manager_module = pytest.importorskip("jupyter_client.manager")
    manager, client = manager_module.start_new_kernel(kernel_name="python3")
    try:
        client.execute_interactive(KERNEL.format(case=str(case)), timeout=120, output_hook=lambda m: None)
        client.execute("slow = 1.0\ninv.own_replay")
        end, seen = time.monotonic() + 120, 0
        while seen < 2 and time.monotonic() < end:
            message = client.get_iopub_msg(timeout=60)
            seen += message["msg_type"] == "stream" and "part" in message["content"]["text"]
        manager.interrupt_kernel()
        assert client.get_shell_msg(timeout=60)["content"].get("ename") == "KeyboardInterrupt"
        said = []
        client.execute_interactive(
            "before = len(parts)\nslow = 0\ninv.own_replay\n"
            "print('RESULT', before, len(parts), sorted(parts) == list(range(len(parts))), inv.own_replay.counts.right)",
            timeout=120,
            output_hook=lambda m: said.append(m["content"].get("text", "")),
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    (line,) = [line for line in "".join(said).splitlines() if line.startswith("RESULT")]
    _, before, parts, each_once, *right = line.split(maxsplit=4)
    assert 2 <= int(before) < int(parts)
    assert each_once == "True"
    assert right == [str(Investigation(case).own_replay.counts.right)]


def test_a_stage_that_is_interrupted_leaves_none_behind(case, monkeypatch):
    stops, inv = Stops(monkeypatch), Investigation(case)
    stops.at = 1
    with pytest.raises(KeyboardInterrupt):
        inv.own_replay  # noqa: B018
    assert progress._stages == []
