"""One engine's server: started, waited for, asked all prompts, stopped. What comes back is a recording and the engine's own log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime
from pathlib import Path

from runs import AT_ONCE, ENVIRONMENT, EXAMPLE, MAX_NEW_TOKENS, ROOT, Run

from eaglelab.live.connect import connect
from eaglelab.live.prompts import Prompt, dump_prompts
from eaglelab.live.server import Server, ServerError
from eaglelab.served.recording import Failure, RecordingWriter, Request, Scrape, Session

OTHERS = 38
"""Prompts beside the shipped samples', all about held-out topics."""
BOOT_SECONDS = 420
READY = {"vllm": "Application startup complete", "sglang": "The server is fired up and ready to roll"}
"""What an engine's log says when its own first request, which it counts, is over: SGLang answers questions before that."""
LOG_SECONDS = 11
"""vLLM prints its counters every 10 seconds."""


class EngineError(RuntimeError):
    """An engine that did not start, or died, with the end of its log."""


def prompts() -> list[Prompt]:
    """The shipped samples' prompts, then OTHERS more from the example's recipe; the drafter saw none of them."""
    from transformers import AutoTokenizer

    from eaglelab.dumps import open_dump

    shipped = list(dump_prompts(open_dump(EXAMPLE / "dump").samples(None)).prompts)
    sys.path.insert(0, str(EXAMPLE / "recipe"))
    from prompts import prompts as texts

    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE / "target")
    known, others = {p.token_ids for p in shipped}, []
    for text in texts("heldout"):
        written = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        ids = tuple(tokenizer.encode(written, add_special_tokens=False))
        if ids not in known:
            others.append(ids)
    spread = others[:: len(others) // OTHERS][:OTHERS]
    return shipped + [Prompt(len(shipped) + i, ids) for i, ids in enumerate(spread)]


def serve(run: Run, asked: Sequence[Prompt], folder: Path) -> Path:
    """Serve all prompts and return the recording; the engine's log lies beside it. Raises EngineError, ServerError."""
    folder.mkdir(parents=True, exist_ok=True)
    recording, log = folder / "recording.jsonl", folder / "engine.log"
    recording.unlink(missing_ok=True)
    with started(run, log) as (server, command):
        info = server.info()
        writer = RecordingWriter(recording, session(run, server, command, info))
        writer.write(scrape(server, "before"))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            waiting = {pool.submit(answer, server, prompt): prompt for prompt in asked}
            for done in as_completed(waiting):
                try:
                    writer.write(done.result())
                except ServerError as error:
                    writer.write(Failure(waiting[done].index, str(error), now()))
        if run.engine == "vllm":
            time.sleep(LOG_SECONDS)
        writer.write(scrape(server, "after"))
        writer.end()
        (folder / "served.log").write_bytes(log.read_bytes())  # what stopping adds is no part of it
    return recording


def answer(server: Server, prompt: Prompt) -> Request:
    started_at = time.monotonic()
    got = server.generate(prompt.token_ids, MAX_NEW_TOKENS)
    return Request(
        prompt.index,
        prompt.token_ids,
        got.token_ids,
        got.text,
        prompt.sample,
        got.accepted,
        got.histogram,
        got.verify_steps,
        got.finish_reason,
        round(time.monotonic() - started_at, 3),
        got.meta_info,
    )


def session(run: Run, server: Server, command: str, info: dict) -> Session:
    if str(server.engine) != run.version:
        raise EngineError(f"the server is {server.engine}, expected {run.version}: remove .live/{run.engine} and run `make live` again")
    libraries = "import importlib.metadata as m, json; print(json.dumps({p: m.version(p) for p in ('torch', 'transformers')}))"
    found = json.loads(subprocess.run([run.python, "-c", libraries], check=True, capture_output=True, text=True).stdout)
    notes = [f"torch {found['torch']}, transformers {found['transformers']}; CPU, one thread, up to {AT_ONCE} requests together"]
    if run.engine == "sglang":
        notes.append("kernels by the stand-in of engines_cpu: results are right, speed means nothing")
    return Session(
        engine=run.version,
        url=server.url,
        command=command,
        dtype=run.dtype,
        num_steps=run.steps,
        eagle_topk=run.topk,
        num_draft_tokens=run.nodes,
        max_new_tokens=MAX_NEW_TOKENS,
        draft_config=json.loads((ROOT / run.drafter() / "config.json").read_text()),
        started=now(),
        server_info=info,
        notes=tuple(notes),
    )


def scrape(server: Server, when: str) -> Scrape:
    return Scrape(when, now(), server.metrics())


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@contextlib.contextmanager
def started(run: Run, log: Path) -> Iterator[tuple[Server, str]]:
    """The running server and the command that started it; it is stopped on leaving, with all its processes."""
    port = free_port()
    environment = os.environ | ENVIRONMENT[run.engine]
    with log.open("wb") as sink:
        command = [str(run.python), *run.arguments(port)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield wait_for(process, port, run, log), run.command(port)
    finally:
        stop(process)


def wait_for(process: subprocess.Popen, port: int, run: Run, log: Path) -> Server:
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + BOOT_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise EngineError(f"{run.name}: the engine ended with status {process.returncode} while starting:\n{tail(log)}")
        try:
            server = connect(url, engine=run.engine, attempts=1)
            if READY[run.engine] in log.read_text(errors="replace"):
                return server
        except ServerError:
            pass
        time.sleep(1)
    raise EngineError(f"{run.name}: the engine did not answer within {BOOT_SECONDS} s:\n{tail(log)}")


def tail(log: Path, lines: int = 25) -> str:
    return "\n".join(line[:300] for line in log.read_text(errors="replace").splitlines()[-lines:])


def stop(process: subprocess.Popen) -> None:
    """Ask, then insist; the group holds the engine's own children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
