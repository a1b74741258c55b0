"""`eaglelab sweep`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from eaglelab.commands.arguments import count, samples, where
from eaglelab.commands.terminal import print_json, visible


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("sweep", run, "launch the engine with each setting worth trying and measure it on real prompts")
    sub.add_argument("case", type=Path, help="a case.toml or the folder that holds it")
    text = (
        "the server's command line, or a file that holds it, started in the current folder; {steps} {topk} {draft_tokens} {port} {speculative} are put in, without them its "
        "speculative flags are rewritten (default: the case's `[engine] launch`, started in the case's folder)"
    )
    sub.add_argument("--launch", metavar="TEMPLATE", help=text)
    text = (
        "off, STEPS or STEPS-TOPK-DRAFT_TOKENS, all of them measured, as in off,2,3-1-4,5-4-8; auto: those that could win (default: auto)"
    )
    sub.add_argument("--settings", default="auto", metavar="LIST", help=text)
    sub.add_argument("--batch", default=(1, 4, 16), type=batches, metavar="N,N", help="requests at the same time (default: 1,4,16)")
    text = "values of an environment variable of the server, each swept; may be given again (default: none)"
    sub.add_argument("--env", action="append", default=[], metavar="NAME=A,B", help=text)
    text = "a flag of the server, swept without and with it, as in --flag=--disable-custom-all-reduce; may be given again (default: none)"
    sub.add_argument("--flag", action="append", default=[], metavar="FLAG", help=text)
    text = "JSONL of token_ids, messages, prompt or text, or a recording (default: the dump's own prompts)"
    sub.add_argument("--prompts", type=Path, metavar="FILE", help=text)
    text = "tokens of an answer at most; one that the dump holds is asked for in its own length (default: 256)"
    sub.add_argument("--max-new-tokens", type=count, default=256, metavar="N", help=text)
    text = "requests of a repeat, at least two for each stream (default: every prompt once)"
    sub.add_argument("--requests", type=count, metavar="N", help=text)
    sub.add_argument("--repeats", type=count, default=1, metavar="R", help="repeats of each measurement on the same server (default: 1)")
    text = "folder of the results; one that is there is gone on with (default: sweep in the case's folder)"
    sub.add_argument("--out", type=Path, metavar="DIR", help=text)
    sub.add_argument(
        "--boot-timeout", type=count, default=1800, metavar="S", help="seconds that a server may take to start (default: 1800)"
    )
    sub.add_argument("--timeout", type=count, default=600, metavar="S", help="seconds that one answer may take (default: 600)")
    sub.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the server's key (default: EAGLELAB_API_KEY)")
    sub.add_argument(
        "--max-runs", type=count, metavar="N", help="servers that are started at most, the rest is for the next call (default: all)"
    )
    sub.add_argument("--plan", action="store_true", help="say what would be tried and start nothing (default: measure)")
    samples(sub, 32)
    where(sub, "the drafter's, for the replay (default: auto = bfloat16 on CUDA, float32 on the CPU)")


def batches(text: str) -> tuple[int, ...]:
    """`1,4,16`."""
    try:
        found = tuple(dict.fromkeys(sorted(count(word) for word in text.split(","))))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected numbers as in 1,4,16") from None
    return found


def run(args: argparse.Namespace) -> int:
    from eaglelab.engines.launch import parse_launch
    from eaglelab.investigation import Investigation
    from eaglelab.live.connect import ENGINES
    from eaglelab.live.report import api_key, prompts_of
    from eaglelab.timing.sweep.command import Template, parse_axis, parse_flags
    from eaglelab.timing.sweep.plan import parse_settings
    from eaglelab.timing.sweep.run import Options, Sweep

    options = Options(
        settings=parse_settings(args.settings),
        batches=args.batch,
        repeats=args.repeats,
        max_new_tokens=args.max_new_tokens,
        requests=args.requests,
        environment=tuple(parse_axis(text) for text in args.env),
        flags=tuple(parse_flags(text) for text in args.flag),
        boot_timeout=args.boot_timeout,
        timeout=args.timeout,
        max_runs=args.max_runs,
    )
    asked = {"max_samples": args.max_samples or None, "seed": args.seed, "device": args.device, "dtype": args.dtype}
    inv = Investigation(str(args.case), **asked)
    line, folder = launch_line(args.launch, inv)
    named = inv.engine.name if inv.engine is not None and inv.engine.name in ENGINES else None
    if args.launch is not None and parse_launch(line).engine:  # the line's own engine counts, whatever the case's
        named = None
    template = Template.read(line, folder=folder, engine=named, drafter=inv.case.drafter.path)

    def say(text: str) -> None:
        print(visible(text), file=sys.stderr, flush=True)

    sweep = Sweep(inv, template, options, out=args.out, key=api_key(args.api_key_env), say=say)
    report = sweep.plan(_prompts_if_any(inv, args.prompts)) if args.plan else sweep.run(prompts_of(inv, args.prompts))
    if args.json:
        print_json(report.to_json())
    else:
        print(visible("\n".join(report.lines())))
    return report.exit_code


def _prompts_if_any(inv, file: Path | None):
    """For a plan, which can do without the dump's; a file that was named must be there."""
    from eaglelab.live.report import prompts_of
    from eaglelab.opened import NotGiven

    try:
        return prompts_of(inv, file)
    except (NotGiven, ValueError, OSError):
        if file is not None:
            raise
        return None


def launch_line(text: str | None, inv) -> tuple[str, Path]:
    """(the launch line, the folder in which it is started)."""
    if text is None:
        if inv.case.engine.launch is None:
            raise ValueError(f"{inv.case.file} has no `[engine] launch`: give the server's command line with --launch")
        return inv.case.engine.launch, inv.case.root
    path = Path(text).expanduser()
    if len(text) < 1024 and "\n" not in text and path.is_file():
        try:
            return path.read_text(encoding="utf-8"), Path.cwd()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--launch {path} is a file that holds no text ({error}), expected the server's command line") from None
    return text, Path.cwd()
