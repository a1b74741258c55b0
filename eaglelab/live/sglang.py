"""A running SGLang server. Shapes of its answers: entrypoints/http_server.py and managers/tokenizer_manager.py of 0.5.3 to 0.5.23."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eaglelab.engines.conventions import Engine
from eaglelab.live.answers import held, ids_of, text_of
from eaglelab.live.http import Http
from eaglelab.live.local import served_config
from eaglelab.live.secrets import without_secrets
from eaglelab.live.server import Generated, Server, ServerError
from eaglelab.served.answers import HISTOGRAMS
from eaglelab.served.counts import count_of, counts_of

INFO_PATHS = ("/server_info", "/get_server_info")
"""The second one is the only one up to 0.5.6 and deprecated from 0.5.9 on."""
STILL = {"temperature": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
"""Greedy, whatever the server's preferred sampling says."""


class SGLangServer(Server):
    def __init__(self, http: Http, info_path: str, version: str | None) -> None:
        self._http, self._info_path, self.url = http, info_path, http.url
        self.engine = Engine("sglang", version)

    def info(self) -> dict[str, Any]:
        """Server arguments, `version`, `launch_command` (newer versions) and `internal_states`, as /server_info gives them, without keys."""
        return without_secrets(self._http.json("GET", self._info_path, timeout=60)) or {}

    def metrics(self) -> str | None:
        """None without `--enable-metrics`: the path is then absent."""
        return metrics_text(self._http)

    def generate(self, token_ids: Sequence[int], max_new_tokens: int, *, hidden_states: bool = False) -> Generated:
        body = {"input_ids": list(token_ids), "sampling_params": {**STILL, "max_new_tokens": max_new_tokens}}
        if hidden_states:
            body["return_hidden_states"] = True
        answer = self._http.json("POST", "/generate", body)
        where = f"POST {self.url}/generate"
        meta, ids = answer.get("meta_info"), ids_of(answer, "output_ids", where)
        if not isinstance(meta, dict) or (ids is None and "text" not in answer):
            raise ServerError(f"{where}: the answer holds {held(answer)}, expected text, output_ids and meta_info. Is it an SGLang server?")
        reason = meta.get("finish_reason")
        reason = reason.get("type") if isinstance(reason, dict) else reason
        if reason == "abort":
            raise ServerError(f"{where}: the server gave the request up: {str(meta['finish_reason'])[:200]}", transient=True)
        states = meta.pop("hidden_states", None)
        histogram, steps = spec_counts(meta)
        return Generated(
            token_ids=ids,
            text=text_of(answer, where),
            finish_reason=reason if isinstance(reason, str) else None,
            histogram=histogram,
            verify_steps=steps,
            hidden_states=states,
            meta_info=without_secrets(meta) or {},
        )

    def settings(self, info: dict[str, Any], metrics: str | None) -> dict[str, Any]:
        command, dtype, path = (info.get(k) for k in ("launch_command", "dtype", "speculative_draft_model_path"))
        return {
            "command": _with_program(command) if isinstance(command, str) else None,
            "dtype": dtype if isinstance(dtype, str) and dtype != "auto" else None,
            "num_steps": count_of(info.get("speculative_num_steps")),
            "eagle_topk": count_of(info.get("speculative_eagle_topk")),
            "num_draft_tokens": count_of(info.get("speculative_num_draft_tokens")),
            "draft_config": served_config(path, self.url),
        }

    def render(self, question: str) -> tuple[int, ...] | None:
        return rendered(self._http, None, question)

    def close(self) -> None:
        self._http.close()


def _with_program(command: str) -> str:
    """0.5.23 tells the arguments alone."""
    return f"python -m sglang.launch_server {command}" if command.startswith("-") else command


def spec_counts(meta: dict[str, Any]) -> tuple[tuple[int, ...] | None, int | None]:
    """(histogram of accepted drafted tokens a pass, verify passes) of one request's meta_info, under old and new names."""
    histogram = next((h for name in HISTOGRAMS if (h := counts_of(meta.get(name)))), None)
    return histogram, count_of(meta.get("spec_verify_ct"))


def rendered(http: Http, model: str | None, question: str) -> tuple[int, ...] | None:
    """By /tokenize, which takes messages in the same form in both engines (SGLang's older versions take text alone, or have none)."""
    body = {"messages": [{"role": "user", "content": question}], "add_generation_prompt": True, **({"model": model} if model else {})}
    return counts_of(http.json("POST", "/tokenize", body, timeout=60).get("tokens"))


def metrics_text(http: Http) -> str | None:
    """Prometheus text, None where the server has no /metrics or answers something else there."""
    try:
        answer = http.get("/metrics", timeout=60)
    except ServerError as error:
        if error.status is None:
            raise
        return None
    text = answer.body.decode("utf-8", "replace")
    return text if answer.kind.startswith("text/plain") or text.startswith("# ") else None
