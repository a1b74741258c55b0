"""The served text against what was expected: is it the same target, in the same arithmetic?

The prompts go as token ids, so no chat template of the server's comes between: a difference is one of the target, of its precision, or
of the expected text (a data set's answers are nobody's greedy text).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eaglelab.live.prompts import Prompt
from eaglelab.served.recording import Recording, Request
from eaglelab.text import first_difference, token_texts

if TYPE_CHECKING:
    import pandas as pd

    from eaglelab.dumps import Sample
    from eaglelab.replay import Judge

CONTEXT = 6
"""Tokens shown before the first difference."""
TAIL = 2
"""Tokens that a template writes behind the one that ends the turn (a line end), which a mask may train and no engine writes."""
ROUNDING, OTHER = 0.02, 0.1
"""First differences per compared token. Below the first, near-ties can explain them: a 135M target's greedy text in bf16 parted from that in
float32 once in 96 tokens. Above the second they cannot."""
HALF, MOST = 0.5, 0.8
NEAR_TIE = 0.25
"""Gap of two logits that rounding to bf16 may close: its spacing is 0.06 to 0.12 for logits of 16 to 32, and the states are rounded too."""

COLUMNS = ["request", "sample", "expected", "served", "same", "position", "ours", "theirs", "before", "gap", "finish"]
SHOWN = {
    "sample": "sample",
    "expected": "dump's tokens",
    "served": "server's tokens",
    "same": "same to the end",
    "position": "first different",
    "ours": "dump's token there",
    "theirs": "server's token there",
    "gap": "gap (logits)",
}
"""What the columns that people read are called there."""


@dataclass(frozen=True)
class TextComparison:
    table: pd.DataFrame
    """One row a request that has an expected answer and returned token ids: request, sample, expected and served (tokens), same, position
    (of the first differing token within the answer), ours (the expected token), theirs (the served one), before, gap (how much the target's
    logit of the expected token is above that of the served one, by the dump's own last state; missing where it is not at hand), finish."""
    without: int
    """Requests that could not be compared: no expected answer, or no token ids in the answer."""

    @property
    def identical(self) -> int:
        return int(self.table["same"].sum())

    @property
    def rate(self) -> float | None:
        """First differences per compared token."""
        rows = self.table
        compared = int(rows[["expected", "served"]].min(axis=1).where(rows["same"], rows["position"] + 1).sum())
        return (len(rows) - self.identical) / compared if compared else None

    @property
    def diagnosis(self) -> tuple[str, str]:
        """(`identical`, `near-ties`, `other target`, `other text`, `cannot tell` or `not compared`; what that means)."""
        rows, n = self.table, len(self.table)
        if not n:
            return "not compared", "no request has both an expected answer and served token ids"
        differ = rows[~rows["same"].astype(bool)]
        said = f"{self.identical} of {n} answers are identical to the expected ones"
        if not len(differ):
            return "identical", f"{said}: the same target, read the same way"
        first, places = int((differ["position"] == 0).sum()), sorted(differ["position"])
        said += f"; the others differ first at token {places[len(places) // 2]} (median), once in {1 / self.rate:.0f} compared tokens"
        gaps = differ["gap"].dropna()
        ties, of = int((gaps.abs() < NEAR_TIE).sum()), len(gaps)
        if of:
            said += f"; at {ties} of {of} of these places the target's own logits have the two tokens within {NEAR_TIE}"
        if of and ties >= MOST * of:
            return "near-ties", f"{said}: the same target in another arithmetic (dtype, kernels, batch)"
        if of and (gaps > NEAR_TIE).sum() >= MOST * of:
            return "other target", f"{said}, and else it prefers the expected one: the server runs another target, or samples"
        if of and (gaps < -NEAR_TIE).sum() >= MOST * of:
            return "other text", f"{said}, and else it prefers the served one: the expected text is not this target's greedy text"
        if first >= HALF * n or self.rate >= OTHER:
            often = f"{first} differ at the very first token" if first >= HALF * n else "too often for rounding"
            return "other text", f"{said}. {often}: another target, or the expected text is not its greedy text"
        if self.rate < ROUNDING and not of:
            return "cannot tell", (
                f"{said}: as seldom as near-ties of another dtype make it, and as a target that was changed a little would; the target's "
                "lm_head (`[target] path`) tells them apart"
            )
        return "cannot tell", f"{said}: between what rounding makes and what another text would"

    def to_json(self) -> dict[str, Any]:
        kind, text = self.diagnosis
        rows = self.table.astype(object).where(self.table.notna(), None)
        return {
            "compared": len(self.table),
            "identical": self.identical,
            "not_compared": self.without,
            "differences_per_token": self.rate,
            "diagnosis": kind,
            "text": text,
            "requests": rows.to_dict(orient="records"),
        }


Gap = Callable[[Request, int, int, int], float | None]
"""(request, place in its answer, expected token, served token) -> the target's logit of the first less that of the second."""


def compare_text(recording: Recording, prompts: Sequence[Prompt], tokenizer: Any | None = None, gap: Gap | None = None) -> TextComparison:
    import pandas as pd

    expected = {p.index: p.answer for p in prompts}
    asked = [(r, expected.get(r.index)) for r in recording.requests]
    rows = [_row(r, answer, tokenizer, gap) for r, answer in asked if answer and r.token_ids is not None]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"same": "boolean", "position": "Int64", "gap": "float64"})
    return TextComparison(table, len(asked) - len(rows))


def same_answer(expected: Sequence[int], served: Sequence[int], finish: str | None) -> bool:
    """Whether the served answer is the expected one, as far as it was asked for: cut by the bound on its length, or without the few tokens
    that a template writes after the end of the turn."""
    place = first_difference(expected, served)
    if place is None or place == len(expected):
        return True
    return place == len(served) and (finish == "length" or len(expected) - len(served) <= TAIL)


def _row(request: Request, expected: Sequence[int], tokenizer: Any | None, gap: Gap | None) -> dict[str, Any]:
    served = request.token_ids
    row = {"request": request.index, "sample": request.sample or "", "expected": len(expected), "served": len(served), "before": ""}
    row |= {"finish": request.finish_reason or "", "ours": "", "theirs": "", "position": None, "gap": None}
    if same_answer(expected, served, request.finish_reason):
        return row | {"same": True}
    place = first_difference(expected, served)
    join = "" if tokenizer is not None else " "
    before = [*request.prompt_token_ids, *expected[:place]][-CONTEXT:]
    ours, theirs = ("".join(token_texts(tokenizer, ids[place : place + 1])) or "(the end)" for ids in (expected, served))
    both = place < min(len(expected), len(served))
    apart = gap(request, place, expected[place], served[place]) if gap is not None and both else None
    return row | {
        "same": False,
        "position": place,
        "ours": ours,
        "theirs": theirs,
        "before": join.join(token_texts(tokenizer, before)),
        "gap": apart,
    }


def gap_by(judge: Judge, samples: Sequence[Sample]) -> Gap | None:
    """The gap out of the dump's own last states; None where the judge has no lm_head."""
    if judge.head is None:
        return None
    import torch

    from eaglelab.target.head import adjust, head_rows

    by_key = {s.key: s for s in samples}

    def gap(request: Request, place: int, ours: int, theirs: int) -> float | None:
        sample, row = by_key.get(request.sample), len(request.prompt_token_ids) + place - 1  # the state that chooses the token
        rows = judge.head.lm_head.shape[0]
        if sample is None or row >= len(sample.token_ids) or max(ours, theirs) >= rows:
            return None
        state = judge.states([sample], [torch.tensor([row])])[0].float()  # [H]
        weights = head_rows(judge.head.lm_head, torch.tensor([ours, theirs])).float()  # [2, H]
        logits = adjust(weights @ state, judge.head.scale, judge.head.softcap)
        return float(logits[0] - logits[1])

    return gap
