"""The loop itself: prefill, then draft, verify, sample and draft extend until the answer ends; and plain greedy decoding beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from eaglelab.loop.cached_drafter import CachedDrafter
from eaglelab.loop.clock import Clock
from eaglelab.loop.result import Plain, Speculated, VerifyPass
from eaglelab.loop.target import CachedTarget
from eaglelab.wiring import Boundary


def decode(target: CachedTarget, prompt: Sequence[int], max_new_tokens: int, stop: Collection[int] = ()) -> Plain:
    """Greedy decoding without a drafter, one token a pass. prompt: token ids, one or more. stop: token ids that end an answer."""
    clock, device = Clock(target.device), target.device
    target.reset()
    with clock("prefill") as prefill:
        answer = [int(target.forward(torch.tensor(prompt, device=device), last=True)[0].argmax(-1))]
    seconds = []
    while not _ended(answer, max_new_tokens, stop):
        with clock("decode") as span:
            answer.append(int(target.forward(torch.tensor(answer[-1:], device=device))[0].argmax(-1)))
        seconds.append(span.seconds)
    return Plain(tuple(answer), prefill.seconds, tuple(seconds))


def speculate(
    target: CachedTarget,
    drafter: CachedDrafter,
    wiring: Sequence[Boundary],
    prompt: Sequence[int],
    steps: int,
    max_new_tokens: int,
    stop: Collection[int] = (),
) -> Speculated:
    """Greedy decoding with chains of `steps` drafted tokens. wiring: the boundary that each place of the drafter's fc is fed.

    As engines do it (SGLang 0.5.23, speculative/eagle_worker_v2.py): the target's cache holds everything but the bonus token; a pass verifies
    the bonus token and the draft at once, keeps the longest part of the draft that is the target's own choice, and adds the choice behind
    it; then the drafter's rows of what was kept are written again from the target's states.
    """
    clock, device = Clock(target.device), target.device
    target.reset()
    drafter.reset(len(prompt) + max_new_tokens + steps)
    with clock("prefill") as prefill:
        logits, states = target.forward(torch.tensor(prompt, device=device), wiring, last=True)
        answer = [int(logits.argmax(-1))]
        drafter.extend(states, torch.tensor([*prompt[1:], *answer], device=device))
    passes = []
    while not _ended(answer, max_new_tokens, stop):
        with clock("cycle") as cycle:
            with clock("draft") as draft:
                drafted = drafter.draft(steps)  # [K]
            with clock("verify") as verify:
                bonus = torch.tensor(answer[-1:], device=device)
                logits, states = target.forward(torch.cat([bonus, drafted]), wiring)  # [K + 1, V]
            with clock("sample") as sample:
                chosen = logits.argmax(-1)  # [K + 1]
                accepted = int((chosen[:-1] == drafted).long().cumprod(0).sum())
            target.forget(steps - accepted)
            with clock("draft_extend") as extend:
                drafter.extend([s[: accepted + 1] for s in states], chosen[: accepted + 1])
            new = _until_end(chosen[: accepted + 1].tolist(), max_new_tokens - len(answer), stop)
            answer += new
        seconds = (draft.seconds, verify.seconds, sample.seconds, extend.seconds, cycle.seconds)
        passes.append(VerifyPass(tuple(drafted.tolist()), accepted, len(new), *seconds))
    return Speculated(tuple(answer), prefill.seconds, tuple(passes))


def _ended(answer: list[int], most: int, stop: Collection[int]) -> bool:
    return len(answer) >= most or answer[-1] in stop


def _until_end(new: list[int], most: int, stop: Collection[int]) -> list[int]:
    """The new tokens that still belong to the answer: up to a stop token, and no more than `most`."""
    end = next((i + 1 for i, token in enumerate(new) if token in stop), len(new))
    return new[: min(end, most)]
