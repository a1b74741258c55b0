"""Cells to rows: which setting a row names, and what in it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglelab.served.counts import MOST_STEPS
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import Measured, MeasuredTable
from eaglelab.timing.setting import Setting
from eaglelab.timing.tables.names import EMPTY, is_off, setting_in
from eaglelab.timing.tables.numbers import number, whole

CELLS = ("batch", "steps", "topk", "draft_tokens", "tok_s", "tok_s_each", "accept_length", "accepted", "mode")
MOST_NOTES = 20
LARGEST_BATCH = 2**20
ROUNDING = 0.0051
"""Half of the last digit that accept lengths are printed with."""


class Rows:
    """Collects rows, and a note for each that is left out or changed."""

    def __init__(self, path: Path, *, setting: Setting | None = None, batch: int | None = None, no_bonus: bool = False) -> None:
        self.path, self.setting, self.batch, self.no_bonus = path, setting, batch, no_bonus
        self.rows: list[Measured] = []
        self.left_out: list[str] = []
        self.changed: list[str] = []
        self.general: dict[str, None] = {}

    def say(self, note: str) -> None:
        """Once for the whole file."""
        self.general.setdefault(note)

    def leave_out(self, where: str, why: str) -> None:
        self.left_out.append(f"{where} left out: {why}")

    def add(self, cells: Mapping[str, Any], where: str, *, comma: bool = False) -> None:
        """cells: under the names of `CELLS`; every other one is kept in `extra`. where: `line 7`."""
        try:
            row = self._row(cells, where, comma)
        except ValueError as error:
            self.leave_out(where, str(error))
        else:
            self.rows.append(row)

    def table(self) -> MeasuredTable:
        """Raises TimingError where no row is left."""
        if not self.rows:
            why = "; ".join([*self.left_out[:3], *self.general]) or "the file is empty"
            raise TimingError(f"{self.path.name}: no row that can be used ({why})")
        notes = [*self.general, *_few(self.changed), *_few(self.left_out)]
        return MeasuredTable(tuple(self.rows), self.path, tuple(notes))

    def _row(self, cells: Mapping[str, Any], where: str, comma: bool) -> Measured:
        extra = {k: v for k, v in cells.items() if k not in CELLS and v is not None and v != ""}
        batch = whole(cells.get("batch"), "batch", LARGEST_BATCH, comma=comma)
        batch = self.batch if batch is None else batch
        if batch is None:
            batch, extra["batch_told"] = 1, False
            self.say(
                f"{self.path.name} names no batch size: its rows are taken as of one and the same, written as 1; milliseconds cannot be told"
            )
        if batch == 0:
            raise ValueError("batch is 0, expected the requests that ran at the same time")
        tok_s = number(cells.get("tok_s"), comma=comma)
        if tok_s is None and (each := number(cells.get("tok_s_each"), comma=comma)) is not None:
            tok_s = each * batch
            self.say("tokens a second of one request, times batch")
        if tok_s is None or tok_s <= 0:
            raise ValueError(f"tok_s is {'empty' if tok_s is None else f'{tok_s:g}'}, expected output tokens a second, above 0")
        length = self._length(cells, comma)
        setting = self._setting(cells, length, where, comma)
        return Measured(batch, setting, tok_s, self._checked(length, setting, where), f"{self.path.name}, {where}", extra)

    def _length(self, cells: Mapping[str, Any], comma: bool) -> float | None:
        """With the bonus token. -1 is SGLang's word for none."""
        length = number(cells.get("accept_length"), comma=comma)
        if length is None and (accepted := number(cells.get("accepted"), comma=comma)) is not None:
            self.say("accepted drafted tokens a pass: 1 added for the bonus token")
            return accepted + 1
        if length is None or length == -1:
            return None
        if self.no_bonus:
            self.say("accept lengths leave the bonus token out, as was said: 1 added")
            return length + 1
        return length

    def _setting(self, cells: Mapping[str, Any], length: float | None, where: str, comma: bool) -> Setting:
        """Raises ValueError where the row does not tell it, or tells what cannot be."""
        mode, steps_text = (str(cells.get(name) if cells.get(name) is not None else "").strip() for name in ("mode", "steps"))
        if mode and is_off(mode):
            steps = None if is_off(steps_text) else whole(cells.get("steps"), "steps", MOST_STEPS, comma=comma)
            return self._off(length, f"{steps} steps" if steps else "")
        named = setting_in(mode) if mode else None
        if steps_text and is_off(steps_text) and not steps_text.isdecimal():
            return self._off(length, "")
        steps = whole(cells.get("steps"), "steps", MOST_STEPS, comma=comma)
        topk = whole(cells.get("topk"), "topk", MOST_STEPS, comma=comma)
        nodes = whole(cells.get("draft_tokens"), "draft tokens", 2**16, comma=comma)
        if steps == 0:
            return self._off(length, "")
        if steps is None and topk == 1 and nodes:
            steps = nodes - 1
        if steps is None and named is not None:
            return self._off(length, "") if named.off else named
        if steps is None:
            return self._untold(cells, mode, topk, nodes, length)
        if topk is None and nodes not in (None, 0, steps + 1):
            raise ValueError(f"{nodes} draft tokens with {steps} steps are no chain's {steps + 1}, and topk is not told")
        topk = topk or 1
        if topk > 1 and not nodes:
            raise ValueError(f"topk {topk} without draft_tokens, expected the nodes of a verify pass, the bonus token's included")
        if topk == 1 and nodes not in (None, 0, steps + 1):
            self.changed.append(
                f"{where}: {nodes} draft tokens were asked for; with topk 1 SGLang overrides them with steps + 1 = {steps + 1}, taken so here"
            )
        return Setting(steps, topk, nodes or 0)

    def _untold(self, cells: Mapping[str, Any], mode: str, topk: int | None, nodes: int | None, length: float | None) -> Setting:
        """A row without steps. Of a source that has a place for them an empty one, without an accept length, is off."""
        speculated = length is not None and length > 1 + ROUNDING
        asked = any(name in cells for name in ("steps", "mode"))
        if self.setting is not None and (speculated or not asked):
            return self.setting
        if speculated:
            raise ValueError(f"an accept length of {length:g} and no steps: which setting is it?")
        if mode.lower() not in EMPTY or topk or nodes:
            raise ValueError(f"steps are not told{f' by {mode[:40]!r}' if mode else ''}, expected a number, or `off` for a baseline")
        return Setting(0)

    def _off(self, length: float | None, contradicted: str) -> Setting:
        if length is not None and length > 1 + ROUNDING:
            contradicted = f"an accept length of {length:g}"
        if contradicted:
            raise ValueError(f"without speculation by its name, and {contradicted}: one of both is wrong")
        return Setting(0)

    def _checked(self, length: float | None, setting: Setting, where: str) -> float | None:
        """An accept length that can be; None else, with a note."""
        if length is None or setting.off:
            return None
        most = min(setting.steps + 1, setting.draft_tokens)
        if length < 1:
            self.changed.append(
                f"{where}: accept length {length:g} is below 1, which the bonus token alone makes: probably it is left out there "
                "(`--no-bonus` adds 1); not used"
            )
            return None
        if length > most + ROUNDING:
            self.changed.append(
                f"{where}: accept length {length:g} cannot be: a pass of {setting.name} gives {most} tokens at most; not used"
            )
            return None
        return length


def _few(notes: list[str]) -> list[str]:
    more = len(notes) - MOST_NOTES
    return notes if more <= 0 else [*notes[:MOST_NOTES], f"and {more:,} lines more like these"]
