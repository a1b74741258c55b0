"""A run's recording and log as they are shipped with the example: what has no bearing on speculation is cut, and README.md there says so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from runs import RECORDED, ROOT, Run

from eaglelab.served.recording import Recording, RecordingWriter

METRICS = re.compile(
    r"^(# (HELP|TYPE) )?(sglang:(spec_|(generation|prompt)_tokens_total|num_requests_total|gen_throughput)"
    r"|vllm:(spec_decode_|(generation|prompt)_tokens_total|request_success))"
)
INFO = re.compile(
    r"^(version|dtype|device|model_path|attention_backend|page_size|disable_(radix_cache|overlap_schedule|cuda_graph)|internal_states|models"
    r"|speculative_(algorithm|draft_model_path|num_steps|eagle_topk|num_draft_tokens|attention_mode|use_rejection_sampling))$"
)
STATE = re.compile(r"spec_|speculative_|last_gen_throughput|effective_max_running")
META = re.compile(r"^(spec_accept_length|spec_accept_rate|cached_tokens)$")
NOISE = re.compile(
    r"Unsupported dimension or dtype for prepacking|Ignore import error when loading|UserWarning|^  warnings\.warn\(|distributed_init_method="
)
"""What SGLang prints for each weight and each model class that the stand-in or a CPU lacks, Python's warnings, vLLM's temporary file."""
LOGGED = ("vllm-right", "sglang-claimed")
"""Runs whose log is shipped, one an engine: the example has to stay below 30 MB."""


def ship(run: Run, folder: Path) -> None:
    """Write RECORDED/<name>.jsonl and <name>.log from a run's folder; a log only of LOGGED."""
    whole = Recording.load(folder / "recording.jsonl")
    out = RECORDED / f"{run.name}.jsonl"
    out.unlink(missing_ok=True)
    info = cut(whole.session.server_info or {}, INFO)
    if isinstance(info.get("internal_states"), list):
        info["internal_states"] = [cut(state, STATE) for state in info["internal_states"]]
    writer = RecordingWriter(out, replace(whole.session, server_info=info, url=None))
    for moment in whole.scrapes:
        lines = [line for line in (moment.metrics or "").splitlines() if METRICS.match(line) and "_created" not in line]
        writer.write(replace(moment, metrics="\n".join(lines) + "\n"))
    for request in whole.requests:  # text: the tokens say it
        told = request.histogram if request.accepted is None else None  # the accepted counts say it already
        writer.write(replace(request, text=None, histogram=told, meta_info=cut(request.meta_info, META)))
    for failure in whole.failures:
        writer.write(failure)
    writer.end()
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    out.write_text("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")
    if run.name in LOGGED:
        lines = (folder / "served.log").read_text(errors="replace").replace(f"{ROOT}/", "").splitlines()
        (RECORDED / f"{run.name}.log").write_text("\n".join(line for line in lines if not NOISE.search(line)) + "\n")


def cut(values: dict[str, Any], kept: re.Pattern) -> dict[str, Any]:
    return {k: v for k, v in values.items() if kept.search(k)}
