"""Which engine answers at a URL, and in which version."""

from __future__ import annotations

from typing import Any

from packaging.version import InvalidVersion, Version

from eaglelab.live.http import Http
from eaglelab.live.server import Server, ServerError
from eaglelab.live.sglang import INFO_PATHS, SGLangServer
from eaglelab.live.vllm import VLLMServer

SGLANG_KEYS = ("internal_states", "speculative_algorithm", "model_path", "tp_size")
"""At least two of these stand in every SGLang's server info."""
ENGINES = ("sglang", "vllm")
ASK_WITHIN = 60.0
"""Seconds for the questions which engine it is."""


def connect(url: str, *, engine: str | None = None, key: str | None = None, timeout: float = 600.0, **options: Any) -> Server:
    """The server at a URL, asked which engine it is. engine: `sglang` or `vllm` where that is known already. options: see `Http`.

    Raises ServerError where nothing answers, where it wants a key, and where it is neither engine.
    """
    if engine not in (None, *ENGINES):
        raise ServerError(f"engine is {engine!r}, expected sglang or vllm")
    http = Http(url, key=key, timeout=timeout, **options)
    found = (None if engine == "vllm" else _sglang(http)) or (None if engine == "sglang" else _vllm(http))
    if found is None:
        what = (
            f"no {'SGLang' if engine == 'sglang' else 'vLLM'} server"
            if engine
            else "neither SGLang (/server_info) nor vLLM (/version, /v1/models)"
        )
        raise ServerError(f"{http.url} answers, but it is {what}. Is this the engine's own port, or a router or web server before it?")
    return found


def _sglang(http: Http) -> SGLangServer | None:
    for path in INFO_PATHS:
        info = _asked(http, path)
        if info is not None and sum(key in info for key in SGLANG_KEYS) >= 2:
            return SGLangServer(http, path, _version(info))
    return None


def _vllm(http: Http) -> VLLMServer | None:
    told = _asked(http, "/version")
    models = None if told is None or "version" not in told else _asked(http, "/v1/models")
    listed = None if models is None else models.get("data")
    names = [m["id"] for m in listed if isinstance(m, dict) and isinstance(m.get("id"), str)] if isinstance(listed, list) else []
    return VLLMServer(http, _version(told), names[0]) if names else None


def _asked(http: Http, path: str) -> dict[str, Any] | None:
    """None where the server answers, but not with a JSON object here."""
    try:
        return http.json("GET", path, timeout=ASK_WITHIN)
    except ServerError as error:
        if error.status is None or error.status in (401, 403, 407) or error.transient:
            raise
        return None


def _version(info: dict[str, Any]) -> str | None:
    """What the server calls its version; None where that is none."""
    text = str(info.get("version"))[:64]
    try:
        Version(text)
    except InvalidVersion:
        return None
    return text.removeprefix("v")
