"""The command line of a setting, made from a launch line or a template.

A launch line without placeholders is read flag by flag: what is about speculation is written anew, everything else is kept word by word.
A template keeps all its text; `{steps}`, `{topk}`, `{draft_tokens}`, `{port}` and `{speculative}` (the engine's own flags for the setting,
nothing for off) are put in.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eaglelab.engines.conventions import Engine
from eaglelab.engines.launch import CONTAINERS, Launch, parse_launch
from eaglelab.engines.server_command import ELSEWHERE, Line
from eaglelab.engines.shell import Raw, quoted
from eaglelab.live.secrets import command_without_secrets
from eaglelab.timing.errors import TimingError
from eaglelab.timing.setting import Setting

PLACEHOLDER = re.compile(r"\{(steps|topk|draft_tokens|port|speculative)\}")
LOOPBACK = "127.0.0.1"
ALGORITHM = {"sglang": "EAGLE3", "vllm": "eagle3"}
VLLM_FLAGS = ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens", "--speculative-config.", "-sc.")
PER_REQUEST = "--per-request-spec-decode-metrics"
"""vLLM 0.32.0 does not start with it when nothing speculates (config/vllm.py:1664)."""


@dataclass(frozen=True)
class Command:
    """What starts the server of one setting."""

    line: str
    """For a shell."""
    port: int
    host: str = LOOPBACK
    """Where this machine reaches it."""
    folder: Path = Path()
    """In which it is started."""
    elsewhere: bool = False
    """Whether something else than the server itself listens at the port (a container's proxy)."""

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def shown(self) -> str:
        """Without keys."""
        return command_without_secrets(self.line)


@dataclass(frozen=True)
class Template:
    """A launch line, with or without placeholders, of an engine that is known or left open."""

    text: str
    launch: Launch
    engine: str | None
    folder: Path
    drafter: str | None = None
    """Folder of the drafter, where the line names none."""
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str, *, folder: Path, engine: str | None = None, drafter: Path | None = None) -> Template:
        """engine: `sglang` or `vllm` where the case says it. Raises TimingError for a line that cannot be used."""
        if not text.strip():
            raise TimingError(
                "the launch line is empty, expected the command that starts the server, as in `python -m sglang.launch_server …`"
            )
        launch = parse_launch(PLACEHOLDER.sub(lambda m: "1" if m[1] != "speculative" else "", text))
        named = set(PLACEHOLDER.findall(text))
        if engine is not None and launch.engine is not None and launch.engine != engine:
            raise TimingError(f"the launch line starts {launch.engine}, the case's engine is {engine}: give the line of one engine")
        engine = launch.engine or engine
        words = [word.rsplit("/", 1)[-1] for word in (*launch.wrapper, *launch.program)]
        if other := next((word for word in words if word in ELSEWHERE and word != "sudo"), None):
            raise TimingError(
                f"the launch line starts the server through {other}, on another machine, where it could not be stopped: sweep there"
            )
        if not named and launch.engine is None:
            raise TimingError(
                f"the launch line names no server of SGLang or vLLM that is known here: {command_without_secrets(text.strip())[:200]}. Give a template that says where the "
                "settings go, as in `./serve.sh --port {port} {speculative}`"
            )
        if not named and not launch.program:
            raise TimingError("the launch line is a call in Python, which starts no HTTP server: give the command line of the server")
        if named and "port" not in named and launch.number("port") is None:
            raise TimingError("the template does not say where the port goes: put {port} there, as in `--port {port}`")
        detached = any(word in CONTAINERS for word in words)
        if detached and "port" not in named:
            raise TimingError(
                "the launch line starts a container, whose ports are its own matter: put {port} where they are mapped, as in `docker run --rm -p {port}:30000 …`"
            )
        if detached and re.search(r"\s(-d|--detach)\b", text):
            raise TimingError(
                "the container is started in the background (-d), where it could not be stopped: leave that flag out, and give --rm"
            )
        notes = () if named else (*launch.notes, *(f"The launch line cannot be read in full: {problem}." for problem in launch.problems))
        if detached:
            notes += ("A container is asked to end through its `docker run`; one that does not within 20 s must be stopped by hand.",)
        return cls(text, launch, engine, folder, None if drafter is None else str(drafter), notes)

    @property
    def own_port(self) -> int | None:
        """The port that the line itself names."""
        return None if "port" in PLACEHOLDER.findall(self.text) else self.launch.number("port") or None

    @property
    def shown(self) -> str:
        return command_without_secrets(self.text)

    @property
    def api_key(self) -> str | None:
        key = self.launch.given.get("api_key")
        key = key[0] if isinstance(key, list) else key
        return key if isinstance(key, str) and not isinstance(key, Raw) else self.launch.env.get("VLLM_API_KEY")

    def check_environment(self, names: Sequence[str]) -> None:
        """Raises TimingError for a variable that would not reach the server."""
        for name in names:
            if re.search(rf"(?<![\w]){re.escape(name)}=", self.text):
                raise TimingError(f"--env {name}: the launch line sets it itself, which would win; take it out of the line")
            if any(word.rsplit("/", 1)[-1] in CONTAINERS for word in (*self.launch.wrapper, *self.launch.program)):
                raise TimingError(
                    f"--env {name} does not reach into a container: pass it on in the launch line, with `-e {name}` and no value"
                )

    def command(self, setting: Setting, port: int, flags: Sequence[str] = ()) -> Command:
        """flags: further words for the server's command line. Raises TimingError for a setting that the engine or the line cannot express."""
        if self.engine == "vllm" and not setting.chain:
            raise TimingError(f"vLLM drafts chains: {setting.name} cannot be asked for")
        host = self.launch.given.get("host")
        host = host if isinstance(host, str) and not isinstance(host, Raw) and host not in ("0.0.0.0", "::", "localhost") else LOOPBACK
        container = any(word.rsplit("/", 1)[-1] in CONTAINERS for word in (*self.launch.wrapper, *self.launch.program))
        if PLACEHOLDER.search(self.text):
            text = self._filled(setting, port)
            return Command(f"{text} {quoted(flags)}".strip() if flags else text, self.own_port or port, host, self.folder, container)
        line = self._line(self.launch, setting)
        if not self.own_port:
            line = replace(line, arguments=line.without("--port").arguments).plus("--port", port)
        if "host" not in self.launch.given:
            line = line.plus("--host", LOOPBACK)
        return Command(str(line.plus(*flags)), self.own_port or port, host, self.folder, container)

    def _filled(self, setting: Setting, port: int) -> str:
        values = {"steps": setting.steps, "topk": setting.topk, "draft_tokens": 0 if setting.off else setting.draft_tokens, "port": port}
        values["speculative"] = quoted(self._words(setting)) if "{speculative}" in self.text else ""
        text = PLACEHOLDER.sub(lambda m: str(values[m[1]]), self.text)
        if setting.off and "{speculative}" not in self.text and self.launch.engine is not None:
            launch = parse_launch(text)
            lost = [n for n in launch.notes if n.startswith("The launch line first runs")]
            if lost:
                raise TimingError(
                    f"how to leave speculation out of the template is not clear ({lost[0]}): put {{speculative}} in the place of its flags"
                )
            return str(self._line(launch, setting))
        return text

    def _words(self, setting: Setting) -> list[str]:
        """The flags of a setting, for a line that has none."""
        if self.engine is None:
            raise TimingError("{speculative} in the launch line: whose flags? Name the engine in the case, `[engine] name`")
        return list(self._line(replace(self.launch, program=("x",), wrapper=(), arguments=()), setting).arguments)

    def _line(self, launch: Launch, setting: Setting) -> Line:
        """The launch's own line with its speculation as the setting says."""
        line = Line.of(Engine(self.engine), launch, [])
        return (_vllm if self.engine == "vllm" else _sglang)(line, launch, setting, self.drafter)


def _sglang(line: Line, launch: Launch, setting: Setting, drafter: str | None) -> Line:
    given = {name for word in line.arguments if (name := _flag(word)).startswith("--speculative-")}
    if setting.off:
        return line.without(*given)
    line = line.without(*(name for name in given if name.startswith("--speculative-adaptive")))
    if not given & {"--speculative-algorithm", "--speculative-algo"}:
        line = line.plus("--speculative-algorithm", ALGORITHM["sglang"])
    if not given & {"--speculative-draft-model-path", "--speculative-draft-model"}:
        line = line.plus("--speculative-draft-model-path", _drafter(launch.given.get("speculative_draft_model_path") or drafter))
    for name, value in setting.flags("sglang").items():
        line = line.with_flag(f"--{name.replace('_', '-')}", value)
    return line


def _vllm(line: Line, launch: Launch, setting: Setting, drafter: str | None) -> Line:
    if any(isinstance(value, Raw) for name, value in launch.given.items() if name.split(".")[0] in ("speculative_config", "sc")):
        raise TimingError(
            "the launch line's speculative config holds what only the shell knows: write it out, or put {speculative} in its place"
        )
    line = line.without(*VLLM_FLAGS, "--disable-log-stats")  # without the engine's counters there is no accept length
    if setting.off:
        return line.without(PER_REQUEST)
    kept = {k: v for k, v in launch.settings.items() if k != "num_speculative_tokens"}
    model = _drafter(kept.get("model") or drafter)
    settings: Mapping[str, object] = {"method": ALGORITHM["vllm"], **kept, "model": model, **setting.flags("vllm")}
    return line.plus("--speculative-config", json.dumps(settings, ensure_ascii=False))


def _drafter(path: object) -> str:
    if not isinstance(path, str):
        raise TimingError("no drafter is named: neither the launch line nor `[drafter] path` of the case does")
    return path


def _flag(word: str) -> str:
    return word.partition("=")[0].replace("_", "-") if word.startswith("-") else ""


def parse_axis(text: str) -> tuple[str, tuple[str, ...]]:
    """`NAME=a,b` of --env. Raises TimingError."""
    name, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise TimingError(f"--env {text!r}: expected NAME=VALUE or NAME=VALUE,VALUE, as in NCCL_ALGO=Ring,Tree")
    return name, tuple(dict.fromkeys(values.split(",")))


def parse_flags(text: str) -> tuple[str, ...]:
    """The words of --flag. Raises TimingError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise TimingError(f"--flag {text!r} cannot be split into words ({error})") from None
    if not words or not words[0].startswith("-"):
        raise TimingError(f"--flag {text!r}: expected a flag of the server, as in --flag=--disable-custom-all-reduce")
    if words[0].replace("_", "-").startswith(("--spec", "-sc")):
        raise TimingError(f"--flag {text!r} is about speculation, which --settings chooses")
    return words
