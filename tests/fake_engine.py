"""A server that behaves like SGLang or vLLM so far as a sweep asks: it streams, counts, and takes time by a known law.

    python tests/fake_engine.py sglang --port 30000 [the engine's own flags]

`installed(folder)` makes packages `sglang` and `vllm` of it, so that real launch lines start it. Its law: a cycle takes PLAIN seconds without
speculation and PLAIN * (1 + COST * (verified - 1)) with it, whatever the batch; cycle j of an answer accepts min(PATTERN[j % 4], steps) drafts.
Faults come from the environment variable FAKE_FAULT, `NAME` for every setting or `NAME@STEPS` for one.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PLAIN = 0.004
COST = 0.15
PATTERN = (3, 0, 1, 2)
ANSWERS = Path(__file__).with_name("live_answers")


def installed(folder: Path) -> Path:
    """Packages under `folder`, which goes into PYTHONPATH."""
    for module, engine in (("sglang/launch_server.py", "sglang"), ("vllm/entrypoints/openai/api_server.py", "vllm")):
        path = folder / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport fake_engine\nfake_engine.main({engine!r}, sys.argv[1:])\n"
        )
        for parent in path.relative_to(folder).parents:
            (folder / parent / "__init__.py").touch() if str(parent) != "." else None
    return folder


def accept_length(steps: int) -> float:
    return 1 + sum(min(n, steps) for n in PATTERN) / len(PATTERN)


def speedup(steps: int, verified: int) -> float:
    return accept_length(steps) / (1 + COST * (verified - 1))


def answer_of(prompt: list[int], tokens: int) -> list[int]:
    return [(sum(prompt) * 31 + 7 * i) % 1000 for i in range(tokens)]


class Engine:
    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name, self.given = name, _flags(arguments)
        config = json.loads(self.given.get("speculative-config", "{}"))
        if name == "vllm":
            self.steps, self.topk = config.get("num_speculative_tokens", 0), 1
            self.nodes = self.steps + 1
        else:
            self.steps, self.topk, self.nodes = (
                int(self.given.get(f"speculative-{n}", d)) for n, d in (("num-steps", 0), ("eagle-topk", 1), ("num-draft-tokens", 1))
            )
        fault, _, steps = os.environ.get("FAKE_FAULT", "").partition("@")
        self.fault = fault if not steps or int(steps) == self.steps else ""
        self.lock, self.passes, self.drafts, self.positions, self.asked = threading.Lock(), 0, 0, [0] * self.steps, 0
        self.cost = float(os.environ.get("FAKE_COST", COST))

    @property
    def cycle(self) -> float:
        return PLAIN * (1 + self.cost * (self.nodes - 1)) if self.steps else PLAIN

    def passes_of(self, tokens: int) -> list[int]:
        """Accepted drafts of each verify pass."""
        if not self.steps:
            return []
        accepted, written = [], 1
        while written < tokens:
            accepted.append(min(PATTERN[len(accepted) % 4], self.steps))
            written += accepted[-1] + 1
        return accepted

    def count(self, accepted: list[int]) -> None:
        with self.lock:
            self.asked += 1
            self.passes += len(accepted)
            self.drafts += sum(accepted)
            for k in range(self.steps):
                self.positions[k] += sum(n > k for n in accepted)

    def metrics(self) -> str:
        labels = 'engine="0",model_name="m"'
        rows = (
            []
            if not self.steps
            else [
                f"vllm:spec_decode_num_drafts_total{{{labels}}} {self.passes}.0",
                f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {self.passes * self.steps}.0",
                f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {self.drafts}.0",
                *(
                    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{k}"}} {n}.0'
                    for k, n in enumerate(self.positions)
                ),
            ]
        )
        return "\n".join(["# HELP x", f"vllm:generation_tokens_total{{{labels}}} 1.0", *rows, ""])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        e, path = self.engine, self.path.split("?")[0]
        if e.fault == "not ready":
            return self.send(503, {"error": "starting"})
        if e.fault == "garbage http":
            self.wfile.write(b"\x00\x01 not HTTP at all\r\n\r\n")
            self.close_connection = True
            return None
        if path == "/server_info" and e.name == "sglang":
            info = json.loads((ANSWERS / "sglang-0.5.23-server_info.json").read_text())
            steps = 7 if e.fault == "other steps" else e.steps
            given = (steps, e.topk, e.nodes) if steps else (None, None, None)
            for name, value in zip(("num_steps", "eagle_topk", "num_draft_tokens"), given, strict=True):
                info[f"speculative_{name}"] = value
            info |= {"speculative_algorithm": "EAGLE3" if steps else None, "dp_size": 1}
            info["max_running_requests"] = int(e.given.get("max-running-requests", 48))
            return self.send(200, info)
        if e.name == "vllm" and path in ("/version", "/v1/models"):
            return self.send(200, {"version": "0.32.0"} if path == "/version" else {"object": "list", "data": [{"id": "m"}]})
        if e.name == "vllm" and path == "/metrics":
            return self.send(200, e.metrics(), "text/plain; version=0.0.4")
        return self.send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        e, body = self.engine, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if e.fault == "500":
            return self.send(500, {"error": {"message": "out of everything"}})
        prompt = body["input_ids"] if e.name == "sglang" else body["prompt"]
        bound = body["sampling_params"]["max_new_tokens"] if e.name == "sglang" else body["max_tokens"]
        ids = answer_of([*prompt, 1] if e.fault == "other text" else prompt, bound)
        accepted = e.passes_of(bound)
        if e.fault == "dies" and body.get("stream") and e.asked > 2:
            os._exit(3)
        if not body.get("stream"):
            time.sleep(PLAIN)
            e.count(accepted)
            return self.send(200, self.last(ids, accepted, len(ids)))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        begun, ends = time.monotonic(), [1]
        for n in accepted or [0] * (bound - 1):
            ends.append(min(bound, ends[-1] + n + 1))
        for place, end in enumerate(ends):
            time.sleep(max(0.0, begun + (place + 1) * e.cycle - time.monotonic()))
            done = place == len(ends) - 1
            if done:
                e.count(accepted)
            self.chunk(self.part(ids, ends[place - 1] if place else 0, end, accepted, done))
        if e.name == "vllm":
            self.chunk({"choices": [], "usage": {"completion_tokens": bound}})
        return self.chunk("[DONE]")

    def part(self, ids: list[int], start: int, end: int, accepted: list[int], done: bool) -> dict[str, Any]:
        if self.engine.name == "vllm":
            reason = "length" if done else None
            choice = {"index": 0, "text": "x", "token_ids": ids[start:end], "finish_reason": reason}
            return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": end}}
        if done:
            return self.last(ids, accepted, end)
        return {
            "text": "x",
            "output_ids": ids[:end],
            "meta_info": {"id": "1", "finish_reason": None, "prompt_tokens": 1, "completion_tokens": end},
        }

    def last(self, ids: list[int], accepted: list[int], end: int) -> dict[str, Any]:
        if self.engine.name == "vllm":
            answer = json.loads((ANSWERS / "vllm-0.32.0-completions.json").read_text())
            answer["choices"][0] |= {"text": "x", "token_ids": ids, "finish_reason": "length"}
            return answer | {"metrics": None}
        answer = json.loads((ANSWERS / "sglang-0.5.23-generate.json").read_text())
        meta = {k: v for k, v in answer["meta_info"].items() if not k.startswith("spec_")}
        meta |= {"completion_tokens": end, "finish_reason": {"type": "length", "length": end}}
        if accepted:
            meta["spec_verify_ct"] = len(accepted)
            meta["spec_correct_drafts_histogram"] = [accepted.count(i) for i in range(max(accepted) + 1)]
        return {"text": "x", "output_ids": ids, "meta_info": meta}

    def chunk(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def send(self, status: int, content: Any, kind: str = "application/json") -> None:
        body = (content if isinstance(content, str) else json.dumps(copy.copy(content))).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass


def _flags(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            found[word[2:].split("=")[0].replace("_", "-")] = word.partition("=")[2] or value
    return found


def main(name: str, arguments: list[str]) -> None:
    engine = Engine(name, arguments)
    print(f"fake {name}: {' '.join(arguments)}; fault {engine.fault or 'none'}; NCCL_ALGO {os.environ.get('NCCL_ALGO')}", flush=True)
    if engine.fault in ("ignores", "forks"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if record := os.environ.get("FAKE_STARTS"):
        with open(record, "a") as file:
            file.write(f"{os.getpid()} {engine.steps}-{engine.topk}-{engine.nodes} {os.environ.get('NCCL_ALGO', '')}\n")
    if engine.fault == "exits":
        print("Traceback (most recent call last):\nRuntimeError: CUDA out of memory \x1b[31m", flush=True)
        sys.exit(1)
    if engine.fault == "forks":  # a daemon: another session, an environment of its own, no parent
        code = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nopen(os.environ['FAKE_DAEMON'], 'w').write(str(os.getpid()))\ntime.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code])
    if engine.fault == "never":
        time.sleep(600)
    Handler.engine = engine
    server = Quiet((re.sub("^localhost$", "127.0.0.1", engine.given.get("host", "127.0.0.1")), int(engine.given["port"])), Handler)
    server.serve_forever(poll_interval=0.01)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
