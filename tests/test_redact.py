"""`eaglelab report --redact`: what may be shown stays as it is, and nothing else gets into any file of a run."""

import json
import re
import shutil

import matplotlib
import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from seeded_case import (
    CANARY,
    ENVIRONMENT,
    FILE,
    HOST,
    IDS,
    PEM,
    SAMPLE,
    SECRETS,
    SENTENCE,
    png_metadata,
    seeded_case,
    spellings,
    texts,
    word,
)

from eaglelab import notebook
from eaglelab import text as tokens
from eaglelab.case import open_case
from eaglelab.findings import Finding, Status
from eaglelab.redact import known as knowing
from eaglelab.redact.known import Known
from eaglelab.redact.marks import account, blocks, count, mark
from eaglelab.redact.net import LeakError, Net
from eaglelab.redact.redactor import Redactor
from eaglelab.redact.veil import VARIABLE, Veil
from eaglelab.redact.vocabulary import NOTEBOOKS, vocabulary, words_of_notebooks
from eaglelab.reports import parts, shown
from eaglelab.reports.run import run_report
from eaglelab.reports.select import ReportError, notebooks_folder


@pytest.fixture(scope="module")
def words():
    return vocabulary()


@pytest.fixture
def redactor(words):
    return Redactor(Known(), words)


@pytest.fixture
def veil(redactor, monkeypatch):
    """The veil on, as in a kernel of a redacted report."""
    veil = Veil(redactor)
    monkeypatch.setattr(parts, "veil", veil)
    monkeypatch.setattr(tokens, "veil", blocks)
    monkeypatch.setattr(notebook, "VEIL", veil)
    return veil


# -- texts ------------------------------------------------------------------------------------------------------------------------------


def test_the_notebooks_words_are_listed():
    lacking = set(words_of_notebooks(notebooks_folder())) - set(NOTEBOOKS.read_text(encoding="utf-8").split())
    assert not lacking, "a notebook has changed: run `python -m eaglelab.redact.vocabulary`"


def test_a_notebook_that_somebody_worked_in_adds_no_words(tmp_path):
    cell = new_code_cell("1", outputs=[new_output("display_data", {"text/plain": "Friederike"})])
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "00_x.ipynb")
    with pytest.raises(ValueError, match=r"00_x\.ipynb holds outputs, expected a notebook as it is committed"):
        words_of_notebooks(tmp_path)


def test_what_eaglelab_writes_stays(redactor):
    for path in sorted(notebooks_folder().glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            assert redactor.text(cell.source) == cell.source


@pytest.mark.parametrize(
    "text",
    [
        "SGLang 0.5.23 feeds boundaries [0, 3, 16]; the dump holds [3, 16, 28] (relative error below 0.001)",
        "LlamaForCausalLMEagle3, DeepseekV3ForCausalLM, qwen3_moe, model.layers.31.self_attn.q_proj.weight [7168, 21504] bfloat16",
        "`--speculative-num-steps 3 --speculative-eagle-topk 1 --tp 8 --dtype bfloat16 --host 127.0.0.1`",
        "torch 2.13.0+cpu, vllm==0.32.0, cu128, 94 tok/s, 76.9 % (95 % interval 75.1% to 78.0%), 1,281 of 1,235 tokens, 12.3 ms",
        "2026-11-30T20:44:45Z; established in sgl-project/SpecForge#613, see https://github.com/sgl-project/sglang/pull/39253",
    ],
)
def test_versions_shapes_flags_and_architectures_stay(redactor, text):
    assert redactor.text(text) == text.replace("https://github.com/sgl-project/sglang/pull/39253", mark("url"))


@pytest.mark.parametrize(
    ("text", "hidden", "kind"),
    [
        (f"token {SECRETS['hf']}.", SECRETS["hf"], "secret"),
        (f"key {SECRETS['aws']} of", SECRETS["aws"], "secret"),
        (f"Authorization: Bearer {SECRETS['jwt']}", SECRETS["jwt"], "secret"),
        ("Bearer abcdefgh12345678", "abcdefgh12345678", "secret"),
        ("--api-key the-drafter-key --tp 8", "the-drafter-key", "secret"),
        ("api_key='norms and tokens'", "norms", "secret"),
        ("password: target", "target", "secret"),
        (PEM, "MIIQ", "secret"),
        ("secret=abcDEF123456ghi", "abcDEF", "secret"),
        ("http://target:norms@engine.layers:8000/v1?key=tokens", "norms", "url"),
        ("s3://layers/of/the/target", "layers", "url"),
        ("ask target.drafter@engine.io", "drafter@", "e-mail"),
        ("at 10.77.31.9:51422, slot 2", "10.77", "host"),
        ("at fe80::1ff:fe23:4567:890a, slot 2", "fe23", "host"),
        ("served on engine.layers:30000", "engine.layers", "host"),
        ("in /users/drafter/layers.pt, row 3", "/users", "path"),
        ("in ~/target/layers", "~/target", "path"),
        ("in C:\\target\\layers.pt", "C:", "path"),
        ("commit 0123456789abcdef0123", "0123456789abcdef", "word"),
        ("a1b2c3d4e5f6g7h8", "a1b2", "word"),
        ("aGVsbG8gd29ybGQhIQxyz", "aGVs", "word"),
        ("said by Friederike, twice", "Friederike", "word"),
        ("它说了什么", "它", "word"),
        ("token #48123 is", "48123", "token id"),
    ],
)
def test_what_is_removed_whoever_wrote_it(redactor, text, hidden, kind):
    said = redactor.text(text)
    assert hidden not in said
    assert count(said)[kind] == 1
    assert redactor.text(said) == said, "what is redacted stays as it is"


def test_text_of_the_data_in_common_words_is_known_by_its_words_in_a_row(words):
    known = Known(phrases=set(knowing._phrases(SENTENCE, words)))
    said = Redactor(known, words).text(f"The sample says {SENTENCE!r}, in 3 of 4 tokens")
    assert count(said) == {"text": 1}
    assert not any(" ".join(three) in said for three in zip(*(SENTENCE.split()[i:] for i in range(3)), strict=False))
    assert said.endswith("in 3 of 4 tokens")
    assert said.startswith("The sample says")


def test_a_mark_in_somebodys_text_hides_nothing(redactor):
    assert "Friederike" not in redactor.text("‹Friederike› ‹dump›/Friederike.pt ‹word› Friederike")


# -- names of a case -----------------------------------------------------------------------------------------------------------------------


def test_a_path_is_the_same_mark_in_every_spelling(tmp_path, words, monkeypatch):
    root = tmp_path / "acmefall"
    (root / "acmedump" / "wednesday").mkdir(parents=True)
    (root / "acmedump" / "wednesday" / "thursday friday.pt").write_text("")
    (root / "case.toml").write_text('[dump]\npath = "acmedump"\n')
    monkeypatch.chdir(tmp_path)
    redact = Redactor(knowing.known_of(open_case(root), words), words).text
    file = "‹dump›/folder-1/file-1.pt"
    for path in (f"{root}/acmedump", "acmedump", "acmefall/acmedump"):
        assert redact(f"in {path}/wednesday/thursday friday.pt, row 3") == f"in {file}, row 3"
        assert redact(f"{path}/case: 3").startswith("‹dump›")
    assert redact("thursday friday.pt") == file
    assert redact(f"{root}/case.toml of acmefall") == "‹case›/case.toml of ‹case›"


def test_sample_keys_are_numbered_also_where_they_are_digits(words):
    redactor = Redactor(Known(samples={"17": mark("sample", 1), "monday": mark("sample", 2)}), words)
    rows = redactor.rows(["sample", "rows", "why"], [["17", 17, "17 rows"], ["monday", 2, "cut"]])
    assert rows == [["‹sample 1›", 17, "17 rows"], ["‹sample 2›", 2, "cut"]]


def test_token_ids_are_known_by_their_column(redactor):
    rows = redactor.rows(["token id", "token", "tokens", "layer ids", "v0", "17"], [["48123", 4812, 4812, [2, 30, 58], 0.5, 0.25]])
    assert rows == [["‹token id›", "‹token id›", 4812, [2, 30, 58], "‹state›", "‹state›"]]
    assert redactor.rows(["slot", "0", "1"], [[0, 1.0, 0.25]]) == [[0, 1.0, 0.25]], "no tokens: these are cosines"
    assert redactor.value({"prompt_token_ids": [5, 6], "uncovered": [{"token": 7, "count": 8}]}) == {
        "prompt_token_ids": ["‹token id›"] * 2,
        "uncovered": [{"token": "‹token id›", "count": 8}],
    }


def test_the_account_names_kinds_and_counts_and_no_values(redactor):
    counts = count(redactor.text("Friederike in /users/drafter and at 10.1.2.3 and /users/target")) + count(blocks("secret"))
    assert account(counts) == {
        "token text": 1,
        "paths and names of files and folders": 2,
        "host names and IP addresses": 1,
        "words that eaglelab does not write itself": 1,
    }


# -- the veil ----------------------------------------------------------------------------------------------------------------------------


def test_a_figures_texts_are_redacted_before_they_are_pixels(veil):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    seen = []
    ax = pyplot.figure().gca()
    ax.bar(["Friederike", "drafter"], [1, 2], label="Annegret")
    ax.set_title("Norms of Wolfgang's dump", loc="left")
    ax.legend()
    ax.annotate("Hildegard", (0, 0))
    plain = matplotlib.backends.backend_agg.RendererAgg.draw_text
    matplotlib.backends.backend_agg.RendererAgg.draw_text = lambda self, gc, x, y, s, *a, **k: (
        seen.append(s),
        plain(self, gc, x, y, s, *a, **k),
    )
    try:
        markup = shown.figure(ax, alt="Bars of Friederike", caption="By Annegret", data=pd.DataFrame({"n": [1], "of": ["Wolfgang"]}))
    finally:
        matplotlib.backends.backend_agg.RendererAgg.draw_text = plain
    drawn = " ".join(seen)
    for name in ("Friederike", "Annegret", "Wolfgang", "Hildegard"):
        assert name not in drawn
        assert name not in markup
    assert "drafter" in drawn
    assert "Norms of ‹word› dump" in drawn
    assert sum(veil.metadata()["eaglelab"]["pictured"].values()) >= 4


def test_the_labels_of_a_log_axis_stay_formulas(veil):
    from matplotlib import pyplot

    ax = pyplot.figure().gca()
    ax.loglog([1e-3, 1e3], [1, 1e9])
    shown.figure(ax, alt="A line")
    assert not veil.metadata()["eaglelab"]["pictured"]


def test_a_finding_is_redacted_by_the_names_of_its_numbers_and_as_it_is_stored(veil, capsys):
    finding = Finding(
        "wiring.friederike", "Friederike's 3 tokens", Status.FAIL, numbers={"token_ids": [48123], "rows": 3, "of": "Annegret"}
    )
    said = veil.said(finding)
    assert said.numbers == {"token_ids": ["‹token id›"], "rows": 3, "of": "‹word›"}
    notebook.record(finding)
    assert not re.search("friederike|annegret|48123", capsys.readouterr().out, re.IGNORECASE)
    assert not re.search("friederike|annegret|48123", parts.finding(said), re.IGNORECASE)


def test_tokens_have_no_text_behind_the_veil(veil):
    assert tokens.token_texts(None, [5, 48123]) == ["░░", "░░░░░░"]
    assert list(map(blocks, ["␣word", "␣", "", "a" * 99])) == ["␣░░░░", "░", "░", "░" * 12]


# -- the last look -------------------------------------------------------------------------------------------------------------------------


def split(name):
    return f"<td>{name[:4]}<wbr>{name[4:]}</td>"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.html", "<td>acme lab/x&amp;y</td>"),
        ("a.html", split("acme lab/x&amp;y")),
        ("a.html", '<a href="acme%20lab/x%26y">'),
        ("a.json", json.dumps({"acme lab/x&y": 3})),
        ("a.ipynb", json.dumps({"cells": [{"source": ["see acme ", "lab/x&y"]}]})),
        ("a.md", "see ACME lab/x\\&y"),
        ("a.html", f"<p>so {SENTENCE}</p>"),
        ("a.html", "<p>hf_abcdefgh12345678</p>"),
        ("acme lab.html", "nothing"),
    ],
)
def test_what_is_known_of_the_case_is_found_in_every_spelling(tmp_path, words, file, content):
    known = Known(names={"acme lab": mark("path"), "acme lab/x&y": mark("path")}, phrases=set(knowing._phrases(SENTENCE, words)))
    net = Net(known, words)
    (tmp_path / "clean.html").write_text("<p>the acme of lab work, the drafter reads the dump</p>")
    net.search(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(LeakError, match=r"the redacted run holds (path|text|secret) of this case in") as error:
        net.search(tmp_path)
    assert "acme" not in str(error.value)


def test_the_last_look_reads_pictures_too(tmp_path, words):
    import base64

    from matplotlib import pyplot

    figure = pyplot.figure()
    figure.savefig(tmp_path / "a.png", metadata={"Title": "of acmelabor"})
    pyplot.close(figure)
    png = (tmp_path / "a.png").read_bytes()
    assert "acmelabor" in png_metadata(png)
    net = Net(Known(names={"acmelabor": mark("path")}), words)
    with pytest.raises(LeakError, match=re.escape("a.png")):
        net.search(tmp_path)
    (tmp_path / "a.png").unlink()
    (tmp_path / "a.html").write_text(f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}">')
    with pytest.raises(LeakError, match=re.escape("a.html")):
        net.search(tmp_path)


# -- whole reports --------------------------------------------------------------------------------------------------------------------------

CARELESS = f"""import os, sys
from pathlib import Path
from matplotlib import pyplot
import pandas as pd
from IPython.display import HTML, display
from eaglelab import notebook as nb
from eaglelab.findings import Finding, Status
inv = nb.investigate(case)
ids = inv.samples[0].token_ids.tolist()
text = inv.tokenizer.decode(ids)
nb.record(Finding("text.careless", f"The text says {{text!r}}", Status.FAIL, claim={SENTENCE!r}, numbers={{"first": text, "token_ids": ids}}))
nb.table(pd.DataFrame({{"sample": [inv.samples[0].key], "text": [text], "token_id": [ids[0]]}}), caption=text)
ax = pyplot.figure().gca()
ax.bar(text.split()[:3], [1, 2, 3]); ax.set_title(text[:80]); ax.legend([{SENTENCE!r}])
nb.show(ax, alt=f"Bars of {{text}}", caption=text, data=pd.DataFrame({{"text": text.split()}}))
nb.record_result("careless", {{text: [text], "path": str(inv.case.root), "token_ids": ids}})
nb.aside(f"see {{inv.case.root}}")
print(text, os.environ["HF_TOKEN"], inv.case.root, os.getlogin if False else os.environ["USER"])
print(os.environ["QX_PROJECT"], file=sys.stderr)
display(HTML(f"<b>{{text}}</b>"))
display(pd.DataFrame({{"text": [text]}}))
pyplot.plot([1, 2]); pyplot.title(text[:40]); pyplot.show()
text"""
"""A notebook by somebody who knows nothing of redaction: a check that quotes, tables, figures and prints as they come."""


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """All shipped notebooks, a careless one, and one that breaks."""
    place = tmp_path_factory.mktemp("books")
    for path in notebooks_folder().glob("[0-9][0-9]_*.ipynb"):
        shutil.copy(path, place)
    parameters = new_code_cell('case: str = ""  # the case', metadata={"tags": ["parameters"]})
    for name, code in (("90_careless", CARELESS), ("91_broken", CARELESS + "\nraise ValueError(f'{text} in {inv.case.root}')")):
        prose = new_markdown_cell(f"# {name}\n\nSeen by qxbetrachterin.", attachments={"qx.png": {"image/png": "AAAA"}})
        meta = {"qxautorin": "qxautorin"}
        nbformat.write(new_notebook(cells=[parameters, prose, new_code_cell(code)], metadata=meta), place / f"{name}.ipynb")
    return place


@pytest.fixture(scope="module")
def runs(tmp_path_factory, books):
    """(a redacted run of all notebooks, three of them as they are) of the seeded case."""
    patch = pytest.MonkeyPatch()
    place = tmp_path_factory.mktemp("seeded")
    case = seeded_case(place)
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    patch.setattr(knowing.platform, "node", lambda: HOST)
    patch.chdir(place)
    try:
        hidden = run_report(case, notebooks=books, out=place / "hidden", redact=True)
        yield hidden, run_report(case, "01,08,90", notebooks=books, out=place / "plain")
    finally:
        patch.undo()


@pytest.mark.slow
def test_no_file_of_a_redacted_run_holds_a_canary(runs):
    hidden, plain = runs
    canaries = {*SECRETS.values(), *ENVIRONMENT.values(), HOST, FILE, SAMPLE, "MIIQxpem", *(w for i in IDS.tolist() for w in [word(i)])}
    canaries |= {"every token of the target twice", "target twice before the", "server answers at noon"}
    spelt = {s for canary in canaries for s in spellings(canary) if len(s) > 5}
    found, held = set(), set()
    for where, text in texts(hidden.directory.parent):
        found |= {(where, m) for m in CANARY.findall(text)} | {(where, s) for s in spelt if s.lower() in text.lower()}
    assert not found
    for _, text in texts(plain.directory.parent):
        held |= set(CANARY.findall(text)) | {s for s in spelt if s in text}
    for canary in (
        SECRETS["hf"],
        "qxpatient",
        "qxfalkenfall",
        "qxdrafterordner",
        "qxprojektmond",
        "qxautorin",
        FILE,
        SAMPLE,
        "server answers at noon",
    ):
        assert any(canary in h for h in held), f"the unredacted run does not hold {canary}: this test could not fail"
    assert len({h for h in held if h.startswith("zq")}) > 30


@pytest.mark.slow
def test_no_token_id_is_left_and_the_numbers_are(runs):
    hidden, plain = runs
    ids = set(IDS.tolist())

    def numbers(run):
        return {int(n) for path in run.directory.glob("*.html") for n in re.findall(r"(?<![\d.,#])[1-9]\d{3}(?![\d.,])", cells(path))}

    def cells(path):
        return re.sub(r'<section class="origin".*|data:image[^"]*', "", path.read_text(), flags=re.DOTALL)

    assert len(numbers(plain) & ids) > 20
    assert not numbers(hidden) & ids
    results = json.dumps([hidden.data["findings"], hidden.data["results"]])
    assert not {int(n) for n in re.findall(r"(?<![\d.])[1-9]\d{3}(?![\d.])", results)} & ids


@pytest.mark.slow
def test_what_makes_a_report_worth_sharing_is_the_same(runs, books):
    hidden, plain = ({f["id"]: f for f in run.data["findings"]} for run in runs)
    known = [f for f in plain if f != "text.careless" and not f.startswith(("timing", "wiring.claims"))]
    assert len(known) > 30
    for name in known:
        assert hidden[name]["status"] == plain[name]["status"]
    for name in ("wiring.dump", "wiring.match", "replay.works", "served.acceptance"):
        assert hidden[name]["title"] == plain[name]["title"]
    red, full = runs[0].data, runs[1].data
    assert red["provenance"]["versions"] == full["provenance"]["versions"]
    assert {n["name"] for n in red["notebooks"]} == {p.stem for p in books.glob("*.ipynb")}
    assert [n["name"] for n in red["notebooks"] if n["error"]] == ["91_broken"]
    assert [i.get("bytes") for i in red["provenance"]["inputs"]] == [i.get("bytes") for i in full["provenance"]["inputs"]]
    assert not any("sha256" in i for i in red["provenance"]["inputs"])
    assert "identity" not in red


@pytest.mark.slow
def test_it_says_what_was_removed_on_every_page_and_in_every_summary(runs):
    hidden, plain = runs
    counts = hidden.data["redacted"]
    assert set(counts) > {
        "token text",
        "token ids",
        "sample keys",
        "paths and names of files and folders",
        "tokens of access, keys, passwords",
    }
    assert "redacted" not in plain.data
    for page in hidden.directory.glob("*.html"):
        assert '<h2 id="removed">What was removed</h2>' in page.read_text()
    said = (hidden.directory / "report.md").read_text()
    assert f"sample keys | {counts['sample keys']:,}" in said
    for page in plain.directory.glob("*.html"):
        assert 'id="removed"' not in page.read_text()


@pytest.mark.slow
def test_a_run_that_leaks_is_deleted_and_says_so(books, tmp_path, monkeypatch):
    case = seeded_case(tmp_path / "x")
    monkeypatch.setattr("eaglelab.redact.executed.redact_notebook", lambda notebook, redactor: {})
    monkeypatch.setattr("eaglelab.redact.redaction.redact_notebook", lambda notebook, redactor: {})
    with pytest.raises(LeakError, match="its files are deleted"):
        run_report(case, "91", notebooks=books, out=tmp_path / "reports", redact=True)
    assert not list((tmp_path / "reports").rglob("*.html")) or [p.name for p in (tmp_path / "reports").rglob("*.html")] == ["index.html"]


def test_a_redacted_report_is_never_gone_on_with(tmp_path):
    (tmp_path / "case.toml").write_text("[dump]\npath = '.'\n")
    with pytest.raises(ReportError, match="keeps no hashes"):
        run_report(tmp_path, out=tmp_path / "reports", redact=True, resume=True)


def test_the_kernel_is_told_by_one_variable(monkeypatch, tmp_path, words):
    known = Known(names={"acme": mark("path")}, samples={"3": mark("sample", 1)}, phrases={("a", "b", "c")})
    known.write(tmp_path / "known.json", words)
    assert (tmp_path / "known.json").stat().st_mode & 0o77 == 0
    back, vocabulary = Known.read(tmp_path / "known.json")
    assert back == known
    assert vocabulary.words == words.words
    assert VARIABLE == "EAGLELAB_REDACT"
