"""Why drafters do not help, in one letter each, and the public reports that tests retell.

A test names its report as `@pytest.mark.report("owner/repo#number", "AJ")`. The marks are read from the syntax tree, so that counting
them runs and imports nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

CLASSES = {
    "A": "capture: layer ids, a missing or wrong slot, norm or basis of what is fed",
    "B": "the drafter's weights and vocabulary map",
    "C": "the text of training is not the text that is served",
    "D": "too little or too much training",
    "E": "cost: a verify pass or a draft that is too dear",
    "F": "launch flags and graphs",
    "G": "the engine at run time, or its version",
    "H": "a metric or a benchmark taken for another",
    "I": "the dump's integrity or size",
    "J": "shapes, and crashes on loading",
    "K": "context length or rope",
    "L": "multimodal targets",
    "M": "sampling, and whether the output stays the target's",
    "N": "a quantised or rotated target",
    "O": "a tool that was missing",
    "X": "high in training, low in serving, and nobody found out why",
}


@dataclass(frozen=True)
class Retold:
    """One mark on one test."""

    thread: str
    classes: str
    file: str
    test: str


def retold(folder: Path = Path(__file__).parent) -> list[Retold]:
    """Every report mark of the tests in a folder, in the order of files and lines. Raises ValueError for a mark that names no thread or no letters."""
    return [mark for path in sorted(folder.glob("test_*.py")) for mark in _marks(path)]


def _marks(path: Path) -> list[Retold]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.report":
                found.append(_retold(call, path.name, node.name))
    return found


def _retold(call: ast.Call, file: str, test: str) -> Retold:
    given = dict(zip(("thread", "classes"), call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
    try:
        said = {name: ast.literal_eval(value) for name, value in given.items()}
        return Retold(said["thread"], "".join(said["classes"]), file, test)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file}, {test}: report(thread, classes) takes a thread and letters, got {ast.unparse(call)}") from error


def by_class(marks: list[Retold]) -> dict[str, set[str]]:
    """Class -> the threads that it has as tests."""
    return {letter: {m.thread for m in marks if letter in m.classes} for letter in CLASSES}
