"""Every class of failure has public reports as tests, and every mark names a thread that exists in form."""

import re
from pathlib import Path

import pytest
from report_classes import CLASSES, Retold, by_class, retold

THREAD = re.compile(r"[\w.-]+/[\w.-]+#[1-9]\d{0,5}")


def test_every_class_has_two_reports_and_there_are_many():
    marks = retold()
    lacking = {letter: sorted(threads) for letter, threads in by_class(marks).items() if len(threads) < 2}
    assert not lacking
    assert len({m.thread for m in marks}) >= 45


def test_marks_are_well_formed():
    for mark in retold():
        where = f"{mark.file}::{mark.test}"
        assert THREAD.fullmatch(mark.thread), f"{where}: {mark.thread!r} is no owner/repo#number"
        assert mark.classes, where
        assert set(mark.classes) <= set(CLASSES), f"{where}: {mark.classes!r}"
        assert mark.test.startswith("test_"), f"{where}: only a test retells a report"


def test_marks_are_read_and_a_broken_one_is_named(tmp_path):
    body = 'import pytest\n\n\n@pytest.mark.report({})\n@pytest.mark.report("a/b#2", "K")\ndef test_it():\n    pass\n'
    (tmp_path / "test_a.py").write_text(body.format('"a/b#1", "AJ"'))
    assert retold(tmp_path) == [Retold("a/b#1", "AJ", "test_a.py", "test_it"), Retold("a/b#2", "K", "test_a.py", "test_it")]
    (tmp_path / "test_a.py").write_text(body.format('thread="a/b#1", classes=["A", "J"]'))
    assert retold(tmp_path)[0] == Retold("a/b#1", "AJ", "test_a.py", "test_it")
    for broken in ('"a/b#1"', "", '"a/b#1", 5', "name, 'A'"):
        (tmp_path / "test_a.py").write_text(body.format(broken))
        with pytest.raises(ValueError, match=r"test_a.py, test_it: report\(thread, classes\)"):
            retold(tmp_path)
    assert by_class([])["A"] == set()
    assert retold(Path(tmp_path / "nothing")) == []
