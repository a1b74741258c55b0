"""B: the drafter's file: tensors that are not there, of another name or another run, maps that say other tokens, flags that nobody reads."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglelab.drafter.config import DrafterConfig
from eaglelab.engines.capabilities import support
from eaglelab.engines.conventions import Engine, table
from faults.kinds.common import (
    Family,
    blocks,
    config_of,
    drop_trainer,
    engine,
    generator,
    move,
    need,
    put,
    random_like,
    retrain,
    the_server,
)
from faults.plan import Inapplicable, Plan
from faults.targets import load_target

KINDS = Family("B")
UNTRAINED = "drafter.complete"


@KINDS.kind("lm_head missing", UNTRAINED, source="sgl-project/sglang#27829")
def no_head(plan: Plan, strength: float, rng: Random) -> None:
    """draft_vocab_size is declared, and the head stays as it was initialised."""
    head = need(plan, "lm_head.weight")
    if len(head) == plan.config["vocab_size"]:
        raise Inapplicable("with the whole vocabulary the target's head is taken")
    put(plan, "lm_head.weight", None, random_like(head, rng))


@KINDS.kind("norm weights missing", UNTRAINED)
def no_norms(plan: Plan, strength: float, rng: Random) -> None:
    """The file lacks a norm, which keeps its ones."""
    name = rng.choice([n for n in plan.tensors if n.endswith("norm.weight")])
    put(plan, name, None, torch.ones_like(plan.tensors[name]))


@KINDS.kind("tensors of another name", UNTRAINED)
def other_names(plan: Plan, strength: float, rng: Random) -> None:
    """Exported with the training wrapper's prefix: engines find nothing of the layer."""
    for name in [n for n in plan.tensors if n.startswith("midlayer.")]:
        tensor = plan.tensors[name]
        loaded = torch.ones_like(tensor) if "norm" in name else random_like(tensor, rng)
        put(plan, name, None, loaded)
        plan.tensors[f"draft_model.{name}"] = tensor


@KINDS.kind("random embedding table", "drafter.embedding replay.choices", source="lightseekorg/TorchSpec#38")
def random_embedding(plan: Plan, strength: float, rng: Random) -> None:
    """An export that builds the model anew and loads without it. vLLM keeps it; SGLang puts the target's in its place."""
    move(plan, "vllm", table()["families"]["vllm"]["read_versions"][-1])
    size = plan.config["vocab_size"], plan.config["hidden_size"]
    plan.tensors["embed_tokens.weight"] = random_like(torch.empty(size), rng)
    if plan.server is not None:
        plan.server.tensors = dict(plan.tensors)


@KINDS.kind("fc's columns in another order", "replay.order")
def fc_order(plan: Plan, strength: float, rng: Random) -> None:
    """A conversion that concatenates the slots otherwise than the training did."""
    parts = blocks(need(plan, "fc.weight"), len(plan.world.trained_on))
    put(plan, "fc.weight", torch.cat(parts[1:] + parts[:1] if rng.random() < 0.5 else parts[::-1], dim=1))


def _map(plan: Plan, d2t: Tensor | None) -> None:
    """Another map, or none. On the server ids beyond the vocabulary are its last one: an index that is out of range has no meaning."""
    size, whole = plan.config["draft_vocab_size"], plan.config["vocab_size"]
    if size == whole:
        raise Inapplicable("the whole vocabulary needs no map")
    own = torch.arange(size)
    loaded = torch.zeros_like(own) if d2t is None else (d2t + own).clamp(max=whole - 1) - own
    put(plan, "d2t", d2t, loaded)


@KINDS.kind("d2t missing", "drafter.vocabulary drafter.complete", source="NVIDIA-NeMo/Automodel#2447")
def no_map(plan: Plan, strength: float, rng: Random) -> None:
    """The map stays in a side file, and draft ids are taken for the first target ids."""
    _map(plan, None)
    plan.tensors.pop("t2d", None)


@KINDS.kind("d2t all zero", "drafter.vocabulary", source="SafeAILab/EAGLE#222")
def zero_map(plan: Plan, strength: float, rng: Random) -> None:
    _map(plan, torch.zeros_like(need(plan, "d2t")))


@KINDS.kind("d2t of absolute ids", "drafter.vocabulary", source="Tencent/AngelSlim#304")
def absolute_map(plan: Plan, strength: float, rng: Random) -> None:
    """Target ids where offsets belong."""
    d2t = need(plan, "d2t")
    _map(plan, d2t + torch.arange(len(d2t)))


@KINDS.kind("d2t counted up", "drafter.vocabulary", source="verl-SpeCo#67")
def counted_map(plan: Plan, strength: float, rng: Random) -> None:
    """A placeholder, arange: draft id i becomes 2 i."""
    _map(plan, torch.arange(len(need(plan, "d2t"))))


@KINDS.kind("d2t of another corpus", "drafter.vocabulary.other replay.choices")
def other_corpus(plan: Plan, strength: float, rng: Random) -> None:
    """The map is made again from other text before the export: sound by itself, and not the one of lm_head. The run's own is at hand."""
    d2t, size = need(plan, "d2t"), plan.config["vocab_size"]
    kept = torch.randperm(size, generator=generator(rng))[: len(d2t)].sort().values
    buffer = io.BytesIO()
    np.save(buffer, d2t.numpy())
    _map(plan, kept - torch.arange(len(d2t)))
    if "t2d" in plan.tensors:
        plan.tensors["t2d"] = torch.isin(torch.arange(size), kept)
    plan.files["run/d2t.npy"] = buffer.getvalue()
    plan.sections.setdefault("drafter", {})["vocabulary"] = "run/d2t.npy"


@KINDS.kind("t2d marks other tokens", "drafter.vocabulary", source="verl-SpeCo#66")
def wrong_t2d(plan: Plan, strength: float, rng: Random) -> None:
    """The first tokens of the vocabulary, a placeholder."""
    t2d = need(plan, "t2d")
    plan.tensors["t2d"] = torch.arange(len(t2d)) < len(need(plan, "d2t"))
    if torch.equal(plan.tensors["t2d"], t2d):
        raise Inapplicable("it marks these")


@KINDS.kind("own lm_head overwritten", "served.expected served.variant", source="vllm-project/vllm#27732", needs="recording")
def head_overwritten(plan: Plan, strength: float, rng: Random) -> None:
    """The engine's loader always shares the target's head."""
    the_server(plan)
    head, d2t = load_target(plan.world.folder).lm_head.weight.detach(), plan.tensors.get("d2t")
    ids = torch.arange(len(head)) if d2t is None else d2t + torch.arange(len(d2t))
    own = need(plan, "lm_head.weight")
    if head.shape[1] != own.shape[1]:
        raise Inapplicable("the target's head is of another width")
    put(plan, "lm_head.weight", own, head[ids].clone())


@KINDS.kind("wrong rope base in the config", "context.rope_fit", source="NVIDIA-NeMo/Automodel#2399")
def rope_base(plan: Plan, strength: float, rng: Random) -> None:
    """Another model's config was copied: the drafter rotates otherwise than it was trained."""
    rope = plan.config.get("rope_parameters")
    theta = float((rope or plan.config).get("rope_theta", 10000.0))
    wrong = theta * (0.02 if theta > 1e5 else 50.0) if strength < 0.7 else 10.0
    told = {"rope_parameters": {**rope, "rope_theta": wrong}} if rope else {"rope_theta": wrong}
    config_of(plan, lambda config: config.update(told))


# -- flags that an engine ignores or reads otherwise ----------------------------------------------------------------------------------------


ELSEWHERE = {"modal_type": "LLM"}
"""What AngelSlim writes into a config: to all but SpecForge norm_output is the state that the next step starts from."""


def _ignored(plan: Plan, key: str, **more: Any) -> None:
    """A drafter trained with a flag, served by the newest version that does not read it."""
    if plan.engine[0] != "sglang":
        raise Inapplicable("vLLM reads it")
    kind = DrafterConfig.from_dict(plan.config).layer_type
    deaf = [v for v in table()["families"]["sglang"]["read_versions"] if support(Engine("sglang", v), kind, key)[0] == "ignored"]
    if not deaf:
        raise Inapplicable("every version reads it")
    retrain(plan, config={key: True, **more})
    plan.config |= {key: True, **more}
    if engine(plan).version not in deaf:
        move(plan, "sglang", deaf[-1])


@KINDS.kind("norm_before_fc ignored", "config.norm_before_fc replay.flags", source="sgl-project/sglang#32226")
def norm_before_fc(plan: Plan, strength: float, rng: Random) -> None:
    _ignored(plan, "norm_before_fc")


@KINDS.kind("fc_norm ignored", "config.fc_norm replay.flags", source="vllm-project/vllm#42764")
def fc_norm(plan: Plan, strength: float, rng: Random) -> None:
    _ignored(plan, "fc_norm")


@KINDS.kind("norm_output ignored", "config.norm_output replay.flags", source="vllm-project/vllm#42764")
def norm_output(plan: Plan, strength: float, rng: Random) -> None:
    _ignored(plan, "norm_output", **ELSEWHERE)


@KINDS.kind("norm_before_residual ignored", "config.norm_before_residual replay.flags", source="vllm-project/speculators@4e2e6407")
def residual_ignored(plan: Plan, strength: float, rng: Random) -> None:
    _ignored(plan, "norm_before_residual")


@KINDS.kind("norm_before_residual not in the config", "replay.choices", source="vllm-project/speculators@4e2e6407")
def residual_untold(plan: Plan, strength: float, rng: Random) -> None:
    """A trainer that forces the flag, and a config that says nothing."""
    retrain(plan, config={"norm_before_residual": True})


@KINDS.kind("recurrence from the normed state", "replay.choices", source="ROCm/ATOM#882")
def post_norm(plan: Plan, strength: float, rng: Random) -> None:
    """norm_output stands in the config of a drafter that was trained without."""
    config_of(plan, lambda config: config.update(norm_output=True, **ELSEWHERE))
    drop_trainer(plan)


@KINDS.kind("engine steps on from the normed state", "served.expected served.variant", source="ROCm/ATOM#631", needs="recording")
def engine_post_norm(plan: Plan, strength: float, rng: Random) -> None:
    """A defect of the engine's draft loop; config and drafter are in order."""
    the_server(plan).flags["post_norm_recurrence"] = True
