"""An executed notebook as ONE self-contained HTML file: no script, no request to anywhere, code folded away.

    render(Path("02_norm_fingerprints.ipynb"), Path("02_norm_fingerprints.html"))

What the page knows beyond the cells (findings, provenance, what broke) is in the notebook's metadata under `eaglelab`, where the
runner puts it; a notebook without it renders as well.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
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

from eaglelab.findings import SEVERITY, Change, Finding, Status, Verdict, by_severity
from eaglelab.provenance import facts
from eaglelab.reports import markdown, parts

LONG = 40
"""Lines of printed text from which it is folded."""

LIVE = {"application/vnd.jupyter.widget-view+json", "application/javascript"}
FAILED_CELL = "the-cell-that-failed"
PRIORITY = ["text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain"]
SHOWN = set(PRIORITY) - {"text/plain"}


class RenderError(ValueError):
    """A page that would not be self-contained or not accessible; raised by `render(strict=True)`."""


@dataclass(frozen=True)
class Rendered:
    """A page that was written."""

    title: str
    problems: tuple[str, ...]


def render(
    notebook: NotebookNode | str | Path,
    output: str | Path,
    *,
    siblings: Sequence[tuple[str, str]] = (),
    index: str | None = None,
    folder: Path | None = None,
    strict: bool = False,
) -> Rendered:
    """Write the page; returns its title and what is wrong with it (an image without alt text, a widget without a static twin, …).

    `siblings` are (name, href) of the run's pages, `index` the href of the index page, `folder` where the notebook's relative images
    lie. With `strict`, problems raise RenderError and nothing is written.
    """
    output = Path(output)
    if not isinstance(notebook, NotebookNode):
        folder = folder or Path(notebook).parent
        notebook = nbformat.read(notebook, as_version=4)
    page = Page(notebook, output.stem, siblings, index, folder)
    html = page.html()
    problems = page.problems + lint(html)
    if strict and problems:
        raise RenderError(f"{output.name}: " + "; ".join(problems))
    output.parent.mkdir(parents=True, exist_ok=True)
    staged = output.with_name(output.name + ".part")
    staged.write_text(html, encoding="utf-8", errors="replace")
    staged.replace(output)
    return Rendered(page.title, tuple(problems))


class Exporter(TemplateExporter):
    """nbconvert with this package's template. `HTMLExporter` is not its parent: that one re-parses the whole page."""

    output_mimetype = "text/html"

    def _file_extension_default(self) -> str:
        return ".html"

    def _template_name_default(self) -> str:
        return parts.TEMPLATES.name

    @property
    def default_config(self) -> Config:
        config = Config({"NbConvertBase": {"display_data_priority": PRIORITY}})
        config.merge(super().default_config or Config())
        return config


class Page:
    """One page while it is made: the filters of the template, and what they learn on the way."""

    def __init__(
        self, notebook: NotebookNode, name: str, siblings: Sequence[tuple[str, str]], index: str | None, folder: Path | None
    ) -> None:
        self.notebook = nbformat.from_dict(notebook)
        self.notes: Mapping[str, Any] = notebook.metadata.get("eaglelab", {})
        self.name, self.siblings, self.index, self.folder = name, siblings, index, folder
        self.problems: list[str] = []
        self.outline = markdown.Outline(ids={"content", "findings", "provenance", FAILED_CELL})
        self.findings = read_findings(self.notes.get("findings", []))
        self.error = self.notes.get("error")
        for cell in self.notebook.cells:
            self._drop_live(cell)
        self.failed_cell = self._mark_failed()
        self.title, self.title_html, self.lede = self._take_title()

    # what the template reads

    @property
    def case(self) -> str:
        return str(self.notes.get("case", ""))

    @property
    def date(self) -> str:
        return str((self.notes.get("provenance") or {}).get("date", "")).replace("T", " ").replace("Z", " UTC")

    @property
    def style(self) -> str:
        return parts.style("report.css", "parts.css")

    @property
    def provenance(self) -> str:
        origin = self.notes.get("provenance")
        if not origin:
            return ""
        inputs = origin.get("inputs") or []
        body = parts.pairs(facts(origin), "Versions, device, parameters")
        if inputs:
            short = [
                {**i, "sha256": str(i.get("sha256") or "not read")[:12], "names_sha256": str(i.get("names_sha256") or "")[:12]}
                for i in inputs
            ]
            keys = ("name", "path", "files", "bytes", "sha256", "names_sha256", "note")
            heads = ("input", "path", "files", "bytes", "sha256", "sha256 of the names", "note")
            body += parts.table(heads, [[i.get(k) for k in keys] for i in short], caption="Inputs", row_headers=1)
            body += '<p class="el-cut">Whole hashes are in findings.json.</p>'
        return parts.folded("Versions, device, parameters, inputs and their hashes", body)

    def html(self) -> str:
        exporter = Exporter(extra_template_basedirs=[str(parts.TEMPLATES.parent)])
        for name, method in self._filters().items():
            exporter.register_filter(name, method)
        exporter.environment.tests["skipped"] = self._skipped
        exporter.environment.tests["broken"] = lambda cell: "eaglelab" in cell.metadata
        html, _ = exporter.from_notebook_node(self.notebook, {"page": self})
        return html

    def _filters(self) -> dict[str, Callable[..., str]]:
        return {
            "text": parts.text,
            "pagename": lambda name: parts.text(name.replace("_", " ")),
            "prose": lambda cell: markdown.to_html(cell.source, self.outline, self.folder, cell.get("attachments")),
            "code": code,
            "stdout": stdout,
            "stderr": stderr,
            "failure": failure,
            "markup": lambda output: markdown.disarm(output.data["text/html"]),
            "rich": self._rich,
            "picture": self._picture,
            "contents": self._contents,
            "summary": self._summary,
            "unique_anchors": unique_anchors,
        }

    # cells

    def _take_title(self) -> tuple[str, str, str]:
        """The notebook's h1 and the paragraph after it, taken out of its first markdown cell; the file name where there is none."""
        for cell in self.notebook.cells:
            if cell.cell_type == "markdown":
                title, rest = markdown.split_title(cell.source)
                if title:
                    first, _, later = rest.strip().partition("\n\n")
                    is_paragraph = bool(first) and not re.match(r"[#>|*+\-!<$`]|\d+\.", first)
                    cell.source = later if is_paragraph else rest
                    as_html = markdown.to_html(title, markdown.Outline())
                    lede = markdown.to_html(first, self.outline, self.folder).replace("<p>", '<p class="lede">', 1) if is_paragraph else ""
                    inner = re.sub(r"^<p>|</p>$", "", as_html.strip())
                    return unescape(re.sub(r"<[^>]+>", "", inner)), inner, lede
                break
        plain = self.name.replace("_", " ")
        return plain, parts.text(plain), ""

    def _drop_live(self, cell: NotebookNode) -> None:
        """Take out what only lives in a browser with a kernel or a script; say so where nothing static stands beside it."""
        outputs = cell.get("outputs", [])
        static = [o for o in outputs if "data" not in o or not LIVE & set(o.data) or set(o.data) & SHOWN]
        if len(static) < len(outputs):
            cell.outputs = static
            if not any(set(o.get("data", {})) & SHOWN for o in static):
                self.problems.append("a widget has no static twin: its cell shows nothing in a report")
                markup = parts.note(
                    "this part is interactive and has no static twin: open the notebook in JupyterLab to see it", kind="not shown"
                )
                cell.outputs.append(nbformat.v4.new_output("display_data", {"text/html": markup}))

    def _skipped(self, cell: NotebookNode) -> bool:
        if cell.cell_type == "raw" or not cell.source.strip():
            return not cell.get("outputs")
        return "remove-cell" in cell.metadata.get("tags", [])

    def _mark_failed(self) -> str:
        """Mark the first cell that broke (nbconvert copies the notebook, so a mark has to travel in it); returns its id or ""."""
        for cell in self.notebook.cells:
            if any(o.output_type == "error" for o in cell.get("outputs", [])):
                cell.metadata["eaglelab"] = {"broken": True}
                return FAILED_CELL
        return ""

    def _rich(self, output: NotebookNode) -> str:
        if "text/markdown" in output.data:
            return markdown.to_html(output.data["text/markdown"], self.outline, self.folder)
        return f'<div class="el-math" tabindex="0">{markdown.math(output.data["text/latex"].strip().strip("$"), "block")}</div>'

    def _picture(self, output: NotebookNode, kind: str) -> str:
        meta = output.get("metadata", {})
        alt = meta.get(kind, {}).get("alt") or meta.get("alt") or ""
        data = output.data[kind]
        if kind == "image/svg+xml":
            data = base64.b64encode(data.encode("utf-8")).decode("ascii")
        width = meta.get(kind, {}).get("width")
        size = f' width="{int(width)}"' if isinstance(width, (int, float)) else ""
        warning = ""
        if not alt:
            self.problems.append("a figure has no description (alt text): show it with eaglelab.notebook.show(…, alt=…)")
            warning = '<p class="el-noalt">This figure has no description for readers who cannot see it.</p>'
        image = f'<img src="data:{kind};base64,{"".join(data.split())}" alt="{parts.text(alt or "figure without a description")}"{size}>'
        return f'<figure class="el-figure"><div class="el-scroll" tabindex="0">{image}</div>{warning}</figure>'

    # the page's frame

    def _contents(self, content: str) -> str:
        entries = [(2, "findings", "Findings"), *self.outline.entries]
        if self.notes.get("provenance"):
            entries.append((2, "provenance", "Where these numbers come from"))
        items = "".join(
            f'<li class="h{level}"><a href="#{name}">{re.sub(r"</?a[^>]*>", "", inner)}</a></li>' for level, name, inner in entries
        )
        return f"<ol>{items}</ol>"

    def _summary(self, content: str) -> str:
        verdict = read_verdict(self.notes.get("verdict"))
        head = parts.verdict(verdict) if verdict else ""
        items = "".join(self._summary_item(f, content) for f in by_severity(self.findings))
        body = f"<ol>{items}</ol>" if items else '<p class="empty">This notebook recorded no findings.</p>'
        counts = badges(Counter(f.status for f in self.findings))
        return f'<section class="summary" aria-labelledby="findings"><h2 id="findings">Findings {counts}</h2>{head}{body}</section>'

    def _summary_item(self, finding: Finding, content: str) -> str:
        anchor = f"finding-{parts.slug(finding.id)}"
        title = parts.text(finding.title)
        if f'id="{anchor}"' in content:
            title = f'<a href="#{anchor}">{title}</a>'
        needs = finding.next and finding.status in (Status.FAIL, Status.CANNOT_TELL)
        step = f'<p class="next">Next: {parts.text(finding.next)}</p>' if needs else ""
        return f"<li><span>{parts.badge(finding.status)}</span><div>{title}{step}</div></li>"


def badges(counts: Mapping[str, int]) -> str:
    """The count of findings per status, what needs a decision first."""
    return " ".join(parts.badge(s, counts[s]) for s in SEVERITY if counts.get(s))


def read_findings(items: Any) -> list[Finding]:
    """Findings from a sidecar; what is not one is left out."""
    found = []
    for item in items if isinstance(items, list) else []:
        try:
            found.append(Finding.from_json(item))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def read_verdict(data: Any) -> Verdict | None:
    """A verdict from a sidecar, None when it is absent or not one."""
    try:
        changes = tuple(Change(c["file"], c["key"], c["value"], c.get("engine")) for c in data.get("changes", []))
        return Verdict(data["stage"], data["confidence"], data["text"], changes)
    except (KeyError, TypeError, AttributeError):
        return None


def code(cell: NotebookNode) -> str:
    """A code cell's source, folded; parameters say which ones they are."""
    tags = cell.metadata.get("tags", [])
    count = len(cell.source.splitlines())
    name = "Parameters of this run" if "injected-parameters" in tags else "Parameters, defaults" if "parameters" in tags else "Code"
    source = highlight(parts.clean(cell.source), PythonLexer(), HtmlFormatter(nowrap=True))
    lines = f"{name}, {count} line{'s' if count != 1 else ''}"
    return parts.folded(lines, f'<pre class="hl" tabindex="0"><code>{source}</code></pre>', "el-fold code")


def _screen(text: str) -> str:
    """Printed text as a terminal would leave it: no colours, and of what a carriage return overwrote only the last."""
    lines = strip_ansi(text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")


def stdout(text: str) -> str:
    """Printed text; folded when it is long."""
    shown = _screen(text)
    block = f'<pre class="stdout" tabindex="0">{parts.text(shown)}</pre>'
    count = shown.count("\n") + 1
    return parts.folded(f"Printed text, {count} lines", block) if count > LONG else block


def stderr(text: str) -> str:
    """What was written to stderr, always folded."""
    shown = _screen(text)
    count = shown.count("\n") + 1
    return parts.folded(f"stderr, {count} line{'s' if count != 1 else ''}", f'<pre tabindex="0">{parts.text(shown)}</pre>')


def failure(output: NotebookNode) -> str:
    """An error: its last line in sight, the traceback folded."""
    trace = strip_ansi("\n".join(output.traceback))
    block = parts.folded("Traceback", f'<pre tabindex="0">{parts.text(trace)}</pre>')
    return f'<p class="error">{parts.text(output.ename)}: {parts.text(strip_ansi(output.evalue))}</p>{block}'


def unique_anchors(content: str) -> str:
    """Content in which each finding's id stands once: a notebook may show the same finding twice."""
    seen: set[str] = set()

    def once(match: re.Match[str]) -> str:
        if match.group(0) in seen:
            return ""
        seen.add(match.group(0))
        return match.group(0)

    return re.sub(r' id="finding-[^"]*"', once, content)


class _Checker(HTMLParser):
    """Counts what a page must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.h1 = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        self.h1 += tag == "h1"
        if tag == "img" and not given.get("alt", "").strip():
            self.problems.append("an image has no alt text")
        if tag in ("script", "iframe", "object", "embed", "link"):
            self.problems.append(f"a <{tag}> tag is on the page")
        for key in ("src", "srcset", "poster", "data") if tag not in ("a",) else ():
            if key in given and not given[key].startswith("data:"):
                self.problems.append(f"<{tag}> loads {given[key][:80]!r}, which is not in the page")


def lint(html: str) -> list[str]:
    """What keeps a page from being self-contained and accessible: external resources, scripts, images without alt, h1 not once."""
    checker = _Checker()
    checker.feed(html)
    checker.close()
    if checker.h1 != 1:
        checker.problems.append(f"the page has {checker.h1} h1 headings, expected one")
    return checker.problems
