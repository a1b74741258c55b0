"""One answer as a stream: when which tokens came, and what the engine counted for it.

Shapes: SGLang 0.5.23 entrypoints/http_server.py:951 and managers/tokenizer_manager.py:2625-2690 (`completion_tokens` and, unless it was
told to stream increments, `output_ids` are cumulative); vLLM 0.32.0 entrypoints/openai/completion/serving.py:330-500 (tokens come as
increments, counts with the last chunk, which `include_usage` asks for).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglelab.live.answers import ids_of, object_of
from eaglelab.live.server import Server, ServerError
from eaglelab.live.sglang import STILL as SGLANG_STILL
from eaglelab.live.sglang import spec_counts
from eaglelab.live.vllm import STILL as VLLM_STILL
from eaglelab.served.counts import ServedCounts, count_of, counts_of
from eaglelab.timing.sweep.servers import SettingFailed

MAX_LINE = 2**24
"""Bytes of one chunk."""
COUNTED = re.compile(rb'"completion_tokens":\s*(\d{1,9})')


@dataclass(frozen=True)
class Answer:
    """One prompt's answer. Times in seconds on this machine's monotonic clock."""

    prompt: int
    """Place in the list of prompts."""
    sent: float
    arrivals: tuple[tuple[float, int], ...]
    """(time, tokens of the answer so far), one a chunk that brought tokens."""
    token_ids: tuple[int, ...] | None
    text: str
    finish_reason: str | None = None
    counts: ServedCounts | None = None
    verify_steps: int | None = None

    @property
    def first(self) -> float:
        return self.arrivals[0][0]

    @property
    def last(self) -> float:
        return self.arrivals[-1][0]

    @property
    def tokens(self) -> int:
        return self.arrivals[-1][1]

    @property
    def later(self) -> int:
        """Tokens after the first chunk's: those whose time lies between `first` and `last`."""
        return self.tokens - self.arrivals[0][1]

    @property
    def ttft(self) -> float:
        return self.first - self.sent


@dataclass
class Client:
    """Streams from one server. Safe to use from several threads; `close` cuts off all of them."""

    server: Server
    host: str
    port: int
    key: str | None = None
    model: str | None = None
    """vLLM's name of what it serves."""
    timeout: float = 600.0
    _open: set[socket.socket] = field(default_factory=set)
    _closed: threading.Event = field(default_factory=threading.Event)

    def ask(self, prompt: int, token_ids: Sequence[int], max_new_tokens: int) -> Answer:
        """Greedy, to its end of text or to the bound. Raises SettingFailed."""
        sglang = self.server.engine.name == "sglang"
        if sglang:
            path, body = "/generate", {"input_ids": list(token_ids), "sampling_params": {**SGLANG_STILL, "max_new_tokens": max_new_tokens}}
        else:
            path = "/v1/completions"
            body = {"model": self.model, "prompt": list(token_ids), "max_tokens": max_new_tokens, "return_token_ids": True, **VLLM_STILL}
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        where = f"POST http://{self.host}:{self.port}{path} (prompt {prompt})"
        chunks = _SGLangChunks(where) if sglang else _VLLMChunks(where)
        sent = self._stream(path, body | {"stream": True}, chunks, where)
        try:
            return chunks.answer(prompt, sent)
        except ServerError as error:
            raise SettingFailed(str(error)) from None

    def close(self) -> None:
        self._closed.set()
        for sock in tuple(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _stream(self, path: str, body: dict[str, Any], chunks: _Chunks, where: str) -> float:
        connection, sock = http.client.HTTPConnection(self.host, self.port, timeout=10.0), None
        headers = {"Content-Type": "application/json", "User-Agent": "eaglelab"} | (
            {"Authorization": f"Bearer {self.key}"} if self.key else {}
        )
        until = time.monotonic() + self.timeout
        try:
            if self._closed.is_set():
                raise SettingFailed(f"{where} was cut off")
            connection.connect()
            sock = connection.sock
            sock.settimeout(self.timeout)
            self._open.add(sock)
            sent = time.monotonic()
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            if response.status != 200:
                said = " ".join(response.read(400).decode("utf-8", "replace").split())
                raise SettingFailed(f"{where} answers {response.status}: {_visible(said)}")
            while line := response.readline(MAX_LINE + 1):
                now = time.monotonic()
                if len(line) > MAX_LINE or now > until:
                    what = (
                        f"a chunk of more than {MAX_LINE:,} bytes"
                        if len(line) > MAX_LINE
                        else f"no end of the answer within {self.timeout:g} s"
                    )
                    raise SettingFailed(f"{where}: {what}")
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return sent
                    chunks.take(now, data)
            raise SettingFailed(f"{where}: the stream ended before its end was announced: did the server stop?")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, SettingFailed):
                raise
            what = "no answer" if isinstance(error, TimeoutError) else f"the connection broke ({type(error).__name__})"
            raise SettingFailed(f"{where}: {'was cut off' if self._closed.is_set() else what}") from None
        finally:
            self._open.discard(sock)
            connection.close()


class _Chunks(ABC):
    """The chunks of one answer, read only so far as time allows while it comes; the rest at its end."""

    def __init__(self, where: str) -> None:
        self.where, self.arrivals, self.lines = where, [], []

    @abstractmethod
    def take(self, now: float, data: bytes) -> None:
        """One more piece of the answer, which came at `now`."""

    @abstractmethod
    def answer(self, prompt: int, sent: float) -> Answer:
        """All of it, once it is over."""

    def arrived(self, now: float, tokens: int) -> None:
        if tokens > (self.arrivals[-1][1] if self.arrivals else 0):
            self.arrivals.append((now, tokens))

    def objects(self) -> list[dict[str, Any]]:
        """The kept chunks. Raises SettingFailed for what is none, or an error in their place."""
        found = []
        for line in self.lines:
            try:
                chunk = json.loads(line, parse_constant=lambda _: None)
            except (ValueError, RecursionError):
                chunk = None
            if not isinstance(chunk, dict):
                raise SettingFailed(f"{self.where}: a chunk is no JSON object: {_visible(line[:120].decode('utf-8', 'replace'))}")
            if "error" in chunk:
                raise SettingFailed(f"{self.where}: the server says {_visible(json.dumps(chunk['error'])[:300])}")
            found.append(chunk)
        if not found or not self.arrivals:
            raise SettingFailed(f"{self.where}: the answer holds no tokens")
        return found


class _SGLangChunks(_Chunks):
    cumulative: bool | None = None
    """Whether each chunk repeats all tokens; told by the second one."""

    def take(self, now: float, data: bytes) -> None:
        tokens = COUNTED.findall(data, max(0, data.rfind(b'"completion_tokens"')))
        self.arrived(now, int(tokens[-1]) if tokens else 0)
        if len(self.lines) == 1 and self.cumulative is None and tokens:
            ids = object_of(_parsed(data)).get("output_ids")
            self.cumulative = isinstance(ids, list) and len(ids) == int(tokens[-1])
        if self.cumulative and b'"error"' not in data[:64]:
            self.lines.clear()
        self.lines.append(data)

    def answer(self, prompt: int, sent: float) -> Answer:
        chunks = self.objects()
        meta = object_of(chunks[-1].get("meta_info"))
        reason = meta.get("finish_reason")
        reason = reason.get("type") if isinstance(reason, dict) else reason
        if reason == "abort":
            raise SettingFailed(f"{self.where}: the server gave the request up: {_visible(str(meta.get('finish_reason'))[:200])}")
        parts = chunks[-1:] if self.cumulative or len(chunks) == 1 else chunks
        ids = [ids_of(chunk, "output_ids", self.where) for chunk in parts]
        told = None if None in ids else tuple(token for part in ids for token in part)
        histogram, steps = spec_counts(meta)
        counts = None if histogram is None else ServedCounts.from_histogram(histogram)
        text = "".join(chunk["text"] for chunk in parts if isinstance(chunk.get("text"), str))
        told = told if told is not None and len(told) == self.arrivals[-1][1] else None
        return Answer(prompt, sent, tuple(self.arrivals), told, text, reason if isinstance(reason, str) else None, counts, steps)


class _VLLMChunks(_Chunks):
    def take(self, now: float, data: bytes) -> None:
        tokens = COUNTED.findall(data)
        self.arrived(now, int(tokens[-1]) if tokens else 0)
        self.lines.append(data)

    def answer(self, prompt: int, sent: float) -> Answer:
        chunks = self.objects()
        choices = [c for chunk in chunks for c in chunk.get("choices") or () if isinstance(c, dict)]
        reason = next((r for c in reversed(choices) if isinstance(r := c.get("finish_reason"), str)), None)
        if reason in ("abort", "error"):
            raise SettingFailed(f"{self.where}: the server gave the request up ({reason})")
        ids = [ids_of(c, "token_ids", self.where) for c in choices]
        told = tuple(token for part in ids if part for token in part)
        spec = next((s for c in reversed(chunks) if (s := object_of(object_of(c.get("metrics")).get("speculative_decoding")))), {})
        accepted, histogram = counts_of(spec.get("per_step_accepted")), counts_of(spec.get("acceptance_histogram"))
        counts = None
        if accepted is not None or histogram is not None:
            counts = ServedCounts.from_accepted(accepted) if accepted is not None else ServedCounts.from_histogram(histogram)
        text = "".join(c["text"] for c in choices if isinstance(c.get("text"), str))
        told = told if len(told) == self.arrivals[-1][1] else None
        return Answer(prompt, sent, tuple(self.arrivals), told, text, reason, counts, count_of(spec.get("num_spec_steps")))


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
