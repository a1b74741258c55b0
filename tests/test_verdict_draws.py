"""Boundaries, slot orders, claims, configs and engines drawn at random: each comes back, and the verdict follows the draw.

Nothing in the product knows the example. The seed is in each test's name and is printed; the target is a real transformers model.
"""

import copy
import json
import random
from dataclasses import dataclass, field

import pytest
from case_builder import SGLANG, VLLM, build_case, make_world

from eaglelab.checks import run_checks, wirings
from eaglelab.engines.conventions import CannotFeed, Engine, convention_for
from eaglelab.engines.wiring_report import engine_wiring
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.verdict import verdict
from eaglelab.wiring import FINAL, Wiring

ENGINES = [("sglang", "0.5.9"), ("sglang", "0.5.12"), ("sglang", "0.5.13"), ("sglang", "0.5.18"), ("sglang", "0.5.23"), ("vllm", "0.32.0")]
SEEDS = range(12)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Targets by kind and depth, made once."""
    root, made = tmp_path_factory.mktemp("worlds"), {}

    def get(kind, num_layers):
        if (kind, num_layers) not in made:
            made[kind, num_layers] = make_world(root, kind, num_layers, seed=num_layers)
        return made[kind, num_layers]

    return get


@dataclass
class Draw:
    """One random case, and what must come out of it."""

    kind: str
    num_layers: int
    engine: tuple[str, str]
    slots: list
    feed: list[int]
    ids: list[int]
    claims: list[dict] = field(default_factory=list)

    @property
    def convention(self):
        names = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "deepseek": "DeepseekV3ForCausalLM"}
        return convention_for(Engine(*self.engine), names[self.kind])

    @property
    def held(self):
        """What the drafter was trained on: the feed out of the dump."""
        return Wiring.of(self.slots[s] for s in self.feed[:-1])

    @property
    def trainer(self):
        """One that norms the last state as often as the dump's asks for: from 0.4.0 on speculators norms it itself."""
        normed = FINAL in self.slots
        return {"framework": "specforge"} if normed else {"framework": "speculators", "version": "0.5.0"}

    @property
    def fed(self):
        return Wiring(self.convention.feed(self.ids, self.num_layers).boundaries)


def draw(seed):
    """Half of the draws are right (the config feeds what the dump holds), half wrong in some way."""
    rng = random.Random(seed)
    kind, num_layers = rng.choice(["llama", "qwen3", "deepseek"]), rng.choice([5, 7])
    places = 2 if rng.random() < 0.2 else 3
    aux = sorted(rng.sample(range(num_layers), places))
    if rng.random() < 0.3:
        rng.shuffle(aux)  # a trainer that fed another order: an engine that sorts cannot follow
    slots = [*aux, rng.choice([FINAL, num_layers])]
    order = rng.sample(range(places + 1), places + 1)  # where each of them lies in the dump
    drawn = Draw(kind, num_layers, rng.choice(ENGINES), [slots[order.index(s)] for s in range(places + 1)], order, [])
    try:
        drawn.ids = drawn.convention.ids_for(drawn.held, num_layers)
    except CannotFeed:
        drawn.ids = sorted(rng.sample(range(num_layers - 1), places))
    if rng.random() < 0.5:
        drawn.ids = sorted(rng.sample(range(-1, num_layers - 1), places))
    words = {0: "embed", FINAL: "final"}
    for slot in range(places + 1):
        said = drawn.slots[slot] if rng.random() < 0.5 else rng.choice([*range(num_layers), FINAL])
        drawn.claims.append({"slot": slot, "text": words.get(said, f"boundary {said}"), "source": "the draw"})
    return drawn


def claimed(drawn, slot):
    text = drawn.claims[slot]["text"]
    return {"embed": 0, "final": FINAL}.get(text) if "boundary" not in text else int(text.removeprefix("boundary "))


def investigate(folder):
    inv = Investigation(str(folder), steps=1)  # the tiny drafters are made for step 0 alone
    findings = list(run_checks(inv))
    return inv, findings, {f.id: f for f in findings}, verdict(findings, inv)


def key_of(engine):
    return SGLANG if engine[0] == "sglang" else VLLM


def options_of(drawn):
    config = {"norm_before_residual": False}  # said, so that no trainer's default is in doubt
    return {"engine": drawn.engine, "ids": drawn.ids, "key": key_of(drawn.engine), "training": drawn.trainer, "config": config}


def set_key(config, dotted, value):
    config = copy.deepcopy(config)
    *parents, name = dotted.split(".")
    holder = config
    for parent in parents:
        holder = holder.setdefault(parent, {})
    holder[name] = value
    return config


@pytest.mark.parametrize("seed", SEEDS)
def test_the_verdict_follows_the_draw(seed, worlds, tmp_path):
    drawn = draw(seed)
    print(f"seed {seed}: {drawn}")
    world = worlds(drawn.kind, drawn.num_layers)
    options = options_of(drawn) | {"claims": drawn.claims}
    case = build_case(tmp_path, world, slots=drawn.slots, feed=drawn.feed, **options)
    inv, findings, by_id, said = investigate(case)

    got = wirings(inv, findings)
    assert got["dump"] == list(drawn.slots)
    assert got["engine"] == list(drawn.fed)
    assert got["drafter"] == list(drawn.held)
    for slot in range(len(drawn.slots)):
        right = claimed(drawn, slot) == drawn.slots[slot]
        assert by_id[f"wiring.claims.slot{slot}"].status is (Status.PASS if right else Status.FAIL)
    assert by_id["replay.works"].status is Status.PASS
    assert by_id["replay.order"].status is Status.PASS
    assert by_id["replay.choices"].status is Status.PASS

    same = drawn.fed == drawn.held
    assert by_id["wiring.match"].status is (Status.PASS if same else Status.FAIL)
    if same:
        assert (said.stage, said.confidence, said.changes) == ("none found", "sure", ())
    else:
        assert "wiring" in said.stage.split(" and ")
        assert str(drawn.held) in said.text
        assert str(drawn.fed) in said.text
    check_changes(drawn, inv, said, same)


def check_changes(drawn, inv, said, same):
    """Every change, written into the config, makes its engine feed what the dump holds; where there is none, none can be."""
    for change in said.changes:
        assert change.file == "drafter/config.json"
        config = set_key(json.loads((inv.case.root / change.file).read_text()), change.key, change.value)
        assert engine_wiring(config, inv.target_config, change.engine).wiring == drawn.held
    mine = [c for c in said.changes if c.engine == "==".join(drawn.engine)]
    try:
        drawn.convention.ids_for(drawn.held, drawn.num_layers)
    except CannotFeed:
        assert not mine
        assert same or "cannot be told to feed" in said.text
    else:
        assert same or len(mine) == 1


def test_the_draws_cover_right_and_wrong():
    """A change of the generator must not make the test above a test of one kind only."""
    drawn = [draw(seed) for seed in SEEDS]
    assert 3 <= sum(d.fed == d.held for d in drawn) <= len(SEEDS) - 3
    assert len({d.kind for d in drawn}) == 3
    assert len({d.engine for d in drawn}) >= 4
    assert any(d.slots[-1] not in (FINAL, d.num_layers) for d in drawn)
    assert any(list(d.held) != sorted(d.held) for d in drawn)


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_a_sketch_stands_in_for_the_target(seed, worlds, tmp_path):
    drawn = draw(seed)
    print(f"seed {seed}: {drawn}")
    options = options_of(drawn) | {"target": "sketch"}
    case = build_case(tmp_path, worlds(drawn.kind, drawn.num_layers), slots=drawn.slots, feed=drawn.feed, **options)
    inv, findings, by_id, said = investigate(case)
    assert wirings(inv, findings)["dump"] == list(drawn.slots)
    assert by_id["dump.last_state"].status is Status.PASS  # by comparison with the sketch
    same = drawn.fed == drawn.held
    assert by_id["wiring.match"].status is (Status.PASS if same else Status.FAIL)
    assert said.stage == "none found" if same else "wiring" in said.stage
    check_changes(drawn, inv, said, same)


@pytest.mark.parametrize("kind", ["llama", "deepseek"])
def test_with_neither_target_nor_sketch_the_replay_refutes(kind, worlds, tmp_path):
    """The story: boundaries 2, 4, 5 are taken for embedding, 2, 4. Names cannot be told, the replay tells that the feed is wrong."""
    engine = ("sglang", "0.5.12")
    claims = [{"slot": 0, "text": "embed"}, {"slot": 1, "text": "layer2"}, {"slot": 2, "text": "layer4"}]
    options = {"ids": [-1, 1, 3], "engine": engine, "target": "none", "claims": claims, "drafter": {"unused": (1,)}}
    case = build_case(tmp_path, worlds(kind, 7), slots=[2, 4, 5, FINAL], **options)
    inv, findings, by_id, said = investigate(case)
    got = wirings(inv, findings)
    assert got["dump"] == [None] * 4
    assert got["engine"] == [0, 2, 4]
    assert by_id["wiring.dump"].status is Status.CANNOT_TELL
    assert by_id["wiring.claims.slot0"].status is Status.FAIL  # compared with the embedding rows, and not them
    assert by_id["wiring.claims.slot1"].status is Status.CANNOT_TELL
    assert by_id["replay.engine"].status is Status.FAIL
    assert by_id["replay.order"].status is Status.PASS
    assert inv.replays[0].tied[0] == 0 or 0 in inv.replays[0].tied
    assert by_id["replay.slots"].numbers["hardly_used"] == [1]
    assert "slot 1" in by_id["replay.slots"].title
    assert said.stage == "wiring"
    assert said.confidence == "likely"
    assert said.changes == ()
    assert "needs the target or a sketch" in said.text


def test_without_names_a_right_looking_claim_is_not_believed(worlds, tmp_path):
    """No target and no sketch, the claims agree with the config: nothing is called sure."""
    claims = [{"slot": s, "text": f"layer{b}"} for s, b in enumerate([2, 4, 5])]
    case = build_case(tmp_path, worlds("llama", 7), slots=[2, 4, 5, FINAL], ids=[1, 3, 4], target="none", claims=claims)
    _, _, by_id, said = investigate(case)
    assert by_id["wiring.match"].status is Status.CANNOT_TELL
    assert said.stage == "cannot tell"


def test_claims_in_another_order_are_refuted_by_the_replay_alone(worlds, tmp_path):
    """The embedding plays no part, so no slot can be compared with anything; the replay still shows that the claimed order is wrong."""
    claims = [{"slot": 0, "text": "layer4"}, {"slot": 1, "text": "layer2"}, {"slot": 2, "text": "layer5"}]
    case = build_case(tmp_path, worlds("llama", 7), slots=[2, 4, 5, FINAL], ids=[1, 3, 4], target="none", claims=claims)
    _, _, by_id, said = investigate(case)
    assert by_id["wiring.match"].status is Status.CANNOT_TELL
    assert by_id["replay.engine"].status is Status.FAIL
    assert (said.stage, said.confidence) == ("wiring", "cannot tell")
    assert "claim" in said.text
