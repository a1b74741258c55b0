"""The runs: which engine serves the example's drafter with which wiring, shape of draft and dtype, and the command that starts it."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from eaglelab.engines.wiring_report import corrected_config
from eaglelab.wiring import FINAL

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "data" / "example"
LIVE = ROOT / ".live"
RECORDED = EXAMPLE / "engine"
WIRINGS = {"right": (3, 16, 28), "claimed": (0, 3, 16)}
BOUNDARIES = (0, 3, 16, 28, FINAL)
"""Every boundary that a run needs, in the order of the slots of its states."""
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}
MAX_NEW_TOKENS = 96
AT_ONCE = 16
"""Requests that an engine works on together."""

QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"}
ENVIRONMENT = {
    "vllm": QUIET
    | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
    | {"PYTHONPATH": "engines_cpu/for_vllm"},
    "sglang": QUIET | {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "PYTHONPATH": "engines_cpu/for_sglang"},
}
"""Paths are relative to the repository: every engine starts there."""


@dataclass(frozen=True)
class Run:
    """One server with one set of flags; greedy."""

    name: str
    engine: str
    wiring: str
    steps: int = 3
    topk: int = 1
    nodes: int = 4
    """Nodes of a verify pass, the root included."""
    dtype: str = "float32"

    @property
    def version(self) -> str:
        return f"{self.engine}=={VERSIONS[self.engine]}"

    @property
    def python(self) -> Path:
        return LIVE / self.engine / "bin" / "python"

    @property
    def variant(self) -> tuple[int, int, int]:
        """The feed, as slots of states at BOUNDARIES."""
        return tuple(BOUNDARIES.index(b) for b in WIRINGS[self.wiring])

    def drafter(self) -> Path:
        """The example's drafter with the config that makes the engine feed the wiring; relative to the repository."""
        folder = LIVE / "drafters" / f"{self.engine}-{self.wiring}"
        folder.mkdir(parents=True, exist_ok=True)
        given, target = (json.loads((EXAMPLE / part / "config.json").read_text()) for part in ("drafter", "target"))
        config, _ = corrected_config(given, WIRINGS[self.wiring], target, self.version)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        weights = folder / "model.safetensors"
        if not weights.exists():
            weights.symlink_to(os.path.relpath(EXAMPLE / "drafter" / "model.safetensors", folder))
        return folder.relative_to(ROOT)

    def arguments(self, port: int) -> list[str]:
        """Behind the engine's python."""
        where = ["--host", "127.0.0.1", "--port", str(port)]
        if self.engine == "vllm":
            speculative = {"method": "eagle3", "model": str(self.drafter()), "num_speculative_tokens": self.steps}
            return [
                *("-m", "vllm.entrypoints.openai.api_server", "--model", "data/example/target", "--dtype", self.dtype),
                *("--enforce-eager", "--max-model-len", "1024", "--no-enable-prefix-caching", "--max-num-seqs", str(AT_ONCE)),
                *("--gpu-memory-utilization", "0.2", "--per-request-spec-decode-metrics", "detailed"),
                *("--speculative-config", json.dumps(speculative), *where),
            ]
        return [
            *("-m", "sglang.launch_server", "--model-path", "data/example/target", "--device", "cpu", "--dtype", self.dtype),
            *("--context-length", "1024", "--max-total-tokens", "16384", "--max-running-requests", str(AT_ONCE)),
            *("--mem-fraction-static", "0.3", "--disable-overlap-schedule", "--disable-cuda-graph", "--disable-radix-cache"),
            *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(self.drafter())),
            *("--speculative-num-steps", str(self.steps), "--speculative-eagle-topk", str(self.topk)),
            *("--speculative-num-draft-tokens", str(self.nodes), "--decode-log-interval", "10", "--enable-metrics", *where),
        ]

    def command(self, port: int) -> str:
        """As one would type it in the repository."""
        environment = [f"{k}={v}" for k, v in ENVIRONMENT[self.engine].items()]
        return " ".join([*environment, str(self.python.relative_to(ROOT)), shlex.join(self.arguments(port))])


RUNS = {
    run.name: run
    for run in (
        Run("vllm-right", "vllm", "right"),
        Run("vllm-claimed", "vllm", "claimed"),
        Run("vllm-right-k5", "vllm", "right", steps=5, nodes=6),
        Run("vllm-right-bf16", "vllm", "right", dtype="bfloat16"),
        Run("sglang-right", "sglang", "right"),
        Run("sglang-claimed", "sglang", "claimed"),
        Run("sglang-right-k5", "sglang", "right", steps=5, nodes=6),
        Run("sglang-tree", "sglang", "right", topk=4, nodes=8),
        Run("sglang-tree-default", "sglang", "right", steps=5, topk=4, nodes=8),
        Run("sglang-right-bf16", "sglang", "right", dtype="bfloat16"),
    )
}
"""`sglang-tree-default` is SGLang's own choice for a Llama target: 5 steps, 4 branches, 8 nodes."""
SHORT = ("vllm-right", "vllm-claimed")
