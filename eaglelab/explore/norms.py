"""Norms along a sample by hand: slot, stretch of tokens, log or linear, with the norms of the target's own boundaries behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from eaglelab.explore.frame import Explorer, chooser, cut, labelled
from eaglelab.fingerprint import SampleFingerprint
from eaglelab.reports import parts, shown
from eaglelab.target.sketch import load_sketch
from eaglelab.text import token_texts

if TYPE_CHECKING:
    from ipywidgets import ValueWidget

    from eaglelab.investigation import Investigation

STANDING_OUT = 5
"""Tokens of a stretch with the largest norms over their slot's median, in the table."""
HOW = (
    "`[target] sketch` names a sketch of the target (`eaglelab sketch TARGET --dump DUMP --out sketch.safetensors` makes one); "
    "or compare the slots with the target first (notebook 03), in the same kernel"
)


def boundary_norms(inv: Investigation) -> tuple[pd.DataFrame | None, str]:
    """(`boundary`, `norm`: the target's own median norm at each of its boundaries; of what, in words), as far as it costs no forward.

    From the case's sketch, else from a comparison that was made already; (None, why) without either.
    """
    if inv.case.target.sketch is not None:
        try:
            sketch = load_sketch(inv.case.target.sketch)
        except ValueError as error:  # `wiring.dump` says so too
            return None, str(error)
        rows = [t.norms[:, 1:] if t.norms.shape[1] > 1 else t.norms for t in sketch.texts]  # [B, R - 1]: the first token stands apart
        norms = np.median(np.concatenate([r.numpy() for r in rows], axis=1), axis=1)  # [B]
        return pd.DataFrame({"boundary": sketch.boundaries, "norm": norms}), f"boundaries of the target by its sketch, {_rows(rows)}"
    if "identification" in vars(inv):
        found = inv.identification
        said = f"boundaries of the target, median over {len(found.by_sample.keys)} samples compared"
        return pd.DataFrame({"boundary": found.boundaries, "norm": found.boundary_norms()}), said
    return None, "the norms of the target's own boundaries"


def _rows(texts: list[Any]) -> str:
    return f"median over {sum(r.shape[1] for r in texts):,} tokens of {len(texts)} text{'s' * (len(texts) != 1)}"


class NormFingerprint(Explorer):
    """The norm of every token of a sample that was read. Raises NotGiven without a dump."""

    title = "Norm fingerprint"

    def __init__(self, inv: Investigation) -> None:
        self.prints, self.tokenizer = inv.fingerprint, inv.lost.tokenizer
        self.samples = self.prints.samples
        self.behind, self.behind_said = boundary_norms(inv)

    def controls(self) -> dict[str, ValueWidget]:
        import ipywidgets as widgets

        last, given = len(self.samples[0].token_ids) - 1, self.behind is not None
        slots = [f"slot {s}: {cut(name, 30)}" for s, name in enumerate(self.prints.slot_names)]
        behind = widgets.Checkbox(value=given, disabled=not given, indent=False)
        return {
            "sample": chooser([s.key for s in self.samples], "Sample"),
            "slot": chooser(["all slots", *slots], "Slot"),
            "first": labelled(widgets.BoundedIntText(value=0, min=0, max=last), "From token", "12em"),
            "last": labelled(widgets.BoundedIntText(value=last, min=0, max=last), "to token", "12em"),
            "log": labelled(widgets.Dropdown(options=[("log", True), ("linear", False)]), "Scale"),
            "boundaries": labelled(behind, "Target's boundaries behind"),
        }

    def adjust(self, changed: str, controls: Mapping[str, ValueWidget]) -> None:
        """Another sample is shown whole; where the ends of the stretch cross, the one that was not touched moves along."""
        first, last = controls["first"], controls["last"]
        if changed == "sample":
            end = len(self.samples[controls["sample"].value].token_ids) - 1
            if end != last.max:
                first.max = last.max = end
                first.value, last.value = 0, end
        elif first.value > last.value:
            follower, leader = (last, first) if changed == "first" else (first, last)
            follower.value = leader.value

    def actions(self) -> dict[str, Any]:
        return {"Leave the first token out": lambda controls: setattr(controls["first"], "value", min(1, controls["first"].max))}

    def view(self, sample: int, slot: int, first: int, last: int, log: bool, boundaries: bool) -> str:
        """slot: 0 is all, s + 1 is slot s. first, last: token positions, the last one included."""
        held = self.samples[sample]
        table = held.tokens[held.tokens["position"].between(first, last)]
        table = table[table["slot"] == slot - 1] if slot else table
        return (
            self._figure(held, table, log, boundaries, shown.LIVE_DPI)
            + self._unusable(table)
            + self._standing_out(held, table)
            + self._absent()
        )

    def twin(self) -> str:
        """The first sample whole, with the massive tokens of all samples as its data."""
        held = self.samples[0]
        return self._figure(held, held.tokens, True, True, shown.REPORT_DPI, self.prints.massive) + self._absent()

    def _figure(self, held: SampleFingerprint, table: pd.DataFrame, log: bool, boundaries: bool, dpi: int, data: Any = None) -> str:
        from eaglelab.plots import fingerprint as plots

        behind = self.behind if boundaries else None
        ax = plots.norm_by_position(table, log=log, behind=behind)
        grey = "" if behind is None else f" Grey: {self.behind_said}; equal norms are no identity."
        alt = f"{shown.title(ax)}. One line per slot over token positions.{grey}"
        return shown.figure(ax, alt, f"Norm by token position in {cut(held.key)}.{grey}", data, dpi=dpi)

    def _unusable(self, table: pd.DataFrame) -> str:
        bad, zero = int(table["norm"].isna().sum()), int((table["norm"] == 0).sum())
        counts = [f"{n:,} {what}" for n, what in ((bad, "hold NaN or Inf"), (zero, "are all zero")) if n]
        said = f"Of {len(table):,} states {' and '.join(counts)}: left out of the lines." if counts else ""
        return f'<p class="el-explore-line">{parts.text(said)}</p>' if said else ""

    def _standing_out(self, held: SampleFingerprint, table: pd.DataFrame) -> str:
        """The tokens of the stretch with the largest norms over their slot's median in this sample."""
        medians = held.tokens[held.tokens["norm"] > 0].groupby("slot")["norm"].median()  # NaN is not above 0
        times = table["norm"] / table["slot"].map(medians)
        top = table.assign(times=times).dropna(subset="times").nlargest(STANDING_OUT, "times")
        texts = token_texts(self.tokenizer, top["token_id"])
        rows = [
            {"position": row.position, "token": cut(text, 40), "slot": row.slot, "norm": row.norm, "times the slot's median": row.times}
            for row, text in zip(top.itertuples(), texts, strict=True)
        ]
        return shown.table(rows, "Tokens that stand out most", empty="no usable state here")

    def _absent(self) -> str:
        return "" if self.behind is not None else parts.note(self.behind_said, HOW)
