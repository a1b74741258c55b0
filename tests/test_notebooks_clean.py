"""The notebooks in git: no outputs, no traces of a run, readable cells, typed and commented parameters."""

from pathlib import Path

import nbformat
import pytest

from eaglelab.reports.select import KINDS, read_parameters

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
if not NOTEBOOKS:
    pytest.skip("no notebooks in this checkout", allow_module_level=True)

MAX_LINES = 10


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.name)
def book(request):
    return nbformat.read(request.param, as_version=4)


def code_cells(book):
    return [c for c in book.cells if c.cell_type == "code"]


def test_it_is_valid_and_numbered(book, request):
    nbformat.validate(book)
    assert request.node.callspec.params["book"].name[:3].rstrip("_").isdigit()
    assert (book.nbformat, book.nbformat_minor >= 5) == (4, True)  # stable cell ids
    assert len({c.id for c in book.cells}) == len(book.cells)


def test_no_outputs_and_no_traces_of_a_run(book):
    for cell in code_cells(book):
        assert cell.outputs == []
        assert cell.execution_count is None
    for cell in book.cells:
        assert "injected-parameters" not in cell.metadata.get("tags", [])
        assert not {"papermill", "execution"} & set(cell.metadata)
    assert not {"papermill", "widgets", "eaglelab"} & set(book.metadata)


def test_every_cell_has_tags_and_the_kernelspec_is_there(book):
    assert all(isinstance(c.metadata.get("tags"), list) for c in book.cells)
    assert book.metadata.kernelspec.name == "python3"


def test_parameters_are_typed_and_commented(book, request):
    tagged = [c for c in code_cells(book) if "parameters" in c.metadata.tags]
    assert len(tagged) == 1
    parameters = read_parameters(request.node.callspec.params["book"])
    assert "case" in parameters
    assert len(parameters) == tagged[0].source.count(" = ")  # papermill reads every line
    for p in parameters.values():
        assert p.inferred_type_name in KINDS, f"{p.name} has no type that a report can check"
        assert p.help, f"{p.name} has no comment"


def test_one_h1_that_comes_first(book):
    headings = [line for c in book.cells if c.cell_type == "markdown" for line in c.source.splitlines() if line.startswith("# ")]
    assert len(headings) == 1
    assert book.cells[0].cell_type == "markdown"
    assert book.cells[0].source.startswith("# ")


def test_prose_leads_and_cells_are_short(book):
    prose = [c for c in book.cells if c.cell_type == "markdown"]
    assert len(prose) >= len(code_cells(book))
    for cell in code_cells(book):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= MAX_LINES, f"{len(lines)} lines: {lines[0]!r}: move it to the library"
