"""`eaglelab live`: ask, record, compare; one document out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.live.compare import TextComparison, compare_text, gap_by
from eaglelab.live.prompts import Prompt, Prompts, dump_prompts, file_prompts
from eaglelab.live.rise import Rise, rise
from eaglelab.live.run import CONCURRENCY, INTERRUPTED, Recorded, check_same_run, record, session_of
from eaglelab.live.server import Server, ServerError
from eaglelab.live.template import TemplateComparison, compare_template
from eaglelab.opened import NotGiven
from eaglelab.served import Recording, RecordingError
from eaglelab.served.counters import Counters, CountersError, read_counters

if TYPE_CHECKING:
    from eaglelab.case import Case
    from eaglelab.investigation import Investigation
    from eaglelab.served_case import Predicted

FOLDER = "served"
"""In the case's folder: where recordings go unless told otherwise."""
ROWS = 8
"""Differing answers that are printed."""


@dataclass(frozen=True)
class LiveReport:
    recorded: Recorded
    prompts: Prompts
    text: TextComparison
    template: TemplateComparison | None
    """None: the server renders no messages."""
    counters: Counters | None
    """What the server counted; None: it told nothing of speculation (`without_counters` says why)."""
    without_counters: str
    rise: Rise
    replayed: dict[str, Predicted]
    """The replay's walk through the same answers, by what is fed: `the server's config` (`the case's config` where the server's was not read),
    `the dump`."""
    without_replay: str
    """Why `replayed` lacks what the config feeds."""

    @property
    def exit_code(self) -> int:
        """2 where the run stopped before its end or nothing was answered at all."""
        return 2 if self.recorded.stopped is not None or not self.recorded.recording.requests else 0

    def to_json(self) -> dict[str, Any]:
        recording, counters = self.recorded.recording, self.counters
        return {
            "recording": str(recording.path),
            "session": asdict(recording.session),
            "prompts": {"source": self.prompts.source, "count": len(self.prompts.prompts), "notes": self.prompts.notes},
            "asked": self.recorded.asked,
            "answered": len(recording.requests),
            "stopped": self.recorded.stopped,
            "failures": [asdict(f) for f in recording.failures],
            "served": None
            if counters is None
            else {
                "accept_length": counters.accept_length,
                "definition": counters.definition,
                "counts": None if counters.counts is None else counters.counts.to_json(),
                "notes": counters.notes,
            },
            "counters": self.rise.to_json(),
            "text": self.text.to_json(),
            "template": None if self.template is None else self.template.to_json(),
            "replayed": {fed: found.to_json() for fed, found in self.replayed.items()},
            "without_replay": self.without_replay or None,
        }

    def lines(self) -> list[str]:
        recording = self.recorded.recording
        answered, failed = len(recording.requests), len(recording.failures)
        lines = [f"{recording.path}: {answered} of {len(self.prompts.prompts)} prompts of {self.prompts.source} answered, {failed} failed"]
        lines += [f"  {note}" for note in (*self.prompts.notes, *(f"request {f.index}: {f.error}" for f in recording.failures[:3]))]
        lines += ["", f"Text: {self.text.diagnosis[1]}"]
        rows = self.text.table[~self.text.table["same"].astype(bool)]
        for row in rows.head(ROWS).to_dict(orient="records"):
            at = f"token {row['position']} of {row['expected']}"
            lines.append(
                f"  {row['sample'] or row['request']}: {at}, {row['ours']!r} expected, {row['theirs']!r} served, after {row['before']!r}"
            )
        lines += [f"  … {len(rows) - ROWS} more (--json has all)"] if len(rows) > ROWS else []
        lines += [] if self.template is None else [f"Template: {self.template.text}"]
        lines += ["", *self._acceptance()]
        if self.recorded.stopped is not None:
            lines += ["", f"Stopped: {self.recorded.stopped}", "What was answered is kept; the same command goes on with the rest"]
        return lines

    def _acceptance(self) -> list[str]:
        counters = self.counters
        if not self.recorded.recording.requests:
            lines = ["Served acceptance: not told. No request was answered"]
        elif counters is None or counters.accept_length is None:
            lines = [f"Served acceptance: not told. {self.without_counters}"]
        else:
            counts = counters.counts
            n = "" if counts is None else f", {counts.accepted:,} drafts accepted in {counts.verify_steps:,} verify passes"
            lines = [f"Served accept length {counters.accept_length:.3f}{n} ({counters.definition})"]
            steps = range(len(counts.joint or ())) if counts is not None else ()
            joint = ", ".join(f"step {k} {counts.joint_rate(k):.1%}" for k in steps if counts.joint_rate(k) is not None)
            lines += [f"  joint acceptance: {joint}"] if joint else []
            lines += [f"  {note}" for note in counters.notes]
        lines += [f"  {note}" for note in self.rise.notes]
        for fed, found in self.replayed.items():
            if found.predicted is None:
                continue
            served = "" if found.served is None else f", {found.served:.3f} served"
            text = "the same text" if found.same_text else "the same prompts; where the answers part from the dump's, up to there"
            lines.append(
                f"Replayed, boundaries {found.wiring} ({fed} feeds them): {found.predicted:.3f} predicted{served}, {len(found.pairs)} requests, {text}"
            )
            lines.append(f"  {_as_predicted(found)}")
        return lines + ([f"Not replayed: {self.without_replay}"] if self.without_replay else [])


def _as_predicted(found: Predicted) -> str:
    all_of = found.prediction
    told = [r for r in all_of.requests if r.equal is not None]
    differ = f", {all_of.differing:,} of them differ" if all_of.differing else ""
    left = len(all_of.without_states)
    absent = f"; {left} answers are not of the dump's samples" if left else ""
    return f"{sum(r.equal for r in told)} of {len(told)} requests exactly as predicted ({all_of.compared:,} verify passes{differ}){absent}"


def live(
    inv: Investigation,
    server: Server,
    *,
    out: Path | None = None,
    prompts: Path | None = None,
    max_new_tokens: int | None = None,
    concurrency: int = CONCURRENCY,
    replayed: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> LiveReport:
    """Record a server's answers and hold them against the case.

    inv: of the case with the server as its engine, see `with_server`. out: default `served/ENGINE-VERSION-N.jsonl` in the case's folder;
    prompts: a file of prompts in place of the dump's.
    Raises what `dump_prompts`, `file_prompts` and `record` raise, and NotGiven without dump and file.
    """
    asked = prompts_of(inv, prompts)
    out = out or default_out(inv.case.root / FOLDER, server, asked.prompts, max_new_tokens)
    done = record(server, asked.prompts, out, max_new_tokens=max_new_tokens, concurrency=concurrency, notes=asked.notes, say=say)
    asked = replace(asked, prompts=done.prompts)
    counters, why = None, ""
    try:
        counters = read_counters(out)
    except CountersError as error:
        why = str(error)
    recording = done.recording
    found, without = {}, "" if replayed else "not asked for"
    if replayed and done.stopped == INTERRUPTED:
        without = INTERRUPTED
    elif replayed and recording.requests:
        found, without = replays(inv, recording)
    template = compare_template(server, asked.prompts)
    return LiveReport(done, asked, _text(inv, recording, asked), template, counters, why, rise(recording), found, without)


def prompts_of(inv: Investigation, file: Path | None) -> Prompts:
    if file is None:
        return dump_prompts(inv.samples, f"the dump ({inv.sampled})")
    tokenizer = None
    with suppress(NotGiven):  # needed for text alone, whose reader says so
        tokenizer = inv.tokenizer
    return file_prompts(file, tokenizer)


def _text(inv: Investigation, recording: Recording, asked: Prompts) -> TextComparison:
    tokenizer = gap = None
    with suppress(NotGiven, ValueError, OSError):  # ids are shown instead
        tokenizer = inv.tokenizer
    with suppress(NotGiven, ValueError):  # the target's own logits say more, where they can be had
        gap = gap_by(inv.judge, inv.samples) if inv.dump is not None else None
    return compare_text(recording, asked.prompts, tokenizer, gap)


def replays(inv: Investigation, recording: Recording) -> tuple[dict[str, Predicted], str]:
    """The walk through the answers on the dump's states: fed as the server's config says, and as the dump is; and why the first is absent."""
    if inv.case.drafter.path is None or inv.dump is None:
        return {}, "the replay needs `[drafter] path` and `[dump] path`"
    found: dict[str, Predicted] = {}
    why = ""
    try:
        read = recording.session.draft_config is not None
        found["the server's config" if read else "the case's config"] = inv.served.predicted(recording)
    except (NotGiven, ValueError) as error:
        why = str(error)
    with suppress(NotGiven, ValueError):
        held = inv.dump_wiring.select(inv.dump.feed.aux)
        if held.known and all(held != f.wiring for f in found.values()):
            found["the dump"] = inv.served.predicted(recording, held)
    return found, why


def with_server(case: Case, server: Server) -> Case:
    """The case with the server's engine in the place of what it names."""
    engine = server.engine
    return replace(case, engine=replace(case.engine, name=engine.name, version=engine.version, url=server.url))


def default_out(folder: Path, server: Server, prompts: Sequence[Prompt], max_new_tokens: int | None = None) -> Path:
    """The last recording of this engine where it was cut off and is of this run, else the next number. Raises ServerError."""
    stem = str(server.engine).replace("==", "-")
    taken = [int(n) for p in folder.glob(f"{stem}-*.jsonl") if (n := p.stem.removeprefix(f"{stem}-")).isdecimal()]
    last = folder / f"{stem}-{max(taken, default=0)}.jsonl"
    with suppress(RecordingError):
        if taken and not Recording.load(last).ended:
            check_same_run(last, session_of(server, max_new_tokens)[0], prompts)
            return last
    return folder / f"{stem}-{max(taken, default=0) + 1}.jsonl"


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable: the one named, which must be set, or EAGLELAB_API_KEY where that is. Raises ServerError."""
    if variable is not None and variable not in os.environ:
        raise ServerError(f"--api-key-env {variable}: no such variable in the environment")
    return os.environ[variable] if variable is not None else os.environ.get("EAGLELAB_API_KEY") or None
