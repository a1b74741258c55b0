"""The workbook in JupyterLab, in a real browser: it opens, every notebook runs to its end, and the console stays empty."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from case_builder import build_case, make_world
from explorer_drives import DRIVES
from lab_server import ROOT, lab
from nbformat.v4 import new_code_cell, new_notebook

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
pytestmark = [
    pytest.mark.skipif(not os.path.exists(CHROMIUM), reason=f"needs {CHROMIUM} (apt-get install chromium)"),
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
    pytest.mark.slow,
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
NOTEBOOKS = sorted(p.stem for p in (ROOT / "notebooks").glob("*.ipynb"))
MINUTES = 60_000
IDLE = """() => { const w = window.jupyterapp?.shell.currentWidget, k = w?.context?.sessionContext?.session?.kernel;
  return k?.status === 'idle' && w.content.widgets?.length }"""
RUN = """() => { window.ran = null; window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.ran = 'all' }, e => { window.ran = `${e}` }) }"""
CELLS = "() => [...window.jupyterapp.shell.currentWidget.content.model.cells].filter(c => c.type === 'code').map(c => c.toJSON())"


@pytest.fixture(scope="module")
def workbook(tmp_path_factory):
    """A running JupyterLab, a browser, and one cache for all notebooks."""
    place = tmp_path_factory.mktemp("lab")
    with lab(place, EAGLELAB_CACHE=str(place / "cache"), OMP_NUM_THREADS="1") as server, playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield server, browser
        browser.close()


class Notebook:
    """A notebook in a tab of its own."""

    def __init__(self, server, browser, url: str) -> None:
        self.page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.goto(url)
        self.page.wait_for_function(IDLE, timeout=2 * MINUTES)

    def run(self) -> list[dict]:
        """Run all cells; the code cells with their outputs."""
        self.page.evaluate(RUN)  # not awaited: it never answers when asked too early
        self.page.wait_for_function("() => window.ran", timeout=5 * MINUTES)
        assert self.page.evaluate("window.ran") == "all"
        return self.page.evaluate(CELLS)


@contextmanager
def one_cell(place: Path, source: str, shown: str):
    """A tab on a notebook whose one cell runs `source` on a tiny case, `{case}`, whose engine feeds something else; `shown` is what its explorer
    must have drawn."""
    case = build_case(place / "case", make_world(place, samples=2, length=30), slots=[1, 3, 5, "final"], ids=[-1, 0, 2])
    with lab(place, OMP_NUM_THREADS="1") as server, playwright.sync_playwright() as p:
        notebook = new_notebook(cells=[new_code_cell(source.format(case=case))])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, place / "notebooks" / "one_cell.ipynb")
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = Notebook(server, browser, server.page("notebooks/one_cell.ipynb") + "&reset")
        (cell,) = tab.run()
        assert [o for o in cell["outputs"] if o["output_type"] == "error"] == []
        tab.page.locator(f".el-explore-view {shown}").wait_for(timeout=2 * MINUTES)
        tab.complaints.clear()  # what JupyterLab says of its own start is asked above
        yield tab
        browser.close()


@pytest.fixture
def opened(workbook):
    """Open a notebook by its name; its tab is closed at the end."""
    server, browser = workbook
    tabs = []

    def open_notebook(name: str) -> Notebook:
        tabs.append(Notebook(server, browser, server.page(f"notebooks/{name}.ipynb") + "&reset"))
        return tabs[-1]

    yield open_notebook
    for tab in tabs:
        tab.page.context.close()


def test_the_kernel_is_this_environments_own():
    told = subprocess.run([sys.executable, "-m", "jupyter", "kernelspec", "list", "--json"], capture_output=True, text=True, check=True)
    folder = json.loads(told.stdout)["kernelspecs"]["python3"]["resource_dir"]
    assert Path(folder).is_relative_to(sys.prefix)


def test_make_lab_opens_on_the_first_notebook(workbook):
    server, browser = workbook
    assert "/lab/tree/notebooks/00_start_here.ipynb" in server.opens
    tab = Notebook(server, browser, server.opens)
    assert tab.page.locator(".jp-Notebook h1").first.inner_text().startswith("Start here")
    assert "First time here?" in tab.page.locator(".jp-Notebook").inner_text()
    assert tab.page.locator("[role=dialog], .Toastify__toast").count() == 0  # no pop-up
    assert tab.complaints == []
    tab.page.context.close()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_to_its_end_and_its_explorers_answer(opened, name):
    tab = opened(name)
    cells = tab.run()
    assert [f"{o['ename']}: {o['evalue']}" for c in cells for o in c["outputs"] if o["output_type"] == "error"] == []
    assert all(c["execution_count"] for c in cells if "".join(c["source"]).strip())
    assert "findings" in tab.page.locator(".jp-Notebook").inner_text() or tab.page.locator(".el-finding").count()
    assert tab.page.locator(".jp-Notebook img:not([alt])").count() == 0
    assert tab.page.locator(".el-explore").count() == len(DRIVES.get(name, []))
    for drive in DRIVES.get(name, []):
        drive(tab)
    assert tab.complaints == []
