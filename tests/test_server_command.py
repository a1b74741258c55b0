"""The server's commands: every option exists in that version, a known launch line is kept, and what is read back is what was asked for."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from eaglelab.cli import main
from eaglelab.engines.capabilities import table
from eaglelab.engines.conventions import convention_for, parse_engine
from eaglelab.engines.launch import parse_launch
from eaglelab.engines.server_command import Commands, Line, has_option, server_command, usual_chain
from eaglelab.wiring import FINAL

REPOSITORY = Path(__file__).resolve().parent.parent
KEY = "eagle_aux_hidden_state_layer_ids"
DRAFT = {"hidden_size": 64, "max_position_embeddings": 4096, "draft_vocab_size": 32, "eagle_config": {KEY: [2, 15, 27]}}
LLAMA30 = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 30, "hidden_size": 64, "max_position_embeddings": 4096}
KIMI = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"num_hidden_layers": 61, "max_position_embeddings": 4096}}
SGLANG, VLLM = "sglang==0.5.23", "vllm==0.32.0"

SGLANG_0_5_23 = {
    "--model-path",
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
    "--enable-metrics",
    "--decode-log-interval",
    "--disable-radix-cache",
    "--chunked-prefill-size",
    "--enable-return-aux-hidden-states",
    "--return-aux-hidden-state-layer-ids",
    "--forward-hooks",
    "--disable-cuda-graph",
}
"""Fields of ServerArgs in SGLang 0.5.23's arg_groups/fields/: model.py:51, spec.py:31-66, observability.py:70 and :136, memory.py:64,
schedule.py:52, exec_.py:130 and :152, observability.py:231; server_args.py:411 has --disable-cuda-graph."""


def commands(engine=SGLANG, line=None, boundaries=(3, 16, 28), target=LLAMA30, draft=DRAFT, corrected=None) -> Commands:
    launch = None if line is None else parse_launch(line)
    return server_command(
        engine, "target", "drafter", launch, draft_config=draft, target_config=target, boundaries=boundaries, corrected=corrected
    )


def options(command: str) -> set[str]:
    return {word for word in shlex.split(command) if word.startswith("--")}


def lines(said: Commands) -> list[str]:
    return [line for line in (said.serve, said.measure, said.record, said.capture) if line]


def test_sglang_without_a_launch_line():
    said = commands()
    assert said.serve == (
        "python -m sglang.launch_server --model-path target --speculative-algorithm EAGLE3 --speculative-draft-model-path drafter "
        "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
    )
    assert said.measure == f"SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 {said.serve} --enable-metrics --decode-log-interval 10"
    assert said.capture == (
        "python -m sglang.launch_server --model-path target --speculative-algorithm EAGLE3 --enable-return-aux-hidden-states "
        "--return-aux-hidden-state-layer-ids 2 15 27 --disable-radix-cache --chunked-prefill-size -1"
    )
    assert "[5, 4, 8] is what SGLang 0.5.23 for LlamaForCausalLM takes by itself, no recommendation" in said.notes[0]
    assert said.record.startswith(f"{said.serve} --disable-radix-cache --disable-cuda-graph --forward-hooks ")
    assert json.loads(shlex.split(said.record)[-1])[0]["hook_factory"] == "eaglelab.capture.sglang_hook:record"


def test_every_flag_is_one_of_that_version():
    for line in lines(commands()) + lines(commands(target=KIMI, boundaries=(2, 30, 58))):
        assert options(line) <= SGLANG_0_5_23
    for version in ("0.5.3", "0.5.12", "0.5.22"):
        older = commands(f"sglang=={version}")
        assert older.capture is None
        assert "--enable-return-aux-hidden-states came with 0.5.23" in older.notes[-1]
        assert all(has_option(parse_engine(f"sglang=={version}"), flag) for line in lines(older) for flag in options(line))
    assert "METRICS_DEVICE_TIMER" not in commands("sglang==0.5.6").measure  # environ.py has it from 0.5.7 on
    assert "METRICS_DEVICE_TIMER" in commands("sglang==0.5.7").measure


def live(name: str) -> Path:
    found = sorted((REPOSITORY / ".live" / name).glob(f"lib/python*/site-packages/{name}"))
    if not found:
        pytest.skip(f"no {name} under .live/ (`make live` installs it): the options are not held against its source here")
    return found[0]


def test_the_options_against_sglangs_own_source():
    root = live("sglang") / "srt"
    fields = "\n".join(path.read_text() for path in sorted((root / "arg_groups" / "fields").glob("*.py")))
    variables = (root / "environ.py").read_text()
    for name in table()["options"]["sglang"]:
        if name == "--disable-cuda-graph":
            assert f'"{name}"' in (root / "server_args.py").read_text()
        elif name.startswith("--"):
            assert re.search(rf"^    {name[2:].replace('-', '_')}: A\[", fields, re.MULTILINE), name
        else:
            assert re.search(rf"^    {name} = ", variables, re.MULTILINE), name
    source = (root / "arg_groups" / "speculative_hook.py").read_text()
    rule = source[source.index("def _auto_choose_speculative_params") :]
    assert rule.index('"LlamaForCausalLM"') < rule.index("(5, 4, 8)")
    assert "else:\n        return (3, 1, 4)" in rule


def test_the_options_against_vllms_own_source():
    source = (live("vllm") / "engine" / "arg_utils.py").read_text()
    for name in table()["options"]["vllm"]:
        assert f'"{name.replace("--no-enable", "--enable")}"' in source, name
    assert '"ExampleHiddenStatesConnector"' in (live("vllm") / "distributed/kv_transfer/kv_connector/factory.py").read_text()


@pytest.mark.parametrize(
    ("version", "architecture", "chain"),
    [
        ("0.5.3", "LlamaForCausalLM", (5, 4, 8)),
        ("0.5.6", "Qwen3ForCausalLM", (5, 4, 8)),
        ("0.5.6", "Glm4MoeForCausalLM", (5, 4, 8)),
        ("0.5.7", "Glm4MoeForCausalLM", (3, 1, 4)),
        ("0.5.7", "Qwen3ForCausalLM", (5, 4, 8)),
        ("0.5.8", "Qwen3ForCausalLM", (3, 1, 4)),
        ("0.5.3", "DeepseekV3ForCausalLM", (3, 1, 4)),
        ("0.5.23", "LlamaForCausalLM", (5, 4, 8)),
        ("0.5.23", "DeepseekV3ForCausalLM", (3, 1, 4)),
        ("0.5.23", None, (3, 1, 4)),
    ],
)
def test_the_chain_that_sglang_takes_by_itself(version, architecture, chain):
    """`auto_choose_speculative_params` of these wheels, by version and target class."""
    assert usual_chain(parse_engine(f"sglang=={version}"), architecture) == chain
    assert usual_chain(parse_engine(VLLM), architecture) is None


def test_a_launch_line_is_kept_and_only_what_must_changes():
    line = (
        "export CUDA_VISIBLE_DEVICES=0,1\nNCCL_DEBUG=INFO python3 -m sglang.launch_server --model /m/t --speculative-algo=EAGLE "
        "--speculative-draft-model-path /d/mine --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 "
        "--tp 2 --mem-fraction-static 0.8 --json-model-override-args '{\"a\": 1}' --trust-remote-code 2>&1 | tee log"
    )
    said = commands(line=line, corrected=Path("/lab/config.sglang-0.5.23.json"))
    assert said.serve == (
        "CUDA_VISIBLE_DEVICES=0,1 NCCL_DEBUG=INFO python3 -m sglang.launch_server --model /m/t --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path /d/mine --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 "
        "--tp 2 --mem-fraction-static 0.8 --json-model-override-args '{\"a\": 1}' --trust-remote-code"
    )
    assert said.first == "cp /d/mine/config.json /d/mine/config.before.json && cp /lab/config.sglang-0.5.23.json /d/mine/config.json"
    assert said.text.index("First, ") < said.text.index("Serve:")
    assert said.notes[0] == "Of the launch line this is left out: 2>&1; | tee log."
    assert "draft-model" not in said.capture
    assert "--speculative-num-steps" not in said.capture
    assert "--tp 2 --mem-fraction-static 0.8" in said.capture
    again = parse_launch(said.serve)
    assert (again.algorithm, again.num_steps, again.problems, again.env["NCCL_DEBUG"]) == ("EAGLE3", 2, (), "INFO")
    assert commands(line=said.serve).serve == said.serve  # a right line stays as it is


def test_a_container_is_handed_the_variable():
    said = commands(line="docker run --gpus all -e A=b image python -m sglang.launch_server --model-path t --speculative-num-steps 2")
    assert said.measure.startswith("docker run -e SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 --gpus all -e A=b image python -m sglang")
    assert "--speculative-num-steps 2 --speculative-draft" not in said.serve
    assert "[2, 1, 3] is written" in " ".join(said.notes)  # SGLang asserts on some of the three


def test_flags_that_are_there_are_not_doubled():
    line = "sglang serve --model-path t --enable-metrics --decode-log-interval 40 --chunked-prefill-size 8192 --disable-radix-cache"
    said = commands(line=line)
    for text in (said.measure, said.capture):
        flags = [word for word in shlex.split(text) if word.startswith("--")]
        assert len(flags) == len(set(flags))
    assert "--decode-log-interval 10" in said.measure
    assert "--chunked-prefill-size -1" in said.capture
    assert said.serve.startswith("sglang serve --model-path t --enable-metrics --decode-log-interval 40")


def test_a_drafter_of_fewer_positions_than_the_context():
    short = {**DRAFT, "max_position_embeddings": 2048}
    said = commands(draft=short)
    assert said.serve.startswith("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 python")
    assert "The drafter's positions end at 2048, the context is 4096" in " ".join(said.notes)
    assert "OVERWRITE" not in commands(draft=short, line="sglang serve --model-path t --context-length 2048").serve


@pytest.mark.parametrize(
    ("boundaries", "target", "says"),
    [
        ((0, 3, 16), LLAMA30, "No capture of ids [-1, 2, 15]: SGLang 0.5.23 takes 0 to 29 there."),
        ((16, 3, 28), LLAMA30, "No capture: SGLang 0.5.23 with LlamaForCausalLM cannot be told to feed [16, 3, 28]"),
        ((3, 16, 30), LLAMA30, "No capture: SGLang 0.5.23 with LlamaForCausalLM cannot be told to feed [3, 16, 30]"),
    ],
)
def test_what_sglang_cannot_hand_out_is_said(boundaries, target, says):
    said = commands(boundaries=boundaries, target=target)
    assert said.capture is None
    assert any(note.startswith(says) for note in said.notes)


def test_ids_of_the_capture_follow_the_targets_convention():
    kimi = commands(target=KIMI, boundaries=(2, 30, 58)).capture
    assert "--return-aux-hidden-state-layer-ids 1 29 57" in kimi  # a first id of 1 means + 1 in every version
    assert convention_for(SGLANG, KIMI["architectures"][0]).feed([1, 29, 57], 61).boundaries == (2, 30, 58)
    assert "--return-aux-hidden-state-layer-ids 2 15 27" in commands(boundaries=(3, 16, 28, FINAL)).capture


def settings_of(command: str, flag: str = "--speculative-config") -> dict:
    words = shlex.split(command)
    return json.loads(words[words.index(flag) + 1])


def test_vllm_without_a_launch_line():
    said = commands(VLLM)
    assert said.serve.startswith("vllm serve target --speculative-config ")
    assert settings_of(said.serve) == {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}
    assert said.measure == f"{said.serve} --per-request-spec-decode-metrics detailed"
    assert settings_of(said.capture) == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {KEY: [3, 16, 28, 30]}},
    }
    connector = settings_of(said.capture, "--kv-transfer-config")
    assert (connector["kv_connector"], connector["kv_connector_extra_config"]) == (
        "ExampleHiddenStatesConnector",
        {"shared_storage_path": "states"},
    )
    assert said.capture.endswith("--no-enable-prefix-caching")
    assert all(options(line) <= set(table()["options"]["vllm"]) for line in lines(said))


@pytest.mark.parametrize(
    "speculation",
    [
        '--speculative-config \'{"method": "eagle", "model": "/d", "num_speculative_tokens": 5}\'',
        "-sc.method eagle -sc.model /d -sc.num_speculative_tokens 5",
        "--spec-method eagle --spec-model /d --spec-tokens 5",
    ],
)
def test_vllm_keeps_the_launch_line(speculation):
    line = f"VLLM_USE_V1=1 vllm serve /m/t --disable-log-stats {speculation} -tp 2"
    said = commands(VLLM, line)
    assert said.serve.startswith("VLLM_USE_V1=1 vllm serve /m/t --disable-log-stats ")
    assert settings_of(said.serve) == {"method": "eagle3", "model": "/d", "num_speculative_tokens": 5}
    assert "--spec-" not in said.serve
    assert "-sc" not in said.serve
    assert "-tp 2" in said.serve
    assert "--disable-log-stats" not in said.measure
    assert settings_of(said.capture)["method"] == "extract_hidden_states"


def test_vllm_takes_the_number_that_was_trained():
    trained = {"speculators_config": {"proposal_methods": [{"speculative_tokens": 7}]}}
    assert settings_of(commands(VLLM, draft=trained).serve)["num_speculative_tokens"] == 7
    assert "--per-request" not in commands("vllm==0.22.0").measure
    assert "has no --per-request-spec-decode-metrics" in " ".join(commands("vllm==0.22.0").notes)


def test_calls_in_python_give_their_paths_and_steps():
    call = """
llm = sgl.Engine(model_path="/m/t", tp_size=4, speculative_algorithm="EAGLE3", speculative_draft_model_path="/d",
                 speculative_num_steps=2, speculative_eagle_topk=1, speculative_num_draft_tokens=3, mem=some_variable)
"""
    launch = parse_launch(call)
    assert (launch.engine, launch.algorithm, launch.num_steps, launch.problems) == ("sglang", "EAGLE3", 2, ())
    said = commands(line=call)
    assert said.serve == (
        "python -m sglang.launch_server --model-path /m/t --tp-size 4 --speculative-algorithm EAGLE3 --speculative-draft-model-path /d "
        "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
    )
    assert "is no command line" in said.notes[0]
    offline = parse_launch(
        'LLM("/m/t", tensor_parallel_size=2, speculative_config={"method": "eagle3", "model": "/d", "num_speculative_tokens": 3})'
    )
    assert (offline.engine, offline.num_steps, offline.given["model"]) == ("vllm", 3, "/m/t")


def test_another_engines_launch_line_is_left_aside():
    said = commands(line="vllm serve /m/t --spec-method eagle3 --spec-model /d")
    assert "nothing of it is kept" in said.notes[0]
    assert "--model-path target" in said.serve
    with pytest.raises(ValueError, match="got SpecForge, expected an engine that serves: sglang, vllm"):
        commands("specforge")


def test_an_option_that_nobody_looked_up_is_never_written():
    with pytest.raises(KeyError):
        Line(parse_engine(SGLANG), (), ()).with_flag("--made-up")


@pytest.mark.parametrize(
    "text", ["", "'", "sglang serve", "vllm serve", "Engine(", "LLM(**", "a=b sglang serve \x00 --x", "-m sglang", "x" * 9999]
)
def test_odd_launch_lines_never_raise(text):
    said = commands(line=text)
    assert "EAGLE3" in said.serve
    assert lines(commands(VLLM, text))


def test_the_command_line_prints_them(tmp_path, capsys):
    for name, config in (("drafter", {**DRAFT, "eagle_config": {KEY: [-1, 2, 15]}}), ("target", LLAMA30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "launch.sh").write_text(
        "python -m sglang.launch_server \\\n  --model-path /m/t --speculative-algo EAGLE --speculative-num-steps 3"
    )
    words = ["wiring", str(tmp_path / "drafter"), "--target", str(tmp_path / "target"), "--engine", SGLANG, "--boundaries", "3,16,28"]
    assert main([*words, "--json"]) == 0
    assert "commands" not in json.loads(capsys.readouterr().out)
    assert main([*words, "--write", "--launch", str(tmp_path / "launch.sh"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["commands"]
    assert said["serve"].startswith("python -m sglang.launch_server --model-path /m/t --speculative-algorithm EAGLE3")
    assert set(said) == {"first", "serve", "measure", "record", "capture", "notes"}
    folder = tmp_path / "drafter"  # where the corrected config was written: the launch line names no drafter
    corrected = f"{folder}/config.sglang-0.5.23.json"
    assert said["first"] == f"cp {folder}/config.json {folder}/config.before.json && cp {corrected} {folder}/config.json"
    (tmp_path / "case.toml").write_text("[engine]\nname = 'sglang'\nversion = '0.5.23'\nlaunch = 'launch.sh'\n")
    assert main([*words, "--write", "--launch", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert said["serve"] in printed
    assert "Capture the states of these ids, without the drafter:" in printed
    assert printed.index(said["first"]) < printed.index("Serve:")
    assert f"--model-path {tmp_path / 'target'}" in run(words, capsys)["serve"]


def run(words: list[str], capsys) -> dict:
    assert main([*words, "--write", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["commands"]


def test_a_positional_model_stays_the_only_one():
    """SGLang 0.5.23, cli/serve.py:62-65: the first word behind `serve` becomes --model-path, and of two --model-path the later one wins."""
    said = commands(line="sglang serve org/model --tp 2")
    assert said.serve.startswith("sglang serve org/model --tp 2 --speculative-algorithm EAGLE3")
    assert all("--model-path" not in line for line in lines(said))


def test_a_chain_verifies_one_token_more_than_it_has_steps():
    """SGLang 0.5.23, arg_groups/speculative_hook.py:1255-1265 (0.5.3, server_args.py:1110): 16 are asked for, 2 are in force."""
    said = commands(line=f"{SERVE_T} --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16")
    assert "--speculative-num-draft-tokens 2" in said.serve
    assert "2 is written in place of 16" in " ".join(said.notes)
    tree = commands(line=f"{SERVE_T} --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8")
    assert "--speculative-num-draft-tokens 8" in tree.serve


SERVE_T = "python -m sglang.launch_server --model-path t"


def test_what_only_the_shell_knows_stays_for_the_shell():
    script = """#!/bin/bash
MODEL=/m/t   # the target
export NCCL_DEBUG=INFO
# the server
exec python -m sglang.launch_server \\
  --model-path $MODEL --tp "${TP:-8}" \\
  # the port
  --port "$PORT" --speculative-draft-model-path ~/d "$@" 2>&1 | tee log
echo done
"""
    said = commands(line=script)
    assert said.serve.startswith(
        'NCCL_DEBUG=INFO python -m sglang.launch_server --model-path /m/t --tp 8 --port "$PORT" --speculative-draft-model-path ~/d "$@" '
        "--speculative-algorithm EAGLE3"
    )
    assert "echo" not in said.text
    assert said.notes[:3] == (
        "Of the launch line this is left out: exec; 2>&1; | tee log.",
        "Defaults of the launch line are taken: TP = 8.",
        "The launch line does not say what $PORT, $@ is: the shell must know it.",
    )
    steps = commands(line=f"{SERVE_T} --speculative-num-steps $STEPS --speculative-eagle-topk 1")
    assert "--speculative-num-steps $STEPS --speculative-eagle-topk 1" in steps.serve


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("torchrun --nproc 8 -m sglang.launch_server --model-path t", "V=1 torchrun --nproc 8 -m sglang.launch_server --model-path t"),
        ("kubectl exec pod -- python -m sglang.launch_server --model-path t", "kubectl exec pod -- env V=1 python -m sglang.launch_server"),
        ("ssh node python -m sglang.launch_server --model-path t", "ssh node env V=1 python -m sglang.launch_server --model-path t"),
        ("docker container run i python -m sglang.launch_server --model-path t", "docker container run -e V=1 i python -m sglang.launch"),
        (
            "bash -c 'exec python -m sglang.launch_server --model-path t > log'",
            "bash -c 'V=1 python -m sglang.launch_server --model-path t",
        ),
    ],
)
def test_what_starts_the_server_is_kept_whole(line, start):
    said = commands(line=line)
    assert said.measure.replace("SGLANG_ENABLE_METRICS_DEVICE_TIMER", "V").startswith(start)
    assert parse_launch(said.serve).algorithm == "EAGLE3"


def test_a_container_that_starts_vllm_by_itself():
    settings = '{"method": "eagle3", "model": "/d", "num_speculative_tokens": 5}'
    said = commands(VLLM, f"docker run --gpus all vllm/vllm-openai:v0.32.0 --model m --speculative-config '{settings}'")
    assert said.serve.startswith("docker run --gpus all vllm/vllm-openai:v0.32.0 --model m --speculative-config ")
    assert settings_of(said.serve) == json.loads(settings)


def test_a_variable_inside_vllms_json_is_still_expanded():
    said = commands(VLLM, 'vllm serve m --speculative-config "{\\"model\\": \\"$D\\", \\"num_speculative_tokens\\": 5}"')
    assert '\\"model\\": \\"$D\\"' in said.serve
    assert '--speculative-config "{' in said.serve


def test_small_things_of_the_commands():
    assert "--decode-log-interval 1 " in commands(line=f"{SERVE_T} --decode-log-interval 1 --tp 2").measure
    staged = commands(line=f"{SERVE_T} --pp-size 2 --tp 4")
    assert "--pp-size 2" in staged.serve
    assert "--pp-size" not in staged.capture  # 0.5.23, arg_groups/validation_hook.py:724-728
    plain = commands("vllm==0.22.0")
    assert plain.measure == plain.serve
    assert "Measure:\n  as it is: nothing to add" in plain.text
    assert "not checked for this version" in " ".join(commands("sglang==0.6.1").notes)
    assert commands("sglang==0.5.5").record is None
    assert "cannot be read in full: the flags in s.yaml (--config)" in " ".join(commands(line=f"{SERVE_T} --config s.yaml").notes)


def test_launch_lines_that_are_none_are_said(tmp_path, capsys):
    for name, config in (("drafter", DRAFT), ("target", {**LLAMA30, "architectures": ["\x1b[31mLlamaForCausalLM"]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    words = ["wiring", str(tmp_path / "drafter"), "--target", str(tmp_path / "target"), "--engine", SGLANG]
    assert main([*words, "--launch", "./no_such.sh"]) == 2
    assert "--launch ./no_such.sh: no such file, and no launch line" in capsys.readouterr().err
    assert main([*words, "--launch", str(tmp_path)]) == 2
    capsys.readouterr()
    assert main([*words, "--launch", SERVE_T]) == 0
    printed = capsys.readouterr().out
    assert "Serve:" in printed  # without --write, too
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("engine", "line", "strange"),
    [
        (SGLANG, f"{SERVE_T} --tp 2 --mem-fraction-static 0.8 --no-such-thing --dp_size 2 --made-up=3", "--no-such-thing, --made-up"),
        (VLLM, "vllm serve m -tp 2 --max-model-len 4096 --no-enable-prefix-caching --compilation-config.mode 3 --tp-size 2", "--tp-size"),
        (SGLANG, f"{SERVE_T} --context-length 4096 --trust-remote-code --host 0.0.0.0 --port 30000", None),
    ],
)
def test_options_that_the_version_does_not_have_are_named(engine, line, strange):
    said = commands(engine, line)
    told = [note for note in said.notes if note.startswith("No options that")]
    assert told == ([f"No options that {parse_engine(engine).title} is known to have, kept as they are: {strange}."] if strange else [])
    older = commands(f"{parse_engine(engine).name}==0.30.0", line)
    assert "are kept and not checked for" in " ".join(older.notes)


def test_the_list_of_options_against_sglangs_own_source():
    listed = tomllib.loads((REPOSITORY / "eaglelab" / "engines" / "options.toml").read_text())["sglang"]["names"].split()
    fields = "\n".join(p.read_text() for p in sorted((live("sglang") / "srt" / "arg_groups" / "fields").glob("*.py")))
    assert {name.replace("_", "-") for name in re.findall(r"^    ([a-z]\w*): A\[", fields, re.MULTILINE)} <= set(listed)
