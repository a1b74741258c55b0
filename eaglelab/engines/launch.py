"""What a launch command line gives for speculation: the flags as written, nothing resolved and nothing assumed.

Reads `python -m sglang.launch_server …`, `sglang serve …` (flags of SGLang 0.5.23, arg_groups/fields/spec.py) and `vllm serve …` or
`python -m vllm.entrypoints.openai.api_server …` with `--speculative-config '{json}'`.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

SGLANG_NAMES = {
    "model_path": "target_path",
    "model": "target_path",
    "speculative_algorithm": "algorithm",
    "speculative_algo": "algorithm",
    "speculative_draft_model_path": "draft_path",
    "speculative_draft_model": "draft_path",
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "eagle_topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
}
VLLM_NAMES = {"model": "draft_path", "method": "algorithm", "num_speculative_tokens": "num_draft_tokens"}
COUNTS = ("num_steps", "eagle_topk", "num_draft_tokens")
VLLM_CONFIG_FLAGS = ("speculative_config", "sc")


class LaunchError(ValueError):
    """A launch line that cannot be read; the message says where and what was expected."""


@dataclass(frozen=True)
class Launch:
    """Flags given on a launch line. None: not given (what the engine then takes is another question)."""

    engine: str | None = None
    """`sglang` or `vllm`."""
    target_path: str | None = None
    draft_path: str | None = None
    algorithm: str | None = None
    """As written: SGLang's `--speculative-algorithm`, vLLM's `method`."""
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    """SGLang: nodes of the verify pass, the bonus token's included. vLLM: `num_speculative_tokens`, drafts alone."""
    trust_remote_code: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    """Variables set in front of the command."""
    given: dict[str, Any] = field(default_factory=dict)
    """Every flag of the line: `{"tp_size": "8", "disable_radix_cache": True}`; dashes are underscores, repeated flags keep the last."""

    def to_json(self) -> dict[str, Any]:
        names = ("engine", "target_path", "draft_path", "algorithm", *COUNTS, "trust_remote_code")
        return {name: getattr(self, name) for name in names} | {"environment": self.environment, "given": self.given}


def parse_launch(line: str) -> Launch:
    """A launch command line as one string; line ends escaped by a backslash are joined and comment lines dropped. Raises LaunchError."""
    words = _words(line)
    environment, words = _take_environment(words)
    engine, words = _take_program(words)
    given = _flags(words)
    known: dict[str, Any] = {}
    if engine == "vllm":
        known = _vllm(words, given)
    elif engine == "sglang":
        known = {SGLANG_NAMES[name]: value for name, value in given.items() if name in SGLANG_NAMES}
    for name in COUNTS:
        if name in known:
            known[name] = _count(name, known[name])
    known = {name: value for name, value in known.items() if name in COUNTS or isinstance(value, str)}
    trust = given.get("trust_remote_code") not in (None, False, "false", "False", "0")
    return Launch(engine=engine, trust_remote_code=trust, environment=environment, given=given, **known)


def _words(line: str) -> list[str]:
    if not isinstance(line, str) or not line.strip():
        raise LaunchError(f"got {line!r} as the launch line, expected a command such as 'python -m sglang.launch_server --model-path …'")
    lines = [row for row in line.replace("\\\r\n", " ").replace("\\\n", " ").splitlines() if not row.lstrip().startswith("#")]
    try:
        return shlex.split(" ".join(lines))
    except ValueError as error:
        raise LaunchError(
            f"the launch line cannot be split into words ({error}): is a quote missing its partner? Got: {line.strip()[:200]}"
        ) from None


def _take_environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """`A=1 B=2 command …`, with `env` or `export` in front or not."""
    environment: dict[str, str] = {}
    for place, word in enumerate(words):
        if word in ("env", "export"):
            continue
        match = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word, flags=re.DOTALL)
        if match is None:
            return environment, words[place:]
        environment[match[1]] = match[2]
    return environment, []


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


def _vllm(words: list[str], given: dict[str, Any]) -> dict[str, Any]:
    known = _vllm_speculative_config(given)
    target = given.get("model")
    if isinstance(target, str):
        known["target_path"] = target
    elif "serve" in words and words.index("serve") + 1 < len(words) and not words[words.index("serve") + 1].startswith("-"):
        known["target_path"] = words[words.index("serve") + 1]
    return known


def _vllm_speculative_config(given: dict[str, Any]) -> dict[str, Any]:
    """`--speculative-config '{json}'`, or vLLM's dotted spelling `--speculative-config.method eagle3`."""
    settings: dict[str, Any] = {}
    for flag in VLLM_CONFIG_FLAGS:
        text = given.get(flag)
        if isinstance(text, str):
            try:
                settings = json.loads(text)
            except json.JSONDecodeError as error:
                raise LaunchError(f"--{flag.replace('_', '-')} is not JSON ({error}): got {text[:200]!r}") from None
            if not isinstance(settings, dict):
                raise LaunchError(f"--{flag.replace('_', '-')}: got a JSON {type(settings).__name__}, expected an object")
    for name, value in given.items():
        head, _, key = name.partition(".")
        if key and head.replace("-", "_") in VLLM_CONFIG_FLAGS:
            settings[key.replace("-", "_")] = value
    return {VLLM_NAMES[name]: value for name, value in settings.items() if name in VLLM_NAMES}


def _count(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(value) if isinstance(value, str) else int("")
    except ValueError:
        raise LaunchError(f"{name} on the launch line is {value!r}, expected an integer") from None
