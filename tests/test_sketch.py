"""The sketch: what it keeps, how well it estimates, what it refuses."""

import hashlib
import json

import numpy as np
import pytest
import torch
from identify_fakes import TinyTarget, dump, random_texts
from safetensors.torch import load_file, save_file

from eaglelab.dumps import Sample
from eaglelab.identify import identify
from eaglelab.target.sketch import PROBE_TEXT, SketchError, load_sketch, make_sketch, projection
from eaglelab.wiring import FINAL, Wiring


@pytest.fixture(scope="module")
def target():
    return TinyTarget()


@pytest.fixture
def file(target, tmp_path):
    return make_sketch(target, random_texts(3, length=40), rows=24, target="tiny").save(tmp_path / "sketch.safetensors")


def test_projection_is_the_hash_of_the_seed():
    """Signs bit by bit from SHAKE-256, lowest bit of each byte first; so it can be made again anywhere."""
    matrix = projection(5, 3, seed=7)
    bits = [byte >> k & 1 for byte in hashlib.shake_256(b"eaglelab projection 1 seed 7").digest(2) for k in range(8)][:15]
    expected = np.where(np.array(bits).reshape(5, 3) == 1, 1, -1) / 3**0.5
    assert np.allclose(matrix.numpy(), expected, atol=1e-7)
    assert not torch.equal(projection(5, 3, seed=8), matrix)


def test_projected_lengths_are_right_on_average_and_spread_as_stated():
    """Mean 1, standard deviation of the length about 1 / sqrt(2 dim)."""
    x = torch.nn.functional.normalize(torch.randn(4000, 300, generator=torch.Generator().manual_seed(0)), dim=-1)
    for dim in (16, 64):
        lengths = (x @ projection(300, dim)).norm(dim=-1)
        assert float(lengths.pow(2).mean()) == pytest.approx(1, abs=0.03)
        assert float(lengths.std()) == pytest.approx((2 * dim) ** -0.5, rel=0.15)


def test_save_and_load(target, file):
    made, loaded = make_sketch(target, random_texts(3, length=40), rows=24, target="tiny"), load_sketch(file)
    assert loaded.boundaries == (0, 1, 2, 3, 4, 5, FINAL)
    assert (loaded.num_layers, loaded.hidden_size, loaded.dim, loaded.seed, loaded.target, loaded.dtype) == (
        5,
        48,
        64,
        0,
        "tiny",
        "float32",
    )
    for a, b in zip(made.texts, loaded.texts, strict=True):
        assert torch.equal(a.token_ids, b.token_ids)
        assert torch.equal(a.norms, b.norms)
        assert ((a.states - b.states).norm(dim=-1) / a.norms).max() < 1e-3
        assert torch.allclose(a.gram, b.gram, atol=1e-3)
        assert torch.allclose(a.order, b.order, atol=4e-3)
    states = target.states(loaded.texts[1].token_ids)
    assert torch.allclose(loaded.texts[1].norms[3], states[3].norm(dim=-1), rtol=1e-5)
    ids = torch.cat([t.token_ids for t in loaded.texts]).unique()
    assert torch.equal(loaded.embedding_ids, ids)
    assert torch.equal(loaded.embedding_rows, target.model.embed_tokens.weight.data[ids])
    assert not list(file.parent.glob("*.part"))


def test_branch_is_the_difference_of_two_boundaries(target, file):
    """The projection is linear, so nothing of its own is kept for what a layer adds."""
    sketch = load_sketch(file)
    text = sketch.texts[0]
    states = target.states(text.token_ids)
    branch = (states[4] - states[3]) @ sketch.projection()
    assert ((text.states[4] - text.states[3] - branch).norm(dim=-1) / branch.norm(dim=-1)).max() < 0.01


def test_massive_tokens_fit_into_float16(target, tmp_path):
    class Massive(TinyTarget):
        def visit(self, token_ids, visit):
            super().visit(token_ids, lambda b, states: visit(b, [x * 1e6 for x in states]))

    loaded = load_sketch(make_sketch(Massive(), random_texts(1)).save(tmp_path / "s"))
    assert loaded.texts[0].states.isfinite().all()
    assert loaded.texts[0].norms.max() > 1e6


def test_only_first_rows_are_run_and_equal_prefixes_are_kept_once(target):
    seen = []

    class Counting(TinyTarget):
        def visit(self, token_ids, visit):
            seen.extend(len(ids) for ids in token_ids)
            super().visit(token_ids, visit)

    sketch = make_sketch(Counting(), random_texts(4, length=30, prefix=10), rows=10)
    assert seen == [10]
    assert len(sketch.texts) == 1
    assert sketch.probe() == [random_texts(1, length=30)[0][:10].tolist()]


def test_estimated_errors_are_the_true_ones_within_the_stated_error(target):
    """The same dump through the forward and through sketches of several seeds."""
    texts = random_texts(3)
    samples = dump(target, texts, [3])
    true = identify(samples, target).error[0]
    for seed in range(5):
        estimate = identify(samples, make_sketch(target, texts, seed=seed)).error[0]
        off = np.abs(estimate - true)[true > 0.01] / true[true > 0.01]
        assert off.max() < 3 * (2 * 64) ** -0.5, (seed, off)


def test_shared_template_prefix_is_enough(target):
    """A dump of other texts with the same first 12 tokens: 11 rows are compared, and the wiring comes back."""
    sketch = make_sketch(target, random_texts(2, seed=0))
    first = random_texts(1, seed=0)[0][:12]
    others = [torch.cat([first, ids[12:]]) for ids in random_texts(3, seed=5)]
    found = identify(dump(target, others, [1, 4, FINAL]), sketch)
    assert found.wiring == Wiring.of([1, 4, FINAL])
    assert set(found.per_sample["rows"]) == {11}
    assert "33 rows of 3 of 3 samples" in found.notes[0]


def test_same_tokens_behind_another_first_token_are_not_compared(target):
    """A state depends on its whole prefix: the same text after another first token has other states."""
    texts = random_texts(2)
    sketch = make_sketch(target, texts)
    moved = [torch.cat([(ids[:1] + 1) % 200, ids[1:]]) for ids in texts]
    found = identify(dump(target, moved, [3, 0]), sketch)
    assert found.wiring == Wiring.of([None, 0])  # the embedding has no prefix
    assert "0 rows shared, 5 needed" in found.reasons[0]
    assert "eaglelab sketch TARGET --dump DUMP" in found.next_step
    assert "--probe" in found.next_step


def test_nothing_in_common(target):
    """Not even a token: nothing is compared, and the result says how to go on."""
    sketch = make_sketch(target, [torch.arange(10, 40)])
    found = identify(dump(target, [torch.arange(100, 130)], [3]), sketch)
    assert found.wiring == Wiring.of([None])
    assert "no text that starts like this sample" in found.reasons[0]
    assert "eaglelab sketch TARGET --dump DUMP" in found.next_step
    assert found.error.shape == (1, 0)
    assert json.dumps(found.to_json(), allow_nan=False)


def test_unmatched_samples_do_not_outvote_matched_ones(target):
    texts = random_texts(6)
    sketch = make_sketch(target, texts[:2])
    found = identify(dump(target, texts, [3, 0]), sketch)
    assert found.wiring == Wiring.of([3, 0])
    assert list(found.slots["agree"]) == ["2 of 2", "6 of 6"]


def test_sketch_that_stops_early(tmp_path):
    sketch = load_sketch(make_sketch(TinyTarget(up_to=2), random_texts(2)).save(tmp_path / "s"))
    assert sketch.boundaries == (0, 1, 2)
    found = identify(dump(TinyTarget(), random_texts(2), [1, 4]), sketch)
    assert found.wiring == Wiring.of([1, None])
    assert any("boundaries 3 to 5 and final not looked at" in note for note in found.notes)


def test_one_row_and_bfloat16_target(target):
    class Half(TinyTarget):
        def visit(self, token_ids, visit):
            super().visit(token_ids, lambda b, states: visit(b, [x.bfloat16() for x in states]))

    sketch = make_sketch(Half(), [torch.tensor([5])])
    assert sketch.dtype == "bfloat16"
    assert sketch.texts[0].gram.shape == (7, 1, 1)
    found = identify(dump(target, random_texts(1), [2]), sketch)
    assert found.wiring == Wiring.of([None])


def test_size_of_a_61_layer_sketch_is_a_few_mb(tmp_path):
    """61 layers, H = 7168: 1.7 MB for each text of 64 rows, half of it embedding rows."""

    class Wide:
        num_layers = 61

        def visit(self, token_ids, visit):
            for b in [*range(62), FINAL]:
                visit(b, [torch.ones(len(ids), 7168, dtype=torch.bfloat16) for ids in token_ids])

    path = make_sketch(Wide(), random_texts(1, length=64, vocab_size=10**5)).save(tmp_path / "s")
    assert path.stat().st_size < 1.75e6


def test_probe_text_is_prose_of_a_sketchs_length():
    assert 60 < len(PROBE_TEXT.split()) < 120


# -- errors --------------------------------------------------------------------------------------------------------------


def test_refuses_what_cannot_be_sketched(target):
    with pytest.raises(SketchError, match="no sample with at least one token"):
        make_sketch(target, [])
    with pytest.raises(SketchError, match="no sample with at least one token"):
        make_sketch(target, [torch.empty(0, dtype=torch.int64)])
    with pytest.raises(SketchError, match="at least 1 row, got rows = 0"):
        make_sketch(target, random_texts(1), rows=0)
    with pytest.raises(SketchError, match="dim of at least 1"):
        make_sketch(target, random_texts(1), dim=0)


def test_missing_truncated_and_foreign_files(file, tmp_path):
    with pytest.raises(SketchError, match=r"no sketch at .*none\.safetensors; make it again: eaglelab sketch TARGET"):
        load_sketch(tmp_path / "none.safetensors")
    whole = file.read_bytes()
    for cut in (0, 4, 300, len(whole) - 10):
        (tmp_path / "cut.safetensors").write_bytes(whole[:cut])
        with pytest.raises(SketchError, match=r"cut\.safetensors is truncated or not a safetensors file"):
            load_sketch(tmp_path / "cut.safetensors")
    (tmp_path / "text.safetensors").write_text("<script>alert(1)</script>")
    with pytest.raises(SketchError, match="truncated or not a safetensors file"):
        load_sketch(tmp_path / "text.safetensors")
    save_file({"x": torch.ones(2)}, str(tmp_path / "other.safetensors"))
    with pytest.raises(SketchError, match="no sketch: no eaglelab header"):
        load_sketch(tmp_path / "other.safetensors")
    with pytest.raises(SketchError, match="no sketch at"):
        load_sketch(tmp_path)


def resave(file, out, tensors=lambda t: t, header=lambda h: h):
    from safetensors import safe_open

    with safe_open(str(file), framework="pt") as f:
        metadata = json.loads(f.metadata()["eaglelab"])
    save_file(tensors(load_file(str(file))), str(out), metadata={"eaglelab": json.dumps(header(metadata))})
    return out


def test_another_version(file, tmp_path):
    out = resave(file, tmp_path / "v.safetensors", header=lambda h: h | {"format": "eaglelab sketch 9", "eaglelab": "7.0"})
    with pytest.raises(SketchError, match=r"format 'eaglelab sketch 9' \(eaglelab 7\.0\), this eaglelab .* reads 'eaglelab sketch 1'"):
        load_sketch(out)


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": lambda t: {k: v for k, v in t.items() if k != "norms"}},
        {"tensors": lambda t: t | {"states": t["states"][:, :5].clone()}},
        {"tensors": lambda t: t | {"lengths": t["lengths"] + 1}},
        {"tensors": lambda t: t | {"gram": t["gram"][:, :7].clone()}},
        {"tensors": lambda t: t | {"embedding_rows": t["embedding_rows"][:, :5].clone()}},
        {"header": lambda h: h | {"dim": 32}},
        {"header": lambda h: h | {"hidden_size": 64}},
        {"header": lambda h: h | {"boundaries": [0, 1]}},
        {"header": lambda h: {k: v for k, v in h.items() if k != "seed"}},
        {"header": lambda h: h | {"num_layers": "5"}},
        {"header": lambda h: h | {"num_layers": 3}},  # the file holds boundaries up to 5
        {"header": lambda h: h | {"seed": [1]}},
        {"header": lambda h: h | {"boundaries": [0, 1, 2, 3, 4, 5, "last"]}},
        {"tensors": lambda t: t | {"norms": t["norms"][:1].clone()}},  # would broadcast
        {"tensors": lambda t: t | {"order": t["order"][:3].clone()}},
    ],
)
def test_tensors_that_do_not_fit(file, tmp_path, change):
    with pytest.raises(SketchError, match="do not fit the header"):
        load_sketch(resave(file, tmp_path / "x.safetensors", **change))


def test_a_small_file_cannot_ask_for_much_memory(file, tmp_path):
    """Tensors without rows may have any width: 830 bytes that claim H = 10^10, whose projection would need 91 GB."""
    wide = 10**10

    def no_rows(t):
        return t | {"embedding_ids": torch.empty(0, dtype=torch.int32), "embedding_rows": torch.empty(0, wide)}

    out = resave(file, tmp_path / "x.safetensors", tensors=no_rows, header=lambda h: h | {"hidden_size": wide})
    with pytest.raises(SketchError, match="0 embedding rows, expected at least one"):
        load_sketch(out)
    with pytest.raises(SketchError, match="more than 134,217,728 entries; take a smaller dim"):
        projection(wide, 64)


def test_a_header_nested_without_end(file, tmp_path):
    save_file(load_file(str(file)), str(tmp_path / "deep.safetensors"), metadata={"eaglelab": "[" * 50_000})
    with pytest.raises(SketchError, match="no eaglelab header"):
        load_sketch(tmp_path / "deep.safetensors")


def test_width_of_another_target_is_a_reason(target):
    sketch = make_sketch(TinyTarget(hidden_size=64), random_texts(2))
    found = identify(dump(target, random_texts(2), [2]), sketch)
    assert found.wiring == Wiring.of([None])
    assert "48 wide, the target 64" in found.reasons[0]


def test_nan_in_a_sketch_names_nothing(target):
    class Broken(TinyTarget):
        def visit(self, token_ids, visit):
            super().visit(token_ids, lambda b, states: visit(b, [x * float("nan") for x in states]))

    found = identify(dump(target, random_texts(2), [2]), make_sketch(Broken(), random_texts(2)))
    assert found.wiring == Wiring.of([None])


def test_samples_may_be_tensors_or_samples(target):
    texts = random_texts(2)
    samples = [Sample("a", ids, (), None, ()) for ids in texts]
    assert make_sketch(target, texts).probe() == make_sketch(target, samples).probe()
