"""`report.md` and headlines: what a run says in one line and in an issue, read by GitHub's own Markdown."""

import json
import re
from html.parser import HTMLParser

import pytest

from eaglelab.findings import Change, Fault, Finding, Status, Verdict
from eaglelab.reports import headline, summary
from eaglelab.reports.key_numbers import key_numbers

IDS = Change("drafter/config.json", "eagle_config.layer_ids", [2, 15, 27], "sglang==0.5.23")
OTHER = Change("drafter/config.json", "layer_ids", [3, 16, 28], "vllm")

HOSTILE = (
    "<script>alert(1)</script> <img src=https://x.example/a.png> ![a](https://x.example/b.png) [l](https://x.example) "
    "https://x.example/c www.x.example/d mailto:a@x.example me@x.example @octocat fixes #123 owner/repo#45 GH-67 "
    "| a | b | $x_1$ **bold** _it_ __init__ ~~gone~~ :tada: \\backslash `a|b @octocat #9` &lt; \x07\u202e <!-- c --> [^1] <https://x.example>"
)


def content(*findings, verdict=None, **given):
    """What a run's findings.json holds."""
    origin = {
        "date": "2026-01-02T03:04:05Z",
        "git": None,
        "device": "CPU",
        "platform": "Linux",
        "versions": {"eaglelab": "0.1"},
        "parameters": {},
    }
    data = {
        "case": "tiny",
        "verdict": verdict.to_json() if verdict else None,
        "findings": [f.to_json() for f in findings],
        "notebooks": [{"name": "08_verdict", "error": None}],
        "provenance": origin,
    }
    return json.loads(json.dumps(data | given))


class Rendered(HTMLParser):
    """What GitHub's Markdown makes of a text: tags, links, text outside of code, code."""

    def __init__(self, source):
        super().__init__()
        cmarkgfm = pytest.importorskip("cmarkgfm", reason="needs GitHub's Markdown (pip install cmarkgfm)")
        from cmarkgfm.cmark import Options

        self.html = cmarkgfm.github_flavored_markdown_to_html(source, Options.CMARK_OPT_UNSAFE)
        self.tags, self.text, self.codes, self._code = [], "", [], False
        self.feed(self.html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "code":
            self._code = True
            self.codes.append("")

    def handle_endtag(self, tag):
        self._code = self._code and tag != "code"

    def handle_data(self, data):
        if self._code:
            self.codes[-1] += data
        else:
            self.text += data


# headlines


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict("wiring", "sure", "Wiring: x.", (IDS, OTHER)), "Wiring is at fault (sure): set `eagle_config.layer_ids` = `[2, 15, 27]`"),
        (
            Verdict("wiring and training", "likely", "2 faults.", (IDS, Change("c", "k", 1, "sglang==0.5.23"), OTHER)),
            "Wiring and training are at fault (likely): set `eagle_config.layer_ids` = `[2, 15, 27]`, and 1 more change",
        ),
        (
            Verdict("training", "likely", "t", (), (Fault("training", "likely", "Training: It was cut at v2.5 of `a.b`. Train longer."),)),
            "Training is at fault (likely): It was cut at v2.5 of `a.b`",
        ),
        (
            Verdict("dump", "sure", "2 faults, the costliest first. (1) Dump: Slot 1 is zero. More.", ()),
            "Dump is at fault (sure): Slot 1 is zero",
        ),
        (
            Verdict("wiring", "sure", "Wiring: too long a value. x", (Change("c", "k", "v" * 200),)),
            "Wiring is at fault (sure): too long a value",
        ),
        (Verdict("none found", "likely", "Nothing."), "No fault found (likely)"),
        (Verdict("cannot tell", "cannot tell", "Nothing."), "Cannot tell which stage is at fault"),
    ],
)
def test_the_headline_of_a_verdict(verdict, said):
    assert headline.of_verdict(verdict) == said
    assert headline.of_run(content(verdict=verdict)) == said


def test_the_headline_of_findings_is_what_leads():
    ok, open_, bad = Finding("a", "fine", Status.PASS), Finding("b", "open", Status.CANNOT_TELL), Finding("c", "bad", Status.FAIL)
    doing = Finding("d", "bad, and to be mended", Status.FAIL, next="Do it")
    assert headline.of_findings([ok, open_, bad, doing]) == "bad, and to be mended"
    assert headline.of_findings([ok, open_, bad]) == "bad"
    assert headline.of_findings([ok, open_]) == "open"
    assert headline.of_findings([Finding("e", "no log", Status.NOT_GIVEN), ok]) == "fine"
    assert headline.of_findings([Finding("e", "no use", Status.NOT_APPLICABLE)]) is None
    assert headline.of_findings([]) is None
    assert headline.of_run(content(ok, bad)) == "bad"
    broken = content(notebooks=[{"name": "01_x", "error": "KeyError: 1"}])
    assert headline.of_run(broken) == "No verdict: 01_x broke"
    assert headline.of_run(content()) == "No verdict and no findings in this run"


def test_a_long_headline_ends_at_a_word_and_keeps_backticks_in_pairs():
    said = headline.cut("a `code span` " + "word " * 50 + "`end`")
    assert len(said) <= headline.MOST
    assert said.endswith("word …")
    assert headline.cut("`" + "x" * 400).count("`") == 2
    assert headline.cut("one\n\ttwo") == "one two"


def test_key_numbers_are_read_from_the_findings():
    served = Finding("served.acceptance", "t", Status.PASS, numbers={"accept_length": 1.1087, "interval": [1.0949, 1.1226]})
    replayed = Finding("replay.expected", "t", Status.PASS, numbers={"walk": {"accept_length": 1.8}, "accept_length": None})
    rows = [{"break_even": 1.381, "speedup": True}]
    found = key_numbers([served, replayed, Finding("cost.worth", "t", Status.FAIL, numbers={"rows": rows})])
    assert {name: n.shown for name, n in found.items()} == {
        "accept length, served": "1.11 (1.09 to 1.12)",
        "accept length, replayed": "1.80",
        "accept length that breaks even": "1.38",
    }
    assert key_numbers([Finding("cost.worth", "t", Status.FAIL, numbers={"rows": []})]) == {}


# report.md


def test_the_summary_says_verdict_changes_findings_and_where_it_comes_from(tmp_path):
    verdict = Verdict("wiring", "sure", "Wiring: it feeds [0, 3]. The command: `eaglelab wiring x`, run it.", (IDS, OTHER))
    bad = Finding("wiring.match", "It feeds [0, 3, 16]", Status.FAIL, "config says", "the dump holds", {"a": 1}, "Set them")
    open_ = Finding("b.open", "Not clear", Status.CANNOT_TELL)
    served = Finding("served.acceptance", "Counted 1.11", Status.PASS, numbers={"accept_length": 1.1087, "interval": None})
    data = content(bad, open_, served, verdict=verdict)
    data["provenance"]["inputs"] = [{"name": "dump.path", "path": "dump", "sha256": "ab" * 32, "of": "content"}]
    path = summary.write_markdown(tmp_path, data)
    assert path == tmp_path / "report.md"
    text = path.read_text()
    assert text.startswith("## Wiring is at fault (sure): set `eagle_config.layer_ids` = `[2, 15, 27]`\n")
    assert "Findings: 1 fail, 1 cannot tell, 1 pass." in text
    assert "- `eagle_config.layer_ids = [2, 15, 27]` in `drafter/config.json`, for `sglang==0.5.23`" in text
    assert text.index("What to change:") < text.index("If you serve with another engine:") < text.index("`layer_ids = [3, 16, 28]`")
    assert "| accept length, served | 1.11 | `served.acceptance` |" in text
    read = Rendered(text)
    assert read.tags.count("table") == 3
    assert "fail: It feeds [0, 3, 16] (" in read.text
    assert "claim: config says" in read.text
    assert "next: Set them" in read.text
    assert "abababababababab" in read.codes
    assert "eaglelab wiring x" in read.codes


def test_hostile_text_reads_as_it_is_and_does_nothing():
    verdict = Verdict(HOSTILE, HOSTILE, HOSTILE, (Change(HOSTILE, HOSTILE, HOSTILE, HOSTILE), Change(HOSTILE, HOSTILE, {HOSTILE: 1}, "e")))
    findings = [Finding(HOSTILE + s, HOSTILE, s, HOSTILE, HOSTILE, {}, HOSTILE) for s in Status]
    data = content(*findings, verdict=verdict, case=HOSTILE, notebooks=[{"name": HOSTILE, "error": HOSTILE}])
    data["provenance"] |= {"git": HOSTILE, "device": HOSTILE, "parameters": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}}
    data["provenance"]["inputs"] = [{"name": HOSTILE, "path": HOSTILE, "sha256": HOSTILE, "of": HOSTILE}]
    read = Rendered(summary.markdown(data))
    allowed = {"h2", "h3", "p", "ul", "li", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "span"}
    assert set(read.tags) <= allowed  # no link, image, script, emphasis, strike-through, comment
    for pattern in (r"@\w", r"#\d", r"(?i)\bgh-\d", r":tada:", r"https?://", r"www\.", r"[\x00-\x08\u202a-\u202e]"):
        assert not re.search(pattern, read.text), pattern  # what GitHub looks for after Markdown
    said = read.text.replace("\u200b", "")
    for word in (
        "@octocat",
        "#123",
        "| a | b |",
        "**bold**",
        "__init__",
        "~~gone~~",
        "<!-- c -->",
        "![a](https://x.example/b.png)",
        "&lt;",
    ):
        assert word in said
    assert all(span.count("|") <= 1 or "octocat" in span for span in read.codes)
    assert "a|b @octocat #9" in read.codes  # also within a table's cell
    rows = re.findall(r"<tr>(.*?)</tr>", read.html, re.DOTALL)
    assert {row.count("<td>") for row in rows if "<td>" in row} <= {2, 3}  # no pipe made a column


def test_a_line_that_begins_like_markup_is_text():
    for start in ("# head", "- item", "+ item", "1. item", "23) item", "> quote", "=== x", "* item", "    code", "| a |", "--- x"):
        read = Rendered(summary.prose(start))
        assert set(read.tags) == {"p"}, start
        assert read.text.strip() == start.strip()


def test_code_spans_hold_backticks():
    for value in ("a`b", "``", "`", "a``b`c", " x "):
        assert Rendered(summary.code(value)).codes == [value.strip()]


def test_the_summary_stays_below_what_an_issue_takes():
    long = "@user#1 " * 2000
    findings = [Finding(f"f.{i}", long, Status.FAIL if i % 2 else Status.PASS, long, long, {}, long) for i in range(300)]
    data = content(*findings, verdict=Verdict("wiring", "sure", long, (Change(long, long, long),) * 50))
    text = summary.markdown(data)
    assert len(text.encode()) <= summary.LIMIT
    assert "more, in `findings.json`" in text
    assert "details" in Rendered(text).tags


def test_the_examples_findings_are_said_in_full():
    text = "x" * 1000 + " end"
    assert text in summary.markdown(content(Finding("a", "t", Status.FAIL, evidence=text)))
