"""case.toml: what is read, what is refused, and the text of every refusal."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import eaglelab
from eaglelab.case import SECTIONS, TEMPLATE, CaseError, Claim, TimingSection, new_case, open_case
from eaglelab.dumps import FORMATS
from eaglelab.dumps.raw_folders import FILE_KEYS, RawFolders


def write(folder: Path, text: str) -> Path:
    for name in ("dump", "drafter", "target"):
        (folder / name).mkdir(exist_ok=True)
    for name in ("sketch.safetensors", "config.json", "server.log"):
        (folder / name).write_text("{}")
    file = folder / "case.toml"
    file.write_text(text)
    return file


FULL = """
[dump]
path = "dump"
format = "raw_folders"
split = "heldout"
feed = [2, 0, 1, 3]
allow_pickle = false
files = { token_ids = "ids.pt", slots = ["a.pt", "b.pt"] }
[drafter]
path = "./drafter"
embed = "sketch.safetensors"
[target]
path = "target"
config = "config.json"
[engine]
name = "sglang"
version = "0.5.23"
launch = "python -m sglang.launch_server --model-path m"
log = "server.log"
url = "http://localhost:30000"
[training]
framework = "specforge"
[[claims]]
slot = 0
text = "embed"
source = "a comment"
[[claims]]
key = "eagle_config.eagle_aux_hidden_state_layer_ids"
text = "[-1, 2, 15]"
"""


def test_every_key_of_a_full_case(tmp_path):
    case = open_case(write(tmp_path, FULL))
    assert case.dump.path == tmp_path / "dump"
    assert (case.dump.format, case.dump.split, case.dump.feed, case.dump.allow_pickle) == ("raw_folders", "heldout", (2, 0, 1, 3), False)
    assert case.dump.files == {"token_ids": "ids.pt", "slots": ["a.pt", "b.pt"]}
    assert (case.drafter.path, case.drafter.embed) == (tmp_path / "drafter", tmp_path / "sketch.safetensors")
    assert case.engine.spec == "sglang==0.5.23"
    assert case.engine.launch.startswith("python -m sglang")
    assert case.claims == (
        Claim(slot=0, text="embed", source="a comment"),
        Claim(key="eagle_config.eagle_aux_hidden_state_layer_ids", text="[-1, 2, 15]"),
    )
    assert (case.name, case.root, case.file) == (tmp_path.name, tmp_path, tmp_path / "case.toml")
    assert case.timing == TimingSection()


def test_absent_sections_are_none_and_not_given(tmp_path):
    case = open_case(write(tmp_path, '[drafter]\npath = "drafter"'))
    assert case.dump.path is None
    assert case.engine.spec is None
    assert [name for name, kind in SECTIONS.items() if getattr(case, name) != kind()] == ["drafter"]


def test_the_folder_and_the_package_function_open_the_same_case(tmp_path, monkeypatch):
    file = write(tmp_path, '[drafter]\npath = "drafter"')
    assert open_case(tmp_path) == open_case(file) == eaglelab.open_case(str(file))
    monkeypatch.chdir(tmp_path)
    assert open_case("case.toml").drafter.path == tmp_path / "drafter"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[dumps]\npath = 'dump'", r"unknown section 'dumps'; did you mean 'dump'\?"),
        ("[dump]\npaht = 'dump'", r"unknown key 'paht' in \[dump\]; did you mean 'path'\? Known: path, format"),
        ("[engine]\nzzz = 1", r"unknown key 'zzz' in \[engine\]; Known: name, version"),
        ("[[claims]]\nslto = 1\ntext = 'x'", r"unknown key 'slto' in \[\[claims\]\]; did you mean 'slot'"),
        ("name = 'x'", r"unknown section 'name'"),
        ("dump = 'x'", r"dump is 'x' \(str\), expected a section \[dump\]"),
        (f"a = {'[' * 5000}{']' * 5000}", "nested too deeply, expected sections"),
        ("[dump]\npath = 3", r"\[dump\] path is 3 \(int\), expected text"),
        ("[dump]\npath = ''", r"\[dump\] path is empty"),
        ("[dump]\npath = 'nowhere'", r"\[dump\] path = 'nowhere': nothing at .*/nowhere; paths are relative to"),
        ("[engine]\nversion = 0.5", r"\[engine\] version is 0.5 \(float\), expected text \(put it in quotes"),
        ("[engine]\nlaunch = 'run.sh'", r"launch = 'run.sh': neither a file at .*run.sh nor a command line"),
        ("[dump]\nsplit = 'test'", r"split is 'test' \(str\), expected one of 'train', 'heldout'"),
        ("[dump]\nallow_pickle = 'yes'", r"allow_pickle is 'yes' \(str\), expected true or false"),
        ("[dump]\nfeed = [0, 1.5]", r"feed is \[0, 1.5\] \(list\), expected slot numbers"),
        ("[dump]\nfeed = [true, false]", "expected slot numbers"),
        ("[dump]\nfeed = [-1, 2]", "expected slot numbers"),
        ("[dump]\nfeed = [3]", "expected slot numbers"),
        ("[dump]\nfiles = 'a.pt'", r"files is 'a.pt' \(str\), expected a table of names"),
        ("[claims]\nslot = 0", r"claims is .*expected \[\[claims\]\] entries"),
        ("[[claims]]\ntext = 'x'", "expected either slot"),
        ("[[claims]]\nslot = 0\nkey = 'k'\ntext = 'x'", "expected either slot"),
        ("[[claims]]\nslot = 0", r"\[\[claims\]\] number 1: text is missing"),
        ("[[claims]]\nslot = -1\ntext = 'x'", r"slot is -1 \(int\), expected a slot's number"),
        ("[dump\npath = 1", r"case.toml is not TOML: .*line 1"),
        ("[engine]\nlaunch = 'vllm serve t --speculative-config '{}''", r"not TOML: .*between ''' and '''"),
        ("", "gives nothing yet: uncomment at least one section"),
        ("[dump]", "gives nothing yet"),
        ("[target]\nsketch = 'gone'\npath = 'gone_too'", r"\[target\] sketch = 'gone': nothing at"),
        ('[dump]\npath = "a\\u0000b"', r"\[dump\] path = 'a.x00b': nothing at"),
        ("[dump]\npath = '~nobody_here/x'", r"nothing at .*~nobody_here/x"),
        (f"[dump]\npath = '{'a' * 5000}'", r"nothing at .*aaa"),
        ("[target]\npath = 'gone'", r"\[target\] path = 'gone': nothing at"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    file = write(tmp_path, text)
    with pytest.raises(CaseError, match=message) as caught:
        open_case(file)
    assert str(file) in str(caught.value)


def test_paths_that_are_no_case(tmp_path):
    with pytest.raises(CaseError, match=r"no case\.toml in .*`eaglelab new"):
        open_case(tmp_path)
    with pytest.raises(CaseError, match=r"no case at .*gone"):
        open_case(tmp_path / "gone")
    (tmp_path / "case.toml").write_bytes(b"\xff\xfe\x00\x00")
    with pytest.raises(CaseError, match="cannot be read as UTF-8 text"):
        open_case(tmp_path)


@pytest.mark.parametrize("stand_in", ["sketch = 'sketch.safetensors'", "config = 'config.json'"])
def test_an_absent_target_is_no_error_where_something_stands_in(tmp_path, stand_in):
    case = open_case(write(tmp_path, f"[target]\npath = '/not/here'\n{stand_in}"))
    assert case.target.path is None
    assert case.target.sketch or case.target.config


def test_launch_may_be_a_file(tmp_path):
    (tmp_path / "launch.sh").write_text("python -m sglang.launch_server \\\n  --model-path m\n")
    case = open_case(write(tmp_path, "[engine]\nlaunch = 'launch.sh'"))
    assert "--model-path m" in case.engine.launch
    (tmp_path / "launch.sh").write_text("\n")
    with pytest.raises(CaseError, match=r"the content of .*launch\.sh is empty"):
        open_case(tmp_path)


def test_a_new_case_says_that_it_is_empty_and_is_never_overwritten(tmp_path):
    file = new_case(tmp_path / "deep" / "mine")
    with pytest.raises(CaseError, match="gives nothing yet"):
        open_case(file)
    file.write_text("mine")
    with pytest.raises(CaseError, match="is there already: it is left as it is"):
        new_case(file.parent)
    assert file.read_text() == "mine"
    with pytest.raises(CaseError, match="is a file, expected a folder"):
        new_case(file)


def test_the_template_uncommented_names_every_key_and_is_a_case(tmp_path):
    text = re.sub(r"^# (?=\[|\w+ = )", "", TEMPLATE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(re.findall(r"#", text)) > 20  # each key says what it is
    for section, kind in SECTIONS.items():
        for key in fields(kind):
            assert re.search(rf"^(?:{key.name} = |\[{section}\.{key.name}\])", text, flags=re.MULTILINE), (section, key.name)
    for name in re.findall(
        r'^(?:path|embed|vocabulary|config|sketch|tokenizer|log|counters|recordings|capture|draft_config|trace|metrics|table) = "([^"]+)"',
        text,
        flags=re.M,
    ):
        (tmp_path / name).mkdir(parents=True, exist_ok=True) if not name.startswith("/") else None
    (tmp_path / "launch.sh").write_text("python -m sglang.launch_server --model-path m")
    (tmp_path / "case.toml").write_text(text)
    case = open_case(tmp_path)
    assert all(getattr(case, name) != kind() for name, kind in SECTIONS.items())
    assert case.dump.format in FORMATS
    assert all(f'"{name}"' in text for name in FORMATS)
    assert tuple(case.dump.files) == FILE_KEYS
    assert RawFolders.named(case.dump.files).slots == ("aux_0.pt", "aux_1.pt", "aux_2.pt")
    assert len(case.claims) == 2
