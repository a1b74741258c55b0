"""The command line: parses, calls the library, prints. Every command has `--json`; exit codes are those of the README."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eaglelab import __version__
from eaglelab.commands import bench, check, cost, flags, report, sweep, trace, wiring
from eaglelab.commands.arguments import DTYPES, count, count_or_all, samples, where
from eaglelab.commands.opening import case_investigation, dump_of, investigation, is_case
from eaglelab.commands.terminal import first_rows, print_json, short, show, visible
from eaglelab.opened import NotGiven

WAYS = ("auto", "forward", "sketch", "tensors")
CASE = "a case.toml or the folder that holds it"
DUMP = "a case, or a folder of samples"
STEPS = "drafted steps of the replay (default: the launch line's, else 3)"
WAY = "how the target is had: its forward, a sketch, or single tensors (default: auto = the best of what is given)"


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 unusable input; `check` also 1 and 3, `report` also 1 and 130."""
    given = sys.argv[1:] if argv is None else argv
    args = build_parser().parse_args(given, argparse.Namespace(argv=given))
    try:
        code = args.run(args)
        if argv is None and args.command == "check":  # as a program: nothing is open, and freeing what torch holds takes a second
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code
    except BrokenPipeError:  # `eaglelab … | head`: the reader has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - so that closing it at exit says nothing
        return 0
    except (ValueError, NotGiven, OSError) as error:
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
        sub.add_argument("--json", action="store_true", help="print one JSON document (default: text)")
        sub.set_defaults(run=run)
        return sub

    drafters = "the drafter's (default: auto = bfloat16 on CUDA, float32 on the CPU)"
    targets = "the target's (default: auto = as its checkpoint says)"

    sub = command("new", cmd_new, "write a commented case.toml into a folder")
    sub.add_argument("directory", type=Path, help="the folder; it is made if need be")

    check.add(command, CASE, STEPS, WAY, WAYS, drafters)

    report.add(command, CASE)

    sub = command("dump", cmd_dump, "health and norm fingerprint of a dump")
    sub.add_argument("dump", type=Path, help=DUMP)
    text = "compare tokens with a dump, a case, or a JSONL file of token_ids, messages, prompt or text (default: health and norms)"
    sub.add_argument("--against", type=Path, metavar="OTHER", help=text)
    samples(sub, 32)

    sub = command("identify", cmd_identify, "which boundary of the target each slot holds")
    sub.add_argument("dump", type=Path, help=DUMP)
    sub.add_argument("--target", type=Path, metavar="DIR", help="the target's checkpoint folder (default: the case's)")
    sub.add_argument("--sketch", type=Path, metavar="FILE", help="a sketch of the target (default: the case's)")
    sub.add_argument("--way", default="auto", choices=WAYS, help=WAY)
    sub.add_argument("--up-to", type=count_or_all, metavar="B", help="run --target up to this boundary only (default: to the end)")
    sub.add_argument("--target-dtype", default="auto", choices=DTYPES, help=targets)
    samples(sub, 4)
    where(sub)

    sub = command("sketch", cmd_sketch, "a small file that stands in for the target when slots are identified")
    sub.add_argument("target", type=Path, help="the target's checkpoint folder; with --probe a sketch")
    text = "a case or a folder of samples, whose first rows are sketched (default: a probe text, by the target's tokenizer)"
    sub.add_argument("--dump", type=Path, help=text)
    text = "also write the embedding rows of all tokens of the samples that `check` reads, for `[drafter] embed` (default: not written)"
    sub.add_argument("--embedding", type=Path, metavar="FILE", help=text)
    text = "print the token ids of an existing sketch's texts as JSON, for an engine to dump (default: make a sketch)"
    sub.add_argument("--probe", action="store_true", help=text)
    sub.add_argument("--rows", type=count, default=64, metavar="N", help="first tokens of each sample that are kept (default: 64)")
    sub.add_argument("--dim", type=count, default=64, metavar="N", help="numbers that each state is projected to (default: 64)")
    samples(sub, 4)
    where(sub, targets)
    text = "(default: sketch.safetensors)"
    sub.add_argument("--out", type=Path, default=Path("sketch.safetensors"), metavar="FILE", help=f"the file to write {text}")

    sub = command("replay", cmd_replay, "the drafter alone on the dump: acceptance by step, and which feed fits")
    sub.add_argument("case", type=Path, help=CASE)
    sub.add_argument("--steps", type=count, metavar="K", help=STEPS)
    text = "also draft trees, with this many tokens a step, by SGLang's rule (default: the launch line's, else 1: chains only)"
    sub.add_argument("--topk", type=count, metavar="N", help=text)
    text = "nodes of a tree, the root included (default: the launch line's; needed with --topk)"
    sub.add_argument("--draft-tokens", type=count, metavar="N", help=text)
    samples(sub, 32)
    where(sub, drafters)

    sub = command("live", cmd_live, "send the dump's prompts to a running SGLang or vLLM, and compare text and acceptance")
    sub.add_argument("case", type=Path, help=CASE)
    sub.add_argument("--url", metavar="URL", help="the server, as in http://localhost:30000 (default: the case's `[engine] url`)")
    sub.add_argument("--engine", choices=("sglang", "vllm"), help="which engine it is (default: it is asked)")
    sub.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the server's key (default: EAGLELAB_API_KEY)")
    text = "the recording; one that is there is gone on with (default: served/ENGINE-VERSION-N.jsonl in the case's folder)"
    sub.add_argument("--out", type=Path, metavar="FILE", help=text)
    text = "JSONL of token_ids, messages, prompt or text, or an earlier recording (default: the dump's own prompts)"
    sub.add_argument("--prompts", type=Path, metavar="FILE", help=text)
    text = "tokens of an answer at most (default: as many as the dump's has; 256 for a prompt without an answer)"
    sub.add_argument("--max-new-tokens", type=count, metavar="N", help=text)
    sub.add_argument("--concurrency", type=count, default=4, metavar="N", help="requests at the same time (default: 4)")
    sub.add_argument("--timeout", type=count, default=600, metavar="S", help="seconds that one answer may take (default: 600)")
    sub.add_argument("--no-replay", action="store_true", help="compare text and counts only (default: replay the drafter on the same text)")
    text = "instead, capture the server's hidden states into this new folder as a dump (default: record answers)"
    sub.add_argument("--capture", type=Path, metavar="DIR", help=text)
    samples(sub, 32)
    where(sub, drafters)

    for module in (wiring, flags, trace, cost, bench, sweep):
        module.add(command)
    return parser


# -- commands -------------------------------------------------------------------------------------------------------------------


def cmd_new(args: argparse.Namespace) -> int:
    from eaglelab.case import new_case

    path = new_case(args.directory)
    show(args, {"case": str(path)}, f"{path}: fill in what you have, then `eaglelab check {args.directory}`")
    return 0


def cmd_dump(args: argparse.Namespace) -> int:
    if args.against is not None:
        return compare_dumps(args)
    from eaglelab.dumps import DumpError, open_dump
    from eaglelab.dumps.health import check_health
    from eaglelab.fingerprint import fingerprint

    samples = {"max_samples": args.max_samples or None, "seed": args.seed}
    if is_case(args.dump):  # the drafter's config says how wide states and how large token ids may be
        inv = case_investigation(args.dump, **samples)
        dump, health = dump_of(args.dump), inv.health
    else:
        dump = open_dump(args.dump)
        health = check_health(dump, **samples)
    told = {"format": dump.format, "health": health.summary, "problems": health.table.to_dict(orient="records")}
    if not args.json:
        table = f"\n{health.table.to_string(index=False, max_colwidth=100)}" if len(health.table) else ""
        print(visible(f"{dump!r}\n{health.summary['text']}{table}"), flush=True)
    try:
        prints = fingerprint(dump.samples(args.max_samples or None, args.seed), total=len(dump))
    except DumpError as error:  # no sample can be read: the table says why of each
        if not args.json:
            raise
        print_json(told | {"error": str(error), "kind": type(error).__name__})
        return 2
    if args.json:
        tables = {"slots": prints.slots, "values": prints.values, "cosine": prints.cosine.reset_index()}
        print_json(told | {k: t.to_dict(orient="records") for k, t in tables.items()})
        return 0
    print(f"\nNorms ({prints.counted})\n{prints.slots.to_string(index=False, float_format=short)}")
    print(f"\nFirst values\n{first_rows(prints.values, 'rows')}")
    return 0


def compare_dumps(args: argparse.Namespace) -> int:
    """`dump --against`: the first differing token of each sample, with the case's tokenizer where there is one; of a capture the states."""
    from eaglelab.capture.parity import parity, parity_of
    from eaglelab.capture.write import INFO
    from eaglelab.investigation import NotGiven
    from eaglelab.renderings import MAX_ROWS, Rendering, compare_renderings, read_jsonl, summary

    tokenizer = None
    if is_case(args.dump):
        with contextlib.suppress(NotGiven):  # ids are shown instead
            tokenizer = case_investigation(args.dump).tokenizer
    dump = dump_of(args.dump)
    ours = [Rendering.of(s) for s in dump.samples(args.max_samples or None, args.seed)]
    if args.against.is_file() and not is_case(args.against):
        theirs = read_jsonl(args.against, tokenizer)
    else:
        theirs = (Rendering.of(s) for s in dump_of(args.against).samples(MAX_ROWS))
    table = compare_renderings(ours, theirs, tokenizer)
    rows = table.astype(object).where(table.notna(), None)
    said = f"{len(ours)} of {len(dump):,} samples against {args.against}. {summary(table)}"
    text = visible(f"{said}\n{first_rows(rows.fillna(''), 'samples')}")
    told = {"summary": summary(table), "samples": rows.to_dict(orient="records")}
    if (args.against / INFO).is_file():
        found = parity_of(case_investigation(args.dump), args.against) if is_case(args.dump) else parity(dump, dump_of(args.against))
        told, text = told | {"parity": found.to_json()}, f"{text}\n{parity_lines(found)}"
    show(args, told, text)
    return 0


def parity_lines(found) -> str:
    """Captured states beside the dump's, slot by slot."""
    return visible(f"States: {found.summary}\n{found.table.to_string(index=False, float_format=short)}")


def cmd_identify(args: argparse.Namespace) -> int:
    from eaglelab.drafter.device import choose_device
    from eaglelab.identify import identify
    from eaglelab.target import ForwardSource, TensorSource
    from eaglelab.target.sketch import load_sketch

    if args.target is None and args.sketch is None:
        if not is_case(args.dump):
            dump_of(args.dump)  # a folder that is no dump is the first thing to say
            raise ValueError(f"{args.dump} is no case: what are its slots compared with? Give --target DIR or --sketch FILE, or a case")
        inv = case_investigation(args.dump, max_samples=args.max_samples or None, seed=args.seed, device=args.device, way=args.way)
        found = inv.identification
    else:
        device = str(choose_device(args.device))
        if args.sketch is not None and args.way in ("auto", "sketch"):
            source = load_sketch(args.sketch)
        elif args.way == "sketch":
            raise ValueError("--way sketch needs --sketch, a sketch of the target")
        elif args.target is None:
            raise ValueError(f"--way {args.way} needs --target, the target's checkpoint folder")
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
    from eaglelab.drafter.device import choose_device
    from eaglelab.target import ForwardSource
    from eaglelab.target.sketch import load_sketch, make_sketch

    if args.probe:
        print_json(load_sketch(args.target).probe())
        return 0
    if args.embedding is not None and args.dump is None:
        raise ValueError("--embedding needs --dump, the dump (or case) whose tokens' embedding rows are written")
    dump = None if args.dump is None else dump_of(args.dump)
    source = ForwardSource(args.target, dtype=args.dtype, device=str(choose_device(args.device)))
    texts = probe_tokens(args.target) if dump is None else [s.token_ids for s in dump.samples(args.max_samples or None, args.seed)]
    sketch = make_sketch(source, texts, rows=args.rows, dim=args.dim, seed=args.seed, target=args.target.name, max_texts=None)
    path = sketch.save(args.out)
    size, kept = path.stat().st_size / 1e6, sum(len(t.token_ids) for t in sketch.texts)
    of = "the probe text" if dump is None else f"{len(sketch.texts)} samples"
    result, text = {"sketch": str(path), "mb": size}, [f"{path}: {size:.1f} MB, {kept} rows of {of}"]
    if dump is None:
        text.append(f"Dump the states of its tokens with the engine: `eaglelab sketch {path} --probe` prints their ids")
    if args.embedding is not None:
        count = write_embedding(args.embedding, args.target, dump, texts)
        result |= {"embedding": str(args.embedding), "embedding_rows": count}
        text.append(f"{args.embedding}: {count:,} rows of the embedding table; in case.toml: [drafter] embed")
    show(args, result, "\n".join(text))
    return 0


def probe_tokens(target: Path) -> list[Any]:
    """The probe text as token ids [T], by the tokenizer in the target's folder. Raises ValueError where there is none."""
    import torch

    from eaglelab.target.sketch import PROBE_TEXT
    from eaglelab.text import load_tokenizer

    try:
        tokenizer = load_tokenizer(target)
    except ValueError as error:
        raise ValueError(f"without --dump the probe text is sketched, which needs the target's tokenizer: {error}") from error
    return [torch.tensor(tokenizer(PROBE_TEXT)["input_ids"])]


def write_embedding(path: Path, target: Path, dump, texts: list[Any]) -> int:
    """Write the embedding rows of the tokens of `texts` and of the samples that `check` reads by default; returns their number."""
    import torch

    from eaglelab.drafter.embedding import save_embedding_rows
    from eaglelab.target import TensorSource

    ids = torch.cat([*texts, *(s.token_ids for s in dump.samples(32, 0))]).unique()  # [U]
    save_embedding_rows(path, ids, TensorSource(target).embedding_rows(ids))
    return len(ids)


def cmd_replay(args: argparse.Namespace) -> int:
    inv = investigation(args)
    ranking, finalists = inv.replays
    trees, no_trees = draft_trees(inv, args.topk, args.draft_tokens)
    if args.json:
        drafted = {"trees": [t.to_json() for t in trees.values()]} if trees else {"no_trees": no_trees} if no_trees else {}
        print_json({"ranking": ranking.table.to_dict(orient="records"), "replays": [r.to_json() for r in finalists], **drafted})
        return 0
    print(f"{inv.sampled}, judged by {finalists[0].judged_by}")
    print(first_rows(ranking.table, "feeds"))
    print(f"\n{replayed(finalists, trees)}")
    if no_trees:
        print(visible(f"no trees: {no_trees}"))
    return 0


REPLAYED = """accept length: tokens per verify pass as a server counts, bonus token included, on the walk through the answers; over all rows: as if a pass
started at every row of the text, where easy stretches weigh more. marginal: step k right, whatever came before; joint: steps 0 to k all right."""


def replayed(results, trees: dict[str, Any]) -> str:
    """Chains and trees in one table, with what its columns mean."""
    import pandas as pd

    rows = []
    for result in results:
        counts, walk, tree = result.counts, result.walk, trees.get(result.variant.name)
        whole = range(counts.steps) if counts.complete else ()
        by_step = [" ".join(f"{rate:.3f}" for k in whole if (rate := told(k)) is not None) for told in (counts.marginal, counts.joint_rate)]
        rows.append((result.variant.name, f"chain of {counts.steps}", *_walked(walk), _length(counts.accept_length), *by_step))
        if tree is not None:
            drafted = f"tree of {tree.steps} steps, top-k {tree.topk}, {tree.num_draft_tokens} nodes"
            rows.append((result.variant.name, drafted, *_walked(tree.walk), "-", "-", "-"))
    columns = ["feed", "drafted", "accept length", "verify passes", "over all rows", "marginal by step", "joint by step"]
    return f"{pd.DataFrame(rows, columns=columns).to_string(index=False)}\n{REPLAYED}"


def _walked(walk) -> tuple[str, str]:
    return ("-", "-") if walk is None else (_length(walk.accept_length), f"{walk.verify_steps:,}")


def _length(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def draft_trees(inv, topk: int | None, num_draft_tokens: int | None) -> tuple[dict[str, Any], str]:
    """Trees on the dump's feed and the engine's, by name, and why there are none where the launch line asks for some that cannot be had."""
    if topk is None and num_draft_tokens is not None and (inv.launch is None or (inv.launch.eagle_topk or 1) == 1):
        raise ValueError(f"--draft-tokens {num_draft_tokens} is of a tree: give --topk above 1 with it; a chain drafts --steps tokens")
    feeds = [v for v in (inv.feeds.dump, inv.feeds.engine) if v is not None]
    try:
        drafted = {v.name: inv.tree_replay(v, topk=topk, num_draft_tokens=num_draft_tokens) for v in feeds}
    except ValueError as error:
        if topk is not None:
            raise
        return {}, f"the launch line's cannot be replayed: {error}"
    return {name: tree for name, tree in drafted.items() if tree is not None}, ""


def cmd_live(args: argparse.Namespace) -> int:
    from eaglelab.case import open_case
    from eaglelab.live.connect import connect
    from eaglelab.live.report import api_key, live, prompts_of, with_server

    case = open_case(args.case)
    url = args.url or case.engine.url
    if url is None:
        raise ValueError(f"{case.file} names no server: give --url http://localhost:30000, or `[engine] url`")
    server = connect(url, engine=args.engine, key=api_key(args.api_key_env), timeout=args.timeout)

    def say(text: str) -> None:
        print(visible(text), file=sys.stderr, flush=True)

    say(f"{server.url}: {server.engine.title}")
    options = {"max_samples": args.max_samples or None, "seed": args.seed, "device": args.device, "dtype": args.dtype}
    inv = case_investigation(with_server(case, server), **options)
    if args.capture is not None:
        from eaglelab.capture.run import capture

        taken = capture(server, prompts_of(inv, args.prompts).prompts, args.capture, case=inv, say=say)
        told, text = taken.to_json(), visible("\n".join([taken.summary, *(f"  {note}" for note in taken.notes)]))
        if inv.dump is not None:
            from eaglelab.capture.parity import parity_of

            found = parity_of(inv, args.capture)
            told, text = told | {"parity": found.to_json()}, f"{text}\n{parity_lines(found)}"
        show(args, told, text)
        return 0
    asked = {"max_new_tokens": args.max_new_tokens, "concurrency": args.concurrency}
    report = live(inv, server, out=args.out, prompts=args.prompts, replayed=not args.no_replay, say=say, **asked)
    if args.json:
        print_json(report.to_json())
    else:
        print(visible("\n".join(report.lines())))
    return report.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
