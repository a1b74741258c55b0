"""What a running server can be asked, the same for every engine. `sglang.py` and `vllm.py` hold the two kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglelab.engines.conventions import Engine


class ServerError(ValueError):
    """A server that cannot be reached, does not answer, or answers something else than expected; the message says what to do."""

    def __init__(self, text: str, *, status: int | None = None, transient: bool = False, wait: float | None = None) -> None:
        """status: of the HTTP answer, None where there was none. transient: the same request may well be answered a little later, after
        `wait` seconds where the server says so."""
        super().__init__(text)
        self.status, self.transient, self.wait = status, transient, wait


@dataclass(frozen=True)
class Generated:
    """One answer. None: the server does not tell."""

    token_ids: tuple[int, ...] | None
    text: str | None
    finish_reason: str | None = None
    accepted: tuple[int, ...] | None = None
    """Drafted tokens accepted in each verify pass."""
    histogram: tuple[int, ...] | None = None
    verify_steps: int | None = None
    hidden_states: Any = None
    """As the server sent them, where they were asked for: rows of floats, or the name of a file that holds them."""
    meta_info: dict[str, Any] = field(default_factory=dict)
    """What came beside the answer, without the hidden states."""


class Server(ABC):
    """One server at a URL."""

    url: str
    engine: Engine

    @abstractmethod
    def settings(self, info: dict[str, Any], metrics: str | None) -> dict[str, Any]:
        """Fields of a recording's `Session` that the server tells: command, dtype, num_steps, eagle_topk, num_draft_tokens,
        draft_config. info: what `info` gave; metrics: Prometheus text."""

    @abstractmethod
    def close(self) -> None:
        """Cut off what is being asked: waiting calls raise ServerError."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """What the server says of itself (SGLang's /server_info, vLLM's /version and /v1/models). Raises ServerError."""

    @abstractmethod
    def metrics(self) -> str | None:
        """Prometheus text, None where the server gives none. Raises ServerError when it cannot be reached."""

    @abstractmethod
    def generate(self, token_ids: Sequence[int], max_new_tokens: int, *, hidden_states: bool = False) -> Generated:
        """The greedy answer to a prompt given as token ids. Raises ServerError."""

    def render(self, question: str) -> tuple[int, ...] | None:
        """Token ids of a user's question as the server's own chat template renders it, up to where the answer begins. None where the
        server renders none. Raises ServerError."""
        return None
