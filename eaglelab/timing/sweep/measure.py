"""Throughput, accept length and latency of one server at one batch size: real prompts, greedy, `batch` streams at a time.

*Steady state*: every instant at which all `batch` streams are between their first and their last token. The tokens that came in that time (a
chunk's tokens are spread over the time since the stream's chunk before) by its length is the decode throughput at exactly this batch size;
prefills, the start and the ragged end are left out. Where that is too little, tokens by wall time stand in its place, and the row says so.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from eaglelab.live.prompts import Prompt
from eaglelab.live.run import new_tokens
from eaglelab.live.server import Server, ServerError
from eaglelab.served import prometheus
from eaglelab.served.answers import COUNTED, OVER_VERIFY
from eaglelab.served.counts import ServedCounts, count_of
from eaglelab.timing.setting import Setting
from eaglelab.timing.sweep.servers import SettingFailed
from eaglelab.timing.sweep.streaming import Answer, Client

WINDOW_SHARE = 0.2
"""Share of all tokens that must fall into the steady state for its throughput to be taken."""
WINDOW_TOKENS = 8
"""Tokens a stream that must."""
WARM_UP_TOKENS = 32
"""Tokens a stream of the warm-up, at most."""


@dataclass(frozen=True)
class Batch:
    """What one repeat asked and got."""

    size: int
    answers: tuple[Answer, ...]
    counts: ServedCounts | None
    """Over all answers; None without speculation, or where the engine tells passes at most."""
    verify_steps: int | None
    counted_by: str | None
    """Where `counts` or `verify_steps` come from."""

    @property
    def tokens(self) -> int:
        return sum(a.tokens for a in self.answers)

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        return max(a.last for a in self.answers) - min(a.sent for a in self.answers)

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify pass, the bonus token included."""
        if self.counts is not None:
            return self.counts.accept_length
        return self.tokens / self.verify_steps if self.verify_steps else None


def asked(prompts: Sequence[Prompt], batch: int, requests: int | None) -> list[Prompt]:
    """The prompts of one repeat, in the order in which they are sent: all of them, or `requests`; at least two for each stream, if need be the
    same again."""
    n = max(2 * batch, requests or len(prompts))
    return [prompts[i % len(prompts)] for i in range(n)]


def run_batch(client: Client, prompts: Sequence[Prompt], batch: int, max_new_tokens: int, *, most: int | None = None) -> list[Answer]:
    """Answers to all prompts, `batch` at a time, by place in `prompts`. most: bound on the tokens of each (a warm-up's). Raises SettingFailed."""
    waiting, answers = deque(enumerate(prompts)), {}

    def stream() -> None:
        while waiting:
            try:
                place, prompt = waiting.popleft()
            except IndexError:
                return
            bound = new_tokens(prompt, max_new_tokens)
            answers[place] = client.ask(prompt.index, prompt.token_ids, bound if most is None else min(bound, most))

    pool = ThreadPoolExecutor(batch)
    try:
        futures = [pool.submit(stream) for _ in range(batch)]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((error for f in done if (error := f.exception()) is not None), None)
        if failed is not None:
            raise failed
    except BaseException:
        waiting.clear()
        client.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return [answers[i] for i in range(len(prompts))]


def measure(client: Client, setting: Setting, prompts: Sequence[Prompt], batch: int, max_new_tokens: int) -> Batch:
    """One repeat. Raises SettingFailed where a request fails, or the server speculates otherwise than the setting says."""
    server = client.server
    before = _scrape(server)
    answers = run_batch(client, prompts, batch, max_new_tokens)
    if not answers or max(a.later for a in answers) == 0:
        raise SettingFailed("no answer is longer than one chunk: nothing can be timed. Give prompts with longer answers")
    counts, steps, by = _counted(answers, before, _scrape(server))
    if setting.off:
        if counts is not None and counts.verify_steps:
            raise SettingFailed(
                f"speculation should be off and the server counts {counts.verify_steps:,} verify passes: the baseline would be none"
            )
        return Batch(batch, tuple(answers), None, None, None)
    if counts is None and not steps:
        raise SettingFailed("the server counts no verify pass: was it started with a drafter, and (vLLM) with its statistics on?")
    if counts is not None and counts.accepted > setting.steps * counts.verify_steps:
        raise SettingFailed(
            f"the server counts {counts.accepted:,} accepted drafts in {counts.verify_steps:,} passes, more than {setting.steps} steps can give: it runs "
            "another setting, or somebody else uses it"
        )
    return Batch(batch, tuple(answers), counts, steps, by)


def _counted(answers: Sequence[Answer], before: str | None, after: str | None) -> tuple[ServedCounts | None, int | None, str | None]:
    """(counts, verify passes, where they come from): by the answers' own counts where all tell them, else by counters around them."""
    told = [a.counts for a in answers if a.counts is not None]
    if len(told) == len(answers):
        total = sum(told[1:], told[0])
        return total, total.verify_steps, f"the answers' own counts: {COUNTED}"
    if before and after:
        scrapes = [prometheus.parse_scrapes(text)[-1] for text in (before, after)]
        found, _ = prometheus.vllm_counts(scrapes)
        if found and (total := sum(list(found.values())[1:], next(iter(found.values())))).verify_steps:
            return total, total.verify_steps, f"Prometheus, after less before: {COUNTED}"
    if told:  # SGLang tells nothing of an answer of one pass or none
        total = sum(told[1:], told[0])
        return total, total.verify_steps, f"the own counts of {len(told)} of {len(answers)} answers: {COUNTED}"
    passes = [a.verify_steps for a in answers if a.verify_steps]
    return None, sum(passes) or None, OVER_VERIFY if passes else None


def _scrape(server: Server) -> str | None:
    try:
        return server.metrics()
    except ServerError:
        return None


def check_setting(server: Server, setting: Setting, batches: Sequence[int]) -> list[str]:
    """What the server says of itself against what was asked; notes. Raises SettingFailed where it runs another setting or fewer requests."""
    try:
        info, metrics = server.info(), server.metrics()
    except ServerError as error:
        raise SettingFailed(str(error)) from None
    told = server.settings(info, metrics)
    have = [told.get(name) for name in ("num_steps", "eagle_topk", "num_draft_tokens")]
    want = [setting.steps, setting.topk, setting.draft_tokens]
    if setting.off and have[0]:
        raise SettingFailed(
            f"speculation should be off and the server runs {'-'.join(map(str, have))}: is a default or a config file turning it on?"
        )
    if not setting.off and any(h not in (None, w) for h, w in zip(have, want, strict=True)):
        raise SettingFailed(f"{setting.name} was asked for and the server runs {'-'.join(map(str, have))} (steps, top-k, draft tokens)")
    limit = request_limit(info)
    if limit is not None and limit < max(batches):
        raise SettingFailed(
            f"the server runs at most {limit} requests together, {max(batches)} were asked for: give the launch line --max-running-requests {max(batches)} "
            "(SGLang takes 48 by itself with speculation)"
        )
    return [] if setting.off or have[0] is not None else ["the server does not tell its steps: taken as asked for"]


def request_limit(info: dict[str, Any]) -> int | None:
    """SGLang's `max_running_requests`, where it tells one and has one rank to apply it."""
    limit = count_of(info.get("max_running_requests"))
    return (limit or None) if info.get("dp_size") in (None, 1) else None


# -- numbers -----------------------------------------------------------------------------------------------------------------------


def steady(answers: Sequence[Answer], batch: int) -> tuple[float, float]:
    """(tokens, seconds) of the steady state."""
    edges = sorted([(a.first, 1) for a in answers] + [(a.last, -1) for a in answers], key=lambda e: (e[0], e[1]))
    spans, busy, since = [], 0, None
    for time, change in edges:
        if since is not None and time > since:
            spans.append((since, time))
        busy += change
        since = time if busy == batch else None
    spans = [span for span in spans if span[1] > span[0]]
    tokens = 0.0
    for answer in answers:
        for (start, before), (end, after) in zip(answer.arrivals, answer.arrivals[1:], strict=False):
            shared = sum(max(0.0, min(end, stop) - max(start, begin)) for begin, stop in spans if begin < end and stop > start)
            tokens += (after - before) * shared / (end - start) if end > start else 0.0
    return tokens, sum(stop - begin for begin, stop in spans)


def numbers(found: Batch) -> dict[str, Any]:
    """The measured part of a row: tok_s, what it is of, and what it was counted from."""
    tokens, seconds = steady(found.answers, found.size)
    whole = {"tokens": found.tokens, "seconds": round(found.seconds, 6), "tok_s": found.tokens / found.seconds}
    window = {"tokens": round(tokens, 3), "seconds": round(seconds, 6), "tok_s": tokens / seconds if seconds else None}
    enough = seconds > 0 and tokens >= max(WINDOW_TOKENS * found.size, WINDOW_SHARE * found.tokens)
    later = [(a.last - a.first) / a.later for a in found.answers if a.later]
    passes = found.counts.verify_steps if found.counts is not None else found.verify_steps
    return {
        "tok_s": window["tok_s"] if enough else whole["tok_s"],
        "accept_length": found.accept_length,
        "tok_s_of": "steady" if enough else "whole",
        "steady": window,
        "whole": whole,
        "requests": len(found.answers),
        "tokens": found.tokens,
        "seconds": whole["seconds"],
        "verify_passes": passes,
        "accepted": None if found.counts is None else found.counts.accepted,
        "joint": None if found.counts is None or found.counts.joint is None else list(found.counts.joint),
        "counted_by": found.counted_by,
        "itl_ms": 1000 * statistics.median(later) if later else None,
        "ttft_ms": 1000 * statistics.median(a.ttft for a in found.answers),
        "by_request": [[a.prompt, a.later, round(a.last - a.first, 6)] for a in found.answers],
    }


def same_text(answers: Sequence[Answer], baseline: dict[int, Any]) -> list[int] | None:
    """[answers equal to the baseline's, of n]: by tokens where both have them, else by text. None where none has a baseline to compare with."""
    same = [s for a in answers if (s := _same(a, baseline.get(a.prompt, {}))) is not None]
    return [sum(same), len(same)] if same else None


def _same(answer: Answer, other: dict[str, Any]) -> bool | None:
    if answer.token_ids is not None and other.get("token_ids") is not None:
        return list(answer.token_ids) == other["token_ids"]
    return answer.text == other["text"] if isinstance(other.get("text"), str) else None
