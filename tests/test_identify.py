"""Identify: known boundaries come back, known spoilings are named, and what is random is never named."""

import itertools
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from identify_fakes import TinyTarget, dump, random_texts
from tiny_models import hidden_states, make_gemma2, make_llama, tokens

from eaglelab.dumps import Sample
from eaglelab.identify import identify
from eaglelab.target.forward import ForwardSource
from eaglelab.target.sketch import load_sketch, make_sketch
from eaglelab.target.tensors import TensorSource
from eaglelab.wiring import FINAL, Wiring


@pytest.fixture(scope="module")
def target():
    return TinyTarget()


@pytest.fixture(scope="module")
def texts():
    return random_texts()


@pytest.fixture(scope="module", params=["forward", "sketch"])
def source(request, target, texts):
    return target if request.param == "forward" else make_sketch(target, texts)


def kinds(found):
    return {(a.slot, a.kind) for a in found.anomalies}


def only(found, kind):
    """The one anomaly, which must be of this kind."""
    assert [a.kind for a in found.anomalies] == [kind], found.anomalies
    return found.anomalies[0]


# -- boundaries come back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", range(6))
def test_random_wirings_come_back_through_forward_and_sketch(draw):
    seed = random.Random(draw).randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    layers = rng.randint(3, 9)
    target = TinyTarget(num_layers=layers, hidden_size=rng.choice([32, 48, 64]), seed=seed)
    wanted = rng.sample([*range(layers + 1), FINAL], rng.randint(1, 5) if layers > 3 else 3)
    samples = dump(target, random_texts(3, seed=seed), wanted, dtype=rng.choice([torch.float32, torch.bfloat16, torch.float16]))
    for source in (target, make_sketch(target, samples, rows=32, dim=48)):
        found = identify(samples, source)
        assert found.wiring == Wiring.of(wanted), found.reasons
        assert list(found.slots["decision"]) == wanted
        assert found.anomalies == ()
        assert set(found.slots["agree"]) == {"3 of 3"}
        assert (found.slots["margin_min"] > 10).all()


def test_numbers_are_the_definition(target, texts):
    """One slot, three boundaries, computed here by hand."""
    samples = dump(target, texts[:1], [2], torch.bfloat16)
    found = identify(samples, target)
    slot, states = samples[0].slots[0].float()[1:], target.states(texts[0])
    for column, boundary in enumerate(found.boundaries):
        b = states[boundary][1:]
        assert found.error[0, column] == pytest.approx(float(((slot - b).norm(dim=1) / b.norm(dim=1)).median()), rel=0.05)
        cosine = (slot * b).sum(1) / slot.norm(dim=1) / b.norm(dim=1)
        assert found.cosine[0, column] == pytest.approx(float(cosine.median()), abs=0.01)
        assert found.norm_ratio[0, column] == pytest.approx(float((slot.norm(dim=1) / b.norm(dim=1)).median()), rel=0.02)
    line = found.slots.iloc[0]
    assert (line.best, line.runner_up) in {(2, 1), (2, 3)}
    assert line.margin == pytest.approx(line.runner_up_error / line.relative_error)
    assert len(found.per_sample) == 1
    assert found.per_sample.loc[0, "wins"] == 1.0


def test_boundary_n_and_final_are_told_apart(source, target, texts):
    samples = dump(target, texts, [FINAL, target.num_layers, FINAL])
    found = identify(samples, source)
    assert found.wiring == Wiring.of([FINAL, 5, FINAL])
    assert "after the final norm" in found.reasons[0]
    assert "before the final norm" in found.reasons[1]


def test_wrong_engine_noise_and_fp8(source, target, texts):
    """bf16 and fp8 rounding are within tolerance; 5 % noise of a random direction too."""
    generator = torch.Generator().manual_seed(1)

    def noise(s, x):
        return x + 0.05 * x.norm(dim=-1, keepdim=True) * torch.nn.functional.normalize(torch.randn(x.shape, generator=generator), dim=-1)

    for dtype, change in ((torch.bfloat16, noise), (torch.float8_e4m3fn, lambda s, x: x)):
        found = identify(dump(target, texts, [1, 3, FINAL], dtype, change), source)
        assert found.wiring == Wiring.of([1, 3, FINAL]), found.reasons


def test_int8_target_is_identified_and_said_to_be_far_from_rounding(texts):
    """Weights rounded to 8 bits, then to 5: off by more than rounding of states explains, still nearest in every token."""
    plain = TinyTarget()
    for bits, far in ((8, False), (5, True)):
        quantised = TinyTarget()
        for weight in quantised.model.parameters():
            if weight.ndim == 2:
                scale = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
                weight.data = (weight / scale).round() * scale
        found = identify(dump(quantised, texts, [1, 4]), plain)
        assert found.wiring == Wiring.of([1, 4]), found.reasons
        assert ((1, "far from rounding") in kinds(found)) is far, (bits, found.slots)


def test_massive_tokens_do_not_decide(target, texts):
    """The first token and two others get 1000-fold norms of another boundary's direction."""

    def massive(s, x):
        x[[0, 7, 20]] = 1000 * x[[1, 2, 3]]
        return x

    found = identify(dump(target, texts, [2, 4], change=massive), target)
    assert found.wiring == Wiring.of([2, 4])
    assert any("massive" in note for note in found.notes)


def test_rows_are_subsampled_with_a_seed(target):
    samples = dump(target, random_texts(2, length=200), [2])
    a, b, c = (identify(samples, target, rows=16, seed=seed) for seed in (0, 0, 1))
    assert set(a.per_sample["rows"]) == {16}
    assert np.array_equal(a.error, b.error)
    assert not np.array_equal(a.error, c.error)
    assert "32 of 403 rows" in a.notes[0]


def test_stops_early(target, texts):
    """Up to boundary 2 of 5: what is there is told, what comes later is not mistaken for the last one looked at."""
    early = TinyTarget(up_to=2)
    found = identify(dump(target, texts, [0, 2, 3, FINAL]), early)
    assert found.wiring == Wiring.of([0, 2, None, None])
    assert found.boundaries == (0, 1, 2)
    assert any("boundaries 3 to 5 and final not looked at" in note for note in found.notes)
    assert "further" in found.next_step


def test_last_boundary_looked_at_is_not_the_nearest_of_a_slow_target():
    """Neighbours of a slow target differ little: boundary 4 is near 3, and best when nothing beyond 3 is looked at."""
    slow, texts = TinyTarget(num_layers=8, spread=0.04), random_texts()
    samples = dump(slow, texts, [4])
    assert identify(samples, slow).wiring == Wiring.of([4])
    slow.up_to = 3
    found = identify(samples, slow)
    assert found.wiring == Wiring.of([None])
    assert only(found, "edge").samples == 3
    assert "true one may come later" in found.reasons[0]


# -- spoilings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1, -1, 3])
def test_shifted(source, target, texts, shift):
    """Row t of the slot is row t + shift of the boundary."""
    found = identify(dump(target, texts, [3, 1], change=lambda s, x: x.roll(-shift, dims=0) if s == 0 else x), source)
    assert found.wiring == Wiring.of([None, 1])
    anomaly = only(found, "shifted")
    assert (anomaly.slot, anomaly.boundary, anomaly.numbers["offset"]) == (0, 3, shift)
    assert f"t{shift:+d}" in found.reasons[0]


def test_shifted_embedding(target, texts):
    found = identify(dump(target, texts, [0], change=lambda s, x: x.roll(1, dims=0)), target)
    assert (only(found, "shifted").boundary, only(found, "shifted").numbers["offset"]) == (0, -1)


@pytest.mark.report("vllm-project/vllm#36527", "A")
def test_zero_and_nan_slots(source, target, texts):
    def spoil(s, x):
        return [x, torch.zeros_like(x), torch.full_like(x, float("nan"))][s]

    found = identify(dump(target, texts, [2, 2, 2], change=spoil), source)
    assert found.wiring == Wiring.of([2, None, None])
    assert kinds(found) == {(1, "zero"), (2, "nan")}
    assert "all zero" in found.reasons[1]
    assert "NaN" in found.reasons[2]


def test_some_nan_and_some_padding_rows_are_left_out(source, target, texts):
    def spoil(s, x):
        if s == 0:
            x[5:9] = float("inf")
        else:
            x[-8:] = 0
        return x

    found = identify(dump(target, texts, [2, 4], change=spoil), source)
    assert found.wiring == Wiring.of([2, 4])
    assert kinds(found) == {(0, "nan"), (1, "padding")}
    detail = next(a for a in found.anomalies if a.kind == "nan")
    assert detail.numbers["rows"] == 12


def test_leading_padding_is_taken_off(source, target, texts):
    samples = dump(target, texts, [2, FINAL])
    padded = [
        Sample(
            s.key,
            torch.cat([torch.zeros(6).long(), s.token_ids]),
            tuple(torch.cat([torch.zeros(6, 48), x]) for x in s.slots),
            None,
            s.slot_names,
        )
        for s in samples
    ]
    found = identify(padded, source)
    assert found.wiring == Wiring.of([2, FINAL])
    assert {a.kind for a in found.anomalies} == {"padding"}
    assert "start with padding (up to 6 zero rows)" in found.anomalies[0].detail


def test_duplicates(source, target, texts):
    found = identify(dump(target, texts, [2, 4, 2]), source)
    assert found.wiring == Wiring.of([2, 4, 2])
    anomaly = only(found, "duplicate")
    assert (anomaly.slot, anomaly.numbers["other"], anomaly.boundary) == (2, 0, 2)
    assert "slots 0 and 2 are the same tensor in 3 of 3 samples" in anomaly.detail


def test_two_slots_that_are_the_same_and_no_boundary(target, texts):
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(len(ids), 48, generator=generator) for ids in texts]
    samples = [
        Sample(f"{i}", ids, (x, x.clone(), x.flip(0)), None, ("a", "b", "c")) for i, (ids, x) in enumerate(zip(texts, noise, strict=True))
    ]
    found = identify(samples, target)
    assert found.wiring == Wiring.of([None] * 3)
    assert kinds(found) == {(0, "no match"), (1, "no match"), (2, "no match"), (1, "duplicate")}


def test_duplicate_that_is_not_the_same_tensor(target, texts):
    found = identify(dump(target, texts, [2, 2], change=lambda s, x: x * (1 + 0.01 * s)), target)
    assert found.wiring == Wiring.of([2, 2])
    assert "both hold boundary 2" in only(found, "duplicate").detail


def rotate_samples(samples):
    """File k holds the states of sample k+1, cut to its own length."""
    out = []
    for i, sample in enumerate(samples):
        other = samples[(i + 1) % len(samples)]
        length = min(len(sample.token_ids), len(other.token_ids))
        slots = tuple(x[:length] for x in other.slots)
        out.append(Sample(sample.key, sample.token_ids[:length], slots, None, sample.slot_names))
    return out


@pytest.mark.report("vllm-project/speculators#279", "I")
def test_swapped_samples(source, target, texts):
    found = identify(rotate_samples(dump(target, texts, [3, FINAL])), source)
    assert found.wiring == Wiring.of([None, None])
    assert kinds(found) == {(0, "swapped rows"), (1, "swapped rows")}
    assert [a.boundary for a in found.anomalies] == [3, FINAL]
    assert all(a.samples == 3 for a in found.anomalies)


def test_few_swapped_samples_do_not_hide_the_boundary(target):
    """2 of 6 samples hold each other's rows: the slot's boundary is told, and the swap too."""
    samples = dump(target, random_texts(6, prefix=10), [3])
    samples = [*rotate_samples(samples[:2]), *samples[2:]]
    found = identify(samples, target)
    assert found.wiring == Wiring.of([3])
    anomaly = only(found, "swapped rows")
    assert (anomaly.samples, anomaly.of, anomaly.boundary) == (2, 6, 3)
    assert "data_1.pt" in anomaly.detail
    swapped = found.per_sample[found.per_sample["kind"] == "swapped rows"]
    assert list(swapped["sample"]) == ["data_0.pt", "data_1.pt"]


@pytest.mark.report("vllm-project/vllm-ascend#5974", "AN")
def test_rotated_basis(source, target, texts):
    rotation = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(3)))[0]
    found = identify(dump(target, texts, [2, FINAL], torch.bfloat16, lambda s, x: x @ rotation), source)
    assert found.wiring == Wiring.of([None, None])
    assert kinds(found) == {(0, "rotated basis"), (1, "rotated basis")}
    assert [a.boundary for a in found.anomalies] == [2, FINAL]
    assert abs(found.anomalies[0].numbers["cosine"]) < 0.5
    assert found.anomalies[0].numbers["norm_distance"] < 0.01


def test_equal_gram_matrices_with_other_norms_are_no_rotation(target, texts):
    rotation = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(3)))[0]
    found = identify(dump(target, texts, [2], change=lambda s, x: 1.3 * x @ rotation), target)
    assert found.wiring == Wiring.of([None])
    assert only(found, "no match")


def test_permuted_channels(source, target, texts):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(3))
    found = identify(dump(target, texts, [2, 5], torch.bfloat16, lambda s, x: x[:, order]), source)
    assert found.wiring == Wiring.of([None, None])
    assert kinds(found) == {(0, "permuted channels"), (1, "permuted channels")}
    assert [a.boundary for a in found.anomalies] == [2, 5]


def test_without_residual(source, target, texts):
    samples = dump(target, texts, [2, 5])
    branch = []
    for sample in samples:
        states = target.states(sample.token_ids)
        branch.append(Sample(sample.key, sample.token_ids, (states[4] - states[3], sample.slots[1]), None, sample.slot_names))
    found = identify(branch, source)
    assert found.wiring == Wiring.of([None, 5])
    anomaly = only(found, "without residual")
    assert anomaly.boundary == 4
    assert "layer 3" in anomaly.detail


def test_scaled(source, target, texts):
    found = identify(dump(target, texts, [0, 3], change=lambda s, x: x * 48**0.5 if s == 0 else x), source)
    assert found.wiring == Wiring.of([None, 3])
    assert (only(found, "scaled").slot, only(found, "scaled").boundary) == (0, 0)
    assert found.anomalies[0].numbers["factor"] == pytest.approx(48**0.5, rel=0.01)


def test_inside_a_layer(target, texts):
    """A quarter of the way from boundary 3 to 4 is neither."""
    samples = [
        Sample(f"{i}", ids, (0.75 * target.states(ids)[3] + 0.25 * target.states(ids)[4],), None, ("a",)) for i, ids in enumerate(texts)
    ]
    found = identify(samples, target)
    assert found.wiring == Wiring.of([None])
    assert only(found, "in between")
    assert "25% of the way from boundary 3 to 4" in found.reasons[0]


class Anisotropic(TinyTarget):
    """Every boundary has a direction that all its tokens share and that is most of their length, as real targets do."""

    def states(self, token_ids):
        common = torch.nn.functional.normalize(torch.randn(9, self.hidden_size, generator=torch.Generator().manual_seed(5)), dim=-1)
        states = super().states(token_ids)
        return {b: x + 20 * x.norm(dim=-1).median() * common[i] for i, (b, x) in enumerate(states.items())}


def test_any_row_of_a_boundary_is_near_where_tokens_are_alike(texts):
    """Shuffled rows are within 7 % of the right boundary and far from all others, and still are not these tokens' rows."""
    alike = Anisotropic()
    shuffle = torch.Generator().manual_seed(0)
    samples = dump(alike, texts, [3, 3], change=lambda s, x: x[torch.randperm(len(x), generator=shuffle)] if s == 0 else x)
    found = identify(samples, alike)
    assert found.error[0].min() < 0.1
    assert found.slots.loc[0, "margin"] > 5
    assert found.wiring == Wiring.of([None, 3])
    assert only(found, "other tokens").slot == 0


def test_rows_cut_off_are_not_called_nan(target, texts):
    """A slot two rows short at the start is shifted, and its length is said."""
    samples = [Sample(s.key, s.token_ids, (s.slots[0][2:], s.slots[1]), None, s.slot_names) for s in dump(target, texts, [3, 1])]
    found = identify(samples, target)
    assert found.wiring == Wiring.of([None, 1])
    assert kinds(found) == {(0, "shifted"), (0, "length")}
    assert next(a for a in found.anomalies if a.kind == "shifted").numbers["offset"] == 2


def test_equal_boundaries_of_a_target_cannot_be_told_apart(texts):
    lazy = TinyTarget()
    for weight in (lazy.model.layers[2].self_attn.o_proj.weight, lazy.model.layers[2].mlp.down_proj.weight):
        weight.data.zero_()
    found = identify(dump(lazy, texts, [2, 4]), lazy)
    assert found.wiring == Wiring.of([None, 4])
    assert "boundaries 2 and 3 fit about equally well" in found.reasons[0]
    assert only(found, "tie")


def test_samples_that_disagree(target, texts):
    samples = [dump(target, texts, [2])[0], *dump(target, texts, [4])[1:]]
    found = identify(samples, target)
    assert found.wiring == Wiring.of([None])
    assert "the samples disagree: boundary 4 in 2, boundary 2 in 1 of 3" in found.reasons[0]
    assert found.slots.loc[0, "agree"] == "2 of 3"


def test_missing_slot_wrong_width_and_short_samples_are_rows(target, texts):
    a, b, c = dump(target, texts, [2, 4])
    short = Sample("short.pt", a.token_ids[:3], tuple(x[:3] for x in a.slots), None, a.slot_names)
    wide = Sample("wide.pt", b.token_ids, (b.slots[0], torch.cat([b.slots[1]] * 2, dim=1)), None, b.slot_names)
    fewer = Sample("fewer.pt", c.token_ids, c.slots[:1], None, c.slot_names[:1])
    found = identify([a, short, wide, fewer, c], target)
    assert found.wiring == Wiring.of([2, 4])
    assert kinds(found) == {(1, "width"), (1, "missing")}
    assert list(found.slots["agree"]) == ["4 of 4", "2 of 2"]
    assert any("1 of 5 samples not compared: 3 tokens, 2 rows" in note for note in found.notes)
    nothing = identify([short], target)
    assert (nothing.wiring, nothing.anomalies) == (Wiring.of([None, None]), ())
    assert nothing.next_step.startswith("read more samples, longer ones")


def test_width_of_another_target(source, texts):
    other = TinyTarget(hidden_size=64)
    found = identify(dump(other, texts, [2]), source)
    assert found.wiring == Wiring.of([None])
    assert "64 wide, the target 48" in found.reasons[0]


def test_token_ids_out_of_range_are_rows(target, texts):
    samples = dump(target, texts, [2])
    spoiled = samples[0].token_ids.clone()
    spoiled[4] = 10**6
    known = TinyTarget()
    known.vocab_size = 200
    found = identify([Sample("bad.pt", spoiled, samples[0].slots, None, samples[0].slot_names), *samples[1:]], known)
    assert found.wiring == Wiring.of([2])
    assert any("token id 1000000 is outside the target's 0..199" in note for note in found.notes)


def test_no_samples(target, texts):
    with pytest.raises(ValueError, match="rows is 2, expected at least 4"):
        identify(dump(target, texts, [1]), target, rows=2)
    with pytest.raises(ValueError, match="no samples to identify"):
        identify([], target)


# -- what is random is never named -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_random_states_of_matching_norms_are_not_named(source, target, texts, seed):
    """Each slot has exactly the norms of a boundary, token by token, and a random direction."""
    generator = torch.Generator().manual_seed(seed)

    def random_direction(s, x):
        return torch.nn.functional.normalize(torch.randn(x.shape, generator=generator), dim=-1) * x.norm(dim=-1, keepdim=True)

    found = identify(dump(target, texts, [0, 2, 5, FINAL], change=random_direction), source)
    assert found.wiring == Wiring.of([None] * 4), found.reasons
    assert {a.kind for a in found.anomalies} == {"no match"}
    assert all("no boundary fits" in reason for reason in found.reasons)


@pytest.mark.parametrize("seed", range(3))
def test_a_norm_of_1_0383_is_not_the_embedding(target, texts, seed):
    """The embedding table has rows of length 1.0383 exactly, and so has the slot; nothing else of it is the same."""
    unit = TinyTarget(seed=seed)
    unit.model.embed_tokens.weight.data = 1.0383 * torch.nn.functional.normalize(unit.model.embed_tokens.weight.data, dim=-1)
    generator = torch.Generator().manual_seed(seed)
    rows = [1.0383 * torch.nn.functional.normalize(torch.randn(len(ids), 48, generator=generator), dim=-1) for ids in texts]
    samples = [Sample(f"{i}", ids, (row,), None, ("embed",)) for i, (ids, row) in enumerate(zip(texts, rows, strict=True))]
    for source in (unit, TinyTarget(seed=seed, up_to=0), make_sketch(unit, texts)):
        found = identify(samples, source)
        assert found.wiring == Wiring.of([None]), found.reasons
    assert found.norm_ratio[0, 0] < 1.5


def test_another_model_is_not_named(source, texts):
    other = TinyTarget(seed=9)
    found = identify(dump(other, texts, [0, 2, FINAL]), source)
    assert found.wiring == Wiring.of([None] * 3)
    assert "check that the target is the checkpoint" in found.next_step


def test_embedding_alone(target, texts):
    """With boundary 0 only: the embedding or not, and what it takes to know more."""
    early = TinyTarget(up_to=0)
    found = identify(dump(target, texts, [0, 1], torch.bfloat16), early)
    assert found.wiring == Wiring.of([0, None])
    assert "not the embedding (relative error" in found.reasons[1]
    assert "needs a sketch or a forward" in found.reasons[1]
    assert "eaglelab sketch" in found.next_step


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("target") / "llama", initializer_range=0.2)


def real_dump(folder, wanted, dtype=torch.float32, count=3):
    """Slots from transformers' `output_hidden_states`, whose last entry is the final-normed state."""
    samples = []
    for i in range(count):
        ids = tokens(40 + i, seed=i)
        states = hidden_states(folder, ids)
        slots = tuple((states[-1] if b == FINAL else states[b]).to(dtype) for b in wanted)
        samples.append(Sample(f"data_{i}.pt", ids, slots, None, tuple(f"aux_{s}" for s in range(len(wanted)))))
    return samples


def test_forward_source_of_a_checkpoint(checkpoint, tmp_path):
    samples = real_dump(checkpoint, [3, 0, FINAL, 1], torch.bfloat16)
    forward = ForwardSource(checkpoint)
    found = identify(samples, forward)
    assert found.wiring == Wiring.of([3, 0, FINAL, 1]), found.reasons
    assert found.boundaries == (0, 1, 2, 3, 4, FINAL)
    sketch = load_sketch(make_sketch(forward, samples).save(tmp_path / "sketch.safetensors"))
    assert identify(samples, sketch).wiring == found.wiring
    early = identify(samples, ForwardSource(checkpoint, up_to=2))
    assert early.wiring == Wiring.of([None, 0, None, 1])


def test_three_tensors(checkpoint):
    samples = real_dump(checkpoint, [3, 0, FINAL], torch.bfloat16)
    found = identify(samples, TensorSource(checkpoint))
    assert found.wiring == Wiring.of([None, 0, FINAL]), found.reasons
    assert "not the embedding (relative error" in found.reasons[0]
    assert "which boundary: needs a sketch or a forward" in found.reasons[0]
    assert "not final-normed" in found.reasons[0]
    assert "final" in found.reasons[2]
    assert found.anomalies == ()
    assert "boundaries 1 to 4 and final not looked at" in " ".join(found.notes)
    assert "eaglelab sketch" in found.next_step


def test_three_tensors_know_the_models_multiplier(tmp_path):
    folder = make_gemma2(tmp_path / "gemma", initializer_range=0.2)
    found = identify(real_dump(folder, [0, 2, FINAL]), TensorSource(folder))
    assert found.wiring == Wiring.of([0, None, FINAL]), found.reasons


def test_three_tensors_never_name_a_norm(checkpoint):
    """Rows with the embedding's own norms, and rows with the final state's norms, at random directions."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for s in real_dump(checkpoint, [0, FINAL]):
        directions = [torch.nn.functional.normalize(torch.randn(x.shape, generator=generator), dim=-1) for x in s.slots]
        slots = tuple(d * x.norm(dim=-1, keepdim=True) for d, x in zip(directions, s.slots, strict=True))
        samples.append(Sample(s.key, s.token_ids, slots, None, s.slot_names))
    assert identify(samples, TensorSource(checkpoint)).wiring == Wiring.of([None, None])


def test_token_ids_of_another_tokenizer_are_rows(checkpoint):
    good, bad = real_dump(checkpoint, [1], count=2)
    bad = Sample(bad.key, bad.token_ids + 1000, bad.slots, None, bad.slot_names)
    found = identify([good, bad], ForwardSource(checkpoint))
    assert found.wiring == Wiring.of([1])
    assert any("another tokenizer" in note for note in found.notes)


def test_json_is_plain(target, texts):
    import json

    text = json.dumps(identify(dump(target, texts, [2, FINAL]), target).to_json(), allow_nan=False)
    assert json.loads(text)["wiring"] == [2, "final"]


# -- figures ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from eaglelab.plots import identify as module

    yield module
    plt.close("all")


def boxes(ax):
    """{linestyle: cells boxed} of the boxes that have a label."""
    out = {}
    for patch in ax.patches:
        if patch.get_label() and not patch.get_label().startswith("_"):
            out.setdefault(patch.get_linestyle(), []).append((round(patch.get_y() + 0.46), round(patch.get_x() + 0.5)))
    return out


def test_heatmap_boxes_what_is_held_and_what_is_claimed(plots, target, texts):
    found = identify(dump(target, texts, [2, 4, FINAL], torch.bfloat16), target)
    ax = plots.slot_heatmap(found, claimed=[0, 2, None])
    assert boxes(ax) == {"-": [(0, 2), (1, 4), (2, 6)], "--": [(0, 0), (1, 2)]}
    title = " ".join(ax.get_title(loc="left").split())
    assert title == "Slots hold boundaries 2, 4 and final; 2 of 2 claims say otherwise"
    bars = " ".join(plots.margin_bars(found).get_title(loc="left").split())
    assert re.fullmatch(r"Each runner-up is at least [\d.,]+x further than the boundary that the slot holds, in every sample", bars)
    assert plots.slot_heatmap(found, "cosine").images[0].get_clim() == (-1, 1)
    ratios = plots.slot_heatmap(found, "norm_ratio").images[0]
    assert ratios.get_clim() == (0.25, 4)
    assert ratios.get_array()[1, 4] == pytest.approx(1, rel=1e-3)
    with pytest.raises(ValueError, match="value is 'norm', expected one of relative_error, cosine, norm_ratio"):
        plots.slot_heatmap(found, "norm")


def test_one_sample_alone_and_the_boundaries_own_norms(target, texts):
    samples = dump(target, texts, [2, 4])
    samples[1] = replace(samples[1], slots=(2 * samples[1].slots[0], samples[1].slots[1]))
    found = identify(samples, target)
    one, other = found.of("data_1.pt"), found.of("data_0.pt")
    assert (other.wiring, one.wiring) == (Wiring.of([2, 4]), Wiring.of([None, 4]))
    assert one.error.shape == found.error.shape
    assert one.norm_ratio[0, 2] == pytest.approx(2, rel=1e-5)
    assert other.norm_ratio[0, 2] == pytest.approx(1, rel=1e-5)
    assert one.error[0, 2] == pytest.approx(1, rel=1e-5)
    norms = [target.states(ids)[3][1:].norm(dim=-1).median() for ids in texts]
    assert found.boundary_norms()[3] == pytest.approx(float(torch.stack(norms).median()), rel=1e-5)
    with pytest.raises(ValueError, match=r"sample 'gone' was not compared with the target; these were: data_0\.pt, data_1\.pt"):
        found.of("gone")


def test_figures_of_slots_that_cannot_be_told(plots, target, texts):
    found = identify(dump(target, texts, [2, 4], change=lambda s, x: x.roll(1, 0) if s else x), target)
    ax = plots.slot_heatmap(found)
    assert sorted(boxes(ax)) == ["-", ":"]
    assert " ".join(ax.get_title(loc="left").split()) == "Slot 0 holds boundary 2; slot 1 cannot be told"
    bars = plots.margin_bars(found)
    assert bars.get_title(loc="left").startswith("Slot 0: the runner-up is at least ")
    assert [t.get_text().endswith("(cannot tell)") for t in bars.texts] == [False, True]
    none = identify(dump(target, [texts[0][:3]], [2]), target)
    for draw in (plots.slot_heatmap, plots.margin_bars):
        assert draw(none).get_title(loc="left") == "No slot's boundary can be told"


def test_figures_draw_on_the_axes_given(plots, target, texts):
    import matplotlib.pyplot as plt

    found = identify(dump(target, texts, [2, 4]), target)
    for draw in (plots.slot_heatmap, plots.margin_bars):
        ax = plt.figure().add_subplot()
        assert draw(found, ax=ax) is ax
        ax.figure.savefig("/dev/null", format="png")


def test_sixty_one_layers_have_room_for_their_ticks(plots):
    deep = TinyTarget(num_layers=61, hidden_size=32, spread=0.1)
    found = identify(dump(deep, random_texts(2, length=30), [3, 31, 59, FINAL], torch.bfloat16), deep)
    assert found.wiring == Wiring.of([3, 31, 59, FINAL])
    ax = plots.slot_heatmap(found)
    labels = [t.get_text() for t in ax.get_xticklabels()]
    assert {"0", "3", "31", "59", "final"} <= set(labels)
    ax.figure.canvas.draw()
    extents = [t.get_window_extent() for t in ax.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(extents)), labels
