"""Which notebooks a report runs, and with which parameters. Refuses what papermill would let pass with a warning."""

from __future__ import annotations

import ast
import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from papermill.models import Parameter
from papermill.translators import PythonTranslator

KINDS = {"int": int, "float": float, "bool": bool, "str": str}


class ReportError(ValueError):
    """A report that cannot be run as asked: wrong number, unknown parameter, no notebooks."""


@dataclass(frozen=True)
class Source:
    """One numbered notebook."""

    path: Path
    parameters: dict[str, Parameter]
    """As papermill reads a line of the parameters cell: name, inferred_type_name, default (its source text), help."""

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: _literal(p.default) for name, p in self.parameters.items()}


def notebooks_folder(folder: str | Path | None = None) -> Path:
    """The folder of numbered notebooks: the one given, the checkout's, or the installed copy. Raises ReportError."""
    checkout = Path(__file__).resolve().parents[2] / "notebooks"
    places = [Path(folder)] if folder else [checkout, Path(sys.prefix) / "share" / "eaglelab" / "notebooks"]
    for place in places:
        if any(place.glob("[0-9][0-9]_*.ipynb")):
            return place
    raise ReportError(f"no notebooks named NN_name.ipynb in {' or '.join(map(str, places))}: give the folder that holds them")


def find_sources(folder: Path, only: str | None = None) -> list[Source]:
    """The numbered notebooks of `folder`, or those whose numbers are in `only` ("02,04"). Raises ReportError."""
    paths = {p.name[:2]: p for p in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}
    wanted = list(paths) if only is None else [n.strip().zfill(2) for n in only.split(",") if n.strip()]
    if not wanted:
        raise ReportError(f"no notebook chosen: got {only!r}, expected numbers as in 02,04; there are {', '.join(paths)}")
    missing = [n for n in wanted if n not in paths]
    if missing:
        raise ReportError(f"no notebook {', '.join(missing)} in {folder}: there are {', '.join(paths)}")
    return [Source(paths[n], read_parameters(paths[n])) for n in dict.fromkeys(wanted)]


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares in its cell tagged `parameters`. Raises ReportError on a file that is no notebook."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds: JSON, missing keys, validation
        raise ReportError(f"{path.name} is not a readable notebook: {type(error).__name__}: {error}") from error
    tagged = [c for c in notebook.cells if c.cell_type == "code" and "parameters" in c.metadata.get("tags", [])]
    return {p.name: p for cell in tagged for p in PythonTranslator.inspect(cell)}


def fit_parameters(sources: Sequence[Source], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Per notebook, the given parameters that it declares, as the declared type. Raises ReportError.

    A parameter must be declared by at least one of the notebooks; text (from a command line) is converted, other values are checked.
    """
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
    kind, result = KINDS.get(parameter.inferred_type_name), value
    if isinstance(value, str) and kind is not str:
        with suppress(json.JSONDecodeError):
            result = json.loads({"True": "true", "False": "false"}.get(value, value))
    if kind is float and type(result) is int:
        result = float(result)
    if kind is not None and type(result) is not kind:
        expected = f"expected {parameter.inferred_type_name} (notebook {where}; its default is {parameter.default})"
        raise ReportError(f"parameter {parameter.name}: got {value!r}, {expected}")
    return result


def _literal(source: str) -> Any:
    try:
        return ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return source
