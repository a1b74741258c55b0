"""Where a case's drafter loses acceptance, each look once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from eaglelab.lost.classes import TokenClass, token_classes
from eaglelab.lost.context import Fall, fall
from eaglelab.lost.cost import class_costs
from eaglelab.lost.costly import AROUND, costly_tokens
from eaglelab.lost.rows import Rows
from eaglelab.opened import NotGiven
from eaglelab.text import token_texts

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation


class LostCase:
    """What the replay on the dump's own feed says of its losses; raises what `Investigation.own_replay` raises."""

    def __init__(self, inv: Investigation) -> None:
        self.inv = inv

    @cached_property
    def rows(self) -> Rows:
        samples = self.inv.samples
        return Rows.of(self.inv.own_replay, samples, self.inv.judge.answers(samples))

    @cached_property
    def tokenizer(self) -> Any | None:
        """None where there is none, or none that can be read (`text.tokens` says why)."""
        try:
            return self.inv.tokenizer
        except (NotGiven, ValueError, FileNotFoundError):
            return None

    @cached_property
    def classes(self) -> list[TokenClass]:
        return token_classes(self.rows, self.inv.samples, self.tokenizer)

    @cached_property
    def costs(self) -> pd.DataFrame:
        return class_costs(self.rows, self.classes)

    @cached_property
    def fall(self) -> Fall | None:
        """By position in the sample."""
        return fall(self.rows)

    @cached_property
    def costly(self) -> pd.DataFrame:
        """`costly_tokens`, with the text before and after the first stop at each. Texts are shown one token at a time, nothing of them is markup."""
        found, by_key = costly_tokens(self.rows, self.inv.samples), {s.key: s for s in self.inv.samples}
        join = "" if self.tokenizer is not None else " "
        around = [(by_key[r.sample].token_ids.tolist(), r.position) for r in found.itertuples()]
        return found.assign(
            before=[join.join(token_texts(self.tokenizer, ids[max(0, p - AROUND) : p])) for ids, p in around],
            after=[join.join(token_texts(self.tokenizer, ids[p + 1 : p + 1 + AROUND])) for ids, p in around],
            token=token_texts(self.tokenizer, found["token"]),
            drafted=token_texts(self.tokenizer, found["drafted"]),
            token_id=found["token"],
        )
