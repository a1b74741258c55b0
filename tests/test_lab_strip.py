"""The token strip in JupyterLab: driven by mouse and by keyboard, its view follows, and the console stays empty."""

import re

import pytest
from test_lab import one_cell, pytestmark  # noqa: F401 - skips without chromium

SHOW = """from eaglelab import notebook as nb
from eaglelab.explore.token_strip import TokenStrip
inv = nb.investigate(r"{case}", max_samples=2)
nb.explore(TokenStrip(inv))"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A notebook whose one cell shows the strip of a tiny case whose engine feeds something else."""
    with one_cell(tmp_path_factory.mktemp("lab"), SHOW, ".el-strip") as tab:
        yield tab


def says(tab, *words):
    """Wait until the view says all of these."""
    view = tab.page.locator(".el-explore-view")
    for word in words:
        view.filter(has_text=re.compile(re.escape(word))).wait_for(timeout=20_000)
    return view.inner_text()


def control(tab, label, kind):
    return tab.page.locator(f".el-explore .widget-inline-hbox:has(label:text-is('{label}')) {kind}")


def test_mouse_and_keyboard_move_the_strip(tab):
    first = says(tab, "The dump's feed, step 0", "The drafter's first five", "The target's first five")
    row = control(tab, "Row t", "input")
    start = int(row.input_value())
    tab.page.get_by_role("button", name="Next rejection").click()
    tab.page.wait_for_function(f"() => +document.querySelector('.el-explore input[type=number]').value > {start}")
    moved = int(row.input_value())
    assert says(tab, f"Row {moved}, step 0") != first
    assert tab.page.locator(".el-strip [aria-current]").count() == 1
    tab.page.get_by_role("button", name="Previous rejection").press("Enter")
    says(tab, f"Row {start}, step 0")
    tab.page.locator(".el-explore [role=slider]").focus()
    tab.page.keyboard.press("ArrowRight")
    says(tab, "The dump's feed, step 1", f"Row {start}, step 1")
    row.fill("20")
    row.press("Enter")
    says(tab, "Row 20, step 1")
    control(tab, "Feed", "select").select_option("the engine's feed")
    says(tab, "The engine's feed, step 1")
    control(tab, "Show", "select").press("ArrowDown")
    says(tab, "The engine's feed, the walk")
    control(tab, "Sample", "select").select_option(index=1)
    says(tab, "the walk")
    assert tab.page.locator(".el-explore-error [role=alert]").count() == 0
    assert tab.complaints == []


def test_every_control_has_a_label_and_the_tab_key_comes_by_all(tab):
    names = tab.page.locator(".el-explore").evaluate("e => [...e.querySelectorAll('label')].map(l => l.textContent).filter(Boolean)")
    assert [n for n in names if n in ("Sample", "Feed", "Show", "Step k", "Row t")] == ["Sample", "Feed", "Show", "Step k", "Row t"]
    control(tab, "Sample", "select").focus()
    reached = []
    for _ in range(8):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate("() => document.activeElement.textContent.slice(0, 30) || document.activeElement.tagName"))
    assert any("Previous rejection" in r for r in reached)
    assert any("Next rejection" in r for r in reached)
