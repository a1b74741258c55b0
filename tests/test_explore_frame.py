"""What all explorers share: a view for each value, errors beside it, one view an action, the twin where nobody watches."""

import base64
import gc
import io
import re

import ipywidgets as widgets
import numpy as np
import pytest
from PIL import Image

from eaglelab import notebook
from eaglelab.explore import Explorer, Live
from eaglelab.explore.frame import MOST_LISTED, chooser, cut, labelled
from eaglelab.reports import shown


class Doubler(Explorer):
    title = "<b>Doubler</b>"

    def __init__(self):
        self.views = []

    def controls(self):
        n = labelled(widgets.IntSlider(value=2, max=9), "Number")
        return {"n": n, "most": labelled(widgets.IntSlider(value=9, max=9), "At most")}

    def view(self, n, most):
        self.views.append((n, most))
        if n == 3:
            raise ValueError("3 is <odd>")
        if n == 5:
            raise ZeroDivisionError
        return f"<p>{2 * n}</p>"

    def twin(self):
        return self.view(n=2, most=9)

    def actions(self):
        return {"To both": lambda controls: [setattr(c, "value", 7) for c in controls.values()]}

    def adjust(self, changed, controls):
        if changed == "most":
            controls["n"].value = min(controls["n"].value, controls["most"].value)


def test_a_control_changes_the_view_and_an_error_is_said_beside_it():
    live = Live(Doubler())
    assert live.output.value == "<p>4</p>"
    live.controls["n"].value = 3
    assert live.output.value == "<p>4</p>"
    assert "3 is &lt;odd&gt;" in live.error.value
    assert 'role="alert"' in live.error.value
    live.controls["n"].value = 5
    assert "ZeroDivisionError" in live.error.value
    live.controls["n"].value = 4
    assert (live.output.value, live.error.value) == ("<p>8</p>", "")


def test_an_action_and_what_it_narrows_make_one_view():
    live = Live(Doubler())
    before = len(live.explorer.views)
    live.buttons["To both"].click()
    assert live.explorer.views[before:] == [(7, 7)]
    live.controls["most"].value = 6
    assert live.explorer.views[-1] == (6, 6)
    assert len(live.explorer.views) == before + 2


def test_a_test_sees_the_error_itself():
    live = Live(Doubler(), strict=True)
    with pytest.raises(ValueError, match="3 is <odd>"):
        live.controls["n"].value = 3


def test_title_and_labels_are_text():
    live = Live(Doubler())
    assert "&lt;b&gt;Doubler" in live.box.children[0].value
    assert [c.description for c in live.controls.values()] == ["Number", "At most"]


def test_a_view_that_is_not_of_the_present_values_is_dimmed():
    live = Live(Doubler())
    live.controls["n"].value = 3
    assert "el-explore-stale" in live.output._dom_classes
    live.controls["n"].value = 4
    assert "el-explore-stale" not in live.output._dom_classes


def test_a_button_that_finds_nothing_leaves_the_view_undimmed():
    class Searching(Doubler):
        def actions(self):
            return {"Next": self.find}

        def find(self, controls):
            raise ValueError("there is no next one")

    live = Live(Searching())
    live.buttons["Next"].click()
    assert "there is no next one" in live.error.value
    assert "el-explore-stale" not in live.output._dom_classes
    live.controls["n"].value = 3
    live.buttons["Next"].click()
    assert "el-explore-stale" in live.output._dom_classes


def test_a_twin_that_cannot_be_shown_keeps_nobody_from_other_values(monkeypatch):
    class Odd(Doubler):
        def twin(self):
            return self.view(n=3, most=9)

    shown_here = []
    monkeypatch.setattr(notebook, "watched", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, **_: shown_here.append(bundle))
    notebook.explore(Odd())
    assert "application/vnd.jupyter.widget-view+json" in shown_here[-1]
    assert "3 is &lt;odd&gt;" in shown_here[-1]["text/html"]
    monkeypatch.setattr(notebook, "watched", lambda: False)
    with pytest.raises(ValueError, match="3 is <odd>"):  # a report's cell says it in `nb.given`
        notebook.explore(Odd())


def test_no_garbage_is_looked_for_while_a_view_is_awaited():
    live = Live(Doubler())
    seen = []
    live.explorer.view = lambda **values: seen.append(gc.isenabled()) or ""
    live.controls["n"].value = 7
    assert (seen, gc.isenabled()) == ([False], True)


def test_few_names_are_listed_and_of_many_the_number_is_typed():
    few = chooser(["a", "b\u202e"], "Sample", 1)
    assert few.options == (("a", 0), ("b\\u202e", 1))
    assert few.value == 1
    many = chooser(["x"] * (MOST_LISTED + 1), "Sample", 7)
    assert (many.value, many.min, many.max, many.description) == (7, 0, MOST_LISTED, f"Sample (0 to {MOST_LISTED})")
    assert cut("k" * 10_000) == "k" * 30 + "…" + "k" * 15 + " (10,000 characters)"


def png(markup):
    """[height, width, 3] of a figure's image."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(re.search('base64,([^"]+)', markup)[1]))).convert("RGB")).astype(int)


def figure(legend="a line"):
    from eaglelab.plots.style import axes, finish

    ax = axes(None)
    ax.plot([1, 2, 4], label=legend)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return finish(ax, "A line that rises", "step", "value (log)")


def test_a_live_figure_shows_all_that_stands_outside_its_axes():
    """Its ink is as much as that of the report's figure at the same resolution, and none of it touches the edge."""
    live = png(shown.figure(figure(), "A line", dpi=shown.LIVE_DPI))
    whole = png(shown.figure(figure(), "A line", dpi=shown.LIVE_DPI + 1))
    assert np.all(live[[0, -1]] == 255)
    assert np.all(live[:, [0, -1]] == 255)
    inked = [(image < 200).any(axis=-1).sum() for image in (live, whole)]
    assert inked[0] == pytest.approx(inked[1], rel=0.15)
    assert live.shape[1] == pytest.approx(whole.shape[1], rel=0.15)


def test_a_live_figure_with_more_outside_than_there_is_room_is_still_whole():
    image = png(shown.figure(figure("a very long label " * 12), "A line", dpi=shown.LIVE_DPI))
    assert image.shape[1] > 1200
    assert np.all(image[:, -1] == 255)


@pytest.mark.parametrize("dpi", [shown.LIVE_DPI, shown.REPORT_DPI])
def test_a_figure_hides_and_reorders_nothing(dpi, recwarn, monkeypatch):
    """Title, labels, a tick's name and a legend that hold a text direction, a character without width and a sign that no font has."""
    from matplotlib.text import Text

    from eaglelab.plots.style import axes, finish

    seen, draw = [], Text.draw
    monkeypatch.setattr(Text, "draw", lambda self, renderer: (seen.append(self.get_text()), draw(self, renderer)))
    evil, spelt = "a\u202eb\u200b\U0001f469", "a\\u202eb\\u200b\U0001f469"
    ax = axes(None)
    ax.plot([0, 1], label=evil)
    ax.set_xticks([0, 1], [evil, "b"])
    ax.legend()
    shown.figure(finish(ax, evil, evil, evil), "A line", dpi=dpi)
    assert seen.count(spelt) >= 5
    assert evil not in seen
    assert [str(w.message) for w in recwarn if "Glyph" in str(w.message)] == []
