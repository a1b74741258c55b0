"""Figures of time: the title is the finding, bars carry their milliseconds, what is predicted looks unlike what was measured."""

import pandas as pd
import pytest
from figures import NAN, closed, drawn, title  # noqa: F401 - closed closes what a test drew
from matplotlib.colors import to_rgb

from eaglelab.plots.timing import (
    COLORS,
    HATCHES,
    accept_length_and_cost,
    phase_bars,
    predicted_and_measured,
    speedup_by_batch,
    verify_over_decode,
)
from eaglelab.timing.phases import Phase


def test_the_largest_phase_is_the_title_and_bars_sum_to_the_whole():
    table = pd.DataFrame(
        [{"verify": 95.0, "draft": 3.0, "host gap": 2.0}, {"verify": 190.0, "draft": NAN, "host gap": 10.0}], index=["batch 1", "batch 4"]
    )
    ax = drawn(phase_bars(table))
    assert title(ax) == "Verify takes 95.0% of a cycle"
    assert [t.get_text() for t in ax.texts if "ms" in t.get_text()] == ["100 ms", "200 ms"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["batch 1", "batch 4"]
    assert [t.get_text() for t in ax.figure.legends[0].get_texts()] == ["verify", "draft", "host gap"]
    ends = [max(p.get_x() + p.get_width() for p in ax.patches if abs(p.get_y() + p.get_height() / 2 - y) < 0.1) for y in (1, 0)]
    assert ends == pytest.approx([100.0, 200.0])


def test_the_titles_share_is_over_all_cycles():
    """9 cycles of 90 ms verify in 100, and one of 10 in 100: 820 of 1000."""
    table = pd.DataFrame(
        [{"verify": 10.0, "draft": 90.0, "cycles": 1}, {"verify": 90.0, "draft": 10.0, "cycles": 9}], index=["batch 1", "batch 4"]
    )
    ax = drawn(phase_bars(table))
    assert title(ax) == "Verify takes 82.0% of a cycle"
    assert [t.get_text() for t in ax.get_yticklabels()] == ["batch 1\n1 cycle", "batch 4\n9 cycles"]


def test_no_two_phases_look_alike():
    looks = [(to_rgb(COLORS[p]), HATCHES.get(p)) for p in Phase]
    assert len(set(looks)) == len(Phase)


@pytest.mark.parametrize("draw", [phase_bars, verify_over_decode, speedup_by_batch, accept_length_and_cost, predicted_and_measured])
def test_nothing_to_show_is_an_error_in_words(draw):
    columns = ["batch", "tokens", "ratio", "name", "speedup", "low", "high", "measured", "r", "accept_length", "predicted"]
    with pytest.raises(ValueError, match=r"^no |^nothing "):
        draw(pd.DataFrame(columns=columns))


def speedups(*rows):
    return pd.DataFrame(rows, columns=["batch", "name", "speedup", "low", "high", "measured"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1, "2-1-3", 1.059, 0.99, 1.1, True)], "No setting is clearly faster than no speculation at batch 1"),
        ([(1, "2-1-3", 1.059, NAN, NAN, True)], "2-1-3 is the best setting at batch 1 that is clearly faster: 1.06 times as fast"),
        ([(1, "2-1-3", 1.5, 0.6, 3.5, True), (1, "3-1-4", 1.25, 1.1, 1.4, True)], "3-1-4 is the best setting at batch 1 that is clearly faster: 1.25 times as fast"),
        ([(1, "3-1-4", 0.72, NAN, NAN, True), (4, "3-1-4", 0.79, NAN, NAN, True)], "No setting is faster than no speculation at any batch size"),
        ([(1, "5-1-6", 1.7, 1.6, 1.8, False), (16, "5-1-6", 0.5, NAN, NAN, True)], "The best setting that is clearly faster depends on the batch: 5-1-6 at 1, off at 16"),
        ([(1, "2-1-3", 1.2, NAN, NAN, True), (4, "2-1-3", 1.1, NAN, NAN, True)], "2-1-3 is the best setting at every batch size that is clearly faster: up to 1.20 times as fast"),
    ],
)  # fmt: skip
def test_the_best_setting_is_the_title(rows, said):
    ax = drawn(speedup_by_batch(speedups(*rows)))
    assert title(ax) == said


def test_the_best_of_each_batch_is_printed_off_where_none_wins():
    ax = drawn(
        speedup_by_batch(speedups((1, "2-1-3", 1.2, NAN, NAN, True), (1, "3-1-4", 1.1, NAN, NAN, True), (8, "3-1-4", 0.8, NAN, NAN, False)))
    )
    assert [t.get_text() for t in ax.texts if t.get_fontweight() == "bold"] == ["2-1-3", "off"]
    styles = {line.get_label(): line.get_linestyle() for line in ax.lines if "-" in line.get_label()}
    assert styles["2-1-3"] == "-"
    assert styles["3-1-4, predicted"] == "--"


def test_the_dearest_verify_pass_is_the_title():
    rows = [(1, 4, 1.02, 1.0, 1.1), (16, 4, 1.4, 1.3, 1.5), (1, 8, 1.1, NAN, NAN), (16, 8, 2.5, 2.0, 3.5)]
    ax = drawn(verify_over_decode(pd.DataFrame(rows, columns=["batch", "tokens", "ratio", "low", "high"])))
    assert title(ax) == "Verifying 8 tokens costs up to 2.50 plain decode steps (batch 16)"
    assert ax.get_ylim()[1] > 3.5
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "16"]


def test_settings_that_break_even_are_counted():
    rows = [("3-1-4", 1, 2.59, 1.86), ("2-1-3", 1, 1.5, 1.8), ("7-4-16", 1, NAN, 2.5)]
    ax = drawn(accept_length_and_cost(pd.DataFrame(rows, columns=["name", "batch", "r", "accept_length"])))
    assert title(ax) == "1 of 2 settings reaches the accept length that breaks even"
    ax = drawn(accept_length_and_cost(pd.DataFrame(rows[:1], columns=["name", "batch", "r", "accept_length"])))
    assert title(ax) == "3-1-4 needs an accept length of 2.59 and has 1.86"


def test_the_error_of_predictions_is_the_title():
    rows = [("3-1-4", 1, 1.1, 1.0), ("2-1-3", 1, 1.0, 1.0), ("5-1-6", 4, NAN, 1.0)]
    ax = drawn(predicted_and_measured(pd.DataFrame(rows, columns=["name", "batch", "predicted", "measured"])))
    assert title(ax) == "Predicted speedups lie within 10% of the measured ones, half of them within 5%"
