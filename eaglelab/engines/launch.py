"""What a launch command line gives for speculation: the flags as written, nothing resolved and nothing assumed.

Reads `python -m sglang.launch_server …`, `sglang serve …` (flags of SGLang 0.5.23, arg_groups/fields/spec.py) and `vllm serve …` or
`python -m vllm.entrypoints.openai.api_server …` with `--speculative-config '{json}'`. Reading never fails: what cannot be understood
is left out and said in `Launch.problems`.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

SGLANG_NAMES = {
    "speculative_algorithm": "algorithm",
    "speculative_algo": "algorithm",
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "eagle_topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
}
VLLM_NAMES = {"method": "algorithm", "num_speculative_tokens": "num_steps"}
VLLM_CONFIG_FLAGS = ("speculative_config", "sc")


@dataclass(frozen=True)
class Launch:
    """Flags given on a launch line. None: not given (what the engine then takes is another question)."""

    engine: str | None = None
    """`sglang` or `vllm`."""
    algorithm: str | None = None
    """As written: SGLang's `--speculative-algorithm`, vLLM's `method`."""
    num_steps: int | None = None
    """vLLM drafts one token a step: its `num_speculative_tokens`."""
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    """Nodes of SGLang's verify pass, the bonus token's included."""
    given: dict[str, Any] = field(default_factory=dict)
    """Every flag of the line: `{"tp_size": "8", "disable_radix_cache": True}`; dashes are underscores, repeated flags keep the last."""
    problems: tuple[str, ...] = ()
    """What could not be read, one clause each."""


def parse_launch(line: str) -> Launch:
    """A launch command line as one string; line ends escaped by a backslash are joined and comment lines dropped."""
    problems: list[str] = []
    engine, words = _take_program(_words(line, problems))
    given = _flags(words)
    names = {"sglang": SGLANG_NAMES, "vllm": VLLM_NAMES}.get(engine, {})
    settings = _vllm_speculative_config(given, problems) if engine == "vllm" else given
    known: dict[str, Any] = {}
    for flag, value in settings.items():
        name = names.get(flag)
        if name == "algorithm" and isinstance(value, str):
            known[name] = value
        elif name is not None and re.fullmatch(r"\+?0*[1-9]\d{0,5}", str(value)):
            known[name] = int(value)
        elif name is not None:
            expected = "a name" if name == "algorithm" else "a positive integer"
            problems.append(f"{flag} on the launch line is {value!r}, expected {expected}")
    return Launch(engine=engine, given=given, problems=tuple(problems), **known)


def _words(line: str, problems: list[str]) -> list[str]:
    lines = re.sub(r"\\\r?\n", " ", line).splitlines()
    text = " ".join(row for row in lines if not row.lstrip().startswith("#"))
    try:
        return shlex.split(text)
    except ValueError as error:
        problems.append(f"the launch line cannot be split into words ({error}): is a quote missing its partner? Got: {text.strip()[:200]}")
        return text.split()


def _take_program(words: list[str]) -> tuple[str | None, list[str]]:
    """The engine, from the program or module that is run (never from a path among the values), and the words behind it.

    Words behind a pipe, a redirection or the next command belong to no flag.
    """
    engine, start = None, 0
    for place, word in enumerate(words):
        module = word.split(".")[0] if place and words[place - 1] == "-m" else None
        served = word.rsplit("/", 1)[-1] if words[place + 1 : place + 2] == ["serve"] else None
        engine = next((name for name in ("sglang", "vllm") if name in (module, served)), None)
        if engine is not None:
            start = place + 1
            break
    end = next((i for i in range(start, len(words)) if re.fullmatch(r"\d*>.*|&>.*|\|\|?|&&?|;", words[i])), len(words))
    return engine, words[start:end]


def _flags(words: list[str]) -> dict[str, Any]:
    """`--a b`, `--a=b`, `--a` alone (True), `--a b c` (a list)."""
    given: dict[str, Any] = {}
    name = None
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            text, equals, value = word.lstrip("-").partition("=")
            name = text if "." in text else text.replace("-", "_")
            given[name] = value if equals else True
            name = None if equals else name
        elif name is not None:
            before = given[name]
            given[name] = word if before is True else [*before, word] if isinstance(before, list) else [before, word]
    return given


def _vllm_speculative_config(given: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """`--speculative-config '{json}'`, or vLLM's dotted spelling `--speculative-config.method eagle3`."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        head, _, key = name.partition(".")
        if head.replace("-", "_") not in VLLM_CONFIG_FLAGS:
            continue
        if key:
            settings[key.replace("-", "_")] = value
            continue
        try:
            config = json.loads(str(value))
        except (json.JSONDecodeError, RecursionError):
            config = None
        if isinstance(config, dict):
            settings |= config
        else:
            problems.append(f"--{name.replace('_', '-')} is no JSON object: got {str(value)[:200]!r}")
    return settings
