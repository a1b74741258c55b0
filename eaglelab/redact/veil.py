"""The kernel's side: everything that is shown passes here, tokens at the door, texts on their way into markup, figures before they are drawn."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from eaglelab import text
from eaglelab.findings import Finding, Verdict
from eaglelab.redact.known import Known
from eaglelab.redact.marks import blocks, count
from eaglelab.redact.redactor import Redactor
from eaglelab.reports import parts
from eaglelab.reports.stored import read_verdict

VARIABLE = "EAGLELAB_REDACT"
"""Names the file with what is known of the case; set by the report runner."""
MARK = "veiled"
"""In the metadata of an output, under `eaglelab`: this one passed the veil; beside it, what was removed inside of a picture."""


class Veil:
    """What `eaglelab.reports.parts` and `eaglelab.notebook` ask before they show something."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.pictured: Counter[str] = Counter()

    def text(self, value: str) -> str:
        return self.redactor.text(value)

    def value(self, value: Any) -> Any:
        return self.redactor.value(value)

    def said(self, item: Finding | Verdict) -> Finding | Verdict:
        """A finding or a verdict, redacted by the names of its numbers before it is put into words."""
        if isinstance(item, Finding):
            return Finding.from_json(self.value(item.to_json()))
        return read_verdict(self.value(item.to_json()))

    def rows(self, columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return self.redactor.rows(columns, rows)

    def frame(self, rows: Any) -> Any:
        """A DataFrame, for its text: cells by the names of their columns, the index as a column of its name."""
        import pandas as pd

        names = [n for n in rows.index.names if n is not None]
        rows = rows.reset_index(allow_duplicates=True) if names else rows
        columns = list(map(str, rows.columns))
        cells = [[v.item() if getattr(v, "ndim", None) == 0 else v for v in row] for row in rows.itertuples(index=False, name=None)]
        return pd.DataFrame(self.rows(columns, cells), columns=columns)

    def keep(self, *texts: str | None) -> None:
        self.redactor.keep(*texts)

    @contextmanager
    def drawing(self, figure: Any) -> Iterator[None]:
        """While a figure is drawn, every text of it is redacted: those that are there, and tick labels, which are made on the way (also as
        formulas: `$\\mathdefault{10^{-2}}$`, `\\times`)."""
        from matplotlib.text import Text

        plain = Text.set_text
        Text.set_text = lambda drawn, said: plain(drawn, self.text(said) if isinstance(said, str) else said)
        try:
            for drawn in figure.findobj(Text):
                drawn.set_text(drawn.get_text())
            yield
        finally:
            Text.set_text = plain
        for drawn in figure.findobj(Text):
            self.pictured += count(drawn.get_text())

    def metadata(self) -> dict[str, Any]:
        """For the output that is shown now."""
        seen, self.pictured = dict(self.pictured), Counter()
        return {"eaglelab": {MARK: True, "pictured": seen}}


@cache
def install() -> Veil | None:
    """Put the veil on, once a kernel; None where the report is not redacted."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    veil = Veil(Redactor(*Known.read(Path(path))))
    text.veil, parts.veil = blocks, veil
    return veil
