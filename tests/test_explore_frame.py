"""What all explorers share: a view for each value, errors beside it, one view an action, the twin where nobody watches."""

import ipywidgets as widgets
import pytest

from eaglelab.explore import Explorer, Live
from eaglelab.explore.frame import labelled


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
