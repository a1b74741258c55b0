"""Names beside points: on the right where nothing is in the way, elsewhere where something is."""

import matplotlib.pyplot as plt
import pytest

from eaglelab.plots.labels import label_points
from eaglelab.plots.style import axes


def placed(points, names, **options):
    ax = axes(None)
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 10)
    label_points(ax, points, names, **options)
    found = [(t.get_text(), t.get_ha(), t.get_va()) for t in ax.texts]
    ax.figure.draw_without_rendering()
    boxes = [t.get_window_extent() for t in ax.texts]
    plt.close(ax.figure)
    return found, boxes


def test_a_lone_point_is_named_on_its_right():
    assert placed([(5, 5)], ["3-1-4"])[0] == [("3-1-4", "left", "center")]


def test_at_the_right_edge_the_name_stands_on_the_left():
    assert placed([(9.9, 5)], ["3-1-4"])[0][0][1] == "right"


@pytest.mark.parametrize("points", [[(5, 5), (5.3, 5)], [(5, 5), (5.3, 5.1), (5.1, 4.9)], [(5, 5), (5, 5.2)]])
def test_names_of_close_points_do_not_cover_each_other(points):
    _, boxes = placed(points, ["1-1-2", "3-1-4", "2-1-3"][: len(points)], avoid=[(6, 5)])
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :]]
    assert not any(a.overlaps(b) for a, b in pairs)


def test_a_dollar_sign_is_text():
    assert placed([(5, 5)], ["$x^2$"])[0][0][0] == "$x^2$"
