"""An executed notebook without what passed the veil by: sources, printed text, tracebacks, metadata, and outputs of its own making."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import nbformat
from nbconvert.filters import strip_ansi
from nbformat import NotebookNode

from eaglelab.redact.marks import count, counted, mark
from eaglelab.redact.redactor import Redactor
from eaglelab.redact.veil import MARK
from eaglelab.reports import parts

KEPT, KEPT_OF_CELLS = ("kernelspec", "language_info", "papermill"), ("tags", "papermill")
OF_PAPERMILL = ("duration", "start_time", "end_time", "status", "exception", "parameters", "version")
HIDDEN = "an output that eaglelab.notebook did not make: what it holds cannot be looked through"


def redact_notebook(notebook: NotebookNode, redactor: Redactor) -> Counter[str]:
    """Change the notebook in place; what was removed, by kind."""
    removed: Counter[str] = Counter()
    notebook.metadata = _metadata(notebook.metadata, KEPT, redactor)
    for cell in notebook.cells:
        cell.metadata = _metadata(cell.metadata, KEPT_OF_CELLS, redactor)
        cell.pop("attachments", None)
        cell.source = redactor.text(cell.source)
        removed += count(cell.source)
        if "outputs" in cell:
            cell.outputs = [_output(o, redactor) for o in cell.outputs]
            removed += sum(map(_removed, cell.outputs), Counter())
    return removed


def _metadata(metadata: Any, kept: tuple[str, ...], redactor: Redactor) -> NotebookNode:
    found = {key: metadata[key] for key in kept if key in metadata}
    if "papermill" in found:
        found["papermill"] = {k: redactor.value(v) for k, v in found["papermill"].items() if k in OF_PAPERMILL}
    if "kernelspec" in found:
        found["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.from_dict(found)


def _output(output: NotebookNode, redactor: Redactor) -> NotebookNode:
    if output.output_type == "stream":
        output.text = redactor.text(strip_ansi(output.text))
    elif output.output_type == "error":
        output.ename, output.evalue = redactor.text(output.ename), redactor.text(strip_ansi(output.evalue))
        output.traceback = redactor.text(strip_ansi("\n".join(output.traceback))).split("\n")
    elif not output.get("metadata", {}).get("eaglelab", {}).get(MARK):
        shown = {"text/html": parts.note(HIDDEN, kind=mark("output")), "text/plain": mark("output")}
        return nbformat.v4.new_output("display_data", shown)
    return output


def _removed(output: NotebookNode) -> Counter[str]:
    """Of one output, as a page shows it."""
    pictured = Counter(output.get("metadata", {}).get("eaglelab", {}).get("pictured", {}))
    shown = output.get("data", {}).get("text/html") or [output.get(k, "") for k in ("text", "evalue", "traceback")]
    return pictured + counted(re.sub(r"<wbr>", "", shown) if isinstance(shown, str) else shown)
