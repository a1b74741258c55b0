"""The index over all runs: what it says of each, damaged ones too; sorted and filtered in a browser, newest first without a script."""

import base64
import hashlib
import json
import os
import re
import shutil
import time

import pytest
from page_lint import EVIL, lint

from eaglelab.reports.index import write_index

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
CHANGES = [
    {"file": "c.json", "key": "ids", "value": [2, 15, 27], "engine": "sglang"},
    {"file": "c", "key": "other", "value": 1, "engine": "vllm"},
]

ORIGIN = {"date": "2026-01-02T03:04:05Z", "versions": {}, "git": None, "device": "CPU", "platform": "Linux"}


def verdict(stage="wiring", confidence="sure", changes=CHANGES, text="word " * 100):
    return {"stage": stage, "confidence": confidence, "text": text, "changes": list(changes)}


def content(**given):
    """What a run's findings.json holds."""
    findings = [{"id": "x", "title": "t", "status": s} for s in ("fail", "fail", "pass")]
    origin = ORIGIN | {"parameters": {}}
    return {"verdict": verdict(), "findings": findings, "notebooks": [{"name": "08_verdict", "error": None}], "provenance": origin} | given


def add_run(root, case, run, data, pages=()):
    folder = root / case / run
    folder.mkdir(parents=True)
    if data is not None:
        (folder / "findings.json").write_text(data if isinstance(data, str) else json.dumps(data))
    for name in pages:
        (folder / name).write_text("")
    return folder


def test_the_index_survives_whatever_lies_in_the_folder(tmp_path):
    hostile = verdict(stage=EVIL, text=EVIL * 10, changes=[{"file": EVIL, "key": EVIL, "value": EVIL, "engine": EVIL}])
    books = [{"name": "01 &<b>", "error": None}, {"name": "02_b", "error": "KeyError: 1"}]
    origin = ORIGIN | {"parameters": {"n": EVIL, "long": "y" * 500}}
    good = content(verdict=hostile, notebooks=books, provenance=origin)
    add_run(tmp_path, "a", "2026-01-02", good, ["01 &<b>.html", "02_b.html"])
    add_run(tmp_path, "b", "2026-01-03", None, ["01_x.html"])
    damaged = ("{", "[]", "null", '{"notebooks": 3}', json.dumps(good | {"findings": [{"id": EVIL}]}), "\x00")
    for i, text in enumerate(damaged):
        add_run(tmp_path, "c", f"2025-01-0{i}", text)
    (tmp_path / "README.md").write_text("x")
    for case, names in (("d", ("02_a", "04_b")), ("e", ("02_a", "08_verdict"))):
        add_run(tmp_path, case, "2024-01-01", content(verdict=None, notebooks=[{"name": n, "error": None} for n in names]))
    page = write_index(tmp_path).read_text()
    assert lint(page, scripts=1) == []
    assert page.count("<tr>") == 1 + 10
    assert page.index("2026-01-03") < page.index("2026-01-02 03:04:05 UTC") < page.index("2025-01-0")
    assert "✕</span> 2 fail" in page
    assert "no verdict in this run (only 02, 04)" in page
    assert page.count("no verdict in this run</span>") == 1  # its notebook ran and gave none
    assert "no findings.json: the run did not finish" in page
    assert page.count("findings.json cannot be read: ") == len(damaged)
    assert page.count(">broke<") == 1
    assert "y" * 60 + " …" in page
    assert "y" * 61 not in page
    assert 'href="a/2026-01-02/01%20%26%3Cb%3E.html"' in page
    assert 'href="b/2026-01-03/01_x.html"' in page
    assert EVIL not in page


def test_a_row_says_the_headline_and_leads_to_the_pages(tmp_path):
    planned = ["03_identify", "08_verdict"]
    add_run(tmp_path, "a", "2026-01-02", content(planned=planned), ["03_identify.html", "08_verdict.html", "report.md"])
    page = write_index(tmp_path).read_text()
    said = "Wiring is at fault (sure): set <code>ids</code> = <code>[2, 15, 27]</code>"
    assert said in page
    assert "other" not in page  # another engine's change
    assert "not finished: 1 of 2 notebooks" in page
    assert '<a href="a/2026-01-02/08_verdict.html" title="08 verdict">08<span class="el-hidden"> verdict</span></a>' in page
    assert 'href="a/2026-01-02/report.md"' in page


def test_comparisons_are_listed_by_what_they_say(tmp_path):
    (tmp_path / "compare-a-b.html").write_text("<html><title>Verdict x → &lt;b&gt;</title></html>")
    page = write_index(tmp_path).read_text()
    assert '<a href="compare-a-b.html">Verdict x → &lt;b&gt;</a>' in page


def test_the_one_script_is_allowed_by_its_hash_alone(tmp_path):
    page = write_index(tmp_path).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert f"script-src 'sha256-{digest}';" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1]


def test_hundreds_of_runs_are_listed_soon(tmp_path):
    for i in range(400):
        add_run(tmp_path, f"case{i % 20}", f"2026-01-01_{i:06d}", content())
    start = time.monotonic()
    page = write_index(tmp_path).read_text()
    assert time.monotonic() - start < 20
    assert page.count("<tr>") == 401
    assert len(page) < 1_000_000


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"needs {CHROMIUM} (apt-get install chromium)")
    with playwright.sync_playwright() as p:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
        browser = p.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The index of four runs of three cases: wiring, none found, cannot tell, damaged."""
    root = tmp_path_factory.mktemp("index")
    add_run(root, "beta", "2026-01-01_1", content())
    add_run(root, "alpha", "2026-01-02_1", content(verdict=verdict("none found", changes=())))
    add_run(root, "case10", "2026-01-03_1", content(verdict=verdict("cannot tell", "cannot tell", changes=())))
    add_run(root, "case9", "2026-01-04_1", "{")
    return write_index(root)


NAMES = "[...document.querySelectorAll('.runs tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
NEWEST = ["case9", "case10", "alpha", "beta"]


def opened(browser, path, **options):
    page = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True, **options).new_page()
    complaints = []
    page.on("console", lambda m: complaints.append(m.text))
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.goto(path.absolute().as_uri())
    return page, complaints


def test_columns_are_sorted_by_mouse_and_keyboard(browser, four):
    page, complaints = opened(browser, four)
    assert page.evaluate(NAMES) == NEWEST
    head = lambda name: page.get_by_role("columnheader", name=name)  # noqa: E731
    assert head("Date").get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="Case").click()
    assert page.evaluate(NAMES) == ["alpha", "beta", "case9", "case10"]
    assert (head("Case").get_attribute("aria-sort"), head("Date").get_attribute("aria-sort")) == ("ascending", None)
    page.keyboard.press("Enter")
    assert page.evaluate(NAMES) == ["case10", "case9", "beta", "alpha"]
    assert head("Case").get_attribute("aria-sort") == "descending"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.evaluate(NAMES) == ["beta", "case10", "alpha", "case9"]  # at fault, cannot tell, none found, damaged
    page.get_by_role("button", name="Date").click()
    assert page.evaluate(NAMES) == NEWEST
    assert complaints == []
    page.context.close()


def test_rows_are_filtered_and_their_number_said(browser, four):
    page, complaints = opened(browser, four)
    page.get_by_label("Filter").fill("case10 no-such-word")
    assert page.evaluate(NAMES) == []
    page.get_by_label("Filter").fill("FAULT found")
    assert page.evaluate(NAMES) == ["alpha"]
    assert page.get_by_role("status").inner_text() == "1 of 4 runs"
    page.get_by_label("Filter").fill("")
    assert page.evaluate(NAMES) == NEWEST
    assert complaints == []
    page.context.close()


def test_without_a_script_all_rows_are_there_and_no_dead_control(browser, four):
    page, _ = opened(browser, four, java_script_enabled=False)
    assert page.locator(".runs tbody tr").count() == 4
    assert page.locator("button, input").count() == 0
    page.context.close()


@pytest.mark.parametrize("width", [390, 768, 1280, 1600])
def test_the_index_fits(browser, four, width):
    page, _ = opened(browser, four)
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.get_by_role("button", name="Verdict").bounding_box()
    assert box["height"] >= 24  # WCAG 2.2: a target's size
    page.context.close()
