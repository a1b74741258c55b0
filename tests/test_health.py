"""Health: every problem is a row with its sample, a short name and the numbers; one bad file never ends the scan."""

import gzip
import json
import pickle

import pytest
import torch

from eaglelab.cli import main
from eaglelab.dumps import DumpError, open_dump
from eaglelab.dumps.health import check_health, gather, sample_health
from eaglelab.dumps.rows import bad_rows, float_blocks, same_states

T, H = 40, 8


def sample(seed=0, tokens=T, hidden=H, dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.arange(tokens) + 100 * seed,
        "hidden_states": [torch.randn(tokens, hidden, generator=g).to(dtype) for _ in range(4)],
        "loss_mask": (torch.arange(tokens) >= 15).long(),
    }


def write(folder, *samples):
    """Three healthy samples, then those given, as data_3.pt, data_4.pt, …"""
    for i, data in enumerate([sample(1), sample(2), sample(3), *samples]):
        torch.save(data, folder / f"data_{i}.pt")
    return open_dump(folder)


def rows(health, key="data_3.pt"):
    table = health.table[health.table["sample"] == key]
    return dict(zip(table["what"], zip(table["detail"], table["severity"], strict=True), strict=True))


def test_healthy_dump_has_no_rows_and_the_facts_of_each_sample(tmp_path):
    health = check_health(write(tmp_path))
    assert health.table.empty
    assert list(health.table.columns) == ["sample", "what", "detail", "severity"]
    row = health.samples.iloc[0]
    assert (row["sample"], row["tokens"], row["slots"], row["hidden"], row["dtype"]) == ("data_0.pt", T, 4, H, "bfloat16")
    assert (row["trained"], row["first_trained"], row["problems"]) == (25, 15, 0)
    assert row["tensor_mb"] * 1e6 == pytest.approx(4 * T * H * 2 + 2 * T * 8)
    assert row["file_mb"] * 1e6 == pytest.approx((tmp_path / "data_0.pt").stat().st_size)
    assert health.summary["text"] == "3 of 3 samples looked at, 0 with errors"
    assert (health.summary["tokens"], health.summary["trained"]) == (120, 75)


def _nan(data):
    data["hidden_states"][1][3, 2] = float("nan")
    data["hidden_states"][1][9] = float("nan")
    data["hidden_states"][1][5, 0] = float("-inf")


def _zero_rows(data, slots=(0, 1, 2, 3)):
    for s in slots:
        data["hidden_states"][s][30:] = 0


def _padding(data):
    _zero_rows(data)
    data["loss_mask"][30:] = 0


def _one_slots_zero_rows(data):
    _zero_rows(data, slots=[3])
    data["loss_mask"][30:] = 0


def _one_layer_twice(data):
    data["hidden_states"][2] = data["hidden_states"][0].clone()


def _zero_slot(data):
    data["hidden_states"][2].zero_()


def _mask(value):
    return lambda data: data.update(loss_mask=value)


def _slots(change):
    return lambda data: data.update(hidden_states=[change(s, state) for s, state in enumerate(data["hidden_states"])])


PROBLEMS = {
    "nan": (
        _nan,
        "NaN or Inf",
        "slot 1 (hidden_states[1]): NaN in 2 (first row 3) and Inf in 1 (first row 5) of 40 rows",
        "error",
    ),
    "padding": (_padding, "all-zero rows", "slot 3 (hidden_states[3]): 10 of 40 rows, the first is row 30 (padding?)", "warning"),
    "zero rows that train": (
        _zero_rows,
        "all-zero rows",
        "slot 3 (hidden_states[3]): 10 of 40 rows, the first is row 30; 10 of them are no padding: the loss mask is 1",
        "error",
    ),
    "zero rows of one slot": (
        _one_slots_zero_rows,
        "all-zero rows",
        "slot 3 (hidden_states[3]): 10 of 40 rows, the first is row 30; 10 of them are no padding: other slots are not zero",
        "error",
    ),
    "one layer twice": (
        _one_layer_twice,
        "identical slots",
        "slots 0 and 2 (hidden_states[0], hidden_states[2]) hold the same values: was one layer captured twice?",
        "warning",
    ),
    "zero slot": (_zero_slot, "all-zero rows", "slot 2 (hidden_states[2]): every one of 40 rows; nothing was captured", "error"),
    "zero mask": (
        _mask(torch.zeros(T).long()),
        "no response tokens",
        "the loss mask is all zero: nothing of this sample trains",
        "error",
    ),
    "first only": (
        _mask((torch.arange(T) == 0).long()),
        "no response tokens",
        "only token 0 trains, and no row predicts it",
        "error",
    ),
    "one mask": (
        _mask(torch.ones(T).long()),
        "mask all one",
        "every token trains, the prompt's too: was the mask lost on the way?",
        "warning",
    ),
    "no mask": (
        lambda d: d.pop("loss_mask"),
        "mask unknown",
        "no loss mask is stored: which tokens train cannot be told",
        "note",
    ),
    "weights": (
        _mask(torch.arange(T) * 0.5),
        "put right while reading",
        "the loss mask holds values other than 0 and 1; non-zero was read as 1",
        "note",
    ),
    "batch": (
        _slots(lambda s, x: x[None]),
        "put right while reading",
        "a batch dimension of 1 was taken off",
        "note",
    ),
    "short states": (
        _slots(lambda s, x: x[:-1] if s == 2 else x),
        "lengths differ",
        "token ids 40, hidden_states[0] 40, hidden_states[1] 40, hidden_states[2] 39, hidden_states[3] 40, loss mask 40",
        "error",
    ),
    "widths": (
        _slots(lambda s, x: x[:, :5].clone() if s == 0 else x),
        "mixed widths",
        "the slots have the widths [5, 8, 8, 8]",
        "error",
    ),
    "dtypes": (
        _slots(lambda s, x: x.float() if s == 0 else x),
        "mixed dtypes",
        "the slots have the dtypes ['float32', 'bfloat16', 'bfloat16', 'bfloat16']",
        "warning",
    ),
    "negative id": (
        lambda d: d["input_ids"].__setitem__(7, -5),
        "token ids out of range",
        "1 of 40, the first is -5 at row 7; expected 0 or more",
        "error",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_is_a_row(tmp_path, name):
    spoil, what, detail, severity = PROBLEMS[name]
    data = sample(4)
    spoil(data)
    health = check_health(write(tmp_path, data))
    assert rows(health)[what] == (detail, severity)
    others = health.table[health.table["sample"] != "data_3.pt"]
    assert others.empty
    assert len(health.samples) == 4
    assert health.summary["with_errors"] == (severity == "error")
    if severity != "note":
        assert health.summary["problems"][what] == 1


def test_unreadable_truncated_and_empty_files_are_rows(tmp_path):
    dump = write(tmp_path, *(sample(seed) for seed in range(4, 9)))
    (tmp_path / "data_3.pt").write_bytes(b"")
    (tmp_path / "data_4.pt").write_text("not a torch file")
    whole = (tmp_path / "data_5.pt").read_bytes()
    (tmp_path / "data_5.pt").write_bytes(whole[: len(whole) // 2])
    torch.save({"a": 1}, tmp_path / "data_6.pt")
    (tmp_path / "data_7.pt").unlink()
    health = check_health(dump)
    assert "the file is empty" in rows(health)["empty"][0]
    assert "not a torch file" in rows(health, "data_4.pt")["unreadable"][0]
    assert "the file is cut off" in rows(health, "data_5.pt")["truncated"][0]
    assert "holds a dict with a (a int); expected a dict with input_ids" in rows(health, "data_6.pt")["not a sample"][0]
    assert "cannot be read: No such file" in rows(health, "data_7.pt")["unreadable"][0]
    assert health.summary["readable"] == 3
    assert health.summary["text"] == "8 of 8 samples looked at, 5 with errors"
    assert health.summary["problems"] == {"unreadable": 2, "empty": 1, "truncated": 1, "not a sample": 1}


def test_ids_and_width_are_held_against_the_target(tmp_path):
    dump = write(tmp_path)
    assert check_health(dump, vocab_size=340, hidden_size=H).table.empty
    health = check_health(dump, vocab_size=305, hidden_size=7168)
    assert rows(health, "data_2.pt")["token ids out of range"][0] == "35 of 40, the first is 305 at row 5; expected 0..304"
    assert rows(health, "data_0.pt")["wrong width"][0] == "H = 8, the target has 7168: is this dump of another model?"
    assert health.summary["problems"] == {"wrong width": 3, "token ids out of range": 1}


@pytest.mark.report("NVIDIA/Model-Optimizer#2080", "I")
def test_samples_are_held_against_each_other(tmp_path):
    twin = sample(2)
    health = check_health(write(tmp_path, sample(4, hidden=5), sample(5, dtype=torch.float16), twin))
    assert rows(health, "data_3.pt")["mixed widths"] == ("H = 5, most samples have 8", "error")
    assert rows(health, "data_4.pt")["mixed dtypes"] == ("float16, most samples have bfloat16", "warning")
    assert rows(health, "data_5.pt")["duplicate sample"] == ("same tokens and same first state as data_1.pt", "warning")
    assert "data_1.pt" not in set(health.table["sample"])


def test_a_dump_that_is_mostly_one_sample_is_an_error(tmp_path):
    health = check_health(write(tmp_path, *(sample(2) for _ in range(5))))
    assert health.summary["problems"] == {"duplicate sample": 5}
    assert health.summary["with_errors"] == 5


def test_same_tokens_with_another_state_are_no_duplicate(tmp_path):
    other = sample(2)
    other["hidden_states"] = sample(9)["hidden_states"]
    assert check_health(write(tmp_path, other)).table.empty


def test_a_saved_view_is_a_file_larger_than_its_tensors(tmp_path):
    data = sample(4)
    data["hidden_states"] = [torch.randn(10_000, H)[:T].bfloat16().float() for _ in range(3)] + [torch.randn(10_000, H)[:T]]
    health = check_health(write(tmp_path, data))
    detail, severity = rows(health)["file larger than its tensors"]
    assert detail.startswith("0.33 MB on disk for 0.01 MB of tensors")
    assert severity == "warning"


def test_gzip_is_no_reason_to_call_a_file_small_or_large(tmp_path):
    torch.save(sample(1), tmp_path / "x")
    (tmp_path / "data_0.pt.gz").write_bytes(gzip.compress((tmp_path / "x").read_bytes()))
    assert check_health(open_dump(tmp_path)).table.empty


def test_stray_files_and_broken_metadata_are_told(tmp_path):
    torch.save({1: 2}, tmp_path / "token_freq.pt")
    (tmp_path / "data_config.json").write_text("{")
    health = check_health(write(tmp_path))
    assert rows(health, "token_freq.pt")["stray file"] == ("left out by its name, unopened", "note")
    assert "cannot be read as JSON" in rows(health, "")["metadata"][0]
    assert health.summary["with_errors"] == 0


def test_n_of_n_and_parts_checked_by_workers_give_the_same(tmp_path):
    bad = sample(4)
    _nan(bad)
    dump = write(tmp_path, bad, sample(2), sample(6, hidden=5))
    whole = check_health(dump, max_samples=None)
    parts = [pickle.loads(pickle.dumps(sample_health(dump, key))) for key in reversed(dump.keys)]
    again = gather(dump, parts)
    assert whole.table.equals(again.table)
    assert whole.samples.equals(again.samples)
    assert check_health(dump, max_samples=2).summary["text"].startswith("2 of 6 samples looked at")
    assert len(whole.samples) == 6


def test_a_dump_of_bad_files_only_still_has_a_table(tmp_path):
    (tmp_path / "data_0.pt").write_bytes(b"")
    (tmp_path / "data_1.pt").write_bytes(b"junk")
    with pytest.raises(DumpError):
        open_dump(tmp_path)
    health = check_health(open_dump(tmp_path, format="list_of_four"))
    assert list(health.table["what"]) == ["empty", "unreadable"]
    assert list(health.samples["sample"]) == ["data_0.pt", "data_1.pt"]
    assert health.samples["tokens"].isna().all()
    assert health.summary["trained"] is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2])
def test_bad_rows_are_found_in_every_dtype(dtype):
    x = torch.full((300, 64), 0.5)
    x[7, 3] = float("nan")
    x[8] = 0
    if dtype != torch.float8_e4m3fn:  # has no infinity
        x[250, 63] = float("inf")
    bad = bad_rows(x.to(dtype))
    assert bad.nan.tolist() == [7]
    assert bad.zero.tolist() == [8]
    assert bad.inf.tolist() == ([] if dtype == torch.float8_e4m3fn else [250])


def test_a_norm_that_overflows_or_vanishes_is_no_bad_row():
    x = torch.ones(4, 1024, dtype=torch.float16)
    x[1] = 60_000  # norm 1.9e6, over float16's largest number
    x[2] = 6e-8  # squares vanish
    bad = bad_rows(x)
    assert not len(bad.inf)
    assert not len(bad.zero)
    big = torch.full((2, 8), 3e38)
    assert not len(bad_rows(big).inf)


def test_blocks_cover_every_row_once_at_any_size(monkeypatch):
    slots = [torch.arange(35.0).reshape(7, 5) + 100 * s for s in range(3)]
    for size in (1, 60, 130, 10_000):
        monkeypatch.setattr("eaglelab.dumps.rows.BLOCK_BYTES", size)
        seen = [(start, block.clone()) for start, block in float_blocks(slots)]
        assert [start for start, _ in seen] == list(range(0, 7, len(seen[0][1])))
        assert torch.equal(torch.cat([block for _, block in seen]), torch.stack(slots, dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_slots_of_the_same_values(dtype):
    slot = torch.randn(4, 8).to(dtype)
    other = slot.float().clone()
    other[3, 7] += 1
    assert same_states(slot, slot.clone())
    assert not same_states(slot, other.to(dtype))
    assert not same_states(slot, slot[:3])
    assert not same_states(torch.zeros(4, 8).to(dtype), torch.zeros(4, 8).to(dtype))


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_the_command_shows_the_table_first_where_no_sample_can_be_read(tmp_path, capsys, flag):
    (tmp_path / "data_0.pt").write_bytes(b"")
    (tmp_path / "data_1.pt").write_bytes(b"junk")
    (tmp_path / "case.toml").write_text('[dump]\npath = "."\nformat = "list_of_four"\n')
    assert main(["dump", str(tmp_path), *flag]) == 2
    shown = capsys.readouterr()
    if flag:
        told = json.loads(shown.out)
        assert [row["what"] for row in told["problems"]] == ["empty", "unreadable"]
        assert (told["health"]["readable"], told["kind"]) == (0, "DumpError")
    else:
        assert "2 of 2 samples looked at, 2 with errors" in shown.out
        assert "the file is empty" in shown.out
        assert "none of 2 samples could be read" in shown.err
