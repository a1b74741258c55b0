"""The three-tensor tests: known answers built from transformers' own states, and counter-examples that must not pass."""

import importlib
import inspect

import pytest
import tiny_models as tm
import torch

from eaglelab.dumps import Sample
from eaglelab.identify.three_tensors import next_token_test, normed_test
from eaglelab.target import FinalNorm, TensorSource, final_norm, open_checkpoint, target_argmax, visit_boundaries
from eaglelab.target.norms import MEAN_REMOVED, ONE_PLUS
from eaglelab.target.tensors import embedding_multiplier


def boundaries_of(folder, ids, dtype="auto"):
    found = {}
    visit_boundaries(folder, [ids], lambda b, states: found.__setitem__(b, states[0].clone()), dtype=dtype)
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tm.make_llama(tmp_path_factory.mktemp("llama"), tie_word_embeddings=False, initializer_range=0.2)
    ids = tm.tokens(60)
    return folder, ids, boundaries_of(folder, ids)


# -- one tensor at a time ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tm.make_llama, tm.make_gemma2, tm.make_gemma3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_source_shows_boundary_0_alone(tmp_path, make, dtype):
    folder, ids = make(tmp_path, dtype=dtype), tm.tokens(9)
    calls = []
    source = TensorSource(folder)
    source.visit([ids, ids[:4]], lambda *call: calls.append(call))
    ((boundary, states),) = calls
    assert (boundary, source.num_layers, source.hidden_size, source.vocab_size) == (0, tm.LAYERS, tm.HIDDEN, tm.VOCAB)
    assert torch.equal(states[0], boundaries_of(folder, ids)[0])
    assert torch.equal(states[1], states[0][:4])
    assert embedding_multiplier(source.checkpoint) == (1.0 if make is tm.make_llama else tm.HIDDEN**0.5)


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
    tests = [normed_test(states, source.norm) for states in found.values()]  # boundaries 0..N, then final
    assert [t.normed for t in tests] == [False] * (tm.LAYERS + 1) + [True]
    assert tests[-1].rms == pytest.approx(1, abs=0.02)
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
    even, odd = (normed_test(states * weight, FinalNorm(weight)) for states in (normed, uneven))
    assert (even.normed, odd.normed, odd.multiplied) == (True, False, False)
    assert odd.rms == pytest.approx(1, abs=1e-5)


def test_independent_gaussian_values_are_no_norm():
    torch.manual_seed(0)
    row = normed_test(torch.randn(400, 7168).bfloat16(), FinalNorm(torch.ones(7168)))
    assert row.rms == pytest.approx(1, abs=0.01)
    assert not row.normed


def test_normed_by_another_gain_is_not_this_norm(llama):
    folder, _, found = llama
    torch.manual_seed(1)
    other = 1 + 0.5 * torch.randn(tm.HIDDEN)
    row = normed_test(FinalNorm(other)(found[tm.LAYERS]), final_norm(open_checkpoint(folder)))
    assert not row.normed
    assert not row.multiplied


def test_multiplier_and_dominant_channel():
    torch.manual_seed(0)
    states = torch.nn.functional.normalize(torch.randn(50, 256), dim=-1) * 16  # RMS 1
    massive = torch.randn(50, 256)
    massive[:, 7] = 3000.0  # one channel, the same in all tokens, makes the RMS constant
    first, second = (normed_test(s, FinalNorm(torch.ones(256))) for s in (0.25 * states, massive))
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
    row = normed_test(states, FinalNorm(weight))
    assert (row.channels, row.tokens, row.normed) == (253, 48, True)


def test_nothing_to_norm_and_another_width():
    for rows in (torch.empty(0, 64), torch.zeros(5, 64)):
        row = normed_test(rows, FinalNorm(torch.ones(64)))
        assert (row.tokens, row.normed, row.multiplied) == (0, False, False)
    with pytest.raises(ValueError, match="states are 32 wide, the final norm 64"):
        normed_test(torch.ones(5, 32), FinalNorm(torch.ones(64)))


def test_fp8_rounding_still_passes_at_full_width():
    torch.manual_seed(0)
    states = torch.nn.functional.normalize(torch.randn(50, 4096), dim=-1) * 64
    assert normed_test(states.to(torch.float8_e4m3fn), FinalNorm(torch.ones(4096))).normed


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
    states, head = found["final"], source.lm_head
    found = next_token_test(Sample("a", text, (), mask, ()), states, head)
    assert (int(found.sum()), len(found)) == (10 + by_chance, 30)
    assert len(next_token_test(Sample("a", text, (), None, ()), states, head)) == len(ids) - 1
    assert len(next_token_test(Sample("a", text, (), torch.zeros_like(mask), ()), states, head)) == 0
    long = Sample("a", text.repeat(20), (), None, ())
    assert len(next_token_test(long, states.repeat(20, 1), head)) == 256


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


def test_ties_and_nan():
    torch.manual_seed(0)
    states, head = torch.randn(9, 8), torch.randn(50, 8)
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
