"""Bad inputs end to end, through `eaglelab check` and the command that reads them: a clear error or a finding, never a traceback."""

import json
import os
import pickle
import shutil
import tempfile

import pytest
import torch
from case_builder import build_case, draft_config, make_world, write_case
from safetensors.torch import load_file, save_file

from eaglelab.cli import main
from eaglelab.wiring import FINAL

SLOTS, IDS = [1, 3, 5, FINAL], [0, 2, 4]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    root = tmp_path_factory.mktemp("good")
    world = make_world(root, "llama", 6, seed=3)
    return build_case(root / "case", world, slots=SLOTS, ids=IDS)


@pytest.fixture
def case(good, tmp_path):
    return shutil.copytree(good, tmp_path / "case")


@pytest.fixture
def run(capsys):
    """run(command, …) -> (exit code, JSON)."""

    def call(*arguments):
        code = main([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def finding(data, id):
    return next(f for f in data["findings"] if f["id"] == id)


def edit_case(case, old, new):
    file = case / "case.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def samples_of(case):
    return sorted((case / "dump").rglob("*.pt"))


def edit_sample(file, change):
    sample = torch.load(file, weights_only=True)
    change(sample)
    torch.save(sample, file)


def edit_tensors(case, change):
    file = case / "drafter" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


# -- the case and its paths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "dump", "identify", "replay", "report"])
def test_a_missing_path(command, tmp_path, run):
    code, data = run(command, tmp_path / "nowhere")
    assert code == 2
    assert str(tmp_path / "nowhere") in data["error"]


@pytest.mark.parametrize("command", ["check", "dump", "identify", "replay"])
def test_an_empty_folder(command, tmp_path, run):
    code, data = run(command, tmp_path)
    assert code == 2
    assert str(tmp_path) in data["error"]
    assert "eaglelab new" in data["error"] or "no known dump format" in data["error"] or "empty" in data["error"]


def test_a_path_in_the_case_that_is_not_there(case, run):
    edit_case(case, 'path = "drafter"', 'path = "draftre"')
    code, data = run("check", case)
    assert code == 2
    assert "[drafter] path = 'draftre': nothing at" in data["error"]


@pytest.mark.parametrize(
    ("old", "new", "guess"),
    [("[drafter]", "[draftr]", "'drafter'"), ("version =", "verison =", "'version'"), ("feed =", "feeds =", "'feed'")],
)
def test_a_misspelt_key(old, new, guess, case, run):
    edit_case(case, old, new)
    code, data = run("check", case)
    assert code == 2
    assert f"did you mean {guess}?" in data["error"]


@pytest.mark.parametrize(
    ("text", "says"), [("", "gives nothing yet"), ("[dump\n", "is not TOML"), ("\x00\xff", "cannot be read"), ("a = 1", "unknown")]
)
def test_a_case_file_that_is_none(text, says, tmp_path, run):
    (tmp_path / "case.toml").write_bytes(text.encode("latin-1"))
    code, data = run("check", tmp_path)
    assert code == 2
    assert says in data["error"] or "is not TOML" in data["error"]


# -- the dump -----------------------------------------------------------------------------------------------------------------------


RAN = os.path.join(tempfile.gettempdir(), f"eaglelab-code-that-ran-{os.getpid()}")


class Foreign:
    """What a pickle may carry: loading it must run nothing."""

    def __reduce__(self):
        return os.mkdir, (RAN,)


def text_file(file):
    file.write_text("this is no tensor\n")


def truncated(file):
    file.write_bytes(file.read_bytes()[:5000])


def foreign(file):
    torch.save({"input_ids": torch.arange(4), "hidden_states": [Foreign()] * 4, "loss_mask": torch.ones(4)}, file)


def plain_pickle(file):
    file.write_bytes(pickle.dumps({"input_ids": [1, 2], "hidden_states": [Foreign()]}))


def empty_file(file):
    file.write_bytes(b"")


def huge_id(file):
    def change(sample):
        sample["input_ids"] = [10**30, *sample["input_ids"].tolist()[1:]]

    edit_sample(file, change)


def wrong_width(file):
    edit_sample(file, lambda s: s.update(hidden_states=[torch.cat([h, h], 1) for h in s["hidden_states"]]))


def no_response(file):
    edit_sample(file, lambda s: s["loss_mask"].zero_())


def huge_token(file):
    edit_sample(file, lambda s: s["input_ids"].fill_(10**9))


def negative_token(file):
    edit_sample(file, lambda s: s["input_ids"].fill_(-1))


BAD_FILES = {
    text_file: ("not a torch file", "torch"),
    truncated: ("truncated", "cut"),
    foreign: ("foreign objects", "allow_pickle"),
    plain_pickle: ("", "allow_pickle"),
    empty_file: ("empty", ""),
    wrong_width: ("wrong width", ""),
    no_response: ("no response tokens", ""),
    huge_token: ("token", ""),
    negative_token: ("token", ""),
    huge_id: ("not a sample", "64 bits"),
}


@pytest.mark.parametrize("spoil", BAD_FILES, ids=lambda f: f.__name__)
def test_one_bad_file_is_a_row_and_the_rest_goes_on(spoil, case, run):
    bad = samples_of(case)[2]
    spoil(bad)
    key = bad.relative_to(case / "dump").as_posix()
    code, data = run("dump", case)
    assert code == 0
    rows = [r for r in data["problems"] if r["sample"] == key and r["severity"] == "error"]
    assert rows, data["problems"]
    assert any(BAD_FILES[spoil][0] in r["what"] or BAD_FILES[spoil][0] in r["detail"] for r in rows), rows
    code, data = run("check", case)
    assert code == 1
    assert finding(data, "dump.health")["status"] == "fail"
    assert "1 with errors" in finding(data, "dump.health")["title"]
    assert data["wiring"]["dump"] == SLOTS
    assert data["verdict"]["stage"] in ("none found", "dump", "cannot tell")
    assert not os.path.exists(RAN)


@pytest.mark.parametrize("spoil", [text_file, truncated, foreign, plain_pickle, empty_file], ids=lambda f: f.__name__)
def test_nothing_but_bad_files_is_an_unusable_dump(spoil, case, run):
    for file in samples_of(case):
        spoil(file)
    for command in ("dump", "identify", "replay"):
        code, data = run(command, case)
        assert code == 2
        assert str(case / "dump") in data["error"]
    code, data = run("check", case)
    assert code in (1, 3)
    assert finding(data, "replay.works")["status"] == "cannot_tell"
    assert finding(data, "drafter.complete")["status"] == "pass"
    assert not os.path.exists(RAN)


def test_a_pipe_in_a_dump_is_never_waited_for(case, run):
    bad = samples_of(case)[2]
    bad.unlink()
    os.mkfifo(bad)
    code, data = run("dump", case)
    assert code == 0
    assert data["health"]["checked"] == len(samples_of(case)) - 1


def test_a_dump_of_another_width_than_the_drafter(case, run):
    for file in samples_of(case):
        wrong_width(file)
    code, data = run("check", case)
    assert code == 1
    assert "wrong width (8)" in finding(data, "dump.health")["title"]
    assert data["verdict"]["stage"] == "dump"
    code, data = run("replay", case)
    assert code == 2
    assert "states are 128 wide, the drafter's fc expects 3 slots of 64" in data["error"]


def test_a_dump_without_response_tokens(case, run):
    for file in samples_of(case):
        no_response(file)
    code, data = run("replay", case)
    assert code == 2
    assert "loss mask" in data["error"]


def test_an_empty_dump_folder(case, run):
    shutil.rmtree(case / "dump")
    (case / "dump").mkdir()
    code, data = run("check", case)
    assert code == 3
    assert str(case / "dump") in finding(data, "dump.health")["evidence"]["text"]
    assert data["wiring"]["engine"] == [1, 3, 5]


def test_a_format_that_does_not_exist(case, run):
    edit_case(case, "[dump]\n", '[dump]\nformat = "list4"\n')
    code, data = run("check", case)
    assert code == 3
    assert "list4" in finding(data, "dump.health")["title"]
    assert "list_of_four" in finding(data, "dump.health")["evidence"]["text"]


# -- the drafter --------------------------------------------------------------------------------------------------------------------


def test_a_missing_tensor(case, run):
    edit_tensors(case, lambda t: t.pop("fc.weight"))
    code, data = run("check", case)
    assert code == 1
    assert "missing fc.weight" in finding(data, "drafter.complete")["title"]
    code, data = run("replay", case)
    assert code == 2
    assert "missing fc.weight" in data["error"]


@pytest.mark.parametrize("shift", [48, -1])
def test_a_vocabulary_map_out_of_range(shift, case, run):
    edit_tensors(case, lambda t: t.update(d2t=t["d2t"] + shift))
    code, data = run("check", case)
    assert code == 1
    assert "outside the target's vocabulary (0..47)" in finding(data, "drafter.vocabulary")["evidence"]["text"]
    code, data = run("replay", case)
    assert code == 2
    assert "d2t points outside" in data["error"]


def test_weights_cut_short(case, run):
    file = case / "drafter" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    code, data = run("check", case)
    assert code == 3
    assert "model.safetensors: not readable" in finding(data, "drafter.complete")["title"]
    assert data["wiring"]["dump"] == SLOTS


def test_no_weights_at_all(case, run):
    (case / "drafter" / "model.safetensors").unlink()
    code, data = run("check", case)
    assert code == 3
    assert "no weights; looked for model.safetensors" in finding(data, "drafter.complete")["title"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "got a JSON list"),
        ("{}", "names no EAGLE-3 drafter"),
        (json.dumps(draft_config(IDS) | {"hidden_size": -4}), "hidden_size is -4, expected a positive integer"),
        (json.dumps(draft_config(IDS) | {"eagle_config": 3}), "expected an object"),
        (json.dumps(draft_config(IDS) | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "2,3"}}), "expected a list of integers"),
        (json.dumps(draft_config(IDS) | {"draft_vocab_size": 10**6}), "at most vocab_size 48"),
        (json.dumps(draft_config(IDS) | {"num_aux_hidden_states": 10**8, "fc_norm": True}), "expected at most 64"),
        (json.dumps(draft_config([0, 2] * 30_000)), "is 60000, expected at most 64"),
        ('{"x": ' + "[" * 900 + "]" * 900 + "}", "nested too deeply"),
    ],
)
def test_a_drafter_config_that_is_none(text, says, case, run):
    (case / "drafter" / "config.json").write_text(text)
    code, data = run("check", case)
    assert code in (1, 3)
    broken = [f for f in data["findings"] if says in f["evidence"]["text"]]
    assert broken
    assert all(f["status"] == "cannot_tell" for f in broken)
    target = case / "target-config.json"
    code, data = run("wiring", case / "drafter", "--target", target, "--engine", "sglang==0.5.23")
    assert code in (0, 2)  # what an engine feeds may be read from a config that is no whole drafter's
    assert code == 0 or "error" in data


# -- the target and the engine ------------------------------------------------------------------------------------------------------


def test_too_few_layers_for_the_ids(case, run):
    config = json.loads((case / "target-config.json").read_text()) | {"num_hidden_layers": 3}
    (case / "target-config.json").write_text(json.dumps(config))
    code, data = run("wiring", case / "drafter", "--target", case / "target-config.json", "--engine", "sglang==0.5.23")
    assert code == 0
    assert data["wiring"]["engine"] == [1, None, None]
    assert any("outside 0..3" in note for note in data["notes"])


@pytest.mark.parametrize(
    ("text", "says"), [("{}", "num_hidden_layers is None"), ("{", "is not JSON"), ('{"num_hidden_layers": "61"}', "'61'")]
)
def test_a_target_config_that_is_none(text, says, case, run):
    (case / "target-config.json").write_text(text)
    code, data = run("wiring", case / "drafter", "--target", case / "target-config.json", "--engine", "sglang==0.5.23")
    assert code == 2
    assert says in data["error"]
    edit_case(case, "[target]\n", '[target]\nconfig = "target-config.json"\n')
    code, data = run("check", case)
    assert says in finding(data, "wiring.engine")["title"]
    assert data["wiring"]["engine"] is None
    assert finding(data, "replay.works")["status"] == "pass"


@pytest.mark.parametrize(
    ("engine", "says"), [("sglnag==0.5.23", "did you mean 'sglang'?"), ("sglang==new", "got version 'new'"), ("", "got engine ''")]
)
def test_an_engine_that_is_none(engine, says, case, run):
    code, data = run("wiring", case / "drafter", "--target", case / "target-config.json", "--engine", engine)
    assert code == 2
    assert says in data["error"]


def test_a_launch_line_that_cannot_be_read(case, run):
    edit_case(case, 'name = "sglang"', 'name = "sglang"\nlaunch = "python -m sglang.launch_server --speculative-num-steps many"')
    code, data = run("check", case)
    assert code == 1
    assert "does not start: --speculative-num-steps is 'many', expected a whole number" in finding(data, "flags.value")["title"]
    assert data["wiring"]["dump"] == SLOTS


def test_no_embedding_rows(good, tmp_path, run):
    parts = {"dump": {"path": good / "dump"}, "drafter": {"path": good / "drafter"}, "target": {"config": good / "target-config.json"}}
    case = write_case(tmp_path, parts)
    code, data = run("check", case)
    assert code == 3  # nothing fails, and the verdict cannot be told
    assert "embedding rows" in finding(data, "replay.works")["title"]
    assert finding(data, "replay.works")["status"] == "not_given"
    code, data = run("replay", case)
    assert code == 2
    assert "embedding rows is not given" in data["error"] or "embedding rows" in data["error"]


def test_embedding_rows_that_lack_a_token(case, run):
    rows = load_file(case / "rows.safetensors")
    save_file({"token_ids": rows["token_ids"][:5].clone(), "rows": rows["rows"][:5].clone()}, case / "rows.safetensors")
    code, data = run("replay", case)
    assert code == 2
    assert "rows.safetensors holds no embedding row for" in data["error"]


@pytest.mark.parametrize("content", [b"", b"no safetensors", None])
def test_a_file_of_embedding_rows_that_is_none(content, case, run):
    if content is None:
        save_file({"weight": torch.zeros(3, 4)}, case / "rows.safetensors")
    else:
        (case / "rows.safetensors").write_bytes(content)
    code, data = run("replay", case)
    assert code == 2
    assert "rows.safetensors" in data["error"]


def test_embedding_rows_of_another_width(case, run):
    save_file({"token_ids": torch.arange(48), "rows": torch.zeros(48, 10)}, case / "rows.safetensors")
    code, data = run("replay", case)
    assert code == 2
    assert "10" in data["error"]
    assert "64" in data["error"]


def test_a_target_folder_without_weights(case, tmp_path, run):
    (tmp_path / "t").mkdir()
    shutil.copy(case / "target-config.json", tmp_path / "t" / "config.json")
    code, data = run("identify", case / "dump", "--target", tmp_path / "t")
    assert code == 2
    assert "no weights in the folder; expected model.safetensors" in data["error"]


@pytest.mark.parametrize("content", [b"", b"junk" * 100])
def test_a_sketch_that_is_none(content, case, tmp_path, run):
    (tmp_path / "s.safetensors").write_bytes(content)
    for arguments in (
        ("identify", case / "dump", "--sketch", tmp_path / "s.safetensors"),
        ("sketch", tmp_path / "s.safetensors", "--probe"),
    ):
        code, data = run(*arguments)
        assert code == 2
        assert "s.safetensors" in data["error"]
