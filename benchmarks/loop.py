"""The speculative loop on the example: accept length and tok/s, predicted against measured, K = 1 to 5, in one run. Nothing here is a gate.

    OMP_NUM_THREADS=1 python benchmarks/loop.py [--prompts 4] [--tokens 48] [--rounds 2]

- accept length: measured by the loop, and predicted by the walk of the replay over the same answers (another forward, all positions at once);
  the walk leaves out a last pass whose draft the text cuts, `passes` are those that it has
- tok/s, own split: the walk's tokens per pass over the sum of the medians of this K's own phases
- tok/s, from the ends: the same with the phases of K = 1 and K = 5 alone, verify and draft extend drawn straight between them, draft by the step
- speedup: over plain decoding of the same prompts by the same target, in turn. CPU timings of this loop say nothing about an engine's.

A table, then one line of JSON. Needs the example's target (`make target`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

from eaglelab.investigation import Investigation
from eaglelab.live.prompts import dump_prompts
from eaglelab.loop.result import OWN, SPLIT, LoopResult
from eaglelab.loop.run import Loop, open_loop
from eaglelab.timing.phases import Phase

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
WIRING = (3, 16, 28)
"""What the example's drafter was trained on; its config claims another."""
STEPS = range(1, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=4, help="of the dump's 10 (default: 4)")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer (default: 48)")
    parser.add_argument("--rounds", type=int, default=2, help="answers of each prompt, both ways (default: 2)")
    args = parser.parse_args()
    if not (EXAMPLE / "target" / "model.safetensors").exists():
        return print("the example's target is not in data/example/target: `make target` fetches it")
    inv = Investigation(str(EXAMPLE))
    loop = open_loop(inv)  # as the engine feeds it; the target and the drafter are the same
    loop = Loop(loop.target, inv.drafter, WIRING)
    prompts = dump_prompts(inv.samples).prompts[: args.prompts]
    runs = {k: loop.run(prompts, steps=k, max_new_tokens=args.tokens, rounds=args.rounds) for k in STEPS}
    report(runs, [row(k, run, loop, runs) for k, run in runs.items()])


def row(steps: int, run: LoopResult, loop: Loop, runs: dict[int, LoopResult]) -> dict:
    walk = loop.walk(run)
    tokens = 1 + sum(sum(r.walk.accepted) for r in walk.requests) / sum(len(r.walk.accepted) for r in walk.requests)  # a pass
    own, ends = (tokens / seconds for seconds in (sum(medians(run).values()), between(steps, runs)))
    return {
        "steps": steps,
        "accept_length": run.accept_length,
        "predicted": tokens,
        "passes_compared": walk.compared,
        "passes_differing": walk.differing,
        "same_text": run.same_text,
        "tok_s": statistics.median(run.tok_s),
        "tok_s_own_split": own,
        "tok_s_from_the_ends": ends,
        "plain_tok_s": statistics.median(run.plain_tok_s),
        "speedup": run.speedup,
        "cost_ratio": run.cost_ratio,
        "ms": {phase.value: 1e3 * s for phase, s in medians(run).items()} | {"decode": run.decode_ms},
    }


def medians(run: LoopResult) -> dict[Phase, float]:
    """Seconds of each phase of a cycle."""
    return {phase: run.median_ms(phase) / 1e3 for phase in SPLIT}


def between(steps: int, runs: dict[int, LoopResult]) -> float:
    """Seconds of a cycle of K steps, from the first and the last K alone: K - 1 passes of the drafter, the rest straight between both."""
    first, last = (medians(runs[k]) for k in (STEPS[0], STEPS[-1]))
    way = (steps - STEPS[0]) / (STEPS[-1] - STEPS[0])
    return sum((1 - way) * first[phase] + way * last[phase] for phase in SPLIT)


def report(runs: dict[int, LoopResult], rows: list[dict]) -> None:
    some = runs[STEPS[0]]
    print(
        f"{len(some.requests)} prompts, up to {some.max_new_tokens} tokens, {some.rounds} rounds, boundaries {list(WIRING)}, {some.where}"
    )
    print(f"{'':5}{'accept length':>23}{'passes':>8}{'differ':>8}{'tok/s':>9}{'predicted from':>18}{'speedup':>22}{'same text':>11}")
    print(f"{'K':5}{'measured':>12}{'walk':>11}{'':25}{'split':>9}{'ends':>9}")
    for r in rows:
        middle, low, high = r["speedup"]
        print(
            f"{r['steps']:<5}{r['accept_length']:12.3f}{r['predicted']:11.3f}{r['passes_compared']:8}{r['passes_differing']:8}{r['tok_s']:9.2f}"
            f"{r['tok_s_own_split']:9.2f}{r['tok_s_from_the_ends']:9.2f}{f'{middle:.2f} ({low:.2f} to {high:.2f})':>22}"
            f"{r['same_text']:>7} of {len(some.requests)}"
        )
    print("\nmedian ms" + "".join(f"{name:>14}" for name in rows[0]["ms"]))
    for r in rows:
        print(f"K = {r['steps']:<5}" + "".join(f"{value:14.2f}" for value in r["ms"].values()))
    print(OWN[0].upper() + OWN[1:] + ".")
    print(json.dumps({"benchmark": "loop", "threads": torch.get_num_threads(), "where": some.where, "rows": rows}))


if __name__ == "__main__":
    main()
