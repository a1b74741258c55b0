"""From a case to pages: what runs, what is refused, what a broken notebook leaves, what a page may hold."""

import json
import shutil
import sys
import threading
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from eaglelab.case import CaseError
from eaglelab.findings import Status
from eaglelab.reports import kernel, markdown, parts
from eaglelab.reports.index import write_index
from eaglelab.reports.render import RenderError, lint, render
from eaglelab.reports.run import case_name, read_record, run_report
from eaglelab.reports.select import ReportError, find_sources, fit_parameters, notebooks_folder, parse_parameters

EVIL = "<script>alert(1)</script>"
PARAMETERS = 'case: str = "case.toml"  # the case\nmax_samples: int | None = 8  # samples read\nname: str = "x"  # a text'
SPEC = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def book(*sources, spec=True, parameters=PARAMETERS):
    """A notebook: text that starts with `md:` is prose, the rest code."""
    cells = [] if parameters is None else [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    for source in sources:
        prose = source.startswith("md:")
        cells.append((new_markdown_cell if prose else new_code_cell)(source.removeprefix("md:"), metadata={"tags": []}))
    return new_notebook(cells=cells, metadata=SPEC if spec else {})


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty working directory with a case and a folder for notebooks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases" / "tiny" / "dump").mkdir(parents=True)
    (tmp_path / "cases" / "tiny" / "case.toml").write_text('[dump]\npath = "dump"\n')
    (tmp_path / "books").mkdir()
    return tmp_path


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


def test_one_run_with_a_good_a_broken_and_a_hostile_notebook(workplace):
    add(workplace, "01_good", *OK, spec=False)  # no kernelspec in the file
    add(workplace, "02_broken", "md:# Breaks", "print('before')", f"raise KeyError('{EVIL} fc.weight')", "md:## After", "print('never')")
    lines = []
    result = report(workplace, parameters={"max_samples": "3", "name": f'{EVIL}\n"quoted" \\n {{braces}}'}, say=lines.append)
    good, broken = result.notebooks

    assert (result.exit_code, good.ok, broken.ok) == (1, True, False)
    assert any("02_broken  FAILED: KeyError" in line for line in lines)
    assert result.directory.parent == workplace.relative_to(workplace) / "reports" / "tiny"
    # the kernel is this interpreter, with this run's parameters; the case as seen from the working directory
    seen = result.results["seen"]
    assert seen["n"] == 3
    assert seen["case"] == "cases/tiny/case.toml"
    assert shutil.os.path.samefile(seen["python"], sys.executable)
    assert [f.id for f in result.findings] == ["a.one", "a.two"]
    assert result.findings[0].title == f'It fails: {EVIL}\n"quoted" \\n {{braces}}'
    assert result.verdict.changes[0].value == [2, 15, 27]

    sidecar = json.loads((result.directory / "findings.json").read_text())
    assert sidecar["state"] == "done"
    assert [(n["name"], n["status"]) for n in sidecar["notebooks"]] == [("01_good", "ok"), ("02_broken", "failed")]
    assert sidecar["findings"][0]["notebook"] == "01_good"
    assert sidecar["verdict"]["stage"] == "wiring"
    assert sidecar["provenance"]["versions"]["python"]
    assert {i["name"]: i["files"] for i in sidecar["provenance"]["inputs"]} == {"case": 1, "dump.path": 0}

    page = good.html.read_text()
    assert lint(page) == []
    assert good.warnings == ()
    assert EVIL not in page
    assert "<title>Title of one · tiny</title>" in page
    assert page.index('id="findings"') < page.index("It fails") < page.index("It passes") < page.index('id="second-part"')
    assert "FAILED" not in page

    page = broken.html.read_text()
    assert lint(page) == []
    assert EVIL not in page
    assert page.index("FAILED") < page.index("&lt;script&gt;alert(1)&lt;/script&gt; fc.weight") < page.index(">before<")
    assert 'id="the-cell-that-failed"' in page
    assert "papermill-error" not in page
    kept = nbformat.read(broken.ipynb, as_version=4)
    assert not any("An Exception was encountered" in c.source for c in kept.cells)
    assert str(workplace) not in broken.ipynb.read_text()

    index = result.index.read_text()
    assert lint(index) == []
    assert "1 notebook broke" in index
    assert f"tiny/{result.directory.name}/01_good.html" in index
    assert not list(workplace.rglob("*.part"))


def test_a_notebook_that_hangs_is_stopped_and_the_rest_is_kept(workplace):
    add(workplace, "01_slow", "md:# Slow", "print('before')", "import time; time.sleep(60)", "print('never')")
    start = time.monotonic()
    (slow,) = report(workplace, timeout=1.5).notebooks
    assert time.monotonic() - start < 30
    assert slow.error.startswith("Timeout: the notebook was stopped after 1.5 s, in this cell")
    page = slow.html.read_text()
    assert "before" in page
    assert "FAILED" in page
    assert not kernel._running


def test_a_kernel_that_dies_is_told_from_an_error(workplace):
    add(workplace, "01_dies", "md:# Dies", "print('before')", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    (dies,) = report(workplace).notebooks
    assert dies.error.startswith("KernelDied: the kernel died in this cell. Most often the machine ran out of memory")
    assert "before" in dies.html.read_text()


def test_a_kernel_that_does_not_start_is_tried_twice_and_then_said(workplace, monkeypatch):
    attempts = []
    spec = kernel.KernelSpec(argv=[sys.executable, "-c", "raise SystemExit('no ipykernel here')"], language="python")
    monkeypatch.setattr(kernel._Manager, "kernel_spec", property(lambda self: attempts.append(self.transport) or spec))
    add(workplace, "01_x", "md:# X", "1")
    (page,) = report(workplace).notebooks
    assert {"ipc", "tcp"} == set(attempts)
    assert page.error.startswith("KernelStartError: the kernel did not start")
    assert "no ipykernel here" in page.error
    assert "FAILED" in page.html.read_text()


def test_one_failed_start_is_retried(workplace, monkeypatch):
    calls = []

    def attempt(path, parameters, folder, transport, timeout, threads):
        calls.append(transport)
        if len(calls) == 1:
            raise kernel.KernelStartError("port taken")
        return nbformat.read(path, as_version=4), None

    monkeypatch.setattr(kernel, "_attempt", attempt)
    add(workplace, "01_x", "md:# X")
    assert report(workplace).exit_code == 0
    assert calls == ["ipc", "tcp"]


def test_two_notebooks_run_at_a_time_with_their_own_environment(workplace, monkeypatch):
    together, seen = threading.Barrier(2, timeout=10), {}

    def attempt(path, parameters, folder, transport, timeout, threads):
        together.wait()  # breaks unless both are here
        seen[kernel._environment(folder, threads)[kernel.RECORD]] = threads
        return nbformat.read(path, as_version=4), None

    monkeypatch.setattr(kernel, "_attempt", attempt)
    monkeypatch.setattr("eaglelab.reports.run.os.cpu_count", lambda: 4)
    add(workplace, "01_a", "md:# A")
    add(workplace, "02_b", "md:# B")
    report(workplace, jobs=2)
    assert list(seen.values()) == [2, 2]
    assert len(seen) == 2


# what is refused, before anything runs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "05"}, r"no notebook 05 in .*books: there are 01, 03"),
        ({"only": "zz,01"}, r"no notebook zz"),
        ({"only": ""}, r"no notebook chosen: got '', expected some of 01, 03"),
        (
            {"parameters": {"max_sample": 4}},
            r"unknown parameter 'max_sample' \(did you mean 'max_samples'\?\): the chosen notebooks take max_samples, name",
        ),
        ({"parameters": {"top": 4}, "only": "01"}, r"unknown parameter 'top'.*take max_samples, name"),
        (
            {"parameters": {"max_samples": "many"}},
            r"parameter max_samples: got 'many', expected int \| None \(notebook 01_a; its default is 8\)",
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


def test_only_takes_numbers_in_any_spelling(workplace):
    for name in ("01_a", "02_b", "10_c"):
        add(workplace, name, "md:# X")
    folder = workplace / "books"
    chosen = lambda only: [s.number for s in find_sources(folder, only)]  # noqa: E731
    assert chosen(None) == ["01", "02", "10"]
    assert chosen("2, 10") == chosen([2, "10"]) == chosen("02_b 10_c") == ["02", "10"]


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


def test_parameters_are_read_and_converted_by_their_annotation():
    cell = "a: int = 1  # one\nb: float | None = None  # two\nc: bool = False\nd = 2\ne: list[int] = [1]\n"
    cell += "f: Optional[str] = None\ng = None\nprint(a)"
    found = parse_parameters(cell)
    assert [(p.annotation, p.default, p.help) for p in list(found.values())[:2]] == [("int", "1", "one"), ("float | None", "None", "two")]
    source = type("S", (), {"name": "01_x", "parameters": found})()
    given = {"a": "-3", "b": "1e-3", "c": "yes", "d": "4", "e": "[2, 3]", "f": "none", "g": "text"}
    assert fit_parameters([source], given) == {"01_x": {"a": -3, "b": 0.001, "c": True, "d": 4, "e": [2, 3], "f": None, "g": "text"}}
    assert fit_parameters([source], {"b": "None", "f": "abc"})["01_x"] == {"b": None, "f": "abc"}
    for name, value in (("c", "maybe"), ("d", "x"), ("e", "2,3"), ("a", None)):
        with pytest.raises(ReportError, match=f"parameter {name}: got {value!r}"):
            fit_parameters([source], {name: value})
    with pytest.raises(ReportError, match="not valid Python"):
        parse_parameters("a = = 1")


def test_the_checkouts_notebooks_are_found_without_an_argument(monkeypatch, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_x.ipynb").write_text("")
    monkeypatch.setattr("eaglelab.reports.select.__file__", str(tmp_path / "eaglelab" / "reports" / "select.py"))
    assert notebooks_folder() == tmp_path / "notebooks"


def test_case_names_are_safe_in_paths(tmp_path):
    assert case_name(tmp_path / "my case <1>" / "case.toml") == "my-case-1"
    assert case_name(tmp_path / "..." / "case.toml") == "case"
    assert case_name(tmp_path / "other.toml") == "other"


def test_a_half_written_record_costs_one_line():
    text = '{"kind": "result", "name": "a", "data": 1}\nnull\n{"kind": "finding", "data": {"id": "x"}}\n{"kind": "fin'
    record = read_record(text)
    assert (record.findings, record.results, record.verdict) == ([], {"a": 1}, None)


# pages


def page_of(tmp_path, notebook, **options):
    rendered = render(notebook, tmp_path / "page.html", **options)
    return (tmp_path / "page.html").read_text(), rendered.problems


def with_outputs(*outputs, source="x"):
    cell = new_code_cell(source, metadata={"tags": []})
    cell.outputs = list(outputs)
    return new_notebook(cells=[new_markdown_cell("# T"), cell])


def test_math_is_mathml_and_code_stays_code(tmp_path):
    prose = "# T\n\nIs $a_1 < b$ true? `$x$` costs \\$5.\n\n$$\\sum_{i=1}^{n} \\frac{1}{i}$$\n\n```python\ny = '$z$'\n```"
    page, problems = page_of(tmp_path, new_notebook(cells=[new_markdown_cell(prose)]))
    assert problems == ()
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
    assert problems == ()
    assert page.count("<h1") == 1
    assert '<p class="lede">Question.</p>' in page
    assert 'id="same"' in page
    assert 'id="same-2"' in page
    page, problems = page_of(tmp_path, new_notebook(cells=[new_code_cell("1")]))
    assert problems == ()
    assert "<h1>page</h1>" in page


def test_a_figure_without_a_description_is_marked_and_refused_when_strict(tmp_path):
    png = "iVBORw0KGgo="
    bare = with_outputs(new_output("display_data", {"image/png": png, "text/plain": "<Figure>"}))
    page, problems = page_of(tmp_path, bare)
    assert "no description" in problems[0]
    assert "no description for readers who cannot see it" in page
    with pytest.raises(RenderError, match="no description"):
        render(bare, tmp_path / "strict.html", strict=True)
    assert not (tmp_path / "strict.html").exists()
    told = with_outputs(new_output("display_data", {"image/png": png}, metadata={"image/png": {"alt": 'A "line"'}}))
    page, problems = page_of(tmp_path, told)
    assert problems == ()
    assert 'alt="A &quot;line&quot;"' in page
    _, problems = page_of(tmp_path, with_outputs(new_output("display_data", {"image/svg+xml": "<svg onload='x'/>"}, metadata={"alt": "s"})))
    assert problems == ()


def test_a_widget_needs_a_static_twin(tmp_path):
    widget = new_output("display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "IntSlider(value=0)"})
    page, problems = page_of(tmp_path, with_outputs(widget))
    assert "static twin" in problems[0]
    assert "IntSlider" not in page
    page, problems = page_of(tmp_path, with_outputs(widget, new_output("display_data", {"text/html": "<p>twin</p>"})))
    assert problems == ()
    assert "<p>twin</p>" in page


def test_html_outputs_cannot_load_or_run_anything(tmp_path):
    evil = f'{EVIL}<iframe src="https://x.example/"></iframe><meta http-equiv="refresh" content="0;url=//x">'
    evil += '<img src="https://x.example/a.png" alt="a">'
    page, problems = page_of(tmp_path, with_outputs(new_output("display_data", {"text/html": evil})))
    assert problems == ("<img> loads 'https://x.example/a.png', which is not in the page",)
    assert "<script" not in page
    assert "<iframe" not in page
    assert page.count("<meta") == page.split("</head>")[0].count("<meta")
    assert "default-src 'none'" in page  # the browser refuses the image as well


def test_terminal_text_is_plain_and_long_text_folded(tmp_path):
    out = new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m 10%\r100% done\x07 " + EVIL + "\n")
    long = new_output("stream", name="stdout", text="line\n" * 50)
    err = new_output("stream", name="stderr", text="a warning")
    page, _ = page_of(tmp_path, with_outputs(out, long, err))
    assert "100% done\\x07 &lt;script&gt;" in page
    assert "red" not in page.split("<main")[1]
    assert "Printed text, 50 lines" in page
    assert "<summary>stderr, 1 line</summary>" in page


def test_images_from_disk_are_inlined_and_others_flagged(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    cells = [new_markdown_cell("# T\n\n![alt](a.png)\n\n![up](../secret.png)")]
    page, problems = page_of(tmp_path, new_notebook(cells=cells), folder=tmp_path)
    assert 'src="data:image/png;base64,iVBORw=="' in page
    assert problems == ("<img> loads '../secret.png', which is not in the page",)


def test_page_is_small_and_asks_for_nothing(tmp_path):
    page, _ = page_of(tmp_path, new_notebook(cells=[new_markdown_cell("# T")]))
    assert len(page) < 30_000
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert '<html lang="en">' in page


def test_lint_sees_what_it_is_for():
    found = lint("<h1>a</h1><h1>b</h1><img src='data:x'><script src='https://a'></script><video poster='x.png'></video>")
    assert len(found) == 5
    assert "2 h1 headings" in found[-1]


# the index


def sidecar(root, case, run, text):
    folder = root / case / run
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "findings.json").write_text(text)
    return folder


def test_the_index_survives_whatever_lies_in_the_folder(tmp_path):
    good = {
        "case": "a",
        "state": "done",
        "date": "2026-01-02T03:04:05Z",
        "parameters": {"n": EVIL},
        "verdict": {"stage": EVIL, "confidence": "sure", "text": "t", "changes": []},
        "findings": [{"id": "x", "title": "t", "status": s} for s in ("fail", "fail", "pass", "nonsense")] + [3, None],
        "notebooks": [
            {"name": "01 &<b>", "html": "../../01 a.html", "status": "ok"},
            {"name": "02_b", "html": "02_b.html", "status": "failed"},
            7,
        ],
    }
    sidecar(tmp_path, "a", "2026-01-02", json.dumps(good))
    sidecar(tmp_path, "b", "2026-01-03", None)
    (tmp_path / "b" / "2026-01-03" / "01_x.html").write_text("")
    for i, text in enumerate(("{", "[]", "null", '{"notebooks": 3}', '{"parameters": [1]}', '{"findings": "x", "verdict": 3}', "\x00")):
        sidecar(tmp_path, "c", f"2025-01-0{i}", text)
    sidecar(tmp_path, "d", "2024-01-01", json.dumps({"state": "running", "date": None}))
    (tmp_path / "README.md").write_text("x")
    page = write_index(tmp_path).read_text()
    assert lint(page) == []
    assert page.count("<tr>") == 1 + 10
    assert page.index("2026-01-03") < page.index("2026-01-02") < page.index("2025-01-0")
    assert "✕</span> 2 fail" in page
    assert "no findings.json: the run did not finish" in page
    assert "findings.json cannot be read: Expecting property name" in page
    assert "got list, expected an object" in page
    assert "running, or stopped before its end" in page
    assert 'href="a/2026-01-02/01%20a.html"' in page  # never out of its run
    assert 'href="b/2026-01-03/01_x.html"' in page
    assert EVIL not in page


def test_an_empty_folder_has_an_index_too(tmp_path):
    assert "No runs yet" in write_index(tmp_path / "new").read_text()


def test_every_status_has_a_badge():
    assert set(parts.BADGES) == set(Status)
