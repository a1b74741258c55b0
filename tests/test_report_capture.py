"""Public reports of what is captured and fed: layer ids, slots, norms in front of fc."""

import json

import pytest
from case_builder import SGLANG, VLLM, build_case, make_world, write_case

from eaglelab.checks import findings
from eaglelab.engines.conventions import convention_for
from eaglelab.engines.errors import Facts, explain_error
from eaglelab.engines.lint import lint
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.wiring import FINAL

KEY = "eagle_aux_hidden_state_layer_ids"
GPT_OSS = {
    **{"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64},
    **{"vocab_size": 201088, "max_position_embeddings": 131072},
}
V3 = {
    **{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 2880, "num_attention_heads": 64},
    **{"num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 17280, "num_hidden_layers": 1, "vocab_size": 201088},
    **{"draft_vocab_size": 32000, "max_position_embeddings": 131072, "norm_before_fc": True, "eagle_config": {KEY: [24, 30, 36]}},
}
"""The head of the reports, by the numbers that they name: H 2880, ids [24, 30, 36] of N 36, a norm before fc."""


def cheap(root, drafter, target, name, version, **engine):
    for file, content in (("drafter.json", drafter), ("target.json", target)):
        root.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(json.dumps(content))
    sections = {"target": {"config": "target.json"}, "engine": {"name": name, "version": version, "draft_config": "drafter.json"} | engine}
    return {f.id: f for f in findings(Investigation(str(write_case(root, sections))), "wiring.engine", "config")}


@pytest.mark.report("sgl-project/sglang#32226", "AJ")
@pytest.mark.report("sgl-project/sglang#32334", "AJ")
def test_two_stacked_faults_of_a_head_with_the_last_layer_and_a_norm(tmp_path):
    """Ids moved to [25, 31, 37], so that the last one is never captured; behind that the norm in front of fc is ignored."""
    old = cheap(tmp_path / "old", V3, GPT_OSS, "sglang", "0.5.16")
    assert (old["wiring.engine"].status, old["wiring.engine"].numbers["boundaries"]) == (Status.FAIL, [25, 31, None])
    norm = old["config.norm_before_fc"]
    assert (norm.status, "without the norm over all of them" in norm.title) == (Status.FAIL, True)
    new = cheap(tmp_path / "new", V3, GPT_OSS, "sglang", "0.5.23")
    assert new["wiring.engine"].numbers["boundaries"] == [24, 30, 36]
    assert "config.norm_before_fc" not in new


@pytest.mark.report("sgl-project/sglang#32226", "AJ")
@pytest.mark.parametrize("facts", [Facts(hidden=2880, slots=3), Facts(hidden=2880), Facts()])
def test_8640_against_5760_is_three_slots_against_two(facts):
    """The widths alone have one reading: 8640 = 3 * 2880, 5760 = 2 * 2880."""
    text = "RuntimeError: The size of tensor a (8640) must match the size of tensor b (5760) at non-singleton dimension 1"
    (found,) = explain_error(text, facts)
    assert (found.widths.numbers["hidden"], found.widths.cause) == (2880, "missing_slots")
    assert "8,640 = 3 * 2,880" in " ".join(found.widths.sentences)
    assert "captures before each layer" in found.meaning
    assert "sgl-project/sglang#32226" in found.sources


@pytest.mark.report("vllm-project/vllm#48259", "AJ")
def test_a_target_cut_to_one_layer_hands_over_one_slot():
    (found,) = explain_error("RuntimeError: mat1 and mat2 shapes cannot be multiplied (16384x4096 and 12288x4096)", Facts(hidden=4096))
    assert found.widths.numbers == {"hidden": 4096, "given_slots": 1, "expected_slots": 3}
    assert found.title == "One state comes to the drafter's fc where it takes several"


@pytest.mark.report("SafeAILab/EAGLE#261", "A")
def test_all_hidden_states_side_by_side():
    """A target's own forward returns N + 1 states, where the reference's keeps three: 33 * 4096 = 135168."""
    text = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1024x135168 and 12288x4096)"
    (found,) = explain_error(text, Facts(hidden=4096, slots=3, num_layers=32))
    assert (found.widths.numbers["given_slots"], found.widths.cause) == (32 + 1, "all_states")
    assert found.title.startswith("All hidden states of the target were concatenated")


@pytest.mark.report("lightseekorg/tokenspeed#526", "A")
def test_a_dump_of_the_engines_default_layers_whatever_the_config_says(tmp_path):
    world = make_world(tmp_path, "llama", 7, seed=5, samples=5, length=30)
    default = (2, 7 // 2, 7 - 3)
    case = build_case(tmp_path / "case", world, slots=[*default, FINAL], ids=[0, 4, 5], key=SGLANG)  # on Llama: boundaries 1, 5, 6
    found = {f.id: f for f in findings(Investigation(str(case)), "wiring.dump", "wiring.match")}
    assert found["wiring.dump"].numbers["wiring"][:3] == list(default)
    assert found["wiring.match"].status is Status.FAIL
    assert "2, 3, 4" in found["wiring.match"].title
    assert "1, 5, 6" in found["wiring.match"].title


@pytest.mark.report("vllm-project/vllm#46788", "A")
def test_the_last_layers_output_that_an_engine_cannot_reach():
    """Captured in front of each layer, N - 1 is the largest boundary: Kimi's N is 61."""
    fed = convention_for("vllm==0.32.0", "DeepseekV3ForCausalLM").feed([2, 30, 61], 61)
    assert "dropped boundary N without a word" in " ".join(fed.notes)
    sglang = convention_for("sglang==0.5.23", "DeepseekV3ForCausalLM").feed([2, 4, 8], 8)
    assert sglang.boundaries == (2, 4, None)
    assert "3 slots and would be given 2" in " ".join(sglang.notes)


@pytest.mark.report("vllm-project/vllm#25961", "A")
def test_ids_of_the_output_numbering_on_48_layers(tmp_path):
    """[1, 23, 44] is the default [2, N//2, N-3] = [2, 24, 45] less 1: outputs of layers. Read raw they feed one layer too early."""
    default = (2, 48 // 2, 48 - 3)
    assert convention_for("specforge").feed([1, 23, 44], 48).boundaries == convention_for("vllm").feed(None, 48).boundaries == default
    target = {"architectures": ["Llama4ForConditionalGeneration"], "text_config": {"num_hidden_layers": 48, "hidden_size": 2880}}
    raw = {**V3, "eagle_config": {}, KEY: [1, 23, 44], "norm_before_fc": False}
    assert cheap(tmp_path / "vllm", raw, target, "vllm", "0.32.0")["wiring.engine"].numbers["boundaries"] == [1, 23, 44]
    nested = {**V3, "eagle_config": {KEY: [1, 23, 44]}, "norm_before_fc": False}
    assert cheap(tmp_path / "sglang", nested, target, "sglang", "0.5.23")["wiring.engine"].numbers["boundaries"] == list(default)


@pytest.mark.report("vllm-project/speculators#1065", "AJ")
def test_ids_that_follow_no_formula_stand_where_sglang_does_not_look(tmp_path):
    """[2, 46, 91, 93] at the top level: SGLang takes its default of three."""
    config = {**V3, "eagle_config": {}, KEY: [2, 46, 91, 93], "norm_before_fc": False}
    target = GPT_OSS | {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 94}
    found = {f.id: f for f in lint(config, "sglang==0.5.23", target)}
    assert found["config.ids_ignored"].numbers == {"meant": [2, 46, 91, 93], "served": [2, 47, 91]}
    assert found["config.ids_ignored"].status is Status.FAIL
    assert VLLM == KEY


@pytest.mark.report("vllm-project/vllm#37966", "J")
def test_the_width_of_another_model():
    """A drafter of one width beside a target of another: 2048 is no whole number of states of H = 4096."""
    (found,) = explain_error("RuntimeError: Expected size 4096 but got size 2048", Facts(hidden=4096))
    assert "4,096 is one slot of H = 4,096; 2,048 is no whole number" in " ".join(found.widths.sentences)
