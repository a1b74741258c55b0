"""The command line: shapes of the JSON, exit codes, cheap checks without torch, known answers of `wiring`."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import tiny_models
import torch
from case_builder import build_case, draft_config, make_world, write_case
from safetensors.torch import load_file, save_file

from eaglelab.cli import build_parser, main
from eaglelab.drafter.embedding import EmbeddingError, load_embedding_rows
from eaglelab.target.sketch import PROBE_TEXT, load_sketch
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
    check_types(data["verdict"], {"stage": str, "confidence": str, "text": str, "changes": list, "faults": list, "not_looked_at": list})
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
    code, out, _ = run("dump", case, text=True)
    assert "8 of 8 samples looked at" in out
    first = out.partition("First values\n")[2].splitlines()
    assert len(first) == 1 + 12 + 1  # header, rows, what is left out
    assert first[-1] == f"… {len(data['values']) - 12} more rows (--json has all)"


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


def test_identify_of_a_folder_says_what_it_needs(case, tmp_path, world, run):
    code, data, _ = run("identify", case / "dump")
    assert code == 2
    assert "Give --target DIR or --sketch FILE, or a case" in data["error"]
    assert "eaglelab new" not in data["error"]
    for command in ("identify", "dump"):
        for what in (tmp_path / "nowhere", tmp_path):
            code, data, _ = run(command, what)
            assert (code, data["kind"]) == (2, "DumpError")
            assert "Check the path" in data["error"]
            assert "case.toml" not in data["error"]
            assert "[dump]" not in data["error"]
    for way, flag, other in (("sketch", "--target", "--sketch"), ("tensors", "--sketch", "--target")):
        code, data, _ = run("identify", case / "dump", flag, world.folder, "--way", way)
        assert (code, f"--way {way} needs {other}" in data["error"]) == (2, True)


def test_every_option_has_a_text_and_its_default():
    commands = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    for name, sub in commands.items():
        for action in sub._actions:
            assert action.help, (name, action.dest)
            if action.option_strings and action.dest != "help":
                assert "(default: " in action.help or "(required)" in action.help, (name, action.dest)
            if isinstance(action.default, (int, str)) and action.default not in (False, argparse.SUPPRESS):
                assert f"default: {action.default}" in action.help, (name, action.dest)


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
    assert load_sketch(file).probe() == data
    code, data, _ = run("sketch", world.folder)
    assert (code, "without --dump the probe text is sketched, which needs the target's tokenizer" in data["error"]) == (2, True)
    code, data, _ = run("sketch", world.folder, "--embedding", tmp_path / "e.safetensors")
    assert (code, "--embedding needs --dump" in data["error"]) == (2, True)


def test_sketch_of_no_samples_at_all_is_one_of_all(case, world, tmp_path, run):
    file = tmp_path / "s.safetensors"
    run("sketch", world.folder, "--dump", case / "dump", "--max-samples", 0, "--rows", 16, "--out", file)
    assert len(load_sketch(file).texts) == len(list((case / "dump").rglob("data_*.pt"))) == 8


def test_sketch_writes_the_embedding_rows_that_a_case_needs(world, tmp_path, run):
    """A case without the target, from nothing but what the command writes: the replay runs, and boundary 0 is ruled out by value."""
    case = build_case(tmp_path / "case", world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4], target="none")
    rows = case / "embed_rows.safetensors"
    arguments = ("sketch", world.folder, "--dump", case, "--embedding", rows, "--rows", 8, "--out", tmp_path / "s")
    code, data, _ = run(*arguments)
    assert (code, data["embedding"]) == (0, str(rows))
    written = load_file(rows)
    assert data["embedding_rows"] == len(written["token_ids"])
    table = load_file(world.folder / "model.safetensors")["model.embed_tokens.weight"]
    samples = [torch.load(f, weights_only=True) for f in (case / "dump").rglob("data_*.pt")]
    every = torch.cat([torch.as_tensor(s["input_ids"]) for s in samples]).unique()
    assert torch.equal(written["token_ids"], every)
    assert torch.equal(written["rows"], table[every])
    assert "rows of the embedding table; in case.toml: [drafter] embed" in run(*arguments, text=True)[1]
    toml = case / "case.toml"
    toml.write_text(toml.read_text().replace('embed = "rows.safetensors"', f'embed = "{rows.name}"'))
    assert rows.name in toml.read_text()
    assert run("replay", case, "--steps", 1)[0] == 0
    few = load_embedding_rows(tmp_path / "s")  # a sketch will do as well, for the tokens that it has
    assert torch.equal(few.rows, table[few.token_ids])
    toml.write_text(toml.read_text().replace(rows.name, str(tmp_path / "s")))
    code, data, _ = run("replay", case, "--steps", 1)
    assert len(every) > len(few.token_ids)
    assert code == 2
    assert "--embedding FILE` writes the rows of all their tokens" in data["error"]


def test_embedding_rows_are_those_of_the_table_where_the_target_scales_them(case, tmp_path, run):
    """Gemma multiplies by sqrt(H) = 8 before layer 0: that is boundary 0, which the sketch keeps, and not what a drafter is given."""
    target = tiny_models.make_model("gemma", tmp_path / "gemma", **tiny_models.COMMON)
    file, rows = tmp_path / "s", tmp_path / "e"
    assert run("sketch", target, "--dump", case / "dump", "--out", file, "--embedding", rows, "--rows", 8)[0] == 0
    table = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    raw, scaled = load_embedding_rows(rows), load_embedding_rows(file)
    assert torch.equal(raw.rows, table[raw.token_ids])
    assert torch.allclose(scaled.rows, table[scaled.token_ids] * 8)


def test_a_file_without_embedding_rows_says_how_to_make_one(tmp_path):
    how = "eaglelab sketch TARGET --dump DUMP --embedding FILE"
    for name, tensors in (("none", {"token_ids": torch.zeros(0).long(), "rows": torch.zeros(0, 4)}), ("other", {"x": torch.ones(2)})):
        save_file(tensors, tmp_path / name)
    for name, said in (("none", "with n > 0, got"), ("other", f"or a sketch, found only .'x'.; `{how}"), ("gone", f"no such file .*{how}")):
        with pytest.raises(EmbeddingError, match=said):
            load_embedding_rows(tmp_path / name)


def test_sketch_without_a_dump_sketches_the_probe_text(world, tmp_path, run):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = list(dict.fromkeys(PROBE_TEXT.split()))[:40]
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, **{w: i for i, w in enumerate(words, 1)}}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    target, file = tmp_path / "target", tmp_path / "probe.safetensors"
    shutil.copytree(world.folder, target)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(target)
    code, out, _ = run("sketch", target, "--out", file, text=True)
    assert code == 0
    assert "64 rows of the probe text" in out
    assert f"`eaglelab sketch {file} --probe` prints their ids" in out
    expected = [words.index(w) + 1 if w in words else 0 for w in PROBE_TEXT.split()][:64]
    assert run("sketch", file, "--probe")[1] == [expected]


def test_replay_has_chains_and_trees_in_one_table_and_says_what_its_columns_are(case, run):
    code, text, _ = run("replay", case, "--steps", 2, "--topk", 2, "--draft-tokens", 4, text=True)
    data = run("replay", case, "--steps", 2, "--topk", 2, "--draft-tokens", 4)[1]
    assert code == 0
    rows = [line.split() for line in text.split("joint by step\n")[1].splitlines()]
    chain, tree = (next(r for r in rows if what in r) for what in ("chain", "tree"))
    own = data["replays"][0]
    assert chain[:6] == ["the", "dump's", "feed", "chain", "of", "2"]
    assert chain[6:9] == [f"{own['walk']['accept_length']:.3f}", f"{own['walk']['verify_steps']:,}", f"{own['accept_length']:.3f}"]
    drafted = "the dump's feed tree of 2 steps, top-k 2, 4 nodes"
    walk = data["trees"][0]["walk"]
    assert " ".join(tree).startswith(f"{drafted} {walk['accept_length']:.3f} {walk['verify_steps']:,} - - -")
    assert "accept length: tokens per verify pass as a server counts" in text


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
    rows = len(data["ranking"])
    code, out, _ = run("replay", case, text=True)
    assert re.search(r"the dump's feed +chain of 3 +\d\.\d{3} ", out)  # walk 1.509, not 1.5089820359281436
    assert f"… {rows - 12} more feeds (--json has all)" in out


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


def test_wiring_says_the_rule_and_that_a_copy_takes_the_originals_place(configs, run):
    arguments = ("wiring", configs, "--target", configs / "target.json", "--engine", "sglang==0.5.23")
    _, out, _ = run(*arguments, "--boundaries", "3,31,59", "--write", text=True)
    assert "  rule: id k is boundary k + 1 when the first id is 1, else boundary k\n" in out
    assert "slot 0: id 2 -> " in out
    assert "First, put the corrected config where the engine reads it:\n  cp " in out
    assert not (configs / "config.sglang-0.5.23.json").unlink()
    _, out, _ = run(*arguments, "--boundaries", "2,30,58", "--write", text=True)
    assert "already so: nothing to change\n\nServe:\n" in out
    assert not (configs / "config.sglang-0.5.23.json").exists()
    code, data, _ = run(*arguments, "--boundaries", "2,30,58", "--write")
    assert (code, data["diff"], data["corrected"]) == (0, "", json.loads((configs / "config.json").read_text()))
    (configs / "config.json").write_text(json.dumps(draft_config(None)))
    assert "id None" not in run(*arguments, text=True)[1]


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
    assert run("check", good, "--steps", 1)[0] == 0  # it was trained for one
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
