"""Writes `sglang.json` or `vllm.json` again: the lines that stand in it, run through the engine's own code.

    .venv/bin/python tests/engines/effective/record.py sglang
    .live/vllm/bin/python tests/engines/effective/record.py vllm data/example/target FOLDER/eagle3-drafter

The second takes a copy of data/example/drafter under that name: vLLM reads the method off the path.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(engine: str, *folders: str) -> None:
    file = HERE / f"{engine}.json"
    rows = {"sglang": sglang, "vllm": vllm}[engine](json.loads(file.read_text()), *folders)
    file.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")


def sglang(rows: list[dict]) -> list[dict]:
    """{line, architecture, outcomes: [{versions, result}]}; versions with the same result stand together."""
    sys.path.insert(0, str(HERE.parents[1]))
    logging.disable(logging.CRITICAL)
    from engine_wheels import VERSIONS
    from sglang_resolution import resolved

    recorded = []
    for row in rows:
        outcomes: list[dict] = []
        for version in VERSIONS:
            with tempfile.TemporaryDirectory() as folder:
                result = resolved(version, row["line"], row["architecture"], Path(folder))
            same = next((o for o in outcomes if o["result"] == result), None)
            if same:
                same["versions"].append(version)
            else:
                outcomes.append({"versions": [version], "result": result})
        recorded.append({"line": row["line"], "architecture": row["architecture"], "outcomes": outcomes})
    return recorded


def vllm(rows: list[dict], target: str, drafter: str) -> list[dict]:
    """{settings, result}; the drafter's folder is written as DRAFTER."""
    from vllm.config import ModelConfig, ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    model = ModelConfig(model=target, skip_tokenizer_init=True)
    recorded = []
    for row in rows:
        settings = {key: drafter if value == "DRAFTER" else value for key, value in row["settings"].items()}
        try:
            config = EngineArgs(model=target, speculative_config=settings).create_speculative_config(model, ParallelConfig())
            result = {
                "algorithm": config.method,
                "num_steps": config.num_speculative_tokens,
                "draft_tensor_parallel_size": config.draft_parallel_config.tensor_parallel_size,
                "rejection_sample_method": config.rejection_sample_method,
                "draft_sample_method": config.draft_sample_method,
            }
        except Exception as error:  # pydantic's and vLLM's own
            result = {"stops": type(error).__name__}
        recorded.append({"settings": row["settings"], "result": result})
    return recorded


if __name__ == "__main__":
    main(*sys.argv[1:])
