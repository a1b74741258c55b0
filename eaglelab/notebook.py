"""What a notebook calls: open the case, show figures and tables, record findings.

    from eaglelab import notebook as nb
    case = nb.start(case, title="01 inspect dump")
    nb.show(ax, alt="Median norm of slots 0 to 3: 1.0, 37, 174, 111", caption="…", data=frame)
    nb.record(finding, …)

The same calls work live in JupyterLab and in a report. Under the report runner, what is recorded goes to the sidecar file that the
environment variable `EAGLELAB_RECORD` names, one JSON object a line; live, recording only shows.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eaglelab.findings import Finding, Verdict, plain
from eaglelab.provenance import collect, facts
from eaglelab.reports import parts

RECORD = "EAGLELAB_RECORD"
"""Environment variable: the sidecar file of this notebook's run."""

MAX_ROWS = 200
"""Rows of a table that are shown; the count of the rest is said."""

_LIVE_STYLE = '<style class="el-live">%s</style>'


def start(case_path: str | Path, title: str | None = None, parameters: Mapping[str, Any] | None = None) -> Any:
    """Open the case, show what this run stands on (versions, git state, device; folded), and return the `Case`.

    Raises whatever `eaglelab.open_case` raises on a case that cannot be used.
    """
    from eaglelab import open_case

    case = open_case(case_path)
    origin = collect(case_path, parameters, inputs=False).to_json()
    _store("start", {"title": title, "provenance": origin})
    v = origin["versions"]
    summary = ", ".join(
        [f"eaglelab {v.get('eaglelab', '?')}", f"torch {v.get('torch', 'not installed')}", origin["device"], origin["date"]]
    )
    rows = [("case", os.fspath(case_path)), *facts(origin)]
    style = _LIVE_STYLE % parts.style("live.css", "parts.css")
    notes = getattr(case, "notes", ())  # what the case left out: a target that is not on this machine
    said = "".join(parts.note(n, kind="left out") for n in notes)
    folded = parts.folded(f"{title or 'Versions'}: {summary}", parts.pairs(rows, "This run"), "el-fold el-start")
    _display(style + said + folded, "\n".join([summary, *map(parts.clean, notes)]))
    return case


def show(figure: Any, *, alt: str, caption: str | None = None, data: Any = None, dpi: int = 144) -> None:
    """Show a matplotlib Figure or Axes with a description for who cannot see it, a caption, and the data behind it, folded.

    `alt` says what the figure shows, with its main numbers. `data` is what `table()` takes. The figure is closed.
    """
    if not alt or not alt.strip():
        raise ValueError("show() needs alt: got an empty text, expected one sentence that says what the figure shows")
    figure = _figure_of(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", facecolor="white")
    png = buffer.getvalue()
    _close(figure)
    width = round(int.from_bytes(png[16:20], "big") * 96 / dpi)  # PNG header: pixels → CSS pixels at the figure's own size
    numbers = "" if data is None else _table_html(data, label=caption or alt)
    encoded = base64.b64encode(png).decode("ascii")
    _display(parts.figure(encoded, alt=alt, caption=caption, width=width, data=numbers), f"[figure: {alt}]")


def _figure_of(figure: Any) -> Any:
    """The Figure of a Figure, an Axes, or a (nested) array or list of Axes."""
    while not hasattr(figure, "savefig"):
        if getattr(figure, "figure", None) is not None:
            figure = figure.figure
        elif hasattr(figure, "flat"):
            figure = next(iter(figure.flat))
        elif isinstance(figure, (list, tuple)) and figure:
            figure = figure[0]
        else:
            raise TypeError(f"show() got {type(figure).__name__}, expected a matplotlib Figure or Axes")
    return figure


def _close(figure: Any) -> None:
    """Close a figure, so that Jupyter does not show it a second time."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)


def table(
    data: Any,
    caption: str | None = None,
    *,
    units: Mapping[Any, str] | None = None,
    formats: Mapping[Any, str] | None = None,
    max_rows: int | None = MAX_ROWS,
) -> None:
    """Show a table: a DataFrame, a list of dicts, or a dict of columns. Everything in it is escaped.

    `units` gives a column's unit, `formats` its format spec (".3f"). An index that is named or not 0..n-1 is shown as row headers.
    """
    _display(_table_html(data, caption=caption, units=units, formats=formats, max_rows=max_rows), _plain_table(data, caption))


def _frame(data: Any) -> Any:
    import pandas as pd

    if isinstance(data, pd.Series):
        return data.to_frame()
    return data if isinstance(data, pd.DataFrame) else pd.DataFrame(data)


def _table_html(data: Any, *, max_rows: int | None = MAX_ROWS, **options: Any) -> str:
    import pandas as pd

    frame = _frame(data)
    total = len(frame)
    named = any(n is not None for n in frame.index.names) or not isinstance(frame.index, pd.RangeIndex)
    headers = frame.index.nlevels if named else 0
    frame = frame.head(max_rows) if max_rows is not None else frame
    labels = [n if n is not None else "" for n in frame.index.names] if named else []
    columns = [" / ".join(map(str, c)) if isinstance(c, tuple) else c for c in frame.columns]
    rows = [_index_cells(i, headers) + [_scalar(v) for v in row] for i, row in zip(frame.index, _rows(frame), strict=True)]
    return parts.table([*labels, *columns], rows, row_headers=headers, total=total, **options)


def _rows(frame: Any) -> list[tuple[Any, ...]]:
    """Rows with each column's own type (a float column beside an int column would turn the ints to floats)."""
    if not len(frame.columns):
        return [()] * len(frame)
    return list(zip(*(frame.iloc[:, i].tolist() for i in range(frame.shape[1])), strict=True))


def _index_cells(index: Any, headers: int) -> list[Any]:
    if not headers:
        return []
    return [_scalar(i) for i in index] if headers > 1 else [_scalar(index)]


def _scalar(value: Any) -> Any:
    """numpy and torch scalars as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _plain_table(data: Any, caption: str | None) -> str:
    body = parts.clean(_frame(data).head(20).to_string())
    return f"{parts.clean(caption)}\n{body}" if caption else body


def record(*findings: Finding | Verdict) -> None:
    """Show findings (and a verdict) as readable blocks, what needs a decision first, and store them with the run."""
    for item in findings:
        if not isinstance(item, (Finding, Verdict)):
            raise TypeError(f"record() got {type(item).__name__}, expected Finding or Verdict")
    verdicts = [v for v in findings if isinstance(v, Verdict)]
    rest = [f for f in findings if isinstance(f, Finding)]
    for verdict in verdicts:
        _store("verdict", verdict.to_json())
    for finding in rest:
        _store("finding", finding.to_json())
    if findings:
        lines = [f"verdict: {v.stage} ({v.confidence}). {v.text}" for v in verdicts] + [f"{f.status}: {f.title}" for f in rest]
        _display("".join(map(parts.verdict, verdicts)) + parts.findings(rest), "\n".join(map(parts.clean, lines)))


def record_result(name: str, data: Any) -> None:
    """Store a result under a name in the run's `findings.json` (`wiring`, `replay`, …): anything `to_json()` or JSON can carry."""
    _store("result", plain(data), name=name)


def not_given(what: str, how: str = "") -> None:
    """Say calmly that an input is absent, and how to get it."""
    _display(parts.note(what, how), parts.clean(f"not given: {what}. How to get it: {how}" if how else f"not given: {what}"))


@contextmanager
def given() -> Iterator[None]:
    """Around cells that need inputs: what the case lacks, or what cannot be used, becomes a note, and the notebook goes on."""
    from eaglelab.investigation import NotGiven

    try:
        yield
    except NotGiven as absent:
        not_given(absent.what, absent.how)
    except ValueError as error:  # every room's own errors are ValueErrors with a text for the user
        _display(parts.note("this part", str(error), kind="cannot tell"), f"cannot tell: {parts.clean(str(error))}")


def frame(rows: Any) -> Any:
    """A DataFrame of rows, for figures."""
    return _frame(rows)


def title(ax: Any) -> str:
    """The finding that a figure's title says, for its alt text."""
    return " ".join(ax.get_title(loc="left").split())


def _store(kind: str, data: Any, **more: Any) -> None:
    path = os.environ.get(RECORD)
    if not path:
        return
    line = json.dumps({"kind": kind, **more, "data": plain(data)}, ensure_ascii=True, allow_nan=False)
    with open(path, "a", encoding="utf-8") as file:  # one line, one write: a killed run loses at most the last one
        file.write(line + "\n")


def _display(markup: str, plain_text: str) -> None:
    """Show HTML in a notebook; its text elsewhere."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = lambda: None  # noqa: E731
    if get_ipython() is None:
        print(plain_text)
    else:
        display({"text/html": markup, "text/plain": plain_text}, raw=True)
