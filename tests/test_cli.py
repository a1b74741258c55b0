"""The command line: shapes of the JSON, exit codes, cheap checks without torch, known answers of `wiring`."""

import json
import os
import subprocess
import sys

import pytest
from case_builder import build_case, draft_config, make_world, write_case

from eaglelab.cli import main
from eaglelab.wiring import FINAL

FINDING = {"id": str, "title": str, "status": str, "claim": str, "evidence": dict, "next": str}
STATUSES = {"pass", "fail", "cannot_tell", "not_given", "not_applicable"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), "llama", 6, seed=3)


@pytest.fixture(scope="module")
def case(world, tmp_path_factory):
    """The story: the config feeds the embedding, 1 and 3; the dump holds 1, 3, 5."""
    claims = [{"slot": 0, "text": "embed"}, {"slot": 1, "text": "layer1"}]
    return build_case(tmp_path_factory.mktemp("case"), world, slots=[1, 3, 5, FINAL], ids=[-1, 0, 2], claims=claims)


@pytest.fixture
def configs(tmp_path):
    """A DeepSeek-type target of 61 layers and a drafter with the story's ids."""
    target = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 129280}
    (tmp_path / "target.json").write_text(json.dumps(target))
    (tmp_path / "config.json").write_text(json.dumps(draft_config([2, 30, 58])))
    return tmp_path


@pytest.fixture
def run(capsys):
    """run(*arguments) -> (exit code, the one JSON document, stderr)."""

    def call(*arguments, text=False):
        code = main([str(a) for a in arguments] + ([] if text else ["--json"]))
        out, err = capsys.readouterr()
        return code, out if text else json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")), err

    return call


def check_types(data, shape):
    assert data.keys() == shape.keys()
    for key, kind in shape.items():
        assert isinstance(data[key], kind), key


# -- check --------------------------------------------------------------------------------------------------------------------------


def test_check_gives_one_document_in_the_contracts_shapes(case, run):
    code, data, _ = run("check", case)
    assert code == 1
    assert list(data) == ["case", "wiring", "findings", "verdict"]
    assert data["wiring"] == {"dump": [1, 3, 5, FINAL], "drafter": [1, 3, 5], "engine": [0, 1, 3]}
    for finding in data["findings"]:
        check_types(finding, FINDING)
        check_types(finding["evidence"], {"text": str, "numbers": dict})
        assert finding["status"] in STATUSES
    ids = [f["id"] for f in data["findings"]]
    assert len(ids) == len(set(ids))
    check_types(data["verdict"], {"stage": str, "confidence": str, "text": str, "changes": list})
    assert (data["verdict"]["stage"], data["verdict"]["confidence"]) == ("wiring", "sure")
    key, by_engine = "eagle_config.eagle_aux_hidden_state_layer_ids", {}
    for change in data["verdict"]["changes"]:
        check_types(change, {"file": str, "key": str, "value": list, "engine": str})
        by_engine[change["engine"]] = (change["key"], change["value"])
    assert by_engine == {"sglang==0.5.23": (key, [0, 2, 4]), "vllm": ("eagle_aux_hidden_state_layer_ids", [1, 3, 5])}


def test_check_as_text_says_the_same(case, run):
    code, out, _ = run("check", case, text=True)
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("[ok] SGLang 0.5.23 feeds boundaries [0, 1, 3]")  # cheap findings first
    assert "Verdict (sure): wiring" in lines
    assert "  for sglang==0.5.23: eagle_config.eagle_aux_hidden_state_layer_ids = [0, 2, 4]" in lines


def test_case_toml_and_its_folder_are_the_same_case(case, run):
    assert run("check", case, "--cheap")[1] == run("check", case / "case.toml", "--cheap")[1]


def test_a_reason_is_printed_once(tmp_path, world, run):
    broken = build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], dump={"feed": [0, 1, 2, 9]})
    _, out, _ = run("check", broken, text=True)
    assert out.count("names slots that are not there") == 3  # the first title, once as evidence, and the verdict
    assert out.count("next: Mend the input that is named") == 1


def test_cheap_checks_import_no_torch(case):
    code = (
        "import sys; from eaglelab.cli import main; rc = main(['check', sys.argv[1], '--cheap', '--json']);"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'sglang', 'vllm'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else rc)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(case)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["wiring"] == {"dump": None, "drafter": None, "engine": [0, 1, 3]}
    assert {f["id"] for f in data["findings"]} >= {"wiring.engine", "config.flags", "drafter.complete"}


def test_a_reader_that_has_gone_is_no_error(case):
    done = subprocess.run(
        f"{sys.executable} -m eaglelab.cli check {case} --cheap | true", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


def test_text_of_a_case_cannot_move_the_terminal(tmp_path, world, run):
    hostile = "embed \x1b[2J\x07 <b>"
    claims = [{"slot": 0, "text": hostile, "source": "\x1b]0;title\x07"}, {"slot": 7, "text": "layer1"}]
    bad = build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], claims=claims)
    _, out, _ = run("check", bad, text=True)
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\\x1b" in out
    _, data, _ = run("check", bad)
    assert any(hostile.encode("unicode_escape").decode() in f["claim"] for f in data["findings"])


# -- the other commands -------------------------------------------------------------------------------------------------------------


def test_new_writes_a_case_once(tmp_path, run):
    code, data, _ = run("new", tmp_path / "mine")
    assert (code, data["case"]) == (0, str(tmp_path / "mine" / "case.toml"))
    code, data, _ = run("new", tmp_path / "mine")
    assert code == 2
    assert "is there already" in data["error"]


def test_dump(case, run):
    for what in (case, case / "dump"):
        code, data, _ = run("dump", what)
        assert code == 0
        assert set(data) == {"format", "health", "slots", "values", "cosine", "problems"}
        assert data["format"] == "list_of_four"
        assert data["health"]["checked"] == 8
        assert [row["slot"] for row in data["slots"]] == [0, 1, 2, 3]
    assert "8 of 8 samples looked at" in run("dump", case, text=True)[1]


def test_identify(case, world, run):
    code, data, _ = run("identify", case)
    assert code == 0
    assert data["wiring"] == [1, 3, 5, FINAL]
    code, data, _ = run("identify", case / "dump", "--target", world.folder, "--up-to", 2)
    assert data["wiring"] == [1, None, None, None]
    code, data, _ = run("identify", case / "dump", "--target", world.folder, "--way", "tensors")
    assert data["wiring"] == [None, None, None, FINAL]
    code, out, _ = run("identify", case, text=True)
    assert out.startswith("wiring [1, 3, 5, final]")


def test_identify_prints_slots_that_cannot_be_told(tmp_path, world, run):
    def nan(sample, i):
        sample["hidden_states"][1][:] = float("nan")

    bad = build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], spoil=nan)
    code, out, _ = run("identify", bad, text=True)
    assert code == 0
    assert out.startswith("wiring [1, ?, 5, final]")
    assert "! slot 1, nan" in out
    code, data, _ = run("identify", bad)
    assert data["slots"][1]["relative_error"] is None  # NaN is no JSON


def test_sketch_stands_in_and_prints_its_probe(case, world, tmp_path, run):
    file = tmp_path / "s.safetensors"
    code, data, _ = run("sketch", world.folder, "--dump", case, "--rows", 32, "--dim", 32, "--out", file)
    assert (code, data["sketch"]) == (0, str(file))
    assert run("identify", case / "dump", "--sketch", file)[1]["wiring"] == [1, 3, 5, FINAL]
    code, data, _ = run("sketch", file, "--probe")
    assert code == 0
    code, data, _ = run("sketch", world.folder)
    assert (code, "--dump names the dump" in data["error"]) == (2, True)


def test_replay(case, run):
    code, data, _ = run("replay", case, "--steps", 2)
    assert code == 0
    assert set(data) == {"ranking", "replays"}
    best = data["replays"][0]
    assert best["variant"] == "the dump's feed"
    assert len(best["steps"]) == 2
    assert set(best["steps"][0]) >= {"n", "right", "joint", "conditional", "marginal"}
    assert best["accept_length"] == pytest.approx(1 + sum(step["joint"] for step in best["steps"]))
    assert set(best["walk"]) == {"verify_steps", "accepted", "accept_length"}
    assert any(r["variant"] == "the engine's feed" for r in data["replays"])
    code, out, _ = run("replay", case, text=True)
    assert "the dump's feed: accept length" in out


@pytest.mark.parametrize("arguments", [("--steps", "0"), ("--max-samples", "-1"), ("--dtype", "int3"), ("--device", "gpu!")])
def test_absurd_arguments_are_refused_at_once(case, arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["check", str(case), *arguments])
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_the_few_and_the_many_samples(case, run):
    assert run("check", case, "--max-samples", 1)[0] == 1  # the wiring is told by values, however few samples
    assert run("check", case, "--max-samples", 0)[1]["verdict"]["stage"] == "wiring"


# -- wiring: known answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "fed"), [("0.5.12", [3, 31, 59]), ("0.5.13", [2, 30, 58]), ("0.5.23", [2, 30, 58])])
def test_the_storys_ids_by_version(version, fed, configs, run):
    """2, 30, 58 on a DeepSeek-type target: SGLang changed the meaning of ids in May 2026."""
    arguments = ("wiring", configs / "config.json", "--target", configs / "target.json", "--engine", f"sglang=={version}")
    code, data, _ = run(*arguments)
    assert code == 0
    assert data["wiring"]["engine"] == fed
    assert data["other_versions"]
    assert any("Other versions feed other boundaries" in note for note in data["notes"])
    assert "Other versions feed other boundaries" in run(*arguments, text=True)[1]


def test_write_makes_a_copy_beside_and_leaves_the_original(configs, run):
    before = (configs / "config.json").read_bytes()
    arguments = ("wiring", configs, "--target", configs / "target.json", "--engine", "sglang==0.5.23", "--boundaries", "3,31,59", "--write")
    code, data, _ = run(*arguments)
    assert code == 0
    assert (configs / "config.json").read_bytes() == before
    written = configs / "config.sglang-0.5.23.json"
    assert data["written"] == str(written)
    assert json.loads(written.read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 31, 59]
    code, data, _ = run("wiring", written, "--target", configs / "target.json", "--engine", "sglang==0.5.23")
    assert data["wiring"]["engine"] == [3, 31, 59]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--boundaries", "31,3,59"), "cannot be told to feed"),
        (("--boundaries", "3,x"), "expected numbers and 'final'"),
        (("--boundaries", "3,31,99"), "outside 0..61"),
        (("--boundaries", "-3,31"), "boundary -3 is outside"),
        (("--write",), "--write needs --boundaries"),
    ],
)
def test_what_cannot_be_written_is_said(arguments, text, configs, run):
    common = ("wiring", configs / "config.json", "--target", configs / "target.json", "--engine", "sglang==0.5.23")
    code, data, _ = run(*common, *([f"{arguments[0]}={arguments[1]}"] if len(arguments) > 1 else arguments))
    assert code == 2
    assert text in data["error"]


def test_errors_as_text_go_to_stderr(tmp_path, capsys):
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("eaglelab check: no case at")
    assert len(err.splitlines()) == 1


def test_check_exits_0_3_1_and_2(world, case, tmp_path, run):
    good = build_case(tmp_path / "good", world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4])
    assert run("check", good)[0] == 0
    assert run("check", good, "--max-samples", 1)[0] == 3
    assert run("check", case)[0] == 1
    assert run("check", write_case(tmp_path / "bad", {"dmup": {"path": "x"}}))[0] == 2


@pytest.mark.skipif(os.name != "posix", reason="needs a console script")
def test_the_console_script_runs():
    done = subprocess.run([sys.executable, "-m", "eaglelab.cli", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("eaglelab ")


def test_check_warns_that_versions_differ(tmp_path, run):
    """The story's ids on a DeepSeek-type target of 61 layers: an upgrade from 0.5.12 to 0.5.13 or later changes what is fed."""
    case = tmp_path / "case"
    case.mkdir()
    target = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "vocab_size": 129280,
    }
    draft = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 56,
        "num_key_value_heads": 8, "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "vocab_size": 129280, "draft_vocab_size": 32000,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
    }  # fmt: skip
    (case / "target.json").write_text(json.dumps(target))
    (case / "draft.json").write_text(json.dumps(draft))
    (case / "case.toml").write_text(
        '[target]\nconfig = "target.json"\n[engine]\nname = "sglang"\nversion = "0.5.23"\ndraft_config = "draft.json"\n'
    )
    _, out, _ = run("check", case, "--cheap", text=True)
    assert "feeds boundaries [2, 30, 58]" in out
    assert "other boundaries in other versions of sglang" in out
    assert "[3, 31, 59]" in out
    assert "write ids [3, 31, 59] to keep what" in out
