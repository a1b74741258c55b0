"""From a case to pages: what runs, what is refused, what a broken notebook leaves, what a page may hold."""

import json
import os
import sys
import threading
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from page_lint import EVIL, lint

from eaglelab.case import CaseError
from eaglelab.findings import Status
from eaglelab.reports import kernel, markdown, parts
from eaglelab.reports.jobs import kernels_at_a_time, threads_each
from eaglelab.reports.machine import here
from eaglelab.reports.render import render
from eaglelab.reports.run import run_report
from eaglelab.reports.select import ReportError, find_sources, fit_parameters, notebooks_folder

THREADS = threads_each(here(), kernels_at_a_time(None, 3, here()))["OMP_NUM_THREADS"]
PARAMETERS = 'case: str = "case.toml"  # the case\nmax_samples: int = 8  # samples read\nname: str = "x"  # a text'
SPEC = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def book(*sources, spec=True, parameters=PARAMETERS):
    """A notebook: text that starts with `md:` is prose, the rest code."""
    cells = [] if parameters is None else [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    for source in sources:
        prose = source.startswith("md:")
        cells.append((new_markdown_cell if prose else new_code_cell)(source.removeprefix("md:"), metadata={"tags": []}))
    return new_notebook(cells=cells, metadata=SPEC if spec else {})


def make_workplace(place):
    """A working directory with a case and a folder for notebooks."""
    (place / "cases" / "tiny" / "dump").mkdir(parents=True)
    (place / "cases" / "tiny" / "case.toml").write_text('[dump]\npath = "dump"\n')
    (place / "books").mkdir()
    return place


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_workplace(tmp_path)


def add(workplace, name, *sources, **options):
    nbformat.write(book(*sources, **options), workplace / "books" / f"{name}.ipynb")


def report(workplace, **options):
    return run_report(workplace / "cases" / "tiny", notebooks=workplace / "books", **options)


OK = (
    "md:# Title of *one*\n\nThe question.",
    "import sys, os\nfrom eaglelab import notebook\nfrom eaglelab.findings import Finding, Status, Verdict, Change",
    'notebook.record(Finding("a.one", "It fails: " + name, Status.FAIL, next="Do this"), Finding("a.two", "It passes", Status.PASS))',
    'notebook.record(Verdict("wiring", "sure", "Feed 3, 16, 28", (Change("config.json", "ids", [2, 15, 27], "sglang==0.5.23"),)))',
    'notebook.record_result("seen", {"python": sys.executable, "n": max_samples, "case": case, "threads": os.environ["OMP_NUM_THREADS"]})',
    "md:## Second part",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run for all: a good notebook, one that breaks with hostile text, one whose kernel dies. (workplace, result, lines said)."""
    with pytest.MonkeyPatch.context() as patch:
        workplace = make_workplace(tmp_path_factory.mktemp("run"))
        patch.chdir(workplace)
        add(workplace, "01_good", *OK, spec=False)  # no kernelspec in the file
        add(
            workplace, "02_broken", "md:# Breaks", "print('before')", f"raise KeyError('{EVIL} fc.weight')", "md:## After", "print('never')"
        )
        add(workplace, "03_dies", "md:# Dies", "print('before')", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        lines = []
        given = {"max_samples": "3", "name": f'{EVIL}\n"quoted" \\n {{braces}}'}
        result = report(workplace, parameters=given, out=workplace / "reports", say=lines.append)
        yield workplace, result, lines


def test_what_a_run_says_and_leaves_in_its_sidecar(run):
    workplace, result, lines = run
    assert result.exit_code == 1
    assert any("01_good  ok" in line for line in lines)
    assert any("02_broken  FAILED: KeyError" in line for line in lines)
    assert result.directory.parent == workplace / "reports" / "tiny"

    sidecar = json.loads((result.directory / "findings.json").read_text())
    assert sidecar == json.loads(json.dumps(result.data))
    assert [(n["name"], n["error"] is None) for n in sidecar["notebooks"]] == [("01_good", True), ("02_broken", False), ("03_dies", False)]
    assert [(f["id"], f["notebook"]) for f in sidecar["findings"]] == [("a.one", "01_good"), ("a.two", "01_good")]
    assert sidecar["findings"][0]["title"] == f'It fails: {EVIL}\n"quoted" \\n {{braces}}'
    assert (sidecar["verdict"]["stage"], sidecar["verdict"]["changes"][0]["value"]) == ("wiring", [2, 15, 27])
    assert sidecar["provenance"]["versions"]["python"]
    assert {i["name"]: i["files"] for i in sidecar["provenance"]["inputs"]} == {"case": 1, "dump.path": 0}
    # the kernel is this interpreter, with this run's parameters; the case as seen from the working directory
    seen = sidecar["results"]["seen"]
    assert (seen["n"], seen["case"], seen["threads"]) == (3, "cases/tiny/case.toml", THREADS)
    assert os.path.samefile(seen["python"], sys.executable)
    assert sidecar["notebooks"][0]["parameters"]["max_samples"] == 3


def test_the_page_of_a_good_notebook(run):
    _, result, _ = run
    page = (result.directory / "01_good.html").read_text()
    assert lint(page) == []
    assert EVIL not in page
    assert "<title>Wiring is at fault (sure): set ids = [2, 15, 27] · tiny</title>" in page
    assert '<p class="question">Title of <em>one</em></p>' in page
    assert (
        page.index("<h1>")
        < page.index('id="findings"')
        < page.index("The question.")
        < page.index("It fails")
        < page.index('id="second-part"')
    )
    assert "FAILED" not in page
    assert kernel.HEADLESS not in page
    assert "application/x.eaglelab" not in (result.directory / "01_good.ipynb").read_text()


def test_the_page_of_a_broken_notebook(run):
    workplace, result, _ = run
    page = (result.directory / "02_broken.html").read_text()
    assert lint(page) == []
    assert EVIL not in page
    assert page.index("FAILED") < page.index("&lt;script&gt;alert(1)&lt;/script&gt; fc.weight") < page.index(">before<")
    assert 'href="#failed"' in page
    assert page.count('id="failed"') == 1
    assert "papermill-error" not in page
    assert str(workplace) not in (result.directory / "02_broken.ipynb").read_text()


def test_the_index_of_a_run_with_broken_notebooks(run):
    _, result, _ = run
    index = result.index.read_text()
    assert lint(index, scripts=1) == []
    assert "broken notebooks: 2" in index
    assert f'href="tiny/{result.directory.name}/01_good.html"' in index


def test_a_kernel_that_dies_is_told_from_an_error(run):
    _, result, _ = run
    assert result.notebooks[2]["error"].startswith("KernelDied: the kernel died in this cell. Most often the machine ran out of memory")
    assert "before" in (result.directory / "03_dies.html").read_text()


def test_a_notebook_that_hangs_is_stopped_and_the_rest_is_kept(workplace):
    add(workplace, "01_slow", "md:# Slow", "print('before')", "import time; time.sleep(60)", "print('never')")
    start = time.monotonic()
    result = report(workplace, timeout=1.5)
    assert time.monotonic() - start < 30
    assert result.notebooks[0]["error"].startswith("Timeout: the notebook was stopped after 1.5 s, in this cell")
    page = (result.directory / "01_slow.html").read_text()
    assert "before" in page
    assert "FAILED" in page


def test_a_kernel_that_does_not_start_is_tried_twice_and_then_said(workplace, monkeypatch):
    attempts = []
    spec = kernel.KernelSpec(argv=["sh", "-c", "echo no ipykernel here >&2; exit 1"], language="python")
    monkeypatch.setattr(kernel.Manager, "kernel_spec", property(lambda self: attempts.append(self) or spec))
    add(workplace, "01_x", "md:# X", "1")
    result = report(workplace)
    assert len(set(map(id, attempts))) == 2
    error = result.notebooks[0]["error"]
    assert error.startswith("KernelStartError: the kernel did not start")
    assert "no ipykernel here" in error
    assert "FAILED" in (result.directory / "01_x.html").read_text()


def test_one_failed_start_is_forgiven(workplace, monkeypatch):
    outcomes = [kernel.KernelStartError("port taken"), None]

    def start(notebook, kernel_name, **options):
        if error := outcomes.pop(0):
            raise error

    monkeypatch.setattr(kernel.ReportEngine, "execute_notebook", start)
    add(workplace, "01_x", "md:# X")
    assert report(workplace).exit_code == 0
    assert outcomes == []


def test_two_notebooks_run_at_a_time(workplace, monkeypatch):
    together = threading.Barrier(2, timeout=10)
    monkeypatch.setattr(kernel.ReportEngine, "execute_notebook", lambda *args, **options: together.wait())  # breaks unless both are here
    add(workplace, "01_a", "md:# A")
    add(workplace, "02_b", "md:# B")
    assert report(workplace, jobs=2).exit_code == 0


# what is refused, before anything runs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "05"}, r"no notebook 05 in .*books: there are 01, 03"),
        ({"only": "zz,01"}, r"no notebook zz"),
        ({"only": ""}, r"no notebook chosen: got '', expected numbers as in 02,04; there are 01, 03"),
        (
            {"parameters": {"max_sample": 4}},
            r"unknown parameter 'max_sample' \(did you mean 'max_samples'\?\): the chosen notebooks take max_samples, name",
        ),
        ({"parameters": {"top": 4}, "only": "01"}, r"unknown parameter 'top'.*take max_samples, name"),
        (
            {"parameters": {"max_samples": "many"}},
            r"parameter max_samples: got 'many', expected int \(notebook 01_a; its default is 8\)",
        ),
        ({"parameters": {"max_samples": 1.5}}, r"got 1.5, expected int"),
        ({"parameters": {"max_samples": True}}, r"got True, expected int"),
        ({"parameters": {"case": "x"}}, r"parameter case: it is the report's first argument"),
        ({"timeout": 0}, r"timeout: got 0, expected seconds above 0"),
    ],
)
def test_wrong_requests_are_refused_by_name(workplace, options, message):
    add(workplace, "01_a", "md:# A")
    add(workplace, "03_b", "md:# B", parameters=PARAMETERS + "\ntop: int = 1  # top")
    with pytest.raises(ReportError, match=message):
        report(workplace, **options)
    assert not (workplace / "reports").exists()


def test_only_takes_numbers_with_and_without_a_zero(workplace):
    for name in ("01_a", "02_b", "10_c"):
        add(workplace, name, "md:# X")
    chosen = lambda only: [s.name for s in find_sources(workplace / "books", only)]  # noqa: E731
    assert chosen(None) == ["01_a", "02_b", "10_c"]
    assert chosen("2, 10") == chosen("02,10,02") == ["02_b", "10_c"]


def test_a_missing_case_a_missing_folder_and_a_file_that_is_no_notebook(workplace):
    with pytest.raises(CaseError, match="nowhere"):
        run_report("nowhere", notebooks=workplace / "books")
    with pytest.raises(ReportError, match=r"no notebooks named NN_name.ipynb in .*books: give the folder"):
        report(workplace)
    (workplace / "books" / "01_x.ipynb").write_text("{not json")
    with pytest.raises(ReportError, match=r"01_x.ipynb is not a readable notebook"):
        report(workplace)
    add(workplace, "01_x", "md:# X")
    (workplace / "reports").write_text("a file")
    with pytest.raises(ReportError, match="cannot write reports to reports"):
        report(workplace)


def test_parameters_are_read_and_converted_by_their_annotation(workplace):
    cell = "a: int = 1  # one\nb: float = 0.5  # two\nc: bool = False\ne: list = [1]\nf: str = 'x'\ng = None"
    add(workplace, "01_x", "md:# X", parameters=cell)
    (source,) = find_sources(workplace / "books")
    found = source.parameters
    assert [(p.inferred_type_name, p.default, p.help) for p in list(found.values())[:2]] == [("int", "1", "one"), ("float", "0.5", "two")]
    assert source.defaults == {"a": 1, "b": 0.5, "c": False, "e": [1], "f": "x", "g": None}
    given = {"a": "-3", "b": "1e-3", "c": "True", "e": "[2, 3]", "f": "4", "g": "Text"}
    assert fit_parameters([source], given) == {"01_x": {"a": -3, "b": 0.001, "c": True, "e": [2, 3], "f": "4", "g": "Text"}}
    assert fit_parameters([source], {"b": 2})["01_x"] == {"b": 2.0}
    for name, value in (("c", "maybe"), ("c", "1"), ("a", "x"), ("a", "1.5"), ("a", None), ("f", 3)):
        with pytest.raises(ReportError, match=f"parameter {name}: got {value!r}"):
            fit_parameters([source], {name: value})


def test_the_checkouts_notebooks_are_found_without_an_argument(monkeypatch, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_x.ipynb").write_text("")
    monkeypatch.setattr("eaglelab.reports.select.__file__", str(tmp_path / "eaglelab" / "reports" / "select.py"))
    assert notebooks_folder() == tmp_path / "notebooks"


# pages


def page_of(tmp_path, notebook):
    render(notebook, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    return page, lint(page)


def with_outputs(*outputs, source="x"):
    cell = new_code_cell(source, metadata={"tags": []})
    cell.outputs = list(outputs)
    return new_notebook(cells=[new_markdown_cell("# T"), cell])


def test_math_is_mathml_and_code_stays_code(tmp_path):
    prose = "# T\n\nIs $a_1 < b$ true? `$x$` costs \\$5.\n\n$$\\sum_{i=1}^{n} \\frac{1}{i}$$\n\n```python\ny = '$z$'\n```"
    page, problems = page_of(tmp_path, new_notebook(cells=[new_markdown_cell(prose)]))
    assert problems == []
    assert page.count("<math") == 2
    assert 'display="block"' in page
    assert "<code>$x$</code>" in page
    assert "costs $5." in page
    assert "$z$" in page
    assert "<mfrac>" in markdown.math("\\frac{1}{2}")
    assert markdown.math("\\left( <b>") == '<code class="el-latex">\\left( &lt;b&gt;</code>'


def test_one_h1_whatever_the_notebook_says(tmp_path):
    cells = [new_markdown_cell("# First\n\nQuestion.\n\n## Same\n## Same"), new_markdown_cell("# Second h1\n\n# T <b>&</b>")]
    page, problems = page_of(tmp_path, new_notebook(cells=cells))
    assert problems == []
    assert page.count("<h1") == 1
    assert page.index("<p>Question.</p>") < page.index('id="findings"')
    assert 'id="same"' in page
    assert 'id="same-2"' in page
    page, problems = page_of(tmp_path, new_notebook(cells=[new_code_cell("1")]))
    assert problems == []
    assert "<h1>page</h1>" in page
    assert "<title>page</title>" in page


def test_a_figure_without_a_description_is_marked(tmp_path):
    bare = with_outputs(new_output("display_data", {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}))
    page, problems = page_of(tmp_path, bare)
    assert problems == []
    assert "no description for readers who cannot see it" in page
    assert "&lt;Figure&gt;" not in page


def test_a_widget_needs_a_static_twin(tmp_path):
    widget = new_output("display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "IntSlider(value=0)"})
    page, _ = page_of(tmp_path, with_outputs(widget))
    assert "has no static twin" in page
    assert "IntSlider" not in page
    page, _ = page_of(tmp_path, with_outputs(widget, new_output("display_data", {"text/html": "<p>twin</p>"})))
    assert "has no static twin" not in page
    assert "<p>twin</p>" in page


def test_html_outputs_cannot_load_or_run_anything(tmp_path):
    evil = f'{EVIL}<iframe src="https://x.example/"></iframe><meta http-equiv="refresh" content="0;url=//x">'
    evil += '<img src="https://x.example/a.png" alt="a">'
    page, problems = page_of(tmp_path, with_outputs(new_output("display_data", {"text/html": evil})))
    assert problems == ["<img> loads 'https://x.example/a.png', which is not in the page"]
    assert "<script" not in page
    assert "<iframe" not in page
    assert page.count("<meta") == page.split("</head>")[0].count("<meta")
    assert "default-src 'none'" in page  # the browser refuses the image as well


def test_terminal_text_is_plain_and_long_text_folded(tmp_path):
    out = new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m 10%\r100% done\x07 " + EVIL + "\n")
    long = new_output("stream", name="stdout", text="line\n" * 50)
    err = new_output("stream", name="stderr", text="a warning")
    more = new_output("stream", name="stderr", text="\nand another")
    page, _ = page_of(tmp_path, with_outputs(err, out, more, long))
    assert "100% done\\x07 &lt;script&gt;" in page
    assert "red" not in page.split("<main")[1]
    assert "Printed text, 50 lines" in page
    assert "<summary>Log, 2 lines</summary>" in page


def test_page_is_small_and_asks_for_nothing(tmp_path):
    page, _ = page_of(tmp_path, new_notebook(cells=[new_markdown_cell("# T")]))
    assert len(page) < 30_000
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert '<html lang="en">' in page


def test_lint_sees_what_it_is_for():
    found = lint("<h1>a</h1><h1>b</h1><img src='data:x'><script src='https://a'></script><video poster='x.png'></video>")
    assert len(found) == 5


def test_every_status_has_a_badge():
    assert set(parts.BADGES) == set(Status)
