"""A small HTTP server that answers as an engine does: the shapes are recorded answers (tests/live_answers), the tokens a test's own.

Faults are switched on by name, one a generation request in the order given: see `Handler.fault`.
"""

from __future__ import annotations

import copy
import json
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).with_name("live_answers")
STEPS = 3
KEY = "sk-the-test-key"


def recorded(name: str) -> Any:
    text = (ANSWERS / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else text


def accepted_of(tokens: int) -> list[int]:
    """What the pretended drafter gets accepted in an answer of so many tokens: 3, 0, 1, 2, 3, 0, … until it is full."""
    accepted, written = [], 1  # the prefill's token
    while written < tokens:
        accepted.append(min((3, 0, 1, 2)[len(accepted) % 4], tokens - written - 1))
        written += accepted[-1] + 1
    return accepted


def histogram_of(accepted: Sequence[int]) -> list[int]:
    return [accepted.count(i) for i in range(max(accepted, default=0) + 1)]


class ContractServer:
    """engine: `sglang` (0.5.23), `sglang-0.5.9`, `sglang-0.5.3`, `vllm` (0.32.0), `vllm-0.9.0` (without token ids) or `html` (no engine)."""

    def __init__(
        self,
        engine: str = "sglang",
        answer: Callable[[list[int]], list[int]] = lambda prompt: list(range(100, 120)),
        *,
        key: str | None = None,
        metrics: bool = True,
        detailed: bool = True,
        stop_token: int | None = None,
    ) -> None:
        """answer: prompt's tokens -> the tokens that the target writes, cut at the bound asked for."""
        self.engine, self.answer, self.key, self.metrics, self.detailed, self.stop_token = (
            engine,
            answer,
            key,
            metrics,
            detailed,
            stop_token,
        )
        self.counted: Callable[[list[int], int], list[int]] = lambda prompt, tokens: accepted_of(tokens)
        """Prompt, tokens of the answer -> accepted drafts of each verify pass."""
        self.template: tuple[list[int], list[int]] | None = None
        """Tokens that its chat template writes before and behind a question; None: it has no /tokenize."""
        self.faults: deque[str] = deque()
        self.dies_after: int | None = None
        """Answers after which it stops listening."""
        self.asked: list[dict[str, Any]] = []
        self.accepted: list[int] = []
        """Of all verify passes since the counters' start."""
        self.tokens = self.requests = self.port = 0
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self.start()

    def start(self) -> None:
        contract = self

        class Bound(Handler):
            server_of = contract

        self.http = Quiet(("127.0.0.1", self.port), Bound)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def reset_counters(self) -> None:
        self.accepted, self.tokens, self.requests = [], 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ContractServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- what an engine answers ---------------------------------------------------------------------------------------------------

    def generate(self, body: dict[str, Any], engine: str) -> dict[str, Any]:
        prompt = body["input_ids"] if engine == "sglang" else body["prompt"]
        bound = body["sampling_params"]["max_new_tokens"] if engine == "sglang" else body["max_tokens"]
        ids = self.answer(prompt)[:bound]
        finish = "length"
        if self.stop_token in ids:
            ids, finish = ids[: ids.index(self.stop_token) + 1], "stop"
        accepted = self.counted(prompt, len(ids))
        with self.lock:
            self.accepted += accepted
            self.tokens += len(ids)
            self.requests += 1
        text = " ".join(map(str, ids))
        return (self._sglang if engine == "sglang" else self._vllm)(ids, text, accepted, finish)

    def _sglang(self, ids: list[int], text: str, accepted: list[int], finish: str) -> dict[str, Any]:
        answer = recorded("sglang-0.5.23-generate.json")
        meta = answer["meta_info"]
        meta |= {"completion_tokens": len(ids), "finish_reason": {"type": finish}, "spec_verify_ct": len(accepted)}
        meta |= {"spec_num_correct_drafts": sum(accepted), "spec_num_proposed_drafts": STEPS * len(accepted)}
        meta |= {"spec_accept_length": len(ids) / max(1, len(accepted)), "spec_correct_drafts_histogram": histogram_of(accepted)}
        if self.engine == "sglang-0.5.9":  # other names: managers/tokenizer_manager.py:1851-1868 of 0.5.9
            meta["spec_accept_histogram"] = meta.pop("spec_correct_drafts_histogram")
            meta["spec_accept_token_num"] = meta.pop("spec_num_correct_drafts")
            meta["spec_draft_token_num"] = meta.pop("spec_num_proposed_drafts")
        elif self.engine == "sglang-0.5.3":  # the number of passes alone: managers/tokenizer_manager.py:1392 of 0.5.3
            answer["meta_info"] = {k: v for k, v in meta.items() if not k.startswith("spec_") or k == "spec_verify_ct"}
        return answer | {"text": text, "output_ids": ids}

    def _vllm(self, ids: list[int], text: str, accepted: list[int], finish: str) -> dict[str, Any]:
        answer = recorded("vllm-0.32.0-completions.json")
        answer["choices"][0] |= {"text": text, "token_ids": ids, "finish_reason": finish, "prompt_token_ids": None}
        if self.engine == "vllm-0.9.0":
            del answer["choices"][0]["token_ids"], answer["metrics"]
        elif not self.detailed:
            answer["metrics"] = None
        else:
            histogram = histogram_of(accepted)
            answer["metrics"]["speculative_decoding"] |= {
                "acceptance_histogram": histogram + [0] * (STEPS + 1 - len(histogram)),
                "num_spec_steps": len(accepted),
                "per_step_accepted": accepted,
            }
        return answer

    def info(self) -> dict[str, Any]:
        info = recorded("sglang-0.5.23-server_info.json")
        if self.key:
            info |= {"api_key": self.key, "launch_command": f"{info['launch_command']} --api-key {self.key}"}
        return info | ({"version": self.engine.removeprefix("sglang-")} if "-" in self.engine else {})

    def prometheus(self) -> str:
        values = {
            "sglang:spec_verify_calls_total": len(self.accepted),
            "sglang:generation_tokens_total": self.tokens,
            "sglang:num_requests_total": self.requests,
            "vllm:spec_decode_num_drafts_total": len(self.accepted),
            "vllm:spec_decode_num_draft_tokens_total": STEPS * len(self.accepted),
            "vllm:spec_decode_num_accepted_tokens_total": sum(self.accepted),
            "vllm:generation_tokens_total": self.tokens,
            "vllm:request_success_total": self.requests,
        }

        def now(line: str) -> str:
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                values[name] = sum(n > int(re.search(r'position="(\d+)"', line)[1]) for n in self.accepted)
            skipped = name == "vllm:request_success_total" and 'finished_reason="length"' not in line
            return re.sub(r" \S+$", f" {float(values[name])}", line) if name in values and not skipped else line

        name = "vllm-0.32.0-metrics.txt" if self.engine.startswith("vllm") else "sglang-0.5.23-metrics.txt"
        return "".join(f"{now(line)}\n" for line in recorded(name).splitlines())


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:  # clients that go away are part of the tests
        pass


class Handler(BaseHTTPRequestHandler):
    server_of: ContractServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        contract, path = self.server_of, self.path.split("?")[0]
        engine = contract.engine.split("-")[0]
        if engine == "html":
            return self.send(200, "<!DOCTYPE html><html><body>Welcome</body></html>", "text/html")
        if path == "/metrics":
            return self.send(200, contract.prometheus(), "text/plain; version=0.0.4") if contract.metrics else self.absent()
        if (
            contract.key
            and (engine == "sglang" or path.startswith("/v1"))
            and self.headers.get("Authorization") != f"Bearer {contract.key}"
        ):
            return self.send(401, {"error": "Unauthorized"})
        old = contract.engine == "sglang-0.5.3"
        answers = {
            "sglang": {"/get_server_info" if old else "/server_info": contract.info},
            "vllm": {"/version": self._vllm_version, "/v1/models": lambda: recorded("vllm-0.32.0-models.json")},
        }[engine]
        return self.send(200, answers[path]()) if path in answers else self.absent()

    def _vllm_version(self) -> dict[str, str]:
        name = self.server_of.engine
        return {"version": name.removeprefix("vllm-")} if "-" in name else recorded("vllm-0.32.0-version.json")

    def do_POST(self) -> None:
        contract = self.server_of
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine = contract.engine.split("-")[0]
        if self.path == "/tokenize" and contract.template is not None:
            head, tail = contract.template
            tokens = [*head, *(ord(c) for c in body["messages"][0]["content"]), *tail]
            return self.send(200, {"tokens": tokens, "count": len(tokens), "max_model_len": 1024})
        if self.path != {"sglang": "/generate", "vllm": "/v1/completions"}.get(engine):
            return self.absent()
        with contract.lock:
            contract.asked.append(body)
            fault = contract.faults.popleft() if contract.faults else None
            if contract.dies_after is not None:
                contract.dies_after -= 1
                if contract.dies_after < 0:
                    fault = "reset"
                if contract.dies_after == 0:
                    threading.Thread(target=contract.stop, daemon=True).start()
        if fault is not None:
            return self.fault(fault, body, engine)
        return self.send(200, contract.generate(body, engine))

    def fault(self, name: str, body: dict[str, Any], engine: str) -> None:
        if name.isdecimal():
            return self.send(int(name), {"error": {"message": f"the server says {name}"}})
        if name == "html":
            return self.send(502, "<html>\x1b[31mBad Gateway</html>", "text/html")
        if name == "invalid":
            return self.send(200, '{"text": "abc", "output_ids": [1, 2', "application/json")
        if name == "hang":
            time.sleep(3)
            return self.close()
        if name == "redirect":
            return self.send(307, {}, location="http://127.0.0.1:9/elsewhere")
        other = {"sglang": "vllm", "vllm": "sglang"}[engine]
        request = {"input_ids": [1], "prompt": [1], "max_tokens": 4, "sampling_params": {"max_new_tokens": 4}}
        answer = self.server_of.generate(request, other) if name == "other engine" else self.server_of.generate(body, engine)
        ids = answer if "output_ids" in answer else answer.get("choices", [{}])[0]
        key = "output_ids" if "output_ids" in answer else "token_ids"
        if name == "no keys":
            return self.send(200, {"answer": "yes"})
        if name == "NaN":
            ids[key] = [*ids[key][:2], float("nan")]
        elif name == "NaN beside":
            answer.setdefault("meta_info", {})["spec_accept_length"] = float("nan")
            answer["usage"] = {"completion_tokens": float("inf")}
        elif name == "negative":
            ids[key] = [-1]
        elif name == "abort":
            reason = {"type": "abort", "message": "out of memory"}
            answer.get("meta_info", {})["finish_reason"] = reason
            ids["finish_reason"] = "abort"
        elif name == "odd counts":
            answer.get("meta_info", {})["spec_correct_drafts_histogram"] = [3, "many", -1]
        text = json.dumps(answer)
        if name == "huge":
            text = text[:-1] + ', "padding": "' + "x" * 2_000_000 + '"}'
        if name in ("truncated", "reset", "drip"):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if name == "drip":
                return self.drip(text)
            self.wfile.write(text[: len(text) // 2].encode())
            return self.close(reset=name == "reset")
        return self.send(200, text, "application/json")

    def drip(self, text: str) -> None:
        for character in text:
            try:
                self.wfile.write(character.encode())
            except OSError:
                return
            time.sleep(0.05)

    def close(self, reset: bool = False) -> None:
        self.close_connection = True
        if reset:  # RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def absent(self) -> None:
        self.send(404, {"detail": "Not Found"})

    def send(self, status: int, content: Any, kind: str = "application/json", **headers: str) -> None:
        body = (content if isinstance(content, str) else json.dumps(copy.copy(content))).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
