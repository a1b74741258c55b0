"""`eaglelab bench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from eaglelab.commands.arguments import DTYPES, count, device
from eaglelab.commands.terminal import short, show, visible

SHOWN = ("what", "batch", "context", "tokens", "median_ms", "low_ms", "high_ms", "gb_s", "share_of_bandwidth", "share_of_peak", "bound")


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("bench", run, "the drafter's step and the target's verify pass, measured standalone on this machine")
    text = "a case.toml or the folder that holds it (default: --target and --drafter say what is measured)"
    sub.add_argument("case", nargs="?", type=Path, help=text)
    text = "the target's checkpoint folder, or a config.json: random weights of its shapes (default: the case's)"
    sub.add_argument("--target", type=Path, metavar="DIR", help=text)
    sub.add_argument("--drafter", type=Path, metavar="DIR", help="the drafter's folder (default: the case's)")
    sub.add_argument("--batch", type=counts, default="1,4,16", metavar="B,…", help="requests at the same time (default: 1,4,16)")
    text = "rows of keys and values that each request has already (default: 128,1024)"
    sub.add_argument("--context", type=counts, default="128,1024", metavar="C,…", help=text)
    text = "tokens of a verify pass and rows of a draft extend; 1 is added, it is plain decode (default: 1,2,3,4,8,16)"
    sub.add_argument("--tokens", type=counts, default="1,2,3,4,8,16", metavar="n,…", help=text)
    text = "of target and drafter (default: auto = bfloat16 on CUDA, float32 on the CPU)"
    sub.add_argument("--dtype", default="auto", choices=DTYPES, help=text)
    text = "auto, cpu, cuda, cuda:1 (default: auto = CUDA where there is one)"
    sub.add_argument("--device", default="auto", type=device, metavar="D", help=text)
    sub.add_argument("--graphs", action="store_true", help="replay captured CUDA graphs (default: launch every kernel)")
    sub.add_argument("--repeats", type=count, default=20, metavar="N", help="rounds; each times every call once (default: 20)")
    text = "keep this many of each kind of the target's layers in memory and scale to all (default: all of them)"
    sub.add_argument("--layers", type=count, metavar="N", help=text)
    sub.add_argument("--out", type=Path, metavar="FILE.csv", help="also write the whole table (default: not written)")


def run(args: argparse.Namespace) -> int:
    target, drafter, notes = inputs(args)
    if args.out is not None and not args.out.parent.is_dir():
        raise ValueError(f"--out {args.out}: no folder {args.out.parent} to write into")
    from eaglelab.timing.bench.run import bench

    result = bench(
        target,
        drafter,
        batches=args.batch,
        contexts=args.context,
        tokens=args.tokens,
        dtype=args.dtype,
        device=args.device,
        graphs=args.graphs,
        repeats=args.repeats,
        layers=args.layers,
    )
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
        raise ValueError("nothing to measure: give a case with a target or a drafter, or --target DIR and --drafter DIR")
    return target, drafter, notes


def counts(text: str) -> list[int]:
    """`1,4,16`: whole numbers of 1 or more."""
    try:
        return [count(part) for part in text.replace(" ", "").split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers of 1 or more with commas between: 1,4,16") from None
