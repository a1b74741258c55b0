"""Dumps that engines write: vLLM's files with speculators' masks beside them, SGLang's tensor passes and its saved responses.

The fixtures follow the writers' code. The Arrow files were compared once with what `datasets` 5.2.0 saves (plain, int8, bool, large lists,
several shards, shuffled and selected), the passes with what the hook of SGLang 0.5.23 writes when it is run over a small model.
"""

import json
import random
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from eaglelab.dumps import DumpError, Feed, open_dump
from eaglelab.dumps.health import check_health
from eaglelab.dumps.sample import shape_problems

pa = pytest.importorskip("pyarrow", reason="the Arrow fixtures are written with pyarrow: pip install 'eaglelab[arrow]'")

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def states(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def write_hs(path, ids, slots=4, hidden=8, seed=0, dtype=torch.bfloat16, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {"hidden_states": states(len(ids), slots, hidden, seed=seed, dtype=dtype), "token_ids": torch.tensor(ids)} | more
    save_file(held, path)
    return held


def write_dataset(folder, rows, shards=1, batch=2, ids_type=None, mask_type=None, state=True):
    """`rows` of (input_ids, loss_mask) as `Dataset.save_to_disk` leaves them: IPC streams of a few batches, and their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    schema = pa.schema(
        {
            "input_ids": ids_type or pa.list_(pa.int64()),
            "loss_mask": mask_type or pa.list_(pa.int64()),
            "seq_len": pa.int64(),
            "messages": pa.string(),
        }
    )
    for i, name in enumerate(names):
        mine = [rows[r] for r in range(len(rows)) if r * shards // len(rows) == i]
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for b in range(0, len(mine), batch):
                some = mine[b : b + batch]
                columns = [[ids for ids, _ in some], [mask for _, mask in some], [len(ids) for ids, _ in some], ["[]"] * len(some)]
                arrays = [pa.array(c).cast(f.type) for c, f in zip(columns, schema, strict=True)]
                stream.write_batch(pa.record_batch(arrays, schema=schema))
    if state:
        (folder / "state.json").write_text(
            json.dumps({"_data_files": [{"filename": n} for n in names], "_fingerprint": "a", "_split": None})
        )
    (folder / "dataset_info.json").write_text("{}")


ROWS = [([1, 2, 3, 4], [0, 0, 1, 1]), ([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1]), ([1, 5, 9, 2, 6], [0, 0, 0, 1, 1]), ([3, 3, 3], [0, 0, 1])]


@pytest.fixture
def speculators(tmp_path):
    """Five samples as speculators 0.5 leaves them, with a lock and the token counts."""
    write_dataset(tmp_path, ROWS, shards=2)
    for i, (ids, _) in enumerate(ROWS):
        write_hs(tmp_path / "hidden_states" / f"hs_{i}.safetensors", ids, seed=i)
    (tmp_path / "hidden_states" / "hs_0.safetensors.lock").write_text("")
    torch.save({5: 3}, tmp_path / "token_freq.pt")
    return tmp_path


# ---- vLLM and speculators


def test_states_and_masks_of_a_speculators_folder(speculators):
    dump = open_dump(speculators)
    assert (dump.format, len(dump), dump.notes) == ("vllm", 5, [])
    assert dump.slot_names == ("hidden_states[:, 0]", "hidden_states[:, 1]", "hidden_states[:, 2]", "hidden_states[:, 3]")
    assert dump.feed == Feed((0, 1, 2), 3)
    assert (dump.implied.framework, dump.implied.last_state, dump.implied.certain) == ("speculators==0.5.0", "N", True)
    for i, (ids, mask) in enumerate(ROWS):
        sample = dump.load(f"hidden_states/hs_{i}.safetensors")
        assert (sample.token_ids.tolist(), sample.loss_mask.tolist(), sample.notes) == (ids, mask, ())
        expected = states(len(ids), 4, 8, seed=i)
        assert all(torch.equal(slot, expected[:, s]) for s, slot in enumerate(sample.slots))


def test_the_folder_of_states_alone_finds_the_dataset_above_it(speculators, monkeypatch):
    monkeypatch.chdir(speculators / "hidden_states")
    assert open_dump(".").load("hs_3.safetensors").loss_mask.tolist() == ROWS[3][1]


def test_arrow_files_beside_the_states_without_a_state_file(tmp_path):
    write_dataset(tmp_path, ROWS, shards=3, state=False)
    write_hs(tmp_path / "hs_4.safetensors", ROWS[4][0])
    assert open_dump(tmp_path).load("hs_4.safetensors").loss_mask.tolist() == ROWS[4][1]


@pytest.mark.parametrize(
    ("ids_type", "mask_type"),
    [
        (pa.list_(pa.int32()), pa.list_(pa.int8())),
        (pa.list_(pa.int64()), pa.list_(pa.bool_())),
        (pa.large_list(pa.int64()), pa.large_list(pa.int64())),
    ],
)
def test_columns_of_other_integer_types(tmp_path, ids_type, mask_type):
    write_dataset(tmp_path, ROWS, 2, ids_type=ids_type, mask_type=mask_type)
    write_hs(tmp_path / "hidden_states" / "hs_2.safetensors", ROWS[2][0])
    sample = next(open_dump(tmp_path).samples())
    assert sample.loss_mask.tolist() == ROWS[2][1]
    assert sample.loss_mask.dtype == torch.int64


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    shards=st.integers(1, 3),
    batch=st.integers(1, 4),
    slots=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
@FEW
def test_vllm_round_trip(tmp_path_factory, lengths, shards, batch, slots, dtype, data):
    folder = tmp_path_factory.mktemp("hs")
    rows = [([10 * i + t for t in range(n)], [data.draw(st.integers(0, 1)) for _ in range(n)]) for i, n in enumerate(lengths)]
    write_dataset(folder, rows, min(shards, len(rows)), batch)
    held = [write_hs(folder / "hidden_states" / f"hs_{i}.safetensors", ids, slots, 4, i, dtype) for i, (ids, _) in enumerate(rows)]
    dump = open_dump(folder)
    for i, (ids, mask) in enumerate(rows):
        sample = dump.load(f"hidden_states/hs_{i}.safetensors")
        assert (sample.token_ids.tolist(), sample.loss_mask.tolist()) == (ids, mask)
        assert torch.equal(torch.stack(sample.slots, dim=1), held[i]["hidden_states"])


def test_a_row_of_another_sample_gives_no_mask(speculators):
    write_hs(speculators / "hidden_states" / "hs_1.safetensors", [5, 6, 8])
    sample = open_dump(speculators).load("hidden_states/hs_1.safetensors")
    assert sample.loss_mask is None
    assert sample.notes[0].startswith("row 1 of the Arrow dataset")
    assert "holds other tokens from position 2 on" in sample.notes[0]
    assert "the loss mask is unknown" in sample.notes[0]


def test_a_sample_cut_by_its_writer_gets_the_mask_up_to_there(speculators):
    write_hs(speculators / "hidden_states" / "hs_0.safetensors", [1, 2, 3])
    sample = open_dump(speculators).load("hidden_states/hs_0.safetensors")
    assert sample.loss_mask.tolist() == [0, 0, 1]
    assert "has 4 tokens, the states end after 3" in sample.notes[0]


def test_a_sample_longer_than_its_row_gets_none(speculators):
    write_hs(speculators / "hidden_states" / "hs_0.safetensors", [1, 2, 3, 4, 5])
    sample = open_dump(speculators).load("hidden_states/hs_0.safetensors")
    assert sample.loss_mask is None
    assert "holds 4 tokens, the file of states 5" in sample.notes[0]


def test_a_file_without_a_row(speculators):
    write_hs(speculators / "hidden_states" / "hs_7.safetensors", [1, 2])
    sample = open_dump(speculators).load("hidden_states/hs_7.safetensors")
    assert sample.loss_mask is None
    assert "has 5 rows, no row 7" in sample.notes[0]


def test_no_dataset_beside_the_states(tmp_path):
    write_hs(tmp_path / "a" / "b" / "hs_0.safetensors", [1, 2])
    sample = next(open_dump(tmp_path / "a" / "b").samples())
    assert sample.loss_mask is None
    assert "no Arrow dataset" in sample.notes[0]


def test_without_pyarrow_the_note_says_what_to_install(speculators, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sample = open_dump(speculators).load("hidden_states/hs_0.safetensors")
    assert sample.loss_mask is None
    assert "pip install 'eaglelab[arrow]'" in sample.notes[0]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            {"_data_files": [{"filename": "data-00000-of-00002.arrow"}], "_indices_data_files": [{"filename": "indices.arrow"}]},
            "flatten_indices()",
        ),
        ({"_data_files": [{"filename": "../data-00000-of-00002.arrow"}]}, "outside of its folder"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, "gone.arrow is damaged or no Arrow stream"),
        ({"_data_files": 3}, "state.json cannot be read (TypeError)"),
        ([], "state.json cannot be read"),
    ],
)
def test_state_files_that_lead_astray(speculators, state, said):
    (speculators / "state.json").write_text(json.dumps(state))
    sample = open_dump(speculators).load("hidden_states/hs_0.safetensors")
    assert sample.loss_mask is None
    assert said in sample.notes[0]


def test_columns_that_are_absent_or_of_another_kind(tmp_path):
    write_hs(tmp_path / "hs_0.safetensors", [1, 2])

    def note(columns):
        with pa.OSFile(str(tmp_path / "data-00000-of-00001.arrow"), "wb") as file:
            batch = pa.record_batch(columns)
            with pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)
        sample = open_dump(tmp_path).load("hs_0.safetensors")
        assert sample.loss_mask is None
        return sample.notes[0]

    ids = pa.array([[1, 2]])
    assert "has no column loss_mask, only input_ids" in note({"input_ids": ids})
    assert "loss_mask is a column of string" in note({"input_ids": ids, "loss_mask": pa.array(["01"])})
    assert "with or without nulls" in note({"input_ids": ids, "loss_mask": pa.array([[1, None]])})
    assert "with or without nulls" in note({"input_ids": ids, "loss_mask": pa.array([None], pa.list_(pa.int64()))})
    assert "loss_mask is a column of list<item: double>" in note({"input_ids": ids, "loss_mask": pa.array([[0.5, 1.0]])})
    assert "1 mask values for 2 tokens" in note({"input_ids": ids, "loss_mask": pa.array([[1]])})


def test_damaged_arrow_files_never_give_a_mask_of_another_length(tmp_path):
    write_dataset(tmp_path, ROWS)
    write_hs(tmp_path / "hs_3.safetensors", ROWS[3][0])
    dump, file, rng = open_dump(tmp_path), tmp_path / "data-00000-of-00001.arrow", random.Random(0)
    whole, unknown = file.read_bytes(), 0
    for cut in range(150):
        broken = bytearray(whole[: rng.randrange(len(whole))] if cut % 3 == 0 else whole)
        for _ in range(rng.randint(1, 4) if broken else 0):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        file.write_bytes(broken)
        sample = dump.load("hs_3.safetensors")
        unknown += sample.loss_mask is None
        assert sample.notes if sample.loss_mask is None else len(sample.loss_mask) == 5
    assert unknown > 50


# fp8


def quantised(original):
    """As the fp8 connector of hs-connectors 0.9.0 does it: amax over slots and width, one float32 scale a token."""
    wide = original.float()
    scales = (wide.abs().amax(dim=(1, 2), keepdim=True) / 448).clamp(min=1e-12)  # [T, 1, 1]
    return (wide / scales).to(torch.float8_e4m3fn), scales


def test_fp8_is_restored_as_its_own_reader_restores_it(tmp_path):
    original = states(5, 4, 8)
    original[:, 0] *= 1e-5  # an embedding's norm beside a last layer's
    packed, scales = quantised(original)
    write_hs(tmp_path / "hs_0.safetensors", [1, 2, 3, 4, 5], hidden_states=packed, hidden_states_scales=scales)
    sample = next(open_dump(tmp_path).samples())
    expected = packed.to(torch.bfloat16) * scales.to(torch.bfloat16)  # fp8_utils.dequantize_fp8_tensor
    assert torch.equal(torch.stack(sample.slots, dim=1), expected)
    assert sample.slots[0].dtype == torch.bfloat16
    assert any("one scale a token over all slots" in note for note in sample.notes)
    large = (sample.slots[3].float() - original[:, 3].float()).norm() / original[:, 3].float().norm()
    small = (sample.slots[0].float() - original[:, 0].float()).norm() / original[:, 0].float().norm()
    assert large < 0.05 < small  # what the note warns of


def test_fp8_numbers_worked_by_hand(tmp_path):
    packed = torch.tensor([[[448.0, -224.0]], [[1.0, 0.5]]]).to(torch.float8_e4m3fn)  # [2, 1, 2]
    scales = torch.tensor([0.5, 4.0]).view(2, 1, 1)
    write_hs(tmp_path / "hs_0.safetensors", [1, 2], hidden_states=packed, hidden_states_scales=scales)
    assert next(open_dump(tmp_path).samples()).slots[0].tolist() == [[224.0, -112.0], [4.0, 2.0]]


@pytest.mark.parametrize(
    "scales",
    [None, torch.ones(5, 4, 1), torch.ones(5), torch.ones(4, 1, 1), torch.ones(5, 1, 1, dtype=torch.float64)],
    ids=["absent", "per slot", "flat", "short", "float64"],
)
def test_fp8_without_the_scales_of_its_tokens(tmp_path, scales):
    packed, _ = quantised(states(5, 4, 8))
    more = {"hidden_states": packed} | ({} if scales is None else {"hidden_states_scales": scales})
    write_hs(tmp_path / "hs_0.safetensors", [1, 2, 3, 4, 5], **more)
    with pytest.raises(DumpError, match=r"fp8 states need scales \[5, 1, 1\] of float32"):
        open_dump(tmp_path, format="vllm").load("hs_0.safetensors")


def test_scales_beside_states_that_are_not_quantised(tmp_path):
    write_hs(tmp_path / "hs_0.safetensors", [1, 2], hidden_states_scales=torch.ones(2, 1, 1))
    with pytest.raises(DumpError, match="others have none"):
        open_dump(tmp_path, format="vllm").load("hs_0.safetensors")


# what vLLM is known to leave out, and what else can be wrong


def test_raw_files_of_vllm_say_nothing_of_ids_and_masks(tmp_path):
    write_hs(tmp_path / "chatcmpl-ab.safetensors", [1, 2])
    write_hs(tmp_path / "cmpl-7f3a-0.safetensors", [1, 2, 3])
    dump = open_dump(tmp_path)
    assert (len(dump), dump.implied.framework, dump.implied.certain, dump.stray) == (2, "vllm==0.32.0", False, [])
    assert all(s.loss_mask is None and s.notes == () for s in dump.samples())


def test_a_checkpoint_beside_the_states_is_no_sample(tmp_path):
    write_hs(tmp_path / "hs_0.safetensors", [1, 2, 3])
    for name in ("model.safetensors", "model-00001-of-00002.safetensors", "adapter_model.safetensors"):
        save_file({"lm_head.weight": torch.zeros(2, 2)}, tmp_path / name)
    dump = open_dump(tmp_path)
    assert (dump.keys, len(dump.stray)) == (["hs_0.safetensors"], 3)
    details = check_health(dump).table.query("what == 'stray file'")["detail"]
    assert set(details) == {"left out by its name, unopened"}


def test_three_slots_where_four_are_asked_for(speculators):
    for i, (ids, _) in enumerate(ROWS):
        write_hs(speculators / "hidden_states" / f"hs_{i}.safetensors", ids, slots=3)
    dump = open_dump(speculators)
    assert (dump.implied.last_state, dump.implied.certain) == (None, False)
    assert "dropped id N without a word for DeepSeek" in dump.notes[0]
    dump.feed = [0, 1, 2, -1]
    assert dump.feed == Feed((0, 1, 2), None)


@pytest.mark.parametrize(("first", "others", "last_state"), [(3, 4, "N"), (4, 3, None)])
def test_the_slots_of_most_samples_decide(tmp_path, first, others, last_state):
    for i in range(5):
        write_hs(tmp_path / f"hs_{i}.safetensors", [1, 2, 3], slots=others if i else first)
    assert open_dump(tmp_path).implied.last_state == last_state


def test_states_that_are_all_zero_name_the_engines_fault(tmp_path):
    write_hs(tmp_path / "hs_0.safetensors", [1, 2], hidden_states=torch.zeros(2, 4, 8))
    assert any("wrote zeros for hybrid models" in note for note in open_dump(tmp_path).load("hs_0.safetensors").notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_states": torch.zeros(4, 8)}, r"hidden_states is one tensor \[4, 8\] of float32, expected \[T, S, H\]"),
        ({"hidden_states": torch.zeros(4, 0, 8)}, r"expected \[T, S, H\]"),
        ({"hidden_states": torch.zeros(4, 2, 8, dtype=torch.int8)}, "holds int8, expected a float dtype"),
        ({"hidden_states": torch.zeros(5, 2, 8)}, "lengths differ: token ids 4"),
        ({"token_ids": torch.zeros(4)}, "token_ids is float32, expected integer token ids"),
        ({"token_ids": torch.zeros(2, 4, dtype=torch.long)}, r"token_ids has the shape \[2, 4\]"),
    ],
)
def test_vllm_files_that_are_no_sample(tmp_path, change, said):
    write_hs(tmp_path / "hs_0.safetensors", [1, 2, 3, 4], slots=2)
    write_hs(tmp_path / "hs_1.safetensors", [1, 2, 3, 4], slots=2, **change)
    dump = open_dump(tmp_path)
    with pytest.raises(DumpError, match=said):
        dump.load("hs_1.safetensors")


@pytest.mark.parametrize("absent", ["token_ids", "hidden_states"])
def test_vllm_files_with_a_key_missing(tmp_path, absent):
    held = {"hidden_states": states(2, 4, 8), "token_ids": torch.tensor([1, 2])}
    save_file({k: v for k, v in held.items() if k != absent}, tmp_path / "hs_0.safetensors")
    with pytest.raises(DumpError, match="no known dump format fits"):
        open_dump(tmp_path)


# ---- damage of any container: an error, or a sample whose parts fit


def damaged(whole, rng):
    broken = bytearray(whole[: rng.randrange(len(whole))] if rng.random() < 0.3 else whole)
    for _ in range(rng.randint(1, 6) if broken else 0):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    return broken


def outcomes(dump, key, file, rounds, seed=0):
    """How many of the damaged files gave an error; the others must give a sample whose lengths agree with its tokens."""
    rng, whole, errors = random.Random(seed), file.read_bytes(), 0
    tokens = len(dump.load(key).token_ids)
    for _ in range(rounds):
        file.write_bytes(damaged(whole, rng))
        try:
            sample = dump.load(key)
        except DumpError:
            errors += 1
        else:
            assert not list(shape_problems(sample))
            assert len(sample.token_ids) == tokens
    return errors


def test_damaged_safetensors(tmp_path):
    write_hs(tmp_path / "hs_0.safetensors", [1, 2, 3], hidden=4)
    assert outcomes(open_dump(tmp_path), "hs_0.safetensors", tmp_path / "hs_0.safetensors", 150) > 40


def test_damaged_passes(tmp_path):
    file = write_pass(tmp_path, 0, [[1, 2, 3]])
    assert outcomes(open_dump(tmp_path), "TP0_PP0_Rank0_pid7/Pass00000.pt", file, 150) > 40


def test_damaged_responses(tmp_path):
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(response([1, 2, 3], [4, 5])))
    dump = open_dump(tmp_path)
    assert outcomes(dump, "answer.json", file, 150) > 40


# ---- SGLang's tensor passes


def make_pass(prompts, firsts=None, layers=3, hidden=8, seed=0, top="model"):
    """One forward pass as the hook of SGLang 0.5.23 stores it. firsts: the position of each request's first row."""
    firsts = firsts or [0] * len(prompts)
    tokens = sum(map(len, prompts))
    held = {"model": states(2, hidden, seed=99), "logits_processor": states(2, 50, seed=98)} if seed else {}  # of the pass before
    held[f"{top}.embed_tokens"] = states(tokens, hidden, seed=seed + 1)
    for n in range(layers):
        normed, stream = states(tokens, hidden, seed=seed + 10 + n), states(tokens, hidden, seed=seed + 20 + n)
        held[f"{top}.layers.{n}.input_layernorm"] = [normed, stream] if n else normed
        held[f"{top}.layers.{n}.self_attn.qkv_proj"] = states(tokens, 3 * hidden, seed=seed + 30 + n)
        held[f"{top}.layers.{n}.post_attention_layernorm"] = [normed.clone(), stream.clone()]
        held[f"{top}.layers.{n}.mlp.down_proj"] = states(tokens, hidden, seed=seed + 40 + n)
    held[f"{top}.norm"] = [states(tokens, hidden, seed=seed + 50), states(tokens, hidden, seed=seed + 51)]
    held[f"{top}.forward_batch_info.input_ids"] = torch.tensor([i for ids in prompts for i in ids])
    held[f"{top}.forward_batch_info.seq_lens"] = torch.tensor([f + len(ids) for f, ids in zip(firsts, prompts, strict=True)])
    held[f"{top}.forward_batch_info.positions"] = torch.tensor(
        [f + t for f, ids in zip(firsts, prompts, strict=True) for t in range(len(ids))]
    )
    return held


def write_pass(folder, number, prompts, firsts=None, rank="TP0_PP0_Rank0_pid7", held=None, **more):
    file = folder / rank / f"Pass{number:05d}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(held or make_pass(prompts, firsts, **more), file)
    return file


SLOTS = (
    "boundary 1 (model.layers.1.input_layernorm[1])",
    "boundary 2 (model.layers.2.input_layernorm[1])",
    "before the final norm (model.norm[1])",
    "final (model.norm[0])",
)


def test_a_prompt_and_the_steps_after_it(tmp_path):
    write_pass(tmp_path, 0, [[5, 6, 7, 8]])
    write_pass(tmp_path, 1, [[9]], [4], seed=100)
    write_pass(tmp_path, 2, [[3, 1]], seed=200)
    dump = open_dump(tmp_path)
    assert (dump.format, dump.slot_names, dump.implied.last_state) == ("sglang_passes", SLOTS, "final")
    assert dump.keys == ["TP0_PP0_Rank0_pid7/Pass00000.pt", "TP0_PP0_Rank0_pid7/Pass00002.pt"]
    assert dump.stray == ["TP0_PP0_Rank0_pid7/Pass00001.pt"]
    assert "`[dump] feed` says which" in dump.notes[0]
    sample = dump.load(dump.keys[1])
    assert (sample.token_ids.tolist(), sample.loss_mask) == ([3, 1], None)
    expected = [states(2, 8, seed=200 + seed) for seed in (21, 22, 51, 50)]  # never `model`, which is of the pass before
    assert all(torch.equal(slot, value) for slot, value in zip(sample.slots, expected, strict=True))
    with pytest.raises(DumpError, match=r"has 0 prompts read from position 0 on, no number 0: a step of decoding"):
        dump.load("TP0_PP0_Rank0_pid7/Pass00001.pt")


def test_several_prompts_in_one_pass(tmp_path):
    write_pass(tmp_path, 0, [[5, 6, 7], [9], [1, 2]], [0, 6, 0])
    dump = open_dump(tmp_path)
    assert dump.keys == ["TP0_PP0_Rank0_pid7/Pass00000.pt#0", "TP0_PP0_Rank0_pid7/Pass00000.pt#1"]
    last = dump.load(dump.keys[1])
    assert last.token_ids.tolist() == [1, 2]
    assert torch.equal(last.slots[0], states(6, 8, seed=21)[4:])


def test_chunks_of_a_prompt_only_the_first_begins_at_position_0(tmp_path):
    write_pass(tmp_path, 0, [[5, 6, 7]])
    write_pass(tmp_path, 1, [[8, 9]], [3])
    assert open_dump(tmp_path).keys == ["TP0_PP0_Rank0_pid7/Pass00000.pt"]


def test_passes_beyond_the_most_that_are_opened_are_told(tmp_path, monkeypatch):
    for number in range(5):
        write_pass(tmp_path, number, [[5, 6]])
    monkeypatch.setattr("eaglelab.dumps.sglang_passes.MOST_PASSES", 3)
    dump = open_dump(tmp_path)
    assert (len(dump), len(dump.stray)) == (3, 2)
    assert "only the first 3 passes are opened, 2 more are left out" in dump.notes[1]


@given(
    requests=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 0, 3, 11])), min_size=1, max_size=4),
    layers=st.integers(2, 5),
    data=st.data(),
)
@FEW
def test_passes_round_trip(tmp_path_factory, requests, layers, data):
    folder = tmp_path_factory.mktemp("passes")
    prompts = [data.draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)) for n, _ in requests]
    firsts = [first for _, first in requests]
    held = make_pass(prompts, firsts, layers)
    write_pass(folder, 0, prompts, held=held)
    whole = [i for i, first in enumerate(firsts) if first == 0]
    if not whole:
        with pytest.raises(DumpError, match="no known dump format fits"):
            open_dump(folder)
        return
    dump = open_dump(folder)
    assert len(dump) == len(whole)
    for key, i in zip(dump.keys, whole, strict=True):
        sample, start = dump.load(key), sum(map(len, prompts[:i]))
        rows = slice(start, start + len(prompts[i]))
        assert sample.token_ids.tolist() == prompts[i]
        assert [torch.equal(s, held[f"model.layers.{n}.input_layernorm"][1][rows]) for n, s in enumerate(sample.slots[:-2], 1)] == [
            True
        ] * (layers - 1)
        assert torch.equal(sample.slots[-1], held["model.norm"][0][rows])


def test_the_targets_passes_of_a_server_that_speculates(tmp_path):
    for folder in ("target", "draft"):
        write_pass(tmp_path / folder, 0, [[5, 6]])
    write_pass(tmp_path / "target", 0, [[5, 6]], rank="TP1_PP0_Rank1_pid8")
    dump = open_dump(tmp_path)
    assert dump.keys == ["target/TP0_PP0_Rank0_pid7/Pass00000.pt"]
    assert sorted(dump.stray) == ["draft/TP0_PP0_Rank0_pid7/Pass00000.pt", "target/TP1_PP0_Rank1_pid8/Pass00000.pt"]
    with pytest.raises(DumpError, match=r"a pass of the drafter .* give the folder target/"):
        open_dump(tmp_path / "draft", format="sglang_passes").load("TP0_PP0_Rank0_pid7/Pass00000.pt")


def test_a_drafters_pass_is_known_by_its_fc(tmp_path):
    write_pass(tmp_path, 0, [[5, 6]], held=make_pass([[5, 6]]) | {"model.fc": states(2, 8)})
    with pytest.raises(DumpError, match="a pass of the drafter"):
        open_dump(tmp_path, format="sglang_passes").load("TP0_PP0_Rank0_pid7/Pass00000.pt")


def test_a_top_module_of_another_name(tmp_path):
    write_pass(tmp_path, 0, [[5, 6]], top="language_model.model")
    assert open_dump(tmp_path).slot_names[0] == "boundary 1 (language_model.model.layers.1.input_layernorm[1])"


def test_an_engine_on_the_cpu_that_wrote_over_what_it_dumped(tmp_path):
    held = make_pass([[5, 6]])
    held["model.layers.2.input_layernorm"][1] = held["model.layers.1.input_layernorm"][1]
    write_pass(tmp_path, 0, [[5, 6]], held=held)
    with pytest.raises(DumpError, match="are one tensor: an engine on the CPU"):
        open_dump(tmp_path, format="sglang_passes").load("TP0_PP0_Rank0_pid7/Pass00000.pt")


BATCH = "model.forward_batch_info."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.norm": None}, "model.norm does not"),
        ({"model.norm": states(2, 8)}, "dump with --pp-size 1"),
        ({"model.layers.1.input_layernorm": [states(3, 8), states(3, 8)]}, "has 3 rows for 2 token ids"),
        ({"model.layers.1.input_layernorm": [states(2, 8), torch.zeros(2, 8, dtype=torch.int32)]}, "holds int32"),
        ({BATCH + "input_ids": torch.tensor([1, 2, 3])}, "has 2 rows for 3 token ids"),
        ({BATCH + "input_ids": torch.zeros(2)}, "no tensor of whole numbers"),
        ({BATCH + "positions": torch.tensor([0, 2])}, "positions do not fit"),
        ({BATCH + "positions": torch.tensor([0])}, "positions do not fit"),
        ({BATCH + "seq_lens": torch.tensor([1])}, "account for 1 of 2 rows"),
        ({BATCH + "seq_lens": torch.tensor([10**15])}, "positions do not fit: a verify pass, or padded"),
        ({BATCH + "seq_lens": torch.tensor([0])}, "positions do not fit"),
        ({BATCH + "seq_lens": "two"}, "no tensor of whole numbers"),
    ],
)
def test_passes_that_are_no_sample(tmp_path, change, said):
    write_pass(tmp_path, 0, [[5, 6]])
    write_pass(tmp_path, 1, [[5, 6]], held={k: v for k, v in (make_pass([[5, 6]]) | change).items() if v is not None})
    with pytest.raises(DumpError, match=said):
        open_dump(tmp_path).load("TP0_PP0_Rank0_pid7/Pass00001.pt")


def test_a_pass_by_name_that_holds_something_else(tmp_path):
    write_pass(tmp_path, 0, [], held={"weights": torch.zeros(2)})
    with pytest.raises(DumpError, match=r"no known dump format fits.*"):
        open_dump(tmp_path)


def test_a_pass_without_its_last_norm_says_so_and_not_that_other_formats_do_not_fit(tmp_path):
    write_pass(tmp_path, 0, [[5, 6]], held={k: v for k, v in make_pass([[5, 6]]).items() if k != "model.norm"})
    with pytest.raises(DumpError, match=r"The first: .*model\.norm does not\. Both are needed: dump with --pp-size 1"):
        open_dump(tmp_path)


# ---- SGLang's responses


def response(prompt, said, hidden=4, seed=0, **change):
    """A /generate response with the states that SGLang returns, and the prompt's ids saved beside it."""
    rows = states(len(prompt) + len(said) - 1, hidden, seed=seed).float().tolist()
    meta = {"id": "a", "prompt_tokens": len(prompt), "cached_tokens": 0, "completion_tokens": len(said)}
    meta |= {"hidden_states": [rows[: len(prompt)], *rows[len(prompt) :]]} | change
    return {"input_ids": prompt, "text": "…", "output_ids": said, "meta_info": meta}


def test_a_response_of_one_file(tmp_path):
    (tmp_path / "answer.json").write_text(json.dumps(response([1, 2, 3], [4, 5])))
    (tmp_path / "server_args.json").write_text('{"model_path": "x"}')
    dump = open_dump(tmp_path)
    assert (dump.format, dump.keys, dump.feed) == ("sglang_responses", ["answer.json"], Feed((), 0))
    assert (dump.implied.last_state, dump.implied.certain) == ("final", False)
    assert "`[dump] files = { width = H }` splits them" in dump.notes[0]
    sample = dump.load("answer.json")
    assert (sample.token_ids.tolist(), sample.loss_mask.tolist()) == ([1, 2, 3, 4], [0, 0, 0, 1])
    assert torch.equal(sample.slots[0], states(4, 4).float())
    assert sample.slots[0].dtype == torch.float32


@given(
    shapes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=4),
    lines=st.booleans(),
    deeper=st.booleans(),
    blank=st.booleans(),
)
@FEW
def test_responses_round_trip(tmp_path_factory, shapes, lines, deeper, blank):
    folder = tmp_path_factory.mktemp("answers")
    held = [response(list(range(p)), list(range(50, 50 + s)), seed=i) for i, (p, s) in enumerate(shapes)]
    if deeper:
        for one in held:
            one["meta_info"]["hidden_states"] = [one["meta_info"]["hidden_states"]]
    gap = "\n\n  \n" if blank else "\n"
    name = "answers.jsonl" if lines else "answers.json"
    (folder / name).write_text(gap.join(map(json.dumps, held)) + gap * blank if lines else json.dumps(held))
    dump = open_dump(folder)
    assert dump.keys == [f"{name}#{i}" for i in range(len(held))]
    for i, (p, s) in enumerate(shapes):
        sample = dump.load(dump.keys[i])
        assert sample.token_ids.tolist() == (list(range(p)) + list(range(50, 50 + s)))[: p + s - 1]
        assert sample.loss_mask.tolist() == [0] * p + [1] * (s - 1)
        assert torch.equal(sample.slots[0], states(p + s - 1, 4, seed=i).float())


def test_aux_states_side_by_side_are_split_by_the_width(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(response([1, 2], [3, 4], hidden=12)))
    dump = open_dump(tmp_path, files={"width": 4})
    assert (dump.slot_names, dump.feed) == (tuple(f"hidden_states[{s} of 3]" for s in range(3)), Feed((0, 1, 2), None))
    sample = dump.load("a.jsonl#0")
    assert torch.equal(torch.cat(sample.slots, dim=1), states(3, 12).float())
    assert open_dump(tmp_path).slot_names == ("hidden_states",)
    with pytest.raises(DumpError, match="H = 5"):
        open_dump(tmp_path, files={"width": 5})


@pytest.mark.parametrize("files", [{"width": 0}, {"width": "4"}, {"width": True}, {"width": 4, "last": "final.pt"}])
def test_widths_that_are_none(tmp_path, files):
    (tmp_path / "a.json").write_text(json.dumps(response([1, 2], [3, 4])))
    with pytest.raises(DumpError, match=r"expected \{ width = H \}"):
        open_dump(tmp_path, files=files)


def without(key):
    return {k: v for k, v in response([1, 2], [3, 4]).items() if k != key}


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (without("input_ids"), r'has no input_ids, .*Save \{"input_ids": \[...\], \*\*response\} for each request'),
        (without("output_ids"), "has no output_ids"),
        (response([1, 2], [3, 4]) | {"input_ids": [1, "2"]}, "expected integer token ids"),
        (response([1, 2], [3, 4], cached_tokens=1), "1 of the prompt's tokens came from the cache.*--disable-radix-cache"),
        (response([1, 2], [3, 4], prompt_tokens=3), "prompt_tokens is 3, but there are 2 input_ids"),
        (response([1, 2], [3, 4], completion_tokens=5), "completion_tokens is 5, but there are 2 output_ids"),
        (response([1, 2], [3, 4], hidden_states=[[[1.0]], [1.0]]), "2 rows of states for 2 prompt tokens and 2 said, expected 3"),
        (response([1, 2], [3, 4], hidden_states=[1.0, 2.0]), "1 rows of states"),
        (response([1, 2], [3, 4], hidden_states=[[[1.0], [1.0, 2.0]], [1.0]]), "not rows of numbers of one width"),
        (response([1, 2], [3, 4], hidden_states=[[["a"], ["b"]], ["c"]]), "not rows of numbers"),
        (response([1, 2], [3, 4], hidden_states=[]), "hold no rows"),
        (response([1, 2], [3, 4], hidden_states="x"), "hidden_states is str where rows are expected"),
        (response([1, 2], [3, 4], hidden_states=[[[[[[1.0]]]]]]), "where rows are expected"),
        (response([1, 2], [3, 4]) | {"input_ids": [], "output_ids": []}, "but there are 0 input_ids"),
        ({"meta_info": {"prompt_tokens": 2}}, "return_hidden_states: true"),
        ({"meta_info": 3}, "has no meta_info.hidden_states"),
        ("meta_info", "has no meta_info.hidden_states"),
    ],
)
def test_responses_that_are_no_sample(tmp_path, saved, said):
    lines = [json.dumps(response([1, 2], [3, 4])), json.dumps(saved)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DumpError, match=said):
        open_dump(tmp_path).load("a.jsonl#1")


def test_a_line_that_holds_a_list_of_responses_says_what_to_do(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps([response([1, 2], [3, 4])] * 2))
    with pytest.raises(
        DumpError, match=r"a\.jsonl, response 0: a list of 2, the answers to one request .* write each on a line of its own"
    ):
        open_dump(tmp_path)


def test_nulls_are_nan_and_told(tmp_path):
    saved = response([1, 2], [3, 4])
    saved["meta_info"]["hidden_states"][0][1][2] = None
    (tmp_path / "a.json").write_text(json.dumps(saved))
    dump = open_dump(tmp_path)
    sample = dump.load("a.json")
    assert sample.slots[0].isnan().nonzero().tolist() == [[1, 2]]
    assert "1 values of the states are null" in sample.notes[0]
    assert "NaN or Inf" in set(check_health(dump).table.what)


def test_json_that_is_cut_nested_without_end_or_too_large(tmp_path, monkeypatch):
    whole = json.dumps(response([1, 2], [3, 4]))
    (tmp_path / "a.jsonl").write_text("\n".join([whole, whole[:-9], '{"meta_info":' + "[" * 100_000]))
    dump = open_dump(tmp_path)
    for key in ("a.jsonl#1", "a.jsonl#2"):
        with pytest.raises(DumpError, match="damaged or not JSON at byte"):
            dump.load(key)
    monkeypatch.setattr("eaglelab.dumps.sglang_responses.MAX_BYTES", len(whole) - 1)
    with pytest.raises(DumpError, match="a response of more than 0 MB of JSON is not read"):
        dump.load("a.jsonl#0")


def test_lines_longer_than_a_piece(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(response([1, 2], [3], seed=i)) for i in range(3)))
    monkeypatch.setattr("eaglelab.dumps.sglang_responses.SNIFF_BYTES", 100)
    dump = open_dump(tmp_path)
    assert dump.keys == ["a.jsonl#0", "a.jsonl#1", "a.jsonl#2"]
    assert torch.equal(dump.load("a.jsonl#2").slots[0], states(2, 4, seed=2).float())


# ---- neighbours


def test_no_format_claims_anothers_files(tmp_path, speculators):
    write_pass(tmp_path / "p", 0, [[5, 6]])
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "a.json").write_text(json.dumps(response([1, 2], [3])))
    assert open_dump(tmp_path / "p").format == "sglang_passes"
    assert open_dump(tmp_path / "r").format == "sglang_responses"
    for folder, format in (("p", "vllm"), ("p", "sglang_responses"), ("r", "sglang_passes"), ("hidden_states", "sglang_passes")):
        with pytest.raises(DumpError, match="no known dump format fits"):
            open_dump(tmp_path / folder, format=format)
    with pytest.raises(DumpError, match="the format sglang_passes has no file names to set"):
        open_dump(tmp_path / "p", format="sglang_passes", files={"width": 3})
