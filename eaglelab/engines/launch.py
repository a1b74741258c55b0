"""What a launch command line gives for speculation: the flags as written, nothing resolved and nothing assumed.

Reads `python -m sglang.launch_server …`, `sglang serve …` (flags of SGLang 0.5.23, arg_groups/fields/spec.py), `vllm serve …` or
`python -m vllm.entrypoints.openai.api_server …` with `--speculative-config '{json}'` or `--spec-method …` (vLLM 0.32.0,
engine/arg_utils.py:2068-2081), a script around one of them, a container whose image starts vLLM, and the offline calls `sgl.Engine(…)`
and `LLM(…)` in Python. Reading never fails: what cannot be understood is left out and said in `Launch.problems`.
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

from eaglelab.engines.shell import ASSIGNMENT, Command, Raw, Script, quoted

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
OFFLINE = {"Engine": "sglang", "ServerArgs": "sglang", "LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm"}
"""Classes that start an engine from Python, or take its arguments -> the engine."""
MODULES = {
    "sglang": re.compile(r"sglang\.(launch_server|srt\.entrypoints\..+)"),
    "vllm": re.compile(r"vllm\.entrypoints\.(openai\.)?api_server"),
}
"""Modules that serve; others of the same package measure or convert."""
COMMANDS = {"sglang": ("sglang", "sglang.cli.main"), "vllm": ("vllm", "vllm.entrypoints.cli.main")}
"""Programs and modules that serve with the word `serve` behind them."""
IMAGE = re.compile(r"(.*/)?vllm-openai[\w-]*([:@].*)?")
"""Container images that start vLLM's server by themselves."""
CONTAINERS = ("docker", "podman", "nerdctl")
PLACES = ("cd", "pushd", "source", ".", "conda", "module")
"""Commands in front of the server's that it may need."""
MAX_DEPTH = 3
"""Commands inside the quotes of commands that are stepped into."""


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
    """The words behind the program, as written; `Raw` where the shell expands a part."""
    wrapper: tuple[str, ...] = ()
    """The words in front of a command that stands in one word of another one: `docker run image bash -c`."""
    notes: tuple[str, ...] = ()
    """What of the line was left out or taken, one sentence each."""

    def number(self, *flags: str) -> int | None:
        """The value of the first of these flags that was given as a whole number."""
        values = (str(self.given[flag]) for flag in flags if flag in self.given)
        return next((int(value) for value in values if re.fullmatch(r"[+-]?\d{1,9}", value)), None)


def parse_launch(line: str) -> Launch:
    """A launch command line or script as one string."""
    problems: list[str] = []
    call = _python_call(line, problems)
    found = Found() if call else _find(line, problems)
    engine, given = call or (found.engine, _flags(found.arguments))
    if engine is None and line.strip():
        problems.append("the launch line names no server of SGLang or vLLM that is known here, so that none of its flags counts")
    if engine and not call and isinstance(given.get("config"), str):
        problems.append(f"the flags in {given['config']} (--config) are not read")
    names = {"sglang": SGLANG_NAMES, "vllm": VLLM_NAMES}.get(engine, {})
    settings = vllm_speculative_config(given, problems) if engine == "vllm" else {}
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
    return Launch(
        engine,
        given=given,
        problems=tuple(problems),
        settings=settings,
        env=dict(word.split("=", 1) for word in (*found.wrapper, *found.program) if ASSIGNMENT.fullmatch(word)),
        program=tuple(found.program),
        arguments=tuple(found.arguments),
        wrapper=tuple(found.wrapper),
        notes=tuple(found.notes),
        **known,
    )


@dataclass
class Found:
    """The server's command in a script."""

    engine: str | None = None
    program: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    wrapper: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _find(text: str, problems: list[str], depth: int = 0) -> Found:
    """The first command that starts a server, else one that stands in a word of another (`bash -c '…'`), else a container that starts one.

    Without any all words of the text are its arguments.
    """
    try:
        script = Script(text)
    except ValueError as error:
        problems.append(f"the launch line cannot be split into words ({error}): is a quote missing its partner? Got: {text.strip()[:200]}")
        script = Script("")
        script.commands = [Command(text.split())]
    for place, command in enumerate(script.commands):
        for end in range(1, len(command.words) + 1):
            if engine := _starts(command.words, end):
                return _taken(script, place, engine, end)
    for command in script.commands if depth < MAX_DEPTH else ():
        for place, word in enumerate(command.words):
            if re.search(r"sglang|vllm", word) and re.search(r"\s", word) and not isinstance(word, Raw):
                inner = _find(word, [], depth + 1)
                if inner.engine:
                    inner.wrapper = [*_exports(command), *command.words[:place], *inner.wrapper]
                    return inner
    for place, command in enumerate(script.commands):
        image = next((i for i, word in enumerate(command.words) if IMAGE.fullmatch(word)), None)
        if image is not None and any(word.rsplit("/", 1)[-1] in CONTAINERS for word in command.words[:image]):
            return _taken(script, place, "vllm", image + 1)
    return Found(arguments=[word for command in script.commands for word in command.words])


def _starts(words: list[str], end: int) -> str | None:
    """The engine whose server the words up to `end` start (never a path among the values)."""
    last, before, module = words[end - 1], words[end - 2] if end > 1 else "", end > 2 and words[end - 3] == "-m"
    for engine, pattern in MODULES.items():
        served = before if module else before.rsplit("/", 1)[-1]
        if (before == "-m" and pattern.fullmatch(last)) or (last == "serve" and served in COMMANDS[engine]):
            return engine
    return None


def _exports(command: Command) -> list[str]:
    return [Raw(f"{name}={value}") if isinstance(value, Raw) else f"{name}={value}" for name, value in command.exported.items()]


def _taken(script: Script, place: int, engine: str, end: int) -> Found:
    command, notes = script.commands[place], []
    left = list(command.left_out)
    piped = place
    while script.commands[piped].end in ("|", "|&") and piped + 1 < len(script.commands):
        piped += 1
        left.append(f"| {quoted(script.commands[piped].words)}")
    left += ["&"] if script.commands[piped].end == "&" else []
    if left:
        notes.append(f"Of the launch line this is left out: {'; '.join(left)}.")
    before = [quoted(c.words) for c in script.commands[:place] if c.words[0] in PLACES]
    if before:
        notes.append(f"The launch line first runs: {'; '.join(before)}.")
    if script.taken:
        notes.append(f"Defaults of the launch line are taken: {', '.join(f'{name} = {value}' for name, value in script.taken.items())}.")
    unknown = [name for name in script.open if any(isinstance(word, Raw) and name in word for word in command.words)]
    if unknown:
        notes.append(f"The launch line does not say what {', '.join(unknown)} is: the shell must know it.")
    return Found(engine, [*_exports(command), *command.words[:end]], command.words[end:], notes=notes)


def _python_call(text: str, problems: list[str]) -> tuple[str, dict[str, Any]] | None:
    """The keywords of `sgl.Engine(…)` or `LLM(…)` in a Python text; values that are no literals are left out."""
    if not re.search(rf"\b({'|'.join(OFFLINE)})\(", text):
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
            if any(k.arg is None for k in node.keywords):
                problems.append(f"what {name}(**…) is given from a dictionary is not read")
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
        elif name is not None and isinstance(word, Raw) and given[name] is not True:
            name = None  # "$@": words of nobody knows which flag
        elif name is not None:
            before = given[name]
            given[name] = word if before is True else [*before, word] if isinstance(before, list) else [before, word]
    return given


def vllm_speculative_config(given: dict[str, Any], problems: list[str]) -> dict[str, Any]:
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
            config = json.loads(shlex.split(value)[0] if isinstance(value, Raw) else str(value))
        except (ValueError, IndexError, RecursionError):
            config = None
        if isinstance(config, dict):
            settings |= config
        else:
            problems.append(f"--{name.replace('_', '-')} is no JSON object: got {str(value)[:200]!r}")
    return settings
