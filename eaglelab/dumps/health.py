"""The health of a dump's files: one row a problem, one row a sample, and counts that say "n of N".

Each sample is looked at on its own (`sample_health`, small and picklable, so that workers can do it), then the samples are compared
with each other (`gather`). One bad file is a row, never the end of the scan.

    health = check_health(dump, max_samples=32, vocab_size=163_840)
    health.table      # sample, what, detail, severity
    health.samples    # tokens, slots, hidden, dtype, trained tokens, MB …
    health.summary    # {"checked": 32, "of": 100_000, "problems": {"NaN or Inf": 1}, …}
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pandas as pd
import torch

from eaglelab.acceptance import ratio
from eaglelab.cache import Pieces, Unfinished
from eaglelab.dumps import Dump, DumpError, Sample
from eaglelab.dumps.one_file import OneFile
from eaglelab.dumps.raw_folders import RawFolders
from eaglelab.dumps.rows import BadRows, bad_rows, repeated_rows, same_states
from eaglelab.dumps.sample import shape_problems
from eaglelab.progress import progress

ERROR, WARNING, NOTE = "error", "warning", "note"
WASTE = 1.5
"""A file this many times larger than its tensors (and more than `SLACK` bytes over) holds something else, mostly the whole storage
behind a saved view."""
SLACK = 64 * 1024


@dataclass(frozen=True)
class Problem:
    sample: str
    what: str
    """Short and stable: the counts are by this name."""
    detail: str
    severity: str
    """`error`: the sample cannot be used or misleads; `warning`: look at it; `note`: good to know."""


@dataclass(frozen=True)
class SampleHealth:
    """What one sample's files show. Small: it travels between processes."""

    key: str
    facts: dict[str, Any] = field(default_factory=dict)
    """A row of `Health.samples`; empty when the sample could not be read."""
    problems: tuple[Problem, ...] = ()
    digest: str | None = None
    """Of the token ids and the first row of slot 0: equal digests are one sample stored twice."""


@dataclass(frozen=True)
class Health:
    table: pd.DataFrame
    """One row a problem: sample, what, detail, severity; errors first."""
    samples: pd.DataFrame
    """One row a sample looked at: sample, tokens, slots, hidden, dtype, trained, first_trained, file_mb, tensor_mb, problems. MB are
    10^6 bytes; `trained` is None where the mask is unknown."""
    summary: dict[str, Any]
    """checked, of, text ("32 of 100,000 samples …"), readable, problems {what: samples}, severity {…: problems}, tokens, trained,
    bytes_per_token of the states (None where nothing could be read)."""


def check_health(
    dump: Dump,
    max_samples: int | None = 32,
    seed: int = 0,
    vocab_size: int | None = None,
    hidden_size: int | None = None,
    unfinished: Unfinished | None = None,
) -> Health:
    """Look at a seeded choice of a dump's samples; None = all of them.

    vocab_size: token ids from this number on are out of range (only negative ids are known to be wrong without it).
    hidden_size: the target's H; without it the samples are held against the width that most of them have.
    unfinished: where the samples that were looked at are kept if this is interrupted.
    """
    done = Pieces() if unfinished is None else unfinished.of("health", vocab_size, hidden_size)
    keys = dump.choose(max_samples, seed)
    for key in progress([k for k in keys if k not in done], "health", unit="samples"):
        done[key] = sample_health(dump, key, vocab_size, hidden_size)
    done.end()
    return gather(dump, [done[key] for key in keys])


def sample_health(dump: Dump, key: str, vocab_size: int | None = None, hidden_size: int | None = None) -> SampleHealth:
    """One sample's facts and problems. Never raises for what its files hold."""
    try:
        sample = dump.read(key)
    except DumpError as error:
        return SampleHealth(key, problems=(Problem(key, error.problem, str(error), ERROR),))
    problems = [
        *_shape_problems(sample, hidden_size),
        *_state_problems(sample),
        *_mask_problems(sample),
        *_token_problems(sample, vocab_size),
        *_file_problems(dump, sample),
        *(Problem(key, "put right while reading", note, NOTE) for note in sample.notes),
    ]
    return SampleHealth(key, _facts(dump, sample), tuple(problems), _digest(sample))


def gather(dump: Dump, reports: Iterable[SampleHealth]) -> Health:
    """Compare the samples with each other and lay out the tables. The order of `reports` does not matter."""
    reports = sorted(reports, key=lambda report: report.key)
    problems = [problem for report in reports for problem in report.problems]
    problems += _across(reports, "hidden", "mixed widths", "H = {got}, most samples have {usual}", ERROR)
    problems += _across(reports, "slots", "slots differ", "{got} slots, most samples have {usual}", ERROR)
    problems += _across(reports, "last_state", "last states differ", "{got} by the file, in most samples {usual}", ERROR)
    problems += _across(reports, "dtype", "mixed dtypes", "{got}, most samples have {usual}", WARNING)
    problems += _duplicates(reports)
    counts = Counter(problem.sample for problem in problems)
    facts = [{"sample": r.key, **r.facts, "problems": counts[r.key]} for r in reports]
    problems += [Problem(name, "stray file", _why_stray(dump), NOTE) for name in dump.stray]
    problems += [Problem("", "metadata", note, WARNING) for note in dump.notes]
    problems += [Problem("", "claim", dump.implied.describe(), NOTE)] if dump.implied and dump.implied.certain else []
    order = {ERROR: 0, WARNING: 1, NOTE: 2}
    rows = sorted(dict.fromkeys(problems), key=lambda p: order[p.severity])
    return Health(
        table=pd.DataFrame([vars(p) for p in rows], columns=["sample", "what", "detail", "severity"]),
        samples=pd.DataFrame(facts, columns=SAMPLE_COLUMNS).astype(dict.fromkeys(COUNT_COLUMNS, "Int64")),
        summary=_summary(dump, reports, rows),
    )


def _why_stray(dump: Dump) -> str:
    by_name = isinstance(dump.reader, (OneFile, RawFolders))
    return "left out by its name, unopened" if by_name else "left out: it holds no prompt"


COUNT_COLUMNS = ("tokens", "slots", "trained", "first_trained", "problems")
SAMPLE_COLUMNS = ["sample", "tokens", "slots", "hidden", "dtype", "trained", "first_trained", "file_mb", "tensor_mb", "problems"]


def _facts(dump: Dump, sample: Sample) -> dict[str, Any]:
    mask = sample.loss_mask
    trained = None if mask is None else int(mask.sum())
    return {
        "tokens": len(sample.token_ids),
        "slots": len(sample.slots),
        "hidden": _joined(slot.shape[1] for slot in sample.slots),
        "dtype": _joined(str(slot.dtype).removeprefix("torch.") for slot in sample.slots),
        "trained": trained,
        "first_trained": int(mask.argmax()) if trained else None,
        "file_mb": dump.file_bytes(sample.key) / 1e6,
        "tensor_mb": _bytes(sample) / 1e6,
        "last_state": sample.last_state,
        "state_bytes": sum(slot.nbytes for slot in sample.slots),
    }


def _shape_problems(sample: Sample, hidden_size: int | None) -> Iterable[Problem]:
    key, width = sample.key, sample.slots[0].shape[1]
    found = dict(shape_problems(sample))
    yield from (Problem(key, what, detail, ERROR) for what, detail in found.items())
    if "mixed widths" not in found and hidden_size not in (None, width):
        yield Problem(key, "wrong width", f"H = {width}, the target has {hidden_size}: is this dump of another model?", ERROR)
    if sample.listed_tokens not in (None, len(sample.token_ids)):
        detail = f"{len(sample.token_ids)} tokens, {sample.listed_tokens} by the list beside the samples: are they of another request?"
        yield Problem(key, "length not as listed", detail, ERROR)
    dtypes = [str(slot.dtype).removeprefix("torch.") for slot in sample.slots]
    if len(set(dtypes)) > 1:
        yield Problem(key, "mixed dtypes", f"the slots have the dtypes {dtypes}", WARNING)


def _state_problems(sample: Sample) -> Iterable[Problem]:
    found = [bad_rows(slot) for slot in sample.slots]
    for s, (slot, bad) in enumerate(zip(sample.slots, found, strict=True)):
        if slot.numel() == 0:
            continue
        name, rows = f"slot {s} ({sample.slot_names[s]})", slot.shape[0]
        if len(bad.nan) or len(bad.inf):
            yield Problem(sample.key, "NaN or Inf", f"{name}: {_broken_rows(bad)} of {rows} rows", ERROR)
        if len(bad.zero) == rows:
            yield Problem(sample.key, "all-zero rows", f"{name}: every one of {rows} rows; nothing was captured", ERROR)
        elif len(bad.zero):
            counted = f"{name}: {len(bad.zero)} of {rows} rows, the first is row {int(bad.zero[0])}"
            lost, why = _lost_rows(sample, bad.zero, found)
            detail = f"{counted}; {lost} of them are no padding: {why}" if lost else f"{counted} (padding?)"
            yield Problem(sample.key, "all-zero rows", detail, ERROR if lost else WARNING)
        if len(slot) == len(sample.token_ids):
            again, earlier = repeated_rows(slot, sample.token_ids)
            if len(again):
                detail = (
                    f"{name}: {len(again)} of {rows} rows hold the state of an earlier row of another token, the first is row {int(again[0])} "
                    f"(that of row {int(earlier[0])}): were rows of several ranks or requests gathered twice?"
                )
                yield Problem(sample.key, "repeated rows", detail, ERROR)
    for s, t in combinations(range(len(sample.slots)), 2):
        if same_states(sample.slots[s], sample.slots[t]):
            detail = (
                f"slots {s} and {t} ({sample.slot_names[s]}, {sample.slot_names[t]}) hold the same values: was one layer captured twice?"
            )
            yield Problem(sample.key, "identical slots", detail, WARNING)


def _lost_rows(sample: Sample, zero: torch.Tensor, found: list[BadRows]) -> tuple[int, str]:
    """(how many zero rows [n] of a slot are no padding, why): they train, or other slots of the row are not zero."""
    mask = sample.loss_mask
    train = torch.isin(zero, mask.nonzero().flatten()) if mask is not None else torch.zeros_like(zero, dtype=torch.bool)  # [n]
    alone = ~torch.stack([torch.isin(zero, bad.zero) for bad in found]).all(dim=0)  # [n]
    reasons = [text for held, text in ((train, "the loss mask is 1"), (alone, "other slots are not zero")) if held.any()]
    return int((train | alone).sum()), " or ".join(reasons)


def _broken_rows(bad: BadRows) -> str:
    kinds = (("NaN", bad.nan), ("Inf", bad.inf))
    return " and ".join(f"{kind} in {len(rows)} (first row {int(rows[0])})" for kind, rows in kinds if len(rows))


def _mask_problems(sample: Sample) -> Iterable[Problem]:
    mask, key = sample.loss_mask, sample.key
    if mask is None:
        yield Problem(key, "mask unknown", "no loss mask is stored: which tokens train cannot be told", NOTE)
    elif len(mask) == 0:
        return
    elif not mask.any():
        yield Problem(key, "no response tokens", "the loss mask is all zero: nothing of this sample trains", ERROR)
    elif not mask[1:].any() and len(mask) > 1:
        yield Problem(key, "no response tokens", "only token 0 trains, and no row predicts it", ERROR)
    elif mask.all():
        yield Problem(key, "mask all one", "every token trains, the prompt's too: was the mask lost on the way?", WARNING)


def _token_problems(sample: Sample, vocab_size: int | None) -> Iterable[Problem]:
    ids = sample.token_ids
    wrong = (ids < 0) if vocab_size is None else (ids < 0) | (ids >= vocab_size)  # [T]
    if wrong.any():
        first = int(wrong.int().argmax())
        allowed = "0 or more" if vocab_size is None else f"0..{vocab_size - 1}"
        detail = f"{int(wrong.sum())} of {len(ids)}, the first is {int(ids[first])} at row {first}; expected {allowed}"
        yield Problem(sample.key, "token ids out of range", detail, ERROR)


def _file_problems(dump: Dump, sample: Sample) -> Iterable[Problem]:
    if not isinstance(dump.reader, (OneFile, RawFolders)):  # other files hold more than one sample's tensors
        return
    file, tokens = dump.file_bytes(sample.key), len(sample.token_ids)
    tensors = _bytes(sample) * (tokens + sample.padding) / max(1, tokens)  # the padding is the file's own
    if file > WASTE * tensors and file > tensors + SLACK:
        detail = (
            f"{file / 1e6:.2f} MB on disk for {tensors / 1e6:.2f} MB of tensors; "
            "a view is saved with its whole storage: save tensor.clone()"
        )
        yield Problem(sample.key, "file larger than its tensors", detail, WARNING)


def _across(reports: list[SampleHealth], fact: str, what: str, detail: str, severity: str) -> list[Problem]:
    """A problem for each sample whose fact is not the one that most samples have, unless it has that problem by itself."""
    values = Counter(report.facts[fact] for report in reports if report.facts)
    if len(values) < 2:
        return []
    usual = values.most_common(1)[0][0]
    return [
        Problem(report.key, what, detail.format(got=report.facts[fact], usual=usual), severity)
        for report in reports
        if report.facts and report.facts[fact] != usual and what not in {p.what for p in report.problems}
    ]


def _duplicates(reports: list[SampleHealth]) -> list[Problem]:
    """A few may be meant; where most samples repeat another one, the dump is not what its number of files says."""
    first: dict[str, str] = {}
    again = [r for r in reports if r.digest is not None and first.setdefault(r.digest, r.key) != r.key]
    severity = ERROR if 2 * len(again) > len(reports) else WARNING
    return [Problem(r.key, "duplicate sample", f"same tokens and same first state as {first[r.digest]}", severity) for r in again]


def _digest(sample: Sample) -> str | None:
    if len(sample.token_ids) == 0 or sample.slots[0].numel() == 0:
        return None
    raw = [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in (sample.token_ids, sample.slots[0][0])]
    return hashlib.sha256(b"".join(raw)).hexdigest()


def _summary(dump: Dump, reports: list[SampleHealth], problems: list[Problem]) -> dict[str, Any]:
    keys = {report.key for report in reports}
    by_what = Counter(what for _, what in {(p.sample, p.what) for p in problems if p.severity != NOTE and p.sample in keys})
    bad = {p.sample for p in problems if p.severity == ERROR and p.sample in keys}
    masks = [report.facts["trained"] for report in reports if report.facts and report.facts["trained"] is not None]
    tokens = sum(report.facts["tokens"] for report in reports if report.facts)
    return {
        "checked": len(reports),
        "of": len(dump),
        "bytes_per_token": ratio(sum(r.facts["state_bytes"] for r in reports if r.facts), tokens),
        "readable": sum(bool(report.facts) for report in reports),
        "with_errors": len(bad),
        "problems": dict(by_what.most_common()),
        "severity": dict(Counter(p.severity for p in problems)),
        "tokens": tokens,
        "trained": sum(masks) if masks else None,
        "text": f"{len(reports):,} of {len(dump):,} samples looked at, {len(bad):,} with errors",
    }


def _bytes(sample: Sample) -> int:
    """Of the tensors' own elements, not of the storages behind them."""
    return sum(t.nbytes for t in (*sample.slots, sample.token_ids, sample.loss_mask) if t is not None)


def bytes_of_states(hidden: int, states: int = 4, element: int = 2) -> int:
    """Bytes that a token takes in a dump: `states` slots (three for fc and the last state) of `hidden` values of `element` bytes (bf16: 2)."""
    return states * hidden * element


def _joined(values: Iterable[Any]) -> Any:
    """The one value, or all different ones as text."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else " / ".join(str(value) for value in different)
