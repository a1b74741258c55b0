"""Vocabulary maps: every true one passes, each way of spoiling one is told by name, and coverage is counted.

True maps are built as the trainers build them: SpecForge (`process_token_dict_to_mappings`) and speculators (`build_vocab_mappings_from_
distribution`) sort the most frequent ids and store id - place beside a bool t2d; ModelOpt stores d2t alone.
"""

import json
import re

import numpy
import pytest
import torch
from case_builder import build_case, make_world
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from eaglelab.checks import findings
from eaglelab.drafter.audit import DrafterError
from eaglelab.drafter.checkpoint import load_drafter
from eaglelab.drafter.vocabulary import VocabularyMap, audit_map, compare_maps, coverage, read_counts, read_map
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.wiring import FINAL

V, VD = 2000, 500


def like_specforge(counts: dict[int, int], vd: int, v: int) -> tuple[torch.Tensor, torch.Tensor]:
    used = sorted(sorted(counts, key=lambda token: -counts[token])[:vd])
    d2t = [used[i] - i for i in range(len(used))]
    kept = set(used)
    t2d = [i in kept for i in range(v)]
    return torch.tensor(d2t), torch.tensor(t2d)


def random_map(seed: int, vd: int = VD, v: int = V) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 10**6, (v,), generator=g).tolist()
    return like_specforge(dict(enumerate(counts)), vd, v)


def kinds(d2t, t2d, vd=VD, v=V):
    return [f.kind for f in audit_map(VocabularyMap(d2t, t2d, "test"), vd, v)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), v=st.integers(60, 3000), part=st.floats(0.05, 0.95))
def test_every_true_map_passes(seed, v, part):
    vd = max(2, int(v * part))
    d2t, t2d = random_map(seed, vd, v)
    assert kinds(d2t, t2d, vd, v) in ([], ["zeros"])  # the first tokens by chance
    assert kinds(d2t.int(), t2d.long(), vd, v) in ([], ["zeros"])
    assert set(kinds(d2t, None, vd, v)) <= {"zeros", "absolute", "arange"}
    # By its numbers alone a small true map may look like ids, and then nothing is called certain.
    by_numbers = audit_map(VocabularyMap(d2t, None, "test"), vd, v)
    assert not [f for f in by_numbers if f.status == "fail" and vd * (vd - 1) / v > 4]


SPOILT = {
    "absolute": lambda d2t, ids, g: ids,
    "order": lambda d2t, ids, g: ids[torch.randperm(len(ids), generator=g)] - torch.arange(len(ids)),
    "shifted": lambda d2t, ids, g: d2t + 1,
    "late": lambda d2t, ids, g: d2t.roll(1),
    "disagrees": lambda d2t, ids, g: random_map(int(torch.randint(10**6, (), generator=g)))[0],
    "length": lambda d2t, ids, g: d2t[:-7],
    "zeros": lambda d2t, ids, g: torch.zeros_like(d2t),
    "arange": lambda d2t, ids, g: torch.arange(len(d2t)),
    "floats": lambda d2t, ids, g: d2t.float(),
    "range": lambda d2t, ids, g: d2t - V,
}


@pytest.mark.parametrize("kind", SPOILT)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.report("Tencent/AngelSlim#304", "B")
@pytest.mark.report("verl-project/verl-SpeCo#67", "B")
def test_each_way_of_spoiling_one_is_told_by_name(kind, seed):
    d2t, t2d = random_map(seed)
    ids = t2d.nonzero()[:, 0]
    spoilt = SPOILT[kind](d2t, ids, torch.Generator().manual_seed(seed + 1))
    faults = audit_map(VocabularyMap(spoilt, t2d, "test"), VD, V)
    assert kind in [f.kind for f in faults]
    assert "fail" in {f.status for f in faults}


@pytest.mark.parametrize("kind", ["absolute", "order", "length", "zeros", "arange", "floats", "range"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_is_told_without_t2d(kind, seed):
    d2t, t2d = random_map(seed)
    spoilt = SPOILT[kind](d2t, t2d.nonzero()[:, 0], torch.Generator().manual_seed(seed + 1))
    assert kind in kinds(spoilt, None)


def test_absolute_ids_that_stay_in_range_as_offsets():
    """500 ids out of the first 1,400 of 2,000: each id plus its place is still a token."""
    ids = torch.randperm(1400, generator=torch.Generator().manual_seed(0))[:VD].sort().values
    assert int((ids + torch.arange(VD)).max()) < V
    by_numbers = audit_map(VocabularyMap(ids, None, "test"), VD, V)
    assert [(f.kind, f.status) for f in by_numbers] == [("absolute", "fail")]
    assert "(by chance 125 would be)" in by_numbers[0].text  # 500 * 499 / 2000
    few = audit_map(VocabularyMap(torch.tensor([3, 90, 400]), None, "test"), 3, V)
    assert [(f.kind, f.status) for f in few] == [("absolute", "cannot_tell")]
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[[3, 91, 402]] = True  # t2d settles it: these were offsets
    assert kinds(torch.tensor([3, 90, 400]), t2d, 3) == []


def test_duplicates_and_a_shift_that_numbers_do_not_show():
    d2t, t2d = random_map(1)
    twice = d2t.clone()
    twice[10] = twice[9] - 1
    assert "duplicates" in kinds(twice, None)
    assert kinds(d2t + 1, None) in ([], ["range"])  # honest: it is a map like any other
    assert kinds(d2t + 1, t2d)[0] == "shifted"
    assert "every token id is +1 from" in audit_map(VocabularyMap(d2t + 1, t2d, ""), VD, V)[0].text
    early, late = (audit_map(VocabularyMap(d2t.roll(by), t2d, ""), VD, V)[0].text for by in (-1, 1))
    assert "one place early" in early
    assert "one place late" in late


def test_a_t2d_of_its_own_trouble():
    d2t, t2d = random_map(2)
    more = t2d.clone()
    more[(~t2d).nonzero()[0]] = True
    assert [(f.kind, f.status) for f in audit_map(VocabularyMap(d2t, more, ""), VD, V)] == [("t2d", "cannot_tell")]
    assert [(f.kind, f.status) for f in audit_map(VocabularyMap(d2t, t2d[:-1], ""), VD, V)] == [("t2d", "note")]
    moved = t2d.clone()
    moved[t2d.nonzero()[3]], moved[(~t2d).nonzero()[-1]] = False, True
    fault = audit_map(VocabularyMap(d2t, moved, ""), VD, V)[0]
    assert "1 tokens of d2t are not marked in t2d and 1 marked ones are not in d2t" in fault.text


@pytest.mark.report("SafeAILab/EAGLE#222", "BH")
@pytest.mark.report("verl-project/verl-SpeCo#66", "B")
def test_the_whole_vocabulary_is_the_identity():
    assert kinds(torch.zeros(V, dtype=torch.long), torch.ones(V, dtype=torch.bool), V) == []
    assert kinds(torch.zeros(V, dtype=torch.long), None, V) == []
    assert kinds(torch.zeros(VD, dtype=torch.long), None) == ["zeros"]
    assert kinds(torch.zeros(VD, dtype=torch.long), torch.arange(V) < VD) == ["zeros"]


@pytest.mark.parametrize("strange", [torch.tensor([float("nan")] * VD), torch.full((VD,), 2**62), torch.tensor([5])])
def test_strange_values_do_not_break_it(strange):
    for t2d in (None, random_map(0)[1]):
        assert "fail" in {f.status for f in audit_map(VocabularyMap(strange, t2d, ""), VD, V)}


# -- reading and comparing ------------------------------------------------------------------------------------------------------------


def test_every_file_that_holds_a_map(tmp_path):
    d2t, t2d = random_map(3)
    torch.save({"d2t": d2t, "t2d": t2d}, tmp_path / "vocab_mapping.pt")
    save_file({"model.d2t": d2t, "fc.weight": torch.ones(2)}, tmp_path / "some.safetensors")
    (tmp_path / "arrays").mkdir()
    numpy.save(tmp_path / "arrays" / "d2t.npy", d2t.numpy())
    numpy.save(tmp_path / "arrays" / "t2d.npy", t2d.numpy())
    (tmp_path / "folder").mkdir()
    torch.save({"t2d": t2d}, tmp_path / "folder" / "pytorch_model.bin")
    for name, has_t2d in [
        ("vocab_mapping.pt", True),
        ("some.safetensors", False),
        ("arrays/d2t.npy", True),
        ("arrays", True),
        ("folder", True),
    ]:
        got = read_map(tmp_path / name)
        assert torch.equal(got.ids, t2d.nonzero()[:, 0]), name
        assert (got.t2d is not None) == has_t2d
    torch.save({5: 7, 9: 1}, tmp_path / "token_freq.pt")
    assert read_counts(tmp_path / "token_freq.pt").tolist() == [[5, 7], [9, 1]]
    assert read_counts(tmp_path / "vocab_mapping.pt") is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"\x93NUMPY\x01\x00v\x00{'descr': '|O'"])
@pytest.mark.parametrize("name", ["d2t.npy", "vocab_mapping.pt", "x.safetensors"])
def test_a_file_that_holds_none(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DrafterError, match=rf"{name}: no vocabulary map can be read: "):
        read_map(tmp_path / name)


def test_arrays_of_other_kinds_are_refused(tmp_path):
    numpy.save(tmp_path / "d2t.npy", numpy.array(["a", "b"]))
    with pytest.raises(DrafterError, match="no vocabulary map can be read"):
        read_map(tmp_path / "d2t.npy")
    numpy.save(tmp_path / "d2t.npy", numpy.array([[1, 2]]))
    with pytest.raises(DrafterError, match=r"d2t is \[1, 2\], expected one row of numbers"):
        read_map(tmp_path / "d2t.npy")
    with pytest.raises(DrafterError, match="no such file or folder; expected a checkpoint"):
        read_map(tmp_path / "nowhere")


def test_two_maps_side_by_side():
    mine, other = torch.tensor([1, 4, 7, 9]), torch.tensor([1, 5, 7, 9])
    assert vars(compare_maps(mine, other)) == {"sizes": (4, 4), "differ": 1, "first": 1, "only": (1, 1)}
    assert vars(compare_maps(mine, mine[:3])) == {"sizes": (4, 3), "differ": 0, "first": None, "only": (1, 0)}


# -- coverage ---------------------------------------------------------------------------------------------------------------------------


def test_coverage_by_hand():
    """Can say 1, 2, 3. First sample: 1 2 9 3 (3 of 4); second: 9 9 and one that nobody said (0 of 2)."""
    got = coverage(torch.tensor([1, 2, 3]), [torch.tensor([1, 2, 9, 3]), torch.tensor([9, 9, -1])], steps=2)
    assert (got.covered, got.said, got.uncovered) == ((3, 0), (4, 2), ((9, 3),))
    assert (got.share, got.shares) == (0.5, [0.75, 0.0])
    assert (got.starts, got.run) == (4, 2 + 1 + 0 + 0)  # starts 1 2, 2 9, 9 3, 9 9
    assert coverage(torch.tensor([1]), [], 2).share is None


# -- the findings -------------------------------------------------------------------------------------------------------------------------

SLOTS, IDS = [1, 3, 5, FINAL], [0, 2, 4]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), "llama", 6, seed=3)


@pytest.fixture
def case(world, tmp_path):
    return build_case(tmp_path / "case", world, slots=SLOTS, ids=IDS)


def edit(case, change):
    file = case / "drafter" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def find(case, name):
    return findings(Investigation(str(case)), name)[0]


def name_map(case, path):
    file = case / "case.toml"
    file.write_text(file.read_text().replace("[drafter]\n", f"[drafter]\nvocabulary = {json.dumps(str(path))}\n"))


def test_a_sound_map(case):
    found = find(case, "drafter.vocabulary")
    assert found.status is Status.PASS
    assert found.title == "The draft vocabulary's map is sound; 40 of 48 tokens"
    assert "t2d marks the same tokens" in found.evidence


def test_ids_in_place_of_offsets_are_named_in_the_title(case):
    edit(case, lambda t: t.update(d2t=t["d2t"] + torch.arange(40)))
    found = find(case, "drafter.vocabulary")
    assert found.status is Status.FAIL
    assert found.title.startswith("The draft vocabulary's map is wrong: d2t holds token ids")
    assert [f["kind"] for f in found.numbers["faults"]] == ["absolute", "range"]


@pytest.mark.report("NVIDIA-NeMo/Automodel#2447", "B")
def test_no_d2t_says_what_the_engine_drafts(case):
    edit(case, lambda t: t.pop("d2t"))
    found = find(case, "drafter.vocabulary")
    assert found.status is Status.FAIL
    assert "SGLang 0.5.23 takes draft ids as target ids" in found.evidence
    assert "vLLM" not in found.evidence  # the case names its engine
    assert "t2d is there" in found.next


def test_coverage_counts_the_targets_own_choices(case, world):
    found = find(case, "drafter.vocabulary.coverage")
    kept = {i * 48 // 40 for i in range(40)}
    said = [t for text, prompt in zip(world.texts, world.prompts, strict=True) for t in text[prompt + 1 :].tolist()]
    n = found.numbers
    # The target's choice follows every trained token, the last one of a text included, where the text itself has none.
    assert n["tokens"] == len(said) + len(world.texts)
    assert abs(n["covered"] - sum(t in kept for t in said)) <= len(world.texts)
    assert {u["token"] for u in n["uncovered"]} == set(range(48)) - kept
    assert found.status is Status.PASS
    assert 1 < n["accept_length_bound"] < 1 + n["steps"]
    assert "the target's own choices" in found.title


def test_a_vocabulary_that_says_too_little_fails(world, tmp_path):
    case = build_case(tmp_path / "few", world, slots=SLOTS, ids=IDS, drafter={"draft_vocab": 12}, config={"draft_vocab_size": 12})
    found = find(case, "drafter.vocabulary.coverage")
    assert found.status is Status.FAIL
    assert found.numbers["coverage"] == pytest.approx(0.25, abs=0.05)


def test_the_map_it_was_trained_with(case, tmp_path):
    own = load_file(case / "drafter" / "model.safetensors")
    torch.save({"d2t": own["d2t"], "t2d": own["t2d"]}, tmp_path / "same.pt")
    name_map(case, tmp_path / "same.pt")
    assert find(case, "drafter.vocabulary.other").status is Status.PASS
    changed = own["d2t"].clone()
    changed[:6] = 0  # 0..5 in place of 0, 1, 2, 3, 4, 6
    torch.save({"d2t": changed}, tmp_path / "same.pt")
    found = find(case, "drafter.vocabulary.other")
    assert found.status is Status.PASS  # the replay: the drafter fits its own
    assert "1 of 40 draft ids stand for another token, from draft id 5 on" in found.evidence
    assert "same.pt is of another run: the drafter fits its own map, " in found.title


def test_the_replay_says_when_the_checkpoint_carries_the_wrong_map(case, tmp_path):
    file = case / "drafter" / "model.safetensors"
    own = load_file(file)
    torch.save({"d2t": own["d2t"]}, tmp_path / "right.pt")
    name_map(case, tmp_path / "right.pt")
    save_file({name: tensor for name, tensor in own.items() if name != "t2d"} | {"d2t": torch.full((40,), 8)}, file)
    found = find(case, "drafter.vocabulary.other")
    assert found.status is Status.FAIL
    assert found.numbers["other"] > 0.8 > 0.1 > found.numbers["own"]
    assert found.next.startswith("Write the d2t of")


def test_without_a_replay_neither_map_is_advised(case, tmp_path):
    torch.save({"d2t": torch.full((40,), 8)}, tmp_path / "other.pt")
    name_map(case, tmp_path / "other.pt")
    text = (case / "case.toml").read_text()
    (case / "case.toml").write_text(re.sub(r"(?m)^\[dump\]\n(?:(?!\[).*\n)*", "", text))
    found = find(case, "drafter.vocabulary.other")
    assert found.status is Status.FAIL
    assert "write neither" in found.next


@pytest.mark.parametrize("kind", ["vocab_mapping.pt", "d2t.npy"])
def test_a_map_left_beside_the_dump_is_found(case, kind):
    other = torch.arange(40) * 0 + 8  # the last 40 tokens of 48
    if kind.endswith(".npy"):
        numpy.save(case / "dump" / kind, other.numpy())
    else:
        torch.save({"d2t": other}, case / "dump" / kind)
    found = find(case, "drafter.vocabulary.other")
    assert found.status is Status.PASS  # the replay: it is another drafter's
    assert found.id == "drafter.vocabulary.other.dump"
    assert f"dump/{kind} (it lies in the dump) is of another run" in found.title
    assert "40 of 40 draft ids" in found.evidence


def test_counts_left_beside_the_dump_are_used(case):
    torch.save({0: 30, 5: 10}, case / "dump" / "token_freq.pt")  # 5 is none of i * 48 // 40
    assert "By the counts of token_freq.pt it covers 30 of 40 training tokens (75.0%)" in find(case, "drafter.vocabulary.coverage").evidence


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_an_order_of_its_own_is_doubted_without_t2d_and_wrong_against_it(seed):
    """Engines only add: a d2t in the order of frequency is right where lm_head's rows stand in that order."""
    _, t2d = random_map(seed)
    mixed = t2d.nonzero()[:, 0][torch.randperm(VD, generator=torch.Generator().manual_seed(seed))] - torch.arange(VD)
    alone, against = (audit_map(VocabularyMap(mixed, marks, "test"), VD, V) for marks in (None, t2d))
    assert [(f.kind, f.status) for f in alone] == [("order", "cannot_tell")]
    assert [(f.kind, f.status) for f in against] == [("order", "fail")]


def test_only_the_files_of_the_index_are_read(tmp_path):
    d2t, other = random_map(1)[0], random_map(2)[0]
    save_file({"d2t": other}, tmp_path / "a_backup.safetensors")  # by its name it comes first
    save_file({"d2t": d2t}, tmp_path / "model-00001-of-00001.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"d2t": "model-00001-of-00001.safetensors"}}))
    assert torch.equal(read_map(tmp_path).d2t, d2t)
    index.unlink()
    save_file({"d2t": d2t}, tmp_path / "model.safetensors")
    assert torch.equal(read_map(tmp_path).d2t, d2t)
    index.write_text("{}")
    with pytest.raises(DrafterError, match="no `weight_map` in it"):
        read_map(tmp_path)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint64])
def test_a_map_of_any_whole_numbers_is_read_alike(case, kind):
    edit(case, lambda t: t.update(d2t=t["d2t"].to(kind)))
    assert find(case, "drafter.vocabulary").status is Status.PASS
    assert find(case, "drafter.complete").status is Status.PASS
    drafter, _ = load_drafter(case / "drafter", device="cpu")
    assert torch.equal(drafter.d2t, torch.tensor([i * 48 // 40 - i for i in range(40)]))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (torch.zeros(40, dtype=torch.int64), "all zeros"),
        (torch.tensor([i * 48 // 40 for i in range(40)]), "points outside"),
        (torch.arange(40), "counts 0, 1, 2"),
    ],
)
def test_a_broken_map_is_never_advised(case, tmp_path, broken, said):
    torch.save({"d2t": broken}, tmp_path / "named.pt")
    name_map(case, tmp_path / "named.pt")
    found = find(case, "drafter.vocabulary.other")
    assert found.status is Status.CANNOT_TELL
    assert "is no sound map to compare with" in found.title
    assert said in found.evidence
    assert "Write that map" not in found.next
    assert "do not write this one" in found.next


def test_low_coverage_is_called_a_fault_only_over_enough_samples(world, tmp_path):
    few = {"draft_vocab": 12}, {"draft_vocab_size": 12}
    case = build_case(tmp_path / "few", world, slots=SLOTS, ids=IDS, drafter=few[0], config=few[1])
    found = findings(Investigation(str(case), max_samples=4), "drafter.vocabulary.coverage")[0]
    assert found.status is Status.CANNOT_TELL
    assert "whatever the drafter, no step is accepted more often" in found.title
    assert "look at more than 4" in found.next
