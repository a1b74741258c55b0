"""Markdown pages taken apart for the tests: blocks, commands with their quoted output, links, anchors, pictures, prose.

How a page is written, so that it can be run:

- ```sh: every line is a command. ```console: lines after `$ ` are commands, what follows is quoted from their output. A block that is
  indented, or fenced without a language, is one of these where its first word is a command's.
- ```toml PATH: the block is written to that file before the next command.
- a quoted line `...` stands for any lines, `...` inside a line for any text. A command with the comment `# … left out …` may have lines left
  out anywhere, and the finding's id at a line's end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]))
TOLD = tuple(sorted([*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("*/README.md"), ROOT / "data/example/README.md"]))
"""Pages whose links are followed; each once."""
STARTS = (
    "eaglelab",
    ".venv/bin/",
    "make",
    "python",
    "pip",
    "mkdir",
    "SPEC=",
    "vllm",
    "curl",
    "grep",
    "papermill",
    "jupyter",
    "cp ",
    "source",
)
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")


@dataclass(frozen=True)
class Block:
    info: str
    """Of a fence; "" of an indented block."""
    lines: tuple[str, ...]
    line: int
    """Of the page, from 1."""

    @property
    def language(self) -> str:
        told = self.info.split(" ")[0]
        if told or not self.lines:
            return told
        if any(line.startswith("$ ") for line in self.lines):
            return "console"
        return "sh" if self.lines[0].startswith(STARTS) else ""

    @property
    def file(self) -> str | None:
        """Where the block is to be written."""
        return self.info.split(" ", 1)[1] if " " in self.info else None


@dataclass(frozen=True)
class Command:
    page: Path
    line: int
    text: str
    """One logical line, without `$ `, its comment still there."""
    quoted: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """(path, text): files that are written before it runs."""

    @property
    def bare(self) -> str:
        return re.split(r"\s{2,}# ", self.text)[0].strip()

    @property
    def gaps(self) -> bool:
        """Whether lines may be left out of what is quoted without a `...`."""
        return "left out" in self.text

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.bare}"


@dataclass
class Page:
    path: Path
    blocks: list[Block] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Page:
        page, lines, i = cls(path), path.read_text(encoding="utf-8").splitlines(), 0
        while i < len(lines):
            start, fence = i, FENCE.match(lines[i])
            if fence:
                i += 1
                while not lines[i].strip().startswith("```"):
                    i += 1
                body = [line.removeprefix(fence["indent"]) for line in lines[start + 1 : i]]
                page.blocks.append(Block(fence["info"].strip(), tuple(body), start + 2))
                i += 1
            elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip()):
                depth = len(lines[i]) - len(lines[i].lstrip())
                while i < len(lines) and (lines[i].startswith(" " * min(depth, 4)) or not lines[i].strip()):
                    i += 1
                body = [line[depth:] if line.startswith(" " * depth) else line.strip() for line in lines[start:i]]
                while body and not body[-1]:
                    body.pop()
                page.blocks.append(Block("", tuple(body), start + 1))
            else:
                page.prose.append(lines[i])
                i += 1
        return page

    def commands(self) -> list[Command]:
        found, files = [], []
        for block in self.blocks:
            if block.file and block.language == "toml":
                files.append((block.file, "\n".join(block.lines) + "\n"))
            elif block.language in ("sh", "console"):
                found += _commands(self.path, block, tuple(files))
                files = []
        return found

    @property
    def text(self) -> str:
        """Prose, without code in backticks."""
        return re.sub(r"`[^`\n]*`", "``", "\n".join(self.prose))

    @property
    def inline(self) -> list[str]:
        """What stands in backticks."""
        return re.findall(r"`([^`\n]+)`", "\n".join(self.prose))

    @property
    def links(self) -> list[tuple[str, str]]:
        """(text, address) of links and pictures, code left out."""
        return re.findall(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "``", "\n".join(self.prose)))

    @property
    def pictures(self) -> list[tuple[str, str]]:
        """(alt text, address)."""
        return re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", "\n".join(self.prose))

    @property
    def anchors(self) -> set[str]:
        """Of headings, as GitHub makes them; the second of a name gets -1."""
        made: dict[str, int] = {}
        for heading in (line for line in self.prose if re.match(r"#{1,6} ", line)):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lstrip("# ")).lower()
            slug = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
            made[slug] = made.get(slug, -1) + 1
        return {f"{slug}-{n}" if n else slug for slug, last in made.items() for n in range(last + 1)}


def _commands(page: Path, block: Block, files: tuple[tuple[str, str], ...]) -> list[Command]:
    found: list[Command] = []
    said: list[str] = []
    text, at, quoting = "", 0, block.language == "console"

    def done() -> None:
        if found and said:
            found[-1] = Command(page, found[-1].line, found[-1].text, tuple(said), found[-1].files)
        said.clear()

    for number, line in enumerate(block.lines, block.line):
        if not text:
            if quoting and not line.startswith("$ "):
                said.append(line)
                continue
            if not line.strip() or line.startswith("#"):
                continue
            done()
            at = number
        text += line.removeprefix("$ ").rstrip("\\") if line.endswith("\\") else line.removeprefix("$ ")
        if not line.endswith("\\"):
            found.append(Command(page, at, text, (), files if not found else ()))
            text = ""
    done()
    return found


def differs(quoted: tuple[str, ...], output: str, gaps: bool) -> str | None:
    """What is quoted and not in the output, in order; None where all is there."""
    actual = [line.rstrip() for line in output.splitlines()]
    place, free = 0, True  # free: lines may be passed over
    for line in (q.rstrip() for q in quoted):
        if line == "...":
            free = True
            continue
        if not line and (gaps or free):
            continue
        id_left_out = r"(  \([\w.*]+\))?" if gaps else ""
        pattern = re.compile(".*?".join(map(re.escape, line.split("..."))) + id_left_out + r"\Z")
        reach = range(place, len(actual)) if gaps or free else range(place, min(place + 1, len(actual)))
        hit = next((i for i in reach if pattern.match(actual[i])), None)
        if hit is None:
            near = "\n".join(actual[place : place + 8])
            return f"quoted: {line}\nthere is:\n{near}"
        place, free = hit + 1, False
    return None
