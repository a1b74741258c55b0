"""A plan becomes a case's folder."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eaglelab.drafter.embedding import save_embedding_rows
from eaglelab.dumps import Sample
from eaglelab.loop.result import Speculated
from faults.plan import Plan, World
from faults.server import _table, record, serve

RUNNING = 8
"""Requests that the log's lines speak of."""


def write(plan: Plan, root: Path, answers: list[Speculated] | None = None) -> Path:
    """Write everything, the server's side from what it answered (`answers`, else it is served here). Returns `root`."""
    for place, sample in enumerate(plan.samples):
        path = root / "dump" / f"rows_0-{len(plan.samples)}" / f"data_{place}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(sample, path)
    _drafter(root / "drafter", plan.tensors, plan.config)
    (root / "target-config.json").write_text(json.dumps(plan.target_config, indent=2))
    sections: dict[str, dict[str, Any]] = {
        "dump": {"path": "dump", "format": "list_of_four", "split": "heldout"},
        "drafter": {"path": "drafter"},
        "target": _target(plan, root),
        "engine": {"name": plan.engine[0], "version": plan.engine[1], "launch": plan.launch},
    }
    if plan.target != "path":
        ids = torch.cat(plan.world.texts).unique()
        save_embedding_rows(root / "rows.safetensors", ids, _table(plan.world.folder)[ids])
        sections["drafter"]["embed"] = "rows.safetensors"
    if plan.server is not None and plan.told:
        answers = serve(plan.world, plan.server) if answers is None else answers
        if "recording" in plan.told:
            record(plan, answers, root / "served.jsonl")
            sections["engine"]["counters"] = "served.jsonl"
    lines = plan.log or (log_lines(plan, answers) if None not in (plan.server, answers) and "log" in plan.told else [])
    if lines:
        (root / "server.log").write_text("\n".join(lines) + "\n")
        sections["engine"]["log"] = "server.log"
    if plan.trainer:
        (root / "train.log").write_text("".join(trainer_line(row) + "\n" for row in plan.trainer))
        sections["training"] = {"metrics": "train.log"}
    for name, content in plan.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    for name, keys in plan.sections.items():
        sections[name] = {k: v for k, v in {**sections.get(name, {}), **keys}.items() if v is not None}
    (root / "case.toml").write_text(toml(sections, plan.claims), encoding="utf-8")
    return root


def _drafter(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file({n: t.clone().contiguous() for n, t in tensors.items()}, folder / "model.safetensors")


def _target(plan: Plan, root: Path) -> dict[str, Any]:
    if plan.target == "path":
        return {"path": str(plan.world.folder), "config": "target-config.json"}
    if plan.target == "none":
        return {"config": "target-config.json"}
    (root / "sketch.safetensors").write_bytes(sketch(plan.world).read_bytes())
    return {"config": "target-config.json", "sketch": "sketch.safetensors"}


def sketch(world: World) -> Path:
    """The reference sketch of a world's texts; made once."""
    if world.kind == "example":
        return world.folder.parent / "sketch.safetensors"
    from eaglelab.target import ForwardSource
    from eaglelab.target.sketch import make_sketch

    file = world.folder.parent / "sketch.safetensors"
    if not file.exists():
        samples = [Sample(f"data_{i}.pt", ids, (world.states[i][0],), None, ("hidden_states[0]",)) for i, ids in enumerate(world.texts)]
        make_sketch(ForwardSource(world.folder), samples, rows=40, dim=32, target=world.kind).save(file)
    return file


def trainer_line(row: dict[str, Any]) -> str:
    """As SpecForge 0.2 prints it."""
    return f"step {row.get('step', 0)}: { {k: v for k, v in row.items() if k != 'step'} }"


def log_lines(plan: Plan, answers: list[Speculated]) -> list[str]:
    """Lines of the engine's own log: its answers in batches of `RUNNING` at once, one line every few passes."""
    k, lines, at = plan.server.num_steps, [], datetime(2026, 11, 30, 12)
    for first in range(0, len(answers), RUNNING):
        batch = [a.passes for a in answers[first : first + RUNNING]]
        for begin in range(0, max(map(len, batch)), 8):
            accepted = [p.accepted for passes in batch for p in passes[begin : begin + 8]]
            running = sum(len(passes) > begin for passes in batch)
            at += timedelta(seconds=4)
            lines.append((sglang_line if plan.engine[0] == "sglang" else vllm_line)(at, running, accepted, k, 40 + begin))
    return lines


def sglang_line(at: datetime, running: int, accepted: list[int], k: int, tokens: int) -> str:
    """A decode line of 0.5.13 and newer, whose rate is accepted over drafted tokens."""
    length = 1 + sum(accepted) / len(accepted)
    rate = sum(accepted) / (k * len(accepted))
    return (
        f"[{at:%Y-%m-%d %H:%M:%S}] Decode batch, #running-req: {running}, #token: {running * tokens}, token usage: 0.05, accept len: {length:.2f}, "
        f"accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): {sum(accepted) + len(accepted):.2f}, #queue-req: 0"
    )


def vllm_line(at: datetime, running: int, accepted: list[int], k: int, tokens: int) -> str:
    drafted, n = k * len(accepted), len(accepted)
    rates = ", ".join(f"{sum(a > i for a in accepted) / n:.3f}" for i in range(k))
    return (
        f"(APIServer pid=1) INFO {at:%m-%d %H:%M:%S} [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {1 + sum(accepted) / n:.2f}, "
        f"Accepted throughput: {sum(accepted) / 10:.2f} tokens/s, Drafted throughput: {drafted / 10:.2f} tokens/s, Accepted: {sum(accepted)} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {100 * sum(accepted) / drafted:.1f}%"
    )


def toml(sections: dict[str, dict[str, Any]], claims: list[dict[str, Any]]) -> str:
    """case.toml from plain values: strings, numbers, switches and lists are written alike in JSON and TOML."""
    blocks = [(f"[{name}]", keys) for name, keys in sections.items() if keys] + [("[[claims]]", claim) for claim in claims]
    return "\n".join("\n".join([head, *(f"{k} = {_value(v)}" for k, v in keys.items()), ""]) for head, keys in blocks)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value)
