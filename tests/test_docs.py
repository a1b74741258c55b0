"""The documents say what the code does: formats, what they imply, and the commands."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eaglelab.checks import CHECKS
from eaglelab.dumps import FORMATS
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts import LAYOUTS
from eaglelab.dumps.listing import Listing
from eaglelab.served import counters

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "formats.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip("`"): cells
    for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in TEXT.splitlines() if line.startswith("| `"))
}


def test_every_format_has_its_row_and_no_row_is_left_over():
    assert set(ROWS) == set(FORMATS)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_last_slot_is_told_as_the_layout_implies_it(layout, tmp_path):
    implied, _ = layout.implied(Listing(tmp_path, tmp_path, ()))
    assert isinstance(implied, Implied)
    if implied.last_state is not None:
        assert implied.last_state in ROWS[layout.name][4]
    if not implied.certain:  # the row must not promise more than the layout
        assert re.search(r"not implied|look the same|only if|research", " ".join(ROWS[layout.name]))


def test_checks_that_are_named_exist():
    named = set(re.findall(r"`((?:dump|drafter|replay|text|training)\.[a-z_.]+)`", TEXT))
    known = {check.id for check in CHECKS}
    assert named
    assert {name for name in named if not any(name == i or name.startswith(i + ".") for i in known)} == set()


def test_every_kind_of_counters_has_its_row():
    source = Path(counters.__file__).read_text(encoding="utf-8")
    kinds = set(re.findall(r'Counters\(\s*path, "(\w+)"', source))
    rows = [line for line in (DOCS / "served.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(kinds) == 4
    assert {kind for kind in kinds if not any(f"(`{kind}`)" in row for row in rows)} == set()
    assert set(re.findall(r"\(`(\w+)`\)", "\n".join(rows))) == kinds


def test_the_hooks_value_in_the_document_is_one():
    code = re.search(r"python -c '(.*)'\)$", (DOCS / "capture.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(said)[0]["config"]["out"] == "/data/records"
