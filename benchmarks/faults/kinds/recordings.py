"""C, G and M by way of recordings that are not the usual one: other prompts, sampled answers, a server without speculation beside it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

from eaglelab.served.recording import RecordingWriter, Request, Session
from faults.kinds.common import Family, between, the_server
from faults.language import Language
from faults.plan import Inapplicable, Plan, World
from faults.server import accepted_of, record, serve
from faults.targets import greedy, load_target, states_of

TEXT, SAMPLED = Family("C"), Family("M")


def _recorded(plan: Plan, world: World, *, dumped: bool = True, **session: object) -> None:
    """The case's recording is this one, of the server's answers to a world's prompts. dumped: they are the dump's own prompts. session: what its
    first line says otherwise."""
    answers = serve(world, the_server(plan))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "own.jsonl"
        record(replace(plan, world=world), answers, file)
        first, *lines = file.read_text().splitlines()
    if not dumped:
        lines = [json.dumps({k: v for k, v in json.loads(line).items() if k != "sample"}) for line in lines]
    plan.files["own.jsonl"] = "\n".join([json.dumps(json.loads(first) | session), *lines]) + "\n"
    plan.sections.setdefault("engine", {})["counters"] = "own.jsonl"
    plan.server = None
    if not dumped:
        plan.counted = accepted_of(answers)


@TEXT.kind("served text of another domain", "triangle", source="SafeAILab/EAGLE#179", needs="recording")
def other_domain(plan: Plan, strength: float, rng: Random) -> None:
    """Prompts such as were never trained on: longer ones, with several topics of a set."""
    world = plan.world
    if world.kind == "example":
        raise Inapplicable("its language is not ours")
    words, more = Language(world.seed), round(between(strength, 6, 20))
    prompts = []
    for _ in world.texts:
        prompt = words.prompt(rng)
        prompts.append(prompt[:2] + [t for _ in range(more) for t in [rng.choice(prompt[2:-3])]] + prompt[2:])
    model = load_target(world.folder)
    texts = greedy(model, prompts, max(map(len, prompts)) + 40)
    other = replace(world, texts=texts, prompts=[len(p) for p in prompts], states=states_of(model, texts))
    _recorded(plan, other, dumped=False)


@SAMPLED.kind("temperature ignored", "served.sampling engine.known.greedy_hip", source="sgl-project/sglang#39253", needs="recording")
def temperature(plan: Plan, strength: float, rng: Random) -> None:
    """Sampling is asked for, and the greedy text comes: the verify pass takes its argmax branch."""
    _recorded(plan, plan.world, temperature=1.0)


@SAMPLED.kind("speculation changes the text", "served.lossless served.text", source="SafeAILab/EAGLE#212", needs="recording")
def lossy(plan: Plan, strength: float, rng: Random) -> None:
    """Greedy answers with speculation are not those of the same server without it."""
    if not plan.world.folder.exists():
        raise Inapplicable("the target is not at hand")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plain.jsonl"
        session = Session(engine="==".join(plan.engine), command="python -m sglang.launch_server --model-path target", num_steps=0)
        writer = RecordingWriter(file, session)
        for i, (text, prompt) in enumerate(zip(plan.world.texts, plan.world.prompts, strict=True)):
            writer.write(Request(i, tuple(text[:prompt].tolist()), tuple(text[prompt:].tolist()), sample=f"data_{i}.pt"))
        writer.end()
        plan.files["recordings/plain.jsonl"] = file.read_bytes()
    plan.sections.setdefault("engine", {})["recordings"] = "recordings"
    model, texts = load_target(plan.world.folder), []
    for text, prompt in zip(plan.world.texts, plan.world.prompts, strict=True):
        for _ in range(round(between(strength, 1, 3))):  # a wrong draft is taken, and the target goes on from there
            place = rng.randrange(prompt + 2, len(text) - 4)
            wrong = rng.choice([t for t in set(text.tolist()) if t != text[place]])
            text = greedy(model, [[*text[:place].tolist(), wrong]], len(text))[0]
        texts.append(text)
    _recorded(plan, replace(plan.world, texts=texts, states=states_of(model, texts)))
