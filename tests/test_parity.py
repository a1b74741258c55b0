"""Parity of a dump with captured states: every way in which they can differ, made on a tiny target whose boundaries are known."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from identify_fakes import TinyTarget, random_texts

from eaglelab.capture.parity import first_wrong, parity, parity_of
from eaglelab.capture.write import CaptureInfo, CaptureWriter
from eaglelab.cli import main
from eaglelab.dumps import open_dump
from eaglelab.findings import Status, plain
from eaglelab.investigation import Investigation
from eaglelab.opened import NotGiven
from eaglelab.wiring import FINAL, Wiring

N, H = 6, 48
DUMPED = Wiring((2, 3, 5, FINAL))


@pytest.fixture(scope="module")
def target():
    return TinyTarget(N, H)


@pytest.fixture(scope="module")
def texts():
    return random_texts(4, 60, prefix=3)


@pytest.fixture(scope="module")
def dumped(target, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dump")
    for i, ids in enumerate(texts):
        states = target.states(ids)
        slots = [states[b] for b in DUMPED]
        torch.save({"input_ids": ids, "hidden_states": slots, "loss_mask": (torch.arange(len(ids)) > 20).long()}, folder / f"data_{i}.pt")
    return open_dump(folder)


def captured(target, texts, folder, boundaries, spoil=lambda i, s, states: states, dtype="float32", samples=None, rows=None):
    info = CaptureInfo("sglang==0.5.23", "aux", tuple(boundaries), dtype=dtype, num_layers=N)
    writer = CaptureWriter(folder, info)
    for i, ids in enumerate(texts):
        states = target.states(ids[:rows])
        slots = [spoil(i, s, states[b].clone()) for s, b in enumerate(boundaries)]
        writer.add(i, ids[:rows].tolist(), slots, None, samples[i] if samples else None)
    return open_dump(folder)


def verdicts(found):
    return [s.verdict for s in found.slots]


def test_the_same_states_pass(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5)), dump_wiring=DUMPED)
    assert (found.status, verdicts(found), found.wiring) == (Status.PASS, ["same"] * 3, Wiring((2, 3, 5)))
    assert (found.compared, found.rows) == (4, sum(map(len, texts)))
    assert "The captured states are those of the dump: 258 rows of 4 samples, median relative error at most" in found.summary
    assert found.limit == 1e-3


def test_the_numbers_are_those_of_the_definition(target, texts, dumped, tmp_path):
    noise = torch.Generator().manual_seed(3)

    def spoil(i, s, x):
        direction = torch.nn.functional.normalize(torch.randn(x.shape, generator=noise), dim=-1)
        return x + 0.01 * x.norm(dim=-1, keepdim=True) * direction

    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5), spoil, "bfloat16"), dump_wiring=DUMPED)
    own = found.table[(found.table["captured slot"] == found.table["dump slot"])]
    np.testing.assert_allclose(own["median"], 0.01, rtol=1e-3)  # every row is off by 1 % of its own norm, in a random direction
    np.testing.assert_allclose(own["worst"], 0.01, rtol=1e-3)
    np.testing.assert_allclose(own["cosine"], 1 / (1 + 0.01**2) ** 0.5, atol=2e-5)
    assert found.status is Status.PASS
    assert found.limit == 0.03


def test_bfloat16_rounding_is_the_same_and_float32_is_held_to_more(target, texts, dumped, tmp_path):
    rounded = captured(target, texts, tmp_path / "a", (2, 3, 5), lambda i, s, x: x.bfloat16().float(), "bfloat16")
    assert parity(dumped, rounded).status is Status.PASS
    found = parity(dumped, captured(target, texts, tmp_path / "b", (2, 3, 5), lambda i, s, x: x * 1.002))
    assert (found.status, verdicts(found)) == (Status.CANNOT_TELL, ["near"] * 3)


def test_the_storys_wrong_ids_are_recognised_as_the_boundaries_that_they_are(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (0, 2, 3)), dump_wiring=DUMPED, source=target)
    assert (found.status, verdicts(found)) == (Status.FAIL, ["no match", "other slot", "other slot"])
    assert found.wiring == Wiring((0, 2, 3))
    assert "captured slot 0 is none of the dump's slots; it is the embedding (boundary 0)" in found.summary
    assert "captured slot 1 is the dump's slot 0, boundary 2, not its slot 1" in found.summary


def test_layers_one_deeper_are_named_by_the_target(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (3, 4, 6)), dump_wiring=DUMPED, source=target)
    assert found.wiring == Wiring((3, 4, 6))
    assert verdicts(found)[0] == "other slot"
    assert set(verdicts(found)[1:]) <= {"near", "no match"}
    assert found.status is Status.FAIL


def test_slots_in_another_order(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (3, 2, 5)), dump_wiring=DUMPED)
    assert verdicts(found) == ["other slot", "other slot", "same"]
    assert found.wiring == Wiring((3, 2, 5))
    assert found.status is Status.FAIL


def test_rows_that_go_wrong_at_a_chunk_are_named(target, texts, dumped, tmp_path):
    def spoil(i, s, x):
        if i == 2:
            x[32:] = x[32:].roll(1, dims=0)  # rows of other tokens from the second chunk on
        return x

    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5), spoil), dump_wiring=DUMPED)
    assert (found.status, verdicts(found)) == (Status.FAIL, ["rows differ"] * 3)
    assert [(s.row, s.sample) for s in found.slots] == [(32, "sample_00002")] * 3
    assert "captured slot 0 is the dump's slot 0 up to row 32 of sample_00002 and differs from there on" in found.summary


def third(i, s, x):
    x[::3] = 0
    return x


def tenth(i, s, x):
    x[::10] = x.roll(1, 0)[::10]
    return x


def rolled(i, s, x):
    return x.roll(7, 0) if i == 1 else x


def one_row(i, s, x):
    if i == 1 and s == 1:
        x[5] = float("nan")
    return x


def one_row_off(i, s, x):
    if i == 1 and s == 1:
        x[5] *= 1.5
    return x


@pytest.mark.parametrize(
    ("spoil", "status", "verdict", "said"),
    [
        (third, Status.FAIL, "rows differ", r"but for 8\d of 258 rows, first row 0 of sample_00000"),
        (tenth, Status.FAIL, "rows differ", r"but for 2\d of 258 rows, first row 0 of sample_00000"),
        (rolled, Status.FAIL, "rows differ", r"but for 6\d of 258 rows, first row 0 of sample_00001: all of sample_00001"),
        (one_row, Status.FAIL, "rows differ", "slot 1 is the dump's slot 1 but for 1 of 258 rows, first row 5 of sample_00001"),
        (
            one_row_off,
            Status.CANNOT_TELL,
            "few rows differ",
            "slot 1 is the dump's slot 1 but for 1 of 258 rows, first row 5 of sample_00001",
        ),
    ],
)
def test_a_right_median_hides_no_wrong_rows(target, texts, dumped, tmp_path, spoil, status, verdict, said):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5), spoil), dump_wiring=DUMPED)
    assert (found.status, verdicts(found)[1]) == (status, verdict)
    assert re.search(said, found.summary)
    assert found.wiring == Wiring((2, 3, 5))
    json.dumps(plain(found), allow_nan=False)


def test_one_sample_with_its_slots_swapped_is_named(target, texts, dumped, tmp_path):
    captured(target, texts, tmp_path / "c", (2, 3, 5))
    other = captured(target, texts[1:2], tmp_path / "d", (3, 2, 5))
    shutil.rmtree(tmp_path / "c" / "sample_00001")
    shutil.copytree(other.path / "sample_00000", tmp_path / "c" / "sample_00001")
    found = parity(dumped, open_dump(tmp_path / "c"), dump_wiring=DUMPED)
    assert (found.status, verdicts(found)) == (Status.FAIL, ["rows differ", "rows differ", "same"])
    assert "first row 0 of sample_00001: all of sample_00001, there it is the dump's slot 1" in found.summary


@pytest.mark.parametrize("places", [1, -1])
def test_rows_one_place_off_are_named(target, texts, dumped, tmp_path, places):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5), lambda i, s, x: x.roll(places, 0)), dump_wiring=DUMPED)
    assert found.status is Status.FAIL
    assert f"its row t is row t {'-' if places > 0 else '+'} 1 of the dump's slot 2: rows are one place off" in found.summary


def test_another_scale_is_named(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5), lambda i, s, x: 2 * x), dump_wiring=DUMPED)
    assert [s.hint for s in found.slots] == [f"the direction of the dump's slot {d} (cosine 1.0000) in another scale" for d in range(3)]


def test_a_captured_sample_that_cannot_be_read_is_a_row(target, texts, dumped, tmp_path):
    captured(target, texts, tmp_path / "c", (2, 3, 5))
    for file in (tmp_path / "c" / "sample_00002").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    found = parity(dumped, open_dump(tmp_path / "c"), dump_wiring=DUMPED)
    assert found.samples["why"].tolist()[3].startswith("cannot be read: ")
    assert "rows of 3 samples, 1 more could not be read" in found.summary
    assert "worst row" in found.summary


def test_nothing_but_noise_is_no_match(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5), lambda i, s, x: torch.randn_like(x)), dump_wiring=DUMPED)
    assert (found.status, verdicts(found)) == (Status.FAIL, ["no match"] * 3)
    assert found.wiring == Wiring((None,) * 3)


def test_states_that_are_not_numbers_are_not_the_same(target, texts, dumped, tmp_path):
    def spoil(i, s, x):
        return torch.full_like(x, float("nan")) if s == 1 else x

    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5), spoil), dump_wiring=DUMPED)
    assert verdicts(found) == ["same", "no match", "same"]
    assert json.loads(json.dumps(plain(found), allow_nan=False))["status"] == "fail"


def test_samples_are_matched_by_their_tokens(target, texts, dumped, tmp_path):
    """All four begin with the same three tokens; the fifth captured text is none of the dump's."""
    others = [*texts[::-1], torch.arange(3, 60)]
    found = parity(dumped, captured(target, others, tmp_path / "c", (2, 3, 5)), dump_wiring=DUMPED)
    assert found.samples["dump"].tolist()[:4] == ["data_3.pt", "data_2.pt", "data_1.pt", "data_0.pt"]
    assert found.samples["why"].tolist()[4] == "no sample of the dump begins with its tokens"
    assert (found.status, found.compared) == (Status.PASS, 4)


def test_a_name_is_not_believed_before_the_tokens(target, texts, dumped, tmp_path):
    wrong = captured(target, texts, tmp_path / "c", (2, 3, 5), samples=["data_1.pt", "data_0.pt", "data_2.pt", "gone.pt"])
    found = parity(dumped, wrong, dump_wiring=DUMPED)
    assert found.samples["dump"].tolist() == [f"data_{i}.pt" for i in range(4)]
    assert found.status is Status.PASS


def test_only_the_shared_tokens_are_compared(target, texts, dumped, tmp_path):
    changed = [t.clone() for t in texts]
    for t in changed:
        t[40] = 199 if t[40] != 199 else 198
    found = parity(dumped, captured(target, changed, tmp_path / "c", (2, 3, 5)), dump_wiring=DUMPED)
    assert found.samples["rows"].tolist() == [40] * 4
    assert found.status is Status.PASS


def test_no_shared_sample_is_nothing_to_compare(target, dumped, tmp_path):
    found = parity(dumped, captured(target, random_texts(2, 30, seed=9), tmp_path / "c", (2, 3, 5)), dump_wiring=DUMPED)
    assert (found.status, verdicts(found)) == (Status.CANNOT_TELL, ["not compared"] * 3)
    assert found.summary == "Nothing to compare: no sample of the dump begins with its tokens."


def test_a_captured_last_layer_is_set_beside_the_last_state_and_does_not_decide(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3, 5, N)), dump_wiring=DUMPED, source=target)
    assert found.slots[3].expected is None
    assert (found.status, found.wiring) == (Status.PASS, Wiring((2, 3, 5, N)))


def test_the_table_has_every_pair(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3)), dump_wiring=DUMPED)
    assert found.table[["captured slot", "dump slot"]].values.tolist() == [[c, d] for c in range(2) for d in range(4)]
    assert found.table["boundary"].tolist() == [*DUMPED, *DUMPED]
    other = found.table[(found.table["captured slot"] == 0) & (found.table["dump slot"] == 2)]
    a, b = target.states(texts[0])[2], target.states(texts[0])[5]
    assert 0.3 < float(other["median"].iloc[0]) / float(((a - b).norm(dim=-1) / b.norm(dim=-1)).median()) < 3


def test_fewer_captured_slots_than_the_feed_is_a_failure(target, texts, dumped, tmp_path):
    found = parity(dumped, captured(target, texts, tmp_path / "c", (2, 3)), dump_wiring=DUMPED)
    assert found.status is Status.FAIL
    assert "2 slots were captured where the dump feeds 3" in found.summary


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ([0.0] * 40, None),
        ([1.0] * 40, None),
        ([0.0] * 30 + [1.0] * 10, 30),
        ([0.0] * 20 + [float("nan")] * 20, 20),
        ([0.0] * 30 + [1.0, 0.0] * 5, None),
        ([1.0] + [0.0] * 29 + [1.0] * 30, 30),
        ([0.0] * 37 + [1.0] * 3, None),
    ],
    ids=["all right", "all wrong", "from 30 on", "not numbers", "now and then", "the first token too", "too few to say"],
)
def test_the_first_wrong_row(error, expected):
    assert first_wrong(np.array(error), 0.03) == expected


def test_the_command_shows_states_beside_tokens(target, texts, dumped, tmp_path, capsys):
    captured(target, texts, tmp_path / "c", (3, 2, 5))
    assert main(["dump", str(dumped.path), "--against", str(tmp_path / "c"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parity"]["status"] == "fail"
    assert [s["nearest"] for s in told["parity"]["slots"]] == [1, 0, 2]
    assert main(["dump", str(dumped.path), "--against", str(tmp_path / "c")]) == 0
    out = capsys.readouterr().out
    assert "States: Of 258 rows of 4 samples: captured slot 0 is the dump's slot 1, not its slot 0" in out


def test_a_case_without_a_target_names_what_its_dump_can(target, texts, dumped, tmp_path):
    (tmp_path / "case.toml").write_text(f'[dump]\npath = "{dumped.path}"\n')
    captured(target, texts, tmp_path / "c", (2, 3, 5))
    found = parity_of(Investigation(str(tmp_path)), tmp_path / "c")
    assert (found.status, found.wiring) == (Status.PASS, Wiring((None,) * 3))


def test_a_case_without_a_dump_is_told_so(tmp_path):
    (tmp_path / "case.toml").write_text('[engine]\nname = "sglang"\n')
    with pytest.raises(NotGiven, match="a dump is not given"):
        parity_of(Investigation(str(tmp_path)), tmp_path)
