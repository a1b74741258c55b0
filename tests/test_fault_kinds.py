"""Every kind of fault changes what it says and nothing of the world, does the same for the same draws, and is named by findings that exist."""

import copy
import hashlib
import io
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from faults.drafters import DRAFT_VOCAB, Material, draft_config, train_drafter
from faults.healthy import healthy
from faults.kinds import KINDS
from faults.kinds.common import decode_lines, fed
from faults.kinds.dump import round_weights
from faults.language import VOCAB, Language
from faults.plan import Inapplicable, World
from faults.targets import HIDDEN, load_target, states_of
from faults.worlds import IDS
from report_classes import CLASSES
from tiny_models import make_deepseek_v3, make_llama

from eaglelab.checks import CHECKS
from eaglelab.engines.conventions import convention_for
from eaglelab.served import read_log

LAYERS, WIRING = 7, [2, 3, 5]
NOT_OF_TEXT = "L"
"""Multimodal targets: the worlds are of text."""
MAKERS = {"llama": make_llama, "deepseek": make_deepseek_v3}
PARTS = ("slots", "samples", "tensors", "config", "target_config", "engine", "launch", "server", "sections", "log", "trainer", "files")


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """The healthy plan of a world by kind: random targets, drafters as they are initialised."""

    @cache
    def make(kind):
        folder = MAKERS[kind](tmp_path_factory.mktemp(kind) / "target", vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS)
        words, draws = Language(0), Random(0)
        prompts = [words.prompt(draws) for _ in range(4)]
        texts = [torch.tensor(p + words.answer(p, 24)) for p in prompts]
        model = load_target(folder)
        states = states_of(model, texts)
        table, head = (m.weight.detach() for m in (model.get_input_embeddings(), model.get_output_embeddings()))
        material = Material(texts, [len(p) for p in prompts], states, table, head)

        def train(**how):
            wiring = how.pop("wiring", WIRING)
            told = json.dumps([how, wiring], sort_keys=True)
            return train_drafter(
                material, wiring, mask="none", seed=int(hashlib.sha256(told.encode()).hexdigest()[:6], 16), config=how.get("config")
            )

        engine = ("sglang", "0.5.23")
        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
        config = draft_config(eagle_config={IDS: convention_for("==".join(engine), architecture).ids_for(WIRING, LAYERS)})
        tensors = train_drafter(material, WIRING, mask="none")
        world = World(
            kind, 0, folder, LAYERS, texts, material.prompts, states, WIRING, tensors, config, train, engine, texts, material.prompts
        )
        return healthy(world)

    return make


def print_of(plan):
    """Part of a plan -> its content as text, tensors by their bytes."""
    return {part: _plain(getattr(plan, part)) for part in PARTS}


def _plain(value):
    if isinstance(value, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(value.clone(), buffer)
        return hashlib.sha256(buffer.getvalue()).hexdigest() + str(tuple(value.shape))
    if isinstance(value, dict):
        return str({k: _plain(v) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return str([_plain(v) for v in value])
    if hasattr(value, "__dataclass_fields__"):
        return str({n: _plain(getattr(value, n)) for n in value.__dataclass_fields__})
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return repr(value)


def injected(plan, kind, strength=1.0, seed=5):
    changed = plan.copy()
    kind.inject(changed, strength, Random(seed))
    return changed


def of_either(plans, kind, strength=1.0):
    """(the healthy plan, the plan with the fault) of the first world that has something to put it into."""
    for name in MAKERS:
        try:
            return plans(name), injected(plans(name), kind, strength)
        except Inapplicable as reason:
            last = reason
    pytest.fail(f"no world has it: {last}")


def by_name(name):
    return next(k for k in KINDS if k.name == name)


# -- the list -----------------------------------------------------------------------------------------------------------------------------


def test_at_least_45_kinds_over_all_classes():
    assert len({k.name for k in KINDS}) == len(KINDS) >= 45
    assert {k.cls for k in KINDS} >= set("ABCDEFGHIJKMNX")
    assert {k.cls for k in KINDS} <= set(CLASSES) - set(NOT_OF_TEXT)


def test_sources_are_public_threads_or_commits():
    for kind in KINDS:
        assert not kind.source or re.fullmatch(r"(\S+/)?\S+(#\d+|@[0-9a-f]{7,})", kind.source), kind.name
    assert sum(bool(k.source) for k in KINDS) >= 45


@cache
def said_in_code():
    """Every text in quotes of the library's code and tables."""
    folder = Path(__file__).parents[1] / "eaglelab"
    files = [p for ending in ("*.py", "*.toml") for p in folder.rglob(ending) if p.name != "explain.toml"]
    return set(re.findall(r'"([a-z_0-9.]+)"', "\n".join(p.read_text(encoding="utf-8") for p in files)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_named_by_findings_that_exist(kind):
    """As it stands in the code, or put together of a family's name and a part: `flags.` and what, `config.` and the flag, `engine.known.` and the row."""
    known = {c.id for c in CHECKS} | said_in_code()
    assert kind.named_by
    for name in kind.named_by:
        family, _, part = name.rpartition(".")
        assert name in known or (family in ("flags", "config", "engine.known", "errors") and part in known), name


# -- what they change ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_a_kind_changes_the_plan_and_not_its_world(plans, kind):
    for plan in map(plans, MAKERS):
        world = _plain(replace(plan.world, train=None))
        try:
            for strength, again in ((1.0, True), (0.0, False)):
                first = print_of(injected(plan, kind, strength))
                assert first != print_of(plan)
                assert not again or first == print_of(injected(plan, kind, strength))
        except Inapplicable:
            continue
        finally:
            assert _plain(replace(plan.world, train=None)) == world
        return
    pytest.fail("no world has it")


ONLY = {  # class -> the parts of a plan that its kinds may touch
    "E": {"files", "sections", "launch", "server"},
    "F": {"launch", "server", "log"},
    "I": {"samples", "slots", "files", "sections", "tensors", "server", "trainer"},
    "J": {"log", "server", "config", "tensors"},
}


@pytest.mark.parametrize("kind", [k for k in KINDS if k.cls in ONLY], ids=lambda k: k.name)
def test_a_class_stays_on_its_own_ground(plans, kind):
    plan, changed = of_either(plans, kind)
    before, after = print_of(plan), print_of(changed)
    assert {part for part in PARTS if before[part] != after[part]} <= ONLY[kind.cls]


@pytest.mark.parametrize(("name", "by"), [("ids one too deep", 1), ("ids one too shallow", -1)])
def test_ids_of_another_numbering_move_all_three(plans, name, by):
    changed = injected(plans("llama"), by_name(name))
    assert list(fed(changed).wiring) == changed.server.wiring == [b + by for b in WIRING]


def test_the_story_puts_the_embedding_in_front(plans):
    changed = injected(plans("llama"), by_name("embedding in front"))
    assert changed.config["eagle_config"][IDS] == [-1, 1, 2]  # as in [-1, 2, 30]: this engine adds one
    assert changed.server.wiring == [0, 2, 3]


def test_an_upgrade_turns_what_the_same_ids_feed(plans):
    changed = injected(plans("deepseek"), by_name("engine upgraded across a rule"))
    assert list(fed(changed).wiring) == changed.server.wiring != WIRING
    by_today = convention_for("sglang==0.5.23", "DeepseekV3ForCausalLM").feed(changed.config["eagle_config"][IDS], LAYERS)
    assert list(by_today.boundaries) == WIRING or changed.engine[1] == "0.5.23"


def test_a_rotation_keeps_norms_and_angles(plans):
    plan, changed = of_either(plans, by_name("dump in a rotated basis"))
    a, b = (p.samples[0]["hidden_states"][1].float() for p in (plan, changed))
    torch.testing.assert_close(b @ b.T, a @ a.T, rtol=0.02, atol=0.02 * float(a.pow(2).sum(1).max()))
    assert torch.cosine_similarity(a, b).abs().median() < 0.5


def test_permuted_channels_have_the_same_values(plans):
    plan, changed = of_either(plans, by_name("dump with permuted channels"))
    a, b = (p.samples[0]["hidden_states"][0] for p in (plan, changed))
    assert torch.equal(a.sort(dim=1).values, b.sort(dim=1).values)
    assert not torch.equal(a, b)


def test_a_state_normed_twice_is_transformers_norm_of_the_normed(plans):
    plan, changed = of_either(plans, by_name("last state normed twice"))
    norm = load_target(plan.world.folder).model.norm
    with torch.no_grad():
        torch.testing.assert_close(changed.samples[0]["hidden_states"][-1], norm(plan.samples[0]["hidden_states"][-1].float()).bfloat16())


def test_without_the_residual_a_slot_is_what_its_layer_adds(plans):
    plan, changed = of_either(plans, by_name("captured without the residual"))
    added, whole = changed.samples[0]["hidden_states"][1].float(), plan.samples[0]["hidden_states"][1].float()
    torch.testing.assert_close(whole - added, plan.world.states[0][WIRING[1] - 1], rtol=0.05, atol=0.05)


def test_rounded_weights_have_few_values(plans):
    model = load_target(plans("llama").world.folder)
    before = copy.deepcopy(model)
    round_weights(model, bits=4)
    assert max(len(row.unique()) for row in model.model.layers[0].mlp.up_proj.weight) <= 15
    torch.testing.assert_close(model.lm_head.weight, before.lm_head.weight)


def test_decode_lines_are_read_back(tmp_path):
    lengths = [1.5, 2.25, 3.9]
    (tmp_path / "server.log").write_text("\n".join(decode_lines(lengths, running=4, graph=False)) + "\n")
    table = read_log(tmp_path / "server.log").table
    assert table["accept_length"].tolist() == lengths
    assert table["running"].tolist() == [4, 4, 4]
    assert not table["graph"].any()


def test_maps_are_as_their_names_say(plans):
    own = plans("llama").tensors["d2t"]
    made = {n: injected(plans("llama"), by_name(f"d2t {n}")) for n in ("all zero", "of absolute ids", "counted up")}
    assert not made["all zero"].tensors["d2t"].any()
    assert torch.equal(made["of absolute ids"].tensors["d2t"], own + torch.arange(DRAFT_VOCAB))
    assert torch.equal(made["counted up"].tensors["d2t"], torch.arange(DRAFT_VOCAB))
    for plan in made.values():  # an index beyond the vocabulary has no meaning: the server's ends at its last token
        assert (plan.server.tensors["d2t"] + torch.arange(DRAFT_VOCAB)).max() < VOCAB


def test_two_faults_go_into_one_plan(plans):
    plan = plans("llama").copy()
    for name in ("d2t all zero", "graphs off", "NaN rows"):
        by_name(name).inject(plan, 1.0, Random(1))
    assert "--disable-cuda-graph" in plan.launch
    assert not plan.tensors["d2t"].any()
    assert any(h.isnan().any() for s in plan.samples for h in s["hidden_states"])
