"""Counters and gauges of speculation out of Prometheus text: one scrape, or several in a file one behind the other.

vLLM (0.32, v1/spec_decode/metrics.py) counts: drafts, draft tokens, accepted tokens, accepted tokens at each position; a counter's name may end in
`_total`, and `_created` says when it began. SGLang (0.5.23, srt/observability/metrics_collector.py) has gauges of the last log interval, and from
0.5.14 on `sglang:spec_verify_calls_total` beside `sglang:generation_tokens_total`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eaglelab.served.counts import ServedCounts

SAMPLE = re.compile(
    r'([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?Inf|NaN)(?:[ \t]+-?\d+(?:\.\d+)?)?(?:[ \t]+#.*)?\s*'
)
LABEL = re.compile(r'\s*([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
VLLM = "vllm:spec_decode_num_"
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
SGLANG_GAUGES = ("sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:spec_num_steps", "sglang:spec_num_draft_tokens")
SGLANG_COUNTERS = ("sglang:spec_verify_calls", "sglang:generation_tokens")
SPECULATION = ("vllm:spec_decode_", "sglang:spec_", "sglang:generation_tokens")
"""What the names of samples of speculation begin with."""
LONGEST = 2**16

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    name: str
    labels: Labels
    """Sorted by name."""
    value: float


@dataclass
class Scrape:
    """{(name, labels): value} of the samples that were asked for, and how many lines were none."""

    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)
    unread: int = 0


def parse_sample(line: str) -> Sample | None:
    """A line of a scrape; None for one that is none, half of one included (its braces or quotes do not close)."""
    match = SAMPLE.fullmatch(line) if len(line) <= LONGEST else None
    if match is None:
        return None
    labels, end = [], 0
    text = match[2] or ""
    while end < len(text):
        label = LABEL.match(text, end)
        if label is None:
            return None
        labels.append((label[1], re.sub(r'\\[\\n"]', lambda m: ESCAPES[m[0]], label[2])))
        end = label.end()
    return Sample(match[1], tuple(sorted(labels)), float(match[3].replace("Inf", "inf").replace("NaN", "nan")))


def parse_scrapes(text: str, names: tuple[str, ...] = SPECULATION) -> list[Scrape]:
    """The scrapes in a text, in order; a new one begins where a sample comes a second time. A last line without its end is left out.

    names: beginnings of the samples' names that are kept; ("",) keeps all.
    """
    scrapes = [Scrape()]
    lines = text.split("\n")
    if text and not text.endswith("\n"):
        scrapes[0].unread += bool(lines.pop().strip())
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        sample = parse_sample(line.strip())
        if sample is None:
            scrapes[-1].unread += 1
            continue
        if not sample.name.startswith(names):
            continue
        key = (sample.name, sample.labels)
        if key in scrapes[-1].samples:
            scrapes.append(Scrape())
        scrapes[-1].samples[key] = sample.value
    return scrapes


def is_prometheus(text: str) -> bool:
    """Whether any line is a sample of either engine."""
    return bool(re.search(r"(?m)^(?:vllm|sglang):[\w:]+(?:\{.*\})?[ \t]+\S", text))


# -- vLLM's counters ---------------------------------------------------------------------------------------------------------------------------


def vllm_counts(scrapes: Sequence[Scrape]) -> tuple[dict[str, ServedCounts], list[str]]:
    """({engine: counts}, notes): the difference of the first and the last scrape; of a single one everything since the server's start.

    A counter that fell, or began anew, was reset by a restart: counted from there on, and said.
    """
    created = [_created(scrape) for scrape in scrapes]
    counts, notes = {}, []
    for part, (values, anew) in _since([_vllm_series(scrape) for scrape in scrapes], created).items():
        if anew:
            notes.append(f"{_named(part)}: the counters were reset between two scrapes (a restart): counted from there on")
        found = _counts_of(values)
        if found is None:
            notes.append(f"{_named(part)}: its counters are no counts, contradict each other, or some are missing")
        else:
            counts[part] = found
    return counts, notes


Series = Mapping[str, Mapping[str, float]]
"""{engine or rank: {counter: value}}."""


def _since(series: Sequence[Series], created: Sequence[Mapping[str, float]] = ()) -> dict[str, tuple[dict[str, float], bool]]:
    """{part: (counters since the first scrape, or since the last reset of this part; whether it was reset)}."""
    found = {}
    for part in sorted({part for one in series for part in one}):
        base: Mapping[str, float] = {}
        last: Mapping[str, float] = {}
        reset = False
        for place, one in enumerate(series):
            now = one.get(part)
            if now is None:
                continue
            if place == 0:
                base = now if len(series) > 1 else {}
            began = created[place].get(part) if created else None
            anew = bool(last) and began is not None and created[place - 1].get(part) not in (None, began)
            if last and (anew or any(now.get(name, 0) < value for name, value in last.items())):
                base, reset = {}, True
            last = now
        found[part] = {name: value - base.get(name, 0) for name, value in last.items()}, reset
    return found


def servers(scrape: Scrape) -> list[str]:
    """Engines, or models of one engine, whose samples of speculation stand in a scrape. More than one is no single server's text."""
    engines = {name.split(":")[0] for name, _ in scrape.samples}
    named = {value for _, labels in scrape.samples for label, value in labels if label == "model_name"}
    return sorted(engines if len(engines) > 1 else named)


def _named(part: str) -> str:
    return part or "the server"


def _vllm_series(scrape: Scrape) -> dict[str, dict[str, float]]:
    """{engine: {`drafts`: …, `accepted_tokens_per_pos 0`: …}}; an engine is its labels without the position."""
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in scrape.samples.items():
        if not name.startswith(VLLM):
            continue
        counter = name.removeprefix(VLLM).removesuffix("_total")
        if counter not in COUNTERS:
            continue
        position = dict(labels).get("position")
        if counter == "accepted_tokens_per_pos":
            if position is None or not re.fullmatch(r"\d{1,3}", position):
                continue
            counter = f"{counter} {int(position)}"
        found.setdefault(_part(labels), {})[counter] = value
    return found


def _created(scrape: Scrape) -> dict[str, float]:
    name = f"{VLLM}drafts_created"
    return {_part(labels): value for (found, labels), value in scrape.samples.items() if found == name}


def _part(labels: Labels) -> str:
    return ", ".join(f"{name} {value[:100]}" for name, value in labels if name != "position")


def _counts_of(values: Mapping[str, float]) -> ServedCounts | None:
    """None where drafts or accepted tokens are missing, or a value is no count."""
    if "drafts" not in values or "accepted_tokens" not in values:
        return None
    if any(not math.isfinite(v) or v < 0 or v != int(v) for v in values.values()):
        return None
    if values["accepted_tokens"] > values.get("draft_tokens", math.inf):
        return None
    positions = sorted(int(name.split()[1]) for name in values if name.startswith("accepted_tokens_per_pos "))
    joint = None
    if positions and positions == list(range(len(positions))):
        joint = tuple(int(values[f"accepted_tokens_per_pos {k}"]) for k in positions)
        whole = len(joint) * values["drafts"] >= values.get("draft_tokens", 0)  # else positions are missing
        joint = joint if whole and sum(joint) == int(values["accepted_tokens"]) else None
        if joint and any(b > a for a, b in itertools.pairwise((int(values["drafts"]), *joint))):
            return None
    return ServedCounts(int(values["drafts"]), int(values["accepted_tokens"]), joint)


# -- SGLang's gauges ---------------------------------------------------------------------------------------------------------------------------


def sglang_gauges(scrape: Scrape) -> dict[str, dict[str, float]]:
    """{rank: {`spec_accept_length`: …}} of the finite gauges; a rank is its labels."""
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in scrape.samples.items():
        if name in SGLANG_GAUGES and math.isfinite(value):
            found.setdefault(_part(labels), {})[name.removeprefix("sglang:")] = value
    return found


def sglang_verify_calls(scrapes: Sequence[Scrape]) -> tuple[int | None, int | None, bool]:
    """(generated tokens, verify passes, whether a counter fell): differences of the first and last scrape, or since the start of one. None: not there."""
    found = _since([_sglang_series(scrape) for scrape in scrapes]).values()
    fell = any(anew for _, anew in found)
    totals = {name: [values[name] for values, _ in found if name in values] for name in SGLANG_COUNTERS}
    if not all(totals.values()) or any(not math.isfinite(v) for of in totals.values() for v in of):
        return None, None, fell
    verify, generated = (int(sum(totals[name])) for name in SGLANG_COUNTERS)
    return generated, verify, fell


def _sglang_series(scrape: Scrape) -> Series:
    """By rank: the labels but those that one of the two counters alone has."""
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in scrape.samples.items():
        base = name.removesuffix("_total")
        if base in SGLANG_COUNTERS:
            rank = found.setdefault(_part(tuple(label for label in labels if label[0] != "is_streaming")), {})
            rank[base] = rank.get(base, 0) + value
    return found


def unread(scrapes: Iterable[Scrape]) -> int:
    return sum(scrape.unread for scrape in scrapes)
