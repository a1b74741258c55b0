"""JSON over HTTP/1.1 to one server: bounded in time and bytes, retried where that helps, every fault a ServerError that says what to do.

A connection is made for each request and goes straight to the host: the environment's proxies are not used (an engine answers inside
one's own network) and no redirection is followed (the key would go along).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from eaglelab.live.secrets import HIDDEN
from eaglelab.live.server import ServerError

MAX_BYTES = 2**30
"""Bytes of an answer that are read: hidden states of a long prompt as JSON take some 100 MB."""
ATTEMPTS = 4
"""Times that a request is sent where it meets a transient fault."""
BACKOFF = 0.5
"""Seconds before the second attempt; doubled with each further one."""
MAX_WAIT = 30.0
"""Seconds that a server's Retry-After is followed up to."""
BUSY = (429, 502, 503, 504)
"""Answers of a server that starts, is full, or has lost its back end."""
CONNECT = 10.0
"""Seconds within which a server takes a connection."""
BLOCK = 2**16
SECRET = 4
"""Characters from which on a key is taken out of every text: fewer, or digits, stand in an answer by chance."""
SHOWN = 200
"""Characters of an answer that a message shows."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    kind: str
    """Content-Type, in lower case."""
    headers: dict[str, str]
    """Names in lower case."""


class Http:
    """Requests to one base URL. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 600.0,
        attempts: int = ATTEMPTS,
        backoff: float = BACKOFF,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """timeout: seconds that one request may take in all, from connecting to the last byte. key: sent as a bearer token, never shown.

        Raises ServerError for a URL or a key that cannot be used.
        """
        self.url, self._secure, self._host, self._port, self._path = parse_url(url)
        self._secret = key if key and len(key) >= SECRET and not key.isdecimal() else ""
        self._headers = {"Accept": "application/json, text/plain", "User-Agent": "eaglelab"}
        if key is not None:
            if not re.fullmatch(r"[\x21-\x7e]+", key):
                raise ServerError("the API key is empty or holds white space or characters outside ASCII: is its variable set right?")
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout, self._attempts, self._backoff, self._max_bytes = timeout, attempts, backoff, max_bytes
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()

    def get(self, path: str, *, timeout: float | None = None) -> Answer:
        """One answer with status 200. Raises ServerError."""
        return self._retried(lambda: self._checked("GET", path, None, timeout))

    def json(self, method: str, path: str, body: Any = None, *, timeout: float | None = None) -> dict[str, Any]:
        """The JSON object that answers. NaN and infinities in it are None. Raises ServerError."""
        sent = None if body is None else json.dumps(body).encode()
        return self._retried(lambda: self._object(self._checked(method, path, sent, timeout), f"{method} {self.url}{path}"))

    def close(self) -> None:
        """Cut off all requests under way, and refuse further ones."""
        self._closed.set()
        for sock in tuple(self._open):
            _cut(sock)

    def _retried(self, ask: Callable[[], Any]) -> Any:
        for attempt in range(1, self._attempts + 1):
            try:
                return ask()
            except ServerError as error:
                error.args = (self._without_key(str(error)),)
                if not error.transient or attempt == self._attempts or self._closed.is_set():
                    raise
                wait = error.wait or self._backoff * 2 ** (attempt - 1) * random.uniform(0.8, 1.2)
                self._closed.wait(min(wait, MAX_WAIT))
        raise AssertionError("not reached")

    def _checked(self, method: str, path: str, body: bytes | None, timeout: float | None) -> Answer:
        answer = self._ask(method, path, body, timeout or self._timeout)
        if answer.status == 200:
            return answer
        raise ServerError(
            _status_text(answer, f"{method} {self.url}{path}"),
            status=answer.status,
            transient=answer.status in BUSY,
            wait=_seconds(answer.headers.get("retry-after")),
        )

    def _object(self, answer: Answer, where: str) -> dict[str, Any]:
        try:
            found = json.loads(answer.body, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            found = None
            what = "HTML" if _is_html(answer) else "no JSON"
        else:
            what = f"a JSON {type(found).__name__}" if not isinstance(found, dict) else ""
        if found is None or what:
            raise ServerError(
                f"{where} answers {what or 'null'}, expected a JSON object: {_shown(answer.body)}. Is this the engine's own port?",
                status=answer.status,
            )
        return found

    def _without_key(self, text: str) -> str:
        return text.replace(self._secret, HIDDEN) if self._secret else text

    def _ask(self, method: str, path: str, body: bytes | None, timeout: float) -> Answer:
        where = f"{method} {self.url}{path}"
        connection, sock, expired = self._connection(timeout), None, threading.Event()

        def give_up() -> None:
            expired.set()
            _cut(sock)

        watch = threading.Timer(timeout, give_up)  # a server that drips restarts the socket's own time-out with every byte
        watch.daemon = True
        try:
            if self._closed.is_set():
                raise ServerError(f"{where} was cut off")
            connection.connect()
            connection.sock.settimeout(timeout)
            sock = connection.sock  # the connection lets go of it when the answer's head is there
            self._open.add(sock)
            watch.start()
            headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
            connection.request(method, self._path + path, body, headers)
            response = connection.getresponse()
            read = self._read(response, where)
            if self._secret:  # an answer may echo it
                read = read.replace(self._secret.encode(), HIDDEN.encode())
            if expired.is_set():
                raise TimeoutError
            return Answer(response.status, read, response.getheader("Content-Type", "").lower(), _headers(response))
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, ServerError):
                raise
            if self._closed.is_set():
                raise ServerError(f"{where} was cut off") from None
            if expired.is_set() or (sock is not None and isinstance(error, TimeoutError)):
                raise ServerError(
                    f"{where} took longer than {timeout:g} s and was given up: is the server busy with other requests, or hanging? "
                    "`--timeout` gives it longer"
                ) from None
            raise self._fault(error, where, reached=sock is not None) from None
        finally:
            watch.cancel()
            self._open.discard(sock)
            connection.close()

    def _read(self, response: http.client.HTTPResponse, where: str) -> bytes:
        blocks, size = [], 0
        while block := response.read(BLOCK):
            size += len(block)
            if size > self._max_bytes:
                raise ServerError(f"{where} sends more than {self._max_bytes:,} bytes: the rest was not read. Ask for less at a time")
            blocks.append(block)
        missing = response.length or 0  # what Content-Length promised and did not come
        if missing > 0:
            raise http.client.IncompleteRead(b"", missing)
        return b"".join(blocks)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        within = min(timeout, CONNECT)
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, timeout=within, context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, self._port, timeout=within)

    def _fault(self, error: Exception, where: str, reached: bool) -> ServerError:
        place = f"{self._host}:{self._port}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServerError(
                f"{place}: its certificate is not trusted ({error.verify_message}). SSL_CERT_FILE may name the file of the authority that signed it"
            )
        if isinstance(error, ssl.SSLError):
            return ServerError(f"{place} does not speak TLS ({error.reason or error}): is it http:// rather than https://?")
        if isinstance(error, socket.gaierror):
            return ServerError(f"{self._host}: no such host ({error.strerror}). Is the name in --url right?")
        if isinstance(error, ConnectionRefusedError):
            return ServerError(f"nothing listens at {place}: is the server up, and on this port?{self._proxies()}", transient=True)
        if isinstance(error, OSError) and not reached:
            return ServerError(f"{place} cannot be reached ({error.strerror or error}).{self._proxies()}", transient=True)
        if isinstance(error, (http.client.BadStatusLine, http.client.LineTooLong, http.client.UnknownProtocol)) and not isinstance(
            error, http.client.RemoteDisconnected
        ):
            return ServerError(f"{place} does not speak HTTP ({_shown(str(error))}): is it another port, or https://?")
        if isinstance(error, (OSError, http.client.IncompleteRead)):
            return ServerError(
                f"{where}: the connection broke before the whole answer was there ({type(error).__name__}): did the server stop?",
                transient=True,
            )
        return ServerError(f"{where}: {type(error).__name__}: {_shown(str(error))}")

    def _proxies(self) -> str:
        named = [n for n in ("http_proxy", "https_proxy", "all_proxy") if os.environ.get(n) or os.environ.get(n.upper())]
        return f" ({', '.join(named)} of the environment is not used: the server is asked directly)" if named else ""


def parse_url(url: str) -> tuple[str, bool, str, int, str]:
    """(base URL, TLS, host, port, path) of `http://host:30000`; a `/v1` at its end is left out. Raises ServerError."""
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ServerError(f"--url {_shown(url)!r} is no URL ({error}), expected one like http://localhost:30000") from None
    if parts.username is not None or parts.password is not None:
        raise ServerError("--url holds a user name or a password, which a recording would show: put a key into EAGLELAB_API_KEY")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or not re.fullmatch(r"[\x21-\x7e]+", text)
    ):
        raise ServerError(f"--url {_shown(url)!r} is no URL of a server, expected one like http://localhost:30000")
    path = parts.path.rstrip("/").removesuffix("/v1")
    secure = parts.scheme == "https"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{parts.scheme}://{host}" + (f":{port}" if port else "") + path
    return base, secure, parts.hostname, port or (443 if secure else 80), path


def _status_text(answer: Answer, where: str) -> str:
    text = f"{where} answers {answer.status}"
    said = _shown(answer.body)
    if answer.status in (401, 403):
        return f"{text}: it wants a key, or another one. Put it into EAGLELAB_API_KEY, or name its variable with --api-key-env"
    if answer.status == 407 or (answer.status >= 400 and "via" in answer.headers):
        return f"{text} ({said}): a proxy stands before the server; give the server's own address"
    if 300 <= answer.status < 400:
        return f"{text} and points to {_shown(answer.headers.get('location', 'nowhere'))}, which is not followed: give the address of the engine itself"
    if answer.status == 404:
        return f"{text}: no such path here. Is this the port of SGLang (30000) or vLLM (8000)?"
    if _is_html(answer):
        return f"{text} with a page of HTML ({said}): a web server or a proxy, not the engine"
    return f"{text}: {said or 'nothing more'}"


def _is_html(answer: Answer) -> bool:
    return "html" in answer.kind or answer.body[:256].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _shown(text: str | bytes) -> str:
    """The beginning of untrusted text on one line, without what a terminal would obey."""
    text = text[: 4 * SHOWN].decode("utf-8", "replace") if isinstance(text, bytes) else text[: 4 * SHOWN]
    text = "".join(c if c.isprintable() else " " for c in text)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _seconds(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,6}", text) else None


def _cut(sock: socket.socket | None) -> None:
    """Wake the thread that waits on a socket: it meets the end of the stream."""
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
