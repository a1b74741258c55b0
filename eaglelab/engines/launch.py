"""What a launch command line gives for speculation: the flags as written, nothing resolved and nothing assumed.

Reads `python -m sglang.launch_server …`, `sglang serve …` (flags of SGLang 0.5.23, arg_groups/fields/spec.py), `vllm serve …` or
`python -m vllm.entrypoints.openai.api_server …` with `--speculative-config '{json}'` or `--spec-method …` (vLLM 0.32.0,
engine/arg_utils.py:2068-2081), and the offline calls `sgl.Engine(…)` and `LLM(…)` in Python. Reading never fails: what cannot be
understood is left out and said in `Launch.problems`.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import warnings
from collections.abc import Iterator
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
VLLM_SHORT_FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
OFFLINE = {"Engine": "sglang", "LLM": "vllm"}
"""Classes that start an engine from Python -> the engine."""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
PREFIXES = re.compile(r"(docker|podman|nerdctl|srun|env|nohup|sudo|exec|python[\d.]*|uv|numactl|nice|taskset)")
"""Programs that start another one: what stands behind them belongs to the command."""


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
    settings: dict[str, Any] = field(default_factory=dict)
    """vLLM's speculative config, from wherever on the line it was given."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment assignments in front of the program, also those of `export` and `docker run -e`."""
    program: tuple[str, ...] = ()
    """The words up to and with the program: `python3 -m sglang.launch_server`. Empty for a call in Python, and where no engine is named."""
    arguments: tuple[str, ...] = ()
    """The words behind the program, as written."""

    def number(self, *flags: str) -> int | None:
        """The value of the first of these flags that was given as a whole number."""
        values = (str(self.given[flag]) for flag in flags if flag in self.given)
        return next((int(value) for value in values if re.fullmatch(r"[+-]?\d{1,9}", value)), None)


def parse_launch(line: str) -> Launch:
    """A launch command line as one string; line ends escaped by a backslash are joined and comment lines dropped."""
    problems: list[str] = []
    call = _python_call(line)
    program, arguments = ([], []) if call else _take_program(_words(line, problems))
    engine, given = call or (_engine_of(program), _flags(arguments))
    names = {"sglang": SGLANG_NAMES, "vllm": VLLM_NAMES}.get(engine, {})
    settings = _vllm_speculative_config(given, problems) if engine == "vllm" else {}
    known: dict[str, Any] = {}
    for flag, value in (settings if engine == "vllm" else given).items():
        name = names.get(flag)
        if name == "algorithm" and isinstance(value, str):
            known[name] = value
        elif name is not None and re.fullmatch(r"\+?0*[1-9]\d{0,5}", str(value)):
            known[name] = int(value)
        elif name is not None:
            expected = "a name" if name == "algorithm" else "a positive integer"
            problems.append(f"{flag} on the launch line is {value!r}, expected {expected}")
    env = dict(word.split("=", 1) for word in program if ASSIGNMENT.fullmatch(word))
    command = _command(program) if engine else []
    return Launch(
        engine,
        given=given,
        problems=tuple(problems),
        settings=settings,
        env=env,
        program=tuple(command),
        arguments=tuple(arguments),
        **known,
    )


def _words(line: str, problems: list[str]) -> list[str]:
    lines = re.sub(r"\\\r?\n", " ", line).splitlines()
    text = " ".join(row for row in lines if not row.lstrip().startswith("#"))
    try:
        return shlex.split(text)
    except ValueError as error:
        problems.append(f"the launch line cannot be split into words ({error}): is a quote missing its partner? Got: {text.strip()[:200]}")
        return text.split()


def _take_program(words: list[str]) -> tuple[list[str], list[str]]:
    """The words up to the program or module that is an engine's (never a path among the values), and those behind it.

    Words behind a pipe, a redirection or the next command belong to no flag. Without an engine all words are arguments.
    """
    start = next((place + 1 for place in range(len(words)) if _names_engine(words, place)), 0)
    end = next((i for i in range(start, len(words)) if re.fullmatch(r"\d*>.*|&>.*|\|\|?|&&?|;", words[i])), len(words))
    serve = words[start : start + 1] == ["serve"]
    return words[: start + serve], words[start + serve : end]


def _names_engine(words: list[str], place: int) -> str | None:
    module = words[place].split(".")[0] if place and words[place - 1] == "-m" else None
    served = words[place].rsplit("/", 1)[-1] if words[place + 1 : place + 2] == ["serve"] else None
    return next((name for name in ("sglang", "vllm") if name in (module, served)), None)


def _engine_of(program: list[str]) -> str | None:
    return next((name for place in range(len(program)) if (name := _names_engine(program, place))), None)


def _command(program: list[str]) -> list[str]:
    """The program with what starts it: `export` and the commands before it on other lines are left out."""
    words = [word for word in program if word != "export"]
    last = max((i + 1 for i, word in enumerate(words) if word in ("&&", ";", "||", "|")), default=0)
    words = words[last:]
    starts = (i for i, word in enumerate(words) if ASSIGNMENT.fullmatch(word) or PREFIXES.fullmatch(word.rsplit("/", 1)[-1]))
    own = len(words) - (2 if words[-1:] == ["serve"] else 3 if words[-2:-1] == ["-m"] else 1)
    return words[min(next(starts, own), own) :]


def _python_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The keywords of `sgl.Engine(…)` or `LLM(…)` in a Python text; values that are no literals are left out."""
    if not re.search(r"\b(Engine|LLM)\(", text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on escapes in somebody else's strings
            tree = ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in _calls(tree):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name in OFFLINE:
            values = {k.arg: _literal(k.value) for k in node.keywords if k.arg}
            values |= {"model": _literal(node.args[0])} if node.args and name == "LLM" else {}
            return OFFLINE[name], {key: value for key, value in values.items() if value is not None}
    return None


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


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
        if name in VLLM_SHORT_FLAGS:
            settings[VLLM_SHORT_FLAGS[name]] = value
        if head.replace("-", "_") not in VLLM_CONFIG_FLAGS:
            continue
        if key:
            settings[key.replace("-", "_")] = value
            continue
        if isinstance(value, dict):  # of a call in Python
            settings |= value
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
