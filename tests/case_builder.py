"""Whole tiny cases on disk: a real (random) transformers target, texts that are its own greedy choice, a dump of its states, and a
drafter that really works on the wiring asked for.

The texts walk along one cycle through the vocabulary; the target's lm_head is solved so that its own choice is the next token of the
cycle. The drafter's answer is spelled in digits, one for each place of fc: each slot contributes its own digit, so that a wrong slot in
any place spoils the answer. States come from transformers' own output and hooks, not from the code under test.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import HIDDEN, make_deepseek_v3, make_llama, make_qwen3
from torch import Tensor
from transformers import AutoModelForCausalLM

from eaglelab.drafter.embedding import save_embedding_rows
from eaglelab.wiring import FINAL

MAKERS = {"llama": make_llama, "qwen3": make_qwen3, "deepseek": make_deepseek_v3}
VOCAB, DRAFT_VOCAB = 48, 40
LAYER_SCALE = 5.0
"""transformers' random layers add next to nothing to the residual; scaled up, boundaries differ as those of a trained model do."""
SGLANG, VLLM = "eagle_config.eagle_aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"


@dataclass
class World:
    """A target with its texts and their states at every boundary."""

    folder: Path
    kind: str
    num_layers: int
    texts: list[Tensor]
    states: list[dict[Any, Tensor]]
    """Per text: boundary (0..N, FINAL) -> [T, H]."""
    prompts: list[int] = field(default_factory=list)

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_text())

    def stacked(self, boundary: Any, drop: int = 0) -> Tensor:
        """[M, H] float32 of all texts, without the last `drop` rows of each."""
        return torch.cat([s[boundary][: len(s[boundary]) - drop].float() for s in self.states])


def make_world(root: Path, kind: str = "llama", num_layers: int = 6, seed: int = 0, samples: int = 8, length: int = 48) -> World:
    """A random target of `num_layers` whose greedy text is known, and `samples` texts of about `length` tokens."""
    folder = MAKERS[kind](root / f"target-{kind}-{num_layers}-{seed}", seed=seed, num_hidden_layers=num_layers, vocab_size=VOCAB)
    generator = torch.Generator().manual_seed(seed)
    cycle = torch.randperm(VOCAB, generator=generator)
    starts = torch.randint(0, VOCAB, (samples,), generator=generator).tolist()
    texts = [cycle[(start + torch.arange(length + 2 * i)) % VOCAB] for i, start in enumerate(starts)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if "embed" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator))
            elif weight.ndim > 1:
                weight.mul_(LAYER_SCALE)
        world = World(folder, kind, num_layers, texts, [boundary_states(model, t) for t in texts], [4 + i % 3 for i in range(samples)])
        answers = torch.cat([t[1:] for t in texts])
        model.lm_head.weight.copy_(readout(world.stacked(FINAL, drop=1), one_hot(answers, VOCAB)))
    model.save_pretrained(folder)
    return world


@torch.no_grad()
def boundary_states(model: Any, ids: Tensor) -> dict[Any, Tensor]:
    """transformers' own states of one text: boundaries 0..N-1 and FINAL as it gives them, N by a hook in front of the final norm."""
    before_norm: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, args: before_norm.append(args[0][0]))
    given = model(ids[None], output_hidden_states=True).hidden_states
    hook.remove()
    states = {b: h[0] for b, h in enumerate(given[:-1])}
    return {**states, len(given) - 1: before_norm[0], FINAL: given[-1][0]}


def one_hot(ids: Tensor, count: int) -> Tensor:
    return torch.nn.functional.one_hot(ids, count).float()


def readout(x: Tensor, y: Tensor, ridge: float = 1e-4) -> Tensor:
    """[C, H] weights W with x W' = y, by least squares. x: [M, H], y: [M, C]."""
    scale = x.pow(2).mean().sqrt()
    x = (x / scale).double()
    y = (y - y.mean(0)).double()
    gram = x.T @ x + ridge * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    return (torch.linalg.solve(gram, x.T @ y).T / scale).float()


# -- the drafter --------------------------------------------------------------------------------------------------------------------


def draft_config(ids: list[int] | None = None, key: str = SGLANG, slots: int = 3, **changes: Any) -> dict[str, Any]:
    """A flat config as SpecForge writes it, with the layer ids under `key`."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    if slots != 3:
        config["num_aux_hidden_states"] = slots
    if ids is not None:
        *parents, name = key.split(".")
        config |= {parents[0]: {name: ids}} if parents else {name: ids}
    return config | changes


def drafter_tensors(
    world: World, wiring: list[Any], *, unused: tuple[int, ...] = (), residual_sign: bool = False, draft_vocab: int = DRAFT_VOCAB
) -> dict[str, Tensor]:
    """Weights of a drafter that works when fc is fed `wiring`, place by place.

    unused: places that contribute next to nothing. residual_sign: trained with norm_before_residual (hidden_norm flips half of the
    channels, so that the residual before it says other tokens).
    """
    places = [p for p in range(len(wiring)) if p not in unused]
    base = next(b for b in range(2, VOCAB + 1) if b ** len(places) >= VOCAB)
    spoken = torch.cat([t[2:] for t in world.texts])  # what row t drafts: x[t+2]
    fc = torch.zeros(HIDDEN, len(wiring) * HIDDEN)
    lm_head = torch.zeros(VOCAB, HIDDEN)
    for n, place in enumerate(places):
        block, digit = slice(n * base, (n + 1) * base), torch.arange(VOCAB) // base**n % base
        states = torch.cat([s[wiring[place]][:-2].float() for s in world.states])
        fc[block, place * HIDDEN : (place + 1) * HIDDEN] = readout(states, one_hot(digit[spoken], base))
        lm_head[:, block] = one_hot(digit, base)
    for place in unused:
        fc[:, place * HIDDEN : (place + 1) * HIDDEN] = 1e-6 * torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(place))
    sign = torch.ones(HIDDEN)
    if residual_sign:
        sign[::2] = -1
    kept = (torch.arange(draft_vocab) * VOCAB) // draft_vocab
    heads = {"q": 64, "k": 32, "v": 32}
    tensors = {
        "fc.weight": fc,
        "lm_head.weight": (lm_head * sign)[kept],
        "norm.weight": torch.ones(HIDDEN),
        "d2t": kept - torch.arange(draft_vocab),
        "t2d": torch.isin(torch.arange(VOCAB), kept),
        **{f"midlayer.self_attn.{n}_proj.weight": 0.02 * torch.ones(width, 2 * HIDDEN) for n, width in heads.items()},
        "midlayer.self_attn.o_proj.weight": torch.zeros(HIDDEN, 64),
        "midlayer.mlp.gate_proj.weight": torch.zeros(32, HIDDEN),
        "midlayer.mlp.up_proj.weight": torch.zeros(32, HIDDEN),
        "midlayer.mlp.down_proj.weight": torch.zeros(HIDDEN, 32),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": sign,
        "midlayer.post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
    return tensors


def write_drafter(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


# -- the dump -----------------------------------------------------------------------------------------------------------------------


def dump_sample(world: World, i: int, boundaries: list[Any], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """One sample in the list-of-four layout."""
    ids = world.texts[i]
    return {
        "input_ids": ids.clone(),
        "hidden_states": [world.states[i][b].to(dtype).clone() for b in boundaries],
        "loss_mask": (torch.arange(len(ids)) >= world.prompts[i]).long(),
    }


def write_dump(folder: Path, world: World, boundaries: list[Any], dtype: torch.dtype = torch.float32, spoil: Any = None) -> Path:
    """All samples, in `rows_A-B/data_i.pt`. spoil(sample, i) may change or replace one in place."""
    for i in range(len(world.texts)):
        shard = folder / f"rows_{i // 4 * 4}-{i // 4 * 4 + 4}"
        shard.mkdir(parents=True, exist_ok=True)
        sample = dump_sample(world, i, boundaries, dtype)
        sample = (spoil(sample, i) or sample) if spoil else sample
        torch.save(sample, shard / f"data_{i}.pt")
    return folder


# -- the case -----------------------------------------------------------------------------------------------------------------------


def write_case(root: Path, sections: dict[str, dict[str, Any]], claims: list[dict[str, Any]] = ()) -> Path:
    """case.toml from plain dicts; values are written as TOML."""
    root.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, keys in sections.items():
        lines += [f"[{name}]", *(f"{k} = {toml(v)}" for k, v in keys.items()), ""]
    for claim in claims:
        lines += ["[[claims]]", *(f"{k} = {toml(v)}" for k, v in claim.items()), ""]
    (root / "case.toml").write_text("\n".join(lines), encoding="utf-8")
    return root


def toml(value: Any) -> str:
    if isinstance(value, Path):
        return json.dumps(str(value))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    return json.dumps(value)  # strings, numbers and booleans are the same in both


def build_case(
    root: Path,
    world: World,
    *,
    slots: list[Any],
    feed: list[int] | None = None,
    ids: list[int] | None = None,
    key: str = SGLANG,
    engine: tuple[str, str] = ("sglang", "0.5.23"),
    target: str = "path",
    claims: list[dict[str, Any]] = (),
    config: dict[str, Any] | None = None,
    drafter: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    spoil: Any = None,
    **sections: dict[str, Any],
) -> Path:
    """A whole case. slots: the boundary of each slot; feed: slots for fc and the last state's (default: all but the last, the last).

    target: `path`, `sketch` (made here, then alone) or `none` (embedding rows alone). config, drafter: further keys for
    `draft_config` and arguments for `drafter_tensors`.
    """
    feed = feed or list(range(len(slots)))
    wiring = [slots[s] for s in feed[:-1]]
    write_dump(root / "dump", world, slots, dtype, spoil)
    write_drafter(
        root / "drafter", drafter_tensors(world, wiring, **(drafter or {})), draft_config(ids, key, len(wiring), **(config or {}))
    )
    shutil.copy(world.folder / "config.json", root / "target-config.json")
    model = AutoModelForCausalLM.from_pretrained(world.folder, dtype=torch.float32)
    save_embedding_rows(root / "rows.safetensors", torch.arange(VOCAB), model.get_input_embeddings().weight.detach().clone())
    place = {"path": {"path": world.folder}, "none": {"config": "target-config.json"}}.get(target)
    if target == "sketch":
        make_tiny_sketch(root / "sketch.safetensors", world)
        place = {"config": "target-config.json", "sketch": "sketch.safetensors"}
    parts = {
        "dump": {"path": "dump", "feed": feed},
        "drafter": {"path": "drafter", "embed": "rows.safetensors"},
        "target": place,
        "engine": {"name": engine[0], "version": engine[1]},
    }
    for name, keys in sections.items():
        parts[name] = {**parts.get(name, {}), **keys}
    return write_case(root, {n: {k: v for k, v in p.items() if v is not None} for n, p in parts.items() if p}, claims)


def make_tiny_sketch(path: Path, world: World) -> Path:
    from eaglelab.dumps import Sample
    from eaglelab.target import ForwardSource
    from eaglelab.target.sketch import make_sketch

    names = ("hidden_states[0]",)
    samples = [Sample(f"data_{i}.pt", ids, (world.states[i][0],), None, names) for i, ids in enumerate(world.texts)]
    return make_sketch(ForwardSource(world.folder), samples, rows=40, dim=32, target="tiny").save(path)
