"""Cost: the printed ratios of published tables, closed forms that the fit must find again, and what may be recommended from how little."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import LENGTHS, PERIOD, era_trace

from eaglelab.cli import main
from eaglelab.drafter.config import DrafterConfig
from eaglelab.timing.acceptance import Expected
from eaglelab.timing.cost import cost_notes, cost_ratio, cost_rows, two_numbers
from eaglelab.timing.cost_report import cost_report
from eaglelab.timing.errors import TimingError
from eaglelab.timing.experts import Experts, expected_experts, experts_of
from eaglelab.timing.intervals import ratio_of_repeats, t95
from eaglelab.timing.measured import Measured, MeasuredTable, read_measured
from eaglelab.timing.predict import chain_acceptance, measured_acceptance, predict, recommend
from eaglelab.timing.setting import Setting
from eaglelab.timing.step_time import Collectives, PassTime, fit, leave_one_out
from eaglelab.timing.trace import read_trace
from eaglelab.timing.traced import collectives_of, shares_of
from eaglelab.timing.what_if import Cycle, accept_longer, lm_head_share, smaller_vocabulary, verify_faster

PUBLISHED = Path(__file__).parent / "published"
SPECFORGE = PUBLISHED / "specforge339_qwen3-30b-a3b_2xH100.csv"
ADAPTIVE = PUBLISHED / "sglang21599_adaptive.csv"
EXAMPLE = Path(__file__).parents[1] / "data" / "example" / "engine" / "vllm-sweep.csv"
QWEN3_30B = Experts(128, 8)
OFF = Setting(0)


def by_name(rows, batch=1):
    return {row.measured.setting.name: row for row in rows if row.measured.batch == batch}


# -- ratios -------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.report("sgl-project/SpecForge#339", "E")
@pytest.mark.report("sgl-project/sglang#14824", "E")
def test_the_printed_ratios_of_a_published_table():
    rows = by_name(cost_rows(read_measured(SPECFORGE)))
    assert {n: round(rows[n].r, 2) for n in ("3-1-4", "3-3-8", "3-3-4", "8-8-60")} == {
        "3-1-4": 2.59,
        "3-3-8": 2.83,
        "3-3-4": 2.13,
        "8-8-60": 4.01,
    }
    assert rows["8-8-60"].pass_ms == pytest.approx(3.2 / 177.5 * 1000)
    assert all(row.speedup < 1 for row in rows.values())
    assert [row.break_even for row in rows.values()] == [row.r for row in rows.values()]


def test_the_storys_figures():
    two_steps = two_numbers(94, 2.05, 88.8)
    assert round(two_steps.speedup, 3) == 1.059
    assert round(cost_ratio(1.8, 54.8, 90), 2) == 2.96
    assert round(two_numbers(54.8, 1.8 + 1, 90).break_even, 2) == 4.60
    assert two_numbers(54.8, 1.8, 90).pass_ms == pytest.approx(32.847, abs=1e-3)


@given(st.floats(1, 20), st.floats(0.1, 1e5), st.floats(0.1, 1e5), st.integers(1, 512))
def test_speedup_is_accept_length_over_r_and_one_at_break_even(length, tok_s, baseline, batch):
    one = two_numbers(tok_s, length, baseline, batch)
    assert one.speedup == pytest.approx(length / one.r)
    assert one.r == pytest.approx(one.pass_ms / one.baseline_ms)
    if one.break_even >= 1:  # the same cycle with the break-even accept length is as fast as off
        even = two_numbers(1000 * batch * one.break_even / one.pass_ms, one.break_even, baseline, batch)
        assert even.speedup == pytest.approx(1)


@pytest.mark.parametrize(
    "numbers", [(0, 2, 90), (-1, 2, 90), (90, 0.8, 90), (90, 2, 0), (math.nan, 2, 90), (90, math.nan, 90), (90, 2, math.inf)]
)
def test_two_numbers_that_cannot_be(numbers):
    with pytest.raises(TimingError, match="expected"):
        two_numbers(*numbers)


def made(batch, setting, tok_s, length=None, **extra):
    return Measured(batch, setting, tok_s, length, f"{setting.name}@{batch}", extra)


def test_no_baseline_is_carried_over_from_another_batch_size():
    table = MeasuredTable((made(1, OFF, 100), made(4, Setting(3), 200, 2.0), made(1, Setting(3), 90)))
    alone, untold = by_name(cost_rows(table), 4)["3-1-4"], by_name(cost_rows(table), 1)["3-1-4"]
    assert (alone.baseline_tok_s, alone.r, alone.break_even, alone.speedup) == (None, None, None, None)
    assert alone.pass_ms == pytest.approx(40)
    assert (untold.r, untold.speedup, untold.pass_ms) == (None, 0.9, None)
    notes = " ".join(cost_notes(table))
    assert "at batch 4: no r, break-even or speedup there; baselines are there for batch 1 and are not carried over" in notes
    assert "1 of 2 settings come without a usable accept length" in notes
    assert "nothing to compare" in " ".join(cost_notes(MeasuredTable((made(1, OFF, 100),))))


def test_repeats_give_medians_ranges_and_an_interval():
    runs = [made(1, OFF, t) for t in (98, 100, 103)] + [made(1, Setting(2), t, 2.0) for t in (119, 120, 125)]
    (row,) = cost_rows(MeasuredTable(tuple(runs)))
    assert (row.baseline_tok_s, row.measured.tok_s, row.runs, row.baseline_runs) == (100, 120, 3, 3)
    assert (row.tok_s_range, row.baseline_range) == ((119, 125), (98, 103))
    assert row.speedup_interval[0] < 1.2 < row.speedup_interval[1]
    (single,) = cost_rows(MeasuredTable((runs[1], runs[4])))
    assert (single.speedup_interval, single.tok_s_range) == (None, None)


def test_intervals_of_repeats():
    assert [t95(df) for df in (1, 2, 5, 10)] == [12.706, 4.303, 2.571, pytest.approx(2.228, abs=4e-3)]
    assert t95(30) == pytest.approx(2.042, abs=1e-3)
    assert 3.182 < t95(2.5) < 4.303
    # equal variances, two and two: df 2, s = log(1.1) / sqrt(2) each
    low, high = ratio_of_repeats([1.0, 1.1], [1.0, 1.1])
    assert math.log(high) == pytest.approx(4.303 * math.log(1.1) / math.sqrt(2), rel=1e-6)
    assert low == pytest.approx(1 / high)
    assert ratio_of_repeats([1.0], [2.0]) is None
    one_side = ratio_of_repeats([1.0, 1.1], [1.0])
    assert one_side[0] < math.sqrt(1.1) < one_side[1]
    covered = 0
    rng = random.Random(1)
    for _ in range(600):
        top, bottom = ([x * math.exp(rng.gauss(0, 0.03)) for _ in range(3)] for x in (120, 100))
        low, high = ratio_of_repeats(top, bottom)
        covered += low < 1.2 < high
    assert 0.92 < covered / 600 < 0.99


# -- experts ------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "routed", "told"),
    [(128, 8, {1: 8, 4: 29.1, 8: 51.6, 60: 125.3}), (384, 8, {1: 8, 4: 31.0, 8: 59.5}), (128, 4, {1: 4, 4: 15.3, 8: 28.7})],
)
def test_expected_experts(total, routed, told):
    assert {t: round(expected_experts(total, routed, t), 1) for t in told} == told


def test_expected_experts_are_those_of_uniform_routing():
    rng = random.Random(0)
    seen = [len({e for _ in range(6) for e in rng.sample(range(16), 2)}) for _ in range(4000)]
    assert expected_experts(16, 2, 6) == pytest.approx(sum(seen) / 4000, abs=0.1)
    for bad in ((8, 9, 1), (8, 0, 1), (8, 2, -1), (8, 2, math.nan)):
        with pytest.raises(ValueError, match="expected"):
            expected_experts(*bad)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"num_experts": 128, "num_experts_per_tok": 8}, Experts(128, 8)),  # Qwen3-MoE
        ({"n_routed_experts": 384, "num_experts_per_tok": 8, "n_shared_experts": 1}, Experts(384, 8)),  # DeepSeek, Kimi
        ({"num_local_experts": 128, "experts_per_token": 4, "num_experts_per_tok": 4}, Experts(128, 4)),  # gpt-oss
        ({"text_config": {"num_local_experts": 16, "num_experts_per_tok": 1}}, Experts(16, 1)),  # Llama 4
        ({"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}}, Experts(16, 4)),  # DBRX
        ({"num_experts": 64, "moe_topk": [8, 8]}, Experts(64, 8)),  # Hunyuan
        ({"hidden_size": 8}, None),
        ({"num_experts": 1, "num_experts_per_tok": 1}, None),
        ({"num_experts": 0, "num_experts_per_tok": 2}, None),
        ({"num_experts": "128", "num_experts_per_tok": True}, None),
        ({"num_experts": 4, "num_experts_per_tok": 8}, None),
    ],
)
def test_experts_of_a_config(config, found):
    assert experts_of(config) == found


# -- pass times ---------------------------------------------------------------------------------------------------------------------------------

TRUE = {"base": 4.0, "per_request": 0.5, "per_token": 0.2, "per_step": 0.7, "per_cycle": 1.5}
CHAINS = (Setting(1), Setting(3))
TREES = (Setting(3, 3, 8), Setting(5, 4, 16), Setting(2, 8, 16), Setting(8, 8, 60))


def true_ms(batch, setting, experts=None, terms=TRUE):
    tokens = batch * setting.verified
    amount = tokens if experts is None else experts.total * (1 - (1 - experts.per_token / experts.total) ** tokens)
    spec = 0.0 if setting.off else terms["per_step"] * setting.steps + terms["per_cycle"]
    return terms["base"] + terms["per_request"] * batch + terms["per_token"] * amount + spec


def table_of(batches=(1, 4, 16), chosen=(OFF, *CHAINS, *TREES), noise=0.0, seed=0, experts=None, terms=TRUE):
    rng = random.Random(seed)
    rows = []
    for batch in batches:
        for s in chosen:
            time = true_ms(batch, s, experts, terms) * math.exp(rng.gauss(0, noise)) if noise else true_ms(batch, s, experts, terms)
            length = None if s.off else 1 + 0.4 * s.steps
            rows.append(made(batch, s, 1000 * batch * (length or 1) / time, length))
    return MeasuredTable(tuple(rows))


@pytest.mark.parametrize("experts", [None, QWEN3_30B])
def test_the_fit_finds_a_closed_form_again(experts):
    model = fit(table_of(experts=experts), experts=experts)
    assert [t.ms for t in model.terms] == [pytest.approx(ms, rel=1e-6) for ms in TRUE.values()]
    assert model.terms[2].name == ("per_token" if experts is None else "per_expert")
    assert model.error < 1e-9
    for batch, s in ((2, Setting(2)), (8, Setting(6, 4, 24)), (8, OFF)):
        assert model.predict(batch, s).ms == pytest.approx(true_ms(batch, s, experts))


def test_intervals_cover_what_is_true():
    wanted = [(2, Setting(2)), (8, Setting(5, 4, 16))]
    terms, times, runs = 0, 0, 30
    for seed in range(runs):
        model = fit(table_of(noise=0.05, seed=seed), seed=seed)
        terms += sum(t.interval[0] <= TRUE[t.name] <= t.interval[1] for t in model.terms)
        for batch, s in wanted:
            low, high = model.predict(batch, s).interval
            new = true_ms(batch, s) * math.exp(random.Random(1000 + seed).gauss(0, 0.05))
            times += low <= new <= high
    assert terms / (5 * runs) > 0.88
    assert 0.88 < times / (2 * runs) <= 1
    assert model.error == pytest.approx(0.05, rel=0.6)


def test_what_rows_do_not_determine_is_none_and_bounded():
    table = table_of(batches=(1,), chosen=(OFF, Setting(3)))
    model = fit(table)
    assert [t.ms for t in model.terms] == [None] * 5
    assert model.error is None
    assert model.predict(1, Setting(3)).ms == pytest.approx(true_ms(1, Setting(3)))
    between = model.predict(1, Setting(2))
    assert between.ms is None
    assert between.low_ms >= true_ms(1, OFF) - 1e-9
    assert between.high_ms == pytest.approx(true_ms(1, Setting(3)))
    assert between.low_ms < true_ms(1, Setting(2)) < between.high_ms
    assert between.interval is None
    assert model.predict(1, Setting(3, 4, 4)) is not None  # of as many tokens and steps


def test_chains_tell_chains_and_no_trees():
    """With top-k 1 a step is a token: their sum is told, and no share of it."""
    model = fit(table_of(batches=(1,), chosen=(OFF, Setting(1), Setting(2), Setting(7))))
    assert model.predict(1, Setting(5)).ms == pytest.approx(true_ms(1, Setting(5)))
    tree = model.predict(1, Setting(2, 4, 8))
    assert tree.ms is None
    assert tree.low_ms < true_ms(1, Setting(2, 4, 8)) < tree.high_ms
    terms = {t.name: t.ms for t in model.terms}
    assert terms["per_token"] is None
    assert terms["per_cycle"] == pytest.approx(1.5)


def test_bounds_are_those_of_all_fits_that_are_equally_good():
    """Against many random non-negative coefficients that give the same times."""
    table = table_of(batches=(1,), chosen=(OFF, Setting(3), Setting(5, 4, 16)))
    model = fit(table)
    bound = model.predict(1, Setting(4, 4, 12))
    rng = np.random.default_rng(0)
    rows = np.array([[1, 1, m.setting.verified, m.setting.steps, not m.setting.off] for m in model.rows], float)
    truth = np.array(list(TRUE.values()))
    null = np.linalg.svd(rows)[2][np.linalg.matrix_rank(rows) :]
    others = truth + rng.normal(size=(200_000, len(null))) * 3 @ null
    others = others[(others >= 0).all(axis=1)]
    assert len(others) > 100
    times = others @ np.array([1, 1, 12, 4, 1])
    assert bound.low_ms <= times.min()
    assert times.max() <= bound.high_ms
    assert times.max() - times.min() > 0.8 * (bound.high_ms - bound.low_ms)


def test_nothing_is_told_beyond_what_was_measured():
    model = fit(table_of(batches=(1, 4), chosen=(OFF, Setting(1), Setting(3), Setting(5, 4, 16))))
    assert model.predict(16, Setting(1)) is None
    assert model.predict(2, Setting(8)) is None
    assert model.predict(4, Setting(5, 8, 60)) is None
    assert model.predict(2, Setting(5, 8, 30)) is not None
    assert fit(MeasuredTable((made(1, OFF, 100),))) is None
    only_off = MeasuredTable((made(1, OFF, 100), made(4, OFF, 300), made(4, Setting(1), 300)))
    assert fit(only_off).predict(4, Setting(1)) is None  # no accept length, so no pass time


def test_hopeless_tables_do_not_break_the_fit():
    wild = [
        made(b, s, t, l)
        for b, s, t, l in ((1, OFF, 1e-3, None), (1, Setting(1), 1e9, 1.0), (512, Setting(3), 5.0, 4.0), (1, Setting(2), 7, 3))
    ]
    model = fit(MeasuredTable(tuple(wild)))
    assert all(t.ms is None or math.isfinite(t.ms) for t in model.terms)
    assert model.predict(1, Setting(1)).low_ms >= 0


def test_groups_are_fitted_apart():
    table = table_of(batches=(1,), chosen=(OFF, Setting(1), Setting(2), Setting(3)))
    off, spec = table.rows[0], table.rows[1:]
    both = MeasuredTable((off, *(replace(m, extra={"draft": d}, tok_s=m.tok_s * k) for d, k in (("a", 1.0), ("b", 0.5)) for m in spec)))
    with pytest.raises(TimingError, match="2 groups"):
        fit(both)
    with pytest.raises(TimingError, match="no group 'c'"):
        fit(both, "c")
    one, other = fit(both, "draft a"), fit(both, "draft b")
    assert other.predict(1, Setting(2)).ms == pytest.approx(2 * one.predict(1, Setting(2)).ms)
    assert len(one.rows) == 4


def test_collectives_are_taken_out_and_put_back():
    shared = {**TRUE, "base": TRUE["base"] + 3.0}
    table = table_of(terms=shared)
    model = fit(table, collectives=Collectives.of_latency(30, 50))  # 2 * 50 all-reduces of 30 us
    assert {t.name: t.ms for t in model.terms}["base"] == pytest.approx(4.0)
    assert model.predict(4, Setting(2)).ms == pytest.approx(true_ms(4, Setting(2), terms=shared))
    with pytest.raises(TimingError, match=r"collectives of 100 ms leave nothing"):
        fit(table, collectives=Collectives(100.0, 1.0))


def test_leave_one_out_on_the_published_tables():
    """What the model is worth, said as it is: with tokens it is no better than one r for all on this mixture of experts, with experts it is."""
    table = read_measured(SPECFORGE)
    tokens, experts = leave_one_out(table), leave_one_out(table, experts=QWEN3_30B)
    assert len(tokens.errors("model")) == len(experts.errors("model")) == 8
    assert tokens.better is False
    assert "the model is not better here" in tokens.text
    assert experts.better is True
    assert sum(experts.errors("model")) / 8 == pytest.approx(0.11, abs=0.02)
    assert sum(tokens.errors("model")) / 8 == pytest.approx(0.17, abs=0.02)
    r = [row.r for row in cost_rows(table)]
    by_hand = [abs(math.prod(x for j, x in enumerate(r) if j != i) ** (1 / 7) / r[i] - 1) for i in range(8)]
    assert tokens.errors("constant") == pytest.approx(by_hand)
    assert tokens.equal_tokens == pytest.approx(2.59 / 2.1323 - 1, abs=1e-3)  # 3-1-4 and 3-3-4
    assert round(tokens.equal_tokens, 2) == 0.21
    chains = leave_one_out(read_measured(ADAPTIVE))
    assert chains.better is True
    assert max(chains.errors("model")) < 0.1 < max(chains.errors("constant"))
    assert not leave_one_out(MeasuredTable((made(1, OFF, 9), made(1, Setting(1), 9, 1.5)))).rows


# -- acceptance and prediction ------------------------------------------------------------------------------------------------------------------


def test_chain_acceptance():
    told = chain_acceptance([0.6, 0.3, 0.1], passes=1000)
    assert [round(told(Setting(k)).accept_length, 9) for k in range(1, 4)] == [1.6, 1.9, 2.0]
    assert told(Setting(4)) is None
    assert told(Setting(3, 2, 6)) is None
    assert told(OFF).accept_length == 1
    one = told(Setting(1))
    assert (one.high - one.low) / 2 == pytest.approx(1.959964 * math.sqrt(0.6 * 0.4 / 1000))
    bare = chain_acceptance([0.6])(Setting(1))
    assert (bare.low, bare.high) == (1.6, 1.6)
    for bad in ([0.3, 0.6], [1.2], [-0.1], [math.nan]):
        with pytest.raises(ValueError, match="joint rates"):
            chain_acceptance(bad)


@given(st.lists(st.floats(0, 1), min_size=9, max_size=9), st.sets(st.integers(1, 8), min_size=1))
@settings(max_examples=80, deadline=None)
def test_bounds_between_measured_chains_hold_for_every_drafter(rates, ran):
    joint = sorted(rates, reverse=True)
    lengths = [1 + sum(joint[:k]) for k in range(10)]
    table = MeasuredTable(tuple(made(1, Setting(k), 100, lengths[k]) for k in ran))
    told = measured_acceptance(table, "")
    for k in range(1, max(ran) + 1):
        found = told(Setting(k))
        assert found.low - 1e-9 <= lengths[k] <= found.high + 1e-9
        assert found.low - 1e-9 <= found.accept_length <= found.high + 1e-9
    assert told(Setting(max(ran) + 1)) is None


def test_a_prediction_is_the_closed_form():
    model, told = fit(table_of()), chain_acceptance([0.7, 0.5, 0.4])
    one = predict(4, Setting(2), told, model)
    assert one.speedup == pytest.approx(2.2 * true_ms(4, OFF) / true_ms(4, Setting(2)))
    assert one.source == "predicted"
    twice = predict(4, Setting(2), told, model, baseline_ms=2 * true_ms(4, OFF))
    assert twice.speedup == pytest.approx(2 * one.speedup)
    assert predict(4, Setting(7), told, model) is None
    assert predict(99, Setting(2), told, model) is None
    assert any("without an interval" in text for text in one.assumed)


def test_uncertainty_of_times_and_of_acceptance_goes_through():
    def told(low, high):
        return lambda s: Expected(2.0, low, high, "made up")

    quiet, noisy = fit(table_of()), fit(table_of(noise=0.1))
    width = {
        name: (o := predict(4, Setting(2), acceptance, model)).high - o.low
        for name, acceptance, model in (("both", told(1.5, 2.5), noisy), ("times", told(2, 2), noisy))
    }
    assert width["both"] > 1.1 * width["times"] > 0
    o = predict(4, Setting(2), told(1.8, 2.2), quiet)
    assert (o.high - o.low) / o.speedup == pytest.approx(0.2, rel=0.15)  # 0.4 of 2


def test_recommendations_of_single_runs_name_the_best_and_no_interval():
    (one,) = recommend(MeasuredTable((made(1, OFF, 88.8), made(1, Setting(2), 94.0, 2.05), made(1, Setting(3), 90.0, 2.2))))
    assert (one.best.name, one.runner_up.name, one.over_off) == ("2-1-3", "3-1-4", "no interval")
    assert one.gain == pytest.approx(0.0586, abs=1e-4)
    assert one.text == "batch 1: 2-1-3 1.06 x, without an interval; too close to tell from 3-1-4 1.01 x"
    (slow,) = recommend(MeasuredTable((made(1, OFF, 100), made(1, Setting(2), 94.0, 2.05))))
    assert (slow.best.name, slow.gain, slow.over_off) == ("off", 0, "no interval")
    assert "off; the next best, 2-1-3 0.94 x, is slower, but without an interval: repeat the runs" in slow.text


@pytest.mark.parametrize(
    ("speeds", "best", "said"),
    [
        ({2: 102, 3: 80}, "2-1-3", "2-1-3 1.02 x, without an interval: too close to off to tell"),
        ({2: 98}, "off", "off; the next best, 2-1-3 0.98 x, is too close to tell without an interval: repeat the runs"),
        ({2: 120, 3: 110}, "2-1-3", "2-1-3 1.20 x, without an interval; next 3-1-4 1.10 x"),
    ],
)
def test_single_runs_within_5_per_cent_are_too_close_to_tell(speeds, best, said):
    (one,) = recommend(MeasuredTable((made(1, OFF, 100), *(made(1, Setting(k), t, 1.9) for k, t in speeds.items()))))
    assert (one.best.name, one.over_off, one.text) == (best, "no interval", f"batch 1: {said}")
    assert one.too_close == ("too close" in said)


NOISY = (*(made(1, OFF, t) for t in (90, 89, 91)), *(made(1, Setting(3), t) for t in (110, 111, 109)))


def test_a_noisy_winner_hides_no_sure_one():
    (one,) = recommend(MeasuredTable((*NOISY, made(1, Setting(2), 100), made(1, Setting(2), 130))))
    assert (one.best.name, one.over_off, one.runner_up.name, one.over_runner_up) == ("3-1-4", "clear", "2-1-3", "cannot tell")
    assert one.text == "batch 1: 3-1-4 1.22 x (1.19 to 1.25) is faster than off; 2-1-3 1.28 x may be better, not told"


def test_the_example_names_what_is_surely_faster():
    """By hand from the six repeats of a batch size: the pooled scatter leaves 2-1-3 (and at batch 4 1-1-2) open, 3-1-4 not."""
    one, four = recommend(read_measured(EXAMPLE))
    assert (one.best.text, four.best.text) == ("3-1-4 1.25 x (1.17 to 1.34)", "3-1-4 1.20 x (1.16 to 1.24)")
    assert (one.over_off, four.over_off) == ("clear", "clear")
    assert (one.runner_up.name, four.runner_up.name) == ("2-1-3", "1-1-2")
    assert all(", 3-1-4, " in w.name for w in cost_report(read_measured(EXAMPLE)).what_if)


def test_a_speedup_above_the_accept_length_is_not_recommended():
    """940 for 94 tok/s: r is 2.05 * 88.8 / 940 = 0.19."""
    table = MeasuredTable((made(1, OFF, 88.8), made(1, Setting(2), 940, 2.05), made(1, Setting(3), 110, 2.2)))
    report = cost_report(table)
    (one,) = report.recommendations
    assert one.best.name == "3-1-4"
    assert [o.name for o in one.impossible] == ["2-1-3"]
    assert "not weighed, since it cannot be: 2-1-3 10.59 x" in one.text
    (note,) = [n for n in report.notes if "cannot be in a clean comparison" in n]
    assert note.startswith("batch 1, 2-1-3: 10.59 x at accept length 2.05")
    assert "0.19 plain decode steps" in note
    assert "swapped numbers" in note
    assert report.fits[0].rows == fit(MeasuredTable((table.rows[0], table.rows[2]))).rows
    assert not any("2-1-3" in w.name for w in report.what_if)
    alone = cost_report(MeasuredTable(table.rows[:2]))
    assert (alone.recommendations[0].best.name, alone.recommendations[0].over_off, alone.fits) == ("off", "cannot tell", ())
    assert "cannot tell; not weighed" in alone.recommendations[0].text
    just = cost_report(MeasuredTable((made(1, OFF, 100), made(1, Setting(2), 200, 1.81))))  # r 0.905
    assert just.recommendations[0].best.name == "2-1-3"


@pytest.mark.parametrize(("value", "best"), [(1.01, "off"), (1.049, "off"), (1.06, "2-1-3")])
def test_a_prediction_without_an_interval_leads_off_only_beyond_5_per_cent(value, best):
    """Of a table that the model fits exactly: the base is 4 + 0.5 + 0.2, the time of 2 steps 8 ms."""
    table = table_of(batches=(1,))
    time, base = true_ms(1, Setting(2)), true_ms(1, OFF)
    length = value * time / base
    slow = replace(table, rows=tuple(m for m in table.rows if m.setting.off))

    def told(s):
        return Expected(length, length, length, "made up") if s == Setting(2) else None

    model = SimpleNamespace(predict=lambda b, s: PassTime(true_ms(b, s), true_ms(b, s)), assumption="exact")
    (one,) = recommend(slow, model, told)
    assert one.best.name == best
    assert (one.over_off, one.too_close) == ("no interval", best == "off")
    if best == "off":
        assert one.text.endswith(
            f"off; the next best, 2-1-3 {value:.2f} x, predicted, not run, is too close to tell without an interval: repeat the runs"
        )
        assert [o.name for o in one.not_ruled_out] == ["2-1-3"]


def test_what_was_not_run_is_said_once():
    model = SimpleNamespace(predict=lambda b, s: PassTime(10.0, 10.0), assumption="exact")
    (one,) = recommend(MeasuredTable((made(1, OFF, 100),)), model, chain_acceptance([0.5, 0.2]))
    assert one.text == "batch 1: 2-1-3 1.70 x, without an interval; next 1-1-2 1.50 x; both predicted, not run"


def test_throughput_that_falls_with_the_batch_is_asked_about():
    rows = (made(1, OFF, 100), made(4, OFF, 80), made(1, Setting(3), 130, 2.0), made(4, Setting(3), 90, 2.0), made(8, OFF, 79))
    (note,) = [n for n in cost_notes(MeasuredTable(rows)) if "is it of one request?" in n]
    assert "off 100 at batch 1, 80 at batch 4; 3-1-4 130 at batch 1, 90 at batch 4)" in note
    assert not any("one request" in n for n in cost_notes(MeasuredTable((made(1, OFF, 100), made(4, OFF, 98), made(8, OFF, 700)))))


@pytest.mark.parametrize(
    ("speeds", "best", "over_off", "over_next", "said"),
    [
        ({2: 1.30, 3: 1.10}, "2-1-3", "clear", "clear", "next 3-1-4"),
        ({2: 1.30, 3: 1.29}, "2-1-3", "clear", "cannot tell", "cannot tell it from 3-1-4"),
        ({2: 1.005}, "2-1-3", "cannot tell", "cannot tell", "cannot tell whether 2-1-3"),
        ({2: 0.8, 3: 0.7}, "off", "clear", "clear", "off; the next best, 2-1-3"),
        ({2: 0.995}, "off", "cannot tell", "cannot tell", "the intervals overlap: cannot tell"),
    ],
)
def test_recommendations_with_repeats(speeds, best, over_off, over_next, said):
    rows = [made(8, OFF, 100 * x) for x in (0.99, 1, 1.01)]
    rows += [made(8, Setting(k), 100 * speed * x, 1.9) for k, speed in speeds.items() for x in (0.99, 1, 1.01)]
    (one,) = recommend(MeasuredTable(tuple(rows)))
    assert (one.best.name, one.over_off, one.over_runner_up) == (best, over_off, over_next)
    assert said in one.text


def test_the_best_of_settings_nobody_ran():
    """Joint rates that fall off after two steps, a cycle that grows with each: the best is in between those that ran."""
    joint = [0.9, 0.8, 0.1, 0.05, 0.02]
    rows = [made(1, OFF, 1000 / true_ms(1, OFF))]
    rows += [made(1, Setting(k), 1000 * (1 + sum(joint[:k])) / true_ms(1, Setting(k)), 1 + sum(joint[:k])) for k in (1, 4, 5)]
    table = MeasuredTable(tuple(rows))
    (one,) = recommend(table, fit(table), chain_acceptance(joint))
    truth = {k: (1 + sum(joint[:k])) * true_ms(1, OFF) / true_ms(1, Setting(k)) for k in range(1, 6)}
    assert one.best.setting == Setting(max(truth, key=truth.get)) == Setting(2)
    assert one.best.speedup == pytest.approx(truth[2])
    assert one.best.source == "predicted"
    assert "predicted, not run (the best that ran: 4-1-5 1.37 x)" in one.text
    assert truth[4] == max(truth[k] for k in (1, 4, 5))
    assert any("pass times of settings that were not run" in text for text in one.assumptions)
    assert not any("was served at" in text for text in one.assumptions)
    (apart,) = recommend(table, fit(table), chain_acceptance([j / 2 for j in joint]))
    assert any("1-1-2 was served at accept length 1.90, where 1.45 is expected by joint rates" in text for text in apart.assumptions)
    (without,) = recommend(table)  # no model: only what ran
    assert {o.setting.steps for o in without.outlooks} == {0, 1, 4, 5}


def test_what_is_only_bounded_is_not_recommended_and_not_ruled_out():
    table = MeasuredTable((made(1, OFF, 100), made(1, Setting(3), 105, 2.6)))
    (one,) = recommend(table, fit(table))
    assert one.best.setting == Setting(3)
    assert {o.name for o in one.not_ruled_out} == {"1-1-2", "2-1-3"}
    assert all(o.speedup is None and o.high > 1.05 for o in one.not_ruled_out)
    assert "not ruled out: " in one.text


@pytest.mark.report("sgl-project/SpecForge#339", "E")
def test_on_the_published_table_nothing_beats_off():
    found = {r.batch: r for r in recommend(read_measured(SPECFORGE))}
    assert set(found) == {1, 4}
    assert all(r.best.setting.off for r in found.values())
    assert found[1].runner_up.name == "3-3-4"


@pytest.mark.report("sgl-project/sglang#21599", "EO")
def test_a_setting_nobody_ran_leads_only_where_it_stands_out():
    """Its interval reaches from 1.5 to 7: the setting that ran stays the one to use."""
    table = read_measured(ADAPTIVE)
    (one,) = recommend(table, fit(table))
    assert (one.best.name, one.best.source, one.over_off) == ("7-1-8", "measured", "no interval")
    assert one.runner_up.source == "predicted"
    assert one.runner_up.speedup > one.best.speedup
    assert one.over_runner_up == "cannot tell"
    assert f"cannot tell it from {one.runner_up.text}, predicted, not run" in one.text
    assert one.runner_up in one.not_ruled_out


def test_bounds_are_no_interval():
    """Three rows for three terms: the times fit exactly, so how far they are off is not known, and bounds above 1 are not `clear`."""
    table = MeasuredTable((made(1, OFF, 90), made(1, Setting(1), 130, 1.6), made(1, Setting(3), 140, 2.1)))
    (one,) = recommend(table, fit(table))
    guess = next(o for o in one.outlooks if o.name == "2-1-3")
    assert guess.low > 1
    assert guess.bounds
    assert "(bounds 1.50 to 1.71)" in guess.text
    assert (one.best.name, one.over_off) == ("3-1-4", "no interval")
    (alone,) = recommend(MeasuredTable((table.rows[0],)), fit(table), measured_acceptance(table, ""))
    assert alone.best.source == "predicted"
    assert alone.over_off == "no interval"


def test_a_batch_size_without_a_baseline_gets_no_recommendation():
    table = MeasuredTable((made(1, Setting(3), 100, 2.5), made(4, OFF, 300)))
    assert [r for r in recommend(table, fit(table)) if r.batch == 1] == []


def test_where_nothing_can_be_told_apart_from_off_it_cannot_tell():
    table = MeasuredTable((made(1, OFF, 100), made(4, OFF, 300), made(4, Setting(3), 330, 2.0), made(1, Setting(3, 2, 6), 90, 2.0)))
    for one in recommend(table, fit(table), lambda s: Expected(2.0, 1.0, 4.0, "made up")):
        assert one.over_off != "clear"


def test_a_row_that_names_no_model_takes_no_other_models_baseline():
    own = made(1, OFF, 100)
    a, b = made(1, OFF, 90, model="A"), made(1, OFF, 50, model="B")
    row = made(1, Setting(3), 120, 2.0)
    assert cost_rows(MeasuredTable((own, a, b, row)))[0].baseline_tok_s == 100
    assert cost_rows(MeasuredTable((a, row)))[0].baseline_tok_s == 90
    table = MeasuredTable((a, b, row))
    assert cost_rows(table)[0].speedup is None
    assert any("does not say which is its own" in note for note in cost_notes(table))


# -- what if ------------------------------------------------------------------------------------------------------------------------------------

CYCLE = Cycle(1, 2, 2.05, verify_ms=19.0, draft_ms=0.6, rest_ms=0.4, baseline_ms=10.0)


def test_verify_faster():
    alone, shared = verify_faster(CYCLE, 0.27), verify_faster(CYCLE, 0.27, shared=True)
    assert alone.after.cycle_ms == pytest.approx(20 - 0.27 * 19)
    assert alone.after.baseline_ms == 10
    assert shared.after.baseline_ms == pytest.approx(10 - 0.27 * 19)
    assert shared.after.speedup == pytest.approx(2.05 * (10 - 5.13) / (20 - 5.13))
    assert shared.after.speedup < CYCLE.speedup < alone.after.speedup
    assert shared.after.tok_s == alone.after.tok_s
    assert verify_faster(CYCLE, 0.27, shared=True, baseline_collective_ms=2.0).after.baseline_ms == 8
    assert any("less as well" in text for text in shared.assumptions)
    with pytest.raises(TimingError, match="cannot all be shared"):
        verify_faster(replace(CYCLE, baseline_ms=5.0), 0.27, shared=True)
    for bad in (1.0, -0.1, math.nan):
        with pytest.raises(TimingError, match="expected a share"):
            verify_faster(CYCLE, bad)


def test_what_ifs_name_their_group_and_say_what_cannot_be():
    rows = [
        made(1, OFF, 100, model="A"),
        made(1, Setting(3), 50, 2.5, model="A"),
        made(1, OFF, 100, model="B"),
        made(1, Setting(2), 110, 2.0, model="B"),
    ]
    report = cost_report(MeasuredTable(tuple(rows)), verify_share=1.0)
    named = {w.name: w for w in report.what_if}
    assert named["model B, batch 1, 2-1-3, verify 27% faster"].after.speedup == pytest.approx(1.1 / 0.73)
    slow = named["model A, batch 1, 3-1-4, verify 27% faster, the baseline too"]  # 27 % of 50 ms is more than the 10 ms of a plain pass
    assert slow.after is None
    assert "cannot all be shared" in slow.text
    assert json.loads(json.dumps(slow.to_json()))["after"] is None
    assert {r.text.split(",")[0] for r in report.recommendations} == {"model A", "model B"}


def test_a_share_that_nobody_told_is_said_to_be_one():
    report = cost_report(MeasuredTable((made(1, OFF, 100), made(1, Setting(2), 110, 2.0))))
    one = next(w for w in report.what_if if w.name == "batch 1, 2-1-3, verify 27% faster (at most)")
    assert any("all of a cycle is counted as verify" in text for text in one.assumptions)
    assert not any("the baseline too" in w.name for w in report.what_if)


# -- collectives of a trace ---------------------------------------------------------------------------------------------------------------------


def test_collectives_of_a_trace_go_into_the_fit_and_the_what_ifs(run, tmp_path):
    """The hand-made cycle has one all-reduce of 10 us in its verify pass, which nothing hides, and 80 us of other verify work in 165 us."""
    trace = era_trace("0.5.23").write(tmp_path / "t.json")
    report = read_trace(trace)
    assert collectives_of(report) == Collectives(pytest.approx(0.010), pytest.approx(0.010))
    told = shares_of(report)
    assert told["verify_share"] == pytest.approx(5 * (LENGTHS["verify"] + LENGTHS["communication"]) / (5 * PERIOD - 3.0))
    table = tmp_path / "table.csv"
    table.write_text("batch,steps,tok_s,accept_length\n1,0,100,\n1,3,150,2.5\n")
    code, data = run(table, "--trace", trace)
    assert code == 0
    assert data["fit"][0]["collectives_ms"] == pytest.approx([0.010, 0.010])
    assert any("collectives that nothing hides: 0.01 ms of a verify pass" in note for note in data["notes"])
    shared = next(w for w in data["what_if"] if w["name"].endswith("the baseline too"))
    assert shared["before"]["baseline_ms"] - shared["after"]["baseline_ms"] == pytest.approx(0.010)  # not more than its collectives


@pytest.mark.parametrize(
    ("told", "said"), [(Collectives(30.0, 30.0), "leave nothing of a pass"), (Collectives(1.0, 1.0), "names no batch size")]
)
def test_collectives_that_the_table_cannot_use_are_left_out_and_said(told, said):
    untold = {} if told.verify_ms > 10 else {"batch_told": False}
    table = MeasuredTable((made(1, OFF, 100, **untold), made(1, Setting(2), 110, 2.0, **untold)))
    report = cost_report(table, collectives=told)
    assert report.fits[0].collectives is None
    assert any("not used" in note and said in note for note in report.notes)


def test_a_trace_without_collectives_or_cycles_tells_none():
    empty = pd.DataFrame({"phase": [], "exposed_ms": []})
    assert collectives_of(SimpleNamespace(collectives=empty, cycles=[1, 2], speculative=True)) is None
    assert shares_of(SimpleNamespace(speculative=False)) == {}


def test_accept_longer_and_never_longer_than_can_be():
    assert accept_longer(CYCLE).after.speedup == pytest.approx(CYCLE.speedup * 2.35 / 2.05)
    most = accept_longer(CYCLE, 5)
    assert most.after.accept_length == 3
    assert any("3 tokens a pass at most" in text for text in most.assumptions)
    with pytest.raises(TimingError, match="accept length of 1 or more"):
        accept_longer(CYCLE, -2)


def test_smaller_vocabulary():
    one = smaller_vocabulary(CYCLE, 0.5)
    assert one.after.draft_ms == pytest.approx(0.45)
    assert any("upper bound" in text for text in one.assumptions)
    told = smaller_vocabulary(CYCLE, 0.5, accept_length=1.9)
    assert told.after.accept_length == 1.9
    assert not any("upper bound" in text for text in told.assumptions)
    with pytest.raises(TimingError, match="expected shares"):
        smaller_vocabulary(CYCLE, 1.5)


def test_lm_heads_share_of_a_drafters_weights():
    h, inner, vocab, heads = 64, 128, 512, 4
    raw = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": h, "intermediate_size": inner, "num_attention_heads": heads}
    raw |= {"num_key_value_heads": heads, "head_dim": h // heads, "vocab_size": 1000, "draft_vocab_size": vocab, "num_hidden_layers": 1}
    layer = 3 * 2 * h * h + h * h + 3 * h * inner + 3 * h  # q, k, v of [embedding, state], o, MLP, three norms
    assert lm_head_share(DrafterConfig.from_dict(raw)) == pytest.approx(vocab * h / (vocab * h + layer + h))


def test_a_cycle_of_a_measured_row():
    row = by_name(cost_rows(read_measured(SPECFORGE)))["3-3-4"]
    cycle = Cycle.of_row(row, 0.95, 0.03)
    assert cycle.speedup == pytest.approx(row.speedup)
    assert cycle.tok_s == pytest.approx(207.62)
    assert cycle.rest_ms == pytest.approx(0.02 * row.pass_ms)
    with pytest.raises(TimingError, match="shares of verify"):
        Cycle.of_row(row, 0.95, 0.3)
    with pytest.raises(TimingError, match="no baseline or no accept length"):
        Cycle.of_row(replace(row, r=None))


# -- the report and the command -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys):
    def call(*arguments, text=False):
        code = main(["cost", *map(str, arguments)] + ([] if text else ["--json"]))
        out = capsys.readouterr()
        return code, out.out + out.err if text else json.loads(out.out)

    return call


def test_the_command_gives_one_document(run):
    code, data = run(SPECFORGE)
    assert code == 0
    assert len(data["rows"]) == 8
    keys = "batch steps topk draft_tokens tok_s accept_length baseline_tok_s r break_even speedup pass_ms"
    assert set(keys.split()) <= set(data["rows"][0])
    assert round(data["rows"][0]["r"], 2) == 2.59
    assert [b["batch"] for b in data["baselines"]] == [1, 4, 8, 16, 32, 64]
    assert data["fit"][0]["rows"] == 14
    assert {r["batch"]: r["best"]["name"] for r in data["recommendations"]} == {1: "off", 4: "off"}
    assert data["leave_one_out"][0]["better"] is False
    assert any("no better than one r" in note for note in data["notes"])


def test_the_command_as_text(run, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}))
    code, text = run(SPECFORGE, "--target-config", config, "--verify-share", 0.95, text=True)
    assert code == 0
    for words in ("2.59", "per_expert", "by experts, leave-one-out", "by tokens, leave-one-out", "batch 1: off", "verify 27% faster"):
        assert words in text
    code, text = run(ADAPTIVE, text=True)
    assert "the table's batch size" in text
    assert "ms (" not in text


def test_numbers_in_place_of_a_table(run):
    code, data = run("--numbers", 54.8, 1.8, 90)
    assert (code, round(data["rows"][0]["r"], 2)) == (0, 2.96)
    assert round(run("--numbers", 54.8, 1.8, 90, "--no-bonus")[1]["rows"][0]["r"], 2) == 4.60
    assert "breaks even at accept length 2.96" in run("--numbers", 54.8, 1.8, 90, text=True)[1]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((54.8, 1.8, 90), "Slower than no speculation: at this cost it needs accept length 2.96 and has 1.80."),
        ((54.8, 1.8, 90, "--setting", "1-1-2"), "needs accept length 2.96 and has 1.80; 1-1-2 can give 2 at most, so that it cannot win."),
        ((54.8, 1.8, 90, "--setting", "3-1-4"), "needs accept length 2.96 and has 1.80; 3-1-4 can give 4 at most."),
        ((94, 2.05, 88.8), "Faster than no speculation: at this cost it needs accept length 1.94 and has 2.05."),
        ((92, 2.05, 90), "Too close to tell on one run each: at this cost it needs accept length 2.01 and has 2.05."),
        ((940, 2.05, 88.8), "No conclusion: 10.59 x at accept length 2.05 cannot be in a clean comparison"),
    ],
)
def test_numbers_end_with_a_conclusion(run, numbers, said):
    code, data = run("--numbers", *numbers)
    assert (code, said in data["conclusion"]) == (0, True)
    assert said in run("--numbers", *numbers, text=True)[1].strip().splitlines()[-1]


def test_what_is_counted_as_verify_is_said(run, tmp_path):
    assert "What if (verify takes 95.0% of a cycle, by --verify-share):" in run(SPECFORGE, "--verify-share", 0.95, text=True)[1]
    assert "What if (all of a cycle is counted as verify, since nothing tells its share):" in run(SPECFORGE, text=True)[1]
    table = tmp_path / "table.csv"
    table.write_text("batch,steps,tok_s,accept_length\n1,0,100,\n1,3,150,2.5\n")
    _, text = run(table, "--trace", era_trace("0.5.23").write(tmp_path / "t.json"), text=True)
    assert "of a cycle, by the trace):" in text
    assert text.splitlines()[0].startswith("Settings are steps-top-k-draft tokens: 3-1-4 drafts 3 steps")
    assert "2 rows, no more than there are terms to find, so that its error is not known" in text


def test_a_cases_drafter_tells_what_was_not_run(run, tmp_path, monkeypatch):
    """The command's part; the replay itself is tested where it lives."""
    asked = {}

    def case(path, **options):
        asked.update(options, path=path)
        replayed = chain_acceptance([0.9, 0.8, 0.7, 0.6, 0.5], source="the drafter alone")
        no_trace = SimpleNamespace(timing=SimpleNamespace(trace=None))
        moe = {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}
        return SimpleNamespace(case=no_trace, target_config=moe, timing=SimpleNamespace(acceptance=replayed))

    monkeypatch.setattr("eaglelab.investigation.Investigation", case)
    table = tmp_path / "table.csv"
    table.write_text("batch,steps,tok_s,accept_length\n1,0,100,\n1,1,150,1.9\n1,5,180,4.5\n1,6,170,4.9\n")
    code, data = run(table, "--case", "somewhere", "--max-samples", 4, "--device", "cpu")
    assert code == 0
    assert (asked["path"], asked["max_samples"], asked["device"]) == ("somewhere", 4, "cpu")
    told = {o["name"]: o["accept_length"] for o in data["recommendations"][0]["outlooks"] if o["source"] == "predicted"}
    assert data["fit"][0]["feature"] == "distinct experts of 128, 8 a token"  # the case's target
    assert told == {"2-1-3": pytest.approx(2.7), "3-1-4": pytest.approx(3.4), "4-1-5": pytest.approx(4.0)}


def test_files_of_baseline_and_speculation_together(run, tmp_path):
    for name, object_ in (("off", {"acc_length": -1}), ("3-1-4", {"acc_length": 2.5, "output_throughput": 150.0})):
        line = {"run_name": name, "batch_size": 2, "output_throughput": 100.0, "last_gen_throughput": 1.0, **object_}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line))
    code, data = run(tmp_path / "off.jsonl", tmp_path / "3-1-4.jsonl")
    assert code == 0
    assert [(r["name"], r["speedup"]) for r in data["rows"]] == [("3-1-4", 1.5)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no table and no --numbers"),
        ((SPECFORGE, "--numbers", 1, 2, 3), "got both"),
        (("nowhere.csv",), "no such file"),
        ((SPECFORGE, "--setting", "eagle3"), "expected steps-topk-draft tokens"),
        ((SPECFORGE, "--verify-share", 2), "shares of verify"),
        (("--numbers", 0, 2, 3), "tok_s is 0"),
        (("--numbers", 94, 2.5, 90, "--setting", "1-1-2"), "accept length 2.5 cannot be: a pass of 1-1-2 gives 2 tokens at most"),
        (("--numbers", 94, 2.5, 90, "--setting", "off"), "the setting is off"),
        (("--numbers", 94, 2.5, 90, "--setting", "eagle3"), "expected steps-topk-draft tokens"),
        (("--numbers", 94, 2.5, 90, "--verify-share", 0.9, "--seed", 1), "--verify-share, --seed: of no use with --numbers"),
        ((SPECFORGE, "--target-config", "nowhere.json"), "nowhere.json"),
    ],
)
def test_unusable_arguments(run, arguments, said):
    code, data = run(*arguments)
    assert code == 2
    assert said in data["error"]


def test_a_table_of_baselines_alone_is_no_error():
    report = cost_report(MeasuredTable((made(1, OFF, 100), made(4, OFF, 300))))
    assert (report.rows, report.fits, report.recommendations) == ((), (), ())
    assert any("nothing to compare" in note for note in report.notes)
