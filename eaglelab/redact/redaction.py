"""The runner's side of a redacted report: what the kernels are told, what becomes of each notebook and of `findings.json`, the last look.

with redacting(cases, parameters) as redaction:
    …  redaction.environment     of every kernel
    …  redaction.notebook(…)     after it was executed
    …  redaction.search(folder)  when all is written
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from eaglelab.case import Case
from eaglelab.provenance import collect, harmless
from eaglelab.redact.executed import redact_notebook
from eaglelab.redact.known import Known, known_of
from eaglelab.redact.marks import account
from eaglelab.redact.net import LeakError, Net
from eaglelab.redact.redactor import Redactor
from eaglelab.redact.veil import VARIABLE
from eaglelab.redact.vocabulary import vocabulary

LEFT_OUT = ("identity", "sha256", "of")
"""Hashes are left out everywhere: of a short text, or of a public file, a hash says what was hashed to whoever tries."""


@dataclass(frozen=True)
class Redaction:
    redactor: Redactor
    net: Net
    environment: Mapping[str, str]
    """Of every kernel."""

    def folder(self, number: int) -> str:
        """Name of the number-th case, also of its folder."""
        return f"redacted-{number}" if number > 1 else "redacted"

    def value(self, data: Any) -> Any:
        """Anything for `findings.json`."""
        return self.redactor.value(without_hashes(data))

    def notebook(self, notebook: NotebookNode, notes: Mapping[str, Any]) -> dict[str, Any]:
        """Redact an executed notebook in place; its notes, redacted, with `redacted`: what was removed, by kind."""
        self.redactor.keep(*harmless(notes["provenance"]))
        removed = redact_notebook(notebook, self.redactor)
        return {**self.value(notes), "redacted": account(removed)}

    def data(self, data: Mapping[str, Any], removed: Iterable[Mapping[str, int]]) -> dict[str, Any]:
        """What `findings.json` holds, with `redacted`: what was removed on all pages."""
        total = sum(map(Counter, removed), Counter())
        return {**self.value(data), "redacted": dict(total)}

    def search(self, folder: Path) -> None:
        """The last look. Raises LeakError, and deletes the run, where something of the case is still in it."""
        try:
            self.net.search(folder)
        except LeakError:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def without_hashes(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {k: without_hashes(v) for k, v in data.items() if k not in LEFT_OUT}
    return [without_hashes(v) for v in data] if isinstance(data, (list, tuple)) else data


@contextmanager
def redacting(cases: Sequence[Case], parameters: Iterable[Mapping[str, Any]] = ()) -> Iterator[Redaction]:
    """For the reports of these cases. parameters: those of each notebook, whose samples' texts are to be known."""
    words, known = vocabulary(), Known()
    choices = {(p.get("max_samples", 32) or None, p.get("seed", 0)) for p in parameters} or {(32, 0)}
    most = None if any(m is None for m, _ in choices) else max(m for m, _ in choices)
    for case in cases:
        known.merge(known_of(case, words, most, sorted({s for _, s in choices})))
    redactor = Redactor(known, words)
    redactor.keep(*harmless(collect()))
    with tempfile.TemporaryDirectory(prefix="eaglelab-") as folder:
        path = Path(folder) / "known.json"
        known.write(path, words)
        yield Redaction(redactor, Net(known, words), {VARIABLE: os.fspath(path)})
