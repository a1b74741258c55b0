"""All that a measured table tells of cost, group by group: ratios, the fitted pass time and how far it may be trusted, the setting to use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from eaglelab.timing.cost import CostRow, cost_notes, cost_rows
from eaglelab.timing.experts import Experts
from eaglelab.timing.measured import MeasuredTable
from eaglelab.timing.predict import Acceptance, Recommendation, recommend
from eaglelab.timing.setting import Setting
from eaglelab.timing.step_time import Collectives, LeaveOneOut, StepTime, fit, groups, leave_one_out
from eaglelab.timing.what_if import Cycle, WhatIf, accept_longer, verify_faster


@dataclass(frozen=True)
class CostReport:
    table: MeasuredTable
    rows: tuple[CostRow, ...]
    fits: tuple[StepTime, ...]
    """One a group that has rows enough."""
    left_out: tuple[LeaveOneOut, ...]
    """One a group with two rows or more that have an r; of a mixture of experts one by experts and one by tokens."""
    recommendations: tuple[Recommendation, ...]
    what_if: tuple[WhatIf, ...]
    """For the fastest measured setting of each group and batch size."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [row.to_json() for row in self.rows],
            "baselines": [
                {"batch": m.batch if m.batch_told else None, "group": m.group, "tok_s": m.tok_s, "pass_ms": m.pass_ms, "source": m.source}
                for m in self.table.rows
                if m.setting.off
            ],
            "fit": [f.to_json() for f in self.fits],
            "leave_one_out": [one.to_json() for one in self.left_out],
            "recommendations": [r.to_json() for r in self.recommendations],
            "what_if": [w.to_json() for w in self.what_if],
            "notes": list(self.notes),
        }


def cost_report(
    table: MeasuredTable,
    *,
    experts: Experts | None = None,
    collectives: Collectives | None = None,
    acceptance: Acceptance | None = None,
    settings: Iterable[Setting] = (),
    verify_share: float | None = None,
) -> CostReport:
    """acceptance: of settings that were not run; without one, bounds from the measured ones next to them. verify_share: of a cycle, for the what-if
    of a faster verify. Raises TimingError as `fit`."""
    rows = cost_rows(table)
    fits, left_out, found, ifs = [], [], [], []
    notes = [*table.notes, *cost_notes(table)]
    for group in groups(table):
        model = fit(table, group, experts=experts, collectives=collectives)
        tried = [leave_one_out(table, group, experts=e, collectives=collectives) for e in dict.fromkeys((experts, None))]
        left_out += [one for one in tried if one.rows]
        if model is not None:
            fits.append(model)
        found += recommend(table, model, acceptance, group=group, settings=settings)
        ifs += _what_if([row for row in rows if row.measured.group == group], verify_share)
    for one in left_out:
        if one.better is False:
            notes.append(
                f"the fit by {one.feature} tells r no better than one r for all settings: what it predicts is a guide to what to run next"
            )
    return CostReport(table, rows, tuple(fits), tuple(left_out), tuple(found), tuple(ifs), tuple(dict.fromkeys(notes)))


def _what_if(rows: list[CostRow], verify_share: float | None) -> list[WhatIf]:
    found = []
    for batch in sorted({row.measured.batch for row in rows}):
        told = [row for row in rows if row.measured.batch == batch and row.r is not None]
        if told:
            best = max(told, key=lambda row: row.speedup)
            cycle = Cycle.of_row(best, 1.0 if verify_share is None else verify_share)
            ifs = [accept_longer(cycle), *([] if verify_share is None else [verify_faster(cycle)])]
            where = f"batch {batch}, {best.measured.setting.name}" if best.measured.batch_told else best.measured.setting.name
            found += [replace(one, name=f"{where}, {one.name}") for one in ifs]
    return found
