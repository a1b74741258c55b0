"""A report of many cases: one queue over cores and GPUs, a row for each case, wrong requests refused at once."""

import csv
import json
import os
import threading

import pytest
from fleet_world import DEVICE, PARAMETERS, TWO_CORES, VERDICT, add_notebook, command, make_case, ran

from eaglelab.case import CaseError
from eaglelab.cli import main
from eaglelab.findings import Finding, Status
from eaglelab.reports import jobs, machine, results
from eaglelab.reports.cases import listed, open_all
from eaglelab.reports.jobs import Gpus, Job, kernels_at_a_time, refuse_absent_gpu, work
from eaglelab.reports.machine import GIB, Machine
from eaglelab.reports.run import run_reports
from eaglelab.reports.select import ReportError

TWO_GPUS = Machine(cores=4, memory=64 * GIB, gpus=("0", "1"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        make_case(tmp_path, name)
    return tmp_path


def fleet(place, cases, **options):
    lines = []
    options = {"notebooks": place / "books", "machine": TWO_CORES} | options
    return run_reports(cases, say=lines.append, **options), lines


# which GPU, how many at a time


def test_a_job_on_cuda_has_a_gpu_for_itself():
    gpus = Gpus(("4", "GPU-abc"))
    first, second = gpus.take("auto"), gpus.take("cuda")
    assert [(p.gpu, p.environment) for p in (first, second)] == [
        (0, {"CUDA_VISIBLE_DEVICES": "4"}),
        (1, {"CUDA_VISIBLE_DEVICES": "GPU-abc"}),
    ]
    assert gpus.take("auto") is None  # both are taken
    assert [gpus.take(d).gpu for d in ("cpu", None)] == [None, None]  # these run beside
    gpus.give(first)
    assert gpus.take("cuda:1") is None  # it is the second GPU that is asked for
    gpus.give(second)
    pinned = gpus.take("cuda:1")
    assert (pinned.gpu, pinned.environment) == (1, {})  # it sees all GPUs, so that cuda:1 is the one
    assert gpus.take("auto").gpu == 0


def test_without_a_counted_gpu_auto_is_the_cpu_and_cuda_runs_one_at_a_time():
    gpus = Gpus(())
    assert gpus.take("auto").gpu is None
    assert gpus.take("cuda").environment == {}
    assert gpus.take("cuda:3") is None


@pytest.mark.parametrize(
    ("asked", "count", "has", "drafter", "expected"),
    [
        (None, 27, Machine(16, 128 * GIB), 0, 16),
        (None, 9, Machine(16, 128 * GIB), 0, 9),
        (None, 27, Machine(16, 9 * GIB), 0, 4),
        (None, 27, Machine(16, 16 * GIB), 2 * GIB, 2),
        (None, 27, Machine(16, GIB), 0, 1),
        (None, 500, Machine(128, 900 * GIB), 0, jobs.MOST),
        (5, 27, Machine(2, GIB), 0, 5),
        (5, 2, Machine(2, GIB), 0, 2),
        (None, 0, Machine(2, GIB), 0, 1),
    ],
)
def test_kernels_at_a_time(asked, count, has, drafter, expected):
    assert kernels_at_a_time(asked, count, has, drafter) == expected


def test_kernels_share_the_cores():
    assert jobs.threads_each(Machine(16, GIB), 5) == dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3")
    assert jobs.threads_each(Machine(2, GIB), 8)["OMP_NUM_THREADS"] == "1"


def test_gpus_are_counted_by_the_environment_or_nvidia_smi(tmp_path):
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-x"}) == ("2", "GPU-x")
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": "1,-1,3"}) == ("1",)  # CUDA stops reading there
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert machine.gpus({"PATH": str(tmp_path)}) == ()
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\necho "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)"\n'
    )
    tool.chmod(0o755)
    assert machine.gpus({"PATH": f"{tmp_path}:{os.environ['PATH']}"}) == ("0", "1")
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert machine.gpus({"PATH": f"{tmp_path}:{os.environ['PATH']}"}) == ()


def test_a_containers_limits_count(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(str(3 * 2**20))
    (tmp_path / "memory.current").write_text(str(2**20))
    assert (machine.cores(tmp_path), machine.memory(tmp_path)) == (1, 2 * 2**20)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.cores(tmp_path) == len(os.sched_getaffinity(0))
    assert machine.memory(tmp_path) > 2 * 2**20


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ReportError, match=r"parameter device: got 'cuda:2', expected one of this machine's GPUs: cuda:0, cuda:1, or auto"):
        refuse_absent_gpu("cuda:2", TWO_GPUS)
    for device in ("cuda:1", "cuda", "cpu", None):
        refuse_absent_gpu(device, TWO_GPUS)
    refuse_absent_gpu("cuda:2", TWO_CORES)  # none was counted: torch may know better


def test_the_queue_never_shares_a_gpu_and_lets_others_pass():
    held, shared, most, lock = set(), [], [0], threading.Lock()

    def do(name, place):
        with lock:
            if place.gpu is not None:
                shared.extend({place.gpu} & held)
                held.add(place.gpu)
            most[0] = max(most[0], len(held))
        threading.Event().wait(0.01)
        with lock:
            held.discard(place.gpu)
        return name

    queue = [Job(n, d) for n, d in enumerate(["auto", "cuda:0", "cuda", None, "cpu", "cuda:1", "auto", None])]
    done = [result for _, result in work(queue, 4, Gpus(("0", "1")), do, lambda: None)]
    assert (sorted(done), shared, most) == (list(range(8)), [], [2])


def test_an_error_in_the_queue_stops_the_others():
    stopped, release = threading.Event(), threading.Event()

    def do(name, place):
        if name == "breaks":
            raise OSError("disk")
        release.wait(10)

    def stop():
        stopped.set()
        release.set()

    with pytest.raises(OSError, match="disk"):
        list(work([Job("waits", None), Job("breaks", None), Job("never", None)], 2, Gpus(()), do, stop))
    assert stopped.is_set()


def test_a_kernel_on_cuda_sees_its_gpu_only(place):
    code = 'from eaglelab import notebook\nimport os\nnotebook.record_result(case, os.environ.get("CUDA_VISIBLE_DEVICES"))'
    add_notebook(place, "01_gpu", code, parameters=f"{PARAMETERS}\n{DEVICE}")
    made, _ = fleet(place, ["cases/a", "cases/b"], machine=TWO_GPUS)
    assert sorted(r.data["results"][f"cases/{name}/case.toml"] for name, r in made.runs.items()) == ["0", "1"]


# the cases


def test_one_case_that_cannot_be_opened_is_a_row(place, capsys):
    add_notebook(place, "01_x", VERDICT)
    (place / "cases" / "logs").mkdir()
    (place / "cases" / "b" / "case.toml").write_text("[dump\n")
    made, lines = fleet(place, ["cases/a", "cases/b", "cases/logs"])
    assert made.exit_code == 1
    assert lines[0].startswith("b  cannot be opened: ")
    assert lines[1].startswith("logs  cannot be opened: no case.toml in ")
    assert lines[2].startswith("a  01_x  ok  ")
    good, broken, none = made.rows
    assert (good.headline, good.change) == ("Wiring is at fault (sure): set `ids` = `[2, 15, 27]`", "ids = [2, 15, 27]")
    assert (good.replayed, good.served, good.fails, good.broken) == (1.8, None, 1, 0)
    assert (place / "reports" / good.page).exists()
    assert (broken.page, none.seconds) == (None, None)
    with (place / "reports" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["case"], r["replayed"], r["fails"]) for r in rows] == [("a", "1.8", "1"), ("b", "", ""), ("logs", "", "")]
    assert list(rows[0]) == ["case", "headline", "change", "step0", "replayed", "served", "fails", "broken", "seconds", "page"]


def test_the_only_case_must_be_one(place):
    add_notebook(place, "01_x")
    with pytest.raises(CaseError, match="no case at"):
        fleet(place, ["nowhere"])


def test_a_list_of_cases(place):
    (place / "lists").mkdir()
    (place / "lists" / "some.txt").write_text(
        "# drafters of this week\ncases/a  # the first\n\n../cases/b\ncases/a\n", encoding="utf-8-sig"
    )
    assert [a.name for a in open_all(listed(["@lists/some.txt", "cases/b/case.toml"]))] == ["a", "b"]
    (place / "empty.txt").write_text("# none\n")
    for given, said in (
        (["@empty.txt"], "@empty.txt names none: expected one path a line"),
        (["@no.txt"], "@no.txt cannot be read: No such file or directory"),
        ([], "no case given: `eaglelab report CASE`"),
    ):
        with pytest.raises(ReportError, match=said):
            listed(given)


def test_cases_of_one_name_are_told_apart(place):
    for name in ("x/m", "y/m", "y/n"):
        make_case(place, name)
    (place / "cases" / "y" / "n" / "other.toml").write_text('[dump]\npath = "dump"\n')
    paths = ["cases/x/m", "cases/y/m", "cases/y/n", "cases/y/n/other.toml"]
    assert [a.name for a in open_all(listed(paths))] == ["x/m", "y/m", "n/case", "n/other"]


def test_wrong_parameters_are_refused_before_any_case_runs(place):
    add_notebook(place, "01_x")
    for given, said in (({"max_sample": "4"}, "did you mean 'max_samples'"), ({"max_samples": "x"}, "got 'x', expected int")):
        with pytest.raises(ReportError, match=said):
            fleet(place, ["cases/a", "cases/b"], parameters=given)
    assert not (place / "reports").exists()
    assert ran(place / "cases" / "a") == []


@pytest.mark.slow
def test_two_reports_at_the_same_time_do_not_spoil_each_other(place):
    add_notebook(place, "01_x", VERDICT)
    both = [command(place, "cases/a", "cases/b") for _ in range(2)]
    outs = [process.communicate(timeout=240) for process in both]
    assert [p.returncode for p in both] == [0, 0], outs
    assert len(list(place.glob("reports/*/*/findings.json"))) == 4
    index = (place / "reports" / "index.html").read_text()
    assert index.count('<th scope="row">') == 4
    assert "not finished" not in index
    assert not [p for p in place.glob("reports/**/*") if p.name.endswith(".part") or p.name == ".running"]


# what a terminal shows


def test_the_table_fits_the_terminal_and_pages_stay_whole(tmp_path):
    finding = [Finding("a", "Title " * 20, Status.FAIL).to_json()]
    data = {"findings": finding, "verdict": None, "notebooks": [{"name": "08_verdict", "error": None}], "problems": [], "seconds": 61.2}
    folder = tmp_path / "c" / "2026"
    folder.mkdir(parents=True)
    (folder / "08_verdict.html").write_text("")
    rows = [results.row("c", data, folder, tmp_path), results.refused("a-case-with-quite-a-long-name-indeed", "cannot be opened: x")]
    for width in (100, 160):
        lines = results.lines(rows, width, tmp_path)
        assert max(len(line) for line in lines if str(tmp_path) not in line and "marginal" not in line) <= width
    assert any(line.endswith("c/2026/08_verdict.html") for line in lines)
    assert lines[1].split()[:7] == ["c", "–", "–", "–", "1", "0", "61"]  # noqa: RUF001
    assert any("…" in line and "name-indeed" in line for line in lines)


def test_a_spreadsheet_takes_no_text_for_a_formula(tmp_path):
    results.write_csv(tmp_path / "results.csv", [results.refused("=cmd()", "@x, y")])
    assert (tmp_path / "results.csv").read_text().splitlines()[1] == "'=cmd(),\"'@x, y\",,,,,,,,"


# the command


@pytest.fixture
def books(place, monkeypatch):
    add_notebook(place, "01_x", VERDICT)
    monkeypatch.setattr("eaglelab.reports.run.notebooks_folder", lambda folder=None: place / "books")
    return place


def test_the_command_on_a_fleet(books, capsys):
    (books / "few.yaml").write_text("max_samples: 2\n")
    assert main(["report", "cases/a", "cases/b", "-f", "few.yaml", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "a  01_x  ok" in out
    assert "Wiring is at fault (sure)" in out
    assert "2 pages in reports; all runs: reports/index.html; table: reports/results.csv" in out
    assert main(["report", "cases/a", "cases/b", "-f", "few.yaml", "-p", "max_samples", "3", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [r["case"] for r in data["table"]] == ["a", "b"]
    assert data["runs"]["b"]["provenance"]["parameters"] == {"max_samples": "3"}
    assert "identity" not in data["runs"]["b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no case given: `eaglelab report CASE`"),
        (["cases/a", "--compare", "x", "y"], "--compare takes two runs and nothing else"),
        (["--compare", "x", "y", "--resume"], "where a run is a folder reports/CASE/DATE that holds findings.json"),
        (["--compare", "x", "y"], "x: no such folder. Give a run's folder"),
        (["cases/a", "-f", "no.yaml"], "-f no.yaml: cannot be read as YAML or JSON"),
        (["cases/a", "-f", "list.yaml"], "-f list.yaml: got list, expected names with values"),
        (["cases/a", "-p", "max_samples", "1.5"], "parameter max_samples: got '1.5', expected int"),
        (["nowhere"], "no case at "),
    ],
)
def test_usage_errors_of_the_command(books, capsys, arguments, said):
    (books / "list.yaml").write_text("- 1\n")
    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_two_runs_side_by_side(books, capsys):
    for number in ("2", "3"):
        assert main(["report", "cases/a", "-p", "max_samples", number]) == 0
    runs = sorted(map(str, (books / "reports" / "a").iterdir()))
    capsys.readouterr()
    assert main(["report", "--compare", *runs]) == 0
    out = capsys.readouterr().out
    assert "max_samples: 2 → 3" in out
    page = out.split("page: ")[1].strip()
    assert os.path.exists(page)
