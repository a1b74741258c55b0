"""Pages that are made from the code are as the code says; formulas of the derivations are computed; what a page names is there."""

import doctest
import importlib.util
import re
import tomllib

import pytest
from docs_pages import PAGES, ROOT, TOLD, Page

from eaglelab.case import SECTIONS, TEMPLATE
from eaglelab.cli import build_parser
from eaglelab.engines.conventions import convention_for, table

DOCS = ROOT / "docs"
SPEC = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_made_page_is_not_stale(name):
    assert (DOCS / name).read_text(encoding="utf-8") == reference.PAGES[name](), "python -m docs.make_reference"


def test_every_row_of_the_conventions_is_on_the_page():
    text = (DOCS / "conventions.md").read_text(encoding="utf-8")
    for row in table()["rows"]:
        assert row["read"].replace(", own functions run:", ":") in text, row["read"]
        for name in row.get("architectures", []):
            assert name == "*" or re.search(rf"\b{name}\b", text), name


def line_of(engine_title, architecture, version):
    """Cells of the conventions' page for one target at one version, read as a reader does."""
    text = (DOCS / "conventions.md").read_text(encoding="utf-8").split(f"### {engine_title}\n")[1].split("\n###")[0]
    targets, order = "", table()["families"][engine_title.lower()]["read_versions"]
    for row in (line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "id k is" not in line):
        targets = row[0] if row[0] != "| ″" else targets
        first, _, last = row[1].removesuffix(" on").partition(" to ")
        inside = order.index(first) <= order.index(version) and (
            row[1].endswith(" on") or order.index(version) <= order.index(last or first)
        )
        if re.search(rf"\b{architecture}\b", targets) and inside:
            return row
    raise AssertionError(f"no row for {architecture} at {version}")


@pytest.mark.parametrize("version", ["0.4.9", "0.5.12", "0.5.13", "0.5.16", "0.5.23"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV3ForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"])
def test_the_conventions_page_says_what_is_fed(architecture, version):
    """The row that a reader finds, taken at its word, gives the boundaries that the library feeds."""
    fed = convention_for(f"sglang=={version}", architecture).feed([2, 15, 27], 30)
    if fed.boundaries[0] is None:
        with pytest.raises(AssertionError):
            line_of("SGLang", architecture, version)
        return
    rule = line_of("SGLang", architecture, version)[2]
    add = {"k": 0, "k + 1": 1, "k + 1 if the first is 1, else k": 0, "k if the largest is N, else k + 1": 1}[rule]
    assert fed.boundaries == tuple(k + add for k in (2, 15, 27))


def test_the_stories_conventions():
    """SGLang captured 3, 31, 59 of DeepSeek-V3 for these ids before its change of May 2026, and 2, 30, 58 since."""
    rows = [line for line in (DOCS / "conventions.md").read_text(encoding="utf-8").splitlines() if "0.5.12" in line or "0.5.23" in line]
    assert any("SGLang 0.5.12" in line and "| 3, 31, 59 |" in line for line in rows)
    assert any("SGLang 0.5.23" in line and "| 2, 30, 58 |" in line for line in rows)


def test_every_command_has_its_part_of_the_page_and_every_argument_its_row():
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    commands = next(a for a in build_parser()._actions if hasattr(a, "choices") and a.choices and "check" in a.choices).choices
    for name, sub in commands.items():
        part = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for option in sub._option_string_actions:
            assert option in ("-h", "--help", "--json") or re.search(rf"(?<![\w-]){option}(?![\w-])", part), (name, option)


def test_the_case_page_holds_the_template_and_every_key():
    text = (DOCS / "case.md").read_text(encoding="utf-8")
    assert TEMPLATE.read_text(encoding="utf-8").strip() in text
    block = next(b for b in Page.of(DOCS / "case.md").blocks if b.language == "toml")
    lines = [line.removeprefix("# ") for line in block.lines if re.match(r"# (\[|\w+ = )", line)]
    written = tomllib.loads("\n".join(lines))
    for name, section in SECTIONS.items():
        assert set(written[name]) == set(section.__dataclass_fields__), name


def test_formulas_of_the_derivations_are_the_librarys():
    page = Page.of(DOCS / "how-it-works.md")
    blocks = [b for b in page.blocks if b.language == "pycon"]
    code = "\n".join("\n".join(b.lines) + "\n" for b in blocks)
    test = doctest.DocTestParser().get_doctest(code, {}, "how-it-works", str(page.path), 0)
    said: list[str] = []
    done = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert len(blocks) > 10
    assert done.failed == 0, "".join(said)


def test_links_and_anchors_lead_somewhere():
    lost = []
    for page in map(Page.of, TOLD):
        for _, address in page.links:
            path, _, anchor = address.partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            place = (page.path.parent / path).resolve() if path else page.path
            if not place.exists() or (anchor and place.suffix == ".md" and anchor not in Page.of(place).anchors):
                lost.append(f"{page.path.relative_to(ROOT)}: {address}")
    assert lost == []


def test_every_page_is_reached_from_the_map():
    seen, ahead = set(), [DOCS / "README.md"]
    while ahead:
        page = ahead.pop()
        seen.add(page)
        inside = [(page.parent / a.split("#")[0]).resolve() for _, a in Page.of(page).links if a.split("#")[0].endswith(".md")]
        ahead += [p for p in inside if p not in seen and DOCS in p.parents]
    assert {p for p in PAGES if DOCS in p.parents} - seen == set()


def test_the_code_names_pages_that_exist():
    sources = [
        p for folder in ("eaglelab", "benchmarks", "engines_cpu") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".toml")
    ]
    named = {name for p in sources for name in re.findall(r"docs/[\w/.-]+\.md", p.read_text(encoding="utf-8"))}
    assert len(named) > 2
    assert {name for name in named if not (ROOT / name).is_file()} == set()
