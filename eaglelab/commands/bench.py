"""`eaglelab bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from eaglelab.commands.arguments import DTYPES, count, count_or_all, device
from eaglelab.commands.terminal import short, show, visible
from eaglelab.timing.errors import TimingError

SHOWN = (
    "what",
    "batch",
    "context",
    "tokens",
    "repeats",
    "median_ms",
    "low_ms",
    "high_ms",
    "gb_s",
    "share_of_bandwidth",
    "share_of_peak",
    "bound",
)
GRID = ("target", "drafter", "batch", "context", "tokens", "graphs", "repeats", "layers", "seconds", "out")
LOOP = ("feed", "steps", "prompts", "max_prompts", "max_new_tokens", "rounds", "trace")
"""Options of one of both ways: None unless given, so that one without its way can be refused."""
CPU_LOOP = {"max_prompts": 4, "max_new_tokens": 64, "rounds": 2}
"""Of the loop on a CPU, unless asked otherwise: minutes, not a quarter of an hour."""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command(
        "bench", run, "the drafter's step and the target's verify pass, measured standalone on this machine; or a speculative loop"
    )
    text = "a case.toml or the folder that holds it (default: --target and --drafter say what is measured)"
    sub.add_argument("case", nargs="?", type=Path, help=text)
    text = "of target and drafter (default: auto = bfloat16 on CUDA, float32 on the CPU)"
    sub.add_argument("--dtype", default="auto", choices=DTYPES, help=text)
    text = "auto, cpu, cuda, cuda:1 (default: auto = CUDA where there is one)"
    sub.add_argument("--device", default="auto", type=device, metavar="D", help=text)

    grid = sub.add_argument_group("standalone passes, over a grid of batch, context and tokens")
    text = "the target's checkpoint folder, or a config.json: random weights of its shapes (default: the case's)"
    grid.add_argument("--target", type=Path, metavar="DIR", help=text)
    grid.add_argument("--drafter", type=Path, metavar="DIR", help="the drafter's folder (default: the case's)")
    text = "requests at the same time (default: 1,4,16; on a CPU 1,4)"
    grid.add_argument("--batch", type=counts, metavar="B,…", help=text)
    text = "rows of keys and values that each request has already (default: 128,1024; on a CPU 128,512)"
    grid.add_argument("--context", type=counts, metavar="C,…", help=text)
    text = "tokens of a verify pass and rows of a draft extend; 1 is added, it is plain decode (default: 1,2,3,4,8,16; on a CPU 1,2,3,4,8)"
    grid.add_argument("--tokens", type=counts, metavar="n,…", help=text)
    grid.add_argument("--graphs", action="store_true", default=None, help="replay captured CUDA graphs (default: launch every kernel)")
    grid.add_argument("--repeats", type=count, metavar="N", help="rounds at most; each times every call once (default: 20)")
    text = "for the whole grid: rounds, then whole places of it, are left out where it ends, and the output says which (default: 60; 0 = no limit)"
    grid.add_argument("--seconds", type=count_or_all, metavar="S", help=text)
    text = "keep this many of each kind of the target's layers in memory and scale to all (default: all of them)"
    grid.add_argument("--layers", type=count, metavar="N", help=text)
    grid.add_argument("--out", type=Path, metavar="FILE.csv", help="also write the whole table (default: not written)")

    loop = sub.add_argument_group("a speculative loop, with --loop")
    text = "answer prompts by greedy speculative decoding and plainly: the accept length of the text (default: standalone passes)"
    loop.add_argument("--loop", action="store_true", help=text)
    text = "what the drafter is fed: engine = as the case's engine feeds it with its config; dump = what the dump holds (default: engine)"
    loop.add_argument("--feed", choices=("engine", "dump"), help=text)
    loop.add_argument("--steps", type=count, metavar="K", help="drafted tokens a cycle, a chain (default: the launch line's)")
    text = "JSONL of token_ids, messages, prompt or text, or a recording (default: the dump's own prompts)"
    loop.add_argument("--prompts", type=Path, metavar="FILE", help=text)
    loop.add_argument("--max-prompts", type=count, metavar="N", help="the first N of the prompts (default: 8; on a CPU 4)")
    loop.add_argument("--max-new-tokens", type=count, metavar="N", help="of each answer (default: 128; on a CPU 64)")
    loop.add_argument("--rounds", type=count, metavar="R", help="answers of each prompt, both ways (default: 3; on a CPU 2)")
    text = "also write a profiler trace of the first prompt, for `eaglelab trace` (default: not written)"
    loop.add_argument("--trace", type=Path, metavar="FILE.json.gz", help=text)


def run(args: argparse.Namespace) -> int:
    theirs, why = (GRID, "goes without --loop") if args.loop else (LOOP, "goes with --loop")
    wrong = next((name for name in theirs if getattr(args, name) is not None), None)
    if wrong is not None:
        raise TimingError(f"--{wrong.replace('_', '-')} {why}")
    return _loop(args) if args.loop else _passes(args)


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def _loop(args: argparse.Namespace) -> int:
    if args.case is None:
        raise TimingError("--loop runs a case: give a case.toml or its folder, with `[target] path` and `[drafter] path`")
    from eaglelab.drafter.device import choose_device
    from eaglelab.investigation import Investigation
    from eaglelab.live.report import prompts_of
    from eaglelab.loop.run import run_loop

    inv = Investigation(str(args.case), device=args.device, dtype=args.dtype)
    prompts = None if args.prompts is None else prompts_of(inv, args.prompts)
    usual = CPU_LOOP if choose_device(args.device).type == "cpu" else {}
    result = run_loop(inv, prompts, **usual | _given(args, ("feed", "steps", "max_prompts", "max_new_tokens", "rounds", "trace")))
    show(args, result.to_json(), visible(result.summary))
    return 0


def _passes(args: argparse.Namespace) -> int:
    target, drafter, notes = inputs(args)
    if args.out is not None and (not args.out.parent.is_dir() or args.out.is_dir()):
        what = "it is a folder, expected a file" if args.out.is_dir() else f"no folder {args.out.parent} to write into"
        raise TimingError(f"--out {args.out}: {what}")
    from eaglelab.timing.bench.run import SECONDS, bench

    options = _given(args, ("graphs", "repeats", "layers")) | {"dtype": args.dtype, "device": args.device}
    options |= {"batches": args.batch, "contexts": args.context, "tokens": args.tokens}
    result = bench(target, drafter, seconds=SECONDS if args.seconds is None else args.seconds or None, **options)
    if args.out is not None:
        result.table.to_csv(args.out, index=False)
    data = result.to_json()
    data["notes"] += notes
    table = result.table[list(SHOWN)].to_string(index=False, float_format=short, na_rep="-")
    ratios = result.ratios.to_string(index=False, float_format=short, na_rep="-") if len(result.ratios) else ""
    written = [f"written: {args.out}"] if args.out is not None else []
    show(args, data, visible("\n".join([table, "", ratios, *[""] * bool(ratios), result.summary, *notes, *written])))
    return 0


def inputs(args: argparse.Namespace) -> tuple[Path | None, Path | None, list[str]]:
    """Target, drafter, and what is measured in place of something that is not there."""
    target, drafter, notes = args.target, args.drafter, []
    if args.case is not None:
        from eaglelab.case import open_case

        case = open_case(args.case)
        drafter = drafter or case.drafter.path
        if target is None:
            target = case.target.path or case.target.config
            if target is None:
                notes.append("The case gives no target: `[target] path` or `config` names one; only the drafter was measured.")
    if target is None and drafter is None:
        raise TimingError("nothing to measure: give a case with a target or a drafter, or --target DIR and --drafter DIR")
    return target, drafter, notes


def counts(text: str) -> list[int]:
    """`1,4,16`: whole numbers of 1 or more."""
    try:
        return [count(part) for part in text.replace(" ", "").split(",")]
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers of 1 or more with commas between: 1,4,16") from None
