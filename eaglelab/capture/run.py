"""States captured from a running server, written as a dump: `capture(server, prompts, out)`.

Every prompt is sent with its answer behind it and one new token asked for, so that the states of the whole sample come from one prefill.
How they come back is told by what the server says of itself; docs/capture.md has the flags that each way needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eaglelab.capture.hook_records import assemble, read_records, record_files
from eaglelab.capture.sglang_aux import rows_of
from eaglelab.capture.told import HOW, Told, ask, hook_config
from eaglelab.capture.vllm_extract import read_extracted
from eaglelab.capture.write import CaptureError, CaptureInfo, CaptureWriter
from eaglelab.dumps import DumpError
from eaglelab.dumps.layouts.layout import split_slots
from eaglelab.findings import few
from eaglelab.live.server import Generated, Server, ServerError

if TYPE_CHECKING:
    from eaglelab.live.prompts import Prompt
    from eaglelab.opened import OpenedCase

__all__ = ["CaptureError", "CaptureResult", "capture"]

MAX_NUMBERS = 40_000_000
"""Of one sample's states as JSON: some 0.8 GB of text, and twice that in memory while it is read."""
IN_A_ROW = 3
"""Requests in a row without an answer after which the server is taken for gone."""


@dataclass(frozen=True)
class CaptureResult:
    path: Path
    info: CaptureInfo
    asked: int
    captured: int
    rows: int
    bytes: int
    skipped: Mapping[int, str]
    """Prompt: why its states were not written."""
    notes: tuple[str, ...] = ()
    """On the flags, and on samples that were written: tokens without rows."""

    @property
    def summary(self) -> str:
        at = f"boundaries {self.info.wiring} by convention" if self.info.wiring is not None else "boundaries not known"
        left = f"; left out: {few([f'prompt {i}: {why}' for i, why in self.skipped.items()], 2, '; ')}" if self.skipped else ""
        return (
            f"{self.captured} of {self.asked} samples captured into {self.path} ({self.rows:,} rows, {self.bytes / 1e6:.1f} MB), {at}{left}"
        )

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self.info, name) for name in ("engine", "way", "boundaries", "layer_ids")}
        counts = {name: getattr(self, name) for name in ("asked", "captured", "rows", "bytes")}
        skipped = {str(i): why for i, why in self.skipped.items()}
        return {"path": str(self.path), **told, **counts, "skipped": skipped, "notes": list(self.notes)}


@dataclass
class Asking:
    """One run through the prompts, and what could not be had of them."""

    server: Server
    prompts: Sequence[Prompt]
    told: Told
    say: Callable[[str], Any]
    skipped: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def answers(self, hidden_states: bool) -> Iterator[tuple[Prompt, Generated]]:
        """One request at a time. Ends when the server seems gone: what was captured is kept."""
        failed = 0
        for prompt in self.prompts:
            if prompt.index in self.skipped:
                continue
            if failed == IN_A_ROW:
                self.skipped[prompt.index] = "not asked: the server had stopped answering"
                continue
            try:
                answer = self.server.generate(sent(prompt), 1, hidden_states=hidden_states)
            except ServerError as error:
                self.skipped[prompt.index], failed = str(error), failed + 1
                continue
            failed = 0
            self.say(f"prompt {prompt.index}: {len(sent(prompt))} tokens")
            yield prompt, answer


def capture(
    server: Server,
    prompts: Sequence[Prompt],
    out: str | Path,
    *,
    case: OpenedCase | None = None,
    layer_ids: Sequence[int] | None = None,
    say: Callable[[str], Any] = print,
) -> CaptureResult:
    """Capture the states of `prompts` (each with its answer behind it) from a running server into the empty or new folder `out`.

    case: gives the target's config, the drafter's, and the loss masks of the dump's samples. layer_ids: those that vLLM extracts, where
    it does not say. A sample that cannot be had is left out with the reason; raises CaptureError where none can, ServerError where the
    server cannot be asked at all.
    """
    asking = Asking(server, prompts, ask(server, case, layer_ids), say)
    writer = CaptureWriter(out, asking.told.info)
    take, rows = {"aux": _returned, "hook": _recorded, "extract": _extracted}[asking.told.info.way], 0
    for prompt, states in take(asking):
        try:
            slots = _slots(states, asking.told)
            count = len(slots[0])
            writer.add(prompt.index, sent(prompt)[:count], slots, _mask(prompt, count, case), prompt.sample)
        except (CaptureError, DumpError) as error:
            asking.skipped[prompt.index] = str(error)
            continue
        rows += count
    captured = len(writer.info.samples)
    if not captured:
        why = next(iter(asking.skipped.values()), "there are no prompts")
        raise CaptureError(f"nothing was captured of {len(prompts)} prompts. The first: {why}")
    notes = (*writer.info.notes, *asking.notes)
    return CaptureResult(Path(out), writer.info, len(prompts), captured, rows, writer.bytes, asking.skipped, notes)


def sent(prompt: Prompt) -> tuple[int, ...]:
    """The tokens whose states are captured."""
    return (*prompt.token_ids, *(prompt.answer or ()))


Taken = Iterator[tuple["Prompt", Tensor | list[Tensor]]]
"""The prompt, and its states: [T, K * H], or one [T, H] a slot."""


def _returned(asking: Asking) -> Taken:
    width = (asking.told.slots or 0) * (asking.told.hidden_size or 0)
    for prompt in asking.prompts:
        if width * len(sent(prompt)) > MAX_NUMBERS:
            asking.skipped[prompt.index] = (
                f"{len(sent(prompt)):,} rows of {width:,} numbers are too much to come as JSON (at most {MAX_NUMBERS:,} numbers): send shorter "
                "prompts, or record with the hook (docs/capture.md)"
            )
    for prompt, answer in asking.answers(hidden_states=True):
        try:
            yield prompt, rows_of(answer, len(sent(prompt)), asking.told.flags)
        except (CaptureError, DumpError) as error:
            asking.skipped[prompt.index] = str(error)


def _recorded(asking: Asking) -> Taken:
    """What is sent is sent one after the other; the records lie on the server's machine and are read when all are answered."""
    asked = [prompt for prompt, _ in asking.answers(hidden_states=False)]
    best: dict[int, tuple[Tensor | None, str]] = {}
    ended: list[str] = []
    for path in record_files(str(hook_config(asking.told.flags).get("out"))):  # of ranks that record the same, or (data parallel) their own
        records = read_records(path)
        ended += records.notes
        for prompt, found in zip(asked, assemble(records, [sent(p) for p in asked]), strict=True):
            before = best.setdefault(prompt.index, found)
            if found[0] is not None and (before[0] is None or len(found[0]) > len(before[0])):
                best[prompt.index] = found
    asking.notes += ended
    for prompt in asked:
        states, said = best[prompt.index]
        if states is None:
            asking.skipped[prompt.index] = said
            continue
        if said:
            asking.notes.append(f"prompt {prompt.index}: {said}")
        yield prompt, states


def _extracted(asking: Asking) -> Taken:
    for prompt, answer in asking.answers(hidden_states=True):
        try:
            yield prompt, read_extracted(answer.hidden_states, sent(prompt))
        except (CaptureError, DumpError) as error:
            asking.skipped[prompt.index] = str(error)


def _slots(states: Tensor | list[Tensor], told: Told) -> list[Tensor]:
    """K tensors [T, H]. Raises CaptureError, DumpError where the width fits no H, or not as many come as the flags say."""
    slots = states
    if isinstance(states, Tensor):
        wide, width = states.shape[1], told.hidden_size
        if width is None:
            raise CaptureError(f"rows of {wide} numbers and no hidden size to cut them by: give the target's config, `[target] config`")
        if wide == width and (told.slots or 1) > 1:
            raise CaptureError(
                f"each row has {wide} numbers, one state, where {told.slots} were expected. Only the final state? Then {HOW}"
            )
        slots = split_slots(states, "what the server sent", width, Path(told.info.engine))[0]
    if told.slots not in (None, len(slots)):
        raise CaptureError(f"{len(slots)} slots came, and by its flags the engine captures {told.slots}, {told.info.wiring}")
    return slots


def _mask(prompt: Prompt, count: int, case: OpenedCase | None) -> Tensor | None:
    """[T] the dump's own where the sample is known, else 1 on the answer; None where neither is."""
    if case is not None and prompt.sample is not None and case.dump is not None:
        try:
            sample = case.dump.load(prompt.sample)
        except (DumpError, OSError):
            sample = None
        same = sample is not None and sample.token_ids[:count].tolist() == list(sent(prompt)[:count])
        if same and sample.loss_mask is not None:
            return sample.loss_mask[:count]
    return None if prompt.answer is None else (torch.arange(count) >= len(prompt.token_ids)).long()
