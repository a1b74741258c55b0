"""Prompts to a server, answers into a recording, each on disk as it comes.

What stops a run (a dead server, Ctrl-C, a kill) loses nothing that was answered: the same call goes on where the file ends.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from eaglelab.live.prompts import Prompt
from eaglelab.live.server import Generated, Server, ServerError
from eaglelab.progress import counting
from eaglelab.served.recording import Failure, Recording, RecordingError, RecordingWriter, Request, Scrape, Session

NEW_TOKENS = 256
"""Tokens asked for where a prompt comes with no answer."""
STOP_AFTER = 5
"""Requests that fail one after the other until the run stops."""
CONCURRENCY = 4
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Recorded:
    recording: Recording
    asked: int
    """Requests that this call sent; 0: the file held them all."""
    stopped: str | None = None
    """Why the run stopped before its end."""
    prompts: tuple[Prompt, ...] = ()
    """Those that were given, at their places in the recording."""


def record(
    server: Server,
    prompts: Sequence[Prompt],
    out: Path,
    *,
    max_new_tokens: int | None = None,
    concurrency: int = CONCURRENCY,
    stop_after: int = STOP_AFTER,
    notes: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Recorded:
    """Send every prompt that `out` holds no answer of yet, and read the whole recording back.

    max_new_tokens: bound on the tokens of an answer, which is else as long as the prompt's own (256 without one).
    Raises ServerError where the server cannot be asked about itself, RecordingError where `out` holds something else than these prompts to
    this server with these settings.
    """
    session, info, before = session_of(server, max_new_tokens, notes)
    prompts = check_same_run(out, session, prompts)
    writer = RecordingWriter(out, session)
    todo = [p for p in prompts if p.index not in writer.done]
    if writer.done:
        say(f"{out} holds {len(writer.done)} answers already; {len(todo)} are left to ask for")
    if not todo:
        if not Recording.load(out).ended:
            writer.end()
        return Recorded(Recording.load(out), 0, prompts=prompts)
    writer.write(scrape("before", info, before))
    stopped = _ask(server, todo, writer, max_new_tokens, concurrency, stop_after)
    with suppress(ServerError):  # a server that has died tells nothing more
        metrics, last = server.metrics(), {}
        with suppress(ServerError):
            last = server.info()
        writer.write(scrape("after", last, metrics))
    if stopped is None:
        writer.end()
    return Recorded(Recording.load(out), len(todo), stopped, prompts)


def _ask(
    server: Server, todo: Sequence[Prompt], writer: RecordingWriter, bound: int | None, concurrency: int, stop_after: int
) -> str | None:
    """Why it stopped early, None at the end."""
    waiting, running, failed, stopped = deque(todo), {}, 0, None
    with counting(len(todo), "requests", said=f"{len(todo):,} prompts") as step, ThreadPoolExecutor(concurrency) as pool:
        try:
            while (waiting and stopped is None) or running:
                while waiting and stopped is None and len(running) < concurrency:
                    prompt = waiting.popleft()
                    running[pool.submit(_timed, server, prompt, new_tokens(prompt, bound))] = prompt
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    error = _keep(future, running[future], writer)
                    del running[future]
                    step()
                    failed = 0 if error is None else failed + 1
                    gone = failed >= stop_after or (failed and error.transient and not waiting and not running)
                    if gone and stopped is None:
                        stopped = f"the last {failed} requests got no answer: {error}"
        except KeyboardInterrupt:
            stopped = INTERRUPTED
            server.close()
            for future in wait(running).done:
                if future.exception() is None:  # had come in at that moment
                    _keep(future, running[future], writer)
    return stopped


def _timed(server: Server, prompt: Prompt, tokens: int) -> tuple[Generated, float]:
    start = time.perf_counter()
    return server.generate(prompt.token_ids, tokens), time.perf_counter() - start


def _keep(future: Future, prompt: Prompt, writer: RecordingWriter) -> ServerError | None:
    try:
        answer, seconds = future.result()
    except ServerError as error:
        writer.write(Failure(prompt.index, str(error), now()))
        return error
    writer.write(
        Request(
            index=prompt.index,
            prompt_token_ids=prompt.token_ids,
            token_ids=answer.token_ids,
            text=answer.text,
            sample=prompt.sample,
            accepted=answer.accepted,
            histogram=answer.histogram,
            verify_steps=answer.verify_steps,
            finish_reason=answer.finish_reason,
            seconds=seconds,
            meta_info=answer.meta_info,
        )
    )
    return None


def new_tokens(prompt: Prompt, bound: int | None) -> int:
    """Tokens to ask for: as many as the prompt's own answer has, or NEW_TOKENS, within the bound."""
    wanted = len(prompt.answer) if prompt.answer else NEW_TOKENS if bound is None else bound
    return max(1, wanted if bound is None else min(wanted, bound))


def session_of(server: Server, max_new_tokens: int | None, notes: Sequence[str] = ()) -> tuple[Session, dict, str | None]:
    """(the session, the server's info and metrics at this moment). Raises ServerError."""
    info, metrics = server.info(), server.metrics()
    session = Session(
        engine=str(server.engine),
        url=server.url,
        max_new_tokens=max_new_tokens,
        started=now(),
        server_info=info | ({"internal_states": states} if (states := _live_states(info)) else {}),
        notes=tuple(notes),
        **server.settings(info, metrics),
    )
    return session, info, metrics


MODELS = {
    "target": (("model_path",), ("vllm_config", "model_config", "model"), ("models", 0, "root")),
    "drafter": (("speculative_draft_model_path",), ("vllm_config", "speculative_config", "model")),
}
"""Where the engines' own info names what is served."""
ADDRESS = re.compile(r"\s--(?:host|port)(?:=|\s+)\S+")


def _served(session: Session) -> dict[str, Any]:
    """What decides a server's answers and their acceptance, as far as it is told."""
    names = ("engine", "num_steps", "eagle_topk", "num_draft_tokens", "dtype", "draft_config")
    told = {name: value for name in names if (value := getattr(session, name)) is not None}
    named = {f"{what} ({'.'.join(map(str, place))})": place for what, places in MODELS.items() for place in places}
    told |= {name: value for name, place in named.items() if (value := _at(session.server_info, place)) is not ABSENT}
    return told | ({} if session.command is None else {"command": ADDRESS.sub("", session.command)})


ABSENT = object()


def _at(value: Any, place: Sequence[str | int]) -> Any:
    """What stands at a place; None that stands there is told, too: no drafter."""
    try:
        for key in place:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return ABSENT
    return value


def check_same_run(out: Path, session: Session, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The prompts at the places that `out` has for them, told by their tokens; those that it lacks where it has none.

    Raises RecordingError where `out` is there and is of another server, of other settings, or holds other prompts than these.
    """
    if not out.exists() or not out.stat().st_size:
        return tuple(prompts)
    recording = Recording.load(out)
    old, new = ({**_served(s), "max_new_tokens": s.max_new_tokens} for s in (recording.session, session))
    for name in old:
        if name in new and old[name] != new[name]:
            shown = "another" if name == "draft_config" else f"{old[name]}, now {new[name]}"
            raise RecordingError(f"{out} was recorded with {name} {shown}: give another file, `--out FILE`")
    places: dict[tuple[int, ...], list[int]] = {}
    for request in recording.requests:
        places.setdefault(request.prompt_token_ids, []).append(request.index)
    known = {i: at.pop(0) for i, p in enumerate(prompts) if (at := places.get(p.token_ids))}
    for left in filter(None, places.values()):
        raise RecordingError(f"{out} holds other prompts (request {left[0]}): give another file, `--out FILE`")
    taken = {r.index for r in recording.requests}
    free = itertools.count(max([*taken, *(p.index for p in prompts)], default=0) + 1)
    return tuple(replace(p, index=known.get(i, p.index if p.index not in taken else next(free))) for i, p in enumerate(prompts))


def scrape(when: str, info: dict, metrics: str | None) -> Scrape:
    """Counters at this moment. Of the server's info only what changes is kept: SGLang's internal states."""
    return Scrape(when, now(), metrics, {"internal_states": states} if (states := _live_states(info)) else None)


def _live_states(info: dict) -> list[dict]:
    """SGLang's internal states without the server's arguments, which newer versions repeat in each."""
    states = info.get("internal_states")
    return [{k: v for k, v in s.items() if k not in info} for s in states if isinstance(s, dict)] if isinstance(states, list) else []


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
