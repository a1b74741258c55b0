"""All that a measured table tells of cost, group by group: ratios, the fitted pass time and how far it may be trusted, the setting to use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from eaglelab.timing.cost import CostRow, cost_notes, cost_rows, possible
from eaglelab.timing.errors import TimingError
from eaglelab.timing.experts import Experts
from eaglelab.timing.measured import MeasuredTable
from eaglelab.timing.predict import Acceptance, Recommendation, recommend
from eaglelab.timing.setting import Setting
from eaglelab.timing.step_time import Collectives, LeaveOneOut, StepTime, fit, groups, leave_one_out
from eaglelab.timing.what_if import WhatIf, share_text, what_ifs


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
    """For the fastest measured setting of each group and batch size (`what_ifs`)."""
    notes: tuple[str, ...]
    share: str = ""
    """Which part of a cycle the what-ifs count as verify, and who says so."""

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
            "share": self.share,
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
    draft_share: float = 0.0,
    lm_head: float | None = None,
    share_source: str = "",
) -> CostReport:
    """acceptance: of settings that were not run; without one, bounds from the measured ones next to them. collectives: left out, with a note, where
    they take longer than a pass, or the table tells no milliseconds. verify_share, draft_share, lm_head, share_source: as `what_ifs`. Raises TimingError as `fit`."""
    rows = cost_rows(table)
    fits, left_out, found = [], [], []
    notes = [*table.notes, *cost_notes(table)]
    if collectives is not None:
        collectives, said = _collectives(table, collectives)
        notes.append(said)
    sound = possible(table)
    for group in groups(table):
        model = None
        if group in groups(sound):
            model = fit(sound, group, experts=experts, collectives=collectives)
            tried = [leave_one_out(sound, group, experts=e, collectives=collectives) for e in dict.fromkeys((experts, None))]
            left_out += [one for one in tried if one.rows]
        if model is not None:
            fits.append(model)
        found += recommend(table, model, acceptance, group=group, settings=settings)
    for one in left_out:
        if one.better is False:
            notes.append(
                f"the fit by {one.feature} tells r no better than one r for all settings: what it predicts is a guide to what to run next"
            )
    ifs = []
    shares = {"verify_share": verify_share, "draft_share": draft_share, "share_source": share_source}
    for row, one in what_ifs(rows, **shares, collectives=collectives, lm_head=lm_head):
        where = [row.measured.group, f"batch {row.measured.batch}" if row.measured.batch_told else "", row.measured.setting.name, one.name]
        ifs.append(replace(one, name=", ".join(filter(None, where))))
    return CostReport(
        table,
        rows,
        tuple(fits),
        tuple(left_out),
        tuple(found),
        tuple(ifs),
        tuple(dict.fromkeys(notes)),
        share_text(verify_share, share_source),
    )


def _collectives(table: MeasuredTable, told: Collectives) -> tuple[Collectives | None, str]:
    """As far as the table can use them, and what is said of it."""
    what = (
        f"collectives that nothing hides: {told.verify_ms:.3g} ms of a verify pass, {told.decode_ms:.3g} ms of a pass without speculation"
    )
    if not all(m.batch_told for m in table.rows):
        return None, f"{what}; not used, since the table names no batch size and so no milliseconds"
    try:
        for group in groups(table):
            fit(table, group, collectives=told)
    except TimingError as error:
        return None, f"{what}; not used, they are of another setup than the table: {error}"
    return told, f"{what}; taken out before the fit and put back after it, the same at every batch size"
