"""What each run should count, by the replay on the target's own float32 states; the states are made once for each text."""

from __future__ import annotations

from dataclasses import replace

import torch
from runs import BOUNDARIES, EXAMPLE, RECORDED, Run

from eaglelab.drafter.checkpoint import load_drafter
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.dumps import Sample
from eaglelab.replay import Judge, TargetHead, Variant
from eaglelab.served.predict import Prediction, predict, states_of
from eaglelab.served.recording import Recording, Request, Session
from eaglelab.target import TensorSource


class Predictor:
    def __init__(self) -> None:
        tensors = TensorSource(EXAMPLE / "target")
        table = tensors.checkpoint.tensor(tensors.checkpoint.head_name)  # [V, H]; the target ties it to its embedding
        self.embed = EmbeddingRows(torch.arange(len(table)), tensors.embedding_rows(torch.arange(len(table))), "the target")
        self.judge = Judge(BOUNDARIES.index("final"), TargetHead(table, tensors.norm))
        self.drafter, _ = load_drafter(EXAMPLE / "drafter", device="cpu", dtype="float32")
        self._states: dict[tuple[int, ...], Sample] = {}

    def __call__(self, run: Run, recording: Recording) -> Prediction:
        """Against the recording's counts, with the flags of its session."""
        answered = replace(recording, requests=tuple(r for r in recording.requests if r.token_ids))
        new = replace(answered, requests=tuple(r for r in answered.requests if tokens_of(r) not in self._states))
        asked = {f"request {r.index}": tokens_of(r) for r in new.requests}
        self._states |= {asked[s.key]: s for s in states_of(new, EXAMPLE / "target", BOUNDARIES)}
        samples = [replace(self._states[tokens_of(r)], key=f"request {r.index}") for r in answered.requests]
        return predict(answered, self.drafter, samples, self.embed, Variant(run.variant), self.judge)


def tokens_of(request: Request) -> tuple[int, ...]:
    return (*request.prompt_token_ids, *(request.token_ids or ()))


def recorded(run: Run) -> Recording | None:
    """The shipped recording of a run."""
    path = RECORDED / f"{run.name}.jsonl"
    return Recording.load(path) if path.exists() else None


def uncounted(run: Run, texts: Recording) -> Recording:
    """A recording of this run to be: the texts, and no counts. In float32 they are every run's, the target's own greedy answers."""
    session = Session(engine=run.version, num_steps=run.steps, eagle_topk=run.topk, num_draft_tokens=run.nodes)
    bare = tuple(Request(r.index, r.prompt_token_ids, r.token_ids, sample=r.sample) for r in texts.requests)
    return Recording(None, session, bare)
