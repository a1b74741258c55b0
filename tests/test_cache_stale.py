"""No edit of a case leaves a result of before: after each, what the cache gives is what is computed without it.

The edits follow one another on one case, with one cache.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from case_builder import build_case, make_world, write_case

from eaglelab.cache import Folder, Results, codec, inputs
from eaglelab.investigation import Investigation

pytestmark = pytest.mark.usefixtures("steady_keys")

SEEN = ("health", "fingerprint", "identification", "own_replay", "replays", "last_state")
"""Results that are compared."""


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    return [make_world(tmp_path_factory.mktemp(f"world{seed}"), "llama", 6, seed=seed) for seed in (3, 4)]


@pytest.fixture
def case(tmp_path, worlds):
    """Its target and drafter are links, as in a hub's snapshot, and its dump lies outside of its folder."""
    root = tmp_path / "case"
    build_case(root, worlds[0], slots=[2, 3, 4, "final"])
    shutil.copytree(worlds[0].folder, root / "target", dirs_exist_ok=True)
    shutil.move(root / "dump", tmp_path / "elsewhere")
    shutil.move(root / "drafter" / "model.safetensors", tmp_path / "blob")
    (root / "drafter" / "model.safetensors").symlink_to(tmp_path / "blob")
    return write_case(
        root,
        {
            "dump": {"path": "../elsewhere", "feed": [0, 1, 2, 3]},
            "drafter": {"path": "drafter"},
            "target": {"path": "target"},
            "engine": {"name": "sglang", "version": "0.5.9"},
        },
    )


def opened(case: Path, folder: Folder | None, **options) -> Investigation:
    inv = Investigation(case, **options)
    inv.results = Results(inv, folder, worth=0.0)
    return inv


def results(inv: Investigation) -> dict[str, bytes | str]:
    def one(name: str) -> bytes | str:
        try:
            return codec.dump(getattr(inv, name), {})
        except (ValueError, LookupError) as error:
            return f"{type(error).__name__}: {error}"

    return {name: one(name) for name in SEEN}


def flip(path: Path, at: int) -> None:
    """Another byte; size and time of the content stay."""
    path, stat = path.resolve(), path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 64
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def swap(one: Path, other: Path) -> None:
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)


def dump(case: Path) -> Path:
    return case.parent / "elsewhere"


def samples(case: Path) -> list[Path]:
    return sorted(dump(case).rglob("*.pt"))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def weights(case: Path) -> Path:
    return case / "drafter" / "model.safetensors"


def other_blob(case: Path) -> None:
    """The link leads to other weights of the same size."""
    shutil.copy(weights(case), case.parent / "other")
    flip(case.parent / "other", -5000)
    weights(case).unlink()
    weights(case).symlink_to(case.parent / "other")


def a_byte_of_states(case: Path) -> None:
    sample = torch.load(samples(case)[0])
    sample["hidden_states"][1][7, 3] += 1.0
    stat = samples(case)[0].stat()
    torch.save(sample, samples(case)[0])
    assert samples(case)[0].stat().st_size == stat.st_size
    os.utime(samples(case)[0], ns=(stat.st_atime_ns, stat.st_mtime_ns))


def other_target(case: Path, worlds) -> None:
    shutil.rmtree(case / "target")
    shutil.copytree(worlds[1].folder, case / "target")


def case_toml(old: str, new: str) -> Callable:
    return lambda case, worlds: replace(case / "case.toml", old, new)


EDITS: dict[str, Callable] = {
    "a byte of a sample": lambda case, worlds: a_byte_of_states(case),
    "two samples swapped": lambda case, worlds: swap(samples(case)[0], samples(case)[2]),
    "two folders swapped": lambda case, worlds: swap(samples(case)[0].parent, samples(case)[-1].parent),
    "a sample gone": lambda case, worlds: samples(case)[0].unlink(),
    "a sample more": lambda case, worlds: shutil.copy(samples(case)[0], samples(case)[0].with_name("data_77.pt")),
    "a folder linked into the dump": lambda case, worlds: (dump(case) / "more").symlink_to(worlds[1].folder),
    "a stray file": lambda case, worlds: (samples(case)[0].with_name("notes.txt")).write_text("x"),
    "drafter's weights": lambda case, worlds: flip(weights(case), -5000),
    "drafter's link": lambda case, worlds: other_blob(case),
    "drafter's config": lambda case, worlds: replace(case / "drafter" / "config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 5e-01'),
    "another target": other_target,
    "target's config": lambda case, worlds: replace(case / "target" / "config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 5e-01'),
    "the feed": case_toml("feed = [0, 1, 2, 3]", "feed = [1, 0, 2, 3]"),
    "the engine": case_toml("0.5.9", "0.5.23"),
    "a launch line": case_toml('version = "0.5.23"', 'version = "0.5.23"\nlaunch = "python -m sglang --speculative-num-steps 5"'),
    "a claim": lambda case, worlds: (case / "case.toml").open("a").write('\n[[claims]]\nslot = 0\ntext = "layer 3"\n'),
}


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_no_edit_leaves_a_result_of_before(case, worlds, tmp_path, monkeypatch, large):
    """large: inputs of which nothing but names, sizes and times is looked at."""
    if large:
        monkeypatch.setattr(inputs, "WHOLE", 0)
        monkeypatch.setattr(inputs, "FEW", 0)
    folder = Folder(tmp_path / "cache")
    assert results(opened(case, folder)) == results(opened(case, None))
    for name, edit in EDITS.items():
        time.sleep(0.02)  # more than a tick of the file system's clock
        edit(case, worlds)
        plain = results(opened(case, None))
        assert results(opened(case, folder)) == plain, name
        again = opened(case, folder)
        assert results(again) == plain, name
        assert {u.result for u in again.results.used} >= {"norm fingerprints", "the dump's health"}, name
