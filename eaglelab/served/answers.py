"""What an engine counted for one answer, out of JSON: SGLang's `meta_info` in the names of every release, vLLM's per-request metrics.

SGLang's names, read in srt/managers/tokenizer_manager.py of the releases: until 0.5.3 `spec_verify_ct` alone; 0.5.4 and 0.5.5 a rate and a length beside
it; 0.5.6 to 0.5.10 `spec_accept_token_num`, `spec_draft_token_num` (from 0.5.9 `spec_accept_histogram`); 0.5.11 `spec_accepted_drafts`,
`spec_proposed_drafts`; from 0.5.12 `spec_num_correct_drafts`, `spec_num_proposed_drafts`, `spec_correct_drafts_histogram` (the old ones beside
them until 0.5.17, gone in 0.5.23). All count drafts without the bonus token. `spec_accept_length` is completion tokens / verify passes in all of
them: not an accept length, and used only where nothing else is there. OpenAI's endpoints nest the same in `sglext.spec_tokens_details`.
vLLM (0.32, v1/metrics/stats.py `RequestSpecDecodeMetrics`): `acceptance_histogram`, `per_step_accepted`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eaglelab.outside_json import too_deep
from eaglelab.served.counts import MOST_STEPS, ServedCounts, count_of, counts_of
from eaglelab.served.row import LogRow

HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram", "acceptance_histogram")
CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num", "num_accepted_draft_tokens")
PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num", "num_draft_tokens")
PASSES = ("spec_verify_ct", "num_spec_steps")
PER_STEP = "per_step_accepted"
KNOWN = (*HISTOGRAMS, *CORRECT[:3], *PASSES, PER_STEP)

COUNTED = "1 + accepted drafts / verify passes, as counted"
OVER_VERIFY = (
    "completion tokens / verify passes (SGLang's spec_accept_length): counts the prefill's token and is cut at the end of the answer"
)


@dataclass(frozen=True)
class Answer:
    """One answer's counts. None: not told."""

    engine: str
    counts: ServedCounts | None
    verify_steps: int | None
    proposed: int | None
    completion_tokens: int | None
    request: str | None = None
    """The engine's id of the request."""
    num_steps: int | None = None
    doubt: str | None = None
    """What of its numbers contradicts another."""

    @property
    def accept_length(self) -> float | None:
        if self.counts is not None:
            return self.counts.accept_length
        return self.completion_tokens / self.verify_steps if self.completion_tokens and self.verify_steps and not self.doubt else None

    @property
    def definition(self) -> str | None:
        if self.accept_length is None:
            return None
        return COUNTED if self.counts is not None else OVER_VERIFY


def answers_in(content: Any) -> Iterator[Answer]:
    """Every answer with counts of speculation in parsed JSON, wherever it is nested; [[0, 2, …], …] under `per_step_accepted` is several."""
    if not too_deep(content):
        yield from _walk(content, None)


def _walk(content: Any, completion: int | None) -> Iterator[Answer]:
    if isinstance(content, list):
        for item in content:
            yield from _walk(item, completion)
        return
    if not isinstance(content, dict):
        return
    usage = content.get("usage")
    completion = count_of(usage.get("completion_tokens")) if isinstance(usage, dict) else completion
    if any(key in content for key in KNOWN):
        several = content.get(PER_STEP)
        if isinstance(several, list) and several and all(isinstance(one, list) for one in several):
            for one in several:
                yield _answer({PER_STEP: one}, None)
        else:
            yield _answer(content, completion)
        return
    for value in content.values():
        if isinstance(value, (dict, list)):
            yield from _walk(value, completion)


def _answer(meta: Mapping[str, Any], completion: int | None) -> Answer:
    histogram = next((found for key in HISTOGRAMS if (found := counts_of(meta.get(key)))), None)
    per_step = counts_of(meta.get(PER_STEP))
    passes, correct, proposed = (_first(meta, names) for names in (PASSES, CORRECT, PROPOSED))
    completion = count_of(meta.get("completion_tokens")) if meta.get("completion_tokens") is not None else completion
    steps = count_of(meta.get("num_spec_tokens"))
    counts = doubt = None
    if per_step and max(per_step) <= (MOST_STEPS if steps is None else steps):
        counts = ServedCounts.from_accepted(per_step, steps)
    elif histogram is not None:
        counts = ServedCounts.from_histogram(histogram, steps)
    elif passes and correct is not None:
        counts = ServedCounts(passes, correct)
    impossible = counts and _impossible(counts, proposed, steps)
    if counts is not None and (passes, correct) != (None, None):
        if passes is not None and passes != counts.verify_steps:
            doubt = f"{passes} verify passes, but {counts.verify_steps} in the histogram"
        elif correct is not None and correct != counts.accepted:
            doubt = f"{correct} accepted drafts, but {counts.accepted} in the histogram"
    if impossible:
        counts, doubt = None, impossible
    engine = "sglang" if any(key.startswith("spec_") for key in meta if key in KNOWN) else "vllm"
    request = meta.get("id") if isinstance(meta.get("id"), str) else None
    return Answer(
        engine, counts, passes if passes is not None else counts and counts.verify_steps, proposed, completion, request, steps, doubt
    )


def _impossible(counts: ServedCounts, proposed: int | None, steps: int | None) -> str | None:
    """What cannot be so, in words."""
    if proposed is not None and counts.accepted > proposed:
        return f"{counts.accepted} accepted of {proposed} drafted"
    if steps is not None and any((counts.joint or ())[steps:]):
        return f"a pass that accepted {len(counts.joint)} of {steps} drafted"
    return None


def as_row(answer: Answer, line: int = 0) -> LogRow:
    row = LogRow("request", answer.engine, line=line, rank=(answer.request or "")[:200])
    row.verify_steps, row.proposed, row.num_steps = answer.verify_steps, answer.proposed, answer.num_steps
    row.accept_length, row.accept_definition = answer.accept_length, answer.definition
    if answer.counts is not None:
        row.accepted = answer.counts.accepted
        rates = [answer.counts.joint_rate(k) for k in range(len(answer.counts.joint or ()))]
        row.joint = tuple(rates) if rates and None not in rates else None
    if row.accepted is not None and row.proposed:
        row.accept_rate, row.rate_definition = row.accepted / row.proposed, "accepted_share"
    return row


def _first(meta: Mapping[str, Any], names: Sequence[str]) -> int | None:
    return next((found for key in names if (found := count_of(meta.get(key))) is not None), None)
