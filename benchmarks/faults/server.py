"""What serves a plan: the speculative loop on the world's target, with the wiring, weights and computation that the server really has.

Greedy, one round, no plain decoding beside it. Where the server runs the world's own target over the world's own texts, its states and choices are
known already and are looked up (`Known`); any other target runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from eaglelab.drafter.audit import canonical_name
from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.model import Drafter, Flags
from eaglelab.loop.cached_drafter import CachedDrafter
from eaglelab.loop.result import Speculated
from eaglelab.loop.speculate import speculate
from eaglelab.loop.target import CachedTarget
from eaglelab.served.recording import Recording, RecordingWriter, Request, Session
from faults.plan import Boundary, Plan, Server, World


class Known:
    """A target's passes along one of the world's texts, looked up. Behind a wrong draft it goes on along the text: the loop keeps none of that."""

    device, path = torch.device("cpu"), Path("known")

    def __init__(self, world: World, text: int) -> None:
        beyond = world.beyond[text] if world.beyond else world.texts[text][:0]
        self.ids, self.states, self.filled = torch.cat([world.texts[text], beyond]), world.states[text], 0
        self.rows = len(world.texts[text])
        self.size = int(max(t.max() for t in (*world.texts, *world.beyond))) + 1

    def reset(self) -> None:
        self.filled = 0

    def forward(self, token_ids: Tensor, wiring: Sequence[Boundary] = (), *, last: bool = False) -> tuple[Tensor, list[Tensor]]:
        """As `CachedTarget.forward`: logits that are 1 for the text's next token, and the states."""
        rows = self.filled + torch.arange(len(token_ids))
        self.filled += len(token_ids)
        following = self.ids[(rows + 1).clamp(max=len(self.ids) - 1)]
        rows = rows.clamp(max=self.rows - 1)  # no draft is fed what lies behind the text
        logits = torch.nn.functional.one_hot(following, self.size).float()  # [R, V]
        return logits[-1:] if last else logits, [self.states[b][rows].float() for b in wiring]

    def forget(self, tokens: int) -> None:
        self.filled -= tokens


class Spoilt(CachedDrafter):
    """A drafter whose engine hands it other states than it captured.

    `spoil(states)` gets one [R, H] a place of fc, pass by pass (prompt first), and returns the like. With a method `reset()` it is told of each new request.
    """

    def __init__(self, drafter: Drafter, table: Tensor, flags: Flags | None, spoil) -> None:
        self.spoil = spoil
        super().__init__(drafter, table, flags)

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        if hasattr(self.spoil, "reset"):
            self.spoil.reset()

    def extend(self, states: Sequence[Tensor], next_tokens: Tensor) -> None:
        super().extend(self.spoil(list(states)), next_tokens)


def serve(world: World, server: Server) -> list[Speculated]:
    """The answer to each of the world's prompts, of the text's length."""
    drafter, own = engine_drafter(server)
    known = server.target == world.folder and all(b in world.states[0] for b in server.wiring)
    table = own if own is not None else _table(server.target)
    flags = replace(Flags.of(drafter.config), **server.flags)
    run = CachedDrafter(drafter, table, flags) if server.spoil is None else Spoilt(drafter, table, flags, server.spoil)
    answers = []
    for i, (text, prompt) in enumerate(zip(world.texts, world.prompts, strict=True)):
        target = Known(world, i) if known else _target(server.target)
        answers.append(speculate(target, run, server.wiring, text[:prompt].tolist(), server.num_steps, len(text) - prompt))
    return answers


def engine_drafter(server: Server) -> tuple[Drafter, Tensor | None]:
    """(the drafter as the engine loads it, its own embedding table or None). What the file lacks stays as initialised, by a fixed seed; what it has in
    another shape, or the model has no place for, is left out."""
    torch.manual_seed(0)
    drafter = Drafter(DrafterConfig.from_dict(server.config))
    state, tensors = drafter.state_dict(), {canonical_name(n): t for n, t in server.tensors.items()}
    if "d2t" not in tensors:
        drafter.d2t.zero_()
    taken = {n: t.to(state[n].dtype) for n, t in tensors.items() if n in state and t.shape == state[n].shape}
    drafter.load_state_dict(taken, strict=False)
    own = tensors.get("embed_tokens.weight")
    return drafter.eval().requires_grad_(False), None if own is None else own.float()


@lru_cache(maxsize=4)
def _target(folder: Path) -> CachedTarget:
    return CachedTarget(folder, dtype="float32", device="cpu")


@lru_cache(maxsize=16)
def _table(folder: Path) -> Tensor:
    from eaglelab.target import TensorSource

    source = TensorSource(folder)
    return source.embedding_rows(torch.arange(source.checkpoint.vocab_size)).float()


def record(plan: Plan, answers: list[Speculated], path: Path) -> Recording:
    """Write the recording of a served plan, as `eaglelab live` would have: what the engine was told, and what it counted."""
    server = plan.server
    session = Session(
        engine="==".join(plan.engine),
        url="http://localhost:30000",
        command=plan.launch,
        num_steps=server.num_steps,
        eagle_topk=1,
        num_draft_tokens=server.num_steps + 1,
        max_new_tokens=max(len(a.token_ids) for a in answers),
        draft_config=json.loads(json.dumps(plan.config)),
        started="2026-11-30T12:00:00+00:00",
    )
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, session)
    for i, answer in enumerate(answers):
        prompt = tuple(plan.world.texts[i][: plan.world.prompts[i]].tolist())
        accepted = tuple(p.accepted for p in answer.passes)
        writer.write(
            Request(
                i,
                prompt,
                answer.token_ids,
                sample=f"rows_0-{len(plan.samples)}/data_{i}.pt",
                accepted=accepted,
                verify_steps=len(accepted),
                finish_reason="length",
            )
        )
    writer.end()
    return Recording.load(path)


def accepted_of(answers: list[Speculated]) -> list[tuple[int, int]]:
    """(accepted drafted tokens, verify passes) of each request."""
    return [(sum(p.accepted for p in a.passes), len(a.passes)) for a in answers]
