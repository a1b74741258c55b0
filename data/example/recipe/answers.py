"""Step 1 of the recipe: the target's own greedy answers, through a CPU build of vLLM (its own environment, see the Makefile).

Writes one JSON line a prompt: {"split", "prompt", "input_ids", "prompt_tokens"}. Prompts that are already in the file are skipped.

    .live/vllm/bin/python data/example/recipe/answers.py --target data/example/target --out .live/example/answers.jsonl
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "2")

from prompts import prompts

MAX_NEW_TOKENS = 160
CHUNK = 256  # prompts written to disk at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = {json.loads(line)["prompt"] for line in args.out.open()} if args.out.exists() else set()
    todo = [(split, p) for split in ("heldout", "train") for p in prompts(split) if p not in done]
    if not todo:
        return

    from vllm import LLM, SamplingParams

    llm = LLM(str(args.target), dtype="bfloat16", max_model_len=512, enforce_eager=True, max_num_seqs=128, seed=0)
    tokenizer = llm.get_tokenizer()
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_NEW_TOKENS)
    started, tokens = time.perf_counter(), 0
    with args.out.open("a") as sink:
        for first in range(0, len(todo), CHUNK):
            chunk = todo[first : first + CHUNK]
            texts = [
                tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
                for _, p in chunk
            ]
            ids = [tokenizer.encode(t, add_special_tokens=False) for t in texts]
            outputs = llm.generate([{"prompt_token_ids": i} for i in ids], sampling, use_tqdm=False)
            for (split, prompt), output in zip(chunk, outputs, strict=True):
                answer = list(output.outputs[0].token_ids)
                tokens += len(answer)
                row = {
                    "split": split,
                    "prompt": prompt,
                    "input_ids": list(output.prompt_token_ids) + answer,
                    "prompt_tokens": len(output.prompt_token_ids),
                }
                sink.write(json.dumps(row) + "\n")
            sink.flush()
            seconds = time.perf_counter() - started
            print(f"{first + len(chunk)} of {len(todo)} prompts, {tokens} answer tokens, {tokens / seconds:.0f} tok/s", flush=True)


if __name__ == "__main__":
    main()
