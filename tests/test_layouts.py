"""Layouts of one file a sample: what each writer stores, by its documented schema, is opened as that layout and no other, and read back."""

import contextlib
import gc
import gzip
import io
import json
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef

from eaglelab.case import CaseError, open_case
from eaglelab.dumps import DumpError, Feed, open_dump
from eaglelab.dumps.health import check_health
from eaglelab.dumps.layouts import LAYOUTS
from eaglelab.engines.conventions import parse_engine

BY_NAME = {layout.name: layout for layout in LAYOUTS}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def parts(tokens=6, hidden=8, aux=3, dtype=torch.bfloat16, seed=0):
    """What a sample is made of, before a writer gives it names: ids [T], aux slots [T, H] each, last state [T, H], mask [T]."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 100, (tokens,), generator=g)  # [T]
    states = [torch.randn(tokens, hidden, generator=g).to(dtype) for _ in range(aux + 1)]
    return SimpleNamespace(ids=ids, aux=states[:-1], last=states[-1], mask=(torch.arange(tokens) >= tokens // 2).long())


def wide(p):
    return torch.cat(p.aux, dim=1)  # [T, S * H]


def list_of_four(p):
    """speculators v0.3.0, scripts/data_generation_offline.py:269-279."""
    return {"input_ids": p.ids, "hidden_states": [*p.aux, p.last], "loss_mask": p.mask}


def speculators_v0(p):
    """speculators 8a2d4837, train/data.py, standardize_data_v0."""
    return {"input_ids": p.ids, "loss_mask": p.mask, "hidden_state": wide(p), "target": p.last}


def specforge(p):
    """SpecForge a6b6b023, scripts/prepare_hidden_states.py:578-594."""
    return {"input_ids": p.ids, "loss_mask": p.mask, "hidden_state": p.last[None], "aux_hidden_state": wide(p)[None]}


def specforge_no_aux(p):
    return {"input_ids": p.ids, "loss_mask": p.mask, "hidden_state": p.last[None]}


def specforge_capture(p):
    """SpecForge a6b6b023, algorithms/eagle3/providers.py:214-228."""
    rows = {"input_ids": p.ids[None], "loss_mask": p.mask[None], "attention_mask": torch.ones_like(p.mask)[None]}
    return {**rows, "hidden_state": wide(p)[None], "target": p.last[None]}


def angelslim(p):
    """AngelSlim 67394ce, offline_dataset_builder.py:123-154."""
    return {"input_ids": p.ids[None], "loss_mask": p.mask[None], "hidden_states": wide(p)[None], "target_hiddens": p.last[None]}


def modelopt(p):
    """Model-Optimizer a2fbac7b, compute_hidden_states_hf.py:181-202."""
    states = {"hidden_states": p.last, "aux_hidden_states": wide(p)}
    return {"input_ids": p.ids, **states, "loss_mask": p.mask, "conversation_id": "b3f"}


def eagle(p):
    """EAGLE f2f2366^, eagle/ge_data/ge_data_all_llama3.py:190-219."""
    return {"input_ids": p.ids, "hidden_state": p.last, "loss_mask": p.mask}


def vllm(p):
    """vLLM 0.32.0, example_hidden_states_connector.py:446-515: the mask is not in the file."""
    return {"token_ids": p.ids, "hidden_states": torch.stack([*p.aux, p.last], dim=1).contiguous()}


WRITERS = {
    "list_of_four": (list_of_four, "data_{}.pt"),
    "vllm": (vllm, "hs_{}.safetensors"),
    "angelslim": (angelslim, "data_{}.ckpt"),
    "modelopt": (modelopt, "conversation-{}.pt"),
    "specforge": (specforge, "data_{}.ckpt"),
    "speculators_v0": (speculators_v0, "data_{}.pt"),
    "specforge_capture": (specforge_capture, "s{}.g0.ckpt"),
    "eagle": (eagle, "data_{}.ckpt"),
    "specforge_no_aux": (specforge_no_aux, "data_{}.ckpt"),
}
"""The writer of each layout's files and how it names them. A layout added to LAYOUTS gets a row."""
WITHOUT_AUX, WITHOUT_MASK = ("eagle", "specforge_no_aux"), ("vllm",)
WRITTEN = [name for name in WRITERS if name in BY_NAME]
TORCH = [name for name in WRITTEN if name not in WITHOUT_MASK]


def save(data, path, legacy=False, zipped=False):
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(data, path)
        return path
    held = io.BytesIO()
    torch.save(data, held, _use_new_zipfile_serialization=not legacy)
    path = path.with_name(path.name + ".gz") if zipped else path
    path.write_bytes(gzip.compress(held.getvalue(), 1) if zipped else held.getvalue())
    return path


def write(folder, name, p, i=0, **how):
    writer, file = WRITERS[name]
    return save(writer(p), folder / file.format(i), **how)


def assert_holds(sample, name, p):
    slots = [p.last] if name in WITHOUT_AUX else [*p.aux, p.last]
    assert torch.equal(sample.token_ids, p.ids)
    assert len(sample.slots) == len(slots)
    for got, expected in zip(sample.slots, slots, strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert torch.equal(got, expected)
    assert sample.loss_mask is None if name in WITHOUT_MASK else torch.equal(sample.loss_mask, p.mask)


# ---- which layout


def test_every_layout_has_a_writer_here():
    assert set(BY_NAME) <= set(WRITERS)


@pytest.mark.parametrize("shape", [(6, 8, 3), (1, 8, 3), (6, 1, 1), (1, 1, 1), (3, 3, 3), (24, 8, 1), (4, 4, 5), (2, 2, 64)], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_is_of_one_layout_and_of_no_other(tmp_path, name, shape):
    """Shapes [T, H, S] that collide: T = H, T = S, T = 1 (a batch dimension?), S * H = T, one slot (as wide as the last state)."""
    p = parts(*shape)
    write(tmp_path, name, p)
    dump = open_dump(tmp_path)
    assert dump.format == name
    assert [layout.name for layout in LAYOUTS if layout.fits(WRITERS[name][0](p))] == [name]
    assert (dump.hidden_size, len(dump.slot_names)) == (shape[1], 1 if name in WITHOUT_AUX else shape[2] + 1)
    assert_holds(dump.load(dump.keys[0]), name, p)


def company():
    """Files with keys of several writers, and the layout that decides by the order of the table; None = no layout."""
    p = parts()
    other = torch.zeros(6, 8)
    return {
        "list and aux_hidden_states": ({**modelopt(p), **list_of_four(p)}, "list_of_four"),
        "list and target": ({**speculators_v0(p), **list_of_four(p)}, "list_of_four"),
        "target_hiddens and aux_hidden_states": ({**modelopt(p), **angelslim(p)}, "angelslim"),
        "aux_hidden_states and aux_hidden_state": ({**specforge(p), **modelopt(p)}, "modelopt"),
        "aux_hidden_state and target": ({**specforge(p), "target": other}, "specforge"),
        "hidden_state 3-D, target 2-D": ({**specforge_capture(p), "target": p.last}, None),
        "hidden_state 2-D, target 3-D": ({**speculators_v0(p), "target": p.last[None]}, None),
        "capture without its last state": ({k: v for k, v in specforge_capture(p).items() if k != "target"}, None),
        "target is text": ({**eagle(p), "target": "yes"}, None),
        "last state alone, FastMTP's": ({"input_ids": p.ids, "hidden_states": p.last, "loss_mask": p.mask}, None),
        "hidden_states 3-D without company": ({"input_ids": p.ids, "hidden_states": wide(p)[None], "loss_mask": p.mask}, None),
        "four dimensions": ({**specforge(p), "hidden_state": p.last[None, None]}, None),
        "no ids": ({k: v for k, v in modelopt(p).items() if k != "input_ids"}, None),
        "sparse": ({**eagle(p), "hidden_state": p.last.float().to_sparse()}, None),
        "nothing": ({}, None),
    }


@pytest.mark.parametrize("case", company())
def test_keys_in_the_company_of_others(case):
    data, expected = company()[case]
    assert [layout.name for layout in LAYOUTS if layout.fits(data)] == ([expected] if expected else [])


@pytest.mark.parametrize("junk", [None, 3, "text", [], [1], (), {}, torch.zeros(3), [torch.zeros(2)], {"input_ids": 1}, {1: 2}], ids=repr)
def test_fits_never_raises(junk):
    assert not any(layout.fits(junk) for layout in LAYOUTS)


def test_what_no_layout_fits_lists_what_was_found_and_all_that_is_known(tmp_path):
    save(company()["capture without its last state"][0], tmp_path / "data_0.ckpt")
    with pytest.raises(DumpError) as error:
        open_dump(tmp_path)
    assert "holds a dict with attention_mask (one tensor [1, 6] of int64), hidden_state (one tensor [1, 6, 24] of bfloat16)" in str(
        error.value
    )
    assert all(f"\n- {name}: " in str(error.value) for name in WRITTEN)


def test_in_a_mixed_folder_the_layout_of_most_samples_wins_and_the_others_are_rows(tmp_path):
    for i in range(4):
        write(tmp_path, "modelopt" if i == 2 else "speculators_v0", parts(seed=i), i)
    (tmp_path / "conversation-2.pt").rename(tmp_path / "data_2.pt")
    dump = open_dump(tmp_path)
    assert dump.format == "speculators_v0"
    table = check_health(dump).table.query("severity == 'error'")
    assert list(table["sample"]) == ["data_2.pt"]
    assert "holds a dict with aux_hidden_states (one tensor [6, 24] of bfloat16)" in table["detail"].iloc[0]
    assert "(the format modelopt); expected a dict with input_ids [T]" in table["detail"].iloc[0]
    assert open_dump(tmp_path, format="modelopt").keys == [f"data_{i}.pt" for i in range(4)]


def test_files_of_a_second_format_that_are_left_out_are_a_warning(tmp_path):
    """As many fit as were tried, of each: the format of more files is the dump's, wherever its files stand in the list."""
    for i in range(2):
        write(tmp_path, "list_of_four", parts(seed=i), i)
    write(tmp_path, "vllm", parts(seed=9), 0)
    for i in range(1, 40):
        (tmp_path / f"hs_{i}.safetensors").hardlink_to(tmp_path / "hs_0.safetensors")
    dump = open_dump(tmp_path)
    assert (dump.format, len(dump)) == ("vllm", 40)
    said = (
        "2 files or folders look like list_of_four samples (2 of 2 tried are) and are left out: give [dump] path one format, or "
        '`[dump] format = "list_of_four"` to read these'
    )
    assert dump.notes == [said]
    table = check_health(dump, max_samples=1).table
    assert list(table.query("severity == 'warning'")["detail"]) == [said]
    other = open_dump(tmp_path, format="list_of_four")
    assert (len(other), other.notes) == (2, [])


def test_beside_raw_folders_the_format_of_more_samples_wins(tmp_path):
    """A raw folder's files are several to a sample, and no samples of one file."""
    p = parts()

    def raw(name):
        (tmp_path / name).mkdir()
        tensors = dict(zip(("aux_0", "aux_1", "aux_2", "final", "input_ids"), [*p.aux, p.last, p.ids], strict=True))
        for stem, tensor in tensors.items():
            torch.save(tensor, tmp_path / name / f"{stem}.pt")

    for i in range(5):
        write(tmp_path, "list_of_four", parts(seed=i), i)
    raw("s0")
    dump = open_dump(tmp_path)
    assert (dump.format, len(dump)) == ("list_of_four", 5)
    assert dump.notes[-1].startswith("1 files or folders look like raw_folders samples (1 of 1 tried are) and are left out")
    for i in range(1, 12):
        raw(f"s{i}")
    dump = open_dump(tmp_path)
    assert (dump.format, len(dump)) == ("raw_folders", 12)
    assert dump.notes[-1].startswith("5 files or folders look like list_of_four samples")


def test_only_one_sample_is_held_in_memory_while_the_format_is_found(tmp_path, monkeypatch):
    """A gzip is read whole; four of them at once may be more than the memory."""
    held, alive = [], []
    load = torch.load

    def watched(*args, **kwargs):
        gc.collect()
        alive.append(sum(not ref.expired() for ref in held))
        data = load(*args, **kwargs)
        held.append(StorageWeakRef(data["hidden_states"][0].untyped_storage()))
        return data

    for i in range(5):
        write(tmp_path, "list_of_four", parts(seed=i), i, zipped=True)
    monkeypatch.setattr(torch, "load", watched)
    assert open_dump(tmp_path).format == "list_of_four"
    assert alive == [0, 0, 0, 0]


# ---- what is read


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_was_written_is_read(name, data):
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    p = parts(draw(1, 9), draw(1, 8), draw(1, 6), data.draw(st.sampled_from(DTYPES)), draw(0, 99))
    how = {"legacy": data.draw(st.booleans()), "zipped": data.draw(st.booleans())}
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), name, p, **how)
        dump = open_dump(folder)
        assert (dump.format, dump.keys) == (name, [path.name])
        sample = dump.load(path.name)
        assert_holds(sample, name, p)
        assert not any("batch dimension" in note for note in sample.notes)  # part of the layout, nothing to put right


SLOT_NAMES = {
    "list_of_four": ("hidden_states[0]", "hidden_states[1]", "hidden_states[2]", "hidden_states[3]"),
    "angelslim": ("hidden_states[0 of 3]", "hidden_states[1 of 3]", "hidden_states[2 of 3]", "target_hiddens"),
    "modelopt": ("aux_hidden_states[0 of 3]", "aux_hidden_states[1 of 3]", "aux_hidden_states[2 of 3]", "hidden_states"),
    "specforge": ("aux_hidden_state[0 of 3]", "aux_hidden_state[1 of 3]", "aux_hidden_state[2 of 3]", "hidden_state"),
    "speculators_v0": ("hidden_state[0 of 3]", "hidden_state[1 of 3]", "hidden_state[2 of 3]", "target"),
    "specforge_capture": ("hidden_state[0 of 3]", "hidden_state[1 of 3]", "hidden_state[2 of 3]", "target"),
    "eagle": ("hidden_state",),
    "specforge_no_aux": ("hidden_state",),
}
IMPLIED = {
    "list_of_four": ("speculators==0.4.0", "N", False),
    "angelslim": ("angelslim", "final", True),
    "modelopt": ("modelopt", "final", False),
    "specforge": ("specforge", "final", True),
    "speculators_v0": (None, "final", False),
    "specforge_capture": ("specforge", "final", True),
    "eagle": ("eagle", "final", True),
    "specforge_no_aux": ("specforge", "final", True),
}


@pytest.mark.parametrize("name", SLOT_NAMES)
def test_names_feed_and_what_is_implied(tmp_path, name):
    write(tmp_path, name, parts())
    dump = open_dump(tmp_path)
    assert dump.slot_names == SLOT_NAMES[name]
    last = len(SLOT_NAMES[name]) - 1
    assert dump.feed == Feed(tuple(range(last)), last)
    assert (dump.implied.framework, dump.implied.last_state, dump.implied.certain) == IMPLIED[name]
    assert dump.implied.source
    if dump.implied.framework:
        parse_engine(dump.implied.framework, what="training framework")
    assert any("stores the last state alone: no aux slots" in note for note in dump.notes) == (name in WITHOUT_AUX)


@pytest.mark.parametrize("name", [name for name in TORCH if name not in (*WITHOUT_AUX, "list_of_four")])
@pytest.mark.parametrize(("width", "ok"), [(8, True), (64 * 8, True), (65 * 8, False), (20, False), (4, False)])
def test_aux_slots_are_1_to_64_times_as_wide_as_the_last_state(tmp_path, name, width, ok):
    p = parts()
    p.aux = [torch.zeros(6, width)]
    write(tmp_path, name, p)
    if ok:
        assert len(open_dump(tmp_path).slot_names) == width // 8 + 1
        return
    shape = r"\[(1, )?6, " + str(width)
    with pytest.raises(DumpError, match=rf"is one tensor {shape}\] of float32, expected .* 1 to 64 slots side by side, with H = 8"):
        open_dump(tmp_path)


def test_a_dump_without_a_last_state_says_so_in_its_feed(tmp_path):
    write(tmp_path, "speculators_v0", parts())
    dump = open_dump(tmp_path)
    dump.feed = [0, 1, 2, -1]
    assert dump.feed == Feed((0, 1, 2), None)
    for wrong in ([0, -1, 2], [-1, 0], [0, 1, -2], [-1]):
        with pytest.raises(DumpError, match="-1 in the last place says that the dump holds no last state"):
            dump.feed = wrong
    assert check_health(dump).summary["with_errors"] == 0


def test_a_case_can_say_that_there_is_no_last_state(tmp_path):
    case = tmp_path / "case.toml"
    case.write_text("[dump]\nfeed = [0, 1, 2, -1]")
    assert open_case(case).dump.feed == (0, 1, 2, -1)
    for wrong in ("[0, -1, 2]", "[0, 1, -2]", "[-1]"):
        case.write_text(f"[dump]\nfeed = {wrong}")
        with pytest.raises(CaseError, match=r"expected slot numbers: .* \(-1: the dump holds none\)"):
            open_case(case)


# ---- SpecForge: padding


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from([0, 0, 5]), st.sampled_from([0, 0, 1])), min_size=1, max_size=12),
    name=st.sampled_from(["specforge", "specforge_no_aux"]),
)
def test_padding_at_the_end_is_left_out_and_counted(rows, name):
    real = list(rows)
    while real and real[-1] == (0, 0):
        real.pop()
    if len(rows) - len(real) < 2:  # one such row may be text
        real = rows
    p = parts(len(rows), 4)
    p.ids, p.mask = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), name, p)
        sample = open_dump(folder).read(path.name)
    assert (len(sample.token_ids), sample.padding) == (len(real), len(rows) - len(real))
    p.ids, p.mask, p.last, p.aux = p.ids[: len(real)], p.mask[: len(real)], p.last[: len(real)], [a[: len(real)] for a in p.aux]
    assert_holds(sample, name, p)
    note = f"{sample.padding} rows of padding at the end were left out (token 0, mask 0)"
    assert sample.notes == ((note,) if sample.padding else ())


def test_padding_is_a_note_in_health_and_no_waste_of_bytes(tmp_path):
    p = parts(600, 64)
    p.ids[20:], p.mask[20:] = 0, 0
    p.mask[10:20] = 1
    write(tmp_path, "specforge", p)
    health = check_health(open_dump(tmp_path))
    assert health.samples["tokens"].tolist() == [20]
    table = health.table[health.table["sample"] != ""]
    assert list(zip(table["what"], table["detail"], strict=True)) == [
        ("put right while reading", "580 rows of padding at the end were left out (token 0, mask 0)")
    ]


def test_padding_of_a_capture_is_what_its_attention_mask_says(tmp_path):
    p = parts(6)
    p.ids[3:], p.mask[3:] = 0, 0
    data = specforge_capture(p)
    data["attention_mask"][0, 5:] = 0
    save(data, tmp_path / "a.g0.ckpt")
    save(specforge_capture(parts(seed=1)), tmp_path / "b1.g0.ckpt")
    dump = open_dump(tmp_path)
    assert (dump.keys, dump.stray) == (["a.g0.ckpt", "b1.g0.ckpt"], [])  # ids of any kind, with or without a digit
    sample = dump.load("a.g0.ckpt")
    assert (len(sample.token_ids), sample.notes) == (5, ("1 rows of padding at the end were left out (attention_mask 0)",))


def test_padding_at_the_start_is_what_the_attention_mask_says(tmp_path):
    p = parts(8)
    data = specforge_capture(p)
    data["attention_mask"][0, :3] = data["attention_mask"][0, 5] = data["attention_mask"][0, 7] = 0
    save(data, tmp_path / "a.g0.ckpt")
    sample = open_dump(tmp_path).load("a.g0.ckpt")
    assert torch.equal(sample.token_ids, p.ids[3:7])
    assert torch.equal(sample.slots[0], p.aux[0][3:7])
    assert torch.equal(sample.slots[-1], p.last[3:7])
    assert torch.equal(sample.loss_mask, p.mask[3:7])
    assert sample.padding == 4
    assert sample.notes == (
        "attention_mask is 0 in 1 rows between others: they are kept",
        "3 rows of padding at the start were left out (attention_mask 0)",
        "1 rows of padding at the end were left out (attention_mask 0)",
    )


def test_only_padding_is_no_sample(tmp_path):
    p = parts(4)
    p.ids[:], p.mask[:] = 0, 0
    write(tmp_path, "specforge", p, 1)
    write(tmp_path, "specforge", parts(4), 2)
    with pytest.raises(DumpError, match="no tokens: T = 0"):
        open_dump(tmp_path).load("data_1.ckpt")


def test_nothing_is_cut_where_lengths_differ(tmp_path):
    """Cutting all parts to one length would hide that they belong to different sequences."""
    p = parts(6)
    p.ids[2:], p.mask[2:] = 0, 0
    p.last = p.last[:4]
    write(tmp_path, "specforge_no_aux", p)
    with pytest.raises(DumpError, match="lengths differ: token ids 6, hidden_state 4, loss mask 6"):
        open_dump(tmp_path).load("data_0.ckpt")


# ---- AngelSlim, ModelOpt


def test_what_angelslim_adds_for_images_is_noted_and_left_aside(tmp_path):
    p = parts()
    save({**angelslim(p), "inputs_embeds": torch.zeros(1, 6, 8), "position_ids": None}, tmp_path / "data_0.ckpt")
    sample = open_dump(tmp_path).load("data_0.ckpt")
    assert_holds(sample, "angelslim", p)
    assert sample.notes == ("inputs_embeds not read: no slot of the drafter",)


def test_modelopts_flag_says_which_last_state(tmp_path):
    for i in range(3):
        save({**modelopt(parts(seed=i)), "hidden_states_prenorm": True}, tmp_path / f"{i}.pt")
    dump = open_dump(tmp_path)
    # the flag is of the last state alone: which layers were asked for stays open, and their ids count as vLLM's
    assert (dump.implied.last_state, dump.implied.certain, dump.implied.framework) == ("N", False, "modelopt-vllm")
    save({**modelopt(parts(seed=0)), "hidden_states_prenorm": torch.tensor(True)}, tmp_path / "0.pt")
    assert open_dump(tmp_path).load("0.pt").last_state == "N"
    save({**modelopt(parts(seed=3)), "hidden_states_prenorm": False}, tmp_path / "3.pt")
    save({**modelopt(parts(seed=4)), "hidden_states_prenorm": torch.ones(3)}, tmp_path / "4.pt")
    dump = open_dump(tmp_path)
    assert (dump.implied.last_state, dump.implied.certain) == ("final", False)  # the flags differ: nothing is said
    table = check_health(dump).table
    different = table[table["what"] == "last states differ"]
    assert dict(zip(different["sample"], different["detail"], strict=True)) == {
        "3.pt": "final by the file, in most samples N",
        "4.pt": "None by the file, in most samples N",
    }
    assert "hidden_states_prenorm is one tensor [3] of float32, expected true or false: not used" in table["detail"].tolist()


def test_modelopt_before_it_stored_masks(tmp_path):
    data = modelopt(parts())
    del data["loss_mask"]
    save(data, tmp_path / "alpha.pt")
    save(modelopt(parts(seed=1)), tmp_path / "beta2.pt")
    dump = open_dump(tmp_path)
    assert dump.keys == ["alpha.pt", "beta2.pt"]
    assert dump.load("alpha.pt").loss_mask is None


def test_raw_files_of_tensorrt_llm_are_refused_with_what_to_run(tmp_path):
    save([{"id": 4, "hidden_state": torch.zeros(6, 8), "aux_hidden_states": torch.zeros(6, 24)}], tmp_path / "dp_0_0.pt")
    with pytest.raises(DumpError, match=r"dp_0_0.pt: a list with id and hidden_state, as TensorRT-LLM.*Run ModelOpt's post-processing"):
        open_dump(tmp_path)


# ---- the metadata of speculators


def config(**changes):
    """data_config.json as config_generator.py of speculators 0.3.0 and 0.4.0 write it (version 2.0; 0.3.0 with a data_format_version)."""
    return {
        "version": "2.0",
        "generated_at": "2026-01-01T00:00:00+00:00",
        "speculators_version": "0.4.0",
        "reproducibility": {"command": "x", "package_versions": {"speculators": "0.4.0"}, "gpu": "CPU only"},
        "model": {"target_model_path": "m", "tensor_parallel_size": 1, "gpu_memory_utilization": 0.8, "hidden_size": 8},
        "hidden_states": {"layer_ids": [2, 15, 27, 29], "description": "Layers selected for EAGLE3 fusion and target logits"},
        "generation": {"cache_dir": "c"},
        "format": {"file_pattern": "data_{idx}.pt", "schema": {}},
        **changes,
    }


OLD = {"file_pattern": "data_{idx}.pt", "data_format_version": 1, "schema": {}}
V1_FILE = {"version": "1.0", "hidden_states": {"layer_ids": [2, 15, 27, 29], "num_layers": 4}, "format": {}}
CONFIGS = {
    "0.4.0": (config(), "speculators==0.4.0", (2, 15, 27, 29), True, []),
    "0.3.0": (config(speculators_version="0.3.0", format=OLD), "speculators==0.3.0", (2, 15, 27, 29), True, ["rows of another request"]),
    "file version 1.0": (V1_FILE, "speculators==0.3.0", (2, 15, 27, 29), True, ["rows of another request"]),
    "old and no version": (
        config(speculators_version=None, format=OLD),
        "speculators==0.3.0",
        (2, 15, 27, 29),
        True,
        ["of another request"],
    ),
    "a build": (config(speculators_version="0.4.0.dev7+g1234"), "speculators==0.4.0.dev7", (2, 15, 27, 29), True, []),
    "too new": (config(speculators_version="0.6.0"), "speculators==0.4.0", (2, 15, 27, 29), False, ["0.6.0, which writes another layout"]),
    "no version": (config(speculators_version="main"), "speculators==0.4.0", (2, 15, 27, 29), True, []),
    "unordered": (
        config(hidden_states={"layer_ids": [27, 2, 2, 29]}),
        "speculators==0.4.0",
        (2, 27, 29),
        True,
        [r"asks for layers \[27, 2, 2, 29\]; .* in ascending order: \[2, 27, 29\]"],
    ),
    "no ids": (config(hidden_states=[]), "speculators==0.4.0", None, False, ["has no hidden_states.layer_ids"]),
    "text": ("yes", "speculators==0.4.0", None, False, ["holds str, expected an object"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_metadata_names_the_version_and_its_rule(tmp_path, name):
    content, framework, ids, certain, notes = CONFIGS[name]
    write(tmp_path, "list_of_four", parts())
    (tmp_path / "data_config.json").write_text(json.dumps(content))
    dump = open_dump(tmp_path)
    assert (dump.implied.framework, dump.implied.layer_ids, dump.implied.certain) == (framework, ids, certain)
    parse_engine(dump.implied.framework, what="training framework")
    assert len(dump.notes) == len(notes)
    for note, expected in zip(dump.notes, notes, strict=True):
        assert re.search(f"data_config.json: .*{expected}", note)


def test_a_sample_of_another_length_than_listed_is_a_problem(tmp_path):
    for i, tokens in enumerate((6, 6, 4)):
        write(tmp_path, "list_of_four", parts(tokens, seed=i), i)
    (tmp_path / "sample_lengths.json").write_text(json.dumps({"0": 6, "1": 9, "2": "x"}))
    dump = open_dump(tmp_path)
    assert dump.load("data_1.pt").listed_tokens == 9
    table = check_health(dump).table.query("severity == 'error'")
    assert list(zip(table["sample"], table["what"], table["detail"], strict=True)) == [
        ("data_1.pt", "length not as listed", "6 tokens, 9 by the list beside the samples: are they of another request?")
    ]
    (tmp_path / "sample_lengths.json").write_text("[" * 50_000)
    dump = open_dump(tmp_path)
    assert "sample_lengths.json: cannot be read as JSON" in dump.notes[0]
    assert dump.load("data_1.pt").listed_tokens is None


# ---- damage


JUNK = (None, 3, "text", [], [1.5], {}, torch.tensor(3), torch.zeros(0), torch.zeros(2, 3, 4), torch.zeros(1).expand(1 << 40, 8))
JUNK += (torch.eye(6).to_sparse(), torch.zeros(6, 8, dtype=torch.complex64), torch.empty(6, 8, device="meta"))


@st.composite
def damage(draw):
    """A change to what is written, or to the bytes."""
    kind = draw(st.sampled_from(["drop", "rank", "rows", "junk", "flip", "flip", "truncate", "cut out"]))
    numbers = draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=8, max_size=8))
    return kind, numbers


def damaged(data, kind, numbers):
    key = sorted(data)[int(numbers[0] * len(data))]
    value = data[key]
    tensor = isinstance(value, torch.Tensor)
    if kind == "drop":
        del data[key]
    elif kind == "rank" and tensor:
        data[key] = [value[None], value.flatten(), value[..., None], value[0]][int(numbers[1] * 4)]
    elif kind == "rows" and tensor:
        data[key] = value[..., : value.shape[-1] // 2, :] if value.dim() > 1 and numbers[1] < 0.5 else value[..., : value.shape[-1] // 2]
    elif kind == "junk":
        data[key] = JUNK[int(numbers[1] * len(JUNK))]
    return data


def damaged_bytes(raw, kind, numbers):
    raw = bytearray(raw)
    if kind == "truncate":
        return raw[: int(numbers[0] * len(raw))]
    if kind == "cut out":
        start = int(numbers[0] * len(raw))
        return raw[:start] + raw[start + int(numbers[1] * 200) :]
    for number in numbers if kind == "flip" else ():
        raw[int(number * len(raw))] ^= 1 << int(number * 8e6) % 8
    return raw


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(harm=damage(), legacy=st.booleans(), zipped=st.booleans())
def test_damage_is_a_dump_error_and_never_a_sample_of_differing_lengths(name, harm, legacy, zipped):
    kind, numbers = harm
    with tempfile.TemporaryDirectory() as folder:
        for i in (0, 1):
            write(Path(folder), name, parts(seed=i), i)
        path = save(damaged(WRITERS[name][0](parts(seed=2)), kind, numbers), Path(folder) / WRITERS[name][1].format(2), legacy, zipped)
        path.write_bytes(damaged_bytes(path.read_bytes(), kind, numbers))
        dump = open_dump(folder)
        assert (dump.format, len(dump)) == (name, 3)
        check_health(dump)
        with contextlib.suppress(DumpError):
            open_dump(path)
        with contextlib.suppress(DumpError):
            sample = dump.load(path.name)
            parts_of_it = [sample.token_ids, *sample.slots] + ([] if sample.loss_mask is None else [sample.loss_mask])
            assert len({len(part) for part in parts_of_it}) == 1
            assert {slot.shape[1] for slot in sample.slots} == {dump.hidden_size}
            assert len(sample.slots) == len(dump.slot_names)


def test_opening_10_000_files_reads_four_of_them(tmp_path, monkeypatch):
    write(tmp_path, "specforge", parts())
    for i in range(1, 10_000):
        (tmp_path / f"data_{i}.ckpt").hardlink_to(tmp_path / "data_0.ckpt")
    opened = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda path, **kw: opened.append(path) or load(path, **kw))
    assert len(open_dump(tmp_path)) == 10_000
    assert len(opened) == 4
