"""The plan of a world with nothing wrong: what every fault is put into."""

from __future__ import annotations

import copy
import json

import torch

from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.engines.conventions import convention_for
from eaglelab.findings import plain
from faults.plan import Plan, Server, World
from faults.server import _table, engine_drafter
from faults.worlds import EXAMPLE, IDS

LAUNCH = {
    "sglang": "python -m sglang.launch_server --model-path target --speculative-algorithm EAGLE3 --speculative-draft-model-path drafter "
    "--speculative-num-steps {k} --speculative-eagle-topk 1 --speculative-num-draft-tokens {nodes}",
    "vllm": 'vllm serve target --speculative-config \'{{"method": "eagle3", "model": "drafter", "num_speculative_tokens": {k}}}\'',
}


def healthy(
    world: World, *, engine: tuple[str, str] | None = None, steps: int = 3, target: str = "path", told: tuple[str, ...] | None = None
) -> Plan:
    """A plan in which dump, drafter, engine and server agree. engine: name and version, by default the world's own."""
    engine = engine or world.engine
    target_config = json.loads(
        (world.folder / "config.json").read_text() if world.kind != "example" else (EXAMPLE / "target-config.json").read_text()
    )
    config = copy.deepcopy(world.config)
    convention = convention_for("==".join(engine), target_config["architectures"][0])
    config.pop("eagle_config", None)
    ids = convention.ids_for(world.trained_on, world.num_layers)
    if engine[0] == "vllm":
        config[IDS] = ids
    else:
        config["eagle_config"] = {IDS: ids, "use_aux_hidden_state": True}
    slots = [*world.trained_on, "final"]
    server = Server(list(world.trained_on), world.tensors, copy.deepcopy(config), world.folder, steps)
    return Plan(
        world=world,
        slots=slots,
        samples=[sample_of(world, i, slots) for i in range(len(world.texts))],
        tensors=dict(world.tensors),
        config=config,
        target_config=target_config,
        engine=engine,
        launch=LAUNCH[engine[0]].format(k=steps, nodes=steps + 1),
        server=server,
        sections={"training": {"framework": "specforge", "version": "0.2.0"}} if world.kind != "example" else {},
        trainer=trainer_rows(world) if world.kind != "example" else [],
        target=target,
        told=("recording", "log") if told is None else told,
    )


def sample_of(world: World, i: int, slots: list) -> dict:
    """One sample of the list-of-four layout, states in bf16."""
    ids = world.texts[i]
    return {
        "input_ids": ids.clone(),
        "hidden_states": [world.states[i][b].to(torch.bfloat16) for b in slots],
        "loss_mask": (torch.arange(len(ids)) >= world.prompts[i]).long(),
    }


@torch.no_grad()
def trainer_rows(world: World, steps: int = 3) -> list[dict[str, float]]:
    """What the trainer prints of its evaluation: right over trained rows, step by step, teacher-forced (SpecForge 0.2: row t counts at step k by l[t + k])."""
    server = Server(list(world.trained_on), world.tensors, world.config, world.folder)
    drafter, _ = engine_drafter(server)
    table = _table(world.folder)
    rows_of = EmbeddingRows(torch.arange(len(table)), table, "the target's")
    packed = Packed.of(world.texts)
    fed = [torch.cat([s[b] for s in world.states]) for b in world.trained_on]
    fused = drafter.fuse([drafter.slot_product(p, x) for p, x in enumerate(fed)], fed)
    rows, spans = [], zip(packed.starts, packed.starts[1:], world.prompts, strict=False)
    for first, end, prompt in spans:
        rows.append(torch.arange(first + prompt - 1, end - 2))
    rows = torch.cat(rows)
    first = torch.tensor([packed.starts[i] + world.prompts[i] for i in range(len(world.texts))])
    begin = torch.searchsorted(torch.tensor(packed.starts), rows, right=True) - 1
    accuracies = []
    for k, output in enumerate(draft_chains(drafter, packed, fused, rows_of, rows, steps)):
        counts = (rows + k >= first[begin]) & (rows + 2 + k <= packed.last_row[rows])
        right = drafter.target_ids[output.logits.argmax(-1)] == packed.token_ids[packed.ahead(rows, 2 + k)]
        accuracies.append(round(float((right & counts).sum() / counts.sum()), 4))
    return [
        *({"step": at, **{f"acc_{k}": round(a * share, 4) for k, a in enumerate(accuracies)}, "loss": round(4.2 - 2.5 * share, 3)}
          for at, share in ((100, 0.7), (200, 0.93), (260, 1.0))),
        plain({"step": 260, "eval/per_position_acc": accuracies}),
    ]  # fmt: skip
