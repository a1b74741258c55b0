"""Config lint by engine version. Expectations are read in the engines' sources (file:line in capabilities.toml) or in public reports."""

import json
import math
import re
from pathlib import Path

import pytest

from eaglelab.drafter.config import DrafterConfig
from eaglelab.engines.capabilities import fc_slots, holds, limit, support, table
from eaglelab.engines.computes import engine_flags
from eaglelab.engines.conventions import parse_engine
from eaglelab.engines.conventions import table as conventions
from eaglelab.engines.launch import parse_launch
from eaglelab.engines.lint import lint
from eaglelab.engines.lint.flags import UNREAD
from eaglelab.engines.rope import first_difference, rotation
from eaglelab.findings import Finding, Status

REPOSITORY = Path(__file__).resolve().parent.parent
KEY = "eagle_aux_hidden_state_layer_ids"
SGLANG, VLLM = "sglang==0.5.23", "vllm==0.32.0"

# Published configs, cut to the keys that matter. SpecForge: configs/qwen3-30B-eagle3.json and llama3-70B-ealge3.json, kimi-k2-eagle3.json.
QWEN3_DRAFTER = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
    "draft_vocab_size": 32000,
}
QWEN3_TARGET = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "vocab_size": 151936,
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.5.0",
    "draft_vocab_size": 32000,
    "norm_before_residual": True,
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        **{k: v for k, v in QWEN3_DRAFTER.items() if k not in ("architectures", "draft_vocab_size", "tie_word_embeddings", "model_type")},
        "model_type": "qwen3",
    },
    "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3}], "verifier": {"name_or_path": "t"}},
}
KIMI_TARGET = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "qk_rope_head_dim": 64,
        "max_position_embeddings": 262144,
        "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 64.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "vocab_size": 163840,
    },
}
KIMI_DRAFTER = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_hidden_layers": 1,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": KIMI_TARGET["text_config"]["rope_scaling"],
    "tie_word_embeddings": False,
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "eagle_config": {KEY: [2, 30, 58], "use_aux_hidden_state": True},
}
SERVE = "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 --speculative-draft-model-path d"


def found(config, engine=SGLANG, target=None, line=None, **more) -> dict[str, Finding]:
    launch = None if line is None else parse_launch(line)
    findings = lint(config, engine, QWEN3_TARGET if target is None else target, launch=launch, **more)
    json.dumps([f.to_json() for f in findings], allow_nan=False)
    return {f.id.removeprefix("config."): f for f in findings}


@pytest.mark.parametrize(
    ("config", "engine", "target", "line"),
    [
        (QWEN3_DRAFTER, SGLANG, QWEN3_TARGET, None),
        (QWEN3_DRAFTER, SGLANG, QWEN3_TARGET, SERVE),
        (QWEN3_DRAFTER, "sglang==0.5.3", QWEN3_TARGET, SERVE),
        (QWEN3_DRAFTER, VLLM, QWEN3_TARGET, None),
        (SPECULATORS, VLLM, QWEN3_TARGET, 'vllm serve t --speculative-config \'{"method": "eagle3", "model": "d"}\''),
        (KIMI_DRAFTER, SGLANG, KIMI_TARGET, SERVE + " --tp-size 8"),
        (KIMI_DRAFTER, "sglang==0.5.13", KIMI_TARGET, SERVE),
    ],
)
def test_healthy_configs_raise_no_alarm(config, engine, target, line):
    assert [(name, f.status) for name, f in found(config, engine, target, line).items()] == [("flags", Status.PASS)]


def test_the_example_raises_no_alarm():
    example = REPOSITORY / "data" / "example"
    drafter, target = (json.loads((example / name).read_text()) for name in ("drafter/config.json", "target-config.json"))
    assert list(found(drafter, SGLANG, target, SERVE)) == ["flags"]
    assert list(found(drafter, VLLM, target)) == ["ids_runner"]  # nested ids, which one of its two runners does not read


# -- R02, R14, R101: keys that an engine ignores, by version ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "last_without", "first_with"),
    [("fc_norm", "0.5.11", "0.5.12"), ("norm_output", "0.5.11", "0.5.12"), ("norm_before_fc", "0.5.16", "0.5.17")],
)
@pytest.mark.report("vllm-project/vllm#42764", "AB")
def test_eagle_31_keys_by_version(key, last_without, first_with):
    """R02 (input_norm ignored up to PR 32334), R14 (EAGLE-3.1 keys): where the word first stands in SGLang's llama_eagle3.py."""
    config = {**QWEN3_DRAFTER, key: True}
    old = found(config, f"sglang=={last_without}", training_framework="modelopt")[key]
    assert old.status == Status.FAIL
    assert f"Serve with SGLang {first_with} or newer" in old.next
    assert key not in found(config, f"sglang=={first_with}", training_framework="modelopt")
    assert key not in found(config, VLLM, training_framework="modelopt")


@pytest.mark.parametrize(
    ("change", "engine", "name"),
    [
        ({"norm_before_residual": True}, SGLANG, "norm_before_residual"),
        ({"attention_bias": True}, SGLANG, "attention_bias"),
        ({"mlp_bias": True}, SGLANG, "mlp_bias"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 512}, SGLANG, "sliding_window"),
        ({"bias": True}, VLLM, "fc_bias"),
        ({"use_aux_norm": True}, VLLM, "use_aux_norm"),
    ],
)
def test_keys_that_an_engine_never_reads(change, engine, name):
    other = VLLM if engine == SGLANG else SGLANG
    finding = found({**QWEN3_DRAFTER, **change}, engine)[name]
    assert finding.status == Status.FAIL
    assert UNREAD[name] in finding.title
    assert name not in found({**QWEN3_DRAFTER, **change}, other)


def test_the_older_name_of_fc_norm_reaches_the_replay():
    raw = {**QWEN3_DRAFTER, "use_aux_norm": True}
    own = DrafterConfig.from_dict(raw)
    assert engine_flags(own, raw, parse_engine(VLLM))["skip_fc_norms"]
    assert not engine_flags(own, {**raw, "fc_norm": True}, parse_engine(VLLM))["skip_fc_norms"]
    assert not engine_flags(own, raw, parse_engine(SGLANG))["skip_fc_norms"]


@pytest.mark.report("vllm-project/vllm#54526", "AJ")
def test_r101_four_slots_at_the_top_level_do_not_load():
    """vllm #54526: ids [2, 46, 91, 93] of a speculators config; fc is built for 3 slots, 4 are captured."""
    config = {**SPECULATORS, KEY: [2, 16, 40, 46], "norm_before_fc": True, "norm_output": True}
    finding = found(config, VLLM)["slots"]
    assert (finding.status, finding.numbers) == (Status.FAIL, {"captured": 4, "fc": 3})
    assert "num_aux_hidden_states = 4 into transformer_layer_config" in finding.next
    config["transformer_layer_config"] = {**config["transformer_layer_config"], "num_aux_hidden_states": 4}
    assert "slots" not in found(config, VLLM)


@pytest.mark.parametrize(
    ("engine", "config", "expected"),
    [
        ("sglang==0.5.11", {"eagle_config": {KEY: [1, 8, 16, 40]}}, 3),
        ("sglang==0.5.12", {"eagle_config": {KEY: [1, 8, 16, 40]}}, 4),
        ("sglang==0.5.23", {"eagle_config": {KEY: [1, 8, 16, 40]}, "num_aux_hidden_states": 5}, 5),
        ("sglang==0.5.23", {KEY: [1, 8, 16, 40]}, 3),
        ("sglang==0.5.23", {}, 3),
        ("vllm==0.32.0", {KEY: [1, 8, 16, 40]}, 3),
        ("vllm==0.32.0", {KEY: [1, 8, 16, 40], "num_aux_hidden_states": 4}, 4),
    ],
)
def test_slots_that_fc_is_built_for(engine, config, expected):
    assert fc_slots(parse_engine(engine), "llama", config) == expected


def test_slots_of_an_mla_drafter_are_its_ids_wherever_they_stand():
    engine = parse_engine(SGLANG)
    assert fc_slots(engine, "mla", {KEY: [1, 2, 3, 4]}) == 4
    assert fc_slots(engine, "mla", {KEY: [1, 2, 3, 4], "eagle_config": {KEY: [1, 2]}}) == 2


def test_slots_that_are_captured_and_have_no_place_fail():
    four = {**QWEN3_DRAFTER, "eagle_config": {KEY: [1, 8, 16, 40]}}
    assert found(four, "sglang==0.5.11")["slots"].numbers == {"captured": 4, "fc": 3}
    assert "slots" not in found(four, "sglang==0.5.12")
    assert found({**four, "num_aux_hidden_states": 3}, SGLANG)["slots"].numbers == {"captured": 4, "fc": 3}
    lost = found({**QWEN3_DRAFTER, KEY: [1, 8, 16, 40], "num_aux_hidden_states": 4}, SGLANG)  # SGLang takes its default of 3
    assert lost["slots"].numbers == {"captured": 3, "fc": 4}


def test_slots_that_are_switched_off():
    off = {**QWEN3_DRAFTER, "eagle_config": {"use_aux_hidden_state": False}}
    assert list(found(off)) == ["flags"]  # a drafter of the last state alone
    finding = found({**off, "eagle_config": {"use_aux_hidden_state": False, KEY: [1, 23, 44]}})["use_aux_hidden_state"]
    assert finding.status == Status.FAIL
    assert "the config describes 3 slots" in finding.title


def test_a_switch_that_an_old_version_does_not_read():
    """SGLang reads use_aux_hidden_state from 0.5.8 on; 0.5.3 builds fc for 3 slots and captures 3 whatever it says."""
    off = {**QWEN3_DRAFTER, "eagle_config": {"use_aux_hidden_state": False, KEY: [1, 23, 44]}}
    assert list(found(off, "sglang==0.5.3")) == ["flags"]
    alone = found({**off, "eagle_config": {"use_aux_hidden_state": False}}, "sglang==0.5.3")["use_aux_hidden_state"]
    assert alone.status == Status.FAIL
    assert "0.5.8 or newer" in alone.next
    wide = found({**QWEN3_DRAFTER, "target_hidden_size": 1024, "eagle_config": {"use_aux_hidden_state": False}}, "sglang==0.5.3")
    assert wide["target_hidden_size"].numbers["fc_input"] == 3072


def test_the_remedy_for_four_slots_is_a_version_that_reads_them():
    """SGLang 0.5.11, llama_eagle3.py:138: fc is 3 slots wide, so num_aux_hidden_states = 4 changes nothing there."""
    finding = found({**QWEN3_DRAFTER, "eagle_config": {KEY: [2, 9, 18, 28]}}, "sglang==0.5.9")["slots"]
    assert finding.next == "Serve with SGLang 0.5.12 or newer."
    assert "fc is built for 3 slots whatever the config says" in finding.evidence


# -- versions and frameworks that nobody told -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.9.0", "0.10.0", "0.33.0"])
def test_flags_of_a_version_that_nobody_read_are_not_known(version):
    flags = {**QWEN3_DRAFTER, "norm_before_residual": True, "fc_norm": True}
    for key in ("norm_before_residual", "fc_norm"):
        finding = found(flags, f"vllm=={version}")[key]
        assert finding.status == Status.CANNOT_TELL
        assert "a version that was read (0.32.0)" in finding.next
    assert list(found(flags, VLLM)) == ["flags"]


def test_only_a_told_specforge_excuses_an_ignored_norm_output():
    """R14: SGLang 0.5.9 goes on from the state before the norm, as SpecForge trains; the flat layout alone does not say SpecForge."""
    config = {**QWEN3_DRAFTER, "norm_output": True}
    finding = found(config, "sglang==0.5.9")["norm_output"]
    assert finding.status == Status.CANNOT_TELL
    assert "[training]" in finding.next
    assert "norm_output" not in found(config, "sglang==0.5.9", training_framework="specforge")
    assert found(config, "sglang==0.5.9", training_framework="modelopt")["norm_output"].status == Status.FAIL


@pytest.mark.parametrize(("kind", "fails"), [("qwen3", False), ("llama", False), ("qwen3_moe", True), ("gpt_oss", True)])
def test_speculators_layers_that_vllm_builds(kind, fails):
    """vLLM 0.32.0, transformers_utils/configs/speculators/algos.py:37-43: everything but llama and qwen3 raises."""
    config = {**SPECULATORS, "transformer_layer_config": {**SPECULATORS["transformer_layer_config"], "model_type": kind}}
    assert ("model_type" in found(config, VLLM)) is fails


def test_an_mla_drafter_without_a_rank_of_its_queries():
    """SGLang 0.5.23, kimi_k25_eagle3.py:114-116 raises; vLLM 0.32.0, deepseek_eagle3.py:76 takes None."""
    config = {**KIMI_DRAFTER, "q_lora_rank": None}
    assert found(config, SGLANG, KIMI_TARGET)["q_lora_rank"].status == Status.FAIL
    assert "q_lora_rank" not in found(config, VLLM, KIMI_TARGET)
    assert "q_lora_rank" not in found(KIMI_DRAFTER, SGLANG, KIMI_TARGET)


def test_classes_are_named_by_the_version():
    finding = found(KIMI_DRAFTER, "sglang==0.5.5", KIMI_TARGET)["architecture"]
    assert finding.evidence.endswith("as far as it was read: LlamaForCausalLMEagle3.")
    assert finding.next == "Serve with SGLang 0.5.12 or newer."


# -- R22, R23, R102: widths --------------------------------------------------------------------------------------------------


@pytest.mark.report("vllm-project/vllm#18906", "BJ")
@pytest.mark.report("sgl-project/sglang#4716", "BHJ")
def test_r22_a_drafter_narrower_than_its_target():
    narrow = {**QWEN3_DRAFTER, "hidden_size": 1024}
    finding = found(narrow)["target_hidden_size"]
    assert (finding.status, finding.numbers) == (Status.FAIL, {"fc_input": 3072, "fed": 6144, "drafter": 1024, "target": 2048})
    assert "embed_tokens of its own, 1024 wide" in finding.next
    assert "target_hidden_size" not in found({**narrow, "target_hidden_size": 2048})


@pytest.mark.parametrize(("engine", "fails"), [(SGLANG, True), (VLLM, True), ("sglang==0.5.3", True)])
def test_a_target_hidden_size_of_null(engine, fails):
    assert ("target_hidden_size" in found({**QWEN3_DRAFTER, "target_hidden_size": None}, engine)) is fails
    if engine == SGLANG:  # kimi_k25_eagle3.py:208-210 takes null as absent
        assert "target_hidden_size" not in found({**KIMI_DRAFTER, "target_hidden_size": None}, engine, KIMI_TARGET)


@pytest.mark.parametrize("engine", [SGLANG, VLLM, "sglang==0.5.3"])
def test_an_activation_that_no_engine_has(engine):
    finding = found({**QWEN3_DRAFTER, "hidden_act": "gelu_pytorch_tanh"}, engine)["hidden_act"]
    assert finding.status == Status.FAIL
    assert "Only silu is supported" in finding.evidence


def test_heads_that_the_config_describes_wrongly():
    absent = {k: v for k, v in QWEN3_DRAFTER.items() if k != "draft_vocab_size"} | {"eagle_config": {}}
    assert "AttributeError" in found(absent)["draft_vocab_size"].title
    assert "draft_vocab_size" not in found(absent, VLLM)
    assert "draft_vocab_size" not in found(absent, audited=True)  # `drafter.complete` says it
    tied = found({**QWEN3_DRAFTER, "tie_word_embeddings": True})["tie_word_embeddings"]
    assert tied.status == Status.FAIL
    assert "drops the file's lm_head" in tied.title
    text = found({**QWEN3_DRAFTER, "tie_word_embeddings": "false"})["tie_word_embeddings"]
    assert "A text that is not empty counts as true" in text.evidence
    full = {**QWEN3_DRAFTER, "tie_word_embeddings": True, "draft_vocab_size": 151936}
    assert "tie_word_embeddings" not in found(full)


# -- the target -------------------------------------------------------------------------------------------------------------


def test_a_target_without_capture():
    finding = found(QWEN3_DRAFTER, SGLANG, {**QWEN3_TARGET, "architectures": ["Gemma2ForCausalLM"]})["target"]
    assert finding.status == Status.FAIL
    assert "set_eagle3_layers_to_capture" in finding.evidence
    early = found(KIMI_DRAFTER, "sglang==0.5.9", KIMI_TARGET)  # first seen in 0.5.10.post1; nor does 0.5.9 have the drafter's class
    assert {"target", "architecture"} <= {name for name, f in early.items() if f.status == Status.FAIL}


# -- the launch line ----------------------------------------------------------------------------------------------------------


@pytest.mark.report("sgl-project/sglang#28196", "BN")
def test_r104_the_targets_quantisation_is_inherited():
    """sglang PR 28196, 33115: ServerArgs copies --quantization to the drafter before its checkpoint is read."""
    line = SERVE + " --quantization fp8"
    finding = found(QWEN3_DRAFTER, SGLANG, None, line)["draft_quantization"]
    assert finding.status == Status.CANNOT_TELL
    assert "--speculative-draft-model-quantization unquant" in finding.next
    assert "0.5.7 or newer" in found(QWEN3_DRAFTER, "sglang==0.5.6", None, line)["draft_quantization"].next
    healthy = [
        (QWEN3_DRAFTER, line + " --speculative-draft-model-quantization unquant"),
        ({**QWEN3_DRAFTER, "quantization_config": {"quant_method": "fp8"}}, line),
        (QWEN3_DRAFTER, SERVE),
        (QWEN3_DRAFTER, SERVE + " --quantization unquant"),
    ]
    assert all("draft_quantization" not in found(config, SGLANG, None, text) for config, text in healthy)
    vllm = "vllm serve t --quantization fp8 --spec-method eagle3 --spec-model d"
    assert "draft_quantization" not in found(QWEN3_DRAFTER, VLLM, None, vllm)  # models/utils.py:985: the drafter's own config decides


# -- positions and rope ------------------------------------------------------------------------------------------------------


def test_a_context_longer_than_the_drafters_stops_sglang():
    """The published qwen3-30B config says 2048 under a target of 40960 (SGLang, configs/model_config.py:1290-1318)."""
    short = {**QWEN3_DRAFTER, "max_position_embeddings": 2048}
    finding = found(short, SGLANG, None, SERVE)["max_position_embeddings"]
    assert (finding.status, finding.numbers) == (Status.FAIL, {"drafter": 2048, "served": 40960})
    assert found(short)["max_position_embeddings"].status == Status.CANNOT_TELL  # nobody knows the server's context
    allowed = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 " + SERVE
    assert "max_position_embeddings" not in found(short, SGLANG, None, allowed)
    assert "max_position_embeddings" not in found(short, SGLANG, None, SERVE + " --context-length 2048")
    assert found(short, SGLANG, None, SERVE + " --context-length 4096")["max_position_embeddings"].numbers["served"] == 4096
    stretched = {**short, "rope_scaling": {"rope_type": "linear", "factor": 20.0}}
    assert "max_position_embeddings" not in found(stretched, SGLANG, None, SERVE)  # 20 * 2048 = 40960
    llama3 = {
        "rope_type": "llama3",
        "factor": 20.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "max_position_embeddings" in found({**short, "rope_scaling": llama3}, SGLANG, None, SERVE)  # its factor is not counted


def test_a_context_longer_than_the_drafters_on_vllm():
    finding = found({**QWEN3_DRAFTER, "max_position_embeddings": 2048}, VLLM)["max_position_embeddings"]
    assert finding.status == Status.CANNOT_TELL
    assert "stops drafting for the whole batch" in finding.title
    line = "vllm serve t --max-model-len 2048 --spec-method eagle3 --spec-model d"
    assert "max_position_embeddings" not in found({**QWEN3_DRAFTER, "max_position_embeddings": 2048}, VLLM, None, line)


def test_a_rope_theta_that_is_not_handed_on():
    """Without rope_theta the drafter's class takes 10000; the target turns by 1000000 (class K of the reports)."""
    config = {k: v for k, v in QWEN3_DRAFTER.items() if k != "rope_theta"}
    finding = found(config)["rope"]
    assert finding.status == Status.CANNOT_TELL
    largest = max(abs(10000 ** (-2 * i / 128) - 1e6 ** (-2 * i / 128)) for i in range(64))  # the closed form of both
    assert finding.numbers["largest"] == pytest.approx(largest)
    assert finding.numbers["position"] == math.ceil(0.1 / largest)
    assert "the default" in finding.title
    stated = found({**QWEN3_DRAFTER, "rope_theta": 10000.0})["rope"]
    assert stated.status == Status.CANNOT_TELL  # said, and right only where it was trained so
    assert "samples longer than 1 tokens" not in stated.next


@pytest.mark.report("NVIDIA-NeMo/Automodel#2399", "K")
def test_r95_yarn_replaced_by_llama3():
    """NeMo PR 2399: gpt-oss, base 150000 factor 32, yarn silently replaced by llama3's schedule."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
    llama3 = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    }
    sizes = {"hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64, "rope_theta": 150000.0, "max_position_embeddings": 131072}
    target = {"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 36, **sizes, "rope_scaling": yarn}
    drafter = {**QWEN3_DRAFTER, **sizes, "num_key_value_heads": 8}
    finding = found({**drafter, "rope_scaling": llama3}, SGLANG, target)["rope"]
    assert (finding.status, finding.numbers["drafter"]["kind"], finding.numbers["target"]["kind"]) == (Status.CANNOT_TELL, "llama3", "yarn")
    assert "rope" not in found({**drafter, "rope_scaling": yarn}, SGLANG, target)
    newer = {k: v for k, v in drafter.items() if k != "rope_theta"} | {"rope_parameters": {**yarn, "rope_theta": 150000.0}}
    assert "rope" not in found(newer, SGLANG, target)  # the same, as transformers 5 writes it


def test_ropes_that_cannot_be_compared_are_left_alone():
    layered = {**QWEN3_TARGET, "rope_theta": None, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {}}}
    assert "rope" not in found(QWEN3_DRAFTER, SGLANG, layered)
    assert "rope" not in found({**QWEN3_DRAFTER, "rope_theta": 1e4}, SGLANG, {**QWEN3_TARGET, "head_dim": 64})  # another width
    assert "rope" not in found(QWEN3_DRAFTER, SGLANG, {**QWEN3_TARGET, "rope_scaling": {"type": "yarn", "factor": "x"}})
    assert "rope" not in found(QWEN3_DRAFTER, SGLANG, {k: v for k, v in QWEN3_TARGET.items() if not k.startswith("rope")})


ROPES = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False, "beta_fast": 24.0},
]


@pytest.mark.parametrize("rope", ROPES, ids=lambda r: f"{r['rope_type']}{len(r)}")
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_rotations_are_those_of_transformers(rope, theta):
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=131072, rope_parameters={**rope, "rope_theta": theta}
    )
    expected = LlamaRotaryEmbedding(config).inv_freq
    ours = rotation({"head_dim": 64, "max_position_embeddings": 131072, "rope_theta": theta, "rope_scaling": rope})
    assert torch.tensor(ours.frequencies) == pytest.approx(expected, rel=1e-5)
    assert first_difference(ours, ours) is None


def test_a_part_of_a_head_that_is_rotated():
    half = rotation({"head_dim": 128, "partial_rotary_factor": 0.5, "rope_theta": 1e4})
    assert (half.width, rotation({"hidden_size": 256, "num_attention_heads": 4, "rope_theta": 1e4}).width) == (64, 64)
    assert half.frequencies[1] == pytest.approx(1e4 ** (-2 / 64))


# -- the table ---------------------------------------------------------------------------------------------------------------


def test_the_table_is_whole():
    versions = {name: conventions()["families"][name]["read_versions"] for name in ("sglang", "vllm")}
    for row in (*table()["flags"], *table()["limits"]):
        assert row["read"]
        assert row["family"] in versions
        assert ("since" in row) is ("after" in row)
        assert row.get("drafter", "*") in ("llama", "qwen3", "mla", "*")
    assert {row["flag"] for row in table()["flags"]} <= set(UNREAD)
    assert all(row["support"] in ("honoured", "ignored") for row in table()["flags"])


def test_between_two_versions_that_were_read_nobody_knows():
    row = limit(parse_engine("sglang==0.5.7"), "speculative_draft_model_quantization")
    assert [holds(parse_engine(f"sglang=={v}"), row) for v in ("0.5.6", "0.5.6.post1", "0.5.7")] == [False, None, True]
    assert support(parse_engine("sglang==0.5.11.post1"), "llama", "fc_norm")[0] == "unknown"


def sources(name: str) -> Path:
    found = sorted((REPOSITORY / ".live" / name).glob(f"lib/python*/site-packages/{name}"))
    if not found:
        pytest.skip(f"no {name} under .live/ (`make live` installs it): the table is not held against its source here")
    return found[0]


def test_the_table_against_sglangs_own_source():
    root = sources("sglang") / "srt"
    drafter = (root / "models" / "llama_eagle3.py").read_text()
    for key in ("fc_norm", "norm_output", "norm_before_fc", "num_aux_hidden_states", "target_hidden_size"):
        assert key in drafter
    for key in ("norm_before_residual", "attention_bias", "q_norm"):
        assert key not in drafter
    assert not [p for p in (root / "models").glob("*.py") if "norm_before_residual" in p.read_text()]
    mla = (root / "models" / "kimi_k25_eagle3.py").read_text()
    assert "norm_before_fc" not in mla
    assert "norm_output" in mla
    classes = {name for p in (root / "models").glob("*.py") for name in re.findall(r"^class (\w*Eagle3\w*)\(", p.read_text(), re.MULTILINE)}
    assert set(table()["drafters"]["sglang"]) <= classes


def test_the_table_against_vllms_own_source():
    models = sources("vllm") / "model_executor" / "models"
    for name in ("llama", "qwen3", "deepseek"):
        text = (models / f"{name}_eagle3.py").read_text()
        assert "use_aux_norm" not in text
        assert "norm_before_residual" in text
    assert "norm_before_fc" not in (models / "deepseek_eagle3.py").read_text()
    registry = (models / "registry.py").read_text()
    assert all(f'"{name}":' in registry for name in table()["drafters"]["vllm"])


@pytest.mark.parametrize(
    "damage",
    [
        {"head_dim": 2**40},
        {"qk_rope_head_dim": 2**40},
        {"partial_rotary_factor": math.nan},
        {"rope_theta": math.inf},
        {"max_position_embeddings": -1},
        {"rope_scaling": {"rope_type": "llama3", "factor": 0.5}},
        {"rope_scaling": {"rope_type": ["yarn"]}},
        {"hidden_size": "2048"},
    ],
)
def test_damaged_targets_give_no_finding_and_no_error(damage):
    assert list(found(QWEN3_DRAFTER, SGLANG, {**QWEN3_TARGET, **damage}, SERVE)) == ["flags"]
