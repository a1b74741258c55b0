"""A rendered page in a real browser: opens from disk, asks for nothing, fits a phone and a desk, light and dark.

Needs Debian's chromium; skips with the reason where it is missing.
"""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
pytestmark = pytest.mark.skipif(not os.path.exists(CHROMIUM), reason=f"needs {CHROMIUM} (apt-get install chromium)")

PROSE = """# What do the slots' norms say?

A norm is the cheapest look at a dump.

## Norms

The norm of $h_t \\in \\mathbb{R}^H$ is

$$\\lVert h_t \\rVert_2 = \\sqrt{\\sum_{i=1}^{H} h_{t,i}^2} = \\sqrt{h_{t,1}^2 + h_{t,2}^2 + h_{t,3}^2 + h_{t,4}^2 + \\dots + h_{t,H}^2}$$

| a | very wide | table | of | many | columns | that | does | not | fit | a | phone | at | all |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
| some_long_identifier_here | another_long_identifier | x | y | z | u | v | w | a | b | c | d | e | f |
"""

CALLS = """import matplotlib.pyplot as plt
import pandas as pd
from eaglelab import notebook
from eaglelab.findings import Change, Finding, Status, Verdict
notebook.start(case, title="02 norms")
frame = pd.DataFrame({f"a_long_column_name_{i}": [1.5, 2.5] for i in range(20)})
ax = plt.figure(figsize=(9, 3)).gca()
ax.plot([1, 2, 4])
notebook.show(ax, alt="A line that rises from 1 to 4", caption="n = 3", data=frame)
notebook.table(frame, caption="A wide table")
evil = "<script>document.title = 'owned'</script><img src=x onerror=\\"document.title = 'owned'\\">"
notebook.record(Finding("a.b", "x" * 300 + evil, Status.FAIL, claim=evil, evidence="/path/" * 60, next=evil))
notebook.record(Finding("a.c", "Nothing to say", Status.PASS))
notebook.record(Verdict("wiring", "sure", evil, (Change("config.json", "k" * 80, [2, 15, 27], "sglang==0.5.23"), Change("c", "k", [3], "vllm"))))
notebook.record(Finding("a.d", "A command", Status.FAIL, next="Run `eaglelab wiring drafter --boundaries 3,16,28 --write`, then go on"))
notebook.table({"file": ["rows_0-5000/data_0.ckpt"], **{f"n{i}": [i] for i in range(12)}}, caption="Files")
notebook.not_given("no log " + "y" * 200, "make one")
print("z" * 400)
raise RuntimeError("w" * 400)"""


EVIL = """<script>document.title = 'owned'</script><img src=x onerror="document.title = 'owned'">"""
SAID = f"Wiring is at fault (sure): {EVIL}"
"""What the page's verdict says, as its title."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """(page, index) of one run: a notebook that shows everything and breaks at its end."""
    from eaglelab.reports.run import run_report

    place = tmp_path_factory.mktemp("pages")
    (place / "case").mkdir()
    (place / "case" / "case.toml").write_text("[dump]\npath = '.'\n")
    (place / "books").mkdir()
    cells = [new_code_cell("case: str = ''  # the case", metadata={"tags": ["parameters"]}), new_markdown_cell(PROSE), new_code_cell(CALLS)]
    nbformat.write(new_notebook(cells=cells), place / "books" / "02_norms.ipynb")
    result = run_report(place / "case", out=place / "reports", notebooks=place / "books")
    return result.directory / "02_norms.html", result.index


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
        browser = p.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def visit(browser):
    """Open a file with the network refused; gives the page, what it requested and what it complained about."""

    def open_page(path: Path):
        page = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True).new_page()
        requests, complaints = [], []
        page.on("request", lambda r: requests.append(r.url))
        page.on("console", lambda m: complaints.append(m.text))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.goto(path.absolute().as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        return page, requests, complaints

    return open_page


@pytest.fixture(scope="module")
def pages(visit, paths):
    """The page and the index, opened once; tests change their window and their colours only."""
    return [visit(path) for path in paths]


def test_a_page_opens_from_disk_and_asks_for_nothing(pages, paths):
    page, requests, complaints = pages[0]
    assert [r for r in requests if not r.startswith("data:")] == [paths[0].absolute().as_uri()]
    assert complaints == []
    assert page.title() == f"{SAID} · case"  # no script of a hostile finding ran
    assert page.locator("h1").inner_text() == SAID
    assert page.locator(".question").inner_text() == "What do the slots' norms say?"
    assert page.locator("h1").count() == 1
    assert page.locator("math").count() == 2
    assert page.evaluate("[...document.images].every(i => i.naturalWidth > 0 && i.alt.length > 5)")
    assert page.locator(".failed").inner_text().startswith("FAILED.")
    assert page.locator(".summary .el-fail").count() >= 1


@pytest.mark.parametrize("width", [390, 768, 1280, 1600])
def test_no_page_scrolls_sideways(pages, width):
    for page, _, complaints in pages:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, page.evaluate(TOO_WIDE)
        assert complaints == []


def test_figures_and_changes_fit_a_phone(pages):
    page = pages[0][0]
    page.set_viewport_size({"width": 390, "height": 844})
    widths = page.evaluate("[...document.querySelectorAll('.el-figure img')].map(i => i.getBoundingClientRect().width)")
    assert widths
    assert max(widths) <= 390
    changes = page.locator(".el-verdict li")
    assert changes.all_inner_texts() == [f"{'k' * 80} = [2, 15, 27] in config.json, for sglang==0.5.23", "k = [3] in c, for vllm"]
    box = changes.first.locator("code").nth(1).bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 390  # the value is in sight
    scrolling = "e => e.scrollWidth > e.clientWidth && !getComputedStyle(e).backgroundImage.includes('gradient')"
    assert (
        page.evaluate(f"[...document.querySelectorAll('.el-scroll')].filter({scrolling}).length") == 0
    )  # a shadow says that there is more


def test_words_of_a_command_and_names_of_files_stay_on_one_line(pages):
    page = pages[0][0]
    lines = "es => es.map(e => [e.textContent, e.getClientRects().length, e.clientHeight < 30])"
    for width in (300, 390, 470, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        words = page.locator("#finding-a\\.d code.el-long > span").evaluate_all(lines)
        assert words == [[w, 1, True] for w in ("eaglelab", "wiring", "drafter", "--boundaries", "3,16,28", "--write")]
        (name,) = page.locator("td.el-name", has_text="rows_0-5000/data_0.ckpt").evaluate_all(lines)
        assert name[2]


def test_a_verdict_and_its_findings_stand_once(pages):
    page = pages[0][0]
    assert page.locator(".el-verdict").count() == 1
    assert page.locator(".summary li:not(.el-verdict li)").count() == 0
    assert page.get_by_text("Nothing to say", exact=True).count() == 1
    assert page.locator(".summary").inner_text().count("fail") == 1


def test_links_lead_where_they_say(visit, paths):
    page, _, _ = visit(paths[1])
    page.get_by_role("link", name="02 norms").click()
    assert page.locator("h1").inner_text() == SAID
    page.get_by_role("link", name="in full below").click()
    assert page.url.endswith("#finding-a.b")
    hashes = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map(a => decodeURIComponent(a.hash.slice(1)))")
    assert [h for h in hashes if not page.evaluate("id => document.getElementById(id) !== null", h)] == []
    page.get_by_role("link", name="All reports").click()
    assert page.locator("h1").inner_text() == "Reports"


TOO_WIDE = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.el-scroll, pre, .el-math, .out')
    && e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"""

CONTRAST = """() => {
  const lum = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
                     return .2126 * r + .7152 * g + .0722 * b };
  const rgb = s => s.match(/[\\d.]+/g).map(Number);
  const ground = e => {
    for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c }
    return [255, 255, 255];
  };
  const low = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !e.checkVisibility()) continue;
    const [a, b] = [lum(rgb(getComputedStyle(e).color)), lum(ground(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) low.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)}`);
  }
  return [...low];
}"""


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")])
def test_all_text_has_contrast_aa(pages, scheme, ground):
    for page, _, _ in pages:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground


def test_keyboard_focus_is_visible(pages):
    page = pages[0][0]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    """Two pages of a run that name each other and each other's findings, rendered when both are there."""
    from eaglelab.findings import Finding, Status
    from eaglelab.reports import parts
    from eaglelab.reports.render import render_run

    place = tmp_path_factory.mktemp("linked")
    match = Finding(
        "wiring.match", "It feeds [0, 3]", Status.FAIL, next="Set them: see wiring.dump.", numbers={"rows": [{"a": 1, "b": {"c": [2, 3]}}]}
    )
    dump = Finding("wiring.dump", "The dump holds [3, 16]", Status.PASS, evidence="wiring.dump.more and xwiring.match are no findings")
    served = Finding(
        "served.x", "As predicted", Status.FAIL, next="The finding wiring.match (page 03) names the ids; `wiring.dump` too, not page 09."
    )
    for name, found, prose in (
        ("03_layers", [dump, match], "# Which layers?\n\nAs notebooks 05 and 08 say."),
        ("05_served", [served], "# Served?\n\n`03_layers`"),
    ):
        cell = new_code_cell("x = 'wiring.match'")
        cell.outputs = [nbformat.v4.new_output("display_data", {"text/html": parts.findings(found)})]
        notes = {"case": "c", "error": None, "findings": [f.to_json() for f in found]}
        nbformat.write(new_notebook(cells=[new_markdown_cell(prose), cell], metadata={"eaglelab": notes}), place / f"{name}.ipynb")
    render_run(place)
    return place


def test_findings_and_pages_that_are_named_are_links(visit, linked):
    page, _, complaints = visit(linked / "05_served.html")
    where = page.evaluate("[...document.querySelectorAll('.el-finding a, .intro a')].map(a => [a.textContent, a.getAttribute('href')])")
    layers = "03_layers.html"
    assert where == [
        ["03_layers", layers],
        ["wiring.match", f"{layers}#finding-wiring.match"],
        ["03", layers],
        ["wiring.dump", f"{layers}#finding-wiring.dump"],
    ]
    page.locator(".el-finding a", has_text="wiring.match").click()
    assert page.url.endswith("03_layers.html#finding-wiring.match")
    assert page.locator("h1").inner_text() == "It feeds [0, 3]"
    assert page.locator(".el-finding:target").inner_text().startswith("✕ fail It feeds")
    inside = page.evaluate(
        "[...document.querySelectorAll('.el-finding a, .intro a, pre a')].map(a => [a.textContent, a.getAttribute('href')])"
    )
    assert inside == [
        ["05", "05_served.html"],
        ["wiring.dump", "#finding-wiring.dump"],
    ]  # no code, no own id, no page that is not in the run
    assert complaints == []


def test_records_among_numbers_are_a_table(visit, linked):
    page, _, _ = visit(linked / "03_layers.html")
    table = page.locator("#finding-wiring\\.match table", has_text="rows")
    assert table.locator("caption").inner_text() == "rows"
    assert table.locator("th").all_inner_texts() == ["a", "b.c"]
    assert table.locator("td").all_inner_texts() == ["1", "[2, 3]"]


def test_paper_shows_what_is_open_and_cuts_nothing(visit, paths):
    page, _, _ = visit(paths[0])
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 680, "height": 960})  # A4 without its margins
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    seen = "s => [...document.querySelectorAll(s)].filter(e => e.checkVisibility()).length"
    assert [page.evaluate(seen, s) for s in (".top nav", ".toc", ".skip", "details.code", "details.el-fold:not(.origin *)")] == [0] * 5
    assert page.evaluate(seen, ".origin .el-table") == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    wide = "[...document.querySelectorAll('.el-table')].filter(t => t.checkVisibility() && t.getBoundingClientRect().right > 681).length"
    assert page.evaluate(wide) == 0
    assert (
        page.evaluate(
            "[...document.querySelectorAll('*')].filter(e => ['sticky', 'fixed'].includes(getComputedStyle(e).position) && e.checkVisibility()).length"
        )
        == 0
    )
