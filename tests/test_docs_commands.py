"""Every command of the documents runs, and what they quote of its output is there.

Commands of eaglelab run in this process, in a copy of the example; `eaglelab live` asks a server that gives the recorded run's answers back.
What needs more than that is in `NOT_RUN`, with the reason; its arguments are parsed by the command line's own parser all the same.
"""

import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from contract_server import ContractServer
from docs_pages import PAGES, ROOT, Command, Page, differs

from eaglelab import cli
from eaglelab.commands import opening
from eaglelab.engines.launch import parse_launch
from eaglelab.served import Recording

EXAMPLE = ROOT / "data" / "example"
TARGET = EXAMPLE / "target" / "model.safetensors"
PROGRAMS = ("eaglelab", ".venv/bin/eaglelab")
URL = "http://localhost:30000"

NOT_RUN = {
    r"make (?!test\b)": "everything that it runs has tests of its own; that the Makefile has the target is checked",
    r"make test": "this is it",
    r"source .venv/bin/activate": "changes the reader's shell",
    r"(\S*eaglelab) report my_case": "nine kernels, a minute; tests/test_reports.py runs reports",
    r"(\S*eaglelab) check my_case$(?#README)": "in the README the reader fills the case in first; the tutorial's runs",
    r"eaglelab live .*--capture": "an engine that hands out states; tests/test_capture.py has such servers",
    r"eaglelab bench ": "times this machine for its --seconds; tests/test_bench.py",
    r"mkdir -p /data/records": "a folder of the server's machine",
    r"SPEC=": "a shell's variable; tests/test_docs.py runs what is in it",
    r"python -m sglang.launch_server": "needs SGLang and a GPU",
    r"vllm serve": "needs vLLM and a GPU",
    r"eaglelab check CASE --error @server.log": "a log of the reader's",
    r"grep -A30 Traceback server.log": "a log of the reader's",
}
"""Pattern of a command -> why it is not run. No entry may be left over."""
SHELL = ("cp", "sed", "mkdir")
"""Programs that are run as they stand, in the copy."""
CODES = {"check": (0, 1, 3), "report": (0, 1)}
"""Exit codes that are no fault of the page."""


def reason(command: Command) -> str | None:
    if command.bare.endswith("check my_case") and command.page.name != "README.md":
        return None
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, command.bare)), None)


ALL = [(page, Page.of(page).commands()) for page in PAGES]
RUN = [(page, [c for c in commands if reason(c) is None]) for page, commands in ALL]


def words(command: Command) -> list[str]:
    return shlex.split(command.bare)


@dataclass
class Desk:
    """A folder of one page's own, with a copy of the example that all pages read."""

    folder: Path
    written: list[str] = field(default_factory=list)
    """Commands so far that may have changed something in the folder."""

    @contextlib.contextmanager
    def sitting(self, shared: Path):
        (self.folder / "data").symlink_to(shared / "data")
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            yield self
        finally:
            os.chdir(before)

    def run(self, command: Command) -> str:
        """What it prints. Asserts that it ends as it should."""
        for name, text in command.files:
            Path(name).write_text(text, encoding="utf-8")
            self.written.append(text)
        argv = words(command)
        if argv[0] not in PROGRAMS:
            assert argv[0] in SHELL, f"{command}: neither eaglelab nor in NOT_RUN"
            self.written.append(command.bare)
            return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        reads = argv[1] in READERS and not {"--write", "--in-place"} & set(argv)
        if not reads:
            self.written.append(command.bare)
        run = called if reads and not self.written else called.__wrapped__
        if argv[1] == "live":
            with recorded_server() as server:
                code, out, err = run(tuple(server.url if w == URL else w for w in argv[1:]))
        else:
            code, out, err = run(tuple(argv[1:]))
        assert code in CODES.get(argv[1], (0,)), f"{command} ended with {code}:\n{out}{err}"
        return out


READERS = {"check", "dump", "identify", "replay", "wiring", "flags", "trace", "cost"}
"""Commands that change nothing."""


@functools.cache
def called(argv: tuple[str, ...]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command. What only reads, on a page that has written nothing yet, is run once for all pages."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(argv))
    return code, out.getvalue(), err.getvalue()


def recorded_server() -> ContractServer:
    """Answers and counts as SGLang with the claimed wiring gave them."""
    requests = Recording.load(EXAMPLE / "engine" / "sglang-claimed.jsonl").requests
    known = {list_key(r.prompt_token_ids): r for r in requests}

    def counted(prompt: list[int], tokens: int) -> list[int]:
        histogram = known[list_key(prompt)].histogram
        return [n for n, passes in enumerate(histogram) for _ in range(passes)]

    server = ContractServer("sglang", lambda prompt: list(known[list_key(prompt)].token_ids))
    server.counted = counted
    return server


def list_key(tokens) -> tuple[int, ...]:
    return tuple(int(t) for t in tokens)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A copy of the example; what one command has measured on it, the next one does not measure again."""
    shared = tmp_path_factory.mktemp("shared")
    copy = shared / "data" / "example"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("target"))
    (copy / "target").symlink_to(EXAMPLE / "target")
    open_case, kept = opening.case_investigation, functools.cache(opening.case_investigation)

    def once(case, **options):
        shares = isinstance(case, Path) and case.resolve() in (copy, copy / "case.toml")
        return kept(copy, **options) if shares else open_case(case, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "case_investigation", once)
        yield shared


@pytest.fixture(scope="module")
def outputs(example, tmp_path_factory):
    """page -> [(command, output)], each page run once."""

    @functools.cache
    def of(page: Path) -> list[tuple[Command, str]]:
        with Desk(tmp_path_factory.mktemp(page.stem)).sitting(example) as desk:
            return [(command, desk.run(command)) for command in dict(RUN)[page]]

    return of


needs_target = pytest.mark.skipif(not TARGET.exists(), reason="the example's target is not fetched: numbers would be the sketch's")


@needs_target
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, commands in RUN if commands], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_run_and_print_what_is_quoted(page, outputs):
    for command, output in outputs(page):
        if command.quoted:
            wrong = differs(command.quoted, output, command.gaps)
            assert wrong is None, f"{command}\n{wrong}"


STORY = {
    "docs/tutorial.md": {"51"},  # 0.5142 above
    "docs/how-to/dump.md": {"0.001", "0.01", "0.03", "0.05", "0.10"},  # the rule's, eaglelab/identify/rule.py
    "docs/how-to/drafter.md": {"0.6", "0.8"},  # public drafters
    "docs/how-to/cost.md": {"5"},  # ONE_RUN of eaglelab/timing/cost.py
    "docs/how-it-works.md": {
        "0.513",  # a drafter trained for this, whose low slot is one layer off
        "0.9",  # a version
        *("0.99", "10", "95"),  # neighbours' cosine; an error of 0.1; a quantile, and verify's share in the story
        *("19", "27", "7.7"),  # the story's rate and collectives; 0.077
        "3.8",  # 30.5 / 8.0
    },
}
"""Numbers in prose that come from elsewhere than the page's commands."""
DRAFTER = ROOT / "docs" / "how-to" / "drafter.md"


@needs_target
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.parent.name == "how-to" or p.name in ("tutorial.md", "how-it-works.md")], ids=lambda p: p.stem
)
def test_numbers_in_prose_are_those_of_the_commands(page, outputs):
    """In how-it-works.md they are those of its formulas, which are computed, and of the drafter's page."""
    told = Page.of(page)
    said = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])|\d+(?= ?%)", told.text))
    derives = page.name == "how-it-works.md"
    formulas = ["\n".join(b.lines) for b in told.blocks if b.language == "pycon"]
    printed = "\n".join([*(output for _, output in outputs(DRAFTER if derives else page)), *formulas])
    shown = set(re.findall(r"\d+\.\d+|\d+(?=%)", printed)) | {f"{float(x):.2f}" for x in re.findall(r"\d+\.\d+", printed)}
    assert said - shown - STORY.get(str(page.relative_to(ROOT)), set()) == set()


@pytest.mark.parametrize("page", [page for page, commands in ALL if commands], ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_not_run_is_at_least_understood(page):
    parser = cli.build_parser()
    for command in dict(ALL)[page]:
        if reason(command) is None:
            continue
        text = command.bare.split(" | ")[-1]
        if text.startswith(PROGRAMS):
            parser.parse_args(shlex.split(text)[1:])
        elif text.startswith("make "):
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in re.findall(r"^[a-z-]+$", "\n".join(shlex.split(text)[1:]), re.MULTILINE):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{command}: the Makefile has no {target}"
        elif text.startswith(("python -m sglang", "vllm serve")):
            parse_launch(text)


def test_no_reason_is_left_over():
    commands = [c.bare for _, found in ALL for c in found]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, c) for c in commands)] == []


def test_no_block_is_of_an_unknown_kind():
    known = {"sh", "console", "toml", "text", "pycon", "json"}
    odd = [f"{page.relative_to(ROOT)}:{b.line}" for page in PAGES for b in Page.of(page).blocks if b.language not in known]
    assert odd == []


def inline_commands() -> list[tuple[str, str]]:
    found = [(str(page.relative_to(ROOT)), code) for page in PAGES for code in Page.of(page).inline]
    return sorted({(page, code) for page, code in found if re.match(r"eaglelab [a-z]", code)})


def test_commands_and_options_that_are_named_in_the_text_exist():
    """`eaglelab live CASE --url …` in a sentence: the command and each option are known."""
    parser = cli.build_parser()
    commands = next(a for a in parser._actions if hasattr(a, "choices") and a.choices and "check" in a.choices).choices
    wrong = []
    for page, code in inline_commands():
        name, *rest = code.split(" ")[1:]
        options = re.findall(r"(?<![\w-])--?[a-z][\w-]*", re.sub(r'".*?"', "", " ".join(rest)))
        known = commands[name]._option_string_actions if name in commands else {}
        wrong += [f"{page}: {code}"] if name not in commands or set(options) - set(known) else []
    assert len(inline_commands()) > 60
    assert wrong == []


def test_the_program_itself_answers():
    """Once as a reader calls it: everything else runs inside this process."""
    program = Path(sys.executable).with_name("eaglelab")
    done = subprocess.run([program, "cost", "--numbers", "54.8", "1.8", "90"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a cycle costs 2.96 decode steps")
