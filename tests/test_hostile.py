"""A case whose every text is hostile, as a report and in JupyterLab, in a real browser: no script of it runs, nothing is asked for, nothing
breaks out of its place, and what it says stands there as text.

Needs Debian's chromium; skips with the reason where it is missing.
"""

import json
import os
import shutil

import pytest
from explorer_drives import SOON
from hostile_case import SIGNS, hostile_case
from lab_server import lab
from test_example_pages import FLAGS, RULES, WIDE, axe, playwright
from test_lab import MINUTES, Notebook

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
pytestmark = [
    pytest.mark.skipif(not os.path.exists(CHROMIUM), reason=f"needs {CHROMIUM} (apt-get install chromium)"),
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
    pytest.mark.slow,
]
OWNED = "[window.owned ?? null, document.title.startsWith('owned')]"
INSIDE = """() => [...document.querySelectorAll('main script, main iframe, main form, main base, main link, main meta, main textarea, main svg')]
  .map(e => e.outerHTML.slice(0, 80))"""
LIVE = """() => [...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => a.name.startsWith('on')
  || ['href', 'xlink:href', 'src', 'srcset', 'action', 'formaction', 'data', 'style'].includes(a.name) && /(javascript|https?):/i.test(a.value)))
  .map(e => e.outerHTML.slice(0, 80))"""
HIDDEN = r"""() => [...document.body.innerText].filter(c => /[\u202a-\u202e\u2066-\u2069\u0000-\u0008\u200b\ufeff\ud800-\udfff]/.test(c) && c.length === 1)
  .map(c => c.charCodeAt(0).toString(16))"""
FORMULA = "from IPython.display import HTML, display\ndisplay(HTML('<p>$x^2$</p>'))"
"""A cell in which JupyterLab does set a formula, so that the test sees when it would."""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return hostile_case(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def run(case, tmp_path_factory):
    from eaglelab.reports.run import run_report

    result = run_report(case, out=tmp_path_factory.mktemp("reports"))
    assert result.exit_code == 0, [n["error"] for n in result.notebooks]
    return result


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def test_every_page_shows_it_as_text(run, browser):
    said = ""
    files = [*sorted(run.directory.glob("*.html")), run.index]
    assert len(files) == 10
    for file in files:
        page = browser.new_context(
            viewport={"width": 390, "height": 844}, offline=True, bypass_csp=True
        ).new_page()  # no policy protects it
        asked, complaints = [], []
        page.on("request", lambda r, asked=asked: asked.append(r.url))
        page.on("console", lambda m, complaints=complaints: complaints.append(m.text))
        page.on("pageerror", lambda e, complaints=complaints: complaints.append(str(e)))
        page.on("dialog", lambda d, complaints=complaints: (complaints.append(d.message), d.dismiss()))
        page.goto(file.absolute().as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        said += page.evaluate("document.body.innerText")
        assert page.evaluate(OWNED) == [None, False], file.name
        assert [page.evaluate(script) for script in (INSIDE, LIVE, HIDDEN)] == [[], [], []], file.name
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, (file.name, page.evaluate(WIDE))
        found = axe.Axe().run(page, options=RULES).response["violations"]
        assert [(file.name, v["id"], [n["target"] for n in v["nodes"]][:4]) for v in found] == []
        assert ([a for a in asked if not a.startswith("data:")], complaints) == ([file.absolute().as_uri()], [])
        page.context.close()
    assert [s for s in SIGNS if s not in said] == []


@pytest.fixture(scope="module")
def workbook(case, browser, tmp_path_factory):
    """JupyterLab whose notebooks are about the hostile case."""
    place = tmp_path_factory.mktemp("lab")
    with lab(place, EAGLELAB_CACHE=str(place / "cache"), OMP_NUM_THREADS="1") as server:
        yield server


@pytest.mark.parametrize("name", ["01_inspect_dump", "03_identify_layers", "04_replay_drafter"])
def test_a_notebook_and_its_explorers_show_it_as_text(name, case, workbook, browser):
    about(workbook.folder / "notebooks" / f"{name}.ipynb", case)
    tab = Notebook(workbook, browser, workbook.page(f"notebooks/{name}.ipynb") + "&reset")
    tab.page.on("dialog", lambda d: (tab.complaints.append(d.message), d.dismiss()))
    cells = tab.run()
    assert [f"{o['ename']}: {o['evalue']}" for c in cells for o in c["outputs"] if o["output_type"] == "error"] == []
    cells = tab.page.locator(".jp-Notebook .jp-CodeCell")
    formula = tab.page.locator(".jp-OutputArea mjx-container")
    formula.first.wait_for(state="attached", timeout=2 * MINUTES)
    said = ""
    for box in tab.page.locator(".el-explore").all():
        box.scroll_into_view_if_needed()
        for label in ("Sample", "Slot", "Feed", "Version"):
            for control in box.locator(f".widget-inline-hbox:has(label:text-is('{label}')) select").all():
                control.focus()
                tab.page.keyboard.press("ArrowDown")
        box.locator(".el-explore-view:not(.el-explore-stale)").wait_for(timeout=SOON)
        said += box.inner_text()
    said += "".join(cells.all_inner_texts())
    assert [s for s in ("<script>", "<img src=x onerror=") if s not in said] == []
    assert tab.page.evaluate(OWNED) == [None, False]
    assert (
        tab.page.locator(
            ".jp-OutputArea :is(iframe, form, base, link, svg[onload], [onerror], [ontoggle], [onfocus], [href^=javascript])"
        ).count()
        == 0
    )
    assert formula.count() == 1  # its own, which shows that others would have been set
    assert tab.complaints == []
    tab.page.context.close()


def about(file, case):
    """The notebook with this case as its parameter, and one formula below."""
    notebook = json.loads(file.read_text())
    (given,) = (c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", []))
    given["source"] = [f"case: str = {str(case)!r}\n" if line.startswith("case:") else line for line in given["source"]]
    formula = {
        "cell_type": "code",
        "execution_count": None,
        "id": "formula",
        "metadata": {},
        "outputs": [],
        "source": FORMULA.splitlines(True),
    }
    notebook["cells"].insert(notebook["cells"].index(given) + 1, formula)
    file.write_text(json.dumps(notebook))
