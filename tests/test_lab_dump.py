"""The dump browser in JupyterLab by the keyboard alone: every control is reached, and keeps its keys to itself."""

import re

import nbformat
import pytest
from case_builder import build_case, make_world
from lab_server import lab
from nbformat.v4 import new_code_cell, new_notebook
from test_lab import CHROMIUM, FLAGS, MINUTES, Notebook, playwright, pytestmark  # noqa: F401 - skips without chromium

SHOW = """from eaglelab import notebook as nb
from eaglelab.explore.dump_browser import DumpBrowser
inv = nb.investigate(r"{case}", max_samples=2)
nb.explore(DumpBrowser(inv))"""
FOCUS = "() => document.activeElement.labels?.[0]?.innerText || document.activeElement.innerText"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A notebook whose one cell browses the dump of a tiny case."""
    place = tmp_path_factory.mktemp("lab")
    case = build_case(place / "case", make_world(place, samples=2, length=30), slots=[1, 3, 5, "final"], ids=[-1, 0, 2])
    with lab(place, OMP_NUM_THREADS="1") as server, playwright.sync_playwright() as p:
        notebook = new_notebook(cells=[new_code_cell(SHOW.format(case=case))])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, place / "notebooks" / "dump.ipynb")
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = Notebook(server, browser, server.page("notebooks/dump.ipynb") + "&reset")
        (cell,) = tab.run()
        assert [o for o in cell["outputs"] if o["output_type"] == "error"] == []
        tab.page.locator(".el-explore-view .el-mask-text").wait_for(timeout=2 * MINUTES)
        tab.complaints.clear()  # what JupyterLab says of its own start is asked in test_lab
        yield tab
        browser.close()


def says(tab, *words):
    """Wait until the view says all of these."""
    for word in words:
        tab.page.locator(".el-explore-view").filter(has_text=re.compile(re.escape(word))).wait_for(timeout=20_000)


def test_every_control_is_reached_and_works_by_the_keyboard(tab):
    keys, lists = tab.page.keyboard, tab.page.locator(".el-explore select")
    lists.first.focus()
    reached = []
    for _ in range(8):
        reached.append(tab.page.evaluate(FOCUS))
        keys.press("Tab")
    labels = ["Sample", "Slot", "First row", "Rows", "First channel", "Values", "Jump to the mask's start", "Next trained span"]
    assert reached == labels
    says(tab, "data_0.pt")
    lists.first.focus()
    keys.press("x")  # would cut the cell
    keys.press("ArrowDown")  # would go to the next one
    says(tab, "data_1.pt")
    assert tab.page.evaluate(FOCUS) == "Sample"
    assert tab.page.locator(".el-explore").count() == 1
    keys.press("Tab")
    keys.press("Tab")
    keys.press("Control+a")
    keys.type("7")
    keys.press("Enter")
    says(tab, "Tokens 0 to ")
    tab.page.get_by_role("button", name="Next trained span").press("Enter")
    tab.page.locator(".el-explore-error").filter(has_text="no trained span starts after row").wait_for(timeout=20_000)
    tab.page.get_by_role("button", name="Jump to the mask's start").press("Enter")
    tab.page.locator(".el-explore-error [role=alert]").wait_for(state="detached", timeout=20_000)
    assert tab.complaints == []
