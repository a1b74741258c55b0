"""Whatever ends a report, what was finished stays and can be gone on with: Ctrl-C, a kill, a full disk, a kernel that dies."""

import errno
import json
import os
import signal

import pytest
from fleet_world import TWO_CORES, VERDICT, WAITS, add_notebook, command, gone, make_case, ran, wait_for

from eaglelab import provenance
from eaglelab.case import open_case
from eaglelab.reports import case_run, state
from eaglelab.reports.run import run_report, run_reports
from eaglelab.reports.select import ReportError


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "git_state", lambda *folder: "1a2b3c4d5e6f")  # whatever is committed while tests run
    make_case(tmp_path)
    return tmp_path


def report(place, **options):
    lines = []
    result = run_report(place / "cases" / "a", notebooks=place / "books", say=lines.append, machine=TWO_CORES, **options)
    return result, lines


def sidecar(place, case="a"):
    (found,) = (place / "reports" / case).glob("*/findings.json")
    return json.loads(found.read_text())


def stop_at_the_second(place, number):
    """Run a command, send it a signal while its second notebook waits. (its exit code, stdout, stderr, the kernel's and its child's pid)"""
    add_notebook(place, "01_first", VERDICT)
    add_notebook(place, "02_waits", WAITS)
    add_notebook(place, "03_last")
    process = command(place, "cases/a", "--jobs", "1")
    pids = wait_for(place / "cases" / "a" / "pids.txt").read_text().split()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err, list(map(int, pids))


def go_on(place):
    """The same command with --resume; its output."""
    (place / "cases" / "a" / "go").touch()
    process = command(place, "cases/a", "--jobs", "1", "--resume")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of Unix")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_finished_and_says_how_to_go_on(place, number):
    code, out, err, (kernel, child) = stop_at_the_second(place, number)
    assert code == 130
    assert "01_first  ok" in out
    assert err == (
        "eaglelab report: interrupted: 1 of 3 notebooks are finished and kept\ngo on with: eaglelab report cases/a --jobs 1 --resume\n"
    )
    assert gone(kernel, 5)
    assert gone(child, 5)
    data = sidecar(place)
    assert ([n["name"] for n in data["notebooks"]], data["planned"]) == (["01_first"], ["01_first", "02_waits", "03_last"])
    assert "not finished: 1 of 3 notebooks" in (place / "reports" / "index.html").read_text()
    assert not list(place.glob("reports/**/*.part"))

    out = go_on(place)
    assert "a  goes on, 1 of 3 finished: a/" in out
    assert ran(place / "cases" / "a") == ["01_first", "02_waits", "02_waits", "03_last"]
    data = sidecar(place)
    assert [n["name"] for n in data["notebooks"]] == data["planned"]
    assert (data["verdict"]["stage"], data["findings"][0]["id"]) == ("wiring", "a.one")  # recorded before the interrupt
    assert "not finished" not in (place / "reports" / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of Unix")
def test_a_killed_runner_leaves_a_state_that_can_be_gone_on_with(place):
    code, _, _, (kernel, _) = stop_at_the_second(place, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert gone(kernel)  # a kernel looks for its parent every second
    data = sidecar(place)
    assert [n["name"] for n in data["notebooks"]] == ["01_first"]
    assert "a  goes on, 1 of 3 finished" in go_on(place)
    assert len(sidecar(place)["notebooks"]) == 3


def test_what_broke_is_run_again_and_what_is_finished_is_not(place):
    add_notebook(place, "01_good", VERDICT)
    add_notebook(
        place, "02_dies", "import os, signal, pathlib\nif not pathlib.Path('mended').exists(): os.kill(os.getpid(), signal.SIGKILL)"
    )
    first, _ = report(place)
    assert first.notebooks[1]["error"].startswith("KernelDied")
    (place / "mended").touch()
    second, lines = report(place, resume=True)
    assert lines[0] == f"a  goes on, 1 of 2 finished: a/{first.directory.name}"
    assert (second.directory, second.exit_code, second.data["verdict"]["stage"]) == (first.directory, 0, "wiring")
    assert sorted(ran(place / "cases" / "a")) == ["01_good", "02_dies", "02_dies"]
    third, lines = report(place, resume=True)
    assert lines == [f"a  is finished: a/{first.directory.name}"]
    assert third.data["findings"] == second.data["findings"]
    assert len(ran(place / "cases" / "a")) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("parameter", r"parameter max_samples of 01_breaks: 3, now 4"),
        ("notebook", r"notebook 01_breaks has changed"),
        ("input", r"input dump.path has changed"),
        ("case", r"input case has changed"),
        ("version", r"version eaglelab: 0.0.0, now "),
        ("only", r"notebook 02_more is gone"),
    ],
)
def test_another_question_is_a_new_run_and_what_differs_is_said(place, monkeypatch, change, said):
    add_notebook(place, "01_breaks", "1 / 0")
    add_notebook(place, "02_more")
    with monkeypatch.context() as patch:
        if change == "version":
            patch.setattr(provenance, "versions", lambda real=provenance.versions: real() | {"eaglelab": "0.0.0"})
        first, _ = report(place, parameters={"max_samples": 3})
    if change == "notebook":
        add_notebook(place, "01_breaks", "1 / 0 + 1")
    elif change == "input":
        (place / "cases" / "a" / "dump" / "x.pt").write_text("x")
    elif change == "case":
        (place / "cases" / "a" / "case.toml").write_text('[dump]\npath = "dump"\nsplit = "train"\n')
    options = {"parameters": {"max_samples": 4 if change == "parameter" else 3}, "only": "01" if change == "only" else None}
    second, lines = report(place, resume=True, **options)
    assert second.directory != first.directory
    assert said in lines[0]
    assert lines[0].startswith(f"a  a/{first.directory.name} is not gone on with (")
    assert lines[0].endswith("): a new run")


def test_a_finished_run_of_another_question_is_named(place):
    add_notebook(place, "01_x", "1")
    first, _ = report(place, parameters={"max_samples": 3})
    second, lines = report(place, resume=True, parameters={"max_samples": 4})
    assert second.directory != first.directory
    assert lines[0] == f"a  a/{first.directory.name} is not gone on with (parameter max_samples of 01_x: 3, now 4): a new run"


def test_without_an_earlier_run_it_says_so(place):
    add_notebook(place, "01_x")
    _, lines = report(place, resume=True)
    assert lines[0] == "a  no earlier run to go on with: a new one"


def test_weights_of_the_same_length_are_another_input(place):
    """Where a hash is of names and sizes, the time of the last change counts: retrained weights are as long as the old ones."""
    case = open_case(place / "cases" / "a")
    described = {"name": "dump.path", "of": "names and sizes", "sha256": "x"}
    (case.dump.path / "x.pt").write_text("old")
    os.utime(case.dump.path / "x.pt", ns=(10, 10))
    origin = {"inputs": [described], "versions": {}, "git": None}
    old = state.identity(case, [], {}, origin, {})
    os.utime(case.dump.path / "x.pt", ns=(20, 20))
    assert state.differences(old, state.identity(case, [], {}, origin, {})) == ["input dump.path has changed"]


def test_a_run_that_another_process_writes_is_left_alone(place):
    add_notebook(place, "01_breaks", "1 / 0")
    first, _ = report(place)
    held = state.Held(first.directory)
    assert held.take()
    second, lines = report(place, resume=True)
    assert lines[0] == f"a  a/{first.directory.name} is being written by another report"
    assert second.directory != first.directory
    held.give()
    third, _ = report(place, resume=True)
    assert third.directory == second.directory  # the newest


def test_a_full_disk_is_said_and_what_is_finished_stays(place, monkeypatch):
    add_notebook(place, "01_good")
    add_notebook(place, "02_full")
    add_notebook(place, "03_never")
    write = case_run.write_text

    def full(path, text):
        if path.name == "02_full.ipynb":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, text)

    said = (
        "cannot write reports to reports: No space left on device. Finished notebooks are kept: make room, then run it again with --resume"
    )
    with monkeypatch.context() as patch:
        patch.setattr(case_run, "write_text", full)
        with pytest.raises(ReportError, match=said):
            report(place, jobs=1)
    assert [n["name"] for n in sidecar(place)["notebooks"]] == ["01_good"]
    assert ran(place / "cases" / "a") == ["01_good", "02_full"]
    result, _ = report(place, resume=True, jobs=1)
    assert result.exit_code == 0
    assert ran(place / "cases" / "a") == ["01_good", "02_full", "02_full", "03_never"]


def test_a_damaged_notebook_of_an_unfinished_run_is_run_again(place):
    add_notebook(place, "01_good")
    add_notebook(place, "02_breaks", "1 / 0")
    first, _ = report(place)
    (first.directory / "01_good.ipynb").write_text("{half")
    second, lines = report(place, resume=True)
    assert "goes on, 0 of 2 finished" in lines[0]
    assert [n["name"] for n in second.notebooks] == ["01_good", "02_breaks"]


def test_a_fleet_goes_on_where_each_case_was(place):
    make_case(place, "b")
    add_notebook(place, "01_x", "import pathlib\nassert 'b' not in pathlib.Path(case).parent.name or pathlib.Path('mended').exists()")
    cases = [place / "cases" / "a", place / "cases" / "b"]
    first = run_reports(cases, notebooks=place / "books", machine=TWO_CORES)
    assert (first.exit_code, [r.broken for r in first.rows]) == (1, [0, 1])
    (place / "mended").touch()
    second = run_reports(cases, notebooks=place / "books", machine=TWO_CORES, resume=True)
    assert (second.exit_code, [len(ran(c)) for c in cases]) == (0, [1, 2])
