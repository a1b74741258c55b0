"""The command line: parses, calls the library, prints. Every command has `--json`; exit codes are those of the README."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eaglelab import __version__
from eaglelab.findings import Finding, Status, exit_code, plain

MARKS = {
    Status.PASS: "ok",
    Status.FAIL: "FAIL",
    Status.CANNOT_TELL: "cannot tell",
    Status.NOT_GIVEN: "not given",
    Status.NOT_APPLICABLE: "n/a",
}

DTYPES = ("auto", "float32", "bfloat16", "float16")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 unusable input; `check` also 1 and 3, `report` also 1."""
    args = build_parser().parse_args(argv)
    try:
        return args.run(args)
    except BrokenPipeError:  # `eaglelab … | head`: the reader has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - so that closing it at exit says nothing
        return 0
    except (ValueError, LookupError, OSError) as error:
        # Every room's own errors are ValueErrors (or NotGiven) with a text for the user.
        if args.json:
            print_json({"error": str(error), "kind": type(error).__name__})
        else:
            print(visible(f"eaglelab {args.command}: {error}"), file=sys.stderr)
        return 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eaglelab", description="Why an EAGLE-3 drafter does not speed up serving, and what to change.")
    parser.add_argument("--version", action="version", version=f"eaglelab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        sub.set_defaults(run=run)
        return sub

    def reads_samples(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--max-samples", type=count_or_all, default=32, metavar="N", help="samples read, a seeded choice over all files (0 = all)"
        )
        sub.add_argument("--seed", type=int, default=0)

    def runs_models(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--device", default="auto", type=device, help="auto, cpu, cuda, cuda:1, ...")
        sub.add_argument(
            "--dtype", default="auto", choices=DTYPES, help="of the drafter: auto (bf16 on CUDA, float32 on the CPU), float32, bfloat16"
        )

    sub = command("new", cmd_new, "write a commented case.toml into a folder")
    sub.add_argument("directory", type=Path)

    sub = command("check", cmd_check, "all findings and the verdict for a case; cheap ones first")
    sub.add_argument("case", type=Path)
    sub.add_argument("--cheap", action="store_true", help="configs and file headers only: no torch, no dump")
    sub.add_argument("--steps", type=count, help="drafted steps of the replay (default: the launch line's, else 3)")
    sub.add_argument("--way", default="auto", choices=("auto", "forward", "sketch", "tensors"), help="how the target is had")
    reads_samples(sub)
    runs_models(sub)

    sub = command("report", cmd_report, "run the notebooks on a case and write self-contained HTML pages")
    sub.add_argument("case", type=Path)
    sub.add_argument("--only", help="numbers of notebooks: 02,04")
    sub.add_argument("-p", dest="parameters", action="append", nargs=2, metavar=("NAME", "VALUE"), default=[])
    sub.add_argument("--out", type=Path, help="folder for the run (default: reports/)")
    sub.add_argument("--timeout", type=count, default=1800, help="seconds a notebook may take")

    sub = command("dump", cmd_dump, "health and norm fingerprint of a dump")
    sub.add_argument("dump", type=Path, help="a case, or a folder of samples")
    reads_samples(sub)

    sub = command("identify", cmd_identify, "which boundary of the target each slot holds")
    sub.add_argument("dump", type=Path, help="a case, or a folder of samples")
    sub.add_argument("--target", type=Path, help="the target's checkpoint folder")
    sub.add_argument("--sketch", type=Path)
    sub.add_argument("--way", default="auto", choices=("auto", "forward", "sketch", "tensors"))
    sub.add_argument("--up-to", type=count_or_all, metavar="B", help="run the forward to this boundary only")
    sub.add_argument("--target-dtype", default="auto")
    sub.add_argument("--max-samples", type=count_or_all, default=4, metavar="N")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--device", default="auto", type=device)

    sub = command("sketch", cmd_sketch, "a small file that stands in for the target when slots are identified")
    sub.add_argument("target", type=Path)
    sub.add_argument("--dump", type=Path, help="a case or a dump whose samples are sketched")
    sub.add_argument("--probe", action="store_true", help="print the token ids of an existing sketch (TARGET is the sketch file)")
    sub.add_argument("--rows", type=count, default=64)
    sub.add_argument("--dim", type=count, default=64)
    sub.add_argument("--max-samples", type=count_or_all, default=4, metavar="N")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--device", default="auto", type=device)
    sub.add_argument("--dtype", default="auto")
    sub.add_argument("--out", type=Path, default=Path("sketch.safetensors"))

    sub = command("replay", cmd_replay, "the drafter alone on the dump: acceptance by step, and which feed fits")
    sub.add_argument("case", type=Path)
    sub.add_argument("--steps", type=count)
    reads_samples(sub)
    runs_models(sub)

    sub = command("wiring", cmd_wiring, "what an engine feeds with a drafter's config, and the ids that make it feed something else")
    sub.add_argument("config", type=Path, help="the drafter's config.json or its folder")
    sub.add_argument("--target", type=Path, required=True, help="the target's config.json or its folder")
    sub.add_argument("--engine", required=True, help="sglang==0.5.23, vllm, specforge, ...")
    sub.add_argument("--boundaries", help="what it should feed: 3,16,28")
    sub.add_argument("--write", action="store_true", help="write the corrected copy beside the config")
    return parser


# -- commands -------------------------------------------------------------------------------------------------------------------


def cmd_new(args: argparse.Namespace) -> int:
    from eaglelab.case import new_case

    path = new_case(args.directory)
    show(args, {"case": str(path)}, f"{path}: fill in what you have, then `eaglelab check {args.directory}`")
    return 0


def cmd_check(args: argparse.Namespace) -> int:
    from eaglelab.checks import run_checks
    from eaglelab.verdict import verdict

    inv = investigation(args)
    findings: list[Finding] = []
    said_before: set[str] = set()
    for finding in run_checks(inv, costs=("config",) if args.cheap else None):
        findings.append(finding)
        if not args.json:
            print_finding(finding, said_before)
    said = verdict(findings, inv)
    if args.json:
        print_json(check_json(findings, said, inv, cheap=args.cheap))
    else:
        sure = "" if said.confidence == said.stage else f" ({said.confidence})"
        print(f"\nVerdict{sure}: {said.stage}\n  {said.text}")
        for change in said.changes:
            print(f"  for {change.engine}: {change.key} = {change.value}")
    code = exit_code(findings)
    return 3 if code == 0 and said.stage == "cannot tell" else code


def check_json(findings: list[Finding], said, inv, cheap: bool = False) -> dict[str, Any]:
    """The one shape of a check's result."""
    from eaglelab.checks import wirings

    return {
        "case": inv.case.name,
        "wiring": wirings(inv, findings, cheap=cheap),
        "findings": [f.to_json() for f in findings],
        "verdict": said.to_json(),
    }


def cmd_report(args: argparse.Namespace) -> int:
    from eaglelab.reports.run import run_report

    say = None if args.json else print
    result = run_report(args.case, only=args.only, parameters=dict(args.parameters), out=args.out, timeout=args.timeout, say=say)
    done = f"{len(result.notebooks)} pages in {result.directory}; all runs: {result.index}"
    show(args, result.to_json(), done)
    return result.exit_code


def cmd_dump(args: argparse.Namespace) -> int:
    from eaglelab.dumps import open_dump
    from eaglelab.dumps.health import check_health
    from eaglelab.fingerprint import fingerprint

    samples = {"max_samples": args.max_samples or None, "seed": args.seed}
    if is_case(args.dump):  # the drafter's config says how wide states and how large token ids may be
        inv = case_investigation(args.dump, **samples)
        dump, health = dump_of(args.dump), inv.health
    else:
        dump = open_dump(args.dump)
        health = check_health(dump, **samples)
    prints = fingerprint(dump.samples(args.max_samples or None, args.seed), total=len(dump))
    if args.json:
        tables = {"slots": prints.slots, "values": prints.values, "cosine": prints.cosine.reset_index(), "problems": health.table}
        print_json({"format": dump.format, "health": health.summary, **{k: t.to_dict(orient="records") for k, t in tables.items()}})
        return 0
    print(visible(f"{dump!r}\n{health.summary['text']}"))
    if len(health.table):
        print(visible(health.table.to_string(index=False, max_colwidth=100)))
    print(f"\nNorms ({prints.counted})\n{prints.slots.to_string(index=False, float_format=short)}")
    print(f"\nFirst values\n{prints.values.to_string(index=False, float_format=short)}")
    return 0


def cmd_identify(args: argparse.Namespace) -> int:
    from eaglelab.drafter.checkpoint import choose_device
    from eaglelab.identify import identify
    from eaglelab.target import ForwardSource, TensorSource
    from eaglelab.target.sketch import load_sketch

    if args.target is None and args.sketch is None:
        inv = case_investigation(args.dump, max_samples=args.max_samples or None, seed=args.seed, device=args.device, way=args.way)
        found = inv.identification
    else:
        device = str(choose_device(args.device))
        if args.sketch is not None and args.way in ("auto", "sketch"):
            source = load_sketch(args.sketch)
        elif args.way == "tensors":
            source = TensorSource(args.target)
        else:
            source = ForwardSource(args.target, dtype=args.target_dtype, device=device, up_to=args.up_to)
        found = identify(dump_of(args.dump).samples(args.max_samples or None, args.seed), source, seed=args.seed)
    if args.json:
        print_json(found.to_json())
        return 0
    print(f"wiring {found.wiring}, compared with {found.source}")
    print(found.slots.to_string(index=False, float_format=short))
    for slot, reason in enumerate(found.reasons):
        print(f"slot {slot}: {reason}")
    for anomaly in found.anomalies:
        print(f"! slot {anomaly.slot}, {anomaly.kind}: {anomaly.detail}")
    for line in (*found.notes, *([f"next: {found.next_step}"] if found.next_step else [])):
        print(line)
    return 0


def cmd_sketch(args: argparse.Namespace) -> int:
    from eaglelab.drafter.checkpoint import choose_device
    from eaglelab.target import ForwardSource
    from eaglelab.target.sketch import load_sketch, make_sketch

    if args.probe:
        print_json(load_sketch(args.target).probe())
        return 0
    if args.dump is None:
        raise ValueError("--dump names the dump (or case) whose samples are sketched")
    source = ForwardSource(args.target, dtype=args.dtype, device=str(choose_device(args.device)))
    samples = list(dump_of(args.dump).samples(args.max_samples, args.seed))
    path = make_sketch(source, samples, rows=args.rows, dim=args.dim, seed=args.seed, target=args.target.name).save(args.out)
    size = path.stat().st_size / 1e6
    show(args, {"sketch": str(path), "mb": size}, f"{path}: {size:.1f} MB, {len(samples)} samples x {args.rows} rows")
    return 0


def cmd_replay(args: argparse.Namespace) -> int:
    inv = investigation(args)
    ranking, finalists = inv.replays
    if args.json:
        print_json({"ranking": ranking.table.to_dict(orient="records"), "replays": [r.to_json() for r in finalists]})
        return 0
    print(f"{inv.sampled}, judged by {finalists[0].judged_by}")
    print(ranking.table.head(12).to_string(index=False, float_format=short))
    for result in finalists:
        counts, walk = result.counts, result.walk
        rates = (
            "  ".join(f"{counts.marginal(k):.3f}/{counts.joint_rate(k):.3f}" for k in range(counts.steps))
            if counts.complete
            else "no whole chain"
        )
        length = f"{counts.accept_length:.3f}" if counts.accept_length else "-"
        print(f"{result.variant.name}: accept length {length}, walk {walk.accept_length if walk else None}; marginal/joint by step {rates}")
    return 0


def cmd_wiring(args: argparse.Namespace) -> int:
    from eaglelab.drafter.config import read_config
    from eaglelab.engines.wiring_report import corrected_config, engine_wiring, write_corrected

    draft, target = read_config(args.config), read_config(args.target)
    fed = engine_wiring(draft, target, args.engine)
    result, text = fed.to_json(), [f"{fed.engine.title} feeds {fed.wiring} ({fed.target.architecture}, N = {fed.target.num_layers})"]
    text += [f"  slot {r['slot']}: id {r['id']} -> {r['is']}" for r in fed.rows()]
    text += [f"  {line}" for line in (*fed.notes, *fed.assumptions)]
    if args.boundaries:
        wanted = parse_boundaries(args.boundaries)
        new, diff = corrected_config(draft, wanted, target, args.engine)
        result |= {"corrected": new, "diff": diff}
        text += ["", diff]
        if args.write:
            path = write_corrected(args.config, new, fed.engine)
            result["written"] = str(path)
            text.append(f"written: {path}")
    elif args.write:
        raise ValueError("--write needs --boundaries: what should the engine feed?")
    show(args, result, "\n".join(text))
    return 0


# -- helpers ---------------------------------------------------------------------------------------------------------------------


def parse_boundaries(text: str) -> list[int | str]:
    """`3,16,28` or `3,16,final`."""
    from eaglelab.wiring import FINAL

    try:
        return [part if part == FINAL else int(part) for part in text.replace(" ", "").split(",")]
    except ValueError:
        raise ValueError(f"--boundaries is {text!r}, expected numbers and 'final' with commas between: 3,16,28") from None


def device(text: str) -> str:
    """A device by name; whether this machine has it is torch's to say, later."""
    if not re.fullmatch(r"auto|cpu|(cuda|xpu|mps|npu)(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r}, expected auto, cpu, cuda or cuda:1")
    return text


def count(text: str) -> int:
    """A number of things, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a number of things, expected 1 or more")
    return number


def count_or_all(text: str) -> int:
    """0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative, expected 0 or more")
    return number


def investigation(args: argparse.Namespace):
    """The case of a command that reads samples and runs the drafter."""
    options = {"max_samples": args.max_samples or None, "seed": args.seed, "device": args.device, "dtype": args.dtype, "steps": args.steps}
    return case_investigation(args.case, way=getattr(args, "way", "auto"), **options)


def case_investigation(path: Path, **options):
    from eaglelab.investigation import Investigation

    return Investigation(str(path), **options)


def is_case(path: Path) -> bool:
    return path.suffix == ".toml" or (path / "case.toml").is_file()


def dump_of(path: Path):
    """The dump of a case (a case.toml or its folder), or a folder of samples."""
    from eaglelab.dumps import open_dump

    if is_case(path):
        dump = case_investigation(path).dump
        if dump is None:
            raise ValueError(f"{path}: the case gives no dump; `[dump] path` names the folder of hidden states")
        return dump
    return open_dump(path)


def print_finding(finding: Finding, said_before: set[str]) -> None:
    """One finding as lines; a reason or a next step that was printed before is not printed again."""
    print(visible(f"[{MARKS[finding.status]}] {finding.title}  ({finding.id})"))
    lines = []
    if finding.status in (Status.FAIL, Status.CANNOT_TELL):
        lines += [("claim", finding.claim), ("evidence", finding.evidence)]
    lines.append(("next", finding.next))
    for label, line in lines:
        if line and line not in said_before and not finding.title.endswith(line):
            print(visible(f"    {label}: {line}"))
            said_before.add(line)
    sys.stdout.flush()


def visible(text: str) -> str:
    """Text from cases and dumps without what moves or colours a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def short(value: float) -> str:
    """Four digits, for tables. pandas takes a function for columns that mix numbers and words, and not always a format."""
    return f"{value:.4g}"


def show(args: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    if args.json:
        print_json(data)
    else:
        print(text)


def print_json(data: Any) -> None:
    print(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    raise SystemExit(main())
