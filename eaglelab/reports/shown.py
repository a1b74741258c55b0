"""Figures and tables as HTML, for notebooks, explorers and pages: an image with alt text, caption and data; a DataFrame, escaped and cut."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from eaglelab.reports import parts

MAX_ROWS = 200
"""Rows of a table that are shown; the count of the rest is said."""
REPORT_DPI = 144
LIVE_DPI = 96
"""Of a figure that is drawn anew whenever a control of an explorer moves: in one pass, where a report's takes three."""
ROOM = (2.0, 1.2)
"""Inches beside and above a live figure for what stands outside its axes; what stays blank is cut off."""
BLANK_EDGE = 8
"""Pixels left of the blank around a live figure."""


def figure(ax: Any, alt: str, caption: str | None = None, data: Any = None, dpi: int = REPORT_DPI) -> str:
    """A matplotlib Figure or Axes with its description for who cannot see it; `data` is what `table` takes, folded. The figure is closed.

    Raises ValueError without alt, TypeError on what is no figure.
    """
    from matplotlib import pyplot

    if not alt.strip():
        raise ValueError("a figure needs alt: got an empty text, expected one sentence that says what the figure shows")
    drawn = getattr(ax, "figure", None)  # a Figure's is itself
    if drawn is None:
        raise TypeError(f"a figure is shown from a matplotlib Figure or Axes: got {type(ax).__name__}")
    with _nothing_hidden(drawn), nullcontext() if parts.veil is None else parts.veil.drawing(drawn):
        png = _live_png(drawn) if dpi == LIVE_DPI else _report_png(drawn, dpi)
    pyplot.close(drawn)  # else Jupyter shows it a second time
    width = round(int.from_bytes(png[16:20], "big") * 96 / dpi)  # PNG header: pixels → CSS pixels at the figure's own size
    numbers = "" if data is None else table(data, label=caption or alt)
    return parts.figure(base64.b64encode(png).decode(), alt=alt, caption=caption, width=width, data=numbers)


@contextmanager
def _nothing_hidden(figure: Any) -> Iterator[None]:
    """While a figure is drawn, what would hide or turn round in its texts is spelt out, as on the page: in those that are there, and in tick
    labels, which are made on the way. A sign that the font lacks becomes a box without a warning: the caption and the table say it."""
    from matplotlib.text import Text

    plain = Text.set_text
    Text.set_text = lambda drawn, said: plain(drawn, parts.spelt(said) if isinstance(said, str) else said)
    try:
        for drawn in _texts(figure):
            drawn.set_text(drawn.get_text())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            yield
    finally:
        Text.set_text = plain


def _texts(artist: Any) -> Iterator[Any]:
    """The texts that are there before anything is drawn. An axis is not asked for its ticks: it would make them all, for nothing."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    if isinstance(artist, Axis):
        yield artist.label
    elif isinstance(artist, Text):
        yield artist
    else:
        for child in artist.get_children():
            yield from _texts(child)


def title(ax: Any) -> str:
    """The finding that a figure's title says, for its alt text."""
    return " ".join(ax.get_title(loc="left").split())


def _report_png(figure: Any, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def _live_png(figure: Any) -> bytes:
    """The figure drawn once, without the small ticks of a log axis that have no numbers. Constrained layout and a tight box measure every
    text twice more, which is most of the time: here the axes stay where they are on a larger page, and its blank edges are cut off."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.ticker import NullFormatter, NullLocator
    from PIL import Image  # matplotlib's own writer of PNG

    figure.set_layout_engine("none")
    size = figure.get_size_inches()
    page = size + 2 * np.array(ROOM)
    for ax in figure.axes:
        place = ax.get_position(original=True)
        for axis in (ax.xaxis, ax.yaxis):
            if isinstance(axis.get_minor_formatter(), NullFormatter):
                axis.set_minor_locator(NullLocator())
        ax.set_position([*((place.min * size + ROOM) / page), *(place.size * size / page)])
    figure.set_size_inches(page)
    figure.set_dpi(LIVE_DPI)
    figure.set_facecolor("white")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]  # [height, width, 3]
    inked = (pixels != 255).any(axis=-1)
    if inked[[0, -1]].any() or inked[:, [0, -1]].any():  # more than ROOM stands outside
        return _report_png(figure, LIVE_DPI)
    cut = [slice(max(0, places[0] - BLANK_EDGE), places[-1] + BLANK_EDGE + 1) if len(places) else slice(None)
           for places in (np.flatnonzero(inked.any(axis=1)), np.flatnonzero(inked.any(axis=0)))]  # fmt: skip
    buffer = io.BytesIO()
    Image.fromarray(pixels[tuple(cut)]).save(buffer, "png", compress_level=1)
    return buffer.getvalue()


def frame(data: Any) -> Any:
    """A DataFrame of rows or columns, for tables and figures."""
    import pandas as pd

    with pd.option_context("mode.string_storage", "python"):  # pyarrow's strings refuse text that is no UTF-8
        return data.to_frame() if isinstance(data, pd.Series) else pd.DataFrame(data)


def table(data: Any, caption: str | None = None, label: str | None = None, empty: str = "none") -> str:
    """A DataFrame, a list of dicts, or a dict of columns, escaped.

    An index that is named or not 0..n-1 is shown as row headers. Without rows the sentence `empty` is shown after the caption.
    """
    rows = frame(data)
    if not len(rows):
        said = caption or label
        return parts.nothing(f"{said}: {empty}" if said else empty)
    total, headers = len(rows), 0
    rows = rows.head(MAX_ROWS)
    names = list(rows.index.names)
    if any(n is not None for n in names) or type(rows.index).__name__ != "RangeIndex":
        headers = len(names)
        rows = rows.reset_index(names=["" if n is None else n for n in names], allow_duplicates=True)
    columns = [" / ".join(str(part) for part in c if part != "") if isinstance(c, tuple) else c for c in rows.columns]
    cells = [[v.item() if getattr(v, "ndim", None) == 0 else v for v in row] for row in rows.itertuples(index=False, name=None)]
    return parts.table(columns, cells, caption=caption, label=label, row_headers=headers, total=total)
