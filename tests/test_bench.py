"""`eaglelab bench`: its passes compute what transformers and the replay compute, its counts are the closed forms, its errors name the cause."""

import json
import math
import re

import pandas as pd
import pytest
import tiny_models
import torch
from case_builder import draft_config, drafter_tensors, make_world, write_case, write_drafter
from conftest import requires_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_drafters import FLAG_SETS, H, V, tiny_drafter, tiny_embedding
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

import eaglelab.timing.bench.run as run_module
import eaglelab.timing.bench.target_model as target_module
from eaglelab.cli import main
from eaglelab.drafter.chains import Packed, draft_chains, first_step
from eaglelab.drafter.model import Flags
from eaglelab.target.skeleton import cache_argument
from eaglelab.timing.bench.attention import folded_attention
from eaglelab.timing.bench.bandwidth import Machine, best_of, measure_machine
from eaglelab.timing.bench.clock import Budget, Call, Times, time_calls
from eaglelab.timing.bench.counts import attention
from eaglelab.timing.bench.drafter_step import BatchDrafter, DrafterCalls, extend_counts, step_counts
from eaglelab.timing.bench.fixed_cache import kept_rows
from eaglelab.timing.bench.result import COLUMNS, VERIFY, BenchResult, Point, Spread, bound, interpolate, paired_ratio
from eaglelab.timing.bench.run import _Run, bench, drift
from eaglelab.timing.bench.target_model import load_target
from eaglelab.timing.bench.verify_pass import VerifyPass, kv_bytes, latent_channels, verify_counts
from eaglelab.timing.errors import TimingError

CPU = torch.device("cpu")
MACHINE = Machine("cpu", "a test's", "float32", 1, 10.0, "sum", 12.0, 0.05, 2**20)
MAKERS = {
    "llama": tiny_models.make_llama,
    "qwen3": tiny_models.make_qwen3,
    "gemma2": tiny_models.make_gemma2,
    "gemma3": tiny_models.make_gemma3,
    "deepseek": tiny_models.make_deepseek_v3,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("targets")
    return {name: make(root / name, seed=2) for name, make in MAKERS.items()}


def quick(target=None, drafter=None, **options):
    options = {"batches": (1, 2), "contexts": (12,), "tokens": (1, 3), "repeats": 2, "device": "cpu", "machine": MACHINE} | options
    return bench(target, drafter, **options)


# -- the verify pass ----------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("kind", MAKERS)
def test_a_verify_pass_computes_what_transformers_computes(folders, kind):
    """Over the true keys and values, each pass gives the logits of a whole forward; a repeated pass gives them again."""
    context, room, batch = 20, 5, 2  # gemma's windows of 8 are full
    ids = torch.stack([tiny_models.tokens(context + room, seed) for seed in range(batch)])
    model = AutoModelForCausalLM.from_pretrained(folders[kind], dtype=torch.float32).eval()
    expected = model(ids).logits[:, context:]

    past = DynamicCache()  # keeps all rows, whatever the window
    model(ids[:, :context], use_cache=True, **{cache_argument(model): past})
    target = load_target(folders[kind], CPU, torch.float32)
    rows = []
    for i, layer in enumerate(past.layers):
        kept = kept_rows(context, target.windows[i])
        rows.append(tuple(torch.nn.functional.pad(x[:, :, context - kept :], (0, 0, 0, room)) for x in (layer.keys, layer.values)))
    verify = VerifyPass(target, batch, context, room, rows=rows)
    for n in (room, 1, 2, room):
        got = verify.run(n, ids=ids[:, context : context + n])
        torch.testing.assert_close(got, expected[:, :n], atol=2e-4, rtol=2e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "gemma3", "deepseek"])
def test_layers_in_memory_are_the_checkpoints_own(folders, kind):
    """With two layers of each kind the model is transformers' own, cut to these layers."""
    target = load_target(folders[kind], CPU, torch.float32, layers=2)
    assert [len(held) for held in target.held] == [min(2, len(kind_)) for kind_ in target.kinds]
    model = AutoModelForCausalLM.from_pretrained(folders[kind], dtype=torch.float32).eval()
    model.model.layers = torch.nn.ModuleList([model.model.layers[i] for i in target.in_memory])
    if getattr(model.config, "layer_types", None):
        object.__setattr__(model.config, "layer_types", [model.config.layer_types[i] for i in target.in_memory])
    ids = tiny_models.tokens(3)[None]
    verify = VerifyPass(target, 1, 1, 3)  # one row that all see: put in by hand below
    first = tiny_models.tokens(1, seed=9)[None]
    past = DynamicCache()
    argument = cache_argument(model)
    model(first, use_cache=True, **{argument: past})
    for i in target.in_memory:
        verify.cache.layers[i].keys[:, :, :1], verify.cache.layers[i].values[:, :, :1] = past.layers[i].keys, past.layers[i].values
    torch.testing.assert_close(verify.run(3, ids=ids), model(torch.cat([first, ids], 1)).logits[:, 1:], atol=2e-4, rtol=2e-4)


def test_kinds_of_layers_are_told_apart(folders):
    assert load_target(folders["llama"], CPU, torch.float32).kinds == ((0, 1, 2, 3),)
    assert load_target(folders["deepseek"], CPU, torch.float32).kinds == ((0,), (1, 2, 3))  # the first one is dense
    sliding = load_target(folders["gemma2"], CPU, torch.float32)
    assert {sliding.windows[kind[0]] for kind in sliding.kinds} == {None, 8}


def test_a_pass_is_scaled_to_all_layers_round_by_round(folders):
    target = load_target(folders["deepseek"], CPU, torch.float32, layers=1)  # layers 0 and 1 of 0 | 1 2 3
    run = _Run(target, None, [1], False, 2, CPU, Budget(None, 1))
    assert run._scaled() == [1]
    times = {(VERIFY, 1): Times((10.0, 12.0)), (VERIFY, 1, 1): Times((7.0, 7.5))}
    assert run._to_all_layers(times, 1).ms == (10 + 2 * 3.0, 12 + 2 * 4.5)
    broken = {**times, (VERIFY, 1, 1): Times((), "out of memory: x")}
    assert run._to_all_layers(broken, 1) == Times((), "out of memory: x")


@given(heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]), rows=st.integers(1, 5), seen=st.integers(5, 9), batch=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_folded_attention_is_attention(heads, rows, seen, batch):
    g = torch.Generator().manual_seed(rows * 100 + seen)
    q, k, v = (torch.randn(batch, n, t, 8, generator=g) for n, t in ((heads[0], rows), (heads[1], seen), (heads[1], seen)))
    mask = torch.ones(rows, seen, dtype=torch.bool).tril(seen - rows)[None, None]
    k_all, v_all = (x.repeat_interleave(heads[0] // heads[1], dim=1) for x in (k, v))
    scores = (q @ k_all.transpose(-1, -2) * 0.3).masked_fill(~mask, -math.inf)
    torch.testing.assert_close(folded_attention(q, k, v, mask, 0.3), scores.softmax(-1) @ v_all, atol=1e-5, rtol=1e-4)


# -- the drafter --------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("flags", FLAG_SETS)
def test_a_draft_step_is_the_replays(flags):
    """Extend and then step from the extend's own state, for three requests, against the chains that the replay drafts."""
    drafter, embed = tiny_drafter(**FLAG_SETS[flags]), tiny_embedding()
    batch, length, rows = 3, 12, 4
    g = torch.Generator().manual_seed(5)
    texts = [torch.randint(0, V, (length + 2,), generator=g) for _ in range(batch)]
    packed = Packed.of(texts)
    states = [torch.randn(len(packed.token_ids), H, generator=g) for _ in range(3)]
    fused = drafter.fuse([drafter.slot_product(p, s) for p, s in enumerate(states)], states)
    starts = torch.tensor(packed.starts[:-1])
    last = starts + length - 1  # the row at which all chains start
    one, two = draft_chains(drafter, packed, fused, embed, last, 2)
    _, caches = first_step(drafter, packed, fused, embed, last, flags=Flags.of(drafter.config))

    def true_rows(x, context, room):  # [M, kv, D] -> [B, kv, context + room, D], the room empty
        held = torch.stack([x[s : s + context] for s in starts.tolist()]).transpose(1, 2)
        return torch.nn.functional.pad(held, (0, 0, 0, room), value=torch.nan)

    context = length - rows
    cache = [(true_rows(c.keys, context, rows), true_rows(c.values, context, rows)) for c in caches]
    new = (starts[:, None] + torch.arange(context, length)).flatten()  # [B * rows]
    requests = BatchDrafter(drafter, batch, context, rows, cache=cache)
    extended = requests.extend(embed(packed.token_ids[new + 1]), [s[new] for s in states], rows)
    torch.testing.assert_close(extended.logits, one.logits, atol=1e-4, rtol=1e-4)

    cache = [(true_rows(c.keys, length, 1), true_rows(c.values, length, 1)) for c in caches]
    requests = BatchDrafter(drafter, batch, length, 1, cache=cache)
    for _ in range(2):  # a step leaves the cache as it was
        stepped = requests.step(embed(packed.token_ids[last + 2]), one.carried)
        torch.testing.assert_close(stepped.logits, two.logits, atol=1e-4, rtol=1e-4)
    assert requests.tokens(stepped).tolist() == drafter.target_ids[two.logits.argmax(-1)].tolist()


# -- counts -------------------------------------------------------------------------------------------------------------------------


def test_bytes_of_a_verify_pass_are_the_files_and_the_caches(folders):
    """Weights by the checkpoint's file: all but the embedding table, which a pass reads a few rows of."""
    file = load_file(folders["llama"] / "model.safetensors")
    stored = sum(t.numel() * 4 for name, t in file.items() if "embed_tokens" not in name)
    target = load_target(folders["llama"], CPU, torch.float32)
    layers, kv_heads, head_dim, vocabulary = 4, 2, 16, 128
    for batch, context, n in ((1, 12, 1), (3, 50, 4)):
        cached = layers * batch * (context + 2 * n) * 2 * kv_heads * head_dim * 4  # read, and the new rows written as well
        assert verify_counts(target, batch, context, n).bytes == stored + cached + batch * n * vocabulary * 4
    assert kv_bytes(target, 3, 50, 4) == layers * 3 * 54 * 2 * kv_heads * head_dim * 4


@torch.no_grad()
@pytest.mark.parametrize(("batch", "n"), [(1, 1), (2, 3)])
def test_operations_are_torchs_own_count(folders, batch, n):
    """Matrix products by torch's counter; attention apart, which the counter takes without its mask."""
    target = load_target(folders["llama"], CPU, torch.float32)
    verify = VerifyPass(target, batch, 10, n)
    with FlopCounterMode(display=False) as counter:
        verify.run(n)
    products = sum(v for op, v in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))
    attended = 4 * attention(batch, 10, n, 4, (2, 16, 16), 4).flops
    assert attended == 4 * 2 * batch * 4 * 32 * sum(10 + i + 1 for i in range(n))  # layers, 2, requests, heads, channels, pairs
    assert verify_counts(target, batch, 10, n).flops == products + attended

    drafter = tiny_drafter(num_layers=2)
    calls = DrafterCalls(drafter, batch, 10, n)
    with FlopCounterMode(display=False) as counter:
        calls.extend(n)
    products = sum(v for op, v in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))
    assert extend_counts(drafter, batch, 10, n).flops == products + 2 * attention(batch, 10, n, 4, (2, 8, 8), 4).flops
    parts = step_counts(drafter, batch, 10)
    assert parts["step"].bytes == parts["layer"].bytes + parts["head"].bytes
    assert parts["head"].bytes == 4 * (40 * H + H + batch * 40)


def test_a_pass_reads_the_experts_that_it_reaches(folders):
    """One token reads 2 of 8, and 1,024 tokens all of them."""
    target = load_target(folders["deepseek"], CPU, torch.float32)
    routed = 3 * 8 * (3 * 64 * 32) * 4  # layers, experts, gate, up and down, bytes
    few, all_ = verify_counts(target, 1, 12, 1), verify_counts(target, 64, 12, 16)
    assert target.kv_shapes[0] in (
        (1, 16, 8),
        (4, 24, 16),
    )  # transformers caches the latent from 5.2x on, each head's keys and values before
    heads, key, value = target.kv_shapes[0]
    kv = 4 * heads * (key + value) * 4  # layers, heads, channels of key and value, bytes
    weights_few = few.bytes - kv * 14 - 128 * 4
    weights_all = all_.bytes - 64 * (kv * (12 + 32) + 16 * 128 * 4)
    assert weights_all - weights_few == pytest.approx(routed * (1 - 2 / 8), rel=1e-6)


def test_a_latent_is_read_once_and_multiplied_by_every_head():
    """DeepSeek-V3: 512 + 64 cached channels, 128 heads; absorbed, a pair costs 576 + 512 multiplications a head."""

    class Config:
        kv_lora_rank = 512

    assert latent_channels(Config, (1, 512, 64)) == 1088
    assert latent_channels(Config, (128, 192, 128)) is None
    assert latent_channels(object(), (1, 512, 64)) is None
    one = attention(1, 1000, 1, 128, (1, 512, 64), 2, 1088)
    assert (one.bytes, one.flops) == (1002 * 576 * 2, 2 * 128 * 1088 * 1001)


def test_a_window_bounds_what_is_read():
    assert [kept_rows(c, 8) for c in (3, 7, 8, 100)] == [3, 7, 7, 7]
    assert kept_rows(100, None) == 100


# -- the clock ----------------------------------------------------------------------------------------------------------------------


def test_rounds_interleave_the_calls_and_a_warm_call_runs_twice():
    seen = []
    calls = [Call("a", lambda: seen.append("a")), Call("b", lambda: seen.append("b"), warm=True)]
    times = time_calls(calls, CPU, 5)
    assert {name: len(t.ms) for name, t in times.items()} == {"a": 5, "b": 5}
    rounds = seen[4:]  # after the warm-up of each
    assert len(rounds) == 5 * 3
    for i in range(5):
        assert sorted(rounds[3 * i : 3 * i + 3]) == ["a", "b", "b"]


def test_a_call_that_fails_is_noted_and_the_others_go_on():
    ran = {"n": 0}

    def later():
        ran["n"] += 1
        if ran["n"] > 4:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried 10 bytes")

    def wrong():
        raise IndexError("index out of range in self")

    times = time_calls([Call("later", later), Call("wrong", wrong), Call("right", lambda: None)], CPU, 6)
    assert times["later"].ms == ()
    assert times["later"].note.startswith("out of memory: [enforce fail")
    assert times["wrong"] == Times((), "failed: IndexError: index out of range in self")
    assert len(times["right"].ms) == 6
    with pytest.raises(TimingError, match="bench has clocks for cpu and cuda"):
        time_calls([], torch.device("meta"), 1)


def test_a_budget_ends_rounds_for_all_calls_alike_and_begins_none_that_does_not_fit(monkeypatch):
    """A clock that only the calls move: 1 s and 2 s, so 6 s of warm-up and 3 s a round."""
    now = {"s": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: now["s"])

    def takes(seconds):
        return lambda: now.update(s=now["s"] + seconds)

    def rounds(budget, repeats=20):
        budget.begin()
        found = time_calls([Call("a", takes(1)), Call("b", takes(2))], CPU, repeats, budget=budget)
        assert found["a"].ms == (1e3,) * len(found["a"].ms)
        assert found["b"].ms == (2e3,) * len(found["a"].ms)
        return found["b"].note or len(found["b"].ms)

    one = Budget(61, 3, lambda: now["s"])
    assert rounds(one) == 4  # 20.3 s for this place: 6 + 4 * 3, and no fifth
    assert one.left == 43
    assert rounds(one) == 5  # 21.5 s
    assert rounds(one) == 5  # the last place has all of the 22 s that are left
    assert rounds(Budget(16, 4, lambda: now["s"])) == 3  # its share is 4 s; three rounds fit into all that is left
    assert rounds(Budget(16, 4, lambda: now["s"]), 2) == 2  # no more were asked for
    assert rounds(Budget(14, 1, lambda: now["s"])) == 2  # the first place is measured, whatever the time
    assert rounds(Budget(1, 1, lambda: now["s"])) == 1
    assert rounds(Budget(None, 1)) == 20
    two = Budget(27, 2, lambda: now["s"])
    assert rounds(two) == 3
    assert rounds(two) == "left out: 3 rounds take about 9 s, 6 s of 27 s are left; more with --seconds, or a smaller grid"
    two = Budget(16, 2, lambda: now["s"])
    assert rounds(two) == 3
    assert rounds(two).startswith("left out: its warm-up alone takes longer, 0 s of 16 s")


def test_places_that_the_time_does_not_reach_are_said(folders):
    """No time at all: the first place has one round, the second no turn."""
    result = quick(folders["llama"], seconds=0)
    assert [len(p.ms) for p in result.points] == [1, 1, 0, 0]
    assert (
        "2 of 4 points were not measured; verify of 1 tokens at batch 2, context 12: left out: its turn did not come, 0 s of 0 s"
        in result.summary
    )
    assert "The time ended before all 2 rounds: batch 1 context 12 have fewer, 1 at least" in result.summary


def test_rounds_that_were_cut_and_reasons_are_said_apart():
    points = [
        Point(VERIFY, 1, 8, 1, (1.0,) * 3, 1, 1),
        Point(VERIFY, 4, 8, 1, (), 1, 1, "left out: x"),
        Point(VERIFY, 9, 8, 1, (), 1, 1, "out of memory: y"),
    ]
    said = BenchResult(MACHINE, tuple(points), None, None, 20).summary
    assert "The time ended before all 20 rounds: batch 1 context 8 have fewer, 3 at least" in said
    assert "1 of 3 points were not measured; verify of 1 tokens at batch 4, context 8: left out: x." in said
    assert "1 of 3 points were not measured; verify of 1 tokens at batch 9, context 8: out of memory: y." in said


def test_limits_of_this_machine_are_measured():
    found = measure_machine(CPU, torch.float32, buffer_bytes=2**22, side=64, repeats=3)
    assert min(found.read_gb_s, found.copy_gb_s, found.peak_tflop_s) > 0
    assert (found.device, found.dtype, found.buffer_bytes) == ("cpu", "float32", 2**22)
    assert found.read_by in ("sum", "matrix-vector")
    other = Machine(**{**MACHINE.to_json(), "read_gb_s": 14.0, "peak_tflop_s": 0.01})
    assert best_of([MACHINE, other]) == Machine(**{**MACHINE.to_json(), "read_gb_s": 14.0})
    assert drift(MACHINE, MACHINE) == []
    assert "it read 10 GB/s before and 14 GB/s after" in drift(MACHINE, other)[0]


# -- results ------------------------------------------------------------------------------------------------------------------------


def made_result(points):
    return BenchResult(MACHINE, tuple(points), None, None, 3)


def test_ratios_are_of_the_same_rounds():
    decode, verify = Point(VERIFY, 1, 8, 1, (1.0, 2.0, 4.0), 1, 1), Point(VERIFY, 1, 8, 4, (2.0, 3.0, 8.0), 1, 1)
    step = Point("draft step", 1, 8, 1, (0.1, 0.4, 0.4), 1, 1)
    row = made_result([decode, verify, step]).ratios.iloc[0]
    assert row.verify_over_decode == 2.0  # of 2, 1.5, 2
    assert row.draft_over_decode == pytest.approx(0.1)  # of 0.1, 0.2, 0.1
    assert row.verify_over_decode_low == pytest.approx(1.55)
    assert paired_ratio(verify, Point(VERIFY, 1, 8, 1, (1.0,), 1, 1)) is None


def test_rates_and_bounds_of_a_row():
    """10 GB/s and 0.05 TFLOP/s: 40 MB in 8 ms is half the bandwidth; 300 MFLOP in 8 ms is three quarters of the peak."""
    rows = made_result(
        [Point(VERIFY, 1, 8, 1, (8.0, 8.0), 4e7, 3e8), Point(VERIFY, 1, 8, 2, (80.0,), 4e7, 3e8), Point(VERIFY, 1, 8, 3, (), 1, 1, "why")]
    ).table
    assert tuple(rows.columns) == COLUMNS
    assert rows.gb_s[0] == pytest.approx(5.0)
    assert rows.share_of_bandwidth[0] == pytest.approx(0.5)
    assert rows.share_of_peak[0] == pytest.approx(0.75)
    assert rows.bound[:2].tolist() == ["compute", "latency"]
    assert rows.note[2] == "why"
    assert pd.isna(rows.median_ms[2])
    assert (bound(0.6, 0.2), bound(0.49, 0.49), bound(0.2, 0.5)) == ("memory", "latency", "compute")


def test_times_between_measured_places_and_none_beyond():
    points = [Point(VERIFY, b, c, n, (float(b * 100 + c + n),), 1, 1) for b in (1, 4) for c in (10, 30) for n in (1, 5)]
    result = made_result([*points, Point("draft step", 1, 10, 1, (2.0,), 1, 1), Point("draft extend", 1, 10, 4, (3.0,), 1, 1)])
    assert result.verify_ms(1, 5, 10) == 115
    assert result.verify_ms(2, 3, 20) == pytest.approx(223)
    assert result.decode_ms(4) == 431  # the longest context
    assert result.verify_ms(8, 1) is None
    assert result.verify_ms(1, 6) is None
    assert result.draft_step_ms(1, 10) == 2.0
    assert result.draft_ms(1, 3, 10) == 3.0 + 2 * 2.0
    assert result.draft_ms(1, 1, 10, rows=4) == 3.0
    assert result.draft_ms(1, 5, 10) is None  # an extend over 6 rows was not measured
    assert result.extend_ms(1, 4) == 3.0
    assert made_result([]).draft_step_ms(1) is None


@given(st.lists(st.integers(1, 50), min_size=2, max_size=5, unique=True), st.integers(-5, 60), st.floats(-3, 3), st.floats(-9, 9))
@settings(max_examples=60, deadline=None)
def test_interpolation_is_exact_on_a_line(places, at, slope, offset):
    known = {(p,): slope * p + offset for p in places}
    found = interpolate(known, (at,))
    if min(places) <= at <= max(places):
        assert found == pytest.approx(slope * at + offset, abs=1e-6)
    else:
        assert found is None


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_the_median_lies_within_its_spread(values):
    s = Spread.of(values)
    assert min(values) <= s.low <= s.median + 1e-9
    assert s.median - 1e-9 <= s.high <= max(values) + 1e-9
    assert s.n == len(values)
    assert Spread.of([]) is None


# -- whole runs ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "deepseek"])
def test_a_whole_run(folders, kind):
    result = quick(folders[kind], tiny_drafter())
    table = result.table
    assert len(table) == 2 * (2 + 3 + 2)  # batches; n of verify; step, layer, head; n of extend
    assert (table.median_ms > 0).all()
    assert ((table.low_ms <= table.median_ms) & (table.median_ms <= table.high_ms)).all()
    assert (table.repeats == 2).all()
    assert set(table.what) == {"verify", "draft step", "draft layer", "draft lm_head", "draft extend"}
    assert (result.ratios.verify_over_decode > 0).all()
    assert result.decode_ms(1) == table[(table.what == "verify") & (table.batch == 1) & (table.tokens == 1)].median_ms.item()
    assert 0 < result.head_share(1, 12).median < 1
    assert "CPU timings" in result.summary
    assert ("Experts: 2 of 8 a token" in result.summary) == (kind == "deepseek")
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["machine"]["read_gb_s"] == 10.0
    assert [r["what"] for r in document["rows"]] == table.what.tolist()


def test_some_layers_stand_for_all(folders):
    result = quick(folders["llama"], layers=1)
    assert result.target["layers_in_memory"] == 1
    assert "scaled from 1 of N=4 layers" in result.summary
    whole = load_target(folders["llama"], CPU, torch.float32)
    counted = [verify_counts(whole, batch, 12, n) for batch in (1, 2) for n in (1, 3)]
    assert result.table[["bytes", "flops"]].to_numpy().tolist() == [[c.bytes, c.flops] for c in counted]


@pytest.mark.parametrize("as_file", [True, False])
def test_a_config_alone_gives_random_weights_of_its_shapes(folders, tmp_path, as_file):
    config = tmp_path / "config.json"
    config.write_text((folders["deepseek"] / "config.json").read_text())
    result = quick(config if as_file else tmp_path, batches=(1,))
    assert result.target["random_weights"]
    assert "Random weights of the config's shapes" in result.summary
    assert "random weights route at random" in result.summary
    stored = load_target(folders["deepseek"], CPU, torch.float32)
    assert result.table.bytes.tolist() == [verify_counts(stored, 1, 12, n).bytes for n in (1, 3)]


def test_a_tied_head_reads_the_table(tmp_path):
    folder = tiny_models.make_llama(tmp_path / "tied", tie_word_embeddings=True)
    stored = sum(t.numel() * 4 for t in load_file(folder / "model.safetensors").values())
    target = load_target(folder, CPU, torch.float32)
    kv = 4 * (12 + 2) * 2 * 2 * 16 * 4
    assert verify_counts(target, 1, 12, 1).bytes == stored + kv + 128 * 4
    assert target.skeleton.root.lm_head.weight.data_ptr() == target.skeleton.embedding.weight.data_ptr()


def test_too_little_memory_is_a_row_with_a_note(folders, monkeypatch):
    small = kv_bytes(load_target(folders["llama"], CPU, torch.float32), 1, 12, 3)
    monkeypatch.setattr(run_module, "free_bytes", lambda device: 2 * small)
    result = quick(folders["llama"], batches=(1, 64))
    notes = result.table.set_index("batch").note
    assert (notes[1] == "").all()
    assert notes[64].str.startswith("out of memory: keys and values of").all()
    assert "2 of 4 points were not measured; verify of 1 tokens at batch 64, context 12: out of memory" in result.summary
    monkeypatch.setattr(run_module, "free_bytes", lambda device: 10)
    with pytest.raises(TimingError, match=r"nothing could be measured on cpu: out of memory: keys and values"):
        quick(folders["llama"])


def test_a_target_that_does_not_fit_says_what_to_do(folders, monkeypatch):
    monkeypatch.setattr(target_module, "free_bytes", lambda device: 400_000)
    with pytest.raises(TimingError, match=r"llama: 4 of N=4 layers and the rest take 0\.0 GB in float32.* --layers 2"):
        quick(folders["llama"])
    assert quick(folders["llama"], layers=1).target["layers_in_memory"] == 1


def test_a_drafter_without_readable_weights_is_measured_by_its_shapes(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(draft_config([1, 2, 3])))
    result = quick(drafter=tmp_path, batches=(1,))
    assert result.drafter["random_weights"]
    assert "The drafter has random weights of its config's shapes" in result.summary
    assert result.draft_step_ms(1) > 0
    assert result.decode_ms(1) is None


def test_layers_without_keys_and_values_are_refused(tmp_path):
    config = AutoConfig.for_model("mamba", vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="bench has no fixed state for it"):
        quick(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batches": (0, 1)}, r"batch is \[0, 1\], expected whole numbers of 1 or more"),
        ({"tokens": (-1,)}, r"tokens is \[-1\], expected whole numbers of 1 or more"),
        ({"contexts": ()}, r"context is \[\], expected"),
        ({"repeats": 0}, "repeats is 0, expected 1 or more"),
        ({"graphs": True}, "graphs on cpu: CUDA graphs need a CUDA device"),
        ({"layers": 0}, "layers is 0, expected 1 or more of each kind"),
        ({"dtype": "int8"}, "dtype int8: expected auto|dtype 'int8'"),
    ],
)
def test_bad_numbers_are_named(folders, options, words):
    with pytest.raises(ValueError, match=words):
        quick(folders["llama"], **options)


def test_nothing_to_measure_and_missing_paths(tmp_path):
    with pytest.raises(TimingError, match="neither a target nor a drafter is given"):
        quick()
    with pytest.raises(ValueError, match=r"no such folder"):
        quick(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"no config\.json"):
        quick(drafter=tmp_path / "absent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not readable JSON"):
        quick(tmp_path / "config.json")


# -- the command --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    root = tmp_path_factory.mktemp("case")
    world = make_world(root, samples=2, length=16)
    write_drafter(root / "drafter", drafter_tensors(world, [1, 3, 5]), draft_config([0, 2, 4]))
    (root / "target-config.json").write_text((world.folder / "config.json").read_text())
    return write_case(root, {"drafter": {"path": "drafter"}, "target": {"path": world.folder.name, "config": "target-config.json"}})


SMALL = ("--batch", "1,2", "--context", "12", "--tokens", "1,3", "--repeats", "2", "--device", "cpu")


@pytest.fixture
def quiet(monkeypatch):
    """The machine's limits are not measured: half a GB a time."""
    monkeypatch.setattr(run_module, "measure_machine", lambda *a: MACHINE)


def test_the_command_prints_one_document(case, quiet, capsys, tmp_path):
    code = main(["bench", str(case), *SMALL, "--json", "--out", str(tmp_path / "table.csv")])
    out, err = capsys.readouterr()
    document = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert code == 0, err
    assert list(document) == ["machine", "target", "drafter", "repeats", "graphs", "rows", "ratios", "summary", "notes"]
    assert tuple(document["rows"][0]) == COLUMNS
    assert len(document["rows"]) == 14
    assert document["ratios"][0]["tokens"] == 3
    assert pd.read_csv(tmp_path / "table.csv").columns.tolist() == list(COLUMNS)


def test_the_command_in_words(case, quiet, capsys, tmp_path):
    assert main(["bench", "--target", str(case / "target-config.json"), *SMALL]) == 0
    out = capsys.readouterr().out
    assert "CPU timings" in out
    assert "Random weights" in out
    assert re.search(r"Batch 2, context 12: plain decode takes .* ms", out)
    (tmp_path / "case.toml").write_text(f'[drafter]\npath = "{case / "drafter"}"\n')
    assert main(["bench", str(tmp_path), *SMALL]) == 0
    assert "The case gives no target" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to measure: give a case"),
        (("--target", "/absent/target"), "no such folder"),
        (("--drafter", "/absent/drafter"), "no config.json"),
        (("/absent/case",), "no case at /absent/case"),
        (("--target", "x", "--out", "/absent/folder/t.csv"), "no folder /absent/folder"),
    ],
)
def test_unusable_input_is_2(arguments, words, capsys):
    assert main(["bench", *arguments, *SMALL]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("flag", [("--batch", "0"), ("--tokens", "1,x"), ("--context", ""), ("--device", "gpu"), ("--repeats", "0")])
def test_arguments_that_are_no_numbers_are_refused(flag, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--target", "x", *flag])
    assert stopped.value.code == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there_is_named(case, capsys):
    assert main(["bench", str(case), "--device", "cuda"]) == 2
    assert "this machine has 0 CUDA devices" in capsys.readouterr().err


@requires_cuda
@pytest.mark.parametrize("graphs", [False, True])
def test_a_whole_run_on_cuda(folders, graphs):
    machine = measure_machine(torch.device("cuda"), torch.bfloat16, buffer_bytes=2**28, side=512, repeats=3)
    result = quick(folders["llama"], tiny_drafter(), device="cuda", graphs=graphs, machine=machine)
    assert (result.table.median_ms > 0).all()
    assert all(p.graph == graphs for p in result.points), [p.note for p in result.points]
