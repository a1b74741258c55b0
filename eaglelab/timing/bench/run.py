"""Measure a grid: batch sizes and contexts, and for each of them every n of the verify pass and every part of the drafter, in one set of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from eaglelab.drafter.audit import DrafterError
from eaglelab.drafter.checkpoint import choose_dtype, load_drafter
from eaglelab.drafter.config import DrafterConfig, DrafterConfigError
from eaglelab.drafter.device import choose_device
from eaglelab.drafter.model import Drafter
from eaglelab.progress import progress
from eaglelab.timing.bench.bandwidth import Machine, best_of, measure_machine
from eaglelab.timing.bench.clock import FAILURES, Budget, Call, Times, failure, free_bytes, time_calls
from eaglelab.timing.bench.drafter_step import DrafterCalls, extend_counts, kv_shape, step_counts
from eaglelab.timing.bench.result import EXTEND, HEAD, LAYER, STEP, VERIFY, BenchResult, Point
from eaglelab.timing.bench.target_model import SHARE_OF_FREE, STD, TargetModel, load_target
from eaglelab.timing.bench.verify_pass import VerifyPass, kv_bytes, latent_channels, routing, verify_counts
from eaglelab.timing.errors import TimingError

GRIDS = {"cuda": ((1, 4, 16), (128, 1024), (1, 2, 3, 4, 8, 16)), "cpu": ((1, 4), (128, 512), (1, 2, 3, 4, 8))}
"""Batch sizes, contexts and tokens unless asked otherwise."""
REPEATS, SECONDS = 20, 60
DRIFT = 0.15
"""Of bandwidth or peak between the beginning and the end of a run, above which the machine was busy with something else."""


def bench(
    target: str | Path | None,
    drafter: str | Path | Drafter | None,
    *,
    batches: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    dtype: str = "auto",
    device: str = "auto",
    graphs: bool = False,
    repeats: int = REPEATS,
    seconds: float | None = None,
    layers: int | None = None,
    machine: Machine | None = None,
) -> BenchResult:
    """Measure the drafter's step and extend and the target's verify pass.

    target: a checkpoint folder, or a config.json: random weights. drafter: a folder, or a drafter at hand; either may be None.
    batches: requests; contexts: rows of keys and values of each; tokens: n of a verify pass and rows of an extend (1 is added: it is decode);
    None: `GRIDS`. dtype: of both models; auto is bfloat16 on CUDA, float32 on the CPU. graphs: replay captured CUDA graphs. repeats: rounds.
    seconds: for the grid, small batches first: rounds, then whole places are left out where it ends, which the notes say. None: no limit.
    layers: of each kind of layer of the target this many in memory, scaled to all N; None: all. machine: limits that are known already.

    Raises TimingError: nothing to measure, numbers below 1, graphs without CUDA, a target that does not fit, nothing that ran; DrafterError,
    CheckpointError and ForwardError for what cannot be loaded.
    """
    place = choose_device(device)
    usual = GRIDS.get(place.type, GRIDS["cpu"])
    batches, contexts, tokens = (u if asked is None else asked for asked, u in zip((batches, contexts, tokens), usual, strict=True))
    grid = {"batch": batches, "context": contexts, "tokens": tokens}
    for name, values in grid.items():
        if not len(values) or min(values) < 1:
            raise TimingError(f"{name} is {list(values)}, expected whole numbers of 1 or more")
    if repeats < 1:
        raise TimingError(f"repeats is {repeats}, expected 1 or more")
    if target is None and drafter is None:
        raise TimingError(
            "neither a target nor a drafter is given: nothing to measure; --target names a checkpoint folder or a config.json"
        )
    kind = choose_dtype(dtype, place)
    if graphs and place.type != "cuda":
        raise TimingError(f"graphs on {place}: CUDA graphs need a CUDA device; leave --graphs out")
    held_target = None if target is None else load_target(target, place, kind, layers=layers)
    held_drafter, random_drafter, notes = _drafter(drafter, place, kind)
    notes = [*_target_notes(held_target), *notes]
    tokens = sorted({1, *tokens})
    limits = [machine or measure_machine(place, kind)]
    places = [(b, c) for c in sorted(set(contexts)) for b in sorted(set(batches))]
    run = _Run(held_target, held_drafter, tokens, graphs, repeats, place, Budget(seconds, len(places)))
    points: list[Point] = []
    for batch, context in progress(places, "batch sizes and contexts"):
        points += run.points(batch, context)
    if not any(p.ms for p in points):
        raise TimingError(f"nothing could be measured on {place}: {next(p.note for p in points if p.note)}")
    if machine is None:
        limits.append(measure_machine(place, kind))
        notes += drift(*limits)
    return BenchResult(
        best_of(limits),
        tuple(points),
        _about_target(held_target),
        _about_drafter(drafter, held_drafter, random_drafter),
        repeats,
        graphs,
        tuple(notes),
    )


def drift(before: Machine, after: Machine) -> list[str]:
    """A note where the machine's limits moved by more than `DRIFT` during the run: something else ran, or its clock changed."""
    moved = [
        f"{what} {a:.3g} {unit} before and {b:.3g} {unit} after"
        for what, a, b, unit in (
            ("it read", before.read_gb_s, after.read_gb_s, "GB/s"),
            ("it computed", before.peak_tflop_s, after.peak_tflop_s, "TFLOP/s"),
        )
        if max(a, b) > (1 + DRIFT) * min(a, b)
    ]
    return (
        [f"The machine was not quiet: {', '.join(moved)}. Shares are of the better run; run it again on a quiet machine."] if moved else []
    )


class _Run:
    """What stays the same over the grid."""

    def __init__(
        self,
        target: TargetModel | None,
        drafter: Drafter | None,
        tokens: list[int],
        graphs: bool,
        repeats: int,
        device: torch.device,
        budget: Budget,
    ) -> None:
        self.target, self.drafter, self.tokens = target, drafter, tokens
        self.graphs, self.repeats, self.device, self.budget = graphs, repeats, device, budget

    def points(self, batch: int, context: int) -> list[Point]:
        """All points of one batch size and context; those that could not be measured have a note."""
        self.budget.begin()
        if self.budget.left <= 0 and self.budget.begun > 1:
            return self._made({}, batch, context, self.budget.note("its turn did not come"))
        needed, free = self._bytes(batch, context), free_bytes(self.device)
        if free is not None and needed > SHARE_OF_FREE * free:
            note = f"out of memory: keys and values of {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
            return self._made({}, batch, context, note)
        try:
            calls = self._calls(batch, context)
        except FAILURES as error:
            return self._made({}, batch, context, failure(error))
        times = time_calls(calls, self.device, self.repeats, graphs=self.graphs, budget=self.budget)
        return self._made(times, batch, context)

    def _bytes(self, batch: int, context: int) -> int:
        """Keys and values of one point."""
        room, total = max(self.tokens), 0
        if self.target:
            total += kv_bytes(self.target, batch, context, room)
        if self.drafter:
            heads, key, value = kv_shape(self.drafter)
            rows = batch * (context + room) * len(self.drafter.stack)
            total += rows * heads * (key + value) * self.drafter.fc.weight.element_size()
        return total

    def _calls(self, batch: int, context: int) -> list[Call]:
        calls, room = [], max(self.tokens)
        if self.target:
            verify = VerifyPass(self.target, batch, context, room)
            for n in self.tokens:
                calls.append(Call((VERIFY, n), lambda n=n: verify.run(n)))
                for number in self._scaled():
                    rest = [i for i in self.target.in_memory if i not in self.target.held[number]]
                    calls.append(Call((VERIFY, n, number), lambda n=n, rest=rest: verify.run(n, rest)))
        if self.drafter:
            parts = DrafterCalls(self.drafter, batch, context, room)
            for what, run in ((STEP, parts.step), (LAYER, parts.layer), (HEAD, parts.head)):
                calls.append(Call((what, 1), run, warm=True))
            calls += [Call((EXTEND, n), lambda n=n: parts.extend(n), warm=True) for n in self.tokens]
        return calls

    def _scaled(self) -> list[int]:
        """Kinds of layers of which only some are in memory."""
        return [k for k, (kind, held) in enumerate(zip(self.target.kinds, self.target.held, strict=True)) if len(held) < len(kind)]

    def _made(self, times: dict[Any, Times], batch: int, context: int, note: str = "") -> list[Point]:
        missing, points = Times((), note), []
        if self.target:
            for n in self.tokens:
                seen = self._to_all_layers(times, n) if times else missing
                count = verify_counts(self.target, batch, context, n)
                points.append(Point(VERIFY, batch, context, n, seen.ms, count.bytes, count.flops, seen.note, seen.graph))
        if self.drafter:
            by_part = step_counts(self.drafter, batch, context)
            parts = [(STEP, 1, by_part["step"]), (LAYER, 1, by_part["layer"]), (HEAD, 1, by_part["head"])]
            parts += [(EXTEND, n, extend_counts(self.drafter, batch, context, n)) for n in self.tokens]
            for what, n, count in parts:
                seen = times.get((what, n), missing)
                points.append(Point(what, batch, context, n, seen.ms, count.bytes, count.flops, seen.note, seen.graph))
        return points

    def _to_all_layers(self, times: dict[Any, Times], n: int) -> Times:
        """The pass with all N layers: what layers in memory add to it, each kind times how many more there are. Round by round."""
        whole = times[VERIFY, n]
        ms, notes = list(whole.ms), [whole.note]
        for number in self._scaled():
            without, held = times[VERIFY, n, number], len(self.target.held[number])
            notes.append(without.note)
            if len(without.ms) != len(ms):
                ms = []
                break
            more = (len(self.target.kinds[number]) - held) / held
            ms = [t + more * (a - b) for t, a, b in zip(ms, whole.ms, without.ms, strict=True)]
        return Times(tuple(ms), next((note for note in notes if note), ""), whole.graph)


def _drafter(drafter: str | Path | Drafter | None, device: torch.device, dtype: torch.dtype) -> tuple[Drafter | None, bool, list[str]]:
    """The drafter, whether its weights are random, and notes. One whose weights cannot be loaded is measured by its config's shapes."""
    if drafter is None or isinstance(drafter, Drafter):
        return (drafter.to(device, dtype) if drafter else None), False, []
    folder = Path(drafter)
    folder = folder.parent if folder.is_file() else folder
    if not (folder / "config.json").is_file():
        raise DrafterError(f"{drafter}: no config.json; --drafter is the drafter's folder")
    try:
        return load_drafter(folder, device=str(device), dtype=dtype)[0], False, []
    except DrafterConfigError:
        raise
    except DrafterError as error:
        made = Drafter(DrafterConfig.load(folder)).requires_grad_(False)
        for p in made.parameters():
            torch.nn.init.normal_(p, 0, STD) if p.ndim > 1 else torch.nn.init.ones_(p)
        made.to(device)
        for p in made.parameters():
            p.data = p.data.to(dtype)
        return made.eval(), True, [f"The drafter has random weights of its config's shapes: {error}"]


def _target_notes(target: TargetModel | None) -> list[str]:
    if target is None:
        return []
    notes, config = list(target.notes), target.skeleton.base.config
    if any(latent_channels(config, shape) for shape in target.kv_shapes.values()):
        notes.append(
            "MLA: transformers expands the latents of the whole context in every pass, engines do not: passes are slower here, and n tokens beside "
            "one look cheaper, the longer the context. Bytes and operations are counted as an engine's."
        )
    return notes


def _about_target(target: TargetModel | None) -> dict[str, Any] | None:
    if target is None:
        return None
    about = {"name": target.name, "num_layers": target.num_layers, "layers_in_memory": len(target.in_memory)}
    routed = routing(target)
    return about | {"random_weights": target.random_weights, "experts": routed and {"number": routed.total, "chosen": routed.per_token}}


def _about_drafter(given: Any, drafter: Drafter | None, random_weights: bool) -> dict[str, Any] | None:
    if drafter is None:
        return None
    config = drafter.config
    return {
        "name": "" if isinstance(given, Drafter) else Path(given).name,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "layers": config.num_layers,
        "random_weights": random_weights,
    }
