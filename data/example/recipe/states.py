"""Step 2 of the recipe: run the target over its own answers and dump boundaries 3, 16, 28 and the final-normed state.

Writes the list-of-four format: `rows_A-B/data_i.pt` = {"input_ids" [T], "hidden_states": [4 x [T, H]] bf16, "loss_mask" [T]}, train
and held-out samples in folders of their own.

    python data/example/recipe/states.py --target data/example/target --answers .live/example/answers.jsonl --out .live/example/dump
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

BOUNDARIES = (3, 16, 28)
GROUP = 500  # files a folder
BATCH = 16


@torch.no_grad()
def states_of(model, batch: list[dict]) -> list[list[torch.Tensor]]:
    """Per row of the batch: its slots, [T, H] each. Rows are padded on the right, which a causal model does not see."""
    longest = max(len(row["input_ids"]) for row in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)  # [B, T]
    for i, row in enumerate(batch):
        ids[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    states = model.model(input_ids=ids, output_hidden_states=True).hidden_states  # transformers: [b] is boundary b, the last one final
    slots = [states[b] for b in BOUNDARIES] + [states[-1]]
    return [[slot[i, : len(row["input_ids"])].clone() for slot in slots] for i, row in enumerate(batch)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16)
    for split in ("heldout", "train"):
        rows = [r for r in map(json.loads, args.answers.open()) if r["split"] == split]
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            for i, (row, slots) in enumerate(zip(batch, states_of(model, batch), strict=True), start=first):
                length = len(row["input_ids"])
                mask = (torch.arange(length) >= row["prompt_tokens"]).long()  # [T] 1 on the answer
                group = i // GROUP * GROUP
                folder = args.out / split / f"rows_{group}-{group + GROUP}"
                folder.mkdir(parents=True, exist_ok=True)
                sample = {"input_ids": torch.tensor(row["input_ids"]), "hidden_states": slots, "loss_mask": mask}
                torch.save(sample, folder / f"data_{i}.pt")
        print(f"{split}: {len(rows)} samples", flush=True)


if __name__ == "__main__":
    main()
