"""Step 4 of the recipe: the shipped part of the example, under 30 MB: held-out samples, drafter, sketch, embedding rows, target config.

    python data/example/recipe/ship.py --target data/example/target --dump .live/example/dump --drafter .live/example/drafter --out data/example
"""

import argparse
import json
import random
import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from eaglelab.drafter.embedding import save_embedding_rows
from eaglelab.dumps import open_dump
from eaglelab.target import ForwardSource
from eaglelab.target.sketch import make_sketch

SAMPLES = 12
LENGTHS = range(110, 190)  # tokens of a shipped sample: long enough to count, short enough to ship
SKETCH_TEXTS, SKETCH_ROWS = 3, 64


def choose(dump_folder: Path) -> list[Path]:
    """A seeded choice of held-out samples of middling length, renumbered by the caller."""
    files = sorted((dump_folder / "heldout").rglob("data_*.pt"), key=lambda p: int(p.stem.split("_")[1]))
    fitting = [f for f in files if len(torch.load(f, weights_only=True, mmap=True)["input_ids"]) in LENGTHS]
    return sorted(random.Random(0).sample(fitting, SAMPLES), key=lambda p: int(p.stem.split("_")[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("target", "dump", "drafter", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)

    samples = args.out / "dump" / f"rows_0-{SAMPLES}"
    shutil.rmtree(args.out / "dump", ignore_errors=True)
    samples.mkdir(parents=True)
    for i, file in enumerate(choose(args.dump)):
        shutil.copyfile(file, samples / f"data_{i}.pt")

    for name in ("config.json", "model.safetensors", "training.json"):
        (args.out / "drafter").mkdir(exist_ok=True)
        shutil.copyfile(args.drafter / name, args.out / "drafter" / name)
    shutil.copyfile(args.target / "config.json", args.out / "target-config.json")

    dump = open_dump(args.out / "dump")
    source = ForwardSource(args.target)
    make_sketch(source, dump.samples(SKETCH_TEXTS), rows=SKETCH_ROWS, target="SmolLM2-135M-Instruct, dequantised Q4_1").save(
        args.out / "sketch.safetensors"
    )
    with safe_open(args.drafter / "model.safetensors", "pt") as weights:
        d2t = weights.get_tensor("d2t")
    spoken = torch.cat([s.token_ids for s in dump.samples(None)])
    ids = torch.cat([spoken, d2t + torch.arange(len(d2t))]).unique()
    with safe_open(args.target / "model.safetensors", "pt") as weights:
        rows = weights.get_tensor("model.embed_tokens.weight")[ids]
    save_embedding_rows(args.out / "embedding-rows.safetensors", ids, rows)

    shipped = [p for p in args.out.rglob("*") if p.is_file() and "target/" not in p.as_posix() and "recipe" not in p.as_posix()]
    total = sum(p.stat().st_size for p in shipped)
    print(json.dumps({p.relative_to(args.out).as_posix(): p.stat().st_size for p in sorted(shipped)}, indent=1))
    print(f"{total / 1e6:.1f} MB in {len(shipped)} files")


if __name__ == "__main__":
    main()
