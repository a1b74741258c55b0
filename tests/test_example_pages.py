"""Every page of the example's report in a real browser, from disk with the network refused: asks for nothing, complains of nothing, has no
violation of WCAG A and AA that axe-core finds, fits a phone, shows every image with its description, light and dark.

Needs Debian's chromium; skips with the reason where it is missing.
"""

import os
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core (pip install axe-playwright-python)")
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
pytestmark = [
    pytest.mark.skipif(not os.path.exists(CHROMIUM), reason=f"needs {CHROMIUM} (apt-get install chromium)"),
    pytest.mark.slow,
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
MOST_BYTES = 2_000_000
IMAGES = "[...document.images].map(i => [i.naturalWidth > 0, i.alt.length > 20, i.alt])"
WIDE = """() => [...document.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.el-scroll, pre'))
  .slice(0, 5).map(e => e.outerHTML.slice(0, 160))"""


@pytest.fixture(scope="module")
def pages(example_report):
    return [*sorted(example_report.directory.glob("*.html")), example_report.index]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=range(10), ids=[*(f"{n:02}" for n in range(9)), "index"])
def page(request, pages, browser):
    """A page opened with everything unfolded: the tab, its file, what it asked for, what it complained of."""
    assert len(pages) == 10
    file = pages[request.param]
    tab = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True, bypass_csp=False).new_page()
    asked, complaints = [], []
    tab.on("request", lambda r: asked.append(r.url))
    tab.on("console", lambda m: complaints.append(m.text))
    tab.on("pageerror", lambda e: complaints.append(str(e)))
    tab.goto(file.absolute().as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    yield tab, file, asked, complaints
    tab.context.close()


def test_a_page_stands_alone_and_fits(page):
    tab, file, asked, complaints = page
    assert file.stat().st_size < MOST_BYTES
    assert [a for a in asked if not a.startswith("data:")] == [file.absolute().as_uri()]
    assert tab.locator("h1").count() == 1
    for loaded, told, alt in tab.evaluate(IMAGES):
        assert loaded
        assert told, alt
    for width in (390, 768, 1280, 1600):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, (width, tab.evaluate(WIDE))
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page, browser, scheme):
    _, file, _, _ = page
    tab = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme, bypass_csp=True).new_page()  # axe is a script
    tab.goto(file.absolute().as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = axe.Axe().run(tab, options=RULES).response["violations"]
    tab.context.close()
    assert [(v["id"], [n["target"] for n in v["nodes"]][:4]) for v in found] == []
