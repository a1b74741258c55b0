"""The three-tensor tests: known answers built from transformers' own states, and counter-examples that must not pass."""

import importlib
import inspect

import pytest
import tiny_models as tm
import torch

from eaglelab.dumps import Sample
from eaglelab.target import (
    FinalNorm,
    TensorSource,
    embedding_rows,
    embedding_test,
    final_norm,
    next_token_test,
    normed_test,
    open_checkpoint,
    target_argmax,
    visit_boundaries,
)
from eaglelab.target.norms import MEAN_REMOVED, ONE_PLUS
from eaglelab.target.tensors import embedding_multiplier


def boundaries_of(folder, ids, dtype="auto"):
    found = {}
    visit_boundaries(folder, [ids], lambda b, states, _: found.__setitem__(b, states[0].clone()), dtype=dtype)
    return found


def sample_of(ids, *slots, mask=None):
    return Sample("rows_0-5/data_0.pt", ids, tuple(slots), mask, tuple(f"hidden_states[{i}]" for i in range(len(slots))))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tm.make_llama(tmp_path_factory.mktemp("llama"), tie_word_embeddings=False, initializer_range=0.2)
    ids = tm.tokens(60)
    return folder, ids, boundaries_of(folder, ids)


# -- embedding ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tm.make_llama, tm.make_gemma2, tm.make_gemma3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_is_told_with_its_multiplier(tmp_path, make, dtype):
    folder, ids = make(tmp_path, dtype=dtype), tm.tokens(40)
    found, checkpoint = boundaries_of(folder, ids), open_checkpoint(folder)
    table = embedding_test(sample_of(ids, found[0], found[1]), embedding_rows(checkpoint, ids)).set_index(["slot", "shift"])
    expected = 1.0 if make is tm.make_llama else tm.HIDDEN**0.5
    right = table.loc[(0, 0)]
    assert right.multiplier == pytest.approx(expected, rel=2**-8)
    assert embedding_multiplier(checkpoint) == expected
    assert right.scaled_error < 2**-8
    assert right.cosine > 0.9999
    assert right.relative_error == pytest.approx(1 - 1 / expected, abs=2**-8)
    assert (table.drop((0, 0)).scaled_error > 0.1).all()  # not at a shift of one, and not one layer later


@pytest.mark.parametrize("shift", [-1, 1])
def test_shifted_embedding_shows_at_its_shift(llama, shift):
    _, ids, found = llama
    moved = found[0].roll(-shift, 0)
    table = embedding_test(sample_of(ids, moved), found[0])
    assert table.set_index("shift").relative_error.idxmin() == shift
    assert table.set_index("shift").relative_error[shift] == 0
    assert table.set_index("shift").tokens[shift] == len(ids) - 1


def test_zero_and_nan_rows_are_left_out_and_counted(llama):
    _, ids, found = llama
    damaged = found[0].clone()
    damaged[3], damaged[7, 5], damaged[9, 0] = 0, torch.nan, torch.inf
    row = embedding_test(sample_of(ids, damaged), lambda tokens: found[0], shifts=[0]).iloc[0]
    assert (row.tokens, row.left_out, row.relative_error) == (len(ids) - 3, 3, 0)
    row = embedding_test(sample_of(ids, torch.zeros_like(damaged)), found[0], shifts=[0]).iloc[0]
    assert row.tokens == 0
    assert row.relative_error != row.relative_error  # NaN: nothing to tell from


def test_width_of_another_target(llama):
    _, ids, found = llama
    with pytest.raises(ValueError, match="states are 32 wide, the embedding rows 64"):
        embedding_test(sample_of(ids, found[0][:, :32]), found[0])
    with pytest.raises(ValueError, match="states are 32 wide, the final norm 64"):
        normed_test(sample_of(ids, found[0][:, :32]), torch.ones(64))


@pytest.mark.parametrize("make", [tm.make_llama, tm.make_gemma2, tm.make_gemma3])
def test_tensor_source_shows_boundary_0_alone(tmp_path, make):
    folder, ids = make(tmp_path, dtype=torch.bfloat16), tm.tokens(9)
    calls = []
    source = TensorSource(folder)
    source.visit([ids, ids[:4]], lambda *call: calls.append(call))
    ((boundary, states, branches),) = calls
    assert (boundary, branches, source.num_layers, source.hidden_size, source.vocab_size) == (0, None, tm.LAYERS, tm.HIDDEN, tm.VOCAB)
    assert torch.equal(states[0], boundaries_of(folder, ids)[0])
    assert torch.equal(states[1], states[0][:4])


# -- final-normed -------------------------------------------------------------------------------------------------------------


def granite(folder, **kw):
    return tm.make_model("granite", folder, **{**tm.COMMON, "embedding_multiplier": 12.0, **kw})


def layer_norm_with_bias(folder, **kw):
    return tm.make_model("gpt2", folder, vocab_size=128, n_embd=64, n_layer=4, n_head=4, **kw)


def layer_norm_without(folder, **kw):
    return tm.make_model("cohere", folder, **tm.COMMON, **kw)


FAMILIES = [
    tm.make_llama,
    tm.make_qwen3,
    tm.make_deepseek_v3,
    tm.make_gemma2,
    tm.make_gemma3,
    granite,
    layer_norm_with_bias,
    layer_norm_without,
]


@pytest.mark.parametrize("make", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normed_states_pass_and_unnormed_do_not(tmp_path, make, dtype):
    folder, ids = make(tmp_path, dtype=dtype), tm.tokens(80)
    found, source = boundaries_of(folder, ids), TensorSource(folder)
    sample = sample_of(ids, *found.values())  # boundaries 0..N, then final
    known = normed_test(sample, source.norm)
    assert known.normed.tolist() == [False] * (tm.LAYERS + 1) + [True]
    stored = source.checkpoint.tensor(source.checkpoint.norm_name)
    bias = source.checkpoint.norm_bias_name
    guessed = normed_test(sample, stored, source.checkpoint.tensor(bias) if bias else None)
    assert guessed.normed.tolist() == [False] * (tm.LAYERS + 1) + [True]
    assert guessed.gain.iloc[-1].startswith("1 + w") == (make in (tm.make_gemma2, tm.make_gemma3))
    assert guessed.rms.iloc[-1] == pytest.approx(1, abs=0.02)
    # and the norm itself is transformers' own
    made = source.norm(found[tm.LAYERS])
    assert torch.allclose(
        made, found["final"].float(), rtol=2**-6 if dtype == torch.bfloat16 else 1e-5, atol=1e-2 if dtype == torch.bfloat16 else 1e-5
    )


def test_rms_near_one_on_the_whole_is_no_norm():
    """Each token's RMS differs by 20 %, the median is 1 to the last digit: this must not pass."""
    torch.manual_seed(0)
    weight = 1 + 0.3 * torch.randn(512)
    normed = torch.nn.functional.normalize(torch.randn(101, 512), dim=-1) * 512**0.5
    uneven = normed * torch.linspace(0.8, 1.2, 101)[:, None]
    even, odd = normed_test(sample_of(torch.zeros(101), normed * weight, uneven * weight), weight).itertuples()
    assert (even.normed, odd.normed, odd.multiplied) == (True, False, False)
    assert odd.rms == pytest.approx(1, abs=1e-5)


def test_independent_gaussian_values_are_no_norm():
    torch.manual_seed(0)
    row = normed_test(sample_of(torch.zeros(400), torch.randn(400, 7168).bfloat16()), torch.ones(7168)).iloc[0]
    assert row.rms == pytest.approx(1, abs=0.01)
    assert not row.normed


def test_normed_by_another_gain_is_not_this_norm(llama):
    _, ids, found = llama
    torch.manual_seed(1)
    other = 1 + 0.5 * torch.randn(tm.HIDDEN)
    row = normed_test(sample_of(ids, FinalNorm(other)(found[tm.LAYERS])), final_norm(open_checkpoint(llama[0]))).iloc[0]
    assert not row.normed
    assert not row.multiplied


def test_multiplier_and_dominant_channel():
    torch.manual_seed(0)
    states = torch.nn.functional.normalize(torch.randn(50, 256), dim=-1) * 16  # RMS 1
    massive = torch.randn(50, 256)
    massive[:, 7] = 3000.0  # one channel, the same in all tokens, makes the RMS constant
    first, second = normed_test(sample_of(torch.zeros(50), 0.25 * states, massive), torch.ones(256)).itertuples()
    assert (first.normed, first.multiplied) == (False, True)
    assert first.rms == pytest.approx(0.25, rel=1e-4)
    assert (second.normed, second.multiplied) == (False, False)


def test_channels_without_gain_are_left_out():
    torch.manual_seed(0)
    weight = torch.ones(256)
    weight[[3, 200]] = 0
    weight[9] = 1e-7
    states = torch.nn.functional.normalize(torch.randn(50, 256), dim=-1) * 16 * weight
    states[4] = 0
    states[5, 0] = torch.nan
    row = normed_test(sample_of(torch.zeros(50), states), weight).iloc[0]
    assert (row.channels, row.tokens, row.left_out, row.normed) == (253, 48, 2, True)


def test_fp8_rounding_still_passes_at_full_width():
    torch.manual_seed(0)
    states = torch.nn.functional.normalize(torch.randn(50, 4096), dim=-1) * 64
    row = normed_test(sample_of(torch.zeros(50), states.to(torch.float8_e4m3fn)), torch.ones(4096)).iloc[0]
    assert row.normed


@pytest.mark.parametrize(
    "kind", [*ONE_PLUS, *MEAN_REMOVED, "llama", "gemma4_text", "deepseek_v3", "gpt_oss", "qwen3_moe", "granite", "olmo2"]
)
def test_tables_of_norms_ask_transformers_own_modules(kind):
    """Which gain and whether the mean goes: read off the norm class's output for a weight of 0.5."""
    from transformers import CONFIG_MAPPING

    configuration = inspect.getmodule(CONFIG_MAPPING[kind]).__name__
    module = importlib.import_module(configuration.replace("configuration_", "modeling_"))
    own = [c for n, c in vars(module).items() if n.endswith(("RMSNorm", "LayerNorm", "LayerNorm1P")) and "Gated" not in n]
    own = [c for c in own if inspect.isclass(c) and c.__module__ == module.__name__]
    norm = own[0](8)
    x = torch.arange(1.0, 9.0)[None] ** 2
    norm.weight.data.fill_(0.5)
    got = norm(x)[0]
    mean_removed = kind in MEAN_REMOVED
    expected = FinalNorm(torch.full((8,), 1.5 if kind in ONE_PLUS else 0.5), mean_removed=mean_removed)(x)[0]
    assert torch.allclose(got, expected, atol=1e-3), (got, expected)


# -- next token ---------------------------------------------------------------------------------------------------------------


def test_next_token_agreement_equals_transformers_logits(llama):
    """The text is made the target's own choice at some places, so that the count is known."""
    folder, ids, found = llama
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        choice = model(ids[None]).logits[0].argmax(-1)  # [T]
    text = ids.clone()
    text[1:31] = choice[:30]  # rows 0..29 are right, the others by chance
    mask = torch.zeros(len(ids), dtype=torch.int64)
    mask[21:51] = 1  # rows 20..49 count: 10 of them are right
    by_chance = int((choice[30:50] == text[31:51]).sum())
    source = TensorSource(folder)
    sample = sample_of(text, found[4], found["final"], mask=mask)
    table = next_token_test(sample, source.lm_head, source.norm, chunk=50).set_index(["slot", "variant"])
    assert (table.tokens == 30).all()
    assert table.right[(0, "after norm")] == 10 + by_chance
    assert table.right[(1, "as is")] == 10 + by_chance
    assert table.masked.all()
    unknown = next_token_test(sample_of(text, found["final"]), source.lm_head)
    assert unknown.tokens.tolist() == [len(ids) - 1]
    assert not unknown.masked.any()
    assert next_token_test(sample, source.lm_head, max_tokens=7).tokens.tolist() == [7, 7]


def test_next_token_without_trained_tokens(llama):
    folder, ids, found = llama
    table = next_token_test(sample_of(ids, found["final"], mask=torch.zeros_like(ids)), TensorSource(folder).lm_head)
    assert (table.tokens.item(), table.right.item()) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_streamed_argmax_and_logsumexp(dtype, chunk):
    torch.manual_seed(0)
    states, head = torch.randn(37, 16).to(dtype), torch.randn(101, 16).to(dtype)
    logits = states.double() @ head.double().T
    argmax, logsumexp = target_argmax(states, head, chunk)
    assert (argmax.dtype, logsumexp.dtype) == (torch.int64, torch.float32)
    assert torch.equal(argmax, logits.argmax(-1))
    assert torch.allclose(logsumexp.double(), logits.logsumexp(-1), atol=1e-5)


def test_scale_softcap_ties_and_nan():
    torch.manual_seed(0)
    states, head = torch.randn(9, 8), torch.randn(50, 8)
    logits = 5 * torch.tanh(2 * (states @ head.T) / 5)
    argmax, logsumexp = target_argmax(states, head, 16, scale=2.0, softcap=5.0)
    assert torch.equal(argmax, logits.argmax(-1))
    assert torch.allclose(logsumexp, logits.logsumexp(-1), atol=1e-5)
    tied = torch.ones(6, 8)
    assert target_argmax(states.abs(), tied, 2)[0].tolist() == [0] * 9
    states[4, 2] = torch.nan
    argmax, logsumexp = target_argmax(states, head, 16)
    assert argmax[4] == -1
    assert logsumexp.isnan().tolist() == [i == 4 for i in range(9)]
    with pytest.raises(ValueError, match=r"got \(9, 8\) and \(50, 4\)"):
        target_argmax(states, head[:, :4])


def test_no_logits_of_the_whole_vocabulary(monkeypatch):
    """The largest tensor ever made is one block: the product is watched."""
    made = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: made.append(product(a, b)) or made[-1])
    target_argmax(torch.randn(2500, 4), torch.randn(9000, 4), 4096)
    assert max(m.numel() for m in made) <= 1024 * 4096
    assert len(made) == 9
