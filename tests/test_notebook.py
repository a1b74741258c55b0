"""What notebooks call: escaped everywhere, recorded under the runner only."""

import hashlib
import json
import os
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eaglelab import notebook, progress, provenance
from eaglelab.case import CaseError, open_case
from eaglelab.findings import Change, Finding, Status, Verdict
from eaglelab.reports import parts

EVIL = '<script>alert("1")</script>\x07\x9b\u202egnp.exe\ud800 &amp; <img src=x onerror=1>'


class Tags(HTMLParser):
    """All tags of a page, and its text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def shown(monkeypatch):
    """What the notebook functions display: a list of (HTML, text); what they record is in `.records`."""

    class Shown(list):
        records = []  # noqa: RUF012

    out = Shown()

    def display(bundle, raw, metadata=None):
        assert raw
        out.records = [*out.records, *json.loads(json.dumps(bundle.get(notebook.RECORD, []), allow_nan=False))]
        out.append((bundle.get("text/html"), bundle.get("text/plain")))

    monkeypatch.setattr(notebook, "in_ipython", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    return out


def safe(markup):
    tags = Tags(markup)
    assert "script" not in tags.tags
    assert not any(a.get("src", "").startswith("x") or "onerror" in a for _, a in tags.attributes)
    assert not any((ord(c) < 32 and c not in "\n\t") or c in "\x9b\u202e" or 0xD800 <= ord(c) < 0xE000 for c in tags.text)
    markup.encode("utf-8")
    return tags


def test_hostile_text_is_shown_as_text_everywhere(shown):
    with pd.option_context("mode.string_storage", "python"):  # pyarrow's strings refuse it
        frame = pd.DataFrame({EVIL: [EVIL, "b"]}, index=pd.Index([EVIL, "r"], name=EVIL))
    notebook.table(frame, caption=EVIL)
    notebook.record(
        Finding("x." + EVIL, EVIL, Status.FAIL, claim=EVIL, evidence=EVIL, numbers={EVIL: {EVIL: EVIL}}, next=EVIL),
        Verdict(EVIL, EVIL, EVIL, (Change(EVIL, EVIL, [EVIL], EVIL),)),
    )
    notebook.not_given(EVIL, EVIL)
    assert len(shown) == 3
    for markup, plain in shown:
        assert '<script>alert("1")</script>\\x07\\x9b\\u202egnp.exe\\ud800 &amp; <img src=x onerror=1>' in safe(markup).text
        assert "\x07" not in plain
        assert "\u202e" not in plain


def test_table_formats_numbers_and_says_what_it_cut(shown, monkeypatch):
    monkeypatch.setattr("eaglelab.reports.shown.MAX_ROWS", 1)
    frame = pd.DataFrame({"n": [1281, 163_840], "norm": [174.3977, float("nan")], "ok": [True, False], "half": np.float32([0.5, 2.0])})
    notebook.table(frame)
    cells = Tags(shown[0][0]).text
    assert "1281174.4yes0.5" in cells
    assert "1 of 2 rows shown" in cells
    assert "␣There␣are</td>".replace("␣", "␣<wbr>") in parts.table(["t"], [["␣There␣are"]])
    assert parts.number(163_840) == parts.number(163_840.0) == "163,840"
    assert parts.number(float("nan")) == parts.number(None) == parts.number(pd.NaT) == "–"  # noqa: RUF001
    assert (parts.number(1e-7), parts.number(float("inf")), parts.number(3.0)) == ("1e-07", "inf", "3")


def test_table_takes_dicts_series_and_multi_index(shown):
    notebook.table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    notebook.table(pd.Series([1, 2], index=["p", "q"], name="value"))
    notebook.table(pd.DataFrame({("a", "b"): [1]}, index=pd.MultiIndex.from_tuples([("i", 2)], names=["x", "y"])))
    assert '<th scope="row">p</th>' in shown[1][0]
    assert "a / b" in shown[2][0]


def test_a_table_without_rows_is_a_sentence(shown):
    notebook.table(pd.DataFrame(columns=["what", "detail"]), caption="Problems", empty="none in 8 samples")
    notebook.table(pd.DataFrame())
    assert shown == [
        ('<div class="mathjax_ignore"><p class="el-cut">Problems: none in 8 samples</p></div>', "Problems: none in 8 samples"),
        ('<div class="mathjax_ignore"><p class="el-cut">none</p></div>', "none"),
    ]
    assert parts.table(["a"], [], caption=EVIL) == f'<p class="el-cut">{parts.text(EVIL)}: none</p>'


def test_a_list_of_boundaries_has_no_quotes_and_short_floats():
    assert parts.number([3, 16, 28, "final"]) == "[3, 16, 28, final]"
    assert parts.number((0.123456789, None, True)) == "[0.1235, –, yes]"  # noqa: RUF001
    assert parts.number([{"a": 1}]) == '[{"a": 1}]'


def test_a_file_name_stays_on_one_line_and_a_sentence_does_not():
    markup = parts.table(["file", "said"], [["rows_0-5000/data_0.ckpt", "two words, and more"], ["f" * 65, "␣a␣token␣"]])
    assert markup.count("class=el-name") == 1
    assert "<td class=el-name>rows_0-5000/data_0.ckpt</td>" in markup


def test_a_command_breaks_between_its_words_only():
    command = "eaglelab wiring drafter --boundaries 3,16,28 --write"
    markup = parts.prose(f"Run `{command}` or `--write` <b>")
    assert markup.endswith(" or <code>--write</code> &lt;b&gt;")
    assert "<span>--boundaries</span> <span>3,16,28</span> <span>--write</span></code>" in markup
    assert Tags(markup).text == f"Run {command} or --write <b>"
    assert parts.prose("an `open end") == "an `open end"
    assert "<script" not in parts.prose("`" + EVIL * 2 + "`")


def test_what_is_said_slot_by_slot_stands_on_lines(shown):
    notebook.record(Finding("a.b", "T", Status.PASS, evidence="Compared. Slot 0: near. Slot 12: far."))
    assert "<dd>Compared.<br>Slot 0: near.<br>Slot 12: far.</dd>" in shown[0][0]


def test_changes_are_lists_with_the_first_engine_first():
    both = (Change("a.json", "ids", [2, 15], "sglang==0.5.23"), Change("a.json", "on", True), Change("a.json", "ids", [3, 16], "vllm"))
    text = Tags(parts.verdict(Verdict("wiring", "sure", "T", both))).text
    assert text.endswith(
        "What to change:ids = [2, 15] in a.json, for sglang==0.5.23on = true in a.json"
        "If you serve with another engine:ids = [3, 16] in a.json, for vllm"
    )
    assert "What to change" not in parts.verdict(Verdict("dump", "likely", "T"))


def test_show_needs_a_description_and_keeps_the_data(shown):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    fig, axes = pyplot.subplots(1, 2, figsize=(4, 2))
    axes[0].plot([1, 2])
    with pytest.raises(ValueError, match="needs alt: got an empty text"):
        notebook.show(fig, alt="  ")
    notebook.show(axes[0], alt=f"Two lines {EVIL}", caption="n = 2", data={"x": [1, 2]})
    tags = safe(shown[0][0])
    (image,) = [a for t, a in tags.attributes if t == "img"]
    assert image["alt"].startswith("Two lines <script>")
    assert image["src"].startswith("data:image/png;base64,")
    assert 300 < int(image["width"]) < 450  # 4 inches are 384 CSS pixels
    assert "table" in tags.tags
    assert not pyplot.fignum_exists(fig.number)  # else Jupyter would show it twice
    with pytest.raises(TypeError, match="a matplotlib Figure or Axes: got"):
        notebook.show("text", alt="x")


def test_what_is_recorded_travels_with_the_output(shown):
    finding = Finding("a.b", "Title", Status.PASS, numbers={"x": float("nan"), "y": np.int64(3)})
    notebook.record(finding, Verdict("wiring", "sure", "Because", (Change("f", "k", [1]),)))
    notebook.record_result("wiring", {"dump": (3, 16, "final"), "share": np.array([0.5])})
    verdict, stored, result = shown.records
    assert verdict == {"kind": "verdict", "data": {"stage": "wiring", "confidence": "sure", "text": "Because", "changes": [
        {"file": "f", "key": "k", "value": [1], "engine": None}], "faults": [], "not_looked_at": []}}  # fmt: skip
    assert Finding.from_json(stored["data"]).numbers == {"x": None, "y": 3}
    assert result == {"kind": "result", "data": {"wiring": {"dump": [3, 16, "final"], "share": [0.5]}}}
    assert shown[1] == (None, None)  # a result is stored and not shown
    with pytest.raises(TypeError, match=r"record\(\) got dict, expected Finding or Verdict"):
        notebook.record({"id": "x"})


def test_status_is_told_by_symbol_and_word(shown):
    for status in Status:
        notebook.record(Finding("a.b", "T", status))
    words = [Tags(m).text for m, _ in shown]
    assert [w.split("T")[0].strip() for w in words] == ["✓ pass", "✕ fail", "? cannot tell", "○ not given", "– not applicable"]  # noqa: RUF001


def test_start_opens_the_case_and_shows_versions(shown, tmp_path):
    path = write_case(tmp_path / "mine", "[target]\npath = '.'\n[[claims]]\nslot = 0\ntext = 'embed'\n")
    assert notebook.start(path, title="01").claims[0].text == "embed"
    text = safe(shown[0][0].replace("<style", "<i").replace("</style>", "</i>")).text
    assert f"torch {provenance.versions()['torch']}" in text
    assert "torch threads" in shown.records[0]["data"]["device"]  # torch was asked
    with pytest.raises(CaseError, match="nowhere"):
        notebook.start(tmp_path / "nowhere")


def test_a_relative_case_is_found_upwards(shown, tmp_path, monkeypatch):
    """JupyterLab starts a kernel in the notebook's own folder."""
    write_case(tmp_path / "data" / "mine", "[target]\npath = '.'\n")
    deep = tmp_path / "notebooks" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    for path in ("data/mine/case.toml", "data/mine", Path("data") / "mine"):
        assert notebook.start(path).file == tmp_path / "data" / "mine" / "case.toml"
    write_case(deep / "data" / "mine", "[target]\npath = '.'\n")
    assert notebook.start("data/mine").file == deep / "data" / "mine" / "case.toml"  # the nearest one
    with pytest.raises(CaseError, match=r"no case at .*deep/data/gone"):
        notebook.start("data/gone")


def test_a_shipped_notebook_runs_in_its_own_folder(monkeypatch):
    papermill = pytest.importorskip("papermill")
    root = Path(__file__).parents[1]
    if not (root / "notebooks").is_dir():
        pytest.skip("no notebooks in this checkout")
    from eaglelab.reports.kernel import Manager

    class Ours(Manager):
        """The runner's, with nobody to tell which process it started."""

        def started(self, pid):
            pass

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = papermill.execute_notebook(
        str(root / "notebooks" / "00_start_here.ipynb"), None, cwd=str(root / "notebooks"), kernel_name="python3",
        progress_bar=False, kernel_manager_class=Ours,
    )  # fmt: skip
    assert not [o for c in book.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert any("SGLang" in str(o.get("data", {}).get("text/html")) for c in book.cells for o in c.get("outputs", []))


def test_without_ipython_the_text_is_printed(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", None)
    notebook.not_given("no log", "make one")
    assert capsys.readouterr().out == "not given: no log. How to get it: make one\n"


def test_progress_is_silent_when_fast_and_one_line_when_slow_and_nobody_watches(capsys):
    assert list(progress.progress([1, 2, 3], "read")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")
    list(progress.progress(iter("abc"), "read", total=3, delay=0))
    out, err = capsys.readouterr()
    assert out == ""  # --json output stays clean
    assert err == "read: 0.0 s\n"


def test_progress_draws_a_bar_on_a_terminal_after_its_delay(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress.progress(range(3), "scan", delay=0)) == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert "scan:" in err
    assert "3/3" in err or "0/3" in err
    assert list(progress.progress(range(3), "scan")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


# provenance


def write_case(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.toml").write_text(text)
    return folder / "case.toml"


def test_inputs_are_sized_and_hashed(tmp_path):
    case = write_case(
        tmp_path / "c",
        '[dump]\npath = "dump"\n[engine]\nname = "sglang"\nlaunch = "python -m server --path dump"\n[drafter]\npath = "../abc"\n',
    )
    (case.parent / "dump" / "rows").mkdir(parents=True)
    (case.parent / "dump" / "rows" / "a.pt").write_bytes(b"ab")
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "1").write_bytes(b"a")
    (tmp_path / "abc" / "2").write_bytes(b"bc")
    found = {i["name"]: i for i in provenance.case_inputs(open_case(case))}
    assert list(found) == ["case", "dump.path", "drafter.path"]
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc", FIPS 180 example
    assert found["drafter.path"] == {
        "name": "drafter.path",
        "path": f"{tmp_path.name}/abc",
        "files": 2,
        "bytes": 3,
        "sha256": sha,
        "of": "content",
    }
    assert (found["dump.path"]["files"], found["dump.path"]["bytes"]) == (1, 2)
    assert str(tmp_path) not in json.dumps(found)


def test_huge_inputs_are_not_read(tmp_path, monkeypatch):
    for i in range(3):
        (tmp_path / f"{i}.pt").write_bytes(b"xx")
    monkeypatch.setattr(provenance, "HASH_LIMIT", 4)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("read a huge input"))
    sized = provenance.describe(tmp_path)
    assert (sized["files"], sized["bytes"], sized["of"]) == (3, 6, "names and sizes")
    monkeypatch.setattr(provenance, "STAT_LIMIT", 2)
    named = provenance.describe(tmp_path)
    assert (named["files"], named["bytes"], named["of"]) == (3, None, "names")
    assert named["sha256"] != sized["sha256"]
    monkeypatch.undo()
    os.mkfifo(tmp_path / "3.pt")  # opening it would wait for ever
    assert provenance.describe(tmp_path)["files"] == 3
    assert provenance.describe(tmp_path / "gone") == {"files": 0, "bytes": 0, "sha256": hashlib.sha256().hexdigest(), "of": "content"}


def test_git_state_is_none_outside_a_checkout(tmp_path):
    assert provenance.git_state(tmp_path) is None


def test_provenance_names_no_person_and_no_machine(tmp_path, monkeypatch):
    import getpass
    import socket

    monkeypatch.setenv("USER", "somebodyunique")
    monkeypatch.setenv("LOGNAME", "somebodyunique")
    data = json.dumps(provenance.collect(open_case(write_case(tmp_path, "[dump]\npath = '.'\n"))))
    assert getpass.getuser() == "somebodyunique"
    assert "somebodyunique" not in data
    assert socket.gethostname() not in data
    assert str(tmp_path) not in data
