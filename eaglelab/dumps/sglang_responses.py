"""Answers of SGLang's `/generate` with `return_hidden_states`, saved as JSON: one response or a list of them in a `.json`, one a line
in a `.jsonl`.

`meta_info["hidden_states"]` is [[a row for each prompt token], row, row, …]: the states at the prompt's tokens, then at each token said but
the last one (0.5.23, scheduler_components/batch_result_processor.py:641-702, output_streamer.py:661-677). The response has `output_ids`; the
prompt's ids are only there if they were saved beside it, under `input_ids`.

The rows are the final state, or, on a server that captures aux states, those side by side: nothing in the response says which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglelab.dumps.containers import DumpError, split_key
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import split_slots
from eaglelab.dumps.listing import Listing
from eaglelab.dumps.sample import Probe, Sample, as_token_ids

MAX_BYTES = 256 << 20
"""Of one JSON document or line. Python's numbers take about five times their text, so this is some 1.5 GB of memory."""
SNIFF_BYTES = 1 << 20
"""`meta_info` stands before the states; a file without it in its first bytes is something else."""
HOW = 'Save {"input_ids": [...], **response} for each request, sent by its ids.'

SAYS = Implied(
    writer="SGLang (/generate with return_hidden_states)",
    last_state="final",
    mask="1 = a token that the target said",
    certain=False,
    source="SGLang 0.5.23, srt/managers/scheduler_components/batch_result_processor.py:641-702, output_streamer.py:661-677",
)
WIDTH = (
    "the rows are taken for the target's final state; where the server captures aux states they are those side by side, and "
    "`[dump] files = { width = H }` splits them"
)


@dataclass
class SglangResponses:
    width: int | None = None
    """H, where the rows hold several aux slots side by side; None: each row is one state, the last one."""
    _starts: dict[str, list[int]] = field(default_factory=dict)
    """Where the lines of a .jsonl begin."""

    name = "sglang_responses"
    looks_for = '.json or .jsonl files of /generate responses with input_ids, output_ids and meta_info {"hidden_states": [[rows], row, …]}'

    @classmethod
    def named(cls, files: Mapping[str, Any]) -> SglangResponses:
        """With the case's own setting, `{"width": H}`."""
        width = files.get("width")
        if set(files) != {"width"} or type(width) is not int or width < 1:
            raise DumpError(f"[dump] files: {dict(files)!r}, expected {{ width = H }}, the target's hidden size, alone", "settings")
        return cls(width)

    @property
    def last_state_kept(self) -> bool:
        return self.width is None

    def keys(self, listing: Listing) -> tuple[list[str], list[str]]:
        """Files are opened here, since one may hold many samples: `answers.jsonl#3`."""
        keys: list[str] = []
        for name in listing.files:
            if name.lower().endswith((".json", ".jsonl")) and _sniff(listing.root / name):
                count = self._count(listing.root / name)
                keys += [name] if count is None else [f"{name}#{i}" for i in range(count)]
        return keys, []

    def paths(self, root: Path, key: str) -> list[Path]:
        return [root / split_key(key)[0]]

    def load(self, root: Path, key: str) -> Sample:
        """The tokens whose states were returned: the prompt's and all that were said but the last. Raises DumpError."""
        name, number = split_key(key)
        path = root / name
        where = str(path) if number is None else f"{path}, response {number}"
        response, notes = self._read(path, number), []
        if isinstance(response, list):
            text = (
                f"{where}: a list of {len(response)}, the answers to one request of several prompts: write each on a line of its own. {HOW}"
            )
            raise DumpError(text, "several responses")
        meta = response.get("meta_info") if isinstance(response, Mapping) else None
        if not isinstance(meta, Mapping) or "hidden_states" not in meta:
            raise DumpError(f"{where}: has no meta_info.hidden_states. Send the request with return_hidden_states: true.", "not a sample")
        prompt, said = (_ids(response, what, where, notes) for what in ("input_ids", "output_ids"))
        _check_meta(meta, prompt, said, where)
        states = state_rows(meta["hidden_states"], where, notes)  # [T, D]
        ids = torch.cat([prompt, said])[: max(0, len(prompt) + len(said) - 1)]
        if len(states) != len(ids):
            raise DumpError(
                f"{where}: {len(states)} rows of states for {len(prompt)} prompt tokens and {len(said)} said, expected {len(ids)}. Rows are "
                "missing where a prompt was read in chunks or from the cache, or only the last state was asked for: use "
                "--disable-radix-cache, a chunked prefill size above the prompt's length, and return_hidden_states: true.",
                "rows missing",
            )
        slots, names = ([states], ["hidden_states"]) if self.width is None else split_slots(states, "hidden_states", self.width, path)
        mask = (torch.arange(len(ids)) >= len(prompt)).long()
        return Sample(key, ids, tuple(slots), mask, tuple(names), tuple(notes))

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        return (SAYS, [WIDTH]) if self.width is None else (None, [])

    def _count(self, path: Path) -> int | None:
        """How many responses a file holds; None for a .json of one, and for one that cannot be read: a row that says why."""
        if path.suffix.lower() == ".jsonl":
            return len(self._lines(path))
        with open(path, "rb") as file:
            if not file.read(SNIFF_BYTES).lstrip().startswith(b"["):
                return None
        try:
            return len(_parse(path, 0))
        except DumpError:
            return None

    def _read(self, path: Path, number: int | None) -> Any:
        if path.suffix.lower() == ".jsonl":
            return _parse(path, _at(self._lines(path), number, path), line=True)
        data = _parse(path, 0)
        return data if number is None else _at(data, number, path)

    def _lines(self, path: Path) -> list[int]:
        """The starts of the lines that are not blank; lines of any length are passed over in pieces."""
        if str(path) not in self._starts:
            starts, start, blank = [], 0, True
            with open(path, "rb") as file:
                while piece := file.readline(SNIFF_BYTES):
                    blank = blank and not piece.strip()
                    if piece.endswith(b"\n"):
                        starts += [] if blank else [start]
                        start, blank = file.tell(), True
            self._starts[str(path)] = starts if blank else [*starts, start]
        return self._starts[str(path)]


def _sniff(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return b'"meta_info"' in file.read(SNIFF_BYTES)
    except OSError:
        return False


def _at(values: Any, number: int | None, path: Path) -> Any:
    if not isinstance(values, list) or number is None or number >= len(values):
        raise DumpError(f"{path}: has no response {number}. Was the file written again?", "missing")
    return values[number]


def _parse(path: Path, start: int, line: bool = False) -> Any:
    """The JSON document from a byte on, or the one line. Raises DumpError."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            text = file.readline(MAX_BYTES + 1) if line else file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise DumpError(
                f"{path}: a response of more than {MAX_BYTES >> 20} MB of JSON is not read. Ask for shorter prompts, or dump tensors.",
                "too large",
            )
        return json.loads(text)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror or error}. Check the path and its permissions.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, DumpError):
            raise
        raise DumpError(f"{path}: damaged or not JSON at byte {start:,} ({str(error)[:200]}). Save it again.") from error


def _ids(response: Mapping[str, Any], what: str, where: str, notes: list[str]) -> Tensor:
    if not isinstance(response.get(what), list):
        raise DumpError(f"{where}: has no {what}, and without the tokens its states are no sample. {HOW}", "no token ids")
    return as_token_ids(response[what], what, where, notes)


def _check_meta(meta: Mapping[str, Any], prompt: Tensor, said: Tensor, where: str) -> None:
    if meta.get("cached_tokens"):
        raise DumpError(
            f"{where}: {str(meta['cached_tokens'])[:20]} of the prompt's tokens came from the cache, so their states are absent. Start the server with "
            "--disable-radix-cache and ask again.",
            "rows missing",
        )
    for key, ids, name in (("prompt_tokens", prompt, "input_ids"), ("completion_tokens", said, "output_ids")):
        if meta.get(key) not in (None, len(ids)):
            text = f"{where}: {key} is {str(meta[key])[:20]}, but there are {len(ids)} {name}: they are not those of this request. {HOW}"
            raise DumpError(text, "other tokens")


def state_rows(value: Any, where: str, notes: list[str]) -> Tensor:
    """[T, D] float32 from lists of rows and rows, in order; a null is a NaN. Raises DumpError where rows differ in width."""
    rows: list[Any] = []
    _gather(value, rows, where)
    try:
        with np.errstate(over="ignore"):  # beyond float32 is an infinity, which the health table shows
            states = torch.from_numpy(np.array(rows, dtype=np.float32))
    except (ValueError, TypeError, OverflowError) as error:
        raise DumpError(f"{where}: hidden_states are not rows of numbers of one width ({str(error)[:120]}).", "not a sample") from error
    if states.dim() != 2 or states.shape[1] == 0:
        raise DumpError(f"{where}: hidden_states hold no rows of numbers.", "not a sample")
    if nulls := sum(row.count(None) for row in rows):
        notes.append(f"{nulls} values of the states are null, which is how SGLang's JSON has NaN and infinities; read as NaN")
    return states


def _gather(value: Any, rows: list[Any], where: str, depth: int = 4) -> None:
    """A list that begins with a number is a row."""
    if not isinstance(value, list) or depth == 0:
        raise DumpError(
            f"{where}: hidden_states is {type(value).__name__} where rows are expected, [[row, row, …], row, …].", "not a sample"
        )
    if value and not isinstance(value[0], list):
        rows.append(value)
        return
    for inner in value:
        _gather(inner, rows, where, depth - 1)
