"""Where does the drafter go wrong in a real text? The tokens of a sample, what was drafted in their place, and what both models thought."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from eaglelab.acceptance import Walk
from eaglelab.checks.replay import OWN_TEXT
from eaglelab.explore.frame import Explorer, chooser, cut, labelled
from eaglelab.explore.strip_case import STEP, WALK, StripCase
from eaglelab.replay.strip import Line, Mark, Strip, step_after, target_choices
from eaglelab.reports import parts
from eaglelab.reports import strip as pieces

if TYPE_CHECKING:
    from ipywidgets import ValueWidget

    from eaglelab.investigation import Investigation
    from eaglelab.replay import Variant

WINDOW, TWIN_WINDOW = 320, 120
"""Tokens shown about the selected one: live, and in each frame of the twin."""
MOST_STEPS = 4
"""Steps that get a frame of the twin."""
FIRST_REJECTIONS = 6
"""Rejected tokens in the twin's table."""
BEFORE = 8
"""Tokens of text before them."""


class TokenStrip(Explorer):
    """The replay token by token."""

    title = "Token strip: what was drafted, place by place"

    def __init__(self, inv: Investigation) -> None:
        """Raises NotGiven where there is no replay, and the error of what cannot be used."""
        self.inv, self.case = inv, StripCase(inv)
        self.own, self.feeds, self.texts = self.case.own, self.case.feeds, self.case.texts
        self._said, self._sample = "", 0

    # -- live ---------------------------------------------------------------------------------------------------------------------

    def controls(self) -> dict[str, ValueWidget]:
        import ipywidgets as widgets

        self._sample, walk = 0, [WALK] if self.own.mask_known else []
        return {
            "sample": chooser([self._about(i) for i in range(len(self.own.outcomes))], "Sample"),
            "feed": labelled(widgets.Dropdown(options=[(v.name, i) for i, v in enumerate(self.feeds)]), "Feed"),
            "kind": labelled(widgets.Dropdown(options=[STEP, *walk]), "Show"),
            "step": labelled(widgets.IntSlider(value=0, min=0, max=self.own.steps - 1), "Step k", "16em"),
            "row": labelled(
                widgets.BoundedIntText(value=self._start(0), min=0, max=self._last_row(0)),
                "Row t",
                "11em",
                "The row whose chain drafts the selected token, t + 2 + k",
            ),
        }

    def _about(self, sample: int) -> str:
        o = self.own.outcomes[sample]
        return f"{o.key}: {int(o.right[0].sum())} of {int(o.counted[0].sum())} right at step 0"

    def _start(self, sample: int) -> int:
        """The first row with a wrong token; else the first that counts."""
        rows, wrong = self.own.outcomes[sample].rows, self.case.strip(sample).rejections(0)
        return int(wrong[0]) if len(wrong) else int(rows[0]) if len(rows) else 0

    def _last_row(self, sample: int) -> int:
        return max(0, len(self.inv.samples[sample].token_ids) - 2)

    def actions(self) -> dict[str, Callable[[Mapping[str, ValueWidget]], None]]:
        return {"Previous rejection": lambda c: self._jump(c, -1), "Next rejection": lambda c: self._jump(c, 1)}

    def _jump(self, controls: Mapping[str, ValueWidget], direction: int) -> None:
        sample, feed, kind, step, row = (controls[n].value for n in ("sample", "feed", "kind", "step", "row"))
        found, round_ = step_after(self.case.rejections(sample, feed, kind, step), row, direction)
        if found is None:
            self._said = "Nothing is rejected here."
            return
        if round_:
            self._said = f"Went round: this is the {'first' if direction > 0 else 'last'} rejection again."
        controls["row"].value = found

    def adjust(self, changed: str, controls: Mapping[str, ValueWidget]) -> None:
        controls["step"].disabled = controls["kind"].value == WALK
        if changed == "sample" and controls["sample"].value != self._sample:
            self._sample = controls["sample"].value
            controls["row"].max = self._last_row(self._sample)
            controls["row"].value = self._start(self._sample)

    def view(self, sample: int, feed: int, kind: str, step: int, row: int) -> str:
        strip, line = self.case.strip(sample, feed), self.case.line(sample, feed, kind, step)
        said, self._said = self._said, ""
        if kind == WALK:
            step = self._walk_step(strip, row)
        around = min(row + 2 + step, len(strip.token_ids))
        told = "".join(
            f'<p class="el-strip-said" role="status">{parts.text(s)}</p>' for s in (said, kind == WALK and self._within(strip, row)) if s
        )
        return (
            f'<div class="el-strip-said">{self._asides()}<p>{parts.prose(self._summary(strip, line, feed, kind, step))}</p></div>'
            f"{pieces.legend(line)}{self._text(strip, line, around, WINDOW, self.feeds[feed], kind)}{told}{self._details(sample, feed, row, step)}"
        )

    def _text(self, strip: Strip, line: Line, around: int, size: int, feed: Variant, kind: str) -> str:
        label = f"Tokens of {cut(strip.outcome.key)}, {feed.name}, {kind}"
        return pieces.text(strip, line, self.texts, around=around, size=size, label=label)

    @staticmethod
    def _walk_step(strip: Strip, row: int) -> int:
        """The step at which the pass that drafts from a row ends: its wrong token's, or the last one."""
        accepted = next((p.accepted for p in strip.passes or () if p.row == row), 0)
        return min(accepted, strip.steps - 1)

    @staticmethod
    def _within(strip: Strip, row: int) -> str:
        """Of a row from which no pass of the walk drafts: the pass that gives its place."""
        passes = strip.passes or ()
        if any(p.row == row for p in passes):
            return ""
        over = next((p for p in passes if p.row < row <= p.row + p.accepted), None)
        if over is None:
            given = ""
        else:
            step = row - over.row
            how = f"at its step {step}" if step < strip.steps else "as the target's own token"
            given = f": the pass of row {over.row} gives this place, {how}"
        return f"No pass of the walk drafts from row {row}{given}. Below is what a draft from row {row} itself would say."

    # -- sentences ----------------------------------------------------------------------------------------------------------------

    def _asides(self) -> str:
        mask = "" if self.own.mask_known else "This dump has no loss mask: prompts count too, and there is no walk."
        return "".join(f"<p>{parts.prose(s)}</p>" for s in (self.case.no_text, mask) if s)

    def _summary(self, strip: Strip, line: Line, feed: int, kind: str, step: int) -> str:
        right, n = line.count(Mark.RIGHT), sum(line.count(m) for m in (Mark.RIGHT, Mark.WRONG, Mark.OUTSIDE))
        name = self.feeds[feed].name
        if not len(strip.outcome.rows):
            return f"Nothing counts in {cut(strip.outcome.key)}: its loss mask is empty, or the text ends too soon."
        if kind == STEP:
            fed = f"{'the states of row t' if step == 0 else 'its own last state'} and the text's token at place t\xa0+\xa0{1 + step}"
            return (
                f"{name[0].upper()}{name[1:]}, step {step}: {right:,} of {n:,} drafted tokens are right, by {self.own.judged_by}. The chain of row t is "
                f"fed {fed}, and drafts the token at place t\xa0+\xa0{2 + step}."
            )
        walk = Walk(len(strip.passes), sum(p.accepted for p in strip.passes))
        reached = "no whole draft fits" if walk.accept_length is None else f"accept length {walk.accept_length:.2f}"
        agree, of = strip.outcome.agrees
        own = "judged by the text's tokens"
        if self.case.judged:
            few = "" if agree >= OWN_TEXT * of else ", too few for the walk to say what an engine does"
            own = f"{agree:,} of {of:,} trained tokens are the target's own choice{few}"
        return (
            f"{name[0].upper()}{name[1:]}, the walk: {len(strip.passes):,} verify passes, {reached}; {own}. Brackets hold what one pass gives: the "
            "drafted tokens that it accepts (their number stands behind), and one of the target's own, which ends it. A draft that would reach "
            "past the end of an answer is left out."
        )

    def _details(self, sample: int, feed: int, row: int, step: int) -> str:
        (strip, drafts), text = self.case.opened(sample, feed), self.inv.samples[sample]
        place, column = row + 2 + step, strip.column(row)
        heading = f"<p><strong>Row {row}, step {step}: the token at place {place}</strong></p>"
        if column is None or not strip.outcome.counted[step, column]:
            why = "the text ends before it" if place > len(strip.token_ids) else "the loss mask leaves it out"
            return f'<div class="el-strip-said">{heading}<p>Nothing is counted here: {why}.</p></div>'
        drafted, wanted = int(strip.outcome.drafted[step, column]), int(strip.wanted[step, column])
        written = int(strip.token_ids[place]) if place < len(strip.token_ids) else -1
        notes = _notes(written, wanted, drafted, self.case.judged)
        own = pieces.choices(drafts.choices(row, step, drafted, notes), self.texts, "The drafter's first five", notes)
        if not self.case.judged:
            target = f'<p class="el-strip-said">{parts.prose(self._no_head())}</p>'
        else:
            target = pieces.choices(target_choices(self.inv.judge, text, place, notes), self.texts, "The target's first five", notes)
        said = (self._outcome(strip, step, column, written), self._forced(strip, row, step), self._chain(strip, column))
        lines = "".join(f"<p>{parts.text(s)}</p>" for s in said if s)
        return f'<div class="el-strip-said">{heading}{lines}</div><div class="el-strip-both">{own}{target}</div>'

    def _outcome(self, strip: Strip, step: int, column: int, written: int) -> str:
        o, mark = strip.outcome, Mark(strip.marks[step, column])
        drafted, wanted, text = pieces.names(self.texts, [o.drafted[step, column], strip.wanted[step, column], written])
        sure = "" if o.confidence is None else f" (confidence {parts.number(pieces.rounded(o.confidence[step, column]))})"
        right = "The text ends here" if written < 0 else f"The text says {text}"
        if self.case.judged:
            right += f", the target's choice is {'the same' if written == strip.wanted[step, column] else wanted}"
        return f"{right}. Drafted: {drafted}{sure}, {pieces.SAID[mark]}."

    def _forced(self, strip: Strip, row: int, step: int) -> str:
        if step == 0:
            return ""
        same = strip.own_fed(row, step)
        if same == step:
            return "What it drafted before is the text's own, so a server's chain, which feeds its own tokens, says the same here."
        return (
            f"Teacher-forced: at step {same} this chain drafted another token than the text's, and a server's chain goes its own way from there. "
            "Here it is fed the text's tokens all the same, as in training."
        )

    def _chain(self, strip: Strip, column: int) -> str:
        """All that the chain of one row drafted."""
        drafted = pieces.names(self.texts, strip.outcome.drafted[:, column])
        marks = [pieces.SAID[Mark(m)] for m in strip.marks[:, column]]
        steps = "; ".join(f"{token} ({mark})" for token, mark in zip(drafted, marks, strict=True))
        return f"The whole chain of this row, step by step: {steps}." if strip.steps > 1 else ""

    def _no_head(self) -> str:
        if self.inv.head is None:
            why = "its lm_head is not at hand: `[target] path` names its checkpoint"
        else:
            why = self.inv.last_fault or "the dump keeps no last state"
        return f"The target's first five cannot be had: {why}. What counts as right is the text's token."

    # -- the twin -----------------------------------------------------------------------------------------------------------------

    def twin(self) -> str:
        sample = next((i for i, o in enumerate(self.own.outcomes) if (o.counted & ~o.right).any()), 0)
        items = [self._frame(sample, 0, STEP, k) for k in range(min(self.own.steps, MOST_STEPS))]
        kinds = [(STEP, 0), *([(WALK, 0)] if self.own.mask_known else [])]
        items += [self._frame(sample, 0, WALK, 0)] if self.own.mask_known else []
        why = self.case.no_engine
        if len(self.feeds) > 1:
            try:
                items += [self._frame(sample, 1, kind, step) for kind, step in kinds]
            except ValueError as reason:
                why = f"The engine's feed cannot be replayed: {reason}"
        key = self.own.outcomes[sample].key
        picker = pieces.frames(f"strip-{key}", f"{cut(key)}: choose what to show", items)
        note = f'<p class="el-cut">{parts.prose(why)}</p>' if why else ""
        return f'<div class="el-strip-said">{self._asides()}</div>{picker}{note}{self._table(sample)}'

    def _frame(self, sample: int, feed: int, kind: str, step: int) -> tuple[str, str]:
        strip, line = self.case.strip(sample, feed), self.case.line(sample, feed, kind, step)
        label = ("Engine's feed, " if feed else "") + (f"step {step}" if kind == STEP else "walk")
        inner = f'<p class="el-strip-said">{parts.prose(self._summary(strip, line, feed, kind, step))}</p>{pieces.legend(line)}'
        around = min(self._start(sample) + 2, len(strip.token_ids))
        return label[0].upper() + label[1:], inner + self._text(strip, line, around, TWIN_WINDOW, self.feeds[feed], kind)

    def _table(self, sample: int) -> str:
        """The first rejections at step 0, with both models' first choices."""
        (strip, drafts), text = self.case.opened(sample, 0), self.inv.samples[sample]
        wrong, judged, join = strip.rejections(0), self.case.judged, "" if self.case.tokenizer is not None else " "
        rows = []
        for row in wrong[:FIRST_REJECTIONS]:
            column, place = strip.column(row), int(row) + 2
            before = join.join(pieces.names(self.texts, strip.token_ids[max(0, place - BEFORE) : place]))
            drafted = int(strip.outcome.drafted[0, column])
            cells = [int(row), before, pieces.names(self.texts, [strip.wanted[0, column]])[0]]
            cells.append(pieces.line_of(drafts.choices(int(row), 0, drafted), self.texts))
            rows.append([*cells, *([pieces.line_of(target_choices(self.inv.judge, text, place), self.texts)] if judged else [])])
        caption = f"The first {len(rows)} of {len(wrong):,} rejections at step 0, the dump's feed"
        return pieces.rejections(rows, caption, judged) if rows else parts.nothing("Nothing is rejected at step 0.")


def _notes(written: int, wanted: int, drafted: int, judged: bool) -> dict[int, str]:
    """What the tokens of one place are, by id."""
    notes: dict[int, list[str]] = {}
    for token, what in ((written, "the text's"), (wanted if judged else -1, "the target's choice"), (drafted, "drafted")):
        if token >= 0:
            notes.setdefault(token, []).append(what)
    return {token: ", ".join(what) for token, what in notes.items()}
