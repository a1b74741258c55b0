"""The dump browser in JupyterLab by the keyboard alone: every control is reached, and keeps its keys to itself."""

import re

import pytest
from test_lab import one_cell, pytestmark  # noqa: F401 - skips without chromium

SHOW = """from eaglelab import notebook as nb
from eaglelab.explore.dump_browser import DumpBrowser
inv = nb.investigate(r"{case}", max_samples=2)
nb.explore(DumpBrowser(inv))"""
FOCUS = "() => document.activeElement.labels?.[0]?.innerText || document.activeElement.innerText"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A notebook whose one cell browses the dump of a tiny case."""
    with one_cell(tmp_path_factory.mktemp("lab"), SHOW, ".el-mask-text") as tab:
        yield tab


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
