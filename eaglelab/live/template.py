"""What the server's own chat template writes around a question, and whether the prompts that were sent have it too.

The prompts go as token ids, past the template; users' requests go through it. Both engines render messages at /tokenize (vLLM; SGLang's
newer versions). What two renderings of different questions share is the template's: no tokenizer is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eaglelab.live.prompts import Prompt
from eaglelab.live.server import Server, ServerError
from eaglelab.text import QUESTION, first_difference

OTHER_QUESTION = "7 + 5 = ?"


@dataclass(frozen=True)
class TemplateComparison:
    head: tuple[int, ...]
    """Tokens that the server's template writes before a question (BOS, a system prompt of its own, the user's header)."""
    tail: tuple[int, ...]
    """Tokens that it writes between a question and its answer."""
    begin: int
    """Prompts that begin with `head` …"""
    end: int
    """… that end with `tail` …"""
    of: int
    """… of so many."""

    @property
    def text(self) -> str:
        if self.end == self.begin == self.of:
            return f"the server's chat template writes what stands around the questions of all {self.of} prompts"
        said = []
        if self.end < self.of:
            said.append(
                f"{self.of - self.end} of {self.of} prompts do not end with the {len(self.tail)} tokens that the server's chat template writes "
                "before an answer: chat requests show the drafter another text than these prompts"
            )
        if self.begin < self.of:
            said.append(
                f"{self.of - self.begin} of {self.of} prompts do not begin with the {len(self.head)} tokens that it writes before a question "
                "(another system prompt or BOS, or a longer conversation)"
            )
        return "; ".join(said)

    def to_json(self) -> dict[str, Any]:
        return {"head": self.head, "tail": self.tail, "begin": self.begin, "end": self.end, "of": self.of, "text": self.text}


def compare_template(server: Server, prompts: Sequence[Prompt]) -> TemplateComparison | None:
    """None where the server does not render messages."""
    with suppress(ServerError):
        one, other = (server.render(question) for question in (QUESTION, OTHER_QUESTION))
        if one and other and one != other:
            head, tail = one[: first_difference(one, other)], one[::-1][: first_difference(one[::-1], other[::-1])][::-1]
            begin = sum(p.token_ids[: len(head)] == head for p in prompts)
            end = sum(p.token_ids[len(p.token_ids) - len(tail) :] == tail for p in prompts)
            return TemplateComparison(head, tail, begin, end, len(prompts))
    return None
