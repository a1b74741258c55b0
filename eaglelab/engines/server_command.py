"""The commands that start a server: with the right wiring, with what measuring needs, and as a capture of what the drafter is fed.

A launch line that is known is kept word by word, and only what must change is changed. Each option is looked up in `capabilities.toml`
before it is written.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglelab.engines.capabilities import holds, table, usual_chain
from eaglelab.engines.conventions import CannotFeed, Engine, convention_for, parse_engine
from eaglelab.engines.launch import CONTAINERS, VLLM_CONFIG_FLAGS, Launch
from eaglelab.engines.lint.positions import LONGER, reach
from eaglelab.engines.shell import Raw, quoted
from eaglelab.engines.target_config import target_shape
from eaglelab.outside_json import text_part
from eaglelab.wiring import FINAL, Boundary

STEPS = 3
"""Drafted steps on vLLM, which has no default, where neither the launch line nor a speculators config names a number."""
LOG_INTERVAL = 10
"""Decode passes between two lines of SGLang's log while it is measured; 40 unless told otherwise."""
STATES = "states"
"""Folder into which vLLM writes captured states."""
DEVICE_TIMER = "SGLANG_ENABLE_METRICS_DEVICE_TIMER"
RECORDS = "/tmp/eaglelab-records"
"""Folder into which the hook writes, on the server's machine."""
ELSEWHERE = ("ssh", "kubectl", "oc", "sudo")
"""Programs that do not hand their environment on."""


@dataclass(frozen=True)
class Commands:
    """Shell commands for one engine version. None: this version cannot do it, `notes` says why."""

    engine: Engine
    serve: str
    """The server with the drafter."""
    measure: str
    """The same, with what counters and times need."""
    record: str | None
    """The server with the drafter and a hook that records what its fc is really given."""
    capture: str | None
    """A server without a drafter that hands out the states of the wanted boundaries."""
    first: str | None = None
    """What puts the corrected config into its place; None where there is nothing to put."""
    notes: tuple[str, ...] = ()
    """What was assumed or left out, one sentence each."""

    def to_json(self) -> dict[str, Any]:
        names = ("first", "serve", "measure", "record", "capture")
        return {name: getattr(self, name) for name in names} | {"notes": list(self.notes)}

    @property
    def text(self) -> str:
        parts = [("First, put the corrected config where the engine reads it", self.first)] if self.first else []
        parts += [("Serve", self.serve)]
        parts += [("Measure", self.measure if self.measure != self.serve else "as it is: nothing to add")]
        parts += [("Record what the drafter is fed, by a hook in the served engine", self.record)] if self.record else []
        parts += [("Capture the states of these ids, without the drafter", self.capture)] if self.capture else []
        return "\n".join([f"{name}:\n  {command}" for name, command in parts] + [f"  {note}" for note in self.notes])


def server_command(
    engine: Engine | str,
    target: str,
    drafter: str,
    launch: Launch | None = None,
    *,
    draft_config: Mapping[str, Any],
    target_config: Mapping[str, Any],
    boundaries: Sequence[Boundary] = (),
    corrected: Path | None = None,
) -> Commands:
    """Commands that serve `drafter` on `target` (folders, as the engine will be given them) with this engine version.

    draft_config: the corrected config, as the engine will read it. corrected: the file that it was written to. boundaries: what the
    capture hands out; empty for none. launch: a launch line of the same engine, whose paths and flags are kept. Raises ConventionError
    for an unknown engine, ValueError for a training framework.
    """
    engine = parse_engine(engine) if isinstance(engine, str) else engine
    if engine.name not in WRITERS:
        raise ValueError(f"got {engine.title}, expected an engine that serves: {', '.join(WRITERS)}")
    notes: list[str] = []
    if launch is not None and launch.engine != engine.name:
        notes.append(f"The launch line starts {launch.engine or 'no server that is known here'}: nothing of it is kept.")
        launch = None
    notes += [f"The launch line cannot be read in full: {problem}." for problem in (launch.problems if launch else ())]
    line = Line.of(engine, launch, notes)
    kept = (launch.settings.get("model") or launch.given.get("speculative_draft_model_path")) if launch else None
    read = table()["options_read"][engine.name]
    if engine.version is not None and engine.version not in read:
        notes.append(f"The options were looked up in {read[0]} to {read[-1]}, not in {engine.title} itself: not checked for this version.")
    notes += _strange_options(line)
    writer = WRITERS[engine.name]
    serve, measure, record, capture = writer(line, target, drafter, launch, draft_config, target_config, boundaries, notes)
    first = _put(corrected, kept if isinstance(kept, str) else drafter) if corrected else None
    return Commands(engine, str(serve), str(measure), record and str(record), capture and str(capture), first, tuple(notes))


def _put(corrected: Path, place: str) -> str:
    """The command that puts a corrected config into the folder that the engine loads, where that is a folder."""
    corrected = corrected.resolve()
    if not isinstance(place, Raw) and not Path(place).is_absolute() and not Path(place).is_dir():
        return f"copy {corrected} as config.json into a copy of {place}, and name that copy in the commands below"
    folder = place if isinstance(place, Raw) else shlex.quote(str(Path(place).resolve()))
    return f"cp {folder}/config.json {folder}/config.before.json && cp {shlex.quote(str(corrected))} {folder}/config.json"


@dataclass(frozen=True)
class Line:
    """A command line that is edited flag by flag."""

    engine: Engine
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    wrapper: tuple[str, ...] = ()
    """What is told the whole line as one word: `bash -c`."""

    @classmethod
    def of(cls, engine: Engine, launch: Launch | None, notes: list[str]) -> Line:
        """The launch line's own words, else a bare program."""
        if launch is not None and launch.program:
            notes += launch.notes
            return cls(engine, launch.program, launch.arguments, launch.wrapper)
        if launch is not None and launch.given:
            notes.append("What starts the engine is no command line: only its paths, steps and parallel sizes are taken over.")
        program = ("python", "-m", "sglang.launch_server") if engine.name == "sglang" else ("vllm", "serve")
        return cls(engine, program, ())

    def __str__(self) -> str:
        line = quoted((*self.program, *self.arguments))
        return f"{quoted(self.wrapper)} {shlex.quote(line)}" if self.wrapper else line

    @property
    def positional(self) -> str | None:
        """The model of `serve MODEL …`."""
        given = self.program[-1:] == ("serve",) and self.arguments and _flag_of(self.arguments[0]) is None
        return self.arguments[0] if given else None

    def plus(self, *words: Any) -> Line:
        """With words at the end."""
        return replace(self, arguments=(*self.arguments, *(word if isinstance(word, str) else str(word) for word in words)))

    def has(self, *names: str) -> bool:
        return any(_flag_of(word) in names for word in self.arguments)

    def without(self, *names: str) -> Line:
        """Without flags (`--like-this`) and the words that belong to them; `name.` at the end stands for dotted ones."""
        kept, dropping = [], False
        for word in self.arguments:
            flag = _flag_of(word)
            if flag is not None:
                dropping = flag in names or any(name.endswith(".") and flag.startswith(name) for name in names)
            if not dropping:
                kept.append(word)
        return replace(self, arguments=tuple(kept))

    def with_flag(self, name: str, *values: Any, instead_of: Sequence[str] = ()) -> Line:
        """With a flag set, in the place of an older value where there is one. Unchanged where the engine's version lacks it."""
        if not has_option(self.engine, name):
            return self
        names = (name, *instead_of)
        place = next((i for i, word in enumerate(self.arguments) if _flag_of(word) in names), len(self.arguments))
        before, after = (replace(self, arguments=part).without(*names) for part in (self.arguments[:place], self.arguments[place:]))
        return before.plus(name, *values, *after.arguments)

    def with_variable(self, name: str, value: str = "1") -> Line:
        """With an environment variable in front, or handed into the container. Unchanged where the version does not read it."""
        if not has_option(self.engine, name) or any(word.startswith(f"{name}=") for word in (*self.wrapper, *self.program)):
            return self
        names = [word.rsplit("/", 1)[-1] for word in self.program]
        variable, at = [f"{name}={value}"], 0
        holder = next((i for i, word in enumerate(names) if word in CONTAINERS), None)
        if holder is not None:
            at = next((i + 1 for i in range(holder, len(names)) if names[i] in ("run", "exec")), holder + 2)
            variable = ["-e", *variable]
        elif set(names) & set(ELSEWHERE):
            own = len(names) - (2 if names[-1] == "serve" else 3)
            at = names.index("--") + 1 if "--" in names else max(own, 1)
            variable = ["env", *variable]
        return replace(self, program=(*self.program[:at], *variable, *self.program[at:]))


def has_option(engine: Engine, name: str) -> bool:
    """Whether this version has an option (`--like-this`) or reads a variable. KeyError for one that was never looked up."""
    return holds(engine, table()["options"][engine.name][name]) is True


def _strange_options(line: Line) -> list[str]:
    """What is to be said of options that the version is not known to have. Unambiguous beginnings count, as they do in argparse."""
    given = dict.fromkeys(flag.partition(".")[0] for word in line.arguments if (flag := _flag_of(word)) and flag.startswith("--"))
    listed = tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))[line.engine.name]
    if line.engine.version != listed["version"]:
        return [f"The launch line's own options are kept and not checked for {line.engine.title}."] if given else []
    names = listed["names"].split()
    strange = [flag for flag in given if not any(name.startswith(flag[2:].removeprefix("no-")) for name in names)]
    return [f"No options that {line.engine.title} is known to have, kept as they are: {', '.join(strange)}."] if strange else []


def _flag_of(word: str) -> str | None:
    """`--a-b` for `--a_b`, `--a-b=3`; None for a word that is no flag."""
    match = re.match(r"--?[A-Za-z][\w.-]*", word)
    return match[0].replace("_", "-") if match else None


# -- SGLang ----------------------------------------------------------------------------------------------------------------------


def _sglang(
    line: Line,
    target: str,
    drafter: str,
    launch: Launch | None,
    draft_config: Mapping[str, Any],
    target_config: Mapping[str, Any],
    boundaries: Sequence[Boundary],
    notes: list[str],
) -> tuple[Line, Line, Line | None, Line | None]:
    given = launch.given if launch else {}
    if not line.has("--model-path", "--model") and line.positional is None:
        line = line.with_flag("--model-path", given.get("model_path") or given.get("model") or target)
        for flag in ("tp_size", "context_length"):  # of a call in Python
            if flag in given and launch and not launch.program:
                line = line.plus(f"--{flag.replace('_', '-')}", given[flag])
    bare = line
    line = line.with_flag("--speculative-algorithm", "EAGLE3", instead_of=["--speculative-algo"])
    if not line.has("--speculative-draft-model-path", "--speculative-draft-model"):
        line = line.with_flag("--speculative-draft-model-path", given.get("speculative_draft_model_path") or drafter)
    line = _with_chain(line, launch, target_shape(target_config).architecture, notes)
    line = _with_reach(line, launch, draft_config, target_config, notes)
    interval = launch.number("decode_log_interval") if launch else None
    measure = line.with_flag("--enable-metrics").with_flag("--decode-log-interval", min(interval or LOG_INTERVAL, LOG_INTERVAL))
    return line, measure.with_variable(DEVICE_TIMER), _sglang_record(line, notes), _sglang_capture(bare, target_config, boundaries, notes)


def _with_chain(line: Line, launch: Launch | None, architecture: str | None, notes: list[str]) -> Line:
    """Steps, top-k and draft tokens: SGLang takes all three or none, and of a chain (top-k 1) only steps + 1 draft tokens."""
    flags = [f"--speculative-{name}" for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    steps, topk, nodes = chain = (launch.num_steps, launch.eagle_topk, launch.num_draft_tokens) if launch else (None, None, None)
    usual, who = usual_chain(line.engine, architecture), f"{line.engine.title} for {architecture or 'this target'}"
    if any(line.has(flag) and value is None for flag, value in zip(flags, chain, strict=True)):
        notes.append("Steps, top-k and draft tokens of the launch line are kept, as not all of them could be read.")
        return line
    if chain == (None, None, None) and usual is not None:
        chain = usual
        notes.append(f"Steps, top-k and draft tokens are not given: {list(usual)} is what {who} takes by itself, no recommendation.")
    elif None in chain and usual is not None:
        steps = steps or (nodes - 1 if nodes and nodes > 1 else usual[0])
        topk = topk or 1
        chain = (steps, topk, nodes or (steps + 1 if topk == 1 else usual[2]))
        notes.append(f"Of steps, top-k and draft tokens only some are given, which {line.engine.title} refuses: {list(chain)} is written.")
    if chain[1] == 1 and chain[0] and chain[2] != chain[0] + 1:
        notes.append(f"With top-k 1 {line.engine.title} verifies steps + 1 tokens: {chain[0] + 1} is written in place of {chain[2]}.")
        chain = (chain[0], 1, chain[0] + 1)
    for name, value in zip(flags, chain, strict=True):
        line = line.with_flag(name, value)
    return line


def _with_reach(
    line: Line, launch: Launch | None, draft_config: Mapping[str, Any], target_config: Mapping[str, Any], notes: list[str]
) -> Line:
    """The variable that lets a drafter with fewer positions than the server's context start."""
    layer = draft_config.get("transformer_layer_config")
    drafter = reach(layer if isinstance(layer, Mapping) else draft_config)
    served = (launch.number("context_length") if launch else None) or reach(text_part(target_config))
    if drafter is None or served is None or drafter >= served:
        return line
    notes.append(f"The drafter's positions end at {drafter}, the context is {served}: without {LONGER}=1 the start-up stops.")
    return line.with_variable(LONGER)


def _sglang_record(line: Line, notes: list[str]) -> Line | None:
    """The drafter's own server with eaglelab's hook, without graphs, which replay past it."""
    if not has_option(line.engine, "--forward-hooks"):
        notes.append(f"{line.engine.title} has no --forward-hooks: what the drafter is fed cannot be recorded there.")
        return None
    from eaglelab.capture.sglang_hook import hook_spec

    notes.append(f"The hook writes into {RECORDS} and must be installed beside the engine: pip install --no-deps /path/to/eaglelab.")
    line = line.with_flag("--disable-radix-cache").with_flag("--disable-cuda-graph")
    return line.with_flag("--forward-hooks", json.dumps(hook_spec(RECORDS)))


def _sglang_capture(line: Line, target_config: Mapping[str, Any], boundaries: Sequence[Boundary], notes: list[str]) -> Line | None:
    """A target without a drafter that returns the states of chosen layers (0.5.23, arg_groups/validation_hook.py:697-754)."""
    option, shape = "--enable-return-aux-hidden-states", target_shape(target_config)
    if not boundaries:
        return None
    if not has_option(line.engine, option):
        since = table()["options"]["sglang"][option]["since"]
        notes.append(f"{line.engine.title} returns no states of chosen layers: {option} came with {since}.")
        return None
    wanted = tuple(b for b in boundaries if b != FINAL)
    try:
        ids = convention_for(line.engine, shape.architecture).ids_for(wanted, shape.num_layers)
    except CannotFeed as reason:
        notes.append(f"No capture: {reason}")
        return None
    if min(ids) < 0 or max(ids) >= shape.num_layers:
        notes.append(f"No capture of ids {ids}: {line.engine.title} takes 0 to {shape.num_layers - 1} there.")
        return None
    if FINAL in boundaries:
        notes.append("The final state is not among the states that are returned.")
    spared = [
        f"--speculative-{name}" for name in ("algo", "draft-model-path", "draft-model", "num-steps", "eagle-topk", "num-draft-tokens")
    ]
    spared += ["--speculative-draft-model-quantization", "--speculative-draft-attention-backend", "--speculative-adaptive"]
    stages = ("--pp-size", "--pipeline-parallel-size")
    if line.has(*stages):
        notes.append("The capture runs without pipeline stages, which it refuses: give it more tensor parallel ranks where memory asks.")
    line = line.without(*spared, *stages).with_flag("--speculative-algorithm", "EAGLE3")
    line = line.with_flag(option).with_flag("--return-aux-hidden-state-layer-ids", *ids)
    notes.append("In the capture EAGLE3 only names the numbering of the layer ids: no drafter runs.")
    return line.with_flag("--disable-radix-cache").with_flag("--chunked-prefill-size", -1)


# -- vLLM ------------------------------------------------------------------------------------------------------------------------


def _vllm(
    line: Line,
    target: str,
    drafter: str,
    launch: Launch | None,
    draft_config: Mapping[str, Any],
    target_config: Mapping[str, Any],
    boundaries: Sequence[Boundary],
    notes: list[str],
) -> tuple[Line, Line, Line | None, Line | None]:
    given = launch.given if launch else {}
    if launch is None or not launch.program:
        model = given.get("model")
        line = line.plus(model if isinstance(model, str) else target)
        if isinstance(given.get("tensor_parallel_size"), int):
            line = line.plus("--tensor-parallel-size", given["tensor_parallel_size"])
    bare = line.without("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens", "--speculative-config.", "-sc.")
    settings = dict(launch.settings) if launch else {}
    settings = {"method": "eagle3", "model": settings.get("model") or drafter} | {
        k: v for k, v in settings.items() if k not in ("method", "model")
    }
    if "num_speculative_tokens" not in settings:
        settings["num_speculative_tokens"] = trained = _trained_steps(draft_config)
        whence = (
            "the speculators config's" if trained != STEPS or "speculators_config" in draft_config else "eaglelab's choice, vLLM has none"
        )
        notes.append(f"The number of drafted tokens is not given: {trained} is {whence}.")
    elif isinstance(settings["num_speculative_tokens"], str) and settings["num_speculative_tokens"].isdecimal():
        settings["num_speculative_tokens"] = int(settings["num_speculative_tokens"])
    text = json.dumps(settings, ensure_ascii=False)
    if any(isinstance(given.get(name), Raw) for name in VLLM_CONFIG_FLAGS):  # the shell puts a variable into it
        text = Raw('"' + re.sub(r'([\\"`])', r"\\\1", text) + '"')
    serve = bare.with_flag("--speculative-config", text)
    measure = serve.without("--disable-log-stats")
    option = "--per-request-spec-decode-metrics"
    if has_option(line.engine, option):
        measure = measure.with_flag(option, "detailed")
    else:
        notes.append(f"{line.engine.title} has no {option}: /metrics has the counters of all requests together.")
    return serve, measure, None, _vllm_capture(bare, target_config, boundaries, notes)


def _trained_steps(config: Mapping[str, Any]) -> int:
    """`speculative_tokens` of a speculators config, which vLLM takes (transformers_utils/configs/speculators/base.py), else STEPS."""
    part = config.get("speculators_config")
    methods = part.get("proposal_methods") if isinstance(part, Mapping) else None
    number = methods[0].get("speculative_tokens") if isinstance(methods, list) and methods and isinstance(methods[0], Mapping) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else STEPS


def _vllm_capture(line: Line, target_config: Mapping[str, Any], boundaries: Sequence[Boundary], notes: list[str]) -> Line | None:
    """The method extract_hidden_states with its connector, which writes a file a request; boundary N goes along as the last state."""
    if not boundaries:
        return None
    shape = target_shape(target_config)
    wanted = [b for b in boundaries if b != FINAL]
    if FINAL in boundaries:
        notes.append(f"vLLM hands out boundary {shape.num_layers}, the state before the final norm, in place of the final one.")
    try:
        ids = convention_for(line.engine, shape.architecture).ids_for(list(dict.fromkeys([*wanted, shape.num_layers])), shape.num_layers)
    except CannotFeed as reason:
        notes.append(f"No capture: {reason}")
        return None
    method = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
    method["draft_model_config"] = {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    connector = {"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"}
    connector["kv_connector_extra_config"] = {"shared_storage_path": STATES}
    notes.append(f"The capture writes one file a request into {STATES}/, on the server's machine.")
    line = line.without("--enable-prefix-caching", "--kv-transfer-config.").with_flag("--speculative-config", json.dumps(method))
    return line.with_flag("--kv-transfer-config", json.dumps(connector)).with_flag("--no-enable-prefix-caching")


WRITERS = {"sglang": _sglang, "vllm": _vllm}
