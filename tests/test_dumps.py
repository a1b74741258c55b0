"""Dumps: two formats found by content, samples read lazily, and a plain error for every bad input."""

import fractions
import gzip
import json
import os
import pickle
import socket
import zipfile
from pathlib import Path

import pytest
import torch

from eaglelab.dumps import DumpError, Feed, open_dump
from eaglelab.dumps.health import check_health

T, H = 6, 8


def sample(tokens=T, hidden=H, slots=4, dtype=torch.bfloat16, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.arange(tokens) + 10 * seed,
        "hidden_states": [torch.randn(tokens, hidden, generator=g).to(dtype) for _ in range(slots)],
        "loss_mask": (torch.arange(tokens) >= 2).long(),
    }


@pytest.fixture
def sharded(tmp_path):
    """Twelve samples in two shards, with what trainers leave beside them."""
    for i in range(12):
        shard = tmp_path / f"rows_{i // 6 * 6}-{i // 6 * 6 + 6}"
        shard.mkdir(exist_ok=True)
        torch.save(sample(seed=i), shard / f"data_{i}.pt")
    torch.save({5: 3}, tmp_path / "token_freq.pt")
    (tmp_path / "vocab_mapping").mkdir()
    torch.save({"d2t": torch.zeros(3)}, tmp_path / "vocab_mapping" / "vocab_mapping.pt")
    config = {"version": "2.0", "hidden_states": {"layer_ids": [2, 30, 58, 60]}}
    (tmp_path / "data_config.json").write_text(json.dumps(config))
    return tmp_path


def raw_folder(folder, mask=False, data=None, token_file="input_ids.pt", batch=False):
    folder.mkdir(parents=True)
    data = data or sample()
    *aux, last = [state[None] if batch else state for state in data["hidden_states"]]
    for i, state in enumerate(aux):
        torch.save(state, folder / f"aux_{i}.pt")
    torch.save(last, folder / "final.pt")
    torch.save(data["input_ids"], folder / token_file)
    if mask:
        torch.save(data["loss_mask"], folder / "loss_mask.pt")
    return data


# ---- the list-of-four layout


def test_sharded_dump_is_found_in_natural_order_and_streamed(sharded):
    dump = open_dump(sharded)
    assert dump.format == "list_of_four"
    assert len(dump) == 12
    assert dump.keys[:3] == ["rows_0-6/data_0.pt", "rows_0-6/data_1.pt", "rows_0-6/data_2.pt"]
    assert dump.keys[-2:] == ["rows_6-12/data_10.pt", "rows_6-12/data_11.pt"]
    assert dump.slot_names == tuple(f"hidden_states[{s}]" for s in range(4))
    assert dump.hidden_size == H
    assert dump.stray == ["token_freq.pt", "vocab_mapping/vocab_mapping.pt"]
    loaded, made = dump.load("rows_6-12/data_7.pt"), sample(seed=7)
    assert loaded.key == "rows_6-12/data_7.pt"
    assert torch.equal(loaded.token_ids, made["input_ids"])
    assert torch.equal(loaded.loss_mask, made["loss_mask"])
    assert all(torch.equal(a, b) for a, b in zip(loaded.slots, made["hidden_states"], strict=True))
    assert loaded.slots[0].dtype == torch.bfloat16


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mapped files")
def test_slots_are_memory_mapped(sharded):
    dump = open_dump(sharded)
    held = dump.load("rows_0-6/data_3.pt")
    maps = Path("/proc/self/maps").read_text()
    assert str(sharded / "rows_0-6" / "data_3.pt") in maps
    assert held.slots[0].shape == (T, H)  # keeps the mapping alive up to here
    assert str(sharded / "rows_0-6" / "data_2.pt") not in maps


def test_choice_is_seeded_and_reaches_every_shard(sharded):
    dump = open_dump(sharded)
    assert dump.choose(5, seed=1) == dump.choose(5, seed=1)
    assert dump.choose(5, seed=1) != dump.choose(5, seed=2)
    assert dump.choose(None) == dump.choose(99) == dump.keys
    assert {key.split("/")[0] for seed in range(3) for key in dump.choose(6, seed)} == {"rows_0-6", "rows_6-12"}
    assert [s.key for s in dump.samples(5, seed=1)] == dump.choose(5, seed=1)
    with pytest.raises(ValueError, match="max_samples is 0"):
        dump.choose(0)


def test_layer_ids_of_the_metadata_are_claims_with_their_convention(sharded):
    implied = open_dump(sharded).implied
    assert (implied.layer_ids, implied.framework, implied.last_state) == ((2, 30, 58, 60), "speculators==0.4.0", "N")
    (detail,) = check_health(open_dump(sharded)).table.query("what == 'claim'")["detail"]
    assert detail.startswith("speculators 0.3 to 0.4 writes such files: layer ids [2, 30, 58, 60]; the last state is before the final norm")


@pytest.mark.parametrize("text", ["{", "[]", '{"hidden_states": 3}', '{"hidden_states": {"layer_ids": ["a"]}}', "[" * 100_000])
def test_broken_metadata_is_a_note_and_the_dump_still_opens(sharded, text):
    (sharded / "data_config.json").write_text(text)
    dump = open_dump(sharded)
    assert dump.implied.layer_ids is None
    assert not dump.implied.certain
    assert "data_config.json" in dump.notes[0]


def test_feed_has_a_default_and_can_be_set(sharded):
    dump = open_dump(sharded)
    assert dump.feed == Feed((0, 1, 2), 3)
    dump.feed = [2, 1, 3]
    assert dump.feed == Feed((2, 1), 3)
    for wrong in ([0, 9], [3], [], None, "ab", [0, True], [[0, 1], 2]):
        with pytest.raises(DumpError, match=r"\[dump\] feed: .* expected slots 0\.\.3"):
            dump.feed = wrong


def test_two_slots_one_file_and_names_without_numbers(tmp_path):
    torch.save(sample(slots=2), tmp_path / "alpha.pt")
    torch.save(sample(slots=2, seed=1), tmp_path / "beta.pt")
    dump = open_dump(tmp_path)
    assert dump.keys == ["alpha.pt", "beta.pt"]
    assert dump.feed == Feed((0,), 1)
    single = open_dump(tmp_path / "beta.pt")
    assert single.keys == ["beta.pt"]
    assert int(single.load("beta.pt").token_ids[0]) == 10


def test_gzip_and_legacy_saves_are_read(tmp_path):
    data = sample()
    torch.save(data, tmp_path / "data_0.pt", _use_new_zipfile_serialization=False)
    torch.save(data, tmp_path / "plain")
    with gzip.open(tmp_path / "data_1.ckpt.gz", "wb") as file:
        file.write((tmp_path / "plain").read_bytes())
    dump = open_dump(tmp_path)
    assert dump.keys == ["data_0.pt", "data_1.ckpt.gz"]
    for loaded in dump.samples():
        assert torch.equal(loaded.slots[3], data["hidden_states"][3])


def test_batch_dimension_of_one_is_taken_off_with_a_note(tmp_path):
    data = sample()
    batched = {
        "input_ids": data["input_ids"][None],
        "hidden_states": [s[None] for s in data["hidden_states"]],
        "loss_mask": data["loss_mask"][None].bool(),
    }
    torch.save(batched, tmp_path / "data_0.pt")
    loaded = open_dump(tmp_path).load("data_0.pt")
    assert loaded.slots[0].shape == (T, H)
    assert loaded.notes == ("a batch dimension of 1 was taken off",)
    assert loaded.loss_mask.tolist() == [0, 0, 1, 1, 1, 1]
    assert loaded.loss_mask.dtype == torch.int64


def test_no_mask_means_unknown_never_all_ones(tmp_path):
    data = sample()
    del data["loss_mask"]
    torch.save(data, tmp_path / "data_0.pt")
    assert open_dump(tmp_path).load("data_0.pt").loss_mask is None


# ---- the raw layout


def test_raw_folders_with_and_without_a_mask(tmp_path):
    made = raw_folder(tmp_path / "req_10")
    raw_folder(tmp_path / "req_2", mask=True, token_file="token_ids.pt", batch=True)
    dump = open_dump(tmp_path)
    assert dump.format == "raw_folders"
    assert dump.keys == ["req_2", "req_10"]
    assert dump.slot_names == ("aux_0", "aux_1", "aux_2", "final")
    assert dump.load("req_10").loss_mask is None
    assert dump.load("req_2").loss_mask.tolist() == [0, 0, 1, 1, 1, 1]
    assert all(torch.equal(a, b) for a, b in zip(dump.load("req_2").slots, made["hidden_states"], strict=True))
    assert open_dump(tmp_path / "req_2").keys == ["."]


def test_raw_file_names_can_be_set(tmp_path):
    data = sample()
    folder = tmp_path / "a"
    folder.mkdir()
    for name, value in zip(("low.pt", "high.pt", "end.pt"), data["hidden_states"], strict=False):
        torch.save(value, folder / name)
    torch.save(data["input_ids"].tolist(), folder / "ids.pt")
    files = {"slots": ["high.pt", "low.pt"], "last": "end.pt", "token_ids": "ids.pt"}
    loaded = open_dump(tmp_path, files=files).load("a")
    assert loaded.slot_names == ("high", "low", "end")
    assert torch.equal(loaded.slots[0], data["hidden_states"][1])
    assert loaded.token_ids.tolist() == data["input_ids"].tolist()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"slot": ["a.pt"]}, "unknown key 'slot'.*did you mean 'slots'"),
        ({"slots": "a.pt"}, "slots is 'a.pt', expected a list of file names"),
        ({"last": "../../etc/passwd"}, "expected a file inside the sample's folder"),
        ({"token_ids": 3}, "token_ids is 3, expected a file name"),
    ],
)
def test_wrong_file_settings(tmp_path, files, message):
    raw_folder(tmp_path / "a")
    with pytest.raises(DumpError, match=message):
        open_dump(tmp_path, files=files)


def test_a_raw_sample_that_lacks_a_file_is_skipped_with_its_reason(tmp_path):
    raw_folder(tmp_path / "a")
    raw_folder(tmp_path / "b")
    (tmp_path / "b" / "final.pt").unlink()
    raw_folder(tmp_path / "c")
    (tmp_path / "c" / "input_ids.pt").unlink()
    dump = open_dump(tmp_path)
    assert [s.key for s in dump.samples()] == ["a"]
    assert "has no final.pt" in dump.skipped["b"]
    assert "has no input_ids.pt or token_ids.pt or tokens.pt" in dump.skipped["c"]


def test_raw_folders_none_of_which_has_a_last_state(tmp_path):
    for name in "ab":
        made = raw_folder(tmp_path / name)
        (tmp_path / name / "final.pt").unlink()
    for forced in (None, "raw_folders"):
        dump = open_dump(tmp_path, format=forced)
        assert (dump.slot_names, dump.feed) == (("aux_0", "aux_1", "aux_2"), Feed((0, 1, 2), None))
        assert "no folder has a final.pt" in dump.notes[0]
        dump.feed = [0, 1, 2, -1]
        assert torch.equal(dump.load("b").slots[2], made["hidden_states"][2])
    raw_folder(tmp_path / "c")
    assert len(open_dump(tmp_path).slot_names) == 4  # now a and b lost theirs
    with pytest.raises(DumpError, match=r"has no last\.pt"):
        open_dump(tmp_path, files={"last": "last.pt"})  # named, so it has to be there


@pytest.mark.parametrize("second", ["aux_0.pth", "aux_00.pt"])
def test_a_raw_slot_in_two_files_is_an_error(tmp_path, second):
    raw_folder(tmp_path / "a")
    raw_folder(tmp_path / "b")
    torch.save(torch.zeros(T, H), tmp_path / "b" / second)
    dump = open_dump(tmp_path)
    with pytest.raises(DumpError, match=r"aux_0\S* and aux_0\S* are one slot in two files") as raised:
        dump.load("b")
    assert raised.value.problem == "slot twice"
    assert check_health(dump).summary["with_errors"] == 1


def test_raw_token_ids_in_two_files_have_to_be_the_same(tmp_path):
    data = raw_folder(tmp_path / "a")
    torch.save(data["input_ids"].tolist(), tmp_path / "a" / "token_ids.pt")
    assert torch.equal(open_dump(tmp_path).load("a").token_ids, data["input_ids"])
    torch.save(data["input_ids"] + 1, tmp_path / "a" / "tokens.pt")
    with pytest.raises(DumpError, match=r"input_ids\.pt and token_ids\.pt and tokens\.pt hold different tokens"):
        open_dump(tmp_path)


def test_raw_folders_without_token_ids_say_so_and_not_that_other_formats_do_not_fit(tmp_path):
    for name in "ab":
        raw_folder(tmp_path / name)
        (tmp_path / name / "input_ids.pt").unlink()
    with pytest.raises(DumpError, match=r"The first: \S*a: has no input_ids\.pt or token_ids\.pt or tokens\.pt\. Dump it again"):
        open_dump(tmp_path)


# ---- bad paths


def test_missing_path_and_empty_folder(tmp_path):
    with pytest.raises(DumpError, match=r"no such file or folder \(what exists of it: "):
        open_dump(tmp_path / "nowhere" / "deeper")
    with pytest.raises(DumpError, match="the folder holds no files"):
        open_dump(tmp_path)


def test_unknown_layout_says_what_was_looked_for_and_found(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    torch.save({"input_ids": torch.arange(3), "hidden_states": torch.zeros(3, 4)}, tmp_path / "data_0.pt")
    with pytest.raises(DumpError) as error:
        open_dump(tmp_path)
    text = str(error.value)
    assert "no known dump format fits. Found 2 files: 1 .pt, 1 .txt" in text
    assert "- list_of_four: torch files that hold a dict with input_ids [T], hidden_states (a list" in text
    assert "data_0.pt holds a dict with hidden_states (one tensor [3, 4] of float32), input_ids (one tensor [3] of int64)." in text
    assert text.count("- raw_folders: one folder a sample with aux_0.pt, aux_1.pt, …, final.pt and") == 1


def test_unknown_format_name_suggests_the_nearest(tmp_path):
    torch.save(sample(), tmp_path / "data_0.pt")
    with pytest.raises(DumpError, match=r"unknown format 'list_of_for'.*did you mean 'list_of_four'"):
        open_dump(tmp_path, format="list_of_for")


def test_links_that_lead_back_into_the_dump_are_not_followed(tmp_path):
    (tmp_path / "dump" / "rows_0-1").mkdir(parents=True)
    torch.save(sample(), tmp_path / "dump" / "rows_0-1" / "data_0.pt")
    (tmp_path / "dump" / "loop").symlink_to(tmp_path / "dump")
    (tmp_path / "dump" / "again").symlink_to(tmp_path / "dump" / "rows_0-1")
    (tmp_path / "other").mkdir()
    torch.save(sample(seed=1), tmp_path / "other" / "data_1.pt")
    (tmp_path / "dump" / "linked").symlink_to(tmp_path / "other")
    assert open_dump(tmp_path / "dump").keys == ["linked/data_1.pt", "rows_0-1/data_0.pt"]


# ---- bad files: each one beside a good one, so that the dump opens and the bad one has its reason


def _truncate(path):
    torch.save(sample(tokens=64, hidden=64), path)
    path.write_bytes(path.read_bytes()[:20_000])


def _truncate_gzip(path):
    torch.save(sample(tokens=64, hidden=64), path)
    path.write_bytes(gzip.compress(path.read_bytes())[:20_000])


def _truncate_legacy(path):
    torch.save(sample(tokens=64, hidden=64), path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:20_000])


def _cut_out_the_middle(path):
    torch.save(sample(tokens=64, hidden=64), path)
    data = path.read_bytes()
    path.write_bytes(data[:5_000] + data[15_000:])


def _other_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")


def _edited(**changes):
    def write(path):
        data = sample()
        data.update(changes)
        torch.save({k: v for k, v in data.items() if v is not None}, path)

    return write


BAD_FILES = {
    "empty": (lambda p: p.write_bytes(b""), r"is empty \(0 bytes\)", "empty"),
    "text": (lambda p: p.write_text("hello there"), r"not a torch file: it starts with b'hello there'", "unreadable"),
    "lfs": (lambda p: p.write_text("version https://git-lfs.github.com/spec/v1"), "Git LFS pointer", "unreadable"),
    "truncated": (_truncate, "the file is cut off: 20,000 bytes", "truncated"),
    "truncated gzip": (_truncate_gzip, "the file is cut off", "truncated"),
    "truncated legacy": (_truncate_legacy, "the file is cut off", "truncated"),
    "zip with a hole": (_cut_out_the_middle, "damaged or not a torch file", "unreadable"),
    "other zip": (_other_zip, "damaged or not a torch file", "unreadable"),
    "foreign": (_edited(extra=fractions.Fraction(1, 2)), r"\(fractions.Fraction\).*\[dump\] allow_pickle = true", "foreign objects"),
    "bare pickle": (lambda p: p.write_bytes(pickle.dumps(print)), "a plain pickle, which torch.save did not write", "foreign objects"),
    "a tensor": (
        lambda p: torch.save(torch.zeros(2), p),
        r"holds one tensor \[2\] of float32; expected a dict with input_ids",
        "not a sample",
    ),
    "no ids": (
        _edited(input_ids=None),
        r"holds a dict with hidden_states \(a list of 4, the first one tensor .*\), loss_mask \(one tensor \[6\] of int64\); expected",
        "not a sample",
    ),
    "float ids": (_edited(input_ids=torch.zeros(T)), "input_ids is float32, expected integer token ids", "not a sample"),
    "one slot": (_edited(hidden_states=[torch.zeros(T, H)]), "holds 1 tensors, expected two or more", "not a sample"),
    "int slot": (
        _edited(hidden_states=[torch.zeros(T, H).int()] * 4),
        r"hidden_states\[0\] holds int32, expected a float dtype",
        "not a sample",
    ),
    "no width": (_edited(hidden_states=[torch.zeros(T, 0)] * 4), r"has the shape \[6, 0\], expected \[T, H\]", "not a sample"),
    "complex": (_edited(hidden_states=[torch.zeros(T, H) + 0j] * 4), "holds complex64, expected a float dtype", "not a sample"),
    "batch of two": (
        _edited(hidden_states=[torch.zeros(2, T, H)] * 4),
        r"hidden_states\[0\] has the shape \[2, 6, 8\], expected \[T, H\]",
        "not a sample",
    ),
    "absurd shape": (
        _edited(hidden_states=[torch.zeros(1).expand(1 << 40, H)] * 4),
        "claims the shape .* over fewer stored values",
        "not a sample",
    ),
    "wrong width": (
        _edited(hidden_states=[torch.zeros(T, 5)] * 4),
        "wrong width: H = 5, the other samples have 8",
        "mixed widths",
    ),
    "mixed widths": (
        _edited(hidden_states=[torch.zeros(T, 8), torch.zeros(T, 8), torch.zeros(T, 8), torch.zeros(T, 5)]),
        r"mixed widths: the slots have the widths \[8, 8, 8, 5\]",
        "mixed widths",
    ),
    "three slots": (_edited(hidden_states=[torch.zeros(T, H)] * 3), "3 slots, the other samples have 4", "slots differ"),
    "short states": (
        _edited(hidden_states=[torch.zeros(T - 1, H)] * 4),
        r"lengths differ: token ids 6, hidden_states\[0\] 5",
        "lengths differ",
    ),
    "huge id": (_edited(input_ids=[1, 10**30, *range(T - 2)]), "input_ids holds a number that does not fit into 64 bits", "not a sample"),
    "huge mask": (_edited(loss_mask=[1, 10**30, *[0] * (T - 2)]), "loss_mask holds a number that does not fit", "not a sample"),
    "huge mask of floats": (
        _edited(loss_mask=[1.0, 10**400, *[0] * (T - 2)]),
        "loss_mask holds a number that does not fit",
        "not a sample",
    ),
    "short mask": (_edited(loss_mask=torch.ones(T - 2).long()), "loss mask 4", "lengths differ"),
    "no tokens": (
        _edited(input_ids=torch.zeros(0).long(), hidden_states=[torch.zeros(0, H)] * 4, loss_mask=torch.zeros(0)),
        "no tokens: T = 0",
        "no tokens",
    ),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_is_skipped_with_a_plain_reason(tmp_path, name):
    write, message, problem = BAD_FILES[name]
    for i in (0, 1, 3):
        torch.save(sample(seed=i), tmp_path / f"data_{i}.pt")
    write(tmp_path / "data_2.pt")
    dump = open_dump(tmp_path)
    with pytest.raises(DumpError, match=f"data_2.pt.*({message})") as error:
        dump.load("data_2.pt")
    assert problem in (None, error.value.problem)
    assert "mmap can only be used" not in str(error.value)
    assert [s.key for s in dump.samples()] == ["data_0.pt", "data_1.pt", "data_3.pt"]
    assert list(dump.skipped) == ["data_2.pt"]


def test_every_file_bad_is_an_error_unless_the_format_is_forced(tmp_path):
    for i in range(3):
        _truncate(tmp_path / f"data_{i}.pt")
    with pytest.raises(DumpError, match=r"Found 3 files: 3 .pt. None of 3 tried is a sample. The first: .*data_0.pt: the file is cut off"):
        open_dump(tmp_path)
    dump = open_dump(tmp_path, format="list_of_four")
    with pytest.raises(DumpError, match=r"none of 3 samples could be read. The first: .*cut off"):
        list(dump.samples())


def test_a_feed_for_a_dump_of_bad_files_only_says_why_they_are_bad(tmp_path):
    _truncate(tmp_path / "data_0.pt")
    dump = open_dump(tmp_path, format="list_of_four")
    with pytest.raises(DumpError, match=r"feed: \[0, 1, 2, 3\]: no sample could be read.*The first: .*data_0\.pt: the file is cut off"):
        dump.feed = [0, 1, 2, 3]


def test_foreign_objects_are_read_only_with_the_switch(tmp_path):
    data = sample()
    data["extra"] = fractions.Fraction(1, 2)
    torch.save(data, tmp_path / "data_0.pt")
    with pytest.raises(DumpError, match="allow_pickle = true"):
        open_dump(tmp_path)
    assert len(open_dump(tmp_path, allow_pickle=True).load("data_0.pt").slots) == 4


def test_a_hostile_pickle_never_runs(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({**sample(), "x": Bomb()}, tmp_path / "data_0.pt")
    with pytest.raises(DumpError, match="so it is refused"):
        open_dump(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_dump_and_error_survive_the_way_to_a_worker(sharded):
    dump = pickle.loads(pickle.dumps(open_dump(sharded)))
    assert dump.load("rows_0-6/data_0.pt").slots[0].shape == (T, H)
    error = pickle.loads(pickle.dumps(DumpError("text", "truncated")))
    assert (str(error), error.problem) == ("text", "truncated")


def test_listing_opens_no_file(sharded, monkeypatch):
    """What is opened does not grow with the dump: a few probes, whatever the number of samples."""
    opened = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda path, **kw: opened.append(path) or load(path, **kw))
    open_dump(sharded)
    assert len(opened) <= 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_regular_file_is_no_sample_and_is_never_waited_for(sharded):
    """Opening a pipe without a writer waits for ever; a link that leads nowhere is a sample that is lost, and stays in the list."""
    before = open_dump(sharded).keys
    os.mkfifo(sharded / "rows_0-6" / "data_90.pt")
    os.mkfifo(sharded / "pipe")
    (sharded / "rows_0-6" / "data_91.pt").symlink_to(sharded / "pipe")
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(sharded / "rows_0-6")  # a socket's path has 108 characters at most
    server.bind("data_92.pt")
    os.chdir(here)
    server.close()
    (sharded / "rows_0-6" / "data_93.pt").symlink_to("nowhere.pt")
    dump = open_dump(sharded)
    assert set(dump.keys) - set(before) == {"rows_0-6/data_93.pt"}
    with pytest.raises(DumpError, match="not a regular file"):
        dump.load("rows_0-6/data_90.pt")
    assert len(list(dump.samples(None))) == 12
    assert list(dump.skipped) == ["rows_0-6/data_93.pt"]


def test_a_link_to_itself_is_a_sample_that_is_lost_and_ends_no_listing(sharded):
    (sharded / "rows_0-6" / "data_94.pt").symlink_to("data_94.pt")
    (sharded / "folder").symlink_to(sharded / "folder")
    dump = open_dump(sharded)
    assert (len(dump), len(list(dump.samples(None)))) == (13, 12)
    assert "Too many levels of symbolic links" in dump.skipped["rows_0-6/data_94.pt"]
    assert check_health(dump, max_samples=None).summary["text"] == "13 of 13 samples looked at, 1 with errors"


def test_a_folder_that_cannot_be_listed_is_told_and_ends_no_listing(sharded, monkeypatch):
    scandir = os.scandir

    def closed(folder):
        if str(folder).endswith("rows_6-12"):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", closed)
    dump = open_dump(sharded)
    assert (len(dump), dump.notes) == (6, ["the folder rows_6-12/ cannot be listed (Permission denied): its samples are left out"])


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("sampleA.pt", "sampleB.pt", "sampleC_1.pt"), 3),
        (("data_0.pt", "data_1.pt", "data_2.pt", "best.pt"), 3),
        (("data_0.pt", "best.pt"), 2),
    ],
)
def test_a_name_without_a_number_is_no_sample_only_where_most_are_numbered(tmp_path, names, keys):
    for i, name in enumerate(names):
        torch.save(sample(seed=i), tmp_path / name)
    dump = open_dump(tmp_path)
    assert (len(dump), dump.stray) == (keys, ["best.pt"] if keys < len(names) else [])


def test_a_name_that_is_no_text_is_left_out(tmp_path):
    torch.save(sample(), tmp_path / "data_0.pt")
    (tmp_path / "data_0.pt").with_name(os.fsdecode(b"data_\xff.pt")).write_bytes((tmp_path / "data_0.pt").read_bytes())
    dump = open_dump(tmp_path)
    assert dump.keys == ["data_0.pt"]
    assert check_health(dump).summary["severity"] == {}
