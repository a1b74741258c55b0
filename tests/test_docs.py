"""The documents say what the code does: formats, what they imply, and the commands."""

import re
from pathlib import Path

import pytest

from eaglelab.checks import CHECKS
from eaglelab.dumps import FORMATS
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts import LAYOUTS
from eaglelab.dumps.listing import Listing

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
