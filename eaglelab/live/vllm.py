"""A running vLLM server. Shapes of its answers: entrypoints/openai/completion and entrypoints/generate/base of 0.32.0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from eaglelab.engines.conventions import Engine
from eaglelab.live.answers import held, ids_of, object_of, text_of
from eaglelab.live.http import Http
from eaglelab.live.local import served_config
from eaglelab.live.secrets import without_secrets
from eaglelab.live.server import Generated, Server, ServerError
from eaglelab.live.sglang import metrics_text, rendered
from eaglelab.served.counts import count_of, counts_of

STILL = {"temperature": 0.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
"""Greedy, whatever the model's generation_config.json says (vLLM takes its defaults from there)."""
POSITIONS = re.compile(r'^vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?\{[^}]*position="(\d+)"', re.MULTILINE)


class VLLMServer(Server):
    def __init__(self, http: Http, version: str | None, model: str) -> None:
        self._http, self.url, self._model = http, http.url, model
        self.engine = Engine("vllm", version)

    def info(self) -> dict[str, Any]:
        """{`version`, `models`: /v1/models, `vllm_config`: of /server_info, which only VLLM_SERVER_DEV_MODE=1 offers}, without keys."""
        found = {"version": self.engine.version, "models": self._http.json("GET", "/v1/models", timeout=60).get("data")}
        try:
            found["vllm_config"] = self._http.json("GET", "/server_info?config_format=json", timeout=60).get("vllm_config")
        except ServerError as error:
            if error.status is None:
                raise
        return without_secrets(found) or {}

    def metrics(self) -> str | None:
        return metrics_text(self._http)

    def generate(self, token_ids: Sequence[int], max_new_tokens: int, *, hidden_states: bool = False) -> Generated:
        """hidden_states: the name of the file that the server's hidden-states connector wrote, where it runs one."""
        body = {"model": self._model, "prompt": list(token_ids), "max_tokens": max_new_tokens, "return_token_ids": True, **STILL}
        answer = self._http.json("POST", "/v1/completions", body)
        where = f"POST {self.url}/v1/completions"
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if choice is None or ("text" not in choice and "token_ids" not in choice):
            raise ServerError(f"{where}: the answer holds {held(answer)}, expected choices with text. Is it a vLLM server?")
        reason = choice.get("finish_reason")
        if reason in ("abort", "error"):
            raise ServerError(f"{where}: the server gave the request up ({reason})", transient=True)
        told = object_of(object_of(answer.get("metrics")).get("speculative_decoding"))  # --per-request-spec-decode-metrics
        path = object_of(answer.get("kv_transfer_params")).get("hidden_states_path")
        meta = {k: answer[k] for k in ("id", "usage", "metrics", "kv_transfer_params") if answer.get(k) is not None}
        return Generated(
            token_ids=ids_of(choice, "token_ids", where),  # None before 0.10.2
            text=text_of(choice, where),
            finish_reason=reason if isinstance(reason, str) else None,
            accepted=counts_of(told.get("per_step_accepted")),
            histogram=counts_of(told.get("acceptance_histogram")),
            verify_steps=count_of(told.get("num_spec_steps")),
            hidden_states=path if hidden_states else None,
            meta_info=without_secrets(meta) or {},
        )

    def settings(self, info: dict[str, Any], metrics: str | None) -> dict[str, Any]:
        config = object_of(info.get("vllm_config"))
        speculative, model = object_of(config.get("speculative_config")), object_of(config.get("model_config"))
        dtype = model.get("dtype")
        places = [int(p) for p in POSITIONS.findall(metrics or "") if len(p) < 4]
        steps = count_of(speculative.get("num_speculative_tokens")) or (max(places) + 1 if places else None)
        return {
            "dtype": dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
            "num_steps": steps,
            "eagle_topk": None if steps is None else 1,  # vLLM's EAGLE drafts chains
            "num_draft_tokens": None if steps is None else steps + 1,
            "draft_config": served_config(speculative.get("model"), self.url),
        }

    def render(self, question: str) -> tuple[int, ...] | None:
        return rendered(self._http, self._model, question)

    def close(self) -> None:
        self._http.close()
