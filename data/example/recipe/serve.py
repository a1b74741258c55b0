"""Step 5 of the recipe: serve the shipped prompts with a real engine, once with the right wiring and once with the claimed one.

A CPU build of vLLM, float32, greedy, chains of 3. Writes served.json: for each wiring and prompt, the tokens that the engine wrote and how
many drafted tokens each verify step accepted. The engine runs in its own environment; the two configs are made beforehand:

    python data/example/recipe/serve.py --configs --drafter data/example/drafter --target data/example/target --work .live/example/served
    .live/vllm/bin/python data/example/recipe/serve.py --dump data/example/dump --target data/example/target --work .live/example/served \
        --out data/example/served.json
"""

import argparse
import json
import os
import shutil
from pathlib import Path

WIRINGS = {"right": [3, 16, 28], "claimed": [0, 3, 16]}
STEPS, MAX_NEW_TOKENS = 3, 96


def write_configs(drafter: Path, target: Path, work: Path) -> None:
    """One drafter folder a wiring, with the config that makes vLLM feed it."""
    from eaglelab.engines.wiring_report import corrected_config

    draft, whole = (json.loads((p / "config.json").read_text()) for p in (drafter, target))
    for name, boundaries in WIRINGS.items():
        folder = work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        new, _ = corrected_config(draft, boundaries, whole, "vllm==0.32.0")
        (folder / "config.json").write_text(json.dumps(new, indent=2))
        shutil.copyfile(drafter / "model.safetensors", folder / "model.safetensors")


def prompts(dump: Path) -> list[list[int]]:
    """Token ids of each shipped sample's prompt: everything before the first trained token."""
    import torch

    files = sorted(dump.rglob("data_*.pt"), key=lambda p: int(p.stem.split("_")[1]))
    samples = [torch.load(f, weights_only=True) for f in files]
    return [s["input_ids"][: int(s["loss_mask"].nonzero()[0])].tolist() for s in samples]


def serve(drafter: Path, target: Path, texts: list[list[int]]) -> list[dict]:
    """Answers of the engine, with the accepted count of every verify step."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(target),
        dtype="float32",
        max_model_len=512,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_num_seqs=16,
        disable_log_stats=False,
        speculative_config={"method": "eagle3", "model": str(drafter), "num_speculative_tokens": STEPS},
        per_request_spec_decode_metrics="detailed",
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_NEW_TOKENS)
    outputs = llm.generate([{"prompt_token_ids": t} for t in texts], sampling, use_tqdm=False)
    return [
        {
            "prompt_token_ids": list(o.prompt_token_ids),
            "token_ids": list(o.outputs[0].token_ids),
            "accepted": list(o.outputs[0].spec_decode_metrics.per_step_accepted),
        }
        for o in outputs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", action="store_true")
    for name in ("drafter", "dump", "target", "work", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--one", help="serve one wiring only, into WORK (an engine a process)")
    args = parser.parse_args()
    if args.configs:
        return write_configs(args.drafter, args.target, args.work)
    if args.one:
        result = serve(args.work / args.one, args.target, prompts(args.dump))
        (args.work / f"{args.one}.json").write_text(json.dumps(result))
        return None
    import subprocess
    import sys

    defaults = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    defaults |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    for name in WIRINGS:
        command = [sys.executable, __file__, "--one", name, "--dump", args.dump, "--target", args.target, "--work", args.work]
        subprocess.run([str(c) for c in command], check=True, env=os.environ | {k: os.environ.get(k, v) for k, v in defaults.items()})
    served = {name: json.loads((args.work / f"{name}.json").read_text()) for name in WIRINGS}
    steps = {name: [n for r in rows for n in r["accepted"]] for name, rows in served.items()}
    record = {
        "engine": "vllm-cpu 0.32.0, float32, greedy, chains",
        "num_speculative_tokens": STEPS,
        "boundaries": WIRINGS,
        "accept_length": {name: 1 + sum(a) / len(a) for name, a in steps.items()},
        "verify_steps": {name: len(a) for name, a in steps.items()},
        "requests": served,
    }
    args.out.write_text(json.dumps(record) + "\n")
    print(json.dumps(record["accept_length"]))
    return None


if __name__ == "__main__":
    main()
