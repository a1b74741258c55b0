"""Counts, rates and the definitions of others, against numbers that are printed elsewhere or worked out by hand."""

import pytest

from eaglelab.acceptance import (
    StepCounts,
    Walk,
    accept_length_from_accepted,
    accept_length_from_conditional,
    accept_length_from_draft_rate,
    accept_length_from_joint,
    accept_length_from_sglang_rate,
    ratio_interval,
)
from eaglelab.served.counts import ServedCounts


def test_rates_of_a_hand_made_table():
    # 4 complete rows: wrong / right, wrong / right, right / right, right; and one more row that counts at step 0 only, right.
    counts = StepCounts(counted=(5, 4), right=(4, 2), out_of_vocabulary=(1, 0), complete=4, joint=(3, 2))
    assert counts.marginal(0) == 4 / 5
    assert counts.joint_rate(1) == 2 / 4
    assert counts.conditional(1) == 2 / 3
    assert counts.accept_length == 1 + 3 / 4 + 2 / 4


def test_counts_add_before_they_divide():
    a = StepCounts((1,), (1,), (0,), 1, (1,))
    b = StepCounts((9,), (0,), (0,), 9, (0,))
    assert (a + b).marginal(0) == 0.1  # not the mean of 1.0 and 0.0


def test_adding_different_numbers_of_steps_is_an_error():
    with pytest.raises(ValueError, match="1 and 2 steps"):
        StepCounts((1,), (1,), (0,), 1, (1,)) + StepCounts((1, 1), (1, 1), (0, 0), 1, (1, 1))


def test_nothing_counted_is_none_not_zero():
    empty = StepCounts((0,), (0,), (0,), 0, (0,))
    assert empty.marginal(0) is None
    assert empty.accept_length is None
    assert Walk(0, 0).accept_length is None


def test_vllm_log_line():
    # A public vLLM log: 513 accepted over 124 drafts of 5 tokens, per-position rates summing to the same 4.14.
    assert accept_length_from_accepted(513, 124) == pytest.approx(5.137, abs=1e-3)
    assert accept_length_from_joint([0.9, 0.8]) == pytest.approx(2.7)


def test_published_per_position_rates():
    # gpt-oss-20b head, vLLM PR 28549: per-position 0.70/0.48/0.31 printed with accept length 2.49.
    assert accept_length_from_joint([0.70, 0.48, 0.31]) == pytest.approx(2.49, abs=0.005)


@pytest.mark.report("SafeAILab/EAGLE#264", "X")
@pytest.mark.report("NVIDIA-NeMo/Automodel#2959", "HO")
@pytest.mark.report("sgl-project/SpecForge#63", "HO")
def test_conditional_chain():
    # SafeAILab/EAGLE issue 264: accuracy 0.89 at all 7 steps, "the chain predicts about 5.5".
    assert accept_length_from_conditional([0.89] * 7) == pytest.approx(5.5, abs=0.1)


def test_sglang_rate_changed_in_april_2026():
    # The same run: accept length 2.17 with 4 draft tokens printed 0.54 before and prints 0.39 since.
    assert accept_length_from_sglang_rate(0.5425, 4, since_april_2026=False) == pytest.approx(2.17)
    assert accept_length_from_sglang_rate(0.39, 4, since_april_2026=True) == pytest.approx(2.17)
    with pytest.raises(ValueError, match="at least 2"):
        accept_length_from_sglang_rate(0.5, 1, since_april_2026=True)


def test_vllms_draft_rate():
    # mostlygeek/llama-swap issue 1032, an answer of vLLM's: 10 of 129 drafted tokens accepted in 43 passes of 3, mean acceptance length 1.2326.
    assert accept_length_from_draft_rate(10 / 129, 3) == pytest.approx(1.2325581395348837)
    assert ServedCounts.from_histogram([39, 1, 0, 3]).accept_length == pytest.approx(1.2325581395348837)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        accept_length_from_draft_rate(0.5, 0)


def test_ratio_interval_is_students_on_equal_samples():
    # Ten samples of equal size: the interval of a mean, t(0.975, 9) = 2.262.
    parts = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    low, high = ratio_interval(parts, [1.0] * 10)
    half = 2.262 * (sum((p - 5.5) ** 2 for p in parts) / 9 / 10) ** 0.5
    assert (low, high) == pytest.approx((5.5 - half, 5.5 + half), abs=0.01)
    assert ratio_interval([1], [2])[1] == float("inf")
