"""The fingerprint: a hand-computed answer, the story's numbers, odd rows and dtypes, and merging."""

import math

import numpy as np
import pytest
import torch

from eaglelab.dumps import Sample, open_dump
from eaglelab.dumps.health import check_health
from eaglelab.fingerprint import fingerprint


def sample(slots, key="a.pt", ids=None):
    slots = tuple(slots)
    ids = torch.arange(len(slots[0])) if ids is None else torch.tensor(ids)
    return Sample(key, ids, slots, None, tuple(f"hidden_states[{s}]" for s in range(len(slots))))


def hand_made():
    """Two slots whose norms and cosines can be computed in the head (3-4-5 triangles); H = 4."""
    first = torch.tensor([[30.0, 40, 0, 0], [3, 4, 0, 0], [0, 0, 6, 8], [0, 0, 0, 5], [5, 0, 0, 0]])  # norms 50, 5, 10, 5, 5
    second = torch.tensor([[3.0, 4, 0, 0], [4, -3, 0, 0], [0, 0, 12, 16], [0, 0, 0, -5], [3, 4, 0, 0]])  # norms 5, 5, 20, 5, 5
    return [first.bfloat16(), second.bfloat16()]


def test_hand_computed_known_answer():
    fp = fingerprint([sample(hand_made(), ids=[7, 8, 9, 10, 11])], rows=(0, -1, 99), total=100_000)
    slot = fp.slots.iloc[0]
    assert (slot["n"], slot["samples"], slot["hidden"]) == (4, 1, 4)
    assert slot["mean"] == pytest.approx(25 / 4)  # 5, 10, 5, 5: the first token stands apart
    assert slot["median"] == pytest.approx(5)
    assert slot["p5"] == pytest.approx(5)
    assert slot["p95"] == pytest.approx(5 + 0.85 * 5)  # between the third and the fourth of four values
    assert slot["mean_all"] == pytest.approx(75 / 5)
    assert (slot["first"], slot["first_ratio"]) == (pytest.approx(50), pytest.approx(10))
    assert slot["rms_median"] == pytest.approx(2.5)  # 5 / sqrt(4)
    assert slot["rms_mean"] == pytest.approx(25 / 8)
    assert (slot["zero_share"], slot["nan_share"], slot["massive"]) == (0, 0, 0)  # 10x is not over 10x
    assert fp.cosine.loc[0, 1] == pytest.approx(0.6)  # cosines 1, 0, 1, -1, 0.6
    assert fp.cosine.loc[1, 1] == 1
    assert fp.values[["position", "token_id", "slot"]].to_numpy().tolist() == [[0, 7, 0], [0, 7, 1], [4, 11, 0], [4, 11, 1]]
    assert fp.values.loc[0, ["v0", "v1", "v2", "v3"]].tolist() == [30, 40, 0, 0]
    assert fp.tokens["norm"].tolist() == [50, 5, 10, 5, 5, 5, 5, 20, 5, 5]
    assert fp.counted == "1 of 100,000 samples, 5 tokens"


def test_massive_tokens_name_their_channel():
    state = torch.ones(20, 100)  # norm 10
    state[0, 42] = -1000.0
    state[5, 7] = 200.0
    state[6, 7] = 90.0  # norm 90.5: under 10x
    fp = fingerprint([sample([state, torch.ones(20, 100)])])
    table = fp.massive
    assert table[["position", "slot", "channel", "value"]].to_numpy().tolist() == [[0, 0, 42, -1000.0], [5, 0, 7, 200.0]]
    assert table["ratio"].iloc[0] == pytest.approx(math.sqrt(1e6 + 99) / 10)
    assert table["share"].iloc[1] == pytest.approx(40_000 / 40_099, rel=1e-5)
    assert fp.slots["massive"].tolist() == [2, 0]
    assert fp.tokens.query("massive")["position"].tolist() == [0, 5]
    assert fp.slots["median"].iloc[0] == pytest.approx(10)


STORY = (1.0383, 37.1650, 174.3977, 111.3359)


def story_sample():
    g = torch.Generator().manual_seed(0)
    states = [torch.randn(200, 64, generator=g) for _ in STORY]
    return sample([state / state.norm(dim=1, keepdim=True) * norm for state, norm in zip(states, STORY, strict=True)])


def test_the_storys_norms_name_no_layer():
    """A norm near 1 is no proof of an embedding: nothing that the fingerprint says may name one."""
    fp = fingerprint([story_sample()])
    assert fp.slots["mean"].tolist() == pytest.approx(STORY, rel=1e-6)
    assert fp.counted == "1 sample, 200 tokens"
    tables = (fp.slots, fp.tokens, fp.massive, fp.values, fp.cosine)
    said = " ".join([fp.counted, repr(fp), *(table.to_string() for table in tables)]).lower()
    assert "embed" not in said
    assert "boundary" not in said


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_dtype_against_float64(dtype):
    g = torch.Generator().manual_seed(1)
    slots = [(torch.randn(700, 96, generator=g) * scale).to(dtype) for scale in (1.0, 20.0, 0.3)]
    fp = fingerprint([sample(slots)])
    exact = [slot.double().norm(dim=1) for slot in slots]
    for s, norms in enumerate(exact):
        assert fp.slots["mean"].iloc[s] == pytest.approx(norms[1:].mean().item(), rel=1e-6)
        assert fp.slots["median"].iloc[s] == pytest.approx(norms[1:].quantile(0.5).item(), rel=1e-6)
        assert fp.slots["p95"].iloc[s] == pytest.approx(norms[1:].quantile(0.95).item(), rel=1e-6)
    cosine = torch.nn.functional.cosine_similarity(slots[0].double(), slots[2].double())
    assert fp.cosine.loc[2, 0] == pytest.approx(cosine.quantile(0.5).item(), abs=1e-6)


def test_nan_inf_and_zero_rows_are_counted_and_left_out():
    states = hand_made()
    states[0] = states[0].clone()
    states[0][1, 2] = float("nan")
    states[0][2, 0] = float("inf")
    states[0][3] = 0
    fp = fingerprint([sample(states)])
    slot = fp.slots.iloc[0]
    assert (slot["n"], slot["mean"], slot["first"]) == (1, 5, 50)  # only the last row is left beside the first token
    assert (slot["nan_share"], slot["zero_share"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert fp.slots["n"].iloc[1] == 4
    assert fp.cosine.loc[0, 1] == pytest.approx(0.8)  # of 1 and 0.6
    assert np.isfinite(fp.values.filter(like="v").iloc[0].to_numpy(float)[:4]).all()


def test_a_slot_without_any_state_is_not_a_number_not_a_crash():
    states = [torch.zeros(6, 4), torch.full((6, 4), float("nan")), torch.ones(6, 4)]
    fp = fingerprint([sample(states)])
    assert fp.slots["zero_share"].tolist() == [1, 0, 0]
    assert fp.slots["nan_share"].tolist() == [0, 1, 0]
    assert fp.slots["median"].isna().tolist() == [True, True, False]
    assert fp.cosine.loc[[0, 1], 2].isna().all()
    assert fp.massive.empty


def test_a_single_token_is_its_own_statistic():
    fp = fingerprint([sample([torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0]])])])
    assert fp.slots["median"].tolist() == [5, 10]
    assert fp.slots["first"].tolist() == [5, 10]
    assert fp.values[["v0", "v1"]].to_numpy().tolist() == [[3, 4], [6, 8]]


def test_samples_are_in_natural_order():
    samples = [sample([torch.ones(2, 4)] * 2, f"data_{i}.pt") for i in (10, 2, 1)]
    assert [s.key for s in fingerprint(samples).samples] == ["data_1.pt", "data_2.pt", "data_10.pt"]


def test_slots_that_do_not_fit_are_an_error_with_the_sample():
    with pytest.raises(ValueError, match=r"odd\.pt: 4 tokens and slots of the shapes \[\(4, 8\), \(3, 8\)\]"):
        fingerprint([sample([torch.ones(4, 8), torch.ones(3, 8)], "odd.pt")])


def test_no_samples_give_empty_tables():
    fp = fingerprint([])
    assert fp.slots.empty
    assert fp.tokens.empty
    assert fp.massive.empty
    assert fp.values.empty
    assert fp.cosine.empty
    assert fp.counted == "0 samples, 0 tokens"


def test_from_a_dump_on_disk(tmp_path):
    made = story_sample()
    data = {"input_ids": made.token_ids, "hidden_states": list(made.slots), "loss_mask": torch.ones(200)}
    torch.save(data, tmp_path / "data_0.pt")
    dump = open_dump(tmp_path)
    fp = fingerprint(dump.samples(), total=len(dump))
    assert fp.slots["median"].tolist() == pytest.approx(STORY, rel=1e-6)
    assert fp.slot_names == dump.slot_names


def test_states_saved_with_a_gradient_or_as_views_are_plain_states(tmp_path):
    whole = torch.randn(9, 3, 16).bfloat16()  # [T, S, H]
    views = [*whole.unbind(1)]
    views[0] = torch.nn.Parameter(views[0])
    torch.save({"input_ids": torch.arange(9), "hidden_states": views}, tmp_path / "data_0.pt")
    fp = fingerprint(open_dump(tmp_path).samples())
    assert fp.tokens["norm"].tolist() == pytest.approx(whole.double().norm(dim=2).T.flatten().tolist(), rel=1e-6)
    assert check_health(open_dump(tmp_path)).summary["with_errors"] == 0


def test_torch_keeps_its_threads():
    before = torch.get_num_threads()
    fingerprint([story_sample()])
    with pytest.raises(ValueError, match="expected one"):
        fingerprint([sample([torch.ones(4, 8), torch.ones(3, 8)])])
    assert torch.get_num_threads() == before


def test_no_float32_copy_of_a_whole_sample(monkeypatch):
    """The largest float32 tensor made on the way is one block, however long the sample."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dtype in (torch.float32, torch.float64):
                largest = max(largest, out.untyped_storage().nbytes())
            return out

    monkeypatch.setattr("eaglelab.dumps.rows.BLOCK_BYTES", 1 << 20)
    made = sample([torch.randn(4000, 512).bfloat16() for _ in range(3)])  # 24 MB as float32
    with Watch():
        fingerprint([made])
    assert 500_000 < largest <= 1 << 20
