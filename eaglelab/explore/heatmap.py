"""Slot against boundary by hand: the measure, one sample or the median over all, and what lies next to a slot's best boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eaglelab.explore.frame import Explorer, chooser, cut, labelled
from eaglelab.identify.rule import margin_of
from eaglelab.reports import parts, shown
from eaglelab.wiring import Boundary, boundary_name

if TYPE_CHECKING:
    from ipywidgets import ValueWidget

    from eaglelab.identify import Identification
    from eaglelab.investigation import Investigation

MEASURES = {"relative error": "relative_error", "cosine": "cosine", "norm ratio": "norm_ratio"}
"""As the control names them, and as `plots.identify.slot_heatmap` does."""
NEAREST = 6
"""Boundaries of a slot in its table."""


class SlotBoundaryHeatmap(Explorer):
    """Each slot of the dump against each boundary of the target. Raises NotGiven where there is nothing to compare with."""

    title = "Slot against boundary"

    def __init__(self, inv: Investigation) -> None:
        self.found, self.claimed = inv.identification, inv.claimed
        self.keys = self.found.by_sample.keys

    def controls(self) -> dict[str, ValueWidget]:
        import ipywidgets as widgets

        slots = [f"slot {s}: {cut(name, 30)}" for s, name in enumerate(self.found.slots["name"])]
        return {
            "measure": labelled(widgets.Dropdown(options=list(MEASURES.items())), "Measure"),
            "sample": chooser([f"median over {len(self.keys)}", *self.keys], "Sample"),
            "slot": chooser(slots, "Slot in the table"),
            "claims": labelled(widgets.Checkbox(value=True, indent=False, disabled=self.claimed is None), "Box what is claimed"),
        }

    def view(self, measure: str, sample: int, slot: int, claims: bool) -> str:
        """sample: 0 is the median over all, i the one at place i - 1 of those compared."""
        key = self.keys[sample - 1] if sample else None
        found = self.found if key is None else self.found.of(key)
        over = f"median over {len(self.keys)} samples" if key is None else f"in {cut(key)}"
        return self._figure(found, measure, claims, over, shown.LIVE_DPI) + self._nearest(found, slot)

    def twin(self) -> str:
        """The relative errors over all samples."""
        return self._figure(self.found, "relative_error", True, f"median over {len(self.keys)} samples", shown.REPORT_DPI)

    def _figure(self, found: Identification, measure: str, claims: bool, over: str, dpi: int) -> str:
        from eaglelab.plots import identify as plots

        ax = plots.slot_heatmap(found, measure, self.claimed if claims else None)
        what = next(name for name, value in MEASURES.items() if value == measure)
        alt = f"{shown.title(ax)}. {what.capitalize()} of each slot to each boundary, {over}."
        return shown.figure(ax, alt, f"Slot against boundary: {what}, {over}", dpi=dpi)

    def _nearest(self, found: Identification, s: int) -> str:
        """What is said of a slot, and its nearest boundaries, each with how many times further than the best it is."""
        order = [int(b) for b in np.argsort(found.error[s], kind="stable") if np.isfinite(found.error[s, b])]
        claim = self.claimed[s] if self.claimed is not None and s < len(self.claimed) else None
        rows = [
            {
                "boundary": boundary_name(found.boundaries[b], found.num_layers),
                "what it is": _role(place, found.boundaries[b], found.wiring[s], claim),
                "relative error": float(found.error[s, b]),
                "times further": margin_of(found.error[s, order[0]], found.error[s, b]) if place else None,
                "cosine": float(found.cosine[s, b]),
                "norm ratio": float(found.norm_ratio[s, b]),
            }
            for place, b in enumerate(order)
            if place < NEAREST or (claim is not None and found.boundaries[b] == claim)
        ]
        said = f'<p class="el-explore-line">Slot {s}: {parts.prose(found.reasons[s])}</p>'
        return said + shown.table(rows, f"Boundaries nearest to slot {s}", empty="it could be compared with none")


def _role(place: int, boundary: Boundary, held: Boundary, claim: Boundary) -> str:
    """`held by the slot, claimed`, `nearest`, `runner-up`."""
    words: list[Any] = ["held by the slot" if boundary == held else ("nearest", "runner-up", None)[min(place, 2)]]
    return ", ".join(filter(None, [*words, "claimed" if boundary == claim else None]))
