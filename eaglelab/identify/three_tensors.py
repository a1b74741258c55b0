"""Way (b): the embedding's rows, the final norm and the lm_head. They tell the embedding, the final-normed state, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from eaglelab.identify.rule import Judgement
from eaglelab.target.tensors import TensorSource, next_token_test, normed_test
from eaglelab.wiring import FINAL

NEXT_TOKEN_SAMPLES = 2
"""Samples on which the lm_head is read, whole, once each."""
FEW_RIGHT = 0.05


def find_normed(samples: Sequence[Any], judged: list[list[Judgement]], source: TensorSource) -> None:
    """Say `final` for slots that are not the embedding and have the final norm's gain: RMS of h / w is 1 in every token."""
    normed: list[tuple[Any, int, Judgement]] = []
    for sample, line in zip(samples, judged, strict=True):
        open_slots = [s for s, j in enumerate(line) if j.boundary is None and j.tested and j.kind is None]
        if not open_slots:
            continue
        found = normed_test(sample, source.norm).set_index("slot_name")
        for s in open_slots:
            row = found.loc[sample.slot_names[s]]
            if row.normed:
                line[s].boundary = FINAL
                line[s].reason = f"RMS of h / norm.weight is {row.rms:.4f} in every token (spread {row.spread:.2g}): the final-normed state"
                normed.append((sample, s, line[s]))
            else:
                line[s].reason = line[s].reason.replace("; which", f"; not final-normed (spread {row.spread:.2g}); which")
                line[s].numbers = {"rms": row.rms, "spread": row.spread}
    _add_next_tokens(normed, source)


def _add_next_tokens(normed: list[tuple[Any, int, Judgement]], source: TensorSource) -> None:
    """How often the normed slots' argmax is the text's next token: low where the rows are not of this text."""
    tables: dict[str, pd.DataFrame] = {}
    for sample, s, judgement in normed:
        if sample.key not in tables and len(tables) < NEXT_TOKEN_SAMPLES:
            tables[sample.key] = next_token_test(sample, source.lm_head).set_index("slot_name")
        if sample.key in tables:
            row = tables[sample.key].loc[sample.slot_names[s]]
            judgement.numbers = {"next_token_right": int(row.right), "next_token_of": int(row.tokens)}
            judgement.reason += f"; its argmax is the text's next token in {row.right} of {row.tokens} rows"
            if row.right < FEW_RIGHT * row.tokens:
                judgement.reason += ", which is few: are these rows of these tokens?"
