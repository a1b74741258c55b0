"""Which notebooks a report runs, and with which parameters. Refuses what papermill would let pass with a warning.

papermill injects an unknown parameter and runs with the defaults, exit 0; and its own parameter inspection does not see
`int | None`. So the parameters cell is read here with Python's own parser.
"""

from __future__ import annotations

import ast
import difflib
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat


class ReportError(ValueError):
    """A report that cannot be run as asked: wrong number, unknown parameter, no notebooks."""


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell: `max_samples: int | None = 8  # samples read`."""

    name: str
    annotation: str | None
    default: str
    """The default's source text."""
    help: str = ""

    @property
    def value(self) -> Any:
        """The default as a value, its source text where it is an expression."""
        try:
            return ast.literal_eval(self.default)
        except ValueError:
            return self.default


@dataclass(frozen=True)
class Source:
    """One numbered notebook."""

    path: Path
    number: str
    parameters: dict[str, Parameter]

    @property
    def name(self) -> str:
        return self.path.stem


def notebooks_folder(folder: str | Path | None = None) -> Path:
    """The folder of numbered notebooks: the one given, the checkout's, or the installed copy. Raises ReportError."""
    checkout = Path(__file__).resolve().parents[2] / "notebooks"
    places = [Path(folder)] if folder else [checkout, Path(sys.prefix) / "share" / "eaglelab" / "notebooks"]
    for place in places:
        if place.is_dir() and any(place.glob("[0-9][0-9]_*.ipynb")):
            return place
    raise ReportError(f"no notebooks named NN_name.ipynb in {' or '.join(map(str, places))}: give the folder that holds them")


def find_sources(folder: Path, only: str | Iterable[Any] | None = None) -> list[Source]:
    """The numbered notebooks of `folder`, or those whose numbers are in `only` ("02,04", or a list). Raises ReportError."""
    paths = {p.name[:2]: p for p in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}
    wanted = sorted(paths) if only is None else _numbers(only)
    if not wanted:
        raise ReportError(f"no notebook chosen: got {only!r}, expected some of {', '.join(paths)}")
    missing = [n for n in wanted if n not in paths]
    if missing:
        raise ReportError(f"no notebook {', '.join(missing)} in {folder}: there are {', '.join(paths)}")
    return [Source(paths[n], n, read_parameters(paths[n])) for n in dict.fromkeys(wanted)]


def _numbers(only: str | Iterable[Any]) -> list[str]:
    items = re.split(r"[,\s]+", only) if isinstance(only, str) else [str(i) for i in only]
    return [re.sub(r"^(\d)$", r"0\1", i.strip()[:2] if re.match(r"\d\d_", i.strip()) else i.strip()) for i in items if i.strip()]


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares in its cell tagged `parameters`. Raises ReportError on a file that is no notebook."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds: JSON, missing keys, validation
        raise ReportError(f"{path.name} is not a readable notebook: {type(error).__name__}: {error}") from error
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            return parse_parameters(cell.source)
    return {}


def parse_parameters(source: str) -> dict[str, Parameter]:
    """The assignments of a parameters cell, with annotation, default and trailing comment."""
    try:
        body = ast.parse(source).body
        comments = {
            t.start[0]: t.string.lstrip("# ") for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT
        }
    except (SyntaxError, tokenize.TokenError) as error:
        raise ReportError(f"the parameters cell is not valid Python: {error}") from error
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, annotation = node.target.id, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, annotation = node.targets[0].id, None
        else:
            continue
        found[name] = Parameter(name, annotation, ast.unparse(node.value), comments.get(node.end_lineno or 0, ""))
    return found


def fit_parameters(sources: Sequence[Source], given: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Per notebook, the given parameters that it declares, converted to the declared type. Raises ReportError.

    A parameter must be declared by at least one of the notebooks; text (from a command line) is converted, other values are checked.
    """
    given = dict(given or {})
    if "case" in given:
        raise ReportError("parameter case: it is the report's first argument, give it there")
    known = {p for s in sources for p in s.parameters} - {"case"}
    for name in given:
        if name not in known:
            raise ReportError(
                f"unknown parameter {name!r}{_nearest(name, known)}: the chosen notebooks take {', '.join(sorted(known)) or 'none'}"
            )
    return {s.name: {n: convert(s.parameters[n], v, s.name) for n, v in given.items() if n in s.parameters} for s in sources}


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def convert(parameter: Parameter, value: Any, where: str) -> Any:
    """`value` as the parameter's declared type. Raises ReportError with what was got and expected."""
    kinds = _kinds(parameter)
    if not kinds:
        return value
    for kind in kinds:
        fits, result = _as(kind, value)
        if fits:
            return result
    raise ReportError(
        f"parameter {parameter.name}: got {value!r}, expected {parameter.annotation or kinds[0]} "
        f"(notebook {where}; its default is {parameter.default})"
    )


def _kinds(parameter: Parameter) -> list[str]:
    """The alternatives of an annotation, the default's type where there is none; text last, since everything is text."""
    if parameter.annotation:
        names = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", parameter.annotation.strip("'\"")).split("|")
    else:
        names = [type(ast.literal_eval(parameter.default)).__name__] if _is_literal(parameter.default) else []
    kinds = [re.sub(r"\[.*", "", n).strip() for n in names]
    kinds = ["None" if k == "NoneType" else k for k in kinds]
    return sorted((k for k in kinds if k), key=lambda k: k == "str")


def _is_literal(source: str) -> bool:
    try:
        return ast.literal_eval(source) is not None  # a bare `= None` says nothing about the type
    except ValueError:
        return False


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _as(kind: str, value: Any) -> tuple[bool, Any]:
    """Whether `value` is, or spells, a `kind`; and the value."""
    is_text, is_bool = isinstance(value, str), isinstance(value, bool)
    if kind == "None":
        return value is None or (is_text and value.lower() in ("none", "null")), None
    if kind == "bool":
        return (True, value) if is_bool else (is_text and value.lower() in _WORDS, _WORDS.get(str(value).lower()))
    if kind in ("int", "float"):
        if is_bool or not isinstance(value, (str, int, float)) or (kind == "int" and isinstance(value, float)):
            return False, None
        try:
            return True, int(value) if kind == "int" else float(value)
        except ValueError:
            return False, None
    if kind in ("list", "tuple", "dict"):
        return _as_json(value, dict if kind == "dict" else list)
    if kind == "str":
        return is_text, value
    return True, value  # a type that this table does not know is the notebook's own business


def _as_json(value: Any, kind: type) -> tuple[bool, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return False, None
    value = list(value) if kind is list and isinstance(value, tuple) else value
    return isinstance(value, kind), value
