"""Healthy worlds to put faults into: a tiny trained target with its own greedy texts, and a drafter that beats the baselines; and the shipped example.

What is made is kept in `.cache/faults/`, by the content of what makes it: the first call of a world takes about 40 s of one core.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.engines.conventions import convention_for
from faults import drafters, language, targets
from faults.drafters import Material, draft_config, train_drafter
from faults.language import Language
from faults.plan import Boundary, Inapplicable, World

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("EAGLELAB_FAULTS_CACHE", ROOT / ".cache" / "faults"))
EXAMPLE = ROOT / "data" / "example"
HELD_OUT, TRAINED, LENGTHS = 16, 160, (56, 64, 72)
BEYOND = 8
ENGINES = {"llama": ("sglang", "0.5.23"), "qwen3": ("sglang", "0.5.23"), "deepseek": ("sglang", "0.5.23"), "gemma": ("sglang", "0.5.13")}
"""A healthy case's engine. SGLang captures Gemma 3 from 0.5.12 on, and without the residual from 0.5.17 on."""
IDS = "eagle_aux_hidden_state_layer_ids"


def make_world(kind: str, seed: int = 0, updates: int = targets.UPDATES) -> World:
    """A world of `llama`, `qwen3`, `deepseek`, `gemma`, or `example`."""
    if kind == "example":
        return example_world()
    recipe = "".join(Path(m.__file__).read_text() for m in (language, targets))
    made = hashlib.sha256(f"{kind} {seed} {updates} {HELD_OUT} {TRAINED} {LENGTHS}\n{recipe}".encode()).hexdigest()[:12]
    folder = CACHE / f"{kind}-{seed}-{made}"
    if not (folder / "texts.pt").exists():
        _make(folder, kind, seed, updates)
    texts = torch.load(folder / "texts.pt", weights_only=True)
    held, trained = texts["held"], texts["trained"]
    model = targets.load_target(folder / "target")
    layers = model.config.num_hidden_layers
    wiring: list[Boundary] = [2, layers // 2, layers - 2]
    theta = targets.KINDS[kind][1].get("rope_theta")
    rope = {} if theta is None else {"rope_theta": theta}  # the drafter rotates as its target does
    train = _Trainer(folder, model, trained, texts["trained_prompts"], wiring, rope)
    architecture = json.loads((folder / "target" / "config.json").read_text())["architectures"][0]
    config = draft_config(**rope)
    name, version = ENGINES[kind]
    ids = convention_for(f"{name}=={version}", architecture).ids_for(wiring, layers)
    config["eagle_config"] = {IDS: ids, "use_aux_hidden_state": True}
    return World(
        kind=kind,
        seed=seed,
        folder=folder / "target",
        num_layers=layers,
        texts=held,
        prompts=texts["held_prompts"],
        states=targets.states_of(model, held),
        trained_on=wiring,
        tensors=train(),
        config=config,
        train=train,
        engine=ENGINES[kind],
        trained_texts=trained,
        trained_prompts=texts["trained_prompts"],
        beyond=[targets.greedy(model, [t.tolist()], len(t) + BEYOND)[0][len(t) :] for t in held],
    )


def _make(folder: Path, kind: str, seed: int, updates: int) -> None:
    """Train the target, and write the answers that it gives."""
    part = folder.with_name(f"{folder.name}.part{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    targets.train_target(kind, seed, part / "target", updates)
    model = targets.load_target(part / "target")
    words, r = Language(seed), random.Random(1000 + seed)
    prompts: list[list[int]] = []
    while len(prompts) < HELD_OUT + TRAINED:  # distinct ones: what is held out was never trained on
        if (prompt := words.prompt(r)) not in prompts:
            prompts.append(prompt)
    held = [targets.greedy(model, [p], LENGTHS[i % len(LENGTHS)])[0] for i, p in enumerate(prompts[:HELD_OUT])]
    trained = targets.greedy(model, prompts[HELD_OUT:], 64)
    sizes = [len(p) for p in prompts]
    saved = {"held": held, "trained": trained, "held_prompts": sizes[:HELD_OUT], "trained_prompts": sizes[HELD_OUT:]}
    torch.save(saved, part / "texts.pt")
    try:
        part.replace(folder)
    except OSError:  # another process was first
        shutil.rmtree(part, ignore_errors=True)


class _Trainer:
    """`World.train`: drafters by the arguments of `train_drafter`, kept on disk."""

    def __init__(
        self, folder: Path, model: Any, texts: list[Tensor], prompts: list[int], wiring: list[Boundary], config: dict[str, Any]
    ) -> None:
        self.folder, self.model, self.texts, self.prompts, self.wiring, self.config = folder, model, texts, prompts, wiring, config
        self._material: Material | None = None

    @property
    def material(self) -> Material:
        if self._material is None:
            states = targets.states_of(self.model, self.texts)
            table, head = (m.weight.detach() for m in (self.model.get_input_embeddings(), self.model.get_output_embeddings()))
            self._material = Material(self.texts, self.prompts, states, table, head)
        return self._material

    def __call__(
        self, samples: int | None = None, updates: int | None = None, *, wiring: list[Boundary] | None = None, **how: Any
    ) -> dict[str, Tensor]:
        how["config"] = {**self.config, **(how.get("config") or {})}
        asked = {"samples": samples, "updates": updates, "wiring": wiring or self.wiring, **how}
        recipe = Path(drafters.__file__).read_text() + json.dumps(asked, sort_keys=True)
        file = self.folder / f"drafter-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.pt"
        if not file.exists():
            asked.pop("wiring")
            tensors = train_drafter(self.material, wiring or self.wiring, **asked)
            part = file.with_suffix(f".part{os.getpid()}")
            torch.save(tensors, part)
            part.replace(file)
        return torch.load(file, weights_only=True)


def example_world() -> World:
    """The shipped example, its config turned to the right wiring. What it was trained from is not here: `train` raises Inapplicable."""
    from safetensors.torch import load_file

    def train(*_: Any, **__: Any) -> dict[str, Tensor]:
        raise Inapplicable("the example's drafter is shipped as it is")

    config = json.loads((EXAMPLE / "drafter" / "config.json").read_text())
    config["eagle_config"][IDS] = [2, 15, 27]
    if not (EXAMPLE / "target" / "model.safetensors").exists():
        raise FileNotFoundError(f"{EXAMPLE / 'target'} holds no target: `make target` fetches it")
    files = sorted((EXAMPLE / "dump").glob("*/*.pt"), key=lambda f: int(f.stem.split("_")[1]))
    samples = [torch.load(f, weights_only=True) for f in files]
    return World(
        kind="example",
        seed=0,
        folder=EXAMPLE / "target",
        num_layers=30,
        texts=[s["input_ids"] for s in samples],
        prompts=[int(s["loss_mask"].nonzero()[0]) for s in samples],
        states=_example_states(samples),
        trained_on=[3, 16, 28],
        tensors=load_file(EXAMPLE / "drafter" / "model.safetensors"),
        config=config,
        train=train,
        engine=("sglang", "0.5.23"),
    )


def _example_states(samples: list[dict[str, Any]]) -> list[dict[Boundary, Tensor]]:
    """The shipped states, and the target's own at every other boundary, bf16; these are kept."""
    file = CACHE / "example-states.pt"
    if not file.exists():
        made = targets.states_of(targets.load_target(EXAMPLE / "target"), [s["input_ids"] for s in samples])
        CACHE.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".part{os.getpid()}")
        torch.save([{b: h.to(torch.bfloat16) for b, h in states.items()} for states in made], part)
        part.replace(file)
    shipped = [dict(zip((3, 16, 28, "final"), s["hidden_states"], strict=True)) for s in samples]
    return [{**made, **own} for made, own in zip(torch.load(file, weights_only=True), shipped, strict=True)]
