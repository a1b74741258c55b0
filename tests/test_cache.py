"""Results in the user's cache: what they depend on, that they come back as they were, and that nothing in a file is run."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from case_builder import build_case, make_world

from eaglelab import fingerprint
from eaglelab.cache import CacheError, CacheWarning, Folder, Results, codec, inputs, key, open_folder, results
from eaglelab.cache.folder import place
from eaglelab.cache.inputs import Inputs
from eaglelab.drafter.parts import Flags
from eaglelab.engines.source import archive
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.replay import Variant
from eaglelab.wiring import Wiring

pytestmark = pytest.mark.usefixtures("steady_keys")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), "llama", 6, seed=3)


@pytest.fixture
def case(tmp_path, world):
    root = tmp_path / "case"
    build_case(root, world, slots=[2, 3, 4, "final"])
    return root


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "cache")


def opened(case: Path, folder: Folder | None, since: float = 0.0, **options) -> Investigation:
    """With a cache that keeps everything, however little it took."""
    inv = Investigation(case, **options)
    inv.results = Results(inv, folder, since, worth=0.0)
    return inv


HEAVY = {
    "dump's health": lambda inv: inv.health,
    "fingerprints": lambda inv: inv.fingerprint,
    "identification": lambda inv: inv.identification,
    "last state": lambda inv: inv.last_state,
    "own replay": lambda inv: inv.own_replay,
    "ranking": lambda inv: inv.replays,
    "places": lambda inv: inv.places,
    "choices": lambda inv: inv.other_choices,
    "choice ranking": lambda inv: inv.choice_ranking,
    "both targets": lambda inv: inv.both_targets,
    "long chains": lambda inv: inv.timing.acceptance._replay(5),
}


def same(one, other) -> bool:
    """Equal to the last bit, by what the format writes."""
    return codec.dump(one, {}) == codec.dump(other, {})


def test_every_heavy_result_comes_back_as_it_was(case, folder):
    plain, first, second = opened(case, None), opened(case, folder), opened(case, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        for name, get in HEAVY.items():
            computed = get(first)
            assert same(get(plain), computed), name
            assert same(computed, get(second)), name
    assert first.results.used == []
    assert {u.result for u in second.results.used} >= {"the replay on the dump's feed", "the slots' boundaries", "norm fingerprints"}
    assert "drafter" not in vars(second)  # nothing was loaded to compute it again


def test_a_use_says_when_it_was_computed_and_how_long_it_took(case, folder):
    opened(case, folder).fingerprint  # noqa: B018
    inv = opened(case, folder)
    inv.fingerprint  # noqa: B018
    (use,) = inv.results.used
    assert str(use).startswith("norm fingerprints (computed 20")
    assert str(use).endswith(" s)")
    assert " UTC, " in str(use)


def test_without_a_folder_nothing_is_written(case, tmp_path):
    inv = opened(case, None)
    inv.own_replay  # noqa: B018
    assert inv.results.used == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["case", "eaglelab"]


def test_what_took_no_time_is_not_kept(case, folder):
    inv = opened(case, folder)
    inv.results.worth = 3600.0
    inv.own_replay  # noqa: B018
    assert list(folder.path.iterdir()) == []


# -- the key ---------------------------------------------------------------------------------------------------------------------------


def key_of(case: Path, **options) -> str:
    inv = Investigation(case, **options)
    return key.key_of(inv, key.inputs_of(inv.case))


def flip(path: Path, at: int = -1) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_the_key_is_the_same_for_the_same_case_and_wherever_it_lies(case, tmp_path):
    before = key_of(case)
    assert key_of(case) == before
    moved = tmp_path / "elsewhere" / case.name
    shutil.copytree(case, moved)  # other times, other inodes: these inputs are small, and count by their content
    assert key_of(moved) == before


@pytest.mark.parametrize("name", ["case.toml", "drafter/config.json", "drafter/model.safetensors", "dump"])
def test_a_changed_byte_of_any_input_makes_another_key(case, name):
    before = key_of(case)
    path = next(p for p in sorted((case / name).rglob("*.pt"))) if name == "dump" else case / name
    stat = path.stat()
    if name == "case.toml":
        path.write_text(path.read_text() + "# another comment\n")
    else:
        flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert key_of(case) != before


@pytest.mark.parametrize("options", [{"seed": 1}, {"max_samples": 3}, {"dtype": "bfloat16"}, {"steps": 2}, {"way": "tensors"}])
def test_other_settings_make_another_key(case, options):
    assert key_of(case, **options) != key_of(case)


def test_another_source_or_version_makes_another_key(case, monkeypatch):
    before = key_of(case)
    (key.HERE / "module.py").write_text("number = 2")
    assert key_of(case) != before
    (key.HERE / "module.py").write_text("number = 1")
    assert key_of(case) == before
    monkeypatch.setattr(key, "versions", lambda: {"torch": "0.0"})
    assert key_of(case) != before


def test_a_file_that_comes_or_goes_makes_another_key(case):
    before = key_of(case)
    some = next((case / "dump").rglob("*.pt"))
    extra = some.with_name("data_999.pt")
    shutil.copy(some, extra)
    assert key_of(case) != before
    extra.unlink()
    assert key_of(case) == before


@pytest.mark.parametrize("how", ["folder", "installed"])
def test_the_engines_own_code_is_an_input_and_read_anew(case, tmp_path, monkeypatch, how):
    from engine_wheels import toy_files

    for name, text in toy_files().items():
        file = tmp_path / "site" / "sglang" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "site" / "sglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    toml, place = case / "case.toml", "installed" if how == "installed" else tmp_path / "site"
    toml.write_text(toml.read_text().replace("[engine]", f'[engine]\nsource = "{place}"'))
    before, source = key_of(case), archive.open_source("sglang", str(place))
    assert key_of(case) == before
    path = next(p for p in (tmp_path / "site").rglob("*.py") if "layers_to_capture" in p.read_text())
    path.write_text(path.read_text().replace("i + 1", "i + 2"))
    assert key_of(case) != before
    assert archive.open_source("sglang", str(place)) is not source


def test_masks_beside_the_dump_are_an_input(case):
    before = key_of(case)
    (case / "state.json").write_text('{"_data_files": [{"filename": "train.arrow"}]}')
    told = key_of(case)
    (case / "train.arrow").write_bytes(b"masks")
    assert len({before, told, key_of(case)}) == 3


def test_a_folder_that_is_linked_twice_counts_twice(case):
    before, dump = key_of(case), case / "dump"
    one, other = sorted(p for p in dump.iterdir() if p.is_dir())[:2]
    (dump / "again").symlink_to(one)
    first = key_of(case)
    (dump / "again").unlink()
    (dump / "again").symlink_to(other)
    assert len({before, first, key_of(case)}) == 3


def test_how_torchs_libraries_are_told_to_compute_makes_another_result(case, folder, monkeypatch):
    opened(case, folder).fingerprint  # noqa: B018
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    inv = opened(case, folder)
    inv.fingerprint  # noqa: B018
    assert inv.results.used == []
    monkeypatch.setenv("MKL_NUM_THREADS", "3")  # `report` shares the cores among its kernels: no number comes from this
    again = opened(case, folder)
    again.fingerprint  # noqa: B018
    assert len(again.results.used) == 1


def test_a_device_that_is_not_here_is_no_error_of_the_cache(case, folder):
    opened(case, folder, device="cuda:77")


def test_a_large_input_counts_by_times_and_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "WHOLE", 1000)
    monkeypatch.setattr(inputs, "SMALL", 100)
    monkeypatch.setattr(inputs, "PIECE", 16)
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "a.bin").write_bytes(bytes(5000))
    (dump / "b.json").write_bytes(b"{}")
    before = Inputs({"dump": dump}).digest
    moved = tmp_path / "moved"
    dump.rename(moved)
    assert Inputs({"dump": moved}).digest == before  # no place is part of it
    with (moved / "a.bin").open("r+b") as file:  # outside of the pieces, and the time of the content put back: the inode's tells
        file.seek(1000)
        file.write(b"x")
    stat = (moved / "a.bin").stat()
    os.utime(moved / "a.bin", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert Inputs({"dump": moved}).digest != before


def test_files_that_change_while_the_case_is_open_keep_the_result_out(case, folder):
    inv = opened(case, folder)
    flip(next((case / "dump").rglob("*.pt")))
    with pytest.warns(CacheWarning, match="results are not kept: files of the case, or of eaglelab, changed while it was open") as said:
        inv.fingerprint, inv.health  # noqa: B018
    assert len(said) == 1
    assert not list(folder.path.glob("*.result"))


def test_files_that_change_after_the_case_was_opened_are_computed_from(case, folder):
    opened(case, folder).fingerprint  # noqa: B018
    inv = opened(case, folder)
    flip(next((case / "dump").rglob("*.pt")), -3000)
    with pytest.warns(CacheWarning, match="changed while it was open"):
        found = inv.fingerprint
    assert inv.results.used == []
    assert same(found, opened(case, None).fingerprint)


def test_what_an_interrupted_run_did_is_dropped_where_files_changed_meanwhile(case, folder, monkeypatch):
    inv = opened(case, folder)

    def stopped(sample, rows):
        if stops:
            raise KeyboardInterrupt
        stops.append(sample)
        flip(case / "drafter" / "config.json", 0)
        return real(sample, rows)

    stops, real = [], fingerprint.fingerprint_sample
    monkeypatch.setattr(fingerprint, "fingerprint_sample", stopped)
    with pytest.warns(CacheWarning, match="changed while it was open"), pytest.raises(KeyboardInterrupt):
        inv.fingerprint  # noqa: B018
    assert results._left == {}


def test_files_that_were_written_just_before_are_not_kept(case, folder, monkeypatch):
    """On a file system whose clock ticks slowly another write may leave their times as they are."""
    monkeypatch.setattr(inputs, "COARSE", 60.0)
    with pytest.warns(CacheWarning, match="results are not kept: files of the case were written just before it was opened"):
        opened(case, folder).fingerprint  # noqa: B018
    assert not list(folder.path.glob("*.result"))


def test_a_kernel_that_may_run_old_code_keeps_nothing(case, folder, monkeypatch):
    monkeypatch.setattr(results, "BEGUN", time.time() - 60)
    with pytest.warns(CacheWarning, match="results are not kept: eaglelab's own files changed since this kernel began: restart it"):
        inv = opened(case, folder)
    inv.fingerprint  # noqa: B018
    assert not list(folder.path.iterdir())
    assert inv.results.unfinished.left is not results._left  # which is of several cases, by keys that name them


def test_a_result_that_names_places_is_of_this_place(case, folder, tmp_path):
    opened(case, folder).health  # noqa: B018
    moved = tmp_path / "moved" / case.name
    shutil.copytree(case, moved)
    inv = opened(moved, folder)
    inv.health  # noqa: B018
    assert inv.results.used == []


def test_fresh_results_are_computed_again_and_then_shared(case, folder):
    opened(case, folder).fingerprint  # noqa: B018
    now = time.time()
    first, second = opened(case, folder, since=now), opened(case, folder, since=now)
    first.fingerprint, second.fingerprint  # noqa: B018
    assert first.results.used == []
    assert [u.result for u in second.results.used] == ["norm fingerprints"]


# -- the folder ------------------------------------------------------------------------------------------------------------------------


def test_the_place_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EAGLELAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert place() == tmp_path / ".cache" / "eaglelab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert place() == tmp_path / "xdg" / "eaglelab"
    monkeypatch.setenv("EAGLELAB_CACHE", str(tmp_path / "mine"))
    assert place() == tmp_path / "mine"
    assert open_folder().path.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("EAGLELAB_CACHE", "off")
    assert open_folder() is None


def test_without_a_home_there_is_no_cache_and_no_error(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "EAGLELAB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))  # as for a container's user without an entry
    with pytest.warns(CacheWarning, match="results are not kept: .*home.* EAGLELAB_CACHE names a folder, or `off`"):
        assert open_folder() is None


@pytest.mark.parametrize("text", ["much", "inf", "nan"])
def test_a_size_that_is_none_is_said(monkeypatch, tmp_path, text):
    monkeypatch.setenv("EAGLELAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EAGLELAB_CACHE_BYTES", text)
    with pytest.warns(CacheWarning, match=f"results are not kept: EAGLELAB_CACHE_BYTES is '{text}', expected a number of bytes"):
        assert open_folder() is None


def fails(error: int):
    def call(*_, **__):
        raise OSError(error, os.strerror(error))

    return call


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("fcntl.flock", errno.ENOLCK, ""),
        ("fcntl.flock", errno.EOPNOTSUPP, ""),
        ("eaglelab.cache.folder._locked", errno.EROFS, ""),
        ("tempfile.mkstemp", errno.EROFS, "Read-only file system"),
        ("os.replace", errno.ENOSPC, "No space left on device"),
        ("os.replace", errno.EDQUOT, "quota"),
    ],
)
def test_a_folder_that_fails_costs_a_sentence_and_no_time(case, folder, monkeypatch, what, error, said):
    inv = opened(case, folder)
    monkeypatch.setattr(what, fails(error))
    start = time.monotonic()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i in range(3):
            assert inv.results.of("a result", f"r{i}", lambda i=i: i) == i
    assert time.monotonic() - start < 5
    assert [str(w.message) for w in seen if said] == ([f"not kept in the cache: {os.strerror(error)} ({folder.path})"] if said else [])
    assert not [p for p in os.listdir(folder.path) if p.startswith("tmp-")]


def test_a_folder_that_is_removed_meanwhile_costs_a_sentence(case, folder):
    inv = opened(case, folder)
    shutil.rmtree(folder.path)
    start = time.monotonic()
    with pytest.warns(CacheWarning, match="not kept in the cache: No such file or directory") as seen:
        inv.fingerprint, inv.health  # noqa: B018
    assert len(seen) == 1
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_left_out(folder, make):
    make(folder.file("r"))
    with pytest.warns(CacheWarning, match="left out and computed again"):
        assert folder.read("r") is None


def test_a_folder_that_others_may_write_to_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(CacheError, match=r"others may write to the cache folder \(mode 777\): `chmod 700"):
        Folder(path)
    monkeypatch.setenv("EAGLELAB_CACHE", str(path))
    with pytest.warns(CacheWarning, match="results are not kept: .*others may write"):
        assert open_folder() is None


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CacheError, match=r"belongs to user \d+, expected a folder of yours"):
        Folder(tmp_path / "cache")


def test_the_oldest_use_goes_first(tmp_path):
    folder = Folder(tmp_path / "cache", bound=100_000)
    for i in range(4):
        folder.write(f"r{i}", np.zeros(25_000, np.uint8), {})
        os.utime(folder.file(f"r{i}"), (1000 + i, 1000 + i)) if folder.file(f"r{i}").exists() else None
    folder.write("r0", np.zeros(1000, np.uint8), {})
    folder.read("r1")  # used just now
    folder.write("new", np.zeros(40_000, np.uint8), {})
    left = {p.stem for p in folder.path.glob("*.result")}
    assert {"r1", "new"} <= left
    assert "r2" not in left
    assert sum(p.stat().st_size for p in folder.path.iterdir()) <= 100_000


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-1], "was cut off or changed"),
        (lambda data: data[:40], "was cut off or changed"),
        (lambda data: data.replace(b'"computed"', b'"computer"'), "was cut off or changed"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "was cut off or changed"),
        (lambda data: b"", "expected 'eaglelab result 1'"),
        (lambda data: pickle.dumps({"a": 1}), "expected 'eaglelab result 1'"),
        (lambda data: data.replace(b"eaglelab result 1", b"eaglelab result 0"), "expected 'eaglelab result 1'"),
    ],
)
def test_a_damaged_file_is_said_and_computed_again(case, folder, damage, said):
    first = opened(case, folder).fingerprint
    (file,) = folder.path.glob("*.result")
    file.write_bytes(damage(file.read_bytes()))
    inv = opened(case, folder)
    with pytest.warns(CacheWarning, match=f"left out and computed again: .*({said})"):
        assert same(inv.fingerprint, first)
    assert inv.results.used == []
    again = opened(case, folder)
    again.fingerprint  # noqa: B018
    assert len(again.results.used) == 1


def test_a_link_in_the_folder_is_not_followed(case, folder, tmp_path):
    opened(case, folder).fingerprint  # noqa: B018
    (file,) = folder.path.glob("*.result")
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    inv = opened(case, folder)
    with pytest.warns(CacheWarning, match="computed again"):
        inv.fingerprint  # noqa: B018
    assert inv.results.used == []


# -- the format ------------------------------------------------------------------------------------------------------------------------


def through(value):
    return codec.load(codec.dump(value, {}))[0]


def test_values_keep_their_types_to_the_bit():
    value = {
        "numbers": [0, -1, 2**70, 0.1, float("inf"), -0.0, True, None, "ü\ud800"],
        (1, "a"): (np.float64(0.1), np.int64(3), np.bool_(True), np.float32(0.1)),
        "sets": ({3, 1}, frozenset({"x"})),
        "own": (Wiring.of([0, "final", None]), Variant((0, 1), flags=Flags(False, True)), Status.PASS, Path("a/b")),
    }
    found = through(value)
    assert repr(found) == repr(value)
    assert [type(v) for v in found[1, "a"]] == [np.float64, np.int64, np.bool_, np.float32]
    assert np.isnan(through(float("nan")))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int32", "int64", "uint16", "float16", "float32", "float64", "complex64", "datetime64[ns]"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (3, 5)])
def test_arrays_keep_dtype_shape_and_values(dtype, shape):
    array = np.asarray(np.random.default_rng(0).random(shape) * 100).astype(dtype)
    found = through({"pad": np.zeros(3, np.uint8), "a": array})["a"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_tensors_keep_dtype_and_bits(dtype):
    tensor = (torch.randn(3, 5) * 3).to(dtype)
    for t in (tensor, tensor[:, 1:3], tensor[:0], tensor[0, 0]):
        found = through([t])[0]
        assert found.dtype == dtype
        assert found.shape == t.shape
        assert found.contiguous().view(torch.uint8).tolist() == t.contiguous().view(torch.uint8).tolist() if t.ndim else True


def test_tables_keep_dtypes_labels_and_attributes():
    table = pd.DataFrame(
        {
            "n": [1, 2, 3],
            "x": [0.1, np.nan, np.inf],
            "name": ["a", None, "c"],
            "mixed": pd.Series([3, "final", None], dtype=object),
            "lists": pd.Series([[1, 2], [3, 4], (5,)], dtype=object),
            "maybe": pd.Series([1, None, 3], dtype="Int64"),
            "yes": pd.Series([True, None, False], dtype="boolean"),
            "bool": [True, False, True],
            "when": pd.to_datetime(["2026-01-01", "2026-01-02", None]),
            7: np.float32([1, 2, 3]),
        }
    ).set_index(pd.Index([5, 3, 9], name="row"))
    table.attrs["unit"] = "ms"
    found = through(table)
    pd.testing.assert_frame_equal(found, table, check_exact=True)
    assert found.attrs == table.attrs
    assert type(found["mixed"].iloc[0]) is int
    for other in (table.iloc[:0], table[[]], pd.DataFrame(), table.reset_index(drop=True), table[["x"]].groupby([1, 1, 2]).mean()):
        pd.testing.assert_frame_equal(through(other), other, check_exact=True)


@pytest.mark.parametrize("value", [object(), lambda: 0, pd.Categorical(["a"]), torch.empty(2, device="meta"), {"x": pickle}])
def test_what_the_format_has_no_way_for_is_refused(value):
    with pytest.raises(codec.NotStorable, match="cannot be stored"):
        codec.dump([value], {})


def hostile(tree) -> bytes:
    raw = json.dumps([{"at": 0}, tree]).encode()
    return codec.head(raw) + b"\n" + raw


@pytest.mark.parametrize(
    "tree",
    [
        ["own", "os:system", {"command": "true"}],
        ["own", "eaglelab.commands.report:run", {}],
        ["own", "eaglelab.engines.source.__main__:main", {}],
        ["own", "eaglelab.wiring:boundary_name", {}],
        ["own", "eaglelab.findings:Path", {}],
        ["own", "eaglelab.wiring:Wiring", {"boundaries": ["tuple", []], "more": 1}],
        ["enum", "eaglelab.wiring:Wiring", "x"],
        ["tensor", "load", [1], [0, 1]],
        ["array", "|O", [1], [0, 8]],
        ["array", "<f8", [1], [0, 800]],
        ["_init__", []],
        ["raw", 1],
        ["value", 1],
        ["no such kind"],
        [],
    ],
)
def test_a_made_up_file_runs_nothing_and_is_damaged(tree):
    before = set(sys.modules)
    with pytest.raises(codec.Damaged):
        codec.load(hostile(tree))
    assert not any(name.endswith("__main__") for name in set(sys.modules) - before)


# -- several processes -----------------------------------------------------------------------------------------------------------------

CHILD = """
import sys, time
from eaglelab.cache import Folder, Results
from eaglelab.investigation import Investigation
from eaglelab.cache import inputs, key
from pathlib import Path
import eaglelab.fingerprint as module
inputs.COARSE, key.HERE = 0.0, Path(sys.argv[4])
inv = Investigation(sys.argv[1])
inv.results = Results(inv, Folder(Path(sys.argv[2])), worth=0.0)
real = module.fingerprint
def slow(*a, **k):
    print("computing", flush=True)
    time.sleep(float(sys.argv[3]))
    return real(*a, **k)
module.fingerprint = slow
print("ready", flush=True)
sys.stdin.readline()
inv.fingerprint
print("used", len(inv.results.used), flush=True)
"""


def child(case: Path, folder: Folder, seconds: float) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, str(case), str(folder.path), str(seconds), str(key.HERE)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_of_two_processes_one_computes_and_the_other_waits(case, folder):
    both = [child(case, folder, 1.0) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=120)[0] for process in both)
    assert said == ["computing\nused 0\n", "used 1\n"]
    assert [p.suffix for p in folder.path.iterdir()] == [".result"]


@pytest.mark.slow
def test_the_lock_of_a_process_that_dies_is_free(case, folder):
    dying = child(case, folder, 600.0)
    dying.stdin.write("\n")
    dying.stdin.flush()
    assert [dying.stdout.readline() for _ in range(2)] == ["ready\n", "computing\n"]
    dying.kill()
    dying.wait()
    start = time.monotonic()
    opened(case, folder).fingerprint  # noqa: B018
    assert time.monotonic() - start < 60


def test_a_lock_is_waited_for_no_longer_than_told(folder):
    with folder.alone("x"), folder.alone("x", wait=0.2) as waited:
        assert 0.2 <= waited < 5
    assert list(folder.path.iterdir()) == []


def test_types_that_results_are_made_of_are_there():
    import importlib

    for name in codec.MADE_OF:
        module = importlib.import_module(f"eaglelab.{name}")
        assert any(dataclasses.is_dataclass(v) for v in vars(module).values()), name
    assert results.WORTH > 0
