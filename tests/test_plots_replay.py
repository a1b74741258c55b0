"""Figures of a replay: what the title says comes from the data, and odd data still draw."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from figures import INF, NAN, closed, drawn, title  # noqa: F401 - closed closes what a test drew

from eaglelab.acceptance import StepCounts
from eaglelab.plots.replay import acceptance_by_step, acceptance_table, accepted_histogram, printed_table, ranked_feeds, slot_use, two_feeds


def counts(counted, right, complete, joint):
    return StepCounts(tuple(counted), tuple(right), (0,) * len(counted), complete, tuple(joint))


def places(*rows):
    return pd.DataFrame(rows, columns=["slot", "share", "zeroed_costs", "low", "high"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(0, 0.4, 0.01, -0.02, 0.04), (1, 0.6, 0.3, 0.2, 0.4)], "Slot 1 carries the drafter: zeroing it costs 30.0%"),
        ([(0, 0.4, 0.21, 0.1, 0.32), (1, 0.6, 0.3, 0.2, 0.4)], "Slots 0, 1 carry the drafter: zeroing one costs up to 30.0%"),
        ([(0, 0.4, 0.3, -0.1, 0.7), (1, 0.6, 0.0, -0.1, 0.1)], "No slot's loss can be told from chance"),
        ([(0, 0.4, 0.5, -0.1, 1.1), (1, 0.6, 0.2, 0.1, 0.3)], "Slot 1 carries the drafter: zeroing it costs 20.0%"),
        ([(0, 0.4, 0.004, 0.002, 0.006), (1, 0.6, 0.0, -0.1, 0.1)], "No slot carries the drafter: zeroing one costs 0.4% at most"),
        ([(0, 0.4, 0.0, 0.0, 0.0)], "No slot's loss can be told from chance"),
    ],
)
def test_a_slot_carries_only_what_is_told_from_chance(rows, said):
    assert title(drawn(slot_use(places(*rows)))) == said


@pytest.mark.parametrize(("low", "high"), [(-INF, INF), (NAN, NAN), (None, None)])
def test_one_sample_has_no_interval_and_draws(low, high):
    ax = drawn(slot_use(places((0, 0.4, 0.2, low, high), (1, 0.6, 0.1, low, high))))
    assert title(ax) == "No slot's loss can be told from chance"
    assert len(ax.lines) == 0  # no error bar
    assert [t.get_text() for t in ax.texts] == ["40%", "20.0%", "60%", "10.0%"]
    assert ax.get_xlim() == (0, pytest.approx(0.6 * 1.18))


def test_two_feeds_compare_one_kind_of_acceptance():
    own, served = counts([100, 80], [51, 20], 80, [40, 12]), counts([100, 80], [9, 2], 80, [5, 0])
    ax = drawn(two_feeds(["the dump's feed", "the engine's feed"], [own, served]))
    assert title(ax) == "Marginal acceptance at step 0: 51.0% on the dump's feed, 9.0% on the engine's feed"
    assert ax.get_ylabel() == "marginal acceptance"
    assert [t.get_text() for t in ax.texts] == ["51.0%", "25.0%", "9.0%", "2.5%"]
    assert [b.get_height() for b in ax.patches] == pytest.approx([0.51, 0.25, 0.09, 0.025])


def test_an_unknown_rate_is_not_zero():
    short = counts([10, 0], [5, 0], 0, [0, 0])
    ax = drawn(two_feeds(["a", "b"], [short, short]))
    assert [b.get_height() for b in ax.patches] == pytest.approx([0.5, NAN, 0.5, NAN], nan_ok=True)
    assert [t.get_text() for t in ax.texts].count("not known") == 2
    none = counts([0], [0], 0, [0])
    assert title(drawn(two_feeds(["a", "b"], [none, none]))) == "Marginal acceptance at step 0: not known on a, not known on b"


def test_acceptance_by_step_says_which_accept_length():
    both = counts([10, 8], [6, 4], 8, [4, 2])
    ax = drawn(acceptance_by_step(both))
    assert title(ax) == "Mean accept length over all rows 1.75: the joint rates add 0.75 to the bonus token"
    assert acceptance_table(both)["joint"].tolist() == [0.5, 0.25]
    assert title(drawn(acceptance_by_step(counts([10, 0], [6, 0], 0, [0, 0])))) == "No whole chain to count"


def test_the_pages_unit_is_per_cent_on_every_axis():
    both = counts([10, 8], [6, 4], 8, [4, 2])
    ranked = pd.DataFrame([("a", 9, 0.5, 0, 0, 0, True)], columns=["variant", "n", "acceptance", "behind", "low", "high", "tied"])
    drawings = [
        (acceptance_by_step(both), "yaxis"),
        (two_feeds(["a", "b"], [both, both]), "yaxis"),
        (ranked_feeds(ranked), "xaxis"),
        (slot_use(places((0, 0.4, 0.2, 0.1, 0.3))), "xaxis"),
        (accepted_histogram([0, 1, 3], 3), "yaxis"),
    ]
    for ax, axis in drawings:
        labels = [t.get_text() for t in getattr(drawn(ax), axis).get_ticklabels()]
        assert all(text.endswith("%") for text in labels), labels
        assert "0 to 1" not in ax.get_xlabel() + ax.get_ylabel()


def test_what_a_trainer_printed_has_a_row_for_each_thing_that_it_can_mean():
    again = [
        {"definition": "marginal", "rate": 0.5, "right": 5, "counted": 10, "interval": [0.4, 0.61234]},
        {"definition": "joint", "rate": None, "right": 0, "counted": 0, "interval": [0.0, 1.0]},
    ]
    table = printed_table([{"step": 1, "name": "acc_1", "printed": 0.74712, "recent": None, "split": "eval", "again": again}])
    assert table.to_dict(orient="list") == {
        "step": [1, 1],
        "name": ["acc_1", "acc_1"],
        "printed, %": [74.7, 74.7],
        "counted, %": [50.0, pytest.approx(NAN, nan_ok=True)],
        "from": [40.0, 0.0],
        "to": [61.2, 100.0],
        "right": [5, 0],
        "of": [10, 0],
        "definition": ["marginal", "joint"],
    }


def test_the_histogram_counts_verify_steps():
    ax = drawn(accepted_histogram([0, 0, 1, 3], 3))
    assert [b.get_height() for b in ax.patches] == [0.5, 0.25, 0, 0.25]
    assert title(ax) == "50% of the verify steps accept nothing, 25% accept all 3"
    with pytest.raises(ValueError, match="the walk has no verify step"):
        accepted_histogram([], 3)
    assert plt.get_fignums() == [ax.figure.number]  # no empty figure is left over


def test_feeds_without_an_interval_draw():
    rows = [("feed slots 0, 1", 9, 0.5, 0.0, NAN, NAN, True), ("feed slots 1, 0", 9, 0.4, 0.1, -INF, INF, True)]
    table = pd.DataFrame(rows, columns=["variant", "n", "acceptance", "behind", "low", "high", "tied"])
    ax = drawn(ranked_feeds(table))
    assert title(ax) == "1 of 1 other feeds cannot be told from the best"
    assert [t.get_text() for t in ax.get_yticklabels()] == ["slots 0, 1", "slots 1, 0"]
    assert not [line for line in ax.lines if len(set(line.get_xdata())) > 1]


def test_an_interval_stays_within_what_an_acceptance_can_be():
    rows = [("a", 9, 0.5, 0.0, 0.0, 0.0, True), ("b", 9, 0.1, 0.4, 0.2, 0.7, False)]
    ax = drawn(ranked_feeds(pd.DataFrame(rows, columns=["variant", "n", "acceptance", "behind", "low", "high", "tied"])))
    assert ax.lines[1].get_xdata().tolist() == pytest.approx([0, 0.3])
    assert title(ax) == "a fits best"
