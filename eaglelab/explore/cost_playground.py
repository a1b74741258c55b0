"""Cost playground: three numbers of a run, what they cost in plain decode steps, and what would change with another accept length or faster passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglelab.explore.cost_start import STORY, Known, Start
from eaglelab.explore.frame import Explorer, labelled
from eaglelab.opened import NotGiven
from eaglelab.reports import parts, shown
from eaglelab.timing.cost import conclusion, two_numbers
from eaglelab.timing.errors import TimingError
from eaglelab.timing.predict import MEASURED, PREDICTED
from eaglelab.timing.setting import Setting
from eaglelab.timing.what_if import Cycle, draft_faster, verify_faster

if TYPE_CHECKING:
    from ipywidgets import ValueWidget

    from eaglelab.investigation import Investigation

DEEPEST = 16
"""Steps that can be chosen."""
SAME = 5e-5
"""Relative difference below which a field still holds what it was filled with."""
SLIDE = 0.01
"""Step of the accept length's slider."""
CAPTION = "What it costs and what it brings"
TYPED, ASSUMED = "typed", "assumed"


@dataclass(frozen=True)
class Now:
    """One state of the controls, with how each number is known."""

    setting: Setting
    before: Cycle
    after: Cycle
    words: dict[str, str]
    changes: tuple[str, ...]
    """Names of what is faster than it was."""


class CostPlayground(Explorer):
    """What speculation costs and brings at one batch size. faster, longer: of the what-if table in a report (`TimingCase.what_ifs`)."""

    title = "Cost playground: accept length, cost of a cycle, speedup"

    def __init__(self, inv: Investigation, *, faster: float = 0.27, longer: float = 0.3) -> None:
        self.inv, self.known, self.faster, self.longer = inv, Known(inv), faster, longer

    # -- where it begins --------------------------------------------------------------------------------------------------------

    @cached_property
    def begin(self) -> tuple[int, Setting, str]:
        """(batch, setting, group): what the server runs with where that was measured, else the setting of the recommendation that ran."""
        rows, own = [c for c in self.known.rows if c.r is not None] or list(self.known.rows), self.inv.timing.setting
        if not rows:
            return 1, own or Setting(1), ""
        best = max(rows, key=lambda c: (c.measured.setting == own, -c.measured.batch, c.speedup or 0.0)).measured
        return best.batch, best.setting, best.group

    @cached_property
    def traced(self) -> dict[str, Any]:
        return self.inv.timing.traced

    def values_of(self, batch: int, setting: Setting, group: str) -> dict[str, Any]:
        """What the fields are filled with for a setting."""
        start = self._start(batch, setting, group)
        told = self.known.replayed(setting)
        length = told.accept_length if told is not None else start.accept_length or 1.0
        fields = {"tok_s": start.tok_s or 0.0, "at": start.accept_length or length, "baseline": start.baseline or 0.0}
        return fields | {"accept_length": min(round(length, 2), float(most(setting)))}

    def _start(self, batch: int, setting: Setting, group: str) -> Start:
        if self.known.table is None:
            tok_s, length, baseline = STORY
            return Start(tok_s, min(length, float(most(setting))), baseline)
        return self.known.start(batch, setting, group)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The values that all controls begin with."""
        batch, setting, group = self.begin
        chosen = {"batch": batch, "steps": setting.steps, "topk": setting.topk, "draft_tokens": setting.draft_tokens}
        share = 100 * self.traced.get("verify_share", 1.0)
        changes = {"verify_percent": 0, "draft_percent": 0, "shared": False, "verify_share": round(share, 1)}
        return chosen | self.values_of(batch, setting, group) | changes | ({"group": group} if len(self.known.groups) > 1 else {})

    # -- controls -----------------------------------------------------------------------------------------------------------------

    def controls(self) -> dict[str, ValueWidget]:
        import ipywidgets as w

        v, measured = self.defaults, sorted({c.measured.batch for c in self.known.rows})
        batches = f"Batch (measured: {', '.join(map(str, measured[:6]))})" if measured else "Batch"
        top = float(most(self.begin[1]))
        found = {
            "batch": labelled(w.BoundedIntText(v["batch"], min=1, max=10**6), batches, "20em"),
            "steps": labelled(w.BoundedIntText(v["steps"], min=1, max=DEEPEST), "Steps", "9em"),
            "topk": labelled(w.BoundedIntText(v["topk"], min=1, max=64), "Top-k", "9em"),
            "draft_tokens": labelled(w.BoundedIntText(v["draft_tokens"], min=1, max=1024), "Draft tokens", "12em"),
            "tok_s": labelled(w.FloatText(v["tok_s"]), "tok/s with speculation", "18em"),
            "at": labelled(w.FloatText(v["at"]), "at accept length", "15em"),
            "baseline": labelled(w.FloatText(v["baseline"]), "tok/s without", "15em"),
            "accept_length": labelled(w.FloatSlider(v["accept_length"], min=1.0, max=top, step=SLIDE), "Accept length", "26em"),
            "verify_percent": labelled(w.IntSlider(0, min=0, max=95), "Verify faster by %", "26em"),
            "draft_percent": labelled(w.IntSlider(0, min=0, max=95), "Draft faster by %", "26em"),
            "shared": labelled(w.Checkbox(False, indent=False), "Plain decode steps gain too", "18em"),
            "verify_share": labelled(w.FloatSlider(v["verify_share"], min=0, max=100, step=0.1), "Verify's share of a cycle, %", "30em"),
        }
        if len(self.known.groups) > 1:
            names = [(parts.clean(g) or "nothing told", g) for g in self.known.groups]
            found["group"] = labelled(w.Dropdown(options=names, value=v["group"]), "Measured on", "30em")
        return found

    def adjust(self, changed: str, controls: Mapping[str, ValueWidget]) -> None:
        if changed in ("steps", "topk") and controls["topk"].value == 1:
            controls["draft_tokens"].value = controls["steps"].value + 1
        if changed in ("batch", "steps", "topk", "draft_tokens", "group"):
            self._fill(controls)

    def _fill(self, controls: Mapping[str, ValueWidget]) -> None:
        """The fields as they are known for the setting; in a case without timing what was typed stays."""
        setting = Setting(controls["steps"].value, controls["topk"].value, controls["draft_tokens"].value)
        group = controls["group"].value if "group" in controls else self.begin[2]
        values = self.values_of(controls["batch"].value, setting, group)
        controls["accept_length"].max = float(most(setting))
        for name in ("tok_s", "at", "baseline") if self.known.table is not None else ():
            controls[name].value = values[name]
        if self.known.table is not None or self.known.replayed(setting) is not None:
            controls["accept_length"].value = values["accept_length"]

    def actions(self) -> dict[str, Callable[[Mapping[str, ValueWidget]], None]]:
        return {"As the case has it": self._reset}

    def _reset(self, controls: Mapping[str, ValueWidget]) -> None:
        controls["accept_length"].max = float(most(self.begin[1]))
        for name, value in self.defaults.items():
            controls[name].value = value

    # -- what is shown --------------------------------------------------------------------------------------------------------------

    def view(self, **values: Any) -> str:
        return self._shown(self.now(**values), shown.LIVE_DPI, **values)

    def now(
        self,
        *,
        batch: int,
        steps: int,
        topk: int,
        draft_tokens: int,
        tok_s: float,
        at: float,
        baseline: float,
        accept_length: float,
        verify_percent: float = 0,
        draft_percent: float = 0,
        shared: bool = False,
        verify_share: float = 100.0,
        group: str | None = None,
    ) -> Now:
        """The numbers behind the view. Raises TimingError for what cannot be."""
        setting = Setting(steps, topk, draft_tokens)
        if setting.off:
            raise TimingError("steps is 0, which is no speculation; expected 1 or more")
        self._check_known(batch, setting, tok_s, baseline)
        told = two_numbers(tok_s, at, baseline, batch)
        conclusion(told, at, setting)  # raises for an accept length that the setting cannot give
        verify, draft = self._shares(verify_share)
        before = Cycle.divided(batch, steps, at, told.pass_ms, told.baseline_ms, verify, draft)
        two_numbers(tok_s, accept_length, baseline, batch)
        before = replace(before, accept_length=accept_length)
        collectives = self.traced.get("collectives")
        bound = None if collectives is None else collectives.decode_ms
        changes = []
        if verify_percent:
            changes.append(verify_faster(before, verify_percent / 100, shared=shared, baseline_collective_ms=bound))
        if draft_percent:
            changes.append(draft_faster(changes[-1].after if changes else before, draft_percent / 100))
        after = changes[-1].after if changes else before
        group = self.begin[2] if group is None else group
        words = self._words(self._start(batch, setting, group), setting, tok_s, at, baseline, accept_length, verify_share, bool(changes))
        return Now(setting, before, after, words, tuple(c.name for c in changes))

    def _check_known(self, batch: int, setting: Setting, tok_s: float, baseline: float) -> None:
        if self.known.table is None:
            return
        if tok_s == 0:
            batches = ", ".join(str(b) for b in self.known.table.batches)
            raise TimingError(
                f"{setting.name} at batch {batch} was neither run nor can it be predicted from what was (batch {batches}): run it, or type tok/s and "
                "the accept length of a run"
            )
        if baseline == 0:
            raise TimingError(
                f"no run without speculation tells what batch {batch} gives: run it (steps 0 in the table), or type its tok/s"
            )

    def _shares(self, verify_percent: float) -> tuple[float, float]:
        """(verify, draft) of a cycle: the trace's while the slider is where that puts it; else what is not verify counts as draft."""
        verify = verify_percent / 100
        traced = self.traced.get("verify_share")
        if traced is not None and abs(verify - traced) < 1e-3:
            return traced, self.traced["draft_share"]
        return verify, 1 - verify

    def _words(
        self, start: Start, setting: Setting, tok_s: float, at: float, baseline: float, length: float, share: float, changed: bool
    ) -> dict[str, str]:
        """How each number is known: measured, predicted, replayed, typed, assumed."""
        filled = bool(start.source) and _close(tok_s, start.tok_s) and _close(at, start.accept_length)
        cost = start.source if filled else TYPED
        base = start.baseline_source if start.baseline_source and _close(baseline, start.baseline) else TYPED
        r = next((w for w in (TYPED, PREDICTED) if w in (cost, base)), MEASURED)
        told = self.known.replayed(setting)
        accept = ASSUMED
        if told is not None and abs(length - told.accept_length) < SLIDE:
            accept = f"replayed, {told.low:.2f} to {told.high:.2f}"
        elif abs(length - at) < SLIDE:  # the slider goes in steps
            accept = cost
        runs = f" (median of {start.runs} runs)" if cost == MEASURED and start.runs > 1 else ""
        gain = ASSUMED if changed or accept == ASSUMED else r if accept == cost else PREDICTED
        traced = self.traced.get("verify_share")
        divided = self.traced.get("share_source", "") if traced is not None and abs(share / 100 - traced) < 1e-3 else ASSUMED
        return {"r": f"{r}{runs}", "accept": accept, "gain": gain, "baseline": base, "share": divided}

    def _shown(self, now: Now, dpi: int, *, batch: int, draft_tokens: int, **values: Any) -> str:
        setting, after = now.setting, now.after
        told = two_numbers(after.tok_s, after.accept_length, 1000 * batch / after.baseline_ms, batch)
        said = [f"<p><strong>{parts.text(conclusion(told, after.accept_length, setting))}</strong></p>"]
        if setting.draft_tokens != draft_tokens:
            said.append(
                f"<p>{draft_tokens} draft tokens are asked for and {setting.draft_tokens} are in force: with top-k 1 they are steps + 1.</p>"
            )
        if self.known.table is None:
            said.append(f"<p>{parts.prose('Nothing was measured in this case: type the numbers of your own run. ' + self._how)}</p>")
        return "".join(said) + self._figure(now, batch, values.get("group"), dpi) + self._table(now)

    @property
    def _how(self) -> str:
        absent = self.known.absent
        return absent.how[:1].upper() + absent.how[1:] + "." if isinstance(absent, NotGiven) and absent.how[0].isalpha() else f"{absent}."

    def _figure(self, now: Now, batch: int, group: str | None, dpi: int) -> str:
        import numpy as np
        import pandas as pd

        from eaglelab.plots.cost import speedup_by_accept_length

        lengths = np.linspace(1.0, most(now.setting), 9)
        line = pd.DataFrame({"accept_length": lengths, "speedup": [replace(now.after, accept_length=x).speedup for x in lengths]})
        if now.changes:
            line["before"] = [replace(now.before, accept_length=x).speedup for x in lengths]
        group = self.begin[2] if group is None else group
        rows = [
            c for c in self.known.rows if c.measured.batch == batch and c.measured.group == group and c.r is not None and not c.impossible
        ]
        rows = [(c.measured.setting.name, c.measured.accept_length, c.speedup) for c in rows]
        measured = pd.DataFrame(rows, columns=["name", "accept_length", "speedup"])
        here = (now.after.accept_length, now.after.speedup)
        ax = speedup_by_accept_length(line, break_even=now.after.break_even, here=here, measured=measured)
        caption = (
            f"Speedup over accept length at batch {batch}, {now.setting.name}{', ' + ' and '.join(now.changes) if now.changes else ''}"
        )
        return shown.figure(ax, f"{shown.title(ax)}. A straight line through the origin; 1.0 is no speculation.", caption, line, dpi)

    def _table(self, now: Now) -> str:
        before, after, words = now.before, now.after, now.words
        rows = [
            (
                "r, plain decode steps a cycle = accept length that breaks even",
                *(round(c.break_even, 3) for c in (before, after)),
                words["r"],
            ),
            ("accept length", before.accept_length, after.accept_length, words["accept"]),
            ("speedup over no speculation", round(before.speedup, 3), round(after.speedup, 3), words["gain"]),
            ("tok/s", before.tok_s, after.tok_s, words["gain"]),
            ("tok/s without speculation", *(1000 * c.batch / c.baseline_ms for c in (before, after)), words["baseline"]),
            ("a cycle, ms", before.cycle_ms, after.cycle_ms, words["r"]),
            ("a plain decode step, ms", before.baseline_ms, after.baseline_ms, words["baseline"]),
        ]
        if self.known.table is not None and not all(m.batch_told for m in self.known.table.rows):
            rows = [row for row in rows if not row[0].endswith(", ms")]
        rows += [
            (f"{name}, plain decode steps", *(round(getattr(c, f"{name}_ms") / c.baseline_ms, 3) for c in (before, after)), words["share"])
            for name in ("verify", "draft", "rest")
        ]
        if now.changes:
            columns, caption = ["number", "now", "with the change", "how it is known now"], f"{CAPTION}; with the change all is assumed"
        else:
            columns, caption = ["number", "value", "how it is known"], CAPTION
            rows = [(name, value, word) for name, value, _, word in rows]
        return parts.table(columns, rows, caption=caption, row_headers=1)

    # -- in a report ------------------------------------------------------------------------------------------------------------------

    def twin(self) -> str:
        """Figure and table at the case's own setting, and what changes would bring to the fastest setting of each batch size."""
        if self.known.table is None:
            absent = self.known.absent
            return (
                parts.note(absent.what, absent.how) if isinstance(absent, NotGiven) else parts.note("this part", str(absent), "cannot tell")
            )
        first = self._shown(self.now(**self.defaults), shown.REPORT_DPI, **self.defaults)
        ifs = self.inv.timing.what_ifs(self.faster, self.longer).drop(columns="assuming").round(3)
        caption = "What a change would bring, for the fastest setting of each batch size"
        return first + shown.table(ifs, caption, empty="nothing to change: no setting has a cost ratio")


def most(setting: Setting) -> int:
    """Tokens that a pass of this setting gives at most, the bonus token included."""
    return max(1, min(setting.steps + 1, setting.draft_tokens))


def _close(value: float, other: float | None) -> bool:
    return other is not None and abs(value - other) <= SAME * abs(other)
