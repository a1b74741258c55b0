"""DrafterConfig against config files in the layouts that the frameworks write (shapes and keys from their own configs)."""

import json
import subprocess
import sys

import pytest

from eaglelab.drafter.config import DrafterConfig, DrafterConfigError, Latent, config_family, read_config

LLAMA = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "num_hidden_layers": 1,
}
SPECFORGE = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 32, "rope_theta": 500000}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3"},
    "transformer_layer_config": {
        **LLAMA,
        "model_type": "qwen3",
        "head_dim": 32,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    },
    "draft_vocab_size": 32,
    "norm_before_residual": True,
    "norm_before_fc": True,
    "norm_output": True,
    "eagle_aux_hidden_state_layer_ids": [2, 15, 27, 29],
}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def test_specforge_layout():
    config = DrafterConfig.from_dict(SPECFORGE)
    assert (config.family, config.layer_type, config.num_slots, config.head_dim) == ("specforge", "llama", 3, 16)
    assert (config.draft_vocab_size, config.vocab_size, config.target_hidden_size) == (32, 256, 64)
    assert config.rope == {"rope_theta": 500000.0, "rope_type": "default"}
    assert config.norm_output_meaning == "logits"
    assert not config.skip_final_norm  # SpecForge's default: norm before lm_head, pre-norm recurrence
    assert not config.post_norm_recurrence


def test_specforge_norm_output_is_about_logits():
    off = DrafterConfig.from_dict({**SPECFORGE, "norm_output": False})
    assert off.skip_final_norm
    assert not off.post_norm_recurrence
    served = DrafterConfig.from_dict({**SPECFORGE, "norm_output": True}, family="modelopt")
    assert served.post_norm_recurrence


def test_speculators_layout_reads_the_nested_layer():
    config = DrafterConfig.from_dict(SPECULATORS)
    assert (config.family, config.layer_type, config.num_slots, config.head_dim) == ("speculators", "qwen3", 4, 32)
    assert config.norm_before_residual
    assert config.norm_before_fc
    assert config.post_norm_recurrence
    assert config.rope["rope_theta"] == 1e6
    assert not DrafterConfig.from_dict(without(SPECULATORS, "norm_before_residual")).norm_before_residual


def test_modelopt_angelslim_and_eagle_layouts():
    modelopt = {**SPECFORGE, "eagle_config": {"use_input_layernorm_in_first_layer": True, "eagle_aux_hidden_state_layer_ids": [1, 14, 26]}}
    assert DrafterConfig.from_dict(modelopt).family == "modelopt"
    assert config_family({**SPECFORGE, "architectures": ["Eagle3LlamaForCausalLM"], "target_model_type": "qwen3"}) == "angelslim"
    eagle = DrafterConfig.from_dict({**without(SPECFORGE, "rope_theta"), "architectures": ["LlamaForCausalLM"]})
    assert eagle.family == "eagle"
    assert eagle.rope["rope_theta"] == 10000.0


MLA = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "num_attention_heads": 5,
}


def test_mla_drafter():
    config = DrafterConfig.from_dict({**SPECFORGE, **MLA})
    assert (config.layer_type, config.head_dim, config.rotated_width, config.num_key_value_heads) == ("mla", 12, 4, 5)
    assert config.latent == Latent(q_rank=None, kv_rank=16, nope=8, rope=4, value=6, interleaved=True)
    other = DrafterConfig.from_dict({**SPECFORGE, **MLA, "q_lora_rank": 24, "rope_interleave": False})
    assert (other.latent.q_rank, other.latent.interleaved) == (24, False)
    # The class decides: engines build llama layers whatever the target's sizes were.
    named = DrafterConfig.from_dict({**SPECFORGE, "kv_lora_rank": 16})
    assert (named.layer_type, named.latent) == ("llama", None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"qk_nope_head_dim": None}, "qk_nope_head_dim is missing, expected a positive integer"),
        ({"q_lora_rank": 0}, "q_lora_rank is 0, expected a positive integer"),
        ({"qk_rope_head_dim": 5}, "qk_rope_head_dim is 5, expected an even number"),
        ({"mla_use_nope": True}, "mla_use_nope .*expected an MLA layer with rope"),
        (
            {"rope_scaling": {"type": "yarn", "factor": "64", "mscale_all_dim": 1.0}},
            "the rope's factor is '64', expected a number, at least 1",
        ),
    ],
)
def test_an_mla_drafter_that_cannot_be_built(change, said):
    with pytest.raises(DrafterConfigError, match=said):
        DrafterConfig.from_dict({**SPECFORGE, **MLA, **change})


def test_rope_of_both_transformers_generations_is_the_same():
    old = DrafterConfig.from_dict({**SPECFORGE, "rope_scaling": {"type": "yarn", "factor": 64.0}})
    new_rope = {"rope_theta": 500000, "rope_type": "yarn", "factor": 64.0}
    new = DrafterConfig.from_dict({**without(SPECFORGE, "rope_theta"), "rope_parameters": new_rope})
    assert old.rope == new.rope == {"rope_theta": 500000.0, "rope_type": "yarn", "factor": 64.0}


@pytest.mark.parametrize(
    ("change", "slots"),
    [
        ({}, 3),
        ({"num_aux_hidden_states": 5}, 5),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, 2),
        ({"eagle_config": {"use_aux_hidden_state": False}}, 1),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}, 4),
    ],
)
def test_number_of_slots(change, slots):
    assert DrafterConfig.from_dict({**SPECFORGE, **change}).num_slots == slots


def test_null_draft_vocabulary_is_the_whole_one():
    config = DrafterConfig.from_dict({**SPECFORGE, "draft_vocab_size": None, "target_hidden_size": None})
    assert (config.draft_vocab_size, config.target_hidden_size) == (256, 64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle"]}, "EAGLE-1/2 drafter .LlamaForCausalLMEagle.: its fc takes one last state"),
        ({**LLAMA, "architectures": ["EagleLlamaForCausalLM"]}, "EAGLE-1/2"),
        ({**LLAMA, "architectures": ["LlamaForCausalLM"]}, "is it the target's config, or an EAGLE-1/2 drafter's"),
        ({**SPECULATORS, "speculators_model_type": "dflash"}, "speculators 'dflash' drafter, expected 'eagle3'"),
        (without(SPECFORGE, "hidden_size"), "hidden_size is missing, expected a positive integer"),
        ({**SPECFORGE, "hidden_size": "64"}, "hidden_size is '64', expected a positive integer"),
        ({**SPECFORGE, "hidden_size": True}, "hidden_size is True"),
        ({**SPECFORGE, "num_attention_heads": 0}, "num_attention_heads is 0"),
        ({**SPECFORGE, "num_attention_heads": 5}, "hidden_size 64 is no multiple of num_attention_heads 5"),
        ({**SPECFORGE, "draft_vocab_size": 512}, "draft_vocab_size is 512, expected at most vocab_size 256"),
        ({**SPECFORGE, "rms_norm_eps": float("nan")}, "rms_norm_eps is nan, expected a positive number"),
        ({**SPECFORGE, "rope_theta": "1e6"}, "rope_theta is '1e6', expected a positive number"),
        ({}, "names no EAGLE-3 drafter"),
        ({**SPECFORGE, "num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor of num_attention_heads 4"),
        ({**SPECFORGE, "num_key_value_heads": 8}, "num_key_value_heads is 8, expected a divisor"),
        ({**SPECFORGE, "head_dim": 7}, "head_dim is 7, expected an even number"),
        ({**SPECFORGE, "hidden_size": 20}, "head_dim is 5, expected an even number"),
        ({**SPECFORGE, "intermediate_size": 2**31}, "intermediate_size is 2147483648, expected at most 2147483647"),
        ({**SPECFORGE, "rope_theta": 10**400}, "rope_theta is 10+, expected a positive number"),
        ({**SPECFORGE, "hidden_act": ["silu"]}, r"hidden_act is \['silu'\], expected the name of an activation"),
        ({**SPECFORGE, "num_aux_hidden_states": 0}, "num_aux_hidden_states is 0, expected a positive integer, at most 64"),
        ({**SPECFORGE, "num_aux_hidden_states": -3}, "num_aux_hidden_states is -3, expected a positive"),
        ({**SPECFORGE, "num_aux_hidden_states": "3"}, "num_aux_hidden_states is '3', expected a positive"),
        ({**SPECFORGE, "num_aux_hidden_states": 10**8}, "num_aux_hidden_states is 100000000, expected at most 64"),
        ({**SPECFORGE, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2] * 60_000}}, "eagle_config.* is 60000, expected at most 64"),
    ],
)
def test_unusable_configs_say_why(config, message):
    with pytest.raises(DrafterConfigError, match=message):
        DrafterConfig.from_dict(config, source="d/config.json")


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"type": ["yarn"]}, r"the rope's type is \['yarn'\], expected a name"),
        ({"type": "yarn", "factor": 0}, "the rope's factor is 0, expected a number, at least 1"),
        ({"type": "yarn", "factor": float("inf")}, "the rope's factor is inf"),
        ({"type": "yarn", "factor": 2.0, "beta_fast": "x"}, "the rope's beta_fast is 'x', expected a number, at least 0"),
        ({"type": "yarn", "factor": 2.0, "attention_factor": "x"}, "the rope's attention_factor is 'x'"),
        ({"type": "llama3", "factor": 2.0, "low_freq_factor": [1]}, r"the rope's low_freq_factor is \[1\]"),
        (
            {"type": "llama3", "factor": 2.0, "original_max_position_embeddings": 0},
            "rope: original_max_position_embeddings is 0, expected a p",
        ),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": "x"}, "original_max_position_embeddings is 'x', expected a p"),
        ({"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2**40}, "expected at most 2147483647"),
    ],
)
def test_parameters_of_a_rope_that_are_no_such_numbers(rope, said):
    with pytest.raises(DrafterConfigError, match=said):
        DrafterConfig.from_dict({**SPECFORGE, "rope_scaling": rope}, source="d/config.json")


def test_reading_the_file(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(DrafterConfigError, match=r"no config at .*config\.json"):
        read_config(path)
    path.write_text("{\n 'a': 1}")
    with pytest.raises(DrafterConfigError, match=r"config\.json is not JSON: .*line 2"):
        read_config(path)
    path.write_text("[1]")
    with pytest.raises(DrafterConfigError, match="got a JSON list, expected an object"):
        read_config(path)
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(DrafterConfigError, match="cannot be read as text"):
        read_config(path)
    for absurd in ({"num_aux_hidden_states": 65}, {"eagle_aux_hidden_state_layer_ids": [*range(65)]}):
        path.write_text(json.dumps(SPECFORGE | absurd))
        with pytest.raises(DrafterConfigError, match=r"config\.json: .* 65, expected at most 64"):
            read_config(path)
    for depth, nested in ((99, False), (900, True)):  # 900 are read, and end whatever copies them
        path.write_text(json.dumps(SPECFORGE)[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}")
        if nested:
            with pytest.raises(DrafterConfigError, match="is nested too deeply"):
                read_config(path)
        else:
            assert read_config(path)["hidden_size"] == 64
    path.write_text('{"hidden_size": ' + "9" * 5000 + "}")
    with pytest.raises(DrafterConfigError, match="is not JSON: Exceeds the limit"):
        read_config(path)
    path.write_text("[" * 50_000)
    with pytest.raises(DrafterConfigError, match="is not JSON"):
        read_config(path)
    path.write_text(json.dumps(SPECFORGE | {"num_aux_hidden_states": 64}))
    assert DrafterConfig.load(tmp_path).num_slots == 64
    path.write_text(json.dumps(SPECFORGE))
    assert DrafterConfig.load(tmp_path) == DrafterConfig.load(path)


def test_importing_stays_cheap():
    heavy = "{'torch', 'transformers', 'pandas', 'matplotlib'}"
    modules = "eaglelab.case, eaglelab.drafter.config, eaglelab.engines.wiring_report, eaglelab.engines.lint, eaglelab.engines.launch"
    code = f"import sys, {modules}; sys.exit(repr(sorted({heavy} & set(sys.modules))) if {heavy} & set(sys.modules) else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
