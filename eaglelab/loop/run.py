"""The loop over prompts, a case's or somebody's own: both ways of decoding in turn, so that a busy machine slows both alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eaglelab.drafter.checkpoint import own_embedding
from eaglelab.drafter.embedding import EmbeddingError, EmbeddingRows
from eaglelab.drafter.model import Drafter, Flags
from eaglelab.findings import few
from eaglelab.live.prompts import Prompt, Prompts
from eaglelab.live.report import prompts_of
from eaglelab.loop.cached_drafter import CachedDrafter
from eaglelab.loop.result import Difference, LoopRequest, LoopResult, Plain, Speculated
from eaglelab.loop.speculate import decode, speculate
from eaglelab.loop.target import CachedTarget
from eaglelab.opened import NotGiven
from eaglelab.progress import progress
from eaglelab.replay import Variant
from eaglelab.served.predict import Prediction, predict, states_of
from eaglelab.timing.bench.clock import failure
from eaglelab.timing.errors import TimingError
from eaglelab.timing.setting import Setting
from eaglelab.wiring import Boundary, Wiring

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation

FEEDS = ("engine", "dump")
WARM_UP = 8
"""Tokens of the first prompt that are answered, both ways, before anything is timed."""


class Loop:
    """Target and drafter loaded, to run any number of settings."""

    def __init__(
        self, target: CachedTarget, drafter: Drafter, wiring: Sequence[Boundary], *, table: Tensor | None = None, flags: Flags | None = None
    ):
        """wiring: the boundary that each place of the drafter's fc is fed. table: [V, H] of the drafter's own, None for the target's.
        flags: another choice than the config's. Raises TimingError where they do not fit each other."""
        config, self.table = drafter.config, target.table if table is None else table
        if len(wiring) != config.num_slots:
            raise TimingError(f"the wiring has {len(wiring)} boundaries {list(wiring)}, the drafter's fc takes {config.num_slots}")
        target.check_wiring(wiring)
        if target.table.shape[1] != config.target_hidden_size:
            raise TimingError(
                f"{target.path.name} has states of {target.table.shape[1]}, the drafter's fc takes {config.target_hidden_size}: is it another "
                "target's drafter?"
            )
        if self.table.shape[1] != config.hidden_size:
            raise EmbeddingError(
                f"the embedding table is {self.table.shape[1]} wide, the drafter's hidden_size is {config.hidden_size}: it needs one of its own"
            )
        said = int(drafter.target_ids.max())
        if said >= min(len(self.table), target.vocab_size):
            raise TimingError(
                f"the drafter says token ids up to {said}, {target.path.name} has {target.vocab_size}: is it another target's?"
            )
        self.target, self.wiring, self.flags = target, tuple(wiring), flags
        self.drafter = CachedDrafter(drafter, self.table, flags)

    def run(
        self,
        prompts: Iterable[Prompt | Sequence[int]],
        *,
        steps: int = 3,
        max_new_tokens: int = 128,
        stop: Collection[int] | None = None,
        rounds: int = 3,
        trace: str | Path | None = None,
    ) -> LoopResult:
        """Answer every prompt both ways, `rounds` times after a warm-up.

        stop: token ids that end an answer; None: the target's own. trace: where to write a chrome trace (`.json`, `.json.gz`) of the
        first prompt, answered once more under the profiler; these times are not counted. Raises TimingError for settings that cannot be, a
        trace that cannot be written there, too little memory, and where no prompt can be answered; single prompts that cannot are left out with a note.
        """
        if min(steps, max_new_tokens, rounds) < 1:
            raise TimingError(f"steps, max_new_tokens and rounds are 1 or more, got {steps}, {max_new_tokens} and {rounds}")
        file = None if trace is None else _writable(Path(trace))
        try:
            return self._run(prompts, steps, max_new_tokens, stop, rounds, file)
        except torch.OutOfMemoryError as error:
            raise TimingError(
                f"{self.target.path.name}: {failure(error)}; give shorter prompts, fewer new tokens, or another device"
            ) from error

    def _run(
        self,
        prompts: Iterable[Prompt | Sequence[int]],
        steps: int,
        max_new_tokens: int,
        stop: Collection[int] | None,
        rounds: int,
        trace: Path | None,
    ) -> LoopResult:
        asked, notes = self._answerable(prompts, max_new_tokens + steps)
        stop = self.target.stop_tokens if stop is None else frozenset(stop)
        self._both(asked[0], steps, min(WARM_UP, max_new_tokens), stop)
        answers: list[list[tuple[Speculated, Plain]]] = [[] for _ in asked]
        turns = [(i, p) for _ in range(rounds) for i, p in enumerate(asked)]
        for i, prompt in progress(turns, "speculative loop"):
            answers[i].append(self._both(prompt, steps, max_new_tokens, stop))
        requests = tuple(self._request(p, both) for p, both in zip(asked, answers, strict=True))
        notes += _about_text(requests)
        if trace is not None:
            notes.append(self._profile(asked[0], steps, max_new_tokens, stop, trace))
        device = self.target.device
        return LoopResult(
            setting=Setting(steps),
            wiring=self.wiring,
            requests=requests,
            max_new_tokens=max_new_tokens,
            device="cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
            dtype=str(self.target.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            notes=tuple(notes),
        )

    def walk(self, result: LoopResult) -> Prediction:
        """What the replay predicts for the same answers, from the target's states along them in another, layer by layer, forward."""
        recording = result.recording()
        samples = states_of(recording, self.target.path, self.wiring, dtype=self.target.dtype, device=str(self.target.device))
        rows = EmbeddingRows(torch.arange(len(self.table)), self.table, "the drafter's embedding table")
        return predict(recording, self.drafter.drafter, samples, rows, Variant(tuple(range(len(self.wiring))), flags=self.flags))

    def _answerable(self, prompts: Iterable[Prompt | Sequence[int]], room: int) -> tuple[list[Prompt], list[str]]:
        """Prompts that the target can answer, and a note on each other one."""
        asked = [p if isinstance(p, Prompt) else Prompt(i, tuple(int(t) for t in p)) for i, p in enumerate(prompts)]
        taken, notes = [], []
        for prompt in asked:
            why, ids = "", prompt.token_ids
            if not ids:
                why = "holds no token"
            elif not 0 <= min(ids) <= max(ids) < self.target.vocab_size:
                why = f"holds token ids {min(ids)} to {max(ids)}, expected 0..{self.target.vocab_size - 1}"
            elif self.target.longest is not None and len(ids) + room > self.target.longest:
                why = f"has {len(ids):,} tokens, which leaves no room for {room:,} more: {self.target.path.name} has {self.target.longest:,} positions"
            if why:
                notes.append(f"prompt {prompt.index} {why}; it was left out")
            else:
                taken.append(prompt)
        if not taken:
            raise TimingError(f"none of {len(asked)} prompts can be answered{': ' if notes else ''}{few(notes, 2, '; ')}")
        return taken, notes

    def _both(self, prompt: Prompt, steps: int, most: int, stop: Collection[int]) -> tuple[Speculated, Plain]:
        plain = decode(self.target, prompt.token_ids, most, stop)
        return speculate(self.target, self.drafter, self.wiring, prompt.token_ids, steps, most, stop), plain

    def _request(self, prompt: Prompt, both: Sequence[tuple[Speculated, Plain]]) -> LoopRequest:
        speculated, plain = zip(*both, strict=True)
        own, other = speculated[0].token_ids, plain[0].token_ids
        difference = None
        if own != other:
            at = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), min(len(own), len(other)))
            tokens = tuple(side[at] if at < len(side) else None for side in (own, other))
            difference = Difference(at, tokens, self._gap((*prompt.token_ids, *own[:at])))
        return LoopRequest(prompt.index, prompt.token_ids, prompt.sample, speculated, plain, difference)

    def _gap(self, prefix: Sequence[int]) -> float:
        """Between the two largest logits behind a text."""
        self.target.reset()
        logits = self.target.forward(torch.tensor(prefix, device=self.target.device), last=True)[0]
        first, second = logits[0].float().topk(2).values.tolist()
        return first - second

    def _profile(self, prompt: Prompt, steps: int, most: int, stop: Collection[int], path: Path) -> str:
        """Write the trace. Returns a note on what is in the file, or why there is none: what was measured is not lost with it."""
        from torch.profiler import ProfilerActivity, profile

        cuda = [ProfilerActivity.CUDA] if self.target.device.type == "cuda" else []
        with profile(activities=[ProfilerActivity.CPU, *cuda]) as profiler:
            self._both(prompt, steps, most, stop)
        why = "the profiler wrote nothing"  # torch writes a line of its own and goes on where it cannot
        try:
            path.unlink(missing_ok=True)
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            why = str(error)
        else:
            if path.is_file() and path.stat().st_size:
                return f"written: {path}, a trace of prompt {prompt.index} answered once more both ways, not counted above"
        return f"{path}: no trace could be written there ({why})"


def open_loop(inv: Investigation, *, feed: str = "engine") -> Loop:
    """The loop of a case.

    feed: `engine`, what the case's engine feeds with its config, and as it computes the drafter; `dump`, what the dump holds, as the
    drafter's config says. Raises NotGiven, TimingError, and what opening the parts raises.
    """
    wiring, flags = _fed(inv, feed)
    folder = inv.case.target.path
    if folder is None:
        raise NotGiven("the target's checkpoint", "`[target] path` names its folder; the loop runs the whole target")
    drafter = inv.drafter
    target = CachedTarget(folder, dtype=drafter.fc.weight.dtype, device=str(drafter.fc.weight.device))
    own = None
    if not (flags is not None and flags.target_embedding):
        own = own_embedding(inv.case.drafter.path, torch.arange(min(target.vocab_size, drafter.config.vocab_size)))
    return Loop(target, drafter, wiring, table=None if own is None else own.rows, flags=flags)


def run_loop(
    inv: Investigation,
    prompts: Prompts | Iterable[Prompt | Sequence[int]] | None = None,
    *,
    feed: str = "engine",
    steps: int | None = None,
    max_prompts: int = 8,
    max_new_tokens: int = 128,
    rounds: int = 3,
    trace: str | Path | None = None,
) -> LoopResult:
    """`open_loop` and `Loop.run`. prompts: by default the dump's own; of these, and of `Prompts`, the first `max_prompts`. steps: by default the
    launch line's. The notes say which prompts were left out."""
    if trace is not None:
        _writable(Path(trace))
    loop, notes = open_loop(inv, feed=feed), []
    if prompts is None:
        prompts = prompts_of(inv, None)
    if isinstance(prompts, Prompts):
        asked, notes = prompts.prompts[:max_prompts], list(prompts.notes)
        if len(asked) < len(prompts.prompts):
            notes.append(f"the first {len(asked)} of {len(prompts.prompts)} prompts of {prompts.source} were asked")
        prompts = asked
    options = {"max_new_tokens": max_new_tokens, "rounds": rounds, "trace": trace}
    result = loop.run(prompts, steps=inv.steps if steps is None else steps, **options)
    return replace(result, notes=(*notes, *result.notes))


def _fed(inv: Investigation, feed: str) -> tuple[Wiring, Flags | None]:
    """The wiring to feed, and the flags to compute with."""
    if feed not in FEEDS:
        raise TimingError(f"feed is {feed!r}, expected {' or '.join(FEEDS)}")
    if feed == "engine":
        fed = inv.engine_wiring
        if fed is None:
            raise NotGiven(
                "an engine to feed as", "`[engine] name` and `version`, the drafter's config and the target's; or feed as the dump does"
            )
        return fed.wiring, inv.engine_flags
    if inv.dump is None:
        raise NotGiven("a dump", "its wiring is what feed=dump runs with")
    return inv.dump_wiring.select(inv.dump.feed.aux), None


def _writable(path: Path) -> Path:
    """The path of a trace, its folder made. Raises TimingError where no file can be written: said before anything is measured."""
    if not path.name.endswith((".json", ".json.gz")):
        raise TimingError(f"{path}: a trace's name ends with .json or .json.gz")
    there = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise TimingError(f"{path}: no trace can be written there ({error})") from error
    if not there:
        with suppress(OSError):
            path.unlink()
    return path


def _about_text(requests: Sequence[LoopRequest]) -> list[str]:
    """A note where speculative and plain text part."""
    apart = [r for r in requests if r.difference is not None]
    if not apart:
        return []
    widest = max(apart, key=lambda r: r.difference.gap)
    return [
        f"{len(apart)} of {len(requests)} answers part from plain decoding's: at the latest where its two largest logits are {widest.difference.gap:.4g} "
        f"apart (prompt {widest.index}, token {widest.difference.position}); passes over one and over several tokens round differently"
    ]
