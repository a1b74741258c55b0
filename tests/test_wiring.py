"""Engine wiring from two configs, corrected configs, the launch line, and what an engine ignores in a drafter's config."""

import json
import re

import pytest

from eaglelab.cli import main
from eaglelab.drafter.config import DrafterConfigError
from eaglelab.engines.conventions import CannotFeed, ConventionError, parse_engine
from eaglelab.engines.launch import parse_launch
from eaglelab.engines.lint import lint
from eaglelab.engines.target_config import TargetConfigError, read_target_config, target_shape
from eaglelab.engines.training import final_norm, framework_of
from eaglelab.engines.wiring_report import CorrectedConfigError, corrected_config, engine_wiring, write_corrected
from eaglelab.findings import Finding, Status
from eaglelab.wiring import FINAL

KEY = "eagle_aux_hidden_state_layer_ids"
LAYER = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-5}
DRAFT = {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32, "eagle_config": {KEY: [-1, 2, 15]}}
PLAIN = {key: value for key, value in DRAFT.items() if key != "eagle_config"}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {**LAYER, "model_type": "llama"},
    "draft_vocab_size": 32,
    "norm_before_residual": False,
}
LLAMA30 = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30, "hidden_size": 64, "vocab_size": 256}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 64, "vocab_size": 256},
    "vision_config": {"num_hidden_layers": 27},
}


def test_the_boundaries_that_an_engine_feeds():
    wiring = engine_wiring(DRAFT, LLAMA30, "sglang==0.5.23")
    assert wiring.boundaries == (0, 3, 16)
    assert (wiring.ids, wiring.key) == ([-1, 2, 15], f"eagle_config.{KEY}")
    assert [row["is"] for row in wiring.rows()] == ["0 (embedding)", "3", "16"]
    assert [row["id"] for row in wiring.rows()] == [-1, 2, 15]
    data = json.loads(json.dumps(wiring.to_json()))
    assert data["wiring"] == {"engine": [0, 3, 16]}
    assert (data["engine"], data["num_layers"], data["architecture"], data["rule"]) == (
        "sglang==0.5.23",
        30,
        "LlamaForCausalLM",
        "plus_one",
    )
    assert data["assumptions"] == []


def test_a_slot_that_is_not_captured_is_null():
    wiring = engine_wiring({**PLAIN, KEY: [-1, 2, 15]}, LLAMA30, "vllm==0.32.0")
    assert wiring.to_json()["wiring"]["engine"] == [2, 15, None]
    assert wiring.rows()[2]["is"] == "not captured"


def test_multimodal_targets_and_versions():
    draft = {**PLAIN, "eagle_config": {KEY: [2, 30, 58]}}
    new, old = engine_wiring(draft, KIMI, "sglang==0.5.23"), engine_wiring(draft, KIMI, "sglang==0.5.12")
    assert (new.boundaries, old.boundaries) == ((2, 30, 58), (3, 31, 59))
    assert new.to_json()["other_versions"] == [{"versions": "0.5.10 to 0.5.12.post1", "boundaries": [3, 31, 59]}]
    assert any("Other versions feed other boundaries" in note for note in old.notes)
    assert target_shape(KIMI).architecture == "KimiK25ForConditionalGeneration"


def test_ids_at_the_top_level_are_nothing_to_sglang():
    wiring = engine_wiring({**PLAIN, KEY: [3, 16, 28]}, LLAMA30, "sglang==0.5.23")
    assert wiring.boundaries == (2, 15, 27)
    assert wiring.ids is None
    assert "is not read by SGLang 0.5.23" in wiring.notes[0]
    four = engine_wiring({**PLAIN, KEY: [2, 9, 16, 28]}, LLAMA30, "sglang==0.5.23")
    assert any("an fc of 4 slots and SGLang 0.5.23 captures 3" in note for note in four.notes)


def test_a_drafter_without_slots_is_fed_the_final_state():
    wiring = engine_wiring({**PLAIN, "eagle_config": {"use_aux_hidden_state": False, KEY: [1, 2, 3]}}, LLAMA30, "sglang==0.5.23")
    assert wiring.boundaries == (FINAL,)
    assert "use_aux_hidden_state is false" in wiring.notes[0]


def test_gemma3_slots_are_no_boundaries():
    gemma = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"num_hidden_layers": 62}}
    assert not engine_wiring(PLAIN, gemma, "sglang==0.5.23").captures_boundaries
    fed = engine_wiring(PLAIN, gemma, "sglang==0.5.23")
    assert fed.to_json()["bug"] == "no_residual"
    assert fed.headline.endswith("N = 62), without the residual: no slot holds its boundary")
    with pytest.raises(CannotFeed, match="captures Gemma 3 without adding the residual"):
        corrected_config(PLAIN, fed.boundaries, gemma, "sglang==0.5.23")
    assert engine_wiring(PLAIN, gemma, "sglang==0.5.12").captures_boundaries


def test_the_headline_says_that_nothing_is_served():
    nemotron = {"architectures": ["NemotronHForCausalLM"], "num_hidden_layers": 52}
    fed = engine_wiring(PLAIN, nemotron, "sglang==0.5.23")
    assert fed.headline == "SGLang 0.5.23 will not serve this: it captures nothing for NemotronHForCausalLM"
    assert not any("Other versions" in note for note in fed.notes)
    short = engine_wiring({**PLAIN, "eagle_config": {KEY: [2, 15, 29]}}, LLAMA30, "sglang==0.5.23")
    assert "will not serve this: the engine fails on the width; what it captures: [3, 16, ?]" in short.headline
    assert short.to_json()["fails"] == "the engine fails on the width"
    four = engine_wiring({**PLAIN, KEY: [2, 9, 16, 28]}, LLAMA30, "sglang==0.5.23")
    assert "will not serve this: the config describes an fc of 4 slots and 3 are captured" in four.headline
    good = engine_wiring({**PLAIN, "eagle_config": {KEY: [2, 15, 27]}}, LLAMA30, "sglang==0.5.23")
    assert good.headline == "SGLang 0.5.23 feeds [3, 16, 28] (LlamaForCausalLM, N = 30)"


def test_ids_that_are_not_read_are_beside_no_slot():
    rows = engine_wiring(DRAFT, LLAMA30, "sglang==0.4.6").rows()
    assert [(r["id"], r["is"]) for r in rows] == [(None, "2 (ids not read)"), (None, "15 (ids not read)"), (None, "27 (ids not read)")]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({}, r"num_hidden_layers is None, expected a positive integer \(looked in the top level\)"),
        ({"text_config": {"num_hidden_layers": "61"}}, r"num_hidden_layers is '61'.*looked in text_config"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ([], "got list, expected the object of a config.json"),
    ],
)
def test_target_configs_without_layers(target, message):
    with pytest.raises(TargetConfigError, match=message):
        engine_wiring(DRAFT, target, "sglang==0.5.23")


def test_broken_ids_and_unknown_engines():
    with pytest.raises(ConventionError, match="got 'all'"):
        engine_wiring({"eagle_config": {KEY: "all"}}, LLAMA30, "sglang==0.5.23")
    with pytest.raises(ConventionError, match="did you mean 'vllm'"):
        engine_wiring(DRAFT, LLAMA30, "vlllm==0.5.23")


def test_a_corrected_config_feeds_what_is_wanted():
    for engine, where, ids in [("sglang==0.5.23", "eagle_config", [2, 15, 27]), ("vllm==0.32.0", None, [3, 16, 28])]:
        new, diff = corrected_config(DRAFT, [3, 16, 28], LLAMA30, engine)
        assert (new[where] if where else new)[KEY] == ids
        assert engine_wiring(new, LLAMA30, engine).boundaries == (3, 16, 28)
        assert f"+++ config.{engine.replace('==', '-')}.json" in diff
        assert all(line.startswith(("+", "-", " ", "@")) for line in diff.splitlines())
    assert DRAFT["eagle_config"][KEY] == [-1, 2, 15]  # the original is left alone


def test_a_correction_fixes_the_slot_count_and_the_switch():
    off = {**PLAIN, "eagle_config": {"use_aux_hidden_state": False}}
    new, _ = corrected_config(off, [3, 9, 16, 28], LLAMA30, "vllm==0.32.0")
    assert new["num_aux_hidden_states"] == 4
    assert new["eagle_config"]["use_aux_hidden_state"] is True
    nested, _ = corrected_config(SPECULATORS, [3, 9, 16, 28], LLAMA30, "vllm==0.32.0")
    assert nested["transformer_layer_config"]["num_aux_hidden_states"] == 4
    assert "num_aux_hidden_states" not in SPECULATORS["transformer_layer_config"]
    new, _ = corrected_config(DRAFT, [FINAL], LLAMA30, "sglang==0.5.23")
    assert engine_wiring(new, LLAMA30, "sglang==0.5.23").boundaries == (FINAL,)


def test_what_cannot_be_fed_is_refused():
    with pytest.raises(CannotFeed, match=r"SGLang 0.5.23 with LlamaForCausalLM cannot be told to feed \[16, 3, 28\]: It concatenates"):
        corrected_config(DRAFT, [16, 3, 28], LLAMA30, "sglang==0.5.23")
    with pytest.raises(CannotFeed, match="reads no layer ids from a drafter's config"):
        corrected_config(DRAFT, [3, 16, 28], LLAMA30, "hf")
    with pytest.raises(CorrectedConfigError, match="eagle_config in the drafter's config is 'x', expected an object or nothing"):
        corrected_config({**PLAIN, "eagle_config": "x"}, [3, 16, 28], LLAMA30, "sglang==0.5.23")


def test_the_corrected_copy_is_written_beside_the_original(tmp_path):
    original, engine = tmp_path / "config.json", parse_engine("sglang==0.5.23")
    original.write_text(json.dumps(DRAFT))
    new, diff = corrected_config(DRAFT, [3, 16, 28], LLAMA30, engine)
    path = write_corrected(tmp_path, new, engine)
    assert path == tmp_path / "config.sglang-0.5.23.json"
    assert json.loads(path.read_text())["eagle_config"][KEY] == [2, 15, 27]
    assert json.loads(original.read_text()) == DRAFT
    assert "-      -1," in diff
    assert write_corrected(original, new, engine) == path  # the same again is no conflict
    other, _ = corrected_config(DRAFT, [2, 15, 27], LLAMA30, engine)
    with pytest.raises(CorrectedConfigError, match="is there already with other content"):
        write_corrected(original, other, engine)
    with pytest.raises(CorrectedConfigError, match="is itself a corrected copy"):
        write_corrected(path, other, engine)
    assert json.loads(path.read_text()) == new
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "config.sglang-0.5.23.json"]


def test_a_target_has_one_config(tmp_path):
    """`[target] config` and the config of `[target] path`, where both are given."""
    small, target, tall = tmp_path / "target-config.json", tmp_path / "target", tmp_path / "tall"
    for path, layers in ((small, 30), (target / "config.json", 30), (tall / "config.json", 61)):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"num_hidden_layers": layers, "from": path.name}))
    assert read_target_config(None, None) is None
    assert read_target_config(None, tall)["num_hidden_layers"] == 61
    assert read_target_config(small, None) == read_target_config(small, target)
    assert read_target_config(small, target)["from"] == "target-config.json"
    (tmp_path / "bare").mkdir()  # weights alone
    assert read_target_config(small, tmp_path / "bare")["num_hidden_layers"] == 30
    with pytest.raises(
        TargetConfigError, match=r"\[target\] config .*has 30 layers and \[target\] path .*tall\) has 61: they are two targets"
    ):
        read_target_config(small, tall)


def test_launch_lines_of_sglang():
    line = """# comment
CUDA_VISIBLE_DEVICES=0,1 env X=1 python3 -m sglang.launch_server --model-path /m/vllm --speculative-algorithm=EAGLE3 \\
  --speculative-draft-model-path "/d/my drafter" --speculative-num-steps 1 --speculative-eagle-topk 1 \\
  --speculative-num-draft-tokens 16 --trust-remote-code --cuda-graph-bs 1 2 4 2>&1 | tee log --engine vllm serve"""
    launch = parse_launch(line)
    assert (launch.engine, launch.algorithm, launch.problems) == ("sglang", "EAGLE3", ())
    assert (launch.num_steps, launch.eagle_topk, launch.num_draft_tokens) == (1, 1, 16)
    assert launch.given["model_path"] == "/m/vllm"
    assert launch.given["speculative_draft_model_path"] == "/d/my drafter"
    assert launch.given["trust_remote_code"] is True
    assert launch.given["cuda_graph_bs"] == ["1", "2", "4"]
    assert "engine" not in launch.given
    short = parse_launch("sglang serve --model-path m --speculative-algo EAGLE")
    assert (short.engine, short.algorithm, short.num_steps) == ("sglang", "EAGLE", None)
    docker = parse_launch("docker run --gpus all image python -m sglang.launch_server --model-path m")
    assert (docker.engine, docker.given) == ("sglang", {"model_path": "m"})


def test_launch_lines_of_vllm():
    settings = '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}'
    for line in (
        f"vllm serve /m/sglang --speculative-config '{settings}' --trust-remote-code",
        f"python -m vllm.entrypoints.openai.api_server --model /m/sglang --speculative_config='{settings}' --trust-remote-code",
        "vllm serve /m/sglang --speculative-config.method eagle3 --speculative-config.model d -sc.num_speculative_tokens=3 "
        "--trust-remote-code",
    ):
        launch = parse_launch(line)
        assert (launch.engine, launch.algorithm, launch.num_steps, launch.problems) == ("vllm", "eagle3", 3, ())


@pytest.mark.parametrize(
    ("line", "engine", "message"),
    [
        ("python -m sglang.launch_server --model 'x", "sglang", "cannot be split into words .*is a quote missing"),
        ("sglang serve --speculative-num-steps three", "sglang", "num_steps on the launch line is 'three', expected a positive integer"),
        ("sglang serve --speculative-num-steps", "sglang", "num_steps on the launch line is True"),
        ("sglang serve --speculative-num-steps 1 2", "sglang", r"num_steps on the launch line is \['1', '2'\]"),
        ("sglang serve --speculative-num-steps -1", "sglang", "num_steps on the launch line is '-1'"),
        ("sglang serve --speculative-eagle-topk 0", "sglang", "eagle_topk on the launch line is '0'"),
        ("sglang serve --speculative-algorithm", "sglang", "speculative_algorithm on the launch line is True, expected a name"),
        ("vllm serve m --speculative-config '{method: x}'", "vllm", "--speculative-config is no JSON object: got '{method: x}'"),
        ("vllm serve m --speculative-config '[1]'", "vllm", r"--speculative-config is no JSON object: got '\[1\]'"),
        ("vllm serve m --speculative-config", "vllm", "--speculative-config is no JSON object: got 'True'"),
    ],
)
def test_what_cannot_be_read_of_a_launch_line_is_said(line, engine, message):
    launch = parse_launch(line)
    assert (launch.engine, launch.num_steps) == (engine, None)
    assert re.search(message, " ".join(launch.problems))


def test_any_other_command_is_no_engine():
    launch = parse_launch("./run_sglang.sh --model-path m --speculative-num-steps 3")
    assert (launch.engine, launch.num_steps, launch.given["speculative_num_steps"]) == (None, None, "3")


def ids_of(findings: list[Finding], status: Status) -> list[str]:
    return [f.id for f in findings if f.status == status]


def find(findings: list[Finding], name: str) -> Finding:
    return next(f for f in findings if f.id == f"config.{name}")


def test_a_clean_config_passes():
    findings = lint({**PLAIN, "eagle_config": {KEY: [2, 15, 27]}}, "sglang==0.5.23", LLAMA30)
    assert [(f.id, f.status) for f in findings] == [("config.flags", Status.PASS)]
    json.dumps([f.to_json() for f in findings])


@pytest.mark.parametrize(
    ("config", "engine", "expected"),
    [
        ({**PLAIN, "norm_before_residual": True}, "sglang==0.5.23", "norm_before_residual"),
        ({**PLAIN, "norm_before_residual": True}, "vllm==0.32.0", None),
        ({**PLAIN, "fc_norm": True}, "sglang==0.5.11", "fc_norm"),
        ({**PLAIN, "fc_norm": True}, "sglang==0.5.12", None),
        ({**PLAIN, "use_aux_norm": True}, "sglang==0.5.9", "fc_norm"),
        ({**PLAIN, "norm_before_fc": True}, "sglang==0.5.16", "norm_before_fc"),
        ({**PLAIN, "eagle_config": {"norm_before_fc": True}}, "sglang==0.5.17", None),
        ({**PLAIN, "attention_bias": True}, "sglang==0.5.23", "attention_bias"),
        ({**PLAIN, "attention_bias": True}, "vllm==0.32.0", None),
        ({**PLAIN, "num_hidden_layers": 2}, "sglang==0.5.11", "num_hidden_layers"),
        ({**PLAIN, "num_hidden_layers": 2}, "sglang==0.5.12", "further_norm"),
        ({**PLAIN, "num_hidden_layers": 2}, "vllm==0.32.0", None),
        ({**PLAIN, "architectures": ["Eagle3LlamaForCausalLM"]}, "sglang==0.5.23", "architecture"),
        ({**PLAIN, "architectures": ["Eagle3LlamaForCausalLM"]}, "vllm==0.32.0", None),
        ({**PLAIN, KEY: [3, 16, 28]}, "sglang==0.5.23", "ids_ignored"),
        ({**PLAIN, KEY: [2, 15, 27]}, "sglang==0.5.23", None),
        (SPECULATORS, "sglang==0.5.23", "architecture"),
        (SPECULATORS, "vllm==0.32.0", None),
    ],
)
def test_what_an_engine_ignores_fails(config, engine, expected):
    failing = ids_of(lint(config, engine, LLAMA30), Status.FAIL)
    assert failing == ([f"config.{expected}"] if expected else [])


def test_mla_drafters_have_fewer_flags():
    mla = {**PLAIN, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "q_lora_rank": 24, "norm_before_fc": True}
    mla |= {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    assert ids_of(lint(mla, "sglang==0.5.23", KIMI), Status.FAIL) == ["config.norm_before_fc"]
    assert ids_of(lint({**mla, "norm_before_fc": False, "fc_norm": True}, "sglang==0.5.13", KIMI), Status.FAIL) == []
    assert "config.architecture" in ids_of(lint({**mla, "norm_before_fc": False}, "sglang==0.5.9", KIMI), Status.FAIL)
    for engine in ("sglang==0.5.23", "vllm==0.32.0"):  # neither has a place for a bias in MLA
        biased = lint({**mla, "norm_before_fc": False, "attention_bias": True}, engine, KIMI)
        assert ids_of(biased, Status.FAIL) == ["config.attention_bias"]


def test_ids_that_happen_to_be_the_default_are_harmless():
    finding = find(lint({**PLAIN, KEY: [2, 15, 27]}, "sglang==0.5.23", LLAMA30), "ids_ignored")
    assert finding.status == Status.PASS
    assert "feeds the same boundaries without them" in finding.title
    wrong = find(lint({**PLAIN, KEY: [3, 16, 28]}, "sglang==0.5.23", LLAMA30), "ids_ignored")
    assert wrong.numbers == {"meant": [3, 16, 28], "served": [2, 15, 27]}
    assert find(lint({**PLAIN, KEY: [3, 16, 28]}, "sglang==0.5.23"), "ids_ignored").status == Status.CANNOT_TELL


def test_nested_ids_in_vllm_depend_on_its_runner():
    finding = find(lint(DRAFT, "vllm==0.32.0", LLAMA30), "ids_runner")
    assert finding.status == Status.CANNOT_TELL
    assert finding.numbers == {"older_runner": [2, 15, None], "newer_runner": [2, 15, 27]}
    default = {**PLAIN, "eagle_config": {KEY: [2, 15, 27]}}
    assert ids_of(lint(default, "vllm==0.32.0", LLAMA30), Status.CANNOT_TELL) == []


def test_norm_output_means_two_things():
    draft = {**PLAIN, "norm_output": True}
    told = find(lint(draft, "sglang==0.5.23", LLAMA30, "specforge", "0.2.0"), "norm_output")
    assert told.status == Status.FAIL
    assert "means one thing to SpecForge and another to SGLang 0.5.23" in told.title
    assert find(lint(draft, "vllm", LLAMA30), "norm_output").status == Status.CANNOT_TELL  # SpecForge only guessed
    off = find(lint({**PLAIN, "norm_output": False}, "vllm", LLAMA30, "specforge"), "norm_output")
    assert "No engine serves this" in off.next
    assert ids_of(lint(draft, "sglang==0.5.11", LLAMA30, "specforge"), Status.FAIL) == []  # does what SpecForge trained
    assert ids_of(lint(draft, "sglang==0.5.11", LLAMA30, "modelopt"), Status.FAIL) == ["config.norm_output"]
    assert ids_of(lint(draft, "sglang==0.5.23", LLAMA30, "modelopt"), Status.FAIL) == []


def test_speculators_residual():
    missing = {key: value for key, value in SPECULATORS.items() if key != "norm_before_residual"}
    assert find(lint(missing, "vllm==0.32.0", LLAMA30), "norm_before_residual").status == Status.CANNOT_TELL
    forced = lint(SPECULATORS, "vllm==0.32.0", LLAMA30, "speculators", "0.3.0")
    assert find(forced, "training_residual").status == Status.FAIL
    assert "always trained with norm_before_residual = true" in find(forced, "training_residual").title
    assert "config.training_residual" not in [f.id for f in lint(SPECULATORS, "vllm==0.32.0", LLAMA30, "speculators", "0.5.0")]
    flat = lint(PLAIN, "sglang==0.5.23", LLAMA30, "speculators", "0.5.0")
    assert "SGLang ignores it" in find(flat, "training_residual").next


def test_qwen3_draft_layers_on_sglang():
    qwen3 = {**SPECULATORS, "transformer_layer_config": {**LAYER, "model_type": "qwen3"}}
    assert "config.qk_norm" in ids_of(lint(qwen3, "sglang==0.5.23", LLAMA30), Status.FAIL)
    assert ids_of(lint(qwen3, "vllm==0.32.0", LLAMA30), Status.FAIL) == []


def test_old_speculators_layers_against_the_engine():
    finding = find(lint(SPECULATORS, "vllm==0.32.0", LLAMA30, "speculators", "0.4.0"), "training_layers")
    assert finding.numbers == {"trained": [3, 16, 28], "served": [2, 15, 27]}
    with_ids = {**SPECULATORS, KEY: [3, 16, 28]}
    assert "config.training_layers" not in [f.id for f in lint(with_ids, "vllm==0.32.0", LLAMA30, "speculators", "0.4.0")]
    assert "config.training_layers" not in [f.id for f in lint(SPECULATORS, "vllm==0.32.0", LLAMA30, "speculators", "0.5.0")]


@pytest.mark.parametrize(
    ("framework", "version", "last_state", "status"),
    [
        ("speculators", "0.4.0", FINAL, Status.FAIL),  # normed twice
        ("speculators", "0.4.0", 30, None),
        ("speculators", "0.3.0", 30, Status.FAIL),  # never normed
        ("speculators", "0.3.0", FINAL, None),
        ("specforge", "0.2.0", 30, Status.FAIL),
        ("specforge", "0.2.0", FINAL, None),
        ("speculators", None, FINAL, Status.CANNOT_TELL),
        ("specforge", "0.2.0", None, Status.NOT_GIVEN),
    ],
)
def test_the_last_state_is_normed_exactly_once(framework, version, last_state, status):
    findings = final_norm(framework_of({}, framework, version), last_state, 30)
    assert [f.status for f in findings] == ([status] if status else [])


def test_without_a_dump_the_last_state_is_asked_for_where_the_trainer_is_told():
    assert find(lint(PLAIN, "vllm==0.32.0", LLAMA30, "specforge", "0.2.0"), "final_norm").status is Status.NOT_GIVEN
    assert "config.final_norm" not in [f.id for f in lint(PLAIN, "vllm==0.32.0", LLAMA30)]  # SpecForge is only guessed from the layout


def test_lint_refuses_what_is_no_drafter():
    with pytest.raises(DrafterConfigError, match="is it the target's config"):
        lint(LLAMA30, "sglang==0.5.23")


def test_a_training_framework_that_is_none_is_a_finding_beside_the_others():
    for name, version, says in (
        ("specforg", None, "framework 'specforg', did you mean 'specforge'"),
        ("specforge", "new", "version 'new'"),
    ):
        findings = lint({**PLAIN, "norm_before_residual": True}, "sglang==0.5.23", LLAMA30, name, version)
        assert says in find(findings, "training").title
        assert ids_of(findings, Status.CANNOT_TELL) == ["config.training"]  # and final_norm is silent: the framework is only guessed
        assert ids_of(findings, Status.FAIL) == ["config.norm_before_residual"]


def test_wiring_refuses_what_check_calls_broken(tmp_path, capsys):
    """Gemma 3 seems to feed the wanted boundaries already, and none of its slots holds one."""
    for name, content in {"config.json": PLAIN, "gemma.json": {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 30}}.items():
        (tmp_path / name).write_text(json.dumps(content))
    arguments = ["wiring", str(tmp_path / "config.json"), "--target", str(tmp_path / "gemma.json"), "--engine", "sglang==0.5.23"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "feeds [2, 15, 27]" in said
    assert "\n  read: SGLang 0.5.17, own functions run: gemma3_causal.py:920" in said
    assert main([*arguments, "--boundaries", "2,15,27"]) == 2
    assert "without adding the residual" in capsys.readouterr().err
