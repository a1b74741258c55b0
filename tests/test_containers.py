"""Containers: gzip bounded and read once, keys of files with several samples."""

import gzip
import io
import pickle
import zipfile

import pytest
import torch

from eaglelab.dumps import containers
from eaglelab.dumps.containers import DumpError, load_torch, split_key


def packed(path, value, zipped=True):
    held = io.BytesIO()
    torch.save(value, held, _use_new_zipfile_serialization=zipped)
    path.write_bytes(gzip.compress(held.getvalue(), 1))
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_a_gzip_of_either_torch_save(tmp_path, zipped):
    value = {"a": torch.randn(3, 5).bfloat16(), "b": [torch.arange(4)]}
    read = load_torch(packed(tmp_path / "a.ckpt.gz", value, zipped))
    assert torch.equal(read["a"], value["a"])
    assert torch.equal(read["b"][0], value["b"][0])


def test_a_gzip_that_unpacks_to_more_than_memory_should_hold(tmp_path, monkeypatch):
    path = packed(tmp_path / "a.ckpt.gz", torch.zeros(1 << 20))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(containers, "MAX_UNPACKED", 1 << 20)
    with pytest.raises(DumpError, match=r"a\.ckpt\.gz: unpacks to more than 0\.000976562 GiB") as raised:
        load_torch(path)
    assert raised.value.problem == "too large"


def packed_again(path, value, method=zipfile.ZIP_DEFLATED):
    """A torch save whose zip was written again with compression, as an archiver does it."""
    held = io.BytesIO()
    torch.save(value, held)
    with zipfile.ZipFile(held) as old, zipfile.ZipFile(path, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_that_was_packed_again_holds_the_same_numbers(tmp_path, method):
    value = {"a": torch.arange(40_000).float().reshape(200, 200), "b": torch.arange(7)}
    read = load_torch(packed_again(tmp_path / "a.pt", value, method))
    assert torch.equal(read["a"], value["a"])
    assert torch.equal(read["b"], value["b"])


def test_a_compressed_zip_that_unpacks_to_more_than_memory_should_hold(tmp_path, monkeypatch):
    path = packed_again(tmp_path / "a.pt", torch.zeros(1 << 20))
    monkeypatch.setattr(containers, "MAX_UNPACKED", 1 << 20)
    with pytest.raises(DumpError, match=r"a\.pt: unpacks to more than 0\.000976562 GiB"):
        load_torch(path)


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("a.jsonl#3", ("a.jsonl", 3)),
        ("a.json", ("a.json", None)),
        ("b#2/a.json", ("b#2/a.json", None)),
        ("b#2/a.json#0", ("b#2/a.json", 0)),
        ("a.jsonl#", ("a.jsonl#", None)),
        ("#3", ("#3", None)),
    ],
)
def test_keys_of_files_with_several_samples(key, parts):
    assert split_key(key) == parts


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_plain_pickle_is_no_torch_save_and_no_switch_helps(tmp_path, protocol, zipped):
    held = pickle.dumps({"input_ids": [1, 2], "hidden_states": torch.zeros(2, 3)}, protocol=protocol)
    path = tmp_path / "a.pt"
    path.write_bytes(gzip.compress(held) if zipped else held)
    for trusted in (False, True):
        with pytest.raises(DumpError, match=r"a\.pt: a plain pickle, which torch\.save did not write.*save the same value with") as raised:
            load_torch(path, allow_pickle=trusted)
        assert "allow_pickle" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"x"), "the gzip holds another gzip: unpack it once"),
        (b"hello", r"the gzip holds no torch save: it starts with b'hello'"),
    ],
)
def test_a_gzip_of_something_else(tmp_path, content, said):
    path = tmp_path / "a.pt"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DumpError, match=said):
        load_torch(path)


def test_a_gzip_is_unpacked_to_a_few_times_its_size(tmp_path, monkeypatch):
    path = packed(tmp_path / "a.ckpt.gz", torch.zeros(1 << 20))
    size, most = path.stat().st_size, []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda file, n=-1: most.append(n) or read(file, n))
    monkeypatch.setattr(containers, "SMALL", 1 << 10)
    with pytest.raises(DumpError, match=r"a\.ckpt\.gz: unpacks to more than .* GiB") as raised:
        load_torch(path)
    assert (raised.value.problem, most) == ("too large", [20 * size + 1])
