"""What a notebook calls: open the case, show figures and tables, record findings.

    from eaglelab import notebook as nb
    case = nb.start(case, title="01 inspect dump")
    nb.show(ax, alt="Median norm of slots 0 to 3: 1.0, 37, 174, 111", caption="…", data=frame)
    nb.record(finding, …)

The same calls work live in JupyterLab and in a report. What is recorded travels with the cell's output, under a type of its own that no
front end shows; the report runner collects it from there.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.case import Case, open_case
from eaglelab.findings import Finding, Verdict, plain
from eaglelab.progress import in_ipython, watched
from eaglelab.provenance import collect, facts, harmless
from eaglelab.redact.veil import install
from eaglelab.reports import parts, shown
from eaglelab.reports.shown import frame

if TYPE_CHECKING:
    from eaglelab.cache import Results
    from eaglelab.explore import Explorer
    from eaglelab.investigation import Investigation

title = shown.title

VEIL = install()
"""Where the report is redacted, what everything passes that is shown or recorded; else None."""

RECORD = "application/x.eaglelab+json"
"""Type of what is recorded: a list of `{"kind": "start" | "finding" | "verdict" | "result" | "cached", "data": …}`."""


def start(case_path: str | Path, title: str = "Versions") -> Case:
    """Open the case, show what this run stands on (versions, git state, device; folded), and return it. Raises CaseError.

    A relative path is looked for in the working directory and upwards: JupyterLab starts a kernel in the notebook's own folder.
    """
    import torch  # noqa: F401 - so that the device is known

    case = open_case(_upwards(case_path))
    origin = collect()
    if VEIL is not None:
        VEIL.keep(*harmless(origin))
    v = origin["versions"]
    summary = f"eaglelab {v.get('eaglelab', '?')}, torch {v.get('torch', 'not installed')}, {origin['device']}, {origin['date']}"
    style = f'<style class="el-live">{parts.style("live.css", "parts.css")}</style>'
    folded = parts.folded(
        f"{title}: {summary}", parts.pairs([("case", os.fspath(case_path)), *facts(origin)], "This run"), "el-fold el-start"
    )
    _display(style + folded, summary, ("start", origin))
    return case


def investigate(case_path: str | Path, title: str = "Versions", fresh: bool = False, **options: Any) -> Investigation:
    """`start`, and the case opened for measuring, with the user's cache. Raises CaseError.

    fresh: heavy results are computed again. options: those of `Investigation` (max_samples, seed, device, …). Below each cell that takes results
    from the cache, one folded line says which, and of when they are.
    """
    from eaglelab.cache import open_results
    from eaglelab.investigation import Investigation

    inv = Investigation(start(case_path, title), **options)
    inv.results = open_results(inv, fresh)
    _caches.add(inv.results)
    if in_ipython():
        sys.modules["IPython"].get_ipython().events.register("post_run_cell", _tell_uses)
    return inv


_caches: weakref.WeakSet[Results] = weakref.WeakSet()
"""Of this kernel's investigations."""


def _tell_uses(*_: Any) -> None:
    """Say what the cell that ran took from the cache, and record it."""
    used = [use for results in list(_caches) for use in results.untold()]
    if used:
        rows = [(u.result, f"{u.computed} UTC", f"{u.seconds:.1f} s") for u in used]
        inner = parts.table(["result", "computed", "took"], rows, label="From the cache", row_headers=1)
        said = f"From the cache: {'; '.join(u.result for u in used)}"
        _display(
            parts.folded(said, inner, "el-fold el-cache"),
            f"From the cache: {'; '.join(map(str, used))}",
            *(("cached", u.to_json()) for u in used),
        )


def _upwards(path: str | Path) -> Path:
    """The path as it is where it exists (or nowhere does), else under the nearest parent of the working directory that has it."""
    places = [Path(path).expanduser(), *(parent / path for parent in Path.cwd().parents)]
    return next((p for p in places if p.exists()), places[0])


def show(figure: Any, *, alt: str, caption: str | None = None, data: Any = None) -> None:
    """Show a matplotlib Figure or Axes with a description for who cannot see it, a caption, and the data behind it, folded.

    `alt` says what the figure shows, with its main numbers. `data` is what `table()` takes. The figure is closed.
    """
    _display(shown.figure(figure, alt, caption, data), f"[figure: {alt}]")


def explore(explorer: Explorer) -> None:
    """Show an explorer: its widgets where a person watches, and its static twin in reports (and wherever widgets cannot be shown).

    What is wrong with the values that the twin shows keeps nobody from trying others: then a note stands in its place.
    """
    said = f"[{explorer.title}]"
    if not watched():
        return _display(explorer.twin(), said)
    from IPython.display import display

    from eaglelab.explore.frame import KEYS, Live

    live = Live(explorer)
    try:
        twin = explorer.twin()
    except ValueError as error:
        twin = _cannot_tell(error)
    display({"application/javascript": KEYS}, raw=True)
    display({**live.box._repr_mimebundle_(), "text/html": _as_text(twin), "text/plain": said}, raw=True)


def table(data: Any, caption: str | None = None, empty: str = "none") -> None:
    """Show a table: a DataFrame, a list of dicts, or a dict of columns. Everything in it is escaped; without rows the sentence `empty` stands."""
    rows = frame(data)
    shown_rows = rows if VEIL is None else VEIL.frame(rows)
    listed = f"{caption or ''}\n{shown_rows.head(20).to_string()}" if len(rows) else f"{caption}: {empty}" if caption else empty
    _display(shown.table(rows, caption, empty=empty), listed.strip())


def listing(sentences: Sequence[str], caption: str) -> None:
    """Show sentences as a list; a sentence where there are none."""
    if not sentences:
        return _display(parts.nothing(f"{caption}: none"), f"{caption}: none")
    _display(parts.listed(sentences, caption), "\n".join([caption, *(f"- {s}" for s in sentences)]))


def record(*items: Finding | Verdict) -> None:
    """Show findings (and a verdict) as readable blocks, what needs a decision first, and store them with the run."""
    if VEIL is not None:
        items = tuple(map(VEIL.said, items))
    verdicts = [v for v in items if isinstance(v, Verdict)]
    findings = [f for f in items if isinstance(f, Finding)]
    if len(verdicts) + len(findings) < len(items):
        raise TypeError(f"record() got {', '.join(type(i).__name__ for i in items)}, expected Finding or Verdict")
    lines = [f"verdict: {v.stage} ({v.confidence}). {v.text}" for v in verdicts] + [f"{f.status}: {f.title}" for f in findings]
    stored = [("verdict", v.to_json()) for v in verdicts] + [("finding", f.to_json()) for f in findings]
    _display("".join(map(parts.verdict, verdicts)) + parts.findings(findings), "\n".join(lines), *stored)


def record_result(name: str, data: Any) -> None:
    """Store a result under a name in the run's `findings.json` (`wiring`, `replay`, …): anything `to_json()` or JSON can carry."""
    _display("", "", ("result", {name: data}))


def not_given(what: str, how: str = "") -> None:
    """Say calmly that an input is absent, and how to get it."""
    _display(parts.note(what, how), f"not given: {what}. How to get it: {how}" if how else f"not given: {what}")


def aside(what: str) -> None:
    """Say calmly why something is not shown here."""
    _display(parts.note(what, kind="note"), f"note: {what}")


@contextmanager
def given() -> Iterator[None]:
    """Around cells that need inputs: what the case lacks, or what cannot be used, becomes a note, and the notebook goes on."""
    from eaglelab.investigation import NotGiven

    try:
        yield
    except NotGiven as absent:
        not_given(absent.what, absent.how)
    except ValueError as error:  # every room's own errors are ValueErrors with a text for the user
        _display(_cannot_tell(error), f"cannot tell: {error}")


def _cannot_tell(error: ValueError) -> str:
    return parts.note("this part", str(error), kind="cannot tell")


def _display(markup: str, text: str, *records: tuple[str, Any]) -> None:
    """Show HTML in a notebook, with what is recorded beside it; print the text elsewhere."""
    bundle = {"text/html": _as_text(markup), "text/plain": parts.clean(text)} if markup else {}
    if records:
        stored = plain([{"kind": kind, "data": data} for kind, data in records])
        bundle[RECORD] = stored if VEIL is None else [{**r, "data": VEIL.value(r["data"])} for r in stored]
    if in_ipython():
        from IPython.display import display

        display(bundle, raw=True, metadata={} if VEIL is None else VEIL.metadata())
    elif text:
        print(parts.clean(text))


def _as_text(markup: str) -> str:
    """HTML in which JupyterLab's MathJax takes no dollar sign for a formula: a token that says `$\\href{…}{…}$` stays what it says."""
    return f'<div class="mathjax_ignore">{markup}</div>'
