"""Two runs side by side: every kind of difference, on hand-made runs with known answers."""

import json

import pytest
from page_lint import EVIL, lint

from eaglelab.findings import Change, Finding, Status, Verdict
from eaglelab.reports import compare
from eaglelab.reports.differences import ABSENT, flat
from eaglelab.reports.index import write_index
from eaglelab.reports.select import ReportError
from eaglelab.reports.stored import RunError, open_run

MATCH = Finding("wiring.match", "It feeds [0, 3]", Status.FAIL, "c", "e", {"engine": [0, 3], "same": 1, "deep": {"x": 0.5}}, "Set them")
SERVED = Finding("served.acceptance", "Counted 1.09", Status.PASS, numbers={"accept_length": 1.09, "steps": [0.1, 0.2], "none": None})
WORTH = Finding("cost.worth", "Does not pay", Status.FAIL)
WIRING = Verdict("wiring", "sure", "Wiring: x", (Change("c.json", "ids", [2, 15], "sglang"),))
NONE = Verdict("none found", "sure", "All is well")


def content(*findings, verdict=WIRING, parameters=None, books=("03_layers",), broken=None, **origin):
    known = {
        "date": "2026-01-02T03:04:05Z",
        "git": "abc",
        "device": "CPU",
        "platform": "Linux",
        "versions": {"torch": "2.13"},
        "parameters": {},
    }
    known["inputs"] = [{"name": "dump.path", "path": "dump", "files": 1, "bytes": 1200, "sha256": "a" * 64, "of": "content"}]
    return {
        "case": "tiny",
        "verdict": verdict.to_json() if verdict else None,
        "findings": [f.to_json() | {"notebook": "03_layers"} for f in findings],
        "notebooks": [{"name": n, "error": broken if n == books[0] else None, "parameters": parameters or {"seed": 0}} for n in books],
        "results": {"fit": {"a": 1.0}, "other": 1},
        "provenance": known | origin,
    }


def add_run(root, case, name, data, pages=("03_layers.html",)):
    folder = root / case / name
    folder.mkdir(parents=True)
    (folder / "findings.json").write_text(data if isinstance(data, str) else json.dumps(data))
    for page in pages:
        (folder / page).write_text("")
    return folder


@pytest.fixture
def two(tmp_path):
    """Run A says wiring, run B none found: one finding's status changed, one is gone, one has come, one has other numbers."""
    a = add_run(tmp_path, "tiny", "2026-01-02_1", content(MATCH, SERVED, WORTH))
    match = Finding("wiring.match", "It feeds [3, 16]", Status.PASS, "c", "e", {"engine": [3, 16], "same": 1, "deep": {"x": 0.25}})
    served = Finding("served.acceptance", "Counted 1.79", Status.PASS, numbers={"accept_length": 1.79, "steps": [0.1, 0.4], "new": 7})
    after = {"parameters": {"seed": 0, "max_samples": 64}, "git": "def", "versions": {"torch": "2.14", "vllm": "1.0"}}
    after["inputs"] = [{"name": "dump.path", "path": "dump", "files": 1, "bytes": 1300, "sha256": "b" * 64, "of": "content"}]
    data = content(match, served, Finding("text.new", "Found", Status.CANNOT_TELL), verdict=NONE, broken="KeyError: 'x'\nmore", **after)
    data["results"] = {"fit": {"a": 2.0}}
    b = add_run(tmp_path, "tiny", "2026-01-03_1", data)
    return a, b


def test_what_changed_between_two_runs(two):
    c = compare.compare_runs(*two)
    assert [(p.name, p.a, p.b) for p in c.parameters] == [("max_samples", ABSENT, 64)]
    assert {p.name: (p.a, p.b) for p in c.provenance} == {
        "git": ("abc", "def"),
        "version of torch": ("2.13", "2.14"),
        "version of vllm": (ABSENT, "1.0"),
        "input dump.path": ("1,200 bytes, sha256 aaaaaaaaaaaa of content", "1,300 bytes, sha256 bbbbbbbbbbbb of content"),
    }
    assert [(p.name, p.a, p.b) for p in c.verdict] == [
        ("stage at fault", "wiring", "none found"),
        ("changes", "`ids` = `[2, 15]` in c.json, for sglang", "none"),
        ("text", "Wiring: x", "All is well"),
    ]
    assert [(p.name, p.a, p.b) for p in c.broke] == [("03_layers", "ran through", "broke: KeyError: 'x'")]
    assert [(m.kind, m.now.id) for m in c.findings] == [
        ("status changed", "wiring.match"),
        ("appeared", "text.new"),
        ("gone", "cost.worth"),
        ("text changed", "served.acceptance"),
    ]
    numbers = {(n.source, n.name): (n.a, n.b, n.difference, n.relative) for n in c.numbers}
    assert numbers == {
        ("wiring.match", "engine"): ([0, 3], [3, 16], None, None),
        ("wiring.match", "deep.x"): (0.5, 0.25, -0.25, -0.5),
        ("served.acceptance", "accept_length"): (1.09, 1.79, pytest.approx(0.7), pytest.approx(0.7 / 1.09)),
        ("served.acceptance", "steps[1]"): (0.2, 0.4, pytest.approx(0.2), pytest.approx(1.0)),
        ("served.acceptance", "none"): (None, ABSENT, None, None),
        ("served.acceptance", "new"): (ABSENT, 7, None, None),
        ("result fit", "a"): (1.0, 2.0, 1.0, 1.0),
    }
    assert (c.same_findings, c.same_numbers) == (0, 2)  # `same` and steps[0]
    assert c.changed


def test_the_headline_says_what_changed(two):
    said = compare.title(compare.compare_runs(*two))
    assert said == (
        "Verdict wiring → none found; 3 findings changed (wiring.match, text.new, cost.worth); accept length, served 1.09 → 1.79; 03_layers broke"
    )


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (content(MATCH, SERVED), "Nothing changed"),
        (content(Finding("wiring.match", "Other words", Status.FAIL, numbers=MATCH.numbers), SERVED), "1 finding changed in words only"),
        (content(MATCH, Finding("served.acceptance", "Counted 1.09", Status.PASS, numbers={**SERVED.numbers, "steps": [0.1, 0.3]})), "Same verdict and findings, 1 number changed"),
        (content(MATCH, SERVED, verdict=None), "Verdict wiring → no verdict in this run"),
    ],
)  # fmt: skip
def test_headlines_of_smaller_changes(tmp_path, b, said):
    runs = [add_run(tmp_path, "tiny", "1", content(MATCH, SERVED)), add_run(tmp_path, "other", "2", b)]
    c = compare.compare_runs(*runs)
    assert compare.title(c) == said
    assert c.changed == (said != "Nothing changed")


def test_lines_for_a_terminal_and_json(two):
    c = compare.compare_runs(*two)
    text = "\n".join(compare.lines(c))
    for line in (
        "A: tiny/2026-01-02_1: Wiring is at fault (sure): set `ids` = `[2, 15]`",
        "B: tiny/2026-01-03_1: No fault found (sure)",
        "  max_samples: not there → 64",
        "  status changed: [fail → pass] It feeds [3, 16]  (wiring.match)",
        "  gone: [fail] Does not pay  (cost.worth)",
        "  served.acceptance accept_length: 1.09 → 1.79 (+64.2%)",
        "the same in both: 0 findings, 2 numbers",
    ):
        assert line in text
    data = json.loads(json.dumps(compare.to_json(c), allow_nan=False))
    assert (data["headline"], data["a"]["run"], data["same_numbers"]) == (compare.title(c), "tiny/2026-01-02_1", 2)
    assert data["findings"][0] == {
        "id": "wiring.match",
        "kind": "status changed",
        "a": {"status": "fail", "title": "It feeds [0, 3]"},
        "b": {"status": "pass", "title": "It feeds [3, 16]"},
    }


def test_long_lists_are_cut_on_a_terminal_only(tmp_path):
    many = lambda x: Finding("a.b", "t", Status.PASS, numbers={f"n{i}": x for i in range(50)})  # noqa: E731
    runs = [add_run(tmp_path, "tiny", str(x), content(many(x))) for x in (1, 2)]
    c = compare.compare_runs(*runs)
    assert "  … 38 more (--json has all)" in compare.lines(c)
    assert len(compare.to_json(c)["numbers"]) == 50


def test_the_page_links_to_both_runs_and_is_listed(two):
    write_index(two[0].parents[1])
    path = compare.write_page(compare.compare_runs(*two))
    assert path == two[0].parents[1] / "compare-2026-01-02_1-2026-01-03_1.html"
    page = path.read_text()
    assert lint(page) == []
    assert "<h1>Verdict wiring → none found; 3 findings changed" in page
    assert 'href="tiny/2026-01-02_1/03_layers.html#finding-wiring.match"' in page
    assert 'href="tiny/2026-01-03_1/03_layers.html#finding-wiring.match"' in page
    assert "+64.2%" in page
    assert f'href="{path.name}"' in (path.parent / "index.html").read_text()
    assert str(path.parent) not in page


def test_runs_of_different_cases_and_places(tmp_path):
    a = add_run(tmp_path / "x", "one", "2026-01-02_1", content(MATCH))
    b = add_run(tmp_path / "y", "two", "2026-01-02_1", content(MATCH))
    path = compare.write_page(compare.compare_runs(a, b))
    assert path == tmp_path / "y" / "compare-one-2026-01-02_1-two-2026-01-02_1.html"
    assert "<h1>Nothing changed</h1>" in path.read_text()
    other = compare.write_page(compare.compare_runs(a, b), tmp_path / "z")
    assert 'href="../x/one/' not in other.read_text()  # no finding moved, no verdict's page: nothing to link to
    assert other.parent == tmp_path / "z"


def test_hostile_text_is_shown_as_text(tmp_path):
    evil = Finding("a.b" + EVIL, EVIL, Status.FAIL, EVIL, EVIL, {EVIL: EVIL}, EVIL)
    later = Finding("a.b" + EVIL, EVIL, Status.FAIL, EVIL, EVIL + "2", {EVIL: EVIL + "2"}, EVIL)
    a = add_run(tmp_path, "tiny", "1", content(evil, parameters={EVIL: EVIL}, git=EVIL))
    b = add_run(tmp_path, "tiny", "2", content(later, verdict=Verdict(EVIL, EVIL, EVIL), broken=EVIL, git=EVIL + "2"))
    page = compare.write_page(compare.compare_runs(a, b)).read_text()
    assert lint(page) == []
    assert EVIL not in page


# which runs


def test_a_run_is_its_folder_its_sidecar_or_the_newest_of_a_case(two):
    a, b = two
    assert open_run(a).directory == a
    assert open_run(a / "findings.json").directory == a
    assert open_run(a.parent).directory == b
    (a.parent / "2026-01-04_1").mkdir()  # has not finished
    assert open_run(str(a.parent)).name == "tiny/2026-01-03_1"


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(
        RunError, match=r"nowhere: no such folder. Give a run's folder, its findings.json, or a case's folder under reports/"
    ):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"no findings.json in it or in a folder below it: the run did not finish"):
        open_run(tmp_path)
    for text in ("{", "[]", "{}", json.dumps(content() | {"findings": [{"id": 1}]}), json.dumps(content() | {"verdict": {"stage": 1}})):
        folder = add_run(tmp_path, "bad", str(abs(hash(text))), text)
        with pytest.raises(RunError, match=r"findings.json cannot be read"):
            open_run(folder)


def test_values_are_named_by_their_way(tmp_path):
    value = {"a": {"b": [{"c": 1}, 2.5]}, "ids": [3, 16, "final"], "empty": [], "names": ["x"], "long": [0.5] * 100, "none": None}
    assert dict(flat(value)) == {
        "a.b[0].c": 1,
        "a.b[1]": 2.5,
        "ids": [3, 16, "final"],
        "empty": [],
        "names": ["x"],
        "long": [0.5] * 100,
        "none": None,
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"notebooks": None}, "notebooks is null, expected list"),
        ({"notebooks": [{"name": 5, "error": None}]}, r"notebooks\[0\].name is int, expected str"),
        ({"findings": [{"id": "a", "title": None, "status": "pass"}]}, r"findings\[0\].title is null, expected str"),
        ({"findings": [{"id": "a", "title": "b", "status": "odd"}]}, "'odd' is not a valid Status"),
        ({"provenance": {}}, "provenance has no date"),
        ({"verdict": {"stage": "wiring"}}, "verdict has no confidence"),
        ({"results": 3}, "results is int, expected dict"),
    ],
)
def test_a_foreign_findings_json_is_told_by_file_and_place(tmp_path, change, said):
    a, b = (add_run(tmp_path, "tiny", name, content(MATCH) | more) for name, more in (("2026-01-02_1", {}), ("2026-01-03_1", change)))
    with pytest.raises(
        RunError, match=rf"2026-01-03_1: findings\.json cannot be read: .*{said}.* Give another run, or make this one again"
    ):
        compare.compare_runs(a, b)


def test_a_findings_json_that_is_nested_without_end_is_no_run(tmp_path):
    a, b = add_run(tmp_path, "tiny", "2026-01-02_1", content(MATCH)), add_run(tmp_path, "tiny", "2026-01-03_1", "[" * 100_000)
    with pytest.raises(RunError, match="cannot be read: it is nested too deeply"):
        compare.compare_runs(a, b)


def test_a_comparison_of_long_names_has_a_name_that_a_file_may_have(tmp_path):
    a, b = (add_run(tmp_path, letter * 200, "2026-01-02_1", content(MATCH)) for letter in "ab")
    page = compare.write_page(compare.compare_runs(a, b))
    assert page.exists()
    assert len(page.name) < 240


def test_a_comparison_that_cannot_be_written_says_so(tmp_path):
    run = add_run(tmp_path, "tiny", "2026-01-02_1", content(MATCH))
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"cannot write the comparison to .*file: File exists\. Give another folder with --out"):
        compare.write_page(compare.compare_runs(run, run), tmp_path / "file")
