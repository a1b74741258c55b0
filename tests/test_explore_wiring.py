"""Wiring playground: ids typed anyhow, what engines make of them, what the drafter wants, and what the replay says of a feed."""

import json

import case_builder as build
import pytest
from markup import visible_text

from eaglelab.engines.conventions import Engine
from eaglelab.engines.wiring_report import engine_wiring, wiring_of_ids
from eaglelab.explore import Live
from eaglelab.explore.wiring_playground import WiringPlayground, ids_text, parse_ids
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.replay import Variant
from eaglelab.wiring import FINAL, Wiring

DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}
LLAMA = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30}
SERVED = {"name": "sglang", "version": "0.5.23"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return build.make_world(tmp_path_factory.mktemp("world"), samples=8)


@pytest.fixture(scope="module")
def played(tmp_path_factory, world):
    """The story in small: the dump holds 1, 3, 5, the config says [-1, 0, 2], and SGLang feeds the embedding, 1 and 3."""
    root = build.build_case(tmp_path_factory.mktemp("case"), world, slots=[1, 3, 5, FINAL], ids=[-1, 0, 2])
    return WiringPlayground(Investigation(str(root), device="cpu"))


@pytest.fixture
def configs(tmp_path):
    """configs(draft, target, engine) -> Investigation of a case that has these alone."""

    def make(draft=None, target=LLAMA, engine=SERVED):
        sections = {"engine": dict(engine or {})}
        if draft is not None:
            (tmp_path / "draft.json").write_text(json.dumps(draft))
            sections["engine"]["draft_config"] = "draft.json"
        if target is not None:
            (tmp_path / "target.json").write_text(json.dumps(target))
            sections["target"] = {"config": "target.json"}
        return Investigation(str(build.write_case(tmp_path, sections)))

    return make


@pytest.mark.parametrize("text", ["-1, 2, 15", "[-1,2,15]", "(-1; 2; 15)", "  -1 2\t15 ", "\u22121, 2, 15,", "{-1,2,15}"])
def test_ids_may_be_written_in_many_ways(text):
    assert parse_ids(text) == [-1, 2, 15]
    assert parse_ids(ids_text([-1, 2, 15])) == [-1, 2, 15]


def test_nothing_written_is_the_default():
    assert parse_ids("") is parse_ids(" [] ") is None
    assert ids_text(None) == ""


@pytest.mark.parametrize("text", ["two", "1.5, 2", "1, x", "0x10", "9" * 5000, "-", "1--2", "\u202e1,2", "<script>1</script>", "\u0661"])
def test_nonsense_is_answered_with_what_to_write(text):
    with pytest.raises(ValueError, match="expected whole numbers with commas between, as in -1, 2, 15") as raised:
        parse_ids(text)
    assert len(str(raised.value)) < 250


def test_more_ids_than_a_drafter_can_take():
    with pytest.raises(ValueError, match=r"1,000 layer ids, expected 64 at most"):
        parse_ids("1," * 1000)


def test_ids_are_fed_as_a_config_with_them_is():
    config = build.draft_config([7, 8, 9])
    for ids in ([-1, 2, 15], [2, 15, 27], [7, 8, 9], [1, 2]):
        for engine, key in (("sglang==0.5.23", build.SGLANG), ("vllm==0.32.0", build.VLLM)):
            assert wiring_of_ids(config, ids, LLAMA, engine).wiring == engine_wiring(build.draft_config(ids, key), LLAMA, engine).wiring
    assert wiring_of_ids(config, None, LLAMA, "sglang==0.5.23").wiring == Wiring.of([2, 15, 27])  # 2, N // 2, N - 3
    assert wiring_of_ids(config, [2, 15, 27], LLAMA, "specforge").wiring == Wiring.of([3, 16, 28])
    assert config == build.draft_config([7, 8, 9])


def test_a_key_that_holds_no_ids_is_replaced_and_an_eagle_config_that_is_none_is_refused():
    broken = build.draft_config() | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "<b>2</b>"}}
    assert wiring_of_ids(broken, [-1, 2, 15], LLAMA, "sglang==0.5.23").wiring == Wiring.of([0, 3, 16])
    with pytest.raises(ValueError, match="eagle_config in the drafter's config is 'x', expected an object"):
        wiring_of_ids(build.draft_config() | {"eagle_config": "x"}, [1], LLAMA, "sglang==0.5.23")


def test_the_same_ids_in_other_versions_and_engines(configs):
    """DeepSeek-V3, 61 layers: [2, 30, 58] was 3, 31, 59 until SGLang took the ids as they are; vLLM always did."""
    play = WiringPlayground(configs(build.draft_config([2, 30, 58]), DEEPSEEK))
    meant = play.meanings([2, 30, 58])
    sglang = [wiring for who, wiring in meant if who.startswith("SGLang") and wiring.known]
    assert sglang == [Wiring.of([3, 31, 59]), Wiring.of([2, 30, 58])]
    assert ("vLLM 0.32.0", Wiring.of([2, 30, 58])) in meant
    assert ("SpecForge", Wiring.of([3, 31, 59])) in meant
    said = visible_text(play.twin())
    assert "[3, 31, 59]" in said
    assert "? cannot tell" in said  # no dump says what it was trained on


def test_config_alone(configs):
    live = Live(WiringPlayground(configs(build.draft_config([-1, 2, 15]))), strict=True)
    assert live.controls["ids"].value == "-1, 2, 15"
    said = visible_text(live.output.value)
    assert "SGLang 0.5.23 feeds [0, 3, 16]" in said
    assert "The case gives no dump" in said
    assert "No replay: a dump and a drafter to replay is not given" in said
    live.controls["ids"].value = "[2 15 27]"
    assert "feeds [3, 16, 28]" in visible_text(live.output.value)
    live.controls["engine"].value = "vllm"
    assert live.controls["version"].value == Engine("vllm", "0.32.0")
    assert "vLLM 0.32.0 feeds [2, 15, 27]" in visible_text(live.output.value)
    live.buttons["As the config has it"].click()
    assert (live.controls["ids"].value, live.controls["engine"].value) == ("-1, 2, 15", "sglang")
    live.controls["ids"].value = ""
    assert "its default is taken, boundaries [2, 15, 27]" in visible_text(live.output.value)


def test_what_is_wanted_is_said_to_be_unknown_without_a_dump(configs):
    live = Live(WiringPlayground(configs(build.draft_config([-1, 2, 15]))))
    live.buttons["What the drafter wants"].click()
    assert "What the drafter was trained on is not known" in live.error.value
    assert live.controls["ids"].value == "-1, 2, 15"


def test_parts_that_are_absent(configs):
    with pytest.raises(NotGiven, match=r"the target's config is not given; `\[target\] config`"):
        WiringPlayground(configs(build.draft_config([1, 2, 3]), target=None))
    bare = WiringPlayground(configs(engine=None))
    assert "The case names no engine" in visible_text(bare.twin())
    live = Live(bare)
    assert "its default is taken" in visible_text(live.output.value)
    live.buttons["As the config has it"].click()
    assert "the drafter&#x27;s config is not given" in live.error.value


def test_hostile_text_is_text(configs):
    hostile = {"architectures": ["<script>alert(1)</script>\u202e" + "x" * 10_000], "num_hidden_layers": 30}
    play = WiringPlayground(configs(build.draft_config([-1, 2, 15]), hostile))
    live = Live(play)
    live.controls["ids"].value = "<img src=x onerror=alert(1)>"
    for markup in (play.twin(), live.output.value, live.error.value):
        assert "<script" not in markup
        assert "<img" not in markup
        assert "\u202e" not in markup
    assert "&lt;img" in live.error.value


def test_as_trained_and_as_served(played):
    inv, live = played.inv, Live(played, strict=True)
    assert inv.dump_wiring == Wiring.of([1, 3, 5, FINAL])
    said = visible_text(live.output.value)
    assert "SGLang 0.5.23 feeds [0, 1, 3]" in said
    assert "✕ differs" in said
    assert "The ids that make SGLang 0.5.23 feed [1, 3, 5]: [0, 2, 4]" in said  # id k is boundary k + 1
    engine = inv.replay_named("the engine's feed").counts
    assert (
        f"step-0 acceptance {engine.marginal(0):.1%} ({engine.counted[0]:,} tokens), accept length over all rows {engine.accept_length:.2f}"
        in said
    )
    live.buttons["What the drafter wants"].click()
    assert live.controls["ids"].value == "0, 2, 4"
    said = visible_text(live.output.value)
    own = inv.own_replay.counts
    assert "✕ differs" not in said.split("What the ids")[0]
    assert (
        f"step-0 acceptance {own.marginal(0):.1%} ({own.counted[0]:,} tokens), accept length over all rows {own.accept_length:.2f}; the best of"
        in said
    )


def test_a_feed_that_no_slot_holds(played):
    said = visible_text(played.view(ids="1, 2, 4", engine="sglang", version=Engine("sglang", "0.5.23")))
    assert "cannot be replayed: no slot of the dump holds 2" in said


def test_a_feed_that_is_not_among_the_ranked_gets_a_look_that_is_kept(played):
    inv, version = played.inv, Engine("sglang", "0.5.23")
    feed, _ = inv.sources_of(Wiring.of([0, 1, 5]))
    assert feed == ("embedding", 0, 2)
    assert feed not in {v.feed for v in inv.variants}
    said = visible_text(played.view(ids="-1, 0, 4", engine="sglang", version=version))
    samples = sorted(inv.samples, key=lambda s: len(s.token_ids))[: len(played.replays._looks[feed])]
    counts = inv.replay_of([Variant(feed)], samples=samples, steps=1)[0].counts
    own = inv.replay_of([inv.dump_feed], samples=samples, steps=1)[0].counts
    assert f"step-0 acceptance {counts.marginal(0):.1%} ({counts.counted[0]:,} tokens in {len(samples)} of 8 samples" in said
    assert f"the dump's own feed there {own.marginal(0):.1%}" in said
    kept = played.replays._looks[feed]
    played.view(ids="-1, 0, 4", engine="sglang", version=version)
    assert played.replays._looks[feed] is kept


def test_no_ids_feed_an_order_that_is_not_ascending(tmp_path, world):
    root = build.build_case(tmp_path, world, slots=[3, 1, 5, FINAL], ids=[2, 0, 4])
    live = Live(WiringPlayground(Investigation(str(root), device="cpu")))
    assert "It concatenates in layer order" in visible_text(live.output.value)
    live.buttons["What the drafter wants"].click()
    assert "It concatenates in layer order" in live.error.value


def test_the_twin_lists_candidates_and_needs_no_script(played):
    markup = played.twin()
    said = visible_text(markup)
    assert "<script" not in markup
    for part in ("the config's", "[-1, 0, 2]", "the drafter's", "[0, 2, 4]", "vLLM 0.32.0", "[1, 3, 5]", "✓ same", "✕ differs"):
        assert part in said


def test_another_wiring_is_not_read_by_the_ids_of_the_case_s_engine(tmp_path, world):
    """Without the target the dump's ids are all that is said: they tell the engine's own wiring, and no other's."""
    claims = [{"key": "eagle_aux_hidden_state_layer_ids", "text": "[0, 2, 4]", "source": "the dump's config"}]
    root = build.build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], target="none", claims=claims)
    inv = Investigation(str(root), device="cpu")
    assert inv.sources_of(inv.served_wiring.wiring)[0] == (0, 1, 2)
    assert inv.sources_of(Wiring.of([2, 3, 4]))[0] is None
