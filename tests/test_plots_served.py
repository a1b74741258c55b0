"""Figures of served acceptance: the title is the finding, odd data still draw."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from figures import INF, NAN, closed, drawn, title  # noqa: F401 - closed closes what a test drew

from eaglelab.plots.served import accept_length_over_log, joint_by_step, predicted_and_served


def lengths(*rows):
    return pd.DataFrame(rows, columns=["recording", "right", "served", "low", "high", "predicted"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", True, 1.80, 1.7, 1.9, 1.79), ("b", False, 1.1, 1.0, 1.2, 1.1)], "All 2 recordings were served as predicted, within 0.01 of accept length"),
        ([("a", True, 1.80, 1.7, 1.9, 1.80)], "The recording was served as predicted, to two decimals of accept length"),
        ([("a", True, 1.79, 1.7, 1.9, 1.8), ("b", True, 1.3, 1.2, 1.4, 1.8)], "b reached 1.30 where 1.80 was predicted"),
        ([("a", False, 1.2, NAN, NAN, NAN)], "Accept lengths as served; none could be predicted"),
        ([("a", False, 1.2, 0.0, INF, 1.2)], "The recording was served as predicted, to two decimals of accept length"),
    ],
)  # fmt: skip
def test_the_lengths_title_is_the_finding(rows, said):
    ax = drawn(predicted_and_served(lengths(*rows)))
    assert title(ax) == said
    assert [t.get_text() for t in ax.get_yticklabels()] == [r[0] for r in rows]


def test_each_recording_has_its_numbers_beside_it():
    ax = drawn(predicted_and_served(lengths(("a", True, 1.80, 1.7, 1.9, 1.79), ("b", False, 1.1, 1.0, 1.2, NAN))))
    assert [t.get_text() for t in ax.texts] == ["1.80, predicted 1.79", "1.10, not predicted"]


def steps(*rows):
    return pd.DataFrame(rows, columns=["recording", "right", "step", "served", "predicted"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("a", True, 0, 0.5, 0.494), ("a", True, 1, 0.2, 0.2)], "Served and predicted acceptance are the same at every step, within 0.6 points"),
        ([("a", True, 0, 0.5, 0.5), ("a", True, 1, 0.0, 0.2)], "a was served 0.0% at step 1, predicted 20.0%"),
        ([("a", True, 0, 0.5, NAN)], "Joint acceptance as the server counted it"),
    ],
)  # fmt: skip
def test_the_steps_title_is_the_finding(rows, said):
    ax = drawn(joint_by_step(steps(*rows)))
    assert title(ax) == said
    assert all(t.get_text().endswith("%") for t in ax.get_yticklabels())


def test_recordings_of_other_depths_share_the_axis():
    ax = drawn(
        joint_by_step(steps(*(("k3", True, k, 0.5**k, 0.5**k) for k in range(3)), *(("k5", True, k, 0.5**k, 0.5**k) for k in range(5))))
    )
    assert ax.get_xticks().tolist() == [0, 1, 2, 3, 4]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "k3, fed as trained",
        "k5, fed as trained",
        "open: predicted by the replay",
    ]


def test_no_two_recordings_look_alike():
    rows = [(f"r{i}", bool(i % 2), k, 0.5, 0.5) for i in range(16) for k in range(2)]
    ax = drawn(joint_by_step(steps(*rows)))
    looks = [(line.get_color(), line.get_marker()) for line in ax.lines if line.get_label().startswith("r")]
    assert len(set(looks)) == len(looks) == 16


def log(graphs, starts=None):
    found = pd.DataFrame({"at": range(len(graphs)), "accept_length": [1.5 + i / 10 for i in range(len(graphs))], "start": starts or 0})
    found["graph"] = pd.array(graphs, dtype="boolean")
    found.attrs["unit"] = "minutes since the first line"
    return found


@pytest.mark.parametrize(
    ("graphs", "names"),
    [
        ([True, None, False], ["graph on, or not told", "graph off"]),
        ([False, False, False], ["graph off"]),
        ([None, None, None], ["graph on, or not told"]),
    ],
)
def test_lines_without_a_graph_are_marked(graphs, names):
    ax = drawn(accept_length_over_log(log(graphs)))
    assert title(ax) == "The log's accept length lies between 1.50 and 1.70"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == names
    assert ax.get_xlabel() == "minutes since the first line"


def test_restarts_are_lines_and_one_length_is_called_so():
    ax = drawn(accept_length_over_log(log([True] * 4, [0, 0, 1, 2])))
    assert title(ax).endswith(", over 3 starts of the server")
    assert [line.get_xdata()[0] for line in ax.lines[1:]] == [2, 3]
    assert title(drawn(accept_length_over_log(log([True]).assign(accept_length=2.8)))) == "The log's accept length is 2.80 throughout"


@pytest.mark.parametrize("draw", [joint_by_step, predicted_and_served, accept_length_over_log])
def test_without_a_row_nothing_is_drawn(draw):
    with pytest.raises(ValueError, match="tells"):
        draw(pd.DataFrame())
    assert plt.get_fignums() == []
