"""What notebooks call: escaped everywhere, recorded under the runner only."""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import eaglelab
import eaglelab.case
from eaglelab import notebook, progress, provenance
from eaglelab.case import Case
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
    """What the notebook functions display: a list of (HTML, text)."""
    out = []
    monkeypatch.setattr(notebook, "_display", lambda markup, text: out.append((markup, text)))
    return out


@pytest.fixture
def record_file(tmp_path, monkeypatch):
    path = tmp_path / "record.jsonl"
    monkeypatch.setenv(notebook.RECORD, str(path))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def safe(markup):
    tags = Tags(markup)
    assert "script" not in tags.tags
    assert not any(a.get("src", "").startswith("x") or "onerror" in a for _, a in tags.attributes)
    assert not any((ord(c) < 32 and c not in "\n\t") or c in "\x9b\u202e" or 0xD800 <= ord(c) < 0xE000 for c in tags.text)
    markup.encode("utf-8")
    return tags


def test_hostile_text_is_shown_as_text_everywhere(shown):
    frame = pd.DataFrame({EVIL: [EVIL, "b"]}, index=pd.Index([EVIL, "r"], name=EVIL))
    notebook.table(frame, caption=EVIL, units={EVIL: EVIL})
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


def test_table_formats_numbers_and_says_what_it_cut(shown):
    frame = pd.DataFrame({"n": [1281, 163_840], "norm": [174.3977, float("nan")], "ok": [True, False], "all": [np.float32(0.5), 2.0]})
    notebook.table(frame, units={"norm": "L2"}, formats={"all": ".2f"}, max_rows=1)
    markup = shown[0][0]
    cells = Tags(markup).text
    assert "1281174.4yes0.50" in cells
    assert "normL2" in cells.replace(" ", "")
    assert "1 of 2 rows shown" in cells
    assert parts.number(163_840) == "163,840"
    assert parts.number(float("nan")) == parts.number(None) == parts.number(pd.NaT) == "–"  # noqa: RUF001
    assert parts.number(1e-7) == "1e-07"


def test_table_takes_dicts_series_and_multi_index(shown):
    notebook.table([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    notebook.table(pd.Series([1, 2], index=["p", "q"], name="value"))
    notebook.table(pd.DataFrame({("a", "b"): [1]}, index=pd.MultiIndex.from_tuples([("i", 2)], names=["x", "y"])))
    notebook.table(pd.DataFrame())
    assert '<th scope="row">p</th>' in shown[1][0]
    assert "a / b" in shown[2][0]


def test_show_needs_a_description_and_keeps_the_data(shown):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    fig, axes = pyplot.subplots(1, 2, figsize=(4, 2))
    axes[0].plot([1, 2])
    with pytest.raises(ValueError, match="needs alt: got an empty text"):
        notebook.show(fig, alt="  ")
    notebook.show(axes, alt=f"Two lines {EVIL}", caption="n = 2", data={"x": [1, 2]})
    tags = safe(shown[0][0])
    (image,) = [a for t, a in tags.attributes if t == "img"]
    assert image["alt"].startswith("Two lines <script>")
    assert image["src"].startswith("data:image/png;base64,")
    assert 300 < int(image["width"]) < 450  # 4 inches are 384 CSS pixels
    assert "table" in tags.tags
    assert not pyplot.fignum_exists(fig.number)  # else Jupyter would show it twice
    with pytest.raises(TypeError, match="got str, expected a matplotlib Figure or Axes"):
        notebook.show("text", alt="x")


def test_record_stores_under_the_runner_and_only_shows_live(shown, record_file, monkeypatch):
    finding = Finding("a.b", "Title", Status.PASS, numbers={"x": float("nan"), "y": np.int64(3)})
    notebook.record(finding, Verdict("wiring", "sure", "Because", (Change("f", "k", [1]),)))
    notebook.record_result("wiring", {"dump": (3, 16, "final"), "share": np.array([0.5])})
    verdict, stored, result = lines(record_file)
    assert verdict == {"kind": "verdict", "data": {"stage": "wiring", "confidence": "sure", "text": "Because", "changes": [
        {"file": "f", "key": "k", "value": [1], "engine": None}]}}  # fmt: skip
    assert Finding.from_json(stored["data"]).numbers == {"x": None, "y": 3}
    assert result == {"kind": "result", "name": "wiring", "data": {"dump": [3, 16, "final"], "share": [0.5]}}
    monkeypatch.delenv(notebook.RECORD)
    notebook.record(finding)
    assert len(lines(record_file)) == 3
    assert len(shown) == 2
    with pytest.raises(TypeError, match=r"record\(\) got dict, expected Finding or Verdict"):
        notebook.record({"id": "x"})


def test_status_is_told_by_symbol_and_word(shown):
    for status in Status:
        notebook.record(Finding("a.b", "T", status))
    words = [Tags(m).text for m, _ in shown]
    assert [w.split("T")[0].strip() for w in words] == ["✓ pass", "✕ fail", "? cannot tell", "○ not given", "– not applicable"]  # noqa: RUF001


def test_start_opens_the_case_and_shows_versions(shown, record_file, tmp_path):
    path = write_case(tmp_path / "mine", "[target]\npath = '.'\n[[claims]]\nslot = 0\ntext = 'embed'\n")
    assert notebook.start(path, title="01", parameters={"k": EVIL}).claims[0].text == "embed"
    text = safe(shown[0][0].replace("<style", "<i").replace("</style>", "</i>")).text
    assert f"torch {provenance.versions()['torch']}" in text
    (stored,) = lines(record_file)
    assert stored["data"]["provenance"]["parameters"] == {"k": EVIL}
    with pytest.raises(eaglelab.case.CaseError, match="nowhere"):
        notebook.start(tmp_path / "nowhere")


def test_start_says_what_the_case_left_out(shown, monkeypatch):
    monkeypatch.setattr(eaglelab, "open_case", lambda path: Case(Path("c/case.toml"), notes=(f"no target {EVIL}",)), raising=False)
    notebook.start("c")
    assert "Left out: no target <script>" in safe(shown[0][0]).text


def test_without_ipython_the_text_is_printed(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", None)
    notebook.not_given("no log", "make one")
    assert capsys.readouterr().out == "not given: no log. How to get it: make one\n"


def test_progress_is_silent_when_fast_and_sums_up_when_slow(capsys, monkeypatch):
    monkeypatch.setenv(progress.HEADLESS, "1")
    assert list(progress.progress([1, 2, 3], "read")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")
    list(progress.progress(iter("abc"), "read", total=3, delay=0, every=0))
    out, err = capsys.readouterr()
    assert out == ""  # --json output stays clean
    assert "read: 1 of 3" in err
    assert err.splitlines()[-1].startswith("read: 3 of 3 in")


def test_progress_sums_up_when_the_consumer_stops_or_breaks(capsys, monkeypatch):
    monkeypatch.setenv(progress.HEADLESS, "1")
    bar = progress.progress(range(10), "scan", delay=0)
    next(bar), next(bar)
    bar.close()
    assert "scan: 1 of 10" in capsys.readouterr().err


def test_progress_draws_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.delenv(progress.HEADLESS, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress.progress(range(3), "scan", delay=0)) == [0, 1, 2]
    assert "scan" in capsys.readouterr().err


# provenance


def write_case(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.toml").write_text(text)
    return folder / "case.toml"


def test_inputs_are_sized_and_hashed(tmp_path):
    case = write_case(
        tmp_path / "c",
        '[dump]\npath = "dump"\n[engine]\nname = "path"\nlaunch = "python -m server --path dump"\nlog = "gone.log"\n'
        '[drafter]\npath = "abc.bin"\n[[claims]]\nslot = 0\n',
    )
    (case.parent / "dump" / "rows").mkdir(parents=True)
    (case.parent / "dump" / "rows" / "a.pt").write_bytes(b"ab")
    (case.parent / "abc.bin").write_bytes(b"abc")
    found = {i.name: i for i in provenance.case_inputs(case.parent)}
    assert list(found) == ["case", "dump.path", "engine.log", "drafter.path"]
    assert found["drafter.path"].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180 example
    assert (found["dump.path"].files, found["dump.path"].bytes) == (1, 2)
    assert found["engine.log"].note == "No such file or directory"
    assert all(not i.path.startswith(str(tmp_path)) for i in found.values())


def test_huge_inputs_are_not_read(tmp_path, monkeypatch):
    case = write_case(tmp_path, '[dump]\npath = "d"\n[target]\npath = "big"\n')
    (tmp_path / "d").mkdir()
    for i in range(3):
        (tmp_path / "d" / f"{i}.pt").write_bytes(b"x")
    (tmp_path / "big").write_bytes(b"12345")
    monkeypatch.setattr(provenance, "HASH_LIMIT", 4)
    monkeypatch.setattr(provenance, "STAT_LIMIT", 2)
    monkeypatch.setattr(provenance, "_hash", lambda paths: pytest.fail("read a huge input"))
    _, dump, big = provenance.case_inputs(case)
    assert (dump.files, dump.bytes, dump.sha256) == (3, None, None)
    assert len(dump.names_sha256) == 64
    assert (big.bytes, big.sha256) == (5, None)


def test_a_case_that_is_not_toml_is_still_listed(tmp_path):
    case = write_case(tmp_path, "not = [toml")
    assert [i.name for i in provenance.case_inputs(case)] == ["case"]
    assert [i.note for i in provenance.case_inputs(tmp_path / "none.toml")] == ["No such file or directory"]


def test_git_state_is_none_outside_a_checkout(tmp_path):
    assert provenance.git_state(tmp_path) is None


def test_provenance_names_no_person_and_no_machine(tmp_path, monkeypatch):
    import getpass
    import socket

    monkeypatch.setenv("USER", "somebodyunique")
    monkeypatch.setenv("LOGNAME", "somebodyunique")
    data = json.dumps(provenance.collect(write_case(tmp_path, ""), {"n": 1}).to_json())
    assert getpass.getuser() == "somebodyunique"
    assert "somebodyunique" not in data
    assert socket.gethostname() not in data
    assert str(tmp_path) not in data
