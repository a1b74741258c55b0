"""A dump by hand: any sample of it, its slots in a line each, the text around chosen rows with what trains set off, and their values.

Only the sample asked for is read, and of its slots the rows shown, besides at most a million values of each for its line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eaglelab.dumps import Sample
from eaglelab.dumps.mask import spans
from eaglelab.dumps.rows import take_rows
from eaglelab.dumps.sample import shape_problems
from eaglelab.dumps.summary import SlotSummary, summarise
from eaglelab.explore.frame import Explorer, chooser, cut, labelled
from eaglelab.explore.mask_strip import mask_strip
from eaglelab.opened import DUMP, NotGiven
from eaglelab.reports import parts, shown
from eaglelab.text import token_texts

if TYPE_CHECKING:
    from ipywidgets import ValueWidget

    from eaglelab.investigation import Investigation

BEFORE = 2
"""Rows in front of a span's start that a jump shows too."""
MOST_ROWS, MOST_VALUES = 50, 24
ROWS, VALUES = 4, 5
MANY = 8
"""Slots from which on their lines are folded."""


class DumpBrowser(Explorer):
    """Any sample of the dump as its files hold it. Raises NotGiven without a dump, DumpError where none of the samples chosen can be read."""

    title = "Dump browser"

    def __init__(self, inv: Investigation) -> None:
        if inv.dump is None:
            raise NotGiven("a dump", DUMP)
        self.dump, self.tokenizer = inv.dump, inv.lost.tokenizer
        self.start = self.dump.keys.index(inv.samples[0].key)
        # The last samples looked at: memory-mapped where the container allows, so that a few cost nothing.
        self._read = lru_cache(maxsize=2)(self.dump.read)
        self._summaries = lru_cache(maxsize=2)(self._summarise)

    def controls(self) -> dict[str, ValueWidget]:
        import ipywidgets as widgets

        sample = self.sample(self.start)
        tokens, width = len(sample.token_ids), sample.slots[0].shape[1]
        slots = [f"slot {s}: {cut(name, 30)}" for s, name in enumerate(self.dump.slot_names)]

        def number(label: str, value: int, least: int, most: int) -> ValueWidget:
            return labelled(widgets.BoundedIntText(value=value, min=least, max=most), label, "12em")

        return {
            "sample": chooser(self.dump.keys, "Sample", self.start),
            "slot": chooser(["all slots", *slots], "Slot"),
            "first": number("First row", _mask_start(sample), 0, max(0, tokens - 1)),
            "rows": number("Rows", ROWS, 1, MOST_ROWS),
            "channel": number("First channel", 0, 0, width - 1),
            "values": number("Values", VALUES, 1, MOST_VALUES),
        }

    def adjust(self, changed: str, controls: Mapping[str, ValueWidget]) -> None:
        """Another sample has other rows. DumpError where it cannot be read."""
        if changed == "sample":
            sample = self.sample(controls["sample"].value)
            controls["first"].max = max(0, len(sample.token_ids) - 1)
            controls["channel"].max = max(s.shape[1] for s in sample.slots) - 1

    def actions(self) -> dict[str, Any]:
        return {"Jump to the mask's start": self._to_start, "Next trained span": self._to_next}

    def view(self, sample: int, slot: int, first: int, rows: int, channel: int, values: int) -> str:
        """slot: 0 is all, s + 1 is slot s. first, channel: the first row and channel shown."""
        held = self.sample(sample)
        chosen = range(len(held.slots)) if slot == 0 else [slot - 1]
        if slot > len(held.slots):
            count = len(held.slots)
            raise ValueError(f"{cut(held.key)} has {count} slot{'s' * (count != 1)}, so there is no slot {slot - 1}: choose another one")
        stop = min(first + rows, len(held.token_ids))
        return (
            self._head(sample, held)
            + self._slots(sample)
            + mask_strip(held, self.tokenizer, first, stop)
            + self._values(held, chosen, range(first, stop), channel, values)
        )

    def twin(self) -> str:
        """The first sample read, around its mask's start."""
        return self.view(self.start, 0, _mask_start(self.sample(self.start)), ROWS, 0, VALUES)

    def sample(self, place: int) -> Sample:
        """The sample at a place in the dump, as its files hold it. Raises DumpError."""
        return self._read(self.dump.keys[place])

    def _summarise(self, place: int) -> list[SlotSummary]:
        return [summarise(slot) for slot in self.sample(place).slots]

    def _head(self, place: int, sample: Sample) -> str:
        """Key, T and mask in a line; what the reader had to put right, and what does not fit, below."""
        tokens, mask = len(sample.token_ids), sample.loss_mask
        if mask is None:
            trains = "no loss mask: what trains is not known"
        else:
            found = len(spans(mask))
            trains = f"{int(mask.sum()):,} trained in {found} span{'s' * (found != 1)}"
        line = f"T = {tokens:,} tokens, {trains}; sample {place:,} of 0 to {len(self.dump.keys) - 1:,}, {self.dump.format}"
        remarks = [*sample.notes, *(f"{what}: {detail}" for what, detail in shape_problems(sample))]
        below = "".join(parts.note(cut(r, 400), kind="note") for r in remarks)
        return f'<p class="el-explore-line"><strong>{parts.text(cut(sample.key, 160))}</strong>: {parts.text(line)}</p>{below}'

    def _slots(self, place: int) -> str:
        summaries, names = self._summaries(place), self.sample(place).slot_names
        rows = [
            {
                "slot": s, "name": cut(name), "shape": list(x.shape), "dtype": x.dtype, "min": x.least, "max": x.greatest, "mean": x.mean,
                "std": x.std, "flags": x.flags or "none",
            }
            for s, (name, x) in enumerate(zip(names, summaries, strict=True))
        ]  # fmt: skip
        part = next((x for x in summaries if x.rows < x.shape[0]), None)
        of = f"over {part.rows:,} of {part.shape[0]:,} rows, evenly spread" if part else "over all rows"
        markup = shown.table(rows, f"Slots, {of}")
        return markup if len(rows) <= MANY else parts.folded(f"The {len(rows)} slots", markup)

    def _values(self, sample: Sample, slots: Any, rows: range, channel: int, values: int) -> str:
        """A line a row and slot: position, token, whether it trains, and the values from `channel` on."""
        lines = []
        texts = [cut(t, 40) for t in token_texts(self.tokenizer, sample.token_ids[rows.start : rows.stop])]
        for row, text in zip(rows, texts, strict=True):
            for s in slots:
                line = {
                    "position": row,
                    "token id": str(int(sample.token_ids[row])),
                    "token": text,
                    "trains": _trains(sample.loss_mask, row),
                    "slot": s,
                }
                state = sample.slots[s]
                if row < len(state):
                    held = take_rows(state, torch.tensor([row]))[0, channel : channel + values].float().tolist()
                    line |= {str(channel + i): _value(v) for i, v in enumerate(held)}
                lines.append(line)
        last = channel + values - 1
        caption = f"Values of channels {channel:,} to {last:,}, row by row" if values > 1 else f"Values of channel {channel:,}, row by row"
        return shown.table(lines, caption, empty="the sample has no tokens")

    def _to_start(self, controls: Mapping[str, ValueWidget]) -> None:
        self._trained_spans(controls)
        controls["first"].value = _mask_start(self.sample(controls["sample"].value))

    def _to_next(self, controls: Mapping[str, ValueWidget]) -> None:
        found, here = self._trained_spans(controls), controls["first"].value
        starts = [max(0, a - BEFORE) for a, _ in found]
        following = next((a for a in starts if a > here), None)
        if following is None:
            raise ValueError(f"no trained span starts after row {here + BEFORE}: the last of {len(found)} starts at {found[-1][0]}")
        controls["first"].value = following

    def _trained_spans(self, controls: Mapping[str, ValueWidget]) -> list[tuple[int, int]]:
        """The spans of the sample chosen. ValueError where it has none."""
        sample = self.sample(controls["sample"].value)
        found = [] if sample.loss_mask is None else spans(sample.loss_mask)
        if not found:
            why = "stores no loss mask" if sample.loss_mask is None else "trains no token: its loss mask holds no 1"
            raise ValueError(f"there is no trained span to jump to: {cut(sample.key)} {why}")
        return found


def _mask_start(sample: Sample) -> int:
    """The row from which a sample is shown: a little before the first trained token, 0 where none is known."""
    found = [] if sample.loss_mask is None else spans(sample.loss_mask)
    return min(max(0, found[0][0] - BEFORE), max(0, len(sample.token_ids) - 1)) if found else 0


def _trains(mask: Tensor | None, row: int) -> bool | str:
    return "not known" if mask is None or row >= len(mask) else bool(mask[row])


def _value(value: float) -> float | str:
    """NaN and infinities by name: a dash would say that nothing is there."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
