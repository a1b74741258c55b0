"""What is sent to a server: the dump's own prompts, a file's, or those of an earlier recording."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglelab.dumps import Sample

MAX_LINE = 10_000_000
"""Characters of a file's first line that are read to see what the file is."""


class PromptError(ValueError):
    """Prompts that cannot be sent, with what to do."""


@dataclass(frozen=True)
class Prompt:
    """One prompt, and the answer that is expected where there is one."""

    index: int
    """Place in the list that is sent."""
    token_ids: tuple[int, ...]
    answer: tuple[int, ...] | None = None
    """The dump's own answer: the first run of trained tokens."""
    sample: str | None = None
    """Key of the dump's sample, or of the file's line."""
    text: str | None = None


@dataclass(frozen=True)
class Prompts:
    prompts: tuple[Prompt, ...]
    source: str
    """Where they come from, in words."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""


def dump_prompts(samples: Iterable[Sample], source: str = "the dump") -> Prompts:
    """The tokens before the first trained one of each sample, and the run of trained tokens behind them as its answer.

    Of a conversation with several answers only the first one is asked for: later ones depend on it. A sample without a mask or without
    a prompt is left out with a note. Raises PromptError where nothing is left.
    """
    from eaglelab.dumps.mask import spans

    prompts: list[Prompt] = []
    unknown: list[str] = []
    several = total = 0
    for sample in samples:
        total += 1
        found = [] if sample.loss_mask is None else spans(sample.loss_mask)
        if not found or found[0][0] == 0:
            unknown.append(sample.key)
            continue
        several += len(found) > 1
        ids, (start, stop) = sample.token_ids.tolist(), found[0]
        prompts.append(Prompt(len(prompts), tuple(ids[:start]), tuple(ids[start:stop]), sample.key))
    if not prompts:
        raise PromptError(
            f"none of {total} samples of {source} has a prompt: each needs a loss mask with untrained tokens before the first trained one. "
            "Give the prompts as a file, `--prompts FILE.jsonl`"
        )
    notes = []
    if unknown:
        notes.append(f"{len(unknown)} of {total} samples have no mask, or train from the first token, and were left out ({unknown[0]}, …)")
    if several:
        notes.append(f"{several} of {total} samples hold several answers: the first one was asked for")
    return Prompts(tuple(prompts), source, tuple(notes))


def file_prompts(path: str | Path, tokenizer: Any | None = None) -> Prompts:
    """Prompts of a JSONL file: a recording (its prompts, with its answers as what is expected), or an object a line with `token_ids`,
    `messages`, `prompt` or `text`; all but the first need a tokenizer. Raises PromptError, RecordingError, RenderingError."""
    path = Path(path)
    if not path.is_file():
        raise PromptError(f"--prompts {path}: no such file, expected a JSONL file with token_ids, messages, prompt or text in each line")
    if _is_recording(path):
        from eaglelab.served.recording import Recording

        asked = Recording.load(path).requests
        prompts = tuple(Prompt(i, r.prompt_token_ids, r.token_ids, r.sample, r.text) for i, r in enumerate(asked))
        source = f"the recording {path.name}"
    else:
        from eaglelab.renderings import read_jsonl

        lines = enumerate(read_jsonl(path, tokenizer))
        prompts, source = tuple(Prompt(i, tuple(r.ids), None, r.key) for i, r in lines), path.name
    bad = next((p for p in prompts if not p.token_ids or min(p.token_ids) < 0), None)
    if not prompts or bad is not None:
        what = "holds no prompt" if bad is None else f"{bad.sample or f'prompt {bad.index}'} holds no token ids, or negative ones"
        raise PromptError(f"{path}: {what}; expected token ids, 0 or more, in each line")
    return Prompts(prompts, source)


def _is_recording(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as lines:
        try:
            first = json.loads(lines.readline(MAX_LINE))
        except (ValueError, RecursionError):
            return False
    return isinstance(first, dict) and first.get("kind") == "session"
