"""An executed notebook as ONE self-contained HTML file: no script, no request to anywhere, code folded away.

What the page knows beyond the cells (findings, provenance, what broke) is in the notebook's metadata under `eaglelab`, where the
runner puts it; a notebook without it renders as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import TemplateExporter
from nbconvert.filters import strip_ansi
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from traitlets.config import Config

from eaglelab.files import write_text
from eaglelab.findings import Finding, Status, by_severity
from eaglelab.provenance import facts
from eaglelab.reports import headline, markdown, parts
from eaglelab.reports.links import Links
from eaglelab.reports.stored import read_verdict

LONG = 40
"""Lines of printed text from which it is folded."""

ONLY_LIVE = "live"
"""Tag of a cell that speaks to who has the notebook open."""
LIVE = {"application/vnd.jupyter.widget-view+json", "application/javascript"}
SHOWN = ["text/html", "image/png"]
_VERDICT = re.compile(r'<article class="el-verdict">.*?</article>', re.DOTALL)
NO_TWIN = "this part is interactive and has no static twin: open the notebook in JupyterLab to see it"


def render(notebook: NotebookNode, output: Path, pages: Sequence[str] = (), where: Mapping[str, str] | None = None) -> None:
    """Write the page. pages: names of the run's pages, this one among them. where: by a finding's id, the page that holds it."""
    write_text(output, Page(notebook, output.stem, pages, where or {}).html())


def render_run(directory: Path) -> None:
    """Render all pages of a run from its executed notebooks: when all have run it is known which page holds which finding, and
    findings that are named on one page are linked to another."""
    books = {p.stem: nbformat.read(p, as_version=4) for p in sorted(directory.glob("*.ipynb"))}
    where: dict[str, str] = {}
    for name, book in books.items():  # a finding's own page before the verdict's, which holds all
        for finding in book.metadata.get("eaglelab", {}).get("findings", []):
            where.setdefault(finding["id"], name)
    for name, book in books.items():
        render(book, directory / f"{name}.html", list(books), where)


class Exporter(TemplateExporter):
    """nbconvert with this package's template. `HTMLExporter` is not its parent: that one re-parses the whole page."""

    output_mimetype = "text/html"

    def _file_extension_default(self) -> str:
        return ".html"

    def _template_name_default(self) -> str:
        return parts.TEMPLATES.name

    @property
    def default_config(self) -> Config:
        config = Config({"NbConvertBase": {"display_data_priority": [*SHOWN, "text/plain"]}})
        config.merge(super().default_config or Config())
        return config


class Page:
    """One page while it is made: what the template reads, its filters, and the headings that they meet on the way."""

    def __init__(self, notebook: NotebookNode, name: str, pages: Sequence[str], where: Mapping[str, str]) -> None:
        self.notebook = nbformat.from_dict(notebook)
        self.notes: Mapping[str, Any] = notebook.metadata.get("eaglelab", {})
        self.name, self.pages = name, pages
        self.findings = [Finding.from_json(f) for f in self.notes.get("findings", [])]
        self.origin = self.notes.get("provenance")
        self.links = Links(name, pages, {**where, **{f.id: name for f in self.findings}})
        self.outline = markdown.Outline()
        titled = next((c for c in self.notebook.cells if c.cell_type == "markdown" and c.source.startswith("# ")), None)
        self.intro = markdown.to_html(titled.source if titled else f"# {name.replace('_', ' ')}", self.outline)
        cells = [c for c in self.notebook.cells if c is not titled and c.source.strip() and ONLY_LIVE not in c.metadata.get("tags", [])]
        self.notebook.cells = cells
        for cell in cells:
            _drop_live(cell)
            _join_log(cell)

    @property
    def headline(self) -> str | None:
        """What the page found, in one line; None where it found nothing."""
        verdict = self.notes.get("verdict")
        return headline.of_verdict(read_verdict(verdict)) if verdict else headline.of_findings(self.findings)

    @property
    def title(self) -> str:
        """The h1: the finding, else the question."""
        return parts.heading(self.headline) if self.headline else self.outline.question

    @property
    def style(self) -> str:
        return parts.style("report.css", "parts.css", "print.css")

    @property
    def provenance(self) -> str:
        keys = [k for k in ("name", "path", "files", "bytes", "sha256", "of") if any(k in i for i in self.origin["inputs"])]
        inputs = [[i.get(k) for k in keys] for i in self.origin["inputs"]]
        tables = parts.pairs(facts(self.origin), "Versions, device, parameters")
        tables += parts.table(("input", *keys[1:]), inputs, caption="Inputs", row_headers=1)
        return parts.folded(f"Versions, device, parameters, inputs{' and their hashes' * ('sha256' in keys)}", tables)

    @property
    def removed(self) -> str | None:
        """What `--redact` took out, and how many times; None on a page that shows everything."""
        counts = self.notes.get("redacted")
        return None if counts is None else parts.table(("what", "times"), counts.items(), label="What was removed", row_headers=1)

    def html(self) -> str:
        exporter = Exporter(extra_template_basedirs=[str(parts.TEMPLATES.parent)])
        for name, method in self._filters().items():
            exporter.register_filter(name, method)
        return exporter.from_notebook_node(self.notebook, {"page": self})[0]

    def _filters(self) -> dict[str, Callable[..., str]]:
        return {
            "text": parts.text,
            "pagename": lambda name: parts.text(name.replace("_", " ")),
            "prose": lambda cell: markdown.to_html(cell.source, self.outline),
            "code": code,
            "printed": printed,
            "failure": failure,
            "markup": self._markup,
            "picture": picture,
            "bare": markdown.bare,
            "linked": self.links.weave,
            "contents": self._contents,
            "summary": self._summary,
        }

    def _contents(self, content: str) -> str:
        entries = [(2, "findings", "Verdict" if self.notes.get("verdict") else "Findings"), *self.outline.entries]
        if self.removed is not None:
            entries.append((2, "removed", "What was removed"))
        if self.origin:
            entries.append((2, "provenance", "Where these numbers come from"))
        items = "".join(
            f'<li class="h{level}"><a href="#{name}">{re.sub(r"</?a[^>]*>", "", inner)}</a></li>' for level, name, inner in entries
        )
        return f"<ol>{items}</ol>"

    def _markup(self, output: NotebookNode) -> str:
        """HTML of a cell. The verdict is at the top of the page already."""
        markup = markdown.disarm(output.data["text/html"])
        if self.notes.get("verdict"):
            markup = _VERDICT.sub("", markup)
        return markup

    def _summary(self, content: str) -> str:
        """The findings by title; on a page with a verdict the verdict and the counts, since its findings follow in full."""
        verdict = self.notes.get("verdict")
        if verdict:
            first = next((f'<a href="#finding-{parts.slug(f.id)}">in full below</a>' for f in by_severity(self.findings)), "")
            body = f"{parts.verdict(read_verdict(verdict))}<p>{parts.badges(self.findings)} {first}</p>"
            title = '<h2 id="findings">Verdict</h2>'
        else:
            items = "".join(self._summary_item(f, content) for f in by_severity(self.findings))
            body = f"<ol>{items}</ol>" if items else '<p class="empty">This notebook recorded no findings.</p>'
            title = f'<h2 id="findings">Findings {parts.badges(self.findings)}</h2>'
        return f'<section class="summary" aria-labelledby="findings">{title}{body}</section>'

    def _summary_item(self, finding: Finding, content: str) -> str:
        title = f'<a href="#finding-{parts.slug(finding.id)}">{parts.prose(finding.title)}</a>'
        needs = finding.next and finding.status in (Status.FAIL, Status.CANNOT_TELL)
        step = f'<p class="next">Next: {parts.prose(finding.next)}</p>' if needs else ""
        return f"<li><span>{parts.badge(finding.status)}</span><div>{title}{step}</div></li>"


def _drop_live(cell: NotebookNode) -> None:
    """Take out what only lives in a browser with a kernel or a script; say so where nothing static stands beside it."""
    outputs = cell.get("outputs", [])
    static = [o for o in outputs if not LIVE & set(o.get("data", {})) or set(o.data) & set(SHOWN)]
    if len(static) < len(outputs):
        cell.outputs = static
        if not any(set(o.get("data", {})) & set(SHOWN) for o in static):
            cell.outputs.append(nbformat.v4.new_output("display_data", {"text/html": parts.note(NO_TWIN, kind="not shown")}))


def _join_log(cell: NotebookNode) -> None:
    """What a cell wrote to stderr, line by line, as one text, where the first of it stood."""
    log = [o for o in cell.get("outputs", []) if o.output_type == "stream" and o.name == "stderr"]
    if len(log) > 1:
        log[0].text = "".join(o.text for o in log)
        cell.outputs = [o for o in cell.outputs if not any(o is later for later in log[1:])]


def code(cell: NotebookNode) -> str:
    """A code cell's source, folded; parameters say which ones they are."""
    tags = cell.metadata.get("tags", [])
    name = "Parameters of this run" if "injected-parameters" in tags else "Parameters, defaults" if "parameters" in tags else "Code"
    source = highlight(parts.clean(cell.source), PythonLexer(), HtmlFormatter(nowrap=True))
    return parts.folded(f"{name}, {_lines(cell.source)}", f'<pre class="hl" tabindex="0"><code>{source}</code></pre>', "el-fold code")


def _lines(text: str) -> str:
    count = text.count("\n") + 1
    return f"{count} line{'s' if count != 1 else ''}"


def printed(text: str, fold: bool = False) -> str:
    """Printed text as a terminal would leave it: no colours, and of what a carriage return overwrote only the last. Folded when long."""
    lines = strip_ansi(text).replace("\r\n", "\n").split("\n")
    shown = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")
    block = f'<pre class="stdout" tabindex="0">{parts.text(shown)}</pre>'
    return parts.folded(f"{'Log' if fold else 'Printed text'}, {_lines(shown)}", block) if fold or shown.count("\n") >= LONG else block


def failure(output: NotebookNode) -> str:
    """An error: its last line in sight, the traceback folded."""
    trace = strip_ansi("\n".join(output.traceback))
    block = parts.folded("Traceback", f'<pre tabindex="0">{parts.text(trace)}</pre>')
    return f'<p class="error" id="failed">{parts.text(output.ename)}: {parts.text(strip_ansi(output.evalue))}</p>{block}'


def picture(output: NotebookNode) -> str:
    """A figure that was not shown by `eaglelab.notebook.show`: it has no description, and the page says so."""
    bare = parts.figure("".join(output.data["image/png"].split()), alt="figure without a description", caption=None, width=None)
    return f'{bare}<p class="el-noalt">This figure has no description for readers who cannot see it: eaglelab.notebook.show(…, alt=…).</p>'
