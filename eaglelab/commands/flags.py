"""`eaglelab flags`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LOGGED = ("server_args=", "non-default args: ")
"""What SGLang and vLLM print of their settings at the start."""
FIRST = ("num_steps", "eagle_topk", "num_draft_tokens", "algorithm", "max_running_requests")
"""Effective settings that are read first."""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("flags", run, "the settings that a launch command really leads to, per engine version (exits 0 whatever it finds)")
    sub.add_argument("line", metavar="LINE", help="the server's launch command in quotes, a file that holds it, or a case")
    text = "sglang==0.5.23, vllm==0.32.0, ... (default: the case's, else the engine that the line starts, its newest version that was read)"
    sub.add_argument("--engine", metavar="ENGINE", help=text)
    text = "the target's config.json or its folder (default: the case's, else not known)"
    sub.add_argument("--target", type=Path, metavar="CONFIG", help=text)
    text = "the drafter's config.json or its folder (default: the case's, else not known)"
    sub.add_argument("--drafter", type=Path, metavar="CONFIG", help=text)
    from eaglelab.commands.arguments import count

    text = "requests that ran at the same time, as a log says: did such batches have a CUDA graph? (default: not known)"
    sub.add_argument("--running", type=count, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    from eaglelab.commands.terminal import print_finding, print_json, visible
    from eaglelab.engines.effective import audit

    launch, engine, target, drafter = inputs(args)
    found = audit(launch, engine, target_config=target, draft_config=drafter, running=args.running)
    if args.json:
        print_json(found.to_json())
        return 0
    print(visible(f"{found.engine.title}: {settings(found)}"))
    said: set[str] = set()
    for finding in found.findings:
        print_finding(finding, said)
    return 0


def settings(found) -> str:
    """The effective settings, what decides in the first line and the rest in a second, with what was asked beside what is not as asked."""
    starts, effective = found.effective["starts"], dict(found.effective)
    if effective["algorithm"] is None:
        return {False: "does not start", True: "no speculation", None: "nothing of speculation is known"}[starts]
    begins = "does not start; " if starts is False else ""
    first = [_setting(found, name) for name in FIRST]
    if found.engine.name == "vllm":
        steps = effective["num_steps"]
        first[:3] = [None if steps is None else f"num_speculative_tokens {steps} (drafts {steps}, verifies {steps + 1})"]
    rest = [_setting(found, name) for name in effective if name not in (*FIRST, "starts")]
    lines = [", ".join(part for part in parts if part) for parts in (first, rest)]
    return begins + "\n    also: ".join(line for line in lines if line)


def _setting(found, name: str) -> str | None:
    value, asked = found.effective[name], found.given.get(name)
    return None if value is None else f"{name} {value}" + (f" (asked: {asked})" if asked not in (None, value) else "")


def inputs(args: argparse.Namespace):
    """(launch, engine, target's config, drafter's config) from the line, the file or the case, and from the options."""
    from eaglelab.drafter.config import read_config
    from eaglelab.engines.conventions import parse_engine
    from eaglelab.engines.launch import parse_launch
    from eaglelab.opened import OpenedCase

    target = None if args.target is None else read_config(args.target)
    drafter = None if args.drafter is None else read_config(args.drafter)
    engine = None if args.engine is None else parse_engine(args.engine)
    if os.path.isdir(args.line) or args.line.endswith(".toml"):
        case = OpenedCase(args.line)
        if case.launch is None:
            raise ValueError(f"{args.line}: the case has no launch line; give it under [engine] launch, as a command or a file")
        launch, engine = case.launch, engine or case.engine
        target = target if target is not None else case.target_config
        drafter = drafter if drafter is not None else case.draft_config
    else:
        launch = parse_launch(text_of(args.line))
    if engine is None:
        if launch.engine is None and not launch.arguments:
            raise ValueError("the launch line is empty; give the whole command in quotes, or a file that holds it")
        name = launch.engine or bare(launch.given)
        if name is None:
            raise ValueError("the line names no server of SGLang or vLLM that is known here; say which it is: --engine sglang==VERSION")
        engine = parse_engine(name)
    return launch, engine, target, drafter


def bare(given: Mapping[str, Any]) -> str | None:
    """The engine whose speculative flags stand on a line without a program."""
    from eaglelab.engines.launch import SGLANG_NAMES, VLLM_CONFIG_FLAGS, VLLM_SHORT_FLAGS

    own = {"sglang": {*SGLANG_NAMES}, "vllm": {*VLLM_CONFIG_FLAGS, *VLLM_SHORT_FLAGS}}
    found = [engine for engine, names in own.items() if any(flag.partition(".")[0] in names for flag in given)]
    return found[0] if len(found) == 1 else None


def text_of(line: str) -> str:
    """The line itself, or what the file of this name holds."""
    if not os.path.isfile(line):  # never raises: a line may be longer than a file's name can be
        if len(line.split()) == 1:
            raise ValueError(f"{line}: neither a file nor a launch line; give the whole command in quotes, or a file that holds it")
        return line
    try:
        text = Path(line).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{line} cannot be read as text: {error}") from None
    if any(words in text for words in LOGGED):
        raise ValueError(f"{line} is a server's log, not its launch line; in a case `[engine] log` names it, and `eaglelab check` reads it")
    return text
