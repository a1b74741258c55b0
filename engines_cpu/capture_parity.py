"""States captured from real engines, held against the example's dump: every way of capture, right and wrong layer ids.

    .venv/bin/python engines_cpu/capture_parity.py [NAME …]      # all of CAPTURES without a name; exit code 1 where one is not as expected

Writes what was captured, the engine's log and `parity.json` under .live/capture/NAME.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from runs import EXAMPLE, LIVE, ROOT, Run
from serving import EngineError, started

from eaglelab.capture.parity import Parity, parity_of
from eaglelab.capture.run import CaptureError, capture
from eaglelab.capture.sglang_hook import hook_spec
from eaglelab.findings import Status, write_json
from eaglelab.investigation import Investigation
from eaglelab.live.prompts import dump_prompts
from eaglelab.live.server import ServerError
from eaglelab.wiring import Boundary

SAMPLES = 3
SGLANG = "sglang"
ALL_ROWS = ("--chunked-prefill-size", "-1", "--disable-radix-cache", "--mem-fraction-static", "0.7")
"""The fraction is of the memory that was free before the weights were read: a small one fails where others take some meanwhile."""


@dataclass(frozen=True)
class Capture(Run):
    """One server that hands its states out, and what must come of it."""

    way: str = "aux"
    ids: tuple[int, ...] = ()
    """Of the command line; none where the drafter's config has them."""
    fed: tuple[Boundary, ...] = ()
    """The boundaries that the states must turn out to be."""
    status: Status = Status.PASS
    folder: Path = field(default=LIVE / "capture")

    @property
    def out(self) -> Path:
        return self.folder / self.name

    def arguments(self, port: int) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype]
        if self.engine == "vllm":
            extract = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
            extract["draft_model_config"] = {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(self.ids)}}
            transfer = {"kv_connector": "CPUHiddenStatesConnector", "kv_connector_module_path": "cpu_hidden_states_connector"}
            transfer |= {"kv_role": "kv_producer", "kv_connector_extra_config": {"shared_storage_path": str(self.out / "files")}}
            return [
                *("-m", "vllm.entrypoints.openai.api_server", "--model", "data/example/target", "--enforce-eager"),
                *("--max-model-len", "1024", "--no-enable-prefix-caching", "--max-num-seqs", "4", "--gpu-memory-utilization", "0.2"),
                *("--speculative-config", json.dumps(extract), "--kv-transfer-config", json.dumps(transfer), *where),
            ]
        if self.way == "hook":
            hook = hook_spec(self.out / "records")
            return [*super().arguments(port), "--forward-hooks", json.dumps(hook), *ALL_ROWS]
        return [
            *("-m", "sglang.launch_server", "--model-path", "data/example/target", "--device", "cpu", "--context-length", "1024"),
            *("--max-total-tokens", "16384", "--max-running-requests", "4"),
            *("--disable-overlap-schedule", "--disable-cuda-graph", *ALL_ROWS, "--speculative-algorithm", "EAGLE3"),
            *("--enable-return-aux-hidden-states", "--return-aux-hidden-state-layer-ids", *map(str, self.ids), *where),
        ]


CAPTURES = {
    c.name: c
    for c in (
        Capture("sglang-aux", SGLANG, "right", ids=(2, 15, 27), fed=(3, 16, 28)),
        Capture("sglang-aux-deeper", SGLANG, "right", ids=(3, 16, 28), fed=(4, 17, 29), status=Status.FAIL),
        Capture("sglang-hook", SGLANG, "right", way="hook", fed=(3, 16, 28)),
        Capture("sglang-hook-claimed", SGLANG, "claimed", way="hook", fed=(0, 3, 16), status=Status.FAIL),
        Capture("vllm-extract", "vllm", "right", way="extract", ids=(3, 16, 28, 30), fed=(3, 16, 28, 30)),
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *CAPTURES], metavar="NAME", help=", ".join(CAPTURES))
    wanted = parser.parse_args().names or list(CAPTURES)
    inv = Investigation(str(EXAMPLE), max_samples=SAMPLES)
    wrong = [name for name in wanted if not as_expected(CAPTURES[name], inv)]
    print(f"{len(wanted) - len(wrong)} of {len(wanted)} as expected" + (f"; not {', '.join(wrong)}" if wrong else ""))
    return int(bool(wrong))


def as_expected(run: Capture, inv: Investigation) -> bool:
    shutil.rmtree(run.out, ignore_errors=True)
    (run.out / "files").mkdir(parents=True)
    begun = time.monotonic()
    try:
        with started(run, run.out / "engine.log") as (server, _command):
            asked = dump_prompts(inv.samples).prompts
            done = capture(server, asked, run.out / "states", case=inv, layer_ids=run.ids or None, say=lambda _: None)
    except (EngineError, CaptureError, ServerError) as error:
        print(f"{run.name}: {error}", flush=True)
        return False
    print(f"{run.name}: {done.summary.replace(str(ROOT), '.')}", flush=True)
    found = parity_of(inv, run.out / "states", SAMPLES)
    write_json(run.out / "parity.json", found)
    print(f"  {found.status}: {found.summary}\n  {time.monotonic() - begun:.0f} s", flush=True)
    for kept in ("files", "records"):
        shutil.rmtree(run.out / kept, ignore_errors=True)
    return judged(run, found)


def judged(run: Capture, found: Parity) -> bool:
    """By evidence, not by the ids: what the states are. The dump keeps the normed last state, so vLLM's boundary 30 is none of its slots."""
    return found.wiring.boundaries == run.fed and found.status is run.status


if __name__ == "__main__":
    sys.exit(main())
