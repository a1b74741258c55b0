"""What all explorers share: labelled controls above one view, an area of its own for errors, and a static twin.

An explorer computes a view (HTML, everything escaped) from the values of its controls, out of data that the library has already
computed. Live it sits in widgets; a report gets the twin, which is the same view at settings worth seeing, and needs no script.

    class Doubler(Explorer):
        title = "Doubler"

        def controls(self):
            return {"n": labelled(widgets.IntSlider(value=2, max=9), "Number")}

        def view(self, n):
            return f"<p>{2 * n}</p>"

        def twin(self):
            return self.view(n=2)

    nb.explore(Doubler())
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from eaglelab.reports import parts

if TYPE_CHECKING:
    from ipywidgets import DOMWidget, ValueWidget


KEYS = """window.elKeys ??= document.addEventListener('focusin', e => {
  if (e.target.closest?.('.el-explore')) e.target.setAttribute('data-lm-suppress-shortcuts', 'true')
}, true) ?? true"""
"""For JupyterLab, which takes an arrow key or a letter in a list or on a button for a shortcut of the notebook (an `x` cuts the cell): in an
explorer keys are the control's own. Nothing in Python can set this attribute."""
STALE = "el-explore-stale"
"""On a view that is not of the present values, since these have none."""
MOST_LISTED = 200
"""Names that a list to choose from is made of; of more, the number is typed."""
NAME_LENGTH = 60
"""Characters of a name in such a list."""


class Explorer:
    """One question asked of a case by hand. Subclasses say `title`, `controls`, `view`, `twin`, and may have `actions` and `adjust`."""

    title = ""
    """Names the group of controls, also to screen readers."""

    def controls(self) -> dict[str, ValueWidget]:
        """The ipywidgets by the names of `view`'s arguments, in the order in which they are shown. Called where a browser listens only."""
        raise NotImplementedError

    def view(self, **values: Any) -> str:
        """HTML for these values, escaped (`eaglelab.reports.shown`, `parts`). A ValueError's text is shown to the user in the error area."""
        raise NotImplementedError

    def twin(self) -> str:
        """HTML for a report: no script, no widget."""
        raise NotImplementedError

    def actions(self) -> dict[str, Callable[[Mapping[str, ValueWidget]], None]]:
        """Buttons by their label; each is given the controls and sets their values (`Jump to the next rejection`)."""
        return {}

    def adjust(self, changed: str, controls: Mapping[str, ValueWidget]) -> None:
        """After the control `changed` got a new value: narrow the others to what now exists. Nothing by default."""


class Live:
    """An explorer in widgets. `box` is what gets shown; `output` and `error` hold HTML."""

    def __init__(self, explorer: Explorer, strict: bool = False) -> None:
        """strict: errors of view, actions and adjust are raised too (tests)."""
        import ipywidgets as widgets

        self.explorer, self.strict, self._busy = explorer, strict, False
        self._viewed: dict[str, Any] = {}
        self.controls = explorer.controls()
        self.output, self.error = widgets.HTML(), widgets.HTML()
        for area, name in ((self.output, "el-explore-view"), (self.error, "el-explore-error")):
            area.add_class(name)
        buttons = []
        for label, act in explorer.actions().items():
            button = widgets.Button(description=label, tooltip=label, layout={"width": "auto"})
            button.on_click(partial(self._act, act))
            buttons.append(button)
        self.buttons = {b.description: b for b in buttons}
        heading = widgets.HTML(f'<p class="el-explore-title">{parts.text(explorer.title)}</p>')
        row = widgets.Box([*self.controls.values(), *buttons], layout={"flex_flow": "row wrap", "grid_gap": "4px 12px"})
        self.box = widgets.VBox([heading, row, self.error, self.output])
        self.box.add_class("el-explore")
        for name, control in self.controls.items():
            control.observe(partial(self._changed, name), names="value")
        self.show()

    @property
    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def show(self) -> None:
        """Compute the view for the present values; what goes wrong is said beside it and leaves the last view in place, dimmed."""
        with uncollected():
            done = self._guard(lambda: setattr(self.output, "value", self.explorer.view(**self.values)))
        if done:
            self._viewed = self.values
        self._mark_stale()

    def _mark_stale(self) -> None:
        """Dim a view that is of other values than the present ones."""
        (self.output.remove_class if self._viewed == self.values else self.output.add_class)(STALE)

    def _changed(self, name: str, _change: Any) -> None:
        if self._busy:  # values that an action or `adjust` sets: one view, at the end
            return
        self._settle(partial(self.explorer.adjust, name, self.controls))

    def _act(self, act: Callable[[Mapping[str, Any]], None], _button: Any) -> None:
        self._settle(lambda: (act(self.controls), [self.explorer.adjust(name, self.controls) for name in self.controls]))

    def _settle(self, change: Callable[[], Any]) -> None:
        self._busy = True
        try:
            done = self._guard(change)
        finally:
            self._busy = False
        if done:
            self.show()
        else:
            self._mark_stale()

    def _guard(self, do: Callable[[], Any]) -> bool:
        """Run, and say whether it went well. A front end shows no error of a callback by itself."""
        try:
            do()
        except Exception as error:
            known = isinstance(error, (ValueError, LookupError)) and str(error)
            said = str(error) if known else f"{type(error).__name__}: {error}"
            self.error.value = f'<div role="alert">{parts.note(said, kind="not shown")}</div>'
            if self.strict:
                raise
            return False
        self.error.value = ""
        return True


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage while somebody waits: with torch and transformers loaded one takes longer than any view."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def labelled(widget: DOMWidget, label: str, width: str = "auto", tooltip: str = "") -> DOMWidget:
    """The widget with its visible label, wide enough for both. A keyboard reaches every widget in the order in which they are shown."""
    widget.description, widget.tooltip = label, tooltip or label
    widget.style.description_width = "initial"
    widget.layout.width, widget.layout.max_width = width, "100%"
    if hasattr(widget, "continuous_update"):
        widget.continuous_update = False
    return widget


def chooser(names: Sequence[Any], label: str, value: int = 0) -> ValueWidget:
    """A control whose value is a place in `names`: a list to choose from, and with more than `MOST_LISTED` names a field for the number.

    A hundred thousand names in a list would stall the page, and nobody would find one in it.
    """
    import ipywidgets as widgets

    if len(names) > MOST_LISTED:
        last = len(names) - 1
        return labelled(widgets.BoundedIntText(value=value, min=0, max=last), f"{label} (0 to {last})", "16em")
    return labelled(widgets.Dropdown(options=options(names), value=value), label)


def options(names: Sequence[Any]) -> list[tuple[str, int]]:
    """What a Dropdown takes, with places as values: names in which nothing hides, cut to a length that can be read."""
    return [(cut(name), i) for i, name in enumerate(names)]


def cut(name: Any, most: int = NAME_LENGTH) -> str:
    """A name with what would hide in it spelt out; of a long one its beginning, its end and its length."""
    said = parts.clean(name)
    if len(said) <= most:
        return said
    return f"{said[: most // 2]}…{said[-(most // 4) :]} ({len(said):,} characters)"
