"""Replay against drafting row by row, and ranking slot orders against separate replays: ratios in one run, JSON last.

    python benchmarks/replay.py [--rows 512] [--steps 5]

Row by row is `eaglelab.replay.sequential`: one token at a time with a KV cache, as an engine drafts, in the same library and dtype on
the same device. The separate replays share nothing: each reads the samples, asks the target's head and drafts all steps.
"""

import argparse
import json
import statistics
import time

import torch

from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.dumps import Sample
from eaglelab.replay import Judge, TargetHead, Variant, rank, rank_feeds, replay, slot_orders
from eaglelab.replay.sequential import SequentialDrafter

H, V, VD = 576, 49152, 4096  # the sizes of the example


def random_drafter() -> Drafter:
    config = DrafterConfig(
        hidden_size=H,
        target_hidden_size=H,
        num_slots=3,
        vocab_size=V,
        draft_vocab_size=VD,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        intermediate_size=1536,
        rms_norm_eps=1e-5,
        rope={"rope_theta": 10000.0},
        max_position_embeddings=4096,
    )
    return Drafter(config).eval().requires_grad_(False)


def random_sample(key: str, rows: int) -> Sample:
    return Sample(
        key=key,
        token_ids=torch.randint(0, V, (rows,)),
        slots=tuple(torch.randn(rows, H).bfloat16() for _ in range(4)),
        loss_mask=torch.ones(rows, dtype=torch.int64),
        slot_names=("0", "1", "2", "3"),
    )


def seconds(run, repeats: int) -> float:
    """Median of a few runs after one to warm up."""
    run()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def row_by_row(drafter: Drafter, sample: Sample, embed: EmbeddingRows, steps: int) -> None:
    slow = SequentialDrafter(drafter, embed, capacity=len(sample.token_ids) + steps)
    states = [s.float() for s in sample.slots[:3]]
    for t in range(len(sample.token_ids) - 1):
        slow.extend([s[t] for s in states], int(sample.token_ids[t + 1]))
        slow.draft(steps)


def against_row_by_row(drafter: Drafter, embed: EmbeddingRows, rows: int, steps: int) -> dict:
    sample = random_sample("long", rows)
    fast = seconds(lambda: replay(drafter, [sample], embed, [Variant((0, 1, 2))], steps=steps), 3)
    started = time.perf_counter()
    row_by_row(drafter, sample, embed, steps)
    slow = time.perf_counter() - started
    return {"rows": rows, "steps": steps, "all_at_once_s": fast, "row_by_row_s": slow, "ratio": slow / fast}


def against_separate_replays(drafter: Drafter, embed: EmbeddingRows, head: torch.Tensor, steps: int) -> dict:
    samples = [random_sample(f"sample {i}", 160) for i in range(8)]
    orders = slot_orders(range(4), 3)

    def ranked():
        return rank_feeds(drafter, samples, embed, orders, steps=steps, judge=Judge(3, TargetHead(head)))[0]

    def separate():
        return [replay(drafter, samples, embed, [v], steps=steps, judge=Judge(3, TargetHead(head)))[0] for v in orders]

    together = seconds(ranked, 1)
    started = time.perf_counter()
    single = rank(separate())
    apart = time.perf_counter() - started
    same = orders[ranked().order[0]].feed == orders[single.order[0]].feed
    return {
        "orders": len(orders),
        "steps": steps,
        "ranked_s": together,
        "separate_s": apart,
        "share": together / apart,
        "same_winner": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    drafter = random_drafter()
    embed = EmbeddingRows(torch.arange(V), torch.randn(V, H), "random rows")
    first = against_row_by_row(drafter, embed, args.rows, args.steps)
    second = against_separate_replays(drafter, embed, torch.randn(V, H), args.steps)
    print(f"all positions at once: {first['ratio']:.1f} x faster than row by row (T = {args.rows}, K = {args.steps})")
    print(f"ranking {second['orders']} orders: {second['share']:.2f} of the time of separate replays, same winner: {second['same_winner']}")
    print(json.dumps({"benchmark": "replay", "threads": torch.get_num_threads(), "replay": first, "ranking": second}))


if __name__ == "__main__":
    main()
