"""What a sweep found, as a document, as tables and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.timing.sweep.choose import Choice, choose
from eaglelab.timing.sweep.plan import Candidate, told

if TYPE_CHECKING:
    import pandas as pd

OTHER_TEXT = 0.5
"""Share of answers equal to those without speculation below which a setting is suspicious, where the baseline repeats itself."""


@dataclass(frozen=True)
class SweepReport:
    folder: Path
    candidates: Mapping[str, Sequence[Candidate]]
    """By environment: every setting that was considered."""
    rows: tuple[dict[str, Any], ...] = ()
    """Lines of results.jsonl."""
    failures: tuple[dict[str, Any], ...] = ()
    """The last failure of each run that is not whole."""
    notes: tuple[str, ...] = ()
    stopped: str | None = None
    """Why it ended early."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Of a plan: what would be started."""
    planned: Mapping[str, Any] = field(default_factory=dict)
    """Of a plan: `servers`, `requests` in all (None: the prompts are not known) and `requests_of_each` server by batch size."""

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The best setting of each environment and batch size."""
        groups = dict.fromkeys(r["group"] for r in self.rows)
        return tuple(c for group in groups for c in choose([r for r in self.rows if r["group"] == group], group))

    @property
    def exit_code(self) -> int:
        """2 where it ended early, or where nothing was measured though something was to be."""
        return 2 if self.stopped is not None or (self.failures and not self.rows) else 0

    @property
    def table(self) -> pd.DataFrame:
        """One row a setting, batch size and environment."""
        import pandas as pd

        rows = [{"variant": c.variant, **g.to_json(), "chosen": c.best == g.setting.name} for c in self.choices for g in c.gains]
        return pd.DataFrame(rows)

    @property
    def warnings(self) -> list[str]:
        found = []
        for choice in self.choices:
            share = {g.setting.name: g.same_text[0] / g.same_text[1] for g in choice.gains if g.same_text}
            for name, same in share.items():
                if name != "off" and same < OTHER_TEXT and share.get("off", 1.0) >= 0.9:
                    found.append(
                        f"{name} at batch {choice.batch}: only {same:.0%} of the answers are those without speculation. Near-ties of a low precision do that to some; this many hint at a "
                        "verify pass that computes something else"
                    )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "candidates": [{"variant": v, **c.to_json()} for v, found in self.candidates.items() for c in found],
            "results": [{k: v for k, v in r.items() if k != "by_request"} for r in self.rows],
            "gains": [{"variant": c.variant, **g.to_json()} for c in self.choices for g in c.gains],
            "best": [c.to_json() for c in self.choices],
            "failures": list(self.failures),
            "warnings": self.warnings,
            "notes": list(self.notes),
            "stopped": self.stopped,
            "commands": dict(self.commands),
            "planned": dict(self.planned),
        }

    def lines(self) -> list[str]:
        lines, words = [], ("to try", "not to try") if self.commands else ("tried", "not tried")
        for variant, found in self.candidates.items():
            lines += [f"Plan{f' with {variant}' if variant else ''}"]
            lines += [f"  {c.setting.name:>8}  {words[not c.tried]:10}  {_accept(c)}  {c.reason}" for c in found]
        lines += [_means(self.planned)] if self.planned else []
        if self.commands:
            lines += ["", "Commands", *(f"  {name}: {command}" for name, command in self.commands.items())]
        for choice in self.choices:
            lines += ["", f"Batch {choice.batch}{f', {choice.variant}' if choice.variant else ''}"]
            lines += _columns([HEAD, *(_gain_cells(g) for g in choice.gains)])
            lines += [f"  best: {choice.text}" if choice.text.startswith(choice.best) else f"  best: {choice.best}. {choice.text}"]
        for failure in self.failures:
            lines += ["", f"{failure['run']} failed: {failure['error']}"]
        lines += [""] if self.warnings or self.notes else []
        lines += [*self.warnings, *self.notes]
        if self.rows:
            lines += [
                "",
                f"Everything is in {self.folder}; the intervals know nothing of how a second start of the same server would differ",
            ]
        if self.stopped is not None:
            lines += ["", f"Stopped: {self.stopped}. What was measured is kept; the same command goes on with the rest"]
        return lines


HEAD = ("setting", "tok/s", "repeats", "of off", "95 %", "accept length", "r", "same text", "tok/s of")


def _gain_cells(g: Any) -> tuple[str, ...]:
    spread = f" ({g.spread[0]:.4g}-{g.spread[1]:.4g})" if g.repeats > 1 else ""
    low_high = "-" if g.low is None else f"{g.low:.2f}-{g.high:.2f}"
    same = "-" if g.same_text is None else f"{g.same_text[0]}/{g.same_text[1]}"
    return (
        g.setting.name,
        f"{g.tok_s:.4g}{spread}",
        str(g.repeats),
        _number(g.gain, "x"),
        low_high,
        _number(g.accept_length, ""),
        _number(g.r, ""),
        same,
        "steady state" if g.of == "steady" else "wall time",
    )


def _means(planned: Mapping[str, Any]) -> str:
    many = f"{planned['servers']} servers" if planned["servers"] != 1 else "1 server"
    if planned["requests"] is None:
        return f"That is {many} at most, one after the other; how many requests is not known without prompts"
    each = ", ".join(f"{n} at batch {b}" for b, n in planned["requests_of_each"].items())
    return f"That is {many} at most, one after the other, and {planned['requests']} requests: to each {each}, and a short warm-up before"


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _accept(candidate: Candidate) -> str:
    found = candidate.accept
    if found is None:
        return " " * 24
    return (
        f"accept {found.accept_length:.2f} ({found.low:.2f}-{found.high:.2f})".ljust(24)
        if told(found)
        else f"accept {found.accept_length:.2f}".ljust(24)
    )
