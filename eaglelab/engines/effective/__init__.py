"""What a launch line leads to: the speculative settings that an engine's version makes of the flags, and what of it is not what was meant.

`audit` is what `eaglelab flags` prints and what a case's check asks. Facts by version: `effective.toml`, `options.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglelab.engines.conventions import Engine
from eaglelab.engines.effective import on_sglang, on_vllm
from eaglelab.engines.launch import Launch
from eaglelab.engines.shell import Raw
from eaglelab.findings import Finding, Status, by_severity


@dataclass(frozen=True)
class FlagAudit:
    """One launch line under one engine version."""

    engine: Engine
    given: dict[str, Any]
    """As asked, by the names of `effective`, None where not asked; `flags` and `env` hold the line's own words."""
    effective: dict[str, Any]
    """As the engine has it: `num_steps`, `eagle_topk`, `num_draft_tokens` (nodes of a verify pass, the root included), `algorithm`,
    `max_running_requests`, `cuda_graph_max_bs`, …; None: not known without the machine, or no such thing. `starts`: whether any rule that
    was read refuses the line; None where it says nothing about this engine."""
    findings: tuple[Finding, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": str(self.engine),
            "given": self.given,
            "effective": self.effective,
            "findings": [finding.to_json() for finding in self.findings],
        }


def audit(
    launch: Launch,
    engine: Engine,
    *,
    target_config: Mapping[str, Any] | None = None,
    draft_config: Mapping[str, Any] | None = None,
    running: int | None = None,
    graphs: bool = True,
) -> FlagAudit:
    """A launch line as `engine` reads it. target_config, draft_config: the models' config.json. running: requests that ran at the same
    time, as a log says, which tells whether their batches had a graph. graphs: False where nothing is to be said of graphs, since a log
    tells by itself which batches had one.

    Never raises for a line, however broken: what cannot be read is a finding. Raises ValueError for what is no engine.
    """
    if engine.name not in READERS:
        raise ValueError(f"got {engine.title}, expected an engine that serves: {', '.join(READERS)}")
    given, effective, found = READERS[engine.name](launch, engine, target_config, draft_config, running, graphs)
    if not _about(launch, engine):
        effective, found = dict.fromkeys(effective), []
    findings = [*_line(launch, engine, found), *found]
    if not any(f.status in (Status.FAIL, Status.CANNOT_TELL) for f in findings):
        findings.append(_nothing(engine, given, effective))
    return FlagAudit(engine, given | {"flags": dict(launch.given), "env": dict(launch.env)}, effective, tuple(by_severity(findings)))


READERS = {"sglang": on_sglang.read, "vllm": on_vllm.read}


def _about(launch: Launch, engine: Engine) -> bool:
    """Whether the line says anything about the engine: bare flags without a program count as its own."""
    return launch.engine == engine.name or (launch.engine is None and bool(launch.given))


def _line(launch: Launch, engine: Engine, said: list[Finding]) -> list[Finding]:
    """What of the line could not be read, or is another engine's. said: what the engine's own checks say already."""
    found = []
    if launch.engine is not None and launch.engine != engine.name:
        found.append(
            Finding(
                "flags.engine",
                f"The line starts {launch.engine}, not {engine.title}: its flags say nothing about that engine",
                Status.CANNOT_TELL,
                claim=f"engine {engine}; the line: {' '.join(launch.program)[:120]}",
                evidence="Options of the same name mean other things in the two engines, so none of the line's is taken for that one's.",
                next=f"Which of them serves? If {launch.engine}: --engine {launch.engine}==VERSION, in a case `[engine] name` and `version`. If "
                f"{engine.name}: its own launch line.",
            )
        )
    # Numbers that are none are said again below, by what the engine makes of them.
    problems = [p for p in launch.problems if " on the launch line is " not in p]
    if launch.engine == engine.name == "vllm":
        problems = [p for p in problems if not any(f.id == "flags.value" and f"{p.split()[0]} is no JSON" in f.title for f in said)]
    if launch.engine is None and launch.given:
        problems = [p for p in problems if "names no server" not in p]
        problems.append(f"it starts no server that is known here; its flags are taken for those of {engine.title}")
    known = list(launch.given.values())
    if shell := [str(word) for word in launch.arguments if isinstance(word, Raw) and not any(word is value for value in known)]:
        problems.append(f"what {', '.join(dict.fromkeys(shell))} holds the shell alone knows")
    if problems or launch.engine is None:
        found.append(
            Finding(
                "flags.line",
                "The launch line cannot be read in full: " + ("; ".join(problems) or "there is nothing on it"),
                Status.CANNOT_TELL,
                evidence="What could not be read counts as not given.",
                next="Give the whole command as it is started, in one pair of quotes, or a file that holds it.",
            )
        )
    return found


def _nothing(engine: Engine, given: Mapping[str, Any], effective: Mapping[str, Any]) -> Finding:
    names = ("num_steps", "eagle_topk", "num_draft_tokens", "max_running_requests")
    own = [f"{name} {effective[name]}" for name in names if effective[name] is not None and given.get(name) is None]
    adds = f"; not on it and in force: {', '.join(own)}" if own else ""
    if engine.name == "vllm":  # a chain has no top-k, and its draft tokens follow
        adds = (
            f"; it drafts {effective['num_steps']} and verifies {effective['num_draft_tokens']} tokens a pass"
            if effective["num_steps"]
            else ""
        )
    shown = [f"{name} {value}" for name, value in effective.items() if value is not None and name != "starts"]
    return Finding(
        "flags.effective",
        f"{engine.title} takes the line as it is written{adds}"
        if effective.get("algorithm")
        else f"{engine.title} starts without speculation",
        Status.PASS,
        claim="The flags of the line.",
        evidence=f"In force: {', '.join(shown) or 'nothing of speculation'}.",
        numbers={name: value for name, value in effective.items() if value is not None},
    )
